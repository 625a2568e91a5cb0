//! The tables and the indexes over them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::bodies::BodyKey;
use crate::breaker::BreakerRow;
use crate::ids::{
    EventId, LimitKey, LogId, MessageId, Namespace, QueueName, RouteName, RunId, RunKey, StepKey,
    TaskId, WorkerKey, WorkflowName,
};
use crate::ledger::Event;
use crate::rate::RateRow;
use crate::record::{Record, RecordKey, RecordVersion};
use crate::rows::{
    DeadLetter, LogLine, Message, Route, Run, RunStatus, Setting, SettingName, Step, Task, Turn,
    Worker,
};
use crate::store::Wakeup;
use crate::time::Timestamp;

/// All rows of the store.
#[derive(Default)]
pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) runs: BTreeMap<RunKey, Run>,
    pub(super) bodies: BTreeMap<BodyKey, Bytes>,
    pub(super) names: BTreeMap<(Namespace, WorkflowName, RunId), BTreeMap<u32, RunKey>>,
    pub(super) trees: BTreeSet<(RunKey, RunKey)>,
    pub(super) steps: BTreeMap<RunKey, BTreeMap<StepKey, Step>>,
    pub(super) events: BTreeMap<RunKey, Vec<Event>>,
    pub(super) event_ids: BTreeMap<EventId, (RunKey, u64)>,
    pub(super) messages: BTreeMap<RunKey, Vec<Message>>,
    pub(super) message_ids: BTreeMap<(RunKey, MessageId), u64>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    pub(super) workers: BTreeMap<WorkerKey, Worker>,
    pub(super) logs: BTreeMap<(RunKey, LogId), LogLine>,
    pub(super) limits: BTreeMap<(Namespace, LimitKey), u32>,
    pub(super) breakers: BTreeMap<(Namespace, LimitKey), BreakerRow>,
    pub(super) rates: BTreeMap<(Namespace, LimitKey), RateRow>,
    pub(super) dead_letters: BTreeMap<TaskId, DeadLetter>,
    pub(super) settings: BTreeMap<SettingName, Setting>,
    pub(super) records: BTreeMap<RecordKey, Record>,
    pub(super) record_versions: BTreeMap<(RecordKey, u64), RecordVersion>,
    pub(super) stats: BTreeMap<(i64, Namespace, RouteName, u16), u64>,
    pub(super) turn_index: Index<RunKey>,
    pub(super) task_index: Index<TaskId>,
    wakeups: Vec<Wakeup>,
}

/// The index for claims, promotions and reaping. Only `put_*` and `remove_*` update it.
pub(super) struct Index<K> {
    pub(super) ready: BTreeMap<(Namespace, Route), BTreeSet<Rank<K>>>,
    pub(super) scheduled: BTreeSet<(Timestamp, K)>,
    pub(super) held: BTreeMap<WorkerKey, BTreeSet<K>>,
    pub(super) held_under: BTreeMap<(Namespace, LimitKey), u32>,
}

/// The order of a claim: priority, resumed turns before first turns, oldest, key.
pub(super) type Rank<K> = (Reverse<i16>, bool, Timestamp, K);

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self {
            ready: BTreeMap::new(),
            scheduled: BTreeSet::new(),
            held: BTreeMap::new(),
            held_under: BTreeMap::new(),
        }
    }
}

// The indexed fields of a row.
struct Entry<'a, K> {
    key: K,
    namespace: &'a Namespace,
    queue: &'a QueueName,
    name: RouteName,
    priority: i16,
    first: bool,
    ready: bool,
    due_at: Option<Timestamp>,
    worker: Option<WorkerKey>,
    limit_key: Option<&'a LimitKey>,
    open: bool,
}

impl<K: Copy + Ord> Index<K> {
    fn update(&mut self, entry: Entry<'_, K>, present: bool) {
        fn put<T: Ord>(set: &mut BTreeSet<T>, item: T, present: bool) {
            if present {
                set.insert(item);
            } else {
                set.remove(&item);
            }
        }
        let due_at = entry.due_at.unwrap_or(Timestamp::ZERO);
        if let Some(worker) = entry.worker {
            put(self.held.entry(worker).or_default(), entry.key, present);
            if let Some(limit_key) = entry.limit_key {
                let key = (entry.namespace.clone(), limit_key.clone());
                let count = self.held_under.entry(key).or_default();
                *count = if present { *count + 1 } else { *count - 1 };
            }
        } else if entry.ready {
            let rank = (Reverse(entry.priority), entry.first, due_at, entry.key);
            let route = Route { queue: entry.queue.clone(), name: entry.name };
            let place = (entry.namespace.clone(), route);
            let ranks = self.ready.entry(place.clone()).or_default();
            put(ranks, rank, present);
            if ranks.is_empty() {
                self.ready.remove(&place);
            }
        } else if entry.due_at.is_some() && entry.open {
            put(&mut self.scheduled, (due_at, entry.key), present);
        }
    }
}

