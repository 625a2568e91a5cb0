//! Agents on every store: their ledgers, provider calls, tools, people, retries and bad input.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, HumanRequest, LlmRequest, ProviderErrorKind, Tool,
    ToolContext, ToolOutput, WireFormat, Workflow,
};
use windlass::kernel::{Body, CausalRef, LoadSteps, Subject};
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{AnyError, Engine, RunKey, RunStatus, Uuid};

use crate::agents_fixtures::{
    Answer, Script, assert_redacted, at_once, events_of, text, tree_events, types_of, uses,
};
use crate::harness::{Harness, on_every_store, until, until_status};

on_every_store!(
    a_call_costs_one_commit,
    a_conversation_with_tools_is_stored_once,
    a_failed_function_leaves_both_events_and_its_retry_begins_there,
    a_provider_that_fails_is_tried_again_and_a_retry_goes_on,
    an_attempt_that_a_crash_interrupts_is_shown_as_possibly_paid,
    a_person_answers,
    large_values_have_rows_of_their_own,
    bad_input_has_typed_errors,
    a_build_without_the_function_blocks_the_run,
);

const SECRETS: [&str; 4] = ["s3cr3t-env", "s3cr3t-prompt", "s3cr3t-answer", "s3cr3t-tool"];

async fn one(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("note", "s3cr3t-env")?;
    let event = workflow.record_event("ticket.loaded", json!({ "n": 1 }))?;
    workflow.record_event_caused_by("ticket.linked", json!({}), CausalRef::event(event))?;
    Ok(next.defer("three").call("two"))
}

async fn two(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.goto())
}

async fn three(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn a_call_costs_one_commit(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("calls", "one");
    let agent = agent.function("one", one).function("two", two).function("three", three);
    let calls = engine.agent(agent).unwrap();
    let before = engine.core().metrics().commits.get();
    let run = calls.start(json!({ "given": "s3cr3t-env" })).await.unwrap();
    let output = run.result().await.unwrap();
    assert_eq!(output, json!({ "given": "s3cr3t-env", "note": "s3cr3t-env" }));
    // Three calls; the one that creates the run is not a commit of a turn.
    assert_eq!(engine.core().metrics().commits.get() - before, 3);
    let expect = [
        "workflow.enqueued",
        "local_call.started",
        "ticket.loaded",
        "ticket.linked",
        "local_call.completed",
        "local_call.started",
        "local_call.completed",
        "local_call.started",
        "local_call.completed",
        "workflow.halted",
    ];
    assert_eq!(types_of(&engine, run.run_key()).await, expect);
    let events = tree_events(&engine, run.run_key()).await;
    assert_redacted(&events, &SECRETS);
    let completed = events[4].payload_json().unwrap();
    assert_eq!(completed["env"]["added"], 1);
    assert_eq!(completed["env"]["changes"][0]["key"], "note");
    assert_eq!(completed["flow"]["after"]["function"], "two");
    assert_eq!(events.last().unwrap().payload_json().unwrap()["reason"], "explicit_halt");
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    if workflow.transcript("chat").is_empty() {
        workflow.transcript("chat").push_user("s3cr3t-prompt")?;
    }
    Ok(next.llm(request(), "answer", "act"))
}

fn request() -> LlmRequest {
    LlmRequest::new("anthropic", "m").param("max_tokens", 100).transcript("chat")
}

async fn act(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let response = workflow.response("answer")?;
    let uses = response.tool_uses()?;
    if uses.is_empty() {
        workflow.set("text", &response.text()?)?;
        return Ok(next.halt());
    }
    Ok(next.tools(uses, "results", "tell"))
}

async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let results = workflow.tool_results("results")?;
    workflow.transcript("chat").push_tool_results(&results)?;
    Ok(next.call("ask"))
}

struct Echo;

impl Tool for Echo {
    type Input = serde_json::Map<String, Value>;

    fn name(&self) -> &str {
        "echo"
    }

    fn description(&self) -> &str {
        "Gives its input back."
    }

    async fn call(&self, _: ToolContext, input: Self::Input) -> Result<ToolOutput, AnyError> {
        match input.get("fail") {
            Some(_) => Err(AnyError::msg("the tool is broken")),
            None => Ok(ToolOutput::new(Value::Object(input))),
        }
    }
}

