//! What the command line says when something is wrong, and with which exit code.

use serde_json::json;

use crate::scripted::Scripted;
use crate::support::say;

#[track_caller]
fn check(args: &[&str], code: i32, expect: &[&str]) {
    let said = say(args).expect(code);
    for text in expect {
        assert!(said.err.contains(text), "{text:?} is not in {:?}", said.err);
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_what_to_start() {
    // Port 9 is for discarding; nobody listens there.
    let url = "http://127.0.0.1:9/api";
    let expect = ["no server answers at http://127.0.0.1:9/api", "windlass dev", "WINDLASS_URL"];
    check(&["runs", "list", "--url", url], 1, &expect);
    check(&["workflows", "list", "--url", url], 1, &expect);
}

#[test]
fn a_command_line_that_is_wrong_ends_with_2() {
    check(&["runs", "lst"], 2, &["unrecognized subcommand", "list"]);
    check(&["runs", "get"], 2, &["no run is named", "WORKFLOW/ID"]);
    check(&["runs", "get", "--id", "x"], 2, &["--id needs --workflow"]);
    check(&["runs", "create"], 2, &["no workflow is named"]);
    check(&["runs", "create", "hello", "--params", "world"], 2, &["not JSON", "quotes"]);
    check(&["runs", "pause", "order/1", "--status", "active"], 2, &["need --all"]);
    check(&["runs", "pause", "order/1", "--all"], 2, &["one run is named"]);
    check(&["runs", "list", "--url", "nonsense"], 2, &["is not the URL of a server"]);
    check(&["runs", "list", "--url", "ftp://x"], 2, &["is not the URL of a server"]);
    let payload = ["runs", "send-event", "order/1", "--type", "x", "--payload", "y"];
    let url = ["--url", "http://127.0.0.1:9/api"];
    check(&[&payload[..], &url].concat(), 2, &["--payload is not JSON", "--payload '\"world\"'"]);
    check(&["schedules", "create", "s", "--every", "1h"], 2, &["schedules put"]);
    check(&["runs", "create", "hello", "--delay", "5"], 2, &["write 5s or 5ms"]);
    check(&["runs", "watch", "hello/h", "--timeout", "1.5"], 2, &["write 1.5s or 1.5ms"]);
    check(&["server", "--drain", "30"], 2, &["flag --drain", "write 30s or 30ms"]);
    check(&["runs", "list", "-H", "no colon"], 2, &["is not \"Name: value\""]);
    check(&["runs", "list", "--label", "x"], 2, &["is not KEY=VALUE"]);
    check(&["runs", "list", "--created-from", "yesterday"], 2, &["2026-03-01T12:00:00Z"]);
    check(&["runs", "create", "hello", "--at", "noon"], 2, &["2026-03-01T12:00:00Z"]);
    let put = ["schedules", "put", "s", "--workflow", "w", "--every", "1h", "--overlap", "perhaps"];
    check(&put, 2, &["allow", "skip"]);
    check(&["keys", "create", "ci", "--scope", "manag"], 2, &["a similar value exists: 'manage'"]);
    check(&["verify", "--store", "memory:"], 2, &["in memory is empty"]);
}

#[test]
fn what_the_server_refuses_is_told_with_its_code() {
    let error = |code: &str, message: &str| json!({ "code": code, "message": message });
    let server = Scripted::new(vec![
        (
            "GET /api/workflows/helo/instances",
            404,
            error("WORKFLOW_NOT_FOUND", "there is no workflow \"helo\""),
        ),
        ("GET /api/workflows/order/instances/x", 404, error("INSTANCE_NOT_FOUND", "no such run")),
        (
            "POST /api/workflows/order/instances/x/pause",
            409,
            error("INSTANCE_TERMINAL", "it is complete"),
        ),
        ("PUT /api/schedules/s", 404, error("WORKFLOW_NOT_FOUND", "there is no \"helo\"")),
        (
            "POST /api/workflows/order/instances",
            409,
            error("INSTANCE_ID_ALREADY_EXISTS", "it is there"),
        ),
        ("GET /api/durable", 404, error("ROUTE_NOT_FOUND", "there is no route")),
        ("GET /api/schedules", 401, error("UNAUTHENTICATED", "who are you")),
        ("GET /api/keys", 403, error("FORBIDDEN", "not you")),
        (
            "GET /api/workflows",
            200,
            json!({ "workflows": [{ "name": "hello" }, { "name": "order" }] }),
        ),
    ]);
    let said = server.say(&["runs", "list", "--workflow", "helo"]).expect(3);
    assert!(said.err.contains("WORKFLOW_NOT_FOUND"), "{said:?}");
    assert!(said.err.contains("did you mean \"hello\"?"), "{said:?}");
    let said = server.say(&["runs", "get", "order/x"]).expect(3);
    assert!(said.err.contains("no such run [INSTANCE_NOT_FOUND]"), "{said:?}");
    let said = server.say(&["runs", "pause", "order/x"]).expect(1);
    assert!(said.err.contains("INSTANCE_TERMINAL"), "{said:?}");
    let said = server.say(&["schedules", "list"]).expect(6);
    assert!(said.err.contains("WINDLASS_KEY"), "{said:?}");
    server.say(&["keys", "list"]).expect(6);
    let said =
        server.say(&["schedules", "put", "s", "--workflow", "helo", "--every", "1h"]).expect(3);
    assert!(said.err.contains("did you mean \"hello\"?"), "{said:?}");
    let said = server.say(&["runs", "get", "order/x"]).expect(3);
    assert!(said.err.contains("windlass runs list --workflow order"), "{said:?}");
    let said = server.say(&["runs", "create", "order/x"]).expect(1);
    assert!(said.err.contains("windlass runs restart order/x"), "{said:?}");
    let said = server.say(&["breakers", "list"]).expect(3);
    assert!(said.err.contains("is --url right?"), "{said:?}");
    // A base URL that is not one.
    let said = server.say(&["runs", "list"]).expect(3);
    assert!(said.err.contains("is --url right?"), "{said:?}");
}

#[test]
fn a_run_that_does_not_end_in_time_ends_with_5() {
    let not_yet = json!({ "id": "x", "done": false, "details": { "status": "waiting" } });
    let server = Scripted::new(vec![
        ("POST /api/workflows/order/instances", 200, json!({ "id": "x" })),
        ("GET /api/workflows/order/instances/x/result", 200, not_yet),
    ]);
    let args = ["runs", "create", "order", "--wait", "--timeout", "200ms"];
    let said = server.say(&args).expect(5);
    assert!(said.err.contains("windlass why order/x"), "{said:?}");
}

#[test]
fn headers_and_keys_are_sent_along() {
    let server = Scripted::new(vec![("GET /api/workflows", 200, json!({ "workflows": [] }))]);
    let args = ["workflows", "list", "-H", "X-One: 1", "-H", "x-two: 2", "--key", "wl_secret"];
    server.say(&args).expect(0);
    let asked = server.asked().remove(0);
    assert_eq!(asked.headers["x-one"], "1");
    assert_eq!(asked.headers["x-two"], "2");
    assert_eq!(asked.headers["authorization"], "Bearer wl_secret");
}

#[test]
fn lists_are_read_page_by_page_until_the_limit() {
    let row = |id: &str| json!({ "workflowName": "w", "id": id, "runKey": id, "details": { "status": "complete" } });
    let page = |rows: Vec<_>, cursor: &str, more: bool| json!({ "runs": rows, "cursor": cursor, "nextCursor": cursor, "hasNextPage": more });
    let server = Scripted::new(vec![
        ("GET /api/runs?pageSize=1&order=desc&cursor=c1", 200, page(vec![row("b")], "c2", true)),
        ("GET /api/runs?pageSize=2&order=desc", 200, page(vec![row("a")], "c1", true)),
    ]);
    let said = server.say(&["runs", "list", "--limit", "2", "-o", "jsonl"]).expect(0);
    let ids: Vec<String> = said
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].to_string())
        .collect();
    assert_eq!(ids, ["\"a\"", "\"b\""]);
    let said = server.say(&["runs", "list", "--limit", "2"]).expect(0);
    assert!(said.out.contains("w/a") && said.err.contains("there are more"), "{said:?}");
    // A program goes on where the list ended.
    let page = server.say(&["runs", "list", "--limit", "2", "-o", "json"]).expect(0).json();
    assert_eq!((&page["cursor"], &page["hasNextPage"]), (&"c2".into(), &true.into()), "{page}");
    let next = ["runs", "list", "--limit", "1", "--cursor", "c1", "-o", "jsonl"];
    assert!(server.say(&next).expect(0).out.contains("\"id\":\"b\""));
}

