//! Racing agents: two agents get the same question, and the first answer counts. A workflow of steps starts both as
//! its children; the one that loses is ended, with the call that it makes.

use std::sync::Arc;

use futures::future::{Either, select};
use serde_json::{Value, json};
use windlass::agents::{Agent, CallResult, Continuation, Provider, Workflow};
use windlass::{Ctx, Engine, Result, RunKey};

use super::provider::request;

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (about, how): (String, String) = (workflow.get("about")?, workflow.get("how")?);
    workflow.transcript("race").push_user(&format!("Explain {about}. {how}."))?;
    Ok(next.llm(request("race"), "answer", "answered"))
}

async fn answered(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("answer")?.text()?;
    workflow.set("said", &text)?;
    Ok(next.halt())
}

async fn race(ctx: Ctx, about: String) -> Result<String> {
    let racer = |how: &str| {
        let input = json!({ "about": about, "how": how });
        ctx.child_named::<_, Value>(how, "racer", &input)
    };
    let (careful, quick) = (racer("Take your time"), racer("Be brief"));
    // A race of steps has the same winner at every replay.
    let (winner, said) = match select(careful.into_future(), quick.into_future()).await {
        Either::Left((said, _)) => ("careful", said?),
        Either::Right((said, _)) => ("quick", said?),
    };
    Ok(format!("the {winner} one: {}", said.as_str().unwrap_or_default()))
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let racer = Agent::new("racer", "ask")
        .function("ask", ask)
        .function("answered", answered)
        .output("said")
        .provider(provider);
    engine.agent(racer)?;
    let run = engine.workflow("race", race)?.start(about.to_owned()).id("race-1").await?;
    let said = run.result().await?;
    Ok((run.run_key(), said))
}
