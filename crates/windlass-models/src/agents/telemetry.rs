//! Spans of calls of models and tools, with the names of the GenAI conventions. They hold no content.
//!
//! A span is a child of the turn in which the call is made, and all turns of a run belong to the trace of its start,
//! also after a crash.

use serde_json::Value;
use tracing::Span;
use tracing::field::Empty;
use windlass_kernel::Run;

use super::provider::{
    EventFamily, Provider, ProviderError, ProviderRequest, ProviderResponse, Usage,
};
use super::tool::ToolContext;

/// The call of a model. `agent` is the name of the agent.
pub(crate) fn chat(
    run: &Run,
    agent: &str,
    provider: &dyn Provider,
    request: &ProviderRequest,
) -> Span {
    let span = span(run, agent, provider, &request.model, "live");
    if span.is_disabled() {
        return span;
    }
    // The body is read only if somebody listens.
    if let Ok(Value::Object(body)) = serde_json::from_slice::<Value>(&request.body) {
        let number = |names: [&str; 2]| names.iter().find_map(|name| body.get(*name)?.as_u64());
        if let Some(max) = number(["max_tokens", "max_output_tokens"]) {
            span.record("gen_ai.request.max_tokens", max);
        }
        if let Some(temperature) = body.get("temperature").and_then(Value::as_f64) {
            span.record("gen_ai.request.temperature", temperature);
        }
    }
    span
}

/// An answer that came in a batch: a span without a duration of its own.
pub(crate) fn batched(
    run: &Run,
    agent: &str,
    provider: &dyn Provider,
    model: &str,
    batch: Option<&str>,
    response: &ProviderResponse,
) {
    let span = span(run, agent, provider, model, "batch");
    if let Some(batch) = batch {
        span.record("windlass.llm.batch", batch);
    }
    answered(&span, response);
}

fn span(run: &Run, agent: &str, provider: &dyn Provider, model: &str, lane: &str) -> Span {
    let name = match provider.event_family() {
        EventFamily::Anthropic => "anthropic",
        EventFamily::Openai => "openai",
        EventFamily::Llm => provider.name(),
    };
    tracing::debug_span!(
        "chat",
        otel.name = format!("chat {model}"),
        otel.kind = "client",
        otel.status_code = Empty,
        { "gen_ai.operation.name" } = "chat",
        { "gen_ai.provider.name" } = name,
        { "gen_ai.request.model" } = model,
        { "gen_ai.request.max_tokens" } = Empty,
        { "gen_ai.request.temperature" } = Empty,
        { "gen_ai.response.id" } = Empty,
        { "gen_ai.response.model" } = Empty,
        { "gen_ai.response.finish_reasons" } = Empty,
        { "gen_ai.usage.input_tokens" } = Empty,
        { "gen_ai.usage.output_tokens" } = Empty,
        { "gen_ai.usage.cache_read.input_tokens" } = Empty,
        { "gen_ai.usage.cache_creation.input_tokens" } = Empty,
        { "gen_ai.usage.reasoning.output_tokens" } = Empty,
        { "gen_ai.conversation.id" } = %run.root,
        { "gen_ai.agent.name" } = agent,
        { "gen_ai.workflow.name" } = %run.workflow,
        { "error.type" } = Empty,
        { "windlass.llm.lane" } = lane,
        { "windlass.llm.batch" } = Empty,
    )
}

/// Completes the span of a call.
pub(crate) fn ended(span: &Span, called: &Result<ProviderResponse, ProviderError>) {
    match called {
        Ok(response) => answered(span, response),
        Err(error) => {
            span.record("error.type", error.kind().as_str());
            span.record("otel.status_code", "ERROR");
        }
    }
}

fn answered(span: &Span, response: &ProviderResponse) {
    let texts = [
        ("gen_ai.response.id", &response.message_id),
        ("gen_ai.response.model", &response.model),
        ("gen_ai.response.finish_reasons", &response.stop_reason),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            span.record(name, text.as_str());
        }
    }
    let Usage {
        input_tokens,
        output_tokens,
        cache_creation_input_tokens,
        cache_read_input_tokens,
        reasoning_output_tokens,
    } = response.usage;
    // The conventions count all input in one figure.
    let input = input_tokens + cache_creation_input_tokens + cache_read_input_tokens;
    for (name, tokens) in [
        ("gen_ai.usage.input_tokens", input),
        ("gen_ai.usage.output_tokens", output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", cache_read_input_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", cache_creation_input_tokens),
        ("gen_ai.usage.reasoning.output_tokens", reasoning_output_tokens),
    ] {
        span.record(name, tokens);
    }
}

/// The call of a tool.
pub(crate) fn tool(context: &ToolContext, name: &str) -> Span {
    tracing::debug_span!(
        "execute_tool",
        otel.name = format!("execute_tool {name}"),
        { "gen_ai.operation.name" } = "execute_tool",
        { "gen_ai.tool.name" } = name,
        { "gen_ai.tool.type" } = "function",
        { "gen_ai.tool.call.id" } = context.tool_use_id,
    )
}
