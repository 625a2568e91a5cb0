//! `windlass webhooks`: disabled endpoints.

use serde_json::json;

use super::Api;
use crate::args::WebhooksCommand;
use crate::client::Params;
use crate::exit::{Exit, Outcome};
use crate::output::{cell, cell_ago, note};

pub(super) async fn run(Api { client, out }: Api, command: WebhooksCommand) -> Outcome {
    match command {
        WebhooksCommand::List => {
            let found = client.get(&["webhooks", "disabled"], &Params::new()).await?;
            if !out.is_text() {
                out.list(&found, "endpoints")?;
                return Ok(Exit::Ok);
            }
            let mut table = out.table(&["ENDPOINT", "DISABLED", "WEBHOOK"]);
            for row in found["endpoints"].as_array().into_iter().flatten() {
                table.row([
                    out.bold(&cell(row, "url")),
                    cell_ago(row, "since"),
                    cell(row, "webhookId"),
                ]);
            }
            match table.is_empty() {
                true => note("no disabled endpoints"),
                false => table.print()?,
            }
        }
        WebhooksCommand::Enable { endpoint } => {
            let found = client.post(&["webhooks", "enable"], &json!({ "url": endpoint })).await?;
            match out.is_text() {
                true => out.line(&format!("{endpoint} is enabled"))?,
                false => out.value(&found)?,
            }
        }
    }
    Ok(Exit::Ok)
}
