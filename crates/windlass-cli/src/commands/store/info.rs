//! `windlass info`: the version, clock and contents of a store.

use serde_json::{Value, json};
use windlass::kernel::{Capped, Health, QueueHealth, RunCount};

use super::open_read_only;
use crate::args::InspectArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, sanitize};

pub(crate) async fn info(args: InspectArgs) -> Outcome {
    let opened = open_read_only(&args.store).await?;
    let health = opened.store.health().await?;
    opened.store.close().await?;
    let (out, shown) = (Out::new(args.output.output), opened.display());
    match out.is_text() {
        true => print(out, &shown, &health)?,
        false => out.value(&document(&shown, &health))?,
    }
    Ok(Exit::Ok)
}

fn print(out: Out, store: &str, health: &Health) -> Result<(), Failure> {
    let line = |name: &str, text: String| {
        out.line(&format!("{} {}", out.dim(&format!("{name:<8}")), sanitize(&text)))
    };
    out.line(&out.bold(&format!("windlass {}", env!("CARGO_PKG_VERSION"))))?;
    line("store", store.to_owned())?;
    line("clock", health.now.to_string())?;
    if health.runs.is_empty() {
        line("runs", "none yet".to_owned())?;
    }
    for row in &health.runs {
        let RunCount { namespace, workflow, status, count, .. } = row;
        line("runs", format!("{count} {namespace}/{workflow} {status}"))?;
    }
    for (name, queue) in [("turns", &health.turns), ("tasks", &health.tasks)] {
        let QueueHealth { ready, held, scheduled, .. } = queue;
        line(name, format!("{ready} ready, {held} held, {scheduled} scheduled"))?;
    }
    line("letters", format!("{} dead", health.dead_letters))?;
    line("workers", format!("{} live", health.workers_live))
}

// Same shape as capped counts in the HTTP API.
fn count(capped: Capped) -> Value {
    json!({ "count": capped.count, "more": capped.more })
}

fn document(store: &str, health: &Health) -> Value {
    let queue = |queue: &QueueHealth| {
        json!({
            "ready": count(queue.ready),
            "held": count(queue.held),
            "scheduled": count(queue.scheduled),
        })
    };
    let run = |row: &RunCount| {
        json!({
            "namespace": row.namespace.as_str(),
            "workflow": row.workflow.as_str(),
            "status": row.status.as_str(),
            "count": row.count,
        })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "store": store,
        "now": health.now.to_string(),
        "runs": health.runs.iter().map(run).collect::<Vec<_>>(),
        "turns": queue(&health.turns),
        "tasks": queue(&health.tasks),
        "deadLetters": count(health.dead_letters),
        "workersLive": health.workers_live,
    })
}
