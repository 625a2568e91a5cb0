//! A deterministic executor: one thread, tasks tagged by node, a seeded pick among the ready ones,
//! and a heap of timers that moves virtual time when nothing else can run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use windlass_kernel::BoxFuture;

use super::points::Reached;
use super::rng::Rng;
use super::trace::Trace;

/// One simulated process. A restarted process is another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// The node that is never frozen nor crashed: packets on their way, and the test itself.
pub const NETWORK: NodeId = NodeId(0);

/// Locks a mutex whose holder cannot have left it half-changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Core {
    now_us: u64,
    ready: Vec<u64>,
    incoming: Vec<(u64, NodeId, BoxFuture<'static, ()>)>,
    timers: BTreeMap<(u64, u64), Waker>,
    frozen: BTreeSet<NodeId>,
    crashed: Vec<NodeId>,
    rng: Rng,
    counter: u64,
    stopped: bool,
    trace: Trace,
    reached: Reached,
}

/// The handle of tasks to their executor. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<Mutex<Core>>);

impl Handle {
    fn core(&self) -> MutexGuard<'_, Core> {
        locked(&self.0)
    }

    /// Virtual microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.core().now_us
    }

    /// Starts a task on a node.
    pub fn spawn(&self, node: NodeId, future: impl Future<Output = ()> + Send + 'static) {
        let mut core = self.core();
        core.counter += 1;
        let id = core.counter;
        core.incoming.push((id, node, Box::pin(future)));
    }

    /// Waits in virtual time.
    pub fn sleep_us(&self, us: u64) -> Sleep {
        let until = self.now_us().saturating_add(us);
        Sleep { handle: self.clone(), until, key: None }
    }

    /// Stops picking the node's tasks, as SIGSTOP does. Timers run on and packets are kept.
    pub fn freeze(&self, node: NodeId) {
        self.core().frozen.insert(node);
    }

    /// Lets a frozen node go on.
    pub fn thaw(&self, node: NodeId) {
        self.core().frozen.remove(&node);
    }

    /// Drops all tasks of a node before anything else runs.
    pub fn crash(&self, node: NodeId) {
        let mut core = self.core();
        core.frozen.remove(&node);
        core.crashed.push(node);
    }

    /// Ends `block_on` before its future ends, because the simulation has failed.
    pub fn stop(&self) {
        self.core().stopped = true;
    }

    /// A number that is unique in this simulation, for ids.
    pub fn unique(&self) -> u64 {
        let mut core = self.core();
        core.counter += 1;
        core.counter
    }

    /// Adds a line to the trace.
    pub fn trace(&self, line: fmt::Arguments<'_>) {
        let mut core = self.core();
        let line = format!("{:>9} {line}", core.now_us / 1_000);
        core.trace.line(line);
    }

    /// Counts a point that must be reached over all seeds; see `sim::points`.
    pub fn sometimes(&self, point: &'static str) {
        self.core().reached.note(point);
    }
}

struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    core: Weak<Mutex<Core>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed)
            && let Some(core) = self.core.upgrade()
        {
            locked(&core).ready.push(self.id);
        }
    }
}

struct Task {
    node: NodeId,
    future: BoxFuture<'static, ()>,
    state: Arc<TaskWaker>,
    waker: Waker,
}

/// The reason why a future did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// The executor made this many polls, and the future has not ended.
    LiveLock {
        /// How many.
        steps: u64,
    },
    /// No task can run and no timer is set.
    Nothing,
    /// A task called [`Handle::stop`].
    Stopped,
}

/// Runs tasks one at a time.
pub struct Executor {
    handle: Handle,
    tasks: BTreeMap<u64, Task>,
}

impl Executor {
    /// An executor whose schedule follows from the seed.
    pub fn new(seed: u64) -> Self {
        let core = Core {
            now_us: 0,
            ready: Vec::new(),
            incoming: Vec::new(),
            timers: BTreeMap::new(),
            frozen: BTreeSet::new(),
            crashed: Vec::new(),
            rng: Rng::new(seed),
            counter: 0,
            stopped: false,
            trace: Trace::default(),
            reached: Reached::default(),
        };
        Self { handle: Handle(Arc::new(Mutex::new(core))), tasks: BTreeMap::new() }
    }

