//! The operations of one run: what was asked for, what is recorded, and what was told to the code.
//!
//! Pure bookkeeping. Two rules make replay exact: one recorded completion is delivered per poll of
//! the root, in the order of the record; and no operation is ready at its first poll.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, Error, ErrorKind, EventId, Limits, LogLevel, MessageName, ModelName, RetryPolicy, Route,
    Run, RunKey, Step, StepStatus, Timestamp, WorkflowName,
};

use super::error::{Failure, StepError};
use super::wake::wake_operation;

pub(crate) type Key = Arc<str>;
pub(crate) type Outcome = Result<Body, Failure>;

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Do,
    Sleep,
    Event,
    Child,
    Activity,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Do => "do",
            Self::Sleep => "sleep",
            Self::Event => "event",
            Self::Child => "child",
            Self::Activity => "activity",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::Do, Self::Sleep, Self::Event, Self::Child, Self::Activity]
            .into_iter()
            .find(|kind| kind.as_str() == word)
    }

    /// The code of an error that an operation of this kind ends with.
    pub(crate) const fn error_code(self) -> &'static str {
        match self {
            Self::Do => "STEP_FAILED",
            Self::Sleep => "SLEEP_FAILED",
            Self::Event => "EVENT_TIMEOUT",
            Self::Child => "CHILD_FAILED",
            Self::Activity => "ACTIVITY_FAILED",
        }
    }
}

/// How an operation is to be carried out, as its latest claim says.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Do {
        policy: RetryPolicy,
        timeout: Option<Duration>,
        intent: bool,
    },
    SleepFor(Duration),
    SleepUntil(Timestamp),
    Event {
        name: MessageName,
        timeout: Duration,
    },
    Child {
        workflow: WorkflowName,
        model: ModelName,
        input: Body,
        labels: BTreeMap<String, String>,
    },
    Activity {
        route: Route,
        body: Body,
        priority: i16,
        attempts_max: Option<u32>,
    },
}

impl Plan {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Do { .. } => Kind::Do,
            Self::SleepFor(_) | Self::SleepUntil(_) => Kind::Sleep,
            Self::Event { .. } => Kind::Event,
            Self::Child { .. } => Kind::Child,
            Self::Activity { .. } => Kind::Activity,
        }
    }
}

/// Where an operation is.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Not asked for: an open row that nobody has claimed yet, or a key that was let go.
    Idle,
    /// A body that starts once everything that led to it is durable.
    Deferred,
    /// The body may start with the next poll.
    Starting,
    Running,
    /// The body has ended; the completion waits to be recorded.
    Done,
    /// An attempt failed; the next is due at a time.
    Retrying,
    /// A wait that is not in the store yet.
    Asked,
    /// A wait that is in the store, or in the commit that is being made.
    Waiting,
    /// It has its result, which the code was not told yet.
    Recorded(Outcome),
    /// The code was told.
    Delivered(Outcome),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) plan: Option<Plan>,
    pub(crate) state: State,
    /// An operation of the code is waiting for it now.
    pub(crate) live: bool,
    /// The code has asked for it since this run was opened.
    pub(crate) claimed: bool,
    /// It has a row in the store, or in the commit that is being made.
    pub(crate) stored: bool,
    /// A body was begun after its intent was recorded, and nobody knows how it ended.
    pub(crate) probe: bool,
    pub(crate) waker: Option<Waker>,
    /// How many attempts have ended.
    pub(crate) attempt: u32,
    pub(crate) position: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) recorded_at: Timestamp,
    pub(crate) due: Option<Timestamp>,
    pub(crate) wait_for: Option<Arc<str>>,
    pub(crate) child: Option<ChildRef>,
    /// Its intent is in a commit, and the body that follows has not ended.
    intended: bool,
    // It was recorded by an earlier generation, whose code may have come by another way.
    carried: bool,
    // It was next in the record before the code asked for it; it is told when the code does.
    aside: bool,
    // Nothing that is durable later than this led to it.
    after: u64,
}

impl Entry {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            plan: None,
            state: State::Idle,
            live: false,
            claimed: false,
            stored: false,
            probe: false,
            waker: None,
            attempt: 0,
            position: 0,
            created_at: Timestamp::ZERO,
            recorded_at: Timestamp::ZERO,
            due: None,
            wait_for: None,
            child: None,
            intended: false,
            carried: false,
            aside: false,
            after: 0,
        }
    }
}

