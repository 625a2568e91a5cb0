//! `windlass agents`: which runs of agents a build cannot resume.

use serde_json::{Value, json};

use super::Api;
use crate::args::AgentsCommand;
use crate::client::{Client, Params};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, sanitize_line};

pub(super) async fn run(api: Api, command: AgentsCommand) -> Outcome {
    match command {
        AgentsCommand::Check { agent } => check(api, agent).await,
    }
}

async fn check(Api { client, out }: Api, agent: Option<String>) -> Outcome {
    let agents = match agent {
        Some(agent) => vec![agent],
        None => {
            let served = client.get(&["agents"], &Vec::new()).await?;
            let served = served["agents"].as_array().cloned().unwrap_or_default();
            served.iter().map(|agent| cell(agent, "name")).collect()
        }
    };
    let mut rows = Vec::new();
    for agent in &agents {
        rows.push(check_one(&client, agent).await?);
    }
    let unfit = |row: &Value| row["unfit"].as_array().map_or(0, Vec::len);
    let exit = if rows.iter().any(|row| unfit(row) > 0) { Exit::Error } else { Exit::Ok };
    if !out.is_text() {
        out.list(&json!({ "agents": rows, "hasNextPage": false }), "agents")?;
        return Ok(exit);
    }
    if rows.is_empty() {
        out.line("this server serves no agents")?;
    }
    for row in &rows {
        let (name, checked, count) = (cell(row, "name"), cell(row, "checked"), unfit(row));
        let name = out.bold(&sanitize_line(&name));
        out.line(&format!(
            "{} {name}: {checked} live runs, {count} cannot be resumed",
            out.check_mark(count == 0)
        ))?;
        for run in row["unfit"].as_array().into_iter().flatten() {
            let text =
                format!("{} {}: {}", cell(run, "id"), cell(run, "code"), cell(run, "message"));
            out.line(&format!("    {}", sanitize_line(&text)))?;
        }
    }
    Ok(exit)
}

async fn check_one(client: &Client, agent: &str) -> Result<Value, Failure> {
    let (mut checked, mut unfit) = (0, Vec::new());
    let mut cursor: Option<String> = None;
    loop {
        let mut params: Params = vec![("pageSize", "100".to_owned())];
        params.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let mut page = client.get(&["agents", agent, "check"], &params).await?;
        checked += page["checked"].as_u64().unwrap_or(0);
        unfit.extend(page["unfit"].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = page["nextCursor"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() {
            return Ok(json!({ "name": agent, "checked": checked, "unfit": unfit }));
        }
    }
}
