//! Pause, resume, terminate, restart, retry, events, and bulk actions.

use serde_json::{Value, json};

use crate::harness::{Kind, Server, assert_error, on_both_stores, wait_until};

on_both_stores!(
    pausing_and_resuming,
    terminate_and_restart,
    retrying,
    events_are_sent_once,
    acting_on_many,
    labels_with_colons_are_distinct,
    a_bulk_retry_retries_each_run_once,
    a_dry_run_counts_beyond_the_limit,
    an_event_id_identifies_one_event,
    a_blocked_run_can_be_paused,
    a_failure_that_the_parent_handled_is_not_retried,
    a_termination_follows_a_restart,
);

async fn pausing_and_resuming(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "c-1", json!({}), "waiting").await;
    let at = "/workflows/approve/instances/c-1";
    let paused = server.post_ok(&format!("{at}/pause"), json!({})).await;
    assert_eq!(paused["ok"], true);
    server.wait_for_status("approve", "c-1", "paused").await;
    server.post_ok(&format!("{at}/pause"), json!({})).await;
    let sent =
        server.post_ok(&format!("{at}/events"), json!({ "type": "approval", "payload": 1 })).await;
    assert_eq!(sent["status"]["status"], "paused");
    server.post_ok(&format!("{at}/events"), json!({ "type": "approval", "payload": 2 })).await;
    // The body is optional.
    let resumed =
        server.request(reqwest::Method::POST, &format!("{at}/resume")).send().await.unwrap();
    assert_eq!(resumed.status(), 200);
    let run = server.wait_for_status("approve", "c-1", "complete").await;
    assert_eq!(run["details"]["output"], json!([1, 2]));
    assert_error(server.post(&format!("{at}/pause"), json!({})).await, (409, "INSTANCE_TERMINAL"));
    assert_eq!(server.post_ok(&format!("{at}/resume"), json!({})).await["ok"], true);
    server.stop().await;
}

async fn terminate_and_restart(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "t-1", json!({ "n": 1 }), "waiting").await;
    let at = "/workflows/approve/instances/t-1";
    let long = json!({ "reason": "x".repeat(1_001) });
    assert_error(server.post(&format!("{at}/terminate"), long).await, (400, "INVALID_TEXT"));
    let ended = server.post_ok(&format!("{at}/terminate"), json!({ "reason": "a mistake" })).await;
    assert_eq!(ended["details"]["status"], "terminated");
    assert_eq!(ended["details"]["error"]["message"], "a mistake");
    for action in ["terminate", "pause"] {
        let again = server.post(&format!("{at}/{action}"), json!({})).await;
        assert_error(again, (409, "INSTANCE_TERMINAL"));
    }
    let event = json!({ "type": "approval" });
    assert_error(server.post(&format!("{at}/events"), event).await, (409, "INSTANCE_TERMINAL"));
    assert_error(
        server.post(&format!("{at}/retry"), json!({})).await,
        (409, "INSTANCE_NOT_ERRORED"),
    );
    let anew = server.post_ok(&format!("{at}/restart"), json!({})).await;
    assert!(["active", "waiting"].contains(&anew["details"]["status"].as_str().unwrap()), "{anew}");
    let run = server.wait_for_status("approve", "t-1", "waiting").await;
    assert_eq!(
        (&run["meta"]["runNumber"], &run["meta"]["params"]),
        (&json!(1), &json!({ "n": 1 }))
    );
    for action in ["pause", "resume", "terminate", "restart", "retry"] {
        let nobody =
            server.post(&format!("/workflows/approve/instances/x/{action}"), json!({})).await;
        assert_error(nobody, (404, "INSTANCE_NOT_FOUND"));
    }
    server.stop().await;
}

async fn retrying(kind: Kind) {
    let server = Server::start(kind).await;
    let run = server.run("charge", "r-1", json!(0), "errored").await;
    assert!(run["details"]["error"]["message"].as_str().unwrap().contains("declined"), "{run}");
    let at = "/workflows/charge/instances/r-1";
    assert_eq!(server.post_ok(&format!("{at}/retry"), json!({})).await["ok"], true);
    let run = server.wait_for_status("charge", "r-1", "errored").await;
    assert_eq!(run["meta"]["runNumber"], 1);
    let history = server.get_ok(&format!("{at}/history")).await;
    assert_eq!(history["steps"][0]["result"], "12.50", "completed steps are kept");
    server.stop().await;
}

