//! A collector of OTLP over HTTP: it accepts only valid requests, and keeps spans and metrics.

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
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;

/// A received span.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) service: String,
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    /// Whether it is the span of a client.
    pub(crate) is_client: bool,
    pub(crate) attributes: BTreeMap<String, String>,
}

/// The last value of a metric with some attributes.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) metric: String,
    pub(crate) attributes: BTreeMap<String, String>,
    /// How many samples it has; 1 for a counter.
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

#[derive(Default)]
pub(crate) struct Received {
    pub(crate) spans: Vec<Span>,
    pub(crate) metrics: BTreeSet<String>,
    pub(crate) points: Vec<Point>,
    pub(crate) services: BTreeSet<String>,
    pub(crate) refused: Vec<String>,
    pub(crate) headers: BTreeSet<String>,
    /// The requests as they came.
    pub(crate) bodies: Vec<Bytes>,
}

impl Received {
    pub(crate) fn spans_named(&self, name: &str) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.name == name)
    }
}

/// A collector that accepts only valid OTLP requests.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    pub(crate) received: Arc<Mutex<Received>>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let received = Arc::new(Mutex::new(Received::default()));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(take).with_state(Arc::clone(&received));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, received, runtime }
    }
}

async fn take(
    State(received): State<Arc<Mutex<Received>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let mut received = received.lock().unwrap();
    received.bodies.push(body.clone());
    received.headers.extend(
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))),
    );
    match uri.path() {
        "/v1/traces" => match ExportTraceServiceRequest::decode(body) {
            Ok(sent) => traces(&mut received, sent),
            Err(error) => received.refused.push(error.to_string()),
        },
        "/v1/metrics" => match ExportMetricsServiceRequest::decode(body) {
            Ok(sent) => metrics(&mut received, sent),
            Err(error) => received.refused.push(error.to_string()),
        },
        other => received.refused.push(format!("unexpected path {other}")),
    }
    StatusCode::OK
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let shown = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        other => format!("{other:?}"),
    };
    attributes.into_iter().map(|each| (each.key, shown(each.value))).collect()
}

fn traces(received: &mut Received, sent: ExportTraceServiceRequest) {
    for of_service in sent.resource_spans {
        received.services.extend(of_service.resource.iter().filter_map(service));
        for span in of_service.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            received.spans.push(Span {
                service: of_service.resource.as_ref().and_then(service).unwrap_or_default(),
                is_client: span.kind() == SpanKind::Client,
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                attributes: texts(span.attributes),
            });
        }
    }
}

fn metrics(received: &mut Received, sent: ExportMetricsServiceRequest) {
    for of_service in sent.resource_metrics {
        received.services.extend(of_service.resource.iter().filter_map(service));
        for metric in of_service.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
            let name = metric.name;
            let points: Vec<_> = match metric.data {
                Some(Data::Histogram(histogram)) => {
                    let points = histogram.data_points.into_iter();
                    points.map(|p| (p.attributes, p.count, p.sum.unwrap_or_default())).collect()
                }
                Some(Data::Sum(sum)) => {
                    let points = sum.data_points.into_iter();
                    points
                        .map(|p| match p.value {
                            Some(number_data_point::Value::AsDouble(sum)) => (p.attributes, 1, sum),
                            _ => (p.attributes, 1, 0.0),
                        })
                        .collect()
                }
                _ => Vec::new(),
            };
            for (attributes, count, sum) in points {
                let attributes = texts(attributes);
                received.points.retain(|p| p.metric != name || p.attributes != attributes);
                received.points.push(Point { metric: name.clone(), attributes, count, sum });
            }
            received.metrics.insert(name);
        }
    }
}

fn service(resource: &Resource) -> Option<String> {
    let name = resource.attributes.iter().find(|attribute| attribute.key == "service.name")?;
    match name.value.clone()?.value? {
        Value::StringValue(name) => Some(name),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
