//! Why a run does not move, in words.

use serde_json::{Value, json};

use crate::harness::{Kind, Server, on_both_stores};

on_both_stores!(reasons);

async fn why(server: &Server, workflow: &str, id: &str) -> Value {
    server.ok(&format!("/workflows/{workflow}/instances/{id}/why")).await
}

#[track_caller]
fn says(why: &Value, code: &str, words: &str) {
    let reasons = why["reasons"].as_array().unwrap();
    let fits = |reason: &&Value| {
        reason["code"] == code && reason["text"].as_str().unwrap().contains(words)
    };
    assert!(reasons.iter().any(|reason| fits(&reason)), "{code} {words:?} is not in {why}");
}

async fn reasons(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("nap", "n", json!({}), "waiting").await;
    let told = why(&server, "nap", "n").await;
    says(&told, "sleeping", "\"long\" sleeps until 20");
    assert_eq!((&told["moving"], &told["status"]), (&json!(true), &json!("waiting")));
    assert!(told["reasons"][0]["until"].is_string(), "{told}");

    server.run("approve", "a", json!({}), "waiting").await;
    let told = why(&server, "approve", "a").await;
    says(&told, "awaiting_event", "waits for an event of type \"approval\"");
    server.posted("/workflows/approve/instances/a/pause", json!({})).await;
    server.until("approve", "a", "paused").await;
    let told = why(&server, "approve", "a").await;
    says(&told, "paused", "resume it");
    assert_eq!(told["moving"], false);

    server.run("charge", "c", json!(3), "waiting").await;
    let told = why(&server, "charge", "c").await;
    says(&told, "retrying", "attempt 2 of 4");
    says(&told, "retrying", "the card was declined");

    server.run("greet", "done", json!("x"), "complete").await;
    says(&why(&server, "greet", "done").await, "ended", "complete");

    let body = json!({ "id": "later", "delayMs": 3_600_000 });
    server.posted("/workflows/greet/instances", body).await;
    says(&why(&server, "greet", "later").await, "starts_later", "it starts at 20");

    // Nobody serves this one, but it has runs.
    let ghost = server.engine.remote_workflow::<Value, Value>("ghost").unwrap();
    ghost.start(json!({})).id("g").await.unwrap();
    let told = why(&server, "ghost", "g").await;
    says(&told, "unserved", "no live worker serves workflow \"ghost\"");
    assert_eq!(told["moving"], false);

    server.run("family", "f", json!({}), "waiting").await;
    server.until("nap", "f:kid", "waiting").await;
    let told = why(&server, "family", "f").await;
    says(&told, "awaiting_child", "waits for the child run");
    says(&told, "sleeping", "\"long\" sleeps");
    let child = told["reasons"].as_array().unwrap().iter().find(|one| one["child"].is_object());
    assert_eq!(child.unwrap()["child"], json!({ "workflow": "nap", "id": "f:kid" }));

    server.run("outside", "o", json!({}), "waiting").await;
    says(&why(&server, "outside", "o").await, "activity_unserved", "no live worker serves");

    let limited = server.engine.remote_workflow::<Value, ()>("nap").unwrap();
    server.engine.set_limit("one", Some(0)).await.unwrap();
    limited.start(json!({})).id("first").limit_key("one").await.unwrap();
    limited.start(json!({})).id("second").limit_key("one").await.unwrap();
    let told = why(&server, "nap", "second").await;
    says(&told, "limit_reached", "0 of 0 are held; it is number 2 in the queue");
    server.stop().await;
}