async fn events_are_sent_once(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "e-1", json!({}), "waiting").await;
    let at = "/workflows/approve/instances/e-1";
    let events = format!("{at}/events");
    for (body, expect) in [
        (json!({}), (400, "INVALID_BODY")),
        (json!({ "type": "" }), (400, "INVALID_EVENT_TYPE")),
        (json!({ "type": "a b" }), (400, "INVALID_EVENT_TYPE")),
        (json!({ "type": "a.b" }), (400, "INVALID_EVENT_TYPE")),
        (json!({ "type": "a:b" }), (400, "INVALID_EVENT_TYPE")),
        (json!({ "type": "-a" }), (400, "INVALID_EVENT_TYPE")),
        (json!({ "type": "x".repeat(101) }), (400, "INVALID_EVENT_TYPE")),
        (json!({ "type": "approval", "id": "" }), (400, "INVALID_EVENT_ID")),
        (json!({ "type": "approval", "payload": "x".repeat(1024 * 1024) }), (400, "INVALID_SIZE")),
    ] {
        assert_error(server.post(&events, body).await, expect);
    }
    for _ in 0..3 {
        let body = json!({ "type": "approval", "payload": "a", "id": "one" });
        server.post_ok(&events, body).await;
    }
    server.post_ok(&events, json!({ "type": "approval" })).await;
    let run = server.wait_for_status("approve", "e-1", "complete").await;
    assert_eq!(run["details"]["output"], json!(["a", null]));
    let nobody = server.post("/workflows/approve/instances/x/events", json!({ "type": "a" })).await;
    assert_error(nobody, (404, "INSTANCE_NOT_FOUND"));
    server.stop().await;
}

async fn acting_on_many(kind: Kind) {
    let server = Server::start(kind).await;
    let batch: Vec<Value> = (0..12)
        .map(|n| json!({ "id": format!("m-{n}"), "labels": { "half": (n % 2).to_string() } }))
        .collect();
    server.post_ok("/workflows/nap/instances/batch", json!({ "instances": batch })).await;
    for n in 0..12 {
        server.wait_for_status("nap", &format!("m-{n}"), "waiting").await;
    }
    server.run("greet", "done", json!("x"), "complete").await;
    let bulk = async |body: Value| server.post_ok("/runs/bulk", body).await;
    let filter = json!({ "labels": { "half": "1" } });
    let counted = bulk(json!({ "action": "terminate", "filter": filter, "dryRun": true })).await;
    assert_eq!((&counted["matched"], &counted["done"]), (&json!(6), &json!(0)));
    assert_eq!(server.get_ok("/runs?status=terminated").await["runs"], json!([]));
    let some = bulk(json!({ "action": "terminate", "filter": filter, "limit": 4 })).await;
    assert_eq!(
        (&some["matched"], &some["done"], &some["more"]),
        (&json!(4), &json!(4), &json!(true))
    );
    let rest = bulk(json!({ "action": "terminate", "filter": filter })).await;
    assert_eq!(
        (&rest["done"], &rest["more"], &rest["failed"]),
        (&json!(2), &json!(false), &json!([]))
    );
    let paused = bulk(json!({ "action": "pause", "filter": { "workflow": "nap" } })).await;
    assert_eq!(paused["done"], 6);
    server.wait_for_status("nap", "m-0", "paused").await;
    server.wait_for_status("nap", "m-10", "paused").await;
    let all = bulk(json!({ "action": "terminate", "filter": {} })).await;
    assert_eq!(all["done"], 6, "ended runs do not change: {all}");
    server.run("charge", "bad", json!(0), "errored").await;
    let retried = bulk(json!({ "action": "retry", "filter": { "status": "errored" } })).await;
    assert_eq!(retried["done"], 1);
    for (body, code) in [
        (json!({ "action": "explode", "filter": {} }), "INVALID_BODY"),
        (json!({ "action": "pause", "filter": {}, "dryrun": true }), "INVALID_BODY"),
        (json!({ "action": "pause", "filter": { "status": "gone" } }), "INVALID_STATUS"),
        (json!({ "action": "pause", "filter": {}, "limit": 0 }), "INVALID_SIZE"),
        (json!({ "action": "pause" }), "INVALID_BODY"),
    ] {
        assert_error(server.post("/runs/bulk", body).await, (400, code));
    }
    server.stop().await;
}