    /// The handle of tasks to this executor.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Takes the trace and the points of the run.
    pub fn finish(self) -> (Trace, Reached) {
        let mut core = self.handle.core();
        (std::mem::take(&mut core.trace), std::mem::take(&mut core.reached))
    }

    /// Runs everything until `future` ends, at most `steps_max` polls.
    pub fn block_on<T: Send + 'static>(
        &mut self,
        steps_max: u64,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Stuck> {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        self.handle.spawn(NETWORK, async move {
            let value = future.await;
            *locked(&place) = Some(value);
        });
        for _ in 0..steps_max {
            self.step()?;
            if let Some(value) = locked(&result).take() {
                return Ok(value);
            }
        }
        Err(Stuck::LiveLock { steps: steps_max })
    }

    /// Runs all ready tasks, and those that become ready, without moving time. Returns the number of
    /// polls.
    pub fn run_ready(&mut self, steps_max: u64) -> Result<u64, Stuck> {
        for steps in 0..steps_max {
            if !self.poll_one()? {
                return Ok(steps);
            }
        }
        Err(Stuck::LiveLock { steps: steps_max })
    }

    /// When the next timer is due, in virtual microseconds.
    pub fn next_timer_us(&self) -> Option<u64> {
        self.handle.core().timers.keys().next().map(|(at, _)| *at)
    }

    /// Moves virtual time forward, from timer to timer, and runs all tasks that become ready.
    pub fn advance_us(&mut self, us: u64, steps_max: u64) -> Result<(), Stuck> {
        let until = self.handle.now_us().saturating_add(us);
        self.run_ready(steps_max)?;
        while self.next_timer_us().is_some_and(|at| at <= until) {
            self.next_timer()?;
            self.run_ready(steps_max)?;
        }
        let mut core = self.handle.core();
        core.now_us = core.now_us.max(until);
        Ok(())
    }

    // Polls one ready task, or moves time to the next timer if there is none.
    fn step(&mut self) -> Result<(), Stuck> {
        if self.poll_one()? { Ok(()) } else { self.next_timer() }
    }

    // Polls one ready task; `false` if there is none.
    fn poll_one(&mut self) -> Result<bool, Stuck> {
        self.admit();
        let Some(id) = self.pick()? else { return Ok(false) };
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(true) };
        task.state.queued.store(false, Ordering::Relaxed);
        let mut context = Context::from_waker(&task.waker);
        if task.future.as_mut().poll(&mut context).is_ready() {
            self.tasks.remove(&id);
        }
        Ok(true)
    }

    // Adds spawned tasks and drops those of crashed nodes. Destructors may call the handle, so nothing
    // is dropped under the lock.
    fn admit(&mut self) {
        let (incoming, crashed) = {
            let mut core = self.handle.core();
            (std::mem::take(&mut core.incoming), std::mem::take(&mut core.crashed))
        };
        for (id, node, future) in incoming {
            let core = Arc::downgrade(&self.handle.0);
            let state = Arc::new(TaskWaker { id, queued: AtomicBool::new(false), core });
            let waker = Waker::from(state.clone());
            waker.wake_by_ref();
            self.tasks.insert(id, Task { node, future, state, waker });
        }
        if !crashed.is_empty() {
            let (gone, kept) = std::mem::take(&mut self.tasks)
                .into_iter()
                .partition(|(_, task)| crashed.contains(&task.node));
            self.tasks = kept;
            drop::<BTreeMap<u64, Task>>(gone);
        }
    }

    fn pick(&mut self) -> Result<Option<u64>, Stuck> {
        let tasks = &self.tasks;
        let mut core = self.handle.core();
        if core.stopped {
            return Err(Stuck::Stopped);
        }
        core.ready.retain(|id| tasks.contains_key(id));
        let frozen = |core: &Core, id: &u64| {
            tasks.get(id).is_some_and(|task| core.frozen.contains(&task.node))
        };
        let open = core.ready.iter().filter(|id| !frozen(&core, id)).count();
        if open == 0 {
            return Ok(None);
        }
        let nth = core.rng.below(open as u64) as usize;
        let place = |core: &Core| {
            let mut open = core.ready.iter().enumerate().filter(|(_, id)| !frozen(core, id));
            open.nth(nth).map(|(place, _)| place)
        };
        let id = place(&core).map(|place| core.ready.remove(place));
        core.trace.number(id.unwrap_or(0));
        Ok(id)
    }

    fn next_timer(&mut self) -> Result<(), Stuck> {
        let waker = {
            let mut core = self.handle.core();
            let Some(((at, _), waker)) = core.timers.pop_first() else {
                return Err(Stuck::Nothing);
            };
            core.now_us = core.now_us.max(at);
            waker
        };
        waker.wake();
        Ok(())
    }
}

