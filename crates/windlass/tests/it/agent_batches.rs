//! Calls in batches: merged across runs, found again after lost replies, and settled whatever the provider does.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, AnthropicClient, BatchInfo, BatchRetry, Budget, CallResult, ClientOptions, Continuation,
    Lane, LaneOptions, LlmRequest, OpenaiClient, Provider, SpendQuery, Workflow, batch_of, batches,
    budgets, cancel_batch, flush_lane, lanes, spend,
};
use windlass::{Engine, RunHandle, RunStatus, WorkflowRef};
use windlass_testkit::scripted_llm::{
    Api, BatchEnd, BatchPlan, Lose, Op, Rule, Script, ScriptedLlm,
};

use crate::agents_fixtures::{at_once, events_of};
use crate::harness::{Harness, on_every_store, until, until_status};

on_every_store!(
    calls_of_many_runs_become_one_batch,
    a_batch_whose_creation_got_no_answer_is_not_paid_twice,
    results_are_handed_out_whatever_the_provider_does,
    members_without_an_answer_follow_the_policy,
    a_batch_that_does_not_end_in_time_is_given_up,
    a_run_that_was_ended_does_not_hold_up_the_others,
    a_deadline_chooses_the_lane,
    operators_list_flush_and_cancel,
);

const APIS: [Api; 2] = [Api::Anthropic, Api::Openai];

pub(crate) fn provider(api: Api, server: &ScriptedLlm) -> Arc<dyn Provider> {
    let options = ClientOptions::new("key").base_url(server.url());
    match api {
        Api::Anthropic => Arc::new(AnthropicClient::new(options).unwrap()),
        Api::Openai => Arc::new(OpenaiClient::new(options).unwrap()),
    }
}

pub(crate) async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let name: String = workflow.get("provider")?;
    let question: String = workflow.get("question")?;
    workflow.transcript("chat").push_user(&question)?;
    // Of the providers with short names, every second one is OpenAI: "b", "d" and so on.
    let openai = name == "openai" || (name.len() == 1 && name.as_bytes()[0].is_multiple_of(2));
    let model = if openai { "gpt-5" } else { "claude-sonnet-4-5" };
    let max = if openai { "max_output_tokens" } else { "max_tokens" };
    let mut request = LlmRequest::new(&name, model).param(max, 100).transcript("chat");
    if let Ok(millis) = workflow.get::<u64>("within_ms") {
        request = request.lane(Lane::within(millis)?);
    }
    Ok(next.llm(request, "response", "tell"))
}

pub(crate) async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("response")?.text()?;
    workflow.set("text", &text)?;
    Ok(next.halt())
}

pub(crate) fn options() -> LaneOptions {
    LaneOptions::default().gather("300 ms").poll("20 ms", "20 ms").grace("300 ms")
}

pub(crate) fn agent(provider: Arc<dyn Provider>, options: LaneOptions) -> Agent {
    Agent::new("asker", "ask")
        .function("ask", ask)
        .function("tell", tell)
        .output("text")
        .retry_policy(at_once(5))
        .timeout("5 seconds")
        .lane(Lane::Batch)
        .lane_options(options)
        .provider(provider)
}

async fn start(
    askers: &WorkflowRef<Value, Value>,
    api: Api,
    count: usize,
) -> Vec<RunHandle<Value>> {
    let name = if api == Api::Openai { "openai" } else { "anthropic" };
    let input = |n: usize| json!({ "provider": name, "question": format!("number {n}") });
    let inputs = (0..count).map(|n| (format!("r{n}"), input(n)));
    askers.start_batch(inputs).await.unwrap()
}

async fn all_answered(runs: &[RunHandle<Value>]) {
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), format!("You said: number {n}"));
    }
}

pub(crate) async fn all_batches(engine: &Engine) -> Vec<BatchInfo> {
    batches(engine.core(), None, None, 100).await.unwrap()
}

pub(crate) async fn ended_batches(engine: &Engine) -> Vec<BatchInfo> {
    until("all batches have ended", || async {
        all_batches(engine).await.iter().all(|b| matches!(b.status.as_str(), "ended" | "failed"))
    })
    .await;
    all_batches(engine).await
}

