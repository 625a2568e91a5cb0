//! `recover`: kills a process with runs in flight. The next process must finish them without
//! executing a recorded step again.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::Mutex;
use windlass::admin::Options;
use windlass::{Ctx, Engine, WorkflowRef};

use super::{StoreLocation, engine as engine_on};
use crate::backend::{Databases, OpenStore, Target, directory};
use crate::report::Report;

/// Options of `recover`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of runs in flight when the process is killed.
    #[arg(long, default_value_t = 10_000)]
    runs: u64,
    /// Steps of a run.
    #[arg(long, default_value_t = 5)]
    steps: usize,
}

/// Options of the process to kill.
#[derive(clap::Args)]
pub(crate) struct VictimArgs {
    #[command(flatten)]
    place: StoreLocation,
    /// The file that records the executed steps.
    #[arg(long)]
    journal: PathBuf,
    #[arg(long)]
    runs: u64,
    #[arg(long)]
    steps: usize,
}

/// Records each executed step in a file, independently of the engine.
struct Journal(Mutex<std::fs::File>);

impl Journal {
    fn open(path: &Path) -> anyhow::Result<Arc<Self>> {
        let file = std::fs::File::options().create(true).append(true).open(path)?;
        Ok(Arc::new(Self(Mutex::new(file))))
    }

    fn ran(&self, id: &str, step: usize) {
        // One write per line, so that a killed process leaves whole lines.
        let _ = self.0.lock().write_all(format!("{id} {step}\n").as_bytes());
    }
}

fn register(
    engine: &Engine,
    journal: &Arc<Journal>,
    steps: usize,
) -> anyhow::Result<WorkflowRef<u64, u64>> {
    let journal = Arc::clone(journal);
    Ok(engine.workflow("recover", move |ctx: Ctx, n: u64| {
        let journal = Arc::clone(&journal);
        async move {
            let id = ctx.run().id.clone();
            let mut sum = n;
            for step in 0..steps {
                let body = || {
                    let (journal, id) = (Arc::clone(&journal), id.clone());
                    async move {
                        journal.ran(&id, step);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Ok(1_u64)
                    }
                };
                sum += ctx.step(format!("step-{step}"), body).await?;
            }
            Ok(sum)
        }
    })?)
}

/// The process to kill: starts all runs and waits.
pub(crate) async fn victim(args: &VictimArgs) -> anyhow::Result<()> {
    let opened = args.place.open().await?;
    let engine = engine_on(&opened, Options::default()).await?;
    let workflow = register(&engine, &Journal::open(&args.journal)?, args.steps)?;
    let mut n = 0;
    while n < args.runs {
        let chunk = (args.runs - n).min(2_000);
        let batch = (n..n + chunk).map(|n| (format!("run-{n}"), n));
        workflow.start_batch(batch.collect::<Vec<_>>()).await?;
        n += chunk;
        println!("started {n}");
    }
    std::future::pending().await
}

// On a shared store, another process has renewed its lease for long enough to release what a dead
// worker holds. It serves the workflow only after the recorded steps have been counted.
async fn survivor(place: &Databases) -> anyhow::Result<Option<(OpenStore, Engine)>> {
    if !matches!(place, Databases::Postgres { .. }) {
        return Ok(None);
    }
    let opened = place.open("recover").await?;
    let options = Options::default();
    let lease = options.lease;
    let engine = engine_on(&opened, options).await?;
    tokio::time::sleep(lease + Duration::from_secs(2)).await;
    Ok(Some((opened, engine)))
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let folder = directory(args.target.path())?;
    let journal = folder.path().join("journal");
    let place = Databases::new(&args.target)?;
    let result = measure(args, &place, &journal).await;
    place.remove().await?;
    result
}

async fn measure(args: &Args, place: &Databases, journal: &Path) -> anyhow::Result<Report> {
    let survivor = survivor(place).await?;
    let mut command = place.process_command("recover-victim", "recover")?;
    command.arg("--journal").arg(journal);
    command.args(["--runs", &args.runs.to_string(), "--steps", &args.steps.to_string()]);
    let mut victim =
        command.stdout(Stdio::piped()).spawn().context("failed to start the second process")?;
    let lines =
        BufReader::new(victim.stdout.take().context("the second process has no standard output")?)
            .lines();
    let wanted = format!("started {}", args.runs);
    for line in lines {
        if line? == wanted {
            break;
        }
    }
    victim.kill()?;
    victim.wait()?;

    // These steps must not run again.
    let killed = Instant::now();
    let before = lines_of(journal)?;
    let (opened, engine) = match survivor {
        Some((opened, engine)) => (opened, Some(engine)),
        None => (place.open("recover").await?, None),
    };
    let opened_ms = killed.elapsed().as_secs_f64() * 1e3;
    let recorded = recorded(&opened.store()).await?;
    let engine = match engine {
        Some(engine) => engine,
        None => engine_on(&opened, Options::default()).await?,
    };
    let workflow = register(&engine, &Journal::open(journal)?, args.steps)?;
    // A process that was already running is measured from the kill, others from the opening of the
    // store.
    let started = if opened.is_shared() { killed } else { Instant::now() };
    let mut first_progress = None;
    while first_progress.is_none() {
        if lines_of(journal)? > before || engine.admin().metrics().runs_completed.get() > 0 {
            first_progress = Some(started.elapsed());
        }
        anyhow::ensure!(started.elapsed() < Duration::from_secs(120), "no run makes progress");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut unfinished = 0;
    for n in 0..args.runs {
        let run = workflow.get(format!("run-{n}")).await?;
        let result = tokio::time::timeout(Duration::from_secs(120), run.result()).await;
        match result {
            Ok(Ok(sum)) if sum == n + args.steps as u64 => {}
            _ => unfinished += 1,
        }
    }
    let finished = started.elapsed();
    let mut again = 0;
    for (skipped, line) in BufReader::new(std::fs::File::open(journal)?).lines().enumerate() {
        let line = line?;
        if skipped >= before && recorded.contains_key(&line) {
            again += 1;
        }
    }
    engine.stop(Duration::from_secs(5)).await?;
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("runs", args.runs)
        .put("steps", args.steps)
        .put("bodies_before_the_kill", before)
        .put("recorded_steps", recorded.len())
        .put("open_ms", opened_ms)
        .put("first_progress_ms", first_progress.unwrap_or_default().as_secs_f64() * 1e3)
        .put("all_done_ms", finished.as_secs_f64() * 1e3)
        .put("unfinished", unfinished)
        .put("recorded_steps_run_again", again);
    if unfinished > 0 || again > 0 {
        report.fail(format!("{unfinished} runs unfinished, {again} recorded steps run again"));
    }
    Ok(report)
}

fn lines_of(journal: &Path) -> anyhow::Result<usize> {
    Ok(BufReader::new(std::fs::File::open(journal)?).lines().count())
}

// The steps with a result, in the format of the journal.
async fn recorded(store: &Arc<dyn windlass_kernel::Store>) -> anyhow::Result<HashMap<String, ()>> {
    let mut found = HashMap::new();
    let mut after = None;
    loop {
        let query = windlass_kernel::Query::RunKeys { after, limit: 1_000 };
        let keys = store.list(query).await?.run_keys()?;
        after = keys.last().copied();
        let last = keys.len() < 1_000;
        for loaded in store.load(keys).await? {
            for step in loaded.steps.iter().filter(|step| step.status.is_settled()) {
                let number = step.step_key.as_str().trim_start_matches("step-");
                found.insert(format!("{} {number}", loaded.run.id), ());
            }
        }
        if last {
            return Ok(found);
        }
    }
}
