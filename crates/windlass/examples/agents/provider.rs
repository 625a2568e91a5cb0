//! The provider of the examples: Anthropic if there is a key, else a script.

use std::sync::Arc;

use serde_json::json;
use windlass::agents::{AnthropicClient, ClientOptions, LlmRequest, Provider};
use windlass::{Error, Result};
use windlass_testkit::scripted_llm::{Rule, Script, ScriptedLlm, When};

/// A provider, and the server that it needs.
pub(crate) fn start() -> Result<(Arc<dyn Provider>, Option<ScriptedLlm>)> {
    if std::env::var_os("ANTHROPIC_API_KEY").is_some_and(|key| !key.is_empty()) {
        return Ok((Arc::new(AnthropicClient::from_env()?), None));
    }
    let server = ScriptedLlm::start(script())?;
    Ok((client(&server)?, Some(server)))
}

pub(crate) fn client(server: &ScriptedLlm) -> Result<Arc<dyn Provider>, Error> {
    let options = ClientOptions::new("scripted").base_url(server.url());
    Ok(Arc::new(AnthropicClient::new(options)?))
}

/// An answer that a model could give.
pub(crate) fn script() -> Script {
    Script::new()
        .rule(
            Rule::when(When { turn: Some(0), ..When::last("What is the weather") })
                .tool("weather", json!({ "city": "Oslo" }))
                .tool("weather", json!({ "city": "Bergen" })),
        )
        .rule(Rule::when(When::last("One word")).text("billing"))
        .rule(Rule::when(When::last("Name topics")).text("tides\nwinds\nsalt"))
        .rule(Rule::when(When { turn: Some(0), ..When::last("Is this good") }).text("no: shorter"))
        .rule(Rule::when(When::last("Is this good")).text("yes"))
        .rule(
            Rule::when(When { turn: Some(0), ..When::last("Find out about") })
                .tool("researcher", json!({ "prompt": "When is high tide?" }))
                .tool("researcher", json!({ "prompt": "How salty is it?" })),
        )
        .rule(Rule::when(When::last("Take your time")).text("slowly").delay_ms(600_000))
        .rule(Rule::any().text("You said: {{input}}"))
}

/// A request with the conversation `name`.
pub(crate) fn request(name: &str) -> LlmRequest {
    LlmRequest::new("anthropic", "claude-haiku-4-5").param("max_tokens", 512).transcript(name)
}
