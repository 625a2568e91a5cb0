//! `workers-1000`: a thousand workers on one store, of which some are killed all the time. No task
//! may be lost, and a task may run twice only if its first worker was killed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windlass::TaskContext;
use windlass::admin::Options;
use windlass::kernel::{Body, BoxFuture};
use windlass::model::{TaskHandler, TaskResult, TokioEnv};
use windlass_engine::Engine;

use super::tasks::{fill, worker};
use crate::backend::{Databases, OpenStore, Target};
use crate::report::Report;

/// The lease: a dead worker's tasks are released after this time.
const LEASE: Duration = Duration::from_secs(9);
/// The duration of a task.
const BODY: Duration = Duration::from_millis(100);
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Options of `workers-1000`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of registered workers.
    #[arg(long, default_value_t = 1_000)]
    workers: usize,
    /// How long new tasks are enqueued.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The number of workers that are killed and replaced per second.
    #[arg(long, default_value_t = 5)]
    kills: usize,
    /// The number of new tasks per second.
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
}

/// The workers that started each task.
type StartedBy = Arc<Mutex<HashMap<u64, Vec<usize>>>>;

struct RecordingHandler {
    worker: usize,
    started_by: StartedBy,
    ended: Arc<AtomicU64>,
}

impl TaskHandler for RecordingHandler {
    fn run(&self, _: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let task = input.read::<u64>().unwrap_or(u64::MAX);
        self.started_by.lock().entry(task).or_default().push(self.worker);
        let ended = Arc::clone(&self.ended);
        Box::pin(async move {
            // Long enough that some workers are killed while they execute it.
            tokio::time::sleep(BODY).await;
            ended.fetch_add(1, Ordering::Relaxed);
            Ok(Body::json("null"))
        })
    }
}

struct WorkerPool {
    opened: OpenStore,
    env: Arc<TokioEnv>,
    started_by: StartedBy,
    ended: Arc<AtomicU64>,
    alive: VecDeque<(usize, Engine)>,
    registered: usize,
    killed: Vec<usize>,
}

impl WorkerPool {
    async fn add_worker(&mut self) -> anyhow::Result<()> {
        let options = Options {
            tasks_max: 4,
            shared: true,
            lease: LEASE,
            renew_every: LEASE / 3,
            ..Options::default()
        };
        let engine = worker(&self.opened, &self.env, options).await?;
        let number = self.registered;
        let (started_by, ended) = (Arc::clone(&self.started_by), Arc::clone(&self.ended));
        engine.serve_effects(
            "nothing",
            Arc::new(RecordingHandler { worker: number, started_by, ended }),
        )?;
        self.alive.push_back((number, engine));
        self.registered += 1;
        Ok(())
    }

    // Kills a worker that executes a task, if there is one, without a shutdown.
    fn kill(&mut self) {
        let busy = self.alive.iter().position(|(_, engine)| engine.capacity_used().0 > 0);
        if let Some((number, engine)) = self.alive.remove(busy.unwrap_or(0)) {
            self.killed.push(number);
            drop(engine);
        }
    }
}

/// Enqueues tasks and kills workers for a while, then waits until all tasks are done.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let mut pool = WorkerPool {
        opened: place.open("workers").await?,
        env: TokioEnv::new()?,
        started_by: StartedBy::default(),
        ended: Arc::default(),
        alive: VecDeque::new(),
        registered: 0,
        killed: Vec::new(),
    };
    let joining = Instant::now();
    for _ in 0..args.workers {
        pool.add_worker().await?;
    }
    let joined = joining.elapsed();
    let started = Instant::now();
    let mut tasks = 0;
    for second in 0..args.seconds {
        let filler = pool.alive.back().map(|(_, engine)| engine.clone());
        if let Some(filler) = filler {
            fill(&filler, tasks, args.rate).await?;
            tasks += args.rate;
        }
        tokio::time::sleep(BODY / 2).await;
        for _ in 0..args.kills {
            pool.kill();
            pool.add_worker().await?;
        }
        let next = started + Duration::from_secs(second + 1);
        tokio::time::sleep_until(next.into()).await;
    }
    let store = pool.opened.store();
    let draining = Instant::now();
    loop {
        let queue = store.health().await?.tasks;
        if queue.ready.count + queue.held.count + queue.scheduled.count == 0 {
            break;
        }
        anyhow::ensure!(
            draining.elapsed() < TIME_LIMIT,
            "timeout: the queue is not drained: {queue:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let drained = draining.elapsed();
    let dead = store.health().await?.dead_letters.count;
    let alive = pool.alive.iter().map(|(_, engine)| engine.shutdown(TIME_LIMIT));
    futures::future::try_join_all(alive).await?;

    let started_by = pool.started_by.lock();
    let lost = (0..tasks).filter(|task| !started_by.contains_key(task)).count();
    let by_live_workers = |workers: &Vec<usize>| {
        workers.iter().filter(|worker| !pool.killed.contains(worker)).count()
    };
    let doubled = started_by.values().filter(|workers| by_live_workers(workers) > 1).count();
    let again = started_by.values().filter(|workers| workers.len() > 1).count();
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("workers", args.workers)
        .put("killed", pool.killed.len())
        .put("tasks", tasks)
        .put("registered_per_s", args.workers as f64 / joined.as_secs_f64())
        .put("healed_s", drained.as_secs_f64())
        .put("begun_again_after_a_kill", again)
        .put("dead_letters", dead)
        .put("lost", lost)
        .put("doubled", doubled);
    if lost > 0 || doubled > 0 || dead > 0 || pool.ended.load(Ordering::Relaxed) < tasks {
        report.fail(format!("{lost} tasks lost, {doubled} executed twice, {dead} dead letters"));
    }
    Ok(report)
}
