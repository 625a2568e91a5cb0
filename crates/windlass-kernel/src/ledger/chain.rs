//! The hash chain: the hash of each event covers the hash before it. The first one covers the run's
//! identity.

use sha2::{Digest as _, Sha256};

use crate::canonical::is_canonical;
use crate::digest::Sha256Digest;
use crate::ledger::Event;
use crate::rows::Run;

/// The end of a ledger, to which the next event is chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// The ordinal of the next event.
    pub next_ordinal: u64,
    /// The hash of the last event, or the genesis hash if there is none.
    pub hash: Sha256Digest,
}

/// The head of an empty ledger. Its hash covers the immutable fields of the run, so a run's row
/// cannot be renamed, moved to another namespace or given another input without breaking the chain.
pub fn genesis(run: &Run) -> Head {
    let mut generation = itoa::Buffer::new();
    genesis_of(&[
        run.run_key.as_bytes(),
        run.namespace.as_str().as_bytes(),
        run.workflow.as_str().as_bytes(),
        run.model.as_str().as_bytes(),
        run.id.as_str().as_bytes(),
        generation.format(run.generation).as_bytes(),
        run.input.encoding.as_str().as_bytes(),
        run.input_hash.as_bytes(),
        run.root.as_bytes(),
        run.parent.as_ref().map_or(&[][..], |key| &key.as_bytes()[..]),
        run.fork.as_deref().unwrap_or_default().as_bytes(),
    ])
}

/// As [`genesis`], from the fields in their order.
pub(crate) fn genesis_of(fields: &[&[u8]; 11]) -> Head {
    let mut parts: [&[u8]; 12] = [&b"windlass:run:v1"[..]; 12];
    parts[1..].copy_from_slice(fields);
    Head { next_ordinal: 0, hash: Sha256Digest::of_parts(&parts) }
}

/// Checks that the events lead from one head to the other. Returns the first ordinal that does not fit, and
/// why.
pub(crate) fn verify_events(
    genesis: Head,
    events: &[Event],
    end: Head,
) -> Result<(), (u64, String)> {
    let mut head = genesis;
    for event in events {
        let ordinal = head.next_ordinal;
        if event.ordinal != ordinal {
            return Err((ordinal, "the event is missing".into()));
        }
        if !is_canonical(&event.payload) {
            return Err((ordinal, "the payload is not canonical JSON".into()));
        }
        let hash = hash_event(&head.hash, event);
        if hash != event.hash {
            let what = match ordinal {
                0 => "the first event does not belong to this run and input, or was changed",
                _ => "the event was changed",
            };
            return Err((ordinal, what.into()));
        }
        head = Head { next_ordinal: ordinal + 1, hash };
    }
    if head == end {
        return Ok(());
    }
    let (found, expected) = (head.next_ordinal, end.next_ordinal);
    let what = format!(
        "the ledger ends at {found} but the run's row says {expected}, or the hashes differ"
    );
    Err((found, what))
}

/// Hashes an event whose predecessor has the hash `previous`.
pub(crate) fn hash_event(previous: &Sha256Digest, event: &Event) -> Sha256Digest {
    let mut hasher = Sha256::new();
    hasher.update(previous.as_bytes());
    write_event(event, |part| hasher.update(part));
    Sha256Digest::from_bytes(hasher.finalize().into())
}

// Writes the RFC 8785 form of the event, part by part. No serializer is needed: the payload is
// canonical already and no other member needs an escape.
fn write_event(event: &Event, mut to: impl FnMut(&[u8])) {
    let mut digits = itoa::Buffer::new();
    let mut uuid = [0; uuid::fmt::Hyphenated::LENGTH];
    to(b"{\"caused_by\":");
    event.caused_by.write(&mut to);
    to(b",\"created_at\":");
    to(digits.format(event.created_at.as_micros()).as_bytes());
    to(b",\"event_id\":\"");
    to(event.event_id.0.hyphenated().encode_lower(&mut uuid).as_bytes());
    to(b"\",\"ordinal\":");
    to(digits.format(event.ordinal).as_bytes());
    to(b",\"payload\":");
    to(&event.payload);
    to(b",\"run_key\":\"");
    to(event.run_key.0.hyphenated().encode_lower(&mut uuid).as_bytes());
    to(b"\",\"type\":\"");
    to(event.event_type.as_str().as_bytes());
    to(b"\",\"version\":");
    to(digits.format(event.version).as_bytes());
    to(b"}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::to_canonical;
    use crate::ids::{EventId, RunKey};
    use crate::ledger::{CausalRef, EventType};
    use crate::time::Timestamp;

    #[test]
    fn the_hash_covers_the_canonical_event() {
        let event = Event {
            run_key: RunKey(uuid::Uuid::from_u128(1)),
            ordinal: 3,
            event_id: EventId(uuid::Uuid::from_u128(2)),
            event_type: EventType::from_static("step.completed"),
            version: 1,
            caused_by: CausalRef::event(EventId(uuid::Uuid::from_u128(4))),
            payload: to_canonical(&serde_json::json!({"b": 1, "a": "é\n"})).unwrap().into(),
            created_at: Timestamp::from_micros(1_700_000_000_123_456),
            hash: Sha256Digest::from_bytes([0; 32]),
        };
        let whole = to_canonical(&serde_json::json!({
            "run_key": event.run_key, "ordinal": 3, "event_id": event.event_id,
            "type": "step.completed", "version": 1, "caused_by": event.caused_by,
            "payload": {"a": "é\n", "b": 1}, "created_at": 1_700_000_000_123_456_i64,
        }))
        .unwrap();
        let mut ours = Vec::new();
        write_event(&event, |part| ours.extend_from_slice(part));
        assert_eq!(String::from_utf8(ours).unwrap(), String::from_utf8(whole.clone()).unwrap());

        let previous = Sha256Digest::of(b"previous");
        let expect = Sha256Digest::of(&[&previous.as_bytes()[..], &whole].concat());
        assert_eq!(hash_event(&previous, &event), expect);
    }
}
