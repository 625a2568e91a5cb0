//! Events that functions record and the ledger cannot take: the failure of the function is recorded all the same.

use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;
use windlass::agents::{
    Agent, CallResult, Continuation, ForkBranch, HumanRequest, ObservabilityConfig, Workflow,
    load_root_workflow_events, load_workflow_event, load_workflow_events,
};
use windlass::kernel::{Actor, CausalRef, EventId, Limits, Namespace, RunKey, Subject};
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{AnyError, RunStatus};

use crate::agents_fixtures::{assert_redacted, events_of, types_of};
use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    an_event_above_the_limit_of_the_engine,
    a_failure_outlives_a_cause_that_is_missing,
    a_start_records_events_that_are_read_by_id_and_root,
    a_resumed_run_names_its_person_by_digest,
);

async fn record(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.record_event("mine.small", json!({ "n": 1 }))?;
    let large = workflow.record_event("mine.large", "x".repeat(3_000));
    if workflow.get::<bool>("careful")? {
        workflow.set("refused", large.unwrap_err().code().as_str())?;
        return Ok(next.halt());
    }
    large?;
    Ok(next.halt())
}

// The limit of the program is above that of the engine.
async fn an_event_above_the_limit_of_the_engine(h: Arc<Harness>) {
    let limits = Limits { event_payload_bytes_max: 2_048, ..Limits::DEFAULT };
    let engine = h.engine_with_limits(limits).await;
    let config = ObservabilityConfig { max_event_payload_bytes: 8_192, ..Default::default() };
    let agent = Agent::new("recorder", "record").function("record", record).output("refused");
    let agent = agent.functions(|functions| {
        functions.observability(config);
    });
    let agents = engine.agent(agent).unwrap();
    let run = agents.start(json!({ "careful": true })).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "INVALID_SIZE");
    let run = agents.start(json!({ "careful": false })).await.unwrap();
    let ended = engine.core().wait(run.run_key()).await.unwrap();
    assert_eq!(ended.status, RunStatus::Errored);
    assert_eq!(ended.error.unwrap().read::<Value>().unwrap()["name"], "INVALID_SIZE");
    let types = types_of(&engine, run.run_key()).await;
    let expect = ["local_call.started", "mine.small", "local_call.failed", "workflow.failed"];
    assert_eq!(types[1..], expect);
}

async fn fail(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let first = workflow.record_event("mine.first", json!({}))?;
    let cause = match workflow.get::<bool>("missing")? {
        true => CausalRef::run(RunKey(Uuid::from_u128(1))),
        false => CausalRef::event(first),
    };
    workflow.record_event_caused_by("mine.second", json!({}), cause)?;
    drop(next);
    Err(AnyError::msg("planned"))
}

async fn a_failure_outlives_a_cause_that_is_missing(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("failing", "fail").function("fail", fail);
    let agents = engine.agent(agent).unwrap();
    for (missing, recorded) in
        [(false, vec!["mine.first", "mine.second"]), (true, vec!["mine.first"])]
    {
        let run = agents.start(json!({ "missing": missing })).await.unwrap();
        let failed = run.result().await.unwrap_err().to_string();
        assert!(failed.contains("planned"), "{failed}");
        let types = types_of(&engine, run.run_key()).await;
        let mut expect = vec!["local_call.started"];
        expect.extend(recorded);
        expect.extend(["local_call.failed", "workflow.failed"]);
        assert_eq!(types[1..], expect);
    }
}

async fn fork(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.fork_join(ForkBranch::pair("end", "end"), "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn a_start_records_events_that_are_read_by_id_and_root(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("forker", "fork").function("fork", fork).function("end", end);
    let agents = engine.agent(agent).unwrap();
    let first = agents.start(json!({})).id("a").await.unwrap();
    let cause = CausalRef::run(first.run_key());
    let start = || {
        let start = agents.start(json!({})).id("b").event("mine.received", &json!({ "n": 1 }));
        start.event_caused_by("mine.linked", "by a", cause)
    };
    let run = start().await.unwrap();
    run.result().await.unwrap();
    assert!(start().await.unwrap().existed());
    let types = types_of(&engine, run.run_key()).await;
    let expect = ["workflow.enqueued", "mine.received", "mine.linked", "local_call.started"];
    assert_eq!(types[..4], expect);
    let core = engine.core();
    let own = load_workflow_events(core, run.run_key()).await.unwrap();
    assert_eq!(own.len(), types.len(), "a start that finds its run records nothing");
    assert_eq!(own[2].event.caused_by, cause);
    assert_eq!(own[1].event.payload_json().unwrap(), json!({ "n": 1 }));
    let tree = load_root_workflow_events(core, run.run_key()).await.unwrap();
    let forks: Vec<_> = tree.iter().filter_map(|record| record.fork.as_deref()).collect();
    assert!(forks.contains(&"lhs") && forks.contains(&"rhs"), "{forks:?}");
    assert!(tree.iter().all(|record| record.root == run.run_key()));
    for record in &tree {
        let found = load_workflow_event(core, record.event.event_id).await.unwrap();
        assert_eq!(found.as_ref(), Some(record));
    }
    // Another tenant does not see them.
    let other = core.in_namespace(Namespace::new("other").unwrap());
    assert_eq!(load_workflow_event(&other, own[0].event.event_id).await.unwrap(), None);
    assert!(load_workflow_events(&other, run.run_key()).await.unwrap().is_empty());
    assert!(load_root_workflow_events(&other, run.run_key()).await.unwrap().is_empty());
    let nothing = load_workflow_event(core, EventId(Uuid::from_u128(1))).await.unwrap();
    assert_eq!(nothing, None);
    for (start, code) in [
        (agents.start(json!({})).event("workflow.mine", &()), "INVALID_EVENT_TYPE"),
        (
            agents.start(json!({})).event_caused_by(
                "mine.linked",
                &(),
                CausalRef::run(RunKey(Uuid::from_u128(1))),
            ),
            "CAUSE_NOT_FOUND",
        ),
    ] {
        assert_eq!(start.await.map(|run| run.run_key()).unwrap_err().code(), code);
    }
}

async fn ask(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.human(HumanRequest::to("ann"), "outcome", "end"))
}

async fn a_resumed_run_names_its_person_by_digest(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agent = Agent::new("asker", "ask").function("ask", ask).function("end", end);
    let run = engine.agent(agent).unwrap().start(json!({})).await.unwrap();
    let inbox = InboxQuery::Person("ann".into());
    let requests = engine.requests();
    let page = || requests.inbox(&inbox, InboxOrder::Due, None, 10);
    until("a person is asked", || async { !page().await.unwrap().requests.is_empty() }).await;
    let request = page().await.unwrap().requests.remove(0);
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    requests.decide(&request.id, &decider, &NewDecision::approve()).await.unwrap();
    run.result().await.unwrap();
    let events = events_of(&engine, run.run_key()).await;
    let resumed = events.iter().find(|event| event.event_type.as_str() == "human.resumed");
    let resumed = resumed.unwrap().payload_json().unwrap();
    assert_eq!(resumed["actor"], json!(Actor::new("user", "ann")));
    assert_redacted(&events, &["\"ann\""]);
}
