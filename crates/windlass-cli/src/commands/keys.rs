//! `windlass keys`: API keys.

use serde_json::{Value, json};

use super::{Api, parse_subject};
use crate::args::KeysCommand;
use crate::exit::{Exit, Outcome};
use crate::output::{Out, cell, cell_ago, note};

pub(super) async fn run(Api { client, out }: Api, command: KeysCommand) -> Outcome {
    match command {
        KeysCommand::List => {
            let found = client.get_all(&["keys"], "keys").await?;
            list(out, &found)
        }
        KeysCommand::Create { name, scopes, subject, namespace, expires } => {
            let mut body = json!({ "name": name, "scopes": scopes });
            if let Some(text) = subject {
                body["subject"] = json!(parse_subject("--subject", &text)?);
            }
            if let Some(namespace) = namespace {
                body["namespace"] = namespace.into();
            }
            if let Some(expires) = expires {
                let millis = u64::try_from(expires.as_millis()).unwrap_or(u64::MAX);
                body["expiresInMs"] = millis.into();
            }
            let made = client.post(&["keys"], &body).await?;
            if !out.is_text() {
                out.value(&made)?;
                return Ok(Exit::Ok);
            }
            // Standard output has only the key, so that it can be piped into a secret store.
            out.line(&cell(&made, "key"))?;
            let id = cell(&made, "id");
            note(&format!("the key is not shown again; revoke it with its id {id}"));
            Ok(Exit::Ok)
        }
        KeysCommand::Revoke { id } => {
            let answer = client.delete(&["keys", &id]).await?;
            match out.is_text() {
                true => out.line(&format!("{id} is revoked"))?,
                false => out.value(&answer)?,
            }
            Ok(Exit::Ok)
        }
    }
}

fn list(out: Out, found: &Value) -> Outcome {
    if !out.is_text() {
        out.list(found, "keys")?;
        return Ok(Exit::Ok);
    }
    let columns = ["ID", "NAME", "SCOPES", "SUBJECT", "NAMESPACE", "CREATED", "EXPIRES", "REVOKED"];
    let mut table = out.table(&columns);
    for row in found["keys"].as_array().into_iter().flatten() {
        let scopes = row["scopes"].as_array().into_iter().flatten();
        let scopes: Vec<&str> = scopes.filter_map(Value::as_str).collect();
        table.row([
            cell(row, "id"),
            out.bold(&cell(row, "name")),
            scopes.join(" "),
            cell(&row["subject"], "id"),
            cell(row, "namespace"),
            cell_ago(row, "createdAt"),
            cell_ago(row, "expiresAt"),
            cell_ago(row, "revokedAt"),
        ]);
    }
    if table.is_empty() {
        note("no keys");
        return Ok(Exit::Ok);
    }
    table.print()?;
    Ok(Exit::Ok)
}
