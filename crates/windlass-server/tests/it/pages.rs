//! Cursors belong to one listing, one run and one filter.

use std::sync::Arc;

use reqwest::Method;
use serde_json::json;
use serde_json::value::to_raw_value;
use windlass::kernel::{Body, BoxFuture, Commit, Op, RetryPolicy};
use windlass::model::{TaskHandler, TaskResult};
use windlass::{TaskContext, TaskFailure};
use windlass_server::{Options, ServeOptions};
use windlass_testkit::outage::Outage;

use crate::harness::{Kind, Server, assert_error, on_both_stores, open, read, wait_until};

on_both_stores!(
    a_cursor_belongs_to_its_listing,
    paging_stays_in_its_generation,
    keys_are_listed_in_pages,
    small_pages_read_few_rows,
    routes_of_the_dashboard_make_few_calls_for_many_rows,
);

async fn a_cursor_belongs_to_its_listing(kind: Kind) {
    let server = Server::start(kind).await;
    for n in 0..3 {
        let body = json!({ "id": format!("p-{n}"), "labels": { "a": "b" }, "params": "x" });
        server.post_ok("/workflows/greet/instances", body).await;
        server.wait_for_status("greet", &format!("p-{n}"), "complete").await;
    }
    let runs = "/workflows/greet/instances";
    let first = server.get_ok(&format!("{runs}?pageSize=1&status=complete&label=a:b")).await;
    let cursor = first["cursor"].as_str().unwrap();
    let fine = format!("{runs}?pageSize=2&status=complete&label=a:b&cursor={cursor}");
    assert_eq!(server.get_ok(&fine).await["instances"].as_array().unwrap().len(), 2);
    for other in [
        format!("{runs}?pageSize=1&cursor={cursor}"),
        format!("{runs}?pageSize=1&status=errored&label=a:b&cursor={cursor}"),
        format!("{runs}?pageSize=1&status=complete&label=a:c&cursor={cursor}"),
        format!("{runs}?pageSize=1&status=complete&label=a:b&order=asc&cursor={cursor}"),
        format!("/workflows/nap/instances?status=complete&label=a:b&cursor={cursor}"),
        format!("/runs?status=complete&label=a:b&cursor={cursor}"),
        format!(
            "{runs}?status=complete&label=a:b&createdFrom=2020-01-01T00:00:00Z&cursor={cursor}"
        ),
    ] {
        assert_error(server.get(&other).await, (400, "INVALID_CURSOR"));
    }
    let page = server.get_ok(&format!("{runs}/p-0/ledger?pageSize=1")).await;
    let cursor = page["cursor"].as_str().unwrap();
    server.get_ok(&format!("{runs}/p-0/ledger?cursor={cursor}")).await;
    for other in [
        format!("{runs}/p-1/ledger?cursor={cursor}"),
        format!("{runs}/p-0/ledger?scope=root&cursor={cursor}"),
    ] {
        assert_error(server.get(&other).await, (400, "INVALID_CURSOR"));
    }
    let page = server.get_ok(&format!("{runs}/p-0/ledger?scope=root&pageSize=1")).await;
    let cursor = page["cursor"].as_str().unwrap();
    let other = server.get(&format!("{runs}/p-1/ledger?scope=root&cursor={cursor}")).await;
    assert_error(other, (400, "INVALID_CURSOR"));
    server.stop().await;
}

async fn paging_stays_in_its_generation(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "h-1", json!({}), "waiting").await;
    let at = "/workflows/approve/instances/h-1";
    for payload in 0..3 {
        let event = json!({ "type": "approval", "payload": payload });
        let (status, _) = server.post(&format!("{at}/events"), event).await;
        assert!(status == 200 || payload == 2, "{status}");
    }
    server.wait_for_status("approve", "h-1", "complete").await;
    server.run("approve", "h-2", json!({}), "waiting").await;
    let page = server.get_ok(&format!("{at}/history?pageSize=1")).await;
    let steps = page["stepsCursor"].as_str().unwrap();
    let events = page["eventsCursor"].as_str().unwrap();
    server.post_ok(&format!("{at}/restart"), json!({})).await;
    server.wait_for_status("approve", "h-1", "waiting").await;
    let both = format!("{at}/history?pageSize=1&stepsCursor={steps}&eventsCursor={events}");
    let next = server.get_ok(&both).await;
    assert_eq!(next["runNumber"], 0, "the page is of the first generation: {next}");
    assert_eq!(next["steps"][0]["stepKey"], "second");
    assert_eq!(next["events"][0]["payload"], 1);
    for other in [
        format!("{at}/history?runNumber=1&stepsCursor={steps}"),
        format!("{at}/history?runNumber=1&eventsCursor={events}"),
        format!("{at}/history?order=desc&stepsCursor={steps}"),
        format!("/workflows/approve/instances/h-2/history?stepsCursor={steps}"),
        format!("/workflows/approve/instances/h-2/history?eventsCursor={events}"),
    ] {
        assert_error(server.get(&other).await, (400, "INVALID_CURSOR"));
    }
    let same = format!("{at}/history?runNumber=0&pageSize=1&stepsCursor={steps}");
    assert_eq!(server.get_ok(&same).await["steps"][0]["stepKey"], "second");
    server.stop().await;
}

