//! Workflows and runs: list, create, batch, get, history, ledger.

use serde_json::{Value, json};
use windlass::{AnyError, Ctx};

use crate::harness::{Kind, Server, assert_error, on_both_stores};

on_both_stores!(
    the_life_of_a_run,
    invalid_runs_are_rejected,
    a_batch_skips_existing_ids,
    pages_of_runs,
    history_of_a_run,
    log_lines_of_a_run,
    the_ledger_of_a_run,
    the_ledger_of_a_tree,
    trailing_slashes_are_accepted,
    a_rejected_batch_creates_no_runs,
    attempts_are_numbers,
    the_body_is_optional,
    a_run_can_have_the_id_batch,
);

async fn the_life_of_a_run(kind: Kind) {
    let server = Server::start(kind).await;
    let created = server
        .post_ok(
            "/workflows/greet/instances?waitMs=20000",
            json!({ "id": "ann-1", "params": "Ann", "labels": { "team": "a" }, "priority": 3 }),
        )
        .await;
    assert_eq!(created["id"], "ann-1");
    assert_eq!(created["details"], json!({ "status": "complete", "output": "Hello, Ann!" }));
    let run = server.get_ok("/workflows/greet/instances/ann-1").await;
    assert_eq!(run["details"]["output"], "Hello, Ann!");
    let meta = &run["meta"];
    assert_eq!(meta["workflowName"], "greet");
    assert_eq!(meta["runNumber"], 0);
    assert_eq!(meta["params"], "Ann");
    assert_eq!(meta["labels"], json!({ "team": "a" }));
    assert_eq!(meta["priority"], 3);
    for time in ["createdAt", "updatedAt", "startedAt", "completedAt"] {
        let text = meta[time].as_str().unwrap_or_default();
        assert!(text.len() == 24 && text.ends_with('Z'), "{time}: {text}");
    }
    assert!(meta.get("currentStep").is_none(), "{meta}");
    let result = server.get_ok("/workflows/greet/instances/ann-1/result?waitMs=1000").await;
    assert_eq!(result["done"], true);
    let key = meta["runKey"].as_str().unwrap();
    let same = server.get_ok(&format!("/runs/{key}")).await;
    assert_eq!((&same["id"], &same["workflowName"]), (&run["id"], &json!("greet")));

    let made = server.post_ok("/workflows/greet/instances", json!({})).await;
    let id = made["id"].as_str().unwrap();
    let result =
        server.get_ok(&format!("/workflows/greet/instances/{id}/result?waitMs=20000")).await;
    assert_eq!(result["details"]["output"], "Hello, nobody!");

    let waits = server.run("approve", "w-1", json!({}), "waiting").await;
    let step = &waits["meta"]["currentStep"];
    assert_eq!((&step["stepKey"], &step["type"]), (&json!("first"), &json!("waitForEvent")));
    assert_eq!(step["waitEventType"], "approval");
    let result = server.get_ok("/workflows/approve/instances/w-1/result?waitMs=50").await;
    assert_eq!((&result["done"], &result["details"]["status"]), (&json!(false), &json!("waiting")));

    let listed = server.get_ok("/workflows").await;
    let greet = listed["workflows"].as_array().unwrap().iter().find(|one| one["name"] == "greet");
    let greet = greet.expect("the workflow is listed");
    assert_eq!((&greet["served"], &greet["counts"]["complete"]), (&json!(true), &json!(2)));
    assert!(!listed.to_string().contains("windlass.schedule"), "{listed}");
    server.stop().await;
}

