//! Batches that fail as a whole, results that are gone, budgets and deadlines of further attempts.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::admin::Options as EngineOptions;
use windlass::agents::{
    Agent, BatchInfo, BatchProvider, BatchRetry, Budget, CallResult, Continuation, ForkBranch,
    Lane, LaneOptions, LlmRequest, Provider, ProviderError, ProviderRequest, ProviderResponse,
    SpendQuery, TokenSink, WireFormat, Workflow, batches, budgets, cancel_batch, flush_lane, lanes,
    spend,
};
use windlass::kernel::{BoxFuture, MemoryStore, Subject};
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{Engine, Limits, RunHandle, RunKey, Timestamp, WorkflowRef};
use windlass_testkit::scripted_llm::{
    Api, BatchEnd, BatchPlan, Fail, Lose, Op, Rule, Script, ScriptedLlm, When,
};

use crate::agent_batches::{Named, agent, all_batches, ended_batches, options, provider, rename};
use crate::agents_fixtures::{at_once, events_of, types_of};
use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    a_batch_that_failed_as_a_whole_follows_the_policy,
    a_line_that_is_refused_fails_its_own_run,
    a_batch_that_only_has_to_wait_is_sent_again,
    an_outage_of_the_provider_fails_no_run,
    results_that_are_gone_are_given_up,
    a_further_attempt_asks_for_more_budget,
    a_member_that_is_too_long_runs_the_function_for_it,
    the_grace_begins_with_the_unknown_outcome,
    a_batch_that_is_sent_again_is_named_possibly_paid,
    deadlines_count_from_the_start_of_the_root,
    a_further_attempt_looks_at_the_deadline,
    a_cancellation_survives_an_error_of_the_provider,
    a_request_that_cannot_be_built_fails_its_own_run,
    bytes_and_age_send_a_batch,
    two_engines_send_one_batch,
);

fn question(name: &str, n: usize) -> Value {
    json!({ "provider": name, "question": format!("number {n}") })
}

async fn start(
    askers: &WorkflowRef<Value, Value>,
    name: &str,
    count: usize,
) -> Vec<RunHandle<Value>> {
    let inputs = (0..count).map(|n| (format!("r{n}"), question(name, n)));
    askers.start_batch(inputs).await.unwrap()
}

// How many runs fail, and the answers of the others.
async fn failures(runs: &[RunHandle<Value>]) -> usize {
    let mut failed = 0;
    for (n, run) in runs.iter().enumerate() {
        match run.result().await {
            Ok(answer) => assert_eq!(answer, format!("You said: number {n}")),
            Err(error) => {
                assert!(error.to_string().contains("PROVIDER_FAILED"), "{error}");
                failed += 1;
            }
        }
    }
    failed
}

fn named(name: &'static str, api: Api, server: &ScriptedLlm) -> Arc<dyn Provider> {
    Arc::new(Named::new(name, provider(api, server)))
}

async fn a_batch_that_failed_as_a_whole_follows_the_policy(h: Arc<Harness>) {
    let engine = h.engine().await;
    for (retry, name, expect) in [
        (BatchRetry::Batch, "b", (2, 0, 0)),
        (BatchRetry::Live, "d", (1, 4, 0)),
        (BatchRetry::Fail, "f", (1, 0, 4)),
    ] {
        let plan = BatchPlan { end: BatchEnd::Fail, ..BatchPlan::default() };
        let server =
            ScriptedLlm::start(Script::echo().batch(plan).batch(BatchPlan::default())).unwrap();
        let spec = agent(named(name, Api::Openai, &server), options()).batch_retry(retry);
        let askers = engine.agent(rename(spec, name)).unwrap();
        let failed = failures(&start(&askers, name, 4).await).await;
        let report = server.report();
        let found = (report.count(Op::CreateBatch), report.count(Op::Live), failed);
        assert_eq!(found, expect, "{retry:?}");
    }
}