#[test]
fn an_empty_page_is_not_the_end_of_a_list() {
    let row = json!({ "workflowName": "w", "id": "a", "details": { "status": "errored" } });
    let none = |cursor: &str| json!({ "runs": [], "cursor": cursor, "hasNextPage": true });
    let at = "GET /api/runs?status=errored&pageSize=50&order=desc";
    let server = Scripted::new(vec![
        (
            "GET /api/runs?status=errored&pageSize=50&order=desc&cursor=c2",
            200,
            json!({ "runs": [row], "hasNextPage": false }),
        ),
        ("GET /api/runs?status=errored&pageSize=50&order=desc&cursor=c1", 200, none("c2")),
        (at, 200, none("c1")),
    ]);
    let said = server.say(&["runs", "list", "--status", "errored"]).expect(0);
    assert!(said.out.contains("w/a") && !said.err.contains("no runs"), "{said:?}");
    // A server that goes round in circles is not followed for ever.
    let server = Scripted::new(vec![("GET /api/runs", 200, none("c1"))]);
    server.say(&["runs", "list"]).expect(1);
}

#[test]
fn a_bulk_action_that_leaves_runs_over_says_how_to_go_on() {
    let answer = |dry: bool| {
        json!({
            "action": "terminate", "dryRun": dry, "matched": 1_000, "done": 1_000, "failed": [],
            "more": true,
        })
    };
    let server = Scripted::first_then(
        vec![("POST ", 200, answer(false))],
        vec![("POST ", 200, answer(true))],
    );
    let all = ["runs", "terminate", "--all", "--label", "batch=7", "--reason", "it was wrong"];
    let said = server.say(&all).expect(0);
    assert!(said.err.contains("say it again") && !said.err.contains("--limit"), "{said:?}");
    assert_eq!(server.asked()[0].body["reason"], "it was wrong");
    let said = server.say(&[&all[..], &["--dry-run"]].concat()).expect(0);
    assert!(said.out.contains("at least 1000 runs match"), "{said:?}");
    let said = server.say(&[&all[..], &["--limit", "10", "--dry-run"]].concat()).expect(0);
    assert!(said.err.contains("raise --limit"), "{said:?}");
    check(&[&all[..], &["--limit", "1001"]].concat(), 2, &["1..=1000"]);
}

#[test]
fn a_bulk_action_says_what_it_takes() {
    let answer = json!({
        "action": "pause", "dryRun": false, "matched": 3, "done": 2, "more": false,
        "failed": [{ "workflowName": "order", "id": "x", "code": "RUN_BUSY", "message": "later" }],
    });
    let server = Scripted::new(vec![("POST /api/runs/bulk", 200, answer)]);
    let args = [
        "runs",
        "pause",
        "--all",
        "--workflow",
        "order",
        "--status",
        "active",
        "--label",
        "a=b",
        "--limit",
        "10",
    ];
    let said = server.say(&args).expect(1);
    assert!(said.out.contains("2 of 3"), "{said:?}");
    assert!(said.err.contains("order/x: later [RUN_BUSY]"), "{said:?}");
    let asked = server.asked().remove(0);
    assert_eq!(asked.line, "POST /api/runs/bulk");
    let body = asked.body;
    let expect = json!({
        "action": "pause", "dryRun": false, "limit": 10,
        "filter": { "workflow": "order", "status": "active", "labels": { "a": "b" } },
    });
    assert_eq!(body, expect);
}
