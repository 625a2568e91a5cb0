//! Forks of agents: branches are child runs, and a retry keeps those that completed.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agents::{Agent, CallResult, Continuation, ForkBranch, Workflow};
use windlass::kernel::{Query, RunKey};
use windlass::{AnyError, Engine, RunStatus};

use crate::agents_fixtures::{assert_redacted, tree_events, types_of};
use crate::harness::{Counts, Harness, on_every_store};

on_every_store!(
    two_forks_with_nested_ones_join,
    the_most_branches_join,
    a_failed_branch_fails_the_join_and_a_retry_keeps_the_others,
    a_conflict_names_the_keys,
);

async fn first(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("s3cr3t-prompt")?;
    workflow.set("base", &"s3cr3t-env".repeat(1_000))?;
    Ok(next.fork_join(ForkBranch::pair("left", "right"), "second"))
}

async fn left(workflow: &mut Workflow, next: Continuation) -> CallResult {
    assert_eq!(workflow.get::<String>("base")?.len(), 10_000);
    workflow.transcript("chat").push_user("from the left")?;
    workflow.set("left", &"l".repeat(5_000))?;
    // A fork inside a branch.
    let branches = vec![
        ForkBranch::new("a", "leaf").with("who", "a"),
        ForkBranch::new("7", "leaf").with("who", "b"),
    ];
    Ok(next.fork_join(branches, "left_joined"))
}

async fn leaf(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let who: String = workflow.take("who")?;
    workflow.set(&format!("leaf-{who}"), &who)?;
    Ok(next.halt())
}

async fn left_joined(workflow: &mut Workflow, next: Continuation) -> CallResult {
    assert_eq!(workflow.get::<String>("leaf-a")?, "a");
    Ok(next.goto())
}

async fn right(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.remove("base");
    workflow.set("right", &1)?;
    Ok(next.halt())
}

async fn second(workflow: &mut Workflow, next: Continuation) -> CallResult {
    assert!(workflow.value("base").is_none());
    assert_eq!(workflow.get::<String>("left")?.len(), 5_000);
    assert_eq!(workflow.transcript("chat").len(), 2);
    let branches =
        vec![ForkBranch::new("left", "leaf").with("who", "c"), ForkBranch::new("right", "right2")];
    Ok(next.fork_join(branches, "third"))
}

