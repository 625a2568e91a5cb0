//! `windlass workers`, `tasks`, `dlq`, `breakers` and `health`.

use serde_json::{Value, json};

use super::Api;
use crate::args::{BreakersCommand, DlqCommand, PageArgs, TasksCommand, WorkersCommand};
use crate::client::Params;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{
    Out, cell, cell_ago, indent_continuation, note, sanitize, sanitize_line, short_json,
};

/// The page size of one request.
const PAGE: usize = 100;

pub(super) async fn workers(api: Api, command: WorkersCommand) -> Outcome {
    let Api { client, out } = &api;
    match command {
        WorkersCommand::List { status, group, page } => {
            let filter = present_params([("status", status), ("group", group)]);
            let found = list(&api, "workers", "workers", filter, page).await?;
            let columns = [
                "WORKER", "GROUP", "STATUS", "LOAD", "DONE", "FAILED", "AVG MS", "HOST", "SEEN",
                "WHY",
            ];
            table(*out, &found, "workers", &columns, worker_row)?;
        }
        WorkersCommand::Get { id } => {
            let found = client.get(&["durable", "workers", &id], &Params::new()).await?;
            print_details(*out, &found)?;
        }
        WorkersCommand::Drain { id } => {
            let path = ["durable", "workers", id.as_str(), "drain"];
            let found = client.post(&path, &json!({})).await?;
            print_done(*out, &found, &format!("{id} is {}", out.status(&cell(&found, "status"))))?;
        }
    }
    Ok(Exit::Ok)
}

fn worker_row(out: Out, row: &Value) -> Vec<String> {
    vec![
        out.bold(&cell(row, "id")),
        cell(row, "worker_group"),
        out.status(&cell(row, "status")),
        format!("{}/{}", row["current_load"], row["max_concurrency"]),
        cell(row, "tasks_completed"),
        cell(row, "tasks_failed"),
        millis(&row["avg_task_duration_ms"]),
        cell(row, "hostname"),
        cell_ago(row, "last_heartbeat_at"),
        cell(row, "backpressure_reason"),
    ]
}

pub(super) async fn tasks(api: Api, command: TasksCommand) -> Outcome {
    let Api { client, out } = &api;
    match command {
        TasksCommand::List { state, activity_type, queue, page } => {
            let filter = present_params([
                ("state", state),
                ("activity_type", activity_type),
                ("queue", queue),
            ]);
            let found = list(&api, "tasks", "tasks", filter, page).await?;
            let columns = ["TASK", "TYPE", "QUEUE", "STATUS", "PRIORITY", "FAILED", "DUE", "ERROR"];
            table(*out, &found, "tasks", &columns, |out, row| {
                vec![
                    out.bold(&cell(row, "id")),
                    cell(row, "activity_type"),
                    cell(row, "queue"),
                    out.status(&cell(row, "status")),
                    cell(row, "priority"),
                    cell(row, "attempt"),
                    cell_ago(row, "visible_at"),
                    cell(row, "last_error"),
                ]
            })?;
        }
        TasksCommand::Stats => {
            let found = client.get(&["durable", "tasks", "stats"], &Params::new()).await?;
            stats(*out, &found)?;
        }
    }
    Ok(Exit::Ok)
}

fn stats(out: Out, found: &Value) -> Result<(), Failure> {
    if !out.is_text() {
        return out.value(found);
    }
    let columns = ["TYPE", "PENDING", "CLAIMED", "DONE/H", "FAILED/H", "AVG MS", "P99 MS"];
    let mut table = out.table(&columns);
    for (name, row) in found["by_activity_type"].as_object().into_iter().flatten() {
        table.row([
            out.bold(&sanitize_line(name)),
            cell(row, "pending"),
            cell(row, "claimed"),
            cell(row, "completed_last_hour"),
            cell(row, "failed_last_hour"),
            millis(&row["avg_duration_ms"]),
            millis(&row["p99_duration_ms"]),
        ]);
    }
    match table.is_empty() {
        true => note("no tasks now or in the last hour"),
        false => table.print()?,
    }
    for (priority, count) in found["by_priority"].as_object().into_iter().flatten() {
        out.line(&format!("{} waiting: {count}", out.dim(&format!("priority {priority}"))))?;
    }
    out.line(&format!(
        "oldest pending {} ms, average wait {} ms, average execution {} ms",
        found["oldest_pending_task_age_ms"],
        millis(&found["avg_schedule_to_start_ms"]),
        millis(&found["avg_execution_time_ms"])
    ))
}

