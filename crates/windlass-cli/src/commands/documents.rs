//! `windlass documents` and `windlass approvals`.

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderValue, IF_MATCH};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Api, read_json};
use crate::args::{AfterArgs, ApprovalsCommand, DocumentRef, DocumentsCommand, VerdictArgs};
use crate::client::Params;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, cell_ago, note, pretty, sanitize_line};

pub(super) async fn run(api: Api, command: DocumentsCommand) -> Outcome {
    use DocumentsCommand as C;
    match command {
        C::Create { document: DocumentRef { entity_type, id }, content } => {
            let content = raw(&content)?;
            let body = format!("{{\"id\":{},\"content\":{}}}", json!(id), content.get());
            let path = ["documents", &entity_type];
            let made = send(&api, Method::POST, &path, HeaderMap::new(), body).await?;
            print_document(&api, &made)?;
        }
        C::Get { document, version } => get(&api, &document, version).await?,
        C::List { entity_type, state, page } => list(&api, &entity_type, state, page).await?,
        C::Edit { document, content, if_version, reason } => {
            let content = raw(&content)?;
            let body = format!("{{\"content\":{},\"reason\":{}}}", content.get(), json!(reason));
            let tag = HeaderValue::try_from(format!("\"{if_version}\""));
            let tag = tag.expect("digits are a valid header value");
            let headers = HeaderMap::from_iter([(IF_MATCH, tag)]);
            let edited = send(&api, Method::PATCH, &path_of(&document), headers, body).await?;
            print_document(&api, &edited)?;
        }
        C::Act { document, action, reason } => {
            let DocumentRef { entity_type, id } = &document;
            let path = ["documents", entity_type, id, "actions", &action];
            let called = api.client.post(&path, &json!({ "reason": reason })).await?;
            print_document(&api, &called)?;
        }
        C::Amend { document, new_id } => {
            let made = post(&api, &document, "amend", &json!({ "id": new_id })).await?;
            print_document(&api, &made)?;
        }
        C::Diff { document: DocumentRef { entity_type, id }, from, to } => {
            let (from, to) = (from.to_string(), to.to_string());
            let path = ["documents", &*entity_type, &id, "diff", &from, &to];
            print_diff(&api, &api.client.get(&path, &Params::new()).await?)?;
        }
        C::Position { document } => {
            let DocumentRef { entity_type, id } = &document;
            let path = ["documents", entity_type, id, "position"];
            print_position(&api, &api.client.get(&path, &Params::new()).await?)?;
        }
        C::Approvals { document: DocumentRef { entity_type, id }, page } => {
            let path = ["documents", &*entity_type, &id, "approvals"];
            print_approvals(&api, &api.client.get(&path, &params(page)).await?)?;
        }
        C::Rebuild { document } => {
            let rebuilt = post(&api, &document, "rebuild", &json!({})).await?;
            let same = rebuilt["same"] == true;
            match api.out.is_text() {
                false => api.out.value(&rebuilt)?,
                true => api.out.line(&format!(
                    "the state of {} steps is {}",
                    rebuilt["steps"],
                    if same { "the same" } else { "another one" }
                ))?,
            }
            return Ok(if same { Exit::Ok } else { Exit::Error });
        }
        C::Advance { document } => {
            let woken = post(&api, &document, "advance", &json!({})).await?;
            print_position(&api, &woken)?;
        }
        C::Fail { document, reason } => {
            let failed = post(&api, &document, "fail", &json!({ "reason": reason })).await?;
            print_position(&api, &failed)?;
        }
        C::Notifications { page } => {
            let found = api.client.get(&["notifications"], &params(page)).await?;
            print_notifications(&api, &found)?;
        }
        C::Dismiss { id } => {
            api.client.delete(&["notifications", &id]).await?;
            if api.out.is_text() {
                api.out.line("dismissed")?;
            }
        }
    }
    Ok(Exit::Ok)
}

