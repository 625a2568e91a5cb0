//! The kernel by hand: creates a run, records two steps, ends it, reads its ledger, verifies it.
//!
//!     cargo run -p windlass --example ledger                       # in memory
//!     cargo run -p windlass --example ledger -- sqlite://demo.db   # twice: the run is there
//!
//! The engine will do this for you; here you see what it writes.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use windlass::admin::verify_one;
use windlass::kernel::inspect::load_events;
use windlass::kernel::ledger::run_events::WORKFLOW_COMPLETED;
use windlass::kernel::{
    Body, Draft, End, EventId, EventType, ModelName, Namespace, NewRun, OnExisting, Run, RunId,
    RunKey, Stamp, Step, StepKey, StepKind, StepStatus, Timestamp, Turn, WorkerKey, WorkflowName,
};
use windlass::{Error, ErrorCode, Store};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    print!("{}", run(&address).await?);
    Ok(())
}

/// Does what the example shows, and says what came of it.
pub(crate) async fn run(address: &str) -> Result<String, Error> {
    let store = windlass::admin::open_store(address).await?;
    let now = store.now().await?;
    let worker = WorkerKey(key(now));

    // Create the run with its turn already held, so that nobody else can claim it meanwhile.
    let create = Draft::create(order(now, worker)?, OnExisting::Return, stamp(now))?.finish();
    let created = only(store.commit(vec![create]).await)?;
    let run_key = created.run_key.expect("a create names its run");
    let mut run = load(&*store, run_key).await?;

    if let Some(hold) = created.hold {
        for (name, result) in [("charge", "\"ch_1\""), ("ship", "\"parcel 7\"")] {
            let mut draft = Draft::held(&run, hold, now);
            let payload = json!({ "key": name });
            draft.step(
                EventType::from_static("step.completed"),
                &payload,
                step(&run, name, result, now)?,
                stamp(now),
            )?;
            let commit = draft.finish();
            let change = commit.run_change().expect("a turn changes its run").clone();
            only(store.commit(vec![commit]).await)?;
            change.apply_to(&mut run);
        }
        let mut draft = Draft::held(&run, hold, now);
        let end = End::Complete(Body::of("shipped")?);
        draft.end(WORKFLOW_COMPLETED, &json!({}), end, stamp(now))?;
        only(store.commit(vec![draft.finish()]).await)?;
    }

    let mut text = String::new();
    for record in load_events(&*store, run_key).await? {
        let event = record.event;
        text += &format!("#{} {} {}\n", event.ordinal, event.event_type, event.hash);
    }
    let report = verify_one(&*store, run_key, &[]).await?;
    let run = load(&*store, run_key).await?;
    text += &format!("run {} is {}; {} flaws\n", run.id, run.status, report.flaws.len());
    store.close().await?;
    Ok(text)
}

fn order(now: Timestamp, worker: WorkerKey) -> Result<NewRun, Error> {
    Ok(NewRun {
        run_key: RunKey(key(now)),
        namespace: Namespace::default_namespace(),
        workflow: WorkflowName::new("order")?,
        model: ModelName::new("steps")?,
        id: RunId::new("order-A-42")?,
        generation: 0,
        input: Body::of(&json!({ "sku": "A-42" }))?,
        parent: None,
        fork: None,
        labels: [("customer".to_owned(), "ann".to_owned())].into(),
        trace: None,
        headers: None,
        on_end: None,
        deadline_at: None,
        turn: Turn::held_by(worker),
        caused_by: None,
    })
}

fn step(run: &Run, name: &str, result: &str, now: Timestamp) -> Result<Step, Error> {
    Ok(Step {
        run_key: run.run_key,
        step_key: StepKey::new(name)?,
        name: name.into(),
        kind: StepKind::from_static("do"),
        status: StepStatus::Completed,
        position: run.head.next_ordinal,
        attempt: 1,
        attempts_max: Some(6),
        input: None,
        result: Some(Body::json(result.to_owned())),
        error: None,
        timeout: None,
        due_at: None,
        wait_for: None,
        created_at: now,
        updated_at: now,
    })
}

async fn load(store: &dyn Store, run_key: RunKey) -> Result<Run, Error> {
    let loaded = store.load(vec![run_key]).await?.pop();
    Ok(loaded.expect("a run that was committed is there").run)
}

fn only<T, E: std::fmt::Display>(mut answers: Vec<Result<T, E>>) -> Result<T, Error> {
    let answer = answers.pop().expect("one answer a commit");
    answer.map_err(|error| {
        Error::new(
            windlass::ErrorKind::Conflict,
            ErrorCode::Custom("EXAMPLE_CONFLICT"),
            error.to_string(),
        )
    })
}

fn stamp(now: Timestamp) -> Stamp {
    Stamp { event_id: EventId(key(now)), at: now }
}

// A UUIDv7 of a given time: an engine takes the other bits from its environment.
fn key(now: Timestamp) -> uuid::Uuid {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut bits = [0; 10];
    bits[2..].copy_from_slice(&(count | u64::from(std::process::id()) << 24).to_be_bytes());
    uuid::Builder::from_unix_timestamp_millis(now.as_millis() as u64, &bits).into_uuid()
}
