//! The operations of one run, as pure book-keeping: the states, the record and the queues.
//!
//! Two rules make replay exact. One recorded result is delivered per poll of the root, in the order
//! of the record. No operation is ready at its first poll.
//!
//! An operation is a step with a body, or a wait (sleep, event, child, activity). [`State::on`] has
//! all transitions; [`Queues::apply`] makes the change of the queues that belongs to one. Every pair of a state
//! and an input that is missing here is illegal and changes nothing.
//!
//! ```text
//! A step:
//!
//!   Idle --Claim--> Deferred --Start--> Starting --Run--> Running --End--> Ended --Record--> Delivered
//!    ^                |  ^                 |                 |               |
//!    +------Drop------+  |                 |                 |               | RetryAt
//!    +------Drop---------|-----------------+-----------------+               |
//!    |                   +---RetryDue--- Retrying <--------------------------+
//!    +------Cancel-------------------------+  ^
//!                                             +--Claim-- RetryLoaded
//!   Deferred --Intent--> Deferred   (the body starts after the record of its intent)
//!
//! A wait:
//!
//!   Idle --Claim--> Asked --Wait--> Waiting --Record--> Delivered
//!    ^                | |             | ^
//!    +------Drop------+ +---Record----|-|-------------> Delivered
//!    +------Cancel--------------------+ |
//!                                       +--Claim-- WaitLoaded
//!
//! A result that was loaded from the store:
//!
//!   Recorded --Claim--> Awaited --Deliver--> Delivered
//!   Carried  --Claim--> Awaited
//!   Carried  --Deliver--> SetAside --Deliver--> Delivered
//!
//! These keep the state:
//!
//!   Claim    in Ended, Retrying, Waiting, Awaited   the operation adopts the work under its key
//!   Claim    in SetAside, Delivered                 the result is delivered once more
//!   Drop     in Retrying, Waiting                   the next park cancels it, unless it is claimed
//!   Drop     in all states without an arrow for it  the result or the loaded row stays
//!   Deliver  in Delivered                           the operation is woken
//! ```
//!
//! `Deliver` in `Recorded` is illegal: the record has a result next that the code did not claim, so
//! the code has changed.

mod load;
mod outbox;
mod plan;
mod queues;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use windlass_kernel::{Body, Error, ErrorCode, ErrorKind, Timestamp};

use super::error::{Failure, StepError};
use super::wake::wake_operation;
use crate::kit::{ChildRef, KeyedWait};
use windlass_engine::RequestRef;

pub(crate) use outbox::{Outbox, PendingEvent, PendingLog, Snapshot};
pub(crate) use plan::{EventMeta, Kind, Plan};
pub(crate) use queues::RecordCount;
use queues::{Queues, StepCount};

pub(crate) type Key = Arc<str>;
pub(crate) type Outcome = Result<Body, Failure>;
/// Checks whether a result reads as the type that the code asks for.
pub(crate) type Reads = fn(&Body) -> Result<(), serde_json::Error>;
type FixedState = BuildHasherDefault<DefaultHasher>;

/// Bytes of an operation in memory, beside its key and its result.
const ENTRY_BYTES: usize = 160;

/// The state of an operation. See the diagram at the top of this file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// The code does not ask for it, and the store has no open wait for it.
    Idle {
        intent: Intent,
    },
    /// A retry was loaded, and the code has not claimed it.
    RetryLoaded {
        due: Timestamp,
        intent: Intent,
    },
    /// A wait was loaded, and the code has not claimed it.
    WaitLoaded(Wait),
    /// The body starts once `after` records are durable.
    Deferred {
        after: u64,
        intent: Intent,
    },
    /// The body starts with the next poll of its operation.
    Starting {
        intent: Intent,
    },
    Running {
        intent: Intent,
    },
    /// The body has ended; its completion is not recorded yet.
    Ended {
        intent: Intent,
    },
    /// An attempt failed; the next one is due at a time.
    Retrying {
        due: Timestamp,
        intent: Intent,
    },
    /// The code asks for a wait that the store does not have yet.
    Asked,
    /// The wait is in the store, or in the commit that is being made.
    Waiting(Wait),
    /// A result was loaded, and the code has not claimed it.
    Recorded(Record),
    /// As `Recorded`, from an earlier generation, whose code may have taken another path.
    Carried(Record),
    /// A result was loaded, and the code waits for its turn in the record.
    Awaited(Record),
    /// A carried result that was next in the record before the code claimed it. It is delivered
    /// after the claim.
    SetAside(Record),
    Delivered(Outcome),
}

