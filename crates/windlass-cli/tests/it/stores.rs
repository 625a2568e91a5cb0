//! The commands that open a store: info, doctor, verify, migrate, export and import.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::support::{Server, postgres, say, sqlite_in, until};

/// A store with runs of every kind: ended, failed, sleeping, waiting for an event.
fn filled(store: &str) {
    let server = Server::start(store);
    server.say(&["runs", "create", "fan-out/ended", "--params", "30", "--wait"]).expect(0);
    server.say(&["runs", "create", "order/failed"]).expect(0);
    let no = ["--type", "approval", "--payload", "{\"approved\":false}"];
    server.say(&[&["runs", "send-event", "order/failed"][..], &no].concat()).expect(0);
    server.say(&["runs", "create", "order/waiting", "--label", "a=b"]).expect(0);
    server.say(&["runs", "send-event", "order/waiting", "--type", "other"]).expect(0);
    let status = |run: &str| {
        let got = server.say(&["runs", "get", run, "-o", "json"]).expect(0).json();
        (got["details"]["status"].to_string(), got["meta"]["currentStep"]["waitEventType"].clone())
    };
    until("one failed", || status("order/failed").0 == "\"errored\"");
    until("one waits", || status("order/waiting").1 == "approval");
    server.say(&["runs", "create", "hello/later", "--delay", "1 second"]).expect(0);
    server.say(&["runs", "create", "flaky/retrying", "--params", "3"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
}

/// All of it is whole in the new store, and what had not ended goes on there.
fn goes_on(store: &str) {
    let said = say(&["verify", "--store", store]).expect(0);
    assert!(said.out.contains(": 0 flaws"), "{said:?}");
    let server = Server::start(store);
    let said = server.say(&["runs", "history", "fan-out/ended"]).expect(0);
    assert!(said.out.contains("square-29"), "{said:?}");
    let said = server.say(&["runs", "get", "order/failed"]).expect(0);
    assert!(said.out.contains("not approved"), "{said:?}");
    assert!(server.say(&["runs", "logs", "order/failed"]).expect(0).out.contains("charged"));
    let found = server.say(&["runs", "list", "--label", "a=b"]).expect(0);
    assert!(found.out.contains("order/waiting"), "{found:?}");
    let yes = ["--type", "approval", "--payload", "{\"approved\":true}"];
    server.say(&[&["runs", "send-event", "order/waiting"][..], &yes].concat()).expect(0);
    for run in ["order/waiting", "hello/later", "flaky/retrying"] {
        until(run, || server.say(&["runs", "get", run]).expect(0).out.contains("complete"));
    }
    let said = server.say(&["runs", "retry", "order/failed"]).expect(0);
    assert!(said.out.contains("order/failed"), "{said:?}");
    assert_eq!(server.terminate(), Some(0));
    say(&["verify", "--store", store]).expect(0);
}

fn export(store: &str, file: &Path) -> String {
    let file = file.to_str().unwrap();
    let said = say(&["export", "--store", store, "--out", file]).expect(0);
    assert!(said.err.contains("runs exported"), "{said:?}");
    std::fs::read_to_string(file).unwrap()
}

/// The exported runs by their keys; without what the time that passes may change about a turn.
fn runs(lines: &str) -> BTreeMap<String, Value> {
    let parse = |line: &str| {
        let mut run: Value = serde_json::from_str(line).unwrap();
        run["run"]["ready"].take();
        run["run"]["due_at"].take();
        (run["run"]["run_key"].to_string(), run)
    };
    lines.lines().map(parse).collect()
}

#[test]
fn runs_move_from_sqlite_to_postgres_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let database = postgres();
    let (first, second) = (sqlite_in(folder.path(), "a.db"), sqlite_in(folder.path(), "b.db"));
    filled(&first);
    let (there, back) = (folder.path().join("1.jsonl"), folder.path().join("2.jsonl"));
    let lines = export(&first, &there);
    let count = lines.lines().count();
    assert!(count >= 5, "{count}");
    let file = there.to_str().unwrap();
    let said = say(&["import", "--store", &database.url, file]).expect(0);
    assert!(said.out.contains(&format!("{count} runs imported, 0 were there")), "{said:?}");
    // Once more: nothing changes.
    let said = say(&["import", "--store", &database.url, file]).expect(0);
    assert!(said.out.contains(&format!("0 runs imported, {count} were there")), "{said:?}");
    // And back again, before anything has moved on: the same bytes.
    let again = export(&database.url, &back);
    assert_eq!(runs(&lines), runs(&again));
    let said = say(&["import", "--store", &second, back.to_str().unwrap()]).expect(0);
    assert!(said.out.contains(&format!("{count} runs imported")), "{said:?}");
    goes_on(&second);
    goes_on(&database.url);
}

#[test]
fn an_export_that_was_changed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (sqlite_in(folder.path(), "a.db"), sqlite_in(folder.path(), "b.db"));
    let server = Server::start(&first);
    server.say(&["runs", "create", "hello/h-1", "--params", "\"Ann\"", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let file = folder.path().join("runs.jsonl");
    let text = export(&first, &file);
    std::fs::write(&file, text.replace("HELLO, ANN!", "HELLO, EVE!")).unwrap();
    let said = say(&["import", "--store", &second, file.to_str().unwrap()]).expect(1);
    assert!(said.err.contains("is not what was exported"), "{said:?}");
    std::fs::write(&file, "{\"format\":99}\nnonsense\n").unwrap();
    let said = say(&["import", "--store", &second, file.to_str().unwrap()]).expect(1);
    assert!(said.err.contains("line 1: the line has format 99"), "{said:?}");
    assert!(said.err.contains("line 2:") && said.out.contains("2 failed"), "{said:?}");
}

#[test]
fn a_store_is_looked_after() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    for command in ["info", "doctor", "verify", "export"] {
        let said = say(&[command, "--store", &store]).expect(3);
        assert!(said.err.contains("there is no store at"), "{said:?}");
    }
    say(&["migrate", "--store", &store]).expect(0);
    let said = say(&["doctor", "--store", &store]).expect(0);
    for text in ["schema", "clock", "disk", "fsync", "all is well"] {
        assert!(said.out.contains(text), "{text}: {said:?}");
    }
    assert!(say(&["info", "--store", &store]).expect(0).out.contains("none yet"));
    let database = postgres();
    // The throw-away server of the tests is quick and not safe, and doctor says so.
    let said = say(&["doctor", "--store", &database.url]).expect(1);
    for text in ["PostgreSQL", "version", "commit", "old transactions", "full_page_writes is off"] {
        assert!(said.out.contains(text), "{text}: {said:?}");
    }
}

#[test]
fn chains_are_verified_and_compared_with_anchors() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    server.say(&["runs", "create", "hello/h-1", "--wait"]).expect(0);
    let said = say(&["verify", "--store", &store]).expect(1);
    assert!(said.err.contains("STORE_LOCKED") && said.err.contains("over HTTP"), "{said:?}");
    assert_eq!(server.terminate(), Some(0));
    let heads = folder.path().join("heads.txt");
    let heads = heads.to_str().unwrap();
    say(&["verify", "--store", &store, "--save", heads]).expect(0);
    let said = say(&["verify", "--store", &store, "--anchor", heads]).expect(0);
    assert!(said.out.contains("1 anchors: 0 flaws") || said.out.contains("anchors: 0 flaws"));
    let said = say(&["verify", "--store", &store, "hello/h-1"]).expect(0);
    assert!(said.out.starts_with("1 runs"), "{said:?}");
    say(&["verify", "--store", &store, "hello/none"]).expect(3);
    // A head that the ledger does not have: somebody cut its end off, or wrote it anew.
    let text = std::fs::read_to_string(heads).unwrap();
    let forged = text.replace("sha256:", "sha256:0").replace('\n', "");
    let forged: String = forged.chars().take(forged.chars().count() - 1).collect();
    std::fs::write(heads, forged).unwrap();
    let said = say(&["verify", "--store", &store, "--anchor", heads]).expect(1);
    assert!(said.out.contains("flawed:") || said.err.contains("anchor"), "{said:?}");
}
