//! Routes that operators and the dashboard use: search, dead letters in bulk, previews, limits, settings.

use reqwest::Method;
use serde_json::{Value, json};
use windlass::{AnyError, Ctx, RetryPolicy, TaskContext};
use windlass_server::auth::Scope;
use windlass_server::{Options, SettingView};

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, assert_error, on_both_stores, open, read, wait_until};

on_both_stores!(
    a_search_finds_what_has_a_name,
    dead_letters_are_requeued_in_bulk,
    schedules_are_previewed_and_run_now,
    limits_are_set_and_removed,
    operators_read_settings_and_namespaces,
    many_runs_are_restarted_and_cancelled,
);

async fn a_search_finds_what_has_a_name(kind: Kind) {
    let server = Server::start(kind).await;
    let run = server.run("greet", "find-me-1", json!("Ada"), "complete").await;
    server.run("charge", "find-me-2", json!(0), "errored").await;
    let schedule = json!({ "workflow": "greet", "everyMs": 3_600_000 });
    let put = server.request(Method::PUT, "/schedules/find-nightly").json(&schedule);
    assert_eq!(read(put).await.0, 200);
    let search = async |q: &str| {
        let (status, hits) = read(server.request(Method::GET, "/search").query(&[("q", q)])).await;
        assert_eq!(status, 200, "{q}: {hits}");
        hits
    };
    let ids = |hits: &Value| -> Vec<String> {
        let runs = hits["runs"].as_array().unwrap().clone();
        runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    let hits = search("find").await;
    assert_eq!(ids(&hits), ["find-me-2", "find-me-1"]);
    assert_eq!(hits["schedules"], json!(["find-nightly"]));
    assert_eq!(ids(&search("greet/find").await), ["find-me-1"]);
    assert_eq!(search("REE").await["workflows"], json!(["greet"]));
    let key = run["meta"]["runKey"].as_str().unwrap();
    assert_eq!(ids(&search(key).await), ["find-me-1"]);
    let ledger = server.get_ok("/workflows/greet/instances/find-me-1/ledger").await;
    let event = ledger["events"][1].clone();
    let hit = search(event["eventId"].as_str().unwrap()).await["event"].clone();
    assert_eq!((&hit["type"], &hit["id"]), (&event["type"], &json!("find-me-1")));
    let none = search("nothing-of-that-name").await;
    assert_eq!((&none["runs"], &none["workflows"]), (&json!([]), &json!([])));
    for q in ["", "  ", &"x".repeat(401)] {
        let answer = read(server.request(Method::GET, "/search").query(&[("q", q)])).await;
        assert_error(answer, (400, "INVALID_QUERY"));
    }
    server.stop().await;
}

async fn dead_letters_are_requeued_in_bulk(kind: Kind) {
    let server = Server::start(kind).await;
    let repaired = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_repaired = repaired.clone();
    let weigh = move |_: TaskContext, order: u32| {
        let works = is_repaired.load(std::sync::atomic::Ordering::SeqCst);
        async move {
            match works {
                true => Ok(order),
                false if order < 10 => Err(AnyError::msg(format!("order {order}: no scale"))),
                false => Err(AnyError::msg("no power")),
            }
        }
    };
    server.engine.activity("weigh", weigh).unwrap();
    let flow = async |ctx: Ctx, order: u32| -> windlass::Result<u32> {
        let weigh = ctx.activity::<u32, u32>("weigh", "weigh", &order);
        Ok(weigh.retry_policy(RetryPolicy::none()).await?)
    };
    server.engine.workflow("parcels", flow).unwrap();
    let mut first = Value::Null;
    for order in [1, 2, 33] {
        let id = format!("p-{order}");
        let run = server.run("parcels", &id, json!(order), "errored").await;
        if order == 1 {
            first = run["meta"]["runKey"].clone();
        }
    }
    let all = server.get_ok("/durable/dlq?group=error").await;
    let groups = json!([
        { "activity_type": "weigh", "error": "order #: no scale", "count": 2 },
        { "activity_type": "weigh", "error": "no power", "count": 1 },
    ]);
    assert_eq!(all["groups"], groups, "{all}");
    let one = server.get_ok(&format!("/durable/dlq?workflow_id={}", first.as_str().unwrap())).await;
    assert_eq!(one["entries"].as_array().unwrap().len(), 1);
    assert_eq!(one["entries"][0]["workflow_id"], first);
    assert!(one.get("groups").is_none(), "{one}");
    repaired.store(true, std::sync::atomic::Ordering::SeqCst);
    let requeue = async |filter: Value, dry_run: bool| {
        server
            .post_ok("/durable/dlq/requeue", json!({ "filter": filter, "dry_run": dry_run }))
            .await
    };
    let scale = json!({ "error": "order #: no scale", "activity_type": "weigh" });
    let counted = requeue(scale.clone(), true).await;
    assert_eq!((&counted["matched"], &counted["done"]), (&json!(2), &json!(0)));
    assert_eq!(requeue(json!({ "queue": "other" }), true).await["matched"], 0);
    let done = requeue(scale.clone(), false).await;
    assert_eq!(
        (&done["done"], &done["more"], &done["failed"]),
        (&json!(2), &json!(false), &json!([]))
    );
    for id in ["p-1", "p-2"] {
        server.wait_for_status("parcels", id, "complete").await;
    }
    assert_eq!(requeue(scale, false).await["matched"], 0, "they were requeued already");
    let errored = server.get_ok("/workflows/parcels/instances/p-33").await;
    assert_eq!(errored["details"]["status"], "errored");
    for (body, code) in [
        (json!({ "filter": {}, "limit": 0 }), "INVALID_SIZE"),
        (json!({ "filter": {}, "limit": 1001 }), "INVALID_SIZE"),
        (json!({ "filter": { "workflow_id": "x" } }), "INVALID_QUERY"),
        (json!({ "filter": { "eror": "x" } }), "INVALID_BODY"),
        (json!({}), "INVALID_BODY"),
    ] {
        assert_error(server.post("/durable/dlq/requeue", body).await, (400, code));
    }
    assert_error(server.get("/durable/dlq?group=size").await, (400, "INVALID_QUERY"));
    server.stop().await;
}

async fn schedules_are_previewed_and_run_now(kind: Kind) {
    let server = Server::start(kind).await;
    let preview = async |query: &[(&str, &str)]| {
        read(server.request(Method::GET, "/cron/preview").query(query)).await
    };
    let (status, next) =
        preview(&[("cron", "0 3 * * *"), ("timezone", "Europe/Berlin"), ("count", "2")]).await;
    assert_eq!((status, next["firings"].as_array().unwrap().len()), (200, 2), "{next}");
    assert!(next["firings"][0].as_str() < next["firings"][1].as_str(), "{next}");
    assert_eq!(preview(&[("everyMs", "60000")]).await.1["firings"].as_array().unwrap().len(), 5);
    for (query, code) in [
        (&[("cron", "soon")][..], "INVALID_SCHEDULE"),
        (&[("cron", "0 3 * * *"), ("timezone", "Mars")], "INVALID_SCHEDULE"),
        (&[("cron", "0 3 * * *"), ("everyMs", "60000")], "INVALID_SCHEDULE"),
        (&[("everyMs", "10")], "INVALID_SCHEDULE"),
        (&[], "INVALID_SCHEDULE"),
        (&[("everyMs", "60000"), ("count", "51")], "INVALID_SIZE"),
    ] {
        assert_error(preview(query).await, (400, code));
    }
    let schedule = json!({ "workflow": "greet", "everyMs": 3_600_000, "params": "Ada",
                           "labels": { "team": "a" } });
    assert_eq!(
        read(server.request(Method::PUT, "/schedules/preview").json(&schedule)).await.0,
        200
    );
    let before = server.get_ok("/schedules/preview").await;
    let started = server.post_ok("/schedules/preview/run", json!({})).await;
    assert_eq!(started["workflowName"], "greet");
    let id = started["id"].as_str().unwrap();
    let run = server.wait_for_status("greet", id, "complete").await;
    assert_eq!(run["details"]["output"], "Hello, Ada!");
    assert_eq!(run["meta"]["labels"]["team"], "a");
    assert_eq!(server.get_ok("/schedules/preview").await["nextAt"], before["nextAt"]);
    assert_error(
        server.post("/schedules/nobody/run", json!({})).await,
        (404, "SCHEDULE_NOT_FOUND"),
    );
    server.stop().await;
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let keys = KeyFactory::new(&store, &server);
    let manage = keys.key("default", &[Scope::Manage]).await;
    let both = keys.key("default", &[Scope::Manage, Scope::Create]).await;
    let put = server.request(Method::PUT, "/schedules/nightly").bearer_auth(&both).json(&schedule);
    assert_eq!(read(put).await.0, 200);
    let run = |key: &str| server.request(Method::POST, "/schedules/nightly/run").bearer_auth(key);
    assert_error(read(run(&manage)).await, (403, "FORBIDDEN"));
    assert_eq!(read(run(&both)).await.0, 200);
    server.stop().await;
}

async fn limits_are_set_and_removed(kind: Kind) {
    let server = Server::start(kind).await;
    let put = async |key: &str, body: Value| {
        read(server.request(Method::PUT, &format!("/limits/{key}")).json(&body)).await
    };
    let keys = async || {
        let queues = server.get_ok("/queues").await;
        let limits = queues["limits"].as_array().unwrap().clone();
        limits.iter().map(|limit| limit["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (status, limit) = put("workflow:greet", json!({ "slots": 3 })).await;
    assert_eq!((status, &limit["slots"], &limit["held"]), (200, &json!(3), &json!(0)), "{limit}");
    assert_eq!(keys().await, ["workflow:greet"]);
    for (body, code) in [
        (json!({ "slots": 0 }), "INVALID_SIZE"),
        (json!({ "slots": 1_000_001 }), "INVALID_SIZE"),
        (json!({}), "INVALID_BODY"),
        (json!({ "slots": -1 }), "INVALID_BODY"),
    ] {
        assert_error(put("workflow:greet", body).await, (400, code));
    }
    assert_eq!(put("workflow:greet", json!({ "slots": null })).await.0, 200);
    assert_eq!(keys().await, Vec::<String>::new());
    server.stop().await;
}

async fn operators_read_settings_and_namespaces(kind: Kind) {
    let shown =
        SettingView { name: "bind".into(), value: "127.0.0.1".into(), from: "default".into() };
    let server =
        Server::start_with(kind, Options { settings: vec![shown.clone()], ..open() }).await;
    server.run("greet", "one", json!("Ada"), "complete").await;
    let config = server.get_ok("/config").await;
    assert_eq!(config["settings"], json!([shown]));
    assert_eq!((&config["base"], &config["routeSets"]), (&json!("/api"), &json!([])));
    assert_eq!(server.get_ok("/whoami").await["routeSets"], json!([]));
    let found = server.get_ok("/namespaces").await;
    let own = json!([{ "name": "default", "counts": { "complete": 1 } }]);
    assert_eq!(found["namespaces"], own);
    server.stop().await;
}

async fn many_runs_are_restarted_and_cancelled(kind: Kind) {
    let server = Server::start(kind).await;
    for id in ["r-1", "r-2"] {
        server.run("greet", id, json!("Ada"), "complete").await;
        server.run("nap", id, json!({}), "waiting").await;
    }
    let bulk = async |action: &str, workflow: &str, dry_run: bool| {
        let body =
            json!({ "action": action, "filter": { "workflow": workflow }, "dryRun": dry_run });
        server.post_ok("/runs/bulk", body).await
    };
    assert_eq!(bulk("restart", "greet", true).await["matched"], 2);
    let done = bulk("restart", "greet", false).await;
    assert_eq!((&done["done"], &done["matched"]), (&json!(2), &json!(2)), "each once: {done}");
    for id in ["r-1", "r-2"] {
        let run = server.wait_for_status("greet", id, "complete").await;
        assert_eq!(run["meta"]["runNumber"], 1);
    }
    assert_eq!(bulk("cancel", "greet", true).await["matched"], 0);
    assert_eq!(bulk("cancel", "nap", false).await["done"], 2);
    for id in ["r-1", "r-2"] {
        let path = format!("/workflows/nap/instances/{id}");
        wait_until("the run has ended", async || {
            let run = server.get_ok(&path).await;
            ["terminated", "errored"].contains(&run["details"]["status"].as_str().unwrap())
        })
        .await;
    }
    server.stop().await;
}