async fn invalid_runs_are_rejected(kind: Kind) {
    let server = Server::start(kind).await;
    let path = "/workflows/greet/instances";
    server.post_ok(path, json!({ "id": "taken" })).await;
    for (body, expect) in [
        (json!({ "id": "taken" }), (409, "INSTANCE_ID_ALREADY_EXISTS")),
        (json!({ "id": "" }), (400, "INVALID_INSTANCE_ID")),
        (json!({ "id": "-x" }), (400, "INVALID_INSTANCE_ID")),
        (json!({ "id": "a:b" }), (400, "INVALID_INSTANCE_ID")),
        (json!({ "id": "x".repeat(101) }), (400, "INVALID_INSTANCE_ID")),
        (json!({ "id": 7 }), (400, "INVALID_BODY")),
        (json!([]), (400, "INVALID_BODY")),
        (json!({ "delayMs": 1, "startAt": "2030-01-01T00:00:00Z" }), (400, "INVALID_BODY")),
        (json!({ "startAt": "tomorrow" }), (400, "INVALID_TIME")),
        (json!({ "startAt": "9999-01-01T00:00:00Z" }), (400, "INVALID_TIME")),
        (
            json!({ "headers": { "callback_url": "https://example.com/" } }),
            (400, "INVALID_HEADERS"),
        ),
        (json!({ "headers": { "callback_url": 7 } }), (400, "INVALID_BODY")),
        (json!({ "delayMs": u64::MAX }), (400, "INVALID_DURATION")),
        (json!({ "params": "x".repeat(1024 * 1024) }), (400, "INVALID_SIZE")),
        (json!({ "labels": { "k".repeat(65): "v" } }), (400, "INVALID_SIZE")),
    ] {
        assert_error(server.post(path, body).await, expect);
    }
    assert_error(
        server.post("/workflows/nobody/instances", json!({})).await,
        (404, "WORKFLOW_NOT_FOUND"),
    );
    let own = "/workflows/windlass.schedule/instances";
    assert_error(server.post(own, json!({})).await, (404, "WORKFLOW_NOT_FOUND"));
    assert_error(server.get("/workflows/nobody/instances").await, (404, "WORKFLOW_NOT_FOUND"));
    assert_error(
        server.get("/workflows/greet/instances/nobody").await,
        (404, "INSTANCE_NOT_FOUND"),
    );
    assert_error(server.get("/workflows/greet/instances/%00").await, (404, "INSTANCE_NOT_FOUND"));
    assert_error(server.get("/runs/no-key").await, (404, "INSTANCE_NOT_FOUND"));
    let waits = format!("{path}?waitMs=60001");
    assert_error(server.post(&waits, json!({})).await, (400, "INVALID_WAIT"));
    assert_error(server.post(&format!("{path}?waitMs=x"), json!({})).await, (400, "INVALID_QUERY"));

    let later = json!({ "id": "later", "params": "Eve", "delayMs": 3_600_000 });
    server.post_ok(path, later).await;
    let run = server.get_ok("/workflows/greet/instances/later").await;
    assert!(run["meta"]["startedAt"].is_null() && run["meta"]["nextTurnAt"].is_string(), "{run}");
    server.stop().await;
}

