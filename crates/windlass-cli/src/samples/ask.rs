//! The sample agent of `windlass dev`: asks a language model one question.

use std::path::Path;
use std::sync::Arc;

use windlass::Engine;
use windlass::agents::{
    Agent, AnthropicClient, CallResult, ClientOptions, Continuation, LimitedProvider, LlmRequest,
    OpenaiClient, Workflow,
};
use windlass_testkit::scripted_llm::{Script, ScriptedLlm};

use crate::exit::Failure;

const ANSWER_TOKENS_MAX: u32 = 1_024;

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

/// Registers the agent `ask`: `{"question": "…"}` in, the text of the answer out.
pub(crate) fn register(engine: &Engine, llm: &Llm) -> Result<(), windlass::Error> {
    let agent = Agent::new("ask", "ask").function("answered", answered).output("answer");
    let agent = match llm {
        Llm::Scripted(scripted) => {
            let options = ClientOptions::new("scripted").base_url(scripted.url());
            let client = AnthropicClient::new(options)?;
            agent.function("ask", ask_anthropic).provider(Arc::new(client))
        }
        Llm::Anthropic(client) => {
            let limited = LimitedProvider::new(engine, client.clone(), client.key());
            agent.function("ask", ask_anthropic).provider(Arc::new(limited))
        }
        Llm::Openai(client) => {
            let limited = LimitedProvider::new(engine, client.clone(), client.key());
            agent.function("ask", ask_openai).provider(Arc::new(limited))
        }
    };
    engine.agent(agent)?;
    Ok(())
}

async fn ask_anthropic(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let request = LlmRequest::new("anthropic", "claude-haiku-4-5");
    ask(workflow, next, request.param("max_tokens", ANSWER_TOKENS_MAX))
}

async fn ask_openai(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let request = LlmRequest::new("openai", "gpt-5-mini");
    ask(workflow, next, request.param("max_output_tokens", ANSWER_TOKENS_MAX))
}

fn ask(workflow: &mut Workflow, next: Continuation, request: LlmRequest) -> CallResult {
    let question: String = match workflow.value("question") {
        Some(_) => workflow.get("question")?,
        None => "What is a windlass?".to_owned(),
    };
    workflow.transcript("chat").push_user(&question)?;
    Ok(next.llm(request.transcript("chat"), "response", "answered"))
}

async fn answered(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("response")?.text()?;
    workflow.set("answer", &text)?;
    Ok(next.halt())
}
