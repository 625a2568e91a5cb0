//! Schedules, queues, workers, tick, metrics and documents.

use reqwest::Method;
use serde_json::{Value, json};
use windlass_server::{Options, ServeOptions};

use crate::harness::{Kind, Server, assert_error, on_both_stores, open, read};

on_both_stores!(
    schedules,
    queues_and_workers,
    tick,
    a_tick_answers_while_a_step_goes_on,
    health_and_metrics,
);

async fn put(server: &Server, name: &str, body: Value) -> (u16, Value) {
    read(server.request(Method::PUT, &format!("/schedules/{name}")).json(&body)).await
}

async fn schedules(kind: Kind) {
    let server = Server::start(kind).await;
    let nightly = json!({
        "workflow": "greet", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "params": "Ann",
        "labels": { "by": "cron" }, "overlap": "skip", "missed": "all",
    });
    let (status, set) = put(&server, "nightly", nightly.clone()).await;
    assert_eq!(status, 200, "{set}");
    for (name, value) in nightly.as_object().unwrap() {
        assert_eq!(&set[name], value, "{name}");
    }
    assert_eq!(put(&server, "nightly", nightly).await.0, 200);
    assert_eq!(
        put(&server, "often", json!({ "workflow": "greet", "everyMs": 1_000 })).await.0,
        200
    );
    let list = server.get_ok("/schedules").await;
    assert_eq!(list["schedules"].as_array().unwrap().len(), 2);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let fired = loop {
        let often = server.get_ok("/schedules/often").await;
        if often["lastRun"].is_string() {
            break often;
        }
        assert!(std::time::Instant::now() < deadline, "the schedule does not fire: {often}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let id = fired["lastRun"].as_str().unwrap();
    server.wait_for_status("greet", id, "complete").await;
    assert!(!server.get_ok("/runs").await.to_string().contains("windlass.schedule"));
    let paused = server.post_ok("/schedules/often/pause", json!({})).await;
    assert_eq!(paused["paused"], true);
    let resumed = server.post_ok("/schedules/often/resume", json!({})).await;
    assert_eq!(resumed["paused"], false);
    let deleted = read(server.request(Method::DELETE, "/schedules/often")).await;
    assert_eq!(deleted.0, 200);
    assert_error(server.get("/schedules/often").await, (404, "SCHEDULE_NOT_FOUND"));
    assert_error(
        server.post("/schedules/often/pause", json!({})).await,
        (404, "SCHEDULE_NOT_FOUND"),
    );
    assert_error(
        read(server.request(Method::DELETE, "/schedules/a%20b")).await,
        (404, "SCHEDULE_NOT_FOUND"),
    );
    for (body, expect) in [
        (json!({ "workflow": "greet" }), (400, "INVALID_SCHEDULE")),
        (json!({ "workflow": "greet", "cron": "x" }), (400, "INVALID_SCHEDULE")),
        (
            json!({ "workflow": "greet", "cron": "* * * * *", "timezone": "Mars" }),
            (400, "INVALID_SCHEDULE"),
        ),
        (json!({ "workflow": "greet", "everyMs": 5 }), (400, "INVALID_SCHEDULE")),
        (
            json!({ "workflow": "greet", "everyMs": 5_000, "cron": "* * * * *" }),
            (400, "INVALID_SCHEDULE"),
        ),
        (json!({ "workflow": "nobody", "everyMs": 5_000 }), (404, "WORKFLOW_NOT_FOUND")),
        (json!({ "workflow": "windlass.schedule", "everyMs": 5_000 }), (404, "WORKFLOW_NOT_FOUND")),
        (json!({ "workflow": "greet", "everyms": 5_000 }), (400, "INVALID_BODY")),
    ] {
        assert_error(put(&server, "other", body).await, expect);
    }
    let body = json!({ "workflow": "greet", "everyMs": 5_000 });
    assert_error(put(&server, "a%20b", body).await, (400, "INVALID_NAME"));
    server.stop().await;
}

async fn queues_and_workers(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("nap", "q-1", json!({}), "waiting").await;
    server.engine.admin().set_limit("printer", Some(2)).await.unwrap();
    let queues = server.get_ok("/queues").await;
    assert_eq!(queues["turns"]["scheduled"], json!({ "count": 1, "more": false }));
    assert_eq!(
        queues["limits"],
        json!([{
            "key": "printer", "slots": 2, "held": 0, "waiting": { "count": 0, "more": false },
        }])
    );
    assert_eq!(queues["deadLetters"]["count"], 0);
    let workers = server.get_ok("/workers").await;
    let worker = &workers["workers"][0];
    assert_eq!((&worker["live"], &worker["status"]), (&json!(true), &json!("active")));
    assert_eq!(worker["id"], server.engine.admin().worker().to_string());
    assert_error(server.get("/queues?cursor=x").await, (400, "INVALID_CURSOR"));
    assert_error(server.get("/workers?pageSize=1000").await, (400, "INVALID_PAGE_SIZE"));
    server.stop().await;
}

async fn tick(kind: Kind) {
    let options = Options { tick: true, ..open() };
    let engine =
        windlass::admin::Options { background: false, ..windlass::admin::Options::default() };
    let server = Server::start_as(kind, options, engine, ServeOptions::default()).await;
    server.post_ok("/workflows/greet/instances", json!({ "id": "t-1" })).await;
    let ticked =
        server.post_ok("/_runner/tick", json!({ "maxInstances": 10, "maxSteps": 100 })).await;
    assert_eq!(ticked["processed"], 1);
    server.wait_for_status("greet", "t-1", "complete").await;
    let none = read(server.request(Method::POST, "/_runner/tick")).await;
    assert_eq!(none, (200, json!({ "processed": 0, "inProgress": 0 })));
    assert_error(
        server.post("/_runner/tick", json!({ "maxInstances": 0 })).await,
        (400, "INVALID_SIZE"),
    );
    server.stop().await;
}

async fn a_tick_answers_while_a_step_goes_on(kind: Kind) {
    // The tick waits for a part of it; the other requests must not fail on a busy machine.
    let request_timeout = std::time::Duration::from_secs(5);
    let options = Options { tick: true, request_timeout, ..open() };
    let engine =
        windlass::admin::Options { background: false, ..windlass::admin::Options::default() };
    let server = Server::start_as(kind, options, engine, ServeOptions::default()).await;
    let (gate, open) = tokio::sync::watch::channel(false);
    let held = move |ctx: windlass::Ctx, (): ()| {
        let open = open.clone();
        async move {
            let body = move || {
                let mut open = open.clone();
                async move {
                    open.wait_for(|open| *open).await?;
                    windlass::Result::Ok(())
                }
            };
            windlass::Result::Ok(ctx.step("wait", body).await?)
        }
    };
    server.engine.workflow("held", held).unwrap();
    server.post_ok("/workflows/held/instances", json!({ "id": "t-1" })).await;
    let ticked = server.post_ok("/_runner/tick", json!({})).await;
    assert_eq!(ticked, json!({ "processed": 1, "inProgress": 1 }));
    // The next tick has nothing to wait for.
    let none = server.post_ok("/_runner/tick", json!({})).await;
    assert_eq!(none, json!({ "processed": 0, "inProgress": 0 }));
    gate.send(true).unwrap();
    server.wait_for_status("held", "t-1", "complete").await;
    server.stop().await;
}

async fn health_and_metrics(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "m-1", json!("Ann"), "complete").await;
    assert_eq!(server.get("//healthz").await, (200, json!({ "status": "ok" })));
    assert_eq!(server.get("//readyz").await, (200, json!({ "status": "ready" })));
    // Adds another worker that reports backpressure.
    let store = server.engine.admin().store();
    let query = windlass_kernel::Query::Workers { after: None, limit: 1 };
    let mut other = store.list(query).await.unwrap().workers().unwrap().remove(0).info;
    other.worker = windlass_kernel::WorkerKey(windlass_engine::new_uuid(
        &**server.engine.core().env(),
        server.engine.core().clock().now(),
    ));
    other.note = Some("no memory left".into());
    store.renew(other).await.unwrap();
    let text = server.request(Method::GET, "//metrics").send().await.unwrap().text().await.unwrap();
    for expect in [
        "durable_workflows_completed_total 1",
        "windlass_runs{namespace=\"default\",status=\"complete\",workflow=\"greet\"} 1",
        "durable_task_queue_depth{of=\"turns\",state=\"ready\"} 0",
        "windlass_http_requests_total{",
        "durable_workers_active 2",
        "durable_workers_under_backpressure 1",
        "durable_dlq_entries 0",
        "durable_workflow_duration_seconds_count{durable_workflow_type=\"greet\"} 1",
    ] {
        assert!(text.contains(expect), "{expect} is missing in\n{text}");
    }
    let api = server.get_ok("/openapi.json").await;
    assert_eq!(api["openapi"], "3.1.0");
    assert!(api["paths"]["/workflows/{workflowName}/instances"]["post"].is_object());
    let page = server.request(Method::GET, "/docs").send().await.unwrap();
    assert_eq!(page.url().path(), "/api/docs/");
    let page = page.text().await.unwrap();
    assert!(page.contains("docs.js") && page.contains("docs.css"), "{page}");
    for (name, kind) in [("docs.js", "text/javascript"), ("docs.css", "text/css")] {
        let file = server.request(Method::GET, &format!("/docs/{name}")).send().await.unwrap();
        let found = file.headers()["content-type"].to_str().unwrap().to_owned();
        assert!(found.starts_with(kind), "{name}: {found}");
        let text = file.text().await.unwrap();
        assert!(
            !text.contains("://") && !page.contains("://"),
            "the page loads nothing from others"
        );
        assert_eq!(text.contains("../openapi.json"), name == "docs.js");
    }
    assert_error(server.get("/docs/other.js").await, (404, "ROUTE_NOT_FOUND"));
    let engine = server.engine.clone();
    engine.core().shutdown(std::time::Duration::from_secs(5)).await.unwrap();
    assert_error(server.get("//readyz").await, (503, "ENGINE_STOPPING"));
    assert_eq!(server.get("//healthz").await.0, 200);
    server.stop().await;
}