/// Waits in virtual time; see [`Handle::sleep_us`].
pub struct Sleep {
    handle: Handle,
    until: u64,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let until = self.until;
        let handle = self.handle.clone();
        let mut core = handle.core();
        if core.now_us >= until {
            return Poll::Ready(());
        }
        let key = self.key.unwrap_or_else(|| {
            core.counter += 1;
            (until, core.counter)
        });
        self.key = Some(key);
        core.timers.insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    // A timer that nobody waits for would still move time.
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.handle.core().timers.remove(&key);
            drop(waker);
        }
    }
}

/// A signal that a task can wait for with a timeout. It is set once and seen once.
#[derive(Clone, Default)]
pub struct Signal(Arc<Mutex<(bool, Option<Waker>)>>);

impl Signal {
    /// Wakes the waiter, or the next one.
    pub fn set(&self) {
        let waker = {
            let mut state = locked(&self.0);
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until it is set or the time has passed. Returns whether it was set.
    pub async fn wait_us(&self, handle: &Handle, us: u64) -> bool {
        let mut sleep = handle.sleep_us(us);
        std::future::poll_fn(|context| {
            {
                let mut state = locked(&self.0);
                if std::mem::take(&mut state.0) {
                    return Poll::Ready(true);
                }
                state.1 = Some(context.waker().clone());
            }
            Pin::new(&mut sleep).poll(context).map(|()| false)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> (Vec<u32>, u64) {
        let mut executor = Executor::new(seed);
        let handle = executor.handle();
        let log = Arc::new(Mutex::new(Vec::new()));
        for n in 0..8 {
            let (log, handle2) = (log.clone(), handle.clone());
            handle.spawn(NodeId(n), async move {
                handle2.sleep_us(5).await;
                locked(&log).push(n);
            });
        }
        let end = executor.handle();
        executor.block_on(1_000, async move { end.sleep_us(10).await }).unwrap();
        let log = locked(&log).clone();
        (log, executor.finish().0.hash())
    }

    #[test]
    fn a_seed_is_a_schedule() {
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert_eq!(order(3).0.len(), 8);
    }

    #[test]
    fn frozen_nodes_wait_and_crashed_ones_end() {
        let mut executor = Executor::new(1);
        let handle = executor.handle();
        let signal = Signal::default();
        for node in [NodeId(1), NodeId(2)] {
            let (handle2, signal) = (handle.clone(), signal.clone());
            handle.spawn(node, async move {
                handle2.sleep_us(5).await;
                signal.set();
            });
        }
        handle.freeze(NodeId(1));
        handle.crash(NodeId(2));
        let main = handle.clone();
        let seen = executor.block_on(1_000, async move {
            let before = signal.wait_us(&main, 50).await;
            main.thaw(NodeId(1));
            (before, signal.wait_us(&main, 50).await)
        });
        assert_eq!(seen, Ok((false, true)));
    }

    #[test]
    fn a_live_lock_is_reported() {
        let mut executor = Executor::new(1);
        let handle = executor.handle();
        let spin = async move {
            loop {
                handle.sleep_us(1).await;
            }
        };
        assert_eq!(executor.block_on(100, spin), Err(Stuck::LiveLock { steps: 100 }));
        let mut executor = Executor::new(1);
        assert_eq!(executor.block_on(100, std::future::pending::<()>()), Err(Stuck::Nothing));
    }
}
