//! The environment: the engine and the models get time, randomness, ids and tasks only from here, so
//! that the simulator can control them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;
use windlass_kernel::{BoxFuture, Timestamp};

/// Which threads a task runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadPool {
    /// The engine's own services: claims, renewals, timers. User code that blocks cannot delay them.
    Service,
    /// Turns, and the supervision of attempts: the code of workflows runs here.
    User,
    /// The code of activities: one that blocks its thread delays no other.
    Task,
}

/// Everything that is not a function of its arguments.
pub trait Env: Send + Sync + 'static {
    /// Time since some fixed point of this process; it never goes back.
    fn elapsed(&self) -> Duration;

    /// Sleeps for a time.
    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()>;

    /// Starts a task.
    fn spawn(&self, pool: ThreadPool, future: BoxFuture<'static, ()>);

    /// 64 random bits.
    fn random(&self) -> u64;

    /// The resources that this process uses, where the operating system reports them.
    fn usage(&self) -> Option<Usage> {
        None
    }
}

/// The resources that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory.
    pub memory_bytes: u64,
    /// Processor time of all threads since the process began.
    pub cpu_time: Duration,
    /// How many processors it may use.
    pub processors: u32,
}

impl Usage {
    // Linux reports kilobytes in one file and hundredths of a second in the other. The process name
    // before them is in brackets and may itself contain brackets and spaces.
    fn parse(status: &str, stat: &str, processors: u32) -> Option<Self> {
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        let cpu_time = Duration::from_millis((ticks()? + ticks()?) * 10);
        Some(Self { memory_bytes: kilobytes * 1_024, cpu_time, processors })
    }
}

/// A UUID that sorts by the given time.
pub fn new_uuid(env: &dyn Env, at: Timestamp) -> Uuid {
    let millis = u64::try_from(at.as_millis()).unwrap_or(0);
    // The microseconds within the millisecond come first, so that UUIDs of one process sort by time also
    // within a millisecond.
    let micros = (at.as_micros().rem_euclid(1_000) as u64) << 2;
    let (high, low) = (env.random(), env.random());
    let mut bytes = [0_u8; 10];
    bytes[..2].copy_from_slice(&(micros as u16).to_be_bytes());
    bytes[2..].copy_from_slice(&(high ^ low.rotate_left(17)).to_be_bytes());
    uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
}

/// A UUID that sorts by time, for data that belongs to no engine yet.
#[allow(clippy::disallowed_methods, reason = "outside an engine there is no environment")]
pub fn detached_uuid() -> Uuid {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    uuid::Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid()
}

/// The environment of production: tokio for user code, and a thread of its own for the services.
pub struct TokioEnv {
    user: tokio::runtime::Handle,
    service: tokio::runtime::Handle,
    started: std::time::Instant,
    random: AtomicU64,
    tasks: Arc<TaskThreads>,
    // Dropping the sender ends the thread.
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl TokioEnv {
    /// User code runs on the runtime that this is called in.
    #[allow(clippy::disallowed_methods, reason = "the only place that reads the real clock")]
    pub fn new() -> std::io::Result<Arc<Self>> {
        let user = tokio::runtime::Handle::try_current().map_err(std::io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let service = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        std::thread::Builder::new().name("windlass-service".into()).spawn(move || {
            runtime.block_on(async {
                let _ = stopped.await;
            });
            runtime.shutdown_background();
        })?;
        let random = AtomicU64::new(rand::random());
        let started = std::time::Instant::now();
        let tasks = Arc::default();
        Ok(Arc::new(Self { user, service, started, random, tasks, _stop: stop }))
    }
}

/// A queue of tasks that wait for a blocking thread. As long as it is not empty, one more thread is
/// requested, and the first free thread takes the next task. So a task that blocks its thread delays no
/// other, and many short tasks share a few threads instead of waking one each.
#[derive(Default)]
struct TaskThreads(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    tasks: VecDeque<BoxFuture<'static, ()>>,
    thread_requested: bool,
}

impl TaskThreads {
    fn push(self: &Arc<Self>, runtime: &tokio::runtime::Handle, task: BoxFuture<'static, ()>) {
        self.0.lock().tasks.push_back(task);
        self.request_thread(runtime);
    }

    fn request_thread(self: &Arc<Self>, runtime: &tokio::runtime::Handle) {
        {
            let mut waiting = self.0.lock();
            if waiting.thread_requested || waiting.tasks.is_empty() {
                return;
            }
            waiting.thread_requested = true;
        }
        let (threads, handle) = (Arc::clone(self), runtime.clone());
        drop(runtime.spawn_blocking(move || {
            threads.0.lock().thread_requested = false;
            loop {
                let Some(task) = threads.0.lock().tasks.pop_front() else { return };
                threads.request_thread(&handle);
                handle.block_on(task);
            }
        }));
    }
}

impl Env for TokioEnv {
    #[allow(clippy::disallowed_methods, reason = "the only place that reads the real clock")]
    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    #[allow(clippy::disallowed_methods, reason = "the only place that reads the real clock")]
    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        // A timer belongs to the runtime in which it is created. This one fires even if user code blocks.
        let _entered = self.service.enter();
        Box::pin(tokio::time::sleep(span))
    }

    fn spawn(&self, pool: ThreadPool, future: BoxFuture<'static, ()>) {
        match pool {
            ThreadPool::Service => drop(self.service.spawn(future)),
            ThreadPool::User => drop(self.user.spawn(future)),
            ThreadPool::Task => self.tasks.push(&self.user, future),
        }
    }

    fn usage(&self) -> Option<Usage> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Usage::parse(&status, &stat, processors)
    }

    fn random(&self) -> u64 {
        // SplitMix64: threads share an atomic counter, and the rest of the function mixes its bits.
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "these threads are real")]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn tasks_that_block_their_threads_delay_no_others() {
        let env = TokioEnv::new().unwrap();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..20 {
            let released = Arc::clone(&released);
            // One blocks in `recv` until the sender is dropped, all others in the lock.
            let block = async move {
                let _ = released.lock().unwrap().recv();
            };
            env.spawn(ThreadPool::Task, Box::pin(block));
        }
        for _ in 0..200 {
            let done = Arc::clone(&done);
            let count = async move {
                done.fetch_add(1, Ordering::Relaxed);
            };
            env.spawn(ThreadPool::Task, Box::pin(count));
        }
        while done.load(Ordering::Relaxed) < 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(release);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_panic_of_one_task_does_not_stop_others() {
        let env = TokioEnv::new().unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        env.spawn(ThreadPool::Task, Box::pin(async { panic!("on purpose") }));
        let send = async {
            let _ = sender.send(7);
        };
        env.spawn(ThreadPool::Task, Box::pin(send));
        assert_eq!(receiver.await, Ok(7));
    }

    #[test]
    fn usage_is_read_whatever_the_process_is_called() {
        let status = "Name:\ta) b\nVmPeak:\t  9000 kB\nVmRSS:\t    1234 kB\nThreads:\t3\n";
        let stat = "42 (a) (b) S 1 2 3 0 -1 4194304 10 0 0 0 150 50 7 7 20 0 3 0 100 1 2";
        let usage = Usage::parse(status, stat, 4).unwrap();
        assert_eq!(usage.memory_bytes, 1_234 * 1_024);
        assert_eq!((usage.cpu_time, usage.processors), (Duration::from_secs(2), 4));
        assert_eq!(Usage::parse("Name: x\n", stat, 4), None);
        assert_eq!(Usage::parse(status, "", 4), None);
    }
}
