//! Receipts of effects over HTTP: one by its task, and those of a run page by page.

use std::sync::Arc;

use reqwest::Method;
use serde_json::Value;
use windlass::kernel::{Body, BoxFuture, RetryPolicy};
use windlass::model::{TaskHandler, TaskResult};
use windlass::{Ctx, Result, StepTx, TaskContext};
use windlass_server::auth::Scope;

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, assert_error, on_every_store, read, wait_until};

on_every_store!(receipts_are_read_by_their_tenant,);

struct Mail;

impl TaskHandler for Mail {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        Box::pin(std::future::ready(Ok(Body::json("null"))))
    }
}

async fn send(ctx: Ctx, count: u32) -> Result<()> {
    let send = async |tx: StepTx| {
        for n in 0..count {
            tx.enqueue_with_receipt("mail", &n, RetryPolicy::none())?;
        }
        Ok(())
    };
    Ok(ctx.step_tx("send", send).await?)
}

async fn receipts_are_read_by_their_tenant(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    server.engine.serve_effects("mail", Arc::new(Mail)).unwrap();
    let flow = server.engine.workflow("send", send).unwrap();
    flow.start(3).id("a").await.unwrap().result().await.unwrap();
    let keys = KeyFactory::new(&store, &server);
    let ours = keys.key("default", &[Scope::Read]).await;
    let theirs = keys.key("other", &[Scope::Read]).await;
    let get = |key: &str, path: &str| read(server.request(Method::GET, path).bearer_auth(key));
    let path = "/workflows/send/instances/a/receipts";
    let all = async || get(&ours, path).await.1["receipts"].as_array().map_or(0, Vec::len);
    wait_until("all effects are delivered", async || all().await == 3).await;
    let (mut ids, mut next) = (Vec::new(), String::new());
    loop {
        let (status, page) = get(&ours, &format!("{path}?pageSize=2{next}")).await;
        assert_eq!(status, 200, "{page}");
        let rows = page["receipts"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["outcome"] == "delivered" && row["name"] == "mail"));
        ids.extend(rows.iter().map(|row| row["taskId"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        next = format!("&cursor={cursor}");
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
    let one = format!("/receipts/{}", ids[0]);
    let (status, receipt) = get(&ours, &one).await;
    assert_eq!((status, &receipt["attempts"]), (200, &Value::from(1)), "{receipt}");
    assert_error(get(&theirs, &one).await, (404, "RECORD_NOT_FOUND"));
    assert_error(get(&theirs, path).await, (404, "INSTANCE_NOT_FOUND"));
    assert_error(get(&ours, "/receipts/nothing").await, (404, "RECORD_NOT_FOUND"));
    assert_error(get(&ours, &format!("{path}?pageSize=0")).await, (400, "INVALID_PAGE_SIZE"));
    assert_error(get(&ours, &format!("{path}?cursor=x")).await, (400, "INVALID_CURSOR"));
    server.stop().await;
}
