//! The routes that the dashboard reads: timeline, step, state, tree, verify, filters, attention, series,
//! and the stream of hints.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use windlass::admin::transfer::RunExport;
use windlass::admin::{Options as EngineOptions, Rate};
use windlass::kernel::{Limits, MemoryStore, Timestamp};
use windlass::{AnyError, Ctx, Store};
use windlass_server::ServeOptions;

use crate::harness::{Kind, Server, assert_error, on_both_stores, open, wait_until, with_timeout};
use crate::live::{kinds, read_events};

on_both_stores!(
    a_timeline_has_attempts_and_no_bodies,
    a_timeline_is_paged,
    a_step_is_found_by_key,
    a_tree_has_the_runs_of_all_levels,
    a_run_is_verified,
    a_run_is_exported,
    an_event_is_found_by_id,
    runs_are_filtered,
    attention_lists_failed_runs,
    attention_lists_blocked_runs,
    series_count_runs,
    rates_are_listed,
    a_stream_reports_a_followed_run,
);

async fn a_timeline_has_attempts_and_no_bodies(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("charge", "t-1", json!(0), "errored").await;
    let at = "/workflows/charge/instances/t-1";
    let timeline = server.get_ok(&format!("{at}/timeline")).await;
    let rows = timeline["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{timeline}");
    assert_eq!((&rows[0]["name"], &rows[0]["state"]), (&json!("quote"), &json!("completed")));
    assert_eq!(rows[0]["role"], "work");
    assert_eq!(rows[1]["tries"][0]["attempt"], 1);
    assert_eq!(rows[1]["tries"][0]["error"], rows[1]["error"]);
    assert!(rows[1]["error"].is_string(), "{timeline}");
    for row in rows {
        let attempt = &row["tries"][0];
        assert!(attempt["beganAt"].as_str() <= attempt["endedAt"].as_str(), "{row}");
        assert!(attempt["beganAt"].is_string(), "{row}");
        assert!(row.get("result").is_none() && row.get("input").is_none(), "{row}");
    }
    server.stop().await;
}

async fn a_timeline_is_paged(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("charge", "t-2", json!(0), "errored").await;
    let at = "/workflows/charge/instances/t-2/timeline?pageSize=1";
    let first = server.get_ok(at).await;
    assert_eq!(
        (first["rows"][0]["name"].as_str(), first["hasNextPage"].as_bool()),
        (Some("quote"), Some(true))
    );
    let cursor = first["nextCursor"].as_str().unwrap();
    let second = server.get_ok(&format!("{at}&cursor={cursor}")).await;
    assert_eq!(
        (second["rows"][0]["name"].as_str(), second["hasNextPage"].as_bool()),
        (Some("pay"), Some(false))
    );
    assert_error(
        server.get("/workflows/charge/instances/t-2/timeline?pageSize=1001").await,
        (400, "INVALID_PAGE_SIZE"),
    );
    server.stop().await;
}

async fn a_step_is_found_by_key(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("charge", "t-3", json!(0), "errored").await;
    let at = "/workflows/charge/instances/t-3";
    let timeline = server.get_ok(&format!("{at}/timeline")).await;
    let row = &timeline["rows"][0];
    let (key, position) = (row["stepKey"].as_str().unwrap(), row["position"].as_u64().unwrap());
    let key = key.replace('#', "%23").replace('/', "%2F");
    for hint in [String::new(), format!("?position={position}")] {
        let step = server.get_ok(&format!("{at}/steps/{key}{hint}")).await;
        assert_eq!((&step["result"], &step["name"]), (&json!("12.50"), &json!("quote")));
    }
    let state = server.get_ok(&format!("{at}/state")).await;
    assert_eq!((&state["state"], state["failure"]["name"].is_string()), (&Value::Null, true));
    assert_error(server.get(&format!("{at}/steps/none")).await, (404, "STEP_NOT_FOUND"));
    let nobody = "/workflows/charge/instances/nobody/steps/none";
    assert_error(server.get(nobody).await, (404, "INSTANCE_NOT_FOUND"));
    server.stop().await;
}

