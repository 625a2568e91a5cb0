//! Deliveries of webhooks over HTTP: those that wait, and those that were given up.

use serde_json::json;
use serde_json::value::to_raw_value;
use windlass::kernel::{Commit, Op, RetryPolicy};
use windlass::webhooks::{WEBHOOK_EFFECT, Webhook, WebhookOptions, Webhooks};

use crate::harness::{Kind, Server, assert_error, on_both_stores, wait_until};

on_both_stores!(deliveries_are_listed_until_they_are_settled,);

async fn deliveries_are_listed_until_they_are_settled(kind: Kind) {
    let server = Server::start(kind).await;
    let run = server.run("greet", "w-1", json!("Ada"), "complete").await;
    let run_key = run["meta"]["runKey"].as_str().unwrap().parse().unwrap();
    for n in 0..3 {
        let url = format!("https://me:secret@127.0.0.1:9/hook-{n}?token=secret");
        let webhook = Webhook::new(url, "invoice.paid", &n).unwrap();
        let input = to_raw_value(&webhook).unwrap();
        let core = server.engine.core();
        let task = core.effect(WEBHOOK_EFFECT, Some(run_key), input, RetryPolicy::none()).unwrap();
        let commit = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
        let answers = server.engine.admin().store().commit(vec![commit]).await;
        assert!(answers[0].is_ok(), "{answers:?}");
    }
    let first = server.get_ok("/webhooks/deliveries?pageSize=2").await;
    assert_eq!(first["deliveries"].as_array().unwrap().len(), 2, "{first}");
    let one = &first["deliveries"][0];
    assert_eq!((&one["state"], &one["attempts"]), (&json!("pending"), &json!(0)), "{one}");
    assert_eq!(one["runKey"], run["meta"]["runKey"]);
    assert_eq!(one["eventType"], "invoice.paid");
    assert!(!first.to_string().contains("secret"), "{first}");
    let cursor = first["nextCursor"].as_str().unwrap();
    let rest = server.get_ok(&format!("/webhooks/deliveries?pageSize=2&cursor={cursor}")).await;
    assert_eq!(rest["hasNextPage"], false);
    assert_eq!(rest["deliveries"][0]["url"], "https://127.0.0.1:9/hook-2", "{rest}");
    let other = format!("/webhooks/deliveries?state=dead&cursor={cursor}");
    assert_error(server.get(&other).await, (400, "INVALID_CURSOR"));
    assert_error(server.get("/webhooks/deliveries?state=done").await, (400, "INVALID_QUERY"));
    assert_error(server.get("/webhooks/deliveries?pageSize=0").await, (400, "INVALID_PAGE_SIZE"));
    // The policy refuses the address, and there is no second attempt.
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
    let secrets = [("default".to_owned(), vec![secret])].into();
    let options = WebhookOptions { secrets, ..WebhookOptions::default() };
    Webhooks::new(&server.engine, options).unwrap().serve(&server.engine).unwrap();
    let dead = "/webhooks/deliveries?state=dead&pageSize=2";
    wait_until("all are given up", async || {
        server.get_ok("/webhooks/deliveries").await["deliveries"] == json!([])
    })
    .await;
    let first = server.get_ok(dead).await;
    let one = &first["deliveries"][0];
    assert_eq!((&one["state"], &one["attempts"]), (&json!("dead"), &json!(1)), "{one}");
    assert!(one["lastError"].is_string() && !one.to_string().contains("secret"), "{one}");
    let cursor = first["nextCursor"].as_str().unwrap();
    let rest = server.get_ok(&format!("{dead}&cursor={cursor}")).await;
    assert_eq!(rest["deliveries"].as_array().unwrap().len(), 1, "{rest}");
    assert_eq!(rest["hasNextPage"], false);
    server.stop().await;
}