/// The store's knowledge about a body that is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The body has not started, or its end is known.
    None,
    /// The intent is in a commit, and the body that follows has not ended.
    Recorded,
    /// The body started after its intent was recorded, and its end is unknown: ask the probe.
    Unknown,
}

impl Intent {
    fn after_drop(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Recorded | Self::Unknown => Self::Unknown,
        }
    }
}

/// An open wait as its row has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wait {
    pub(crate) due: Option<Timestamp>,
    pub(crate) wait_for: Option<Arc<str>>,
    pub(crate) child: Option<ChildRef>,
    pub(crate) request: Option<RequestRef>,
    pub(crate) keyed: Option<Box<KeyedWait>>,
}

/// A loaded result and the time of its record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    outcome: Outcome,
    at: Timestamp,
}

/// Everything that can happen to an operation.
#[derive(Clone, Debug, PartialEq)]
enum Input {
    /// The code polls an operation for the first time. `appended` records led to this.
    Claim { kind: Kind, appended: u64 },
    /// The code dropped the operation before it was ready.
    Drop,
    /// The intent is in a commit, as record number `after`.
    Intent { after: u64 },
    /// The causes of the body are durable, and the turn may start another step.
    Start,
    /// The operation is polled and starts its body.
    Run,
    /// The body has ended. If nobody knows its effect, the next attempt asks the probe.
    End { intent: Intent },
    /// The commit has the failed attempt and the time of the next one.
    RetryAt(Timestamp),
    /// The time of the next attempt has come.
    RetryDue { appended: u64 },
    /// The commit has the wait.
    Wait(Wait),
    /// The commit has the result.
    Record { outcome: Outcome, at: Timestamp },
    /// The result is next in the record.
    Deliver,
    /// The commit cancels a wait or a retry that the code dropped.
    Cancel,
}

/// The change outside the state that belongs to a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    Defer,
    StartBody,
    StopBody,
    OpenWait,
    CloseWait,
    DropWait,
    Redeliver,
    /// The code receives a result of this time.
    Deliver(Timestamp),
    /// The code receives a result once more.
    Wake,
}

/// An input that the state does not allow, and both unchanged.
#[derive(Debug, PartialEq)]
struct Illegal {
    state: State,
    input: Input,
}

impl State {
    fn on(self, input: Input) -> Result<(Self, Change), Box<Illegal>> {
        use State::{
            Asked, Awaited, Carried, Deferred, Delivered, Ended, Idle, Recorded, RetryLoaded,
            Retrying, Running, SetAside, Starting, WaitLoaded, Waiting,
        };
        Ok(match (self, input) {
            (Idle { intent }, Input::Claim { kind: Kind::Do, appended }) => {
                (Deferred { after: appended, intent }, Change::Defer)
            }
            (Idle { .. }, Input::Claim { .. }) => (Asked, Change::OpenWait),
            (RetryLoaded { due, intent }, Input::Claim { .. }) => {
                (Retrying { due, intent }, Change::OpenWait)
            }
            (WaitLoaded(wait), Input::Claim { .. }) => (Waiting(wait), Change::OpenWait),
            (Recorded(record) | Carried(record), Input::Claim { .. }) => {
                (Awaited(record), Change::Nothing)
            }
            (state @ (SetAside(_) | Delivered(_)), Input::Claim { .. }) => {
                (state, Change::Redeliver)
            }
            (
                state @ (Awaited(_) | Ended { .. } | Retrying { .. } | Waiting(_)),
                Input::Claim { .. },
            ) => (state, Change::Nothing),

            (Starting { intent } | Running { intent }, Input::Drop) => {
                (Idle { intent: intent.after_drop() }, Change::StopBody)
            }
            (Deferred { intent, .. }, Input::Drop) => (Idle { intent }, Change::Nothing),
            (Asked, Input::Drop) => (Idle { intent: Intent::None }, Change::CloseWait),
            (state @ (Waiting(_) | Retrying { .. }), Input::Drop) => (state, Change::DropWait),
            (state, Input::Drop) => (state, Change::Nothing),

            (Deferred { intent: Intent::None, .. }, Input::Intent { after }) => {
                (Deferred { after, intent: Intent::Recorded }, Change::Nothing)
            }
            (Deferred { intent, .. }, Input::Start) => (Starting { intent }, Change::StartBody),
            (Starting { intent }, Input::Run) => (Running { intent }, Change::Nothing),
            (Running { .. }, Input::End { intent }) => (Ended { intent }, Change::StopBody),
            (Ended { intent }, Input::RetryAt(due)) => (Retrying { due, intent }, Change::OpenWait),
            (Retrying { intent, .. }, Input::RetryDue { appended }) => {
                (Deferred { after: appended, intent }, Change::Defer)
            }

            (Asked, Input::Wait(wait)) => (Waiting(wait), Change::Nothing),
            (Ended { .. } | Asked | Waiting(_), Input::Record { outcome, at }) => {
                (Delivered(outcome), Change::Deliver(at))
            }
            (Retrying { intent, .. }, Input::Cancel) => (Idle { intent }, Change::CloseWait),
            (Waiting(_), Input::Cancel) => (Idle { intent: Intent::None }, Change::CloseWait),

            (Carried(record), Input::Deliver) => (SetAside(record), Change::Nothing),
            (Awaited(record) | SetAside(record), Input::Deliver) => {
                (Delivered(record.outcome), Change::Deliver(record.at))
            }
            (state @ Delivered(_), Input::Deliver) => (state, Change::Wake),

            (state, input) => return Err(Box::new(Illegal { state, input })),
        })
    }

