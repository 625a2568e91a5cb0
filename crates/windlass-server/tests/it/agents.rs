//! Conversations, live calls and checks of agents over HTTP.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use windlass::admin::Options as EngineOptions;
use windlass::agents::{
    Agent, CallResult, Continuation, LlmRequest, Provider, ProviderError, ProviderErrorKind,
    ProviderRequest, ProviderResponse, RateLimits, StreamPart, TokenSink, Usage, WireFormat,
    Workflow,
};
use windlass::kernel::BoxFuture;

use crate::harness::{Kind, Server, assert_error, on_every_store, wait_until};
use crate::live::{kinds, read_events};

on_every_store!(
    a_conversation_is_read_in_pages,
    tokens_arrive_while_the_call_runs,
    a_check_reads_all_live_runs,
    a_timeline_has_the_attempts_of_calls,
);

/// Gives a first part at once, and the rest when the test says so.
struct Gated {
    gate: Arc<Semaphore>,
    streamed: Mutex<Vec<bool>>,
}

impl Gated {
    fn new(open: bool) -> Arc<Self> {
        let gate = Arc::new(Semaphore::new(if open { 1_000 } else { 0 }));
        Arc::new(Self { gate, streamed: Mutex::default() })
    }
}

impl Provider for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    fn wire_format(&self) -> WireFormat {
        WireFormat::AnthropicMessages
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        Box::pin(async move {
            self.streamed.lock().push(request.stream);
            sink.part(StreamPart::Text("Hel"));
            self.gate.acquire().await.expect("the gate stays").forget();
            sink.part(StreamPart::Text("lo"));
            let body = json!({ "content": [{ "type": "text", "text": "Hello" }] });
            Ok(ProviderResponse {
                body: body.to_string().into(),
                content: Vec::new(),
                stop_reason: Some("end_turn".into()),
                model: None,
                usage: Usage { input_tokens: 5, output_tokens: 2, ..Usage::default() },
                message_id: None,
                request_id: None,
                rate_limits: RateLimits::default(),
            })
        })
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("<b>hi</b>")?;
    let request = LlmRequest::new("gated", "m").transcript("chat").stream();
    Ok(next.llm(request, "answer", "answered"))
}

async fn answered(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let turns: u32 = workflow.value("turns").and_then(Value::as_u64).unwrap_or(1) as u32;
    if turns > 1 {
        workflow.set("turns", &(turns - 1))?;
        return Ok(next.call("ask"));
    }
    Ok(next.halt())
}

fn agent(provider: &Arc<Gated>) -> Agent {
    Agent::new("talker", "ask")
        .function("ask", ask)
        .function("answered", answered)
        .provider(Arc::clone(provider) as Arc<dyn Provider>)
}

async fn a_conversation_is_read_in_pages(kind: Kind) {
    let server = Server::start(kind).await;
    server.engine.agent(agent(&Gated::new(true))).unwrap();
    server.run("talker", "t", json!({ "turns": 3 }), "complete").await;
    let at = "/workflows/talker/instances/t/transcript";
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get_ok(&format!("{at}?pageSize=4&name=chat{cursor}")).await;
        let info = json!([{ "name": "chat", "format": "anthropic_messages", "items": 6 }]);
        assert_eq!((&page["transcripts"], &page["name"]), (&info, &json!("chat")));
        items.extend(page["items"].as_array().unwrap().clone());
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(items.len(), 6);
    assert_eq!(items[0], json!({ "role": "user", "content": "<b>hi</b>" }));
    assert_eq!(items[5]["content"][0]["text"], "Hello");
    let all = server.get_ok(at).await;
    assert_eq!(all["items"].as_array().unwrap().len(), 6, "the first conversation is the default");
    assert_error(server.get(&format!("{at}?name=none")).await, (404, "TRANSCRIPT_NOT_FOUND"));
    assert_error(server.get(&format!("{at}?pageSize=0")).await, (400, "INVALID_PAGE_SIZE"));
    assert_error(server.get(&format!("{at}?cursor=x")).await, (400, "INVALID_CURSOR"));
    server.run("greet", "g", json!("Ann"), "complete").await;
    for route in ["transcript", "tokens"] {
        let found = server.get(&format!("/workflows/greet/instances/g/{route}")).await;
        assert_error(found, (404, "TRANSCRIPT_NOT_FOUND"));
    }
    server.stop().await;
}

