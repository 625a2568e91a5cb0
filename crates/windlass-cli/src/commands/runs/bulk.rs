//! Applies one action to all runs that match a filter.

use std::io::IsTerminal as _;

use serde_json::{Value, json};

use crate::args::{BulkArgs, RunRef, RunTarget};
use crate::commands::{Api, labels_to_json};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{ask, cell, note};

/// The maximum, and the default, number of runs in one call to the server.
const BULK_MAX: u32 = 1_000;

pub(super) async fn run(
    api: Api,
    action: &str,
    run: &RunRef,
    bulk: &BulkArgs,
    reason: Option<&str>,
) -> Outcome {
    let workflow = match run.target().map_err(Failure::usage)? {
        RunTarget::Nothing => None,
        RunTarget::Workflow(workflow) | RunTarget::Word(workflow) => Some(workflow),
        RunTarget::Run { .. } => {
            return Err(Failure::usage("--all cannot be combined with a run"));
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
            api.out.line(&format!("{action}: {least}{matched} {runs}; no changes (dry run)"))?;
        }
        false if matched == "0" => api.out.line(&format!("{action}: no run matches"))?,
        false => {
            let done = cell(&answer, "done");
            api.out.line(&format!("{action}: done for {done} of {matched} matching runs"))?;
        }
    }
    for row in &failed {
        let (workflow, id) = (cell(row, "workflowName"), cell(row, "id"));
        note(&format!("{workflow}/{id}: {} [{}]", cell(row, "message"), cell(row, "code")));
    }
    if more {
        let limit = bulk.limit.unwrap_or(BULK_MAX);
        let raise = if limit < BULK_MAX { ", or raise --limit" } else { "" };
        note(&match bulk.dry_run {
            true => {
                format!("more than {limit} runs match; one call handles at most {limit}{raise}")
            }
            false => format!("more than {limit} runs match; run the command again{raise}"),
        });
    }
    Ok(exit)
}

// Without a filter the action applies to every run; the user may have forgotten the filter.
async fn confirm(api: &Api, action: &str) -> Result<(), Failure> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let message = format!("--all without a filter would {action} every run");
        let hint = "add --workflow, --status, --label or --created-…, or confirm with --yes";
        return Err(Failure::usage(message).with_hint(hint));
    }
    let count = json!({ "action": action, "dryRun": true, "filter": {} });
    let counted = api.client.post(&["runs", "bulk"], &count).await?;
    let least = if counted["more"] == true { "at least " } else { "" };
    let matched = cell(&counted, "matched");
    ask(&format!("{action} all runs ({least}{matched})? [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        true => Ok(()),
        false => Err(Failure::error("not confirmed; no changes")),
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
    set("labels", (!bulk.filter.labels.is_empty()).then(|| labels_to_json(&bulk.filter.labels)));
    set("createdFrom", bulk.filter.created_from.clone().map(Value::from));
    set("createdBefore", bulk.filter.created_before.clone().map(Value::from));
    filter
}

/// Rejects filters without `--all`, which would have no effect.
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
    let hint = format!("count the matching runs first: windlass runs {action} --all … --dry-run");
    Err(Failure::usage(message).with_hint(hint))
}
