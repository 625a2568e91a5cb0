//! Actors and errors in a form that is safe to show.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::body::Body;
use crate::digest::{SetsumDigest, Sha256Digest};
use crate::error::Error;
use crate::limits::{Limits, check_max};

/// The kind of a person.
const USER: &str = "user";
/// The member of the metadata with the digests of the people who created the actor's key.
const KEY_CREATORS: &str = "key_creators";

/// The `actor` member of a payload: the kind of the actor and a digest of its id, never a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The kind of actor: `user`, `api_key`, `system`, …
    pub kind: String,
    /// A digest of the actor's id. The same actor gives the same digest; the id cannot be read from
    /// it.
    pub id_hash: SetsumDigest,
    /// Data that the application adds.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Actor {
    /// Creates an actor by kind and id. The id itself is not stored.
    pub fn new(kind: impl Into<String>, id: &str) -> Self {
        let id_hash = SetsumDigest::value_digest(&Value::from(id));
        Self { kind: kind.into(), id_hash, metadata: Map::new() }
    }

    /// Adds the people who created the key that the actor used: each of them could have used it.
    #[must_use]
    pub fn with_key_creators<'a>(mut self, ids: impl IntoIterator<Item = &'a str>) -> Self {
        let creators: Vec<_> = ids.into_iter().map(|id| Self::new(USER, id).id_hash).collect();
        if !creators.is_empty() {
            self.metadata.insert(KEY_CREATORS.to_owned(), serde_json::json!(creators));
        }
        self
    }

    /// Whether the actor is this person, or used a key that this person created.
    pub fn may_be_person(&self, id: &str) -> bool {
        let id_hash = Self::new(USER, id).id_hash;
        let creators = self.metadata.get(KEY_CREATORS).map(Vec::<SetsumDigest>::deserialize);
        (self.kind == USER && self.id_hash == id_hash)
            || creators.and_then(Result::ok).is_some_and(|ids| ids.contains(&id_hash))
    }

    /// Refuses an actor that is too large for the events that name it.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        check_max("an actor, written as JSON,", "bytes", bytes, limits.actor_bytes_max)
    }
}

/// The location of a body that an event refers to.
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

/// An error in an event: its name and the location of its text, not the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorSummary {
    /// The name of the error.
    pub name: String,
    /// Whether a retry could have helped.
    pub retryable: bool,
    /// The size of the whole error in bytes.
    pub bytes: u64,
    /// The digest of the whole error.
    pub digest: Sha256Digest,
    /// The location of the whole error.
    pub at: StorageRef,
}

impl ErrorSummary {
    /// Summarises an error whose body is stored at `at`.
    pub fn new(name: impl Into<String>, retryable: bool, body: &Body, at: StorageRef) -> Self {
        let (bytes, digest) = (body.len() as u64, body.digest());
        Self { name: name.into(), retryable, bytes, digest, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_has_a_digest_and_no_name() {
        let text = serde_json::to_string(&Actor::new("user", "ann@example.com")).unwrap();
        assert!(text.contains("\"id_hash\":\"setsum:v1:"), "{text}");
        assert!(!text.contains("ann"), "{text}");
        assert_eq!(Actor::new("user", "a"), Actor::new("user", "a"));
        assert_ne!(Actor::new("user", "a"), Actor::new("user", "b"));
    }

    #[test]
    fn an_actor_that_is_too_large_is_refused() {
        let actor = Actor::new("user", "ann");
        let bytes = serde_json::to_vec(&actor).unwrap().len();
        for (actor_bytes_max, expect) in [(bytes, true), (bytes - 1, false)] {
            let limits = Limits { actor_bytes_max, ..Limits::DEFAULT };
            assert_eq!(actor.validate(&limits).is_ok(), expect, "{actor_bytes_max}");
        }
    }

    #[test]
    fn an_error_summary_has_a_name_and_no_text() {
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
