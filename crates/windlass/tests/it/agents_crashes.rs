//! A worker that dies at every commit of an agent: nothing is recorded twice, and no run is stuck.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, ForkBranch, HumanRequest, LlmRequest, Probe as ToolProbe,
    Tool, ToolContext, ToolOutput, Workflow, register,
};
use windlass::kernel::{Query, RunKey, Subject};
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision, RequestStatus};
use windlass::{AnyError, Error, RunStatus, WorkflowRef};
use windlass_testkit::{Probe, every_crash_of};

use crate::agents_fixtures::{Script, at_once, text, uses};

/// A tool with a receipt. What it did survives a crash, as an outside system does.
struct Pay(Probe);

impl Tool for Pay {
    type Input = serde_json::Map<String, serde_json::Value>;

    fn name(&self) -> &str {
        "pay"
    }

    fn description(&self) -> &str {
        "Pays."
    }

    fn is_durable(&self) -> bool {
        true
    }

    async fn call(&self, context: ToolContext, _: Self::Input) -> Result<ToolOutput, AnyError> {
        self.0.ran(format!("paid {}", context.call_id));
        Ok(ToolOutput::new(context.call_id.as_str()))
    }

    async fn probe(&self, context: ToolContext, _: Self::Input) -> Result<ToolProbe, AnyError> {
        Ok(match self.0.count(format!("paid {}", context.call_id)) {
            0 => ToolProbe::NotStarted,
            _ => ToolProbe::Completed(ToolOutput::new(context.call_id.as_str())),
        })
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("pay twice")?;
    let request = LlmRequest::new("anthropic", "m").transcript("chat");
    Ok(next.llm(request, "answer", "act"))
}

async fn act(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let uses = workflow.response("answer")?.tool_uses()?;
    Ok(next.tools(uses, "results", "tell"))
}

async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let results = workflow.tool_results("results")?;
    workflow.transcript("chat").push_tool_results(&results)?;
    Ok(next.fork_join(ForkBranch::pair("left", "right"), "last"))
}

async fn left(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("left", &"x".repeat(5_000))?;
    Ok(next.halt())
}

async fn right(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("right", &2)?;
    Ok(next.halt())
}

async fn last(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (left, items) = (workflow.get::<String>("left")?.len(), workflow.transcript("chat").len());
    workflow.set("output", &json!({ "left": left, "items": items }))?;
    Ok(next.halt())
}

#[test]
fn nothing_is_recorded_twice() {
    let report = every_crash_of(|engine, probe| {
        let answer = uses("pay", &[json!({ "n": 1 }), json!({ "n": 2 })]);
        let agent = Agent::new("payer", "ask")
            .function("ask", ask)
            .function("act", act)
            .function("tell", tell)
            .function("left", left)
            .function("right", right)
            .function("last", last)
            .tool(Pay(probe.clone()))
            .output("output")
            .retry_policy(at_once(2))
            .provider(Script::new([answer, text("unused")]));
        let payers: WorkflowRef<_, _> = register(engine, agent).unwrap();
        let engine = engine.clone();
        Box::pin(async move {
            let run = payers.start(json!({})).id("p").await.map_err(|error| error.to_string())?;
            let output = run.result().await.map_err(|error| error.to_string())?;
            check_ledger(&engine, run.run_key()).await?;
            Ok(output)
        })
    });
    assert_eq!(report.output, json!({ "left": 5_000, "items": 3 }));
    assert!(report.commits > 8, "{report:?}");
}

// Each call has one start and one end, each receipt one record.
async fn check_ledger(engine: &windlass::model::Engine, root: RunKey) -> Result<(), String> {
    let query = Query::RootEvents { root, after: None, limit: 1_000 };
    let listed = engine.store().list(query).await.and_then(|rows| rows.events());
    let events = listed.map_err(|error| error.to_string())?;
    let count =
        |name: &str| events.iter().filter(|event| event.event_type.as_str() == name).count();
    for (name, expect) in [
        ("workflow.enqueued", 3),
        ("local_call.started", 6),
        ("local_call.completed", 6),
        ("anthropic.suspended", 1),
        ("anthropic.completed", 1),
        ("anthropic.resumed", 1),
        ("tool_call.started", 1),
        ("tool_call.recorded", 2),
        ("tool_call.completed", 1),
        ("fork_join.started", 1),
        ("fork_join.completed", 1),
        ("workflow.halted", 3),
    ] {
        if count(name) != expect {
            return Err(format!("{} events {name}, not {expect}", count(name)));
        }
    }
    Ok(())
}

