//! Error messages and exit codes.

use serde_json::json;

use crate::fake_server::FakeServer;
use crate::support::run_cli;

#[track_caller]
fn check(args: &[&str], code: i32, expect: &[&str]) {
    let output = run_cli(args).expect(code);
    for text in expect {
        assert!(output.stderr.contains(text), "{text:?} is missing in {:?}", output.stderr);
    }
}

#[test]
fn an_unreachable_server_is_reported_with_a_hint() {
    // Port 9 is the discard port; nothing listens there.
    let url = "http://127.0.0.1:9/api";
    let expect = ["failed to connect to http://127.0.0.1:9/api", "windlass dev", "WINDLASS_URL"];
    check(&["runs", "list", "--url", url], 1, &expect);
    check(&["workflows", "list", "--url", url], 1, &expect);
}

#[test]
fn an_invalid_command_line_exits_with_2() {
    check(&["runs", "lst"], 2, &["unrecognized subcommand", "list"]);
    check(&["runs", "get"], 2, &["the run is missing", "WORKFLOW/ID"]);
    check(&["runs", "get", "--id", "x"], 2, &["--id needs --workflow"]);
    check(&["runs", "create"], 2, &["the workflow is missing"]);
    check(
        &["runs", "create", "hello", "--params", "world"],
        2,
        &["not JSON", "quote JSON strings"],
    );
    check(&["runs", "pause", "order/1", "--status", "active"], 2, &["need --all"]);
    check(&["runs", "pause", "order/1", "--all"], 2, &["--all cannot be combined with a run"]);
    check(&["runs", "list", "--url", "nonsense"], 2, &["is not an HTTP URL"]);
    check(&["runs", "list", "--url", "ftp://x"], 2, &["is not an HTTP URL"]);
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
    check(&["verify", "--store", "memory:"], 2, &["a memory store is always empty"]);
}

