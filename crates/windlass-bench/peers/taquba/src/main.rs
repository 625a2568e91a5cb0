//! Taquba: a run of three steps on the local file system, with fsync enabled. With
//! `PEERS_UNSYNCED`, fsync stays disabled, which is its default.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use peers_load::{Args, Peer, STEPS};
use taquba::object_store::local::LocalFileSystem;
use taquba::{OpenOptions, Queue};
use taquba_workflow::{
    NoopTerminalHook, RunId, RunSpec, Step, StepError, StepOutcome, StepRunner, TerminalStatus,
    WorkflowRuntime,
};

/// How long commits wait to share an fsync. The default of 100 ms is for network object stores; on
/// a disk the benchmark would measure only this wait.
const FLUSH: Duration = Duration::from_millis(1);
/// The maximum number of concurrent steps. Each waits for a flush, so this is also the number of
/// steps that can share one. The default is 16.
const STEPS_MAX: usize = 512;

fn main() -> anyhow::Result<()> {
    let args = Args::read();
    peers_load::block_on(async {
        let synced = std::env::var_os("PEERS_UNSYNCED").is_none();
        let store = Arc::new(LocalFileSystem::new_with_prefix(args.place())?.with_fsync(synced));
        let options = OpenOptions::default().flush_interval(FLUSH);
        let queue = Queue::open_with_options(store.clone(), "load", options).await?;
        let runtime = WorkflowRuntime::builder(Arc::new(queue), store, Adds, NoopTerminalHook)
            .max_concurrent_steps(STEPS_MAX)
            .build()?;
        let worker = runtime.spawn(std::future::pending());
        let result = peers_load::measure(&args, Taquba(runtime)).await;
        worker.shutdown().await?;
        result
    })
}

/// A step adds one to its payload.
struct Adds;

impl StepRunner for Adds {
    async fn run_step(&self, step: &Step) -> Result<StepOutcome, StepError> {
        let sum = number(&step.payload).map_err(|error| StepError::permanent(error.to_string()))?;
        let sum = (sum + 1).to_string().into_bytes();
        Ok(if u64::from(step.step_number) + 1 < STEPS {
            StepOutcome::continue_now(sum)
        } else {
            StepOutcome::Succeed { result: sum }
        })
    }
}

fn number(payload: &[u8]) -> anyhow::Result<u64> {
    Ok(std::str::from_utf8(payload)?.parse()?)
}

struct Taquba(WorkflowRuntime<Adds, NoopTerminalHook>);

impl Peer for Taquba {
    async fn run(&self, n: u64) -> anyhow::Result<u64> {
        let run_id = RunId::new(format!("run-{n}"))?;
        let input = n.to_string().into_bytes();
        let spec = RunSpec { run_id: Some(run_id.clone()), input, ..RunSpec::default() };
        self.0.submit(spec).await?;
        let outcome = self.0.wait(&run_id).await?.outcome.context("the run has no outcome")?;
        match (outcome.status, outcome.result) {
            (TerminalStatus::Succeeded, Some(result)) => number(&result),
            (status, _) => bail!("the run ended as {status:?}: {:?}", outcome.error),
        }
    }
}
