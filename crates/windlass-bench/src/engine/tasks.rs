//! `tasks`: a queue full of bare tasks that do nothing, drained by workers of one process or of several.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::value::RawValue;
use windlass::kernel::{
    Body, BoxFuture, ClaimOrder, ClaimRequest, Commit, Op, QueueName, Route, RouteName, Store,
    TaskGuard, Want,
};
use windlass::{Options, RetryPolicy, TaskContext, TaskHandler, TaskResult, TokioEnv};
use windlass_engine::{EFFECTS_QUEUE, Engine};

use super::Elsewhere;
use crate::backend::{Opened, Place, Target};
use crate::report::Report;

/// Tasks that one commit enqueues.
const BATCH: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(600);

/// Options of `tasks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many tasks.
    #[arg(long, default_value_t = 50_000)]
    tasks: u64,
    /// How many a worker holds at once.
    #[arg(long, default_value_t = 256)]
    slots: usize,
    /// How many workers are registered in the process; one load for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    registrations: Vec<usize>,
    /// How many processes with a worker each; one load for each number. PostgreSQL only.
    #[arg(long, value_delimiter = ',')]
    processes: Vec<usize>,
    /// Leave out the comparison with the bare store.
    #[arg(long)]
    uncalibrated: bool,
}

/// Options of a process of `tasks`.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    place: Elsewhere,
    #[arg(long)]
    slots: usize,
}

/// Counts what is begun.
struct Nothing(Arc<AtomicU64>);

impl TaskHandler for Nothing {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Body::json("null")) })
    }
}

/// The bare store before and after, so that a machine that slows down meanwhile slows both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Place::new(&args.target)?;
    let result = measure(args, &place).await;
    place.remove().await?;
    result
}

async fn measure(args: &Args, place: &Place) -> anyhow::Result<Report> {
    let mut report = Report::default();
    report.put("store", args.target.name()).put("tasks", args.tasks).put("slots", args.slots);
    let before = if args.uncalibrated { None } else { Some(bare(args, place, "before").await?) };
    let mut rates = Vec::new();
    for registrations in &args.registrations {
        let rate = here(args, place, *registrations, &mut report).await?;
        rates.push((named("tasks_per_s", "registrations", *registrations), rate));
    }
    for processes in &args.processes {
        let rate = elsewhere(args, place, *processes, &mut report).await?;
        rates.push((named("tasks_per_s", "processes", *processes), rate));
    }
    for (name, rate) in &rates {
        report.put(name, *rate);
    }
    let rate_of = |count: usize| {
        let name = named("tasks_per_s", "registrations", count);
        rates.iter().find(|(found, _)| *found == name).map(|(_, rate)| *rate)
    };
    if let (Some(hundred), Some(thousand)) = (rate_of(100), rate_of(1_000)) {
        report.put("registrations_1000_to_100", thousand / hundred);
    }
    if let Some(before) = before {
        let mean = f64::midpoint(before, bare(args, place, "after").await?);
        report.put("store_tasks_per_s", mean);
        for (name, rate) in &rates {
            report.put(&name.replace("tasks_per_s", "ratio"), rate / mean);
        }
    }
    Ok(report)
}

// One worker in one process is what everybody means.
fn named(figure: &str, of: &str, count: usize) -> String {
    match (of, count) {
        ("registrations", 1) => figure.to_owned(),
        _ => format!("{figure}_{of}_{count}"),
    }
}

/// Enqueues tasks of the name `nothing`, numbered from `first`.
pub(crate) async fn fill(engine: &Engine, first: u64, tasks: u64) -> anyhow::Result<()> {
    let end = first + tasks;
    for from in (first..end).step_by(BATCH as usize) {
        let mut ops = Vec::new();
        for n in from..(from + BATCH).min(end) {
            let input = RawValue::from_string(n.to_string())?;
            let task = engine.effect("nothing", None, input, RetryPolicy::none())?;
            ops.push(Op::Enqueue(Box::new(task)));
        }
        let answers = engine.store().commit(vec![Commit::new(None, None, ops)]).await;
        answers.into_iter().try_for_each(|answer| answer.map(|_| ()))?;
    }
    Ok(())
}

