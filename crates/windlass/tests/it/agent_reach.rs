//! Agents at the sizes that the documentation promises: many branches on one budget.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::Engine;
use windlass::agents::{
    Agent, Budget, CallResult, Continuation, ForkBranch, LlmRequest, Provider, Workflow, budgets,
};

use crate::agents_fixtures::{Script, text};

const MODEL: &str = "claude-haiku-4-5";

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hello")?;
    let request = LlmRequest::new("anthropic", MODEL).param("max_tokens", 20).transcript("chat");
    Ok(next.llm(request, "response", "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn fork(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let branch =
        |n: usize| ForkBranch::new(format!("f{n}"), "fork_more").only(Vec::<String>::new());
    workflow.set("forked", &true)?;
    Ok(next.fork_join((0..8).map(branch).collect(), "end"))
}

async fn fork_more(_: &mut Workflow, next: Continuation) -> CallResult {
    let branch = |n: usize| ForkBranch::new(format!("b{n}"), "ask").only(Vec::<String>::new());
    Ok(next.fork_join((0..125).map(branch).collect(), "end"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_branches_do_not_overrun_a_budget() {
    let engine = Engine::open("memory:").await.unwrap();
    let provider = Script::new([text("yes")]);
    let agent = Agent::new("tree", "fork")
        .function("fork", fork)
        .function("fork_more", fork_more)
        .function("ask", ask)
        .function("end", end)
        .budget(Budget::calls_only(300))
        .provider(Arc::clone(&provider) as Arc<dyn Provider>);
    let trees = engine.agent(agent).unwrap();
    let run = trees.start(json!({})).await.unwrap();
    let failed: windlass::Result<Value, _> = run.result().await;
    assert!(failed.unwrap_err().to_string().contains("BUDGET_EXCEEDED"));
    assert_eq!(provider.count(), 300, "not one call more, and not one less");
    let account = budgets(engine.core(), None, None, 10).await.unwrap().remove(0).account;
    assert_eq!(account.spent.calls, 300);
    assert!(account.reserved.is_empty(), "{account:?}");
    engine.stop("5 seconds").await.unwrap();
}