/// What a body ended with.
pub(crate) struct Completion {
    pub(crate) key: Key,
    pub(crate) attempt: u32,
    pub(crate) outcome: Outcome,
    /// It was cut off, or the probe failed: nobody knows what the body has done.
    pub(crate) unknown: bool,
    pub(crate) sql: Vec<windlass_kernel::Statement>,
    pub(crate) effects: Vec<crate::effects::Effect>,
}

/// A durable log line that waits for the next commit.
pub(crate) struct PendingLog {
    pub(crate) step: Option<(Key, u32)>,
    pub(crate) level: LogLevel,
    pub(crate) category: String,
    pub(crate) message: String,
    pub(crate) data: Option<Body>,
    pub(crate) replay: bool,
}

/// A custom event that waits for the next commit.
pub(crate) struct PendingEvent {
    pub(crate) event_id: EventId,
    pub(crate) event_type: String,
    pub(crate) version: u16,
    pub(crate) payload: serde_json::Value,
    pub(crate) caused_by: Option<windlass_kernel::CausalRef>,
    pub(crate) outside_step: bool,
}

/// What the model keeps of a run beside its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Custom events recorded outside steps: on replay so many are passed over.
    pub(crate) custom_events: u64,
}

type FixedState = BuildHasherDefault<DefaultHasher>;

pub(crate) struct Core {
    entries: HashMap<Key, Entry, FixedState>,
    // Keys with a recorded completion that the code was not told, in the order of the record.
    pub(crate) records: VecDeque<Key>,
    // Keys that were finished before and are asked for again.
    again: VecDeque<Key>,
    pub(crate) completions: VecDeque<Completion>,
    deferred: VecDeque<Key>,
    // Waits and retries, in the order in which they were asked for.
    open: BTreeMap<u64, Key>,
    open_places: HashMap<Key, u64, FixedState>,
    next_open: u64,
    // Waits and retries that the code let go while they are in the store.
    pub(crate) let_go: BTreeSet<Key>,
    // Bodies that have run for so long that people should see it.
    pub(crate) long_running: Vec<Key>,
    running: usize,
    pub(crate) replaying: bool,
    pub(crate) fault: Option<Error>,
    /// How many records were put into commits, and how many of them are durable.
    pub(crate) appended: u64,
    pub(crate) durable: u64,
    steps: usize,
    pub(crate) logs: Vec<PendingLog>,
    pub(crate) events: Vec<PendingEvent>,
    pub(crate) kept: Kept,
    pub(crate) kept_stored: Kept,
    pub(crate) passed_over: u64,
    pub(crate) continue_with: Option<Body>,
    /// The deterministic now: the time of the last record that the code was told.
    pub(crate) now: Timestamp,
    pub(crate) draws: u64,
    pub(crate) closed: bool,
    pub(crate) bytes: usize,
    limits: Limits,
}

impl Core {
    pub(crate) fn new(run: &Run, steps: &[Step], limits: Limits) -> Result<Self, Error> {
        let kept: Kept = run.state.as_ref().map(Body::read).transpose()?.unwrap_or_default();
        let mut core = Self {
            entries: HashMap::default(),
            records: VecDeque::new(),
            again: VecDeque::new(),
            completions: VecDeque::new(),
            deferred: VecDeque::new(),
            open: BTreeMap::new(),
            open_places: HashMap::default(),
            next_open: 0,
            let_go: BTreeSet::new(),
            long_running: Vec::new(),
            running: 0,
            replaying: !steps.is_empty() || kept != Kept::default(),
            fault: None,
            appended: 0,
            durable: 0,
            steps: 0,
            logs: Vec::new(),
            events: Vec::new(),
            kept,
            kept_stored: kept,
            passed_over: 0,
            continue_with: None,
            now: run.created_at,
            draws: 0,
            closed: false,
            bytes: 0,
            limits,
        };
        let mut settled: Vec<(&Step, Key)> = Vec::new();
        for step in steps {
            let key: Key = step.step_key.as_str().into();
            core.load(run, step, &key)?;
            if step.status.is_settled() {
                settled.push((step, key));
            }
        }
        // Times of one run's records rise strictly, so this is the order of the ledger.
        settled.sort_by_key(|(step, _)| step.updated_at);
        core.records = settled.into_iter().map(|(_, key)| key).collect();
        Ok(core)
    }