async fn a_tree_has_the_runs_of_all_levels(kind: Kind) {
    let server = Server::start(kind).await;
    let family = server.run("family", "t-4", json!({}), "waiting").await;
    let key = family["meta"]["runKey"].clone();
    let tree = server.get_ok("/workflows/family/instances/t-4/tree").await;
    let runs = tree["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{tree}");
    assert_eq!((&tree["root"], &runs[0]["runKey"], &runs[1]["parent"]), (&key, &key, &key));
    let timeline = server.get_ok("/workflows/family/instances/t-4/timeline").await;
    assert_eq!(timeline["rows"][0]["child"]["id"], runs[1]["id"]);
    let first = server.get_ok("/workflows/family/instances/t-4/tree?pageSize=1").await;
    let cursor = first["nextCursor"].as_str().unwrap();
    let rest =
        server.get_ok(&format!("/workflows/family/instances/t-4/tree?cursor={cursor}")).await;
    assert_eq!(rest["runs"][0]["workflowName"], "nap");
    server.stop().await;
}

async fn a_run_is_verified(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "t-5", json!("Ada"), "complete").await;
    let at = "/workflows/greet/instances/t-5";
    let verified = server.get_ok(&format!("{at}/verify")).await;
    let ledger = server.get_ok(&format!("{at}/ledger?pageSize=100")).await;
    let events = ledger["events"].as_array().unwrap();
    assert_eq!((&verified["ok"], &verified["events"]), (&json!(true), &json!(events.len())));
    assert_eq!(verified["head"], events.last().unwrap()["hash"]);
    server.stop().await;
}

async fn a_run_is_exported(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "x-1", json!("Ada"), "complete").await;
    let path = "/workflows/greet/instances/x-1/export";
    let answer = server.request(Method::GET, path).send().await.unwrap();
    let kept = answer.headers()["content-disposition"].to_str().unwrap().to_owned();
    assert!(kept.starts_with("attachment; filename=\"") && kept.ends_with(".jsonl\""), "{kept}");
    let text = answer.text().await.unwrap();
    // `windlass import` reads the line.
    let export = RunExport::parse(text.trim_end()).unwrap();
    let run = server.get_ok("/workflows/greet/instances/x-1").await;
    assert_eq!(run["meta"]["runKey"], json!(export.run_key()));
    assert!(export.is_ended() && text.contains("workflow.completed"), "{text}");
    assert_error(server.get(&format!("{path}?runNumber=7")).await, (404, "INSTANCE_NOT_FOUND"));
    server.stop().await;
}

async fn an_event_is_found_by_id(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "t-6", json!("Ada"), "complete").await;
    let ledger = server.get_ok("/workflows/greet/instances/t-6/ledger").await;
    let last = ledger["events"].as_array().unwrap().last().unwrap();
    let id = last["eventId"].as_str().unwrap();
    let found = server.get_ok(&format!("/events/{id}")).await;
    assert_eq!((&found["event"], &found["id"]), (last, &json!("t-6")));
    let nobody = "/events/00000000-0000-7000-8000-000000000000";
    assert_error(server.get(nobody).await, (404, "EVENT_NOT_FOUND"));
    assert_error(server.get("/events/no-id").await, (404, "EVENT_NOT_FOUND"));
    server.stop().await;
}

async fn runs_are_filtered(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "f-1", json!("Ada"), "complete").await;
    server.run("charge", "f-2", json!(0), "errored").await;
    let family = server.run("family", "f-3", json!({}), "waiting").await;
    let key = family["meta"]["runKey"].as_str().unwrap().to_owned();
    let error = server.get_ok("/runs?status=errored").await["runs"][0]["details"]["error"].clone();
    let error = error["name"].as_str().unwrap().to_owned();
    for (query, expect) in [
        ("status=complete&status=errored".to_owned(), &["f-2", "f-1"][..]),
        ("status=errored".into(), &["f-2"]),
        ("idPrefix=f-&rootsOnly=true".into(), &["f-3", "f-2", "f-1"]),
        ("idPrefix=f-1".into(), &["f-1"]),
        ("model=nothing".into(), &[]),
        (format!("errorCode={error}"), &["f-2"]),
        ("errorCode=Other".into(), &[]),
        (format!("root={key}&rootsOnly=true"), &["f-3"]),
    ] {
        let page = server.get_ok(&format!("/runs?{query}")).await;
        let ids: Vec<&str> = page["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| run["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, expect, "{query}");
    }
    let children = server.get_ok(&format!("/runs?parent={key}")).await;
    assert_eq!(children["runs"][0]["parent"], json!(key));
    let page = server.get_ok("/runs?status=complete&status=errored&pageSize=1").await;
    let cursor = page["nextCursor"].as_str().unwrap();
    let next = format!("/runs?status=complete&status=errored&pageSize=1&cursor={cursor}");
    assert_eq!(server.get_ok(&next).await["runs"][0]["id"], "f-1");
    let other = format!("/runs?status=complete&status=waiting&pageSize=1&cursor={cursor}");
    assert_error(server.get(&other).await, (400, "INVALID_CURSOR"));
    assert_error(server.get("/runs?parent=x").await, (400, "INVALID_QUERY"));
    let bulk = json!({ "action": "retry", "dryRun": true, "filter": { "errorCode": "Other" } });
    assert_eq!(server.post_ok("/runs/bulk", bulk).await["matched"], 0);
    let bulk = json!({ "action": "retry", "dryRun": true, "filter": { "errorCode": error } });
    assert_eq!(server.post_ok("/runs/bulk", bulk).await["matched"], 1);
    server.stop().await;
}

