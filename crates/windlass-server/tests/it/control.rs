//! Pause, resume, terminate, restart, retry, events, and all of it for many runs.

use serde_json::{Value, json};

use crate::harness::{Kind, Server, on_both_stores, refused};

on_both_stores!(
    pausing_and_resuming,
    ending_and_beginning_anew,
    retrying,
    events_are_sent_once,
    acting_on_many,
    labels_with_colons_are_not_taken_for_others,
    a_bulk_retry_takes_each_run_once,
    a_count_goes_on_where_an_action_stops,
    an_id_names_one_event,
    a_blocked_run_can_be_paused,
    a_failure_that_the_parent_has_taken_is_not_retried,
    a_termination_follows_a_restart,
);

async fn pausing_and_resuming(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "c-1", json!({}), "waiting").await;
    let at = "/workflows/approve/instances/c-1";
    let paused = server.posted(&format!("{at}/pause"), json!({})).await;
    assert_eq!(paused["ok"], true);
    server.until("approve", "c-1", "paused").await;
    server.posted(&format!("{at}/pause"), json!({})).await;
    let sent =
        server.posted(&format!("{at}/events"), json!({ "type": "approval", "payload": 1 })).await;
    assert_eq!(sent["status"]["status"], "paused");
    server.posted(&format!("{at}/events"), json!({ "type": "approval", "payload": 2 })).await;
    // Without a body as well as with one.
    let resumed =
        server.request(reqwest::Method::POST, &format!("{at}/resume")).send().await.unwrap();
    assert_eq!(resumed.status(), 200);
    let run = server.until("approve", "c-1", "complete").await;
    assert_eq!(run["details"]["output"], json!([1, 2]));
    refused(server.post(&format!("{at}/pause"), json!({})).await, (409, "INSTANCE_TERMINAL"));
    assert_eq!(server.posted(&format!("{at}/resume"), json!({})).await["ok"], true);
    server.stop().await;
}

async fn ending_and_beginning_anew(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "t-1", json!({ "n": 1 }), "waiting").await;
    let at = "/workflows/approve/instances/t-1";
    let long = json!({ "reason": "x".repeat(1_001) });
    refused(server.post(&format!("{at}/terminate"), long).await, (400, "INVALID_TEXT"));
    let ended = server.posted(&format!("{at}/terminate"), json!({ "reason": "a mistake" })).await;
    assert_eq!(ended["details"]["status"], "terminated");
    assert_eq!(ended["details"]["error"]["message"], "a mistake");
    for action in ["terminate", "pause"] {
        let again = server.post(&format!("{at}/{action}"), json!({})).await;
        refused(again, (409, "INSTANCE_TERMINAL"));
    }
    let event = json!({ "type": "approval" });
    refused(server.post(&format!("{at}/events"), event).await, (409, "INSTANCE_TERMINAL"));
    refused(server.post(&format!("{at}/retry"), json!({})).await, (409, "INSTANCE_NOT_ERRORED"));
    let anew = server.posted(&format!("{at}/restart"), json!({})).await;
    assert!(["active", "waiting"].contains(&anew["details"]["status"].as_str().unwrap()), "{anew}");
    let run = server.until("approve", "t-1", "waiting").await;
    assert_eq!(
        (&run["meta"]["runNumber"], &run["meta"]["params"]),
        (&json!(1), &json!({ "n": 1 }))
    );
    for action in ["pause", "resume", "terminate", "restart", "retry"] {
        let nobody =
            server.post(&format!("/workflows/approve/instances/x/{action}"), json!({})).await;
        refused(nobody, (404, "INSTANCE_NOT_FOUND"));
    }
    server.stop().await;
}

async fn retrying(kind: Kind) {
    let server = Server::start(kind).await;
    let run = server.run("charge", "r-1", json!(0), "errored").await;
    assert!(run["details"]["error"]["message"].as_str().unwrap().contains("declined"), "{run}");
    let at = "/workflows/charge/instances/r-1";
    assert_eq!(server.posted(&format!("{at}/retry"), json!({})).await["ok"], true);
    let run = server.until("charge", "r-1", "errored").await;
    assert_eq!(run["meta"]["runNumber"], 1);
    let history = server.ok(&format!("{at}/history")).await;
    assert_eq!(history["steps"][0]["result"], "12.50", "what was done is carried along");
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
        refused(server.post(&events, body).await, expect);
    }
    for _ in 0..3 {
        let body = json!({ "type": "approval", "payload": "a", "id": "one" });
        server.posted(&events, body).await;
    }
    server.posted(&events, json!({ "type": "approval" })).await;
    let run = server.until("approve", "e-1", "complete").await;
    assert_eq!(run["details"]["output"], json!(["a", null]));
    let nobody = server.post("/workflows/approve/instances/x/events", json!({ "type": "a" })).await;
    refused(nobody, (404, "INSTANCE_NOT_FOUND"));
    server.stop().await;
}

