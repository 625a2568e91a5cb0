//! Underway: a job of three steps on PostgreSQL.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use peers_load::{Args, Peer};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::oneshot;
use underway::job::Context;
use underway::{Job, To};

/// The number of concurrent tasks of the worker. The default, the number of cores, leaves them
/// waiting for the disk; with more than this, claims block each other.
const CONCURRENCY: usize = 16;
/// A task uses two connections (its own transaction, and the claim of the next task), and the
/// callers need some.
const CONNECTIONS: u32 = 48;

fn main() -> anyhow::Result<()> {
    let args = Args::read();
    peers_load::block_on(async {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(args.place()).await?;
        underway::run_migrations(&pool).await?;
        let waiting = Callers::default();
        let mut worker = job(pool.clone(), waiting.clone()).await?.worker();
        worker.set_concurrency_limit(CONCURRENCY);
        tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker failed: {error}");
            }
        });
        // A running job stores its current step where `enqueue` reads the first step, so callers
        // need their own job.
        let jobs = job(pool, waiting.clone()).await?;
        peers_load::measure(&args, Underway { jobs, waiting }).await
    })
}

/// The state that is passed between steps.
#[derive(Serialize, Deserialize)]
struct Sum {
    n: u64,
    sum: u64,
}

/// The callers by run number. Underway has no API to wait for a result, so the last step sends it
/// to its caller.
#[derive(Clone, Default)]
struct Callers(Arc<Mutex<HashMap<u64, oneshot::Sender<u64>>>>);

impl Callers {
    fn add(&self, n: u64) -> oneshot::Receiver<u64> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(n, sender);
        receiver
    }

    fn send(&self, Sum { n, sum }: &Sum) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(n);
        // An error means that the caller timed out, which it reports itself.
        let _ = sender.map(|sender| sender.send(*sum));
    }
}

async fn job(pool: PgPool, waiting: Callers) -> anyhow::Result<Job<Sum, Callers>> {
    let add = |Sum { n, sum }: Sum| Sum { n, sum: sum + 1 };
    let job = Job::builder()
        .state(waiting)
        .step(move |_: Context<Callers>, sum: Sum| async move { To::next(add(sum)) })
        .step(move |_, sum| async move { To::next(add(sum)) })
        .step(move |context, sum| async move {
            context.state.send(&add(sum));
            To::done()
        })
        .name("load")
        .pool(pool)
        .build()
        .await?;
    Ok(job)
}

struct Underway {
    jobs: Job<Sum, Callers>,
    waiting: Callers,
}

impl Peer for Underway {
    async fn run(&self, n: u64) -> anyhow::Result<u64> {
        let result = self.waiting.add(n);
        self.jobs.enqueue(&Sum { n, sum: n }).await?;
        result.await.context("the worker dropped the result")
    }
}
