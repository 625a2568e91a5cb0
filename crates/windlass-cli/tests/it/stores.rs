//! Commands that open a store: info, doctor, verify, migrate, export and import.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use windlass::Ctx;
use windlass::admin::{Options, Retention};
use windlass::kernel::Limits;

use crate::support::{
    CommandOutput, Server, count, execute, postgres, run, run_cli, sqlite_in, wait_until, windlass,
};

/// Fills a store with runs that completed, failed, sleep, or wait for an event.
fn fill(store: &str) {
    let server = Server::start(store);
    server.run(&["runs", "create", "fan-out/ended", "--params", "30", "--wait"]).expect(0);
    server.run(&["runs", "create", "order/failed"]).expect(0);
    let no = ["--type", "approval", "--payload", "{\"approved\":false}"];
    server.run(&[&["runs", "send-event", "order/failed"][..], &no].concat()).expect(0);
    server.run(&["runs", "create", "order/waiting", "--label", "a=b"]).expect(0);
    server.run(&["runs", "send-event", "order/waiting", "--type", "other"]).expect(0);
    let status = |run: &str| {
        let received = server.run(&["runs", "get", run, "-o", "json"]).expect(0).json();
        (
            received["details"]["status"].to_string(),
            received["meta"]["currentStep"]["waitEventType"].clone(),
        )
    };
    wait_until("one failed", || status("order/failed").0 == "\"errored\"");
    wait_until("one waits", || status("order/waiting").1 == "approval");
    server.run(&["runs", "create", "hello/later", "--delay", "1 second"]).expect(0);
    server.run(&["runs", "create", "flaky/retrying", "--params", "3"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
}

/// Checks that the imported runs are complete, and that open runs continue.
fn check_runs_continue(store: &str) {
    let output = run_cli(&["verify", "--store", store]).expect(0);
    assert!(output.stdout.contains(": 0 flaws"), "{output:?}");
    let server = Server::start(store);
    let output = server.run(&["runs", "history", "fan-out/ended"]).expect(0);
    assert!(output.stdout.contains("square-29"), "{output:?}");
    let output = server.run(&["runs", "get", "order/failed"]).expect(0);
    assert!(output.stdout.contains("not approved"), "{output:?}");
    assert!(server.run(&["runs", "logs", "order/failed"]).expect(0).stdout.contains("charged"));
    let found = server.run(&["runs", "list", "--label", "a=b"]).expect(0);
    assert!(found.stdout.contains("order/waiting"), "{found:?}");
    let yes = ["--type", "approval", "--payload", "{\"approved\":true}"];
    server.run(&[&["runs", "send-event", "order/waiting"][..], &yes].concat()).expect(0);
    for run in ["order/waiting", "hello/later", "flaky/retrying"] {
        wait_until(run, || server.run(&["runs", "get", run]).expect(0).stdout.contains("complete"));
    }
    let output = server.run(&["runs", "retry", "order/failed"]).expect(0);
    assert!(output.stdout.contains("order/failed"), "{output:?}");
    assert_eq!(server.terminate(), Some(0));
    run_cli(&["verify", "--store", store]).expect(0);
}

fn export(store: &str, file: &Path) -> String {
    let file = file.to_str().unwrap();
    let output = run_cli(&["export", "--store", store, "--out", file]).expect(0);
    assert!(output.stderr.contains("exported "), "{output:?}");
    std::fs::read_to_string(file).unwrap()
}

/// The exported runs by key, without the fields that change as time passes.
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
    fill(&first);
    let (there, back) = (folder.path().join("1.jsonl"), folder.path().join("2.jsonl"));
    let lines = export(&first, &there);
    let count = lines.lines().count();
    assert!(count >= 5, "{count}");
    let file = there.to_str().unwrap();
    let output = run_cli(&["import", "--store", &database.url, file]).expect(0);
    assert!(
        output.stdout.contains(&format!("imported {count} runs and records, skipped 0")),
        "{output:?}"
    );
    // A second import changes nothing.
    let output = run_cli(&["import", "--store", &database.url, file]).expect(0);
    assert!(
        output.stdout.contains(&format!("imported 0 runs and records, skipped {count}")),
        "{output:?}"
    );
    // An export from the new store, before any run continues, has the same content.
    let again = export(&database.url, &back);
    assert_eq!(runs(&lines), runs(&again));
    let output = run_cli(&["import", "--store", &second, back.to_str().unwrap()]).expect(0);
    assert!(output.stdout.contains(&format!("imported {count} runs")), "{output:?}");
    check_runs_continue(&second);
    check_runs_continue(&database.url);
}

// Values above the default limits, and ledgers that retention has kept.
#[test]
fn a_store_with_large_values_and_kept_ledgers_moves() {
    const VALUE: usize = 3 << 20;
    let folder = tempfile::tempdir().unwrap();
    let database = postgres();
    let (first, second) = (sqlite_in(folder.path(), "a.db"), sqlite_in(folder.path(), "b.db"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limits = Limits::DEFAULT.with_body_bytes_max(Limits::BODY_BYTES_MAX);
        let resend = Duration::from_millis(250);
        let options = Options { limits, create_resend_max: resend, ..Options::default() };
        let engine = windlass::Builder::from(options).open(&first).await.unwrap();
        let echo = async |_: Ctx, text: String| -> windlass::Result<String> { Ok(text) };
        let large = engine.workflow("large", echo).unwrap();
        let run = large.start("x".repeat(VALUE)).id("one").await.unwrap();
        run.result().await.unwrap();
        engine.records("carts").put("large", &"x".repeat(VALUE)).await.unwrap();
        let old = engine.workflow("old", echo).unwrap();
        old.start("x".to_owned()).id("one").await.unwrap().result().await.unwrap();
        let policy = Retention::keep_for(Duration::from_secs(1)).unwrap().keep_ledger();
        engine.admin().set_retention("old", Some(&policy)).await.unwrap();
        while engine.admin().sweep().await.unwrap().trees == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        engine.stop(Duration::from_secs(5)).await.unwrap();
    });
    let output = run_cli(&["verify", "--store", &first]).expect(0);
    assert!(output.stdout.contains(": 0 flaws"), "{output:?}");
    let file = folder.path().join("all.jsonl");
    let file = file.to_str().unwrap();
    let output = run_cli(&["export", "--store", &first, "--out", file]).expect(0);
    assert!(output.stderr.contains("exported 1 runs and 1 records"), "{output:?}");
    assert!(output.stderr.contains("left out 1 kept ledgers of deleted runs"), "{output:?}");
    for store in [&database.url, &second] {
        let output = run_cli(&["import", "--store", store, file]).expect(0);
        assert!(output.stdout.contains("imported 2 runs and records, skipped 0"), "{output:?}");
        let output = run_cli(&["verify", "--store", store]).expect(0);
        assert!(output.stdout.contains(": 0 flaws"), "{output:?}");
    }
}

#[test]
fn a_modified_export_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (sqlite_in(folder.path(), "a.db"), sqlite_in(folder.path(), "b.db"));
    let server = Server::start(&first);
    server.run(&["runs", "create", "hello/h-1", "--params", "\"Ann\"", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let file = folder.path().join("runs.jsonl");
    let text = export(&first, &file);
    std::fs::write(&file, text.replace("HELLO, ANN!", "HELLO, EVE!")).unwrap();
    let output = run_cli(&["import", "--store", &second, file.to_str().unwrap()]).expect(1);
    assert!(output.stderr.contains("is not what was exported"), "{output:?}");
    std::fs::write(&file, "{\"format\":99}\nnonsense\n").unwrap();
    let output = run_cli(&["import", "--store", &second, file.to_str().unwrap()]).expect(1);
    assert!(output.stderr.contains("line 1: the line has format 99"), "{output:?}");
    assert!(output.stderr.contains("line 2:") && output.stdout.contains("2 failed"), "{output:?}");
}

#[test]
fn info_doctor_verify_and_migrate() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    for command in ["info", "doctor", "verify", "export"] {
        let output = run_cli(&[command, "--store", &store]).expect(3);
        assert!(output.stderr.contains("there is no store at"), "{output:?}");
    }
    run_cli(&["migrate", "--store", &store]).expect(0);
    let output = run_cli(&["doctor", "--store", &store]).expect(0);
    for text in ["schema", "compiled with", "clock", "disk", "fsync", "no problems found"] {
        assert!(output.stdout.contains(text), "{text}: {output:?}");
    }
    assert!(run_cli(&["info", "--store", &store]).expect(0).stdout.contains("none yet"));
    let database = postgres();
    let reading = ["info", "doctor", "verify", "export"];
    for command in reading {
        let output = run_cli(&[command, "--store", &database.url]).expect(3);
        assert!(output.stderr.contains("has no schema \"windlass\""), "{output:?}");
        assert!(
            output.stderr.contains("STORE_NOT_FOUND") && output.stderr.contains("windlass migrate")
        );
    }
    // None of the reading commands has created the schema.
    execute(&database.url, "CREATE SCHEMA windlass; DROP SCHEMA windlass");
    run_cli(&["migrate", "--store", &database.url]).expect(0);
    // Simulates a store of an older build.
    let newest = "SELECT max(version) FROM windlass.refinery_schema_history";
    let back = format!("DELETE FROM windlass.refinery_schema_history WHERE version = ({newest})");
    execute(
        &database.url,
        &format!("CREATE TABLE kept AS TABLE windlass.refinery_schema_history; {back}"),
    );
    for command in reading {
        let output = run_cli(&[command, "--store", &database.url]).expect(1);
        assert!(output.stderr.contains("is at version 6; this build needs 7"), "{output:?}");
        assert!(
            output.stderr.contains("STORE_OLDER") && output.stderr.contains("windlass migrate")
        );
    }
    execute(
        &database.url,
        "INSERT INTO windlass.refinery_schema_history TABLE kept EXCEPT TABLE windlass.refinery_schema_history",
    );
    // The test PostgreSQL runs with unsafe settings, which doctor reports.
    let output = run_cli(&["doctor", "--store", &database.url]).expect(1);
    for text in ["PostgreSQL", "version", "commit", "old transactions", "full_page_writes is off"] {
        assert!(output.stdout.contains(text), "{text}: {output:?}");
    }
}

#[test]
fn commands_find_the_store_like_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let command = |args: &[&str]| {
        let mut command = windlass();
        command.current_dir(folder.path()).args(args);
        command
    };
    let is_there = |name: &str| folder.path().join(name).exists();
    // Without an explicit store, none is created.
    for args in [&["migrate"][..], &["import"]] {
        let output = run(command(args)).expect(2);
        assert!(output.stderr.contains("no store is configured"), "{output:?}");
        assert!(!is_there(".windlass"));
    }
    let output = run(command(&["info"])).expect(3);
    assert!(output.stderr.contains(".windlass/windlass.db"), "{output:?}");
    // Only `store` is read from the file; the secrets of the server are not needed.
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
fn an_open_error_names_the_database_once() {
    let database = postgres();
    let missing = database.url.replace("/cli_", "/no_");
    for (url, what) in [
        (missing.as_str(), ": database \"no_"),
        ("postgres://me:secret@127.0.0.1:9/db", "cannot connect to PostgreSQL: 127.0.0.1:9: "),
    ] {
        for args in
            [&["doctor", "--store", url][..], &["server", "--bind", "127.0.0.1:0", "--store", url]]
        {
            let output = run_cli(args).expect(1);
            let line = output.stderr.lines().find(|line| line.starts_with("error:")).unwrap();
            assert!(line.contains(what) && line.ends_with("[STORE_UNAVAILABLE]"), "{output:?}");
            assert_eq!(line.matches("postgres://").count(), 1, "{output:?}");
            let sources = line.matches("error connecting").count();
            assert!(sources <= 1 && !output.stderr.contains("secret"), "{output:?}");
        }
    }
}

#[test]
fn export_warns_about_open_runs() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    server.run(&["runs", "create", "fan-out/ended", "--wait"]).expect(0);
    server.run(&["runs", "create", "order/open"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let output = run_cli(&["export", "--store", &store]).expect(0);
    assert!(output.stderr.contains("1 of them have not ended"), "{output:?}");
    let output = run_cli(&["export", "--store", &store, "--ended"]).expect(0);
    assert!(!output.stderr.contains("have not ended"), "{output:?}");
}

#[test]
fn verify_compares_chains_with_anchors() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    server.run(&["runs", "create", "hello/h-1", "--wait"]).expect(0);
    let output = run_cli(&["verify", "--store", &store]).expect(1);
    assert!(
        output.stderr.contains("STORE_LOCKED") && output.stderr.contains("over HTTP"),
        "{output:?}"
    );
    assert!(output.stderr.contains("stop the server first"), "{output:?}");
    assert_eq!(server.terminate(), Some(0));
    let heads = folder.path().join("heads.txt");
    let heads = heads.to_str().unwrap();
    run_cli(&["verify", "--store", &store, "--save", heads]).expect(0);
    let output = run_cli(&["verify", "--store", &store, "--anchor", heads]).expect(0);
    assert!(
        output.stdout.contains("1 anchors: 0 flaws") || output.stdout.contains("anchors: 0 flaws")
    );
    let output = run_cli(&["verify", "--store", &store, "hello/h-1"]).expect(0);
    assert!(output.stdout.starts_with("1 runs"), "{output:?}");
    run_cli(&["verify", "--store", &store, "hello/none"]).expect(3);
    // A head that is not in the ledger: the ledger was truncated or rewritten.
    let text = std::fs::read_to_string(heads).unwrap();
    let forged = text.replace("sha256:", "sha256:0").replace('\n', "");
    let forged: String = forged.chars().take(forged.chars().count() - 1).collect();
    std::fs::write(heads, forged).unwrap();
    let output = run_cli(&["verify", "--store", &store, "--anchor", heads]).expect(1);
    assert!(output.stdout.contains("flawed:") || output.stderr.contains("anchor"), "{output:?}");
}

#[test]
fn verify_reports_the_run_and_ordinal_of_a_flaw() {
    let database = postgres();
    let server = Server::start(&database.url);
    server.run(&["runs", "create", "hello/h-1", "--wait"]).expect(0);
    server.run(&["runs", "create", "hello/h-2", "--wait"]).expect(0);
    let received = server.run(&["runs", "get", "hello/h-1", "-o", "json"]).expect(0).json();
    let key = received["meta"]["runKey"].as_str().unwrap().to_owned();
    assert_eq!(server.terminate(), Some(0));
    run_cli(&["verify", "--store", &database.url]).expect(0);
    // A superuser can bypass the triggers that reject changes.
    execute(
        &database.url,
        &format!(
            "SET session_replication_role = replica; UPDATE windlass.events SET created_at = created_at + 1 \
             WHERE run_key = '{key}' AND ordinal = 3"
        ),
    );
    let output = run_cli(&["verify", "--store", &database.url]).expect(1);
    assert!(output.stdout.contains(&format!("flawed: run {key} at ordinal 3")), "{output:?}");
    assert!(
        output.stdout.contains("[hello/h-1]") && output.stdout.contains(": 1 flaws"),
        "{output:?}"
    );
    let report = run_cli(&["verify", "--store", &database.url, "-o", "json"]).expect(1).json();
    assert_eq!((&report["clean"], &report["runs"]), (&Value::from(false), &Value::from(2)));
    let flaw = &report["flaws"][0];
    assert_eq!(flaw["runKey"], key.as_str());
    assert_eq!((&flaw["ordinal"], &flaw["id"]), (&Value::from(3), &Value::from("h-1")));
    // The other run has no flaw, and the heads of a damaged store are not saved.
    run_cli(&["verify", "--store", &database.url, "hello/h-2"]).expect(0);
    let folder = tempfile::tempdir().unwrap();
    let heads = folder.path().join("heads.txt");
    let save = ["verify", "--store", &database.url, "--save", heads.to_str().unwrap()];
    assert!(run_cli(&save).expect(1).stdout.contains("no anchors were saved"));
    assert!(!heads.exists());
}

#[test]
fn verify_finds_a_result_changed_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let store = sqlite_in(folder.path(), "app.db");
    let server = Server::start(&store);
    server.run(&["runs", "create", "hello/h-1", "--params", "\"Ann\"", "--wait"]).expect(0);
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
    let output = run_cli(&["verify", "--store", &store]).expect(1);
    assert!(
        output.stdout.contains("at ordinal") && output.stdout.contains("[hello/h-1]"),
        "{output:?}"
    );
}

