//! `windlass mcp`: MCP over standard input and output, for clients that start a program. Each message goes to
//! the server at `--url`, which has the tools, the scopes and the state.

use std::io::{BufRead, BufReader, IsTerminal as _, Read as _, Write as _};

use base64::Engine as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::note;

/// The maximum size of a message. The server has a limit of its own, 2 MiB by default.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How many requests are under way at once. Further ones wait in the pipe.
const REQUESTS_MAX: usize = 16;

pub(super) async fn run(client: Client) -> Outcome {
    if std::io::stdin().is_terminal() {
        note(
            "windlass mcp speaks the Model Context Protocol over standard input and output: \
             let an MCP client start it. Press Ctrl-D to stop.",
        );
    }
    let (send, mut lines) = mpsc::channel(1);
    // A thread of its own: a blocked read must not keep the process alive.
    std::thread::spawn(move || read_lines(BufReader::new(std::io::stdin()), &send));
    let mut under_way = FuturesUnordered::new();
    let mut has_input = true;
    loop {
        tokio::select! {
            line = lines.recv(), if has_input && under_way.len() < REQUESTS_MAX => match line {
                Some(line) => under_way.push(answer(&client, line)),
                None => has_input = false,
            },
            Some(answer) = under_way.next() => {
                if let Some(answer) = answer {
                    print(&answer)?;
                }
            }
            else => return Ok(Exit::Ok),
        }
    }
}

/// A line of the input, or the size of one that is too long.
type Line = Result<Vec<u8>, usize>;

/// Reads lines until the input or the receiver ends.
fn read_lines(mut input: impl BufRead, send: &mpsc::Sender<Line>) {
    loop {
        let mut line = Vec::new();
        let mut limited = input.by_ref().take(MESSAGE_BYTES_MAX as u64 + 1);
        if !matches!(limited.read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        let line = match line.len() > MESSAGE_BYTES_MAX && line.last() != Some(&b'\n') {
            true => match skip_line(&mut input) {
                Ok(rest) => Err(line.len() + rest),
                Err(_) => return,
            },
            false => Ok(line),
        };
        let is_empty = line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty());
        if !is_empty && send.blocking_send(line).is_err() {
            return;
        }
    }
}

fn skip_line(input: &mut impl BufRead) -> std::io::Result<usize> {
    let mut skipped = 0;
    loop {
        let chunk = input.fill_buf()?;
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(chunk.len(), |end| end + 1);
        input.consume(used);
        skipped += used;
        if end.is_some() || used == 0 {
            return Ok(skipped);
        }
    }
}

fn print(answer: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").and_then(|()| out.flush())?;
    Ok(())
}

/// The answer to a message, as one line. A notification has none.
async fn answer(client: &Client, line: Line) -> Option<String> {
    let line = match line {
        Ok(line) => line,
        Err(bytes) => {
            let message =
                format!("the message has {bytes} bytes; at most {MESSAGE_BYTES_MAX} are allowed");
            return Some(error(&Value::Null, -32600, &message, None));
        }
    };
    // The server says what is wrong with a message that cannot be read.
    let message: Value = serde_json::from_slice(&line).unwrap_or_default();
    let has_answer = message.get("id").is_some() || message.get("method").is_none();
    let failed = |message_text: &str, data: Option<Value>| {
        has_answer.then(|| error(&message["id"], -32603, message_text, data))
    };
    let (status, body) = match client.exchange(&["mcp"], headers(&message), line).await {
        Ok(answer) => answer,
        Err(failure) => return failed(&failure.to_string(), None),
    };
    if status == StatusCode::ACCEPTED {
        return None;
    }
    let parsed: Value = serde_json::from_slice(&body).unwrap_or_default();
    if parsed["jsonrpc"] == "2.0" {
        return Some(parsed.to_string());
    }
    // The server refused the request before it read the message, for example its key.
    let text = match parsed["message"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("the server answered {status}; check --url"),
    };
    failed(&text, parsed.is_object().then_some(parsed))
}

fn error(id: &Value, code: i32, message: &str, data: Option<Value>) -> String {
    let mut error = json!({ "code": code, "message": message });
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()
}

/// The headers that repeat a message over HTTP.
fn headers(message: &Value) -> HeaderMap {
    let params = &message["params"];
    let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
    let name = match params["name"].as_str() {
        Some(name) => Some(name),
        None => params["taskId"].as_str(),
    };
    let pairs = [
        ("mcp-protocol-version", version.as_str()),
        ("mcp-method", message["method"].as_str()),
        ("mcp-name", name),
    ];
    let mut headers = HeaderMap::new();
    for (header, text) in pairs {
        if let Some(value) = text.and_then(header_value) {
            headers.insert(header, value);
        }
    }
    headers
}

fn header_value(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    if is_plain && !text.starts_with("=?base64?") {
        return HeaderValue::try_from(text).ok();
    }
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    HeaderValue::try_from(format!("=?base64?{encoded}?=")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_within_the_limit() {
        let long = "x".repeat(MESSAGE_BYTES_MAX + 1_000);
        let input = format!("one\n\n  \r\n{long}\ntwo\r\nthree");
        let (send, mut lines) = mpsc::channel(8);
        read_lines(input.as_bytes(), &send);
        drop(send);
        let mut found = Vec::new();
        while let Some(line) = lines.blocking_recv() {
            found.push(line.map(|line| String::from_utf8(line).unwrap().trim().to_owned()));
        }
        let expect = [
            Ok("one".to_owned()),
            Err(long.len() + 1),
            Ok("two".to_owned()),
            Ok("three".to_owned()),
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn headers_repeat_the_message() {
        let message = json!({ "method": "tools/call", "params": {
            "name": "wärum", "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28" },
        }});
        let found = headers(&message);
        assert_eq!(found["mcp-protocol-version"], "2026-07-28");
        assert_eq!(found["mcp-method"], "tools/call");
        assert_eq!(found["mcp-name"], "=?base64?d8OkcnVt?=");
        assert!(headers(&json!({ "method": 7 })).is_empty());
        assert_eq!(headers(&json!({ "params": { "taskId": "t" } }))["mcp-name"], "t");
    }
}
