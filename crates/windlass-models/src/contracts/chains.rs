//! Approval chains of a tenant: stages that are asked one after the other.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use windlass_contracts::tokens::{Count, Verdict, count};
use windlass_contracts::types::{ApprovalConfig, ApproverSpec, Quorum, RejectionRule};
use windlass_engine::{RecordChange, refusal};
use windlass_kernel::{Error, ErrorCode, Expect, Subject};

use super::approvals::Approval;
use super::error::{invalid, not_found};
use super::handle::Contracts;
use super::names::{CHAINS, key};

/// The most stages of a chain.
pub const STAGES_MAX: usize = 10;

/// An approval chain. A request copies it, so that later changes do not reach requests that are open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chain {
    /// The stages, in order. Each is asked when the one before has approved.
    pub stages: Vec<Stage>,
}

/// A stage of an approval chain. People who have decided in an earlier stage are not asked again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stage {
    /// The people who are asked.
    pub approvers: ApproverSpec,
    /// How many of them must approve. [default: any]
    #[serde(default)]
    pub quorum: Quorum,
    /// When rejections end the request. [default: first]
    #[serde(default)]
    pub rejection: RejectionRule,
}

/// The progress of a request that follows a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainProgress {
    /// The stages.
    pub stages: Vec<Stage>,
    /// The stage that is asked now, from 0.
    pub stage: usize,
    /// The people of this stage.
    pub people: BTreeSet<String>,
}

/// The result of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageResult {
    /// More decisions are needed.
    Open,
    /// The next stage is asked.
    Next,
    /// The request is decided.
    Decided,
}

impl ChainProgress {
    /// The result of the stage that is asked now.
    pub(crate) fn result(
        &self,
        counted: &BTreeSet<String>,
        decisions: &BTreeMap<String, Verdict>,
        givers: &BTreeMap<String, String>,
    ) -> StageResult {
        match self.stage_verdict(counted, decisions, givers) {
            None => StageResult::Open,
            Some(Verdict::Approved) if self.stage + 1 < self.stages.len() => StageResult::Next,
            Some(_) => StageResult::Decided,
        }
    }

    fn stage_verdict(
        &self,
        counted: &BTreeSet<String>,
        decisions: &BTreeMap<String, Verdict>,
        givers: &BTreeMap<String, String>,
    ) -> Option<Verdict> {
        self.stage_count(counted, decisions, givers)?.verdict
    }

    /// The count of the stage that is asked now.
    pub(crate) fn stage_count(
        &self,
        counted: &BTreeSet<String>,
        decisions: &BTreeMap<String, Verdict>,
        givers: &BTreeMap<String, String>,
    ) -> Option<Count> {
        let stage = self.stages.get(self.stage)?;
        let config = ApprovalConfig {
            approvers: Some(stage.approvers.clone()),
            chain: None,
            quorum: stage.quorum.clone(),
            rejection: stage.rejection,
            due: None,
        };
        let people = self.people.intersection(counted).cloned().collect();
        Some(count(&config, &people, decisions, givers))
    }

    /// The people and decisions that the node counts after the last stage: those who approved, or those of
    /// the last stage who did not.
    pub(crate) fn final_votes(
        &self,
        counted: &BTreeSet<String>,
        decisions: &BTreeMap<String, Verdict>,
        givers: &BTreeMap<String, String>,
    ) -> (BTreeSet<String>, BTreeMap<String, Verdict>) {
        let verdict = self.stage_verdict(counted, decisions, givers);
        let is_approved = verdict == Some(Verdict::Approved);
        let votes = decisions.iter().filter(|(person, verdict)| match is_approved {
            true => **verdict == Verdict::Approved,
            false => **verdict != Verdict::Approved && self.people.contains(*person),
        });
        let votes: BTreeMap<String, Verdict> =
            votes.map(|(person, verdict)| (person.clone(), *verdict)).collect();
        (votes.keys().cloned().collect(), votes)
    }
}

impl Approval {
    /// The stage that asks now; nothing if the request follows no chain.
    pub(crate) fn current_stage(&self) -> Option<&Stage> {
        let chain = self.chain.as_ref()?;
        chain.stages.get(chain.stage)
    }
}

impl Contracts {
    /// Replaces an approval chain of this tenant.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// use windlass::contracts::Chain;
    ///
    /// let chain = r#"{"stages": [{"approvers": {"strategy": "org_chart"}},
    ///                            {"approvers": {"strategy": "role", "role": "finance_manager"}}]}"#;
    /// let chain: Chain = serde_json::from_str(chain)?;
    /// contracts.put_chain("two_stages", &chain, &dana).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ContractInvalid`] if the chain has no stage or more than [`STAGES_MAX`].
    pub async fn put_chain(&self, name: &str, chain: &Chain, by: &Subject) -> Result<(), Error> {
        super::names::check_type_name(name)?;
        if chain.stages.is_empty() || chain.stages.len() > STAGES_MAX {
            let count = chain.stages.len();
            let message = format!("a chain has 1 to {STAGES_MAX} stages, this one has {count}");
            return Err(invalid(ErrorCode::ContractInvalid, message));
        }
        let found = self.shared.row(key(self.engine.namespace(), CHAINS, name)?).await?;
        let expect = found.map_or(Expect::Absent, |record| Expect::At(record.revision));
        let change = RecordChange::put_own(CHAINS, name, chain, expect)?.keep().by(&by.actor());
        let written = self.engine.commit_with(&[change], Vec::new()).await;
        written.map(drop).map_err(|error| refusal(&error))
    }

    /// An approval chain of this tenant.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{} stages", contracts.chain("two_stages").await?.stages.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DefinitionNotFound`] if there is none with this name.
    pub async fn chain(&self, name: &str) -> Result<Chain, Error> {
        super::names::check_type_name(name)?;
        let found = self.shared.read(self.engine.namespace(), CHAINS, name).await?;
        found.map(|(chain, _)| chain).ok_or_else(|| {
            not_found(ErrorCode::DefinitionNotFound, format!("there is no approval chain {name:?}"))
        })
    }
}
