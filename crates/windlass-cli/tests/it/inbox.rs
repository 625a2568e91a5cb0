//! `windlass inbox` against `windlass dev --as`.

use crate::support::{Server, run_cli, wait_until, windlass};

fn start(person: &str) -> Server {
    let mut command = windlass();
    command.args(["dev", "--ephemeral", "--port", "0", "--as", person]);
    Server::spawn(command)
}

// Starts an expense and waits until its request is open.
fn ask(server: &Server, id: &str, params: &str) -> String {
    let name = format!("expense/{id}");
    server.run(&["runs", "create", &name, "--params", params]).expect(0);
    let mut found = None;
    wait_until("the request is open", || {
        let list = server.run(&["inbox", "list", "-o", "json"]).expect(0).json();
        let rows = list["requests"].as_array().cloned().unwrap_or_default();
        let own = rows.iter().find(|row| row["instanceId"] == id);
        found = own.and_then(|row| Some(row["id"].as_str()?.to_owned()));
        found.is_some()
    });
    found.unwrap()
}

#[track_caller]
fn until_output(server: &Server, run: &str, expect: &str) {
    wait_until("the run has its output", || {
        let received = server.run(&["runs", "get", run, "-o", "json"]).expect(0).json();
        received["details"]["output"] == expect
    });
}

#[test]
fn an_expense_is_approved_in_the_inbox() {
    let server = start("ann:approver");
    let id = ask(&server, "e-1", r#"{"amount":70,"purpose":"books","by":"rae"}"#);
    let list = server.run(&["inbox", "list", "--by-due"]).expect(0);
    for text in ["Pay 70 for books", "open", "0 of 1", "role:approver", id.as_str()] {
        assert!(list.stdout.contains(text), "{text}: {list:?}");
    }
    let why = server.run(&["why", "expense/e-1"]).expect(0);
    assert!(why.stdout.contains("0 of 1 approvals, waits for role approver since"), "{why:?}");
    server.run(&["inbox", "comment", &id, "which books?"]).expect(0);
    let shown = server.run(&["inbox", "show", &id]).expect(0);
    for text in ["expense/e-1", "choices    approve, reject", "ann wrote: which books?"] {
        assert!(shown.stdout.contains(text), "{text}: {shown:?}");
    }
    let output = server.run(&["inbox", "decide", &id, "maybe"]).expect(1);
    assert!(output.stderr.contains("INVALID_DECISION"), "{output:?}");
    let output = server.run(&["inbox", "decide", &id, "approve", "--comment", "fine"]).expect(0);
    assert_eq!(output.stdout.trim(), "Pay 70 for books is approved, 1 of 1 approvals");
    until_output(&server, "expense/e-1", "paid 70");
    let output = server.run(&["inbox", "decide", &id, "reject"]).expect(1);
    assert!(output.stderr.contains("DECISION_EXISTS"), "{output:?}");
    let output = server.run(&["inbox", "show", "nothing"]).expect(3);
    assert!(output.stderr.contains("REQUEST_NOT_FOUND"), "{output:?}");
}

#[test]
fn nobody_approves_their_own_expense() {
    let server = start("ann:approver");
    let id = ask(&server, "e-1", r#"{"by":"ann"}"#);
    let output = server.run(&["inbox", "decide", &id, "approve"]).expect(6);
    assert!(output.stderr.contains("DECIDER_EXCLUDED"), "{output:?}");
    let output = server.run(&["inbox", "withdraw", &id, "--reason", "a mistake"]).expect(0);
    assert!(output.stdout.contains("is withdrawn"), "{output:?}");
    until_output(&server, "expense/e-1", "not paid: the request is withdrawn");

    let id = ask(&server, "e-2", "{}");
    let output =
        std::process::Command::new("date").args(["-u", "-d", "+1 day", "+%FT%TZ"]).output();
    let tomorrow = String::from_utf8(output.unwrap().stdout).unwrap();
    let delegate = ["inbox", "delegate", &id, "bob", "--until", tomorrow.trim()];
    server.run(&delegate).expect(0);
    let output = server.run(&["inbox", "decide", &id, "approve"]).expect(6);
    assert!(output.stderr.contains("NOT_ASSIGNED"), "{output:?}");
    let output = server.run(&["inbox", "delegate", &id, "bob", "--until", "soon"]).expect(1);
    assert!(output.stderr.contains("INVALID_TIME"), "{output:?}");
}

#[test]
fn a_person_is_named_in_full() {
    let output = run_cli(&["dev", "--ephemeral", "--as", ":approver", "--port", "0"]);
    assert!(output.code != 0 && output.stderr.contains("subject"), "{output:?}");
}