fn chat(script: Arc<Script>) -> Agent {
    Agent::new("chat", "ask")
        .function("ask", ask)
        .function("act", act)
        .function("tell", tell)
        .tool(Echo)
        .output("text")
        .retry_policy(at_once(2))
        .provider(script)
}

async fn a_conversation_with_tools_is_stored_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let tool = uses("echo", &[json!({ "x": "s3cr3t-tool" }), json!({ "y": 1 })]);
    let script = Script::new([tool, text("s3cr3t-answer")]);
    let chats = engine.agent(chat(script.clone())).unwrap();
    let run = chats.start(json!({})).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "s3cr3t-answer");
    let call = ["anthropic.suspended", "anthropic.completed", "anthropic.resumed"];
    let local = ["local_call.started", "local_call.completed"];
    let mut expect = vec!["workflow.enqueued"];
    expect.extend(local.iter().chain(&call).chain(&local));
    expect.extend(["tool_call.started", "tool_call.completed"]);
    expect.extend(local.iter().chain(&local).chain(&call).chain(&local));
    expect.push("workflow.halted");
    assert_eq!(types_of(&engine, run.run_key()).await, expect);
    let events = tree_events(&engine, run.run_key()).await;
    assert_redacted(&events, &SECRETS);
    let completed = events.iter().find(|e| e.event_type.as_str() == "anthropic.completed").unwrap();
    let completed = completed.payload_json().unwrap();
    assert_eq!(
        (completed["tool_uses"].clone(), completed["usage"]["input_tokens"].clone()),
        (json!(2), json!(7))
    );
    // The second request repeats the bytes of the first one, and no item is stored twice.
    let asked = script.asked.lock().clone();
    assert!(asked[1].starts_with(asked[0].trim_end_matches("]}")), "{asked:?}");
    let loaded =
        engine.admin().store().load_with(vec![run.run_key()], LoadSteps::All).await.unwrap();
    let data = |body: &Option<Body>| {
        body.as_ref().map(|body| String::from_utf8_lossy(&body.bytes).into_owned())
    };
    let rows: String = loaded[0]
        .steps
        .iter()
        .filter(|row| row.kind.as_str() != "tool")
        .flat_map(|row| [&row.input, &row.result, &row.error])
        .filter_map(data)
        .collect();
    let state = data(&loaded[0].run.state).unwrap();
    let transcripts = windlass::agents::transcripts(engine.core(), run.run_key()).await.unwrap();
    let said: Vec<&str> = transcripts["chat"].iter().map(|item| item.get()).collect();
    assert_eq!(said.len(), 4);
    assert!(said[0].contains("s3cr3t-prompt") && said[3].contains("s3cr3t-answer"), "{said:?}");
    assert_eq!(rows.matches("s3cr3t-prompt").count(), 1);
    assert_eq!(rows.matches("s3cr3t-answer").count(), 1);
    assert_eq!(state.matches("s3cr3t-prompt").count(), 0);
}

async fn fragile(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("partial", "s3cr3t-env")?;
    workflow.record_event("ticket.tried", json!({}))?;
    if workflow.get::<String>("file").is_ok_and(|file| std::fs::exists(file).unwrap_or(false)) {
        return Ok(next.halt());
    }
    Err(AnyError::msg("s3cr3t-env is missing"))
}

