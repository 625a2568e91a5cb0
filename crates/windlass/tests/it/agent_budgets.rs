//! Budgets of agents: nothing is overrun or leaked over branches, crashes, retries and people.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agents::{
    Account, Agent, AgentLoop, AnthropicClient, Budget, BudgetLimits, CallResult, ClientOptions,
    Continuation, ForkBranch, LlmRequest, NamedAccount, ProviderErrorKind, SpendQuery, SubAgent,
    Workflow, budgets, prices::PriceTable, raise_budget, root_spend, spend,
};
use windlass::kernel::Subject;
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{Engine, RunStatus};
use windlass_testkit::scripted_llm::{Lose, Rule, Script as Scripted, ScriptedLlm};

use crate::agents_fixtures::{Answer, Script, at_once, text, types_of};
use crate::harness::{Harness, on_every_store, until, until_status};

on_every_store!(
    money_recorded_is_money_asked,
    many_branches_never_overrun_a_budget,
    a_person_extends_or_refuses,
    a_retry_goes_on_with_the_same_budget,
    a_reservation_of_a_run_that_was_ended_is_not_leaked,
    a_budget_that_cannot_be_kept_is_refused_at_the_start,
);

const MODEL: &str = "claude-sonnet-4-5";

fn request() -> LlmRequest {
    LlmRequest::new("anthropic", MODEL).param("max_tokens", 100).transcript("chat")
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let left: u32 = workflow.get("calls").unwrap_or(1);
    if left == 0 {
        return Ok(next.halt());
    }
    workflow.set("calls", &(left - 1))?;
    workflow.transcript("chat").push_user("hello")?;
    Ok(next.llm(request(), "response", "ask"))
}

