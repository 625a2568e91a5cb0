//! Who did it, and what went wrong, in words that are safe to show.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::body::Body;
use crate::digest::{SetsumDigest, Sha256Digest};

/// Who did something, as the `actor` member of a payload: a kind and a digest, never a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// What kind of actor: `user`, `api_key`, `system`, …
    pub kind: String,
    /// A digest of the actor's id: the same actor gives the same digest, and no more than that.
    pub id_hash: SetsumDigest,
    /// What the application chose to add.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Actor {
    /// An actor by kind and id; the id itself is not kept.
    pub fn new(kind: impl Into<String>, id: &str) -> Self {
        let id_hash = SetsumDigest::value_digest(&Value::from(id));
        Self { kind: kind.into(), id_hash, metadata: Map::new() }
    }
}

/// Where the body that an event speaks of is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StorageRef {
    /// The run's input.
    RunInput,
    /// The run's output.
    RunOutput,
    /// The run's error.
    RunError,
    /// A step's input.
    StepInput {
        /// The step.
        step_key: String,
    },
    /// A step's result.
    StepResult {
        /// The step.
        step_key: String,
    },
    /// A step's error.
    StepError {
        /// The step.
        step_key: String,
    },
    /// A message's body.
    Message {
        /// The message.
        seq: u64,
    },
}

/// An error as an event tells it: its name and where its text is, not the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorSummary {
    /// The error's name.
    pub name: String,
    /// Whether a retry could have helped.
    pub retryable: bool,
    /// How many bytes the whole error has.
    pub bytes: u64,
    /// The digest of the whole error.
    pub digest: Sha256Digest,
    /// Where the whole error is kept.
    pub at: StorageRef,
}

impl ErrorSummary {
    /// Summarises an error whose body is kept at `at`.
    pub fn new(name: impl Into<String>, retryable: bool, body: &Body, at: StorageRef) -> Self {
        let (bytes, digest) = (body.len() as u64, body.digest());
        Self { name: name.into(), retryable, bytes, digest, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_told_apart_and_not_named() {
        let text = serde_json::to_string(&Actor::new("user", "ann@example.com")).unwrap();
        assert!(text.contains("\"id_hash\":\"setsum:v1:"), "{text}");
        assert!(!text.contains("ann"), "{text}");
        assert_eq!(Actor::new("user", "a"), Actor::new("user", "a"));
        assert_ne!(Actor::new("user", "a"), Actor::new("user", "b"));
    }

    #[test]
    fn an_error_is_told_by_name_and_place() {
        let at = StorageRef::StepError { step_key: "charge".into() };
        let summary = ErrorSummary::new("Declined", false, &Body::json("\"card 4711\""), at);
        let text = serde_json::to_string(&summary).unwrap();
        assert!(
            text.contains("\"at\":{\"kind\":\"step_error\",\"step_key\":\"charge\"}"),
            "{text}"
        );
        assert!(!text.contains("4711"), "{text}");
    }
}