async fn a_failed_function_leaves_both_events_and_its_retry_begins_there(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agents =
        engine.agent(Agent::new("fragile", "fragile").function("fragile", fragile)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("there");
    let run = agents.start(json!({ "file": file })).await.unwrap();
    let failed = run.result().await.unwrap_err();
    assert!(failed.to_string().contains("s3cr3t-env is missing"), "{failed}");
    let first = run.run_key();
    let expect = [
        "workflow.enqueued",
        "local_call.started",
        "ticket.tried",
        "local_call.failed",
        "workflow.failed",
    ];
    assert_eq!(types_of(&engine, first).await, expect);
    let events = events_of(&engine, first).await;
    assert_redacted(&events, &SECRETS);
    let failed = events[4].payload_json().unwrap();
    assert_ne!(failed["committed_env_digest"], failed["partial_env_digest"]);
    // Twice: the second retry must not trip over the first one.
    let again = engine.core().retry(first, None).await.unwrap().run_key;
    assert_eq!(engine.core().wait(again).await.unwrap().status, RunStatus::Errored);
    std::fs::write(&file, "").unwrap();
    let third = engine.core().retry(again, None).await.unwrap().run_key;
    assert_eq!(engine.core().wait(third).await.unwrap().status, RunStatus::Complete);
    let expect = [
        "workflow.enqueued",
        "local_call.started",
        "ticket.tried",
        "local_call.completed",
        "workflow.halted",
    ];
    assert_eq!(types_of(&engine, third).await, expect);
}

async fn a_provider_that_fails_is_tried_again_and_a_retry_goes_on(h: Arc<Harness>) {
    let engine = h.engine().await;
    let limited = Answer::Fails(ProviderErrorKind::RequestRateLimited);
    let unknown = Answer::Fails(ProviderErrorKind::UnknownOutcome);
    let fails = Answer::Fails(ProviderErrorKind::Overloaded);
    let script = Script::new([
        limited,
        unknown,
        fails,
        Answer::Fails(ProviderErrorKind::Invalid),
        text("done"),
    ]);
    let chats = engine.agent(chat(script.clone())).unwrap();
    let run = chats.start(json!({})).await.unwrap();
    let failed = run.result().await.unwrap_err();
    assert!(failed.to_string().contains("PROVIDER_FAILED"), "{failed}");
    let types = types_of(&engine, run.run_key()).await;
    let expect = [
        "anthropic.suspended",
        "anthropic.retried",
        "anthropic.retried",
        "anthropic.failed",
        "workflow.failed",
    ];
    assert_eq!(types[3..], expect);
    let events = events_of(&engine, run.run_key()).await;
    let paid: Vec<Value> = events[4..7]
        .iter()
        .map(|event| event.payload_json().unwrap()["possibly_paid"].clone())
        .collect();
    assert_eq!(paid, [json!(false), json!(true), json!(false)]);
    let second = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
    assert_eq!(engine.core().wait(second).await.unwrap().status, RunStatus::Errored);
    assert_eq!(
        types_of(&engine, second).await,
        ["workflow.enqueued", "anthropic.retried", "anthropic.failed", "workflow.failed"]
    );
    let third = engine.core().retry(second, None).await.unwrap().run_key;
    let ended = engine.core().wait(third).await.unwrap();
    assert_eq!(ended.output.unwrap().read::<Value>().unwrap(), "done");
    let events = events_of(&engine, third).await;
    let retried = events[1].payload_json().unwrap();
    assert_eq!(
        (events[1].event_type.as_str(), retried["attempt"].clone()),
        ("anthropic.retried", json!(5))
    );
    let asked = script.asked.lock().clone();
    assert!(asked.iter().all(|request| *request == asked[0]), "every attempt sends the same bytes");
    assert_eq!(asked.len(), 5);
}

async fn an_attempt_that_a_crash_interrupts_is_shown_as_possibly_paid(h: Arc<Harness>) {
    let script = Script::new([Answer::Hangs, text("done")]);
    let engine = h.engine().await;
    let chats = engine.agent(chat(script.clone())).unwrap();
    let run = chats.start(json!({})).id("chat-1").await.unwrap();
    until("the provider is called", || async { script.count() == 1 }).await;
    h.stop_within(&engine, Duration::from_millis(1)).await;
    let engine = h.engine().await;
    let chats = engine.agent(chat(script.clone())).unwrap();
    let found = chats.get("chat-1").await.unwrap();
    assert_eq!(found.result().await.unwrap(), "done");
    let events = events_of(&engine, run.run_key()).await;
    let retried: Vec<_> =
        events.iter().filter(|e| e.event_type.as_str() == "anthropic.retried").collect();
    assert_eq!(retried.len(), 1);
    assert_eq!(retried[0].payload_json().unwrap()["possibly_paid"], true);
    assert_eq!(script.count(), 2);
}

async fn approve(_: &mut Workflow, next: Continuation) -> CallResult {
    let request = HumanRequest::to("ann").title("s3cr3t-prompt");
    Ok(next.human(request, "decision", "three"))
}

async fn a_person_answers(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent =
        Agent::new("approval", "approve").function("approve", approve).function("three", three);
    let run = engine.agent(agent).unwrap().start(json!({})).await.unwrap();
    until_status(&run, RunStatus::Waiting).await;
    let page =
        engine.requests().inbox(&InboxQuery::Person("ann".into()), InboxOrder::Due, None, 10).await;
    let request = page.unwrap().requests.remove(0);
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    engine.requests().decide(&request.id, &decider, &NewDecision::approve()).await.unwrap();
    let output = run.result().await.unwrap();
    assert_eq!(output["decision"]["status"], "approved");
    let expect = [
        "workflow.enqueued",
        "local_call.started",
        "local_call.completed",
        "human.blocked",
        "request.opened",
        "request.decided",
        "request.closed",
        "human.resumed",
        "local_call.started",
        "local_call.completed",
        "workflow.halted",
    ];
    assert_eq!(types_of(&engine, run.run_key()).await, expect);
    assert_redacted(&tree_events(&engine, run.run_key()).await, &["s3cr3t-prompt", "\"ann\""]);
}

async fn grow(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("large", &"s3cr3t-env".repeat(1_000))?;
    workflow.set("small", &0)?;
    Ok(next.call("count"))
}

async fn count(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let small: u32 = workflow.get("small")?;
    assert_eq!(workflow.get::<String>("large")?.len(), 10_000);
    workflow.set("small", &(small + 1))?;
    Ok(if small < 20 { next.call("count") } else { next.call("wait") })
}

async fn wait(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.human(HumanRequest::to("ann").title("go on?"), "decision", "last"))
}

