//! The sample agent of `windlass dev`: asks a language model one question.

use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::agents::{
    Agent, AgentLoop, AnthropicClient, CallResult, ClientOptions, Continuation, LimitedProvider,
    OpenaiClient, Provider, Tool, ToolContext, ToolOutput, Workflow,
};
use windlass::{AnyError, Engine};
use windlass_testkit::scripted_llm::{Script, ScriptedLlm};

use crate::exit::Failure;

const ANSWER_TOKENS_MAX: u32 = 1_024;
/// The loop, and its conversation.
const LOOP: &str = "chat";

/// The provider that the sample calls.
pub(crate) enum Llm {
    /// A provider of this process. It needs no key.
    Scripted(ScriptedLlm),
    /// The provider whose key is in the environment.
    Anthropic(AnthropicClient),
    Openai(OpenaiClient),
}

impl Llm {
    /// The scripted provider if it is asked for, else one whose key is there, else one that answers with
    /// what it was sent.
    pub(crate) fn choose(scripted: Option<Option<&Path>>) -> Result<Self, Failure> {
        let has = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match scripted {
            Some(file) => Ok(Self::Scripted(start(file)?)),
            None if has("ANTHROPIC_API_KEY") => Ok(Self::Anthropic(AnthropicClient::from_env()?)),
            None if has("OPENAI_API_KEY") => Ok(Self::Openai(OpenaiClient::from_env()?)),
            None => Ok(Self::Scripted(start(None)?)),
        }
    }

    /// The text that the server prints about it at the start.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Scripted(scripted) => format!("{} (scripted, no key needed)", scripted.url()),
            Self::Anthropic(_) => "Anthropic, with the key in ANTHROPIC_API_KEY".to_owned(),
            Self::Openai(_) => "OpenAI, with the key in OPENAI_API_KEY".to_owned(),
        }
    }
}

fn start(file: Option<&Path>) -> Result<ScriptedLlm, Failure> {
    let script = match file {
        None => Script::echo(),
        Some(path) => {
            let failed = |why: &dyn std::fmt::Display| {
                Failure::error(format!("failed to read the script {}: {why}", path.display()))
            };
            let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
            Script::from_json(&text).map_err(|error| failed(&error))?
        }
    };
    ScriptedLlm::start(script)
        .map_err(|error| Failure::error(format!("failed to start the scripted provider: {error}")))
}

/// Registers the agent `ask`: `{"question": "…"}` in, the text of the answer out. The model has a tool that adds.
pub(crate) fn register(engine: &Engine, llm: &Llm) -> Result<(), windlass::Error> {
    let anthropic = || {
        AgentLoop::new(LOOP, "anthropic", "claude-haiku-4-5").param("max_tokens", ANSWER_TOKENS_MAX)
    };
    let (chat, provider): (AgentLoop, Arc<dyn Provider>) = match llm {
        Llm::Scripted(scripted) => {
            let options = ClientOptions::new("scripted").base_url(scripted.url());
            (anthropic(), Arc::new(AnthropicClient::new(options)?))
        }
        Llm::Anthropic(client) => {
            (anthropic(), Arc::new(LimitedProvider::new(engine, client.clone(), client.key())))
        }
        Llm::Openai(client) => {
            let chat = AgentLoop::new(LOOP, "openai", "gpt-5-mini");
            let limited = LimitedProvider::new(engine, client.clone(), client.key());
            (chat.param("max_output_tokens", ANSWER_TOKENS_MAX), Arc::new(limited))
        }
    };
    let agent = Agent::new("ask", "ask")
        .function("ask", ask)
        .agent_loop(chat.input("question").output("answer"))
        .tool(Add)
        .provider(provider)
        .output("answer");
    engine.agent(agent)?;
    Ok(())
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    if workflow.value("question").is_none() {
        workflow.set("question", "What is a windlass?")?;
    }
    Ok(next.call(LOOP))
}

struct Add;

#[derive(Deserialize, JsonSchema)]
struct Numbers {
    a: f64,
    b: f64,
}

impl Tool for Add {
    type Input = Numbers;

    fn name(&self) -> &str {
        "add"
    }

    fn description(&self) -> &str {
        "Adds two numbers."
    }

    async fn call(&self, _: ToolContext, input: Numbers) -> Result<ToolOutput, AnyError> {
        Ok(ToolOutput::new(input.a + input.b))
    }
}
