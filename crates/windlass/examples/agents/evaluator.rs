//! A loop of a writer and an evaluator: a draft is written again until the evaluator accepts it, at most
//! three times.

use std::sync::Arc;

use serde_json::json;
use windlass::agents::{Agent, CallResult, Continuation, Provider, Workflow};
use windlass::{Engine, Result, RunKey};

use super::provider::request;

const DRAFTS_MAX: u32 = 3;

async fn write(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let drafts: u32 = workflow.get("drafts")?;
    workflow.set("drafts", &(drafts + 1))?;
    let about: String = workflow.get("about")?;
    let text = format!("Write {about}, draft {}.", drafts + 1);
    workflow.transcript("writer").push_user(&text)?;
    Ok(next.llm(request("writer"), "draft", "evaluate"))
}

// The evaluator has a conversation of its own: it sees drafts and not how they came about. After the
// first verdict the old ones are replaced by a summary.
async fn evaluate(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let draft = workflow.response("draft")?.text()?;
    workflow.transcript("judge").push_user(&format!("Is this good? {draft}"))?;
    Ok(next.llm(request("judge"), "verdict", "decide"))
}

async fn decide(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (verdict, drafts) = (workflow.response("verdict")?.text()?, workflow.get::<u32>("drafts")?);
    if verdict.starts_with("yes") || drafts == DRAFTS_MAX {
        let draft = workflow.response("draft")?.text()?;
        workflow.set("said", &format!("after {drafts} drafts: {draft}"))?;
        return Ok(next.halt());
    }
    workflow.transcript("writer").push_user(&format!("The evaluator says: {verdict}"))?;
    let seen = windlass::agents::user_text("You have seen drafts before.")?;
    workflow.transcript("judge").compact(seen, 1)?;
    Ok(next.call("write"))
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let agent = Agent::new("evaluator", "write")
        .function("write", write)
        .function("evaluate", evaluate)
        .function("decide", decide)
        .output("said")
        .provider(provider);
    let input = json!({ "about": about, "drafts": 0 });
    let run = engine.agent(agent)?.start(input).id("evaluator-1").await?;
    let said = run.result().await?;
    Ok((run.run_key(), said.as_str().unwrap_or_default().to_owned()))
}
