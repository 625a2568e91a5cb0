//! Limits of a provider's account that all processes share through the store.

use std::sync::Arc;

use serde_json::json;
use windlass::agents::{
    Agent, AnthropicClient, CallResult, ClientOptions, Continuation, Lane, LaneOptions,
    LimitedProvider, LlmRequest, NoSink, OpenaiClient, Provider, ProviderErrorKind as Kind,
    ProviderRequest, Workflow, lanes,
};
use windlass::kernel::Subject;
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{Engine, RunKey, RunStatus};
use windlass_testkit::scripted_llm::{
    BatchEnd, BatchPlan, Fail, Op, RatePlan, Rule, Script, ScriptedLlm, Tokens, When,
};

use crate::agents_fixtures::{at_once, types_of};
use crate::harness::{Harness, Kind as StoreKind, on_every_store, until};

on_every_store!(
    a_retry_after_closes_the_account_for_all_processes,
    an_exhausted_limit_of_an_answer_closes_the_account,
    a_spend_limit_closes_the_account_until_it_is_opened_again,
    a_spend_limit_asks_one_person_and_the_runs_wait,
    a_spend_limit_of_a_batch_asks_a_person_and_the_lane_waits,
    a_batch_that_fails_for_money_asks_a_person_too,
);

async fn engines(h: &Harness) -> (Engine, Engine) {
    let first = h.engine().await;
    // A file of SQLite has one process, so both providers share its engine.
    let second = match h.kind {
        StoreKind::Sqlite => first.clone(),
        _ => h.engine().await,
    };
    (first, second)
}

fn provider(engine: &Engine, server: &ScriptedLlm, key: &str) -> LimitedProvider {
    let options = ClientOptions::new(key).base_url(server.url());
    let client = AnthropicClient::new(options).unwrap();
    let key = client.key().clone();
    LimitedProvider::new(engine, client, &key)
}

async fn call(provider: &LimitedProvider, text: &str) -> Result<(), (Kind, Option<u16>)> {
    let body = format!(
        r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":"{text}"}}]}}"#
    );
    let request = ProviderRequest {
        provider: "anthropic".to_owned(),
        model: "m".to_owned(),
        body: body.into(),
        call_id: "c".to_owned(),
        attempt: 1,
        stream: false,
    };
    let called = provider.call(&request, &NoSink).await;
    provider.learn(called.as_ref()).await;
    called.map(drop).map_err(|error| (error.kind(), error.status()))
}

async fn a_retry_after_closes_the_account_for_all_processes(h: Arc<Harness>) {
    h.expect_no_runs();
    let script = Script::new()
        .rule(Rule::when(When::last("long")).fail(Fail::rate_limit(3_600)))
        .rule(Rule::any().fail(Fail { retry_after_ms: Some(300), ..Fail::status(429) }).times(1))
        .rule(Rule::any().text("x"));
    let server = ScriptedLlm::start(script).unwrap();
    let (first, second) = engines(&h).await;
    let (one, two) = (provider(&first, &server, "a"), provider(&second, &server, "a"));
    assert_eq!(call(&one, "x").await, Err((Kind::RequestRateLimited, Some(429))));
    // A short wait passes within the call, in the other process too.
    assert_eq!(call(&two, "x").await, Ok(()));
    assert_eq!(call(&one, "long").await, Err((Kind::RequestRateLimited, Some(429))));
    let asked = server.report().count(Op::Live);
    for provider in [&two, &one] {
        let refused = call(provider, "x").await;
        assert_eq!(refused, Err((Kind::RequestRateLimited, None)), "it is not sent");
    }
    assert_eq!(server.report().count(Op::Live), asked);
    let other = provider(&second, &server, "another key");
    assert_eq!(call(&other, "x").await, Ok(()));
}

