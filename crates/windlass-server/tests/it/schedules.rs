//! Schedules: validation, concurrent updates, pause, paging.

use reqwest::Method;
use serde_json::{Value, json};
use windlass::kernel::Query;

use crate::harness::{Kind, Server, assert_error, on_both_stores, read, wait_until};

on_both_stores!(
    invalid_schedules_are_rejected,
    concurrent_updates_return_their_own_values,
    an_update_keeps_the_pause,
    schedules_are_listed_in_pages,
);

async fn put(server: &Server, name: &str, body: Value) -> (u16, Value) {
    read(server.request(Method::PUT, &format!("/schedules/{name}")).json(&body)).await
}

async fn invalid_schedules_are_rejected(kind: Kind) {
    let server = Server::start(kind).await;
    let labels: serde_json::Map<String, Value> =
        (0..33).map(|n| (format!("l-{n}"), json!("x"))).collect();
    let days_366 = 366_u64 * 24 * 60 * 60 * 1_000;
    for (change, expect) in [
        (json!({ "labels": labels }), (400, "INVALID_SIZE")),
        (json!({ "labels": { "a": "b\u{0}" } }), (400, "INVALID_TEXT")),
        (json!({ "labels": { "": "b" } }), (400, "INVALID_NAME")),
        (json!({ "labels": { "workflow.group": "b" } }), (400, "RESERVED_HEADER")),
        (json!({ "params": "x".repeat(1024 * 1024) }), (400, "INVALID_SIZE")),
        (json!({ "everyMs": days_366 }), (400, "INVALID_SCHEDULE")),
        (json!({ "everyMs": u64::MAX }), (400, "INVALID_SCHEDULE")),
    ] {
        let mut body = json!({ "workflow": "greet", "everyMs": 5_000 });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_error(put(&server, "other", body).await, expect);
    }
    assert_eq!(server.get_ok("/schedules").await["schedules"], json!([]));
    let body = json!({ "workflow": "greet", "everyMs": 5_000 });
    let named = put(&server, "a%20b", body).await;
    assert!(named.1["message"].as_str().unwrap().contains("schedule"), "{}", named.1);
    server.stop().await;
}

async fn concurrent_updates_return_their_own_values(kind: Kind) {
    let server = Server::start(kind).await;
    let setting = (0..8).map(|n| {
        let body = json!({ "workflow": "greet", "everyMs": 3_600_000 + n, "params": n });
        put(&server, "contended", body)
    });
    let set = futures::future::join_all(setting).await;
    for (n, (status, body)) in set.iter().enumerate() {
        assert_eq!((*status, &body["params"]), (200, &json!(n)), "{body}");
    }
    // Each update replaced the previous one, so there is one generation per update.
    let query = Query::Generations {
        namespace: server.engine.namespace().clone(),
        workflow: windlass::kernel::WorkflowName::from_stored("windlass.schedule"),
        id: windlass::kernel::RunId::from_stored("contended"),
        before: None,
        limit: 100,
    };
    let generations = server.engine.admin().store().list(query).await.unwrap().runs().unwrap();
    let mut inputs: Vec<Value> =
        generations.iter().map(|run| run.input.read::<Value>().unwrap()["input"].clone()).collect();
    inputs.sort_by_key(Value::as_u64);
    assert_eq!(inputs, (0..8).map(|n| json!(n)).collect::<Vec<_>>());
    server.stop().await;
}

async fn an_update_keeps_the_pause(kind: Kind) {
    let server = Server::start(kind).await;
    let body = |every_ms: u64, params: &str| json!({ "workflow": "greet", "everyMs": every_ms, "params": params });
    assert_eq!(put(&server, "held", body(3_600_000, "a")).await.0, 200);
    let paused = server.post_ok("/schedules/held/pause", json!({})).await;
    assert_eq!(paused["paused"], true);
    let (status, changed) = put(&server, "held", body(1_000, "b")).await;
    assert_eq!((status, &changed["paused"], &changed["params"]), (200, &json!(true), &json!("b")));
    // Another schedule with the same interval begins later and fires twice.
    assert_eq!(put(&server, "other", body(1_000, "c")).await.0, 200);
    let mut fired = std::collections::BTreeSet::new();
    wait_until("the other schedule fires twice", async || {
        fired
            .extend(server.get_ok("/schedules/other").await["lastRun"].as_str().map(str::to_owned));
        fired.len() == 2
    })
    .await;
    let held = server.get_ok("/schedules/held").await;
    assert_eq!((&held["paused"], &held["lastRun"]), (&json!(true), &Value::Null), "{held}");
    let resumed = server.post_ok("/schedules/held/resume", json!({})).await;
    assert_eq!(resumed["paused"], false);
    wait_until("the resumed schedule fires", async || {
        server.get_ok("/schedules/held").await["lastRun"].is_string()
    })
    .await;
    server.stop().await;
}

async fn schedules_are_listed_in_pages(kind: Kind) {
    let server = Server::start(kind).await;
    let mut names = Vec::new();
    for n in 0..7 {
        let name = format!("s-{n}");
        // A replaced schedule is listed once; a deleted one is not listed.
        for every in if n == 2 { vec![3_600_000, 3_600_001] } else { vec![3_600_000] } {
            let body = json!({ "workflow": "greet", "everyMs": every });
            assert_eq!(put(&server, &name, body).await.0, 200);
        }
        match n {
            4 => drop(read(server.request(Method::DELETE, "/schedules/s-4")).await),
            _ => names.push(name),
        }
    }
    let mut found = Vec::new();
    let mut path = "/schedules?pageSize=2".to_owned();
    loop {
        let page = server.get_ok(&path).await;
        let rows = page["schedules"].as_array().unwrap();
        assert!(rows.len() <= 2, "{page}");
        found.extend(rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()));
        assert_eq!(page["cursor"], page["nextCursor"]);
        assert_eq!(page["hasNextPage"], page["cursor"].is_string());
        match page["cursor"].as_str() {
            Some(next) => path = format!("/schedules?pageSize=2&cursor={next}"),
            None => break,
        }
    }
    found.sort();
    assert_eq!(found, names);
    assert_error(server.get("/schedules?cursor=x").await, (400, "INVALID_CURSOR"));
    assert_error(server.get("/schedules?pageSize=0").await, (400, "INVALID_PAGE_SIZE"));
    server.stop().await;
}
