//! Tools of MCP servers: both transports, both versions, faults, and lists of tools that change.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, AgentLoop, AnthropicClient, CallResult, ClientOptions, Continuation, McpOptions,
    McpServer, ToolResult, ToolSet, ToolSource, ToolUse, Workflow, dispatch_tool_uses,
};
use windlass::model::TokioEnv;
use windlass::{AnyError, ErrorCode, RunStatus};
use windlass_testkit::scripted_llm::{Rule, Script, ScriptedLlm, When};

use crate::agents_fixtures::events_of;
use crate::harness::until;
use crate::harness::{Harness, on_every_store};

on_every_store!(
    a_loop_calls_the_tools_of_two_servers,
    a_run_keeps_to_the_tools_with_which_it_began,
);

/// A server of `tests/mcp/server.py` and the file that it reads for each request.
struct Faulty {
    folder: tempfile::TempDir,
    child: Option<(Child, u16)>,
}

impl Drop for Faulty {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn program() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/server.py");
    path.to_str().expect("a plain path").to_owned()
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "description": "Reads.", "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "properties": { "path": { "type": "string" } },
    }})
}

impl Faulty {
    fn new(script: Value) -> Self {
        let faulty = Self { folder: tempfile::tempdir().unwrap(), child: None };
        faulty.set(script);
        faulty
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a plain path").to_owned()
    }

    /// Changes what the server does from now on.
    fn set(&self, mut script: Value) {
        script["log"] = self.file("log").into();
        if script["tools"].is_null() {
            script["tools"] = json!([tool("read")]);
        }
        // In one step, because the server may read it at any time.
        std::fs::write(self.file("next"), script.to_string()).unwrap();
        std::fs::rename(self.file("next"), self.file("script")).unwrap();
    }

    fn methods(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        let method = |line: &str| {
            let message: Value = serde_json::from_str(line).unwrap();
            message["method"].as_str().unwrap().to_owned()
        };
        log.lines().map(method).collect()
    }

    fn stdio(&self, options: McpOptions) -> McpServer {
        let arguments = [program(), self.file("script")];
        McpServer::stdio("files", "python3", arguments, options).unwrap()
    }

    fn http(&mut self, options: McpOptions) -> McpServer {
        if self.child.is_none() {
            let mut command = Command::new("python3");
            command.args([program(), self.file("script"), "http".to_owned()]);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("python3 starts");
            let mut port = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
            self.child = Some((child, port.trim().parse().expect("a port")));
        }
        let port = self.child.as_ref().unwrap().1;
        let url = format!("http://127.0.0.1:{port}/mcp");
        McpServer::http("files", &url, options.key("s3cret")).unwrap()
    }
}

fn one_use(name: &str) -> Vec<ToolUse> {
    vec![ToolUse { id: "tu_1".into(), name: name.into(), input: json!({ "path": "a.txt" }) }]
}

/// Calls a tool of a source once, without an engine.
async fn call(source: &ToolSource, name: &str) -> Result<ToolResult, AnyError> {
    let mut tools = ToolSet::default();
    tools.add_source(source).unwrap();
    let env = TokioEnv::new().unwrap();
    let mut results = dispatch_tool_uses(&tools, &*env, "run", 1, &one_use(name)).await?;
    Ok(results.remove(0))
}

fn code_of(error: &AnyError) -> &'static str {
    error.downcast_ref::<windlass::Error>().map_or("none", |error| error.code().as_str())
}

