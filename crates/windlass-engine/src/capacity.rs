//! The capacity of this worker: how many turns and tasks it holds, and whether it takes more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use windlass_kernel::{LimitKey, Route, Task, WorkflowName};

use crate::concurrency::Permits;
use crate::core::Core;
use crate::pressure::{Holds, Pressure};
use crate::registry::Registry;
use crate::signals::Signals;
use crate::tasks::{TaskReservation, Tasks};

pub(crate) struct Capacity {
    core: Arc<Core>,
    registry: Arc<Registry>,
    signals: Arc<Signals>,
    tasks: Arc<Tasks>,
    pressure: Pressure,
    turns_held: AtomicUsize,
    // The last claim found as many as it asked for: older work waits in the store.
    turn_backlog: AtomicBool,
    task_backlog: AtomicBool,
    // A suspect is tried alone; see `crate::trials`.
    on_trial: AtomicBool,
}

impl Capacity {
    pub(crate) fn new(
        core: Arc<Core>,
        registry: Arc<Registry>,
        signals: Arc<Signals>,
        tasks: Arc<Tasks>,
    ) -> Self {
        Self {
            pressure: Pressure::new(core.options.backpressure.clone()),
            core,
            registry,
            signals,
            tasks,
            turns_held: AtomicUsize::new(0),
            turn_backlog: AtomicBool::new(false),
            task_backlog: AtomicBool::new(false),
            on_trial: AtomicBool::new(false),
        }
    }

    pub(crate) fn turns_held(&self) -> usize {
        self.turns_held.load(Ordering::Acquire)
    }

    pub(crate) fn tasks_held(&self) -> usize {
        self.tasks.held()
    }

    /// Whether any turn or task is held, the engine's own tasks included.
    pub(crate) fn is_busy(&self) -> bool {
        self.turns_held() > 0 || self.tasks_held() > 0 || self.tasks.internal_held() > 0
    }

    /// Whether a suspect is tried alone, so that this worker takes nothing else.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.on_trial.load(Ordering::Acquire)
    }

    pub(crate) fn set_on_trial(&self, on_trial: bool) {
        if self.on_trial.swap(on_trial, Ordering::AcqRel) && !on_trial {
            self.signals.everything();
        }
    }

    /// How many turns a claim may ask for.
    pub(crate) fn turns_free(&self) -> usize {
        self.pressure.watermark(self.core.options.turns_max).saturating_sub(self.turns_held())
    }

    /// How many tasks a claim may ask for.
    pub(crate) fn tasks_free(&self) -> usize {
        if self.pressed().tasks {
            return 0;
        }
        self.pressure.watermark(self.core.options.tasks_max).saturating_sub(self.tasks.reserved())
    }

    pub(crate) fn set_turn_backlog(&self, backlog: bool) {
        self.turn_backlog.store(backlog, Ordering::Relaxed);
    }

    pub(crate) fn set_task_backlog(&self, backlog: bool) {
        self.task_backlog.store(backlog, Ordering::Relaxed);
    }

    /// Counts a turn as held, until the guard is dropped.
    pub(crate) fn count_turn(self: &Arc<Self>, workflow: &WorkflowName) -> CountedTurn {
        self.turns_held.fetch_add(1, Ordering::AcqRel);
        let concurrency = self.registry.concurrency(workflow);
        let permit = concurrency.map(|concurrency| Permits::one(&self.signals, &concurrency));
        CountedTurn { capacity: Arc::clone(self), _permit: permit }
    }

    /// Whether turns of other runs may wait for the capacity that a turn of this workflow uses. Other
    /// processes may wait for a limit, so a turn with a limit counts as contended.
    pub(crate) fn is_contended(&self, workflow: &WorkflowName, limit: Option<&LimitKey>) -> bool {
        let concurrency = self.registry.concurrency(workflow);
        limit.is_some()
            || self.turns_free() == 0
            || concurrency.is_some_and(|concurrency| concurrency.is_contended())
    }

    /// Whether a run that is being created can be held from the start.
    pub(crate) fn accepts_new_run(
        &self,
        workflow: &WorkflowName,
        limit: Option<&LimitKey>,
    ) -> bool {
        !self.turn_backlog.load(Ordering::Relaxed) && self.accepts_unclaimed(workflow, limit)
    }

    /// Whether this process may hold a turn of a run without claiming it.
    pub(crate) fn accepts_unclaimed(
        &self,
        workflow: &WorkflowName,
        limit: Option<&LimitKey>,
    ) -> bool {
        limit.is_none()
            && self.accepts_eagerly()
            && !self.pressed().turns
            && self.turns_held.load(Ordering::Relaxed) < self.core.options.turns_max
            && self.registry.serves_without_limits(workflow)
    }

    /// Reserves capacity for a task that is being enqueued and can be held from the start. `finishing`
    /// of the tasks that are held here end with the same commit.
    pub(crate) fn reserve_task(&self, task: &Task, finishing: usize) -> Option<TaskReservation> {
        let accepts = may_skip_queue(task)
            && self.accepts_eagerly()
            && !self.task_backlog.load(Ordering::Relaxed)
            && !self.pressed().tasks
            && self.tasks.serves(&Route { queue: task.queue.clone(), name: task.name.clone() });
        accepts.then(|| self.tasks.reserve(finishing)).flatten()
    }

    // A host that drives the engine by ticks decides itself when work starts.
    fn accepts_eagerly(&self) -> bool {
        self.core.options.background && !self.core.lifecycle.is_draining() && !self.is_on_trial()
    }

    /// Wakes the claimer if it left work ready for which there was no capacity.
    pub(crate) fn freed(&self) {
        self.pressed();
        self.signals.capacity_freed();
    }

    /// Which kinds of work this worker does not take because of backpressure.
    pub(crate) fn pressed(&self) -> Holds {
        let options = &self.core.options;
        if options.backpressure.is_none() {
            return Holds::default();
        }
        let share = |held: usize, max: usize| held as f64 / max.max(1) as f64;
        let turns = share(self.turns_held(), options.turns_max);
        let tasks = share(self.tasks.reserved(), options.tasks_max);
        let (before, now) = self.pressure.update(turns, tasks);
        if (before.turns && !now.turns) || (before.tasks && !now.tasks) {
            self.signals.everything();
        }
        now
    }

    pub(crate) fn pressure(&self) -> &Pressure {
        &self.pressure
    }
}

