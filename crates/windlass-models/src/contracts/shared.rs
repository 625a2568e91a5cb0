//! The part of contracts that handles and runs share: actions, policy, caches, and reads of records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_contracts::approvers::Directory;
use windlass_contracts::document::Validator;
use windlass_contracts::types::{CompiledWorkflow, GateTrigger, LifecycleContract};
use windlass_kernel::{
    Error, ErrorCode, Limits, Namespace, Query, Record, RecordKey, Sha256Digest, Store,
};

use super::actions::Actions;
use super::definitions::TypeVersion;
use super::document::Document;
use super::error::{invalid, no_type};
use super::names::{
    ARTEFACTS, DIRECTORY, DOCUMENTS, PEOPLE, SETTINGS, TYPES, document_id, key, version_id,
};
use super::people::DirectorySource;
use super::policy::Policy;

/// The most artefacts and contracts that stay in memory.
const CACHED_MAX: usize = 256;

/// State of one process. It does not hold the engine, because the engine's registry holds it.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) limits: Limits,
    /// The namespace of the operator, which has the contracts.
    pub(crate) operator: Namespace,
    pub(crate) actions: Actions,
    pub(crate) policy: Arc<dyn Policy>,
    /// The people, if they do not come from the record of the tenant.
    pub(crate) people: Option<Arc<dyn DirectorySource>>,
    pub(crate) steps_max: u64,
    pub(crate) serves_webhooks: bool,
    pub(crate) serves_mail: bool,
    pub(crate) figures: super::health::Figures,
    /// Tenants that are known to have a record.
    pub(crate) tenants: Mutex<BTreeSet<Namespace>>,
    artefacts: Mutex<Cache<Sha256Digest, CompiledWorkflow>>,
    contracts: Mutex<Cache<(String, u32), Contract>>,
}

/// A published contract, ready for use.
pub(crate) struct Contract {
    pub(crate) contract: LifecycleContract,
    pub(crate) validator: Validator,
}

impl Contract {
    /// Whether a gate cancels the document.
    pub(crate) fn cancels(&self, gate: &str) -> bool {
        let mut gates = self.contract.gates.iter();
        gates.any(|spec| spec.name == gate && spec.trigger == GateTrigger::Cancel)
    }
}

struct Cache<K, V> {
    entries: BTreeMap<K, Arc<V>>,
    order: VecDeque<K>,
}

impl<K: Ord + Clone, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Ord + Clone, V> Cache<K, V> {
    fn insert(&mut self, key: K, value: Arc<V>) {
        if self.entries.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > CACHED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.entries.remove(&oldest);
            }
        }
    }
}

impl Shared {
    pub(crate) fn new(
        engine: &windlass_engine::Engine,
        actions: Actions,
        (policy, people): (Arc<dyn Policy>, Option<Arc<dyn DirectorySource>>),
        steps_max: u64,
        (serves_webhooks, serves_mail): (bool, bool),
    ) -> Self {
        Self {
            store: Arc::clone(engine.store()),
            limits: engine.options().limits.clone(),
            operator: engine.options().namespace.clone(),
            actions,
            policy,
            people,
            steps_max,
            serves_webhooks,
            serves_mail,
            figures: super::health::Figures::default(),
            tenants: Mutex::default(),
            artefacts: Mutex::default(),
            contracts: Mutex::default(),
        }
    }

    pub(crate) async fn row(&self, key: RecordKey) -> Result<Option<Record>, Error> {
        let found = self.store.records(vec![key]).await?.pop().flatten();
        Ok(found.filter(|record| record.body.is_some()))
    }