async fn a_batch_skips_existing_ids(kind: Kind) {
    let server = Server::start(kind).await;
    server.post_ok("/workflows/greet/instances", json!({ "id": "b-1" })).await;
    let path = "/workflows/greet/instances/batch";
    let instances =
        json!([{ "id": "b-0" }, { "id": "b-1" }, { "id": "b-2", "params": "Bo" }, { "id": "b-0" }]);
    let made = server.post_ok(path, json!({ "instances": instances })).await;
    let ids: Vec<&str> = made["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["b-0", "b-2"]);
    server.wait_for_status("greet", "b-2", "complete").await;
    let many: Vec<Value> = (0..101).map(|n| json!({ "id": format!("m-{n}") })).collect();
    assert_error(server.post(path, json!({ "instances": many })).await, (400, "INVALID_SIZE"));
    let nameless = json!({ "instances": [{ "params": 1 }] });
    assert_error(server.post(path, nameless).await, (400, "INVALID_INSTANCE_ID"));
    assert_error(server.get("/workflows/greet/instances/m-0").await, (404, "INSTANCE_NOT_FOUND"));
    assert_eq!(server.post_ok(path, json!({ "instances": [] })).await, json!({ "instances": [] }));
    server.stop().await;
}

async fn pages_of_runs(kind: Kind) {
    let server = Server::start(kind).await;
    let batch: Vec<Value> = (0..7)
        .map(|n| json!({ "id": format!("p-{n}"), "labels": { "even": (n % 2 == 0).to_string(), "all": "yes" } }))
        .collect();
    server.post_ok("/workflows/nap/instances/batch", json!({ "instances": batch })).await;
    server.run("greet", "other", json!("x"), "complete").await;
    let path = "/workflows/nap/instances";
    for n in 0..7 {
        server.wait_for_status("nap", &format!("p-{n}"), "waiting").await;
    }
    let mut seen = Vec::new();
    let mut query = "?pageSize=3&order=asc".to_owned();
    loop {
        let page = server.get_ok(&format!("{path}{query}")).await;
        let runs = page["instances"].as_array().unwrap();
        assert!(runs.len() <= 3 && !runs.is_empty());
        seen.extend(runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()));
        assert_eq!(page["cursor"], page["nextCursor"]);
        assert_eq!(page["hasNextPage"], page["cursor"].is_string());
        match page["nextCursor"].as_str() {
            Some(cursor) => query = format!("?pageSize=3&order=asc&cursor={cursor}"),
            None => break,
        }
    }
    seen.sort();
    assert_eq!(seen, (0..7).map(|n| format!("p-{n}")).collect::<Vec<_>>());
    let count = async |query: &str| {
        let page = server.get_ok(&format!("{path}{query}")).await;
        page["instances"].as_array().unwrap().len()
    };
    assert_eq!(count("?status=waiting").await, 7);
    assert_eq!(count("?status=complete").await, 0);
    assert_eq!(count("?label=even:true").await, 4);
    assert_eq!(count("?label=all:yes&label=even:false").await, 3);
    assert_eq!(count("?createdFrom=2100-01-01T00:00:00Z").await, 0);
    assert_eq!(count("?createdBefore=2100-01-01T00:00:00Z").await, 7);
    let all = server.get_ok("/runs?order=asc").await;
    assert_eq!(all["runs"].as_array().unwrap().len(), 8);
    let some = server.get_ok("/runs?workflow=greet").await;
    assert_eq!(some["runs"][0]["workflowName"], "greet");

    // Only the newest generation is listed.
    server.post_ok("/workflows/greet/instances/other/restart", json!({})).await;
    let listed = server.get_ok("/workflows/greet/instances").await;
    let listed = listed["instances"].as_array().unwrap();
    assert_eq!(listed.iter().map(|run| &run["runNumber"]).collect::<Vec<_>>(), [&json!(1)]);

    for (query, code) in [
        ("?status=done", "INVALID_STATUS"),
        ("?pageSize=0", "INVALID_PAGE_SIZE"),
        ("?pageSize=101", "INVALID_PAGE_SIZE"),
        ("?pageSize=x", "INVALID_QUERY"),
        ("?order=up", "INVALID_QUERY"),
        ("?cursor=xyz", "INVALID_CURSOR"),
        ("?label=even", "INVALID_LABEL"),
        ("?createdFrom=now", "INVALID_TIME"),
    ] {
        assert_error(server.get(&format!("{path}{query}")).await, (400, code));
    }
    let history = server.get_ok("/workflows/nap/instances/p-0/ledger?pageSize=1").await;
    let cursor = history["nextCursor"].as_str().expect("the ledger has more than one event");
    assert_error(server.get(&format!("{path}?cursor={cursor}")).await, (400, "INVALID_CURSOR"));
    server.stop().await;
}

