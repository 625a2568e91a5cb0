//! The commands that open a store: info, doctor, verify, migrate, export and import.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Said, Server, execute, postgres, run, say, sqlite_in, until, windlass};

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
    let reading = ["info", "doctor", "verify", "export"];
    for command in reading {
        let said = say(&[command, "--store", &database.url]).expect(3);
        assert!(said.err.contains("has no schema \"windlass\""), "{said:?}");
        assert!(said.err.contains("STORE_NOT_FOUND") && said.err.contains("windlass migrate"));
    }
    // None of them has made it.
    execute(&database.url, "CREATE SCHEMA windlass; DROP SCHEMA windlass");
    say(&["migrate", "--store", &database.url]).expect(0);
    // As a build before left it.
    let newest = "SELECT max(version) FROM windlass.refinery_schema_history";
    let back = format!("DELETE FROM windlass.refinery_schema_history WHERE version = ({newest})");
    execute(
        &database.url,
        &format!("CREATE TABLE kept AS TABLE windlass.refinery_schema_history; {back}"),
    );
    for command in reading {
        let said = say(&[command, "--store", &database.url]).expect(1);
        assert!(said.err.contains("is at version 3; this build needs 4"), "{said:?}");
        assert!(said.err.contains("STORE_OLDER") && said.err.contains("windlass migrate"));
    }
    execute(
        &database.url,
        "INSERT INTO windlass.refinery_schema_history TABLE kept EXCEPT TABLE windlass.refinery_schema_history",
    );
    // The throw-away server of the tests is quick and not safe, and doctor says so.
    let said = say(&["doctor", "--store", &database.url]).expect(1);
    for text in ["PostgreSQL", "version", "commit", "old transactions", "full_page_writes is off"] {
        assert!(said.out.contains(text), "{text}: {said:?}");
    }
}

#[test]
fn the_store_is_where_the_server_would_find_it() {
    let folder = tempfile::tempdir().unwrap();
    let command = |args: &[&str]| {
        let mut command = windlass();
        command.current_dir(folder.path()).args(args);
        command
    };
    let is_there = |name: &str| folder.path().join(name).exists();
    // Nobody has named a store: none is made.
    for args in [&["migrate"][..], &["import"]] {
        let said = run(command(args)).expect(2);
        assert!(said.err.contains("no store is named"), "{said:?}");
        assert!(!is_there(".windlass"));
    }
    let said = run(command(&["info"])).expect(3);
    assert!(said.err.contains(".windlass/windlass.db"), "{said:?}");
    // Only the store is read of the file: the secrets of the server are not there.
    let file = "store = \"sqlite:file.db\"\n[webhooks]\nsecret = \"env:NOT_SET\"\n";
    std::fs::write(folder.path().join("windlass.toml"), file).unwrap();
    std::fs::write(folder.path().join("other.toml"), "store = \"sqlite:other.db\"\n").unwrap();
    run(command(&["migrate"])).expect(0);
    assert!(is_there("file.db") && !is_there(".windlass"));
    for args in ["info", "doctor", "verify"] {
        run(command(&[args])).expect(0);
    }
    run(command(&["migrate", "--config", "other.toml"])).expect(0);
    assert!(is_there("other.db"));
    let mut env = command(&["migrate"]);
    env.env("WINDLASS_STORE", "sqlite:env.db");
    run(env).expect(0);
    assert!(is_there("env.db"));
    let mut flag = command(&["migrate", "--store", "sqlite:flag.db"]);
    flag.env("WINDLASS_STORE", "sqlite:env2.db");
    run(flag).expect(0);
    assert!(is_there("flag.db") && !is_there("env2.db"));
}

#[test]
fn a_database_that_cannot_be_opened_is_named_once() {
    let database = postgres();
    let missing = database.url.replace("/cli_", "/no_");
    for (url, what) in [
        (missing.as_str(), "PostgreSQL refuses the connection: database \"no_"),
        ("postgres://me:secret@127.0.0.1:9/db", "PostgreSQL cannot be reached"),
    ] {
        for args in
            [&["doctor", "--store", url][..], &["server", "--bind", "127.0.0.1:0", "--store", url]]
        {
            let said = say(args).expect(1);
            let line = said.err.lines().find(|line| line.starts_with("error:")).unwrap();
            assert!(line.contains(what) && line.ends_with("[STORE_UNAVAILABLE]"), "{said:?}");
            assert_eq!(line.matches("postgres://").count(), 1, "{said:?}");
            let sources = line.matches("error connecting").count();
            assert!(sources <= 1 && !said.err.contains("secret"), "{said:?}");
        }
    }
}

