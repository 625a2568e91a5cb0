//! `windlass runs list`: lists runs.

use serde_json::{Value, json};

use crate::args::{FilterArgs, ListArgs};
use crate::client::Params;
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Progress, cell, cell_ago, error_text, labels_text, note, sanitize_line};

/// The page size of one request.
const PAGE: usize = 100;

pub(super) async fn run(api: Api, args: ListArgs) -> Outcome {
    if args.limit == 0 {
        return Err(Failure::usage("--limit is 0; use 1 or more"));
    }
    let (rows, next) = pages(&api, &args).await?;
    let out = api.out;
    if !out.is_text() {
        let mut page = json!({ "runs": rows, "hasNextPage": next.is_some() });
        if let Some(next) = next {
            page["cursor"] = next.into();
        }
        out.list(&page, "runs")?;
        return Ok(Exit::Ok);
    }
    let columns = ["RUN", "STATUS", "CREATED", "UPDATED", "LABELS", "ERROR"];
    let mut table = out.table(&columns);
    for row in &rows {
        let workflow = match row["workflowName"].as_str() {
            Some(name) => sanitize_line(name),
            None => args.workflow.clone().unwrap_or_default(),
        };
        table.row([
            format!("{workflow}/{}", cell(row, "id")),
            out.status(&cell(&row["details"], "status")),
            cell_ago(row, "createdAt"),
            cell_ago(row, "updatedAt"),
            labels_text(&row["labels"]),
            error_text(&row["details"]["error"]),
        ]);
    }
    if table.is_empty() {
        note("no runs");
        return Ok(Exit::Ok);
    }
    table.print()?;
    if next.is_some() {
        note(&format!("more runs exist; use --limit {}", args.limit * 10));
    }
    Ok(Exit::Ok)
}

// Returns the rows and the cursor of the next page.
async fn pages(api: &Api, args: &ListArgs) -> Result<(Vec<Value>, Option<String>), Failure> {
    let (path, items) = match &args.workflow {
        Some(workflow) => (vec!["workflows", workflow.as_str(), "instances"], "instances"),
        None => (vec!["runs"], "runs"),
    };
    let mut rows: Vec<Value> = Vec::new();
    let mut cursor = args.cursor.clone();
    let mut searching = None;
    loop {
        let mut params = filter_params(&args.filter);
        params.push(("pageSize", PAGE.min(args.limit - rows.len()).to_string()));
        params.push(("order", if args.oldest { "asc" } else { "desc" }.to_owned()));
        params.extend(cursor.clone().map(|cursor| ("cursor", cursor)));
        let mut page = api.client.get(&path, &params).await?;
        rows.extend(page[items].as_array_mut().map(std::mem::take).unwrap_or_default());
        let next = page["cursor"].as_str().map(ToOwned::to_owned);
        let more = page["hasNextPage"].as_bool().unwrap_or(next.is_some());
        if !more || next.is_none() || rows.len() >= args.limit {
            return Ok((rows, next.filter(|_| more)));
        }
        if next == cursor {
            return Err(Failure::error("the server returned the same page twice"));
        }
        // A page may be empty but not the last: the server examines a limited number of runs for
        // each request, and the filter may match none of them.
        cursor = next;
        searching.get_or_insert_with(|| Progress::new("searching runs"));
    }
}

fn filter_params(filter: &FilterArgs) -> Params {
    let mut params = Params::new();
    params.extend(filter.status.map(|status| ("status", status.as_str().to_owned())));
    params.extend(filter.labels.iter().map(|(key, value)| ("label", format!("{key}:{value}"))));
    params.extend(filter.created_from.clone().map(|time| ("createdFrom", time)));
    params.extend(filter.created_before.clone().map(|time| ("createdBefore", time)));
    params
}
