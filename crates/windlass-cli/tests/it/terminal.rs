//! Output on a terminal: colours, tables that fit its width, progress.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;

use crate::fake_server::FakeServer;
use crate::support::Server;

/// Runs a command on a terminal with this width. Returns the exit code and the output.
fn on_terminal(command: &Command, columns: u16) -> (Option<i32>, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = OpenOptions::new().read(true).write(true).open(path).unwrap();
    // A new session, so that the command cannot use the terminal of the test runner.
    let mut apart = Command::new("setsid");
    apart.arg("--wait").arg(command.get_program()).args(command.get_args());
    apart.env("TERM", "xterm").env_remove("NO_COLOR");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => apart.env(name, value),
            None => apart.env_remove(name),
        };
    }
    apart.stdin(Stdio::null());
    apart.stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut child = apart.spawn().expect("setsid is installed");
    drop(apart);
    let mut drawn = Vec::new();
    // The read fails when the last process with the terminal open exits.
    let _ = File::from(master).read_to_end(&mut drawn);
    (child.wait().unwrap().code(), String::from_utf8(drawn).unwrap())
}

fn runs() -> FakeServer {
    let row = |n: u32| {
        json!({
            "workflowName": "a-workflow-with-a-rather-long-name", "id": format!("run-{n}"),
            "createdAt": "2026-03-01T00:00:00Z", "updatedAt": "2026-03-01T00:00:00Z",
            "details": { "status": "errored", "error": { "name": "Error", "message":
                "the service that was asked did not answer in the time that it was given" } },
        })
    };
    let page = json!({ "runs": [row(1), row(2)], "hasNextPage": false });
    FakeServer::new(vec![("GET /api/runs", 200, page)])
}

#[test]
fn colours_are_only_for_terminals_that_support_them() {
    let server = runs();
    let (code, drawn) = on_terminal(&server.command(&["runs", "list"]), 200);
    assert_eq!(code, Some(0), "{drawn}");
    assert!(drawn.contains("\u{1b}[31merrored"), "{drawn:?}");
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let mut command = server.command(&["runs", "list"]);
        command.env(name, value);
        let (_, drawn) = on_terminal(&command, 200);
        assert!(drawn.contains("errored") && !drawn.contains('\u{1b}'), "{name}: {drawn:?}");
    }
    let piped = server.run(&["runs", "list"]).expect(0);
    assert!(!piped.stdout.contains('\u{1b}'), "{piped:?}");
}

#[test]
fn tables_fit_the_terminal_and_are_complete_in_a_pipe() {
    let server = runs();
    let mut command = server.command(&["runs", "list"]);
    command.env("NO_COLOR", "1");
    for columns in [80, 120] {
        let (_, drawn) = on_terminal(&command, columns);
        let widest = drawn.lines().map(|line| line.trim_end().chars().count()).max();
        assert!(widest.unwrap() <= usize::from(columns), "{columns}: {drawn}");
        // One line per run: its name and status are complete, the error is truncated.
        let lines: Vec<&str> = drawn.lines().map(str::trim_end).collect();
        assert_eq!(lines.len(), 3, "{columns}: {drawn}");
        assert!(
            lines[1].starts_with("a-workflow-with-a-rather-long-name/run-1  errored"),
            "{drawn}"
        );
        assert!(lines[1].ends_with('…') && !drawn.contains("UPDATED"), "{columns}: {drawn}");
        assert!(!drawn.contains("CREATED"), "{columns}: {drawn}");
    }
    let (_, drawn) = on_terminal(&command, 200);
    assert!(drawn.contains("UPDATED") && drawn.contains("CREATED"), "{drawn}");
    assert!(!drawn.contains('…'), "{drawn}");
    // In a pipe, each run is one line of any length, for tools such as grep.
    let piped = server.run(&["runs", "list"]).expect(0).stdout;
    assert_eq!(piped.lines().count(), 3, "{piped}");
    assert!(piped.lines().nth(1).unwrap().ends_with("it was given"), "{piped}");
}