pub(super) async fn dlq(api: Api, command: DlqCommand) -> Outcome {
    let Api { client, out } = &api;
    match command {
        DlqCommand::List { activity_type, queue, page } => {
            let filter = present_params([("activity_type", activity_type), ("queue", queue)]);
            let found = list(&api, "dlq", "entries", filter, page).await?;
            let columns =
                ["LETTER", "TYPE", "QUEUE", "ATTEMPTS", "DEAD", "REQUEUED", "RUN", "ERROR"];
            table(*out, &found, "entries", &columns, |out, row| {
                vec![
                    out.bold(&cell(row, "id")),
                    cell(row, "activity_type"),
                    cell(row, "queue"),
                    cell(row, "attempts"),
                    cell_ago(row, "dead_at"),
                    cell_ago(row, "requeued_at"),
                    cell(row, "workflow_id"),
                    cell(row, "last_error"),
                ]
            })?;
        }
        DlqCommand::Requeue { id } => {
            let path = ["durable", "dlq", id.as_str(), "requeue"];
            let found = client.post(&path, &json!({})).await?;
            let text = match found["workflow_id"].as_str() {
                Some(run) => format!("{id} is requeued; its run continues as {run}"),
                None => format!("{id} is requeued"),
            };
            print_done(*out, &found, &text)?;
        }
        DlqCommand::Delete { id } => {
            let found = client.delete(&["durable", "dlq", &id]).await?;
            print_done(*out, &found, &format!("{id} is deleted"))?;
        }
        DlqCommand::Purge { older_than, queue } => {
            let mut body = json!({ "older_than": older_than });
            if let Some(queue) = queue {
                body["queue"] = queue.into();
            }
            let found = client.post(&["durable", "dlq", "purge"], &body).await?;
            print_done(*out, &found, &format!("deleted {} dead letters", found["purged"]))?;
        }
    }
    Ok(Exit::Ok)
}

pub(super) async fn breakers(api: Api, command: BreakersCommand) -> Outcome {
    let Api { client, out } = &api;
    match command {
        BreakersCommand::List { page } => {
            let items = "circuit_breakers";
            let found = list(&api, "circuit-breakers", items, Params::new(), page).await?;
            let columns = ["BREAKER", "STATE", "FAILURES", "SUCCESSES", "RETRY", "CHANGED"];
            table(*out, &found, items, &columns, |out, row| {
                vec![
                    out.bold(&cell(row, "key")),
                    out.status(&cell(row, "state")),
                    cell(row, "failure_count"),
                    cell(row, "success_count"),
                    cell_ago(row, "retry_at"),
                    cell_ago(row, "updated_at"),
                ]
            })?;
        }
        BreakersCommand::Reset { key } => {
            let path = ["durable", "circuit-breakers", key.as_str(), "reset"];
            let found = client.post(&path, &json!({})).await?;
            print_done(*out, &found, &format!("{key} is {}", cell(&found, "state")))?;
        }
    }
    Ok(Exit::Ok)
}

/// The exit code is 1 if the system is unhealthy.
pub(super) async fn health(Api { client, out }: Api) -> Outcome {
    let found = client.get(&["durable", "health"], &Params::new()).await?;
    print_details(out, &found)?;
    Ok(if found["status"] == "unhealthy" { Exit::Error } else { Exit::Ok })
}

fn present_params<const N: usize>(params: [(&'static str, Option<String>); N]) -> Params {
    params.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

// Reads pages until the limit, and merges them into one response.
async fn list(
    api: &Api,
    what: &str,
    items: &str,
    filter: Params,
    page: PageArgs,
) -> Result<Value, Failure> {
    if page.limit == 0 {
        return Err(Failure::usage("--limit is 0; use 1 or more"));
    }
    let mut whole: Option<Value> = None;
    let mut rows: Vec<Value> = Vec::new();
    let mut cursor = page.cursor;
    loop {
        let mut params = filter.clone();
        params.push(("limit", PAGE.min(page.limit - rows.len()).to_string()));
        params.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut found = api.client.get(&["durable", what], &params).await?;
        rows.extend(found[items].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = found["cursor"].as_str().map(ToOwned::to_owned);
        let whole = whole.get_or_insert(found);
        if cursor.is_none() || rows.len() >= page.limit {
            whole[items] = rows.into();
            whole["cursor"] = cursor.into();
            return Ok(whole.take());
        }
    }
}

// The display name of the items in a list.
fn display_name(items: &str) -> &str {
    match items {
        "entries" => "dead letters",
        "circuit_breakers" => "circuit breakers",
        items => items,
    }
}

fn table(
    out: Out,
    found: &Value,
    items: &str,
    columns: &[&'static str],
    row: impl Fn(Out, &Value) -> Vec<String>,
) -> Result<(), Failure> {
    if !out.is_text() {
        return out.list(found, items);
    }
    let mut table = out.table(columns);
    for item in found[items].as_array().into_iter().flatten() {
        table.row(row(out, item));
    }
    if table.is_empty() {
        note(&format!("no {}", display_name(items)));
        return Ok(());
    }
    table.print()?;
    if found["cursor"].is_string() {
        note(&format!("more rows exist ({} in total); use --limit", found["total"]));
    }
    Ok(())
}

fn print_details(out: Out, found: &Value) -> Result<(), Failure> {
    if !out.is_text() {
        return out.value(found);
    }
    for (key, value) in found.as_object().into_iter().flatten() {
        let text = match value {
            Value::Null => continue,
            Value::String(text) if key == "status" => out.status(&sanitize_line(text)),
            Value::String(text) => indent_continuation(&sanitize(text), 23),
            other => short_json(other, usize::MAX),
        };
        out.line(&format!("{} {text}", out.dim(&format!("{:<22}", sanitize_line(key)))))?;
    }
    Ok(())
}

fn print_done(out: Out, answer: &Value, text: &str) -> Result<(), Failure> {
    match out.is_text() {
        true => out.line(text),
        false => out.value(answer),
    }
}

fn millis(value: &Value) -> String {
    value.as_f64().map(|ms| format!("{ms:.1}")).unwrap_or_default()
}
