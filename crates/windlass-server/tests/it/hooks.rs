//! Authorization by hooks of an embedding program.

use std::sync::Arc;

use axum::http::request::Parts;
use reqwest::Method;
use serde_json::{Value, json};
use windlass::kernel::{Actor, BoxFuture, Namespace, Subject};
use windlass_server::Options;
use windlass_server::auth::{Auth, Authorize, Caller, Denied, Scope, Target};

use crate::harness::{Kind, Server, assert_error, on_both_stores, read};

on_both_stores!(
    hooks_of_an_embedding_program,
    hooks_filter_the_runs_of_a_listing,
    each_action_calls_its_hook,
);

/// Lets `x-user: ann` in as a reader and creator, but not to runs whose id begins with `private`.
struct House;

impl Authorize for House {
    fn request<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let user = parts.headers.get("x-user").and_then(|user| user.to_str().ok());
        let answer = match user {
            Some("ann") => Ok(Some(Caller {
                namespace: Namespace::default_namespace(),
                scopes: [Scope::Read, Scope::Create, Scope::Manage].into_iter().collect(),
                actor: None,
                subject: None,
                key: None,
            })),
            Some(_) => Err(Denied::unauthenticated("who are you?")),
            None => Ok(None),
        };
        Box::pin(std::future::ready(answer))
    }

    fn manage<'a>(
        &'a self,
        _: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        let private = target.id.is_some_and(|id| id.starts_with("private"));
        let answer = if private { Err(Denied::forbidden("hands off")) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }
}

async fn hooks_of_an_embedding_program(kind: Kind) {
    let options =
        Options { auth: Auth::Hooks, authorize: Some(Arc::new(House)), ..Options::default() };
    let server = Server::start_with(kind, options).await;
    let send = |method: Method, path: &str, user: Option<&str>, body: Value| {
        let request = server.request(method, path).json(&body);
        read(match user {
            Some(user) => request.header("x-user", user),
            None => request,
        })
    };
    assert_error(send(Method::GET, "/workflows", None, json!({})).await, (401, "UNAUTHENTICATED"));
    assert_error(
        send(Method::GET, "/workflows", Some("bob"), json!({})).await,
        (401, "UNAUTHENTICATED"),
    );
    let ann = Some("ann");
    for id in ["private-1", "public-1"] {
        let body = json!({ "id": id, "params": {} });
        assert_eq!(send(Method::POST, "/workflows/nap/instances", ann, body).await.0, 200);
    }
    let path = "/workflows/nap/instances/private-1/terminate";
    assert_error(send(Method::POST, path, ann, json!({})).await, (403, "FORBIDDEN"));
    let bulk = json!({ "action": "terminate", "filter": {} });
    let (_, result) = send(Method::POST, "/runs/bulk", ann, bulk).await;
    assert_eq!((&result["done"], &result["failed"][0]["id"]), (&json!(1), &json!("private-1")));
    assert_eq!(result["failed"][0]["code"], "FORBIDDEN");
    let event = send(
        Method::POST,
        "/workflows/nap/instances/private-1/events",
        ann,
        json!({ "type": "x" }),
    );
    assert_error(event.await, (403, "FORBIDDEN"));
    server.stop().await;
}

/// Allows everything except what the header `x-deny` names: a hook, or `id:` and an id.
struct DenyListed;

impl DenyListed {
    fn verdict<'a>(
        caller: &'a Caller,
        hook: &str,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        let denies = |what: &str| caller.actor == Some(Actor::new("test", what));
        let hit = denies(hook) || target.id.is_some_and(|id| denies(&format!("id:{id}")));
        let answer = if hit { Err(Denied::forbidden(format!("no {hook}"))) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }
}