async fn calls_of_many_runs_become_one_batch(h: Arc<Harness>) {
    let engine = h.engine().await;
    for (api, name) in [(Api::Anthropic, "a"), (Api::Openai, "b")] {
        let server = ScriptedLlm::start(Script::echo()).unwrap();
        let client: Arc<dyn Provider> = Arc::new(Named::new(name, provider(api, &server)));
        let spec = rename(agent(client, options()), name).budget(Budget::usd(1.0));
        let askers = engine.agent(spec).unwrap();
        let input = |n: usize| json!({ "provider": name, "question": format!("number {n}") });
        let runs = askers.start_batch((0..60).map(|n| (format!("r{n}"), input(n)))).await.unwrap();
        all_answered(&runs).await;
        let report = server.report();
        assert!(report.count(Op::CreateBatch) <= 2, "{report:?}");
        assert_eq!((report.messages, report.count(Op::Live)), (60, 0));
        let listed = ended_batches(&engine).await;
        let mine: Vec<_> = listed.iter().filter(|batch| batch.provider == name).collect();
        assert_eq!(mine.iter().map(|batch| batch.members).sum::<u64>(), 60, "{listed:?}");
        // Every ledger names the batch of the provider.
        for run in &runs {
            let events = events_of(&engine, run.run_key()).await;
            let found = events.iter().find(|e| e.event_type.as_str() == "llm.submitted");
            let submitted = found.unwrap().payload_json().unwrap();
            let id = submitted["provider_batch_id"].as_str().unwrap();
            assert!(mine.iter().any(|b| b.provider_batch_id.as_deref() == Some(id)), "{submitted}");
        }
        // Money asked is money recorded, at the price of batches.
        let figures = spend(engine.core(), &SpendQuery::default()).await.unwrap();
        let figures: Vec<_> = figures.into_iter().filter(|f| f.provider == name).collect();
        assert_eq!((figures.len(), figures[0].cost), (1, report.money));
        let accounts = budgets(engine.core(), None, None, 1_000).await.unwrap();
        assert!(accounts.iter().all(|named| named.account.reserved.is_empty()));
    }
}

async fn a_batch_whose_creation_got_no_answer_is_not_paid_twice(h: Arc<Harness>) {
    let engine = h.engine().await;
    for (api, lose, name) in [
        (Api::Anthropic, Lose::After, "a"),
        (Api::Openai, Lose::After, "b"),
        (Api::Anthropic, Lose::Before, "c"),
        (Api::Openai, Lose::Before, "d"),
    ] {
        // Every second creation loses its reply.
        let mut script = Script::new();
        for _ in 0..3 {
            script = script.rule(Rule::op(Op::CreateBatch).lose(lose).times(1));
        }
        let server =
            ScriptedLlm::start(script.rule(Rule::any().text("You said: {{input}}"))).unwrap();
        let client: Arc<dyn Provider> = Arc::new(Named::new(name, provider(api, &server)));
        let spec = agent(client, options().members_max(10));
        let askers = engine.agent(rename(spec, name)).unwrap();
        let input = |n: usize| json!({ "provider": name, "question": format!("number {n}") });
        let inputs = (0..30).map(|n| (format!("r{n}"), input(n)));
        let runs = askers.start_batch(inputs).await.unwrap();
        all_answered(&runs).await;
        let report = server.report();
        assert_eq!(report.messages, 30, "{api:?} {lose:?}: {report:?}");
        let figures = spend(engine.core(), &SpendQuery::default()).await.unwrap();
        let figures: Vec<_> = figures.into_iter().filter(|f| f.provider == name).collect();
        assert_eq!((figures[0].cost, figures[0].calls), (report.money, 30), "{api:?} {lose:?}");
        let listed = ended_batches(&engine).await;
        assert!(listed.iter().all(|batch| !batch.provisional || batch.status == "ended"));
    }
}

pub(crate) fn rename(agent: Agent, name: &str) -> Agent {
    agent.named(format!("asker-{name}"))
}

/// A provider under another name, so that it has a lane of its own.
pub(crate) struct Named {
    name: &'static str,
    inner: Arc<dyn Provider>,
}

impl Named {
    pub(crate) fn new(name: &'static str, inner: Arc<dyn Provider>) -> Self {
        Self { name, inner }
    }
}

impl Provider for Named {
    fn name(&self) -> &str {
        self.name
    }

    fn wire_format(&self) -> windlass::agents::WireFormat {
        self.inner.wire_format()
    }

    fn batches(&self) -> Option<&dyn windlass::agents::BatchProvider> {
        self.inner.batches()
    }

    fn call<'a>(
        &'a self,
        request: &'a windlass::agents::ProviderRequest,
        sink: &'a dyn windlass::agents::TokenSink,
    ) -> windlass::kernel::BoxFuture<
        'a,
        Result<windlass::agents::ProviderResponse, windlass::agents::ProviderError>,
    > {
        self.inner.call(request, sink)
    }
}

