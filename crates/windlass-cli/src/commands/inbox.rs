//! `windlass inbox`: requests to people.

use serde_json::{Value, json};

use super::{Api, read_json};
use crate::args::{InboxCommand, PageArgs};
use crate::client::Params;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, cell_ago, note, sanitize};

/// The number of rows that are requested at once.
const PAGE: usize = 100;

pub(super) async fn run(api: Api, command: InboxCommand) -> Outcome {
    match command {
        InboxCommand::List { of, status, due, by_due, page } => {
            let mut params: Params = vec![("of", of)];
            params.extend(status.map(|status| ("status", status)));
            params.extend(due.map(|due| ("due", due)));
            if by_due {
                params.push(("order", "due".to_owned()));
            }
            list(&api, params, page).await?;
        }
        InboxCommand::Show { id } => {
            let request = api.client.get(&["inbox", &id], &Params::new()).await?;
            show(&api, &request)?;
        }
        InboxCommand::Decide { id, choice, answer, comment, about } => {
            let answer: Option<Value> =
                answer.map(|text| read_json("the answer", &text)).transpose()?;
            let mut body = json!({ "choice": choice });
            for (name, value) in [
                ("answer", answer),
                ("comment", comment.map(Value::from)),
                ("about", about.map(Value::from)),
            ] {
                if let Some(value) = value {
                    body[name] = value;
                }
            }
            act(&api, &id, "decide", &body).await?;
        }
        InboxCommand::Delegate { id, to, until } => {
            act(&api, &id, "delegate", &json!({ "to": to, "until": until })).await?;
        }
        InboxCommand::Comment { id, text } => {
            act(&api, &id, "comment", &json!({ "text": text })).await?;
        }
        InboxCommand::Withdraw { id, reason } => {
            act(&api, &id, "withdraw", &json!({ "reason": reason })).await?;
        }
    }
    Ok(Exit::Ok)
}

async fn list(api: &Api, filter: Params, page: PageArgs) -> Result<(), Failure> {
    if page.limit == 0 {
        return Err(Failure::usage("--limit is 0; use 1 or more"));
    }
    let mut rows: Vec<Value> = Vec::new();
    let mut cursor = page.cursor;
    loop {
        let mut params = filter.clone();
        params.push(("limit", PAGE.min(page.limit - rows.len()).to_string()));
        params.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let next = api.client.get(&["inbox"], &params).await?;
        rows.extend(next["requests"].as_array().cloned().unwrap_or_default());
        cursor = next["cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || rows.len() >= page.limit {
            break;
        }
    }
    if !api.out.is_text() {
        return api.out.list(&json!({ "requests": rows, "cursor": cursor }), "requests");
    }
    let mut table =
        api.out.table(&["REQUEST", "TITLE", "STATUS", "APPROVALS", "ASKS", "OPENED", "DUE"]);
    for row in &rows {
        table.row([
            api.out.bold(&cell(row, "id")),
            cell(row, "title"),
            cell(row, "status"),
            format!("{} of {}", row["approvals"], row["quorum"]),
            names(&row["assignees"]),
            cell_ago(row, "openedAt"),
            cell(row, "dueAt"),
        ]);
    }
    table.print()?;
    if let Some(cursor) = cursor {
        note(&format!("more requests follow; continue with --cursor {cursor}"));
    }
    Ok(())
}

fn names(list: &Value) -> String {
    let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    crate::output::sanitize_line(&names.collect::<Vec<_>>().join(", "))
}

fn show(api: &Api, request: &Value) -> Result<(), Failure> {
    let out = api.out;
    if !out.is_text() {
        return out.value(request);
    }
    out.line(&format!("{}  {}", out.bold(&cell(request, "title")), cell(request, "status")))?;
    out.line(&format!("request    {}", cell(request, "id")))?;
    out.line(&format!("run        {}/{}", cell(request, "workflow"), cell(request, "instanceId")))?;
    out.line(&format!("asks       {}", names(&request["assignees"])))?;
    out.line(&format!("approvals  {} of {}", request["approvals"], request["quorum"]))?;
    let choices = request["choices"].as_array().into_iter().flatten();
    let choices: Vec<String> = choices.map(|choice| cell(choice, "name")).collect();
    out.line(&format!("choices    {}", choices.join(", ")))?;
    let lines =
        [("due", "dueAt"), ("digest", "digest"), ("closed by", "closedBy"), ("reason", "reason")];
    for (name, key) in lines {
        let from = if key == "digest" { &request["about"] } else { request };
        if from[key].is_string() {
            out.line(&format!("{name:<10} {}", cell(from, key)))?;
        }
    }
    if let Some(text) = request["text"].as_str().filter(|text| !text.is_empty()) {
        out.line(&sanitize(text))?;
    }
    for decision in request["decisions"].as_array().into_iter().flatten() {
        let comment = decision["comment"].as_str().map(|text| format!(": {text}"));
        let comment = sanitize(&comment.unwrap_or_default());
        out.line(&format!("{} {}{comment}", cell(decision, "by"), cell(decision, "choice")))?;
    }
    for comment in request["comments"].as_array().into_iter().flatten() {
        out.line(&format!("{} wrote: {}", cell(comment, "by"), cell(comment, "text")))?;
    }
    Ok(())
}

async fn act(api: &Api, id: &str, action: &str, body: &Value) -> Result<(), Failure> {
    let request = api.client.post(&["inbox", id, action], body).await?;
    if !api.out.is_text() {
        return api.out.value(&request);
    }
    let (status, title) = (cell(&request, "status"), cell(&request, "title"));
    api.out.line(&format!(
        "{title} is {status}, {} of {} approvals",
        request["approvals"], request["quorum"]
    ))
}
