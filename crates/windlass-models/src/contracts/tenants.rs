//! The tenants that have documents. The operator has a record of each, because a store lists no namespaces.

use windlass_engine::{RecordChange, refusal};
use windlass_kernel::{
    Collection, CommitError, Conflict, Error, Expect, Namespace, Query, RecordId,
};

use super::handle::Contracts;
use super::names::{TENANTS, key};

/// The most tenants that a process remembers to have written down.
const REMEMBERED_MAX: usize = 10_000;
const PAGE: u32 = 100;

impl Contracts {
    /// Writes the tenant of this handle down, once.
    pub(crate) async fn note_tenant(&self) -> Result<(), Error> {
        let namespace = self.engine.namespace();
        if *namespace == self.shared.operator || self.shared.tenants.lock().contains(namespace) {
            return Ok(());
        }
        let id = namespace.as_str();
        if self.shared.row(key(&self.shared.operator, TENANTS, id)?).await?.is_none() {
            let change = RecordChange::put_own(TENANTS, id, &namespace, Expect::Absent)?;
            match self.operator().commit_with(&[change], Vec::new()).await {
                Ok(_) | Err(CommitError::Conflict(Conflict::Record { .. })) => {}
                Err(error) => return Err(refusal(&error)),
            }
        }
        let mut tenants = self.shared.tenants.lock();
        if tenants.len() >= REMEMBERED_MAX {
            tenants.clear();
        }
        tenants.insert(namespace.clone());
        Ok(())
    }

    /// The operator and all tenants that have created a document.
    pub(crate) async fn tenants(&self) -> Result<Vec<Namespace>, Error> {
        let mut found = vec![self.shared.operator.clone()];
        let mut after: Option<RecordId> = None;
        loop {
            let query = Query::Records {
                namespace: self.shared.operator.clone(),
                collection: Collection::new(TENANTS)?,
                term: None,
                after,
                limit: PAGE,
            };
            let page = self.engine.store().list(query).await?.records()?;
            let is_last = page.len() < PAGE as usize;
            after = page.last().map(|record| record.key.id.clone());
            for record in page {
                found.push(Namespace::new(record.key.id.as_str())?);
            }
            if is_last {
                return Ok(found);
            }
        }
    }
}
