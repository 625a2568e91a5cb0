//! Appends to a ledger: events get their ordinal, cause and hash before they are sent to a store.

use std::cell::RefCell;

use bytes::Bytes;
use serde::Serialize;

use crate::canonical::{Plain, to_canonical};
use crate::commit::{CauseCheck, Op};
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{EventId, RunKey};
use crate::ledger::chain::{genesis, hash_event};
use crate::ledger::{CausalRef, Event, EventType, Head, Seal, seals_of};
use crate::limits::{Limits, check_max};
use crate::rows::Run;
use crate::time::Timestamp;

/// The id and the time of an event. Both are arguments because the kernel has no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The event's id (UUIDv7).
    pub event_id: EventId,
    /// The event's time.
    pub at: Timestamp,
}

/// The type, version and cause of a first-party event. An [`EventType`] alone is version 1, caused by the
/// event before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    event_type: EventType,
    version: u16,
    caused_by: Option<CausalRef>,
}

impl NewEvent {
    /// An event of version 1 that the event before it caused.
    pub fn new(event_type: EventType) -> Self {
        Self { event_type, version: 1, caused_by: None }
    }

    /// Sets the version of the payload's shape.
    pub fn version(mut self, version: u16) -> Self {
        self.version = version;
        self
    }

    /// Names the cause. The store refuses the commit if the run's namespace has no such run or event.
    pub fn caused_by(mut self, cause: CausalRef) -> Self {
        self.caused_by = Some(cause);
        self
    }

    /// The type.
    pub fn event_type(&self) -> &EventType {
        &self.event_type
    }
}

impl From<EventType> for NewEvent {
    fn from(event_type: EventType) -> Self {
        Self::new(event_type)
    }
}

/// The ledger of a run as its writer sees it: the committed events up to a head, and the events
/// that were appended since.
///
/// Appended events exist only in this process until their commit succeeds. Do not give their ids to
/// anybody else before that.
#[derive(Clone, Debug)]
pub struct Ledger {
    run_key: RunKey,
    // The hash of the last committed event.
    start: Sha256Digest,
    head: Head,
    cursor: CausalRef,
    // Whether the store must check that the cursor's target exists.
    cause: CauseCheck,
    payload_bytes_max: usize,
}

impl Ledger {
    /// The ledger of a loaded run.
    pub fn of(run: &Run) -> Self {
        let cursor = CausalRef::event(run.cursor);
        Self::new(run.run_key, run.head, cursor, CauseCheck::Known)
    }

    /// The empty ledger of a new run, whose first event is caused by `caused_by`. Pass the run
    /// itself if nothing else caused it.
    pub fn starting(run: &Run, caused_by: CausalRef) -> Self {
        let own = caused_by == CausalRef::run(run.run_key);
        let cause = if own { CauseCheck::Known } else { CauseCheck::LookUp };
        Self::new(run.run_key, genesis(run), caused_by, cause)
    }

    fn new(run_key: RunKey, head: Head, cursor: CausalRef, cause: CauseCheck) -> Self {
        let payload_bytes_max = Limits::DEFAULT.event_payload_bytes_max;
        Self { run_key, start: head.hash, head, cursor, cause, payload_bytes_max }
    }

    /// Checks payloads of first-party events against these limits instead of the defaults.
    pub fn set_limits(&mut self, limits: &Limits) {
        self.payload_bytes_max = limits.event_payload_bytes_max;
    }

    /// The head after all appended events.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The cause of the next automatic event.
    pub fn cursor(&self) -> CausalRef {
        self.cursor
    }

