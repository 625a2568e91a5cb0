//! Hooks and scopes on the routes that name a run by its key, or list objects of many runs.

use std::sync::Arc;

use axum::http::request::Parts;
use reqwest::Method;
use serde_json::{Value, json};
use windlass::kernel::{Actor, BoxFuture, Namespace, Subject};
use windlass::requests::Request;
use windlass_server::Options;
use windlass_server::auth::{Auth, Authorize, Caller, Denied, Scope, Target};

use crate::harness::{Kind, Server, on_both_stores, open, read, wait_until};
use crate::inbox::{ask, opened};

on_both_stores!(
    tasks_and_dead_letters_ask_the_hook_for_each_run,
    a_signal_shows_the_run_only_to_readers,
    the_create_hook_gets_the_id_and_the_params,
    the_records_hook_gets_each_record_and_the_action,
    the_decide_hook_gets_the_run_of_each_request,
);

/// The header `x-scopes` names the scopes of the caller, `x-person` its subject, `x-hidden` a run that the hooks deny, and
/// `x-params` params that the hook `create` denies.
struct ByHeader;

fn header<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    parts.headers.get(name)?.to_str().ok()
}

fn verdict<'a>(caller: &'a Caller, target: &'a Target<'a>) -> BoxFuture<'a, Result<(), Denied>> {
    let is = |text: &str| caller.actor == Some(Actor::new("hidden", text));
    let named = target.collection.zip(target.action).map(|(collection, action)| {
        format!("{action} {collection}/{}", target.id.unwrap_or_default())
    });
    let hidden = target.id.is_some_and(is) || target.params.is_some_and(is);
    let hidden = hidden || named.is_some_and(|named| is(&named));
    let answer = if hidden { Err(Denied::forbidden("hidden")) } else { Ok(()) };
    Box::pin(std::future::ready(answer))
}

impl Authorize for ByHeader {
    fn request<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let scopes = header(parts, "x-scopes").unwrap_or("admin").split(',');
        let caller = Caller {
            namespace: Namespace::default_namespace(),
            scopes: scopes.filter_map(Scope::parse).collect(),
            actor: header(parts, "x-hidden").map(|id| Actor::new("hidden", id)),
            subject: header(parts, "x-person").map(|text| Subject::parse(text).unwrap()),
            key: None,
        };
        Box::pin(std::future::ready(Ok(Some(caller))))
    }

    fn create<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        verdict(caller, target)
    }

    fn read<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        verdict(caller, target)
    }

    fn records<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        verdict(caller, target)
    }

    fn decide<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        verdict(caller, target)
    }

    fn manage<'a>(
        &'a self,
        caller: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        verdict(caller, target)
    }
}

async fn start(kind: Kind) -> Server {
    let authorize: Option<Arc<dyn Authorize>> = Some(Arc::new(ByHeader));
    let options = Options { auth: Auth::Hooks, authorize, ..open() };
    Server::start_with(kind, options).await
}

async fn tasks_and_dead_letters_ask_the_hook_for_each_run(kind: Kind) {
    let server = start(kind).await;
    let hidden =
        |method: Method, path: &str| server.request(method, path).header("x-hidden", "hidden-run");
    for id in ["seen-run", "hidden-run"] {
        server.run("outside", id, json!({ "of": id }), "waiting").await;
    }
    wait_until("both tasks exist", async || {
        server.get_ok("/durable/tasks").await["tasks"].as_array().map(Vec::len) == Some(2)
    })
    .await;
    let (_, tasks) = read(hidden(Method::GET, "/durable/tasks")).await;
    assert_eq!(tasks["tasks"].as_array().map(Vec::len), Some(1), "{tasks}");

    let fail = async |_: windlass::TaskContext, _: Value| {
        let error = windlass::steps::NonRetryable::new("it is broken");
        Err::<Value, _>(windlass::AnyError::from(error))
    };
    server.engine.activity("nobody-does-this", fail).unwrap();
    wait_until("both tasks are dead letters", async || {
        server.get_ok("/durable/dlq").await["entries"].as_array().map(Vec::len) == Some(2)
    })
    .await;
    let (_, letters) = read(hidden(Method::GET, "/durable/dlq")).await;
    assert_eq!(letters["entries"].as_array().map(Vec::len), Some(1), "{letters}");
    let purge = json!({ "older_than": 0 });
    let (status, purged) = read(hidden(Method::POST, "/durable/dlq/purge").json(&purge)).await;
    assert_eq!((status, &purged["purged"]), (200, &json!(1)), "{purged}");
    let rest = server.get_ok("/durable/dlq").await;
    assert_eq!(rest["entries"].as_array().map(Vec::len), Some(1), "{rest}");
    server.stop().await;
}

async fn a_signal_shows_the_run_only_to_readers(kind: Kind) {
    let server = start(kind).await;
    let input = json!({ "secret": "card 4242" });
    let run = server.run("approve", "a", input, "waiting").await;
    let key = run["meta"]["runKey"].as_str().unwrap();
    let path = format!("/durable/workflows/{key}/signal");
    let signal = json!({ "signal_type": "other", "payload": 1 });
    for (scopes, shown) in [("send-event", false), ("send-event,read", true)] {
        let request = server.request(Method::POST, &path).header("x-scopes", scopes);
        let (status, answer) = read(request.json(&signal)).await;
        assert_eq!((status, &answer["id"]), (200, &json!(key)), "{answer}");
        assert_eq!(answer.to_string().contains("4242"), shown, "{scopes}: {answer}");
    }
    let request = server.request(Method::POST, &format!("/durable/workflows/{key}/cancel"));
    let (status, answer) = read(request.header("x-scopes", "manage")).await;
    assert_eq!(status, 200, "{answer}");
    assert!(!answer.to_string().contains("4242"), "{answer}");
    server.stop().await;
}

