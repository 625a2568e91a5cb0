//! `windlass mcp` against `windlass dev`, and without a server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::{Server, windlass};

fn dev() -> Server {
    let mut command = windlass();
    command.args(["dev", "--ephemeral", "--port", "0"]);
    Server::spawn(command)
}

fn start(url: &str) -> Child {
    let mut command = windlass();
    command.args(["mcp", "--url", url]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary starts")
}

/// Sends lines, closes the input, and returns the answers by id; null is the id of messages without one. The
/// program ends when it has answered everything.
fn exchange(url: &str, lines: &[String]) -> Vec<Value> {
    let mut child = start(url);
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut answers: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).expect("each line is one answer"))
        .collect();
    assert!(child.wait().unwrap().success());
    answers.sort_by_key(|answer| answer["id"].as_u64());
    answers
}

fn message(id: u64, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn tool(id: u64, name: &str, arguments: Value) -> String {
    message(id, "tools/call", json!({ "name": name, "arguments": arguments }))
}

#[test]
fn messages_reach_the_server_and_answers_come_back() {
    let server = dev();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let answers = exchange(
        &server.url,
        &[
            message(1, "initialize", json!({ "protocolVersion": "2025-11-25" })),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string(),
            message(2, "tools/list", json!({})),
            String::new(),
            tool(3, "search_docs", json!({ "query": "durable" })),
            tool(4, "get_run", json!({ "workflow": "hello" })),
            message(5, "nothing", json!({})),
            message(6, "tools/call", json!({ "name": "list_workflows", "_meta": meta })),
            "this is not JSON".to_owned(),
        ],
    );
    let ids: Vec<Option<u64>> = answers.iter().map(|answer| answer["id"].as_u64()).collect();
    assert_eq!(ids, [None, Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)]);
    assert_eq!(answers[0]["error"]["code"], -32700);
    assert_eq!(answers[1]["result"]["serverInfo"]["name"], "windlass");
    let tools = answers[2]["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["name"] == "control_run"));
    assert_eq!(answers[3]["result"]["isError"], false);
    assert_eq!(answers[4]["result"]["structuredContent"]["code"], "INVALID_ARGUMENT");
    assert_eq!(answers[5]["error"]["code"], -32601);
    assert_eq!(answers[6]["result"]["resultType"], "complete");
    assert!(answers[6].to_string().contains("\"hello\""));
    // The same over HTTP, without the path of the API.
    let root = format!("http://{}/mcp", server.bind());
    let ran = std::process::Command::new("python3")
        .args(["-c", POST, &root, &message(1, "ping", json!({}))])
        .output()
        .expect("python3 runs");
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "{\"id\":1,\"jsonrpc\":\"2.0\",\"result\":{}}\n"
    );
}

const POST: &str = "\
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {'content-type': 'application/json'})
print(urllib.request.urlopen(request).read().decode())";

#[test]
fn a_run_is_started_and_followed_while_the_input_is_open() {
    let server = dev();
    let mut child = start(&server.url);
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |line: String| -> Value {
        writeln!(input, "{line}").unwrap();
        serde_json::from_str(&output.next().unwrap().unwrap()).unwrap()
    };
    let run = json!({ "workflow": "hello", "id": "a", "params": "mcp" });
    let started = ask(tool(1, "start_run", run));
    assert_eq!(started["result"]["isError"], false, "{started}");
    let find = json!({ "workflow": "hello", "id": "a" });
    let mut id = 1;
    let found = loop {
        id += 1;
        let answer = ask(tool(id, "get_run", find.clone()));
        let details = answer["result"]["structuredContent"]["details"].clone();
        if details["status"] == "complete" {
            break details;
        }
    };
    assert_eq!(found["output"], "HELLO, MCP!");
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_server_that_refuses_or_is_gone_is_an_error_of_each_request() {
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let lines = [message(1, "tools/list", json!({})), note, message(2, "ping", json!({}))];
    let answers = exchange(&format!("http://{closed}/api"), &lines);
    assert_eq!(answers.len(), 2);
    for answer in answers {
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains("failed to connect"), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = windlass();
    let store = format!("sqlite:{}/a.db", folder.path().display());
    command.args(["server", "--bind", "127.0.0.1:0", "--log", "error", "--store", &store]);
    let server = Server::spawn(command);
    let answers = exchange(&server.url, &lines[..1]);
    assert_eq!(answers[0]["error"]["data"]["code"], "UNAUTHENTICATED", "{answers:?}");
}
