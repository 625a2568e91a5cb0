//! The content of a key's record as a pure state machine: kept events, waiters, and which run has
//! received which event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{
    Body, Error, ErrorCode, ErrorKind, EventKey, Limits, MessageName, Run, RunKey, Sha256Digest,
    TaskId, Timestamp,
};

use super::EventAddress;

/// Bounds of the messages in one commit. A task delivers the rest.
const DELIVERIES_MAX: usize = 100;
const DELIVERED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The shortest time between two removals of expired events of one key.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// The document of a key's record.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeyState {
    event_type: String,
    key: String,
    /// The number of the newest event.
    last_seq: u64,
    events: Vec<KeptEvent>,
    waiters: Vec<Waiter>,
    /// The newest event that each run has received, by [`receiver`]. An entry goes when all events up to
    /// that one have expired.
    received: BTreeMap<String, u64>,
    /// When the task that removes expired events is due.
    tidy_at: Option<i64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeptEvent {
    seq: u64,
    pub(super) id: String,
    payload: Box<RawValue>,
    sent_at: i64,
    expires_at: i64,
}

/// A wait that is registered for the key. It gets one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiter {
    /// The task that registered it.
    pub(super) task_id: TaskId,
    pub(super) run_key: RunKey,
    /// The run's name as a digest: an event goes once to all generations of a run together.
    pub(super) receiver: String,
    /// The end of the wait.
    pub(super) until: i64,
}

/// An event for a waiter.
pub(super) struct Delivery {
    pub(super) run_key: RunKey,
    pub(super) event_id: String,
    pub(super) body: Body,
    pub(super) sent_at: Timestamp,
}

/// The events that one commit sends to waiters.
pub(super) struct Deliveries {
    pub(super) list: Vec<Delivery>,
    /// Whether further waiters have an event to get.
    pub(super) has_more: bool,
}

/// An event to keep.
pub(super) struct NewKeptEvent<'a> {
    pub(super) id: &'a str,
    pub(super) payload: &'a RawValue,
    pub(super) sent_at: Timestamp,
    pub(super) expires_at: Timestamp,
}

impl KeyState {
    pub(super) fn new(address: &EventAddress) -> Self {
        Self {
            event_type: address.event_type.to_string(),
            key: address.key.to_string(),
            last_seq: 0,
            events: Vec::new(),
            waiters: Vec::new(),
            received: BTreeMap::new(),
            tidy_at: None,
        }
    }

    /// The type and the key.
    pub(super) fn address(&self) -> EventAddress {
        EventAddress {
            event_type: MessageName::from_stored(self.event_type.as_str()),
            key: EventKey::from_stored(self.key.as_str()),
        }
    }

    /// When the task that removes expired events is due.
    pub(super) fn tidy_at(&self) -> Option<Timestamp> {
        self.tidy_at.map(Timestamp::from_micros)
    }

    pub(super) fn has_waiters_and_events(&self) -> bool {
        !self.waiters.is_empty() && !self.events.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.waiters.is_empty()
    }

    /// Drops everything that has expired.
    pub(super) fn prune(&mut self, now: Timestamp) {
        let now = now.as_micros();
        self.events.retain(|event| event.expires_at > now);
        self.waiters.retain(|waiter| waiter.until > now);
        let oldest = self.events.iter().map(|event| event.seq).min();
        self.received.retain(|_, seq| oldest.is_some_and(|oldest| *seq >= oldest));
    }

    /// The kept event with an id.
    pub(super) fn event(&self, id: &str) -> Option<&KeptEvent> {
        self.events.iter().find(|event| event.id == id)
    }

