//! Lists of what is published: versions of definitions and of contracts, and approval chains.

use serde::Serialize;
use windlass_kernel::{Collection, Error, Query, RecordId, Sha256Digest, Timestamp};

use super::definitions::{DefinitionVersion, TypeVersion};
use super::error::no_type;
use super::handle::Contracts;
use super::names::{CHAINS, DEFINITIONS, TYPES, version_id};

/// A published version of a definition or a contract, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedVersion {
    /// The version.
    pub version: u32,
    /// The hash of the artefact.
    pub hash: Sha256Digest,
    /// The version of the contract that it is for.
    pub envelope_version: u32,
    /// The person who published it.
    pub by: String,
    /// When it was published.
    pub at: Timestamp,
    /// The earlier version whose content it has, if it was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back_to: Option<u32>,
}

impl Contracts {
    /// The published versions of the definition of this tenant before a version, the newest first.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for version in contracts.definition_versions("invoice", None, 20).await? {
    ///     println!("{} by {}", version.version, version.by);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::ContractTypeNotFound`].
    pub async fn definition_versions(
        &self,
        entity_type: &str,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Vec<PublishedVersion>, Error> {
        let head = self.definition(entity_type).await?;
        let namespace = self.engine.namespace();
        let mut found = Vec::new();
        for version in numbers(head.last_version, before, limit) {
            let id = version_id(entity_type, version);
            let one: Option<DefinitionVersion> =
                self.shared.read_sealed(namespace, DEFINITIONS, &id).await?;
            let Some(one) = one else { continue };
            found.push(PublishedVersion {
                version,
                hash: one.hash,
                envelope_version: one.definition.base_ref.envelope_version,
                by: one.by,
                at: one.at,
                rolled_back_to: one.rolled_back_to,
            });
        }
        Ok(found)
    }

    /// The published versions of a contract before a version, the newest first.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for version in contracts.contract_versions("invoice", None, 20).await? {
    ///     println!("{} by {}", version.version, version.by);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::ContractTypeNotFound`].
    pub async fn contract_versions(
        &self,
        entity_type: &str,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Vec<PublishedVersion>, Error> {
        let (head, _) = self.shared.type_head(entity_type).await?;
        let mut found = Vec::new();
        for version in numbers(head.version, before, limit) {
            let id = version_id(entity_type, version);
            let one = self.shared.read_sealed(&self.shared.operator, TYPES, &id).await?;
            let TypeVersion { hash, by, at, .. } = one.ok_or_else(|| no_type(entity_type))?;
            let (envelope_version, rolled_back_to) = (version, None);
            found.push(PublishedVersion {
                version,
                hash,
                envelope_version,
                by,
                at,
                rolled_back_to,
            });
        }
        Ok(found)
    }

    /// The names of the approval chains of this tenant, in order.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for name in contracts.chains(None, 100).await? {
    ///     println!("{name}: {} stages", contracts.chain(&name).await?.stages.len());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn chains(&self, after: Option<&str>, limit: u32) -> Result<Vec<String>, Error> {
        let query = Query::Records {
            namespace: self.engine.namespace().clone(),
            collection: Collection::new(CHAINS)?,
            term: None,
            after: after.map(RecordId::new).transpose()?,
            limit,
        };
        let rows = self.engine.store().list(query).await?.records()?;
        Ok(rows.into_iter().map(|record| record.key.id.as_str().to_owned()).collect())
    }
}

/// So many numbers of versions before one, the newest first.
fn numbers(last: u32, before: Option<u32>, limit: u32) -> impl Iterator<Item = u32> {
    let newest = before.map_or(last, |before| before.saturating_sub(1).min(last));
    (1..=newest).rev().take(limit as usize)
}
