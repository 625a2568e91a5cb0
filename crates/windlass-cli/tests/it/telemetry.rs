//! Export of traces and metrics to an OTLP collector.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use crate::support::{Server, http_client, postgres, sqlite_in, wait_until, windlass};

/// A received span.
#[derive(Clone, Debug)]
struct Span {
    service: String,
    name: String,
    trace: String,
    id: String,
    parent: String,
    attributes: BTreeMap<String, String>,
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    metrics: BTreeSet<String>,
    services: BTreeSet<String>,
    refused: Vec<String>,
    headers: BTreeSet<String>,
}

impl Received {
    fn spans_named(&self, name: &str) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.name == name)
    }
}

/// A collector that accepts only valid OTLP requests.
struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
    runtime: tokio::runtime::Runtime,
}

impl Collector {
    fn start() -> Self {
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

fn traces(received: &mut Received, sent: ExportTraceServiceRequest) {
    for of_service in sent.resource_spans {
        received.services.extend(of_service.resource.iter().filter_map(service));
        for span in of_service.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let attributes = span.attributes.into_iter();
            let shown = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
                Some(Value::StringValue(text)) => text,
                Some(Value::IntValue(number)) => number.to_string(),
                other => format!("{other:?}"),
            };
            received.spans.push(Span {
                service: of_service.resource.as_ref().and_then(service).unwrap_or_default(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                attributes: attributes.map(|each| (each.key, shown(each.value))).collect(),
            });
        }
    }
}

fn metrics(received: &mut Received, sent: ExportMetricsServiceRequest) {
    for of_service in sent.resource_metrics {
        received.services.extend(of_service.resource.iter().filter_map(service));
        let scopes = of_service.scope_metrics.into_iter();
        received.metrics.extend(scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name));
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
fn traces_and_metrics_are_exported() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut command = windlass();
    command.args([
        "server",
        "--auth",
        "off",
        "--samples",
        "--bind",
        "127.0.0.1:0",
        "--log",
        "error",
    ]);
    command.args(["--store", &sqlite_in(folder.path(), "traced.db")]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=harbour");
    command.env("OTEL_SERVICE_NAME", "capstan");
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "200");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "200");
    let server = Server::spawn(command);
    server.run(&["runs", "create", "hello", "--params", "\"you\"", "--wait"]).expect(0);
    let has = |test: &dyn Fn(&Received) -> bool| test(&collector.received.lock().unwrap());
    wait_until("a run's turn and the request are traced", || {
        has(&|received| {
            received.spans_named(RUN).next().is_some()
                && received.spans_named("http").next().is_some()
        })
    });
    wait_until("runs and requests are counted", || {
        has(&|received| {
            received.metrics.contains("durable.workflows.completed")
                && received.metrics.contains("windlass.http.requests")
        })
    });
    assert_eq!(server.terminate(), Some(0));
    let received = collector.received.lock().unwrap();
    assert_eq!(received.refused, Vec::<String>::new());
    assert_eq!(received.services, BTreeSet::from(["capstan".to_owned()]));
    assert!(received.headers.contains("x-tenant: harbour"), "{:?}", received.headers);
    for (span, attribute) in
        [("http", "route"), ("http", "request_id"), (RUN, "durable.workflow.type")]
    {
        assert!(received.spans_named(span).all(|span| span.attributes.contains_key(attribute)));
    }
    for metric in ["durable.workflow.duration", "durable.worker.load", "durable.workers.active"] {
        assert!(received.metrics.contains(metric), "{metric} is not among {:?}", received.metrics);
    }
}

const RUN: &str = "durable.workflow.run";

// The trace id and span id of an external caller.
const CALLER: (&str, &str) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");

