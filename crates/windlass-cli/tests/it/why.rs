//! `windlass why`: what it says of runs that cannot move, and how the reasons are laid out.

use serde_json::json;
use windlass::{BoxError, Ctx, Engine, Result};

use crate::scripted::Scripted;
use crate::support::{Server, sqlite_in, until};

#[test]
fn reasons_are_indented_by_how_deep_they_lie() {
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
    let server = Scripted::new(vec![("GET /api/workflows/order/instances/x/why", 200, answer)]);
    let said = server.say(&["why", "order/x"]).expect(0);
    let lines: Vec<&str> = said.out.lines().skip(1).collect();
    let expect = [
        "- step a sleeps",
        "- step b waits for a child",
        "  - the child sleeps",
        "- step c sleeps",
    ];
    assert_eq!(lines, expect);
}

#[test]
fn it_is_said_whether_the_run_goes_on_by_itself() {
    for (status, moving, code, expect) in [
        ("active", true, "held", "it is moving"),
        ("active", true, "starts_later", "it goes on by itself"),
        ("waiting", true, "sleeping", "it goes on by itself"),
        ("waiting", true, "awaiting_event", "it waits to be sent an event"),
        ("waiting", false, "blocked", "it does not go on by itself"),
        ("complete", false, "ended", "it has ended"),
        ("errored", false, "ended", "it has ended; `windlass runs retry` carries it on"),
    ] {
        let reasons = [json!({ "code": code, "text": "the reason", "depth": 0 })];
        let answer = json!({ "status": status, "moving": moving, "reasons": reasons });
        let server = Scripted::new(vec![("GET /api/workflows/order/instances/x/why", 200, answer)]);
        let said = server.say(&["why", "order/x"]).expect(0);
        let first = said.out.lines().next().unwrap();
        assert_eq!(first, format!("order/x is {status}: {expect}"));
        assert_eq!(said.out.contains("the reason"), code != "ended", "{said:?}");
    }
}

#[test]
fn the_first_screen_shows_what_is_printed() {
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, shown) = readme.split_once("$ windlass why order/order-1\n").unwrap();
    let shown: Vec<&str> = shown.lines().take(2).collect();
    let server = Server::start("memory:");
    server.say(&["runs", "create", "order/order-1"]).expect(0);
    until("it waits for its event", || {
        server.say(&["why", "order/order-1"]).expect(0).out.contains("approval")
    });
    let said = server.say(&["why", "order/order-1"]).expect(0);
    let printed: Vec<&str> = said.out.lines().collect();
    // All but the times.
    let without_time =
        |line: &str| line.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect::<String>();
    let both =
        [printed, shown].map(|lines| lines.into_iter().map(without_time).collect::<Vec<_>>());
    assert_eq!(both[0], both[1]);
}

// What a build before wrote under the name of a sample, whose first step is called otherwise.
async fn order_before(ctx: Ctx, _: Option<serde_json::Value>) -> Result<String> {
    ctx.step("reserve", async || Ok::<_, BoxError>(1)).await?;
    let approval: serde_json::Value = ctx.event("approval", "approval").await?;
    Ok(approval.to_string())
}

#[test]
fn code_that_does_not_fit_the_record_is_told_with_both_names() {
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
    server.say(&event).expect(0);
    until("it is blocked", || {
        let said = server.say(&["why", "order/o-1"]).expect(0).out;
        said.contains("cannot carry it on")
    });
    let said = server.say(&["why", "order/o-1"]).expect(0);
    assert!(said.out.contains("does not go on by itself"), "{said:?}");
    for name in ["charge", "reserve"] {
        assert!(said.out.contains(name), "{name}: {said:?}");
    }
    assert!(said.out.contains("; it is tried again "), "{said:?}");
    let why = server.say(&["why", "order/o-1", "-o", "json"]).expect(0).json();
    assert_eq!(why["reasons"][0]["code"], "blocked", "{why}");
    // It is waiting, and nothing that it waits for will come: everybody who looks is told.
    let got = server.say(&["runs", "get", "order/o-1", "-o", "json"]).expect(0).json();
    assert_eq!(got["meta"]["blocked"]["code"], "NON_DETERMINISM", "{got}");
    let said = server.say(&["runs", "get", "order/o-1"]).expect(0);
    assert!(said.out.contains("blocked") && said.out.contains("NON_DETERMINISM"), "{said:?}");
    let watch = server.say(&["runs", "watch", "order/o-1", "--timeout", "3s"]).expect(5);
    let told = watch.out.lines().find(|line| line.contains(" blocked "));
    assert!(told.is_some_and(|line| line.contains("NON_DETERMINISM")), "{watch:?}");
    let wait = ["runs", "resume", "order/o-1", "--wait", "--timeout", "7s"];
    let said = server.say(&wait).expect(5);
    assert_eq!(said.err.matches("order/o-1 is blocked: ").count(), 1, "{said:?}");
    assert!(said.err.contains("hint: this code cannot carry it on"), "{said:?}");
    // One that waits as it should is not.
    server.say(&["runs", "create", "order/o-2"]).expect(0);
    until("it waits", || {
        let got = server.say(&["runs", "get", "order/o-2", "-o", "json"]).expect(0).json();
        assert!(got["meta"]["blocked"].is_null(), "{got}");
        got["meta"]["currentStep"]["waitEventType"] == "approval"
    });
}