    /// Appends a first-party event, caused by the cursor unless it names another cause.
    pub fn append<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        seals: &[Seal],
        stamp: Stamp,
    ) -> Result<Op, Error> {
        let NewEvent { event_type, version, caused_by } = event.into();
        check_version(version)?;
        let payload = sealed_payload(payload, seals)?;
        check_payload(&event_type, &payload, self.payload_bytes_max)?;
        let cause = match caused_by {
            Some(cause) => (cause, self.check_of(cause)),
            None => (self.cursor, self.cause),
        };
        Ok(self.push(event_type, version, payload, cause, stamp))
    }

    // The store also finds a cause that is an earlier event of the same commit.
    fn check_of(&self, cause: CausalRef) -> CauseCheck {
        if cause == self.cursor { self.cause } else { CauseCheck::LookUp }
    }

    /// Appends a user's event, caused by the cursor, and moves the cursor to it.
    pub fn record_event<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<Op, Error> {
        let cause = (self.cursor, self.cause);
        self.record(event_type, version, payload, cause, stamp, limits)
    }

    /// Appends a user's event with a cause that the user names, and moves the cursor to it. The
    /// store refuses the commit if the run's namespace has no such run or event.
    pub fn record_event_caused_by<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        caused_by: CausalRef,
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<Op, Error> {
        let check = self.check_of(caused_by);
        self.record(event_type, version, payload, (caused_by, check), stamp, limits)
    }

    fn record<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        cause: (CausalRef, CauseCheck),
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<Op, Error> {
        let (event_type, payload) = Self::check_custom(event_type, version, payload, limits)?;
        Ok(self.push(event_type, version, payload.into(), cause, stamp))
    }

    /// Validates a custom event before a ledger exists. Returns its type and its payload in
    /// canonical form.
    pub fn check_custom<T: Serialize>(
        event_type: &str,
        version: u16,
        payload: &T,
        limits: &Limits,
    ) -> Result<(EventType, Vec<u8>), Error> {
        let event_type = EventType::custom(event_type, limits)?;
        check_version(version)?;
        let payload = canonical(payload)?;
        check_payload(&event_type, &payload, limits.event_payload_bytes_max)?;
        Ok((event_type, payload))
    }

    /// Adds a seal to the last first-party event among `ops`, and hashes it and its successors
    /// again. Returns `false` if this ledger appended no such event.
    pub(crate) fn seal_last(&mut self, ops: &mut [Op], seal: Seal) -> Result<bool, Error> {
        let run_key = self.run_key;
        let own = |op: &Op| matches!(op, Op::AppendEvent { event, .. } if event.run_key == run_key);
        let mut events: Vec<&mut Event> = ops
            .iter_mut()
            .filter(|op| own(op))
            .filter_map(|op| match op {
                Op::AppendEvent { event, .. } => Some(event),
                _ => None,
            })
            .collect();
        let Some(at) = events.iter().rposition(|event| event.event_type.is_first_party()) else {
            return Ok(false);
        };
        let mut seals = seals_of(events[at])?;
        seals.push(seal);
        let mut payload = events[at].payload_json()?;
        if let Some(object) = payload.as_object_mut() {
            object.remove("seals");
        }
        events[at].payload = sealed_payload(&payload, &seals)?;
        let mut previous = at.checked_sub(1).map_or(self.start, |before| events[before].hash);
        for event in &mut events[at..] {
            event.hash = hash_event(&previous, event);
            previous = event.hash;
        }
        self.head.hash = previous;
        Ok(true)
    }

    fn push(
        &mut self,
        event_type: EventType,
        version: u16,
        payload: Bytes,
        (caused_by, check): (CausalRef, CauseCheck),
        stamp: Stamp,
    ) -> Op {
        let mut event = Event {
            run_key: self.run_key,
            ordinal: self.head.next_ordinal,
            event_id: stamp.event_id,
            event_type,
            version,
            caused_by,
            payload,
            created_at: stamp.at,
            hash: Sha256Digest::from_bytes([0; 32]),
        };
        event.hash = hash_event(&self.head.hash, &event);
        self.head = Head { next_ordinal: event.ordinal + 1, hash: event.hash };
        self.cursor = CausalRef::event(event.event_id);
        self.cause = CauseCheck::Known;
        Op::AppendEvent { event, cause: check }
    }
}

