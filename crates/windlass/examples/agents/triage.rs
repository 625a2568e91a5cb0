//! An agent inside a workflow of steps: the steps read a ticket and answer it, and between them an agent with a budget
//! of its own decides who gets it. Both are runs of one tree, with one ledger, one cancel and one trace.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agents::{Agent, Budget, CallResult, Continuation, Provider, Workflow};
use windlass::{Ctx, Engine, Result, RunKey};

use super::provider::request;

async fn classify(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let ticket: String = workflow.get("ticket")?;
    let text = format!("Which team gets this ticket: billing or support? One word. {ticket}");
    workflow.transcript("triage").push_user(&text)?;
    Ok(next.llm(request("triage"), "team", "classified"))
}

async fn classified(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let team = workflow.response("team")?.text()?.trim().to_lowercase();
    // A model may say anything.
    let team = if team == "billing" { "billing" } else { "support" };
    workflow.set("team", team)?;
    Ok(next.halt())
}

async fn ticket(ctx: Ctx, about: String) -> Result<String> {
    let text = ctx.step("read the ticket", async || Ok(format!("Help me with {about}"))).await?;
    let input = json!({ "ticket": text });
    let team: Value = ctx.child_named("triage", "triage", &input).await?;
    let team = team.as_str().unwrap_or("support").to_owned();
    Ok(ctx.step("assign", async || Ok(format!("assigned to {team}"))).await?)
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let triage = Agent::new("triage", "classify")
        .function("classify", classify)
        .function("classified", classified)
        .output("team")
        .budget(Budget::usd(0.01).calls(3))
        .provider(provider);
    engine.agent(triage)?;
    let run = engine.workflow("ticket", ticket)?.start(about.to_owned()).id("ticket-1").await?;
    let said = run.result().await?;
    Ok((run.run_key(), said))
}