    /// When the store wakes the run for it.
    fn due(&self) -> Option<Timestamp> {
        match self {
            Self::Retrying { due, .. } => Some(*due),
            Self::Waiting(wait) => wait.due,
            _ => None,
        }
    }

    fn has_result(&self) -> bool {
        matches!(
            self,
            Self::Recorded(_)
                | Self::Carried(_)
                | Self::Awaited(_)
                | Self::SetAside(_)
                | Self::Delivered(_)
        )
    }
}

/// The place of an operation's row in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) position: u64,
    pub(crate) created_at: Timestamp,
}

/// Whether an operation has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Missing,
    /// In a commit that can still fail by itself, as one with the user's SQL can.
    Drafted(Place),
    /// In the store, or in the commit that is being made.
    Stored(Place),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) plan: Option<Plan>,
    /// Whether a result reads as the type that the code asks for.
    pub(crate) reads: Reads,
    pub(crate) state: State,
    row: Row,
    // Of the operation that holds the key now; none if the code holds no operation with it.
    waker: Option<Waker>,
    /// How many attempts have ended.
    pub(crate) attempt: u32,
    /// When the consumed event was sent, if the code asked for it.
    pub(crate) sent_at: Option<Timestamp>,
}

impl Entry {
    fn new(kind: Kind) -> Self {
        let state = State::Idle { intent: Intent::None };
        let reads: Reads = |_| Ok(());
        let (plan, row, waker) = (None, Row::Missing, None);
        Self { kind, plan, reads, state, row, waker, attempt: 0, sent_at: None }
    }

    /// Whether the code holds an operation with this key.
    pub(crate) fn is_live(&self) -> bool {
        self.waker.is_some()
    }

    /// Whether the next attempt asks the probe first.
    pub(crate) fn needs_probe(&self) -> bool {
        matches!(
            self.state,
            State::Starting { intent: Intent::Unknown } | State::Ended { intent: Intent::Unknown }
        )
    }

    /// The place of the row; the given one if it has none yet.
    fn place(&mut self, next: Place) -> Place {
        match self.row {
            Row::Stored(place) => place,
            Row::Missing | Row::Drafted(_) => {
                self.row = Row::Drafted(next);
                next
            }
        }
    }

    fn row_stored(&mut self) {
        if let Row::Drafted(place) = self.row {
            self.row = Row::Stored(place);
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            wake_operation(waker);
        }
    }

    fn on(&mut self, input: Input) -> Result<Change, Box<Illegal>> {
        let state = std::mem::replace(&mut self.state, State::Asked);
        match state.on(input) {
            Ok((next, change)) => {
                self.state = next;
                Ok(change)
            }
            Err(illegal) => {
                self.state = illegal.state.clone();
                Err(illegal)
            }
        }
    }
}

/// The end of an attempt of a body.
pub(crate) struct Completion {
    pub(crate) key: Key,
    pub(crate) attempt: u32,
    /// How long the attempt took, by the clock of this process.
    pub(crate) took: Duration,
    pub(crate) outcome: Outcome,
    /// The attempt was cut off, or the probe failed: nobody knows what the body has done.
    pub(crate) unknown: bool,
    pub(crate) writes: crate::effects::Writes,
}