/// A worker among others that use the same store.
pub(crate) async fn worker(
    opened: &Opened,
    env: &Arc<TokioEnv>,
    options: Options,
) -> anyhow::Result<Engine> {
    let env: Arc<dyn windlass::Env> = Arc::clone(env) as _;
    Ok(Engine::start(opened.store(), env, options).await?)
}

async fn here(
    args: &Args,
    place: &Place,
    registrations: usize,
    report: &mut Report,
) -> anyhow::Result<f64> {
    let opened = place.open(&format!("tasks_{registrations}")).await?;
    let env = TokioEnv::new()?;
    let shared = opened.is_shared() || registrations > 1;
    let options = Options { tasks_max: args.slots, shared, ..Options::default() };
    let mut workers = Vec::new();
    for _ in 0..registrations {
        workers.push(worker(&opened, &env, options.clone()).await?);
    }
    let filling = Instant::now();
    fill(&workers[0], 0, args.tasks).await?;
    let filled = filling.elapsed();
    let done = Arc::new(AtomicU64::new(0));
    let draining = Instant::now();
    for worker in &workers {
        worker.serve_effects("nothing", Arc::new(Nothing(Arc::clone(&done))))?;
    }
    drained(&*opened.store(), draining, || {
        let completed = workers.iter().map(|worker| worker.metrics().tasks_completed.get());
        completed.sum::<u64>() >= args.tasks
    })
    .await?;
    let took = draining.elapsed();
    let claims: u64 = workers.iter().map(|worker| worker.metrics().claims.get()).sum();
    futures::future::try_join_all(workers.iter().map(|worker| worker.shutdown(PATIENCE))).await?;
    drop(workers);
    opened.store().close().await?;
    report
        .put(
            &named("enqueued_per_s", "registrations", registrations),
            args.tasks as f64 / filled.as_secs_f64(),
        )
        .put(&named("claims", "registrations", registrations), claims);
    once(args, done.load(Ordering::Relaxed), report);
    Ok(args.tasks as f64 / took.as_secs_f64())
}

