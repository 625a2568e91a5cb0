//! Agents with values, responses and tool results that have rows of their own: the next process and the next
//! generation read them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, ForkBranch, HumanRequest, LlmRequest, Probe,
    ProviderErrorKind, Tool, ToolContext, ToolOutput, Workflow, response_at, transcripts,
};
use windlass::kernel::{Event, StepKey, Subject};
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{AnyError, Engine, RunKey, RunStatus};

use crate::agents_fixtures::{Answer, Script, at_once, events_of, text, types_of, uses};
use crate::harness::{Counts, Harness, on_every_store, until, until_status};

on_every_store!(
    the_next_process_and_a_retry_read_large_values,
    a_tool_with_a_large_result_is_called_once,
);

const LARGE: usize = 100 * 1024;

fn large(letter: &str) -> String {
    letter.repeat(LARGE)
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("value", &large("v"))?;
    workflow.transcript("chat").push_user(&large("q"))?;
    let request = LlmRequest::new("anthropic", "m").transcript("chat");
    Ok(next.llm(request, "answer", "wait"))
}

async fn wait(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.human(HumanRequest::to("ann"), "outcome", "split"))
}

async fn split(workflow: &mut Workflow, next: Continuation) -> CallResult {
    assert_eq!(workflow.response("answer")?.text()?.len(), LARGE);
    Ok(next.fork_join(ForkBranch::pair("left", "right"), "again"))
}

async fn left(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let value: String = workflow.get("value")?;
    workflow.set("left", &value.replace('v', "l"))?;
    Ok(next.halt())
}

async fn right(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn again(_: &mut Workflow, next: Continuation) -> CallResult {
    let request = LlmRequest::new("anthropic", "m").transcript("chat");
    Ok(next.llm(request, "last", "tell"))
}

async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (value, left): (String, String) = (workflow.get("value")?, workflow.get("left")?);
    let answer = workflow.response("answer")?.text()?;
    let output = json!([value == large("v"), left == large("l"), answer == large("a")]);
    workflow.set("output", &output)?;
    Ok(next.halt())
}

fn reader(script: &Arc<Script>) -> Agent {
    Agent::new("reader", "ask")
        .function("ask", ask)
        .function("wait", wait)
        .function("split", split)
        .function("left", left)
        .function("right", right)
        .function("again", again)
        .function("tell", tell)
        .output("output")
        .retry_policy(at_once(0))
        .provider(Arc::clone(script) as _)
}

async fn decide(engine: &Engine) {
    let query = InboxQuery::Person("ann".into());
    let page = engine.requests().inbox(&query, InboxOrder::Opened, None, 10).await;
    let request = page.unwrap().requests.remove(0);
    let ann = Decider::new(Subject::new("ann", [""; 0]).unwrap());
    engine.requests().decide(&request.id, &ann, &NewDecision::approve()).await.unwrap();
}

async fn event_of(engine: &Engine, run: RunKey, name: &str) -> Event {
    let events = events_of(engine, run).await;
    events.into_iter().find(|event| event.event_type.as_str() == name).unwrap()
}

async fn the_next_process_and_a_retry_read_large_values(h: Arc<Harness>) {
    let script =
        Script::new([text(&large("a")), Answer::Fails(ProviderErrorKind::Invalid), text("fine")]);
    let engine = h.engine().await;
    let run = engine.agent(reader(&script)).unwrap().start(json!({})).id("r").await.unwrap();
    let run_key = run.run_key();
    until_status(&run, RunStatus::Waiting).await;
    h.stop(&engine).await;

    let engine = h.engine().await;
    let readers = engine.agent(reader(&script)).unwrap();
    decide(&engine).await;
    readers.get("r").await.unwrap().result().await.unwrap_err();
    let types = types_of(&engine, run_key).await;
    assert!(types.contains(&"fork_join.completed".to_owned()), "{types:?}");
    let said = transcripts(engine.core(), run_key).await.unwrap();
    assert!(said["chat"][1].get().len() > LARGE, "the response is in the transcript");
    let called = event_of(&engine, run_key, "anthropic.completed").await;
    let payload = called.payload_json().unwrap();
    let step = StepKey::new(payload["response_ref"]["step_key"].as_str().unwrap()).unwrap();
    let response = response_at(engine.core(), run_key, called.ordinal, &step).await.unwrap();
    assert_eq!(response.text().unwrap(), large("a"));

    let retried = engine.core().retry(run_key, None).await.unwrap().run_key;
    assert_eq!(engine.core().wait(retried).await.unwrap().status, RunStatus::Complete);
    let output = readers.get("r").await.unwrap().result().await.unwrap();
    assert_eq!(output, json!([true, true, true]));
    assert_eq!(script.count(), 3, "the first call was not made again");
}