#[test]
fn who_exports_runs_that_have_not_ended_is_warned() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    server.say(&["runs", "create", "fan-out/ended", "--wait"]).expect(0);
    server.say(&["runs", "create", "order/open"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let said = say(&["export", "--store", &store]).expect(0);
    assert!(said.err.contains("1 of them had not ended"), "{said:?}");
    let said = say(&["export", "--store", &store, "--ended"]).expect(0);
    assert!(!said.err.contains("had not ended"), "{said:?}");
}

#[test]
fn chains_are_verified_and_compared_with_anchors() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    server.say(&["runs", "create", "hello/h-1", "--wait"]).expect(0);
    let said = say(&["verify", "--store", &store]).expect(1);
    assert!(said.err.contains("STORE_LOCKED") && said.err.contains("over HTTP"), "{said:?}");
    assert!(said.err.contains("stop the server first"), "{said:?}");
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

#[test]
fn a_store_that_was_tampered_with_is_told_by_run_and_ordinal() {
    let database = postgres();
    let server = Server::start(&database.url);
    server.say(&["runs", "create", "hello/h-1", "--wait"]).expect(0);
    server.say(&["runs", "create", "hello/h-2", "--wait"]).expect(0);
    let got = server.say(&["runs", "get", "hello/h-1", "-o", "json"]).expect(0).json();
    let key = got["meta"]["runKey"].as_str().unwrap().to_owned();
    assert_eq!(server.terminate(), Some(0));
    say(&["verify", "--store", &database.url]).expect(0);
    // As somebody who can do anything to the database, and gets past what refuses changes.
    execute(
        &database.url,
        &format!(
            "SET session_replication_role = replica; UPDATE windlass.events SET created_at = created_at + 1 \
             WHERE run_key = '{key}' AND ordinal = 3"
        ),
    );
    let said = say(&["verify", "--store", &database.url]).expect(1);
    assert!(said.out.contains(&format!("flawed: run {key} at ordinal 3")), "{said:?}");
    assert!(said.out.contains("[hello/h-1]") && said.out.contains(": 1 flaws"), "{said:?}");
    let told = say(&["verify", "--store", &database.url, "-o", "json"]).expect(1).json();
    assert_eq!((&told["clean"], &told["runs"]), (&Value::from(false), &Value::from(2)));
    let flaw = &told["flaws"][0];
    assert_eq!(flaw["runKey"], key.as_str());
    assert_eq!((&flaw["ordinal"], &flaw["id"]), (&Value::from(3), &Value::from("h-1")));
    // The other run is whole, and what is wrong does not become an anchor.
    say(&["verify", "--store", &database.url, "hello/h-2"]).expect(0);
    let folder = tempfile::tempdir().unwrap();
    let heads = folder.path().join("heads.txt");
    let save = ["verify", "--store", &database.url, "--save", heads.to_str().unwrap()];
    assert!(say(&save).expect(1).out.contains("no anchors were saved"));
    assert!(!heads.exists());
}

#[test]
fn a_result_that_was_changed_in_the_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    server.say(&["runs", "create", "hello/h-1", "--params", "\"Ann\"", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let mut bytes = std::fs::read(&path).unwrap();
    let (old, new) = (b"HELLO, ANN!", b"HELLO, EVE!");
    let found: Vec<usize> =
        bytes.windows(old.len()).enumerate().filter(|(_, w)| w == old).map(|(at, _)| at).collect();
    assert!(!found.is_empty());
    for at in found {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    std::fs::write(&path, bytes).unwrap();
    let said = say(&["verify", "--store", &store]).expect(1);
    assert!(said.out.contains("at ordinal") && said.out.contains("[hello/h-1]"), "{said:?}");
}

#[test]
fn what_stores_say_can_be_read_by_programs() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let json = |command: &str| say(&[command, "--store", &store, "-o", "json"]).expect(0).json();
    assert!(json("migrate")["schema"].is_string());
    let server = Server::start(&store);
    server.say(&["runs", "create", "fan-out/f-1", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let info = json("info");
    let rows = info["runs"].as_array().unwrap();
    let row = rows.iter().find(|row| row["workflow"] == "fan-out").unwrap();
    assert_eq!((&row["status"], &row["count"]), (&"complete".into(), &1.into()), "{info}");
    assert_eq!(info["turns"]["ready"]["count"], 0, "{info}");
    let doctor = json("doctor");
    assert_eq!(doctor["worries"], 0, "{doctor}");
    let names: Vec<_> =
        doctor["facts"].as_array().unwrap().iter().map(|fact| &fact["name"]).collect();
    assert!(names.contains(&&Value::from("schema")), "{doctor}");
    let lines = say(&["doctor", "--store", &store, "-o", "jsonl"]).expect(0).out;
    assert_eq!(lines.lines().count(), names.len());
    let verified = json("verify");
    assert_eq!((&verified["clean"], &verified["flaws"]), (&true.into(), &Value::Array(vec![])));
    let file = folder.path().join("runs.jsonl");
    let count = export(&store, &file).lines().count();
    let other = sqlite_in(folder.path(), "other.db");
    let import = ["import", "--store", &other, file.to_str().unwrap(), "-o", "json"];
    let told = say(&import).expect(0).json();
    assert_eq!((&told["imported"], &told["failed"]), (&count.into(), &0.into()), "{told}");
}

#[test]
fn a_reader_that_is_gone_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let empty = folder.path().join("empty.jsonl");
    std::fs::write(&empty, "").unwrap();
    let man = folder.path().join("man");
    for args in [
        &["migrate", "--store", &store][..],
        &["info", "--store", &store],
        &["verify", "--store", &store],
        &["doctor", "--store", &store],
        &["import", "--store", &store, empty.to_str().unwrap()],
        &["config", "show"],
        &["completions", "bash"],
        &["man", "--out", man.to_str().unwrap()],
        &["docs"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = windlass();
        command.args(args).current_dir(folder.path());
        let said = into(command, writer);
        assert_eq!(said.err, "", "{args:?}");
        said.expect(0);
    }
}

fn into(mut command: Command, out: std::io::PipeWriter) -> Said {
    let output = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).output().unwrap();
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::new(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