#[test]
fn server_errors_are_printed_with_their_code() {
    let error = |code: &str, message: &str| json!({ "code": code, "message": message });
    let server = FakeServer::new(vec![
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
    let output = server.run(&["runs", "list", "--workflow", "helo"]).expect(3);
    assert!(output.stderr.contains("WORKFLOW_NOT_FOUND"), "{output:?}");
    assert!(output.stderr.contains("did you mean \"hello\"?"), "{output:?}");
    let output = server.run(&["runs", "get", "order/x"]).expect(3);
    assert!(output.stderr.contains("no such run [INSTANCE_NOT_FOUND]"), "{output:?}");
    let output = server.run(&["runs", "pause", "order/x"]).expect(1);
    assert!(output.stderr.contains("INSTANCE_TERMINAL"), "{output:?}");
    let output = server.run(&["schedules", "list"]).expect(6);
    assert!(output.stderr.contains("WINDLASS_KEY"), "{output:?}");
    server.run(&["keys", "list"]).expect(6);
    let output =
        server.run(&["schedules", "put", "s", "--workflow", "helo", "--every", "1h"]).expect(3);
    assert!(output.stderr.contains("did you mean \"hello\"?"), "{output:?}");
    let output = server.run(&["runs", "get", "order/x"]).expect(3);
    assert!(output.stderr.contains("windlass runs list --workflow order"), "{output:?}");
    let output = server.run(&["runs", "create", "order/x"]).expect(1);
    assert!(output.stderr.contains("windlass runs restart order/x"), "{output:?}");
    let output = server.run(&["breakers", "list"]).expect(3);
    assert!(output.stderr.contains("check --url"), "{output:?}");
    // The base URL is wrong: the response has no error code.
    let output = server.run(&["runs", "list"]).expect(3);
    assert!(output.stderr.contains("check --url"), "{output:?}");
}

#[test]
fn a_wait_timeout_exits_with_5() {
    let not_yet = json!({ "id": "x", "done": false, "details": { "status": "waiting" } });
    let server = FakeServer::new(vec![
        ("POST /api/workflows/order/instances", 200, json!({ "id": "x" })),
        ("GET /api/workflows/order/instances/x/result", 200, not_yet),
    ]);
    let args = ["runs", "create", "order", "--wait", "--timeout", "200ms"];
    let output = server.run(&args).expect(5);
    assert!(output.stderr.contains("windlass why order/x"), "{output:?}");
}

#[test]
fn headers_and_keys_are_sent() {
    let server = FakeServer::new(vec![("GET /api/workflows", 200, json!({ "workflows": [] }))]);
    let args = ["workflows", "list", "-H", "X-One: 1", "-H", "x-two: 2", "--key", "wl_secret"];
    server.run(&args).expect(0);
    let asked = server.requests().remove(0);
    assert_eq!(asked.headers["x-one"], "1");
    assert_eq!(asked.headers["x-two"], "2");
    assert_eq!(asked.headers["authorization"], "Bearer wl_secret");
}

#[test]
fn listings_read_pages_until_the_limit() {
    let row = |id: &str| json!({ "workflowName": "w", "id": id, "runKey": id, "details": { "status": "complete" } });
    let page = |rows: Vec<_>, cursor: &str, more: bool| json!({ "runs": rows, "cursor": cursor, "nextCursor": cursor, "hasNextPage": more });
    let server = FakeServer::new(vec![
        ("GET /api/runs?pageSize=1&order=desc&cursor=c1", 200, page(vec![row("b")], "c2", true)),
        ("GET /api/runs?pageSize=2&order=desc", 200, page(vec![row("a")], "c1", true)),
    ]);
    let output = server.run(&["runs", "list", "--limit", "2", "-o", "jsonl"]).expect(0);
    let ids: Vec<String> = output
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].to_string())
        .collect();
    assert_eq!(ids, ["\"a\"", "\"b\""]);
    let output = server.run(&["runs", "list", "--limit", "2"]).expect(0);
    assert!(
        output.stdout.contains("w/a") && output.stderr.contains("more runs exist"),
        "{output:?}"
    );
    // A program continues with the printed cursor.
    let page = server.run(&["runs", "list", "--limit", "2", "-o", "json"]).expect(0).json();
    assert_eq!((&page["cursor"], &page["hasNextPage"]), (&"c2".into(), &true.into()), "{page}");
    let next = ["runs", "list", "--limit", "1", "--cursor", "c1", "-o", "jsonl"];
    assert!(server.run(&next).expect(0).stdout.contains("\"id\":\"b\""));
}

#[test]
fn an_empty_page_does_not_end_a_listing() {
    let row = json!({ "workflowName": "w", "id": "a", "details": { "status": "errored" } });
    let none = |cursor: &str| json!({ "runs": [], "cursor": cursor, "hasNextPage": true });
    let at = "GET /api/runs?status=errored&pageSize=50&order=desc";
    let server = FakeServer::new(vec![
        (
            "GET /api/runs?status=errored&pageSize=50&order=desc&cursor=c2",
            200,
            json!({ "runs": [row], "hasNextPage": false }),
        ),
        ("GET /api/runs?status=errored&pageSize=50&order=desc&cursor=c1", 200, none("c2")),
        (at, 200, none("c1")),
    ]);
    let output = server.run(&["runs", "list", "--status", "errored"]).expect(0);
    assert!(output.stdout.contains("w/a") && !output.stderr.contains("no runs"), "{output:?}");
    // A server that repeats a page must not cause an endless loop.
    let server = FakeServer::new(vec![("GET /api/runs", 200, none("c1"))]);
    server.run(&["runs", "list"]).expect(1);
}

