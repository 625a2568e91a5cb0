//! Duroxide: an orchestration of three activities on its SQLite provider.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use duroxide::providers::sqlite::SqliteProvider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{ObservabilityConfig, Runtime, RuntimeOptions};
use duroxide::{
    ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus,
};
use peers_load::{Args, Peer, STEPS, TIME_LIMIT};
use sqlx::Sqlite;
use sqlx::pool::PoolConnection;

/// The size of the provider's pool, which is not configurable.
const CONNECTIONS: usize = 5;

fn main() -> anyhow::Result<()> {
    let args = Args::read();
    peers_load::block_on(async {
        let (store, _kept) = open(Path::new(args.place())).await?;
        let store = Arc::new(store);
        let activities = ActivityRegistry::builder()
            .register("add", |_: ActivityContext, sum: String| async move {
                let sum: u64 = sum.parse().map_err(|error| format!("{sum}: {error}"))?;
                Ok((sum + 1).to_string())
            })
            .build();
        let orchestrations = OrchestrationRegistry::builder()
            .register("load", |ctx: OrchestrationContext, n: String| async move {
                let mut sum = n;
                for _ in 0..STEPS {
                    sum = ctx.schedule_activity("add", sum).await?;
                }
                Ok(sum)
            })
            .build();
        let options = RuntimeOptions {
            // The values of the example in its documentation. With the defaults, an idle dispatcher
            // sleeps for 100 ms.
            orchestration_concurrency: 4,
            worker_concurrency: 8,
            dispatcher_min_poll_interval: Duration::from_millis(25),
            observability: ObservabilityConfig {
                // Its log goes to standard output, which must contain only the figures.
                log_level: "error".to_owned(),
                ..ObservabilityConfig::default()
            },
            ..RuntimeOptions::default()
        };
        let runtime =
            Runtime::start_with_options(store.clone(), activities, orchestrations, options).await;
        let result = peers_load::measure(&args, Duroxide(Client::new(store))).await;
        runtime.shutdown(None).await;
        result
    })
}

/// Opens the provider in an empty directory. The caller must keep the returned connections.
///
/// The provider sets `synchronous = WAL`, which SQLite does not know and treats as NORMAL, so that
/// a commit is not durable when it returns. Therefore this sets FULL on each connection. It also
/// withholds all connections except one from the provider: with more, its writers get `database is
/// locked`, back off, and sometimes fail a run.
async fn open(directory: &Path) -> anyhow::Result<(SqliteProvider, Vec<PoolConnection<Sqlite>>)> {
    let file = directory.join("duroxide.db");
    let url = format!("sqlite:{}?mode=rwc", file.display());
    let store = SqliteProvider::new(&url, None).await?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = store.get_pool().acquire().await?;
        sqlx::query("PRAGMA synchronous = FULL").execute(&mut *connection).await?;
        connections.push(connection);
    }
    connections.pop();
    Ok((store, connections))
}

struct Duroxide(Client);

impl Peer for Duroxide {
    async fn run(&self, n: u64) -> anyhow::Result<u64> {
        let id = format!("run-{n}");
        let fails = |error| anyhow!("{error:?}");
        self.0.start_orchestration(&id, "load", n.to_string()).await.map_err(fails)?;
        match self.0.wait_for_orchestration(&id, TIME_LIMIT).await.map_err(fails)? {
            OrchestrationStatus::Completed { output, .. } => {
                output.parse().context("the output is not a number")
            }
            other => bail!("{other:?}"),
        }
    }
}