pub(crate) struct Core {
    entries: HashMap<Key, Entry, FixedState>,
    steps: StepCount,
    pub(crate) queues: Queues,
    pub(crate) records: RecordCount,
    pub(crate) outbox: Outbox,
    pub(crate) continue_with: Option<Body>,
    pub(crate) fault: Option<Error>,
    /// The run is leaving memory: a drop of an operation means nothing any more.
    pub(crate) closed: bool,
    pub(crate) bytes: usize,
}

impl Core {
    /// An operation asks for its key, at its first poll.
    pub(crate) fn claim(
        &mut self,
        key: &Key,
        plan: Plan,
        reads: Reads,
        waker: &Waker,
    ) -> Result<(), StepError> {
        let kind = plan.kind();
        if !self.entries.contains_key(key) {
            self.admit(key, kind)?;
        }
        let entry = self.entries.get_mut(key).expect("the entry was inserted above");
        if entry.is_live() {
            let message = "two live operations have the same key; give each its own".to_owned();
            return Err(StepError::new(ErrorCode::DuplicateStep, key, "DuplicateStep", message));
        }
        if entry.kind != kind {
            let (found, asked) = (entry.kind.as_str(), kind.as_str());
            self.fault = Some(nondeterminism(format!(
                "step {key:?} is recorded as {found:?}, and the code asks for {asked:?} under \
                 the same key"
            )));
            return Ok(());
        }
        entry.plan = Some(plan);
        entry.reads = reads;
        entry.waker = Some(waker.clone());
        self.queues.waits.undrop(key);
        let appended = self.records.appended;
        self.queues.apply(key, entry, Input::Claim { kind, appended });
        Ok(())
    }

    // Adds a key that the run does not have yet.
    fn admit(&mut self, key: &Key, kind: Kind) -> Result<(), StepError> {
        if kind == Kind::Do && self.steps.count >= self.steps.max {
            let max = self.steps.max;
            let message = format!(
                "the run has {max} steps, which is the limit for a run; continue as new, use \
                 children, or raise `steps_per_run_max`"
            );
            return Err(StepError::new(ErrorCode::StepLimit, key, "StepLimit", message));
        }
        self.insert(key, Entry::new(kind));
        Ok(())
    }

    fn insert(&mut self, key: &Key, entry: Entry) {
        self.steps.count += usize::from(entry.kind == Kind::Do);
        self.bytes += ENTRY_BYTES + key.len();
        self.entries.insert(Arc::clone(key), entry);
    }

    /// The code dropped an operation before it was ready.
    pub(crate) fn drop_operation(&mut self, key: &Key) {
        if self.closed {
            return;
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.waker = None;
            self.queues.apply(key, entry, Input::Drop);
            // Its row says that the body runs. The next park corrects it.
            if matches!((&entry.state, entry.row), (State::Idle { .. }, Row::Stored(_))) {
                self.queues.waits.drop_wait(key);
            }
        }
    }

    /// Delivers one result. `false` if there is none to deliver.
    pub(crate) fn deliver_next(&mut self) -> bool {
        if let Some(key) = self.queues.replay.redeliver.pop_front() {
            let entry = self.entries.get_mut(&key).expect("a claimed key has an entry");
            self.queues.apply(&key, entry, Input::Deliver);
            return true;
        }
        let Some(key) = self.queues.replay.records.pop_front() else { return false };
        let entry = self.entries.get_mut(&key).expect("a record has an entry");
        if let State::Recorded(_) = entry.state {
            let kind = entry.kind.as_str();
            let instead = self.claimed_instead();
            self.fault = Some(nondeterminism(format!(
                "the record has {kind:?} step {key:?} next, and the code does not ask for it{instead}"
            )));
            return true;
        }
        self.queues.apply(&key, entry, Input::Deliver);
        true
    }

    // Names an operation that the code waits for where the record has another one.
    fn claimed_instead(&self) -> String {
        let waits = |entry: &Entry| entry.is_live() && !entry.state.has_result();
        let claimed = self.entries.iter().filter(|(_, entry)| waits(entry));
        match claimed.map(|(key, _)| key).min() {
            Some(key) => format!(", but for {key:?}"),
            None => String::new(),
        }
    }