/// The key under which the probe remembers that the cause of a failure is gone.
const MENDED: &str = "mended";

async fn pay_once(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let uses = workflow.response("answer")?.tool_uses()?;
    Ok(next.tools(uses, "results", "check_in"))
}

async fn check_in(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let results = workflow.tool_results("results")?;
    let paid: Vec<Value> = results.into_iter().map(|result| result.content).collect();
    workflow.set("paid", &paid)?;
    Ok(next.human(HumanRequest::to("ann"), "outcome", "shaky"))
}

async fn approve_all(engine: &windlass::model::Engine) -> Result<(), Error> {
    let open = InboxQuery::Status(RequestStatus::Open);
    let page = engine.requests().inbox(&open, InboxOrder::Opened, None, 10).await?;
    for request in page.requests {
        let decider = Decider::new(Subject::new("ann", ["lead"])?);
        engine.requests().decide(&request.id, &decider, &NewDecision::approve()).await?;
    }
    engine.env().sleep(Duration::from_millis(100)).await;
    Ok(())
}

// A run that asks a person and fails, is retried, and is restarted after its end. After a crash it goes on with
// the generation that there is.
async fn three_generations(
    engine: windlass::model::Engine,
    payers: WorkflowRef<Value, Value>,
    probe: Probe,
) -> Result<Value, Error> {
    payers.start(json!({})).id("p").await?;
    loop {
        let run = payers.get("p").await?;
        let status = run.status().await?;
        match (status.generation, status.status) {
            (0, RunStatus::Errored) => {
                if probe.count(MENDED) == 0 {
                    probe.ran(MENDED);
                }
                run.retry().await?;
            }
            (1, RunStatus::Complete) => drop(run.restart().await?),
            (2, RunStatus::Complete) => {
                let query = Query::Events { run_key: run.run_key(), from: 0, limit: 1_000 };
                let events = engine.store().list(query).await?.events()?;
                let names = [
                    "local_call.started",
                    "local_call.completed",
                    "tool_call.recorded",
                    "human.blocked",
                    "human.resumed",
                    "fork_join.completed",
                ];
                let count =
                    |name: &str| events.iter().filter(|e| e.event_type.as_str() == name).count();
                return Ok(json!([run.result().await?, names.map(count)]));
            }
            (_, status) if !status.is_ended() => approve_all(&engine).await?,
            (generation, status) => {
                let text = format!("generation {generation} is {status}");
                return Ok(json!(text));
            }
        }
    }
}

#[test]
fn a_retry_and_a_restart_go_on_after_a_crash() {
    let report = every_crash_of(|engine, probe| {
        let answer = uses("pay", &[json!({ "n": 1 })]);
        let mended = probe.clone();
        let agent = Agent::new("payer", "ask")
            .function("ask", ask)
            .function("act", pay_once)
            .function("check_in", check_in)
            .functions(|functions| {
                functions.register_boxed("shaky", 1, move |_, next| {
                    let fails = mended.count(MENDED) == 0;
                    Box::pin(async move {
                        match fails {
                            true => Err(AnyError::msg("planned")),
                            false => Ok(next.fork_join(ForkBranch::pair("left", "right"), "end")),
                        }
                    })
                });
            })
            .function("left", left)
            .function("right", right)
            .function("end", right)
            .tool(Pay(probe.clone()))
            .output("paid")
            .retry_policy(at_once(2))
            .provider(Script::new([answer]));
        let payers: WorkflowRef<_, _> = register(engine, agent).unwrap();
        let ended = three_generations(engine.clone(), payers, probe.clone());
        Box::pin(async { ended.await.map_err(|error| error.to_string()) })
    });
    assert_eq!(report.output[1], json!([5, 5, 1, 1, 1, 1]), "{report:?}");
    assert_eq!(report.output[0].as_array().map(Vec::len), Some(1), "{report:?}");
    assert!(report.commits > 20, "{report:?}");
}