async fn an_exhausted_limit_of_an_answer_closes_the_account(h: Arc<Harness>) {
    h.expect_no_runs();
    let usage = Tokens { input: 30, output: 30, ..Tokens::default() };
    let mut rule = Rule::any().text("x");
    rule.answer.as_mut().unwrap().usage = Some(usage);
    let (first, second) = engines(&h).await;
    for (plan, calls, kind) in [
        (
            RatePlan { requests: 2, tokens: 10_000, window_ms: 3_600_000 },
            2,
            Kind::RequestRateLimited,
        ),
        (RatePlan { requests: 99, tokens: 80, window_ms: 3_600_000 }, 1, Kind::TokenRateLimited),
    ] {
        let server = ScriptedLlm::start(Script::new().rule(rule.clone()).rate(plan)).unwrap();
        let key = format!("{kind:?}");
        let (one, two) = (provider(&first, &server, &key), provider(&second, &server, &key));
        for _ in 0..calls {
            assert_eq!(call(&one, "x").await, Ok(()));
        }
        assert_eq!(call(&two, "x").await, Err((kind, None)), "no call is refused by the provider");
        assert_eq!(server.report().count(Op::Live), calls);
        assert_eq!(server.report().refused, 0);
    }
}

async fn a_spend_limit_closes_the_account_until_it_is_opened_again(h: Arc<Harness>) {
    let script = Script::new()
        .rule(Rule::any().fail(Fail::spend_limit()).times(1))
        .rule(Rule::any().text("x"));
    let server = ScriptedLlm::start(script).unwrap();
    let (first, second) = engines(&h).await;
    let (one, two) = (provider(&first, &server, "b"), provider(&second, &server, "b"));
    assert_eq!(call(&one, "x").await, Err((Kind::SpendLimitReached, Some(429))));
    assert_eq!(call(&two, "x").await, Err((Kind::SpendLimitReached, None)));
    assert_eq!(server.report().count(Op::Live), 1);
    two.reopen().await.unwrap();
    until("the account is open", || async { call(&one, "x").await.is_ok() }).await;
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hi")?;
    let request = LlmRequest::new("anthropic", "m").param("max_tokens", 9).transcript("chat");
    Ok(next.llm(request, "answer", "answered"))
}

async fn answered(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("answer")?.text()?;
    workflow.set("text", &text)?;
    Ok(next.halt())
}

async fn a_spend_limit_asks_one_person_and_the_runs_wait(h: Arc<Harness>) {
    let script = Script::new()
        .rule(Rule::any().fail(Fail::spend_limit()).times(1))
        .rule(Rule::any().text("paid"));
    let server = ScriptedLlm::start(script).unwrap();
    let engine = h.engine().await;
    let agent = Agent::new("asker", "ask")
        .function("ask", ask)
        .function("answered", answered)
        .output("text")
        // A run that waits for a person makes no attempts.
        .retry_policy(at_once(0))
        .provider(Arc::new(provider(&engine, &server, "c").ask("ann").ask_every("100 milliseconds").unwrap()));
    let askers = engine.agent(agent).unwrap();
    let mut runs = vec![askers.start(json!({})).await.unwrap()];
    let inbox = InboxQuery::Person("ann".into());
    let asked = || async {
        engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap().requests
    };
    until("a person is asked", || async { !asked().await.is_empty() }).await;
    // The second run meets an account that is closed.
    runs.push(askers.start(json!({})).await.unwrap());
    for run in &runs {
        until("the run waits", || async {
            run.status().await.unwrap().status == RunStatus::Waiting
        })
        .await;
    }
    let requests = asked().await;
    assert_eq!(requests.len(), 1, "one request for the account");
    assert_eq!(server.report().count(Op::Live), 1, "the account is closed for the other run");
    let ann = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    engine.requests().decide(&requests[0].id, &ann, &NewDecision::approve()).await.unwrap();
    let probe = provider(&engine, &server, "c");
    until("the account is open", || async { call(&probe, "x").await.is_ok() }).await;
    let mut retried = 0;
    for run in &runs {
        assert_eq!(run.result().await.unwrap(), "paid");
        let types = types_of(&engine, run.run_key()).await;
        retried += types.iter().filter(|name| *name == "anthropic.retried").count();
    }
    assert_eq!(retried, 1, "only the call that was sent is in the ledger");
}

