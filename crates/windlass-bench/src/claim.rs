//! `claim`: the cost of claims on an empty, a full and a crowded store, and whether it drifts.

mod pages;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use windlass_kernel::{
    Body, ClaimFilter, ClaimOrder, ClaimRequest, Commit, Namespace, Op, QueueName, Route,
    RouteName, Store, Task, TaskGuard, TaskId, WorkerKey,
};

use crate::backend::{Databases, OpenStore, Target};
use crate::generator::{RunGenerator, now};
use crate::report::{Report, Times};

/// Options of `claim`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of ready tasks.
    #[arg(long, default_value_t = 10_000)]
    ready: usize,
    /// The number of additional scheduled tasks.
    #[arg(long, default_value_t = 1_000_000)]
    scheduled: usize,
    /// Tasks per claim.
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// The number of measured claims in each state of the store.
    #[arg(long, default_value_t = 200)]
    claims: usize,
    /// The number of tasks to claim and settle for the drift measurement.
    #[arg(long, default_value_t = 200_000)]
    drift: usize,
}

/// Tasks per commit of the preparation.
const ENQUEUED_AT_ONCE: usize = 1_000;

/// Measures one state after the other.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let mut report = Report::default();
    report.put("store", args.target.name()).put("batch", args.batch);
    let mut bench = Bench::open(place, args.batch).await?;

    let mut times = Times::default();
    for _ in 0..args.claims {
        times.add(bench.claim().await?.1);
    }
    put_times(&mut report, "empty", &times);

    bench.enqueue(args.ready, None).await?;
    let without = bench.pages(&mut report, "ready").await?;
    put_times(&mut report, "ready", &bench.cycle(args.claims).await?.claims);

    let day = Duration::from_secs(24 * 60 * 60);
    bench.enqueue(args.scheduled, Some(day)).await?;
    let with = bench.pages(&mut report, "crowded").await?;
    put_times(&mut report, "crowded", &bench.cycle(args.claims).await?.claims);
    if let (Some(without), Some(with)) = (without, with) {
        report.put("pages_ratio", with / without);
    }

    let cycle = bench.cycle(args.drift / args.batch.max(1)).await?;
    put_drift(&mut report, &cycle, args.batch);
    bench.opened.store().close().await?;
    Ok(report)
}

// The enqueue times show how much the machine itself slowed down.
fn put_drift(report: &mut Report, cycle: &Cycle, batch: usize) {
    if cycle.claims.len() < 10 {
        return;
    }
    let ends = |times: &Times| {
        let (first, last) = (times.part(0.0, 0.1), times.part(0.9, 1.0));
        (first.percentile_ms(0.5), last.percentile_ms(0.5))
    };
    let (first, last) = ends(&cycle.claims);
    let (first_enqueue, last_enqueue) = ends(&cycle.enqueues);
    report
        .put("drift_claimed", cycle.claims.len() * batch)
        .put("drift_first_p50_ms", first)
        .put("drift_last_p50_ms", last)
        .put("drift_ratio", last / first)
        .put("drift_control_ratio", last_enqueue / first_enqueue);
}

fn put_times(report: &mut Report, state: &str, times: &Times) {
    report
        .put(&format!("{state}_p50_ms"), times.percentile_ms(0.5))
        .put(&format!("{state}_p99_ms"), times.percentile_ms(0.99));
}

/// The durations of claims, and of the commits that refill the queue between them.
#[derive(Default)]
struct Cycle {
    claims: Times,
    enqueues: Times,
}

/// A store, a claiming worker, and a generator of tasks.
struct Bench<'a> {
    place: &'a Databases,
    opened: OpenStore,
    generator: RunGenerator,
    worker: WorkerKey,
    batch: usize,
}

impl<'a> Bench<'a> {
    async fn open(place: &'a Databases, batch: usize) -> anyhow::Result<Self> {
        let opened = place.open("claim").await?;
        let generator = RunGenerator::new(0)?;
        let worker = WorkerKey(generator.key(now()));
        Ok(Self { place, opened, generator, worker, batch })
    }

