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

/// How many tasks the worker has in hand at once. Its default is the number of cores, which leaves
/// them waiting for the disk; beyond this the claims get in each other's way.
const CONCURRENCY: usize = 16;
/// A task takes two connections at a time (it runs in one transaction while the next task is claimed
/// in another), and the callers need some.
const CONNECTIONS: u32 = 48;

fn main() -> anyhow::Result<()> {
    let args = Args::read();
    peers_load::block_on(async {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(args.place()).await?;
        underway::run_migrations(&pool).await?;
        let waiting = Waiting::default();
        let mut worker = job(pool.clone(), waiting.clone()).await?.worker();
        worker.set_concurrency_limit(CONCURRENCY);
        tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker has ended: {error}");
            }
        });
        // A job that works keeps the step it is at where `enqueue` takes the first step from, so
        // callers have one of their own.
        let jobs = job(pool, waiting.clone()).await?;
        peers_load::measure(&args, Underway { jobs, waiting }).await
    })
}

/// What goes from step to step: the number of the run, and the sum so far.
#[derive(Serialize, Deserialize)]
struct Sum {
    n: u64,
    sum: u64,
}

/// Callers by the number of their run. Underway has nothing to wait for a result with, so the last
/// step tells its caller.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<u64, oneshot::Sender<u64>>>>);

impl Waiting {
    fn add(&self, n: u64) -> oneshot::Receiver<u64> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(n, sender);
        receiver
    }

    fn tell(&self, Sum { n, sum }: &Sum) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(n);
        // A caller that has given up has said so itself.
        let _ = sender.map(|sender| sender.send(*sum));
    }
}

async fn job(pool: PgPool, waiting: Waiting) -> anyhow::Result<Job<Sum, Waiting>> {
    let add = |Sum { n, sum }: Sum| Sum { n, sum: sum + 1 };
    let job = Job::builder()
        .state(waiting)
        .step(move |_: Context<Waiting>, sum: Sum| async move { To::next(add(sum)) })
        .step(move |_, sum| async move { To::next(add(sum)) })
        .step(move |context, sum| async move {
            context.state.tell(&add(sum));
            To::done()
        })
        .name("load")
        .pool(pool)
        .build()
        .await?;
    Ok(job)
}

struct Underway {
    jobs: Job<Sum, Waiting>,
    waiting: Waiting,
}

impl Peer for Underway {
    async fn run(&self, n: u64) -> anyhow::Result<u64> {
        let result = self.waiting.add(n);
        self.jobs.enqueue(&Sum { n, sum: n }).await?;
        result.await.context("the last step went without a word")
    }
}
