//! Commands that wait: for a server that is busy or away, through its restart, and until it is stopped.

use serde_json::{Value, json};

use crate::scripted::Scripted;
use crate::support::{Server, sqlite_in, until, windlass};

fn busy(code: &str) -> Value {
    json!({ "code": code, "message": "not now" })
}

const CREATE: &str = "POST /api/workflows/order/instances";
const RESULT: &str = "GET /api/workflows/order/instances/x/result";
const RUN: &str = "GET /api/workflows/order/instances/x ";
const HISTORY: &str = "GET /api/workflows/order/instances/x/history";

#[test]
fn a_wait_survives_a_server_that_is_busy() {
    let done = json!({ "id": "x", "done": true, "details": { "status": "complete", "output": 7 } });
    let server = Scripted::first_then(
        vec![
            (RESULT, 429, busy("TOO_MANY_REQUESTS")),
            (RESULT, 502, json!("a proxy's page")),
            (RESULT, 503, busy("STORE_UNAVAILABLE")),
            (RESULT, 504, Value::Null),
        ],
        vec![(CREATE, 200, json!({ "id": "x" })), (RESULT, 200, done)],
    );
    let said = server.say(&["runs", "create", "order", "--wait"]).expect(0);
    assert_eq!(said.out.trim(), "7");
    let polls = server.asked().iter().filter(|asked| asked.line.starts_with(RESULT)).count();
    assert_eq!(polls, 5);
}

#[test]
fn a_server_that_stays_busy_is_waited_for_no_longer_than_asked() {
    let server = Scripted::new(vec![
        (CREATE, 200, json!({ "id": "x" })),
        (RESULT, 503, busy("STORE_UNAVAILABLE")),
    ]);
    let args = ["runs", "create", "order", "--wait", "--timeout", "1500ms"];
    let said = server.say(&args).expect(5);
    assert!(said.err.contains("not now [STORE_UNAVAILABLE]"), "{said:?}");
    // It was asked at once, a second later as it wanted, and at the end.
    let polls = server.asked().iter().filter(|asked| asked.line.starts_with(RESULT)).count();
    assert!((2..=3).contains(&polls), "{polls}");
    // What is refused for good is not asked again.
    let server =
        Scripted::new(vec![(CREATE, 200, json!({ "id": "x" })), (RESULT, 500, busy("INTERNAL"))]);
    server.say(&args).expect(1);
}

#[test]
fn a_followed_log_survives_a_server_that_is_busy() {
    let line = json!({
        "id": "1", "level": "info", "message": "a line", "createdAt": "2026-03-01T00:00:00Z",
    });
    let page = json!({ "runNumber": 0, "logs": [line], "logsHasNextPage": false });
    let server = Scripted::first_then(
        vec![(HISTORY, 429, busy("TOO_MANY_REQUESTS")), (HISTORY, 503, busy("STORE_UNAVAILABLE"))],
        vec![
            (HISTORY, 200, page),
            (RUN.trim_end(), 200, json!({ "details": { "status": "complete" }, "meta": {} })),
        ],
    );
    let said = server.say(&["runs", "logs", "order/x", "--follow"]).expect(0);
    assert!(said.out.contains("a line"), "{said:?}");
    assert_eq!(said.err.matches("trying again").count(), 1, "{said:?}");
}

#[test]
fn the_log_of_a_run_that_moves_is_followed_to_its_end() {
    let server = Server::start("memory:");
    server.say(&["runs", "create", "order/o-1"]).expect(0);
    let mut follow = server.begin(&["runs", "logs", "order/o-1", "--follow"]);
    // The line comes while the run waits, not when it has ended.
    follow.until("charged 1 lamp");
    approve(&server, "o-1");
    let (code, lines) = follow.end();
    assert_eq!(code, Some(0), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("charged 1 lamp")).count(), 1);
}

fn approve(server: &Server, id: &str) {
    let run = format!("order/{id}");
    let event = ["--type", "approval", "--payload", "{\"approved\":true}"];
    server.say(&[&["runs", "send-event", &run][..], &event].concat()).expect(0);
}

#[test]
fn who_waits_and_watches_and_follows_does_so_through_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    let bind = server.bind();
    for id in ["waited", "watched", "followed"] {
        server.say(&["runs", "create", "order", id]).expect(0);
    }
    let waiting = server.begin(&["runs", "create", "order/other", "--wait"]);
    let mut watching = server.begin(&["runs", "watch", "order/watched"]);
    let mut following = server.begin(&["runs", "logs", "order/followed", "--follow"]);
    watching.until("waits for an event");
    following.until("charged 1 lamp");
    until("the run that is waited for is there", || {
        server.say(&["runs", "list"]).expect(0).out.contains("order/other")
    });
    server.kill();
    // Both have seen that nobody is there before somebody is.
    watching.until("trying again");
    following.until("trying again");
    let server = Server::start_at(&store, &bind);
    for id in ["other", "watched", "followed"] {
        approve(&server, id);
    }
    let (code, lines) = waiting.end();
    assert_eq!(code, Some(0), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("shipped 1 lamp")), "{lines:#?}");
    let (code, lines) = watching.end();
    assert_eq!(code, Some(0), "{lines:#?}");
    // It goes on where it was: nothing is told twice.
    let told = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(told("workflow.enqueued"), 1, "{lines:#?}");
    assert_eq!(told("sleep.elapsed"), 1, "{lines:#?}");
    assert_eq!(told("shipped 1 lamp"), 1, "{lines:#?}");
    let (code, lines) = following.end();
    assert_eq!(code, Some(0), "{lines:#?}");
    // The server that came after had to replay the run, and says so where that wrote again.
    let first = |line: &&String| line.contains("charged") && !line.contains("replay");
    assert_eq!(lines.iter().filter(first).count(), 1, "{lines:#?}");
}

#[test]
fn a_second_signal_ends_a_server_that_is_still_stopping() {
    // A runner that takes a request and never answers: its step would be waited for.
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
    command.args(["server", "--bind", "127.0.0.1:0", "--store", "memory:", "--log", "error"]);
    command.args(["--drain", "1 hour", "--config"]).arg(path);
    let server = Server::spawn(command);
    server.say(&["runs", "create", "slow/s-1"]).expect(0);
    let (_asked, _) = runner.accept().unwrap();
    server.signal("INT");
    until("it takes no more requests", || server.say(&["workflows", "list"]).code == 1);
    server.signal("INT");
    assert_eq!(server.ended(), Some(0));
}