async fn tokens_arrive_while_the_call_runs(kind: Kind) {
    let server = Server::start(kind).await;
    let provider = Gated::new(false);
    let talkers = server.engine.agent(agent(&provider)).unwrap();
    let run = talkers.start(json!({})).id("t").await.unwrap();
    let at = "/workflows/talker/instances/t/tokens";
    let text = |part: &Value| part["text"].as_str().unwrap_or_default().to_owned();
    // The first part comes although the call has not ended.
    let stream = server.request(Method::GET, at).send().await.unwrap();
    let first = read_events(stream, |received| !kinds(received, "part").is_empty()).await;
    assert_eq!(kinds(&first, "call"), [json!({ "call": "llm:1", "attempt": 1 })]);
    assert_eq!(kinds(&first, "part")[0], json!({ "part": "text", "text": "Hel" }));
    assert!(kinds(&first, "response").is_empty());
    // Another client that comes later gets the same parts, then the rest and the recorded response.
    let stream = server.request(Method::GET, at).send().await.unwrap();
    let gate = Arc::clone(&provider.gate);
    let opens = move |received: &[crate::live::StreamEvent]| {
        if !kinds(received, "part").is_empty() && gate.available_permits() == 0 {
            gate.add_permits(1);
        }
        received.last().is_some_and(|event| event.kind == "end")
    };
    let received = read_events(stream, opens).await;
    let parts: String = kinds(&received, "part").iter().map(text).collect();
    assert_eq!(parts, "Hello");
    let responses = kinds(&received, "response");
    assert_eq!(responses.len(), 1);
    assert_eq!((&responses[0]["text"], &responses[0]["call"]), (&json!("Hello"), &json!("llm:1")));
    assert_eq!(responses[0]["usage"]["output_tokens"], 2);
    assert_eq!(kinds(&received, "end")[0]["status"], "complete");
    run.result().await.unwrap();
    assert_eq!(*provider.streamed.lock(), [true]);
    // A client that has received the end must not reconnect.
    let last = received.last().unwrap().id.clone();
    let again = server.request(Method::GET, at).header("last-event-id", last);
    assert_eq!(again.send().await.unwrap().status(), 204);
    let wrong = server.request(Method::GET, at).header("last-event-id", "x");
    assert_error(crate::harness::read(wrong).await, (400, "INVALID_CURSOR"));
    server.stop().await;
}

/// Another process runs the call: the stream says so, and gives the text when it is recorded.
async fn a_call_of_another_process_is_elsewhere(kind: Kind) {
    let server = Server::start(kind).await;
    let options = EngineOptions { shared: true, ..EngineOptions::default() };
    let store = Arc::clone(server.engine.admin().store());
    let other = windlass::Builder::from(options).start(store).await.unwrap();
    let provider = Gated::new(false);
    let run = other.agent(agent(&provider)).unwrap().start(json!({})).id("t").await.unwrap();
    let at = "/workflows/talker/instances/t/tokens";
    let stream = server.request(Method::GET, at).send().await.unwrap();
    let gate = Arc::clone(&provider.gate);
    let opens = move |received: &[crate::live::StreamEvent]| {
        if !kinds(received, "elsewhere").is_empty() && gate.available_permits() == 0 {
            gate.add_permits(1);
        }
        received.last().is_some_and(|event| event.kind == "end")
    };
    let received = read_events(stream, opens).await;
    let elsewhere = kinds(&received, "elsewhere");
    assert_eq!(elsewhere.len(), 1, "{received:?}");
    assert_eq!(
        (&elsewhere[0]["code"], &elsewhere[0]["call"]),
        (&json!("STREAM_ELSEWHERE"), &json!("llm:1"))
    );
    assert!(kinds(&received, "part").is_empty());
    assert_eq!(kinds(&received, "response")[0]["text"], "Hello");
    run.result().await.unwrap();
    // Both engines have one store, which the server closes.
    other.core().shutdown(Duration::from_secs(5)).await.unwrap();
    server.stop().await;
}

// Only PostgreSQL is for several processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elsewhere_on_postgres() {
    crate::harness::with_timeout(a_call_of_another_process_is_elsewhere(Kind::Postgres)).await;
}