async fn last(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let large: String = workflow.get("large")?;
    workflow.set("length", &large.len())?;
    Ok(next.halt())
}

fn growing() -> Agent {
    let agent = Agent::new("growing", "grow").function("grow", grow).function("count", count);
    agent.function("wait", wait).function("last", last).output("length")
}

async fn large_values_have_rows_of_their_own(h: Arc<Harness>) {
    let engine = h.engine().await;
    let run = engine.agent(growing()).unwrap().start(json!({})).id("grow-1").await.unwrap();
    until_status(&run, RunStatus::Waiting).await;
    let loaded =
        engine.admin().store().load_with(vec![run.run_key()], LoadSteps::All).await.unwrap();
    let values = loaded[0].steps.iter().filter(|row| row.kind.as_str() == "value").count();
    assert_eq!(values, 1, "the value is stored once");
    let state = loaded[0].run.state.as_ref().unwrap();
    assert!(state.len() < 2_000, "the snapshot has {} bytes", state.len());
    h.stop(&engine).await;
    let engine = h.engine().await;
    let found = engine.agent(growing()).unwrap().get("grow-1").await.unwrap();
    let page =
        engine.requests().inbox(&InboxQuery::Person("ann".into()), InboxOrder::Due, None, 10).await;
    let request = page.unwrap().requests.remove(0);
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    engine.requests().decide(&request.id, &decider, &NewDecision::approve()).await.unwrap();
    assert_eq!(found.result().await.unwrap(), 10_000);
}

async fn bad(workflow: &mut Workflow, next: Continuation) -> CallResult {
    match workflow.get::<String>("case")?.as_str() {
        "function" => Ok(next.call("nobody")),
        "key" => Ok(workflow.get::<u32>("nothing").map(|_| next.halt())?),
        "provider" => Ok(next.llm(LlmRequest::new("nobody", "m"), "answer", "bad")),
        "switch" => {
            workflow.set("case", "switched")?;
            workflow.transcript("chat").push_user("hi")?;
            Ok(next.llm(LlmRequest::new("anthropic", "m").transcript("chat"), "answer", "bad"))
        }
        "switched" => {
            Ok(next.llm(LlmRequest::new("openai", "m").transcript("chat"), "answer", "bad"))
        }
        "branches" => {
            let branches =
                (0..129).map(|n| windlass::agents::ForkBranch::new(format!("b{n}"), "bad"));
            Ok(next.fork_join(branches.collect(), "bad"))
        }
        "cause" => {
            let nobody = CausalRef::run(RunKey(Uuid::from_u128(1)));
            workflow.record_event_caused_by("mine.done", (), nobody)?;
            Ok(next.halt())
        }
        "panic" => panic!("it panics"),
        "large" => {
            workflow.set("x", &"x".repeat(2 * 1024 * 1024))?;
            Ok(next.halt())
        }
        "loop" => Ok(next.call("bad")),
        _ => Ok(next.llm(LlmRequest::new("anthropic", "m"), "answer", "bad")),
    }
}

