//! Lifecycle contracts of the operator and definitions of tenants: drafts, checks, published versions.

use serde::{Deserialize, Serialize};
use windlass_contracts::compile::{self, compile, default_definition};
use windlass_contracts::simulate::{Scenario, Simulation, simulate};
use windlass_contracts::types::{
    CompiledWorkflow, LifecycleContract, MutationSpecRef, NodeConfig, NotificationChannel,
    OrgWorkflowDefinition,
};
use windlass_engine::{Engine, RecordChange, refusal};
use windlass_kernel::{
    Body, Error, ErrorCode, Expect, Namespace, Sha256Digest, Subject, Timestamp,
};

use super::error::{conflict, invalid, no_type, not_compiled, not_found};
use super::handle::Contracts;
use super::names::{
    ARTEFACTS, CHAINS, DEFINITIONS, TYPES, VERSIONS_MAX, check_type_name, key, version_id,
};
use super::shared::Shared;

/// A document type: the head of its published contracts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeHead {
    /// The document type.
    pub entity_type: String,
    /// The version that new definitions and new documents use.
    pub version: u32,
    /// The hash of the artefact without a definition of a tenant.
    pub hash: Sha256Digest,
    /// Whether new documents are refused.
    #[serde(default)]
    pub archived: bool,
}

/// A published version of a contract. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeVersion {
    /// The contract.
    pub contract: LifecycleContract,
    /// The hash of the artefact without a definition of a tenant.
    pub hash: Sha256Digest,
    /// The person who published it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// The definition of a tenant for one document type: its draft and its published versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionHead {
    /// The draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<OrgWorkflowDefinition>,
    /// The published version that new documents use. Without one they use the defaults of the contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedRef>,
    /// The number of the last published version.
    #[serde(default)]
    pub last_version: u32,
}

/// A published version, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedRef {
    /// The number, from 1.
    pub version: u32,
    /// The hash of the artefact.
    pub hash: Sha256Digest,
    /// The version of the contract that it was compiled against.
    pub envelope_version: u32,
}

/// A published version of a definition. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionVersion {
    /// The definition.
    pub definition: OrgWorkflowDefinition,
    /// The hash of the artefact.
    pub hash: Sha256Digest,
    /// The person who published it.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// The version whose content it repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back_to: Option<u32>,
}

/// The result of a compilation of something that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recompiled {
    /// The hash of the artefact.
    pub hash: Sha256Digest,
    /// Whether it is another artefact than before.
    pub changed: bool,
    /// The published version that has it; none for a contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// A definition and its artefact.
struct Compiled {
    definition: OrgWorkflowDefinition,
    artefact: CompiledWorkflow,
}

/// The artefact that a new document is pinned to.
pub(crate) struct Effective {
    pub(crate) hash: Sha256Digest,
    pub(crate) envelope_version: u32,
}

impl Shared {
    pub(crate) async fn type_head(&self, entity_type: &str) -> Result<(TypeHead, u64), Error> {
        check_type_name(entity_type)?;
        let found = self.read(&self.operator, TYPES, entity_type).await?;
        found.ok_or_else(|| no_type(entity_type))
    }

    pub(crate) async fn definition_head(
        &self,
        namespace: &Namespace,
        entity_type: &str,
    ) -> Result<(DefinitionHead, Option<u64>), Error> {
        check_type_name(entity_type)?;
        let found = self.read::<DefinitionHead>(namespace, DEFINITIONS, entity_type).await?;
        Ok(found.map_or_else(Default::default, |(head, revision)| (head, Some(revision))))
    }

    pub(crate) async fn effective(
        &self,
        namespace: &Namespace,
        entity_type: &str,
    ) -> Result<Effective, Error> {
        let (head, _) = self.type_head(entity_type).await?;
        if head.archived {
            let message = format!("the document type {entity_type:?} is archived");
            return Err(super::error::refused(ErrorCode::ContractTypeNotFound, message));
        }
        let (own, _) = self.definition_head(namespace, entity_type).await?;
        Ok(match own.published {
            Some(PublishedRef { hash, envelope_version, .. }) => {
                Effective { hash, envelope_version }
            }
            None => Effective { hash: head.hash, envelope_version: head.version },
        })
    }

