//! Logs to standard error, traces and metrics to whoever the standard `OTEL_*` variables name.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::sync::Arc;

use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider;
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
use windlass::{Error, ErrorKind};
use windlass_engine::telemetry::Propagator;
pub(crate) use windlass_engine::telemetry::continue_from;

const TRACEPARENT: &str = "traceparent";

/// The filter of what is never news: migrations that find nothing to do, exporters that start.
const QUIET: &str =
    "refinery_core=warn,opentelemetry=warn,opentelemetry_sdk=warn,opentelemetry_otlp=warn";

/// What is sent on its way by [`init`]; [`Telemetry::stop`] sends the rest.
#[derive(Default)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sends what is still here. Traces that cannot be sent are lost.
    pub fn stop(&self) {
        if let Some(Err(error)) = self.traces.as_ref().map(SdkTracerProvider::shutdown) {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// Sets up process logs on standard error, filtered by `RUST_LOG` or else by `filter`, and the
/// export of traces over OTLP (HTTP) if `OTEL_EXPORTER_OTLP_ENDPOINT` or
/// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set. The filter is for the logs alone. `OTEL_SDK_DISABLED=true` and
/// `OTEL_TRACES_EXPORTER=none` turn it off; names, headers and times are read from their variables.
pub fn init(filter: &str, json: bool) -> Result<Telemetry, Error> {
    let filter = match EnvFilter::try_from_default_env() {
        Ok(filter) => filter,
        Err(_) => parse_filter(filter)?,
    };
    // A file keeps what is written to it: colours are for a terminal whose user wants them.
    let colours = std::io::stderr().is_terminal() && !is_set("NO_COLOR");
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    let lines = if json { lines.json().boxed() } else { lines.boxed() };
    let lines = lines.with_filter(filter);
    let traces = if wanted("TRACES") { Some(tracer_provider()?) } else { None };
    let spans = traces.as_ref().map(|provider| {
        // Of its own spans alone: what sends them has some too. A quiet log hides none of them.
        let ours = Targets::new().with_target("windlass", Level::DEBUG);
        tracing_opentelemetry::layer().with_tracer(provider.tracer("windlass")).with_filter(ours)
    });
    if traces.is_some() {
        connect_traces();
    }
    let set = tracing_subscriber::registry().with(lines).with(spans).try_init();
    set.map_err(|error| {
        let message = format!("process logs are set up already: {error}");
        Error::new(ErrorKind::Invalid, "INVALID_OPTION", message)
    })?;
    Ok(Telemetry { traces })
}

/// Whether [`init`] would take this filter.
pub fn check_filter(filter: &str) -> Result<(), Error> {
    parse_filter(filter).map(drop)
}

// What others tell of their own inside is for whoever asks for it by name.
fn parse_filter(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|error| {
        Error::new(ErrorKind::Invalid, "INVALID_OPTION", format!("the log filter: {error}"))
    })
}

/// Makes traces go on from one process to the next, through the rows of runs and tasks and the
/// `traceparent` of requests. [`init`] does so; for programs that set up a layer of `tracing-opentelemetry`
/// themselves.
pub fn connect_traces() {
    windlass_engine::telemetry::set_propagator(W3c(TraceContextPropagator::new()));
}

struct W3c(TraceContextPropagator);

impl Propagator for W3c {
    fn continue_from(&self, span: &Span, traceparent: &str) {
        let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
        let parent = self.0.extract_with_context(&opentelemetry::Context::new(), &carrier);
        // Where nobody looks at the span, there is nothing to connect.
        let _ = span.set_parent(parent);
    }

    fn traceparent(&self, span: &Span) -> Option<String> {
        let mut carrier = HashMap::new();
        self.0.inject_context(&span.context(), &mut carrier);
        carrier.remove(TRACEPARENT)
    }
}

/// The trace that a request is part of: below the server's own span if it makes one, else as the
/// request says.
pub(crate) fn trace(headers: &HeaderMap) -> Option<Arc<str>> {
    windlass_engine::telemetry::current().or_else(|| asked(headers))
}

/// What a request says of the trace that it is part of. What is no `traceparent` is passed over.
pub(crate) fn asked(headers: &HeaderMap) -> Option<Arc<str>> {
    let trace = headers.get(TRACEPARENT)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (trace.len() == 55 && trace.bytes().all(plain)).then(|| trace.into())
}

fn tracer_provider() -> Result<SdkTracerProvider, Error> {
    let exporter = SpanExporter::builder().with_http().build().map_err(unusable)?;
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
    Ok(provider.with_resource(resource()).build())
}

/// What sends metrics on, if the variables name somebody.
pub(crate) fn metrics_reader() -> Result<Option<PeriodicReader<MetricExporter>>, Error> {
    if !wanted("METRICS") {
        return Ok(None);
    }
    let exporter = MetricExporter::builder().with_http().build().map_err(unusable)?;
    Ok(Some(PeriodicReader::builder(exporter).build()))
}

/// Who is speaking: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else `windlass`.
pub(crate) fn resource() -> Resource {
    let named = is_set("OTEL_SERVICE_NAME");
    let builder = Resource::builder();
    if named { builder.build() } else { builder.with_service_name("windlass").build() }
}

fn wanted(signal: &str) -> bool {
    let is = |name: &str, value: &str| {
        std::env::var(name).is_ok_and(|found| found.eq_ignore_ascii_case(value))
    };
    let endpoint = is_set("OTEL_EXPORTER_OTLP_ENDPOINT")
        || is_set(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
    endpoint && !is("OTEL_SDK_DISABLED", "true") && !is(&format!("OTEL_{signal}_EXPORTER"), "none")
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

fn unusable(error: impl std::fmt::Display) -> Error {
    let message = format!("the OTEL_* variables cannot be used: {error}");
    Error::new(ErrorKind::Invalid, "INVALID_OPTION", message)
}
