//! Spans of agents, their calls of models and their tools, with the names of the GenAI conventions.
//!
//! A span is a child of the turn in which it begins, and all turns of a run belong to the trace of its start,
//! also after a crash. Spans hold no content, unless [`telemetry::has_content`] says so.

mod content;
mod metrics;

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tracing::Span;
use tracing::field::Empty;
use windlass_engine::{Env, Metrics, telemetry};
use windlass_kernel::{Error, Run, RunStatus};

pub(crate) use metrics::{batch_ended, used};

use super::prices::{PriceLane, PriceTable, UsdNanos};
use super::provider::{
    EventFamily, Provider, ProviderError, ProviderRequest, ProviderResponse, StreamPart, TokenSink,
    Usage, WireFormat,
};
use super::tool::{CallEnd, ToolContext};
use crate::any_error::AnyError;

/// The spans of one turn of an agent: one for the workflow, and below it one for each agent that is in charge.
#[derive(Default)]
pub(crate) struct Invocations {
    workflow: Option<Span>,
    agent: Option<(String, Span)>,
}

impl Invocations {
    /// The span of the agent that is in charge now.
    pub(crate) fn of(&mut self, run: &Run, agent: &str) -> Span {
        let workflow = self.workflow.get_or_insert_with(|| {
            tracing::debug_span!(
                "invoke_workflow",
                otel.name = format!("invoke_workflow {}", run.workflow),
                { "gen_ai.operation.name" } = "invoke_workflow",
                { "gen_ai.workflow.name" } = %run.workflow,
                { "gen_ai.conversation.id" } = %run.root,
            )
        });
        if let Some((name, span)) = &self.agent
            && name == agent
        {
            return span.clone();
        }
        let span = tracing::debug_span!(
            parent: &*workflow,
            "invoke_agent",
            otel.name = format!("invoke_agent {agent}"),
            otel.status_code = Empty,
            { "gen_ai.operation.name" } = "invoke_agent",
            { "gen_ai.agent.name" } = agent,
            { "gen_ai.workflow.name" } = %run.workflow,
            { "gen_ai.conversation.id" } = %run.root,
            { "error.type" } = Empty,
        );
        self.agent = Some((agent.to_owned(), span.clone()));
        span
    }

    /// The turn has ended.
    pub(crate) fn ended(self, run: &Run) {
        let Some((_, span)) = self.agent.filter(|(_, span)| !span.is_disabled()) else { return };
        if run.status == RunStatus::Errored {
            let error = run.error.as_ref().and_then(|error| error.read::<Value>().ok());
            let name = error.as_ref().and_then(|error| error["name"].as_str());
            failed(&span, name.unwrap_or("_OTHER"));
        }
    }
}

fn failed(span: &Span, name: &str) {
    span.record("error.type", name);
    span.record("otel.status_code", "ERROR");
}

/// The run and the agent that make a call.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) run: &'a Run,
    /// The agent that is in charge.
    pub(crate) agent: &'a str,
    pub(crate) prices: &'a PriceTable,
}

/// One attempt of a live call: its span, and when its first part came.
pub(crate) struct Chat<'a> {
    span: Span,
    provider: &'a dyn Provider,
    request: &'a ProviderRequest,
    env: &'a dyn Env,
    sink: &'a dyn TokenSink,
    began: Duration,
    first: OnceLock<Duration>,
}