fn check_version(version: u16) -> Result<(), Error> {
    if (1..=i16::MAX as u16).contains(&version) {
        return Ok(());
    }
    let message = format!("event version {version} is not within 1 to {}", i16::MAX);
    Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidEventVersion, message))
}

fn check_payload(event_type: &EventType, payload: &[u8], max: usize) -> Result<(), Error> {
    check_max(format_args!("the payload of event {event_type}"), "bytes", payload.len(), max)
}

fn canonical<T: Serialize>(payload: &T) -> Result<Vec<u8>, Error> {
    to_canonical(payload).map_err(uncanonical)
}

fn uncanonical(source: crate::canonical::Error) -> Error {
    let message = "cannot write the payload of an event as canonical JSON";
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidEventPayload, message).with_source(source)
}

// A buffer that is reused to build payloads. The result is copied, so that it has no spare
// capacity.
thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
const SCRATCH_BYTES_MAX: usize = 16 * 1_024;

// Adds seals as a member of the payload, so a first-party payload must be an object.
fn sealed_payload<T: Serialize>(payload: &T, seals: &[Seal]) -> Result<Bytes, Error> {
    let mut text = SCRATCH.take();
    text.clear();
    let whole = match plain_payload(payload, seals, &mut text) {
        Some(()) => Ok(Bytes::copy_from_slice(&text)),
        None => sorted_payload(payload, seals).map(Bytes::from),
    };
    if text.capacity() <= SCRATCH_BYTES_MAX {
        SCRATCH.set(text);
    }
    whole
}

fn plain_payload<T: Serialize>(payload: &T, seals: &[Seal], to: &mut Vec<u8>) -> Option<()> {
    serde_json::to_writer(&mut *to, payload).ok()?;
    let plain = Plain::of(to)?;
    match seals.is_empty() {
        true => Some(()),
        false => plain.put_seals(to, |to| Seal::write(seals, to)),
    }
}