async fn acting_on_many(kind: Kind) {
    let server = Server::start(kind).await;
    let batch: Vec<Value> = (0..12)
        .map(|n| json!({ "id": format!("m-{n}"), "labels": { "half": (n % 2).to_string() } }))
        .collect();
    server.posted("/workflows/nap/instances/batch", json!({ "instances": batch })).await;
    for n in 0..12 {
        server.until("nap", &format!("m-{n}"), "waiting").await;
    }
    server.run("greet", "done", json!("x"), "complete").await;
    let bulk = async |body: Value| server.posted("/runs/bulk", body).await;
    let filter = json!({ "labels": { "half": "1" } });
    let counted = bulk(json!({ "action": "terminate", "filter": filter, "dryRun": true })).await;
    assert_eq!((&counted["matched"], &counted["done"]), (&json!(6), &json!(0)));
    assert_eq!(server.ok("/runs?status=terminated").await["runs"], json!([]));
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
    server.until("nap", "m-0", "paused").await;
    server.until("nap", "m-10", "paused").await;
    let all = bulk(json!({ "action": "terminate", "filter": {} })).await;
    assert_eq!(all["done"], 6, "what has ended is left alone: {all}");
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
        refused(server.post("/runs/bulk", body).await, (400, code));
    }
    server.stop().await;
}

async fn labels_with_colons_are_not_taken_for_others(kind: Kind) {
    let server = Server::start(kind).await;
    for (id, key, value) in [("outer", "a", "b:c"), ("inner", "a:b", "c")] {
        let body = json!({ "id": id, "params": {}, "labels": { key: value } });
        server.posted("/workflows/nap/instances", body).await;
    }
    let body = json!({ "action": "terminate", "filter": { "labels": { "a:b": "c" } } });
    assert_eq!(server.posted("/runs/bulk", body).await["done"], 1);
    server.until("nap", "inner", "terminated").await;
    let outer = server.until("nap", "outer", "waiting").await;
    assert_eq!(outer["meta"]["labels"], json!({ "a": "b:c" }));
    server.stop().await;
}

async fn a_bulk_retry_takes_each_run_once(kind: Kind) {
    let server = Server::start(kind).await;
    for n in 0..3 {
        server.run("charge", &format!("r-{n}"), json!(0), "errored").await;
    }
    let body = json!({ "action": "retry", "filter": {} });
    let retried = server.posted("/runs/bulk", body).await;
    assert_eq!((&retried["matched"], &retried["done"]), (&json!(3), &json!(3)), "{retried}");
    assert_eq!(retried["more"], false);
    for n in 0..3 {
        let run = server.until("charge", &format!("r-{n}"), "errored").await;
        assert_eq!(run["meta"]["runNumber"], 1, "{run}");
    }
    server.stop().await;
}

async fn a_count_goes_on_where_an_action_stops(kind: Kind) {
    let server = Server::start(kind).await;
    for page in 0..11 {
        let batch: Vec<Value> = (0..100)
            .map(|n| json!({ "id": format!("c-{page}-{n}"), "delayMs": 3_600_000 }))
            .collect();
        server.posted("/workflows/nap/instances/batch", json!({ "instances": batch })).await;
    }
    let bulk = async |body: Value| server.posted("/runs/bulk", body).await;
    let all = bulk(json!({ "action": "terminate", "filter": {}, "dryRun": true })).await;
    assert_eq!((&all["matched"], &all["more"]), (&json!(1_100), &json!(false)), "{all}");
    let body = json!({ "action": "terminate", "filter": {}, "dryRun": true, "limit": 7 });
    let some = bulk(body).await;
    assert_eq!((&some["matched"], &some["more"]), (&json!(7), &json!(true)), "{some}");
    server.stop().await;
}

