//! Writing a ledger: events get their place, cause and hash before anything is sent to a store.

use bytes::Bytes;
use serde::Serialize;

use crate::canonical::to_canonical;
use crate::commit::{CauseCheck, Op};
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorKind};
use crate::ids::{EventId, RunKey};
use crate::ledger::chain::{genesis, hash_event};
use crate::ledger::{CausalRef, Event, EventType, Head, Seal};
use crate::limits::{Limits, check_max};
use crate::rows::Run;
use crate::time::Timestamp;

/// The id and the time of an event, both from outside: the kernel has no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The event's id (UUIDv7).
    pub event_id: EventId,
    /// The event's time.
    pub at: Timestamp,
}

/// A run's ledger as its writer sees it: committed up to a head, pending after it.
///
/// Pending events vanish with the process; nothing outside may learn their ids before the
/// commit that carries them holds.
#[derive(Clone, Debug)]
pub struct Ledger {
    run_key: RunKey,
    head: Head,
    cursor: CausalRef,
    // Whether the store has to look for what the cursor names.
    cause: CauseCheck,
    pending: Vec<(Event, CauseCheck)>,
}

impl Ledger {
    /// The ledger of a run as it was loaded.
    pub fn of(run: &Run) -> Self {
        let cursor = CausalRef::event(run.cursor);
        let cause = CauseCheck::Known;
        Self { run_key: run.run_key, head: run.head, cursor, cause, pending: Vec::new() }
    }

    /// The empty ledger of a new run, whose first event is caused by `caused_by`: the run itself
    /// if nothing else caused it.
    pub fn starting(run: &Run, caused_by: CausalRef) -> Self {
        let own = caused_by == CausalRef::run(run.run_key);
        let cause = if own { CauseCheck::Known } else { CauseCheck::Look };
        let head = genesis(run);
        Self { run_key: run.run_key, head, cursor: caused_by, cause, pending: Vec::new() }
    }

    /// The head after all pending events.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The cause of the next automatic event.
    pub fn cursor(&self) -> CausalRef {
        self.cursor
    }

    /// How many events are pending.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Appends a first-party event, caused by the cursor.
    pub fn append<T: Serialize>(
        &mut self,
        event_type: &str,
        payload: &T,
        seals: &[Seal],
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let event_type = EventType::first_party(event_type)?;
        let payload = sealed_payload(payload, seals)?;
        self.push(event_type, 1, payload, (self.cursor, self.cause), stamp, &Limits::DEFAULT)
    }

    /// Appends a user's event, caused by the cursor, and moves the cursor to it.
    pub fn record_event<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<EventId, Error> {
        let cause = (self.cursor, self.cause);
        self.record(event_type, version, payload, cause, stamp, limits)
    }

    /// Appends a user's event with a cause that the user names, and moves the cursor to it. The
    /// store refuses the commit if there is no such run or event in the run's namespace.
    pub fn record_event_caused_by<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        caused_by: CausalRef,
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<EventId, Error> {
        let own = |(event, _): &(Event, CauseCheck)| {
            caused_by == CausalRef::event(event.event_id)
        };
        let check = if caused_by == self.cursor {
            self.cause
        } else if self.pending.iter().any(own) {
            CauseCheck::Known
        } else {
            CauseCheck::Look
        };
        self.record(event_type, version, payload, (caused_by, check), stamp, limits)
    }

    /// Takes the pending events as ops of a commit.
    pub fn take_ops(&mut self) -> Vec<Op> {
        let op = |(event, cause)| Op::AppendEvent { event, cause };
        self.pending.drain(..).map(op).collect()
    }

    fn record<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        cause: (CausalRef, CauseCheck),
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<EventId, Error> {
        let event_type = EventType::custom(event_type, limits)?;
        if version == 0 || version > i16::MAX as u16 {
            let message = format!("event version {version} is not within 1 to {}", i16::MAX);
            return Err(Error::new(ErrorKind::Invalid, "INVALID_EVENT_VERSION", message));
        }
        let payload = canonical(payload)?;
        self.push(event_type, version, payload, cause, stamp, limits)
    }

    fn push(
        &mut self,
        event_type: EventType,
        version: u16,
        payload: Vec<u8>,
        (caused_by, check): (CausalRef, CauseCheck),
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<EventId, Error> {
        let max = limits.event_payload_bytes_max;
        check_max(&format!("the payload of event {event_type}"), "bytes", payload.len(), max)?;
        let mut event = Event {
            run_key: self.run_key,
            ordinal: self.head.next_ordinal,
            event_id: stamp.event_id,
            event_type,
            version,
            caused_by,
            payload: Bytes::from(payload),
            created_at: stamp.at,
            hash: Sha256Digest::from_bytes([0; 32]),
        };
        event.hash = hash_event(&self.head.hash, &event);
        self.head = Head { next_ordinal: event.ordinal + 1, hash: event.hash };
        self.cursor = CausalRef::event(event.event_id);
        self.cause = CauseCheck::Known;
        self.pending.push((event, check));
        Ok(stamp.event_id)
    }
}

fn canonical<T: Serialize>(payload: &T) -> Result<Vec<u8>, Error> {
    to_canonical(payload).map_err(|source| {
        let message = "the payload of an event cannot be written as canonical JSON";
        Error::new(ErrorKind::Invalid, "INVALID_EVENT_PAYLOAD", message).with_source(source)
    })
}

// Seals are a member of the payload, so a first-party payload has to be an object.
fn sealed_payload<T: Serialize>(payload: &T, seals: &[Seal]) -> Result<Vec<u8>, Error> {
    if seals.is_empty() {
        return canonical(payload);
    }
    let invalid = |source: serde_json::Error| {
        let message = "the payload of an event cannot be written as JSON";
        Error::new(ErrorKind::Invalid, "INVALID_EVENT_PAYLOAD", message).with_source(source)
    };
    let mut value = serde_json::to_value(payload).map_err(invalid)?;
    let Some(object) = value.as_object_mut() else {
        let message = "the payload of a first-party event must be a JSON object";
        return Err(Error::new(ErrorKind::Internal, "INVALID_EVENT_PAYLOAD", message));
    };
    object.insert("seals".to_owned(), serde_json::to_value(seals).map_err(invalid)?);
    canonical(&value)
}