async fn a_line_that_is_refused_fails_its_own_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let plan = BatchPlan {
        end: BatchEnd::Fail,
        code: Some("invalid_json_line".into()),
        line: Some(2),
        ..BatchPlan::default()
    };
    let server =
        ScriptedLlm::start(Script::echo().batch(plan).batch(BatchPlan::default())).unwrap();
    let askers = engine.agent(agent(named("b", Api::Openai, &server), options())).unwrap();
    let failed = failures(&start(&askers, "b", 4).await).await;
    assert_eq!((failed, server.report().messages), (1, 3));
}

async fn a_batch_that_only_has_to_wait_is_sent_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    let plan = BatchPlan {
        end: BatchEnd::Fail,
        code: Some("token_limit_exceeded".into()),
        ..BatchPlan::default()
    };
    let script = Script::echo().batch(plan.clone()).batch(plan).batch(BatchPlan::default());
    let server = ScriptedLlm::start(script).unwrap();
    // The policy would fail the runs.
    let spec = agent(named("b", Api::Openai, &server), options()).batch_retry(BatchRetry::Fail);
    let askers = engine.agent(spec).unwrap();
    let runs = start(&askers, "b", 4).await;
    assert_eq!(failures(&runs).await, 0);
    assert_eq!(server.report().count(Op::CreateBatch), 3);
    let listed = ended_batches(&engine).await;
    assert_eq!((listed.len(), listed[0].attempts), (1, 3), "{listed:?}");
    let types = types_of(&engine, runs[0].run_key()).await;
    assert!(!types.contains(&"llm.retried".to_owned()), "the run has one attempt: {types:?}");
}

async fn an_outage_of_the_provider_fails_no_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    // The lane gives a batch up after 100 refusals; then its members join another one.
    let script = Script::new().rule(Rule::op(Op::CreateBatch).fail(Fail::overloaded()).times(103));
    let server = ScriptedLlm::start(script.rule(Rule::any().text("You said: {{input}}"))).unwrap();
    let options = options().gather("1 ms").poll("1 ms", "1 ms");
    let askers = engine.agent(agent(named("a", Api::Anthropic, &server), options)).unwrap();
    assert_eq!(failures(&start(&askers, "a", 1).await).await, 0);
    let listed = ended_batches(&engine).await;
    let mut states: Vec<&str> = listed.iter().map(|batch| batch.status.as_str()).collect();
    states.sort_unstable();
    assert_eq!(states, ["ended", "failed"], "{listed:?}");
}

async fn results_that_are_gone_are_given_up(h: Arc<Harness>) {
    let engine = h.engine().await;
    for (api, op, name, status, times) in [
        (Api::Anthropic, Op::BatchResults, "a", 404, 1),
        (Api::Openai, Op::FileContent, "b", 404, 1),
        (Api::Anthropic, Op::BatchResults, "c", 410, 1),
        // A key that is refused may be accepted later, so this takes longer.
        (Api::Anthropic, Op::BatchResults, "e", 401, 500),
    ] {
        let script = Script::new().rule(Rule::op(op).fail(Fail::status(status)).times(times));
        let server =
            ScriptedLlm::start(script.rule(Rule::any().text("You said: {{input}}"))).unwrap();
        let spec = agent(named(name, api, &server), options().poll("1 ms", "1 ms"));
        let askers = engine.agent(rename(spec, name)).unwrap();
        assert_eq!(failures(&start(&askers, name, 2).await).await, 0);
        let report = server.report();
        assert_eq!((report.count(Op::CreateBatch), report.messages), (2, 4), "{name} {report:?}");
        let figures = spend(engine.core(), &SpendQuery::default()).await.unwrap();
        let mine = figures.into_iter().find(|figure| figure.provider == name).unwrap();
        assert_eq!((mine.calls, mine.uncertain_calls), (2, 2));
    }
}