#[test]
fn a_long_wait_shows_progress() {
    let server = Server::start("memory:");
    let args = ["runs", "create", "order/o-1", "--wait", "--timeout", "8s"];
    let (code, drawn) = on_terminal(&server.command(&args), 100);
    assert_eq!(code, Some(5), "{drawn}");
    assert!(drawn.contains("order/o-1: waiting, step \"approval\""), "{drawn:?}");
    // A pipe gets no progress line.
    let args = ["runs", "create", "order/o-2", "--wait", "--timeout", "4s"];
    let output = server.run(&args).expect(5);
    assert!(output.stdout.is_empty() && !output.stderr.contains("step"), "{output:?}");
}

#[test]
fn control_characters_from_workflows_are_escaped() {
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31mred\rgone\nerror: forged";
    let error = json!({ "name": "Error", "message": evil });
    let step = json!({
        "name": evil, "type": "do", "status": "errored", "attempts": 1, "error": error,
        "errorName": "Error", "errorMessage": evil, "result": evil,
    });
    let run = json!({
        "id": "x", "details": { "status": "errored", "error": error, "output": { "a": evil } },
        "meta": { "currentStep": step, "labels": { "a": evil }, "params": evil, "runKey": "k" },
    });
    let log = json!({ "id": "1", "level": "info", "message": evil, "category": evil,
        "data": { "a": evil }, "createdAt": evil });
    let history = json!({ "runNumber": 0, "steps": [step], "logs": [log],
        "events": [{ "type": evil, "payload": evil, "createdAt": evil }] });
    let why =
        json!({ "status": "waiting", "reasons": [{ "code": "x", "text": evil, "depth": 0 }] });
    let refused = json!({ "code": evil, "message": evil });
    let server = FakeServer::new(vec![
        ("GET /api/workflows/order/instances/x/history", 200, history),
        ("GET /api/workflows/order/instances/x/why", 200, why),
        (
            "GET /api/workflows/order/instances/x/ledger",
            200,
            json!({ "events": [{ "ordinal": 0, "type": evil, "summary": { "a": evil }, "at": evil }] }),
        ),
        (
            "GET /api/workflows/order/instances/x/result",
            200,
            json!({ "id": "x", "done": true, "details": run["details"] }),
        ),
        ("POST /api/workflows/order/instances/x/retry", 200, run.clone()),
        ("POST /api/workflows/order/instances/x/pause", 409, refused),
        ("GET /api/workflows/order/instances/x", 200, run.clone()),
        (
            "GET /api/runs",
            200,
            json!({ "runs": [{ "workflowName": evil, "id": evil,
            "details": run["details"], "labels": { "a": evil } }] }),
        ),
        ("GET /api/schedules/s", 200, json!({ "workflow": evil, "cron": evil, "note": evil })),
        ("GET /api/durable/health", 200, json!({ "status": evil, "note": evil })),
    ]);
    for (args, code) in [
        (&["runs", "get", "order/x", "--full"][..], 0),
        (&["runs", "history", "order/x", "--full", "--include-logs"], 0),
        (&["runs", "logs", "order/x", "--full"], 0),
        (&["runs", "logs", "order/x", "--follow"], 0),
        (&["runs", "logs", "order/x", "-o", "jsonl"], 0),
        (&["runs", "events", "order/x", "--full"], 0),
        (&["runs", "events", "order/x"], 0),
        (&["runs", "list"], 0),
        (&["runs", "list", "-o", "json"], 0),
        (&["runs", "retry", "order/x", "--wait"], 4),
        (&["runs", "pause", "order/x"], 1),
        (&["why", "order/x"], 0),
        (&["schedules", "get", "s"], 0),
        (&["health"], 0),
    ] {
        let output = server.run(args).expect(code);
        let both = format!("{}{}", output.stdout, output.stderr);
        let steers = |c: char| c.is_control() && c != '\n';
        assert!(!both.contains(steers), "{args:?}: {both:?}");
        assert!(!both.lines().any(|line| line.starts_with("error: forged")), "{args:?}: {both}");
        assert!(both.contains("owned"), "{args:?}: {both}");
    }
}
