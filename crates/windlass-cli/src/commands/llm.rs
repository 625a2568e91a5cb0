//! `windlass llm`: batches, budgets, and what calls of language models have used.

use serde_json::{Value, json};

use super::Api;
use crate::args::LlmCommand;
use crate::client::Params;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, short_json};

/// The number of rows that are requested at once.
const PAGE: usize = 100;
/// The most rows that a list shows.
const ROWS_MAX: usize = 10_000;

pub(super) async fn run(api: Api, command: LlmCommand) -> Outcome {
    let none = Params::new;
    match command {
        LlmCommand::Batches { intent: Some(intent), .. } => {
            let found = api.client.get(&["batches", &intent], &none()).await?;
            details(&api, &found)?;
        }
        LlmCommand::Batches { intent: None, status } => {
            let filter = status.map(|status| ("status", status)).into_iter().collect();
            let found = all(&api, "batches", filter).await?;
            batches(&api, &found)?;
        }
        LlmCommand::Cancel { intent } => {
            let path = ["batches", &intent, "cancel"];
            let found = api.client.post(&path, &json!({})).await?;
            done(&api, &found, &format!("batch {intent} is being cancelled"))?;
        }
        LlmCommand::Lanes => {
            let found = api.client.get(&["lanes"], &none()).await?;
            lanes(&api, &found)?;
        }
        LlmCommand::Flush { provider } => {
            let found = api.client.post(&["lanes", &provider, "flush"], &json!({})).await?;
            done(&api, &found, &format!("{} lanes send what waits", found["asked"]))?;
        }
        LlmCommand::Budgets { budget: Some(budget), .. } => {
            let found = api.client.get(&["budgets", &budget], &none()).await?;
            details(&api, &found)?;
        }
        LlmCommand::Budgets { budget: None, workflow } => {
            let filter = workflow.map(|name| ("workflow", name)).into_iter().collect();
            let found = all(&api, "budgets", filter).await?;
            budgets(&api, &found)?;
        }
        LlmCommand::Raise { budget, usd, tokens, calls } => {
            let body = json!({ "usd": usd, "tokens": tokens, "calls": calls });
            let found = api.client.post(&["budgets", &budget, "raise"], &body).await?;
            done(&api, &found, &format!("budget {budget} is raised"))?;
        }
        LlmCommand::Spend { root: Some(root), .. } => {
            let found = api.client.get(&["spend", &root], &none()).await?;
            details(&api, &found)?;
        }
        LlmCommand::Spend { from, to, workflow, model, root: None } => {
            let mut params = none();
            for (name, value) in
                [("from", from), ("to", to), ("workflow", workflow), ("model", model)]
            {
                params.extend(value.map(|value| (name, value)));
            }
            let found = api.client.get(&["spend"], &params).await?;
            spend(&api, &found)?;
        }
    }
    Ok(Exit::Ok)
}

// All pages of a list.
async fn all(api: &Api, name: &'static str, filter: Params) -> Result<Value, Failure> {
    let (mut rows, mut after): (Vec<Value>, Option<String>) = (Vec::new(), None);
    loop {
        let mut params = filter.clone();
        params.push(("limit", PAGE.to_string()));
        params.extend(after.take().map(|after| ("after", after)));
        let page = api.client.get(&[name], &params).await?;
        rows.extend(page[name].as_array().cloned().unwrap_or_default());
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() || rows.len() >= ROWS_MAX {
            return Ok(json!({ name: rows }));
        }
    }
}

fn done(api: &Api, answer: &Value, text: &str) -> Result<(), Failure> {
    match api.out.is_text() {
        true => api.out.line(text),
        false => api.out.value(answer),
    }
}

fn details(api: &Api, found: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.value(found);
    }
    for (key, value) in found.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null()) {
        let text = match value {
            Value::String(_) => cell(found, key),
            other => short_json(other, 200),
        };
        api.out.line(&format!("{} {text}", api.out.dim(&format!("{key:<18}"))))?;
    }
    Ok(())
}

// Amounts are in billionths of a dollar.
fn money(value: &Value) -> String {
    match value.as_u64() {
        Some(nanos) => format!("${:.6}", nanos as f64 / 1e9),
        None => String::new(),
    }
}

fn batches(api: &Api, found: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.list(found, "batches");
    }
    let names = ["BATCH", "PROVIDER", "STATUS", "CALLS", "OPEN", "ATTEMPTS", "PROVIDER'S ID"];
    let mut table = api.out.table(&names);
    for row in found["batches"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&cell(row, "intent")),
            cell(row, "provider"),
            cell(row, "status"),
            row["members"].to_string(),
            row["processing"].as_u64().map(|count| count.to_string()).unwrap_or_default(),
            row["attempts"].to_string(),
            cell(row, "provider_batch_id"),
        ]);
    }
    table.print()
}

fn lanes(api: &Api, found: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.list(found, "lanes");
    }
    let mut table = api.out.table(&["PROVIDER", "LANE", "WAITING", "IN FLIGHT", "P90 SECONDS"]);
    for row in found["lanes"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&cell(row, "provider")),
            cell(row, "id"),
            row["waiting"].to_string(),
            row["in_flight"].to_string(),
            row["p90_seconds"].as_u64().map(|seconds| seconds.to_string()).unwrap_or_default(),
        ]);
    }
    table.print()
}

fn budgets(api: &Api, found: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.list(found, "budgets");
    }
    let names = ["BUDGET", "WORKFLOW", "RUN", "SPENT", "OF", "TOKENS", "OF", "CALLS", "OF"];
    let mut table = api.out.table(&names);
    let number = |value: &Value| value.as_u64().map(|n| n.to_string()).unwrap_or_default();
    for row in found["budgets"].as_array().into_iter().flatten() {
        let (spent, limits) = (&row["spent"], &row["limits"]);
        table.row([
            api.out.bold(&cell(row, "id")),
            cell(row, "workflow"),
            cell(row, "run"),
            money(&spent["usd_nanos"]),
            money(&limits["usd_nanos"]),
            number(&spent["tokens"]),
            number(&limits["tokens"]),
            number(&spent["calls"]),
            number(&limits["calls"]),
        ]);
    }
    table.print()
}

fn spend(api: &Api, found: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.list(found, "spend");
    }
    let names = ["DAY", "WORKFLOW", "MODEL", "LANE", "CALLS", "INPUT", "OUTPUT", "COST", "PRICES"];
    let mut table = api.out.table(&names);
    for row in found["spend"].as_array().into_iter().flatten() {
        table.row([
            cell(row, "day"),
            cell(row, "workflow"),
            cell(row, "model"),
            cell(row, "lane"),
            row["calls"].to_string(),
            row["usage"]["input_tokens"].to_string(),
            row["usage"]["output_tokens"].to_string(),
            money(&row["cost"]),
            cell(row, "prices"),
        ]);
    }
    table.print()
}
