//! The commands of `windlass contracts` that call a server.

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::args::{OnlineCommand, Remote, SettingsArgs, TypeArgs};
use crate::client::Params;
use crate::commands::{Api, read_json};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, cell_ago, note, pretty, sanitize, sanitize_line};

pub(super) async fn run(command: OnlineCommand) -> Outcome {
    use OnlineCommand as C;
    match command {
        C::Types(remote) => types(&remote).await?,
        C::Templates(remote) => print(&remote, &["contracts", "templates"]).await?,
        C::Show { at: TypeArgs { entity_type, remote }, version } => {
            let version = version.map(|version| version.to_string());
            let mut path = vec!["contracts", "types", &entity_type];
            path.extend(version.iter().flat_map(|version| ["versions", version.as_str()]));
            print(&remote, &path).await?;
        }
        C::Versions { at, of_contract, before, limit } => {
            let mut params: Params = vec![("limit", limit.to_string())];
            params.extend(before.map(|before| ("before", before.to_string())));
            versions(at, of_contract, params).await?;
        }
        C::ArchiveType(TypeArgs { entity_type, remote }) => {
            let path = ["contracts", "types", &entity_type, "archive"];
            let head = Api::new(&remote)?.client.post(&path, &json!({})).await?;
            print_answer(&remote, &head, &format!("archived {}", named(&head, "entityType")))?;
        }
        C::Try { entity_type, scenario, remote } => {
            let scenario: Box<RawValue> = read_json("the scenario", &scenario)?;
            let path = ["contracts", &entity_type, "simulate"];
            try_scenario(&Api::new(&remote)?, &path, &scenario).await?;
        }
        C::PublishType { contract, remote } => {
            let contract: Value = read_json("the contract", &contract)?;
            let head = Api::new(&remote)?.client.post(&["contracts", "types"], &contract).await?;
            print_answer(&remote, &head, &format!("published {}", named(&head, "entityType")))?;
        }
        C::Definition(TypeArgs { entity_type, remote }) => {
            print(&remote, &["contracts", &entity_type, "definition"]).await?;
        }
        C::Draft { entity_type, definition, remote } => {
            let definition: Value = read_json("the definition", &definition)?;
            let path = ["contracts", &entity_type, "draft"];
            let head = Api::new(&remote)?.client.put(&path, &definition).await?;
            print_answer(&remote, &head, &format!("the draft of {entity_type} is stored"))?;
        }
        C::Publish(at) => act(at, &["publish"], "published").await?,
        C::Archive(at) => act(at, &["archive"], "archived").await?,
        C::Rebase(at) => act(at, &["rebase"], "the draft is rebased:").await?,
        C::Recompile(at) => act(at, &["recompile"], "recompiled").await?,
        C::Rollback { entity_type, version, remote } => {
            let version = version.to_string();
            act(TypeArgs { entity_type, remote }, &["rollback", &version], "published").await?;
        }
        C::Effective { at: TypeArgs { entity_type, remote }, diff, mermaid } => {
            match (diff, mermaid) {
                (true, _) => text(&remote, &["contracts", &entity_type, "diff", "text"]).await?,
                (_, true) => text(&remote, &["contracts", &entity_type, "diff", "mermaid"]).await?,
                _ => print(&remote, &["contracts", &entity_type, "effective"]).await?,
            }
        }
        C::Directory(args) => settings(args, &["contracts", "directory"]).await?,
        C::Settings(args) => settings(args, &["contracts", "settings"]).await?,
        C::Chain { name, args } => settings(args, &["contracts", "chains", &name]).await?,
        C::Chains(remote) => chains(&remote).await?,
        C::Health(remote) => health(&remote).await?,
        C::Stuck(remote) => stuck(&remote).await?,
    }
    Ok(Exit::Ok)
}

/// Prints the JSON of a GET.
async fn print(remote: &Remote, path: &[&str]) -> Result<(), Failure> {
    let api = Api::new(remote)?;
    let found = api.client.get(path, &Params::new()).await?;
    if api.out.is_text() { api.out.line(&pretty(&found)) } else { api.out.value(&found) }
}

async fn text(remote: &Remote, path: &[&str]) -> Result<(), Failure> {
    let api = Api::new(remote)?;
    api.out.line(sanitize(&api.client.get_text(path).await?).trim_end())
}

/// Prints the answer of a write, or one line about it.
fn print_answer(remote: &Remote, answer: &Value, line: &str) -> Result<(), Failure> {
    let out = Api::new(remote)?.out;
    if out.is_text() { out.line(line) } else { out.value(answer) }
}

fn named(head: &Value, name: &str) -> String {
    format!("{} version {}, artefact {}", cell(head, name), head["version"], cell(head, "hash"))
}

async fn act(at: TypeArgs, action: &[&str], done: &str) -> Result<(), Failure> {
    let TypeArgs { entity_type, remote } = at;
    let path: Vec<&str> =
        ["contracts", &entity_type].into_iter().chain(action.iter().copied()).collect();
    let answer = Api::new(&remote)?.client.post(&path, &json!({})).await?;
    let version = answer["version"].as_u64().map(|version| format!(" version {version}"));
    let hash = answer["hash"].as_str().map(|hash| format!(", artefact {hash}"));
    let line = format!(
        "{done} {entity_type}{}{}",
        version.unwrap_or_default(),
        sanitize(&hash.unwrap_or_default())
    );
    print_answer(&remote, &answer, &line)
}