async fn history_of_a_run(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "h-1", json!({}), "waiting").await;
    let send = "/workflows/approve/instances/h-1/events";
    for n in 1..=4 {
        server
            .post(send, json!({ "type": "approval", "payload": n, "id": format!("e-{n}") }))
            .await;
    }
    server.wait_for_status("approve", "h-1", "complete").await;
    let path = "/workflows/approve/instances/h-1/history";
    let history = server.get_ok(path).await;
    assert_eq!(history["runNumber"], 0);
    let keys = |history: &Value| -> Vec<String> {
        let steps = history["steps"].as_array().unwrap();
        steps.iter().map(|step| step["stepKey"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&history), ["first", "second"]);
    let step = &history["steps"][0];
    assert_eq!((&step["type"], &step["status"]), (&json!("waitForEvent"), &json!("completed")));
    assert!(history.get("logs").is_none(), "{history}");
    let event = &history["events"][0];
    assert_eq!((&event["id"], &event["payload"]), (&json!("e-1"), &json!(1)));
    assert_eq!(event["consumedByStepKey"], "first");
    assert!(event["deliveredAt"].is_string());

    for order in ["asc", "desc"] {
        let first = server.get_ok(&format!("{path}?pageSize=1&order={order}")).await;
        assert_eq!(
            (&first["stepsHasNextPage"], &first["eventsHasNextPage"]),
            (&json!(true), &json!(true))
        );
        let (steps, events) =
            (first["stepsCursor"].as_str().unwrap(), first["eventsCursor"].as_str().unwrap());
        let query =
            format!("{path}?pageSize=1&order={order}&stepsCursor={steps}&eventsCursor={events}");
        let second = server.get_ok(&query).await;
        let both = [keys(&first), keys(&second)].concat();
        let expect = if order == "asc" { ["first", "second"] } else { ["second", "first"] };
        assert_eq!(both, expect, "{order}");
        assert_ne!(first["events"][0]["id"], second["events"][0]["id"]);
        assert_eq!(second["stepsHasNextPage"], false);
        assert!(second.get("stepsCursor").is_none());
        assert_error(
            server.get(&format!("{path}?stepsCursor={events}")).await,
            (400, "INVALID_CURSOR"),
        );
    }
    assert_error(server.get(&format!("{path}?runNumber=9")).await, (404, "INSTANCE_NOT_FOUND"));
    assert_error(server.get(&format!("{path}?logLevel=loud")).await, (400, "INVALID_LOG_LEVEL"));

    server.run("greet", "logs", json!("Ann"), "complete").await;
    let path = "/workflows/greet/instances/logs/history?includeLogs=true";
    let history = server.get_ok(path).await;
    let line = &history["logs"][0];
    assert_eq!((&line["message"], &line["level"]), (&json!("greeting"), &json!("info")));
    assert_eq!(line["isReplay"], false);
    assert_eq!(history["logsHasNextPage"], false);
    let none = server.get_ok(&format!("{path}&logLevel=error&order=desc")).await;
    assert_eq!(none["logs"], json!([]));
    server.stop().await;
}

async fn the_ledger_of_a_run(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "l-1", json!("Ann"), "complete").await;
    let path = "/workflows/greet/instances/l-1/ledger";
    let whole = server.get_ok(path).await;
    let events = whole["events"].as_array().unwrap();
    let ordinals: Vec<u64> =
        events.iter().map(|event| event["ordinal"].as_u64().unwrap()).collect();
    assert_eq!(ordinals, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events.last().unwrap()["type"], "workflow.completed");
    assert!(!whole.to_string().contains("Hello, Ann!"), "the ledger contains a body: {whole}");
    for scope in ["run", "root"] {
        let mut read = Vec::new();
        let mut query = format!("{path}?scope={scope}&pageSize=2");
        loop {
            let page = server.get_ok(&query).await;
            read.extend(
                page["events"].as_array().unwrap().iter().map(|event| event["hash"].clone()),
            );
            match page["nextCursor"].as_str() {
                Some(next) => query = format!("{path}?scope={scope}&pageSize=2&cursor={next}"),
                None => break,
            }
        }
        let expect: Vec<Value> = events.iter().map(|event| event["hash"].clone()).collect();
        assert_eq!(read, expect, "{scope}");
    }
    server.post_ok("/workflows/greet/instances/l-1/restart", json!({})).await;
    let page = server.get_ok("/workflows/greet/instances/l-1/generations?pageSize=1").await;
    assert_eq!(page["generations"][0]["runNumber"], 1);
    let next = page["nextCursor"].as_str().unwrap();
    let page =
        server.get_ok(&format!("/workflows/greet/instances/l-1/generations?cursor={next}")).await;
    assert_eq!(page["generations"][0]["runNumber"], 0);
    let old = server.get_ok(&format!("{path}?runNumber=0")).await;
    assert_eq!(old["events"], whole["events"]);
    server.stop().await;
}

