//! The cost of long conversations: the bytes that are written grow with the items and not with their square.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, LlmRequest, Provider, ProviderError, ProviderRequest,
    ProviderResponse, RateLimits, TokenSink, Usage, WireFormat, Workflow,
};
use windlass::kernel::{BoxFuture, LoadSteps, Query};

use crate::harness::{Harness, Kind};

const CALLS: u64 = 1_000;
/// 200,000 tokens of four bytes in 1,000 questions and answers.
const TEXT_BYTES: usize = 400;

struct Long;

impl Provider for Long {
    fn name(&self) -> &str {
        "long"
    }

    fn wire_format(&self) -> WireFormat {
        WireFormat::AnthropicMessages
    }

    fn call<'a>(
        &'a self,
        _: &'a ProviderRequest,
        _: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        let body = json!({ "content": [{ "type": "text", "text": "a".repeat(TEXT_BYTES) }] });
        let response = ProviderResponse {
            body: body.to_string().into(),
            content: Vec::new(),
            stop_reason: Some("end_turn".into()),
            model: Some("m".into()),
            usage: Usage { input_tokens: 7, output_tokens: 3, ..Usage::default() },
            message_id: Some("msg_1".into()),
            request_id: Some("req_1".into()),
            rate_limits: RateLimits::default(),
        };
        Box::pin(async move { Ok(response) })
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let left: u64 = workflow.get("left")?;
    if left == 0 {
        return Ok(next.halt());
    }
    workflow.set("left", &(left - 1))?;
    workflow.transcript("chat").push_user(&"q".repeat(TEXT_BYTES))?;
    let request = LlmRequest::new("long", "m").param("max_tokens", 100).transcript("chat");
    Ok(next.llm(request, "answer", "ask"))
}

// The count does not depend on the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory() {
    crate::harness::run(Kind::Memory, a_long_conversation_is_written_once).await;
}

async fn a_long_conversation_is_written_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("long", "ask").function("ask", ask).output("left");
    let agents = engine.agent(agent.provider(Arc::new(Long))).unwrap();
    let run = agents.start(json!({ "left": CALLS })).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 0);

    let store = engine.admin().store();
    let loaded = store.load_with(vec![run.run_key()], LoadSteps::All).await.unwrap().remove(0);
    let bytes = |body: &Option<windlass::kernel::Body>| body.as_ref().map_or(0, |b| b.len());
    let rows: usize =
        loaded.steps.iter().map(|s| bytes(&s.input) + bytes(&s.result) + bytes(&s.error)).sum();
    let mut events = Vec::new();
    loop {
        let from = events.len() as u64;
        let query = Query::Events { run_key: run.run_key(), from, limit: 1_000 };
        let page = store.list(query).await.unwrap().events().unwrap();
        if page.is_empty() {
            break;
        }
        events.extend(page);
    }
    let ledger: usize = events.iter().map(|event| event.payload.len()).sum();
    // Each of the two commits of a call writes the snapshot; it is largest at the end.
    let snapshot = bytes(&loaded.run.state);
    let written = rows + ledger + snapshot * 2 * CALLS as usize;
    let transcripts = windlass::agents::transcripts(engine.core(), run.run_key()).await.unwrap();
    let transcript: usize = transcripts["chat"].iter().map(|item| item.get().len()).sum();
    assert!(transcript >= 800_000, "the conversation has {transcript} bytes");
    let most = transcript * 12 / 10 + CALLS as usize * 4 * 1024;
    assert!(
        written <= most,
        "{written} bytes: {rows} in rows, {ledger} in events, snapshots of {snapshot}; at most {most}"
    );
    // Call 1,000 writes what call 10 does.
    let of_call = |number: u64| {
        let key = json!(format!("llm:{number}"));
        let own = |event: &&windlass::kernel::Event| {
            event.payload_json().is_ok_and(|payload: Value| payload["continuation_id"] == key)
        };
        let payloads: usize = events.iter().filter(own).map(|event| event.payload.len()).sum();
        let key = format!("llm:{number}");
        let row = loaded.steps.iter().find(|row| row.step_key.as_str() == key).unwrap();
        payloads + bytes(&row.input) + bytes(&row.result)
    };
    let (tenth, last) = (of_call(10), of_call(CALLS));
    assert!(last * 10 <= tenth * 12, "call 10 wrote {tenth} bytes, call {CALLS} {last}");
    println!("{written} bytes for {transcript}; call 10 {tenth}, call {CALLS} {last}");
}