async fn labels_with_colons_are_distinct(kind: Kind) {
    let server = Server::start(kind).await;
    for (id, key, value) in [("outer", "a", "b:c"), ("inner", "a:b", "c")] {
        let body = json!({ "id": id, "params": {}, "labels": { key: value } });
        server.post_ok("/workflows/nap/instances", body).await;
    }
    let body = json!({ "action": "terminate", "filter": { "labels": { "a:b": "c" } } });
    assert_eq!(server.post_ok("/runs/bulk", body).await["done"], 1);
    server.wait_for_status("nap", "inner", "terminated").await;
    let outer = server.wait_for_status("nap", "outer", "waiting").await;
    assert_eq!(outer["meta"]["labels"], json!({ "a": "b:c" }));
    server.stop().await;
}

async fn a_bulk_retry_retries_each_run_once(kind: Kind) {
    let server = Server::start(kind).await;
    for n in 0..3 {
        server.run("charge", &format!("r-{n}"), json!(0), "errored").await;
    }
    let body = json!({ "action": "retry", "filter": {} });
    let retried = server.post_ok("/runs/bulk", body).await;
    assert_eq!((&retried["matched"], &retried["done"]), (&json!(3), &json!(3)), "{retried}");
    assert_eq!(retried["more"], false);
    for n in 0..3 {
        let run = server.wait_for_status("charge", &format!("r-{n}"), "errored").await;
        assert_eq!(run["meta"]["runNumber"], 1, "{run}");
    }
    server.stop().await;
}

async fn a_dry_run_counts_beyond_the_limit(kind: Kind) {
    let server = Server::start(kind).await;
    for page in 0..11 {
        let batch: Vec<Value> = (0..100)
            .map(|n| json!({ "id": format!("c-{page}-{n}"), "delayMs": 3_600_000 }))
            .collect();
        server.post_ok("/workflows/nap/instances/batch", json!({ "instances": batch })).await;
    }
    let bulk = async |body: Value| server.post_ok("/runs/bulk", body).await;
    let all = bulk(json!({ "action": "terminate", "filter": {}, "dryRun": true })).await;
    assert_eq!((&all["matched"], &all["more"]), (&json!(1_100), &json!(false)), "{all}");
    let body = json!({ "action": "terminate", "filter": {}, "dryRun": true, "limit": 7 });
    let some = bulk(body).await;
    assert_eq!((&some["matched"], &some["more"]), (&json!(7), &json!(true)), "{some}");
    server.stop().await;
}

async fn an_event_id_identifies_one_event(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "i-1", json!({}), "waiting").await;
    let events = "/workflows/approve/instances/i-1/events";
    let first = json!({ "type": "approval", "payload": { "n": 1 }, "id": "one" });
    server.post_ok(events, first.clone()).await;
    // Before the event is consumed, after it is consumed, and after the run has ended.
    for round in 0..3 {
        server.post_ok(events, first.clone()).await;
        for other in [
            json!({ "type": "approval", "payload": { "n": 2 }, "id": "one" }),
            json!({ "type": "approval", "id": "one" }),
            json!({ "type": "rejection", "payload": { "n": 1 }, "id": "one" }),
        ] {
            assert_error(server.post(events, other).await, (409, "EVENT_ID_ALREADY_EXISTS"));
        }
        if round == 1 {
            server.post_ok(events, json!({ "type": "approval", "payload": 2, "id": "two" })).await;
            server.wait_for_status("approve", "i-1", "complete").await;
        }
    }
    let run = server.get_ok("/workflows/approve/instances/i-1").await;
    assert_eq!(run["details"]["output"], json!([{ "n": 1 }, 2]));
    server.stop().await;
}