async fn attention_lists_failed_runs(kind: Kind) {
    let server = Server::start(kind).await;
    let of_charge = async || {
        let found = server.get_ok("/attention").await;
        let items = found["items"].as_array().unwrap().clone();
        items.into_iter().find(|item| item["workflowName"] == "charge")
    };
    assert!(of_charge().await.is_none());
    server.run("charge", "a-1", json!(0), "errored").await;
    let item = of_charge().await.expect("a failed run");
    assert_eq!((&item["kind"], &item["count"]["count"]), (&json!("errored"), &json!(1)));
    server.stop().await;
}

async fn attention_lists_blocked_runs(kind: Kind) {
    let server = Server::start(kind).await;
    // A timer that the engine does not know wakes the code, which blocks the run.
    let parked = server.engine.workflow("parked", |ctx: Ctx, (): ()| async move {
        let timer = tokio::time::sleep(Duration::from_millis(20));
        tokio::select! { biased; () = timer => {}, slept = ctx.sleep("s", "1 day") => slept? }
        Ok::<_, AnyError>(())
    });
    let run = parked.unwrap().start(()).await.unwrap();
    let mut found = Value::Null;
    wait_until("the run is blocked", async || {
        run.wake().await.unwrap();
        found = server.get_ok("/attention").await;
        let items = found["items"].as_array().unwrap();
        items.iter().any(|item| item["kind"] == "blocked")
    })
    .await;
    let items = found["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["kind"] == "blocked").unwrap();
    let about = (&item["workflowName"], &item["key"], &item["count"]["count"]);
    assert_eq!(about, (&json!("parked"), &json!("FOREIGN_WAKE"), &json!(1)), "{item}");
    assert_eq!(item["count"]["more"], false, "{item}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attention_lists_runs_by_the_time_they_failed() {
    with_timeout(old_runs_that_fail()).await;
}

// A run that is older than a day fails now; a day later, its failure is no news.
async fn old_runs_that_fail() {
    let (began, moved) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let by = Arc::clone(&moved);
    let clock = move || {
        let start = Timestamp::from_micros(1_770_000_000_000_000);
        start.plus(began.elapsed()).plus(Duration::from_secs(by.load(Ordering::SeqCst)))
    };
    let store = Arc::new(MemoryStore::new(Arc::new(clock), Limits::DEFAULT));
    let of_store = Arc::clone(&store);
    let (engine, serve) = (EngineOptions::default(), ServeOptions::default());
    let server = Server::start_on(Kind::Memory, open(), engine, serve, |_| of_store).await;
    let forward = async |hours: u64| {
        moved.fetch_add(hours * 3_600, Ordering::SeqCst);
        let now = store.now().await.unwrap();
        // An idle engine asks nothing, so it learns the time with its next claim.
        wait_until("the engine knows the time", async || {
            server.engine.core().wake();
            server.engine.core().clock().now() >= now
        })
        .await;
    };
    let late = server.engine.workflow("late", async |ctx: Ctx, (): ()| -> windlass::Result<()> {
        ctx.event::<Value>("go", "go").timeout("90 days").await?;
        Err(AnyError::msg("too late"))
    });
    let run = late.unwrap().start(()).await.unwrap();
    server.wait_for_status("late", run.id(), "waiting").await;
    forward(30).await;
    run.send_event("go", &()).await.unwrap();
    server.wait_for_status("late", run.id(), "errored").await;
    let errored = async || {
        let found = server.get_ok("/attention").await;
        let items = found["items"].as_array().unwrap().clone();
        items.into_iter().find(|item| item["kind"] == "errored")
    };
    let item = errored().await.expect("it failed in the last 24 hours");
    assert_eq!(item["workflowName"], "late", "{item}");
    assert_eq!(item["count"], json!({ "count": 1, "more": false }), "{item}");
    forward(25).await;
    assert_eq!(errored().await, None, "it failed more than 24 hours ago");
    server.stop().await;
}

async fn series_count_runs(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "s-1", json!("Ada"), "complete").await;
    let series = server.get_ok("/stats/series?minutes=5").await;
    let sum = |name: &str| -> u64 {
        let list = series["values"][name].as_array().unwrap();
        assert_eq!(list.len(), 5);
        list.iter().map(|value| value.as_u64().unwrap()).sum()
    };
    assert_eq!((sum("runsStarted"), sum("runsCompleted"), sum("runsFailed")), (1, 1, 0));
    assert!(sum("stepsCompleted") >= 1);
    assert_eq!(series["counted"], true);
    assert_error(server.get("/stats/series?minutes=0").await, (400, "INVALID_SIZE"));
    // Those of one workflow: another one has started nothing.
    for (workflow, started) in [("greet", 1), ("none", 0)] {
        let path = format!("/stats/series?minutes=5&workflow={workflow}");
        let values = server.get_ok(&path).await["values"].take();
        let sum = |name: &str| -> u64 {
            values[name].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).sum()
        };
        assert_eq!((sum("runsStarted"), sum("runsCompleted")), (started, started), "{values}");
        assert_eq!(sum("stepsCompleted") >= 1, started == 1, "{values}");
        assert_eq!(values.get("tasksCompleted"), None);
    }
    assert_error(server.get("/stats/series?workflow=a%07b").await, (400, "INVALID_NAME"));
    server.stop().await;
}

