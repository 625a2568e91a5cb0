//! `windlass transcript`: the conversations of an agent, and its provider calls as they run.

use std::io::Write as _;

use eventsource_stream::Event;
use serde_json::{Value, json};

use super::Api;
use super::runs::{RunName, follow_stream, resolve, resolve_newest};
use crate::args::TranscriptArgs;
use crate::client::{Client, Params};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, note, sanitize, sanitize_line, short_json};

const PAGES_MAX: usize = 10_000;

pub(super) async fn run(api: Api, args: TranscriptArgs) -> Outcome {
    if args.follow {
        let run = resolve_newest(&api.client, &args.run).await?;
        let mut seen = Seen::default();
        return follow_stream(&api, &run, "tokens", |event| show(api.out, event, &mut seen)).await;
    }
    let Api { client, out } = api;
    let run = resolve(&client, &args.run).await?;
    let number = run.number(args.run_number)?;
    let found = conversations(&client, &run, number, args.name.as_deref()).await?;
    if !out.is_text() {
        let found = json!({ "transcripts": found, "hasNextPage": false });
        out.list(&found, "transcripts")?;
        return Ok(Exit::Ok);
    }
    if found.is_empty() {
        note(&format!("{run} has no conversation"));
    }
    let many = found.len() > 1;
    for conversation in &found {
        if many {
            out.line(&out.bold(&format!("== {} ==", sanitize_line(&cell(conversation, "name")))))?;
        }
        for item in conversation["items"].as_array().into_iter().flatten() {
            print_item(out, item)?;
        }
    }
    Ok(Exit::Ok)
}

/// The conversations of a run with all their items.
pub(super) async fn conversations(
    client: &Client,
    run: &RunName,
    number: Option<u32>,
    name: Option<&str>,
) -> Result<Vec<Value>, Failure> {
    let first = page(client, run, number, name, None).await?;
    let infos = first["transcripts"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for info in infos {
        let known = cell(&info, "name");
        if name.is_some_and(|name| name != known) {
            continue;
        }
        let (mut items, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let mut page = page(client, run, number, Some(&known), cursor).await?;
            items.extend(page["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
            cursor = page["nextCursor"].as_str().map(ToOwned::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        found.push(json!({ "name": known, "format": info["format"], "items": items }));
    }
    Ok(found)
}

async fn page(
    client: &Client,
    run: &RunName,
    number: Option<u32>,
    name: Option<&str>,
    cursor: Option<String>,
) -> Result<Value, Failure> {
    let mut params: Params = vec![("pageSize", "100".to_owned())];
    params.extend(number.map(|number| ("runNumber", number.to_string())));
    params.extend(name.map(|name| ("name", name.to_owned())));
    params.extend(cursor.map(|cursor| ("cursor", cursor)));
    client.get(&run.path(&["transcript"]), &params).await
}

fn print_item(out: Out, item: &Value) -> Result<(), Failure> {
    let (who, lines) = item_lines(item);
    out.line(&out.bold(&sanitize_line(&who)))?;
    for line in lines.iter().flat_map(|text| text.lines()) {
        out.line(&format!("  {}", sanitize(line)))?;
    }
    Ok(())
}

/// The role and the text of an item, for both wire formats.
pub(super) fn item_lines(item: &Value) -> (String, Vec<String>) {
    let kind = item["type"].as_str().unwrap_or("message");
    let who = item["role"].as_str().unwrap_or(match kind {
        "function_call_output" => "tool",
        _ => "assistant",
    });
    let lines = match &item["content"] {
        Value::String(text) => vec![text.clone()],
        Value::Array(blocks) => blocks.iter().map(block_line).collect(),
        _ => vec![block_line(item)],
    };
    (who.to_owned(), lines)
}

fn block_line(block: &Value) -> String {
    let text = |member: &Value| match member {
        Value::String(text) => text.clone(),
        other => short_json(other, 2_000),
    };
    match block["type"].as_str().unwrap_or_default() {
        "text" | "output_text" | "input_text" => text(&block["text"]),
        "thinking" => format!("(thinks) {}", text(&block["thinking"])),
        "tool_use" => format!("calls {} {}", cell(block, "name"), text(&block["input"])),
        "function_call" => format!("calls {} {}", cell(block, "name"), text(&block["arguments"])),
        "tool_result" => format!("result: {}", text(&block["content"])),
        "function_call_output" => format!("result: {}", text(&block["output"])),
        _ => short_json(block, 2_000),
    }
}

/// The state of the output of `--follow`.
#[derive(Default)]
struct Seen {
    /// Whether the text of the call that runs has been printed.
    parts: bool,
    elsewhere: bool,
}

fn show(out: Out, event: &Event, seen: &mut Seen) -> Result<Option<Exit>, Failure> {
    let Ok(data) = serde_json::from_str::<Value>(&event.data) else { return Ok(None) };
    let ends = event.event == "end";
    if !out.is_text() {
        out.record(&json!({ "event": event.event, "data": data }))?;
        return Ok(ends.then_some(Exit::Ok));
    }
    match event.event.as_str() {
        "call" => {
            // The parts of an attempt before are void.
            if seen.parts {
                out.line("")?;
            }
            seen.parts = false;
            if data["attempt"].as_u64() > Some(1) {
                note(&format!("attempt {} of {}", cell(&data, "attempt"), cell(&data, "call")));
            }
        }
        "part" if data["part"] == "text" => {
            seen.parts = true;
            let text = sanitize(data["text"].as_str().unwrap_or_default());
            let mut stdout = std::io::stdout();
            stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())?;
        }
        "response" => {
            // Text that was printed while it arrived is not printed again.
            let text = sanitize(data["text"].as_str().unwrap_or_default());
            out.line(if seen.parts { "" } else { &text })?;
            for tool_use in data["toolUses"].as_array().into_iter().flatten() {
                let input = short_json(&tool_use["input"], 200);
                out.line(&sanitize_line(&format!("calls {} {input}", cell(tool_use, "name"))))?;
            }
            *seen = Seen::default();
        }
        "elsewhere" if !seen.elsewhere => {
            seen.elsewhere = true;
            note(&cell(&data, "message"));
        }
        _ => {}
    }
    Ok(ends.then_some(Exit::Ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_both_formats_have_lines() {
        for (item, who, lines) in [
            (json!({ "role": "user", "content": "hi" }), "user", vec!["hi"]),
            (
                json!({ "role": "assistant", "content": [
                    { "type": "text", "text": "a" },
                    { "type": "tool_use", "id": "t", "name": "add", "input": { "n": 1 } },
                ] }),
                "assistant",
                vec!["a", "calls add {\"n\":1}"],
            ),
            (
                json!({ "role": "user", "content": [{ "type": "tool_result", "content": "3" }] }),
                "user",
                vec!["result: 3"],
            ),
            (
                json!({ "type": "function_call", "name": "add", "arguments": "{}" }),
                "assistant",
                vec!["calls add {}"],
            ),
            (
                json!({ "type": "function_call_output", "call_id": "c", "output": "3" }),
                "tool",
                vec!["result: 3"],
            ),
        ] {
            assert_eq!(
                item_lines(&item),
                (who.to_owned(), lines.into_iter().map(Into::into).collect())
            );
        }
    }
}
