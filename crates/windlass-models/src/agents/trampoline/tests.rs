//! Tests of the trampoline: order of events, causes, and local calls that fail.

use serde_json::json;
use windlass_kernel::{CausalRef, RunKey};

use super::*;
use crate::agents::observe::{ObservabilityContext, PendingCause};
use crate::agents::request::{ForkBranch, LlmRequest};

async fn count(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let n: u32 = workflow.get("n")?;
    workflow.set("n", &(n + 1))?;
    workflow.record_event("count.made", json!({ "n": n }))?;
    Ok(match n {
        0 => next.defer("count").call("count"),
        1 => next.goto(),
        2 => next.defer("count").defer("count").halt(),
        3 => return Err(AnyError::msg("three")),
        4 => panic!("four"),
        5 => next.call("nobody"),
        6 => next.fork_join(Vec::new(), "count"),
        7 => next.llm(LlmRequest::new("p", "m"), "answer", "count"),
        8 => next.goto(),
        _ => next.fork_join(vec![ForkBranch::new("b", "count"); 129], "count"),
    })
}

fn program() -> Trampoline {
    let mut program = Trampoline::new();
    program.register("count", count);
    program
}

fn workflow(n: u32) -> Workflow {
    let mut workflow = Workflow::new("w", "count");
    workflow.set("n", &n).unwrap();
    workflow
}

#[tokio::test]
async fn choices_lead_where_they_say() {
    for (n, expect) in [
        (0, "LocalCall { function: \"count\" } 1"),
        (1, "Halt 0"),
        (2, "Halt 0"),
        (7, "Llm { provider: \"p\", output_key: \"answer\" } 1"),
        (8, "Halt 0"),
    ] {
        let outcome = program().run_one_local_call(workflow(n)).await.unwrap();
        assert_eq!(format!("{:?} {}", outcome.next, outcome.workflow.stack.len()), expect, "{n}");
        assert_eq!(outcome.env_changes.modified, 1);
        assert_eq!(outcome.events.len(), 1);
        assert!(outcome.workflow.pending_events().is_empty());
    }
    let outcome = program().run_one_local_call(workflow(2)).await.unwrap();
    assert!(matches!(outcome.workflow.step, Step::Halt { explicit: true, discarded: 2 }));
    let outcome = program().run_one_local_call(workflow(1)).await.unwrap();
    assert!(matches!(outcome.workflow.step, Step::Halt { explicit: false, .. }));
}

#[tokio::test]
async fn a_failed_function_leaves_its_partial_workflow_and_events() {
    for (n, expect) in [
        (3, "three"),
        (4, "the function panicked: four"),
        (5, "AGENT_FUNCTION_NOT_FOUND"),
        (6, "1 to 128 are allowed"),
        (9, "129 branches"),
    ] {
        let error = program().run_one_local_call(workflow(n)).await.unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
        assert_eq!(error.workflow.get::<u32>("n").unwrap(), n + 1);
        assert_eq!((error.events.len(), error.env_changes.modified), (1, 1));
        assert_eq!(error.function.as_deref(), Some("count"));
    }
    let error = program().run_one_local_call(Workflow::new("w", "count")).await.unwrap_err();
    assert!(error.to_string().contains("ENV_KEY_NOT_FOUND"), "{error}");
}

#[tokio::test]
async fn a_run_collects_the_events_of_all_functions() {
    let outcome = program().run(workflow(0)).await.unwrap();
    // 0 defers and calls, 1 goes back to the deferred one, 2 halts.
    assert_eq!(outcome.events.len(), 3);
    let WorkflowResult::Halt(ended) = outcome.result else { panic!("it halts") };
    assert_eq!(ended.get::<u32>("n").unwrap(), 3);
}

#[test]
fn events_chain_and_are_not_in_the_snapshot() {
    let mut workflow = workflow(0);
    let run = CausalRef::run(RunKey(uuid::Uuid::from_u128(7)));
    workflow.set_observability_context(ObservabilityContext { causal_cursor: run });
    assert_eq!(workflow.causal_cursor(), Some(run));
    let first = workflow.record_event("a.b", ()).unwrap();
    assert_eq!(workflow.causal_cursor(), Some(CausalRef::event(first)));
    let second = workflow.record_event_caused_by("a.c", json!([1]), run).unwrap();
    assert_eq!(workflow.causal_cursor(), Some(CausalRef::event(second)));
    let causes: Vec<_> = workflow.pending_events().iter().map(|event| event.cause).collect();
    assert_eq!(causes, [PendingCause::Automatic, PendingCause::Explicit(run)]);
    let copy: Workflow = serde_json::from_value(serde_json::to_value(&workflow).unwrap()).unwrap();
    assert!(copy.pending_events().is_empty() && copy.causal_cursor().is_none());
}

#[test]
fn events_are_checked_when_they_are_recorded() {
    let mut workflow = workflow(0);
    let large = "x".repeat(33 * 1024);
    for (name, payload, code) in [
        ("local_call.started", json!(1), "INVALID_EVENT_TYPE"),
        ("human.asked", json!(1), "INVALID_EVENT_TYPE"),
        ("no name", json!(1), "INVALID_EVENT_TYPE"),
        ("a.b", json!(large), "INVALID_SIZE"),
    ] {
        assert_eq!(workflow.record_event(name, payload).unwrap_err().code(), code, "{name}");
    }
    assert!(workflow.pending_events().is_empty());
}

#[tokio::test]
async fn older_snapshots_are_upcast_by_function() {
    async fn renamed(workflow: &mut Workflow, next: Continuation) -> CallResult {
        assert_eq!(workflow.get::<u32>("total")?, 5);
        Ok(next.halt())
    }
    let old = serde_json::to_string(&workflow(4)).unwrap();
    let old: Workflow = serde_json::from_str(&old).unwrap();
    let mut program = Trampoline::new();
    assert_eq!(program.check(&old).unwrap_err().code(), "AGENT_FUNCTION_NOT_FOUND");
    program.register_version("sum", 3, renamed).rename("count", "sum");
    assert_eq!(program.check(&old).unwrap_err().code(), "AGENT_SNAPSHOT_INVALID");
    program.upcast("sum", 1, |env| {
        let n = env.remove("n").unwrap_or_default();
        env.insert("total".into(), n);
        Ok(())
    });
    assert!(program.check(&old).unwrap_err().to_string().contains("from version 2"));
    program.upcast("sum", 2, |env| {
        env["total"] = json!(env["total"].as_u64().unwrap_or(0) + 1);
        Ok(())
    });
    program.check(&old).unwrap();
    let WorkflowResult::Halt(_) = program.run(old).await.unwrap().result else { panic!() };
    let mut newer = workflow(1);
    newer.step = Step::Call { function: "sum".into(), version: 4 };
    assert_eq!(program.check(&newer).unwrap_err().code(), "AGENT_SNAPSHOT_INVALID");
}

#[test]
fn a_snapshot_of_another_version_is_refused() {
    let mut snapshot = serde_json::to_value(workflow(0)).unwrap();
    snapshot["v"] = json!(2);
    let error = serde_json::from_value::<Workflow>(snapshot).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}