    /// An operation is polled again.
    pub(crate) fn poll(&mut self, key: &Key, waker: &Waker) -> Found {
        let redelivers = self.queues.replay.redeliver.contains(key);
        let Some(entry) = self.entries.get_mut(key) else { return Found::Pending };
        match &entry.state {
            State::Delivered(outcome) if !redelivers => {
                entry.waker = None;
                return Found::Ready(outcome.clone());
            }
            State::Starting { .. } => {
                let start = Found::Start { attempt: entry.attempt + 1, probe: entry.needs_probe() };
                self.queues.apply(key, entry, Input::Run);
                return start;
            }
            _ => {}
        }
        match &mut entry.waker {
            Some(known) if known.will_wake(waker) => {}
            known => *known = Some(waker.clone()),
        }
        Found::Pending
    }

    /// A body ended. A body that does not run any more ends without a record.
    pub(crate) fn completed(&mut self, completion: Completion) {
        let Some(entry) = self.entries.get_mut(&completion.key) else { return };
        if !matches!(entry.state, State::Running { .. }) {
            return;
        }
        let with_intent = entry.plan.as_ref().is_some_and(Plan::has_intent);
        let unknown = with_intent && completion.unknown;
        let intent = if unknown { Intent::Unknown } else { Intent::None };
        self.queues.apply(&completion.key, entry, Input::End { intent });
        self.outbox.attempt_ended(&completion.key, completion.attempt);
        self.queues.bodies.completions.push_back(completion);
    }

    /// At the end of the replay, the code must have claimed everything that is open in the store.
    pub(crate) fn end_replay(&mut self) {
        self.queues.replay.active = false;
        let open =
            |state: &State| matches!(state, State::RetryLoaded { .. } | State::WaitLoaded(_));
        let missed = self.entries.iter().filter(|(_, entry)| open(&entry.state));
        if let Some((key, entry)) = missed.min_by_key(|(key, _)| Arc::clone(key)) {
            let kind = entry.kind.as_str();
            let instead = self.claimed_instead();
            self.fault = Some(nondeterminism(format!(
                "{kind:?} step {key:?} is open in the record, and the code does not ask for it{instead}"
            )));
        }
    }

    /// Starts the bodies whose causes are durable, as long as the turn permits it.
    pub(crate) fn start_deferred(&mut self, mut permit: impl FnMut() -> bool) -> Started {
        let mut started = 0;
        while let Some(key) = self.queues.bodies.deferred.front() {
            let entry = self.entries.get_mut(key).expect("a deferred step has an entry");
            let State::Deferred { after, intent } = entry.state else {
                self.queues.bodies.deferred.pop_front();
                continue;
            };
            if after > self.records.durable {
                break;
            }
            let wants_intent = entry.plan.as_ref().is_some_and(Plan::has_intent);
            if wants_intent && intent == Intent::None {
                return match started {
                    0 => Started::Intent(Arc::clone(key)),
                    count => Started::Bodies(count),
                };
            }
            if !permit() {
                return Started::NoPermit;
            }
            let key = self.queues.bodies.deferred.pop_front().expect("the loop has seen the front");
            self.queues.apply(&key, entry, Input::Start);
            started += 1;
        }
        Started::Bodies(started)
    }

    /// The intent of a step is in the commit that is being made; the body starts when that is
    /// durable. This is no recovery, so the first attempt does not ask the probe.
    pub(crate) fn intent_recorded(&mut self, key: &Key) {
        self.records.appended += 1;
        let after = self.records.appended;
        self.apply(key, Input::Intent { after }).row_stored();
    }

    /// Whether bodies wait to be started.
    pub(crate) fn has_deferred(&mut self) -> bool {
        while let Some(key) = self.queues.bodies.deferred.front() {
            if matches!(self.entries[key].state, State::Deferred { .. }) {
                return true;
            }
            self.queues.bodies.deferred.pop_front();
        }
        false
    }

    /// Drops the pending lines and events that belong to no recorded step.
    pub(crate) fn keep_recorded_lines(&mut self) {
        let entries = &self.entries;
        let recorded = |key: &Key| {
            entries.get(key).is_some_and(|entry| matches!(entry.state, State::Delivered(_)))
        };
        self.outbox.keep_recorded(recorded);
    }

    /// Whether a row in the store may belong to an operation without a result.
    pub(crate) fn has_open_rows(&self) -> bool {
        let open = |entry: &Entry| matches!(entry.row, Row::Stored(_)) && !entry.state.has_result();
        self.entries.values().any(open)
    }

