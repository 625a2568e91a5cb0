//! Traces and metrics of agents, with the names of the GenAI conventions.

use std::process::Command;

use serde_json::{Value, json};
use windlass_testkit::scripted_llm::{Op, Rule, Script, ScriptedLlm, When};

use crate::collector::{Collector, Point, Received, Span};
use crate::support::{Server, http_client, sqlite_in, wait_until, windlass};

const MODEL: &str = "claude-haiku-4-5";
/// A model is asked this, calls the tool `add` with 4711 and 1, and tells the sum.
const QUESTION: &str = "What is s3cr3t plus one?";
const CONTENT: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

fn provider(hangs_first: bool) -> ScriptedLlm {
    let mut script = Script::new();
    if hangs_first {
        script = script.rule(Rule::any().text("late").delay_ms(600_000).times(1));
    }
    let script = script
        .rule(Rule::when(When::turn(0)).tool("add", json!({ "a": 4711, "b": 1 })))
        .rule(Rule::any().text("The s3cr3t sum is {{input}}"));
    ScriptedLlm::start(script).unwrap()
}

fn server(service: &str, store: &str, llm: &ScriptedLlm, collector: &Collector) -> Command {
    let mut command = windlass();
    command.args(["server", "--auth", "off", "--samples", "--bind", "127.0.0.1:0"]);
    command.args(["--log", "error", "--store", store]);
    command.env("ANTHROPIC_API_KEY", "key").env("ANTHROPIC_BASE_URL", llm.url());
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    command.env("OTEL_SERVICE_NAME", service);
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "100").env("OTEL_BSP_SCHEDULE_DELAY", "100");
    command.env_remove(CONTENT);
    command
}

fn ask(server: &Server, wait: bool) {
    let params = json!({ "question": QUESTION }).to_string();
    let mut create = vec!["runs", "create", "ask/a-1", "--params", params.as_str()];
    create.extend(wait.then_some("--wait"));
    server.run(&create).expect(0);
}

fn spans<'a>(received: &'a Received, start: &str) -> Vec<&'a Span> {
    received.spans.iter().filter(|span| span.name.starts_with(start)).collect()
}