    fn load(&mut self, run: &Run, step: &Step, key: &Key) -> Result<(), Error> {
        let Some(kind) = Kind::parse(&step.kind) else {
            let message = format!("step {key:?} is of a kind {:?} that is not known", step.kind);
            return Err(Error::new(ErrorKind::Invalid, "NON_DETERMINISM", message));
        };
        let mut entry = Entry::new(kind);
        entry.stored = true;
        entry.carried = step.created_at < run.created_at;
        entry.attempt = step.attempt;
        entry.position = step.position;
        entry.created_at = step.created_at;
        entry.recorded_at = step.updated_at;
        entry.due = step.due_at;
        entry.wait_for.clone_from(&step.wait_for);
        entry.child = step
            .input
            .as_ref()
            .filter(|_| kind == Kind::Child)
            .and_then(|input| input.read::<ChildRef>().ok());
        entry.state = match step.status {
            StepStatus::Completed => {
                let null = || Body::json("null");
                State::Recorded(Ok(step.result.clone().unwrap_or_else(null)))
            }
            StepStatus::Errored | StepStatus::Skipped | StepStatus::Cancelled => {
                let failure = match &step.error {
                    Some(error) => Failure::read(error),
                    None => Failure::new("Cancelled", "it was called off", false),
                };
                State::Recorded(Err(failure))
            }
            // What a body may have done is for the probe to find out, if the step has one.
            StepStatus::Running => {
                entry.probe = step.input.is_some();
                entry.attempt = step.attempt.saturating_sub(1);
                State::Idle
            }
            StepStatus::Pending | StepStatus::Waiting => {
                entry.probe = kind == Kind::Do && step.input.is_some();
                State::Idle
            }
        };
        self.steps += usize::from(kind == Kind::Do);
        self.bytes += 160 + key.len() + step.result.as_ref().map_or(0, Body::len);
        self.entries.insert(Arc::clone(key), entry);
        Ok(())
    }

    /// An operation asks for its key, at its first poll.
    pub(crate) fn claim(&mut self, key: &Key, plan: Plan, waker: &Waker) -> Result<(), StepError> {
        let kind = plan.kind();
        if !self.entries.contains_key(key) {
            if kind == Kind::Do && self.steps >= self.limits.steps_per_run_max {
                let max = self.limits.steps_per_run_max;
                let message = format!(
                    "the run has {max} steps, which is the limit for a run; continue as new, use \
                     children, or raise `steps_per_run_max`"
                );
                return Err(StepError::new("STEP_LIMIT", key, "StepLimit", message));
            }
            self.steps += usize::from(kind == Kind::Do);
            self.bytes += 160 + key.len();
            self.entries.insert(Arc::clone(key), Entry::new(kind));
        }
        let entry = self.entries.get_mut(key).expect("it was put in");
        if entry.live {
            let message = "two live operations have the same key; give each its own".to_owned();
            return Err(StepError::new("DUPLICATE_STEP", key, "DuplicateStep", message));
        }
        if entry.kind != kind {
            let (found, asked) = (entry.kind.as_str(), kind.as_str());
            self.fault = Some(nondeterminism(format!(
                "step {key:?} is recorded as {found:?}, and the code asks for {asked:?} under \
                 the same key"
            )));
            return Ok(());
        }
        (entry.live, entry.claimed) = (true, true);
        entry.plan = Some(plan);
        entry.waker = Some(waker.clone());
        entry.after = self.appended;
        self.let_go.remove(key);
        match &entry.state {
            State::Recorded(_) if entry.aside => self.again.push_back(Arc::clone(key)),
            State::Recorded(_) | State::Done => {}
            State::Delivered(_) => self.again.push_back(Arc::clone(key)),
            State::Waiting | State::Retrying => {}
            State::Idle if kind == Kind::Do && entry.due.is_some() => {
                entry.state = State::Retrying;
                self.put_open(key);
            }
            State::Idle if kind == Kind::Do => {
                entry.state = State::Deferred;
                self.deferred.push_back(Arc::clone(key));
            }
            State::Idle => {
                // A wait that was let go has a row, but waits for nothing.
                let waits = entry.due.is_some() || entry.wait_for.is_some();
                entry.state = if waits { State::Waiting } else { State::Asked };
                self.put_open(key);
            }
            State::Deferred | State::Starting | State::Running | State::Asked => {
                debug_assert!(false, "an operation that was let go is idle");
            }
        }
        Ok(())
    }