impl Authorize for DenyListed {
    fn request<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let denied = parts.headers.get("x-deny").and_then(|denied| denied.to_str().ok());
        let caller = Caller {
            namespace: Namespace::default_namespace(),
            scopes: Scope::ALL.into_iter().collect(),
            actor: denied.map(|denied| Actor::new("test", denied)),
            subject: Some(Subject::parse("ann").unwrap()),
            key: None,
        };
        Box::pin(std::future::ready(Ok(Some(caller))))
    }

    fn create<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        Self::verdict(caller, "create", target)
    }

    fn read<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        Self::verdict(caller, "read", target)
    }

    fn send_event<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        Self::verdict(caller, "send-event", target)
    }

    fn records<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        Self::verdict(caller, "records", target)
    }

    fn manage<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        Self::verdict(caller, "manage", target)
    }

    fn decide<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        Self::verdict(caller, "decide", target)
    }

    fn tick<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<(), Denied>> {
        const NOTHING: &Target<'_> = &Target {
            workflow: None,
            collection: None,
            is_document: false,
            id: None,
            action: None,
            params: None,
        };
        Self::verdict(caller, "tick", NOTHING)
    }
}

async fn start_with_hooks(kind: Kind) -> Server {
    let authorize: Option<Arc<dyn Authorize>> = Some(Arc::new(DenyListed));
    let options = Options { auth: Auth::Hooks, authorize, tick: true, ..Options::default() };
    let server = Server::start_with(kind, options).await;
    for id in ["seen", "hidden"] {
        server.run("approve", id, json!({}), "waiting").await;
    }
    server
}

async fn hooks_filter_the_runs_of_a_listing(kind: Kind) {
    let server = start_with_hooks(kind).await;
    let get = |path: &str| read(server.request(Method::GET, path).header("x-deny", "id:hidden"));
    for path in ["/runs", "/workflows/approve/instances", "/durable/workflows"] {
        let text = get(path).await.1.to_string();
        assert!(text.contains("seen") && !text.contains("hidden"), "{path}: {text}");
        let text = server.get_ok(path).await.to_string();
        assert!(text.contains("hidden"), "{path}: {text}");
    }
    for id in ["seen", "hidden"] {
        server.run("charge", id, json!(0), "errored").await;
    }
    let failed = |found: &Value| {
        let items = found["items"].as_array().unwrap();
        items.iter().find(|item| item["kind"] == "errored").unwrap()["count"]["count"].clone()
    };
    assert_eq!(failed(&server.get_ok("/attention").await), 2);
    assert_eq!(failed(&get("/attention").await.1), 1, "the hidden run is not counted");
    let run = server.get_ok("/workflows/approve/instances/hidden").await;
    let key = run["meta"]["runKey"].as_str().unwrap();
    assert_eq!(server.get(&format!("/runs/{key}")).await.0, 200);
    for path in [
        "/workflows/approve/instances/hidden".to_owned(),
        "/workflows/approve/instances/hidden/history".to_owned(),
        "/workflows/approve/instances/hidden/live".to_owned(),
        format!("/runs/{key}"),
        format!("/durable/workflows/{key}"),
        format!("/durable/workflows/{key}/events"),
    ] {
        assert_error(get(&path).await, (403, "FORBIDDEN"));
    }
    server.stop().await;
}

async fn each_action_calls_its_hook(kind: Kind) {
    let server = start_with_hooks(kind).await;
    for (hook, method, path, body) in [
        ("create", Method::POST, "/workflows/greet/instances", json!({})),
        ("create", Method::POST, "/workflows/greet/instances/batch", json!({ "instances": [] })),
        ("read", Method::GET, "/workflows", Value::Null),
        ("read", Method::GET, "/workflows/approve/instances/seen/why", Value::Null),
        (
            "send-event",
            Method::POST,
            "/workflows/approve/instances/seen/events",
            json!({ "type": "other" }),
        ),
        ("records", Method::GET, "/records/carts", Value::Null),
        ("manage", Method::POST, "/workflows/approve/instances/seen/pause", json!({})),
        ("decide", Method::GET, "/inbox", Value::Null),
        ("tick", Method::POST, "/_runner/tick", json!({})),
    ] {
        let ask = |denied: &str| {
            let request = server.request(method.clone(), path).header("x-deny", denied);
            read(if body.is_null() { request } else { request.json(&body) })
        };
        let (status, answer) = ask(hook).await;
        assert_eq!((status, &answer["message"]), (403, &json!(format!("no {hook}"))), "{path}");
        assert_eq!(ask("nothing").await.0, 200, "{path}");
    }
    server.stop().await;
}
