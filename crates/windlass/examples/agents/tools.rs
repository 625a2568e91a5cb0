//! Parallel tools: the model asks for several calls at once, and they run at the same time.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use windlass::agents::{
    Agent, CallResult, Continuation, Provider, Tool, ToolContext, ToolOutput, ToolSet, WireFormat,
    Workflow,
};
use windlass::{AnyError, Engine, Result, RunKey};

use super::provider::request;

struct Weather {
    note: String,
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    /// The name of a city.
    city: String,
}

impl Tool for Weather {
    type Input = Place;

    fn name(&self) -> &str {
        "weather"
    }

    fn description(&self) -> &str {
        "The weather of a city."
    }

    async fn call(&self, _: ToolContext, place: Place) -> Result<ToolOutput, AnyError> {
        match place.city.as_str() {
            "Oslo" => Ok(ToolOutput::new(format!("snow, for {}", self.note))),
            // The model reads this, the run goes on.
            city => Ok(ToolOutput::error(format!("no station in {city}"))),
        }
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    if workflow.transcript("chat").is_empty() {
        let about: String = workflow.get("about")?;
        let text = format!("What is the weather in Oslo and in Bergen, for {about}?");
        workflow.transcript("chat").push_user(&text)?;
    }
    let tools: serde_json::Value = workflow.get("tools")?;
    Ok(next.llm(request("chat").param("tools", tools), "answer", "act"))
}

async fn act(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let response = workflow.response("answer")?;
    let uses = response.tool_uses()?;
    if uses.is_empty() {
        workflow.set("said", &response.text()?)?;
        return Ok(next.halt());
    }
    Ok(next.tools(uses, "results", "tell"))
}

async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let results = workflow.tool_results("results")?;
    workflow.transcript("chat").push_tool_results(&results)?;
    Ok(next.call("ask"))
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let weather = || Weather { note: about.to_owned() };
    let mut tools = ToolSet::default();
    tools.add(weather());
    let definitions = tools.definitions(WireFormat::AnthropicMessages);
    let agent = Agent::new("tools", "ask")
        .function("ask", ask)
        .function("act", act)
        .function("tell", tell)
        .tool(weather())
        .output("said")
        .provider(provider);
    let input = json!({ "about": about, "tools": definitions });
    let run = engine.agent(agent)?.start(input).id("tools-1").await?;
    let said = run.result().await?;
    Ok((run.run_key(), said.as_str().unwrap_or_default().to_owned()))
}