// A task with a limit, a priority or a due time has to be ordered among the others by the store.
fn may_skip_queue(task: &Task) -> bool {
    task.limit_key.is_none() && task.priority == 0 && task.due_at.is_none()
}

/// A turn that is held. It counts until it is dropped.
pub(crate) struct CountedTurn {
    capacity: Arc<Capacity>,
    _permit: Option<Permits>,
}

impl Drop for CountedTurn {
    fn drop(&mut self) {
        self.capacity.turns_held.fetch_sub(1, Ordering::AcqRel);
        self.capacity.freed();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use windlass_kernel::{
        BoxFuture, Limits, MemoryStore, Namespace, QueueName, RouteName, TaskId, Timestamp,
        WorkerKey,
    };

    use super::*;
    use crate::clock::Clock;
    use crate::env::{Env, ThreadPool};
    use crate::lifecycle::{Lifecycle, Phase};
    use crate::options::Options;
    use crate::pressure::BackpressureConfig;
    use crate::registry::Serving;
    use crate::schedules::Schedules;
    use crate::tasks::{TaskContext, TaskHandler, TaskResult};

    struct NoEnv;

    impl Env for NoEnv {
        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn spawn(&self, _: ThreadPool, _: BoxFuture<'static, ()>) {}

        fn random(&self) -> u64 {
            0
        }
    }

    struct NoHandler;

    impl TaskHandler for NoHandler {
        fn run(&self, _: TaskContext, _: windlass_kernel::Body) -> BoxFuture<'static, TaskResult> {
            Box::pin(std::future::pending())
        }
    }

    // A worker that serves the workflow "order", the workflow "slow" with one slot and the task "charge".
    fn capacity(options: Options) -> Arc<Capacity> {
        let env: Arc<dyn Env> = Arc::new(NoEnv);
        let core = Arc::new(Core {
            store: Arc::new(MemoryStore::new(Arc::new(|| Timestamp::ZERO), Limits::DEFAULT)),
            clock: Clock::new(Arc::clone(&env), Timestamp::ZERO),
            env,
            worker: WorkerKey(uuid::Uuid::nil()),
            metrics: Arc::default(),
            changes: crate::changes::ChangeFeed::default(),
            lifecycle: Lifecycle::default(),
            unknown_holds: AtomicBool::new(false),
            record_removed: tokio::sync::Notify::new(),
            options,
        });
        let registry = Arc::new(Registry::new(core.options.models.clone()));
        for (name, slots) in [("order", None), ("slow", Some(1))] {
            let name = WorkflowName::from_stored(name);
            registry.register(name, Arc::new(Schedules), &Serving { slots }).expect("a new name");
        }
        let tasks = Arc::new(Tasks::new(core.options.tasks_max));
        tasks.serve(route("charge"), Arc::new(NoHandler)).expect("a new route");
        Arc::new(Capacity::new(core, registry, Arc::default(), tasks))
    }

    fn route(name: &str) -> Route {
        Route { queue: QueueName::default_queue(), name: RouteName::from_stored(name) }
    }

    fn task(name: &str) -> Task {
        let (id, namespace) = (TaskId(uuid::Uuid::nil()), Namespace::default_namespace());
        Task::new(id, namespace, "activity", route(name), Timestamp::ZERO)
    }

    fn accepts(capacity: &Capacity, workflow: &str) -> (bool, bool) {
        let workflow = WorkflowName::from_stored(workflow);
        (capacity.accepts_new_run(&workflow, None), capacity.accepts_unclaimed(&workflow, None))
    }

    #[test]
    fn a_run_is_held_from_the_start_only_without_limits() {
        let capacity = capacity(Options::default());
        for (workflow, expect) in
            [("order", (true, true)), ("slow", (false, false)), ("unknown", (false, false))]
        {
            assert_eq!(accepts(&capacity, workflow), expect, "{workflow}");
        }
        let (order, limit) = (WorkflowName::from_stored("order"), LimitKey::from_stored("x"));
        assert!(!capacity.accepts_new_run(&order, Some(&limit)));
        capacity.registry.set_limit(&order, Some(limit));
        assert_eq!(accepts(&capacity, "order"), (false, false), "the workflow has a limit");
    }

    #[test]
    fn a_run_is_held_from_the_start_only_with_capacity() {
        let tick = capacity(Options { background: false, ..Options::default() });
        assert_eq!(accepts(&tick, "order"), (false, false), "the host drives the engine");
        let draining = capacity(Options::default());
        draining.core.lifecycle.advance(Phase::Draining);
        assert_eq!(accepts(&draining, "order"), (false, false));
        let behind = capacity(Options::default());
        behind.set_turn_backlog(true);
        assert_eq!(accepts(&behind, "order"), (false, true), "older runs wait in the store");
        let full = capacity(Options { turns_max: 1, ..Options::default() });
        let held = full.count_turn(&WorkflowName::from_stored("order"));
        assert_eq!((accepts(&full, "order"), full.turns_free()), ((false, false), 0));
        drop(held);
        assert_eq!((accepts(&full, "order"), full.turns_free()), ((true, true), 1));
    }

    #[test]
    fn backpressure_refuses_work_at_the_high_mark() {
        let config =
            BackpressureConfig { high_watermark: 0.5, low_watermark: 0.3, ..Default::default() };
        let backpressure = Some(config);
        let pressed = capacity(Options { turns_max: 4, backpressure, ..Options::default() });
        let order = WorkflowName::from_stored("order");
        assert_eq!((accepts(&pressed, "order"), pressed.turns_free()), ((true, true), 2));
        let held = [pressed.count_turn(&order), pressed.count_turn(&order)];
        assert_eq!((accepts(&pressed, "order"), pressed.turns_free()), ((false, false), 0));
        drop(held);
        assert_eq!(accepts(&pressed, "order"), (true, true));
    }

    #[test]
    fn a_task_is_held_from_the_start_only_if_it_can_skip_the_queue() {
        let capacity = capacity(Options { tasks_max: 1, ..Options::default() });
        let limited = Task { limit_key: Some(LimitKey::from_stored("x")), ..task("charge") };
        let urgent = Task { priority: 1, ..task("charge") };
        let later = Task { due_at: Some(Timestamp::ZERO), ..task("charge") };
        for (task, expect) in [
            (task("charge"), true),
            (task("unknown"), false),
            (limited, false),
            (urgent, false),
            (later, false),
        ] {
            assert_eq!(capacity.reserve_task(&task, 0).is_some(), expect, "{task:?}");
        }
        let reserved = capacity.reserve_task(&task("charge"), 0);
        assert!(reserved.is_some() && capacity.reserve_task(&task("charge"), 0).is_none());
        drop(reserved);
        capacity.set_task_backlog(true);
        assert!(capacity.reserve_task(&task("charge"), 0).is_none(), "older tasks wait");
    }
}