async fn types(remote: &Remote) -> Result<(), Failure> {
    let api = Api::new(remote)?;
    let found = api.client.get(&["contracts", "types"], &Params::new()).await?;
    if !api.out.is_text() {
        return api.out.list(&found, "types");
    }
    let mut table = api.out.table(&["TYPE", "VERSION", "ARCHIVED", "ARTEFACT"]);
    for row in found["types"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&cell(row, "entityType")),
            cell(row, "version"),
            cell(row, "archived"),
            cell(row, "hash"),
        ]);
    }
    if table.is_empty() {
        note("no document types; publish one with: windlass contracts publish-type @FILE");
        return Ok(());
    }
    table.print()
}

async fn settings(args: SettingsArgs, path: &[&str]) -> Result<(), Failure> {
    let SettingsArgs { set, remote } = args;
    let Some(text) = set else { return print(&remote, path).await };
    let value: Value = read_json("the value", &text)?;
    let written = Api::new(&remote)?.client.put(path, &value).await?;
    print_answer(&remote, &written, &format!("replaced {}", path[1..].join("/")))
}

async fn health(remote: &Remote) -> Result<(), Failure> {
    let api = Api::new(remote)?;
    let found = api.client.get(&["contracts", "health"], &Params::new()).await?;
    if !api.out.is_text() {
        return api.out.value(&found);
    }
    for (name, key) in [
        ("pending", "pending"),
        ("oldest", "oldestPendingSeconds"),
        ("stuck", "stuck"),
        ("errored", "errored"),
        ("dead", "deadEffects"),
        ("advances", "advances"),
        ("p95 ms", "advanceP95Ms"),
        ("retries", "retries"),
    ] {
        let shown = if found[key].is_null() { "-".to_owned() } else { found[key].to_string() };
        api.out.line(&format!("{name:<8} {shown}"))?;
    }
    let mut table = api.out.table(&["NODE TYPE", "COUNT", "P50 MS", "P95 MS"]);
    for row in found["nodes"].as_array().into_iter().flatten() {
        table.row([
            cell(row, "nodeType"),
            cell(row, "count"),
            cell(row, "p50Ms"),
            cell(row, "p95Ms"),
        ]);
    }
    if table.is_empty() { Ok(()) } else { table.print() }
}

async fn versions(at: TypeArgs, of_contract: bool, params: Params) -> Result<(), Failure> {
    let TypeArgs { entity_type, remote } = at;
    let api = Api::new(&remote)?;
    let path: &[&str] = match of_contract {
        true => &["contracts", "types", &entity_type, "versions"],
        false => &["contracts", &entity_type, "versions"],
    };
    let found = api.client.get(path, &params).await?;
    if !api.out.is_text() {
        return api.out.list(&found, "versions");
    }
    let mut table = api.out.table(&["VERSION", "CONTRACT", "BY", "AT", "ARTEFACT"]);
    for row in found["versions"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&cell(row, "version")),
            cell(row, "envelopeVersion"),
            cell(row, "by"),
            cell_ago(row, "at"),
            cell(row, "hash"),
        ]);
    }
    if table.is_empty() {
        note("no published versions");
        return Ok(());
    }
    table.print()
}

async fn chains(remote: &Remote) -> Result<(), Failure> {
    let api = Api::new(remote)?;
    let found = api.client.get(&["contracts", "chains"], &Params::new()).await?;
    if !api.out.is_text() {
        return api.out.list(&found, "chains");
    }
    for name in found["chains"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        api.out.line(&sanitize(name))?;
    }
    Ok(())
}

/// The scenario goes out as it was written: [`Value`] would round large numbers.
async fn try_scenario(api: &Api, path: &[&str], scenario: &RawValue) -> Result<(), Failure> {
    let (params, body) = (Params::new(), Some(scenario.get().to_owned()));
    let found: Value = api.client.send(Method::POST, path, &params, HeaderMap::new(), body).await?;
    if !api.out.is_text() {
        return api.out.value(&found);
    }
    let texts = |key: &str| -> Vec<String> {
        let all = found[key].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(sanitize_line).collect()
    };
    api.out.line(&format!("ends in the state {}", cell(&found, "state")))?;
    for node in texts("path") {
        api.out.line(&format!("  {node}"))?;
    }
    match found["stuck"].as_str() {
        Some(reason) => api.out.line(&format!("stuck: {}", sanitize_line(reason))),
        None => Ok(()),
    }
}

async fn stuck(remote: &Remote) -> Result<(), Failure> {
    let api = Api::new(remote)?;
    let found = api.client.get(&["contracts", "stuck"], &Params::new()).await?;
    if !api.out.is_text() {
        return api.out.list(&found, "stuck");
    }
    let mut table = api.out.table(&["DOCUMENT", "STATE", "RUN", "REASON"]);
    for row in found["stuck"].as_array().into_iter().flatten() {
        table.row([
            api.out.bold(&format!("{}/{}", cell(row, "type"), cell(row, "id"))),
            cell(row, "state"),
            cell(row, "runStatus"),
            cell(row, "reason"),
        ]);
    }
    if table.is_empty() {
        note("no document is stuck");
        return Ok(());
    }
    table.print()
}