#[test]
fn a_bulk_action_reports_remaining_runs() {
    let answer = |dry: bool| {
        json!({
            "action": "terminate", "dryRun": dry, "matched": 1_000, "done": 1_000, "failed": [],
            "more": true,
        })
    };
    let server = FakeServer::first_then(
        vec![("POST ", 200, answer(false))],
        vec![("POST ", 200, answer(true))],
    );
    let all = ["runs", "terminate", "--all", "--label", "batch=7", "--reason", "it was wrong"];
    let output = server.run(&all).expect(0);
    assert!(
        output.stderr.contains("run the command again") && !output.stderr.contains("--limit"),
        "{output:?}"
    );
    assert_eq!(server.requests()[0].body["reason"], "it was wrong");
    let output = server.run(&[&all[..], &["--dry-run"]].concat()).expect(0);
    assert!(output.stdout.contains("at least 1000 runs match"), "{output:?}");
    let output = server.run(&[&all[..], &["--limit", "10", "--dry-run"]].concat()).expect(0);
    assert!(output.stderr.contains("raise --limit"), "{output:?}");
    check(&[&all[..], &["--limit", "1001"]].concat(), 2, &["1..=1000"]);
}

#[test]
fn a_bulk_action_sends_its_filter_and_reports_failures() {
    let answer = json!({
        "action": "pause", "dryRun": false, "matched": 3, "done": 2, "more": false,
        "failed": [{ "workflowName": "order", "id": "x", "code": "RUN_BUSY", "message": "later" }],
    });
    let server = FakeServer::new(vec![("POST /api/runs/bulk", 200, answer)]);
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
    let output = server.run(&args).expect(1);
    assert!(output.stdout.contains("2 of 3"), "{output:?}");
    assert!(output.stderr.contains("order/x: later [RUN_BUSY]"), "{output:?}");
    let asked = server.requests().remove(0);
    assert_eq!(asked.line, "POST /api/runs/bulk");
    let body = asked.body;
    let expect = json!({
        "action": "pause", "dryRun": false, "limit": 10,
        "filter": { "workflow": "order", "status": "active", "labels": { "a": "b" } },
    });
    assert_eq!(body, expect);
}

#[test]
fn a_log_of_more_than_a_page_is_followed_into_the_next_generation() {
    let run = |number: u32, status: &str| json!({ "details": { "status": status }, "meta": { "runNumber": number } });
    let page = |number: u32, lines: std::ops::Range<u32>, next: Option<&str>| {
        let line = |n: u32| {
            let (id, message) = (format!("{number}-{n}"), format!("line {n} of {number}"));
            json!({ "id": id, "level": "info", "message": message, "createdAt": "2026-01-01T00:00:00Z" })
        };
        let logs: Vec<_> = lines.map(line).collect();
        json!({ "logs": logs, "logsCursor": next, "logsHasNextPage": next.is_some() })
    };
    let history = "GET /api/workflows/w/instances/r/history?includeLogs=true&pageSize=100";
    let of = |rest: &str| -> &'static str { format!("{history}{rest}").leak() };
    // The instance is asked for before each pass over the log.
    let instance = "GET /api/workflows/w/instances/r";
    let server = FakeServer::first_then(
        vec![
            (of("&runNumber=0&logsCursor=c1"), 200, page(0, 100..105, None)),
            (of("&runNumber=0"), 200, page(0, 0..100, Some("c1"))),
            (instance, 200, run(0, "waiting")),
        ],
        vec![
            (of("&runNumber=0"), 200, page(0, 100..105, None)),
            (of("&runNumber=1"), 200, page(1, 0..3, None)),
            // A cursor without a number stays in its generation, as on the real server.
            (of("&logsCursor=c1"), 200, page(0, 100..105, None)),
            (of(""), 200, page(0, 0..100, Some("c1"))),
            (instance, 200, run(1, "complete")),
        ],
    );
    let output = server.run(&["runs", "logs", "w/r", "--follow"]).expect(0);
    for expect in ["line 0 of 0", "line 104 of 0", "line 0 of 1", "line 2 of 1"] {
        assert_eq!(output.stdout.matches(expect).count(), 1, "{expect}: {output:?}");
    }
}
