//! `windlass records`: documents outside any run.

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Api, read_json};
use crate::args::{PageArgs, PutRecordArgs, RecordsCommand, StateArgs};
use crate::client::{Params, Path};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, cell_ago, note, sanitize_line};

/// The number of rows that are requested at once.
const PAGE: usize = 100;
/// The longest document in a table, in characters.
const VALUE_CHARS_MAX: usize = 60;

pub(super) async fn run(api: Api, command: RecordsCommand) -> Outcome {
    match command {
        RecordsCommand::Get { collection, id, revision } => {
            get(&api, &collection, &id, revision).await?;
        }
        RecordsCommand::Put(args) => put(&api, *args).await?,
        RecordsCommand::List { collection, term, page } => {
            let filter = term.iter().map(term_param).collect();
            let rows = rows(&api, &["records", &collection], filter, page).await?;
            print_rows(
                api.out,
                rows,
                "records",
                &["RECORD", "REVISION", "UPDATED", "TERMS", "VALUE"],
                |row, raw| {
                    vec![
                        api.out.bold(&cell(row, "id")),
                        cell(row, "revision"),
                        cell_ago(row, "updatedAt"),
                        terms_text(row),
                        short_value(raw),
                    ]
                },
            )?;
        }
        RecordsCommand::Collections { page } => {
            let rows = rows(&api, &["records"], Params::new(), page).await?;
            print_rows(api.out, rows, "collections", &["COLLECTION"], |row, _| {
                vec![api.out.bold(&sanitize_line(row.as_str().unwrap_or_default()))]
            })?;
        }
        RecordsCommand::Versions { collection, id, page } => {
            let path = ["records", &collection, &id, "versions"];
            let rows = rows(&api, &path, Params::new(), page).await?;
            print_rows(
                api.out,
                rows,
                "versions",
                &["REVISION", "WRITTEN", "BYTES", "DIGEST", "ACTOR"],
                |row, _| {
                    vec![
                        api.out.bold(&cell(row, "revision")),
                        cell_ago(row, "createdAt"),
                        cell(row, "bytes"),
                        cell(row, "digest"),
                        cell(&row["actor"], "kind"),
                    ]
                },
            )?;
        }
        RecordsCommand::Delete { collection, id, state } => {
            let StateArgs { if_revision, if_exists: _ } = state;
            let path = ["records", &collection, &id];
            let headers = if_match(if_revision);
            let removed: Value =
                api.client.send(Method::DELETE, &path, &Params::new(), headers, None).await?;
            print_written(api.out, &removed, "is removed")?;
        }
    }
    Ok(Exit::Ok)
}

/// A record or a kept version. The document stays as the server sent it.
#[derive(Deserialize)]
struct Found {
    revision: u64,
    value: Box<RawValue>,
    #[serde(flatten)]
    rest: Value,
}

async fn get(
    Api { client, out }: &Api,
    collection: &str,
    id: &str,
    revision: Option<u64>,
) -> Result<(), Failure> {
    let number = revision.map(|revision| revision.to_string());
    let path: Vec<&str> = match &number {
        Some(number) => vec!["records", collection, id, "versions", number],
        None => vec!["records", collection, id],
    };
    let full: Params = vec![("view", "full".to_owned())];
    let text: Box<RawValue> =
        client.send(Method::GET, &path, &full, HeaderMap::new(), None).await?;
    if !out.is_text() {
        return out.raw(text.get());
    }
    let found: Found = serde_json::from_str(text.get())
        .map_err(|error| Failure::error(format!("the server sent no record: {error}")))?;
    out.raw(found.value.get())?;
    let terms = match terms_text(&found.rest) {
        terms if terms.is_empty() => String::new(),
        terms => format!(", terms {terms}"),
    };
    note(&format!("revision {}{terms}", found.revision));
    Ok(())
}

async fn put(Api { client, out }: &Api, args: PutRecordArgs) -> Result<(), Failure> {
    let document: Result<Box<RawValue>, _> = read_json("the document", &args.document);
    let document = document.map_err(|failure| match failure.exit {
        Exit::Usage => failure.with_hint("quote JSON strings: '\"world\"'"),
        _ => failure,
    })?;
    let mut headers = if_match(args.state.if_revision);
    if args.state.create {
        headers = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static("*"))]);
    }
    let mut params: Params = args.terms.iter().map(term_param).collect();
    if args.keep {
        params.push(("keep", "true".to_owned()));
    }
    let path = ["records", &args.collection, &args.id];
    let body = Some(document.get().to_owned());
    let written: Value = client.send(Method::PUT, &path, &params, headers, body).await?;
    print_written(*out, &written, "is written")
}