async fn a_further_attempt_asks_for_more_budget(h: Arc<Harness>) {
    let engine = h.engine().await;
    // The first attempt may be paid, so the second one does not fit.
    let plan = BatchPlan { vanish: true, ..BatchPlan::default() };
    let server =
        ScriptedLlm::start(Script::echo().batch(plan).batch(BatchPlan::default())).unwrap();
    let spec = agent(named("a", Api::Anthropic, &server), options());
    let askers = engine.agent(spec.budget(Budget::calls_only(1).ask("ann"))).unwrap();
    let runs = start(&askers, "a", 1).await;
    let query = InboxQuery::Person("ann".into());
    let inbox = || async {
        engine.requests().inbox(&query, InboxOrder::Due, None, 10).await.unwrap().requests
    };
    until("a person is asked", || async { inbox().await.len() == 1 }).await;
    let ann = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    let id = inbox().await.remove(0).id;
    engine.requests().decide(&id, &ann, &NewDecision::approve()).await.unwrap();
    assert_eq!(failures(&runs).await, 0);
    assert_eq!(server.report().count(Op::CreateBatch), 2);
    let account = budgets(engine.core(), None, None, 10).await.unwrap().remove(0).account;
    assert_eq!((account.spent.calls, account.uncertain.calls), (1, 1));
    assert!(account.reserved.is_empty(), "{account:?}");
}

async fn ask_long(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let name: String = workflow.get("provider")?;
    workflow.transcript("chat").push_user("long")?;
    let request = LlmRequest::new(&name, "claude-sonnet-4-5").param("max_tokens", 9);
    Ok(next.llm(request.transcript("chat").on_overflow("shorter"), "response", "done"))
}

async fn shorter(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("text", &"shortened")?;
    Ok(next.halt())
}

async fn done(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("response")?.text()?;
    workflow.set("text", &text)?;
    Ok(next.halt())
}

async fn a_member_that_is_too_long_runs_the_function_for_it(h: Arc<Harness>) {
    let engine = h.engine().await;
    let member = When { op: Some(Op::BatchMember), ..When::default() };
    let too_long = Fail { message: Some("prompt is too long".into()), ..Fail::status(400) };
    let server = ScriptedLlm::start(Script::new().rule(Rule::when(member).fail(too_long))).unwrap();
    let spec = Agent::new("long", "ask_long")
        .function("ask_long", ask_long)
        .function("shorter", shorter)
        .function("done", done)
        .output("text")
        .budget(Budget::calls_only(3))
        .lane(Lane::Batch)
        .lane_options(options())
        .provider(named("a", Api::Anthropic, &server));
    let askers = engine.agent(spec).unwrap();
    let run = askers.start(json!({ "provider": "a" })).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "shortened");
    let account = budgets(engine.core(), None, None, 10).await.unwrap().remove(0).account;
    assert!(account.reserved.is_empty() && account.uncertain.calls == 0, "{account:?}");
}

// The reply of a creation that took longer than the grace is lost, and the first list does not show the batch.
async fn the_grace_begins_with_the_unknown_outcome(h: Arc<Harness>) {
    let engine = h.engine().await;
    let empty = r#"{"data":[],"has_more":false,"first_id":null,"last_id":null}"#;
    let script = Script::new()
        .rule(Rule::op(Op::CreateBatch).delay_ms(2_500).lose(Lose::After).times(1))
        .rule(Rule::op(Op::ListBatches).raw(200, empty).times(1))
        .rule(Rule::any().text("You said: {{input}}"));
    let server = ScriptedLlm::start(script).unwrap();
    let options = options().grace("2 seconds");
    let askers = engine.agent(agent(named("a", Api::Anthropic, &server), options)).unwrap();
    assert_eq!(failures(&start(&askers, "a", 3).await).await, 0);
    let report = server.report();
    assert_eq!((report.count(Op::CreateBatch), report.messages), (1, 3), "{report:?}");
}

async fn lane_events(engine: &Engine) -> Vec<(String, Value)> {
    let lane: RunKey = lanes(engine.core()).await.unwrap().remove(0).run_key.parse().unwrap();
    let events = events_of(engine, lane).await;
    let named = |event: &windlass::kernel::Event| {
        (event.event_type.as_str().to_owned(), event.payload_json().unwrap())
    };
    events.iter().map(named).collect()
}