    /// Reads the body of a record and its revision.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        namespace: &Namespace,
        collection: &str,
        id: &str,
    ) -> Result<Option<(T, u64)>, Error> {
        let Some(record) = self.row(key(namespace, collection, id)?).await? else {
            return Ok(None);
        };
        let revision = record.revision;
        let body = record.body.as_ref().map(windlass_kernel::Body::read).transpose()?;
        Ok(body.map(|value| (value, revision)))
    }

    /// Reads a published version as it was sealed when it was published. Triggers of the store refuse changes of
    /// kept versions, so a changed row of the record has no effect; damage is found by the digest.
    pub(crate) async fn read_sealed<T: DeserializeOwned>(
        &self,
        namespace: &Namespace,
        collection: &str,
        id: &str,
    ) -> Result<Option<T>, Error> {
        let key = key(namespace, collection, id)?;
        // A published version is written once, so its first revision is the only one.
        let query = Query::RecordVersions { key: key.clone(), before: Some(2), limit: 1 };
        let Some(kept) = self.store.list(query).await?.record_versions()?.pop() else {
            return Ok(None);
        };
        let kept = super::documents::filled_version(&*self.store, kept).await?;
        if Sha256Digest::of(&kept.body.bytes) != kept.digest {
            let message =
                format!("the published version {key} is damaged; restore it from a backup");
            return Err(Error::corrupt(message));
        }
        kept.body.read().map(Some)
    }

    pub(crate) async fn document(
        &self,
        namespace: &Namespace,
        entity_type: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        let record = self.row(key(namespace, DOCUMENTS, &document_id(entity_type, id)?)?).await?;
        record.map(Document::read).transpose().map(Option::flatten)
    }

    /// The people of a tenant; nobody if it has none.
    pub(crate) async fn directory(&self, namespace: &Namespace) -> Result<Directory, Error> {
        if let Some(people) = &self.people {
            return people.directory(namespace).await;
        }
        let found = self.read(namespace, PEOPLE, DIRECTORY).await?;
        Ok(found.map(|(directory, _)| directory).unwrap_or_default())
    }

    /// The settings of a tenant, which expressions read as `org`.
    pub(crate) async fn settings(&self, namespace: &Namespace) -> Result<Value, Error> {
        let found = self.read::<Value>(namespace, PEOPLE, SETTINGS).await?;
        Ok(found.map_or_else(|| Value::Object(serde_json::Map::new()), |(value, _)| value))
    }

    /// A published version of a contract.
    pub(crate) async fn contract(
        &self,
        entity_type: &str,
        version: u32,
    ) -> Result<Arc<Contract>, Error> {
        let cached = (entity_type.to_owned(), version);
        if let Some(found) = self.contracts.lock().entries.get(&cached) {
            return Ok(Arc::clone(found));
        }
        let id = version_id(entity_type, version);
        let found = self.read_sealed::<TypeVersion>(&self.operator, TYPES, &id).await?;
        let found = found.ok_or_else(|| no_type(entity_type))?;
        let validator = Validator::new(&found.contract.schemas.document)
            .map_err(|problem| invalid(ErrorCode::ContractInvalid, problem.to_string()))?;
        let contract = Arc::new(Contract { contract: found.contract, validator });
        self.contracts.lock().insert(cached, Arc::clone(&contract));
        Ok(contract)
    }

    /// The artefact with a hash, of the tenant or of the operator. Its content is checked against the hash
    /// when it is loaded from the store.
    pub(crate) async fn artefact(
        &self,
        namespace: &Namespace,
        hash: Sha256Digest,
    ) -> Result<Arc<CompiledWorkflow>, Error> {
        if let Some(found) = self.artefacts.lock().entries.get(&hash) {
            return Ok(Arc::clone(found));
        }
        let id = hash.to_string();
        let mut record = self.row(key(namespace, ARTEFACTS, &id)?).await?;
        if record.is_none() {
            record = self.row(key(&self.operator, ARTEFACTS, &id)?).await?;
        }
        let stale = |message: String| invalid(ErrorCode::WorkflowCompilerStale, message);
        let body = record.and_then(|record| record.body).ok_or_else(|| {
            stale(format!("the artefact {hash} is not in the store; restore it from a backup"))
        })?;
        let artefact = windlass_contracts::load(&body.bytes)
            .map_err(|problem| stale(format!("the artefact {hash} cannot be used: {problem}")))?;
        if artefact.hash != hash {
            let found = artefact.hash;
            return Err(stale(format!(
                "the record of the artefact {hash} has the artefact {found}"
            )));
        }
        let artefact = Arc::new(artefact);
        self.artefacts.lock().insert(hash, Arc::clone(&artefact));
        Ok(artefact)
    }

    /// Drops all cached artefacts and contracts.
    pub(crate) fn evict(&self) {
        *self.artefacts.lock() = Cache::default();
        *self.contracts.lock() = Cache::default();
    }
}