    /// The code dropped an operation before it was ready.
    pub(crate) fn drop_operation(&mut self, key: &Key) {
        if self.closed {
            return;
        }
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.live = false;
        entry.waker = None;
        match entry.state {
            State::Starting | State::Running => {
                self.running -= 1;
                entry.state = State::Idle;
                entry.probe |= std::mem::take(&mut entry.intended);
            }
            State::Deferred => entry.state = State::Idle,
            State::Asked => {
                entry.state = State::Idle;
                self.take_open(key);
            }
            State::Waiting | State::Retrying => {
                self.let_go.insert(Arc::clone(key));
            }
            State::Idle | State::Done | State::Recorded(_) | State::Delivered(_) => {}
        }
    }

    /// Tells one operation its result. `false` if there is nothing to tell.
    pub(crate) fn deliver_next(&mut self) -> bool {
        if let Some(key) = self.again.pop_front() {
            self.deliver(&key);
            if let Some(waker) = &self.entries[&key].waker {
                wake_operation(waker);
            }
            return true;
        }
        let Some(key) = self.records.pop_front() else { return false };
        let entry = self.entries.get_mut(&key).expect("a record has an entry");
        if !entry.claimed && entry.carried {
            entry.aside = true;
            return true;
        }
        if !entry.claimed {
            let kind = entry.kind.as_str();
            let instead = self.asked_instead();
            self.fault = Some(nondeterminism(format!(
                "the record has {kind:?} step {key:?} next, and the code does not ask for it{instead}"
            )));
            return true;
        }
        self.deliver(&key);
        true
    }

    // What the code waits for where the record has something else.
    fn asked_instead(&self) -> String {
        let told = |state: &State| matches!(state, State::Recorded(_) | State::Delivered(_));
        let asked = self.entries.iter().filter(|(_, entry)| entry.live && !told(&entry.state));
        match asked.map(|(key, _)| key).min() {
            Some(key) => format!(", but for {key:?}"),
            None => String::new(),
        }
    }

    /// Tells an operation the result that was recorded for it.
    pub(crate) fn deliver(&mut self, key: &Key) {
        let entry = self.entries.get_mut(key).expect("a record has an entry");
        let State::Recorded(outcome) = &entry.state else { return };
        entry.state = State::Delivered(outcome.clone());
        self.now = self.now.max(entry.recorded_at);
        if let Some(waker) = &entry.waker {
            wake_operation(waker);
        }
    }

    /// What an operation finds when it is polled again.
    pub(crate) fn poll(&mut self, key: &Key, waker: &Waker) -> Found {
        let pending_again = self.again.contains(key);
        let Some(entry) = self.entries.get_mut(key) else { return Found::Pending };
        match &entry.state {
            State::Delivered(outcome) if !pending_again => {
                entry.live = false;
                entry.waker = None;
                return Found::Ready(outcome.clone());
            }
            State::Starting => {
                entry.state = State::Running;
                return Found::Start { attempt: entry.attempt + 1, probe: entry.probe };
            }
            _ => {}
        }
        match &mut entry.waker {
            Some(known) if known.will_wake(waker) => {}
            known => *known = Some(waker.clone()),
        }
        Found::Pending
    }

    /// A body ended.
    pub(crate) fn completed(&mut self, completion: Completion) {
        if let Some(entry) = self.entries.get_mut(&completion.key)
            && matches!(entry.state, State::Running)
        {
            entry.state = State::Done;
            let intent = matches!(entry.plan, Some(Plan::Do { intent: true, .. }));
            entry.probe = intent && completion.unknown;
            entry.intended = false;
            self.running -= 1;
            self.completions.push_back(completion);
        }
    }

    /// At the end of replay: everything that is open in the store must have been asked for.
    pub(crate) fn end_replay(&mut self) {
        self.replaying = false;
        let mut missed: Vec<&Key> = self
            .entries
            .iter()
            .filter(|(_, entry)| {
                let waits = entry.due.is_some() || entry.wait_for.is_some();
                !entry.claimed && waits && matches!(entry.state, State::Idle)
            })
            .map(|(key, _)| key)
            .collect();
        missed.sort();
        if let Some(key) = missed.first() {
            let kind = self.entries[*key].kind.as_str();
            let instead = self.asked_instead();
            self.fault = Some(nondeterminism(format!(
                "{kind:?} step {key:?} is open in the record, and the code does not ask for it{instead}"
            )));
        }
    }

