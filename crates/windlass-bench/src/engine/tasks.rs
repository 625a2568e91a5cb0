//! `tasks`: workers of one or several processes drain a queue of empty tasks.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::value::RawValue;
use windlass::admin::Options;
use windlass::kernel::{
    Body, BoxFuture, ClaimFilter, ClaimOrder, ClaimRequest, Commit, Op, QueueName, Route,
    RouteName, Store, TaskGuard,
};
use windlass::model::{TaskHandler, TaskResult, TokioEnv};
use windlass::{RetryPolicy, TaskContext};
use windlass_engine::{EFFECTS_QUEUE, Engine};

use super::StoreLocation;
use crate::backend::{Databases, OpenStore, Target};
use crate::report::Report;

/// Tasks per commit.
const BATCH: u64 = 1_000;
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Options of `tasks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of tasks.
    #[arg(long, default_value_t = 50_000)]
    tasks: u64,
    /// The maximum number of concurrent tasks of a worker.
    #[arg(long, default_value_t = 256)]
    slots: usize,
    /// The numbers of workers in this process; one load for each.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    registrations: Vec<usize>,
    /// The numbers of processes with one worker each; one load for each. Only on PostgreSQL.
    #[arg(long, value_delimiter = ',')]
    processes: Vec<usize>,
    /// Omit the comparison with the bare store.
    #[arg(long)]
    uncalibrated: bool,
}

/// Options of a process of `tasks`.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    place: StoreLocation,
    #[arg(long)]
    slots: usize,
}

/// Counts the started tasks.
struct CountingHandler(Arc<AtomicU64>);

impl TaskHandler for CountingHandler {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Body::json("null")) })
    }
}

/// Measures the bare store before and after, so that a slower machine affects both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let mut report = Report::default();
    report.put("store", args.target.name()).put("tasks", args.tasks).put("slots", args.slots);
    let before =
        if args.uncalibrated { None } else { Some(bare_store_rate(args, place, "before").await?) };
    let mut rates = Vec::new();
    for registrations in &args.registrations {
        let rate = drain_in_process(args, place, *registrations, &mut report).await?;
        rates.push((figure_name("tasks_per_s", "registrations", *registrations), rate));
    }
    for processes in &args.processes {
        let rate = drain_in_processes(args, place, *processes, &mut report).await?;
        rates.push((figure_name("tasks_per_s", "processes", *processes), rate));
    }
    for (name, rate) in &rates {
        report.put(name, *rate);
    }
    let rate_of = |count: usize| {
        let name = figure_name("tasks_per_s", "registrations", count);
        rates.iter().find(|(found, _)| *found == name).map(|(_, rate)| *rate)
    };
    if let (Some(hundred), Some(thousand)) = (rate_of(100), rate_of(1_000)) {
        report.put("registrations_1000_to_100", thousand / hundred);
    }
    if let Some(before) = before {
        let mean = f64::midpoint(before, bare_store_rate(args, place, "after").await?);
        report.put("store_tasks_per_s", mean);
        for (name, rate) in &rates {
            report.put(&name.replace("tasks_per_s", "ratio"), rate / mean);
        }
    }
    Ok(report)
}

// The default, one worker in one process, has no suffix.
fn figure_name(figure: &str, of: &str, count: usize) -> String {
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

/// Starts a worker on a shared store.
pub(crate) async fn worker(
    opened: &OpenStore,
    env: &Arc<TokioEnv>,
    options: Options,
) -> anyhow::Result<Engine> {
    let env: Arc<dyn windlass::model::Env> = Arc::clone(env) as _;
    Ok(Engine::start(opened.store(), env, options).await?)
}

async fn drain_in_process(
    args: &Args,
    place: &Databases,
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
        worker.serve_effects("nothing", Arc::new(CountingHandler(Arc::clone(&done))))?;
    }
    wait_until_drained(&*opened.store(), draining, || {
        let completed = workers.iter().map(|worker| worker.metrics().tasks_completed.get());
        completed.sum::<u64>() >= args.tasks
    })
    .await?;
    let took = draining.elapsed();
    let claims: u64 = workers.iter().map(|worker| worker.metrics().claims.get()).sum();
    futures::future::try_join_all(workers.iter().map(|worker| worker.shutdown(TIME_LIMIT))).await?;
    drop(workers);
    opened.store().close().await?;
    report
        .put(
            &figure_name("enqueued_per_s", "registrations", registrations),
            args.tasks as f64 / filled.as_secs_f64(),
        )
        .put(&figure_name("claims", "registrations", registrations), claims);
    check_each_ran_once(args, done.load(Ordering::Relaxed), report);
    Ok(args.tasks as f64 / took.as_secs_f64())
}

// Settled tasks are deleted, so an empty queue is a drained queue. Checks only when all tasks may
// be done.
async fn wait_until_drained(
    store: &dyn Store,
    since: Instant,
    mut may_be_drained: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    loop {
        if may_be_drained() {
            let tasks = store.health().await?.tasks;
            if tasks.ready.count + tasks.held.count + tasks.scheduled.count == 0 {
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        anyhow::ensure!(since.elapsed() < TIME_LIMIT, "timeout: the queue is not drained");
    }
}

fn check_each_ran_once(args: &Args, started_count: u64, report: &mut Report) {
    if started_count != args.tasks {
        report.fail(format!("{} tasks were started {started_count} times", args.tasks));
    }
}

async fn drain_in_processes(
    args: &Args,
    place: &Databases,
    processes: usize,
    report: &mut Report,
) -> anyhow::Result<f64> {
    let name = format!("tasks_p{processes}");
    let opened = place.open(&name).await?;
    anyhow::ensure!(opened.is_shared(), "--processes needs PostgreSQL");
    let filler = worker(&opened, &TokioEnv::new()?, Options::default()).await?;
    fill(&filler, 0, args.tasks).await?;
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..processes {
        let mut command = place.process_command("tasks-worker", &name)?;
        command.args(["--slots", &args.slots.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        children.push(child.context("failed to start a worker process")?);
    }
    let mut lines = Vec::new();
    for child in &mut children {
        lines.push(
            BufReader::new(child.stdout.take().context("a worker process has no standard output")?)
                .lines(),
        );
    }
    // All processes start working at the same time, after each has opened the store.
    for line in &mut lines {
        line.next().context("a worker process ended early")??;
    }
    let draining = Instant::now();
    for child in &mut children {
        let stdin = child.stdin.as_mut().context("a worker process has no standard input")?;
        std::io::Write::write_all(stdin, b"go\n")?;
    }
    let mut last_check = Instant::now();
    wait_until_drained(&*opened.store(), draining, || {
        let due = last_check.elapsed() > Duration::from_millis(20);
        if due {
            last_check = Instant::now();
        }
        due
    })
    .await?;
    let took = draining.elapsed();
    let mut started_count = 0;
    for (child, lines) in children.iter_mut().zip(&mut lines) {
        drop(child.stdin.take());
        started_count += lines.next().context("a worker process ended early")??.parse::<u64>()?;
        child.wait()?;
    }
    filler.shutdown(TIME_LIMIT).await?;
    check_each_ran_once(args, started_count, report);
    Ok(args.tasks as f64 / took.as_secs_f64())
}

/// A worker process: prints a line when it is ready, works when it reads a line, and prints its
/// count.
pub(crate) async fn process(args: &WorkerArgs) -> anyhow::Result<()> {
    let opened = args.place.open().await?;
    let options = Options { tasks_max: args.slots, shared: true, ..Options::default() };
    let engine = worker(&opened, &TokioEnv::new()?, options).await?;
    println!("ready");
    let (mut lines, mut line) = (std::io::stdin().lock(), String::new());
    lines.read_line(&mut line)?;
    let done = Arc::new(AtomicU64::new(0));
    engine.serve_effects("nothing", Arc::new(CountingHandler(Arc::clone(&done))))?;
    lines.read_line(&mut line)?;
    engine.shutdown(TIME_LIMIT).await?;
    println!("{}", done.load(Ordering::Relaxed));
    Ok(())
}

/// Measures how many tasks per second the store alone claims and settles: one commit per task, all
/// commits of a claim together, concurrently with the next claim.
async fn bare_store_rate(args: &Args, place: &Databases, name: &str) -> anyhow::Result<f64> {
    let opened = place.open(&format!("bare_{name}")).await?;
    let store = opened.store();
    // Claims below use the key of this worker, which must not release tasks that it does not know.
    let options =
        Options { shared: opened.is_shared(), scan_every: TIME_LIMIT, ..Options::default() };
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
            turns: ClaimFilter::default(),
            tasks: ClaimFilter { routes: vec![route.clone()], max: 500, after: None },
            order: ClaimOrder::Priority,
            offer: Duration::ZERO,
        };
        let claims = store.claim(request).await?;
        if let Some(answers) = settling.take() {
            settled += count_results(answers).await?;
        }
        let commits = claims.tasks.iter().filter_map(|task| {
            let guard = TaskGuard::Held { task_id: task.task_id, hold: task.hold()? };
            let settle = Op::Settle { task_id: task.task_id };
            Some(Commit::new(None, Some(guard), vec![settle]))
        });
        let (commits, store) = (commits.collect::<Vec<_>>(), Arc::clone(&store));
        settling = Some(tokio::spawn(async move { store.commit(commits).await }));
        anyhow::ensure!(started.elapsed() < TIME_LIMIT, "timeout: the queue is not drained");
    }
    let took = started.elapsed();
    filler.shutdown(TIME_LIMIT).await?;
    store.close().await?;
    Ok(args.tasks as f64 / took.as_secs_f64())
}

type Answers = Vec<Result<windlass::kernel::Committed, windlass::kernel::CommitError>>;

async fn count_results(answers: tokio::task::JoinHandle<Answers>) -> anyhow::Result<u64> {
    let answers = answers.await.context("a commit panicked")?;
    let count = answers.len() as u64;
    answers.into_iter().try_for_each(|answer| answer.map(|_| ()))?;
    Ok(count)
}