async fn keys_are_listed_in_pages(kind: Kind) {
    let server = Server::start(kind).await;
    let mut made = Vec::new();
    for n in 0..5 {
        let body = json!({ "name": format!("k-{n}"), "scopes": ["read"] });
        let key = server.post_ok("/keys", body).await;
        made.push(key["id"].as_str().unwrap().to_owned());
    }
    made.sort();
    let mut found = Vec::new();
    let mut path = "/keys?pageSize=2".to_owned();
    loop {
        let page = server.get_ok(&path).await;
        let rows = page["keys"].as_array().unwrap();
        assert!(rows.len() <= 2, "{page}");
        found.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        assert_eq!(page["cursor"], page["nextCursor"]);
        assert_eq!(page["hasNextPage"], page["cursor"].is_string());
        match page["cursor"].as_str() {
            Some(next) => path = format!("/keys?pageSize=2&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, made);
    assert_error(server.get("/keys?cursor=x").await, (400, "INVALID_CURSOR"));
    assert_error(
        read(server.request(Method::GET, "/keys?pageSize=0")).await,
        (400, "INVALID_PAGE_SIZE"),
    );
    server.stop().await;
}

async fn small_pages_read_few_rows(kind: Kind) {
    let mut watched = None;
    let engine = windlass::admin::Options::default();
    let server = Server::start_on(kind, open(), engine, ServeOptions::default(), |store| {
        let around = Outage::new(store);
        watched = Some(std::sync::Arc::clone(&around));
        around
    });
    let server = server.await;
    let watched = watched.expect("the store is wrapped");
    let run = server.run("approve", "s-1", json!({}), "waiting").await;
    let at = "/workflows/approve/instances/s-1";
    for payload in 0..60 {
        let event = json!({ "type": "other", "payload": payload });
        server.post_ok(&format!("{at}/events"), event).await;
    }
    let key = run["meta"]["runKey"].as_str().unwrap();
    // The engine may still load the run because of the events.
    wait_until("one generation is read and not loaded", async || {
        let loads = watched.loads();
        let same = server.get_ok(&format!("/runs/{key}")).await;
        assert_eq!(same["meta"]["currentStep"]["stepKey"], "first");
        watched.loads() == loads
    })
    .await;
    for (query, payload) in [("pageSize=1", 0), ("pageSize=1&order=desc", 59)] {
        let before = watched.messages();
        let page = server.get_ok(&format!("{at}/history?{query}")).await;
        assert_eq!(page["events"][0]["payload"], payload, "{page}");
        let read = watched.messages() - before;
        assert!(read <= 20, "{read} messages were read for one");
    }
    server.stop().await;
}

struct Refusing;

impl TaskHandler for Refusing {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        let failure = TaskFailure::new("REFUSED", "the mailbox is full", false);
        Box::pin(std::future::ready(Err(failure)))
    }
}

/// Adds runs that end and runs that fail, steps to one run, children, and dead letters.
async fn add_rows(server: &Server, from: usize, to: usize) {
    for n in from..to {
        server.run("greet", &format!("g-{n}"), json!("Ada"), "complete").await;
        server.run("charge", &format!("c-{n}"), json!(0), "errored").await;
        server.run("payer", &format!("p-{n}"), json!({}), "errored").await;
        let input = to_raw_value(&n).unwrap();
        let task = server.engine.core().effect("mail", None, input, RetryPolicy::none()).unwrap();
        let commit = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
        assert!(server.engine.admin().store().commit(vec![commit]).await[0].is_ok());
    }
    wait_until("all effects are given up", async || {
        server.get_ok("/durable/dlq?limit=100").await["entries"].as_array().unwrap().len() == to
    })
    .await;
}

async fn routes_of_the_dashboard_make_few_calls_for_many_rows(kind: Kind) {
    let mut watched = None;
    let engine = windlass::admin::Options::default();
    let routes = vec![
        #[cfg(feature = "agents")]
        windlass_server::llm::routes(),
    ];
    let options = Options { routes, ..open() };
    let server = Server::start_on(kind, options, engine, ServeOptions::default(), |store| {
        let around = Outage::new(store);
        watched = Some(Arc::clone(&around));
        around
    });
    let server = server.await;
    let watched = watched.expect("the store is wrapped");
    server.engine.serve_effects("mail", Arc::new(Refusing)).unwrap();
    // With the calls that each further row may cost.
    let mut paths = vec![
        // Whether each of the three failed runs was retried.
        ("/attention", 3),
        // It looks for ids in up to twenty pages of runs.
        ("/search?q=g-0", 1),
        ("/workflows/charge/instances/c-0/timeline", 0),
        ("/workflows/payer/instances/p-0/tree", 0),
        ("/durable/dlq?limit=100&group=error", 0),
    ];
    if cfg!(feature = "agents") {
        paths.push(("/batches?limit=100", 0));
    }
    // The engine asks its store as well: the least of several counts has only what the route asks.
    let count = async |path: &str| {
        let mut least = u64::MAX;
        for _ in 0..10 {
            let before = watched.calls();
            server.get_ok(path).await;
            least = least.min(watched.calls() - before);
        }
        least
    };
    add_rows(&server, 0, 2).await;
    let mut few = Vec::new();
    for (path, _) in &paths {
        few.push(count(path).await);
    }
    let more = 23;
    add_rows(&server, 2, 2 + more).await;
    for ((path, each), few) in paths.iter().zip(few) {
        let many = count(path).await;
        let max = few + each * more as u64;
        assert!(few > 0 && many <= max, "{path}: {few} calls for few rows, {many} for many");
    }
    server.stop().await;
}