async fn bad_input_has_typed_errors(h: Arc<Harness>) {
    let engine = h.engine().await;
    let openai = Script::named("openai", WireFormat::OpenaiResponses, [text("x")]);
    let agent =
        Agent::new("bad", "bad").function("bad", bad).retry_policy(at_once(0)).steps_max(50);
    let bodies = ["", "{}", "{\"content\":7}", "{\"type\":\"error\"}", "[1]"];
    let answers = std::iter::once(text("a")).chain(bodies.map(|body| Answer::Body(body.into())));
    let huge =
        Answer::Body(format!("{{\"content\":[],\"x\":\"{}\"}}", "x".repeat(2 * 1024 * 1024)));
    let script = Script::new(answers.chain([huge]));
    let agents = engine.agent(agent.provider(script).provider(openai)).unwrap();
    let mut cases = vec![
        ("function", "AGENT_FUNCTION_NOT_FOUND"),
        ("key", "ENV_KEY_NOT_FOUND"),
        ("provider", "AGENT_PROVIDER_NOT_FOUND"),
        ("switch", "AGENT_TRANSCRIPT_FORMAT"),
        ("branches", "INVALID_SIZE"),
        ("cause", "CAUSE_NOT_FOUND"),
        ("panic", "WORKFLOW_PANICKED"),
        ("large", "INVALID_SIZE"),
        ("loop", "AGENT_STEP_LIMIT"),
    ];
    cases.extend(bodies.map(|_| ("body", "PROVIDER_FAILED")));
    cases.push(("body", "INVALID_SIZE"));
    for (case, code) in cases {
        let run = agents.start(json!({ "case": case })).await.unwrap();
        let error = run.result().await.unwrap_err();
        assert!(error.to_string().contains(code), "{case}: {error}");
        let types = types_of(&engine, run.run_key()).await;
        assert_eq!(types.last().unwrap(), "workflow.failed", "{case}");
        // It can go on: a retry begins at the same place and fails in the same way.
        if case != "body" && case != "loop" {
            let again = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
            assert_eq!(
                engine.core().wait(again).await.unwrap().status,
                RunStatus::Errored,
                "{case}"
            );
        }
    }
}

async fn a_build_without_the_function_blocks_the_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let run = engine.agent(growing()).unwrap().start(json!({})).id("grow-1").await.unwrap();
    until_status(&run, RunStatus::Waiting).await;
    h.stop(&engine).await;
    let engine = h
        .engine_with(|options| windlass::admin::Options {
            blocked_retry: Duration::from_millis(50),
            ..options
        })
        .await;
    let other = Agent::new("growing", "grow").function("grow", grow);
    let unfit = windlass::agents::check(engine.core(), &other).await.unwrap();
    assert_eq!((unfit.len(), unfit[0].error.code().as_str()), (1, "AGENT_FUNCTION_NOT_FOUND"));
    assert!(windlass::agents::check(engine.core(), &growing()).await.unwrap().is_empty());
    let found = engine.agent(other).unwrap().get("grow-1").await.unwrap();
    decide(&engine).await;
    until("the run is blocked", || async { found.status().await.unwrap().blocked.is_some() }).await;
    let blocked = found.status().await.unwrap().blocked.unwrap();
    assert!(blocked.contains("no function named \"last\""), "{blocked}");
    h.stop(&engine).await;
    let engine = h
        .engine_with(|options| windlass::admin::Options {
            blocked_retry: Duration::from_millis(50),
            ..options
        })
        .await;
    let found = engine.agent(growing()).unwrap().get("grow-1").await.unwrap();
    assert_eq!(found.result().await.unwrap(), 10_000);
}

async fn decide(engine: &Engine) {
    let page =
        engine.requests().inbox(&InboxQuery::Person("ann".into()), InboxOrder::Due, None, 10).await;
    let request = page.unwrap().requests.remove(0);
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    engine.requests().decide(&request.id, &decider, &NewDecision::approve()).await.unwrap();
}
