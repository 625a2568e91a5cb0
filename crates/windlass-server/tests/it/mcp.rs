//! The Model Context Protocol over HTTP, with rmcp as the client.

use reqwest::Method;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities,
    ClientConfig, ErrorCode, GetTaskParams, Implementation, InputRequest, ProtocolVersion, Task,
    TaskPayload, TaskStatus, UpdateTaskParams,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ErrorData, ServiceError};
use serde_json::{Value, json};
use windlass::requests::{Request, RequestOutcome};
use windlass::{Ctx, Result};
use windlass_server::Options;
use windlass_server::auth::Scope;

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, http_client, on_both_stores, open, read, wait_until};

on_both_stores!(
    a_model_reads_starts_and_controls_runs,
    scopes_and_namespaces_are_those_of_the_key,
    a_run_is_a_task,
    a_request_to_a_person_is_input_of_a_task,
    large_values_are_left_out_and_read_in_parts,
    malformed_calls_are_errors_of_the_protocol,
);

type Client = RunningService<RoleClient, ClientConfig>;

fn discover() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

fn capabilities(json: Value) -> ClientCapabilities {
    serde_json::from_value(json).expect("capabilities")
}

async fn connect(
    server: &Server,
    path: &str,
    key: Option<&str>,
    capabilities: ClientCapabilities,
    lifecycle: ClientLifecycleMode,
) -> Client {
    let mut config = StreamableHttpClientTransportConfig::with_uri(server.url(path));
    if let Some(key) = key {
        config = config.auth_header(key);
    }
    let transport = StreamableHttpClientTransport::with_client(http_client(), config);
    let client = ClientConfig::new(capabilities, Implementation::new("test", "1"));
    client.serve_with_lifecycle(transport, lifecycle).await.expect("the client connects")
}

/// Calls a tool. The text of the result and its structure are the same.
async fn call(client: &Client, tool: &'static str, arguments: Value) -> CallToolResult {
    let arguments = arguments.as_object().cloned().expect("an object");
    let params = CallToolRequestParams::new(tool).with_arguments(arguments);
    let result = client.call_tool(params).await.expect("a result");
    let text = result.content[0].as_text().expect("a text").text.clone();
    assert_eq!(Some(serde_json::from_str(&text).expect("JSON")), result.structured_content);
    result
}

async fn call_ok(client: &Client, tool: &'static str, arguments: Value) -> Value {
    let result = call(client, tool, arguments).await;
    let value = result.structured_content.expect("a value");
    assert_eq!(result.is_error, Some(false), "{tool}: {value}");
    value
}

/// The code of a result that is an error.
async fn call_error(client: &Client, tool: &'static str, arguments: Value) -> String {
    let result = call(client, tool, arguments).await;
    let value = result.structured_content.expect("a value");
    assert_eq!(result.is_error, Some(true), "{tool}: {value}");
    assert!(value["message"].is_string(), "{value}");
    value["code"].as_str().expect("a code").to_owned()
}

async fn tool_names(client: &Client) -> Vec<String> {
    let tools = client.list_all_tools().await.expect("a list");
    tools.iter().map(|tool| tool.name.to_string()).collect()
}