async fn a_check_reads_all_live_runs(kind: Kind) {
    let server = Server::start(kind).await;
    let provider = Gated::new(false);
    server.engine.agent(agent(&provider)).unwrap();
    for n in 0..3 {
        let body = json!({ "id": format!("t-{n}"), "params": {} });
        server.post_ok("/workflows/talker/instances", body).await;
    }
    wait_until("the calls run", async || provider.streamed.lock().len() == 3).await;
    let served = server.get_ok("/agents").await;
    assert!(served["agents"].as_array().unwrap().contains(&json!({ "name": "talker" })));
    let (mut checked, mut cursor) = (0, String::new());
    loop {
        let page = server.get_ok(&format!("/agents/talker/check?pageSize=2{cursor}")).await;
        checked += page["checked"].as_u64().unwrap();
        assert_eq!(page["unfit"], json!([]));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(checked, 3);
    assert_error(server.get("/agents/greet/check").await, (404, "AGENT_NOT_SERVED"));
    assert_error(server.get("/agents/talker/check?cursor=x").await, (400, "INVALID_CURSOR"));
    provider.gate.add_permits(1_000);
    for n in 0..3 {
        server.wait_for_status("talker", &format!("t-{n}"), "complete").await;
    }
    server.stop().await;
}

/// The first call is refused, later ones are not.
struct Refusing {
    inner: Arc<Gated>,
    refused: Mutex<bool>,
}

impl Provider for Refusing {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn wire_format(&self) -> WireFormat {
        self.inner.wire_format()
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        if !std::mem::replace(&mut *self.refused.lock(), true) {
            let error = ProviderError::new(ProviderErrorKind::Overloaded, "later");
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.call(request, sink)
    }
}

async fn a_timeline_has_the_attempts_of_calls(kind: Kind) {
    let server = Server::start(kind).await;
    let provider = Refusing { inner: Gated::new(true), refused: Mutex::new(false) };
    let policy = windlass::RetryPolicy::constant(windlass::RetryLimit::Times(2), "1 ms");
    let agent = Agent::new("talker", "ask")
        .function("ask", ask)
        .function("answered", answered)
        .retry_policy(policy)
        .provider(Arc::new(provider) as Arc<dyn Provider>);
    server.engine.agent(agent).unwrap();
    server.run("talker", "t", json!({}), "complete").await;
    let at = "/workflows/talker/instances/t";
    let timeline = server.get_ok(&format!("{at}/timeline")).await;
    let rows = timeline["rows"].as_array().unwrap();
    let call = rows.iter().find(|row| row["kind"] == "llm").expect("a call of the model");
    let tries = call["tries"].as_array().unwrap();
    assert_eq!(tries.len(), 2, "{call}");
    assert_eq!((&tries[0]["error"], tries[1].get("error")), (&json!("overloaded"), None));
    for (n, attempt) in tries.iter().enumerate() {
        assert_eq!(attempt["attempt"], json!(n + 1), "{call}");
        let (began, ended) = (attempt["beganAt"].as_str(), attempt["endedAt"].as_str());
        assert!(began.is_some() && began <= ended, "{call}");
    }
    // The stream sends the step as well.
    let stream = server.request(Method::GET, &format!("{at}/live")).send().await.unwrap();
    let seen = read_events(stream, |seen| !kinds(seen, "end").is_empty()).await;
    let steps = kinds(&seen, "step");
    assert!(steps.iter().any(|step| step["stepKey"] == call["stepKey"]), "{steps:?}");
    server.stop().await;
}

// Another process has the old build, and the server the new one, whose upcaster cannot read the env.
async fn a_check_lists_runs_that_cannot_be_resumed(kind: Kind) {
    let server = Server::start(kind).await;
    let options = EngineOptions { shared: true, ..EngineOptions::default() };
    let store = Arc::clone(server.engine.admin().store());
    let other = windlass::Builder::from(options).start(store).await.unwrap();
    let provider = Gated::new(false);
    let run = other.agent(agent(&provider)).unwrap().start(json!({})).id("t").await.unwrap();
    wait_until("the call runs", async || provider.streamed.lock().len() == 1).await;
    let newer = agent(&provider).functions(|functions| {
        functions.register_version("answered", 2, answered);
        functions.upcast("answered", 1, |env| {
            env.remove("missing").map(drop).ok_or_else(|| windlass::AnyError::msg("no such key"))
        });
    });
    server.engine.agent(newer).unwrap();
    let page = server.get_ok("/agents/talker/check").await;
    assert_eq!(page["unfit"].as_array().map(Vec::len), Some(1), "{page}");
    let found = &page["unfit"][0];
    assert_eq!((&found["id"], &found["code"]), (&json!("t"), &json!("AGENT_SNAPSHOT_INVALID")));
    assert_eq!(found["runKey"], json!(run.run_key()));
    let message = found["message"].as_str().unwrap();
    assert!(message.contains("upcaster of function \"answered\" from version 1"), "{message}");
    provider.gate.add_permits(1_000);
    run.result().await.unwrap();
    other.core().shutdown(Duration::from_secs(5)).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfit_on_postgres() {
    let listed = a_check_lists_runs_that_cannot_be_resumed(Kind::Postgres);
    crate::harness::with_timeout(listed).await;
}
