//! The hash chain: each event's hash covers its predecessor's, the first one's the run's identity.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::digest::Sha256Digest;
use crate::ledger::Event;
use crate::rows::Run;

/// The end of a ledger: what the next event is chained to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// The ordinal of the next event.
    pub next_ordinal: u64,
    /// The hash of the last event, or the genesis hash if there is none.
    pub hash: Sha256Digest,
}

/// The head of an empty ledger. It covers what must never change about a run, so a run's row
/// cannot be renamed, moved to another tenant or given another input without breaking its chain.
pub fn genesis(run: &Run) -> Head {
    let generation = run.generation.to_string();
    let key = |key: Option<&[u8; 16]>| key.map_or(&[][..], |key| &key[..]).to_vec();
    let hash = Sha256Digest::of_parts(&[
        b"windlass:run:v1",
        run.run_key.as_bytes(),
        run.namespace.as_str().as_bytes(),
        run.workflow.as_str().as_bytes(),
        run.model.as_str().as_bytes(),
        run.id.as_str().as_bytes(),
        generation.as_bytes(),
        run.input.encoding.as_str().as_bytes(),
        run.input_hash.as_bytes(),
        run.root.as_bytes(),
        &key(run.parent.as_ref().map(|key| key.as_bytes())),
        run.fork.as_deref().unwrap_or_default().as_bytes(),
    ]);
    Head { next_ordinal: 0, hash }
}

/// The hash of an event after `previous`.
pub(crate) fn hash_event(previous: &Sha256Digest, event: &Event) -> Sha256Digest {
    let mut hasher = Sha256::new();
    hasher.update(previous.as_bytes());
    let (before, after) = envelope(event);
    hasher.update(before.as_bytes());
    hasher.update(&event.payload);
    hasher.update(after.as_bytes());
    Sha256Digest::from_bytes(hasher.finalize().into())
}

// The RFC 8785 form of the event, in two parts around its payload. It is written by hand because
// the payload is canonical already and no other member can need an escape.
fn envelope(event: &Event) -> (String, String) {
    let mut before = String::with_capacity(200);
    let cause = event.caused_by.canonical();
    let _ = write!(
        before,
        "{{\"caused_by\":{cause},\"created_at\":{},\"event_id\":\"{}\",\"ordinal\":{},\"payload\":",
        event.created_at.as_micros(),
        event.event_id,
        event.ordinal,
    );
    let mut after = String::with_capacity(100);
    let _ = write!(
        after,
        ",\"run_key\":\"{}\",\"type\":\"{}\",\"version\":{}}}",
        event.run_key, event.event_type, event.version,
    );
    (before, after)
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
            event_type: EventType::first_party("step.completed").unwrap(),
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
        let (before, after) = envelope(&event);
        let ours = [before.as_bytes(), &event.payload, after.as_bytes()].concat();
        assert_eq!(String::from_utf8(ours).unwrap(), String::from_utf8(whole.clone()).unwrap());

        let previous = Sha256Digest::of(b"previous");
        let expect = Sha256Digest::of(&[&previous.as_bytes()[..], &whole].concat());
        assert_eq!(hash_event(&previous, &event), expect);
    }
}
