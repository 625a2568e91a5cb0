//! Events and their causes.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{EventId, RunKey};
use crate::ledger::EventType;
use crate::time::Timestamp;

/// The cause of an event: another event, or a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CausalRef {
    /// An event of this run or another.
    EventId {
        /// The event.
        event_id: EventId,
    },
    /// A run: the cause of a first event that no other event caused.
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

    /// The canonical JSON, which is stored and hashed.
    pub fn canonical(&self) -> String {
        let mut text = Vec::with_capacity(80);
        self.write(|part| text.extend_from_slice(part));
        String::from_utf8(text).expect("UUIDs and member names are ASCII")
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

    /// Parses a stored cause. Any form but the canonical one is damage.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let cause: Self = serde_json::from_slice(text)
            .map_err(|source| Error::corrupt("cannot parse a stored cause").with_source(source))?;
        if cause.canonical().as_bytes() != text {
            return Err(Error::corrupt("a stored cause is not in canonical form"));
        }
        Ok(cause)
    }
}

/// An immutable fact in a run's ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The run.
    pub run_key: RunKey,
    /// The position in the ledger, from 0, without gaps.
    pub ordinal: u64,
    /// The unique id.
    pub event_id: EventId,
    /// The type.
    pub event_type: EventType,
    /// The version of the payload's shape, from 1.
    pub version: u16,
    /// The cause.
    pub caused_by: CausalRef,
    /// A summary in canonical JSON. It never contains a body.
    pub payload: Bytes,
    /// The time, from the sender's estimate of the store's clock.
    pub created_at: Timestamp,
    /// The hash over all fields above and the predecessor's hash.
    pub hash: Sha256Digest,
}

impl Event {
    /// Parses the payload.
    pub fn payload_json(&self) -> Result<serde_json::Value, Error> {
        serde_json::from_slice(&self.payload).map_err(|source| {
            let message = format!("cannot parse the payload of event {}", self.event_id);
            Error::new(ErrorKind::Corrupt, ErrorCode::StoreCorrupt, message).with_source(source)
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
