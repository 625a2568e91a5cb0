//! Lanes: how the call of a model is made.

use serde::{Deserialize, Serialize};
use windlass_engine::{Turn, TurnError};

use super::program::{AgentProgram, Flow};
use super::workflow::Workflow;

/// How a call of a model is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// At once.
    #[default]
    Live,
}

impl AgentProgram {
    /// Whether the call of a workflow may go into a batch.
    pub(crate) fn wants_batch(&self, _: &Workflow) -> bool {
        false
    }

    /// Decides about the lane of the call that is about to begin.
    pub(crate) async fn plan_lane(&mut self, _: &mut Turn) -> Result<Option<Flow>, TurnError> {
        Ok(None)
    }
}

/// The place of a call in a lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BatchedCall {}
