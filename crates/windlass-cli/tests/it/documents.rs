//! The sample documents of `windlass dev`: an invoice is approved, an edit voids an approval, and a patch that
//! avoids the approval is refused.

use serde_json::{Value, json};

use crate::support::{CommandOutput, Server, wait_until, windlass};

fn dev() -> Server {
    let mut dev = windlass();
    dev.args(["dev", "--ephemeral", "--port", "0"]);
    Server::spawn(dev)
}

fn invoice(total: u64) -> String {
    json!({
        "id": "i-1", "total": total, "currency": "EUR", "requester": "rita",
        "vendor_class": "new", "budget_owner": "bob",
    })
    .to_string()
}

/// Runs a command as a person, with JSON output.
fn run_as(server: &Server, person: &str, args: &[&str]) -> CommandOutput {
    let mut all = args.to_vec();
    all.extend(["--as", person, "-o", "json"]);
    server.run(&all)
}

fn inbox(server: &Server, person: &str) -> Vec<Value> {
    let found = run_as(server, person, &["approvals", "list"]).expect(0).json();
    found["approvals"].as_array().cloned().unwrap_or_default()
}

fn state(server: &Server) -> Value {
    server.run(&["documents", "get", "invoice", "i-1", "-o", "json"]).expect(0).json()
}

fn wait_for_request(server: &Server, person: &str, version: u64) -> (String, String) {
    let find = || inbox(server, person).into_iter().find(|one| one["version"] == version);
    wait_until("a request for approval", || find().is_some());
    let found = find().unwrap();
    let text = |name: &str| found[name].as_str().unwrap().to_owned();
    (text("id"), text("digest"))
}

#[test]
fn an_edit_voids_an_approval_and_the_new_content_is_approved() {
    let server = dev();
    let made = ["documents", "create", "invoice", "i-1", &invoice(90_000)];
    // Nobody is named: the audit note needs a person.
    server.run(&made).expect(6);
    assert_eq!(run_as(&server, "rita", &made).expect(0).json()["state"], "draft");
    run_as(&server, "rita", &made).expect(1);
    run_as(&server, "rita", &["documents", "act", "invoice", "i-1", "submit"]).expect(0);
    let (first, old_digest) = wait_for_request(&server, "fay", 1);
    // The edit comes before the decision.
    let content = invoice(95_000);
    let edit = ["documents", "edit", "invoice", "i-1", &content, "--if-version", "1"];
    assert_eq!(run_as(&server, "rita", &edit).expect(0).json()["version"], 2);
    let decide = ["approvals", "approve", &first, "--digest", &old_digest];
    let refused = run_as(&server, "fay", &decide).expect(1);
    let is_void = |code: &str| refused.stderr.contains(code) || refused.stdout.contains(code);
    assert!(is_void("APPROVAL_STALE") || is_void("APPROVAL_WITHDRAWN"), "{refused:?}");
    wait_until("the document is amended", || state(&server)["state"] == "amended");
    run_as(&server, "rita", &["documents", "act", "invoice", "i-1", "submit"]).expect(0);
    let (second, digest) = wait_for_request(&server, "fay", 2);
    run_as(&server, "rita", &["approvals", "approve", &second, "--digest", &digest]).expect(1);
    let approved =
        server.run(&["approvals", "approve", &second, "--digest", &digest, "--as", "fay"]);
    assert!(approved.expect(0).stdout.contains("fay approved"));
    wait_until("the document is active", || state(&server)["state"] == "active");
    let locked = ["documents", "edit", "invoice", "i-1", &content, "--if-version", "2"];
    let refused = run_as(&server, "rita", &locked).expect(1);
    assert!(format!("{refused:?}").contains("WORKFLOW_EDIT_LOCKED"), "{refused:?}");
    assert!(
        server.run(&["documents", "rebuild", "invoice", "i-1"]).expect(0).stdout.contains("same")
    );
    let diff = server.run(&["documents", "diff", "invoice", "i-1", "1", "2"]).expect(0);
    assert_eq!(diff.stdout.trim(), "total: 90000 → 95000");
    let shown = server.run(&["documents", "get", "invoice", "i-1"]).expect(0);
    assert!(shown.stderr.contains("invoice/i-1 is active (locked) at version 2"), "{shown:?}");
    let listed = server.run(&["documents", "list", "invoice", "--state", "active"]).expect(0);
    assert!(listed.stdout.contains("i-1"), "{listed:?}");
    server.run(&["documents", "position", "invoice", "i-1"]).expect(0);
    let health = server.run(&["contracts", "health", "-o", "json"]).expect(0).json();
    assert_eq!((&health["pending"], &health["stuck"]), (&json!(0), &json!(0)), "{health}");
    assert!(health["advances"].as_u64() > Some(0), "{health}");
    let shown = server.run(&["contracts", "health"]).expect(0).stdout;
    for name in ["advances", "p95 ms", "retries"] {
        assert!(shown.lines().any(|line| line.starts_with(name)), "{shown}");
    }
    let none = run_as(&server, "rita", &["documents", "notifications"]).expect(0).json();
    assert_eq!(none, json!({"notifications": []}));
    run_as(&server, "rita", &["documents", "dismiss", "nothing"]).expect(3);
}

