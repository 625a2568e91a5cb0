//! Events by key over HTTP: idempotent sends, bad input, scopes and tenants.

use reqwest::Method;
use serde_json::{Value, json};
use windlass_server::auth::Scope;

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, assert_error, on_every_store, read};

on_every_store!(
    a_key_keeps_an_event_and_repeats_are_ignored,
    bad_events_are_refused_and_nothing_is_written,
    a_key_belongs_to_a_tenant_and_needs_a_scope,
);

const PATH: &str = "/events/scanned/parcel-17";

async fn send(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    read(server.request(Method::POST, path).json(body)).await
}

// The numbers of kept events, by key.
async fn kept(server: &Server) -> Vec<usize> {
    let page = server.get_ok("/records/windlass.events").await;
    let records = page["records"].as_array().unwrap();
    records.iter().map(|record| record["value"]["events"].as_array().unwrap().len()).collect()
}

async fn a_key_keeps_an_event_and_repeats_are_ignored(kind: Kind) {
    let server = Server::start(kind).await;
    let event = json!({ "payload": { "place": "Oslo" }, "id": "scan-1", "ttl": "2 days" });
    let (status, first) = send(&server, PATH, &event).await;
    assert_eq!((status, &first["repeated"], &first["delivered"]), (200, &json!(false), &json!(0)));
    let (status, again) = send(&server, PATH, &event).await;
    assert_eq!((status, &again["repeated"]), (200, &json!(true)), "{again}");
    assert_eq!((&again["id"], &again["expiresAt"]), (&json!("scan-1"), &first["expiresAt"]));
    let other = json!({ "payload": 1, "id": "scan-1" });
    assert_error(send(&server, PATH, &other).await, (409, "EVENT_ID_ALREADY_EXISTS"));
    // Without a body the payload is null, and the server makes the id.
    let (status, sent) = read(server.request(Method::POST, PATH)).await;
    assert_eq!((status, &sent["repeated"]), (200, &json!(false)), "{sent}");
    assert_eq!(kept(&server).await, [2]);
    // A key is any text; it is percent-encoded in the path.
    assert_eq!(send(&server, "/events/scanned/a%2Fb%20c", &json!({})).await.0, 200);
    assert_eq!(kept(&server).await.len(), 2);
    server.stop().await;
}

async fn bad_events_are_refused_and_nothing_is_written(kind: Kind) {
    let server = Server::start(kind).await;
    let long = format!("/events/scanned/{}", "x".repeat(257));
    let cases = [
        ("/events/a.b/k", json!({}), (400, "INVALID_EVENT_TYPE")),
        (&long, json!({}), (400, "INVALID_NAME")),
        (PATH, json!({ "id": "x".repeat(101) }), (400, "INVALID_EVENT_ID")),
        (PATH, json!({ "ttl": "soon" }), (400, "INVALID_DURATION")),
        (PATH, json!({ "ttl": "1 ms" }), (400, "INVALID_DURATION")),
        (PATH, json!({ "payload": "x".repeat(300 << 10) }), (429, "EVENT_KEY_FULL")),
    ];
    for (path, body, expect) in cases {
        assert_error(send(&server, path, &body).await, expect);
    }
    assert!(kept(&server).await.is_empty());
    server.stop().await;
}

async fn a_key_belongs_to_a_tenant_and_needs_a_scope(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let keys = KeyFactory::new(&store, &server);
    let others: Vec<_> = Scope::ALL.into_iter().collect();
    let without =
        others.iter().copied().filter(|scope| !matches!(scope, Scope::SendEvent | Scope::Admin));
    let without = keys.key("default", &without.collect::<Vec<_>>()).await;
    let (one, two) = (
        keys.key("default", &[Scope::SendEvent]).await,
        keys.key("other", &[Scope::SendEvent]).await,
    );
    let send = |key: &str| {
        let body = json!({ "id": "scan-1", "payload": 1 });
        read(server.request(Method::POST, PATH).bearer_auth(key).json(&body))
    };
    assert_error(send(&without).await, (403, "FORBIDDEN"));
    // The same id is another event in another namespace.
    for (key, repeated) in [(&one, false), (&two, false), (&one, true)] {
        let (status, sent) = send(key).await;
        assert_eq!((status, &sent["repeated"]), (200, &json!(repeated)), "{sent}");
    }
    server.stop().await;
}
