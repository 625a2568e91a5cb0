//! Mistakes of other engines of this kind: a row that stops all runs, a retry that pays twice, a start that fails after
//! progress, events that are lost after a tool call, and tool calls that no tool can serve.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, HumanRequest, LlmRequest, ProviderErrorKind, Tool,
    ToolContext, ToolOutput, Workflow,
};
use windlass::{AnyError, RunStatus};

use crate::agents_fixtures::{Answer, Script, at_once, text, tree_events, types_of};
use crate::harness::{Harness, on_every_store, until, until_status};

on_every_store!(
    a_run_that_no_build_can_read_stops_only_itself,
    two_retries_make_one_call,
    a_start_after_progress_finds_the_run,
    events_after_a_tool_call_are_recorded,
    calls_that_no_tool_can_serve_are_results,
);

async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    match workflow.get::<bool>("quick")? {
        true => Ok(next.halt()),
        false => Ok(next.human(HumanRequest::to("ann"), "outcome", "gone")),
    }
}

async fn gone(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn a_run_that_no_build_can_read_stops_only_itself(h: Arc<Harness>) {
    let engine = h.engine().await;
    let full = || Agent::new("poison", "begin").function("begin", begin).function("gone", gone);
    let slow = json!({ "quick": false });
    let run = engine.agent(full()).unwrap().start(slow).id("p").await.unwrap();
    until_status(&run, RunStatus::Waiting).await;
    h.stop(&engine).await;
    let options =
        |options| windlass::admin::Options { blocked_retry: Duration::from_millis(20), ..options };
    let engine = h.engine_with(options).await;
    let agents = engine.agent(Agent::new("poison", "begin").function("begin", begin)).unwrap();
    let stuck = agents.get("p").await.unwrap();
    stuck.wake().await.unwrap();
    until("the run is blocked", || async { stuck.status().await.unwrap().blocked.is_some() }).await;
    // The other runs of the same agent go on, while this one is tried again and again.
    for _ in 0..20 {
        agents.start(json!({ "quick": true })).await.unwrap().result().await.unwrap();
    }
    assert!(stuck.status().await.unwrap().blocked.is_some());
    // It can still be read and ended.
    assert!(!types_of(&engine, stuck.run_key()).await.is_empty());
    stuck.terminate().await.unwrap();
    assert_eq!(stuck.status().await.unwrap().status, RunStatus::Terminated);
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hi")?;
    let request = LlmRequest::new("anthropic", "m").transcript("chat");
    Ok(next.llm(request, "answer", "act"))
}

async fn act(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let uses = workflow.response("answer")?.tool_uses()?;
    match uses.is_empty() {
        true => Ok(next.halt()),
        false => Ok(next.tools(uses, "results", "tell")),
    }
}

async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.record_event("mine.told", json!({ "n": 1 }))?;
    Ok(next.call("after"))
}

async fn after(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.record_event("mine.ended", json!({ "n": 2 }))?;
    let results = workflow.tool_results("results")?;
    let errors: Vec<bool> = results.iter().map(|result| result.is_error).collect();
    let texts: Vec<String> = results.iter().map(|result| result.content.to_string()).collect();
    workflow.set("said", &json!({ "errors": errors, "texts": texts }))?;
    Ok(next.halt())
}

struct Add;

#[derive(Deserialize, JsonSchema)]
struct Numbers {
    a: i64,
    b: i64,
}

impl Tool for Add {
    type Input = Numbers;

    fn name(&self) -> &str {
        "add"
    }

    fn description(&self) -> &str {
        "Adds two numbers."
    }

    async fn call(&self, _: ToolContext, input: Numbers) -> Result<ToolOutput, AnyError> {
        Ok(ToolOutput::new(input.a + input.b))
    }
}

fn caller(script: &Arc<Script>) -> Agent {
    Agent::new("caller", "ask")
        .function("ask", ask)
        .function("act", act)
        .function("tell", tell)
        .function("after", after)
        .tool(Add)
        .output("said")
        .retry_policy(at_once(0))
        .provider(Arc::clone(script) as _)
}

fn tool_uses(uses: &[(&str, Value)]) -> Answer {
    let block = |(n, (name, input)): (usize, &(&str, Value))| json!({ "type": "tool_use", "id": format!("tu_{n}"), "name": name, "input": input });
    Answer::Content(uses.iter().enumerate().map(block).collect())
}

async fn two_retries_make_one_call(h: Arc<Harness>) {
    let engine = h.engine().await;
    let script = Script::new([Answer::Fails(ProviderErrorKind::Invalid), text("fine")]);
    let run = engine.agent(caller(&script)).unwrap().start(json!({})).await.unwrap();
    run.result().await.unwrap_err();
    let (one, two) = futures::join!(
        engine.core().retry(run.run_key(), None),
        engine.core().retry(run.run_key(), None)
    );
    let next: Vec<_> = [one, two].into_iter().flatten().map(|run| run.run_key).collect();
    assert!(next.iter().all(|key| *key == next[0]), "one generation: {next:?}");
    assert_eq!(engine.core().wait(next[0]).await.unwrap().status, RunStatus::Complete);
    assert_eq!(script.count(), 2, "one call for each generation");
    let again = engine.core().retry(run.run_key(), None).await;
    assert!(again.is_err() || again.unwrap().run_key == next[0]);
    assert_eq!(script.count(), 2);
    tree_events(&engine, next[0]).await;
}

async fn a_start_after_progress_finds_the_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let script = Script::new([text("fine")]);
    let agents = engine.agent(caller(&script)).unwrap();
    let run = agents.start(json!({ "n": 1 })).id("same").await.unwrap();
    run.result().await.unwrap();
    let again = agents.start(json!({ "n": 1 })).id("same").await.unwrap();
    assert!(again.existed());
    assert_eq!(again.run_key(), run.run_key());
    assert_eq!(agents.start(json!({ "n": 2 })).id("same").await.unwrap_err().code(), "RUN_EXISTS");
    assert_eq!(script.count(), 1);
}

async fn events_after_a_tool_call_are_recorded(h: Arc<Harness>) {
    let engine = h.engine().await;
    let script = Script::new([tool_uses(&[("add", json!({ "a": 1, "b": 2 }))]), text("unused")]);
    let run = engine.agent(caller(&script)).unwrap().start(json!({})).await.unwrap();
    assert_eq!(run.result().await.unwrap()["texts"], json!(["3"]));
    let expect = [
        "tool_call.completed",
        "local_call.started",
        "mine.told",
        "local_call.completed",
        "local_call.started",
        "mine.ended",
        "local_call.completed",
        "workflow.halted",
    ];
    let types = types_of(&engine, run.run_key()).await;
    assert_eq!(types[types.len() - expect.len()..], expect);
    tree_events(&engine, run.run_key()).await;
}

async fn calls_that_no_tool_can_serve_are_results(h: Arc<Harness>) {
    let engine = h.engine().await;
    let uses = [
        ("nobody", json!({})),
        ("add", json!({ "a": "one" })),
        ("add", json!("no object")),
        ("add", json!({ "a": 1, "b": 1 })),
    ];
    let script = Script::new([tool_uses(&uses), text("unused")]);
    let run = engine.agent(caller(&script)).unwrap().start(json!({})).await.unwrap();
    let said = run.result().await.unwrap();
    assert_eq!(said["errors"], json!([true, true, true, false]), "{said}");
    let events = tree_events(&engine, run.run_key()).await;
    let ended = events.iter().find(|event| event.event_type.as_str() == "tool_call.completed");
    assert_eq!(ended.unwrap().payload_json().unwrap()["tool_errors"], 3);
}
