//! Tools that read.

use axum::http::StatusCode;
use serde_json::{Value, json};
use windlass::ErrorCode;

use super::super::arguments::Arguments;
use super::super::inner::{Inner, Query, Rejected};
use super::super::pages;
use super::super::shape::{part, shorten};

/// Values above this are left out of lists, in bytes.
const IN_LIST_MAX: usize = 256;
/// Values above this are left out of one run.
const IN_RUN_MAX: usize = 2 * 1024;
/// Values above this are left out of one request to people, whose reader must see them.
const IN_REQUEST_MAX: usize = 16 * 1024;
const PART_BYTES: usize = 16 * 1024;

type Answer = Result<Value, Rejected>;

pub(super) async fn workflows(inner: &Inner) -> Answer {
    inner.get(&["workflows"], &Query::new()).await
}

pub(super) async fn runs(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let mut query = arguments.query(&[
        ("workflow", "workflow"),
        ("status", "status"),
        ("label", "label"),
        ("idPrefix", "idPrefix"),
        ("errorCode", "errorCode"),
        ("rootsOnly", "rootsOnly"),
        ("createdFrom", "createdFrom"),
        ("createdBefore", "createdBefore"),
        ("order", "order"),
        ("cursor", "cursor"),
    ]);
    query.push(("pageSize", arguments.size("pageSize", 20).to_string()));
    let mut page = inner.get(&["runs"], &query).await?;
    for run in page["runs"].as_array_mut().into_iter().flatten() {
        if let Some(details) = run["details"].as_object_mut() {
            details.remove("output");
        }
    }
    listed(page)
}

pub(super) async fn run(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let mut run = inner.get(&of_run(&arguments, &[]), &Query::new()).await?;
    shorten(&mut run, IN_RUN_MAX);
    Ok(run)
}

pub(super) async fn why(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let query = arguments.query(&[("runNumber", "runNumber")]);
    inner.get(&of_run(&arguments, &["why"]), &query).await
}

pub(super) async fn steps(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let mut query = arguments.query(&[("runNumber", "runNumber"), ("cursor", "cursor")]);
    query.push(("pageSize", arguments.size("pageSize", 50).to_string()));
    listed(inner.get(&of_run(&arguments, &["timeline"]), &query).await?)
}

pub(super) async fn ledger(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let names = [("runNumber", "runNumber"), ("scope", "scope"), ("cursor", "cursor")];
    let mut query = arguments.query(&names);
    query.push(("pageSize", arguments.size("pageSize", 25).to_string()));
    let mut page = inner.get(&of_run(&arguments, &["ledger"]), &query).await?;
    // The payload of an event is a summary already.
    shorten(&mut page, IN_RUN_MAX);
    listed(page)
}

pub(super) async fn body(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let of = arguments.text("of");
    let value = match of {
        "input" | "output" | "error" => {
            let mut run = inner.get(&of_run(&arguments, &[]), &Query::new()).await?;
            match of {
                "input" => run["meta"]["params"].take(),
                _ => run["details"][of].take(),
            }
        }
        _ => {
            let Some(key) = arguments.optional("stepKey") else {
                return Err(Rejected::invalid("the argument `stepKey` is missing"));
            };
            let query = arguments.query(&[("runNumber", "runNumber")]);
            let mut step = inner.get(&of_run(&arguments, &["steps", key]), &query).await?;
            match of {
                "stepInput" => step["input"].take(),
                "stepResult" => step["result"].take(),
                _ => step["errorBody"].take(),
            }
        }
    };
    Ok(part_of(&value.to_string(), &arguments))
}

pub(super) async fn inbox(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let names = [
        ("of", "of"),
        ("status", "status"),
        ("due", "due"),
        ("order", "order"),
        ("cursor", "cursor"),
    ];
    let mut query = arguments.query(&names);
    query.push(("limit", arguments.size("pageSize", 20).to_string()));
    listed(inner.get(&["inbox"], &query).await?)
}

pub(super) async fn request(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let mut request = inner.get(&["inbox", arguments.text("request")], &Query::new()).await?;
    shorten(&mut request, IN_REQUEST_MAX);
    Ok(request)
}

pub(super) async fn dead_letters(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let mut query = arguments.query(&[
        ("activityType", "activity_type"),
        ("queue", "queue"),
        ("runKey", "workflow_id"),
        ("cursor", "cursor"),
    ]);
    query.push(("limit", arguments.size("pageSize", 20).to_string()));
    listed(inner.get(&["durable", "dlq"], &query).await?)
}

pub(super) async fn search_docs(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    // The search itself is the work of this request.
    let _permit = inner.app.admit()?;
    Ok(json!({ "hits": pages::search(arguments.text("query"), arguments.size("limit", 5)) }))
}

pub(super) async fn read_doc(inner: &Inner, arguments: Arguments<'_>) -> Answer {
    let _permit = inner.app.admit()?;
    let name = arguments.text("page");
    let Some(text) = pages::page(name) else {
        let shown: String = name.chars().take(80).collect();
        let message = format!("unknown page {shown:?}; search_docs names the pages");
        return Err(Rejected::new(StatusCode::NOT_FOUND, ErrorCode::InvalidArgument, message));
    };
    let mut shown = part_of(text, &arguments);
    shown["page"] = name.into();
    Ok(shown)
}

/// The path of the run in the arguments.
pub(super) fn of_run<'a>(arguments: &Arguments<'a>, rest: &[&'a str]) -> Vec<&'a str> {
    let mut path = vec!["workflows", arguments.text("workflow"), "instances", arguments.text("id")];
    path.extend_from_slice(rest);
    path
}

fn part_of(text: &str, arguments: &Arguments<'_>) -> Value {
    part(text, arguments.size("offset", 0), arguments.size("length", PART_BYTES))
}

/// A page of a list. One name of the cursor is enough.
fn listed(mut page: Value) -> Answer {
    shorten(&mut page, IN_LIST_MAX);
    let members = page.as_object_mut();
    if let Some(members) = members
        && let Some(cursor) = members.remove("cursor")
        && !cursor.is_null()
    {
        members.insert("nextCursor".to_owned(), cursor);
    }
    Ok(page)
}