async fn trailing_slashes_are_accepted(kind: Kind) {
    let server = Server::start(kind).await;
    for path in ["", "/", "/workflows", "/workflows/", "/runs/", "/schedules/", "/openapi.json"] {
        let (status, body) = server.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
    }
    server.post_ok("/workflows/greet/instances/", json!({ "id": "s-1" })).await;
    server.wait_for_status("greet", "s-1/", "complete").await;
    let index = server.get_ok("/").await;
    assert_eq!(
        (&index["name"], &index["links"]["docs"]),
        (&json!("windlass"), &json!("/api/docs"))
    );
    server.stop().await;
}

async fn log_lines_of_a_run(kind: Kind) {
    let server = Server::start(kind).await;
    let chatty = async |ctx: Ctx, _: Value| -> windlass::Result<()> {
        for n in 0..4 {
            let category = if n % 2 == 0 { "even" } else { "odd" };
            ctx.log().category(category).info(format!("line {n}"))?;
        }
        // The retry of this step causes a replay of the lines above.
        let flaky = ctx.step("flaky", async || Err::<(), _>(windlass::AnyError::msg("not yet")));
        let _ = flaky.retries(1).delay("1 millisecond").await;
        let _: Value = ctx.event("wait", "go").await?;
        Ok(())
    };
    server.engine.workflow("chatty", chatty).unwrap();
    server.run("chatty", "c", json!({}), "waiting").await;
    let path = "/workflows/chatty/instances/c/history?includeLogs=true&logCategory=odd";
    let lines = server.get_ok(path).await["logs"].as_array().unwrap().clone();
    assert!(lines.len() >= 2 && lines.iter().all(|line| line["category"] == "odd"), "{lines:?}");
    let first: Vec<&Value> = lines.iter().filter(|line| line["isReplay"] == false).collect();
    let texts: Vec<&str> = first.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(
        texts,
        ["line 1", "line 3"],
        "each line that is not a replay is written once: {lines:?}"
    );
    assert!(server.get_ok(&format!("{path}x")).await["logs"].as_array().unwrap().is_empty());
    for order in ["asc", "desc"] {
        let path = format!("{path}&pageSize=1&order={order}");
        let (mut query, mut read) = (path.clone(), Vec::new());
        loop {
            let page = server.get_ok(&query).await;
            let rows = page["logs"].as_array().unwrap();
            assert!(rows.len() <= 1);
            read.extend(rows.iter().map(|line| line["id"].clone()));
            assert_eq!(page["logsHasNextPage"], page["logsCursor"].is_string());
            match page["logsCursor"].as_str() {
                Some(next) => query = format!("{path}&logsCursor={next}"),
                None => break,
            }
        }
        let mut expect: Vec<Value> = lines.iter().map(|line| line["id"].clone()).collect();
        if order == "desc" {
            expect.reverse();
        }
        assert_eq!(read, expect, "{order}");
    }
    server.stop().await;
}