    /// Lets bodies begin whose causes are durable. Answers how many.
    pub(crate) fn start_deferred(&mut self, mut may: impl FnMut() -> bool) -> Started {
        let mut started = 0;
        while let Some(key) = self.deferred.front() {
            let entry = self.entries.get_mut(key).expect("a deferred step has an entry");
            if !matches!(entry.state, State::Deferred) {
                self.deferred.pop_front();
                continue;
            }
            if entry.after > self.durable {
                break;
            }
            let wants_intent = matches!(&entry.plan, Some(Plan::Do { intent: true, .. }));
            if wants_intent && !entry.probe && !entry.intended {
                return match started {
                    0 => Started::Intent(Arc::clone(key)),
                    count => Started::Bodies(count),
                };
            }
            if !may() {
                return Started::NoneLeft;
            }
            let key = self.deferred.pop_front().expect("it is at the front");
            let entry = self.entries.get_mut(&key).expect("a deferred step has an entry");
            entry.state = State::Starting;
            self.running += 1;
            started += 1;
            if let Some(waker) = &entry.waker {
                wake_operation(waker);
            }
        }
        Started::Bodies(started)
    }

    /// A step's intent was put into a commit: the body may start when that is durable. The first
    /// attempt is no recovery, so the probe is not asked.
    pub(crate) fn intent_recorded(&mut self, key: &Key) {
        self.appended += 1;
        let after = self.appended;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.after = after;
            entry.intended = true;
        }
    }

    /// Whether anything happens in this process: bodies that run, or that are about to.
    pub(crate) fn is_running(&self) -> bool {
        self.running > 0
    }

    /// Whether bodies wait to be started.
    pub(crate) fn has_deferred(&mut self) -> bool {
        while let Some(key) = self.deferred.front() {
            if matches!(self.entries[key].state, State::Deferred) {
                return true;
            }
            self.deferred.pop_front();
        }
        false
    }

    pub(crate) fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(crate) fn entry_mut(&mut self, key: &Key) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    /// The open waits and retries, in the order in which they were asked for.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.open.values().map(|key| (key, &self.entries[key]))
    }

    pub(crate) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// When the first open wait or retry is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.open().filter(|(_, entry)| entry.live).filter_map(|(_, entry)| entry.due).min()
    }

    pub(crate) fn put_open(&mut self, key: &Key) {
        if self.open_places.contains_key(key) {
            return;
        }
        self.next_open += 1;
        self.open.insert(self.next_open, Arc::clone(key));
        self.open_places.insert(Arc::clone(key), self.next_open);
    }

    pub(crate) fn take_open(&mut self, key: &Key) {
        if let Some(place) = self.open_places.remove(key) {
            self.open.remove(&place);
        }
    }

    /// A retry is due: its body is to be started.
    pub(crate) fn retry_due(&mut self, key: &Key) {
        self.take_open(key);
        let appended = self.appended;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = State::Deferred;
            entry.due = None;
            entry.after = appended;
            self.deferred.push_back(Arc::clone(key));
        }
    }

    /// An operation has its result: it is in the commit that is being made.
    pub(crate) fn recorded(&mut self, key: &Key, outcome: Outcome, at: Timestamp) {
        self.appended += 1;
        self.take_open(key);
        self.let_go.remove(key);
        if let Ok(body) = &outcome {
            self.bytes += body.len();
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = State::Recorded(outcome);
            entry.recorded_at = at;
            entry.due = None;
            entry.stored = true;
        }
        self.deliver(key);
    }
}

/// What an operation finds when it is polled.
pub(crate) enum Found {
    Pending,
    /// The body may start.
    Start {
        attempt: u32,
        probe: bool,
    },
    Ready(Outcome),
}

/// What became of the bodies that wait to be started.
pub(crate) enum Started {
    Bodies(usize),
    /// This one wants its intent recorded first.
    Intent(Key),
    /// The turn may begin no further step.
    NoneLeft,
}

/// Which run a step waits for, as it stands in the step's row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChildRef {
    pub(crate) workflow: WorkflowName,
    pub(crate) id: String,
    pub(crate) run_key: RunKey,
}

pub(crate) fn nondeterminism(message: String) -> Error {
    let message = format!(
        "{message}; the code has changed, or does something that differs from one run to the next"
    );
    Error::new(ErrorKind::Invalid, "NON_DETERMINISM", message)
}