fn print_notifications(api: &Api, found: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.list(found, "notifications");
    }
    let mut table = api.out.table(&["ID", "AT", "DOCUMENT", "SUBJECT"]);
    for row in found["notifications"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&cell(row, "id")),
            cell_ago(row, "at"),
            format!("{}/{}", cell(row, "type"), cell(row, "document")),
            cell(row, "subject"),
        ]);
    }
    if table.is_empty() {
        note("no notifications");
        return Ok(());
    }
    table.print()
}

/// The content as it was written: [`Value`] would round large numbers, which the server must see.
fn raw(text: &str) -> Result<Box<RawValue>, Failure> {
    read_json("the content", text)
}

fn path_of(document: &DocumentRef) -> [&str; 3] {
    ["documents", &document.entity_type, &document.id]
}

async fn post(
    api: &Api,
    document: &DocumentRef,
    action: &str,
    body: &Value,
) -> Result<Value, Failure> {
    let [root, entity_type, id] = path_of(document);
    api.client.post(&[root, entity_type, id, action], body).await
}

async fn send(
    api: &Api,
    method: Method,
    path: &[&str],
    headers: HeaderMap,
    body: String,
) -> Result<Value, Failure> {
    api.client.send(method, path, &Params::new(), headers, Some(body)).await
}

fn params(page: AfterArgs) -> Params {
    let mut params: Params = vec![("limit", page.limit.to_string())];
    params.extend(page.after.map(|after| ("after", after)));
    params
}

async fn get(api: &Api, document: &DocumentRef, version: Option<u64>) -> Result<(), Failure> {
    let [root, entity_type, id] = path_of(document);
    let number = version.map(|version| version.to_string());
    let path: Vec<&str> = match &number {
        Some(number) => vec![root, entity_type, id, "versions", number],
        None => vec![root, entity_type, id],
    };
    let found = api.client.get(&path, &Params::new()).await?;
    if !api.out.is_text() {
        return api.out.value(&found);
    }
    api.out.line(&pretty(&found["content"]))?;
    match version {
        Some(_) => note(&format!("version {}, {}", found["version"], note_text(&found))),
        None => note(&summary(&found)),
    }
    Ok(())
}

fn summary(document: &Value) -> String {
    let gates = document["gates"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let gates: Vec<&str> = gates.collect();
    let open = match gates.is_empty() {
        true => String::new(),
        false => format!(", open actions: {}", sanitize_line(&gates.join(", "))),
    };
    format!(
        "{}/{} is {} ({}) at version {}{open}",
        cell(document, "type"),
        cell(document, "id"),
        cell(document, "state"),
        cell(document, "editWindow"),
        document["version"]
    )
}

fn note_text(version: &Value) -> String {
    let about = &version["note"];
    let why = about["why"].as_str().map(|why| format!(": {}", sanitize_line(why)));
    format!("{} by {}{}", cell(about, "what"), cell(about, "who"), why.unwrap_or_default())
}

fn print_document(api: &Api, document: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.value(document);
    }
    api.out.line(&summary(document))
}

async fn list(
    api: &Api,
    entity_type: &str,
    state: Option<String>,
    page: AfterArgs,
) -> Result<(), Failure> {
    let mut params = params(page);
    params.extend(state.map(|state| ("state", state)));
    let found = api.client.get(&["documents", entity_type], &params).await?;
    if !api.out.is_text() {
        return api.out.list(&found, "documents");
    }
    let mut table = api.out.table(&["DOCUMENT", "STATE", "WINDOW", "VERSION", "UPDATED", "BY"]);
    for row in found["documents"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&cell(row, "id")),
            cell(row, "state"),
            cell(row, "editWindow"),
            cell(row, "version"),
            cell_ago(row, "updatedAt"),
            cell(&row["note"], "who"),
        ]);
    }
    table.print()
}

fn print_diff(api: &Api, diff: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.value(diff);
    }
    for (field, change) in diff["changes"].as_object().into_iter().flatten() {
        let text = |name: &str| sanitize_line(&change[name].to_string());
        api.out.line(&format!("{}: {} → {}", sanitize_line(field), text("from"), text("to")))?;
    }
    Ok(())
}