fn turn_entry(run: &Run) -> Entry<'_, RunKey> {
    Entry {
        key: run.run_key,
        namespace: &run.namespace,
        queue: &run.turn.queue,
        name: RouteName::from(&run.workflow),
        priority: run.turn.priority,
        first: run.started_at.is_none(),
        ready: run.turn.ready,
        due_at: run.turn.due_at,
        worker: run.turn.worker,
        limit_key: run.turn.limit_key.as_ref(),
        open: !run.status.is_ended() && run.status != RunStatus::Paused,
    }
}

fn task_entry(task: &Task) -> Entry<'_, TaskId> {
    Entry {
        key: task.task_id,
        namespace: &task.namespace,
        queue: &task.queue,
        name: task.name.clone(),
        priority: task.priority,
        first: false,
        ready: task.ready,
        due_at: task.due_at,
        worker: task.worker,
        limit_key: task.limit_key.as_ref(),
        open: true,
    }
}

impl State {
    /// Moves the clock forward; it never goes backwards.
    pub(super) fn advance_to(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// Takes the wake-ups since the last call.
    pub(super) fn take_wakeups(&mut self) -> Vec<Wakeup> {
        std::mem::take(&mut self.wakeups)
    }

    /// Inserts or replaces a run and updates the indexes.
    pub(super) fn put_run(&mut self, run: Run) {
        let was_ready = self.runs.get(&run.run_key).is_some_and(|old| old.turn.ready);
        if let Some(old) = self.runs.get(&run.run_key) {
            self.turn_index.update(turn_entry(old), false);
        } else {
            let name = (run.namespace.clone(), run.workflow.clone(), run.id.clone());
            self.names.entry(name).or_default().insert(run.generation, run.run_key);
            self.trees.insert((run.root, run.run_key));
        }
        self.turn_index.update(turn_entry(&run), true);
        let route = Route { queue: run.turn.queue.clone(), name: RouteName::from(&run.workflow) };
        let Turn { ready, due_at, worker, .. } = run.turn;
        let wakeup = if ready && !was_ready { Some(Wakeup::Turn(route)) } else { None };
        self.note(wakeup, due_at.filter(|_| !ready && worker.is_none()));
        self.runs.insert(run.run_key, run);
    }

    /// Inserts or replaces a task and updates the indexes.
    pub(super) fn put_task(&mut self, task: Task) {
        let was_ready = self.tasks.get(&task.task_id).is_some_and(|old| old.ready);
        if let Some(old) = self.tasks.get(&task.task_id) {
            self.task_index.update(task_entry(old), false);
        }
        self.task_index.update(task_entry(&task), true);
        let route = Route { queue: task.queue.clone(), name: task.name.clone() };
        let wakeup = if task.ready && !was_ready { Some(Wakeup::Task(route)) } else { None };
        self.note(wakeup, task.due_at.filter(|_| !task.ready && task.worker.is_none()));
        self.tasks.insert(task.task_id, task);
    }

    /// Removes a task and updates the indexes.
    pub(super) fn remove_task(&mut self, task_id: TaskId) {
        if let Some(task) = self.tasks.remove(&task_id) {
            self.task_index.update(task_entry(&task), false);
        }
    }

    /// Removes an ended run and all its rows; its events only if `ledger` is set.
    pub(super) fn remove_run(&mut self, run_key: RunKey, ledger: bool) {
        let Some(run) = self.runs.remove(&run_key) else { return };
        let name = (run.namespace.clone(), run.workflow.clone(), run.id.clone());
        if let Some(generations) = self.names.get_mut(&name) {
            generations.remove(&run.generation);
            if generations.is_empty() {
                self.names.remove(&name);
            }
        }
        self.trees.remove(&(run.root, run_key));
        self.steps.remove(&run_key);
        self.messages.remove(&run_key);
        self.message_ids.retain(|(of, _), _| *of != run_key);
        self.logs.retain(|(of, _), _| *of != run_key);
        self.dead_letters.retain(|_, letter| letter.run_key != Some(run_key));
        if ledger && let Some(events) = self.events.remove(&run_key) {
            for event in events {
                self.event_ids.remove(&event.event_id);
            }
        }
    }

    /// How many turns and tasks with a limit key are held.
    pub(super) fn held_under(&self, namespace: &Namespace, key: &LimitKey) -> u32 {
        let key = (namespace.clone(), key.clone());
        let count = |counts: &BTreeMap<_, u32>| counts.get(&key).copied().unwrap_or(0);
        count(&self.turn_index.held_under) + count(&self.task_index.held_under)
    }

    /// Records a wake-up to send after the call.
    pub(super) fn note(&mut self, wakeup: Option<Wakeup>, due_at: Option<Timestamp>) {
        let due = due_at.map(Wakeup::Due);
        for wakeup in [wakeup, due].into_iter().flatten() {
            if !self.wakeups.contains(&wakeup) {
                self.wakeups.push(wakeup);
            }
        }
    }
}