fn sorted_payload<T: Serialize>(payload: &T, seals: &[Seal]) -> Result<Vec<u8>, Error> {
    let invalid = |source: serde_json::Error| {
        let message = "cannot serialize the payload of an event as JSON";
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidEventPayload, message).with_source(source)
    };
    let mut value = serde_json::to_value(payload).map_err(invalid)?;
    if !seals.is_empty() {
        let Some(object) = value.as_object_mut() else {
            let message = "the payload of a first-party event must be a JSON object";
            return Err(Error::new(ErrorKind::Internal, ErrorCode::InvalidEventPayload, message));
        };
        object.insert("seals".to_owned(), serde_json::to_value(seals).map_err(invalid)?);
    }
    to_canonical(&value).map_err(uncanonical)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::commit::OnExisting;
    use crate::draft::{Draft, NewRun};
    use crate::rows::Turn;
    use crate::{Body, ModelName, Namespace, RunId, WorkflowName};

    fn stamp(n: u128) -> Stamp {
        Stamp { event_id: EventId(uuid::Uuid::from_u128(n)), at: Timestamp::from_micros(5) }
    }

    fn new_run() -> NewRun {
        NewRun {
            run_key: RunKey(uuid::Uuid::from_u128(1)),
            namespace: Namespace::default_namespace(),
            workflow: WorkflowName::new("w").unwrap(),
            model: ModelName::new("steps").unwrap(),
            id: RunId::new("r").unwrap(),
            generation: 0,
            input: Body::json("{}"),
            parent: None,
            fork: None,
            labels: Default::default(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: Turn::ready(),
            caused_by: None,
        }
    }

    fn events(draft: Draft) -> Vec<(Event, CauseCheck)> {
        let event = |op: &Op| match op {
            Op::AppendEvent { event, cause } => Some((event.clone(), *cause)),
            _ => None,
        };
        draft.finish().ops.iter().filter_map(event).collect()
    }

    #[test]
    fn events_recorded_before_a_run_exists_follow_its_first_event() {
        let limits = Limits::DEFAULT;
        let mut draft = Draft::create(new_run(), OnExisting::Refuse, stamp(10)).unwrap();
        draft.record_event("a.b", 1, &json!(1), stamp(11), &limits).unwrap();
        let outside = CausalRef::event(EventId(uuid::Uuid::from_u128(99)));
        draft.record_event_caused_by("a.c", 1, &json!(2), outside, stamp(12), &limits).unwrap();
        draft.record_event("a.d", 1, &json!(3), stamp(13), &limits).unwrap();
        let events = events(draft);
        let causes: Vec<_> = events.iter().map(|(event, _)| event.caused_by).collect();
        let event = |n| CausalRef::event(stamp(n).event_id);
        let own = CausalRef::run(RunKey(uuid::Uuid::from_u128(1)));
        assert_eq!(causes, [own, event(10), outside, event(12)]);
        let checks: Vec<_> = events.iter().map(|(_, check)| *check).collect();
        use CauseCheck::{Known, LookUp};
        assert_eq!(checks, [Known, Known, LookUp, Known]);
        let ordinals: Vec<_> = events.iter().map(|(event, _)| event.ordinal).collect();
        assert_eq!(ordinals, [0, 1, 2, 3]);
    }

    fn any_payload() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            (-1_000_i64..1_000).prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_map(serde_json::Value::from),
            "[ -~é\\n]{0,8}".prop_map(serde_json::Value::from),
        ];
        let value = leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                members(inner),
            ]
        });
        members(value)
    }

    fn members(
        of: impl Strategy<Value = serde_json::Value>,
    ) -> impl Strategy<Value = serde_json::Value> {
        let name = "seal|seals|sealsa|[a-z]{0,3}|[t-z]{1,2}|é";
        prop::collection::btree_map(name, of, 0..5)
            .prop_map(|map| serde_json::Value::Object(map.into_iter().collect()))
    }

    proptest! {
        // Both ways of writing a payload give the same bytes, or both fail.
        #[test]
        fn the_fast_path_writes_the_same_payload_as_the_slow_path(payload in any_payload(), sealed: bool) {
            let seal = Seal::message(3, Some(&Body::json("[]")));
            let seals = if sealed { vec![seal.clone(), seal] } else { Vec::new() };
            let (fast, slow) = (sealed_payload(&payload, &seals), sorted_payload(&payload, &seals));
            prop_assert_eq!(fast.ok().map(Vec::from), slow.ok());
        }
    }

    #[test]
    fn a_rejected_custom_event_leaves_the_ledger_unchanged() {
        let mut draft = Draft::create(new_run(), OnExisting::Refuse, stamp(10)).unwrap();
        let head = draft.head();
        let small = Limits { event_payload_bytes_max: 10, ..Limits::DEFAULT };
        let mut check = |name: &str, version, payload, limits: &Limits, expect: &str| {
            let error = draft.record_event(name, version, &payload, stamp(11), limits).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        };
        check("step.mine", 1, json!(1), &Limits::DEFAULT, "reserved");
        check("a.b", 0, json!(1), &Limits::DEFAULT, "version 0 is not within 1 to 32767");
        check("a.b", 40_000, json!(1), &Limits::DEFAULT, "version 40000");
        check("a.b", 1, json!("0123456789"), &small, "12 bytes; at most 10");
        check("a.b", 1, json!(u64::MAX), &Limits::DEFAULT, "canonical");
        assert_eq!(draft.head(), head);
        assert_eq!(events(draft).len(), 1);
    }

    #[test]
    fn first_party_payloads_are_checked_against_the_set_limits() {
        let mut draft = Draft::create(new_run(), OnExisting::Refuse, stamp(10)).unwrap();
        draft.set_limits(&Limits { event_payload_bytes_max: 4, ..Limits::DEFAULT });
        let error = draft
            .event(EventType::from_static("timer.started"), &json!({"a": 1}), stamp(11))
            .unwrap_err();
        assert!(error.to_string().contains("7 bytes; at most 4"), "{error}");
    }
}
