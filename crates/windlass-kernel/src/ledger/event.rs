//! Events and what caused them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorKind};
use crate::ids::{EventId, RunKey};
use crate::ledger::EventType;
use crate::time::Timestamp;

/// What caused an event: another event, or a run as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CausalRef {
    /// An event, of this run or another.
    EventId {
        /// The event.
        event_id: EventId,
    },
    /// A run: the anchor of a first event that nothing in a ledger caused.
    RunId {
        /// The run.
        run_id: RunKey,
    },
}

impl CausalRef {
    /// A reference to an event.
    pub fn event(event_id: EventId) -> Self {
        Self::EventId { event_id }
    }

    /// A reference to a run.
    pub fn run(run_id: RunKey) -> Self {
        Self::RunId { run_id }
    }

    /// The canonical JSON, as it is stored and hashed.
    pub fn canonical(&self) -> String {
        let mut text = Vec::with_capacity(80);
        self.write(|part| text.extend_from_slice(part));
        String::from_utf8(text).expect("keys and names are ASCII")
    }

    pub(crate) fn write(&self, mut to: impl FnMut(&[u8])) {
        let (name, key) = match self {
            Self::EventId { event_id } => (&b"event_id"[..], event_id.0),
            Self::RunId { run_id } => (&b"run_id"[..], run_id.0),
        };
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        let key = key.hyphenated().encode_lower(&mut text).as_bytes();
        for part in [b"{\"", name, b"\":\"", key, b"\",\"type\":\"", name, b"\"}"] {
            to(part);
        }
    }

    /// Reads what is stored. Anything but the canonical form is damage.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let cause: Self = serde_json::from_slice(text)
            .map_err(|source| Error::corrupt("a stored cause does not read").with_source(source))?;
        if cause.canonical().as_bytes() != text {
            return Err(Error::corrupt("a stored cause is not in canonical form"));
        }
        Ok(cause)
    }
}

/// An immutable fact in a run's ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The run whose ledger it is in.
    pub run_key: RunKey,
    /// Its place, from 0, without gaps.
    pub ordinal: u64,
    /// Names it.
    pub event_id: EventId,
    /// What happened.
    pub event_type: EventType,
    /// The version of the payload's shape, from 1.
    pub version: u16,
    /// What caused it.
    pub caused_by: CausalRef,
    /// A summary in canonical JSON: never a body.
    pub payload: Bytes,
    /// When it happened, by the estimate of the store's clock.
    pub created_at: Timestamp,
    /// Covers everything above and the predecessor's hash.
    pub hash: Sha256Digest,
}

impl Event {
    /// The payload as JSON.
    pub fn payload_json(&self) -> Result<serde_json::Value, Error> {
        serde_json::from_slice(&self.payload).map_err(|source| {
            let message = format!("the payload of event {} does not read", self.event_id);
            Error::new(ErrorKind::Corrupt, "STORE_CORRUPT", message).with_source(source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::to_canonical;

    #[test]
    fn a_cause_is_written_in_canonical_form() {
        let key = uuid::Uuid::from_u128(7);
        for cause in [CausalRef::event(EventId(key)), CausalRef::run(RunKey(key))] {
            let text = cause.canonical();
            assert_eq!(text.as_bytes(), to_canonical(&cause).unwrap());
            assert_eq!(CausalRef::parse(text.as_bytes()).unwrap(), cause);
            let spaced = text.replace(':', ": ");
            assert!(CausalRef::parse(spaced.as_bytes()).is_err());
        }
    }
}
