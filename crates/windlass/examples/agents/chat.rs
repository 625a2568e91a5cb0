//! A chat session: a person and a model take turns. The run waits for the person, for days if need be, and the
//! conversation is stored once however long it gets.

use std::sync::Arc;

use serde_json::json;
use windlass::agents::{
    Agent, CallResult, Continuation, HumanRequest, Provider, RequestOutcome, Workflow,
};
use windlass::requests::NewDecision;
use windlass::{Engine, Result, RunKey};

use super::people::decide;
use super::provider::request;

// The person's next message is the answer to a question in the inbox.
async fn listen(_: &mut Workflow, next: Continuation) -> CallResult {
    let request = HumanRequest::to("ann").title("Your turn").schema(json!({ "type": "string" }));
    Ok(next.human(request, "message", "heard"))
}

async fn heard(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let message: RequestOutcome = workflow.take("message")?;
    // A person who rejects the question ends the session.
    if !message.is_approved() {
        return Ok(next.halt());
    }
    let text: String = message.answer()?.unwrap_or_default();
    workflow.transcript("chat").push_user(&text)?;
    Ok(next.llm(request("chat"), "answer", "said"))
}

async fn said(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("answer")?.text()?;
    workflow.set("said", &text)?;
    Ok(next.call("listen"))
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let agent = Agent::new("chat", "listen")
        .function("listen", listen)
        .function("heard", heard)
        .function("said", said)
        .output("said")
        .provider(provider);
    let run = engine.agent(agent)?.start(json!({})).id("chat-1").await?;
    for text in [format!("What is {about}?"), format!("And who uses {about}?")] {
        decide(engine, "ann", NewDecision::approve().answer(json!(text))).await?;
    }
    decide(engine, "ann", NewDecision::reject()).await?;
    let said = run.result().await?;
    Ok((run.run_key(), said.as_str().unwrap_or_default().to_owned()))
}
