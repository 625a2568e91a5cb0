//! Tools that add something: runs, events and decisions.

use serde_json::{Value, json};

use super::super::arguments::Arguments;
use super::super::inner::{Inner, Query, Rejected};
use super::super::shape::shorten;
use super::read::of_run;

/// Values above this are left out of answers, in bytes.
const IN_ANSWER_MAX: usize = 2 * 1024;

type Answer = Result<Value, Rejected>;

pub(super) async fn start(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let workflow = arguments.text("workflow");
    let body = arguments.body(&[
        ("id", "id"),
        ("params", "params"),
        ("labels", "labels"),
        ("priority", "priority"),
        ("delayMs", "delayMs"),
        ("startAt", "startAt"),
    ]);
    let created = inner.post(&["workflows", workflow, "instances"], &body).await?;
    let id = created["id"].as_str().unwrap_or_default();
    let mut started =
        json!({ "workflow": workflow, "id": id, "status": created["details"]["status"] });
    // The run exists: a caller who may not read it, or a failed read, only misses its key.
    let read = inner.get(&["workflows", workflow, "instances", id], &Query::new()).await;
    if let Ok(mut run) = read {
        started["runKey"] = run["meta"]["runKey"].take();
    }
    Ok(started)
}

pub(super) async fn send_event(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let body = arguments.body(&[("type", "type"), ("payload", "payload"), ("eventId", "id")]);
    let mut sent = inner.post(&of_run(&arguments, &["events"]), &body).await?;
    shorten(&mut sent, IN_ANSWER_MAX);
    Ok(sent)
}

pub(super) async fn decide(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let body = arguments.body(&[
        ("choice", "choice"),
        ("answer", "answer"),
        ("comment", "comment"),
        ("about", "about"),
    ]);
    let path = ["inbox", arguments.text("request"), "decide"];
    let mut decided = inner.post(&path, &body).await?;
    shorten(&mut decided, IN_ANSWER_MAX);
    Ok(decided)
}