async fn the_create_hook_gets_the_id_and_the_params(kind: Kind) {
    let server = start(kind).await;
    let create = |hidden: &str, path: &str, body: Value| {
        let path = format!("/workflows/nap/instances{path}");
        read(server.request(Method::POST, &path).header("x-hidden", hidden).json(&body))
    };
    let one = |id: &str| json!({ "id": id, "params": { "n": 7 } });
    assert_eq!(create("denied", "", one("denied")).await.0, 403);
    assert_eq!(create("{\"n\":7}", "", one("other")).await.0, 403);
    assert_eq!(create("denied", "/batch", json!({ "instances": [one("denied")] })).await.0, 403);
    assert_eq!(create("denied", "", one("fine")).await.0, 200);
    assert_eq!(create("denied", "/batch", json!({ "instances": [one("many")] })).await.0, 200);
    assert_eq!(server.get("/workflows/nap/instances/denied").await.0, 404);
    server.stop().await;
}

async fn the_decide_hook_gets_the_run_of_each_request(kind: Kind) {
    let server = start(kind).await;
    let flow = server.engine.workflow("ask", ask).unwrap();
    let mut ids = Vec::new();
    for run in ["hidden-run", "seen-run"] {
        ids.push(opened(&flow, &server, run, Request::to("ann")).await);
    }
    let send = |method: Method, path: &str, hidden: &str, body: Option<Value>| {
        let request = server.request(method, path).header("x-hidden", hidden);
        let request = request.header("x-person", "ann");
        read(match body {
            Some(body) => request.json(&body),
            None => request,
        })
    };
    let list = async |path: &str, hidden: &str| send(Method::GET, path, hidden, None).await.1;
    for path in ["/inbox", "/inbox?of=all", "/inbox?of=person:ann&order=due"] {
        let page = list(path, "hidden-run").await;
        let runs: Vec<_> = page["requests"].as_array().unwrap().iter().collect();
        assert_eq!((runs.len(), &runs[0]["instanceId"]), (1, &json!("seen-run")), "{path}: {page}");
        let all = list(path, "nothing").await;
        assert_eq!(all["requests"].as_array().map(Vec::len), Some(2), "{path}: {all}");
    }
    let page = list("/inbox?limit=1", "hidden-run").await;
    assert_eq!((&page["requests"], &page["hasNextPage"]), (&json!([]), &json!(true)), "{page}");
    let path = format!("/inbox/{}", ids[0]);
    let until = "2100-01-01T00:00:00Z";
    let changes = [
        ("comment", json!({ "text": "hm" })),
        ("delegate", json!({ "to": "bob", "until": until })),
        ("withdraw", json!({})),
        ("decide", json!({ "choice": "approve" })),
    ];
    assert_eq!(send(Method::GET, &path, "hidden-run", None).await.0, 403);
    for (action, body) in &changes {
        let path = format!("{path}/{action}");
        let denied = send(Method::POST, &path, "hidden-run", Some(body.clone())).await;
        assert_eq!((denied.0, &denied.1["message"]), (403, &json!("hidden")), "{action}");
    }
    let state = server.engine.requests().get(&ids[0]).await.unwrap();
    let is_unchanged = state.votes.is_empty() && state.comments.is_empty();
    assert!(is_unchanged && state.delegations.is_empty() && state.closed.is_none(), "{state:?}");
    let (action, body) = &changes[0];
    let comment = send(Method::POST, &format!("{path}/{action}"), "seen-run", Some(body.clone()));
    assert_eq!(comment.await.0, 200);
    assert_eq!(send(Method::GET, &path, "seen-run", None).await.0, 200);
    server.stop().await;
}

async fn the_records_hook_gets_each_record_and_the_action(kind: Kind) {
    let server = start(kind).await;
    let ask = |method: Method, path: &str, denied: &str| {
        let request = server.request(method.clone(), path).header("x-hidden", denied);
        let request = match (method == Method::GET, denied) {
            (true, _) => request,
            (false, "create") => request.header("if-none-match", "*").json(&1),
            (false, _) => request.header("if-match", "*").json(&2),
        };
        read(request)
    };
    for id in ["a%2Fb", "c"] {
        assert_eq!(ask(Method::PUT, &format!("/records/carts/{id}"), "create").await.0, 201);
    }
    let ids = |page: Value| -> Vec<String> {
        let rows = page["records"].as_array().unwrap().iter();
        rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let (_, page) = ask(Method::GET, "/records/carts?limit=1", "list carts/a/b").await;
    assert!(page["hasNextPage"] == true && page["records"] == json!([]), "{page}");
    let (_, page) = ask(Method::GET, "/records/carts", "list carts/a/b").await;
    assert_eq!(ids(page), ["c"]);
    let (_, page) = ask(Method::GET, "/records/carts", "get carts/a/b").await;
    assert_eq!(ids(page), ["a/b", "c"]);
    assert_eq!(ask(Method::GET, "/records/carts", "list carts/").await.0, 403);
    for (method, path, action) in [
        (Method::GET, "/records/carts/a%2Fb", "get"),
        (Method::GET, "/records/carts/a%2Fb/versions", "get"),
        (Method::PUT, "/records/carts/a%2Fb/", "put"),
        (Method::DELETE, "/records/carts/a%2Fb", "delete"),
    ] {
        let denied = format!("{action} carts/a/b");
        assert_eq!(ask(method.clone(), path, &denied).await.0, 403, "{method} {path}");
        assert_eq!(ask(method.clone(), path, "put carts/c").await.0, 200, "{method} {path}");
    }
    server.stop().await;
}
