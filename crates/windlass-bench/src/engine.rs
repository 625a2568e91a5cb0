//! Workloads that go through the engine and `steps`, as a user's program does.

pub(crate) mod claim_latency;
pub(crate) mod fanout;
pub(crate) mod machines;
pub(crate) mod recover;
pub(crate) mod relays;
pub(crate) mod sequential;
pub(crate) mod sleeping;
pub(crate) mod steps;
pub(crate) mod tasks;
pub(crate) mod waits;
pub(crate) mod workers_1000;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use windlass::{BoxError, Ctx, Engine, Options, WorkflowRef};

use crate::backend::{Opened, Place, Target};

/// The store of another process of the same workload.
#[derive(clap::Args)]
pub(crate) struct Elsewhere {
    /// A file, or an address with a schema.
    #[arg(long)]
    file: Option<PathBuf>,
    #[arg(long)]
    dsn: Option<String>,
    #[arg(long)]
    schema: Option<String>,
}

impl Elsewhere {
    /// Opens it.
    pub(crate) async fn open(&self) -> anyhow::Result<Opened> {
        match (&self.file, &self.dsn, &self.schema) {
            (Some(file), ..) => Opened::file(file),
            (None, Some(dsn), Some(schema)) => Opened::schema(dsn, schema).await,
            _ => anyhow::bail!("say --file, or --dsn and --schema"),
        }
    }
}

impl Place {
    /// A second process of this program with one of its stores.
    pub(crate) fn elsewhere(&self, workload: &str, name: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(workload);
        match self {
            Self::Postgres { dsn, .. } => {
                command.args(["--dsn", dsn, "--schema", &self.schema(name)?]);
            }
            _ => {
                command.arg("--file").arg(self.file(name)?);
            }
        }
        Ok(command)
    }
}

/// An engine on an open store.
pub(crate) async fn engine(opened: &Opened, options: Options) -> anyhow::Result<Engine> {
    let options = Options { shared: matches!(opened, Opened::Postgres(_)), ..options };
    Ok(Engine::builder().options(options).start(opened.store()).await?)
}

/// Opens a fresh store and an engine on it.
pub(crate) async fn fresh(
    target: &Target,
    options: Options,
) -> anyhow::Result<(Place, Opened, Engine)> {
    let place = Place::new(target)?;
    let opened = place.open("engine").await?;
    let engine = engine(&opened, options).await?;
    Ok((place, opened, engine))
}

/// The workflow of the load: a few steps that give a small value each.
pub(crate) fn few_steps(engine: &Engine, steps: usize) -> anyhow::Result<WorkflowRef<u64, u64>> {
    let keys: Arc<Vec<String>> = Arc::new((0..steps).map(|n| format!("step-{n}")).collect());
    let workflow = move |ctx: Ctx, n: u64| {
        let keys = Arc::clone(&keys);
        async move {
            let mut sum = n;
            for key in keys.iter() {
                let add = async || Ok::<_, BoxError>(1_u64);
                sum += ctx.step(key, add).await?;
            }
            Ok::<_, BoxError>(sum)
        }
    };
    Ok(engine.workflow("load", workflow)?)
}

/// How many megabytes of memory this process has.
pub(crate) fn rss_mb() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 =
        statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * 4096.0 / 1e6
}