    /// Keeps an event; `false` if the same event is kept already.
    pub(super) fn add_event(
        &mut self,
        new: &NewKeptEvent<'_>,
        limits: &Limits,
    ) -> Result<bool, Error> {
        let (event_type, key) = (&self.event_type, &self.key);
        if let Some(kept) = self.event(new.id) {
            if kept.payload.get() == new.payload.get() {
                return Ok(false);
            }
            let message = format!(
                "key {key:?} keeps an event of type {event_type:?} with id {:?} and another payload; \
                 use another id",
                new.id
            );
            return Err(Error::new(ErrorKind::Conflict, ErrorCode::MessageExists, message));
        }
        let bytes = new.payload.get().len()
            + self.events.iter().map(|event| event.payload.get().len()).sum::<usize>();
        let full = [
            ("events", "key_events_max", self.events.len() + 1, limits.key_events_max),
            ("bytes of events", "key_bytes_max", bytes, limits.key_bytes_max),
        ];
        for (unit, limit, count, max) in full {
            if count > max {
                let message = format!(
                    "key {key:?} would keep {count} {unit} of type {event_type:?}; at most {max} are \
                     allowed ({limit}); send it again when an earlier event has expired"
                );
                return Err(Error::new(ErrorKind::Refused, ErrorCode::EventKeyFull, message));
            }
        }
        self.last_seq += 1;
        self.events.push(KeptEvent {
            seq: self.last_seq,
            id: new.id.to_owned(),
            payload: new.payload.to_owned(),
            sent_at: new.sent_at.as_micros(),
            expires_at: new.expires_at.as_micros(),
        });
        Ok(true)
    }

    /// Registers a wait; `false` if it is registered, or if there is no space for it.
    pub(super) fn add_waiter(&mut self, waiter: Waiter, limits: &Limits) -> bool {
        let is_known = self.is_waiting(waiter.task_id);
        let runs = self.waiters.len() + self.received.len();
        let may_add = !is_known && runs < limits.key_runs_max;
        if may_add {
            self.waiters.push(waiter);
        }
        may_add
    }

    pub(super) fn is_waiting(&self, task_id: TaskId) -> bool {
        self.waiters.iter().any(|waiter| waiter.task_id == task_id)
    }

    pub(super) fn remove_waiter(&mut self, task_id: TaskId) {
        self.waiters.retain(|waiter| waiter.task_id != task_id);
    }

    /// Removes the waiters of runs that have ended. They have received nothing.
    pub(super) fn remove_runs(&mut self, ended: &BTreeSet<RunKey>) {
        self.waiters.retain(|waiter| !ended.contains(&waiter.run_key));
    }

    /// Takes out the waiters for which an event is kept that their run has not received, the longest
    /// waiting first.
    pub(super) fn deliver(&mut self) -> Deliveries {
        let (mut list, mut left, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut has_more = false;
        for waiter in std::mem::take(&mut self.waiters) {
            let seen = self.received.get(&waiter.receiver).copied().unwrap_or(0);
            let next = self.events.iter().find(|event| event.seq > seen);
            let Some(event) = next else {
                left.push(waiter);
                continue;
            };
            bytes += event.payload.get().len();
            let is_full = list.len() == DELIVERIES_MAX || bytes > DELIVERED_BYTES_MAX;
            if is_full && !list.is_empty() {
                has_more = true;
                left.push(waiter);
                continue;
            }
            list.push(Delivery {
                run_key: waiter.run_key,
                event_id: event.id.clone(),
                body: Body::json(event.payload.get().to_owned()),
                sent_at: Timestamp::from_micros(event.sent_at),
            });
            self.received.insert(waiter.receiver, event.seq);
        }
        self.waiters = left;
        Deliveries { list, has_more }
    }

    /// Schedules the removal of expired events, if nobody has: when the new task is due.
    pub(super) fn schedule_tidy(&mut self, not_before: Timestamp) -> Option<Timestamp> {
        let first = self.events.iter().map(|event| event.expires_at).min()?;
        if self.tidy_at.is_some() {
            return None;
        }
        let due = Timestamp::from_micros(first).max(not_before);
        self.tidy_at = Some(due.as_micros());
        Some(due)
    }

    /// The task that removes expired events runs: `false` if another task does it.
    pub(super) fn begin_tidy(&mut self, due: Timestamp) -> bool {
        let is_own = self.tidy_at == Some(due.as_micros());
        if is_own {
            self.tidy_at = None;
        }
        is_own
    }

    /// The earliest time of the next removal after one that ran now.
    pub(super) fn next_tidy(now: Timestamp) -> Timestamp {
        now.plus(TIDY_EVERY)
    }
}

impl KeptEvent {
    pub(super) fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.expires_at)
    }
}