    /// Claims once and measures the duration.
    async fn claim(&self) -> anyhow::Result<(Vec<Task>, Duration)> {
        let request = claim_request(self.worker, "work", self.batch);
        let store = self.opened.store();
        let started = Instant::now();
        let claims = store.claim(request).await.context("claim failed")?;
        Ok((claims.tasks, started.elapsed()))
    }

    /// Claims and settles tasks, and enqueues as many, so that the number of ready tasks is
    /// constant.
    async fn cycle(&self, claims: usize) -> anyhow::Result<Cycle> {
        let mut cycle = Cycle::default();
        for _ in 0..claims {
            let (tasks, time) = self.claim().await?;
            anyhow::ensure!(tasks.len() == self.batch, "a claim returned {} tasks", tasks.len());
            cycle.claims.add(time);
            self.settle(tasks).await?;
            let started = Instant::now();
            self.enqueue(self.batch, None).await?;
            cycle.enqueues.add(started.elapsed());
        }
        Ok(cycle)
    }

    async fn settle(&self, tasks: Vec<Task>) -> anyhow::Result<()> {
        let commits = tasks.iter().filter_map(|task| {
            let guard = TaskGuard::Held { task_id: task.task_id, hold: task.hold()? };
            Some(Commit::new(None, Some(guard), vec![Op::Settle { task_id: task.task_id }]))
        });
        commit_all(&*self.opened.store(), commits.collect()).await
    }

    /// Enqueues tasks: ready, or due after this time, one millisecond apart.
    async fn enqueue(&self, count: usize, after: Option<Duration>) -> anyhow::Result<()> {
        let store = self.opened.store();
        let mut done = 0;
        while done < count {
            let part = ENQUEUED_AT_ONCE.min(count - done);
            let ops = (done..done + part).map(|n| {
                let spread = Duration::from_millis(n as u64);
                Ok(Op::Enqueue(Box::new(self.task(after.map(|after| after + spread))?)))
            });
            let ops = ops.collect::<anyhow::Result<Vec<_>>>()?;
            commit_all(&*store, vec![Commit::new(None, None, ops)]).await?;
            done += part;
        }
        Ok(())
    }

    fn task(&self, after: Option<Duration>) -> anyhow::Result<Task> {
        let at = now();
        let route = Route { queue: QueueName::default_queue(), name: RouteName::new("work")? };
        let task_id = TaskId(self.generator.key(at));
        Ok(Task {
            ready: after.is_none(),
            due_at: after.map(|after| at.plus(after)),
            body: Some(Body::json(&br#"{"charge":{"amount":4250,"currency":"EUR"}}"#[..])),
            ..Task::new(task_id, Namespace::default_namespace(), "activity", route, at)
        })
    }

    /// The number of pages that a claim reads, if the database reports it. Settles the claimed
    /// tasks and enqueues them again.
    async fn pages(&mut self, report: &mut Report, state: &str) -> anyhow::Result<Option<f64>> {
        let pages = match self.place {
            Databases::Sqlite(_) => Some(self.pages_sqlite().await?),
            Databases::Postgres { .. } => Some(self.pages_postgres().await?),
            Databases::Memory => None,
        };
        if let Some(pages) = pages {
            report.put(&format!("{state}_pages"), pages);
        }
        Ok(pages)
    }
}

/// A request for ready tasks of one name.
fn claim_request(worker: WorkerKey, name: &str, max: usize) -> ClaimRequest {
    let route =
        Route { queue: QueueName::default_queue(), name: RouteName::from_stored(name.to_owned()) };
    ClaimRequest {
        worker,
        turns: ClaimFilter::default(),
        tasks: ClaimFilter {
            routes: vec![route],
            max: u32::try_from(max).unwrap_or(u32::MAX),
            after: None,
        },
        order: ClaimOrder::Priority,
        offer: Duration::ZERO,
    }
}

async fn commit_all(store: &dyn Store, commits: Vec<Commit>) -> anyhow::Result<()> {
    for result in store.commit(commits).await {
        result.context("commit failed")?;
    }
    Ok(())
}