// What is settled is gone, so an empty queue is a drained one; it is asked when all may be done.
async fn drained(
    store: &dyn Store,
    since: Instant,
    mut may_be: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    loop {
        if may_be() {
            let tasks = store.health().await?.tasks;
            if tasks.ready.count + tasks.held.count + tasks.scheduled.count == 0 {
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        anyhow::ensure!(since.elapsed() < PATIENCE, "the queue does not drain");
    }
}

fn once(args: &Args, begun: u64, report: &mut Report) {
    if begun != args.tasks {
        report.fail(format!("{} tasks were begun {begun} times", args.tasks));
    }
}

async fn elsewhere(
    args: &Args,
    place: &Place,
    processes: usize,
    report: &mut Report,
) -> anyhow::Result<f64> {
    let name = format!("tasks_p{processes}");
    let opened = place.open(&name).await?;
    anyhow::ensure!(opened.is_shared(), "--processes: only PostgreSQL has several");
    let filler = worker(&opened, &TokioEnv::new()?, Options::default()).await?;
    fill(&filler, 0, args.tasks).await?;
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..processes {
        let mut command = place.elsewhere("tasks-worker", &name)?;
        command.args(["--slots", &args.slots.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        children.push(child.context("a process does not start")?);
    }
    let mut lines = Vec::new();
    for child in &mut children {
        lines.push(BufReader::new(child.stdout.take().context("it has no output")?).lines());
    }
    // They are let go together, when all have opened the store.
    for line in &mut lines {
        line.next().context("a process ended early")??;
    }
    let draining = Instant::now();
    for child in &mut children {
        let stdin = child.stdin.as_mut().context("it has no input")?;
        std::io::Write::write_all(stdin, b"go\n")?;
    }
    let mut looked = Instant::now();
    drained(&*opened.store(), draining, || {
        let look = looked.elapsed() > Duration::from_millis(20);
        if look {
            looked = Instant::now();
        }
        look
    })
    .await?;
    let took = draining.elapsed();
    let mut begun = 0;
    for (child, lines) in children.iter_mut().zip(&mut lines) {
        drop(child.stdin.take());
        begun += lines.next().context("a process ended early")??.parse::<u64>()?;
        child.wait()?;
    }
    filler.shutdown(PATIENCE).await?;
    once(args, begun, report);
    Ok(args.tasks as f64 / took.as_secs_f64())
}

/// One of the processes: says that it is there, works when it is told to, and says how much it began.
pub(crate) async fn process(args: &WorkerArgs) -> anyhow::Result<()> {
    let opened = args.place.open().await?;
    let options = Options { tasks_max: args.slots, shared: true, ..Options::default() };
    let engine = worker(&opened, &TokioEnv::new()?, options).await?;
    println!("here");
    let (mut lines, mut line) = (std::io::stdin().lock(), String::new());
    lines.read_line(&mut line)?;
    let done = Arc::new(AtomicU64::new(0));
    engine.serve_effects("nothing", Arc::new(Nothing(Arc::clone(&done))))?;
    lines.read_line(&mut line)?;
    engine.shutdown(PATIENCE).await?;
    println!("{}", done.load(Ordering::Relaxed));
    Ok(())
}

/// Tasks a second that the store alone gives and takes back: a claim, a commit for each task, all
/// commits of a claim at once, and the next claim meanwhile.
async fn bare(args: &Args, place: &Place, name: &str) -> anyhow::Result<f64> {
    let opened = place.open(&format!("bare_{name}")).await?;
    let store = opened.store();
    // The claims below are under its name, and it is not to give back what it does not know of.
    let options =
        Options { shared: opened.is_shared(), scan_every: PATIENCE, ..Options::default() };
    let filler = worker(&opened, &TokioEnv::new()?, options).await?;
    fill(&filler, 0, args.tasks).await?;
    let route = Route {
        queue: QueueName::from_stored(EFFECTS_QUEUE),
        name: RouteName::from_stored("nothing"),
    };
    let started = Instant::now();
    let (mut settled, mut settling) = (0, None);
    while settled < args.tasks {
        let request = ClaimRequest {
            worker: filler.worker(),
            turns: Want::default(),
            tasks: Want { routes: vec![route.clone()], max: 500 },
            order: ClaimOrder::Priority,
            offer: Duration::ZERO,
        };
        let claims = store.claim(request).await?;
        if let Some(answers) = settling.take() {
            settled += answered(answers).await?;
        }
        let commits = claims.tasks.iter().filter_map(|task| {
            let guard = TaskGuard { task_id: task.task_id, hold: task.hold()? };
            let settle = Op::Settle { task_id: task.task_id };
            Some(Commit::new(None, Some(guard), vec![settle]))
        });
        let (commits, store) = (commits.collect::<Vec<_>>(), Arc::clone(&store));
        settling = Some(tokio::spawn(async move { store.commit(commits).await }));
        anyhow::ensure!(started.elapsed() < PATIENCE, "the queue does not drain");
    }
    let took = started.elapsed();
    filler.shutdown(PATIENCE).await?;
    store.close().await?;
    Ok(args.tasks as f64 / took.as_secs_f64())
}

type Answers = Vec<Result<windlass::kernel::Committed, windlass::kernel::CommitError>>;

async fn answered(answers: tokio::task::JoinHandle<Answers>) -> anyhow::Result<u64> {
    let answers = answers.await.context("a commit panicked")?;
    let count = answers.len() as u64;
    answers.into_iter().try_for_each(|answer| answer.map(|_| ()))?;
    Ok(count)
}
