//! `workers-1000`: a thousand workers on one store, some of which die all the time: no task is lost, and
//! none is done twice unless who began it first has died.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windlass::kernel::{Body, BoxFuture};
use windlass::{Options, TaskContext, TaskHandler, TaskResult, TokioEnv};
use windlass_engine::Engine;

use super::tasks::{fill, worker};
use crate::backend::{Opened, Place, Target};
use crate::report::Report;

/// A dead worker's tasks come back after this long.
const LEASE: Duration = Duration::from_secs(9);
/// How long a task takes.
const BODY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(300);

/// Options of `workers-1000`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many workers are registered at any time.
    #[arg(long, default_value_t = 1_000)]
    workers: usize,
    /// For how long there is new work.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many workers die every second; as many new ones come.
    #[arg(long, default_value_t = 5)]
    kills: usize,
    /// How many tasks there are every second.
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
}

/// Which workers began which task.
type Begun = Arc<Mutex<HashMap<u64, Vec<usize>>>>;

struct Noted {
    worker: usize,
    begun: Begun,
    ended: Arc<AtomicU64>,
}

impl TaskHandler for Noted {
    fn run(&self, _: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let task = input.read::<u64>().unwrap_or(u64::MAX);
        self.begun.lock().entry(task).or_default().push(self.worker);
        let ended = Arc::clone(&self.ended);
        Box::pin(async move {
            // Long enough that some die with it in their hands.
            tokio::time::sleep(BODY).await;
            ended.fetch_add(1, Ordering::Relaxed);
            Ok(Body::json("null"))
        })
    }
}

struct Crowd {
    opened: Opened,
    env: Arc<TokioEnv>,
    begun: Begun,
    ended: Arc<AtomicU64>,
    alive: VecDeque<(usize, Engine)>,
    registered: usize,
    killed: Vec<usize>,
}

impl Crowd {
    async fn join(&mut self) -> anyhow::Result<()> {
        let options = Options {
            tasks_max: 4,
            shared: true,
            lease: LEASE,
            renew_every: LEASE / 3,
            ..Options::default()
        };
        let engine = worker(&self.opened, &self.env, options).await?;
        let number = self.registered;
        let (begun, ended) = (Arc::clone(&self.begun), Arc::clone(&self.ended));
        engine.serve_effects("nothing", Arc::new(Noted { worker: number, begun, ended }))?;
        self.alive.push_back((number, engine));
        self.registered += 1;
        Ok(())
    }

    // One that has something in its hands, if there is one. It says nothing and gives nothing back.
    fn kill(&mut self) {
        let busy = self.alive.iter().position(|(_, engine)| engine.room_used().0 > 0);
        if let Some((number, engine)) = self.alive.remove(busy.unwrap_or(0)) {
            self.killed.push(number);
            drop(engine);
        }
    }
}

/// Work for a while, with kills; then all that is left is done.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Place::new(&args.target)?;
    let result = measure(args, &place).await;
    place.remove().await?;
    result
}

async fn measure(args: &Args, place: &Place) -> anyhow::Result<Report> {
    let mut crowd = Crowd {
        opened: place.open("workers").await?,
        env: TokioEnv::new()?,
        begun: Begun::default(),
        ended: Arc::default(),
        alive: VecDeque::new(),
        registered: 0,
        killed: Vec::new(),
    };
    let joining = Instant::now();
    for _ in 0..args.workers {
        crowd.join().await?;
    }
    let joined = joining.elapsed();
    let started = Instant::now();
    let mut tasks = 0;
    for second in 0..args.seconds {
        let filler = crowd.alive.back().map(|(_, engine)| engine.clone());
        if let Some(filler) = filler {
            fill(&filler, tasks, args.rate).await?;
            tasks += args.rate;
        }
        tokio::time::sleep(BODY / 2).await;
        for _ in 0..args.kills {
            crowd.kill();
            crowd.join().await?;
        }
        let next = started + Duration::from_secs(second + 1);
        tokio::time::sleep_until(next.into()).await;
    }
    let store = crowd.opened.store();
    let healing = Instant::now();
    loop {
        let queue = store.health().await?.tasks;
        if queue.ready.count + queue.held.count + queue.scheduled.count == 0 {
            break;
        }
        anyhow::ensure!(healing.elapsed() < PATIENCE, "the queue does not drain: {queue:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let healed = healing.elapsed();
    let dead = store.health().await?.dead_letters.count;
    let alive = crowd.alive.iter().map(|(_, engine)| engine.shutdown(PATIENCE));
    futures::future::try_join_all(alive).await?;

    let begun = crowd.begun.lock();
    let lost = (0..tasks).filter(|task| !begun.contains_key(task)).count();
    let by_the_living = |workers: &Vec<usize>| {
        workers.iter().filter(|worker| !crowd.killed.contains(worker)).count()
    };
    let doubled = begun.values().filter(|workers| by_the_living(workers) > 1).count();
    let again = begun.values().filter(|workers| workers.len() > 1).count();
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("workers", args.workers)
        .put("killed", crowd.killed.len())
        .put("tasks", tasks)
        .put("registered_per_s", args.workers as f64 / joined.as_secs_f64())
        .put("healed_s", healed.as_secs_f64())
        .put("begun_again_after_a_kill", again)
        .put("dead_letters", dead)
        .put("lost", lost)
        .put("doubled", doubled);
    if lost > 0 || doubled > 0 || dead > 0 || crowd.ended.load(Ordering::Relaxed) < tasks {
        report.fail(format!("{lost} tasks lost, {doubled} doubled, {dead} given up"));
    }
    Ok(report)
}
