//! Restarts of agents: the next generation begins with the input, and its branches and tool calls are others.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, ForkBranch, HumanRequest, Tool, ToolContext, ToolOutput,
    ToolUse, Workflow,
};
use windlass::kernel::{Query, Subject};
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{AnyError, Ctx, Engine, RunKey, RunStatus};

use crate::agents_fixtures::{tree_events, types_of};
use crate::harness::{Counts, Harness, ok, on_every_store, until};

on_every_store!(
    a_restarted_run_forks_again,
    a_name_that_is_taken_fails_the_run,
    tool_calls_of_a_restart_have_other_ids,
);

async fn ids_of(engine: &Engine, root: RunKey) -> Vec<String> {
    let query = Query::Tree { root, after: None, limit: 100 };
    let runs = engine.admin().store().list(query).await.unwrap().runs().unwrap();
    let mut ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
    ids.sort();
    ids
}

async fn left(_: &mut Workflow, next: Continuation) -> CallResult {
    // A fork inside a branch; one of its names looks like that of a generation.
    let branches =
        vec![ForkBranch::new("g1", "leaf").with("a", 1), ForkBranch::new("0", "leaf").with("b", 2)];
    Ok(next.fork_join(branches, "leaf"))
}

async fn leaf(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn second(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.fork_join(vec![ForkBranch::new("again", "leaf")], "ask"))
}

async fn ask(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.human(HumanRequest::to("ann"), "outcome", "end"))
}

async fn end(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let sum = workflow.get::<u32>("a")? + workflow.get::<u32>("b")?;
    workflow.set("sum", &sum)?;
    Ok(next.halt())
}

fn forker(counts: &Arc<Counts>) -> Agent {
    let counts = Arc::clone(counts);
    Agent::new("forker", "first")
        .functions(|functions| {
            functions.register_boxed("first", 1, move |_, next| {
                counts.hit("first");
                Box::pin(
                    async move { Ok(next.fork_join(ForkBranch::pair("left", "leaf"), "second")) },
                )
            });
        })
        .function("left", left)
        .function("leaf", leaf)
        .function("second", second)
        .function("ask", ask)
        .function("end", end)
        .output("sum")
}

async fn until_asked(engine: &Engine, run: RunKey) {
    let inbox = InboxQuery::Person("ann".into());
    until("a person is asked", || async {
        let page = engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap();
        page.requests.iter().any(|request| request.run.run_key == run)
    })
    .await;
}

async fn approve(engine: &Engine, run: RunKey) {
    let inbox = InboxQuery::Person("ann".into());
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    let open = engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap().requests;
    let own = open.iter().find(|request| request.run.run_key == run).unwrap();
    engine.requests().decide(&own.id, &decider, &NewDecision::approve()).await.unwrap();
}

async fn a_restarted_run_forks_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let forkers = engine.agent(forker(&counts)).unwrap();
    let run = forkers.start(json!({})).id("f").await.unwrap();
    until_asked(&engine, run.run_key()).await;
    let first = ["f", "f:2:0", "f:lhs", "f:lhs:1:1", "f:lhs:g1", "f:rhs"];
    assert_eq!(ids_of(&engine, run.run_key()).await, first);
    // A live run, and then one that has ended.
    let mut run = run.restart().await.unwrap();
    for generation in [1, 2] {
        until_asked(&engine, run.run_key()).await;
        assert_eq!(counts.get("first"), generation + 1, "each generation forks once");
        let root = format!("f:0:{generation}");
        let mut expect = vec!["f".to_owned(), format!("{root}:2:0"), format!("{root}:rhs")];
        let left = ["lhs", "lhs:1:1", "lhs:g1"].map(|name| format!("{root}:{name}"));
        expect.extend(left);
        expect.sort();
        assert_eq!(ids_of(&engine, run.run_key()).await, expect);
        approve(&engine, run.run_key()).await;
        assert_eq!(run.result().await.unwrap(), 3);
        tree_events(&engine, run.run_key()).await;
        if generation == 1 {
            run = run.restart().await.unwrap();
        }
    }
}

// A child of a run of another workflow has the name that the branch needs.
async fn a_name_that_is_taken_fails_the_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let forkers = engine.agent(forker(&counts)).unwrap();
    let parents = engine
        .workflow("parent", async |ctx: Ctx, (): ()| {
            ctx.child_named::<Value, Value>("rhs", "forker", &json!({})).await?;
            ok(())
        })
        .unwrap();
    parents.start(()).id("f").await.unwrap();
    until("the child is there", || async { forkers.get("f:rhs").await.is_ok() }).await;
    until_asked(&engine, forkers.get("f:rhs").await.unwrap().run_key()).await;
    let begun = counts.get("first");
    let run = forkers.start(json!({})).id("f").await.unwrap();
    let failed = run.result().await.unwrap_err().to_string();
    assert!(failed.contains("RunExists"), "{failed}");
    assert_eq!(counts.get("first"), begun + 1, "the function is not called again and again");
    assert_eq!(types_of(&engine, run.run_key()).await.last().unwrap(), "workflow.failed");
}

/// Fails at its first call. Remembers the ids of its calls.
struct Shaky(Arc<Mutex<Vec<String>>>);

impl Tool for Shaky {
    type Input = Map<String, Value>;

    fn name(&self) -> &str {
        "shaky"
    }

    fn description(&self) -> &str {
        "Fails once."
    }

    async fn call(&self, context: ToolContext, _: Self::Input) -> Result<ToolOutput, AnyError> {
        assert_eq!(context.run_id, "c");
        let mut ids = self.0.lock();
        ids.push(context.call_id.to_string());
        match ids.len() {
            1 => Err(AnyError::msg("planned")),
            _ => Ok(ToolOutput::new("done")),
        }
    }
}

async fn call(_: &mut Workflow, next: Continuation) -> CallResult {
    let name = "shaky".to_owned();
    let uses = vec![ToolUse { id: "tu_1".to_owned(), name, input: json!({}) }];
    Ok(next.tools(uses, "results", "leaf"))
}

async fn tool_calls_of_a_restart_have_other_ids(h: Arc<Harness>) {
    let engine = h.engine().await;
    let ids = Arc::<Mutex<Vec<String>>>::default();
    let agent = Agent::new("caller", "call").function("call", call).function("leaf", leaf);
    let callers = engine.agent(agent.tool(Shaky(Arc::clone(&ids)))).unwrap();
    let run = callers.start(json!({})).id("c").await.unwrap();
    run.result().await.unwrap_err();
    let retried = run.retry().await.unwrap();
    retried.result().await.unwrap();
    let restarted = retried.restart().await.unwrap();
    restarted.result().await.unwrap();
    let again = restarted.restart().await.unwrap();
    again.result().await.unwrap();
    assert_eq!(engine.core().wait(again.run_key()).await.unwrap().status, RunStatus::Complete);
    let ids = ids.lock();
    assert_eq!(ids.len(), 4);
    assert_eq!(ids[0], ids[1], "a retry makes the same call");
    assert!(ids[1] != ids[2] && ids[2] != ids[3] && ids[1] != ids[3], "{ids:?}");
}
