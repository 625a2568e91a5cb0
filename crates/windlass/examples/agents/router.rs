//! A router: the model names the kind of a question, and the function of that kind answers it.

use std::sync::Arc;

use serde_json::json;
use windlass::agents::{Agent, CallResult, Continuation, Provider, Workflow};
use windlass::{Engine, Result, RunKey};

use super::provider::request;

async fn classify(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let about: String = workflow.get("about")?;
    let text = format!("One word, billing or technical: what is this about? {about}");
    workflow.transcript("classify").push_user(&text)?;
    Ok(next.llm(request("classify"), "kind", "route"))
}

// The answer of a model is data: it chooses among known functions and is never a function's name.
async fn route(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let kind = workflow.response("kind")?.text()?;
    workflow.record_event("ticket.classified", json!({ "words": kind.split(' ').count() }))?;
    Ok(match kind.trim() {
        "billing" => next.call("billing"),
        "technical" => next.call("technical"),
        _ => next.call("unclear"),
    })
}

async fn billing(workflow: &mut Workflow, next: Continuation) -> CallResult {
    answer(workflow, next, "You work in billing.")
}

async fn technical(workflow: &mut Workflow, next: Continuation) -> CallResult {
    answer(workflow, next, "You are an engineer.")
}

fn answer(workflow: &mut Workflow, next: Continuation, system: &str) -> CallResult {
    let about: String = workflow.get("about")?;
    workflow.transcript("answer").push_user(&about)?;
    Ok(next.llm(request("answer").param("system", system), "answer", "answered"))
}

async fn answered(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("answer")?.text()?;
    workflow.set("said", &text)?;
    Ok(next.halt())
}

async fn unclear(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.set("said", "What do you mean?")?;
    Ok(next.halt())
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let agent = Agent::new("router", "classify")
        .function("classify", classify)
        .function("route", route)
        .function("billing", billing)
        .function("technical", technical)
        .function("answered", answered)
        .function("unclear", unclear)
        .output("said")
        .provider(provider);
    let run = engine.agent(agent)?.start(json!({ "about": about })).id("router-1").await?;
    let said = run.result().await?;
    Ok((run.run_key(), said.as_str().unwrap_or_default().to_owned()))
}
