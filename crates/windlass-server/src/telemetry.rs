//! Logs to standard error; traces and metrics over OTLP, configured by the standard `OTEL_*`
//! variables.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::sync::Arc;

use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Array, StringValue, Value};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::PeriodicReader;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};
use windlass::{Error, ErrorCode, ErrorKind};
use windlass_engine::telemetry::Propagator;
pub(crate) use windlass_engine::telemetry::continue_from;
pub use windlass_engine::telemetry::set_content;

const TRACEPARENT: &str = "traceparent";

/// The variable of the GenAI conventions that asks for content in spans.
const CONTENT: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

/// Silences routine messages of dependencies: migrations without changes, exporters that start.
const QUIET: &str =
    "refinery_core=warn,opentelemetry=warn,opentelemetry_sdk=warn,opentelemetry_otlp=warn";

/// The trace export that [`init`] started; [`Telemetry::stop`] flushes it.
#[derive(Default)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Flushes and stops the export. Traces that cannot be sent are lost.
    pub fn stop(&self) {
        if let Some(Err(error)) = self.traces.as_ref().map(SdkTracerProvider::shutdown) {
            tracing::warn!(%error, "failed to send the last traces");
        }
    }
}

/// Sets up logs on standard error, filtered by `RUST_LOG` or else by `filter`, and the export of
/// traces over OTLP (HTTP) if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`
/// is set. The filter applies only to logs. `OTEL_SDK_DISABLED=true` or `OTEL_TRACES_EXPORTER=none`
/// disables the export; the service name, headers and timeouts come from their standard variables.
///
/// Spans contain no prompts, answers, or inputs and results of tools, unless
/// `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is `true`, `SPAN_ONLY` or `SPAN_AND_EVENT`.
pub fn init(filter: &str, json: bool) -> Result<Telemetry, Error> {
    let filter = match EnvFilter::try_from_default_env() {
        Ok(filter) => filter,
        Err(_) => parse_filter(filter)?,
    };
    // Log files must not contain escape sequences.
    let colours = std::io::stderr().is_terminal() && !is_set("NO_COLOR");
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    let lines = if json { lines.json().boxed() } else { lines.boxed() };
    let lines = lines.with_filter(filter);
    let traces = if is_enabled("TRACES") { Some(tracer_provider()?) } else { None };
    let spans = traces.as_ref().map(|provider| {
        // Exports only Windlass spans, because the exporter creates spans too. The log filter does
        // not apply.
        let ours = Targets::new().with_target("windlass", Level::DEBUG);
        tracing_opentelemetry::layer().with_tracer(provider.tracer("windlass")).with_filter(ours)
    });
    if traces.is_some() {
        windlass_engine::telemetry::set_content(wants_content()?);
        connect_traces();
    }
    let set = tracing_subscriber::registry().with(lines).with(spans).try_init();
    set.map_err(|error| {
        let message = format!("a logger is already installed: {error}");
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message)
    })?;
    Ok(Telemetry { traces })
}

/// Whether [`init`] accepts this filter.
pub fn check_filter(filter: &str) -> Result<(), Error> {
    parse_filter(filter).map(drop)
}

// `QUIET` comes first, so that the user's filter overrides it.
fn parse_filter(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            ErrorCode::InvalidOption,
            format!("invalid log filter: {error}"),
        )
    })
}

/// Propagates traces between processes, through the rows of runs and tasks and the `traceparent` of
/// requests. [`init`] calls this; programs that install their own `tracing-opentelemetry` layer
/// must call it themselves.
pub fn connect_traces() {
    windlass_engine::telemetry::set_propagator(W3c(TraceContextPropagator::new()));
}

struct W3c(TraceContextPropagator);

impl Propagator for W3c {
    fn continue_from(&self, span: &Span, traceparent: &str) {
        let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
        let parent = self.0.extract_with_context(&opentelemetry::Context::new(), &carrier);
        // Fails if no subscriber records the span; there is no trace to connect then.
        let _ = span.set_parent(parent);
    }

    fn traceparent(&self, span: &Span) -> Option<String> {
        let mut carrier = HashMap::new();
        self.0.inject_context(&span.context(), &mut carrier);
        carrier.remove(TRACEPARENT)
    }

    fn set_list(&self, span: &Span, name: &'static str, values: &[&str]) {
        let values = values.iter().map(|value| StringValue::from((*value).to_owned()));
        span.set_attribute(name, Value::Array(Array::String(values.collect())));
    }
}

/// The trace of a request: the current span of the server if there is one, else the `traceparent`
/// of the request.
pub(crate) fn trace(headers: &HeaderMap) -> Option<Arc<str>> {
    windlass_engine::telemetry::current().or_else(|| traceparent(headers))
}

/// The `traceparent` of a request. Ignores malformed values.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<Arc<str>> {
    let trace = headers.get(TRACEPARENT)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (trace.len() == 55 && trace.bytes().all(plain)).then(|| trace.into())
}

// The exporters build their own HTTP clients, which use the default provider of the process.
fn install_tls() {
    // It fails only if the program has installed a provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn tracer_provider() -> Result<SdkTracerProvider, Error> {
    install_tls();
    let exporter = SpanExporter::builder().with_http().build().map_err(invalid_config)?;
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
    Ok(provider.with_resource(resource()).build())
}

/// The OTLP reader for metrics, if an endpoint is configured.
pub(crate) fn metrics_reader() -> Result<Option<PeriodicReader<MetricExporter>>, Error> {
    if !is_enabled("METRICS") {
        return Ok(None);
    }
    install_tls();
    let exporter = MetricExporter::builder().with_http().build().map_err(invalid_config)?;
    Ok(Some(PeriodicReader::builder(exporter).build()))
}

/// The resource: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else `windlass`.
pub(crate) fn resource() -> Resource {
    let named = is_set("OTEL_SERVICE_NAME");
    let builder = Resource::builder();
    if named { builder.build() } else { builder.with_service_name("windlass").build() }
}

fn is_enabled(signal: &str) -> bool {
    let equals = |name: &str, value: &str| {
        std::env::var(name).is_ok_and(|found| found.eq_ignore_ascii_case(value))
    };
    let endpoint = is_set("OTEL_EXPORTER_OTLP_ENDPOINT")
        || is_set(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
    endpoint
        && !equals("OTEL_SDK_DISABLED", "true")
        && !equals(&format!("OTEL_{signal}_EXPORTER"), "none")
}

// Content is private, so a value that is not known is an error and not a guess.
fn wants_content() -> Result<bool, Error> {
    let value = std::env::var(CONTENT).unwrap_or_default();
    match value.to_ascii_lowercase().as_str() {
        "true" | "span_only" | "span_and_event" => Ok(true),
        // Windlass sends no events, so there is nowhere to put their content.
        "" | "false" | "no_content" | "event_only" => Ok(false),
        _ => Err(invalid_config(format!("{CONTENT} is {value:?}; use \"true\" or \"false\""))),
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

fn invalid_config(error: impl std::fmt::Display) -> Error {
    let message = format!("invalid OTEL_* variables: {error}");
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message)
}
