//! The management commands against the real server.

use serde_json::{Value, json};

use crate::scripted::Scripted;
use crate::support::{Server, sqlite_in, until};

fn start() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_in(folder.path(), "app.db"));
    (folder, server)
}

fn status(server: &Server, run: &str) -> String {
    let got = server.say(&["runs", "get", run, "-o", "json"]).expect(0).json();
    got["details"]["status"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_run_from_its_start_to_its_end() {
    let (_folder, server) = start();
    let args = ["runs", "create", "hello/h-1", "--params", "\"Ann\"", "--label", "who=ann"];
    assert_eq!(server.say(&args).expect(0).out.trim(), "hello/h-1");
    let said = server.say(&["runs", "create", "hello/h-1"]).expect(1);
    assert!(said.err.contains("INSTANCE_ID_ALREADY_EXISTS"), "{said:?}");
    until("it is complete", || status(&server, "hello/h-1") == "complete");
    for args in [
        &["runs", "get", "hello/h-1"][..],
        &["runs", "get", "hello", "h-1", "--full"],
        &["instances", "get", "--workflow", "hello", "--id", "h-1"],
    ] {
        let said = server.say(args).expect(0);
        assert!(said.out.contains("complete") && said.out.contains("HELLO, ANN!"), "{said:?}");
    }
    let got = server.say(&["runs", "get", "hello/h-1", "-o", "json"]).expect(0).json();
    let key = got["meta"]["runKey"].as_str().expect("the run key is told").to_owned();
    assert!(server.say(&["runs", "get", &key]).expect(0).out.contains("hello/h-1"));

    let said = server.say(&["runs", "history", "hello/h-1", "--include-logs"]).expect(0);
    for text in ["compose", "pause for effect", "shout", "greeting Ann"] {
        assert!(said.out.contains(text), "{text}: {said:?}");
    }
    let said = server.say(&["runs", "logs", "hello/h-1", "--follow"]).expect(0);
    assert!(said.out.contains("greeting Ann"), "{said:?}");
    let said = server.say(&["runs", "events", "hello/h-1"]).expect(0);
    assert!(said.out.contains("workflow.completed"), "{said:?}");
    let said = server.say(&["runs", "list", "--label", "who=ann"]).expect(0);
    assert!(said.out.contains("hello/h-1"), "{said:?}");
    let said =
        server.say(&["runs", "list", "--workflow", "hello", "--status", "errored"]).expect(0);
    assert!(!said.out.contains("h-1"), "{said:?}");
    let said = server.say(&["runs", "list", "--workflow", "helo"]).expect(3);
    assert!(said.err.contains("did you mean \"hello\"?"), "{said:?}");
    server.say(&["runs", "get", "hello/none"]).expect(3);
    for args in [
        &["runs", "get", "helo/h-1"][..],
        &["runs", "history", "helo/h-1"],
        &["runs", "pause", "helo/h-1"],
        &["runs", "send-event", "helo/h-1", "--type", "x"],
        &["why", "helo/h-1"],
        &["runs", "terminate", "--all", "--workflow", "helo"],
    ] {
        let said = server.say(args).expect(3);
        assert!(said.err.contains("did you mean \"hello\"?"), "{args:?}: {said:?}");
    }
    let said = server.say(&["runs", "resume", "hello/h-1"]).expect(0);
    assert!(said.out.contains("stays complete: there is nothing to resume"), "{said:?}");
    let said = server.say(&["runs", "send-event", "hello/h-1", "--type", "x"]).expect(1);
    assert!(said.err.contains("hello/h-1 is complete and takes nothing more"), "{said:?}");
    let said = server.say(&["runs", "send-event", "hello/h-1", "--type", "a b"]).expect(1);
    assert!(said.err.contains("than letters, digits, `_` and `-`"), "{said:?}");
}

#[test]
fn everything_is_ended_only_by_who_says_so() {
    let (_folder, server) = start();
    server.say(&["runs", "create", "order/o-1"]).expect(0);
    for action in ["terminate", "pause", "resume", "retry"] {
        let said = server.say(&["runs", action, "--all"]).expect(2);
        assert!(said.err.contains("every run") && said.err.contains("--yes"), "{said:?}");
    }
    let said = server.say(&["runs", "terminate", "--all", "--dry-run"]).expect(0);
    assert!(said.out.contains("1 run matches"), "{said:?}");
    assert_ne!(status(&server, "order/o-1"), "terminated");
    server.say(&["runs", "terminate", "--all", "--yes"]).expect(0);
    until("it is terminated", || status(&server, "order/o-1") == "terminated");
}

#[test]
fn a_pause_is_waited_for() {
    let (_folder, server) = start();
    server.say(&["runs", "create", "order/o-1"]).expect(0);
    let pause = ["runs", "pause", "order/o-1", "--wait", "--timeout", "60s"];
    assert_eq!(server.say(&pause).expect(0).out.trim(), "order/o-1 is paused");
    assert_eq!(status(&server, "order/o-1"), "paused");
    server.say(&["runs", "terminate", "order/o-1"]).expect(0);
    until("it is terminated", || status(&server, "order/o-1") == "terminated");
    server.say(&pause).expect(1);
}

#[test]
fn an_operator_pauses_resumes_restarts_and_ends_runs() {
    let (_folder, server) = start();
    server.say(&["runs", "create", "order/o-1"]).expect(0);
    server.say(&["runs", "pause", "order/o-1"]).expect(0);
    until("it is paused", || status(&server, "order/o-1") == "paused");
    let said = server.say(&["why", "order/o-1"]).expect(0);
    assert!(said.out.contains("paused"), "{said:?}");
    server.say(&["runs", "resume", "order/o-1"]).expect(0);
    until("it waits for its event", || {
        server.say(&["why", "order/o-1"]).expect(0).out.contains("approval")
    });
    server.say(&["runs", "restart", "order/o-1"]).expect(0);
    let event = ["runs", "send-event", "order/o-1", "--type", "approval", "--payload"];
    server.say(&[&event[..], &["{\"approved\":false}"]].concat()).expect(0);
    let said = server.say(&["runs", "watch", "order/o-1"]).expect(4);
    assert!(said.err.contains("not approved"), "{said:?}");
    // A retry goes on after the steps that are done: the event is consumed, so it fails again.
    let said = server.say(&["runs", "retry", "order/o-1", "--wait", "--timeout", "60s"]).expect(4);
    assert!(said.err.contains("errored"), "{said:?}");
    let said = server.say(&["runs", "terminate", "order/o-1"]).expect(1);
    assert!(said.err.contains("INSTANCE_TERMINAL"), "{said:?}");

    server.say(&["runs", "create", "order/o-2", "--label", "batch=7"]).expect(0);
    let count = ["runs", "terminate", "--all", "--label", "batch=7", "--dry-run"];
    assert!(server.say(&count).expect(0).out.contains("1 run matches"), "it only counts");
    assert_ne!(status(&server, "order/o-2"), "terminated");
    server.say(&["runs", "terminate", "--all", "--label", "batch=7"]).expect(0);
    until("it is terminated", || status(&server, "order/o-2") == "terminated");
}

#[test]
fn waiting_ends_as_the_run_does() {
    let (_folder, server) = start();
    let said = server.say(&["runs", "create", "flaky", "--wait"]).expect(0);
    assert_eq!(said.out.trim(), "\"it worked at attempt 3\"");
    let said = server.say(&["runs", "create", "fan-out", "--params", "5", "--wait", "-o", "json"]);
    let answer: Value = said.expect(0).json();
    assert_eq!(answer["details"]["output"], 30);
    let said = server.say(&["runs", "create", "order/late", "--wait", "--timeout", "1s"]).expect(5);
    assert!(said.err.contains("windlass why order/late"), "{said:?}");
    assert!(said.err.contains("hint: \"settle\" sleeps until"), "{said:?}");
    let create = ["runs", "create", "order/later", "--wait", "--timeout", "1s", "-o", "json"];
    let told = server.say(&create).expect(5).json();
    assert_eq!((&told["done"], &told["id"]), (&false.into(), &"later".into()), "{told}");
    assert_eq!(told["details"]["status"], "waiting", "{told}");
    server.say(&["runs", "terminate", "order/late", "--reason", "test"]).expect(0);
    server.say(&["runs", "watch", "order/late"]).expect(4);
}

#[test]
fn schedules_start_runs() {
    let (_folder, server) = start();
    let put =
        ["schedules", "put", "often", "--workflow", "fan-out", "--every", "1s", "--params", "2"];
    server.say(&put).expect(0);
    assert!(server.say(&["schedules", "list"]).expect(0).out.contains("often"));
    until("it started a run", || {
        server.say(&["runs", "list", "--workflow", "fan-out"]).expect(0).out.contains("fan-out/")
    });
    server.say(&["schedules", "pause", "often"]).expect(0);
    let got = server.say(&["schedules", "get", "often", "-o", "json"]).expect(0).json();
    assert_eq!(got["paused"], true);
    server.say(&["schedules", "resume", "often"]).expect(0);
    server.say(&["schedules", "delete", "often"]).expect(0);
    server.say(&["schedules", "get", "often"]).expect(3);
}

#[test]
fn keys_are_made_with_the_admin_key_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let admin = "0123456789abcdef0123456789abcdef";
    let mut command = crate::support::windlass();
    let store = sqlite_in(folder.path(), "app.db");
    command.args(["server", "--samples", "--bind", "127.0.0.1:0", "--auth", "keys"]);
    command.args(["--store", &store, "--log", "error"]).env("WINDLASS_ADMIN_KEY", admin);
    let server = Server::spawn(command);
    let said = server.say(&["workflows", "list"]).expect(6);
    assert!(said.err.contains("WINDLASS_KEY"), "{said:?}");
    let make = ["keys", "create", "ci", "--scope", "read", "--expires", "90 days", "--key", admin];
    let key = server.say(&make).expect(0).out.trim().to_owned();
    assert!(key.starts_with("wl_"), "{key}");
    server.say(&["workflows", "list", "--key", &key]).expect(0);
    server.say(&["runs", "create", "hello", "--key", &key]).expect(6);
    let listed = server.say(&["keys", "list", "--key", admin, "-o", "json"]).expect(0).json();
    let id = listed["keys"][0]["id"].as_str().unwrap().to_owned();
    server.say(&["keys", "revoke", &id, "--key", admin]).expect(0);
    server.say(&["workflows", "list", "--key", &key]).expect(6);
    // However the scheme is written, and the ledger tells what was done with it.
    let lower = format!("authorization: bearer {admin}");
    server.say(&["runs", "create", "order/o-1", "-H", &lower]).expect(0);
    server.say(&["runs", "pause", "order/o-1", "-H", &lower]).expect(0);
    let events = ["runs", "events", "order/o-1", "-o", "json", "--key", admin];
    until("the pause is in the ledger", || {
        let events = server.say(&events).expect(0).json();
        let mut events = events["events"].as_array().into_iter().flatten();
        let paused = events.find(|event| event["type"] == "workflow.paused");
        paused.is_some_and(|event| event["summary"]["actor"]["kind"] == "admin_key")
    });
}

#[test]
fn lists_are_read_to_their_last_page() {
    let page = |items: &str, name: &str, cursor: Option<&str>| {
        let row = json!({ "id": name, "name": name });
        json!({ items: [row], "cursor": cursor, "hasNextPage": cursor.is_some() })
    };
    for (items, path) in [("schedules", "GET /api/schedules"), ("keys", "GET /api/keys")] {
        let first = vec![(path, 200, page(items, "one", Some("next")))];
        let server = Scripted::first_then(first, vec![(path, 200, page(items, "two", None))]);
        let said = server.say(&[items, "list"]).expect(0);
        assert!(said.out.contains("one") && said.out.contains("two"), "{said:?}");
        assert!(server.asked()[1].line.contains("cursor=next"), "{:?}", server.asked());
        let said = server.say(&[items, "list", "-o", "json"]).expect(0).json();
        assert_eq!(said["hasNextPage"], false);
    }
}