impl<'a> Chat<'a> {
    pub(crate) fn begin(
        caller: Caller<'_>,
        provider: &'a dyn Provider,
        request: &'a ProviderRequest,
        env: &'a dyn Env,
        sink: &'a dyn TokenSink,
    ) -> Self {
        let span = span(caller, provider, &request.model, PriceLane::Live);
        span.record("windlass.llm.attempt", request.attempt);
        if request.stream {
            span.record("gen_ai.request.stream", true);
        }
        asked(&span, provider.wire_format(), &request.body);
        let (began, first) = (env.elapsed(), OnceLock::new());
        Self { span, provider, request, env, sink, began, first }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// The attempt has ended with an answer or an error.
    pub(crate) fn ended(
        &self,
        metrics: &Metrics,
        prices: &PriceTable,
        called: &Result<ProviderResponse, ProviderError>,
    ) {
        let first = self.first.get().copied();
        if let Some(first) = first {
            self.span.record("gen_ai.response.time_to_first_chunk", first.as_secs_f64());
        }
        let model = &self.request.model;
        match called {
            Ok(response) => {
                let format = self.provider.wire_format();
                answered(
                    &self.span,
                    format,
                    response,
                    cost(prices, model, response, PriceLane::Live),
                    prices,
                );
            }
            Err(error) => failed(&self.span, error.kind().as_str()),
        }
        // An account that is closed was not called.
        if called.as_ref().err().is_none_or(|error| error.postponed_by().is_none()) {
            let took = self.env.elapsed().saturating_sub(self.began);
            metrics::called(metrics, self.provider, model, called, took, first);
        }
    }

    /// The attempt was given up: its run has ended, or another worker has it.
    pub(crate) fn abandoned(&self) {
        failed(&self.span, "cancelled");
    }
}

impl TokenSink for Chat<'_> {
    fn part(&self, part: StreamPart<'_>) {
        self.first.get_or_init(|| self.env.elapsed().saturating_sub(self.began));
        self.sink.part(part);
    }
}

/// An answer that came in a batch: a span without a duration of its own.
pub(crate) fn batched(
    caller: Caller<'_>,
    provider: &dyn Provider,
    model: &str,
    batch: Option<&str>,
    body: impl FnOnce() -> Result<Bytes, Error>,
    response: &ProviderResponse,
) {
    let span = span(caller, provider, model, PriceLane::Batch);
    if span.is_disabled() {
        return;
    }
    if let Some(batch) = batch {
        span.record("windlass.llm.batch", batch);
    }
    let format = provider.wire_format();
    asked(&span, format, &body().unwrap_or_default());
    let cost = cost(caller.prices, model, response, PriceLane::Batch);
    answered(&span, format, response, cost, caller.prices);
}

fn span(caller: Caller<'_>, provider: &dyn Provider, model: &str, lane: PriceLane) -> Span {
    let Caller { run, agent, .. } = caller;
    let span = tracing::debug_span!(
        "chat",
        otel.name = format!("chat {model}"),
        otel.kind = "client",
        otel.status_code = Empty,
        { "gen_ai.operation.name" } = "chat",
        { "gen_ai.provider.name" } = provider_name(provider),
        { "gen_ai.request.model" } = model,
        { "gen_ai.request.max_tokens" } = Empty,
        { "gen_ai.request.temperature" } = Empty,
        { "gen_ai.request.stream" } = Empty,
        { "gen_ai.response.id" } = Empty,
        { "gen_ai.response.model" } = Empty,
        { "gen_ai.response.finish_reasons" } = Empty,
        { "gen_ai.response.time_to_first_chunk" } = Empty,
        { "gen_ai.usage.input_tokens" } = Empty,
        { "gen_ai.usage.output_tokens" } = Empty,
        { "gen_ai.usage.cache_read.input_tokens" } = Empty,
        { "gen_ai.usage.cache_creation.input_tokens" } = Empty,
        { "gen_ai.usage.reasoning.output_tokens" } = Empty,
        { "gen_ai.conversation.id" } = %run.root,
        { "gen_ai.agent.name" } = agent,
        { "gen_ai.workflow.name" } = %run.workflow,
        { "gen_ai.system_instructions" } = Empty,
        { "gen_ai.input.messages" } = Empty,
        { "gen_ai.output.messages" } = Empty,
        { "gen_ai.tool.definitions" } = Empty,
        { "server.address" } = provider.server_address(),
        { "error.type" } = Empty,
        { "windlass.llm.lane" } = lane_name(lane),
        { "windlass.llm.attempt" } = Empty,
        { "windlass.llm.batch" } = Empty,
        { "windlass.llm.cost" } = Empty,
        { "windlass.llm.prices" } = Empty,
    );
    span
}

