//! Commands that wait: for a busy or restarting server, and until the server stops.

use serde_json::{Value, json};

use crate::fake_server::FakeServer;
use crate::support::{Server, sqlite_in, wait_until, windlass};

fn busy(code: &str) -> Value {
    json!({ "code": code, "message": "not now" })
}

const CREATE: &str = "POST /api/workflows/order/instances";
const RESULT: &str = "GET /api/workflows/order/instances/x/result";
const RUN: &str = "GET /api/workflows/order/instances/x ";
const HISTORY: &str = "GET /api/workflows/order/instances/x/history";

#[test]
fn wait_retries_while_the_server_is_busy() {
    let done = json!({ "id": "x", "done": true, "details": { "status": "complete", "output": 7 } });
    let server = FakeServer::first_then(
        vec![
            (RESULT, 429, busy("TOO_MANY_REQUESTS")),
            (RESULT, 502, json!("a proxy's page")),
            (RESULT, 503, busy("STORE_UNAVAILABLE")),
            (RESULT, 504, Value::Null),
        ],
        vec![(CREATE, 200, json!({ "id": "x" })), (RESULT, 200, done)],
    );
    let output = server.run(&["runs", "create", "order", "--wait"]).expect(0);
    assert_eq!(output.stdout.trim(), "7");
    let polls = server.requests().iter().filter(|asked| asked.line.starts_with(RESULT)).count();
    assert_eq!(polls, 5);
}

#[test]
fn wait_on_a_busy_server_respects_the_timeout() {
    let server = FakeServer::new(vec![
        (CREATE, 200, json!({ "id": "x" })),
        (RESULT, 503, busy("STORE_UNAVAILABLE")),
    ]);
    let args = ["runs", "create", "order", "--wait", "--timeout", "1500ms"];
    let output = server.run(&args).expect(5);
    assert!(output.stderr.contains("not now [STORE_UNAVAILABLE]"), "{output:?}");
    // Requests are sent at once, after `Retry-After` (1 s), and at the end.
    let polls = server.requests().iter().filter(|asked| asked.line.starts_with(RESULT)).count();
    assert!((2..=3).contains(&polls), "{polls}");
    // A permanent error is not retried.
    let server =
        FakeServer::new(vec![(CREATE, 200, json!({ "id": "x" })), (RESULT, 500, busy("INTERNAL"))]);
    server.run(&args).expect(1);
}

#[test]
fn logs_follow_retries_while_the_server_is_busy() {
    let line = json!({
        "id": "1", "level": "info", "message": "a line", "createdAt": "2026-03-01T00:00:00Z",
    });
    let page = json!({ "runNumber": 0, "logs": [line], "logsHasNextPage": false });
    let server = FakeServer::first_then(
        vec![(HISTORY, 429, busy("TOO_MANY_REQUESTS")), (HISTORY, 503, busy("STORE_UNAVAILABLE"))],
        vec![
            (HISTORY, 200, page),
            (RUN.trim_end(), 200, json!({ "details": { "status": "complete" }, "meta": {} })),
        ],
    );
    let output = server.run(&["runs", "logs", "order/x", "--follow"]).expect(0);
    assert!(output.stdout.contains("a line"), "{output:?}");
    assert_eq!(output.stderr.matches("retrying").count(), 1, "{output:?}");
}

#[test]
fn logs_follow_prints_lines_until_the_run_ends() {
    let server = Server::start("memory:");
    server.run(&["runs", "create", "order/o-1"]).expect(0);
    let mut follow = server.spawn_command(&["runs", "logs", "order/o-1", "--follow"]);
    // The line is printed while the run waits, not only after its end.
    follow.wait_for_line("charged 1 lamp");
    approve(&server, "o-1");
    let (code, lines) = follow.wait();
    assert_eq!(code, Some(0), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("charged 1 lamp")).count(), 1);
}

fn approve(server: &Server, id: &str) {
    let run = format!("order/{id}");
    let event = ["--type", "approval", "--payload", "{\"approved\":true}"];
    server.run(&[&["runs", "send-event", &run][..], &event].concat()).expect(0);
}

#[test]
fn wait_watch_and_follow_survive_a_server_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    let bind = server.bind();
    for id in ["waited", "watched", "followed"] {
        server.run(&["runs", "create", "order", id]).expect(0);
    }
    let waiting = server.spawn_command(&["runs", "create", "order/other", "--wait"]);
    let mut watching = server.spawn_command(&["runs", "watch", "order/watched"]);
    let mut following = server.spawn_command(&["runs", "logs", "order/followed", "--follow"]);
    watching.wait_for_line("waits for an event");
    following.wait_for_line("charged 1 lamp");
    wait_until("the run is created", || {
        server.run(&["runs", "list"]).expect(0).stdout.contains("order/other")
    });
    server.kill();
    // Both commands notice the outage before the server restarts.
    watching.wait_for_line("retrying");
    following.wait_for_line("retrying");
    let server = Server::start_at(&store, &bind);
    for id in ["other", "watched", "followed"] {
        approve(&server, id);
    }
    let (code, lines) = waiting.wait();
    assert_eq!(code, Some(0), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("shipped 1 lamp")), "{lines:#?}");
    let (code, lines) = watching.wait();
    assert_eq!(code, Some(0), "{lines:#?}");
    // The stream resumes at its position: no event is printed twice.
    let report = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(report("workflow.enqueued"), 1, "{lines:#?}");
    assert_eq!(report("sleep.elapsed"), 1, "{lines:#?}");
    assert_eq!(report("shipped 1 lamp"), 1, "{lines:#?}");
    let (code, lines) = following.wait();
    assert_eq!(code, Some(0), "{lines:#?}");
    // The new server replays the run, and marks the line as a replay if it writes it again.
    let first = |line: &&String| line.contains("charged") && !line.contains("replay");
    assert_eq!(lines.iter().filter(first).count(), 1, "{lines:#?}");
}

#[test]
fn a_second_signal_stops_the_server_immediately() {
    // A runner that accepts a request and never answers keeps its step running.
    let runner = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", runner.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[[relays]]\nname = \"slow\"\nurl = \"{url}\"\nallow = [\"127.0.0.1\"]\n\
         secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\ntimeout = \"10 minutes\"\n"
    );
    let path = folder.path().join("relays.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = windlass();
    command.args([
        "server",
        "--auth",
        "off",
        "--bind",
        "127.0.0.1:0",
        "--store",
        "memory:",
        "--log",
        "error",
    ]);
    command.args(["--drain", "1 hour", "--config"]).arg(path);
    let server = Server::spawn(command);
    server.run(&["runs", "create", "slow/s-1"]).expect(0);
    let (_asked, _) = runner.accept().unwrap();
    server.signal("INT");
    wait_until("the server refuses requests", || server.run(&["workflows", "list"]).code == 1);
    server.signal("INT");
    assert_eq!(server.wait(), Some(0));
}
