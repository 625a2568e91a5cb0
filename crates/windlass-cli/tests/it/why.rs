//! `windlass why`: its summary line and the layout of the reasons.

use serde_json::json;
use windlass::{Ctx, Engine, Result};

use crate::fake_server::FakeServer;
use crate::support::{Server, sqlite_in, wait_until};

#[test]
fn reasons_are_indented_by_depth() {
    let reason = |text: &str, depth: u32| json!({ "code": "x", "text": text, "depth": depth });
    let answer = json!({
        "id": "x", "status": "waiting", "moving": true,
        "reasons": [
            reason("step a sleeps", 0),
            reason("step b waits for a child", 0),
            reason("the child sleeps", 1),
            reason("step c sleeps", 0),
        ],
    });
    let server = FakeServer::new(vec![("GET /api/workflows/order/instances/x/why", 200, answer)]);
    let output = server.run(&["why", "order/x"]).expect(0);
    let lines: Vec<&str> = output.stdout.lines().skip(1).collect();
    let expect = [
        "- step a sleeps",
        "- step b waits for a child",
        "  - the child sleeps",
        "- step c sleeps",
    ];
    assert_eq!(lines, expect);
}

#[test]
fn the_summary_says_whether_the_run_continues_by_itself() {
    for (status, moving, code, expect) in [
        ("active", true, "held", "it is running"),
        ("active", true, "starts_later", "it continues by itself"),
        ("waiting", true, "sleeping", "it continues by itself"),
        ("waiting", true, "awaiting_event", "it waits for an event"),
        ("waiting", false, "blocked", "it needs an action to continue"),
        ("complete", false, "ended", "it has ended"),
        (
            "errored",
            false,
            "ended",
            "it has ended; `windlass runs retry` retries it from the failed step",
        ),
    ] {
        let reasons = [json!({ "code": code, "text": "the reason", "depth": 0 })];
        let answer = json!({ "status": status, "moving": moving, "reasons": reasons });
        let server =
            FakeServer::new(vec![("GET /api/workflows/order/instances/x/why", 200, answer)]);
        let output = server.run(&["why", "order/x"]).expect(0);
        let first = output.stdout.lines().next().unwrap();
        assert_eq!(first, format!("order/x is {status}: {expect}"));
        assert_eq!(output.stdout.contains("the reason"), code != "ended", "{output:?}");
    }
}

#[test]
fn the_readme_shows_the_real_output() {
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, shown) = readme.split_once("$ windlass why order/order-1\n").unwrap();
    let shown: Vec<&str> = shown.lines().take(2).collect();
    let server = Server::start("memory:");
    server.run(&["runs", "create", "order/order-1"]).expect(0);
    wait_until("it waits for its event", || {
        server.run(&["why", "order/order-1"]).expect(0).stdout.contains("approval")
    });
    let output = server.run(&["why", "order/order-1"]).expect(0);
    let printed: Vec<&str> = output.stdout.lines().collect();
    // Ignores the times.
    let without_time =
        |line: &str| line.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect::<String>();
    let both =
        [printed, shown].map(|lines| lines.into_iter().map(without_time).collect::<Vec<_>>());
    assert_eq!(both[0], both[1]);
}

// An older version of the sample workflow: its first step has another name.
async fn order_before(ctx: Ctx, _: Option<serde_json::Value>) -> Result<String> {
    ctx.step("reserve", async || Ok(1)).await?;
    let approval: serde_json::Value = ctx.event("approval", "approval").await?;
    Ok(approval.to_string())
}

#[test]
fn non_determinism_is_reported_with_both_step_names() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = Engine::open(&store).await.unwrap();
        let orders = engine.workflow("order", order_before).unwrap();
        let run = orders.start(None).id("o-1").await.unwrap();
        while run.status().await.unwrap().status.as_str() != "waiting" {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        engine.stop(std::time::Duration::from_secs(10)).await.unwrap();
    });
    let server = Server::start(&store);
    let event = ["runs", "send-event", "order/o-1", "--type", "approval", "--payload", "1"];
    server.run(&event).expect(0);
    wait_until("it is blocked", || {
        let output = server.run(&["why", "order/o-1"]).expect(0).stdout;
        output.contains("cannot carry it on")
    });
    let output = server.run(&["why", "order/o-1"]).expect(0);
    assert!(output.stdout.contains("it needs an action to continue"), "{output:?}");
    for name in ["charge", "reserve"] {
        assert!(output.stdout.contains(name), "{name}: {output:?}");
    }
    assert!(output.stdout.contains("; the next attempt is "), "{output:?}");
    let why = server.run(&["why", "order/o-1", "-o", "json"]).expect(0).json();
    assert_eq!(why["reasons"][0]["code"], "blocked", "{why}");
    // All commands report the block, although the status of the run is `waiting`.
    let received = server.run(&["runs", "get", "order/o-1", "-o", "json"]).expect(0).json();
    assert_eq!(received["meta"]["blocked"]["code"], "NON_DETERMINISM", "{received}");
    let output = server.run(&["runs", "get", "order/o-1"]).expect(0);
    assert!(
        output.stdout.contains("blocked") && output.stdout.contains("NON_DETERMINISM"),
        "{output:?}"
    );
    let watch = server.run(&["runs", "watch", "order/o-1", "--timeout", "3s"]).expect(5);
    let report = watch.stdout.lines().find(|line| line.contains(" blocked "));
    assert!(report.is_some_and(|line| line.contains("NON_DETERMINISM")), "{watch:?}");
    let wait = ["runs", "resume", "order/o-1", "--wait", "--timeout", "7s"];
    let output = server.run(&wait).expect(5);
    assert_eq!(output.stderr.matches("order/o-1 is blocked: ").count(), 1, "{output:?}");
    assert!(output.stderr.contains("hint: this code cannot carry it on"), "{output:?}");
    // A run that waits normally is not blocked.
    server.run(&["runs", "create", "order/o-2"]).expect(0);
    wait_until("it waits", || {
        let received = server.run(&["runs", "get", "order/o-2", "-o", "json"]).expect(0).json();
        assert!(received["meta"]["blocked"].is_null(), "{received}");
        received["meta"]["currentStep"]["waitEventType"] == "approval"
    });
}
