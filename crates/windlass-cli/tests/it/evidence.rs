//! `windlass receipts` and `windlass ledger --kept`: what stays of effects and of deleted runs.

use std::time::Duration;

use serde_json::json;
use windlass::admin::{Options, Retention};
use windlass::kernel::{Body, BoxFuture};
use windlass::{Builder, Ctx, Engine, Result, RetryPolicy, StepTx, TaskContext, TaskFailure};
use windlass_engine::TaskHandler;

use crate::support::{Server, sqlite_in};

/// Refuses one mail and delivers the others.
struct Mail;

impl TaskHandler for Mail {
    fn run(&self, _: TaskContext, input: Body) -> BoxFuture<'static, Result<Body, TaskFailure>> {
        let text: String = input.read().unwrap();
        Box::pin(std::future::ready(match text.as_str() {
            "lost" => Err(TaskFailure::new("Refused", "the address is unknown", false)),
            _ => Ok(Body::json("null")),
        }))
    }
}

async fn send(ctx: Ctx, (): ()) -> Result<()> {
    let send = async |tx: StepTx| {
        for text in ["paid", "lost"] {
            tx.enqueue_with_receipt("mail", text, RetryPolicy::none())?;
        }
        tx.enqueue("mail", "thanks", RetryPolicy::none())?;
        Ok(())
    };
    Ok(ctx.step_tx("send", send).await?)
}

async fn poll(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + crate::support::TEST_TIMEOUT;
    while !ask().await {
        assert!(std::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn receipts_of_a_run_are_listed_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let engine = Engine::builder().open(&store).await.unwrap();
        engine.serve_effects("mail", std::sync::Arc::new(Mail)).unwrap();
        let flow = engine.workflow("send", send).unwrap();
        let run = flow.start(()).id("s-1").await.unwrap();
        run.result().await.unwrap();
        let settled = async || engine.receipts(run.run_key(), None, 10).await.unwrap().len() == 2;
        poll("both effects are settled", settled).await;
        engine.stop(Duration::from_secs(60)).await.unwrap();
    });
    let server = Server::start(&store);
    let list = server.run(&["receipts", "list", "send/s-1", "-o", "json"]).expect(0).json();
    let receipts = list["receipts"].as_array().unwrap();
    let mut outcomes: Vec<&str> =
        receipts.iter().map(|receipt| receipt["outcome"].as_str().unwrap()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["dead", "delivered"], "{list}");
    let output = server.run(&["receipts", "list", "send", "s-1"]).expect(0);
    for text in ["TASK", "mail", "delivered", "dead", "the address is unknown"] {
        assert!(output.stdout.contains(text), "{text}: {output:?}");
    }
    // Page by page.
    let first = server.run(&["receipts", "list", "send/s-1", "-n", "1", "-o", "json"]);
    let first = first.expect(0).json();
    assert_eq!(first["receipts"], json!([receipts[0]]));
    let cursor = first["cursor"].as_str().unwrap();
    let rest = server.run(&["receipts", "list", "send/s-1", "--cursor", cursor, "-o", "json"]);
    assert_eq!(rest.expect(0).json()["receipts"], json!([receipts[1]]));
    for receipt in receipts {
        let task = receipt["taskId"].as_str().unwrap();
        let shown = server.run(&["receipts", "show", task, "-o", "json"]).expect(0).json();
        assert_eq!(&shown, receipt);
        let output = server.run(&["receipts", "show", task]).expect(0);
        assert!(output.stdout.contains(receipt["outcome"].as_str().unwrap()), "{output:?}");
    }
}

async fn leaf(_: Ctx, n: u32) -> Result<u32> {
    Ok(n)
}

async fn parent(ctx: Ctx, n: u32) -> Result<u32> {
    Ok(ctx.child_named("leaf", "leaf", &n).await?)
}

#[test]
fn ledgers_of_deleted_runs_are_listed_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let root = runtime.block_on(async {
        let brief = Duration::from_millis(250);
        let options = Options { create_resend_max: brief, ..Options::default() };
        let engine = Builder::from(options).open(&store).await.unwrap();
        engine.workflow("leaf", leaf).unwrap();
        let flow = engine.workflow("parent", parent).unwrap();
        let run = flow.start(1).id("p-1").await.unwrap();
        flow.start(2).id("p-2").await.unwrap().result().await.unwrap();
        run.result().await.unwrap();
        let policy = Retention::keep_for("1 second").unwrap().keep_ledger();
        engine.admin().set_retention("parent", Some(&policy)).await.unwrap();
        let deleted = async || {
            engine.admin().sweep().await.unwrap();
            flow.get("p-1").await.is_err() && flow.get("p-2").await.is_err()
        };
        poll("the runs are deleted", deleted).await;
        engine.stop(Duration::from_secs(60)).await.unwrap();
        run.run_key().to_string()
    });
    let server = Server::start(&store);
    let ledger = |rest: &[&str]| server.run(&[&["ledger", "--kept"], rest].concat());
    let all = ledger(&["-o", "json"]).expect(0).json();
    assert_eq!(all["ledgers"].as_array().unwrap().len(), 4, "{all}");
    let output = ledger(&[]).expect(0);
    for text in ["RUN KEY", "parent/p-1", "parent/p-2", "leaf/", "complete", &root] {
        assert!(output.stdout.contains(text), "{text}: {output:?}");
    }
    let tree = ledger(&["--root", &root, "-o", "json"]).expect(0).json();
    let tree = tree["ledgers"].as_array().unwrap();
    let workflows: Vec<_> = tree.iter().map(|kept| kept["workflowName"].as_str()).collect();
    assert_eq!(workflows, [Some("parent"), Some("leaf")]);

    let events = ledger(&[&root, "-o", "json"]).expect(0).json();
    assert_eq!(
        events["events"].as_array().map(Vec::len),
        tree[0]["events"].as_u64().map(|n| n as usize)
    );
    let output = ledger(&[&root, "--full"]).expect(0);
    assert!(output.stdout.contains("workflow.completed"), "{output:?}");
    assert!(output.stderr.contains("parent/p-1, generation 0, complete"), "{output:?}");

    let other = "0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10";
    let output = ledger(&[other]).expect(3);
    assert!(output.stderr.contains("[RUN_NOT_FOUND]"), "{output:?}");
    let output = ledger(&["--root", other]).expect(0);
    assert!(output.stderr.contains("no kept ledgers"), "{output:?}");
    for args in [&["parent/p-1"][..], &["--root"], &[&root, "--tree"]] {
        ledger(args).expect(2);
    }
}
