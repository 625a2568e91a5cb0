//! The view of a request that a person decides on: the content that it is about, and the changes since the
//! content that they approved before.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use windlass_contracts::document::{FieldChange, changes};
use windlass_contracts::tokens::{Verdict, count};
use windlass_contracts::types::NodeConfig;
use windlass_kernel::{Error, ErrorCode, Subject};

use super::approvals::{Approval, ApprovalStatus};
use super::error::not_found;
use super::handle::Contracts;

/// How many requests are read at once.
const PAGE: u32 = 100;

/// A request with the content that it is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Review {
    /// The request.
    #[serde(flatten)]
    pub approval: Approval,
    /// The content of its version, which has its digest.
    pub content: Value,
    /// The last version before it that the person approved.
    pub since: Option<u64>,
    /// The fields that differ from that version.
    pub diff: BTreeMap<String, FieldChange>,
}

/// The votes for a request, or their weight, and how many the node needs. With a chain, those of its current stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The votes for it so far.
    pub granted: u64,
    /// The votes that it needs.
    pub needed: u64,
}

impl Contracts {
    /// How far the decisions on an open request have come, counted as the run counts them. `None` if the request is not
    /// open.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for request in contracts.inbox(&dana, None, 20).await? {
    ///     println!("{}: {:?}", request.id, contracts.progress(&request).await?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The document does not exist, or the store does not answer.
    pub async fn progress(&self, approval: &Approval) -> Result<Option<Progress>, Error> {
        if approval.status != ApprovalStatus::Open {
            return Ok(None);
        }
        let (entity_type, document) = (&approval.entity_type, &approval.document);
        let row = self.document(entity_type, document).await?.row;
        let (counted, givers) = (approval.counted(&row), approval.givers());
        let decisions = approval.decisions.iter();
        let decisions = decisions.map(|(person, note)| (person.clone(), note.verdict)).collect();
        let found = match &approval.chain {
            Some(chain) => chain.stage_count(&counted, &decisions, &givers),
            None => {
                let workflow = self.document_workflow(entity_type, document).await?;
                match workflow.nodes.get(&approval.node).map(|node| &node.config) {
                    Some(NodeConfig::Approval(config)) => {
                        Some(count(config, &counted, &decisions, &givers))
                    }
                    _ => None,
                }
            }
        };
        Ok(found.map(|found| Progress { granted: found.granted, needed: found.needed }))
    }

    /// Reads a request with the content that it is about, and with the changes since the content that a person
    /// approved last.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for request in contracts.inbox(&dana, None, 20).await? {
    ///     let review = contracts.review(&request.id, Some(&dana)).await?;
    ///     println!("{} with the changes {:?}", review.content, review.diff);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ApprovalNotFound`] if there is none, [`ErrorCode::RecordVersionNotFound`] if the content of its
    /// version is no longer kept.
    pub async fn review(&self, id: &str, person: Option<&Subject>) -> Result<Review, Error> {
        let approval = self.approval(id).await?;
        let (entity_type, document) = (&approval.entity_type, &approval.document);
        let pinned = self.document_version(entity_type, document, approval.version).await?;
        if super::names::digest_of(&pinned.content)? != approval.digest {
            let message = format!("the content of request {id:?} is no longer kept");
            return Err(not_found(ErrorCode::RecordVersionNotFound, message));
        }
        let since = match person {
            Some(person) => self.last_approved(&approval, person.id()).await?,
            None => None,
        };
        let diff = match since {
            Some(since) => {
                let before = self.document_version(entity_type, document, since).await?;
                changes(&before.content, &pinned.content)
            }
            None => BTreeMap::new(),
        };
        Ok(Review { content: pinned.content, since, diff, approval })
    }

    /// The last version before that of a request that a person approved.
    async fn last_approved(&self, request: &Approval, person: &str) -> Result<Option<u64>, Error> {
        let (mut since, mut after): (Option<u64>, Option<String>) = (None, None);
        loop {
            let (entity_type, document) = (&request.entity_type, &request.document);
            let page = self.approvals_of(entity_type, document, after.as_deref(), PAGE).await?;
            let approved = page.iter().filter(|one| {
                let decision = one.decisions.get(person);
                one.version < request.version
                    && decision.is_some_and(|note| note.verdict == Verdict::Approved)
            });
            since = approved.map(|one| one.version).chain(since).max();
            if page.len() < PAGE as usize {
                return Ok(since);
            }
            after = page.last().map(|one| one.id.clone());
        }
    }
}