async fn results_are_handed_out_whatever_the_provider_does(h: Arc<Harness>) {
    let engine = h.engine().await;
    let done = BatchPlan::default();
    for (n, plan) in [
        BatchPlan { shuffle: true, duplicate: true, ..done.clone() },
        BatchPlan { missing: 2, foreign: 3, bad_lines: 2, ..done.clone() },
        BatchPlan { cut_bytes: Some(900), ..done.clone() },
        BatchPlan { vanish: true, ..done.clone() },
        BatchPlan { polls: 6, ..done.clone() },
    ]
    .into_iter()
    .enumerate()
    {
        for api in APIS {
            let name = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
                [n * 2 + usize::from(api == Api::Openai)];
            let script = Script::echo().batch(plan.clone()).batch(done.clone());
            let server = ScriptedLlm::start(script).unwrap();
            let client: Arc<dyn Provider> = Arc::new(Named::new(name, provider(api, &server)));
            let askers = engine.agent(rename(agent(client, options()), name)).unwrap();
            let input = |n: usize| json!({ "provider": name, "question": format!("number {n}") });
            let runs =
                askers.start_batch((0..8).map(|n| (format!("r{n}"), input(n)))).await.unwrap();
            all_answered(&runs).await;
            // Every call was answered, or may have been charged without an answer.
            let figures = spend(engine.core(), &SpendQuery::default()).await.unwrap();
            let mine: Vec<_> = figures.into_iter().filter(|f| f.provider == name).collect();
            let report = server.report();
            assert_eq!(mine[0].calls, 8, "{plan:?}");
            assert_eq!(
                mine[0].calls + mine[0].uncertain_calls,
                report.messages,
                "{plan:?} {report:?}"
            );
        }
    }
}

async fn members_without_an_answer_follow_the_policy(h: Arc<Harness>) {
    let engine = h.engine().await;
    for (retry, name) in
        [(BatchRetry::Batch, "a"), (BatchRetry::Live, "c"), (BatchRetry::Fail, "e")]
    {
        let plan = BatchPlan { end: BatchEnd::Expire, finished: 3, ..BatchPlan::default() };
        let script = Script::echo().batch(plan).batch(BatchPlan::default());
        let server = ScriptedLlm::start(script).unwrap();
        let inner = provider(Api::Anthropic, &server);
        let client: Arc<dyn Provider> = Arc::new(Named::new(name, inner));
        let spec = rename(agent(client, options()), name).batch_retry(retry);
        let askers = engine.agent(spec).unwrap();
        let input = |n: usize| json!({ "provider": name, "question": format!("number {n}") });
        let runs = askers.start_batch((0..5).map(|n| (format!("r{n}"), input(n)))).await.unwrap();
        let mut failed = 0;
        for run in &runs {
            if let Err(error) = run.result().await {
                assert!(error.to_string().contains("PROVIDER_FAILED"), "{error}");
                failed += 1;
            }
        }
        let report = server.report();
        let (created, live) = (report.count(Op::CreateBatch), report.count(Op::Live));
        let expect = match retry {
            BatchRetry::Batch => (2, 0, 0),
            BatchRetry::Live => (1, 2, 0),
            BatchRetry::Fail => (1, 0, 2),
        };
        assert_eq!((created, live, failed), expect, "{retry:?}");
    }
}

// `expires_at` has passed, and the provider still shows the batch in progress.
async fn a_batch_that_does_not_end_in_time_is_given_up(h: Arc<Harness>) {
    let engine = h.engine().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let ago = |hours: u64, minutes: u64| (now - hours * 3_600 - minutes * 60) as i64;
    // The provider gives a batch a day. In the first hour after it nothing is done, in the second the batch is
    // cancelled, and then it is given up.
    for (created, api, name, cancelled, uncertain) in [
        (ago(25, 30), Api::Anthropic, "a", true, 0),
        (ago(25, 30), Api::Openai, "b", true, 0),
        (ago(26, 30), Api::Anthropic, "c", false, 4),
        (ago(26, 30), Api::Openai, "d", false, 4),
    ] {
        let stuck = BatchPlan { polls: 1_000_000, ..BatchPlan::default() };
        // Its clock stands still, so the next batch must have ended when it is first read.
        let next = BatchPlan { polls: 0, ..BatchPlan::default() };
        let script = Script::echo().batch(stuck).batch(next);
        let server = ScriptedLlm::start(Script { now: Some(created), ..script }).unwrap();
        let client: Arc<dyn Provider> = Arc::new(Named::new(name, provider(api, &server)));
        let askers = engine.agent(rename(agent(client, options()), name)).unwrap();
        let input = |n: usize| json!({ "provider": name, "question": format!("number {n}") });
        let runs = askers.start_batch((0..4).map(|n| (format!("r{n}"), input(n)))).await.unwrap();
        all_answered(&runs).await;
        let report = server.report();
        assert_eq!(report.count(Op::CancelBatch) > 0, cancelled, "{report:?}");
        assert_eq!(report.messages, 4 + uncertain, "{report:?}");
        let figures = spend(engine.core(), &SpendQuery::default()).await.unwrap();
        let mine = figures.into_iter().find(|f| f.provider == name).unwrap();
        assert_eq!((mine.calls, mine.uncertain_calls), (4, uncertain));
    }
}

