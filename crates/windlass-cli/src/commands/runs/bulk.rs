//! One action on all runs that a filter takes, with a count before it is done.

use std::io::IsTerminal as _;

use serde_json::{Value, json};

use crate::args::{BulkArgs, Named, RunRef};
use crate::commands::{Api, labels_of};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{ask, cell, note};

/// The most runs that the server takes in one call, and what it takes if nothing is said.
const TAKEN_MAX: u32 = 1_000;

pub(super) async fn run(
    api: Api,
    action: &str,
    run: &RunRef,
    bulk: &BulkArgs,
    reason: Option<&str>,
) -> Outcome {
    let workflow = match run.named().map_err(Failure::usage)? {
        Named::Nothing => None,
        Named::Workflow(workflow) | Named::Word(workflow) => Some(workflow),
        Named::Run { .. } => {
            return Err(Failure::usage("--all is for many runs, and one run is named"));
        }
    };
    let mut body = json!({ "action": action, "dryRun": bulk.dry_run });
    body["filter"] = filter(workflow, bulk);
    if !bulk.dry_run && !bulk.yes && body["filter"] == json!({}) {
        confirm(&api, action).await?;
    }
    if let Some(limit) = bulk.limit {
        body["limit"] = limit.into();
    }
    if let Some(reason) = reason {
        body["reason"] = reason.into();
    }
    let answer = api.client.post(&["runs", "bulk"], &body).await?;
    let failed = answer["failed"].as_array().cloned().unwrap_or_default();
    let exit = if failed.is_empty() { Exit::Ok } else { Exit::Error };
    if !api.out.is_text() {
        api.out.value(&answer)?;
        return Ok(exit);
    }
    let (matched, more) = (cell(&answer, "matched"), answer["more"] == true);
    let runs = if matched == "1" { "run matches" } else { "runs match" };
    match bulk.dry_run {
        true => {
            let least = if more { "at least " } else { "" };
            api.out.line(&format!("{action}: {least}{matched} {runs}, nothing was done"))?;
        }
        false if matched == "0" => api.out.line(&format!("{action}: no run matches"))?,
        false => {
            let done = cell(&answer, "done");
            api.out.line(&format!("{action}: {done} of {matched} runs that match"))?;
        }
    }
    for row in &failed {
        let (workflow, id) = (cell(row, "workflowName"), cell(row, "id"));
        note(&format!("{workflow}/{id}: {} [{}]", cell(row, "message"), cell(row, "code")));
    }
    if more {
        let taken = bulk.limit.unwrap_or(TAKEN_MAX);
        let raise = if taken < TAKEN_MAX { ", or raise --limit" } else { "" };
        note(&match bulk.dry_run {
            true => format!("more than {taken} match; one call takes no more{raise}"),
            false => format!("more match than the {taken} that were taken: say it again{raise}"),
        });
    }
    Ok(exit)
}

// Nothing says which runs are meant: a filter may have been forgotten.
async fn confirm(api: &Api, action: &str) -> Result<(), Failure> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let message = format!("--all without a filter would {action} every run there is");
        let hint = "say which with --workflow, --status, --label or --created-…, or say --yes";
        return Err(Failure::usage(message).with_hint(hint));
    }
    let count = json!({ "action": action, "dryRun": true, "filter": {} });
    let counted = api.client.post(&["runs", "bulk"], &count).await?;
    let least = if counted["more"] == true { "at least " } else { "" };
    let matched = cell(&counted, "matched");
    ask(&format!("{action} every run, {least}{matched} of them? [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        true => Ok(()),
        false => Err(Failure::error("nothing was done")),
    }
}

fn filter(workflow: Option<String>, bulk: &BulkArgs) -> Value {
    let mut filter = json!({});
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            filter[key] = value;
        }
    };
    set("workflow", workflow.map(Value::from));
    set("status", bulk.filter.status.map(|status| status.as_str().into()));
    set("labels", (!bulk.filter.labels.is_empty()).then(|| labels_of(&bulk.filter.labels)));
    set("createdFrom", bulk.filter.created_from.clone().map(Value::from));
    set("createdBefore", bulk.filter.created_before.clone().map(Value::from));
    filter
}

/// A filter without `--all` would be accepted and ignored.
pub(super) fn refuse_filters(bulk: &BulkArgs, action: &str) -> Result<(), Failure> {
    let filter = &bulk.filter;
    let given = filter.status.is_some()
        || !filter.labels.is_empty()
        || filter.created_from.is_some()
        || filter.created_before.is_some();
    if !given {
        return Ok(());
    }
    let message = "--status, --label, --created-from and --created-before need --all";
    let hint = format!("see first what it takes: windlass runs {action} --all … --dry-run");
    Err(Failure::usage(message).with_hint(hint))
}