async fn right2(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn third(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let keys: Vec<String> = workflow.keys().map(str::to_owned).collect();
    workflow.set("keys", &keys)?;
    Ok(next.halt())
}

async fn tree_ids(engine: &Engine, root: RunKey) -> Vec<String> {
    let query = Query::Tree { root, after: None, limit: 100 };
    let runs = engine.admin().store().list(query).await.unwrap().runs().unwrap();
    let mut ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
    ids.sort();
    ids
}

async fn two_forks_with_nested_ones_join(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("forks", "first")
        .function("first", first)
        .function("left", left)
        .function("leaf", leaf)
        .function("left_joined", left_joined)
        .function("right", right)
        .function("second", second)
        .function("right2", right2)
        .function("third", third)
        .output("keys");
    let run = engine.agent(agent).unwrap().start(json!({})).id("f").await.unwrap();
    let expect = json!(["leaf-a", "leaf-b", "leaf-c", "left", "right"]);
    assert_eq!(run.result().await.unwrap(), expect);
    let ids = ["f", "f:2:0", "f:2:1", "f:lhs", "f:lhs:1:1", "f:lhs:a", "f:rhs"];
    assert_eq!(tree_ids(&engine, run.run_key()).await, ids);
    let expect = [
        "workflow.enqueued",
        "local_call.started",
        "local_call.completed",
        "fork_join.started",
        "fork_join.completed",
        "local_call.started",
        "local_call.completed",
        "fork_join.started",
        "fork_join.completed",
        "local_call.started",
        "local_call.completed",
        "workflow.halted",
    ];
    assert_eq!(types_of(&engine, run.run_key()).await, expect);
    let events = tree_events(&engine, run.run_key()).await;
    assert_redacted(&events, &["s3cr3t-prompt", "s3cr3t-env", "llll"]);
    let own: Vec<_> = events.iter().filter(|event| event.run_key == run.run_key()).collect();
    let joined = own[4].payload_json().unwrap();
    assert_eq!(joined["branch_run_id"], json!({ "lhs": "f:lhs", "rhs": "f:rhs" }));
    let terminal = joined["terminal_event_id"]["lhs"].as_str().unwrap().to_owned();
    let ended = events.iter().find(|event| event.event_id.to_string() == terminal).unwrap();
    assert_eq!(ended.event_type.as_str(), "workflow.halted");
    // The first event of a branch is caused by the fork.
    let branch = events.iter().filter(|event| event.ordinal == 0 && event.run_key != run.run_key());
    for event in branch {
        let windlass::kernel::CausalRef::EventId { event_id } = event.caused_by else { panic!() };
        let cause = events.iter().find(|event| event.event_id == event_id).unwrap();
        assert_eq!(cause.event_type.as_str(), "fork_join.started");
    }
}

async fn wide(_: &mut Workflow, next: Continuation) -> CallResult {
    let name = |n| format!("branch number {n} with a long name");
    let branches =
        (0..128).map(|n| ForkBranch::new(name(n), "leaf").with("who", format!("{n:03}")));
    Ok(next.fork_join(branches.collect(), "third"))
}

async fn the_most_branches_join(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("wide", "wide").function("wide", wide).function("leaf", leaf);
    let run = engine.agent(agent.function("third", third).output("keys")).unwrap();
    let run = run.start(json!({})).await.unwrap();
    assert_eq!(run.result().await.unwrap().as_array().unwrap().len(), 128);
}

fn shaky(counts: &Arc<Counts>) -> Agent {
    async fn begin(_: &mut Workflow, next: Continuation) -> CallResult {
        let branches = vec![
            ForkBranch::new("good", "good"),
            ForkBranch::new("bad", "before"),
            ForkBranch::new("fine", "good2"),
        ];
        Ok(next.fork_join(branches, "done"))
    }
    async fn done(_: &mut Workflow, next: Continuation) -> CallResult {
        Ok(next.halt())
    }
    let counted = |counts: &Arc<Counts>, name: &'static str, fails: u32, then: &'static str| {
        let counts = Arc::clone(counts);
        move |workflow: &mut Workflow,
              next: Continuation|
              -> windlass::kernel::BoxFuture<'static, CallResult> {
            let hits = counts.hit(name);
            let set = workflow.set(name, &hits);
            Box::pin(async move {
                set?;
                match (hits <= fails, then) {
                    (true, _) => Err(AnyError::msg("planned")),
                    (false, "") => Ok(next.halt()),
                    (false, then) => Ok(next.call(then)),
                }
            })
        }
    };
    Agent::new("shaky", "begin").function("begin", begin).function("done", done).functions(
        |functions| {
            functions.register_version("good", 1, counted(counts, "good", 0, ""));
            functions.register_version("good2", 1, counted(counts, "good2", 0, ""));
            functions.register_version("before", 1, counted(counts, "before", 0, "bad"));
            functions.register_version("bad", 1, counted(counts, "bad", 2, ""));
        },
    )
}

async fn a_failed_branch_fails_the_join_and_a_retry_keeps_the_others(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let agents = engine.agent(shaky(&counts)).unwrap();
    let run = agents.start(json!({})).id("s").await.unwrap();
    let error = run.result().await.unwrap_err().to_string();
    for part in ["AGENT_BRANCH_FAILED", "branch \"bad\" of fork 1", "s:bad", "planned"] {
        assert!(error.contains(part), "{error}");
    }
    let types = types_of(&engine, run.run_key()).await;
    assert_eq!(types[3..], ["fork_join.started", "fork_join.failed", "workflow.failed"]);
    // The second attempt fails again, the third one succeeds.
    let second = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
    assert_eq!(engine.core().wait(second).await.unwrap().status, RunStatus::Errored);
    let third = engine.core().retry(second, None).await.unwrap().run_key;
    let ended = engine.core().wait(third).await.unwrap();
    assert_eq!(ended.status, RunStatus::Complete);
    let expect = json!({ "good": 1, "good2": 1, "before": 1, "bad": 3 });
    assert_eq!(ended.output.unwrap().read::<Value>().unwrap(), expect);
    assert_eq!((counts.get("good"), counts.get("good2"), counts.get("before")), (1, 1, 1));
    assert_eq!(counts.get("bad"), 3);
}

async fn collide(_: &mut Workflow, next: Continuation) -> CallResult {
    let branch = |name: &str| ForkBranch::new(name, "nothing").with("total", name).with(name, 1);
    Ok(next.fork_join(vec![branch("x"), branch("y")], "nothing"))
}

async fn nothing(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn a_conflict_names_the_keys(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("collide", "collide").function("collide", collide);
    let run =
        engine.agent(agent.function("nothing", nothing)).unwrap().start(json!({})).await.unwrap();
    let error = run.result().await.unwrap_err().to_string();
    assert!(error.contains("branches \"x\" and \"y\" both changed \"total\""), "{error}");
    assert!(error.contains("AGENT_JOIN_CONFLICT"), "{error}");
    let types = types_of(&engine, run.run_key()).await;
    assert_eq!(types[4..], ["fork_join.failed", "workflow.failed"]);
}
