//! What the binary sends to a collector when the standard variables name one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use crate::support::{Server, sqlite_in, until, windlass};

#[derive(Default)]
struct Got {
    /// Names of spans, each with the keys of its attributes.
    spans: BTreeMap<String, BTreeSet<String>>,
    metrics: BTreeSet<String>,
    services: BTreeSet<String>,
    refused: Vec<String>,
    headers: BTreeSet<String>,
}

/// A collector: it takes what the protocol says and nothing else.
struct Collector {
    address: SocketAddr,
    got: Arc<Mutex<Got>>,
    _runtime: tokio::runtime::Runtime,
}

impl Collector {
    fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let got = Arc::new(Mutex::new(Got::default()));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(take).with_state(Arc::clone(&got));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, got, _runtime: runtime }
    }
}

async fn take(
    State(got): State<Arc<Mutex<Got>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let mut got = got.lock().unwrap();
    got.headers.extend(
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))),
    );
    match uri.path() {
        "/v1/traces" => match ExportTraceServiceRequest::decode(body) {
            Ok(sent) => traces(&mut got, sent),
            Err(error) => got.refused.push(error.to_string()),
        },
        "/v1/metrics" => match ExportMetricsServiceRequest::decode(body) {
            Ok(sent) => metrics(&mut got, sent),
            Err(error) => got.refused.push(error.to_string()),
        },
        other => got.refused.push(format!("nothing is taken at {other}")),
    }
    StatusCode::OK
}

fn traces(got: &mut Got, sent: ExportTraceServiceRequest) {
    for of_service in sent.resource_spans {
        got.services.extend(of_service.resource.iter().filter_map(service));
        for span in of_service.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let keys = span.attributes.into_iter().map(|attribute| attribute.key);
            got.spans.entry(span.name).or_default().extend(keys);
        }
    }
}

fn metrics(got: &mut Got, sent: ExportMetricsServiceRequest) {
    for of_service in sent.resource_metrics {
        got.services.extend(of_service.resource.iter().filter_map(service));
        let scopes = of_service.scope_metrics.into_iter();
        got.metrics.extend(scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name));
    }
}

fn service(resource: &Resource) -> Option<String> {
    let name = resource.attributes.iter().find(|attribute| attribute.key == "service.name")?;
    match name.value.clone()?.value? {
        Value::StringValue(name) => Some(name),
        _ => None,
    }
}

#[test]
fn traces_and_metrics_reach_the_collector_that_the_variables_name() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut command = windlass();
    command.args(["server", "--samples", "--bind", "127.0.0.1:0", "--log", "error"]);
    command.args(["--store", &sqlite_in(folder.path(), "traced.db")]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=harbour");
    command.env("OTEL_SERVICE_NAME", "capstan");
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "200");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "200");
    let server = Server::spawn(command);
    server.say(&["runs", "create", "hello", "--params", "\"you\"", "--wait"]).expect(0);
    let has = |test: &dyn Fn(&Got) -> bool| test(&collector.got.lock().unwrap());
    until("a run's turn and the request are traced", || {
        has(&|got| got.spans.contains_key("windlass.turn") && got.spans.contains_key("http"))
    });
    until("runs and requests are counted", || {
        has(&|got| {
            got.metrics.contains("windlass.workflow.completed")
                && got.metrics.contains("windlass.http.requests")
        })
    });
    assert_eq!(server.terminate(), Some(0));
    let got = collector.got.lock().unwrap();
    assert_eq!(got.refused, Vec::<String>::new());
    assert_eq!(got.services, BTreeSet::from(["capstan".to_owned()]));
    assert!(got.headers.contains("x-tenant: harbour"), "{:?}", got.headers);
    for (span, attribute) in
        [("http", "route"), ("http", "request_id"), ("windlass.turn", "workflow")]
    {
        assert!(got.spans[span].contains(attribute), "{span}: {:?}", got.spans[span]);
    }
}

#[test]
fn nothing_is_sent_where_the_variables_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut command = windlass();
    command.args(["server", "--samples", "--bind", "127.0.0.1:0", "--log", "error"]);
    command.args(["--store", &sqlite_in(folder.path(), "silent.db")]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    command.env("OTEL_SDK_DISABLED", "true");
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    let server = Server::spawn(command);
    server.say(&["runs", "create", "hello", "--params", "\"you\"", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let got = collector.got.lock().unwrap();
    assert!(got.headers.is_empty() && got.refused.is_empty(), "{:?}", got.headers);
}