#[test]
fn a_patch_that_avoids_the_approval_is_refused() {
    let server = dev();
    let types = server.run(&["contracts", "types", "-o", "json"]).expect(0).json();
    assert_eq!(types["types"][0]["entityType"], "invoice", "{types}");
    let patch = |slot: Value| {
        json!({"baseRef": {"entityType": "invoice", "envelopeVersion": 1},
               "slots": {"submitted_to_approved": slot}})
        .to_string()
    };
    let draft = |definition: &str| {
        run_as(&server, "dana", &["contracts", "draft", "invoice", definition]).expect(0);
        run_as(&server, "dana", &["contracts", "publish", "invoice"])
    };
    let refused = draft(&patch(json!({}))).expect(1);
    assert!(format!("{refused:?}").contains("CONTRACT_INVALID"), "{refused:?}");
    let review = json!({"nodes": [{"id": "usr:submitted_to_approved:cfo", "type": "approval",
        "config": {"approvers": {"strategy": "role", "role": "cfo"}}}]});
    let published = draft(&patch(review)).expect(0).json();
    assert_eq!(published["version"], 1, "{published}");
    let shown = server.run(&["contracts", "effective", "invoice", "--diff"]).expect(0);
    assert!(shown.stdout.contains("usr:submitted_to_approved:cfo"), "{shown:?}");
    let drawn = server.run(&["contracts", "effective", "invoice", "--mermaid"]).expect(0);
    assert!(drawn.stdout.contains("flowchart"), "{drawn:?}");
    let same = run_as(&server, "dana", &["contracts", "recompile", "invoice"]).expect(0).json();
    assert_eq!((&same["changed"], &same["version"]), (&json!(false), &json!(1)), "{same}");
    let listed = server.run(&["contracts", "versions", "invoice"]).expect(0).stdout;
    assert!(listed.contains("dana"), "{listed}");
    let of_contract = ["contracts", "versions", "invoice", "--of-contract", "-o", "json"];
    let of_contract = server.run(&of_contract).expect(0).json();
    assert_eq!(of_contract["versions"][0]["version"], 1, "{of_contract}");
    let first = server.run(&["contracts", "show", "invoice", "--version", "1"]).expect(0).json();
    assert_eq!(first["entityType"], "invoice", "{first}");
    assert!(server.run(&["contracts", "chains"]).expect(0).stdout.is_empty());
    let scenario = json!({"document": serde_json::from_str::<Value>(&invoice(90_000)).unwrap(),
                          "requester": "rita", "now": "2026-11-20T08:00:00Z"})
    .to_string();
    let tried = server.run(&["contracts", "try", "invoice", &scenario]).expect(0).stdout;
    assert!(tried.contains("usr:submitted_to_approved:cfo"), "{tried}");
    let people = server.run(&["contracts", "directory"]).expect(0).json();
    assert!(people["people"]["cleo"].is_object(), "{people}");
    run_as(&server, "dana", &["contracts", "archive", "invoice"]).expect(0);
    run_as(&server, "dana", &["contracts", "rollback", "invoice", "1"]).expect(0);
    assert!(server.run(&["contracts", "stuck"]).expect(0).stderr.contains("no document is stuck"));
    let archived = run_as(&server, "dana", &["contracts", "archive-type", "invoice"]);
    assert_eq!(archived.expect(0).json()["archived"], true);
    run_as(&server, "rita", &["documents", "create", "invoice", "i-1", &invoice(1)]).expect(1);
}

#[test]
fn a_server_with_authentication_ignores_the_person_of_a_header() {
    let server = Server::start("memory:");
    let made = ["documents", "create", "invoice", "i-1", &invoice(1)];
    run_as(&server, "rita", &made).expect(6);
    let paths = server.run(&["contracts", "types"]).expect(0);
    assert!(paths.stdout.contains("invoice"), "{paths:?}");
}