fn print_position(api: &Api, position: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.value(position);
    }
    let (status, state) = (cell(position, "runStatus"), cell(position, "state"));
    api.out
        .line(&format!("the run is {status} in the state {state}, cycle {}", position["cycle"]))?;
    let mut table = api.out.table(&["NODE", "TYPE", "STATUS", "TOKEN", "VERSION"]);
    for row in position["open"].as_array().into_iter().flatten() {
        table.row([
            cell(row, "node"),
            cell(row, "nodeType"),
            cell(row, "status"),
            cell(row, "token"),
            cell(row, "version"),
        ]);
    }
    if table.is_empty() { Ok(()) } else { table.print() }
}

pub(super) async fn approvals(api: Api, command: ApprovalsCommand) -> Outcome {
    match command {
        ApprovalsCommand::List { page } => {
            print_approvals(&api, &api.client.get(&["approvals"], &params(page)).await?)?;
        }
        ApprovalsCommand::Show { id } => {
            show_approval(&api, &api.client.get(&["approvals", &id], &Params::new()).await?)?;
        }
        ApprovalsCommand::Approve(args) => decide(&api, "approve", args).await?,
        ApprovalsCommand::Reject(args) => decide(&api, "reject", args).await?,
        ApprovalsCommand::Abstain(args) => decide(&api, "abstain", args).await?,
        ApprovalsCommand::Delegate { id, to } => {
            let path = ["approvals", &id, "delegate"];
            show_approval(&api, &api.client.post(&path, &json!({ "to": to })).await?)?;
        }
    }
    Ok(Exit::Ok)
}

async fn decide(api: &Api, verdict: &str, args: VerdictArgs) -> Result<(), Failure> {
    let VerdictArgs { id, digest, reason } = args;
    let body = json!({ "digest": digest, "reason": reason });
    show_approval(api, &api.client.post(&["approvals", &id, verdict], &body).await?)
}

fn print_approvals(api: &Api, found: &Value) -> Result<(), Failure> {
    if !api.out.is_text() {
        return api.out.list(found, "approvals");
    }
    let mut table = api.out.table(&["REQUEST", "DOCUMENT", "VERSION", "STATUS", "ASKS", "DIGEST"]);
    for row in found["approvals"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&cell(row, "id")),
            format!("{}/{}", cell(row, "type"), cell(row, "document")),
            cell(row, "version"),
            cell(row, "status"),
            asked(row),
            cell(row, "digest"),
        ]);
    }
    if table.is_empty() {
        note("no requests for approval");
        return Ok(());
    }
    table.print()
}

fn asked(row: &Value) -> String {
    let people = row["asked"].as_array().into_iter().flatten();
    let people: Vec<String> = people.map(|one| cell(one, "person")).collect();
    sanitize_line(&people.join(", "))
}

fn show_approval(api: &Api, approval: &Value) -> Result<(), Failure> {
    let out = api.out;
    if !out.is_text() {
        return out.value(approval);
    }
    out.line(&format!("{}  {}", out.bold(&cell(approval, "id")), cell(approval, "status")))?;
    let of = format!("{}/{}", cell(approval, "type"), cell(approval, "document"));
    out.line(&format!("document   {of}, version {}", approval["version"]))?;
    out.line(&format!("digest     {}", cell(approval, "digest")))?;
    out.line(&format!("node       {}", cell(approval, "node")))?;
    out.line(&format!("asks       {}", asked(approval)))?;
    for (person, decision) in approval["decisions"].as_object().into_iter().flatten() {
        let why = decision["why"].as_str().map(|why| format!(": {}", sanitize_line(why)));
        let verdict = cell(decision, "verdict");
        out.line(&format!("{} {verdict}{}", sanitize_line(person), why.unwrap_or_default()))?;
    }
    Ok(())
}