/// Both transports.
fn servers(faulty: &mut Faulty, options: &McpOptions) -> [(&'static str, McpServer); 2] {
    [("stdio", faulty.stdio(options.clone())), ("http", faulty.http(options.clone()))]
}

#[tokio::test]
async fn both_transports_and_versions_call_tools() {
    let tools = json!([tool("read"), tool("list.all"), tool("z")]);
    for script in [
        json!({ "tools": tools, "page": 2 }),
        json!({ "tools": tools, "versions": "new" }),
        json!({ "tools": tools, "stream": true, "session": "one" }),
        json!({ "tools": tools, "on_call": "ping" }),
    ] {
        let mut faulty = Faulty::new(script.clone());
        let options = McpOptions::default().prefix("f_").only(["read", "list.all"]);
        for (transport, server) in servers(&mut faulty, &options) {
            let shown = format!("{transport} {script}");
            let source = server.connect().await.expect(&shown);
            let names: Vec<&str> = source.tools().iter().map(|tool| tool.name()).collect();
            assert_eq!(names, ["f_list_all", "f_read"], "{shown}");
            let result = call(&source, "f_list_all").await.expect(&shown);
            let expect = json!({ "tool": "list.all", "arguments": { "path": "a.txt" } });
            assert_eq!((&result.content, result.is_error), (&expect, false), "{shown}");
        }
    }
}

#[tokio::test]
async fn what_the_model_can_read_is_a_result() {
    let mut faulty = Faulty::new(json!({}));
    for (how, text, is_error) in [
        ("error", "no such file (code -32602)", true),
        ("tool_error", "the disk is full", true),
        ("image", "[image image/png, 8 characters of base64]", false),
    ] {
        faulty.set(json!({ "on_call": how }));
        for (transport, server) in servers(&mut faulty, &McpOptions::default()) {
            let source = server.connect().await.unwrap();
            let result = call(&source, "read").await.unwrap();
            assert_eq!((result.content, result.is_error), (json!(text), is_error), "{transport}");
        }
    }
}

#[tokio::test]
async fn faults_have_codes_and_the_next_call_works_again() {
    let options = McpOptions::default().answer_bytes_max(100_000);
    let fault = |how: &str| json!({ "on_call": how });
    for (script, code, text) in [
        (fault("die"), "MCP_UNAVAILABLE", ""),
        (fault("hang"), "MCP_UNAVAILABLE", "no answer within 1s"),
        (fault("garbage"), "MCP_PROTOCOL", "not JSON"),
        (fault("huge"), "MCP_PROTOCOL", "more than 100000 bytes"),
    ] {
        let mut faulty = Faulty::new(json!({}));
        let options = match script["on_call"] == "hang" {
            true => options.clone().timeout("1 second"),
            false => options.clone(),
        };
        for (transport, server) in servers(&mut faulty, &options) {
            let source = server.connect().await.unwrap();
            faulty.set(script.clone());
            let error = call(&source, "read").await.unwrap_err();
            assert_eq!(code_of(&error), code, "{transport} {script}: {error}");
            assert!(error.to_string().contains(text), "{transport}: {error}");
            if script["on_call"] == "die" {
                if transport == "stdio" {
                    assert!(error.to_string().contains("out of memory"), "{error}");
                }
                // The server over HTTP has gone with its process.
                faulty.child = None;
            }
            faulty.set(json!({}));
            // On a busy machine a call may take longer than the timeout of this test.
            if transport == "stdio" {
                until("the program works again", || async {
                    call(&source, "read").await.is_ok_and(|result| !result.is_error)
                })
                .await;
            }
        }
    }
    let mut faulty = Faulty::new(json!({ "status": 503 }));
    let source = faulty.http(options.clone()).connect().await.unwrap();
    let error = call(&source, "read").await.unwrap_err();
    assert_eq!(code_of(&error), "MCP_UNAVAILABLE", "{error}");
    // A session that the server has forgotten begins anew.
    faulty.set(json!({ "session": "one" }));
    let source = faulty.http(options.clone()).connect().await.unwrap();
    faulty.set(json!({ "session": "two" }));
    assert!(!call(&source, "read").await.unwrap().is_error);
}

#[tokio::test]
async fn servers_that_cannot_be_used_are_refused() {
    let many = |n: usize| (0..n).map(|n| tool(&format!("t{n}"))).collect::<Value>();
    let long = "x".repeat(65);
    for (script, options, code) in [
        (json!({ "tools": many(9) }), McpOptions::default().tools_max(8), "MCP_PROTOCOL"),
        (json!({ "tools": [tool("a.b"), tool("a/b")] }), McpOptions::default(), "MCP_PROTOCOL"),
        (json!({ "tools": [tool(&long)] }), McpOptions::default(), "MCP_PROTOCOL"),
        (json!({ "tools": [tool("")] }), McpOptions::default(), "MCP_PROTOCOL"),
        (json!({ "tools": [{ "name": "a" }] }), McpOptions::default(), "MCP_PROTOCOL"),
        (json!({ "tools": 7 }), McpOptions::default(), "MCP_PROTOCOL"),
        (json!({}), McpOptions::default().only(["write"]), "MCP_PROTOCOL"),
    ] {
        let faulty = Faulty::new(json!({}));
        faulty.set(script.clone());
        let error = faulty.stdio(options).connect().await.unwrap_err();
        assert_eq!(error.code(), code, "{script}: {error}");
    }
    let none = McpOptions::default;
    let server = McpServer::stdio("a", "/no/such/program", [""; 0], none()).unwrap();
    assert_eq!(server.connect().await.unwrap_err().code(), ErrorCode::McpUnavailable);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = McpServer::http("a", &format!("http://{closed}/mcp"), none()).unwrap();
    assert_eq!(server.connect().await.unwrap_err().code(), ErrorCode::McpUnavailable);
    let mut faulty = Faulty::new(json!({}));
    drop(faulty.http(none()));
    let port = faulty.child.as_ref().unwrap().1;
    let url = format!("http://127.0.0.1:{port}/");
    let error = McpServer::http("a", &url, none().key("wr0ng")).unwrap().connect().await;
    let error = error.unwrap_err();
    assert_eq!(error.code(), ErrorCode::McpUnavailable);
    assert!(error.to_string().contains("401") && !error.to_string().contains("wr0ng"), "{error}");
    for (url, options, code) in [
        ("http://example.com/mcp", none(), "INVALID_URL"),
        ("nothing", none(), "INVALID_URL"),
        ("https://example.com/mcp", none().header("a b", "c"), "INVALID_HEADER"),
        ("https://example.com/mcp", none().timeout("soon"), "INVALID_OPTION"),
    ] {
        assert_eq!(McpServer::http("a", url, options).unwrap_err().code(), code, "{url}");
    }
    // Two servers with a tool of the same name.
    let faulty = Faulty::new(json!({}));
    let source = faulty.stdio(none()).connect().await.unwrap();
    let mut tools = ToolSet::default();
    tools.add_source(&source).unwrap();
    assert_eq!(tools.add_source(&source).unwrap_err().code(), ErrorCode::InvalidOption);
}

#[tokio::test]
async fn a_list_that_changes_under_the_program_is_noticed_before_the_next_call() {
    let mut faulty = Faulty::new(json!({}));
    for (transport, server) in servers(&mut faulty, &McpOptions::default().recheck_every(0)) {
        faulty.set(json!({}));
        let source = server.connect().await.unwrap();
        assert!(!call(&source, "read").await.unwrap().is_error, "{transport}");
        faulty.set(json!({ "tools": [tool("read"), tool("write")] }));
        let calls = || faulty.methods().iter().filter(|method| *method == "tools/call").count();
        let before = calls();
        for _ in 0..2 {
            let error = call(&source, "read").await.unwrap_err();
            assert_eq!(code_of(&error), "MCP_TOOLS_CHANGED", "{transport}: {error}");
        }
        assert_eq!(calls(), before, "{transport}: the tool was not called");
        assert_ne!(server.connect().await.unwrap().digest(), source.digest());
    }
    // A program that ends is another one when it comes back, whatever the age of the list.
    let faulty = Faulty::new(json!({}));
    let server = faulty.stdio(McpOptions::default().recheck_every("1 hour"));
    let source = server.connect().await.unwrap();
    faulty.set(json!({ "on_call": "die" }));
    call(&source, "read").await.unwrap_err();
    faulty.set(json!({ "tools": [tool("read"), tool("write")] }));
    // The first call starts the program, the list of the one before counts for it no more.
    let error = call(&source, "read").await.unwrap_err();
    assert_eq!(code_of(&error), "MCP_TOOLS_CHANGED", "{error}");
}

async fn a_loop_calls_the_tools_of_two_servers(h: Arc<Harness>) {
    let (local, mut remote) = (Faulty::new(json!({})), Faulty::new(json!({})));
    let one = local.stdio(McpOptions::default()).connect().await.unwrap();
    let other = remote.http(McpOptions::default().prefix("web_"));
    let other = ToolSource::new("web", other.connect().await.unwrap().tools().to_vec());
    let read = When { tool_result: Some(true), ..When::default() };
    let script = Script::new().rule(Rule::when(read).text("It is {{input}}")).rule(
        Rule::any().tool("read", json!({ "path": "a" })).tool("web_read", json!({ "path": "b" })),
    );
    let llm = ScriptedLlm::start(script).unwrap();
    let options = ClientOptions::new("key").base_url(llm.url());
    let spec = AgentLoop::new("main", "anthropic", "claude-sonnet-4-5").param("max_tokens", 500);
    let agent = Agent::new("reader", "main")
        .agent_loop(spec)
        .tool_source(&one)
        .tool_source(&other)
        .output("answer")
        .provider(Arc::new(AnthropicClient::new(options).unwrap()));
    let engine = h.engine().await;
    let readers = engine.agent(agent).unwrap();
    let run = readers.start(json!({ "prompt": "Read both." })).await.unwrap();
    let answer = run.result().await.unwrap().to_string();
    assert!(answer.contains("It is"), "{answer}");
    for (server, path) in [(&local, "\"a\""), (&remote, "\"b\"")] {
        let log = std::fs::read_to_string(server.file("log")).unwrap();
        let call = log.lines().find(|line| line.contains("tools/call")).expect("a call");
        assert!(call.contains(path), "{call}");
    }
    // The ledger has the digests at the begin and at the call.
    let expect = json!({ "files": one.digest(), "web": other.digest() });
    let events = events_of(&engine, run.run_key()).await;
    let recorded: Vec<Value> = events
        .iter()
        .map(|event| event.payload_json().unwrap()["tool_sources"].clone())
        .filter(|sources| !sources.is_null())
        .collect();
    assert_eq!(recorded, [expect.clone(), expect]);
}

async fn begin(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.tools(one_use("read"), "results", "end"))
}