async fn a_run_that_was_ended_does_not_hold_up_the_others(h: Arc<Harness>) {
    let engine = h.engine().await;
    let plan = BatchPlan { polls: 3, ..BatchPlan::default() };
    let server = ScriptedLlm::start(Script::echo().batch(plan)).unwrap();
    let spec = agent(provider(Api::Anthropic, &server), options().gather("1 hour"));
    let askers = engine.agent(spec).unwrap();
    let runs = start(&askers, Api::Anthropic, 5).await;
    until("all have joined", || async {
        lanes(engine.core()).await.unwrap().first().is_some_and(|lane| lane.waiting == 5)
    })
    .await;
    runs[1].terminate().await.unwrap();
    runs[3].terminate().await.unwrap();
    assert_eq!(flush_lane(engine.core(), "anthropic").await.unwrap(), 1);
    for n in [0, 2, 4] {
        assert_eq!(runs[n].result().await.unwrap(), format!("You said: number {n}"));
    }
    assert_eq!(server.report().messages, 3, "what has left is not sent");
    let figures = spend(engine.core(), &SpendQuery::default()).await.unwrap();
    assert_eq!((figures[0].calls, figures[0].cost), (3, server.report().money));
}

async fn a_deadline_chooses_the_lane(h: Arc<Harness>) {
    let engine = h.engine().await;
    let server = ScriptedLlm::start(Script::echo()).unwrap();
    let askers = engine.agent(agent(provider(Api::Anthropic, &server), options())).unwrap();
    // Nothing is known about the lane at first: an hour is assumed.
    for (within, batches, live) in [(1_000, 0, 1), (86_400_000, 1, 1), (3_000_000, 2, 1)] {
        let input = json!({ "provider": "anthropic", "question": "x", "within_ms": within });
        let run = askers.start(input).await.unwrap();
        assert_eq!(run.result().await.unwrap(), "You said: x");
        let report = server.report();
        let found = (report.count(Op::CreateBatch), report.count(Op::Live));
        assert_eq!(found, (batches, live), "{within}");
        ended_batches(&engine).await;
    }
}

async fn operators_list_flush_and_cancel(h: Arc<Harness>) {
    let engine = h.engine().await;
    let slow = BatchPlan { polls: 1_000_000, ..BatchPlan::default() };
    let script = Script::echo().batch(slow).batch(BatchPlan::default());
    let server = ScriptedLlm::start(script).unwrap();
    let spec = agent(provider(Api::Openai, &server), options()).batch_retry(BatchRetry::Live);
    let askers = engine.agent(spec).unwrap();
    let runs = start(&askers, Api::Openai, 3).await;
    until("the batch is in flight", || async {
        all_batches(&engine).await.first().is_some_and(|batch| batch.status == "in_flight")
    })
    .await;
    let info = all_batches(&engine).await.remove(0);
    assert_eq!((info.members, info.provider.as_str()), (3, "openai"));
    until_status(&runs[0], RunStatus::Waiting).await;
    cancel_batch(engine.core(), &info.intent).await.unwrap();
    all_answered(&runs).await;
    assert_eq!(server.report().count(Op::Live), 3);
    let ended = ended_batches(&engine).await.remove(0);
    let again = cancel_batch(engine.core(), &ended.intent).await.unwrap_err();
    assert_eq!(again.code(), "BATCH_ENDED");
    assert_eq!(batch_of(engine.core(), "none").await.unwrap_err().code(), "BATCH_NOT_FOUND");
    assert_eq!(flush_lane(engine.core(), "none").await.unwrap_err().code(), "BATCH_NOT_FOUND");
}
