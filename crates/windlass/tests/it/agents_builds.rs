//! Runs of agents that a later build goes on with: upcasters, checks before a deployment, options that a snapshot
//! does not have, and inputs that no build can begin with.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, ForkBranch, HumanRequest, LlmRequest, ObservabilityConfig,
    Workflow,
};
use windlass::kernel::Subject;
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{Engine, RunStatus};

use crate::agents_fixtures::{Answer, Script, events_of, text, types_of};
use crate::harness::{Harness, on_every_store, until, until_status};

on_every_store!(
    an_upcaster_prepares_the_env_of_a_stored_run,
    a_check_finds_all_that_a_build_lacks,
    the_limits_of_events_outlive_a_reload,
    an_input_that_is_no_env_is_refused_or_fails,
);

async fn approve_all(engine: &Engine) {
    let inbox = InboxQuery::Person("ann".into());
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    let open = engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap().requests;
    for request in open {
        engine.requests().decide(&request.id, &decider, &NewDecision::approve()).await.unwrap();
    }
}

async fn wait(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("n", &7)?;
    Ok(next.human(HumanRequest::to("ann"), "outcome", "end"))
}

async fn fork(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.fork_join(vec![ForkBranch::new("only", "branch")], "end"))
}

async fn branch(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("n", &7)?;
    Ok(next.human(HumanRequest::to("ann"), "outcome", "leaf"))
}