async fn fork(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let width: usize = workflow.get("width")?;
    let branch = |n: usize| ForkBranch::new(format!("b{n}"), "try").only(Vec::<String>::new());
    Ok(next.fork_join((0..width).map(branch).collect(), "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

fn agent(provider: Arc<dyn windlass::agents::Provider>, budget: Budget) -> Agent {
    Agent::new("spender", "ask")
        .function("ask", ask)
        .function("try", ask)
        .function("fork", fork)
        .function("end", end)
        .retry_policy(at_once(3))
        .budget(budget)
        .provider(provider)
}

async fn only_account(engine: &Engine) -> NamedAccount {
    let mut found = budgets(engine.core(), None, None, 10).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

// Money asked is money recorded, where the reply of every third call is lost after it was charged.
async fn money_recorded_is_money_asked(h: Arc<Harness>) {
    let engine = h.engine().await;
    let mut script = Scripted::new();
    for _ in 0..4 {
        script = script
            .rule(Rule::any().text("yes").times(2))
            .rule(Rule::any().text("lost").lose(Lose::After).times(1));
    }
    let server = ScriptedLlm::start(script.rule(Rule::any().text("yes"))).unwrap();
    let options = ClientOptions::new("key").base_url(server.url());
    let client = Arc::new(AnthropicClient::new(options).unwrap());
    let spenders = engine.agent(agent(client, Budget::usd(5.0))).unwrap();
    let run = spenders.start(json!({ "calls": 10 })).await.unwrap();
    run.result().await.unwrap();
    let Account { spent, uncertain, reserved, .. } = only_account(&engine).await.account;
    let report = server.report();
    assert!(reserved.is_empty());
    assert_eq!((spent.calls, uncertain.calls), (10, report.lost));
    assert_eq!(report.messages, spent.calls + uncertain.calls);
    // A lost answer counts at its maximum.
    let most = spent.usd_nanos.plus(uncertain.usd_nanos);
    assert!(spent.usd_nanos < report.money && report.money <= most, "{report:?} {spent:?}");
    let figures = spend(engine.core(), &SpendQuery::default()).await.unwrap();
    assert_eq!(figures.len(), 1, "{figures:?}");
    assert_eq!((figures[0].calls, figures[0].cost), (10, spent.usd_nanos));
    assert_eq!(figures[0].uncertain_calls, report.lost);
    let root = root_spend(engine.core(), run.run_key(), PriceTable::built_in()).await.unwrap();
    assert_eq!((root.calls, root.cost), (10, spent.usd_nanos));
    assert_eq!(root.uncertain_calls, report.lost);
}

async fn many_branches_never_overrun_a_budget(h: Arc<Harness>) {
    let engine = h.engine().await;
    let provider = Script::new([text("yes")]);
    let forked = Agent::new("forked", "fork")
        .function("fork", fork)
        .function("try", ask)
        .function("ask", ask)
        .function("end", end)
        .budget(Budget::calls_only(40))
        .provider(provider.clone());
    let forks = engine.agent(forked).unwrap();
    let run = forks.start(json!({ "width": 120 })).await.unwrap();
    let failed = run.result().await.unwrap_err().to_string();
    assert!(
        failed.contains("AGENT_BRANCH_FAILED") && failed.contains("BUDGET_EXCEEDED"),
        "{failed}"
    );
    let found = budgets(engine.core(), Some(("workflow", "forked")), None, 10).await.unwrap();
    let account = &found[0].account;
    assert_eq!(provider.count(), 40, "not one call more, and not one less");
    assert_eq!(account.spent.calls, 40);
    assert!(account.reserved.is_empty(), "{account:?}");
}

async fn inbox(engine: &Engine) -> Vec<String> {
    let query = InboxQuery::Person("ann".into());
    let page = engine.requests().inbox(&query, InboxOrder::Due, None, 10).await.unwrap();
    page.requests.into_iter().map(|request| request.id).collect()
}

async fn a_person_extends_or_refuses(h: Arc<Harness>) {
    let engine = h.engine().await;
    let provider = Script::new([text("yes")]);
    let spenders = engine.agent(agent(provider.clone(), Budget::calls_only(2).ask("ann"))).unwrap();
    let run = spenders.start(json!({ "calls": 5 })).await.unwrap();
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    for round in 1..=2 {
        until("a person is asked", || async { inbox(&engine).await.len() == 1 }).await;
        assert_eq!(provider.count(), round * 2);
        let id = inbox(&engine).await.remove(0);
        engine.requests().decide(&id, &decider, &NewDecision::approve()).await.unwrap();
    }
    run.result().await.unwrap();
    assert_eq!(provider.count(), 5);
    assert_eq!(only_account(&engine).await.account.limits.calls, Some(6));

    // Many branches ask once, and one refusal ends them all.
    let forked = Agent::new("forked", "fork")
        .function("fork", fork)
        .function("try", ask)
        .function("ask", ask)
        .function("end", end)
        .budget(Budget::calls_only(1).ask("ann"))
        .provider(provider.clone());
    let forks = engine.agent(forked).unwrap();
    let run = forks.start(json!({ "width": 6 })).await.unwrap();
    until("a person is asked", || async { !inbox(&engine).await.is_empty() }).await;
    let ids = inbox(&engine).await;
    assert_eq!(ids.len(), 1);
    engine.requests().decide(&ids[0], &decider, &NewDecision::reject()).await.unwrap();
    let failed = run.result().await.unwrap_err().to_string();
    assert!(failed.contains("BUDGET_EXCEEDED"), "{failed}");
    assert!(inbox(&engine).await.is_empty());
    assert_eq!(provider.count(), 6);
}

async fn a_retry_goes_on_with_the_same_budget(h: Arc<Harness>) {
    let engine = h.engine().await;
    let provider = Script::new([
        text("yes"),
        Answer::Fails(ProviderErrorKind::UnknownOutcome),
        Answer::Fails(ProviderErrorKind::Invalid),
        text("yes"),
    ]);
    let spenders = engine.agent(agent(provider.clone(), Budget::calls_only(4))).unwrap();
    let run = spenders.start(json!({ "calls": 4 })).await.unwrap();
    assert!(run.result().await.unwrap_err().to_string().contains("PROVIDER_FAILED"));
    let account = only_account(&engine).await.account;
    assert_eq!((account.spent.calls, account.uncertain.calls), (1, 1));
    assert!(account.reserved.is_empty());
    let second = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
    assert_eq!(engine.core().wait(second).await.unwrap().status, RunStatus::Errored);
    let named = only_account(&engine).await;
    assert_eq!((named.account.spent.calls, named.account.uncertain.calls), (3, 1));
    assert_eq!(types_of(&engine, second).await.last().unwrap(), "workflow.failed");
    let more = BudgetLimits { calls: Some(1), ..BudgetLimits::default() };
    raise_budget(engine.core(), &named.id, more).await.unwrap();
    let third = engine.core().retry(second, None).await.unwrap().run_key;
    assert_eq!(engine.core().wait(third).await.unwrap().status, RunStatus::Complete);
    let account = only_account(&engine).await.account;
    assert_eq!((account.spent.calls, account.uncertain.calls), (4, 1));
    assert_eq!(provider.count(), 6);
}

async fn a_reservation_of_a_run_that_was_ended_is_not_leaked(h: Arc<Harness>) {
    let engine = h.engine().await;
    let provider = Script::new([Answer::Hangs, text("yes")]);
    let forked = Agent::new("forked", "fork")
        .function("fork", fork)
        .function("try", ask)
        .function("ask", ask)
        .function("end", end)
        .budget(Budget::calls_only(1))
        .provider(provider.clone());
    let forks = engine.agent(forked).unwrap();
    let run = forks.start(json!({ "width": 1 })).id("f").await.unwrap();
    until("the provider is called", || async { provider.count() == 1 }).await;
    let branch = forks.get("f:b0").await.unwrap();
    engine.core().terminate(branch.run_key(), None, None).await.unwrap();
    assert!(run.result().await.is_err());
    // The next generation finds the reservation of the branch, and that nobody settles it.
    let second = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
    let ended = tokio::time::timeout(Duration::from_secs(60), engine.core().wait(second)).await;
    assert_eq!(ended.unwrap().unwrap().status, RunStatus::Errored);
    let account = only_account(&engine).await.account;
    assert!(account.reserved.is_empty(), "{account:?}");
    assert_eq!((account.spent.calls, account.uncertain.calls), (0, 1));
}

async fn a_budget_that_cannot_be_kept_is_refused_at_the_start(h: Arc<Harness>) {
    let engine = h.engine().await;
    let provider = Script::new([text("yes")]);
    let own = |name: &str| {
        let spec = AgentLoop::new("loop", "anthropic", "in-house");
        Agent::new(name, "loop").agent_loop(spec).provider(provider.clone())
    };
    let refused = engine.agent(own("a").budget(Budget::usd(1.0))).unwrap_err();
    assert_eq!(refused.code(), "BUDGET_NO_PRICE");
    let refused = engine.agent(own("b").budget(Budget::default())).unwrap_err();
    assert_eq!(refused.code(), "INVALID_BUDGET");
    let loops = engine.agent(own("c").budget_input("limits")).unwrap();
    for (limits, code) in [
        (json!({ "usd": 1.5 }), "BUDGET_NO_PRICE"),
        (json!({}), "INVALID_BUDGET"),
        (json!({ "usd": "much" }), "INVALID_BUDGET"),
        (json!({ "money": 1 }), "INVALID_BUDGET"),
    ] {
        let refused = loops.start(json!({ "prompt": "x", "limits": limits })).await.unwrap_err();
        assert_eq!(refused.code(), code);
    }
    let input = json!({ "prompt": "x", "limits": { "calls": 1 } });
    let output: Value = loops.start(input).await.unwrap().result().await.unwrap();
    assert_eq!(output["answer"], "yes");
    assert!(output.get("limits").is_none(), "{output}");
    // The share of a sub-agent, and of a branch, counts money too.
    let reader = SubAgent::new("reader", "Reads.", "read").budget(Budget::usd(0.1));
    let lead = AgentLoop::new("lead", "anthropic", MODEL).sub_agent(reader);
    let shared = |name: &str| {
        let read = AgentLoop::new("read", "anthropic", "in-house");
        Agent::new(name, "lead").agent_loop(read).provider(provider.clone())
    };
    let refused = engine.agent(shared("d").agent_loop(lead)).unwrap_err();
    assert_eq!(refused.code(), "BUDGET_NO_PRICE");
    let asked = provider.count();
    let forking = Agent::new("e", "fork_read")
        .function("fork_read", fork_read)
        .function("end", end)
        .agent_loop(AgentLoop::new("read", "anthropic", "in-house"))
        .provider(provider.clone());
    let run = engine.agent(forking).unwrap().start(json!({ "prompt": "x" })).await.unwrap();
    assert!(run.result().await.unwrap_err().to_string().contains("BUDGET_NO_PRICE"));
    assert_eq!(provider.count(), asked, "no branch begins");
    // A function that calls a model without a price fails before the call.
    let unpriced = Agent::new("unpriced", "other")
        .function("other", other)
        .function("end", end)
        .budget(Budget::usd(1.0))
        .provider(provider.clone());
    let run = engine.agent(unpriced).unwrap().start(json!({})).await.unwrap();
    assert!(run.result().await.unwrap_err().to_string().contains("BUDGET_NO_PRICE"));
    assert_eq!(provider.count(), asked);
    until_status(&run, RunStatus::Errored).await;
}

async fn fork_read(_: &mut Workflow, next: Continuation) -> CallResult {
    let branch = ForkBranch::new("one", "read").budget(Budget::usd(0.1));
    Ok(next.fork_join(vec![branch], "end"))
}

async fn other(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hello")?;
    Ok(next.llm(LlmRequest::new("anthropic", "other").transcript("chat"), "r", "end"))
}
