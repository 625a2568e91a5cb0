//! A sample of finished runs: every status, every kind of row, bodies of every size.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_kernel::{
    Body, BoxFuture, Draft, End, Hold, Limits, LogId, LogLevel, LogLine, OnExisting, Run, StepKey,
    StepStatus, Store, Turn,
};

use crate::events;
use crate::world::{Dialect, Subject, World};

/// A store that is only written to and read.
struct Plain(Arc<dyn Store>);

impl Subject for Plain {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    fn advance(&self, _by: Duration) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn dialect(&self) -> Option<Dialect> {
        None
    }

    fn raw_sql(&self, _sql: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Err("there is no prompt".to_owned())))
    }
}

/// Short words for a store that is only written to and read.
pub(super) async fn world(store: Arc<dyn Store>) -> World {
    World::new(Box::new(Plain(store))).await
}

/// Writes so many finished runs.
pub async fn write_sample(store: Arc<dyn Store>, runs: usize) {
    let world = world(store).await;
    for n in 0..runs {
        write_run(&world, n).await;
    }
}

async fn write_run(world: &World, n: usize) {
    let worker = world.worker();
    let mut new = world.new_run(&format!("sample-{n}"), Turn::held_by(worker));
    // Every seventh input fills pages of its own.
    let size = if n.is_multiple_of(7) { 9_000 } else { 20 + n };
    new.input = Body::json(format!("\"{}\"", "input ".repeat(size / 6)));
    if n.is_multiple_of(2) {
        new.labels = [("tier", "gold"), ("region", "eu")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    }
    let hold = Hold { worker, claim_no: new.turn.claim_no };
    let run_key = new.run_key;
    world.ok(world.create_commit(new, OnExisting::Refuse)).await;
    if n.is_multiple_of(3) {
        consume(world, run_key, hold).await;
    }
    for step in 0..3 {
        write_step(world, &world.run(run_key).await, hold, n, step).await;
    }
    end(world, &world.run(run_key).await, hold, n).await;
}

// A message that is consumed, and one that never is.
async fn consume(world: &World, run_key: windlass_kernel::RunKey, hold: Hold) {
    for id in ["read", "unread"] {
        world.ok(world.send_commit(world.message(run_key, id))).await;
    }
    let loaded = world.load(run_key).await;
    let mut draft = world.draft(&loaded.run, hold);
    let by = StepKey::new("wait").unwrap();
    let message = &loaded.messages[0];
    draft
        .consume(events::MESSAGE_CONSUMED, &json!({ "seq": 1 }), message, by, world.stamp())
        .unwrap();
    world.ok(draft.finish()).await;
}

async fn write_step(world: &World, run: &Run, hold: Hold, n: usize, number: usize) {
    let key = format!("step-{number}");
    let mut draft = world.draft(run, hold);
    let fails = (n + number).is_multiple_of(5);
    let status = if fails { StepStatus::Errored } else { StepStatus::Completed };
    let result = format!("\"{}\"", "result ".repeat(if n == 11 { 1_000 } else { number + 1 }));
    let mut step = world.step(run, &key, status, (!fails).then_some(&*result));
    step.input = Some(Body::bytes(vec![n as u8; 10]));
    step.error = fails.then(|| Body::json(r#"{"name":"CardDeclined","message":"try another"}"#));
    let word = if fails { events::STEP_FAILED } else { events::STEP_COMPLETED };
    draft.step(word, &json!({ "key": key }), step, world.stamp()).unwrap();
    if number == 1 {
        draft.log(line(world, run, &key));
        let payload = json!({ "ticket": n, "class": "billing" });
        let stamp = world.stamp();
        draft.record_event("ticket.classified", 2, &payload, stamp, &Limits::DEFAULT).unwrap();
    }
    world.ok(draft.finish()).await;
}

fn line(world: &World, run: &Run, key: &str) -> LogLine {
    LogLine {
        log_id: LogId(world.key()),
        run_key: run.run_key,
        step_key: Some(StepKey::new(key).unwrap()),
        attempt: Some(1),
        level: LogLevel::Info,
        category: "user".into(),
        message: "the card was charged".into(),
        data: Some(Body::json(r#"{"amount":4250}"#)),
        replay: false,
        created_at: run.created_at,
    }
}

async fn end(world: &World, run: &Run, hold: Hold, n: usize) {
    let mut draft: Draft = world.draft(run, hold);
    let (word, end) = match n % 4 {
        1 => (events::WORKFLOW_FAILED, End::Errored(Body::json(r#"{"name":"OutOfStock"}"#))),
        2 => {
            let reason = n.is_multiple_of(8).then(|| Body::json("\"asked for\""));
            (events::WORKFLOW_TERMINATED, End::Terminated(reason))
        }
        _ => {
            (events::WORKFLOW_COMPLETED, End::Complete(Body::json(format!("{{\"shipped\":{n}}}"))))
        }
    };
    draft.end(word, &json!({}), end, world.stamp()).unwrap();
    world.ok(draft.finish()).await;
}