    /// Refuses an artefact that needs something that this process does not have.
    fn check_served(&self, artefact: &CompiledWorkflow) -> Result<(), Error> {
        let unserved = |node: &str, what: String| {
            let message = format!("node {node} needs {what}");
            Err(invalid(ErrorCode::ContractInvalid, message))
        };
        for (id, node) in &artefact.nodes {
            match &node.config {
                NodeConfig::Action(action) => {
                    let mutations = std::iter::once(&action.mutation).chain(&action.compensate);
                    let unknown = |one: &&MutationSpecRef| !self.actions.knows(&one.action_type);
                    if let Some(one) = mutations.into_iter().find(unknown) {
                        let what =
                            format!("the action {:?}, which is not registered", one.action_type);
                        return unserved(id, what);
                    }
                }
                NodeConfig::Notification(config) if !self.serves_channel(config.channel) => {
                    let what = format!("the channel {:?}, which is not configured", config.channel);
                    return unserved(id, what);
                }
                NodeConfig::WebhookOut(_) if !self.serves_webhooks => {
                    return unserved(id, "webhooks, which are not configured".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn serves_channel(&self, channel: NotificationChannel) -> bool {
        match channel {
            NotificationChannel::InApp => true,
            NotificationChannel::Email => self.serves_mail,
            NotificationChannel::Sms => false,
        }
    }

    /// Refuses an artefact that names an approval chain which the tenant does not have.
    async fn check_chains(
        &self,
        namespace: &Namespace,
        artefact: &CompiledWorkflow,
    ) -> Result<(), Error> {
        for (id, node) in &artefact.nodes {
            let NodeConfig::Approval(config) = &node.config else { continue };
            let Some(name) = &config.chain else { continue };
            if self.row(key(namespace, CHAINS, name)?).await?.is_none() {
                let message =
                    format!("node {id} needs the approval chain {name:?}, which does not exist");
                return Err(invalid(ErrorCode::ContractInvalid, message));
            }
        }
        Ok(())
    }
}

impl Contracts {
    /// Publishes the next version of a lifecycle contract, and serves its documents from now on.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// use windlass::contracts::language::templates;
    ///
    /// let template = &templates::all()[0];
    /// let published = contracts.publish_type(&template.contract, &dana).await?;
    /// println!("version {} of {}", published.version, published.entity_type);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractInvalid`] if the contract or its default patches do not compile, or if its version
    /// is not the next one.
    pub async fn publish_type(
        &self,
        contract: &LifecycleContract,
        by: &Subject,
    ) -> Result<TypeHead, Error> {
        let entity_type = contract.entity_type.clone();
        check_type_name(&entity_type)?;
        let artefact = compile(contract, &default_definition(contract)).map_err(not_compiled)?;
        self.shared.check_served(&artefact)?;
        let operator = self.operator();
        let before =
            self.shared.read::<TypeHead>(&self.shared.operator, TYPES, &entity_type).await?;
        let next = before.as_ref().map_or(1, |(head, _)| head.version + 1);
        if contract.version != next {
            let message = format!(
                "the contract of {entity_type:?} has version {}; publish version {next}",
                contract.version
            );
            return Err(invalid(ErrorCode::ContractInvalid, message));
        }
        check_count(next)?;
        let head = TypeHead {
            entity_type: entity_type.clone(),
            version: next,
            hash: artefact.hash,
            archived: false,
        };
        let version = TypeVersion {
            contract: contract.clone(),
            hash: artefact.hash,
            by: by.id().to_owned(),
            at: operator.clock().now(),
        };
        let expect = before.map_or(Expect::Absent, |(_, revision)| Expect::At(revision));
        let mut changes = vec![
            RecordChange::put_own(TYPES, &entity_type, &head, expect)?.term("kind", "head")?,
            RecordChange::put_own(TYPES, version_id(&entity_type, next), &version, Expect::Absent)?
                .keep()
                .by(&by.actor()),
        ];
        changes.extend(self.artefact_change(&operator, &artefact, by).await?);
        operator.commit_with(&changes, Vec::new()).await.map_err(|error| refusal(&error))?;
        self.serve(&entity_type)?;
        Ok(head)
    }

    /// The document types, in order of their names.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for published in contracts.types().await? {
    ///     println!("{} {}", published.entity_type, published.version);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn types(&self) -> Result<Vec<TypeHead>, Error> {
        let operator = self.operator();
        let records = operator.records::<TypeHead>(TYPES);
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let mut listing = records.find("kind", "head");
            if let Some(id) = after {
                listing = listing.after(id);
            }
            let page = listing.page(100).await?;
            let last = page.len() < 100;
            after = page.last().map(|head| head.id.clone());
            found.extend(page.into_iter().map(|head| head.value));
            if last {
                return Ok(found);
            }
        }
    }

    /// A published version of a contract; the newest one without a number.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let newest = contracts.contract("invoice", None).await?;
    /// let first = contracts.contract("invoice", Some(1)).await?;
    /// # drop((newest, first));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractTypeNotFound`] if there is no such type or version.
    pub async fn contract(
        &self,
        entity_type: &str,
        version: Option<u32>,
    ) -> Result<LifecycleContract, Error> {
        let version = match version {
            Some(version) => version,
            None => self.shared.type_head(entity_type).await?.0.version,
        };
        Ok(self.shared.contract(entity_type, version).await?.contract.clone())
    }

    /// Refuses new documents of a type. Documents that exist go on.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// assert!(contracts.archive_type("invoice").await?.archived);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractTypeNotFound`] if there is no such type.
    pub async fn archive_type(&self, entity_type: &str) -> Result<TypeHead, Error> {
        let (mut head, revision) = self.shared.type_head(entity_type).await?;
        head.archived = true;
        let change =
            RecordChange::put_own(TYPES, entity_type, &head, revision)?.term("kind", "head")?;
        let written = self.operator().commit_with(&[change], Vec::new()).await;
        written.map_err(|error| refusal(&error))?;
        Ok(head)
    }

    /// The draft and the published version of this tenant's definition.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// assert!(contracts.definition("invoice").await?.draft.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractTypeNotFound`] if there is no such type.
    pub async fn definition(&self, entity_type: &str) -> Result<DefinitionHead, Error> {
        self.shared.type_head(entity_type).await?;
        Ok(self.shared.definition_head(self.engine.namespace(), entity_type).await?.0)
    }

    /// A published version of this tenant's definition.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{}", contracts.definition_version("invoice", 1).await?.by);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DefinitionNotFound`] if there is none with this number.
    pub async fn definition_version(
        &self,
        entity_type: &str,
        version: u32,
    ) -> Result<DefinitionVersion, Error> {
        check_type_name(entity_type)?;
        let id = version_id(entity_type, version);
        let found = self.shared.read_sealed(self.engine.namespace(), DEFINITIONS, &id).await?;
        found.ok_or_else(|| {
            let message =
                format!("the definition of {entity_type:?} has no published version {version}");
            not_found(ErrorCode::DefinitionNotFound, message)
        })
    }

    /// Stores a draft. It need not compile.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let draft = r#"{"baseRef": {"entityType": "invoice", "envelopeVersion": 1}, "slots": {}}"#;
    /// contracts.put_draft("invoice", &serde_json::from_str(draft)?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractTypeNotFound`] if there is no such type, [`ErrorCode::RecordConflict`] if another
    /// writer was first.
    pub async fn put_draft(
        &self,
        entity_type: &str,
        definition: &OrgWorkflowDefinition,
    ) -> Result<DefinitionHead, Error> {
        self.shared.type_head(entity_type).await?;
        let (mut head, revision) =
            self.shared.definition_head(self.engine.namespace(), entity_type).await?;
        head.draft = Some(definition.clone());
        self.put_head(entity_type, &head, revision, Vec::new()).await?;
        Ok(head)
    }

    /// Compiles a definition against the newest contract and checks that this process can run it.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let draft = r#"{"baseRef": {"entityType": "invoice", "envelopeVersion": 1}, "slots": {}}"#;
    /// let compiled = contracts.check("invoice", &serde_json::from_str(draft)?).await?;
    /// println!("{} nodes", compiled.nodes.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractInvalid`]; the source of the error is the [`compile::Error`] with all problems.
    pub async fn check(
        &self,
        entity_type: &str,
        definition: &OrgWorkflowDefinition,
    ) -> Result<CompiledWorkflow, Error> {
        let (head, _) = self.shared.type_head(entity_type).await?;
        let contract = self.shared.contract(entity_type, head.version).await?;
        let artefact = compile(&contract.contract, definition).map_err(not_compiled)?;
        self.shared.check_served(&artefact)?;
        self.shared.check_chains(self.engine.namespace(), &artefact).await?;
        Ok(artefact)
    }

    /// Runs a scenario against the draft, or against the effective workflow if there is no draft. Nothing is
    /// stored.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// use windlass::contracts::language::simulate::Scenario;
    ///
    /// let scenario = Scenario::read(r#"{"document": {"id": "i-1", "total": 900, "requester": "rita"}}"#);
    /// let simulation = contracts.simulate("invoice", &scenario.expect("it is a scenario")).await?;
    /// # drop(simulation);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractInvalid`] if the draft does not compile or the simulation does not end.
    pub async fn simulate(
        &self,
        entity_type: &str,
        scenario: &Scenario,
    ) -> Result<Simulation, Error> {
        let head = self.definition(entity_type).await?;
        let failed = |problem: windlass_contracts::diagnostic::Diagnostic| {
            invalid(ErrorCode::ContractInvalid, problem.to_string())
        };
        match &head.draft {
            Some(draft) => {
                simulate(&self.check(entity_type, draft).await?, scenario).map_err(failed)
            }
            None => simulate(&*self.workflow(entity_type).await?, scenario).map_err(failed),
        }
    }

    /// The workflow that a new document of this tenant gets.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{} nodes", contracts.workflow("invoice").await?.nodes.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractTypeNotFound`] if there is no such type.
    pub async fn workflow(
        &self,
        entity_type: &str,
    ) -> Result<std::sync::Arc<CompiledWorkflow>, Error> {
        let namespace = self.engine.namespace();
        let effective = self.shared.effective(namespace, entity_type).await?;
        self.shared.artefact(namespace, effective.hash).await
    }

    /// Compiles the draft and publishes it. Documents that exist keep their artefact.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("version {}", contracts.publish("invoice", &dana).await?.version);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DefinitionNotFound`] if there is no draft, [`ErrorCode::ContractInvalid`] if it does not
    /// compile, [`ErrorCode::RecordConflict`] if another writer was first.
    pub async fn publish(&self, entity_type: &str, by: &Subject) -> Result<PublishedRef, Error> {
        let (mut head, revision) =
            self.shared.definition_head(self.engine.namespace(), entity_type).await?;
        let draft = head.draft.take().ok_or_else(|| {
            let message = format!("the definition of {entity_type:?} has no draft");
            not_found(ErrorCode::DefinitionNotFound, message)
        })?;
        let artefact = self.check(entity_type, &draft).await?;
        // A definition that is published already gets no second version.
        if let Some(published) = head.published.filter(|one| one.hash == artefact.hash) {
            let before = self.definition_version(entity_type, published.version).await?;
            if before.definition == draft {
                self.put_head(entity_type, &head, revision, Vec::new()).await?;
                return Ok(published);
            }
        }
        let new = Compiled { definition: draft, artefact };
        self.publish_as(entity_type, head, revision, new, None, by).await
    }

    /// Publishes the content of an earlier version again. It is compiled against the newest contract, also if it
    /// was made for an older one.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("version {}", contracts.roll_back("invoice", 1, &dana).await?.version);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Contracts::publish`].
    pub async fn roll_back(
        &self,
        entity_type: &str,
        version: u32,
        by: &Subject,
    ) -> Result<PublishedRef, Error> {
        let mut definition = self.definition_version(entity_type, version).await?.definition;
        let (head, revision) =
            self.shared.definition_head(self.engine.namespace(), entity_type).await?;
        definition.base_ref.envelope_version = self.shared.type_head(entity_type).await?.0.version;
        let artefact = self.check(entity_type, &definition).await?;
        let new = Compiled { definition, artefact };
        self.publish_as(entity_type, head, revision, new, Some(version), by).await
    }

    /// Lets new documents use the defaults of the contract again. Documents that exist keep their artefact.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// assert!(contracts.archive("invoice").await?.published.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DefinitionNotFound`] if nothing is published.
    pub async fn archive(&self, entity_type: &str) -> Result<DefinitionHead, Error> {
        let (mut head, revision) =
            self.shared.definition_head(self.engine.namespace(), entity_type).await?;
        if head.published.take().is_none() {
            let message = format!("the definition of {entity_type:?} has no published version");
            return Err(not_found(ErrorCode::DefinitionNotFound, message));
        }
        self.put_head(entity_type, &head, revision, Vec::new()).await?;
        Ok(head)
    }

    /// Makes a draft for the newest contract from the published version. The draft is stored even if it does
    /// not compile, so that it can be corrected.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// contracts.rebase("invoice").await?;
    /// contracts.publish("invoice", &dana).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DefinitionNotFound`] if nothing is published; [`ErrorCode::ContractInvalid`] if the patches
    /// do not fit the newest contract.
    pub async fn rebase(&self, entity_type: &str) -> Result<CompiledWorkflow, Error> {
        let (head, _) = self.shared.type_head(entity_type).await?;
        let own = self.definition(entity_type).await?;
        let published = own.published.ok_or_else(|| {
            let message = format!("the definition of {entity_type:?} has no published version");
            not_found(ErrorCode::DefinitionNotFound, message)
        })?;
        let version = self.definition_version(entity_type, published.version).await?;
        let mut draft = version.definition;
        draft.base_ref.envelope_version = head.version;
        self.put_draft(entity_type, &draft).await?;
        self.check(entity_type, &draft).await
    }

    /// Compiles the published version again, or the contract if the operator asks and nothing is published. New
    /// documents use the new artefact; documents that exist keep theirs. An artefact that would not change stays.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{}", contracts.recompile("invoice", &dana).await?.changed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DefinitionNotFound`] if nothing is published and the caller is not the operator,
    /// [`ErrorCode::ContractInvalid`] if the content no longer compiles.
    pub async fn recompile(&self, entity_type: &str, by: &Subject) -> Result<Recompiled, Error> {
        let namespace = self.engine.namespace();
        let (head, revision) = self.shared.definition_head(namespace, entity_type).await?;
        let Some(published) = head.published else {
            return self.recompile_type(entity_type, by).await;
        };
        let definition = self.definition_version(entity_type, published.version).await?.definition;
        let contract = self.shared.contract(entity_type, published.envelope_version).await?;
        let artefact = compile(&contract.contract, &definition).map_err(not_compiled)?;
        self.shared.check_served(&artefact)?;
        let (hash, mut version) = (artefact.hash, published.version);
        if hash != published.hash {
            let new = Compiled { definition, artefact };
            version = self.publish_as(entity_type, head, revision, new, None, by).await?.version;
        }
        Ok(Recompiled { hash, changed: hash != published.hash, version: Some(version) })
    }

    async fn recompile_type(&self, entity_type: &str, by: &Subject) -> Result<Recompiled, Error> {
        let (mut head, revision) = self.shared.type_head(entity_type).await?;
        if *self.engine.namespace() != self.shared.operator {
            let message = format!("the definition of {entity_type:?} has no published version");
            return Err(not_found(ErrorCode::DefinitionNotFound, message));
        }
        let contract = self.shared.contract(entity_type, head.version).await?;
        let contract = &contract.contract;
        let artefact = compile(contract, &default_definition(contract)).map_err(not_compiled)?;
        self.shared.check_served(&artefact)?;
        let (hash, changed) = (artefact.hash, artefact.hash != head.hash);
        if changed {
            head.hash = hash;
            let change = RecordChange::put_own(TYPES, entity_type, &head, revision)?;
            let mut changes = vec![change.term("kind", "head")?];
            changes.extend(self.artefact_change(&self.engine, &artefact, by).await?);
            let written = self.engine.commit_with(&changes, Vec::new()).await;
            written.map_err(|error| refusal(&error))?;
        }
        Ok(Recompiled { hash, changed, version: None })
    }

    async fn publish_as(
        &self,
        entity_type: &str,
        mut head: DefinitionHead,
        revision: Option<u64>,
        new: Compiled,
        rolled_back_to: Option<u32>,
        by: &Subject,
    ) -> Result<PublishedRef, Error> {
        let Compiled { definition, artefact } = new;
        let number = head.last_version + 1;
        check_count(number)?;
        let published = PublishedRef {
            version: number,
            hash: artefact.hash,
            envelope_version: artefact.envelope_version,
        };
        (head.published, head.last_version) = (Some(published), number);
        let version = DefinitionVersion {
            definition,
            hash: artefact.hash,
            by: by.id().to_owned(),
            at: self.engine.clock().now(),
            rolled_back_to,
        };
        let id = version_id(entity_type, number);
        let mut changes = vec![
            RecordChange::put_own(DEFINITIONS, id, &version, Expect::Absent)?
                .keep()
                .by(&by.actor()),
        ];
        changes.extend(self.artefact_change(&self.engine, &artefact, by).await?);
        self.put_head(entity_type, &head, revision, changes).await?;
        Ok(published)
    }

    async fn put_head(
        &self,
        entity_type: &str,
        head: &DefinitionHead,
        revision: Option<u64>,
        mut changes: Vec<RecordChange>,
    ) -> Result<(), Error> {
        let expect = revision.map_or(Expect::Absent, Expect::At);
        changes.insert(0, RecordChange::put_own(DEFINITIONS, entity_type, head, expect)?);
        let written = self.engine.commit_with(&changes, Vec::new()).await;
        written.map(drop).map_err(|error| refusal(&error))
    }

    /// The write of an artefact; none if it is stored already.
    async fn artefact_change(
        &self,
        engine: &Engine,
        artefact: &CompiledWorkflow,
        by: &Subject,
    ) -> Result<Option<RecordChange>, Error> {
        let id = artefact.hash.to_string();
        if self.shared.row(key(engine.namespace(), ARTEFACTS, &id)?).await?.is_some() {
            return Ok(None);
        }
        let bytes = artefact
            .to_json()
            .map_err(|problem| invalid(ErrorCode::ContractInvalid, problem.to_string()))?;
        let change = RecordChange::put_body(ARTEFACTS, id, Body::json(bytes), Expect::Absent)?;
        Ok(Some(change.keep().by(&by.actor())))
    }
}

fn check_count(version: u32) -> Result<(), Error> {
    if version as usize <= VERSIONS_MAX {
        return Ok(());
    }
    let message =
        format!("there are {VERSIONS_MAX} published versions already, which is the limit");
    Err(conflict(ErrorCode::ContractInvalid, message))
}

/// The problems behind an error of a contract or a definition.
pub fn problems_of(error: &Error) -> Option<&compile::Error> {
    std::error::Error::source(error)?.downcast_ref()
}