#[test]
fn one_trace_spans_two_processes() {
    let database = postgres();
    let collector = Collector::start();
    let serve = |service: &str, more: &[&str]| {
        let mut command = windlass();
        command
            .args(["server", "--auth", "off", "--bind", "127.0.0.1:0", "--log", "error"])
            .args(more);
        command.args(["--store", &database.url]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
        command.env("OTEL_METRICS_EXPORTER", "none");
        command.env("OTEL_SERVICE_NAME", service).env("OTEL_BSP_SCHEDULE_DELAY", "100");
        Server::spawn(command)
    };
    let worker = serve("worker", &["--samples"]);
    // The front server serves no workflow, so the worker executes its runs.
    let front = serve("front", &[]);
    wait_until("the worker has registered its workflows", || {
        front.run(&["workflows", "list", "-o", "json"]).stdout.contains("parcel")
    });
    let url = format!("{}/workflows/parcel/instances?waitMs=30000", front.url);
    let answer = collector.runtime.block_on(async {
        let request = http_client().post(url).header("content-type", "application/json");
        let request = request.header("traceparent", format!("00-{}-{}-01", CALLER.0, CALLER.1));
        let answer = request.body(r#"{"id":"p-1","params":"you"}"#).send().await.unwrap();
        answer.text().await.unwrap()
    });
    assert!(answer.contains("HELLO, YOU!"), "{answer}");
    assert_eq!((front.terminate(), worker.terminate()), (Some(0), Some(0)));

    let received = collector.received.lock().unwrap();
    assert_eq!(received.refused, Vec::<String>::new());
    let ours: Vec<&Span> = received.spans.iter().filter(|span| span.trace == CALLER.0).collect();
    let one = |service: &str, name: &str, with: &[(&str, &str)]| -> &Span {
        let mut found = ours.iter().filter(|span| {
            let has = |(key, value): &(&str, &str)| {
                span.attributes.get(*key).is_some_and(|found| found == value)
            };
            span.service == service && span.name == name && with.iter().all(has)
        });
        found.next().unwrap_or_else(|| panic!("no {name} {with:?} of {service} in {ours:#?}"))
    };
    let below = |child: &Span, parent: &Span| {
        assert_eq!(child.parent, parent.id, "{child:?} is not a child of {parent:?}");
    };
    const TYPE: &str = "durable.workflow.type";
    let asked = one("front", "http", &[]);
    assert_eq!(asked.parent, CALLER.1);
    let start = one("front", "durable.workflow.start", &[(TYPE, "parcel")]);
    below(start, asked);
    below(one("front", "durable.event.append", &[(TYPE, "parcel")]), start);
    let turns: Vec<&&Span> =
        ours.iter().filter(|s| s.name == RUN && s.attributes[TYPE] == "parcel").collect();
    assert_eq!(turns.len(), 3, "{turns:#?}");
    for turn in &turns {
        assert_eq!(turn.service, "worker");
        below(turn, start);
    }
    let turn_of = |id: &str| -> &Span { turns.iter().find(|turn| turn.id == id).unwrap() };
    let weighed = one("worker", "durable.activity.execute", &[("durable.activity.type", "weigh")]);
    assert_eq!(weighed.attributes["durable.activity.attempt"], "1");
    turn_of(&weighed.parent);
    below(one("worker", "durable.task.complete", &[]), weighed);
    let greeted = one("worker", RUN, &[(TYPE, "hello")]);
    let asked_for = turn_of(&greeted.parent);
    assert_ne!(asked_for.id, weighed.parent, "one turn started both");
    let ended =
        turns.iter().filter(|turn| turn.attributes["durable.workflow.status"] == "complete");
    assert_eq!(ended.count(), 1);
    let replayed = one("worker", "durable.workflow.replay", &[(TYPE, "parcel")]);
    turn_of(&replayed.parent);
    assert!(received.spans_named("durable.task.claim").any(|claim| claim.service == "worker"));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn otel_sdk_disabled_stops_the_export() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut command = windlass();
    command.args([
        "server",
        "--auth",
        "off",
        "--samples",
        "--bind",
        "127.0.0.1:0",
        "--log",
        "error",
    ]);
    command.args(["--store", &sqlite_in(folder.path(), "silent.db")]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    command.env("OTEL_SDK_DISABLED", "true");
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    let server = Server::spawn(command);
    server.run(&["runs", "create", "hello", "--params", "\"you\"", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let received = collector.received.lock().unwrap();
    assert!(received.headers.is_empty() && received.refused.is_empty(), "{:?}", received.headers);
}