async fn the_ledger_of_a_tree(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("family", "f", json!({}), "waiting").await;
    let child = server.wait_for_status("nap", "f:kid", "waiting").await;
    let parent = server.get_ok("/workflows/family/instances/f").await;
    let keys = [&parent["meta"]["runKey"], &child["meta"]["runKey"]];
    assert_eq!(child["meta"]["root"], *keys[0]);
    let mut trees = Vec::new();
    for path in ["/workflows/family/instances/f", "/workflows/nap/instances/f:kid"] {
        let own = server.get_ok(&format!("{path}/ledger?scope=run&pageSize=100")).await;
        let own = own["events"].as_array().unwrap().clone();
        let key = &own[0]["runKey"];
        assert!(own.iter().all(|event| event["runKey"] == *key));
        let tree = server.get_ok(&format!("{path}/ledger?scope=root&pageSize=100")).await;
        let tree = tree["events"].as_array().unwrap().clone();
        let of = |key: &Value| {
            let mine = tree.iter().filter(|event| event["runKey"] == *key);
            mine.map(|event| event["hash"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(key), own.iter().map(|event| event["hash"].clone()).collect::<Vec<_>>());
        assert!(
            keys.iter().all(|key| !of(key).is_empty()),
            "the tree contains both runs: {tree:?}"
        );
        let times: Vec<&str> = tree.iter().map(|event| event["at"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
        trees.push(tree);
    }
    assert_eq!(trees[0], trees[1], "both runs return the same tree");
    server.stop().await;
}

async fn a_rejected_batch_creates_no_runs(kind: Kind) {
    let server = Server::start(kind).await;
    let many: serde_json::Map<String, Value> =
        (0..33).map(|n| (format!("l-{n}"), json!("x"))).collect();
    for (change, code) in [
        (json!({ "labels": { "a": "b\u{0}" } }), "INVALID_TEXT"),
        (json!({ "labels": many }), "INVALID_SIZE"),
        (json!({ "labels": { "a": "x".repeat(2_000) } }), "INVALID_SIZE"),
        (json!({ "labels": { "": "x" } }), "INVALID_NAME"),
        (json!({ "params": "x".repeat(1024 * 1024) }), "INVALID_SIZE"),
        (json!({ "headers": { "a": "b" } }), "INVALID_HEADERS"),
    ] {
        let mut odd = json!({ "id": "odd" });
        odd.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let batch = json!({ "instances": [{ "id": "first" }, odd, { "id": "last" }] });
        assert_error(server.post("/workflows/nap/instances/batch", batch).await, (400, code));
        assert_eq!(server.get_ok("/runs").await["runs"], json!([]), "after {code}");
    }
    // Had a run been queued to be written later, it would be written before this one.
    server.run("nap", "good", json!({}), "waiting").await;
    assert_eq!(server.get_ok("/runs").await["runs"].as_array().unwrap().len(), 1);
    server.stop().await;
}

async fn attempts_are_numbers(kind: Kind) {
    let server = Server::start(kind).await;
    let forever = async |ctx: Ctx, _: Value| -> windlass::Result<()> {
        let never = async || Err::<(), AnyError>(AnyError::msg("no"));
        Ok(ctx.step("never", never).retries(windlass::RetryLimit::Forever).delay("1 hour").await?)
    };
    server.engine.workflow("forever", forever).unwrap();
    for (workflow, params, expect) in [
        ("nap", json!({}), 1),
        ("approve", json!({}), 1),
        ("family", json!({}), 1),
        ("charge", json!(4), 5),
        ("forever", json!({}), 2_147_483_647),
    ] {
        let run = server.run(workflow, "a-1", params, "waiting").await;
        assert_eq!(run["meta"]["currentStep"]["maxAttempts"], expect, "{workflow}: {run}");
    }
    server.stop().await;
}

async fn the_body_is_optional(kind: Kind) {
    let server = Server::start(kind).await;
    let path = "/workflows/greet/instances?waitMs=20000";
    let made = crate::harness::read(server.request(reqwest::Method::POST, path)).await;
    assert_eq!((made.0, &made.1["details"]["output"]), (200, &json!("Hello, nobody!")));
    server.stop().await;
}

async fn a_run_can_have_the_id_batch(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "batch", json!("Ann"), "complete").await;
    for path in ["/workflows/greet/instances/batch", "/workflows/greet/instances/batch/"] {
        assert_eq!(server.get_ok(path).await["details"]["output"], "Hello, Ann!");
    }
    let page = server.get_ok("/workflows/greet/instances/batch/history").await;
    assert_eq!(page["runNumber"], 0);
    let more = json!({ "instances": [{ "id": "one" }, { "id": "two" }] });
    let made = server.post_ok("/workflows/greet/instances/batch", more).await;
    assert_eq!(made["instances"].as_array().map(Vec::len), Some(2));
    server.stop().await;
}
