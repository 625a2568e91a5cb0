//! An approval: the model writes a mail, a person decides, and a tool with a receipt sends it once.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, HumanRequest, Provider, RequestOutcome, Tool, ToolContext,
    ToolOutput, ToolUse, Workflow,
};
use windlass::requests::NewDecision;
use windlass::{AnyError, Engine, Result, RunKey};

use super::people::decide;
use super::provider::request;

struct Send;

impl Tool for Send {
    type Input = serde_json::Map<String, Value>;

    fn name(&self) -> &str {
        "send"
    }

    fn description(&self) -> &str {
        "Sends a mail."
    }

    // Each call has a receipt. After a crash the engine asks `probe` and sends no second mail by itself.
    fn is_durable(&self) -> bool {
        true
    }

    async fn call(&self, context: ToolContext, _: Self::Input) -> Result<ToolOutput, AnyError> {
        // A real mail service takes this id as an idempotency key.
        Ok(ToolOutput::new(format!("sent as {}", &context.call_id.as_str()[..3])))
    }
}

async fn draft(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let about: String = workflow.get("about")?;
    workflow.transcript("mail").push_user(&format!("Write a mail about {about}."))?;
    Ok(next.llm(request("mail"), "draft", "ask"))
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("draft")?.text()?;
    let request = HumanRequest::to("bob").title("Send this mail?").text(text).due("2 days");
    Ok(next.human(request, "outcome", "decided"))
}

async fn decided(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let outcome: RequestOutcome = workflow.get("outcome")?;
    if !outcome.is_approved() {
        workflow.set("said", "not sent")?;
        return Ok(next.halt());
    }
    let text = workflow.response("draft")?.text()?;
    let send = ToolUse { id: "send-1".into(), name: "send".into(), input: json!({ "text": text }) };
    Ok(next.tools(vec![send], "sent", "done"))
}

async fn done(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let sent = workflow.tool_results("sent")?;
    workflow.set("said", &sent[0].content)?;
    Ok(next.halt())
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let agent = Agent::new("approval", "draft")
        .function("draft", draft)
        .function("ask", ask)
        .function("decided", decided)
        .function("done", done)
        .tool(Send)
        .output("said")
        .provider(provider);
    let run = engine.agent(agent)?.start(json!({ "about": about })).id("approval-1").await?;
    let yes = NewDecision::approve().comment(format!("fine, about {about}"));
    decide(engine, "bob", yes).await?;
    let said = run.result().await?;
    Ok((run.run_key(), said.as_str().unwrap_or_default().to_owned()))
}
