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
    if arguments.flag("dryRun") {
        return preview_decision(inner, &arguments).await;
    }
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

/// Says what a decision would change now. Nothing is written.
async fn preview_decision(inner: &Inner, arguments: &Arguments<'_>) -> Answer {
    let request = inner.get(&["inbox", arguments.text("request")], &Query::new()).await?;
    let (status, choice) =
        (request["status"].as_str().unwrap_or_default(), arguments.text("choice"));
    let choices = request["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let verdict = choices.iter().find(|known| known["name"] == choice);
    let verdict = verdict.and_then(|known| known["verdict"].as_str());
    let seen = arguments.optional("about");
    let refused = if status != "open" {
        Some(format!("nothing: the request is {status}"))
    } else if seen.is_some_and(|seen| request["about"]["digest"] != seen) {
        Some("nothing: the request is about something else by now; read it again".to_owned())
    } else if verdict.is_none() {
        let names: Vec<&str> = choices.iter().filter_map(|known| known["name"].as_str()).collect();
        Some(format!("nothing: the request has no such choice; use {}", names.join(" or ")))
    } else {
        None
    };
    let accepted = refused.is_none();
    let count = |name: &str| request[name].as_u64().unwrap_or_default();
    let effect = refused.unwrap_or_else(|| match verdict {
        Some("approve") => format!(
            "the decision counts as approval {} of {}, if the person may decide and the answer fits the schema",
            count("approvals") + 1,
            count("quorum"),
        ),
        _ => "the decision counts as a rejection, if the person may decide and the answer fits the schema".to_owned(),
    });
    Ok(json!({
        "dryRun": true,
        "accepted": accepted,
        "effect": effect,
        "request": { "id": request["id"], "title": request["title"], "status": status },
    }))
}
