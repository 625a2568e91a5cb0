//! Logs to standard error, traces and metrics to whoever the standard `OTEL_*` variables name.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::PeriodicReader;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};
use windlass::{Error, ErrorKind};

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
    let filter = EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(filter));
    let filter = filter.map_err(|error| {
        Error::new(ErrorKind::Invalid, "INVALID_OPTION", format!("the log filter: {error}"))
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = if json { lines.json().boxed() } else { lines.boxed() };
    let lines = lines.with_filter(filter);
    let traces = if wanted("TRACES") { Some(tracer_provider()?) } else { None };
    let spans = traces.as_ref().map(|provider| {
        // Of its own spans alone: what sends them has some too. A quiet log hides none of them.
        let ours = Targets::new().with_target("windlass", Level::DEBUG);
        tracing_opentelemetry::layer().with_tracer(provider.tracer("windlass")).with_filter(ours)
    });
    let set = tracing_subscriber::registry().with(lines).with(spans).try_init();
    set.map_err(|error| {
        let message = format!("process logs are set up already: {error}");
        Error::new(ErrorKind::Invalid, "INVALID_OPTION", message)
    })?;
    Ok(Telemetry { traces })
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