    pub(crate) fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Sets the number of attempts that have ended.
    pub(crate) fn set_attempt(&mut self, key: &Key, attempt: u32) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.attempt = attempt;
        }
    }

    pub(crate) fn set_sent_at(&mut self, key: &Key, sent_at: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.sent_at = Some(sent_at);
        }
    }

    /// When the event that settled a wait was sent. A wait that was recorded by code which did not ask
    /// for it has only the time of its record.
    pub(crate) fn sent_at(&self, key: &Key) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        entry.sent_at.or(match &entry.state {
            State::Recorded(record) | State::Carried(record) => Some(record.at),
            _ => None,
        })
    }

    /// The entry and the place of its row; the given place if it has no row yet.
    pub(crate) fn place_row(&mut self, key: &Key, next: Place) -> (&Entry, Place) {
        let entry = self.entries.get_mut(key).expect("a step that is recorded has an entry");
        let place = entry.place(next);
        (entry, place)
    }

    /// The row of an operation is in the commit that is being made.
    pub(crate) fn row_stored(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.row_stored();
        }
    }

    /// The open waits and retries, in the order in which the code asked for them.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.queues.waits.keys().map(|key| (key, &self.entries[key]))
    }

    /// As [`Core::open`], from a place in that order. Each comes with its place.
    pub(crate) fn open_from(&self, place: u64) -> impl Iterator<Item = (u64, &Key, &Entry)> {
        self.queues.waits.from(place).map(|(place, key)| (place, key, &self.entries[key]))
    }

    /// When the first open wait or retry is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let live = self.open().filter(|(_, entry)| entry.is_live());
        live.filter_map(|(_, entry)| entry.state.due()).min()
    }

    /// The failed attempt and the time of the next one are in the commit that is being made.
    pub(crate) fn retry_at(&mut self, key: &Key, due: Timestamp) {
        self.records.appended += 1;
        let entry = self.apply(key, Input::RetryAt(due));
        entry.row_stored();
        if !entry.is_live() {
            self.queues.waits.drop_wait(key);
        }
    }

    /// A retry is due: its body starts again.
    pub(crate) fn retry_due(&mut self, key: &Key) {
        self.queues.waits.remove(key);
        let appended = self.records.appended;
        self.apply(key, Input::RetryDue { appended });
    }

    /// A wait is in the commit that is being made.
    pub(crate) fn wait_recorded(&mut self, key: &Key, wait: Wait) {
        self.records.appended += 1;
        self.apply(key, Input::Wait(wait)).row_stored();
    }

    /// A result is in the commit that is being made, or in one that was made.
    pub(crate) fn recorded(&mut self, key: &Key, outcome: Outcome, at: Timestamp) {
        self.records.appended += 1;
        self.queues.waits.remove(key);
        self.queues.waits.undrop(key);
        if let Ok(body) = &outcome {
            self.bytes += body.len();
        }
        self.apply(key, Input::Record { outcome, at }).row_stored();
    }

    /// The commit that is being made cancels a wait or a retry that the code dropped. The code may
    /// claim the key again.
    pub(crate) fn wait_cancelled(&mut self, key: &Key) {
        let idle = |entry: &Entry| matches!(entry.state, State::Idle { .. });
        if !self.entries.get(key).is_some_and(idle) {
            self.apply(key, Input::Cancel);
        }
    }

    fn apply(&mut self, key: &Key, input: Input) -> &mut Entry {
        let entry = self.entries.get_mut(key).expect("a step that is recorded has an entry");
        self.queues.apply(key, entry, input);
        entry
    }
}

/// The answer to a poll of an operation.
pub(crate) enum Found {
    Pending,
    /// The body may start.
    Start {
        attempt: u32,
        probe: bool,
    },
    Ready(Outcome),
}

/// The bodies that [`Core::start_deferred`] has started, or the reason why it stopped.
pub(crate) enum Started {
    Bodies(usize),
    /// The intent of this step must be recorded first.
    Intent(Key),
    /// The turn may start no further step.
    NoPermit,
}

pub(crate) fn nondeterminism(message: String) -> Error {
    let message = format!(
        "{message}; the code has changed, or does something that differs from one run to the next"
    );
    Error::new(ErrorKind::Invalid, ErrorCode::NonDeterminism, message)
}