async fn a_batch_that_is_sent_again_is_named_possibly_paid(h: Arc<Harness>) {
    let engine = h.engine().await;
    let script = Script::new().rule(Rule::op(Op::CreateBatch).lose(Lose::Before).times(1));
    let server = ScriptedLlm::start(script.rule(Rule::any().text("You said: {{input}}"))).unwrap();
    let askers = engine.agent(agent(named("b", Api::Openai, &server), options())).unwrap();
    assert_eq!(failures(&start(&askers, "b", 2).await).await, 0);
    let events = lane_events(&engine).await;
    let again = events.iter().find(|(_, payload)| payload["not_found"] == true);
    let (name, payload) = again.unwrap();
    assert_eq!((name.as_str(), &payload["possibly_paid"]), ("continuation.retried", &json!(true)));
    // The name of a batch begins with the time, so names are in the order of time.
    let info = all_batches(&engine).await.remove(0);
    let millis = u64::from_str_radix(&info.intent[1..13], 16).unwrap();
    let between = info.created_at.as_micros().abs_diff(i64::try_from(millis * 1_000).unwrap());
    assert!(between < 60_000_000, "{info:?}");
}

/// More than the hour that a lane without history counts.
const DEADLINE: u64 = 3_600_000 + 1_500;

async fn fork_late(_: &mut Workflow, next: Continuation) -> CallResult {
    // The branch begins when the time that is left is shorter than a batch.
    let began = now_ms();
    while now_ms() < began + 2_000 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(next.fork_join(vec![ForkBranch::new("one", "ask_in_time")], "joined"))
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

async fn ask_in_time(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let name: String = workflow.get("provider")?;
    workflow.transcript("chat").push_user("hello")?;
    let request = LlmRequest::new(&name, "claude-sonnet-4-5").param("max_tokens", 9);
    let request = request.transcript("chat").lane(Lane::within(DEADLINE)?);
    Ok(next.llm(request, "response", "done"))
}

async fn joined(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn deadlines_count_from_the_start_of_the_root(h: Arc<Harness>) {
    let engine = h.engine().await;
    let server = ScriptedLlm::start(Script::echo()).unwrap();
    let spec = Agent::new("late", "fork_late")
        .function("fork_late", fork_late)
        .function("ask_in_time", ask_in_time)
        .function("done", done)
        .function("joined", joined)
        .lane_options(options())
        .provider(named("a", Api::Anthropic, &server));
    let late = engine.agent(spec).unwrap();
    let run = late.start(json!({ "provider": "a" })).await.unwrap();
    let _: Value = run.result().await.unwrap();
    let report = server.report();
    assert_eq!((report.count(Op::Live), report.count(Op::CreateBatch)), (1, 0));
}

async fn a_further_attempt_looks_at_the_deadline(h: Arc<Harness>) {
    let engine = h.engine().await;
    // The second batch takes at least 8 seconds, and then its members expire.
    let slow = BatchPlan { polls: 400, end: BatchEnd::Expire, ..BatchPlan::default() };
    let script = Script::echo().batch(BatchPlan::default()).batch(slow);
    let server = ScriptedLlm::start(script.batch(BatchPlan::default())).unwrap();
    let askers = engine.agent(agent(named("a", Api::Anthropic, &server), options())).unwrap();
    // After it the lane knows that its batches are fast.
    assert_eq!(failures(&start(&askers, "a", 1).await).await, 0);
    ended_batches(&engine).await;
    let input = json!({ "provider": "a", "question": "x", "within_ms": 7_000 });
    let run = askers.start(input).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "You said: x");
    let report = server.report();
    assert_eq!((report.count(Op::CreateBatch), report.count(Op::Live)), (2, 1), "{report:?}");
}

async fn a_cancellation_survives_an_error_of_the_provider(h: Arc<Harness>) {
    let engine = h.engine().await;
    let slow = BatchPlan { polls: 1_000_000, ..BatchPlan::default() };
    let script = Script::new()
        .rule(Rule::op(Op::CancelBatch).fail(Fail::overloaded()).times(2))
        .rule(Rule::any().text("You said: {{input}}"))
        .batch(slow);
    let server = ScriptedLlm::start(script).unwrap();
    let spec = agent(named("b", Api::Openai, &server), options()).batch_retry(BatchRetry::Live);
    let askers = engine.agent(spec).unwrap();
    let runs = start(&askers, "b", 2).await;
    until("the batch is in flight", || async {
        all_batches(&engine).await.first().is_some_and(|batch| batch.status == "in_flight")
    })
    .await;
    let info = all_batches(&engine).await.remove(0);
    cancel_batch(engine.core(), &info.intent).await.unwrap();
    assert_eq!(failures(&runs).await, 0);
    assert_eq!(server.report().count(Op::Live), 2);
}

async fn ask_twice(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("first")?;
    let request = LlmRequest::new("y", "gpt-5").lane(Lane::Live).transcript("chat");
    Ok(next.llm(request, "response", "ask_again"))
}

async fn ask_again(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("second")?;
    let request = LlmRequest::new("y", "gpt-5").transcript("chat");
    Ok(next.llm(request, "response", "done"))
}

/// Calls of OpenAI that go into batches of Anthropic.
struct Mixed {
    live: Arc<dyn Provider>,
    batches: Arc<dyn Provider>,
}

impl Provider for Mixed {
    fn name(&self) -> &str {
        "y"
    }

    fn wire_format(&self) -> WireFormat {
        self.live.wire_format()
    }

    fn batches(&self) -> Option<&dyn BatchProvider> {
        self.batches.batches()
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        self.live.call(request, sink)
    }
}

// Two agents call their providers by the same name, in different formats. The first one sets the lane.
async fn a_request_that_cannot_be_built_fails_its_own_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let server = ScriptedLlm::start(Script::echo()).unwrap();
    let options = options().gather("1 hour");
    let spec = agent(named("y", Api::Anthropic, &server), options).retry_policy(at_once(0));
    let askers = engine.agent(spec).unwrap();
    let mixed =
        Mixed { live: provider(Api::Openai, &server), batches: provider(Api::Anthropic, &server) };
    let other = Agent::new("other", "ask_twice")
        .function("ask_twice", ask_twice)
        .function("ask_again", ask_again)
        .function("done", done)
        .output("text")
        .retry_policy(at_once(0))
        .lane(Lane::Batch)
        .provider(Arc::new(mixed));
    let others = engine.agent(other).unwrap();
    let bad = others.start(json!({})).await.unwrap();
    let good = askers.start(question("y", 0)).await.unwrap();
    until("both have joined", || async {
        lanes(engine.core()).await.unwrap().first().is_some_and(|lane| lane.waiting == 2)
    })
    .await;
    flush_lane(engine.core(), "y").await.unwrap();
    assert_eq!(good.result().await.unwrap(), "You said: number 0");
    let failed = bad.result().await.unwrap_err().to_string();
    assert!(failed.contains("PROVIDER_FAILED"), "{failed}");
    assert_eq!(server.report().messages, 2, "the live call and one member");
}

