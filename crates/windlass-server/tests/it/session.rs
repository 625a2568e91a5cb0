//! Sign-in with a cookie: what it allows, and what a page of another site cannot do with it.

use reqwest::{Method, header};
use serde_json::json;
use windlass_server::Entry;
use windlass_server::auth::Scope;

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, assert_error, on_both_stores, read};

on_both_stores!(
    a_key_buys_a_cookie,
    a_cookie_needs_the_same_origin,
    no_route_obeys_another_site,
    whoami_without_sign_in,
);

async fn a_key_buys_a_cookie(kind: Kind) {
    let (keys, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let key = KeyFactory::new(&keys, &server).key("default", &[Scope::Read]).await;
    let origin = format!("http://{}", server.address);
    let sign_in = |key: &str| {
        let request = server.request(Method::POST, "/session").json(&json!({ "key": key }));
        request.header(header::ORIGIN, &origin)
    };
    assert_error(read(sign_in("wl_0000000000000000_x")).await, (401, "UNAUTHENTICATED"));
    assert_error(read(sign_in("a;b")).await, (400, "INVALID_BODY"));
    let answer = sign_in(&key).send().await.unwrap();
    let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(word), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "plain HTTP could not send it back");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with =
        |method: Method, path: &str| server.request(method, path).header(header::COOKIE, &cookie);
    let (status, body) = read(with(Method::GET, "/whoami")).await;
    assert_eq!((status, &body["scopes"], &body["signIn"]), (200, &json!(["read"]), &json!(true)));
    assert_eq!(read(with(Method::GET, "/runs")).await.0, 200);
    let create = with(Method::POST, "/workflows/greet/instances").header(header::ORIGIN, &origin);
    assert_error(read(create.json(&json!({}))).await, (403, "FORBIDDEN"));
    assert_error(server.get("/whoami").await, (401, "UNAUTHENTICATED"));
    let gone = with(Method::DELETE, "/session").header(header::ORIGIN, &origin).send().await;
    let gone = gone.unwrap();
    assert_eq!(gone.status(), 204);
    assert!(gone.headers()[header::SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    server.stop().await;
}

async fn a_cookie_needs_the_same_origin(kind: Kind) {
    let (keys, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let key = KeyFactory::new(&keys, &server).key("default", &[Scope::Admin]).await;
    let cookie = format!("windlass_session={key}");
    let own = format!("http://{}", server.address);
    for (origin, site, allowed) in [
        (Some(own.as_str()), Some("same-origin"), true),
        (Some(own.as_str()), None, true),
        (Some(own.as_str()), Some("same-site"), false),
        (Some("https://evil.example"), Some("cross-site"), false),
        (Some("null"), None, false),
        (None, None, false),
    ] {
        for path in ["/workflows/greet/instances", "/session"] {
            let mut request = server.request(Method::POST, path).header(header::COOKIE, &cookie);
            if let Some(origin) = origin {
                request = request.header(header::ORIGIN, origin);
            }
            if let Some(site) = site {
                request = request.header("sec-fetch-site", site);
            }
            let body = if path == "/session" { json!({ "key": key }) } else { json!({}) };
            let (status, body) = read(request.json(&body)).await;
            assert_eq!(
                status,
                if allowed { 200 } else { 403 },
                "{path} {origin:?} {site:?}: {body}"
            );
        }
    }
    server.stop().await;
}

async fn no_route_obeys_another_site(kind: Kind) {
    let (keys, options) = options_with_keys();
    let (server, routes) = Server::start_with_all_routes(kind, options).await;
    let key = KeyFactory::new(&keys, &server).key("default", &[Scope::Admin]).await;
    let send = async |method: &Method, path: &str, origin: &str, site: &str| {
        let request = server.request(method.clone(), path).header(header::ORIGIN, origin);
        let request = request.header("sec-fetch-site", site);
        let request = request.header(header::COOKIE, format!("windlass_session={key}"));
        // The sign-in reads the key before the origin.
        read(request.json(&json!({ "key": key }))).await
    };
    let this = format!("http://{}", server.address);
    let mut count = 0;
    for Entry { method, path, .. } in &routes {
        if [Method::GET, Method::HEAD].contains(method) {
            continue;
        }
        let path = format!("/{}", with_names(path));
        // The guard refuses the first origin to every caller, and the second site only to cookies.
        let other = send(method, &path, "https://evil.example", "cross-site").await;
        assert_error(other, (403, "FORBIDDEN"));
        assert_error(send(method, &path, &this, "same-site").await, (403, "FORBIDDEN"));
        count += 1;
    }
    assert!(count > 60, "{count} routes");
    // The same requests of this server's own pages get further.
    let flushed = send(&Method::POST, "/lanes/x/flush", &this, "same-origin").await;
    assert_error(flushed, (404, "BATCH_NOT_FOUND"));
    server.stop().await;
}

/// A path whose parameters are all `x`.
fn with_names(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.contains('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

async fn whoami_without_sign_in(kind: Kind) {
    let server = Server::start(kind).await;
    let body = server.get_ok("/whoami").await;
    assert_eq!((&body["signIn"], &body["operator"]), (&json!(false), &json!(true)));
    server.stop().await;
}
