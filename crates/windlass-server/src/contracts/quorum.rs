//! How far the decisions on a request for approval have come.

use std::collections::BTreeSet;

use serde::Serialize;
use windlass::contracts::language::tokens::count;
use windlass::contracts::language::types::{ApprovalConfig, NodeConfig};
use windlass::contracts::{Approval, ApprovalStatus, Contracts, Review};

use crate::error::ApiError;

/// A request with its content and the progress of its quorum.
#[derive(Serialize)]
pub(super) struct Reviewed {
    #[serde(flatten)]
    pub(super) review: Review,
    /// Absent if the request is not open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quorum: Option<Progress>,
}

/// The approvals, or their weight, and how many the node needs. With a chain, those of its current stage.
#[derive(Serialize)]
pub(super) struct Progress {
    granted: u64,
    needed: u64,
}

/// Counts the decisions on an open request as the run does: those of people who have made or edited the document do
/// not count.
pub(super) async fn progress(
    contracts: &Contracts,
    approval: &Approval,
) -> Result<Option<Progress>, ApiError> {
    if approval.status != ApprovalStatus::Open {
        return Ok(None);
    }
    let (name, id) = (&approval.entity_type, &approval.document);
    let workflow = contracts.document_workflow(name, id).await?;
    let node = workflow.nodes.get(&approval.node);
    let Some(NodeConfig::Approval(config)) = node.map(|node| &node.config) else {
        return Ok(None);
    };
    let row = contracts.document(name, id).await?.row;
    let counts = |person: &String| !row.editors.contains(person) && row.requester != *person;
    let asked = approval
        .asked
        .iter()
        .filter(|asked| counts(&asked.person) && asked.on_behalf_of.as_ref().is_none_or(&counts));
    let mut people: BTreeSet<String> = asked.map(|asked| asked.person.clone()).collect();
    let stage = approval.chain.as_ref().and_then(|chain| {
        people.retain(|person| chain.people.contains(person));
        chain.stages.get(chain.stage)
    });
    let config = match stage {
        Some(stage) => ApprovalConfig {
            approvers: None,
            chain: None,
            quorum: stage.quorum.clone(),
            rejection: stage.rejection,
            due: None,
        },
        None => config.clone(),
    };
    let decisions = approval.decisions.iter();
    let decisions = decisions.map(|(person, note)| (person.clone(), note.verdict)).collect();
    let counted = count(&config, &people, &decisions);
    Ok(Some(Progress { granted: counted.granted, needed: counted.needed }))
}