async fn batches_of(engine: &Engine, provider: &str) -> Vec<BatchInfo> {
    batches(engine.core(), Some(("provider", provider)), None, 100).await.unwrap()
}

async fn bytes_and_age_send_a_batch(h: Arc<Harness>) {
    let engine = h.engine().await;
    // Some three requests fit into a batch.
    let server = ScriptedLlm::start(Script::echo()).unwrap();
    let small = LaneOptions::default().gather("1 hour").age_max("1 hour").poll("5 ms", "5 ms");
    let spec = agent(named("a", Api::Anthropic, &server), small.bytes_max(1_200));
    let askers = engine.agent(rename(spec, "a")).unwrap();
    let runs = start(&askers, "a", 20).await;
    until("full batches have left", || async {
        let sent: u64 = batches_of(&engine, "a").await.iter().map(|batch| batch.members).sum();
        sent >= 16
    })
    .await;
    flush_lane(engine.core(), "a").await.unwrap();
    assert_eq!(failures(&runs).await, 0);
    let sent = batches_of(&engine, "a").await;
    assert!(sent.len() > 4 && sent.iter().all(|batch| batch.bytes <= 1_200), "{sent:?}");

    // A call that has waited for `age_max` leaves while another batch is in flight.
    let slow = BatchPlan { polls: 1_000_000, ..BatchPlan::default() };
    let script = Script::echo().batch(slow).batch(BatchPlan::default());
    let server = ScriptedLlm::start(script).unwrap();
    let aged = LaneOptions::default().gather("1 ms").age_max("100 ms").poll("5 ms", "5 ms");
    let spec = agent(named("c", Api::Anthropic, &server), aged);
    let askers = engine.agent(rename(spec, "c")).unwrap();
    let first = askers.start(question("c", 0)).await.unwrap();
    until("the first batch is in flight", || async {
        batches_of(&engine, "c").await.first().is_some_and(|batch| batch.status == "in_flight")
    })
    .await;
    let second = askers.start(question("c", 1)).await.unwrap();
    assert_eq!(second.result().await.unwrap(), "You said: number 1");
    // Batches are listed in the order of time.
    let oldest = batches_of(&engine, "c").await.remove(0);
    assert_eq!(oldest.status, "in_flight");
    cancel_batch(engine.core(), &oldest.intent).await.unwrap();
    assert_eq!(first.result().await.unwrap(), "You said: number 0");
}

