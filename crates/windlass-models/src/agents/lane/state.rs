//! The state of a lane, and the messages between a lane and its members.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{RunKey, Sha256Digest, Timestamp};

use crate::agents::provider::Usage;

/// The name of all messages of lanes.
pub(super) const MESSAGE: &str = "windlass.batch";
/// How many members have one row. A commit consumes so many messages.
pub(super) const CHUNK: usize = 1_000;
/// How many batches of one lane are in flight at most.
pub(super) const IN_FLIGHT_MAX: usize = 16;
/// How many durations of members a lane remembers.
const DURATIONS_MAX: usize = 64;
/// After so many batches a lane continues as a new generation, which bounds its ledger.
pub(super) const BATCHES_PER_GENERATION: u64 = 500;

/// The input of a lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LaneInput {
    pub(super) provider: String,
    /// The model of all members, if the provider wants one for each batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
    /// How long members of the generations before waited, as [`LaneState::durations`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) durations: Vec<u64>,
}

/// A call that asks to be in a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Join {
    pub(super) run: RunKey,
    /// The number of the call in its run.
    pub(super) call: u64,
    pub(super) attempt: u32,
    pub(super) bytes: usize,
    pub(super) digest: Sha256Digest,
}

impl Join {
    /// The same for each attempt of one call, and another one for each call.
    pub(super) fn token(&self) -> String {
        format!("{}:{}:{}", self.run, self.call, self.attempt)
    }

    /// The request with its name and the framing of a line.
    pub(super) fn bytes_in_batch(&self) -> u64 {
        self.bytes as u64 + 200
    }
}

/// A request of an operator to a lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub(super) enum Ask {
    Join(Join),
    Flush,
    Cancel { intent: String },
}

/// A message of a lane to a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) call: u64,
    pub(super) attempt: u32,
    pub(super) intent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) provider_batch: Option<String>,
    pub(super) what: What,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// The provider has it.
    Submitted { members: u64, recovered: bool },
    /// The provider has answered.
    Succeeded(Box<Answer>),
    /// There is no answer.
    Failed { reason: String, message: String, retryable: bool, possibly_paid: bool },
}

/// A response, as the message has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) body: Box<RawValue>,
    pub(super) stop_reason: Option<String>,
    pub(super) model: Option<String>,
    pub(super) usage: Usage,
    pub(super) message_id: Option<String>,
    pub(super) request_id: Option<String>,
}

/// A lane between two turns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LaneState {
    /// How many batches this generation has begun.
    pub(super) batches: u64,
    /// The members that are consumed and not in a batch yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) filling: Option<Filling>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) in_flight: Vec<InFlight>,
    /// How long members waited for their answers, in seconds, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) durations: Vec<u64>,
    /// When a provider that limits calls may be called again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) closed_until: Option<Timestamp>,
}

/// A batch whose members are being chosen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Filling {
    pub(super) number: u64,
    pub(super) chunks: u32,
    pub(super) members: u64,
    pub(super) bytes: u64,
    pub(super) oldest: Timestamp,
}

/// A batch from its intent to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InFlight {
    pub(super) number: u64,
    /// The beginning of each `custom_id`, and the mark at the provider.
    pub(super) intent: String,
    pub(super) chunks: u32,
    pub(super) members: u64,
    pub(super) bytes: u64,
    /// When its oldest member asked.
    pub(super) oldest: Timestamp,
    /// When the intent of the last attempt to create it was written.
    pub(super) since: Timestamp,
    pub(super) phase: Phase,
    pub(super) creates: u32,
    /// When the outcome of the last attempt to create it became unknown; none after a crash in the middle of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unknown_since: Option<Timestamp>,
    /// How many requests the last attempt to create it sent.
    #[serde(default)]
    pub(super) sent: u64,
    /// The numbers of the members that it did not send.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left: Vec<u32>,
    pub(super) next: Timestamp,
    pub(super) polls: u32,
    /// How often in a row its results could not be read.
    #[serde(default)]
    pub(super) failed_reads: u32,
    /// Batches at the provider that turned out to belong to somebody else, or were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) foreign: Vec<String>,
    #[serde(default)]
    pub(super) cancel: bool,
}

/// How far a batch is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Its creation may or may not have reached the provider.
    Intended,
    /// The provider refused it for now: it does not exist there.
    Refused,
    /// The provider has it.
    Created {
        id: String,
        /// It was chosen by its size and time, and its results must prove that it is ours.
        provisional: bool,
        /// Whether the members know.
        told: bool,
    },
}

impl InFlight {
    pub(super) fn provider_id(&self) -> Option<&str> {
        match &self.phase {
            Phase::Created { id, .. } => Some(id),
            Phase::Intended | Phase::Refused => None,
        }
    }
}

impl LaneState {
    /// Remembers how long members took.
    pub(super) fn took(&mut self, span: Duration) {
        self.durations.push(span.as_secs());
        let over = self.durations.len().saturating_sub(DURATIONS_MAX);
        self.durations.drain(..over);
    }

    /// How long nine of ten recent batches took at most.
    pub(super) fn p90(&self) -> Option<Duration> {
        let mut sorted = self.durations.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * 9).div_ceil(10).saturating_sub(1);
        sorted.get(at).map(|seconds| Duration::from_secs(*seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_batches_are_as_fast() {
        let mut state = LaneState::default();
        assert_eq!(state.p90(), None);
        (1..=100).for_each(|seconds| state.took(Duration::from_secs(seconds)));
        // The last 64 of them: 37 to 100.
        assert_eq!(state.durations.len(), 64);
        assert_eq!(state.p90(), Some(Duration::from_secs(94)));
    }
}
