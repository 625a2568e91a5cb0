//! Everruns: a workflow of three tasks on PostgreSQL. Its workers advance it as in its own
//! benchmark.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use everruns_durable::prelude::*;
use peers_load::{Args, Peer, STEPS};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

/// The number of workers; each is a loop that claims and completes tasks.
const WORKERS: usize = 16;
/// The number of tasks of one claim.
const CLAIM: usize = 4;
const CONNECTIONS: u32 = 40;
/// How long an idle worker waits before the next claim: the minimum of its worker pool.
const IDLE: Duration = Duration::from_millis(10);
const ACTIVITY: &str = "add";

fn main() -> anyhow::Result<()> {
    let args = Args::read();
    peers_load::block_on(async {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(args.place()).await?;
        PostgresWorkflowEventStore::migrate(&pool).await?;
        let store = PostgresWorkflowEventStore::new(pool);
        let everruns = Everruns(Arc::new(Shared {
            store,
            enqueued: Notify::new(),
            waiting: Mutex::default(),
        }));
        for number in 0..WORKERS {
            let name = format!("worker-{number}");
            let info = WorkerInfo::new(name.clone(), [ACTIVITY.to_owned()]);
            everruns.0.store.register_worker(info).await?;
            let shared = Arc::clone(&everruns.0);
            tokio::spawn(async move {
                if let Err(error) = work(&shared, &name).await {
                    eprintln!("{name} failed: {error:#}");
                }
            });
        }
        peers_load::measure(&args, everruns).await
    })
}

struct Shared {
    store: PostgresWorkflowEventStore,
    /// Wakes a worker of this process. The crate has no such notification, and without it the
    /// benchmark would measure only the waits of idle workers.
    enqueued: Notify,
    /// The callers by workflow. The crate has no API to wait for a result.
    waiting: Mutex<HashMap<Uuid, oneshot::Sender<u64>>>,
}

impl Shared {
    async fn enqueue(&self, workflow: Uuid, step: u64, sum: u64) -> anyhow::Result<()> {
        self.store
            .enqueue_task(TaskDefinition {
                workflow_id: Some(workflow),
                activity_id: format!("step-{step}"),
                activity_type: ACTIVITY.to_owned(),
                input: json!({ "step": step, "sum": sum }),
                options: ActivityOptions::default(),
            })
            .await?;
        self.enqueued.notify_one();
        Ok(())
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, oneshot::Sender<u64>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn work(shared: &Shared, name: &str) -> anyhow::Result<()> {
    let types = [ACTIVITY.to_owned()];
    loop {
        let tasks = shared.store.claim_task(name, &types, CLAIM).await?;
        if tasks.is_empty() {
            // A timeout and a notification are handled the same way.
            let _ = tokio::time::timeout(IDLE, shared.enqueued.notified()).await;
        }
        for task in tasks {
            advance(shared, name, &task).await?;
        }
    }
}

/// Completes a task, and starts the next one or ends the workflow.
async fn advance(shared: &Shared, name: &str, task: &ClaimedTask) -> anyhow::Result<()> {
    let workflow = task.workflow_id.context("a task without a workflow")?;
    let field = |field: &str| task.input[field].as_u64().context("a task without its input");
    let (step, sum) = (field("step")?, field("sum")? + 1);
    shared.store.complete_task(task.id, name, json!(sum)).await?;
    if step + 1 < STEPS {
        return shared.enqueue(workflow, step + 1, sum).await;
    }
    let result: Option<Value> = Some(json!(sum));
    shared.store.update_workflow_status(workflow, WorkflowStatus::Completed, result, None).await?;
    let caller = shared.waiting().remove(&workflow);
    // An error means that the caller timed out, which it reports itself.
    let _ = caller.map(|caller| caller.send(sum));
    Ok(())
}

struct Everruns(Arc<Shared>);

impl Peer for Everruns {
    async fn run(&self, n: u64) -> anyhow::Result<u64> {
        let (sender, receiver) = oneshot::channel();
        let workflow = Uuid::now_v7();
        self.0.waiting().insert(workflow, sender);
        self.0.store.create_workflow(workflow, "load", json!(n), None).await?;
        self.0.enqueue(workflow, 0, n).await?;
        receiver.await.context("the worker dropped the result")
    }
}
