//! The management commands against a real server.

use serde_json::{Value, json};

use crate::fake_server::FakeServer;
use crate::support::{Server, sqlite_in, wait_until};

fn start() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_in(folder.path(), "app.db"));
    (folder, server)
}

fn status(server: &Server, run: &str) -> String {
    let received = server.run(&["runs", "get", run, "-o", "json"]).expect(0).json();
    received["details"]["status"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_life_of_a_run() {
    let (_folder, server) = start();
    let args = ["runs", "create", "hello/h-1", "--params", "\"Ann\"", "--label", "who=ann"];
    assert_eq!(server.run(&args).expect(0).stdout.trim(), "hello/h-1");
    let output = server.run(&["runs", "create", "hello/h-1"]).expect(1);
    assert!(output.stderr.contains("INSTANCE_ID_ALREADY_EXISTS"), "{output:?}");
    wait_until("the run is complete", || status(&server, "hello/h-1") == "complete");
    for args in [
        &["runs", "get", "hello/h-1"][..],
        &["runs", "get", "hello", "h-1", "--full"],
        &["instances", "get", "--workflow", "hello", "--id", "h-1"],
    ] {
        let output = server.run(args).expect(0);
        assert!(
            output.stdout.contains("complete") && output.stdout.contains("HELLO, ANN!"),
            "{output:?}"
        );
    }
    let received = server.run(&["runs", "get", "hello/h-1", "-o", "json"]).expect(0).json();
    let key =
        received["meta"]["runKey"].as_str().expect("the run key is in the response").to_owned();
    assert!(server.run(&["runs", "get", &key]).expect(0).stdout.contains("hello/h-1"));

    let output = server.run(&["runs", "history", "hello/h-1", "--include-logs"]).expect(0);
    for text in ["compose", "pause for effect", "shout", "greeting Ann"] {
        assert!(output.stdout.contains(text), "{text}: {output:?}");
    }
    let output = server.run(&["runs", "logs", "hello/h-1", "--follow"]).expect(0);
    assert!(output.stdout.contains("greeting Ann"), "{output:?}");
    let output = server.run(&["runs", "events", "hello/h-1"]).expect(0);
    assert!(output.stdout.contains("workflow.completed"), "{output:?}");
    let output = server.run(&["runs", "list", "--label", "who=ann"]).expect(0);
    assert!(output.stdout.contains("hello/h-1"), "{output:?}");
    let output =
        server.run(&["runs", "list", "--workflow", "hello", "--status", "errored"]).expect(0);
    assert!(!output.stdout.contains("h-1"), "{output:?}");
    let output = server.run(&["runs", "list", "--workflow", "helo"]).expect(3);
    assert!(output.stderr.contains("did you mean \"hello\"?"), "{output:?}");
    server.run(&["runs", "get", "hello/none"]).expect(3);
    for args in [
        &["runs", "get", "helo/h-1"][..],
        &["runs", "history", "helo/h-1"],
        &["runs", "pause", "helo/h-1"],
        &["runs", "send-event", "helo/h-1", "--type", "x"],
        &["why", "helo/h-1"],
        &["runs", "terminate", "--all", "--workflow", "helo"],
    ] {
        let output = server.run(args).expect(3);
        assert!(output.stderr.contains("did you mean \"hello\"?"), "{args:?}: {output:?}");
    }
    let output = server.run(&["runs", "resume", "hello/h-1"]).expect(0);
    assert!(output.stdout.contains("has ended (complete) and cannot be resumed"), "{output:?}");
    let output = server.run(&["runs", "send-event", "hello/h-1", "--type", "x"]).expect(1);
    assert!(output.stderr.contains("hello/h-1 is complete and accepts no events"), "{output:?}");
    let output = server.run(&["runs", "send-event", "hello/h-1", "--type", "a b"]).expect(1);
    assert!(output.stderr.contains("than letters, digits, `_` and `-`"), "{output:?}");
}

#[test]
fn an_action_on_all_runs_needs_confirmation() {
    let (_folder, server) = start();
    server.run(&["runs", "create", "order/o-1"]).expect(0);
    for action in ["terminate", "pause", "resume", "retry"] {
        let output = server.run(&["runs", action, "--all"]).expect(2);
        assert!(
            output.stderr.contains("every run") && output.stderr.contains("--yes"),
            "{output:?}"
        );
    }
    let output = server.run(&["runs", "terminate", "--all", "--dry-run"]).expect(0);
    assert!(output.stdout.contains("1 run matches"), "{output:?}");
    assert_ne!(status(&server, "order/o-1"), "terminated");
    server.run(&["runs", "terminate", "--all", "--yes"]).expect(0);
    wait_until("it is terminated", || status(&server, "order/o-1") == "terminated");
}

#[test]
fn pause_can_wait() {
    let (_folder, server) = start();
    server.run(&["runs", "create", "order/o-1"]).expect(0);
    let pause = ["runs", "pause", "order/o-1", "--wait", "--timeout", "60s"];
    assert_eq!(server.run(&pause).expect(0).stdout.trim(), "order/o-1 is paused");
    assert_eq!(status(&server, "order/o-1"), "paused");
    server.run(&["runs", "terminate", "order/o-1"]).expect(0);
    wait_until("it is terminated", || status(&server, "order/o-1") == "terminated");
    server.run(&pause).expect(1);
}

#[test]
fn pause_resume_restart_and_terminate() {
    let (_folder, server) = start();
    server.run(&["runs", "create", "order/o-1"]).expect(0);
    server.run(&["runs", "pause", "order/o-1"]).expect(0);
    wait_until("it is paused", || status(&server, "order/o-1") == "paused");
    let output = server.run(&["why", "order/o-1"]).expect(0);
    assert!(output.stdout.contains("paused"), "{output:?}");
    server.run(&["runs", "resume", "order/o-1"]).expect(0);
    wait_until("it waits for its event", || {
        server.run(&["why", "order/o-1"]).expect(0).stdout.contains("approval")
    });
    server.run(&["runs", "restart", "order/o-1"]).expect(0);
    let event = ["runs", "send-event", "order/o-1", "--type", "approval", "--payload"];
    server.run(&[&event[..], &["{\"approved\":false}"]].concat()).expect(0);
    let output = server.run(&["runs", "watch", "order/o-1"]).expect(4);
    assert!(output.stderr.contains("not approved"), "{output:?}");
    // A retry keeps completed steps, so it consumes the same event and fails again.
    let output =
        server.run(&["runs", "retry", "order/o-1", "--wait", "--timeout", "60s"]).expect(4);
    assert!(output.stderr.contains("errored"), "{output:?}");
    let output = server.run(&["runs", "terminate", "order/o-1"]).expect(1);
    assert!(output.stderr.contains("INSTANCE_TERMINAL"), "{output:?}");

    server.run(&["runs", "create", "order/o-2", "--label", "batch=7"]).expect(0);
    let count = ["runs", "terminate", "--all", "--label", "batch=7", "--dry-run"];
    assert!(server.run(&count).expect(0).stdout.contains("1 run matches"), "a dry run only counts");
    assert_ne!(status(&server, "order/o-2"), "terminated");
    server.run(&["runs", "terminate", "--all", "--label", "batch=7"]).expect(0);
    wait_until("it is terminated", || status(&server, "order/o-2") == "terminated");
}

#[test]
fn wait_prints_the_result_of_the_run() {
    let (_folder, server) = start();
    let output = server.run(&["runs", "create", "flaky", "--wait"]).expect(0);
    assert_eq!(output.stdout.trim(), "\"it worked at attempt 3\"");
    let output =
        server.run(&["runs", "create", "fan-out", "--params", "5", "--wait", "-o", "json"]);
    let answer: Value = output.expect(0).json();
    assert_eq!(answer["details"]["output"], 30);
    let output =
        server.run(&["runs", "create", "order/late", "--wait", "--timeout", "1s"]).expect(5);
    assert!(output.stderr.contains("windlass why order/late"), "{output:?}");
    assert!(output.stderr.contains("hint: \"settle\" sleeps until"), "{output:?}");
    let create = ["runs", "create", "order/later", "--wait", "--timeout", "1s", "-o", "json"];
    let report = server.run(&create).expect(5).json();
    assert_eq!((&report["done"], &report["id"]), (&false.into(), &"later".into()), "{report}");
    assert_eq!(report["details"]["status"], "waiting", "{report}");
    server.run(&["runs", "terminate", "order/late", "--reason", "test"]).expect(0);
    server.run(&["runs", "watch", "order/late"]).expect(4);
}

#[test]
fn schedules_start_runs() {
    let (_folder, server) = start();
    let put =
        ["schedules", "put", "often", "--workflow", "fan-out", "--every", "1s", "--params", "2"];
    server.run(&put).expect(0);
    assert!(server.run(&["schedules", "list"]).expect(0).stdout.contains("often"));
    wait_until("it started a run", || {
        server.run(&["runs", "list", "--workflow", "fan-out"]).expect(0).stdout.contains("fan-out/")
    });
    server.run(&["schedules", "pause", "often"]).expect(0);
    let received = server.run(&["schedules", "get", "often", "-o", "json"]).expect(0).json();
    assert_eq!(received["paused"], true);
    server.run(&["schedules", "resume", "often"]).expect(0);
    server.run(&["schedules", "delete", "often"]).expect(0);
    server.run(&["schedules", "get", "often"]).expect(3);
}

#[test]
fn the_admin_key_creates_and_revokes_keys() {
    let folder = tempfile::tempdir().unwrap();
    let admin = "0123456789abcdef0123456789abcdef";
    let mut command = crate::support::windlass();
    let store = sqlite_in(folder.path(), "app.db");
    command.args(["server", "--samples", "--bind", "127.0.0.1:0", "--auth", "keys"]);
    command.args(["--store", &store, "--log", "error"]).env("WINDLASS_ADMIN_KEY", admin);
    let server = Server::spawn(command);
    let output = server.run(&["workflows", "list"]).expect(6);
    assert!(output.stderr.contains("WINDLASS_KEY"), "{output:?}");
    let make = ["keys", "create", "ci", "--scope", "read", "--expires", "90 days", "--key", admin];
    let key = server.run(&make).expect(0).stdout.trim().to_owned();
    assert!(key.starts_with("wl_"), "{key}");
    server.run(&["workflows", "list", "--key", &key]).expect(0);
    server.run(&["runs", "create", "hello", "--key", &key]).expect(6);
    let listed = server.run(&["keys", "list", "--key", admin, "-o", "json"]).expect(0).json();
    let id = listed["keys"][0]["id"].as_str().unwrap().to_owned();
    server.run(&["keys", "revoke", &id, "--key", admin]).expect(0);
    server.run(&["workflows", "list", "--key", &key]).expect(6);
    // The scheme is case-insensitive, and the ledger records the actor.
    let lower = format!("authorization: bearer {admin}");
    server.run(&["runs", "create", "order/o-1", "-H", &lower]).expect(0);
    server.run(&["runs", "pause", "order/o-1", "-H", &lower]).expect(0);
    let events = ["runs", "events", "order/o-1", "-o", "json", "--key", admin];
    wait_until("the pause is in the ledger", || {
        let events = server.run(&events).expect(0).json();
        let mut events = events["events"].as_array().into_iter().flatten();
        let paused = events.find(|event| event["type"] == "workflow.paused");
        paused.is_some_and(|event| event["summary"]["actor"]["kind"] == "admin_key")
    });
}

#[test]
fn listings_read_all_pages() {
    let page = |items: &str, name: &str, cursor: Option<&str>| {
        let row = json!({ "id": name, "name": name });
        json!({ items: [row], "cursor": cursor, "hasNextPage": cursor.is_some() })
    };
    for (items, path) in [("schedules", "GET /api/schedules"), ("keys", "GET /api/keys")] {
        let first = vec![(path, 200, page(items, "one", Some("next")))];
        let server = FakeServer::first_then(first, vec![(path, 200, page(items, "two", None))]);
        let output = server.run(&[items, "list"]).expect(0);
        assert!(output.stdout.contains("one") && output.stdout.contains("two"), "{output:?}");
        assert!(server.requests()[1].line.contains("cursor=next"), "{:?}", server.requests());
        let output = server.run(&[items, "list", "-o", "json"]).expect(0).json();
        assert_eq!(output["hasNextPage"], false);
    }
}