async fn a_spend_limit_of_a_batch_asks_a_person_and_the_lane_waits(h: Arc<Harness>) {
    let script = Script::new()
        .rule(Rule::op(Op::CreateBatch).fail(Fail::spend_limit()).times(1))
        .rule(Rule::any().text("paid"));
    let server = ScriptedLlm::start(script).unwrap();
    let engine = h.engine().await;
    let limited = provider(&engine, &server, "d").ask("ann").ask_every("20 milliseconds").unwrap();
    let options = LaneOptions::default().gather("10 ms").poll("10 ms", "10 ms");
    let agent = Agent::new("asker", "ask")
        .function("ask", ask)
        .function("answered", answered)
        .output("text")
        .lane(Lane::Batch)
        .lane_options(options)
        .provider(Arc::new(limited));
    let run = engine.agent(agent).unwrap().start(json!({})).await.unwrap();
    let inbox = InboxQuery::Person("ann".into());
    let asked = || async {
        engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap().requests
    };
    until("a person is asked", || async { !asked().await.is_empty() }).await;
    // The lane asks again and again, more often than a provider may refuse a batch, and sends nothing.
    let claims = engine.admin().metrics().turns.get();
    until("the lane has looked often", || async {
        engine.admin().metrics().turns.get() > claims + 60
    })
    .await;
    assert_eq!(server.report().count(Op::CreateBatch), 1, "the account is closed for the lane");
    let ann = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    let id = asked().await.remove(0).id;
    engine.requests().decide(&id, &ann, &NewDecision::approve()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "paid");
    assert_eq!((server.report().count(Op::CreateBatch), server.report().messages), (2, 1));
    let lane = lanes(engine.core()).await.unwrap().remove(0);
    let lane: RunKey = lane.run_key.parse().unwrap();
    let types = types_of(&engine, lane).await;
    let retried = types.iter().filter(|name| *name == "continuation.retried").count();
    assert_eq!(retried, 1, "waiting for a person is no event: {types:?}");
}

async fn ask_openai(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hi")?;
    let request = LlmRequest::new("openai", "gpt-5").param("max_output_tokens", 9);
    Ok(next.llm(request.transcript("chat"), "answer", "answered"))
}

// OpenAI takes a batch and looks at the money later: the batch fails as a whole.
async fn a_batch_that_fails_for_money_asks_a_person_too(h: Arc<Harness>) {
    let plan = BatchPlan {
        end: BatchEnd::Fail,
        code: Some("billing_hard_limit_reached".into()),
        ..BatchPlan::default()
    };
    let script = Script::new().rule(Rule::any().text("paid")).batch(plan);
    let server = ScriptedLlm::start(script.batch(BatchPlan::default())).unwrap();
    let engine = h.engine().await;
    let client = OpenaiClient::new(ClientOptions::new("e").base_url(server.url())).unwrap();
    let key = client.key().clone();
    let limited = LimitedProvider::new(&engine, client, &key).ask("ann");
    let agent = Agent::new("asker", "ask")
        .function("ask", ask_openai)
        .function("answered", answered)
        .output("text")
        .retry_policy(at_once(0))
        .lane(Lane::Batch)
        .lane_options(LaneOptions::default().gather("10 ms").poll("10 ms", "10 ms"))
        .provider(Arc::new(limited.ask_every("20 milliseconds").unwrap()));
    let run = engine.agent(agent).unwrap().start(json!({})).await.unwrap();
    let inbox = InboxQuery::Person("ann".into());
    let asked = || async {
        engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap().requests
    };
    until("a person is asked", || async { !asked().await.is_empty() }).await;
    assert_eq!(server.report().count(Op::CreateBatch), 1);
    let ann = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    let id = asked().await.remove(0).id;
    engine.requests().decide(&id, &ann, &NewDecision::approve()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "paid");
    assert_eq!((server.report().count(Op::CreateBatch), server.report().messages), (2, 1));
}