async fn a_model_reads_starts_and_controls_runs(kind: Kind) {
    let server = Server::start_with(kind, Options { mcp_at_root: true, ..open() }).await;
    for (path, lifecycle) in
        [("/mcp", discover()), ("//mcp", ClientLifecycleMode::Initialize), ("/mcp/", discover())]
    {
        let client = connect(&server, path, None, ClientCapabilities::default(), lifecycle).await;
        let info = client.peer_info().expect("the server has introduced itself");
        let name = info.server_info.as_ref().map(|info| info.name.as_str());
        assert_eq!(name, Some("windlass"), "{path}");
        assert_eq!(tool_names(&client).await.len(), 16, "{path}");
    }
    let client = connect(&server, "/mcp", None, ClientCapabilities::default(), discover()).await;
    let tools = client.list_all_tools().await.unwrap();
    let control = tools.iter().find(|tool| tool.name == "control_run").unwrap();
    let hints = control.annotations.as_ref().expect("annotations");
    assert_eq!((hints.destructive_hint, hints.read_only_hint), (Some(true), Some(false)));

    let run = json!({ "workflow": "approve", "id": "one" });
    let with = |more: Value| {
        let mut arguments = run.clone();
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        arguments
    };
    let labels = json!({ "params": { "a": 1 }, "labels": { "team": "x" } });
    let started = call_ok(&client, "start_run", with(labels.clone())).await;
    assert_eq!((&started["id"], &started["workflow"]), (&json!("one"), &json!("approve")));
    let code = call_error(&client, "start_run", with(labels)).await;
    assert_eq!(code, "INSTANCE_ID_ALREADY_EXISTS");
    server.wait_for_status("approve", "one", "waiting").await;

    let listed =
        json!({ "workflow": "approve", "label": ["team:x"], "status": ["waiting", "active"] });
    let page = call_ok(&client, "list_runs", listed).await;
    assert_eq!(page["runs"].as_array().map(Vec::len), Some(1), "{page}");
    assert_eq!(page["runs"][0]["runKey"], started["runKey"]);
    let found = call_ok(&client, "get_run", run.clone()).await;
    assert_eq!(
        (&found["details"]["status"], &found["meta"]["params"]),
        (&json!("waiting"), &json!({ "a": 1 }))
    );
    let why = call_ok(&client, "why", run.clone()).await;
    assert_eq!(why["reasons"][0]["code"], "awaiting_event", "{why}");
    let workflows = call_ok(&client, "list_workflows", json!({})).await;
    assert!(workflows.to_string().contains("\"approve\""), "{workflows}");

    let event = with(json!({ "type": "approval", "payload": { "by": "ann" }, "eventId": "e1" }));
    for _ in 0..2 {
        call_ok(&client, "send_event", event.clone()).await;
    }
    wait_until("the first event is recorded", async || {
        let steps = call_ok(&client, "list_steps", run.clone()).await;
        steps["rows"][0]["state"] == "completed" && steps["rows"][1]["state"] == "waiting"
    })
    .await;
    let body = with(json!({ "of": "stepResult", "stepKey": "first" }));
    let body = call_ok(&client, "read_body", body).await;
    assert_eq!(body["text"], r#"{"by":"ann"}"#, "{body}");
    let ledger = call_ok(&client, "list_ledger", with(json!({ "pageSize": 2 }))).await;
    assert_eq!(ledger["events"].as_array().map(Vec::len), Some(2));
    let more = with(json!({ "pageSize": 2, "cursor": ledger["nextCursor"] }));
    let more = call_ok(&client, "list_ledger", more).await;
    assert_eq!(more["events"][0]["ordinal"], 2, "{more}");

    for (action, accepted) in [("pause", true), ("resume", false), ("terminate", true)] {
        let dry = with(json!({ "action": action, "dryRun": true }));
        let dry = call_ok(&client, "control_run", dry).await;
        assert_eq!((&dry["accepted"], &dry["dryRun"]), (&json!(accepted), &json!(true)), "{dry}");
        assert_eq!(dry["run"]["runKey"], started["runKey"]);
        assert_eq!(
            server.get_ok("/workflows/approve/instances/one").await["details"]["status"],
            "waiting"
        );
    }
    for (action, status) in [
        ("pause", "paused"),
        ("resume", "waiting"),
        ("cancel", "terminated"),
        ("restart", "waiting"),
        ("terminate", "terminated"),
    ] {
        let reason = matches!(action, "cancel" | "terminate").then_some("it is a test");
        call_ok(&client, "control_run", with(json!({ "action": action, "reason": reason }))).await;
        server.wait_for_status("approve", "one", status).await;
    }
    assert_eq!(
        call_error(&client, "control_run", with(json!({ "action": "retry" }))).await,
        "INSTANCE_NOT_ERRORED"
    );
    let reason = with(json!({ "action": "pause", "reason": "x" }));
    assert_eq!(call_error(&client, "control_run", reason).await, "INVALID_ARGUMENT");

    server.run("outside", "letter", json!({}), "waiting").await;
    let fail = async |_: windlass::TaskContext, _: Value| {
        Err::<Value, _>(windlass::AnyError::from(windlass::steps::NonRetryable::new("broken")))
    };
    server.engine.activity("nobody-does-this", fail).unwrap();
    wait_until("the task is a dead letter", async || {
        let letters = call_ok(&client, "list_dead_letters", json!({ "pageSize": 1 })).await;
        letters["entries"][0]["activity_type"] == "nobody-does-this"
    })
    .await;

    let hits = call_ok(&client, "search_docs", json!({ "query": "RUN_NOT_ERRORED" })).await;
    let page = hits["hits"][0]["page"].clone();
    assert_eq!(page, "errors/RUN_NOT_ERRORED.md", "{hits}");
    let text = call_ok(&client, "read_doc", json!({ "page": page, "length": 17 })).await;
    assert_eq!(text["text"], "# RUN_NOT_ERRORED", "{text}");
    assert_eq!(
        call_error(&client, "read_doc", json!({ "page": "../README.md" })).await,
        "INVALID_ARGUMENT"
    );
    server.stop().await;
}

async fn scopes_and_namespaces_are_those_of_the_key(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let keys = KeyFactory::new(&store, &server);
    let run = json!({ "workflow": "nap", "id": "one" });
    let client = async |namespace: &str, scopes: &[Scope]| {
        let key = keys.key(namespace, scopes).await;
        let none = ClientCapabilities::default();
        connect(&server, "/mcp", Some(&key), none, ClientLifecycleMode::Initialize).await
    };
    let starter = client("ours", &[Scope::Create]).await;
    assert_eq!(tool_names(&starter).await, ["start_run", "search_docs", "read_doc"]);
    let started = call_ok(&starter, "start_run", run.clone()).await;
    // Only callers who may read a run learn its key.
    assert_eq!((&started["id"], &started["runKey"]), (&json!("one"), &Value::Null), "{started}");
    assert_eq!(call_error(&starter, "get_run", run.clone()).await, "FORBIDDEN");

    let reader = client("ours", &[Scope::Read]).await;
    let names = tool_names(&reader).await;
    for hidden in ["start_run", "send_event", "control_run", "decide", "list_inbox"] {
        assert!(!names.iter().any(|name| name == hidden), "{hidden}");
    }
    assert_eq!(call_ok(&reader, "get_run", run.clone()).await["id"], "one");
    let mut terminate = run.clone();
    terminate["action"] = "terminate".into();
    assert_eq!(call_error(&reader, "control_run", terminate.clone()).await, "FORBIDDEN");

    let other = client("theirs", &[Scope::Admin]).await;
    for (tool, arguments) in [("get_run", &run), ("control_run", &terminate), ("why", &run)] {
        assert_eq!(
            call_error(&other, tool, arguments.clone()).await,
            "INSTANCE_NOT_FOUND",
            "{tool}"
        );
    }
    let seen = call_ok(&other, "list_runs", json!({})).await;
    assert_eq!(seen["runs"], json!([]));
    let status = call_ok(&reader, "get_run", run).await["details"]["status"].clone();
    assert!(status == "waiting" || status == "active", "{status}");
    server.stop().await;
}

async fn start_task(client: &Client, arguments: Value) -> Task {
    let arguments = arguments.as_object().cloned().unwrap();
    let params = CallToolRequestParams::new("start_run").with_arguments(arguments);
    match client.peer().call_tool_once(params).await.expect("an answer") {
        CallToolResponse::Task(created) => created.task,
        other => panic!("no task: {other:?}"),
    }
}

async fn wait_for_task(client: &Client, id: &str, status: TaskStatus) -> TaskPayload {
    let get = async || client.peer().get_task(GetTaskParams::new(id)).await.unwrap().task;
    wait_until("the task has the status", async || get().await.status() == status).await;
    get().await.payload
}

async fn a_run_is_a_task(kind: Kind) {
    let server = Server::start(kind).await;
    let tasks = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let client = connect(&server, "/mcp", None, capabilities(tasks), discover()).await;

    let task = start_task(&client, json!({ "workflow": "greet", "params": "Ann" })).await;
    assert_eq!((task.status, task.ttl_ms), (TaskStatus::Working, None));
    let payload = wait_for_task(&client, &task.task_id, TaskStatus::Completed).await;
    let TaskPayload::Completed { result } = payload else { panic!("no result: {payload:?}") };
    assert_eq!(result["isError"], false);
    assert_eq!(result["structuredContent"]["output"], "Hello, Ann!");
    assert_eq!(result["structuredContent"]["runKey"], task.task_id);

    // A failed run is a result that the model reads. A retry is still the same task.
    let failed = start_task(&client, json!({ "workflow": "charge", "id": "c", "params": 0 })).await;
    let payload = wait_for_task(&client, &failed.task_id, TaskStatus::Completed).await;
    let TaskPayload::Completed { result } = payload else { panic!("no result: {payload:?}") };
    assert_eq!(result["isError"], true);
    assert!(result["structuredContent"]["error"]["message"].is_string(), "{result:?}");
    let nap = start_task(&client, json!({ "workflow": "nap", "id": "n" })).await;
    server.wait_for_status("nap", "n", "waiting").await;
    server.post_ok("/workflows/nap/instances/n/restart", json!({})).await;
    wait_for_task(&client, &nap.task_id, TaskStatus::Working).await;
    client.peer().cancel_task(CancelTaskParams::new(&*nap.task_id)).await.expect("it is cancelled");
    wait_for_task(&client, &nap.task_id, TaskStatus::Cancelled).await;
    server.wait_for_status("nap", "n", "terminated").await;
    // Another cancellation comes too late and is no error.
    client.peer().cancel_task(CancelTaskParams::new(&*nap.task_id)).await.expect("it is cancelled");

    let unknown = GetTaskParams::new("00000000-0000-7000-8000-000000000000");
    let error = client.peer().get_task(unknown).await.unwrap_err();
    assert_eq!(code_of(&error), Some(ErrorCode::INVALID_PARAMS), "{error}");

    // A client that does not know tasks gets the run as a result, and no methods of tasks.
    let plain = connect(&server, "/mcp", None, ClientCapabilities::default(), discover()).await;
    let started = call_ok(&plain, "start_run", json!({ "workflow": "greet" })).await;
    assert!(started["runKey"].is_string(), "{started}");
    let error = plain.peer().get_task(GetTaskParams::new(&*task.task_id)).await.unwrap_err();
    assert_eq!(code_of(&error), Some(ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY), "{error}");
    server.stop().await;
}

fn code_of(error: &ServiceError) -> Option<ErrorCode> {
    match error {
        ServiceError::McpError(ErrorData { code, .. }) => Some(*code),
        _ => None,
    }
}

async fn ask(ctx: Ctx, request: Request) -> Result<RequestOutcome> {
    Ok(ctx.request("approve", request).await?)
}

async fn a_request_to_a_person_is_input_of_a_task(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    server.engine.workflow("ask", ask).unwrap();
    let keys = KeyFactory::new(&store, &server);
    let scopes = [Scope::Read, Scope::Create, Scope::Decide];
    let ann = keys.of_person("default", &scopes, "ann", None).await;
    let zoe = keys.of_person("default", &scopes, "zoe", None).await;
    let all = json!({
        "extensions": { "io.modelcontextprotocol/tasks": {} }, "elicitation": { "form": {} },
    });
    let tasks = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let client = async |key: &str, json: &Value| {
        connect(&server, "/mcp", Some(key), capabilities(json.clone()), discover()).await
    };
    let (asked, other, blind) =
        (client(&ann, &all).await, client(&zoe, &all).await, client(&ann, &tasks).await);
    let schema = json!({ "type": "object", "properties": { "cost": { "type": "number" } }, "required": ["cost"] });
    let request = Request::to("ann").title("Pay").text("500 EUR").schema(schema);
    let params = serde_json::to_value(&request).unwrap();
    let task = start_task(&asked, json!({ "workflow": "ask", "params": params })).await;
    let id = task.task_id.as_str();
    let payload = wait_for_task(&asked, id, TaskStatus::InputRequired).await;
    let TaskPayload::InputRequired { input_requests } = payload else { panic!("{payload:?}") };
    let (key, form) = input_requests.first_key_value().expect("one request");
    let InputRequest::Elicitation(form) = form else { panic!("{form:?}") };
    let form = serde_json::to_value(form).unwrap();
    assert_eq!(form["params"]["message"], "Pay\n\n500 EUR", "{form}");
    assert_eq!(
        form["params"]["requestedSchema"]["properties"]["choice"]["enum"],
        json!(["approve", "reject"])
    );
    // Neither another person nor a client that cannot ask gets the form.
    for client in [&other, &blind] {
        let task = client.peer().get_task(GetTaskParams::new(id)).await.unwrap().task;
        assert_eq!(task.status(), TaskStatus::Working);
    }
    let inbox = call_ok(&asked, "list_inbox", json!({})).await;
    assert_eq!(inbox["requests"][0]["id"], *key, "{inbox}");
    assert_eq!(call_ok(&other, "list_inbox", json!({})).await["requests"], json!([]));
    // A dry run decides nothing.
    let dry = |choice: &str| json!({ "request": key, "choice": choice, "dryRun": true });
    let preview = call_ok(&asked, "decide", dry("approve")).await;
    assert_eq!(
        (&preview["accepted"], &preview["request"]["status"]),
        (&json!(true), &json!("open"))
    );
    assert!(preview["effect"].as_str().unwrap().contains("approval 1 of 1"), "{preview}");
    assert_eq!(call_ok(&asked, "decide", dry("perhaps")).await["accepted"], false);
    assert_eq!(call_ok(&asked, "get_request", json!({ "request": key })).await["status"], "open");
    let decide = json!({ "request": key, "choice": "approve", "answer": { "cost": 1 } });
    assert_eq!(call_error(&other, "decide", decide).await, "NOT_ASSIGNED");
    assert_eq!(call_ok(&asked, "get_request", json!({ "request": key })).await["title"], "Pay");

    let update = async |client: &Client, content: Value, action: &str| {
        let response = json!({ "action": action, "content": content });
        let responses = [(key.clone(), response), ("unknown".to_owned(), json!({}))];
        let params = UpdateTaskParams::new(id, responses.into_iter().collect());
        client.peer().update_task(params).await
    };
    // A person who declines decides nothing. Neither does an answer that does not fit.
    update(&asked, json!({}), "decline").await.expect("it is acknowledged");
    update(&other, json!({ "choice": "approve" }), "accept").await.expect("it changes nothing");
    for content in [
        json!({}),
        json!({ "choice": "perhaps" }),
        json!({ "choice": "approve", "answer": "{" }),
        json!({ "choice": "approve", "answer": r#"{"cost":"much"}"# }),
    ] {
        let error = update(&asked, content.clone(), "accept").await.unwrap_err();
        assert_eq!(code_of(&error), Some(ErrorCode::INVALID_PARAMS), "{content}: {error}");
    }
    wait_for_task(&asked, id, TaskStatus::InputRequired).await;
    let content = json!({ "choice": "approve", "answer": r#"{"cost":500}"#, "comment": "fine" });
    update(&asked, content, "accept").await.expect("it is acknowledged");
    let payload = wait_for_task(&asked, id, TaskStatus::Completed).await;
    let TaskPayload::Completed { result } = payload else { panic!("no result: {payload:?}") };
    let text = result["structuredContent"]["output"].to_string();
    assert!(text.contains("\"cost\":500") && text.contains("\"ann\""), "{text}");
    server.stop().await;
}

async fn large_values_are_left_out_and_read_in_parts(kind: Kind) {
    let server = Server::start(kind).await;
    let client = connect(&server, "/mcp", None, ClientCapabilities::default(), discover()).await;
    let name = "ä".repeat(50_000);
    let run = json!({ "workflow": "greet", "id": "large" });
    server.run("greet", "large", json!(name), "complete").await;
    let found = call_ok(&client, "get_run", run.clone()).await;
    for body in [&found["meta"]["params"], &found["details"]["output"]] {
        assert_eq!(
            (&body["omitted"], body["bytes"].as_u64() > Some(100_000)),
            (&json!(true), true)
        );
    }
    assert!(found.to_string().len() < 8_192, "{} bytes", found.to_string().len());
    let page = call_ok(&client, "list_runs", json!({})).await;
    assert!(page.to_string().len() < 4_096, "{} bytes", page.to_string().len());
    let (mut text, mut offset) = (String::new(), json!(0));
    while !offset.is_null() {
        let mut part = run.clone();
        part["of"] = "output".into();
        part["offset"] = offset;
        part["length"] = 30_001.into();
        let part = call_ok(&client, "read_body", part).await;
        text.push_str(part["text"].as_str().unwrap());
        offset = part["nextOffset"].clone();
    }
    assert_eq!(text, serde_json::to_string(&format!("Hello, {name}!")).unwrap());
    for (tool, arguments) in [
        ("list_runs", json!({ "pageSize": 51 })),
        ("list_runs", json!({ "cursor": "" })),
        ("list_runs", json!({ "workflow": "w".repeat(4_097) })),
        ("read_body", json!({ "workflow": "greet", "id": "large", "of": "stepInput" })),
        (
            "read_body",
            json!({ "workflow": "greet", "id": "large", "of": "output", "length": 65_537 }),
        ),
        ("search_docs", json!({ "query": "x", "limit": 11 })),
        ("get_run", json!({ "workflow": "greet", "id": "" })),
        ("get_run", json!({ "workflow": "greet", "id": "large", "more": 1 })),
    ] {
        assert_eq!(
            call_error(&client, tool, arguments.clone()).await,
            "INVALID_ARGUMENT",
            "{tool} {arguments}"
        );
    }
    for (tool, arguments, code) in [
        ("list_runs", json!({ "cursor": "AAAA" }), "INVALID_CURSOR"),
        ("list_runs", json!({ "status": ["done"] }), "INVALID_STATUS"),
        ("get_run", json!({ "workflow": "greet", "id": "../x" }), "INSTANCE_NOT_FOUND"),
        ("start_run", json!({ "workflow": "nobody" }), "WORKFLOW_NOT_FOUND"),
    ] {
        assert_eq!(call_error(&client, tool, arguments.clone()).await, code, "{tool} {arguments}");
    }
    server.stop().await;
}

async fn malformed_calls_are_errors_of_the_protocol(kind: Kind) {
    let server = Server::start(kind).await;
    let post = async |text: String, headers: &[(&str, &str)]| {
        let mut request = server.request(Method::POST, "/mcp").body(text);
        request = request.header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    };
    let message = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string()
    };
    let tool = |params: Value| message("tools/call", params);
    for (text, status, code) in [
        ("{".to_owned(), 400, -32700),
        ("[]".to_owned(), 400, -32600),
        ("{\"jsonrpc\":\"2.0\"}".to_owned(), 400, -32600),
        (message("nothing", json!({})), 200, -32601),
        (message("resources/list", json!({})), 200, -32601),
        (message("tasks/get", json!({ "taskId": "x" })), 200, -32601),
        (message("tools/list", json!({ "cursor": "x" })), 200, -32602),
        (tool(json!({})), 200, -32602),
        (tool(json!({ "name": 7 })), 200, -32602),
        (tool(json!({ "name": "nothing" })), 200, -32602),
        (tool(json!({ "name": "get_run", "arguments": [] })), 200, -32602),
        (message("server/discover", json!({})), 400, -32602),
    ] {
        let (found, body) = post(text.clone(), &[]).await;
        assert_eq!((found, &body["error"]["code"]), (status, &json!(code)), "{text}: {body}");
        assert!(body["error"]["message"].is_string(), "{body}");
    }
    let meta = |version: &str| {
        json!({ "_meta": {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }})
    };
    let (new, future) = ("2026-07-28", "2099-01-01");
    for (text, version, method, status, code) in [
        (message("ping", meta(new)), new, "ping", 404, -32601),
        (message("tools/list", meta(new)), new, "tools/call", 400, -32020),
        (message("tools/list", meta(new)), "2025-11-25", "tools/list", 400, -32020),
        (message("tools/list", meta(future)), future, "tools/list", 400, -32022),
    ] {
        let headers = [("mcp-protocol-version", version), ("mcp-method", method)];
        let (found, body) = post(text.clone(), &headers).await;
        assert_eq!((found, &body["error"]["code"]), (status, &json!(code)), "{text}: {body}");
    }
    // Notifications and responses have no answer.
    for text in [
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": 1, "result": {} }),
    ] {
        assert_eq!(post(text.to_string(), &[]).await.0, 202);
    }
    // Errors of HTTP are the same as on every other route.
    let plain =
        server.request(Method::POST, "/mcp").body("{}").header("content-type", "text/plain");
    assert_eq!(read(plain).await.0, 415);
    let large = format!("\"{}\"", "x".repeat(3 * 1024 * 1024));
    let large = server.request(Method::POST, "/mcp").body(large);
    assert_eq!(read(large.header("content-type", "application/json")).await.0, 413);
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(read(server.request(method, "/mcp")).await.0, 405);
    }
    let foreign = server.request(Method::POST, "/mcp").header("origin", "https://evil.example");
    assert_eq!(read(foreign).await.0, 403);
    server.stop().await;
}