async fn a_stream_reports_a_followed_run(kind: Kind) {
    let server = Server::start(kind).await;
    let run = server.run("approve", "u-1", json!({}), "waiting").await;
    let key = run["meta"]["runKey"].as_str().unwrap();
    let stream = server.request(Method::GET, &format!("/live?run={key}")).send().await.unwrap();
    let expected = key.to_owned();
    let reader = tokio::spawn(read_events(stream, move |seen| {
        kinds(seen, "run").iter().any(|hint| hint["runs"] == json!([expected]))
            && !kinds(seen, "lists").is_empty()
    }));
    let events = "/workflows/approve/instances/u-1/events";
    server.post_ok(events, json!({ "type": "approval", "payload": 1 })).await;
    let seen = reader.await.unwrap();
    assert_eq!(kinds(&seen, "run")[0]["runs"], json!([key]));
    // A page that has read less than there is now is told at once; one that has read everything is not.
    let count = run["meta"]["eventCount"].as_u64().unwrap();
    let stream =
        server.request(Method::GET, &format!("/live?run={key}@{count}")).send().await.unwrap();
    let seen = read_events(stream, |seen| !seen.is_empty()).await;
    assert_eq!(kinds(&seen, "run")[0]["runs"], json!([key]));
    let mut count = 0;
    wait_until("the run waits again", async || {
        let now = server.get_ok("/workflows/approve/instances/u-1").await;
        count = now["meta"]["eventCount"].as_u64().unwrap();
        now["meta"]["currentStep"]["stepKey"] == "second"
    })
    .await;
    let stream =
        server.request(Method::GET, &format!("/live?run={key}@{count}")).send().await.unwrap();
    let seen = read_events(stream, |seen| !kinds(seen, "lists").is_empty()).await;
    assert_eq!(kinds(&seen, "run"), Vec::<Value>::new());
    for wrong in ["x".to_owned(), format!("{key}@"), format!("{key}@-1")] {
        assert_error(server.get(&format!("/live?run={wrong}")).await, (400, "INVALID_QUERY"));
    }
    server.stop().await;
}

async fn rates_are_listed(kind: Kind) {
    let server = Server::start(kind).await;
    let admin = server.engine.admin();
    let rate = Rate::per(10, Duration::from_secs(1)).unwrap();
    admin.set_queue_rate("mail", Some(rate)).await.unwrap();
    server.engine.admin().set_activity_rate("weigh", Some(rate.burst(4))).await.unwrap();
    let page = server.get_ok("/rates?pageSize=1").await;
    assert_eq!(page["rates"][0]["key"], "activity:weigh", "{page}");
    let rate = &page["rates"][0];
    assert_eq!((&rate["intervalUs"], &rate["burst"]), (&json!(100_000), &json!(4)), "{page}");
    let next = page["nextCursor"].as_str().unwrap();
    let page = server.get_ok(&format!("/rates?pageSize=1&cursor={next}")).await;
    assert_eq!(page["rates"][0]["key"], "queue:mail", "{page}");
    assert_eq!(page["hasNextPage"], false);
    assert_error(server.get("/rates?cursor=x").await, (400, "INVALID_CURSOR"));
    server.stop().await;
}