fn provider_name(provider: &dyn Provider) -> &str {
    match provider.event_family() {
        EventFamily::Anthropic => "anthropic",
        EventFamily::Openai => "openai",
        EventFamily::Llm => provider.name(),
    }
}

fn lane_name(lane: PriceLane) -> &'static str {
    match lane {
        PriceLane::Live => "live",
        PriceLane::Batch => "batch",
    }
}

fn cost(
    prices: &PriceTable,
    model: &str,
    response: &ProviderResponse,
    lane: PriceLane,
) -> Option<UsdNanos> {
    prices.cost_of_call(model, response.model.as_deref(), &response.usage, lane)
}

// The body is read only if somebody listens.
fn asked(span: &Span, format: WireFormat, body: &[u8]) {
    if span.is_disabled() {
        return;
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
    let number = |names: [&str; 2]| names.iter().find_map(|name| body.get(*name)?.as_u64());
    if let Some(max) = number(["max_tokens", "max_output_tokens"]) {
        span.record("gen_ai.request.max_tokens", max);
    }
    if let Some(temperature) = body.get("temperature").and_then(Value::as_f64) {
        span.record("gen_ai.request.temperature", temperature);
    }
    if telemetry::has_content() {
        content::request(span, format, &body);
    }
}

fn answered(
    span: &Span,
    format: WireFormat,
    response: &ProviderResponse,
    cost: Option<UsdNanos>,
    prices: &PriceTable,
) {
    if span.is_disabled() {
        return;
    }
    let texts =
        [("gen_ai.response.id", &response.message_id), ("gen_ai.response.model", &response.model)];
    for (name, text) in texts {
        if let Some(text) = text {
            span.record(name, text.as_str());
        }
    }
    if let Some(reason) = &response.stop_reason {
        telemetry::set_list(span, "gen_ai.response.finish_reasons", &[reason.as_str()]);
    }
    let Usage {
        output_tokens,
        cache_creation_input_tokens,
        cache_read_input_tokens,
        reasoning_output_tokens,
        ..
    } = response.usage;
    for (name, tokens) in [
        ("gen_ai.usage.input_tokens", input_tokens(&response.usage)),
        ("gen_ai.usage.output_tokens", output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", cache_read_input_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", cache_creation_input_tokens),
        ("gen_ai.usage.reasoning.output_tokens", reasoning_output_tokens),
    ] {
        span.record(name, tokens);
    }
    if let Some(cost) = cost {
        span.record("windlass.llm.cost", cost.as_usd());
        span.record("windlass.llm.prices", prices.version());
    }
    if telemetry::has_content() {
        content::response(span, format, &response.body, response.stop_reason.as_deref());
    }
}

// The conventions count all input in one figure.
fn input_tokens(usage: &Usage) -> u64 {
    usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
}

/// The call of a tool.
pub(crate) fn tool(context: &ToolContext, name: &str, input: &Value) -> Span {
    let span = tracing::debug_span!(
        "execute_tool",
        otel.name = format!("execute_tool {name}"),
        otel.status_code = Empty,
        { "gen_ai.operation.name" } = "execute_tool",
        { "gen_ai.tool.name" } = name,
        { "gen_ai.tool.type" } = "function",
        { "gen_ai.tool.call.id" } = context.tool_use_id,
        { "gen_ai.tool.call.arguments" } = Empty,
        { "gen_ai.tool.call.result" } = Empty,
        { "error.type" } = Empty,
    );
    if !span.is_disabled() && telemetry::has_content() {
        content::record(&span, "gen_ai.tool.call.arguments", input);
    }
    span
}

/// Completes the span of a tool.
pub(crate) fn tool_ended(span: &Span, called: &Result<CallEnd, AnyError>) {
    if span.is_disabled() {
        return;
    }
    match called {
        Ok(CallEnd::Output(output)) => {
            if output.is_error {
                failed(span, "tool_error");
            }
            if telemetry::has_content() {
                content::record(span, "gen_ai.tool.call.result", &output.content);
            }
        }
        Ok(CallEnd::Interrupted) => failed(span, "unknown_outcome"),
        Err(error) => failed(span, error.name()),
    }
}