async fn leaf(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn end(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.get::<u32>("n")?;
    Ok(next.halt())
}

// This one reads another key.
async fn later_end(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let count: u32 = workflow.get("count")?;
    workflow.set("seen", &count)?;
    Ok(next.halt())
}

type Upcaster = fn(&mut Map<String, Value>) -> Result<(), windlass::AnyError>;

fn renames(env: &mut Map<String, Value>) -> Result<(), windlass::AnyError> {
    let n = env.remove("n").ok_or_else(|| windlass::AnyError::msg("there is no n"))?;
    env.insert("count".to_owned(), n);
    Ok(())
}

async fn an_upcaster_prepares_the_env_of_a_stored_run(h: Arc<Harness>) {
    // The function that changed runs after a question, or joins branches.
    for (name, entry) in [("asks", "wait"), ("forks", "fork")] {
        let agent = || {
            Agent::new(name, entry)
                .function("wait", wait)
                .function("fork", fork)
                .function("branch", branch)
                .function("leaf", leaf)
                .output("seen")
        };
        let engine = h.engine().await;
        let old = agent().function("end", end);
        let run = engine.agent(old).unwrap().start(json!({})).id("r").await.unwrap();
        until_status(&run, RunStatus::Waiting).await;
        let asked = || async {
            let inbox = InboxQuery::Person("ann".into());
            let page = engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await;
            !page.unwrap().requests.is_empty()
        };
        until("a person is asked", asked).await;
        h.stop(&engine).await;
        let engine = h.engine().await;
        let new = || {
            agent().functions(|functions| {
                functions.register_version("end", 2, later_end);
            })
        };
        let unfit = windlass::agents::check(engine.core(), &new()).await.unwrap();
        let lacks = |error: &windlass::Error| error.code() == "AGENT_SNAPSHOT_INVALID";
        let missing: Vec<_> = unfit.iter().map(|unfit| lacks(&unfit.error)).collect();
        assert_eq!(missing, [true], "{name}: the build has no upcaster");
        // An upcaster that does not fit is found too, except where branches still change the env.
        let broken: [Upcaster; 2] =
            [|_| Err(windlass::AnyError::msg("planned")), |env| panic!("{} keys", env.len())];
        for upcaster in broken {
            let broken = new().functions(|functions| {
                functions.upcast("end", 1, upcaster);
            });
            let unfit = windlass::agents::check(engine.core(), &broken).await.unwrap();
            let found: Vec<_> = unfit.iter().map(|unfit| lacks(&unfit.error)).collect();
            assert_eq!(found, vec![true; usize::from(name == "asks")], "{name}");
        }
        let new = new().functions(|functions| {
            functions.upcast("end", 1, renames);
        });
        assert!(windlass::agents::check(engine.core(), &new).await.unwrap().is_empty());
        let found = engine.agent(new).unwrap().get("r").await.unwrap();
        approve_all(&engine).await;
        assert_eq!(found.result().await.unwrap(), 7, "{name}");
        h.stop(&engine).await;
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hi")?;
    let request = LlmRequest::new("anthropic", "m").transcript("chat").on_overflow("leaf");
    Ok(next.llm(request, "answer", "tell"))
}

async fn tell(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn a_check_finds_all_that_a_build_lacks(h: Arc<Harness>) {
    let engine = h.engine().await;
    let script = Script::new([Answer::Hangs, text("done")]);
    let parts = || Agent::new("asker", "ask").function("ask", ask).function("tell", tell);
    let whole = || parts().function("leaf", leaf).provider(script.clone());
    let run = engine.agent(whole()).unwrap().start(json!({})).id("a").await.unwrap();
    until("the provider is called", || async { script.count() == 1 }).await;
    for (agent, expect) in [
        (whole(), None),
        (parts().function("leaf", leaf), Some("AGENT_PROVIDER_NOT_FOUND")),
        (parts().provider(script.clone()), Some("AGENT_FUNCTION_NOT_FOUND")),
    ] {
        let unfit = windlass::agents::check(engine.core(), &agent).await.unwrap();
        let found = unfit.first().map(|unfit| unfit.error.code().as_str().to_owned());
        assert_eq!(found.as_deref(), expect);
    }
    h.stop_within(&engine, Duration::from_millis(1)).await;
    // A worker without the provider leaves the run as it is.
    let blocked_retry = Duration::from_millis(20);
    let engine = h.engine_with(|o| windlass::admin::Options { blocked_retry, ..o }).await;
    let found = engine.agent(parts().function("leaf", leaf)).unwrap().get("a").await.unwrap();
    until("the run is blocked", || async { found.status().await.unwrap().blocked.is_some() }).await;
    h.stop(&engine).await;
    let engine = h.engine_with(|o| windlass::admin::Options { blocked_retry, ..o }).await;
    engine.agent(whole()).unwrap();
    let ended = engine.core().wait(run.run_key()).await.unwrap();
    assert_eq!(ended.status, RunStatus::Complete);
}

async fn the_limits_of_events_outlive_a_reload(h: Arc<Harness>) {
    let script = Script::new([Answer::Hangs, text("done")]);
    let agent = || {
        Agent::new("quiet", "ask")
            .function("ask", ask)
            .function("tell", tell)
            .function("leaf", leaf)
            .provider(script.clone())
            .functions(|functions| {
                let limits = ObservabilityConfig { max_env_changes: 0, ..Default::default() };
                functions.observability(limits);
            })
    };
    let engine = h.engine().await;
    let run = engine.agent(agent()).unwrap().start(json!({})).await.unwrap();
    until("the provider is called", || async { script.count() == 1 }).await;
    h.stop_within(&engine, Duration::from_millis(1)).await;
    let engine = h.engine().await;
    engine.agent(agent()).unwrap();
    engine.core().wait(run.run_key()).await.unwrap();
    let events = events_of(&engine, run.run_key()).await;
    let resumed = events.iter().find(|e| e.event_type.as_str() == "anthropic.resumed").unwrap();
    let env = resumed.payload_json().unwrap()["env"].clone();
    assert_eq!((env["changes"].clone(), env["omitted"].clone()), (json!([]), json!(1)), "{env}");
}

async fn an_input_that_is_no_env_is_refused_or_fails(h: Arc<Harness>) {
    let engine = h.engine().await;
    let agents = engine.agent(Agent::new("plain", "leaf").function("leaf", leaf)).unwrap();
    let long = "x".repeat(5_000);
    let many: Map<String, Value> =
        (0..70).map(|n| (format!("v{n}"), json!(format!("{n}{long}")))).collect();
    for (input, code) in [
        (json!({ "": 1 }), "INVALID_NAME"),
        (json!({ "": 1, "long": long }), "INVALID_NAME"),
        (json!({ "a": { "$response": 1 }, "long": long }), "ENV_VALUE_INVALID"),
    ] {
        let refused = agents.start(input).await.map(|run| run.run_key()).unwrap_err();
        assert_eq!(refused.code(), code);
    }
    // The first snapshot would need more rows than one commit writes.
    let run = agents.start(json!(many)).await.unwrap();
    let failed = run.result().await.unwrap_err().to_string();
    assert!(failed.contains("INVALID_SIZE"), "{failed}");
    assert_eq!(types_of(&engine, run.run_key()).await, ["workflow.enqueued", "workflow.failed"]);
    // A process that does not serve the agent accepts all inputs.
    h.stop(&engine).await;
    let engine = h.engine().await;
    let remote = windlass::agents::remote(engine.core(), "plain").unwrap();
    let run = remote.start(json!({ "": 1, "long": long })).await.unwrap();
    engine.agent(Agent::new("plain", "leaf").function("leaf", leaf)).unwrap();
    let ended = engine.core().wait(run.run_key()).await.unwrap();
    assert_eq!(ended.status, RunStatus::Errored);
    assert!(ended.error.unwrap().read::<Value>().unwrap().to_string().contains("INVALID_NAME"));
}