/// The header for a revision, or for any revision.
fn if_match(revision: Option<u64>) -> HeaderMap {
    let tag = match revision {
        Some(revision) => HeaderValue::try_from(format!("\"{revision}\"")),
        None => Ok(HeaderValue::from_static("*")),
    };
    let tag = tag.expect("digits are a valid header value");
    HeaderMap::from_iter([(IF_MATCH, tag)])
}

fn term_param((name, value): &(String, String)) -> (&'static str, String) {
    ("term", format!("{name}:{value}"))
}

fn print_written(out: Out, written: &Value, what: &str) -> Result<(), Failure> {
    if !out.is_text() {
        return out.value(written);
    }
    let (collection, id) = (cell(written, "collection"), cell(written, "id"));
    out.line(&format!("{collection}/{id} {what} at revision {}", written["revision"]))
}

/// The document of a row, truncated. [`Value`] would round large numbers.
fn short_value(row: &RawValue) -> String {
    let text = serde_json::from_str::<Found>(row.get()).map(|found| found.value);
    let text = text.map(|value| sanitize_line(value.get())).unwrap_or_default();
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn terms_text(row: &Value) -> String {
    let terms = row["terms"].as_array().into_iter().flatten();
    let term = |term: &Value| format!("{}={}", cell(term, "name"), cell(term, "value"));
    sanitize_line(&terms.map(term).collect::<Vec<_>>().join(" "))
}

/// The rows of a listing, as the server sent them.
struct Rows {
    rows: Vec<Box<RawValue>>,
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(alias = "versions", alias = "collections")]
    records: Vec<Box<RawValue>>,
    cursor: Option<String>,
}

// Reads pages until the limit.
async fn rows(api: &Api, path: Path<'_>, filter: Params, page: PageArgs) -> Result<Rows, Failure> {
    if page.limit == 0 {
        return Err(Failure::usage("--limit is 0; use 1 or more"));
    }
    let mut found = Rows { rows: Vec::new(), cursor: page.cursor };
    loop {
        let mut params = filter.clone();
        params.push(("limit", PAGE.min(page.limit - found.rows.len()).to_string()));
        params.extend(found.cursor.take().map(|cursor| ("cursor", cursor)));
        let next: Page =
            api.client.send(Method::GET, path, &params, HeaderMap::new(), None).await?;
        found.rows.extend(next.records);
        found.cursor = next.cursor;
        if found.cursor.is_none() || found.rows.len() >= page.limit {
            return Ok(found);
        }
    }
}

/// The listing in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listing<'a> {
    #[serde(flatten)]
    rows: std::collections::BTreeMap<&'a str, &'a [Box<RawValue>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
    has_next_page: bool,
}

fn print_rows(
    out: Out,
    found: Rows,
    items: &str,
    columns: &[&'static str],
    cells: impl Fn(&Value, &RawValue) -> Vec<String>,
) -> Result<(), Failure> {
    let json = |value: Result<String, serde_json::Error>| {
        value.map_err(|error| Failure::error(format!("failed to write JSON: {error}")))
    };
    match out.format {
        crate::args::Format::Jsonl => {
            return found.rows.iter().try_for_each(|row| out.raw(row.get()));
        }
        crate::args::Format::Json => {
            let listing = Listing {
                rows: [(items, &*found.rows)].into(),
                cursor: found.cursor.as_deref(),
                has_next_page: found.cursor.is_some(),
            };
            return out.raw(&json(serde_json::to_string_pretty(&listing))?);
        }
        crate::args::Format::Text => {}
    }
    let mut table = out.table(columns);
    for raw in &found.rows {
        let row: Value = serde_json::from_str(raw.get())
            .map_err(|error| Failure::error(format!("failed to read a row: {error}")))?;
        table.row(cells(&row, raw));
    }
    if table.is_empty() {
        note(&format!("no {items}"));
        return Ok(());
    }
    table.print()?;
    if let Some(cursor) = found.cursor {
        note(&format!("there are more; continue with --cursor {cursor}"));
    }
    Ok(())
}