#[test]
fn a_run_of_an_agent_is_one_trace_over_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (collector, llm) = (Collector::start(), provider(true));
    let store = sqlite_in(folder.path(), "agents.db");
    let has = |test: &dyn Fn(&Received) -> bool| test(&collector.received.lock().unwrap());

    // The first process dies while the model is asked.
    let first = Server::spawn(server("first", &store, &llm, &collector));
    ask(&first, false);
    wait_until("the model is asked", || llm.report().count(Op::Live) == 1);
    wait_until("the start is exported", || {
        has(&|r| !spans(r, "durable.workflow.start").is_empty())
    });
    first.kill();
    let second = Server::spawn(server("second", &store, &llm, &collector));
    wait_until("the run has its answer", || {
        let shown = second.run(&["runs", "get", "ask/a-1", "-o", "json"]).expect(0).stdout;
        shown.contains("The s3cr3t sum is 4712")
    });
    assert_eq!(second.terminate(), Some(0));

    let received = collector.received.lock().unwrap();
    assert_eq!(received.refused, Vec::<String>::new());
    let start = spans(&received, "durable.workflow.start")[0];
    assert_eq!(start.service, "first");
    let trace = |span: &Span| span.trace == start.trace;
    let chats = spans(&received, "chat ");
    assert!(chats.iter().all(|span| span.service == "second" && trace(span)), "{chats:#?}");
    let names = |spans: &[&Span]| spans.iter().map(|span| span.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&chats), [format!("chat {MODEL}"), format!("chat {MODEL}")]);
    let invoked = spans(&received, "invoke_");
    assert!(invoked.iter().all(|span| trace(span)), "{invoked:#?}");
    let one = |name: &str, id: &str| -> &Span {
        let found = invoked.iter().find(|span| span.name == name && span.id == id);
        found.unwrap_or_else(|| panic!("no {name} has the id {id} in {invoked:#?}"))
    };
    let loop_span = one("invoke_agent chat", &chats[0].parent);
    assert_eq!(loop_span.attributes["gen_ai.agent.name"], "chat");
    let workflow = one("invoke_workflow ask", &loop_span.parent);
    assert_eq!(workflow.attributes["gen_ai.workflow.name"], "ask");
    let turns: Vec<_> = received.spans_named("durable.workflow.run").collect();
    let turn = turns.iter().find(|turn| turn.id == workflow.parent).unwrap();
    assert_eq!((turn.parent.as_str(), trace(turn)), (start.id.as_str(), true));

    let root = &start.attributes["durable.workflow.id"];
    for (span, attempt, reason, input) in
        [(chats[0], "2", "tool_use", true), (chats[1], "1", "end_turn", false)]
    {
        assert!(span.is_client, "{span:?}");
        for (name, expect) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "anthropic"),
            ("gen_ai.request.model", MODEL),
            ("gen_ai.response.model", MODEL),
            ("gen_ai.request.max_tokens", "1024"),
            ("gen_ai.conversation.id", root.as_str()),
            ("gen_ai.agent.name", "chat"),
            ("gen_ai.workflow.name", "ask"),
            ("server.address", "127.0.0.1"),
            ("windlass.llm.lane", "live"),
            ("windlass.llm.attempt", attempt),
        ] {
            assert_eq!(span.attributes.get(name).map(String::as_str), Some(expect), "{name}");
        }
        // The conventions want a list.
        let reasons = &span.attributes["gen_ai.response.finish_reasons"];
        assert!(reasons.contains("ArrayValue") && reasons.contains(reason), "{reasons}");
        let number = |name: &str| span.attributes[name].parse::<f64>().unwrap();
        assert!(number("gen_ai.usage.input_tokens") > 0.0, "{input}");
        assert!(number("gen_ai.usage.output_tokens") > 0.0);
        assert!(number("windlass.llm.cost") > 0.0);
    }
    let tools = spans(&received, "execute_tool ");
    assert_eq!(names(&tools), ["execute_tool add"]);
    assert_eq!((&tools[0].parent, trace(tools[0])), (&loop_span.id, true));
    assert!(tools[0].attributes["gen_ai.tool.call.id"].starts_with("toolu_"), "{tools:?}");
}

#[test]
fn usage_and_cost_are_counted_and_no_content_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let (collector, llm) = (Collector::start(), provider(false));
    let store = sqlite_in(folder.path(), "agents.db");
    let quiet = Server::spawn(server("quiet", &store, &llm, &collector));
    ask(&quiet, true);
    wait_until("the usage is exported", || {
        let received = collector.received.lock().unwrap();
        let tokens = received.points.iter().filter(|p| p.metric == "gen_ai.client.token.usage");
        // The two calls have the same attributes.
        tokens.filter(|p| p.count == 2).count() == 2
    });
    assert_eq!(quiet.terminate(), Some(0));
    let received = collector.received.lock().unwrap();
    let chats = spans(&received, "chat ");
    let points: Vec<&Point> = received.points.iter().collect();
    let sum = |metric: &str, with: (&str, &str)| -> f64 {
        let of = |p: &&&Point| {
            p.metric == metric && p.attributes.get(with.0).map(String::as_str) == Some(with.1)
        };
        points.iter().filter(of).map(|p| p.sum).sum()
    };
    let total = |name: &str| -> f64 {
        chats.iter().map(|span| span.attributes[name].parse::<f64>().unwrap()).sum()
    };
    for (kind, attribute) in
        [("input", "gen_ai.usage.input_tokens"), ("output", "gen_ai.usage.output_tokens")]
    {
        let counted = sum("gen_ai.client.token.usage", ("gen_ai.token.type", kind));
        assert_eq!(counted, total(attribute), "{kind} in {points:#?}");
    }
    let cost = sum("windlass.llm.cost", ("gen_ai.request.model", MODEL));
    assert!((cost - total("windlass.llm.cost")).abs() < 1e-12, "{cost}");
    let durations: u64 = points
        .iter()
        .filter(|p| p.metric == "gen_ai.client.operation.duration")
        .map(|p| p.count)
        .sum();
    assert_eq!(durations, 2);

    // Nothing that was said has left the process.
    for said in ["s3cr3t", "4711", "4712"] {
        let told = received.bodies.iter().any(|body| contains(body, said.as_bytes()));
        assert!(!told, "{said:?} was exported");
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

#[test]
fn content_is_exported_if_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (collector, llm) = (Collector::start(), provider(false));
    let store = sqlite_in(folder.path(), "agents.db");
    let mut command = server("open", &store, &llm, &collector);
    command.env(CONTENT, "true");
    let open = Server::spawn(command);
    ask(&open, true);
    assert_eq!(open.terminate(), Some(0));
    let received = collector.received.lock().unwrap();
    let chats = spans(&received, "chat ");
    let json = |span: &Span, name: &str| -> Value {
        serde_json::from_str(&span.attributes[name]).unwrap()
    };
    assert_eq!(
        json(chats[0], "gen_ai.input.messages"),
        json!([{ "role": "user", "parts": [{ "type": "text", "content": QUESTION }] }])
    );
    let called = json(chats[0], "gen_ai.output.messages");
    assert_eq!(called[0]["finish_reason"], "tool_use");
    assert_eq!(called[0]["parts"][0]["arguments"], json!({ "a": 4711, "b": 1 }));
    assert_eq!(json(chats[0], "gen_ai.tool.definitions")[0]["name"], "add");
    assert_eq!(
        json(chats[1], "gen_ai.output.messages"),
        json!([{
            "role": "assistant", "finish_reason": "end_turn",
            "parts": [{ "type": "text", "content": "The s3cr3t sum is 4712.0" }],
        }])
    );
    let tool = spans(&received, "execute_tool ")[0];
    assert_eq!(json(tool, "gen_ai.tool.call.arguments"), json!({ "a": 4711, "b": 1 }));
    assert_eq!(tool.attributes["gen_ai.tool.call.result"], "4712.0");
}