/// Names a run in [`KeyState`]: all its generations have the same name.
pub(super) fn receiver(run: &Run) -> String {
    let digest =
        Sha256Digest::of_parts(&[run.workflow.as_str().as_bytes(), run.id.as_str().as_bytes()]);
    digest.as_bytes()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const LIMITS: Limits =
        Limits { key_events_max: 3, key_bytes_max: 40, key_runs_max: 4, ..Limits::DEFAULT };

    fn at(us: i64) -> Timestamp {
        Timestamp::from_micros(us)
    }

    fn state() -> KeyState {
        KeyState::new(&EventAddress::new("scanned", "parcel-17", &LIMITS).unwrap())
    }

    fn waiter(task: u128, run: u128) -> Waiter {
        Waiter {
            task_id: TaskId(Uuid::from_u128(task)),
            run_key: RunKey(Uuid::from_u128(run)),
            receiver: format!("run {run}"),
            until: 1_000,
        }
    }

    fn send(state: &mut KeyState, id: &str, payload: &str, expires_at: i64) -> Result<bool, Error> {
        let payload = RawValue::from_string(payload.to_owned()).unwrap();
        let new =
            NewKeptEvent { id, payload: &payload, sent_at: at(0), expires_at: at(expires_at) };
        state.add_event(&new, &LIMITS)
    }

    // The runs that get an event now, and which event.
    fn delivered(state: &mut KeyState) -> Vec<(u128, String)> {
        let list = state.deliver().list.into_iter();
        list.map(|delivery| (delivery.run_key.0.as_u128(), delivery.event_id)).collect()
    }

    fn pairs(expect: &[(u128, &str)]) -> Vec<(u128, String)> {
        expect.iter().map(|(run, id)| (*run, (*id).to_owned())).collect()
    }

    #[test]
    fn every_waiting_run_gets_an_event_once_in_either_order() {
        let mut state = state();
        assert!(state.add_waiter(waiter(1, 1), &LIMITS));
        assert!(!state.add_waiter(waiter(1, 1), &LIMITS), "it is registered");
        assert!(delivered(&mut state).is_empty());
        assert!(send(&mut state, "a", "1", 100).unwrap());
        assert_eq!(delivered(&mut state), pairs(&[(1, "a")]));
        assert!(delivered(&mut state).is_empty(), "the wait is met");
        // The same run waits again: it has received the event. Another run has not.
        assert!(state.add_waiter(waiter(2, 1), &LIMITS));
        assert!(state.add_waiter(waiter(3, 2), &LIMITS));
        assert_eq!(delivered(&mut state), pairs(&[(2, "a")]));
        assert!(send(&mut state, "b", "2", 100).unwrap());
        assert_eq!(delivered(&mut state), pairs(&[(1, "b")]));
    }

    #[test]
    fn two_waits_of_one_run_get_two_events() {
        let mut state = state();
        state.add_waiter(waiter(1, 1), &LIMITS);
        state.add_waiter(waiter(2, 1), &LIMITS);
        send(&mut state, "a", "1", 100).unwrap();
        assert_eq!(delivered(&mut state), pairs(&[(1, "a")]));
        assert!(state.is_waiting(TaskId(Uuid::from_u128(2))));
        send(&mut state, "b", "1", 100).unwrap();
        assert_eq!(delivered(&mut state), pairs(&[(1, "b")]));
    }

    #[test]
    fn the_same_event_is_kept_once() {
        let mut state = state();
        assert!(send(&mut state, "a", "1", 100).unwrap());
        assert!(!send(&mut state, "a", "1", 100).unwrap());
        let error = send(&mut state, "a", "2", 100).unwrap_err();
        assert_eq!(error.code(), ErrorCode::MessageExists);
    }

    #[test]
    fn limits_are_named() {
        let mut state = state();
        for id in ["a", "b", "c"] {
            send(&mut state, id, "1", 100).unwrap();
        }
        let error = send(&mut state, "d", "1", 100).unwrap_err();
        assert_eq!(error.code(), ErrorCode::EventKeyFull);
        assert!(error.message().contains("key_events_max"), "{error}");
        state.prune(at(100));
        let error = send(&mut state, "d", &"1".repeat(41), 200).unwrap_err();
        assert!(error.message().contains("key_bytes_max"), "{error}");
        // A run that finds no space registers later.
        for run in 1..=4 {
            assert!(state.add_waiter(waiter(run, run), &LIMITS));
        }
        assert!(!state.add_waiter(waiter(5, 5), &LIMITS));
        state.remove_waiter(TaskId(Uuid::from_u128(1)));
        assert!(state.add_waiter(waiter(5, 5), &LIMITS));
    }

    #[test]
    fn expired_content_goes() {
        let mut state = state();
        send(&mut state, "a", "1", 100).unwrap();
        send(&mut state, "b", "1", 300).unwrap();
        state.add_waiter(waiter(1, 1), &LIMITS);
        assert_eq!(delivered(&mut state), pairs(&[(1, "a")]));
        state.prune(at(99));
        assert_eq!(state.events.len(), 2);
        state.prune(at(100));
        assert_eq!((state.events.len(), state.received.len()), (1, 0), "only 'b' is left");
        // The run has not received 'b'.
        state.add_waiter(waiter(2, 1), &LIMITS);
        assert_eq!(delivered(&mut state), pairs(&[(1, "b")]));
        state.add_waiter(waiter(3, 1), &LIMITS);
        state.prune(at(300));
        assert!(state.events.is_empty() && !state.is_empty());
        state.prune(at(1_000));
        assert!(state.is_empty());
    }

    #[test]
    fn waiters_of_ended_runs_receive_nothing() {
        let mut state = state();
        state.add_waiter(waiter(1, 1), &LIMITS);
        state.add_waiter(waiter(2, 2), &LIMITS);
        state.remove_runs(&BTreeSet::from([RunKey(Uuid::from_u128(1))]));
        send(&mut state, "a", "1", 100).unwrap();
        assert_eq!(delivered(&mut state), pairs(&[(2, "a")]));
        // The next generation of the ended run still gets it.
        state.add_waiter(Waiter { receiver: "run 1".into(), ..waiter(3, 3) }, &LIMITS);
        assert_eq!(delivered(&mut state), pairs(&[(3, "a")]));
    }

    #[test]
    fn one_task_removes_expired_events() {
        let mut state = state();
        assert_eq!(state.schedule_tidy(at(0)), None, "there are no events");
        send(&mut state, "a", "1", 100).unwrap();
        assert_eq!(state.schedule_tidy(at(0)), Some(at(100)));
        assert_eq!(state.schedule_tidy(at(0)), None, "it is scheduled");
        assert!(!state.begin_tidy(at(99)));
        assert!(state.begin_tidy(at(100)));
        assert_eq!(state.schedule_tidy(at(150)), Some(at(150)), "not too often");
    }

    #[test]
    fn many_waiters_need_several_commits() {
        let limits = Limits::DEFAULT;
        let mut state = state();
        for run in 0..250 {
            assert!(state.add_waiter(waiter(run, run), &limits));
        }
        send(&mut state, "a", "1", 100).unwrap();
        for (count, has_more) in [(100, true), (100, true), (50, false)] {
            let deliveries = state.deliver();
            assert_eq!((deliveries.list.len(), deliveries.has_more), (count, has_more));
        }
    }
}