#[test]
fn store_commands_print_json() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let json =
        |command: &str| run_cli(&[command, "--store", &store, "-o", "json"]).expect(0).json();
    assert!(json("migrate")["schema"].is_string());
    let server = Server::start(&store);
    server.run(&["runs", "create", "fan-out/f-1", "--wait"]).expect(0);
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
    let lines = run_cli(&["doctor", "--store", &store, "-o", "jsonl"]).expect(0).stdout;
    assert_eq!(lines.lines().count(), names.len());
    let verified = json("verify");
    assert_eq!((&verified["clean"], &verified["flaws"]), (&true.into(), &Value::Array(vec![])));
    let file = folder.path().join("runs.jsonl");
    let count = export(&store, &file).lines().count();
    let other = sqlite_in(folder.path(), "other.db");
    let import = ["import", "--store", &other, file.to_str().unwrap(), "-o", "json"];
    let report = run_cli(&import).expect(0).json();
    assert_eq!((&report["imported"], &report["failed"]), (&count.into(), &0.into()), "{report}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
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
        let output = into(command, writer);
        assert_eq!(output.stderr, "", "{args:?}");
        output.expect(0);
    }
}

fn into(mut command: Command, out: std::io::PipeWriter) -> CommandOutput {
    let output = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).output().unwrap();
    CommandOutput {
        code: output.status.code().unwrap_or(-1),
        stdout: String::new(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_server_has_no_more_connections_than_its_settings_say() {
    let database = postgres();
    let mark = if database.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{mark}application_name=counted", database.url);
    let mut command = windlass();
    command.args([
        "server",
        "--auth",
        "off",
        "--samples",
        "--bind",
        "127.0.0.1:0",
        "--log",
        "error",
    ]);
    command.args(["--store", &url, "--pool-size-max", "3", "--lease-pool-size-max", "1"]);
    command.args(["--committers", "2"]);
    let server = Server::spawn(command);
    let most = std::thread::scope(|scope| {
        let work: Vec<_> = (0..4)
            .map(|n| {
                let server = &server;
                scope.spawn(move || {
                    for run in 0..5 {
                        let run = format!("fan-out/r-{n}-{run}");
                        server.run(&["runs", "create", &run, "--params", "20", "--wait"]).expect(0);
                        server.run(&["runs", "list"]).expect(0);
                    }
                })
            })
            .collect();
        let mut most = 0;
        while work.iter().any(|work| !work.is_finished()) {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted' \
                       AND datname = current_database()";
            most = most.max(count(&database.url, sql));
        }
        most
    });
    // Both pools, the committers, and the connection that listens.
    assert!((4..=3 + 1 + 2 + 1).contains(&most), "{most} connections");
    assert_eq!(server.terminate(), Some(0));
}
