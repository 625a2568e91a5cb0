//! The examples, run as people run them: as processes of their own.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// An example that cargo built beside this test.
pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("a test has a path");
    let profile: PathBuf = test.ancestors().nth(2).expect("it is in target/PROFILE/deps").into();
    Command::new(profile.join("examples").join(name))
}

#[track_caller]
fn check(output: &Output, expect: &[&str]) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    for line in expect {
        assert!(text.contains(line), "no {line:?} in:\n{text}\n{errors}");
    }
}

/// The use cases A to E of documents.
const DOCUMENTS: [&str; 8] = [
    "small is posted to the ledger",
    "small is active, and nobody was asked",
    "large is active, approved by fay and bob",
    "late is active after its payment",
    "the request is Withdrawn",
    "active with {\"from\":900,\"to\":950}",
    "unconfirmed, and accepted by cleo",
    "audited by cleo, the portal got {\"total\":900}",
];

#[test]
fn documents_run_on_both_databases() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = format!("sqlite://{}/documents.db", folder.path().display());
    for store in [file, crate::schema::dsn()] {
        let output = example("documents").arg(&store).output().expect("it starts");
        check(&output, &DOCUMENTS);
    }
}

#[test]
fn they_run_and_say_what_they_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases: [(&str, &[&str]); 13] = [
        ("hello", &["HELLO, WORLD!"]),
        ("signup", &["ann@example.com is in", "6 workflow.completed"]),
        ("fan_out", &["item 7: 121"]),
        ("saga", &["cancelled flight-for-island", "NoCar: there are no cars on the island"]),
        ("children", &["6000 words", "child chapter 3 completed"]),
        ("order", &["a lamp: once, and then UniqueViolation"]),
        ("cron", &["report for ops", "nightly: last None, next Some"]),
        ("machine_simple", &["repeat: hello, world!", "hello, world!!"]),
        ("machine_retry", &["attempt 3 of 5 begins at line 8", "10 lines copied"]),
        (
            "machine_breaker",
            &["Ann is in room 7", "Bob is in room 7", "external:directory is closed", "5 calls"],
        ),
        (
            "agents",
            &[
                "chat: You said: And who uses a windlass?",
                "approval: sent as tc_",
                "orchestrator: 3 findings",
                "evaluator: after",
            ],
        ),
        ("machine_signal", &["table 1 seats 4", "table 2 is free again"]),
        ("documents", &DOCUMENTS),
    ];
    for (name, expect) in cases {
        let mut command = example(name);
        // With a key the examples of agents would call a real provider.
        command.env_remove("ANTHROPIC_API_KEY");
        let output = command.current_dir(folder.path()).output().expect("it starts");
        check(&output, expect);
    }
    // A run that has ended is found again and does not run again.
    let again = example("signup").current_dir(folder.path()).output().expect("it starts");
    check(&again, &["ann@example.com is in"]);
    assert!(!String::from_utf8_lossy(&again.stdout).contains("mail to"), "it was done again");
}

#[test]
fn two_processes_share_postgres() {
    let dsn = crate::schema::dsn();
    let mut server = example("two_processes")
        .args(["serve", &dsn])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let output = example("two_processes").args(["start", &dsn]).output().expect("it starts");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    check(&output, &["1 squared is 1", "5 squared is 25"]);
    let order = example("order").arg(&dsn).output().expect("it starts");
    check(&order, &["a lamp: once, and then UniqueViolation"]);
}

#[test]
fn relays_run_and_go_on_where_they_were_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases: [(&str, &[&str]); 3] = [
        ("relay_single", &["greeting succeeded: HELLO"]),
        (
            "relay_agent",
            &[
                "An article: write about windlasses from: three facts about windlasses",
                "2 calls for two answers and three attempts",
            ],
        ),
        ("relay_etl", &["4 files: 3 loaded, 1 failed", "night-1-2: the file has no name"]),
    ];
    for (name, expect) in cases {
        let output = example(name).current_dir(folder.path()).output().expect("it starts");
        check(&output, expect);
    }
    let multi = |arg: Option<&str>| {
        let mut command = example("relay_multi");
        command.current_dir(folder.path()).arg("sqlite://relay.db").args(arg);
        command.output().expect("it starts")
    };
    let killed = multi(Some("crash"));
    assert_eq!(killed.status.code(), Some(9));
    assert_eq!(String::from_utf8_lossy(&killed.stdout), "step 0 runs\nstep 1 runs\n");
    let resumed = multi(None);
    check(&resumed, &["step 1 runs\nstep 2 runs\nfigures, gathered, checked, written"]);
    assert!(!String::from_utf8_lossy(&resumed.stdout).contains("step 0"), "step 0 ran again");
}