async fn an_id_names_one_event(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "i-1", json!({}), "waiting").await;
    let events = "/workflows/approve/instances/i-1/events";
    let first = json!({ "type": "approval", "payload": { "n": 1 }, "id": "one" });
    server.posted(events, first.clone()).await;
    // Before it is consumed, after it is, and after the run has ended.
    for round in 0..3 {
        server.posted(events, first.clone()).await;
        for other in [
            json!({ "type": "approval", "payload": { "n": 2 }, "id": "one" }),
            json!({ "type": "approval", "id": "one" }),
            json!({ "type": "rejection", "payload": { "n": 1 }, "id": "one" }),
        ] {
            refused(server.post(events, other).await, (409, "EVENT_ID_ALREADY_EXISTS"));
        }
        if round == 1 {
            server.posted(events, json!({ "type": "approval", "payload": 2, "id": "two" })).await;
            server.until("approve", "i-1", "complete").await;
        }
    }
    let run = server.ok("/workflows/approve/instances/i-1").await;
    assert_eq!(run["details"]["output"], json!([{ "n": 1 }, 2]));
    server.stop().await;
}

async fn a_blocked_run_can_be_paused(kind: Kind) {
    let server = Server::start(kind).await;
    // Two runs whose input the code does not read, and one that is fine behind them.
    for id in ["b-1", "b-2"] {
        server.run("charge", id, json!("no number"), "waiting").await;
    }
    server.run("charge", "b-3", json!(5), "waiting").await;
    let blocked = server.ok("/workflows/charge/instances/b-1/why").await;
    assert_eq!(blocked["reasons"][0]["code"], "blocked", "{blocked}");
    let at = "/workflows/charge/instances/b-1";
    let paused = server.posted(&format!("{at}/pause"), json!({})).await;
    assert_eq!(paused["details"]["status"], "paused", "{paused}");
    let filter = json!({ "workflow": "charge" });
    let mut left = 5;
    loop {
        let body = json!({ "action": "pause", "filter": filter, "limit": 1 });
        let some = server.posted("/runs/bulk", body).await;
        if some["matched"] == 0 {
            break;
        }
        left -= 1;
        assert!(left > 0, "it does not get on: {some}");
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    for id in ["b-1", "b-2", "b-3"] {
        server.until("charge", id, "paused").await;
    }
    let resumed = server.posted(&format!("{at}/resume"), json!({})).await;
    assert_ne!(resumed["details"]["status"], "paused");
    server.until("charge", "b-1", "waiting").await;
    let unserved = server.engine.remote_workflow::<Value, Value>("nobody").unwrap();
    unserved.start(json!(1)).id("u-1").await.unwrap();
    let paused = server.posted("/workflows/nobody/instances/u-1/pause", json!({})).await;
    assert_eq!(paused["details"]["status"], "paused", "{paused}");
    let ended = server.posted(&format!("{at}/terminate"), json!({})).await;
    assert_eq!(ended["details"]["status"], "terminated");
    server.stop().await;
}

async fn a_failure_that_the_parent_has_taken_is_not_retried(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("payer", "p-1", json!({}), "errored").await;
    let children = server.ok("/workflows/charge/instances").await;
    let child = children["instances"][0]["id"].as_str().unwrap().to_owned();
    let at = format!("/workflows/charge/instances/{child}");
    refused(server.post(&format!("{at}/retry"), json!({})).await, (409, "FAILURE_CONSUMED"));
    // One that stays as it is does not keep a bulk request from the next.
    server.run("charge", "free", json!(0), "errored").await;
    let body = json!({ "action": "retry", "filter": { "workflow": "charge" }, "limit": 1 });
    let bulk = server.posted("/runs/bulk", body).await;
    let told = (&bulk["done"], &bulk["failed"][0]["code"]);
    assert_eq!(told, (&json!(1), &json!("FAILURE_CONSUMED")), "{bulk}");
    // The parent's own retry begins the child anew.
    server.posted("/workflows/payer/instances/p-1/retry", json!({})).await;
    let parent = server.until("payer", "p-1", "errored").await;
    assert_eq!(parent["meta"]["runNumber"], 1);
    server.stop().await;
}

async fn a_termination_follows_a_restart(kind: Kind) {
    let server = Server::start(kind).await;
    let before = server.run("nap", "r-1", json!({}), "waiting").await;
    let old: windlass::kernel::RunKey = before["meta"]["runKey"].as_str().unwrap().parse().unwrap();
    server.posted("/workflows/nap/instances/r-1/restart", json!({})).await;
    // As a request does that had looked the run up before it was restarted.
    server.engine.terminate(old, Some("over"), None).await.unwrap();
    let after = server.until("nap", "r-1", "terminated").await;
    assert_eq!(after["meta"]["runNumber"], 1);
    let again = server.engine.terminate(old, None, None).await.unwrap_err();
    assert_eq!(again.code(), "RUN_TERMINAL");
    server.stop().await;
}