#[test]
fn an_unknown_value_of_the_content_setting_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (collector, llm) = (Collector::start(), provider(false));
    let mut command = server("wrong", &sqlite_in(folder.path(), "x.db"), &llm, &collector);
    command.env(CONTENT, "maybe");
    let output = crate::support::run(command);
    assert_ne!(output.code, 0);
    assert!(output.stderr.contains(CONTENT) && output.stderr.contains("maybe"), "{output:?}");
}

#[test]
fn requests_of_mcp_have_spans_with_the_name_of_their_method() {
    let folder = tempfile::tempdir().unwrap();
    let (collector, llm) = (Collector::start(), provider(false));
    let store = sqlite_in(folder.path(), "agents.db");
    let served = Server::spawn(server("mcp", &store, &llm, &collector));
    let url = format!("{}/mcp", served.url);
    let post = |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let sent = http_client().post(&url).json(&body);
        let sent = sent.header("accept", "application/json, text/event-stream").send();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(sent).unwrap().status().is_success(), "{method}");
    };
    post("tools/list", json!({}));
    post("tools/call", json!({ "name": "list_runs", "arguments": {} }));
    let missing = json!({ "workflow": "ask", "id": "none" });
    post("tools/call", json!({ "name": "get_run", "arguments": missing }));
    post("s3cr3t", json!({}));
    assert_eq!(served.terminate(), Some(0));
    let received = collector.received.lock().unwrap();
    for (name, method, error) in [
        ("tools/list", "tools/list", None),
        ("tools/call list_runs", "tools/call", None),
        ("tools/call get_run", "tools/call", Some("tool_error")),
        ("_OTHER", "_OTHER", Some("-32601")),
    ] {
        let found = received.spans.iter().find(|span| span.name == name);
        let span = found.unwrap_or_else(|| panic!("no span {name}: {:#?}", received.spans));
        let attribute = |name: &str| span.attributes.get(name).map(String::as_str);
        assert_eq!(attribute("mcp.method.name"), Some(method), "{name}");
        assert_eq!(attribute("error.type"), error, "{name}");
    }
    // A method that a client invents is no name of a span.
    assert!(received.bodies.iter().all(|body| !contains(body, b"s3cr3t")));
}