async fn two_engines_send_one_batch(h: Arc<Harness>) {
    let (one, two) = h.two_engines(|options| options).await;
    let server = ScriptedLlm::start(Script::echo()).unwrap();
    let options = options().gather("1 hour");
    let spec = |server: &ScriptedLlm| agent(named("a", Api::Anthropic, server), options.clone());
    let askers = [one.agent(spec(&server)).unwrap(), two.agent(spec(&server)).unwrap()];
    let mut runs = Vec::new();
    for n in 0..40 {
        runs.push(askers[n % 2].start(question("a", n)).await.unwrap());
    }
    until("all calls wait in one lane", || async {
        let found = lanes(one.core()).await.unwrap();
        found.len() == 1 && found[0].waiting == 40
    })
    .await;
    // Both engines are asked; the one that holds the lane sends.
    flush_lane(one.core(), "a").await.unwrap();
    flush_lane(two.core(), "a").await.unwrap();
    assert_eq!(failures(&runs).await, 0);
    let report = server.report();
    assert_eq!((report.count(Op::CreateBatch), report.messages), (1, 40), "{report:?}");
    let figures = spend(one.core(), &SpendQuery::default()).await.unwrap();
    assert_eq!((figures[0].calls, figures[0].cost), (40, report.money));
}

// A run holds so many unread messages; a lane is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_wait_than_a_lane_can_hold() {
    let clock = || Timestamp::ZERO.plus(Duration::from_millis(now_ms()));
    let limits = || Limits { unread_messages_max: 5, ..Limits::DEFAULT };
    let store = Arc::new(MemoryStore::new(Arc::new(clock), limits()));
    let builder =
        windlass::Builder::from(EngineOptions { limits: limits(), ..EngineOptions::default() });
    let engine = builder.start(store).await.unwrap();
    let server = ScriptedLlm::start(Script::echo()).unwrap();
    let options = options().gather("1 hour").age_max("1 hour");
    let askers = engine.agent(agent(named("a", Api::Anthropic, &server), options)).unwrap();
    let runs = start(&askers, "a", 12).await;
    until("a full lane sends a batch", || async { server.report().messages >= 5 }).await;
    until("all calls have left", || async {
        // A full lane has no space for this request either.
        drop(flush_lane(engine.core(), "a").await);
        server.report().messages == 12
    })
    .await;
    assert_eq!(failures(&runs).await, 0);
    engine.stop("5 seconds").await.unwrap();
}