async fn hang(_: &mut Workflow, _: Continuation) -> CallResult {
    std::future::pending().await
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn a_run_keeps_to_the_tools_with_which_it_began(h: Arc<Harness>) {
    let faulty = Faulty::new(json!({}));
    let server = faulty.stdio(McpOptions::default());
    let old = server.connect().await.unwrap();
    let agent = |source: &ToolSource| {
        Agent::new("caller", "begin").function("end", end).tool_source(source).output("results")
    };
    let engine = h.engine().await;
    let callers = engine.agent(agent(&old).function("begin", hang)).unwrap();
    callers.start(json!({})).id("one").await.unwrap();
    h.stop_within(&engine, Duration::from_millis(1)).await;

    // The server has other tools when the program comes back.
    faulty.set(json!({ "tools": [tool("read"), tool("write")] }));
    let new = faulty.stdio(McpOptions::default()).connect().await.unwrap();
    assert_ne!(old.digest(), new.digest());
    let engine = h.engine().await;
    let callers = engine.agent(agent(&new).function("begin", begin)).unwrap();
    let run = callers.get("one").await.unwrap();
    let error = run.result().await.unwrap_err().to_string();
    assert!(error.contains("MCP_TOOLS_CHANGED"), "{error}");
    assert!(!faulty.methods().contains(&"tools/call".to_owned()));
    // A retry uses the new ones, and records them.
    let second = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
    let ended = engine.core().wait(second).await.unwrap();
    assert_eq!(ended.status, RunStatus::Complete, "{:?}", ended.error);
    let events = events_of(&engine, second).await;
    let recorded = events.iter().find_map(|event| {
        let payload = event.payload_json().unwrap();
        payload.get("tool_sources").cloned()
    });
    assert_eq!(recorded, Some(json!({ "files": new.digest() })));
}
