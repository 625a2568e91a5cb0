//! Workloads that use the engine through the public API.

pub(crate) mod agents;
pub(crate) mod cancel_latency;
pub(crate) mod claim_latency;
pub(crate) mod contracts;
pub(crate) mod fairness;
pub(crate) mod fanout;
pub(crate) mod lanes;
pub(crate) mod machines;
pub(crate) mod reach;
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

use windlass::admin::Options;
use windlass::{Ctx, Engine, WorkflowRef};

use crate::backend::{Databases, OpenStore, Target};

/// The store of a second process of the same workload.
#[derive(clap::Args)]
pub(crate) struct StoreLocation {
    /// A SQLite file, or a PostgreSQL address with a schema.
    #[arg(long)]
    file: Option<PathBuf>,
    #[arg(long)]
    dsn: Option<String>,
    #[arg(long)]
    schema: Option<String>,
}

impl StoreLocation {
    pub(crate) async fn open(&self) -> anyhow::Result<OpenStore> {
        match (&self.file, &self.dsn, &self.schema) {
            (Some(file), ..) => OpenStore::file(file),
            (None, Some(dsn), Some(schema)) => OpenStore::schema(dsn, schema).await,
            _ => anyhow::bail!("set --file, or --dsn and --schema"),
        }
    }
}

impl Databases {
    /// The command for a second process of this program on one of the stores.
    pub(crate) fn process_command(&self, workload: &str, name: &str) -> anyhow::Result<Command> {
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

/// Starts an engine on an open store.
pub(crate) async fn engine(opened: &OpenStore, options: Options) -> anyhow::Result<Engine> {
    let options = Options { shared: matches!(opened, OpenStore::Postgres(_)), ..options };
    Ok(windlass::Builder::from(options).start(opened.store()).await?)
}

/// Opens a new store and starts an engine on it.
pub(crate) async fn fresh(
    target: &Target,
    options: Options,
) -> anyhow::Result<(Databases, OpenStore, Engine)> {
    let place = Databases::new(target)?;
    let opened = place.open("engine").await?;
    let engine = engine(&opened, options).await?;
    Ok((place, opened, engine))
}

/// The workflow of the load: a few steps that each return a small value.
pub(crate) fn few_steps(engine: &Engine, steps: usize) -> anyhow::Result<WorkflowRef<u64, u64>> {
    let keys: Arc<Vec<String>> = Arc::new((0..steps).map(|n| format!("step-{n}")).collect());
    let workflow = move |ctx: Ctx, n: u64| {
        let keys = Arc::clone(&keys);
        async move {
            let mut sum = n;
            for key in keys.iter() {
                let add = async || Ok(1_u64);
                sum += ctx.step(key, add).await?;
            }
            Ok(sum)
        }
    };
    Ok(engine.workflow("load", workflow)?)
}

/// The resident memory of this process in megabytes.
pub(crate) fn rss_mb() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 =
        statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * 4096.0 / 1e6
}