/// Has a large result.
struct Read(Arc<Counts>);

impl Tool for Read {
    type Input = serde_json::Map<String, Value>;

    fn name(&self) -> &str {
        "read"
    }

    fn description(&self) -> &str {
        "Reads."
    }

    fn is_durable(&self) -> bool {
        true
    }

    async fn call(&self, _: ToolContext, _: Self::Input) -> Result<ToolOutput, AnyError> {
        self.0.hit("read");
        Ok(ToolOutput::new(large("r")))
    }
}

/// Hangs when it is called first.
struct Slow(Arc<Counts>);

impl Tool for Slow {
    type Input = serde_json::Map<String, Value>;

    fn name(&self) -> &str {
        "slow"
    }

    fn description(&self) -> &str {
        "Hangs once."
    }

    fn is_durable(&self) -> bool {
        true
    }

    async fn call(&self, _: ToolContext, _: Self::Input) -> Result<ToolOutput, AnyError> {
        match self.0.hit("slow") {
            1 => std::future::pending().await,
            _ => Ok(ToolOutput::new("slow")),
        }
    }

    async fn probe(&self, _: ToolContext, _: Self::Input) -> Result<Probe, AnyError> {
        Ok(Probe::NotStarted)
    }
}

async fn call(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("read")?;
    let request = LlmRequest::new("anthropic", "m").transcript("chat");
    Ok(next.llm(request, "answer", "act"))
}

async fn act(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let uses = workflow.response("answer")?.tool_uses()?;
    Ok(next.tools(uses, "results", "sizes"))
}

async fn sizes(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let results = workflow.tool_results("results")?;
    let sizes: Vec<usize> = results.iter().map(|result| result.content.to_string().len()).collect();
    workflow.set("sizes", &sizes)?;
    Ok(next.halt())
}

fn caller(script: &Arc<Script>, counts: &Arc<Counts>) -> Agent {
    Agent::new("caller", "call")
        .function("call", call)
        .function("act", act)
        .function("sizes", sizes)
        .tool(Read(Arc::clone(counts)))
        .tool(Slow(Arc::clone(counts)))
        .output("sizes")
        .retry_policy(at_once(0))
        .provider(Arc::clone(script) as _)
}

async fn a_tool_with_a_large_result_is_called_once(h: Arc<Harness>) {
    let Answer::Content(Value::Array(mut blocks)) = uses("read", &[json!({})]) else {
        unreachable!("the content is a list")
    };
    blocks.push(json!({ "type": "tool_use", "id": "tu_9", "name": "slow", "input": {} }));
    let script = Script::new([Answer::Content(Value::Array(blocks))]);
    let counts = Counts::new();
    let engine = h.engine().await;
    let run = engine.agent(caller(&script, &counts)).unwrap().start(json!({})).id("c").await;
    let run_key = run.unwrap().run_key();
    until("one call is recorded and the other hangs", || async {
        let types = types_of(&engine, run_key).await;
        types.contains(&"tool_call.recorded".to_owned()) && counts.get("slow") == 1
    })
    .await;
    h.stop_within(&engine, Duration::from_millis(1)).await;

    let engine = h.engine().await;
    let callers = engine.agent(caller(&script, &counts)).unwrap();
    let run = callers.get("c").await.unwrap();
    let output = run.result().await.unwrap();
    assert_eq!(output, json!([LARGE + 2, 6]));
    assert_eq!((counts.get("read"), counts.get("slow")), (1, 2));
}
