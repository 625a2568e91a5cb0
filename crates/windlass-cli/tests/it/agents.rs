//! Ledgers, conversations and checks of agents on the command line.

use serde_json::json;

use crate::fake_server::FakeServer;
use crate::support::{Server, run_cli, windlass};

const QUESTION: &str = "<script>alert('s3cr3t')</script>";

fn dev() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = windlass();
    dev.current_dir(folder.path()).args(["dev", "--ephemeral", "--port", "0"]);
    let server = Server::spawn(dev);
    let params = serde_json::json!({ "question": QUESTION }).to_string();
    let create = ["runs", "create", "ask/a-1", "--params", params.as_str(), "--wait"];
    server.run(&create).expect(0);
    (folder, server)
}

#[test]
fn a_ledger_is_shown_as_text_tree_and_page() {
    let (folder, server) = dev();
    let listed = server.run(&["ledger", "ask/a-1"]).expect(0).stdout;
    assert!(
        listed.contains("local_call.started") && listed.contains("workflow.halted"),
        "{listed}"
    );
    assert!(!listed.contains("s3cr3t"), "{listed}");
    let tree = server.run(&["ledger", "ask/a-1", "--tree"]).expect(0).stdout;
    assert!(tree.starts_with("ask/a-1\n"), "{tree}");
    assert!(tree.contains("\n  #0 "), "{tree}");
    let json = server.run(&["ledger", "ask/a-1", "--root", "-o", "json"]).expect(0).json();
    assert_eq!(json["events"][0]["type"], "workflow.enqueued");
    let file = folder.path().join("ledger.html");
    let path = file.to_str().unwrap();
    server.run(&["ledger", "ask/a-1", "--html", path]).expect(0);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("anthropic.completed") && !page.contains("s3cr3t"), "{page}");
    server.run(&["ledger", "ask/a-1", "--html", path, "--break-glass"]).expect(0);
    let page = std::fs::read_to_string(&file).unwrap();
    // The conversation is there, and the browser sees a text.
    assert!(page.contains("&lt;script&gt;alert(&#39;s3cr3t&#39;)"), "{page}");
    assert!(!page.contains("<script"), "{page}");
    let to_output = server.run(&["ledger", "ask/a-1", "--html", "-"]).expect(0).stdout;
    assert!(to_output.starts_with("<!doctype html>"), "{to_output}");
    server.run(&["ledger", "ask/none"]).expect(3);
    server.run(&["ledger", "ask/a-1", "--break-glass"]).expect(2);
}

#[test]
fn a_conversation_is_shown() {
    let (_folder, server) = dev();
    let shown = server.run(&["transcript", "ask/a-1"]).expect(0).stdout;
    let said = format!("user\n  {QUESTION}\nassistant\n  You said: {QUESTION}\n");
    assert_eq!(shown, said);
    let json = server.run(&["transcript", "ask/a-1", "-o", "json"]).expect(0).json();
    assert_eq!(json["transcripts"][0]["name"], "chat");
    assert_eq!(json["transcripts"][0]["items"][0]["content"], QUESTION);
    let followed = server.run(&["transcript", "ask/a-1", "--follow"]).expect(0).stdout;
    assert_eq!(followed, format!("You said: {QUESTION}\n"));
    server.run(&["transcript", "ask/a-1", "--name", "none"]).expect(3);
    server.run(&["runs", "create", "hello/h-1", "--params", "\"x\"", "--wait"]).expect(0);
    server.run(&["transcript", "hello/h-1"]).expect(3);
}

#[test]
fn live_runs_are_checked() {
    let (_folder, server) = dev();
    let checked = server.run(&["agents", "check"]).expect(0).stdout;
    assert!(checked.contains("ask: 0 live runs, 0 cannot be resumed"), "{checked}");
    let json = server.run(&["agents", "check", "ask", "-o", "json"]).expect(0).json();
    assert_eq!(json["agents"][0]["unfit"], serde_json::json!([]));
    server.run(&["agents", "check", "hello"]).expect(3);
    run_cli(&["agents"]).expect(2);
}

#[test]
fn runs_that_cannot_be_resumed_fail_the_check() {
    let unfit = json!({
        "id": "t-1", "runKey": "019a0000-0000-7000-8000-000000000001",
        "code": "AGENT_SNAPSHOT_INVALID", "message": "the upcaster failed",
    });
    let page = |unfit: &[serde_json::Value], next: Option<&str>| {
        json!({
            "checked": 2, "unfit": unfit, "nextCursor": next, "hasNextPage": next.is_some(),
        })
    };
    let server = FakeServer::new(vec![
        ("GET /api/agents/old/check?pageSize=100&cursor=more", 200, page(&[unfit], None)),
        ("GET /api/agents/old/check", 200, page(&[], Some("more"))),
        ("GET /api/agents/new/check", 200, page(&[], None)),
        ("GET /api/agents", 200, json!({ "agents": [{ "name": "new" }, { "name": "old" }] })),
    ]);
    let checked = server.run(&["agents", "check"]).expect(1).stdout;
    assert!(checked.contains("new: 2 live runs, 0 cannot be resumed"), "{checked}");
    assert!(checked.contains("old: 4 live runs, 1 cannot be resumed"), "{checked}");
    assert!(checked.contains("t-1 AGENT_SNAPSHOT_INVALID: the upcaster failed"), "{checked}");
    let listed = server.run(&["agents", "check", "old", "-o", "json"]).expect(1).json();
    assert_eq!(listed["agents"][0]["unfit"][0]["id"], "t-1");
    server.run(&["agents", "check", "new"]).expect(0);
}
