//! Export of traces and metrics to an OTLP collector.

use std::collections::BTreeSet;

use crate::collector::{Collector, Received, Span};
use crate::support::{Server, http_client, postgres, sqlite_in, wait_until, windlass};

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
