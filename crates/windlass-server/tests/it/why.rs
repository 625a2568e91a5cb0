//! The reasons why a run makes no progress.

use serde_json::{Value, json};

use crate::harness::{Kind, Server, on_both_stores};

on_both_stores!(reasons);

async fn why(server: &Server, workflow: &str, id: &str) -> Value {
    server.get_ok(&format!("/workflows/{workflow}/instances/{id}/why")).await
}

#[track_caller]
fn assert_reason(why: &Value, code: &str, words: &str) {
    let reasons = why["reasons"].as_array().unwrap();
    let fits = |reason: &&Value| {
        reason["code"] == code && reason["text"].as_str().unwrap().contains(words)
    };
    assert!(reasons.iter().any(|reason| fits(&reason)), "{code} {words:?} is missing in {why}");
}

async fn reasons(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("nap", "n", json!({}), "waiting").await;
    let explanation = why(&server, "nap", "n").await;
    assert_reason(&explanation, "sleeping", "\"long\" sleeps until 20");
    assert_eq!((&explanation["moving"], &explanation["status"]), (&json!(true), &json!("waiting")));
    assert!(explanation["reasons"][0]["until"].is_string(), "{explanation}");

    server.run("approve", "a", json!({}), "waiting").await;
    let explanation = why(&server, "approve", "a").await;
    assert_reason(&explanation, "awaiting_event", "waits for an event of type \"approval\"");
    server.post_ok("/workflows/approve/instances/a/pause", json!({})).await;
    server.wait_for_status("approve", "a", "paused").await;
    let explanation = why(&server, "approve", "a").await;
    assert_reason(&explanation, "paused", "resume it");
    assert_eq!(explanation["moving"], false);

    server.run("charge", "c", json!(3), "waiting").await;
    let explanation = why(&server, "charge", "c").await;
    assert_reason(&explanation, "retrying", "attempt 2 of 4");
    assert_reason(&explanation, "retrying", "the card was declined");

    server.run("greet", "done", json!("x"), "complete").await;
    assert_reason(&why(&server, "greet", "done").await, "ended", "complete");

    let body = json!({ "id": "later", "delayMs": 3_600_000 });
    server.post_ok("/workflows/greet/instances", body).await;
    assert_reason(&why(&server, "greet", "later").await, "starts_later", "it starts at 20");

    // No worker serves this workflow, but it has a run.
    let ghost = server.engine.remote_workflow::<Value, Value>("ghost").unwrap();
    ghost.start(json!({})).id("g").await.unwrap();
    let explanation = why(&server, "ghost", "g").await;
    assert_reason(&explanation, "unserved", "no live worker serves workflow \"ghost\"");
    assert_eq!(explanation["moving"], false);

    server.run("family", "f", json!({}), "waiting").await;
    server.wait_for_status("nap", "f:kid", "waiting").await;
    let explanation = why(&server, "family", "f").await;
    assert_reason(&explanation, "awaiting_child", "waits for the child run");
    assert_reason(&explanation, "sleeping", "\"long\" sleeps");
    let child =
        explanation["reasons"].as_array().unwrap().iter().find(|one| one["child"].is_object());
    assert_eq!(child.unwrap()["child"], json!({ "workflow": "nap", "id": "f:kid" }));

    server.run("outside", "o", json!({}), "waiting").await;
    assert_reason(
        &why(&server, "outside", "o").await,
        "activity_unserved",
        "no live worker serves",
    );

    let limited = server.engine.remote_workflow::<Value, ()>("nap").unwrap();
    server.engine.admin().set_limit("one", Some(0)).await.unwrap();
    limited.start(json!({})).id("first").limit_key("one").await.unwrap();
    limited.start(json!({})).id("second").limit_key("one").await.unwrap();
    let explanation = why(&server, "nap", "second").await;
    assert_reason(&explanation, "limit_reached", "0 of 0 are held; it is number 2 in the queue");
    server.stop().await;
}