async fn a_blocked_run_can_be_paused(kind: Kind) {
    let server = Server::start(kind).await;
    // Two runs with an input that the code cannot parse, followed by a valid one.
    for id in ["b-1", "b-2"] {
        server.run("charge", id, json!("no number"), "waiting").await;
    }
    server.run("charge", "b-3", json!(5), "waiting").await;
    let blocked = server.get_ok("/workflows/charge/instances/b-1/why").await;
    assert_eq!(blocked["reasons"][0]["code"], "blocked", "{blocked}");
    let at = "/workflows/charge/instances/b-1";
    let paused = server.post_ok(&format!("{at}/pause"), json!({})).await;
    assert_eq!(paused["details"]["status"], "paused", "{paused}");
    let filter = json!({ "workflow": "charge" });
    wait_until("no run is left to pause", async || {
        let body = json!({ "action": "pause", "filter": filter, "limit": 1 });
        server.post_ok("/runs/bulk", body).await["matched"] == 0
    })
    .await;
    for id in ["b-1", "b-2", "b-3"] {
        server.wait_for_status("charge", id, "paused").await;
    }
    let resumed = server.post_ok(&format!("{at}/resume"), json!({})).await;
    assert_ne!(resumed["details"]["status"], "paused");
    server.wait_for_status("charge", "b-1", "waiting").await;
    let unserved = server.engine.remote_workflow::<Value, Value>("nobody").unwrap();
    unserved.start(json!(1)).id("u-1").await.unwrap();
    let paused = server.post_ok("/workflows/nobody/instances/u-1/pause", json!({})).await;
    assert_eq!(paused["details"]["status"], "paused", "{paused}");
    let ended = server.post_ok(&format!("{at}/terminate"), json!({})).await;
    assert_eq!(ended["details"]["status"], "terminated");
    server.stop().await;
}

async fn a_failure_that_the_parent_handled_is_not_retried(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("payer", "p-1", json!({}), "errored").await;
    let children = server.get_ok("/workflows/charge/instances").await;
    let child = children["instances"][0]["id"].as_str().unwrap().to_owned();
    let at = format!("/workflows/charge/instances/{child}");
    assert_error(server.post(&format!("{at}/retry"), json!({})).await, (409, "FAILURE_CONSUMED"));
    // A permanent failure does not stop a bulk request from reaching the next run.
    server.run("charge", "free", json!(0), "errored").await;
    let body = json!({ "action": "retry", "filter": { "workflow": "charge" }, "limit": 1 });
    let bulk = server.post_ok("/runs/bulk", body).await;
    let result = (&bulk["done"], &bulk["failed"][0]["code"]);
    assert_eq!(result, (&json!(1), &json!("FAILURE_CONSUMED")), "{bulk}");
    // A retry of the parent starts the child again.
    server.post_ok("/workflows/payer/instances/p-1/retry", json!({})).await;
    let parent = server.wait_for_status("payer", "p-1", "errored").await;
    assert_eq!(parent["meta"]["runNumber"], 1);
    server.stop().await;
}

async fn a_termination_follows_a_restart(kind: Kind) {
    let server = Server::start(kind).await;
    let before = server.run("nap", "r-1", json!({}), "waiting").await;
    let old: windlass::kernel::RunKey = before["meta"]["runKey"].as_str().unwrap().parse().unwrap();
    server.post_ok("/workflows/nap/instances/r-1/restart", json!({})).await;
    // Like a request that looked up the run before the restart.
    server.engine.core().terminate(old, Some("over"), None).await.unwrap();
    let after = server.wait_for_status("nap", "r-1", "terminated").await;
    assert_eq!(after["meta"]["runNumber"], 1);
    let again = server.engine.core().terminate(old, None, None).await.unwrap_err();
    assert_eq!(again.code(), "RUN_TERMINAL");
    server.stop().await;
}
