//! Documents and approvals over HTTP: each request is on behalf of the person in its header.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use axum::http::request::Parts;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use windlass::Engine;
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::templates;
use windlass::contracts::{ActionOutcome, Contracts};
use windlass::kernel::{BoxFuture, Namespace, Subject};
use windlass_server::auth::{Auth, Authorize, Caller, CallerKey, Denied, Scope};
use windlass_server::{Options, ServeOptions};

use crate::harness::{http_client, with_timeout};

struct ByPerson;

impl Authorize for ByPerson {
    fn request<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let scopes = header("x-scopes").unwrap_or("admin").split(',');
        let caller = Caller {
            namespace: Namespace::new(header("x-namespace").unwrap_or("default")).unwrap(),
            scopes: scopes.filter_map(Scope::parse).collect(),
            actor: None,
            subject: header("x-person").map(|text| Subject::parse(text).unwrap()),
            key: header("x-creators").map(|people| CallerKey {
                id: "a-key".to_owned(),
                creators: people.split(',').map(str::to_owned).collect(),
            }),
        };
        Box::pin(std::future::ready(Ok(Some(caller))))
    }
}

struct Client {
    base: String,
    http: reqwest::Client,
    /// The OpenAPI document.
    api: Value,
}

impl Client {
    async fn ask(&self, person: &str, method: Method, path: &str, body: Value) -> (u16, Value) {
        self.ask_with(person, method, path, body, &[]).await
    }

    async fn ask_with(
        &self,
        person: &str,
        method: Method,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> (u16, Value) {
        let documented = documented(&self.api, &method, path);
        let mut request = self.http.request(method, format!("{}{path}", self.base)).json(&body);
        if !person.is_empty() {
            request = request.header("x-person", person);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        if answer.status().is_success() {
            assert_eq!(documented, [status.to_string(), "default".to_owned()], "{path}");
        }
        (status, answer.json().await.unwrap_or(Value::Null))
    }
}

/// The statuses that the OpenAPI document has for a request.
fn documented(api: &Value, method: &Method, path: &str) -> Vec<String> {
    let parts: Vec<&str> = path.split('?').next().unwrap_or_default().split('/').collect();
    let fits = |template: &str| {
        let wanted: Vec<&str> = template.split('/').collect();
        let same = |(one, part): (&&str, &&str)| one == part || one.starts_with('{');
        wanted.len() == parts.len() && wanted.iter().zip(&parts).all(same)
    };
    // A path without parameters wins.
    let paths = api["paths"].as_object().expect("paths");
    let found = paths.iter().filter(|(template, item)| {
        fits(template) && item.get(method.as_str().to_ascii_lowercase()).is_some()
    });
    let (_, item) = found.min_by_key(|(template, _)| template.matches('{').count()).expect(path);
    let responses = &item[method.as_str().to_ascii_lowercase()]["responses"];
    responses.as_object().expect("responses").keys().cloned().collect()
}

#[track_caller]
fn refused((status, body): (u16, Value), expect: (u16, &str)) {
    assert_eq!((status, body["code"].as_str().unwrap_or_default()), expect, "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invoice_is_approved_over_http() {
    with_timeout(flow()).await;
}

async fn flow() {
    let engine = Engine::open("memory:").await.unwrap();
    let builder =
        Contracts::builder().action("ledger.post", Arc::new(|_| Ok(ActionOutcome::none())));
    let contracts = builder.open(engine.core()).await.unwrap();
    let finance = Person { roles: ["finance_manager".to_owned()].into(), ..Person::default() };
    let people = [("fay".to_owned(), finance)].into();
    contracts.put_directory(&Directory { people, delegations: Vec::new() }).await.unwrap();
    let authorize: Option<Arc<dyn Authorize>> = Some(Arc::new(ByPerson));
    let routes = vec![windlass_server::contracts::routes(&contracts)];
    let options = Options { auth: Auth::Hooks, authorize, routes, ..Options::default() };
    let router = windlass_server::router(&engine, options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/api", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let until_stop = async {
        let _ = stopped.await;
    };
    let serving =
        windlass_server::serve_with(listener, router, ServeOptions::default(), until_stop);
    let served = tokio::spawn(serving);
    let http = http_client();
    let api = http.get(format!("{base}/openapi.json")).send().await.unwrap().json().await.unwrap();
    let client = Client { base, http, api };
    requests(&client).await;
    expressions(&client).await;
    strict_bodies(&client, &contracts).await;
    listings(&client).await;
    drop(stop);
    served.await.unwrap().unwrap();
    engine.stop(Duration::from_secs(5)).await.unwrap();
}

async fn requests(client: &Client) {
    let template = templates::all().into_iter().find(|one| one.name == "invoice_approval").unwrap();
    let content = json!({
        "id": "i-1", "total": 90, "currency": "EUR", "requester": "rita", "vendor_class": "new",
        "budget_owner": "bob",
    });
    let (get, post, patch) = (Method::GET, Method::POST, Method::PATCH);
    let contract = json!(template.contract);
    refused(
        client.ask("", post.clone(), "/contracts/types", contract.clone()).await,
        (403, "FORBIDDEN"),
    );
    let (status, head) = client.ask("olga", post.clone(), "/contracts/types", contract).await;
    assert_eq!((status, &head["version"]), (200, &json!(1)), "{head}");
    let empty = json!({"baseRef": {"entityType": "invoice", "envelopeVersion": 1},
                       "slots": {"submitted_to_approved": {}}});
    let checked = client.ask("dana", post.clone(), "/contracts/invoice/check", empty).await;
    assert_eq!(checked.1["details"]["problems"][0]["code"], "OBLIGATION_BROKEN", "{checked:?}");
    refused(checked, (400, "CONTRACT_INVALID"));
    let new = json!({"id": "i-1", "content": content});
    let (status, made) = client.ask("rita", post.clone(), "/documents/invoice", new.clone()).await;
    assert_eq!((status, &made["state"]), (201, &json!("draft")), "{made}");
    refused(
        client.ask("rita", post.clone(), "/documents/invoice", new).await,
        (409, "DOCUMENT_EXISTS"),
    );
    // An edit names the version that it saw.
    let at = "/documents/invoice/i-1";
    let edit = json!({"content": content, "reason": "none"});
    let bare = client.ask("rita", patch.clone(), at, edit.clone()).await;
    refused(bare, (428, "PRECONDITION_REQUIRED"));
    let old = client.ask_with("rita", patch, at, edit, &[("if-match", "\"7\"")]).await;
    refused(old, (412, "DOCUMENT_CONFLICT"));
    let submit = format!("{at}/actions/submit");
    assert_eq!(client.ask("rita", post.clone(), &submit, json!({})).await.0, 202);
    let request = loop {
        let (_, inbox) = client.ask("fay", get.clone(), "/approvals", json!({})).await;
        if let Some(request) = inbox["approvals"].get(0) {
            break request.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let path = format!("/approvals/{}", request["id"].as_str().unwrap());
    let (status, review) = client.ask("fay", get.clone(), &path, json!({})).await;
    assert_eq!((status, &review["quorum"]), (200, &json!({"granted": 0, "needed": 1})), "{review}");
    assert_eq!((&review["content"]["id"], &review["since"]), (&json!("i-1"), &Value::Null));
    pinned(client, &template.definition).await;
    let decide = format!("{path}/approve");
    let decision = json!({"digest": request["digest"]});
    let scoped = [("x-scopes", "records")];
    let without = client.ask_with("fay", post.clone(), &decide, decision.clone(), &scoped).await;
    refused(without, (403, "FORBIDDEN"));
    let other = [("x-namespace", "tenant-b")];
    let elsewhere = client.ask_with("fay", get.clone(), &path, json!({}), &other).await;
    refused(elsewhere, (404, "APPROVAL_NOT_FOUND"));
    refused(
        client.ask("rita", post.clone(), &decide, decision.clone()).await,
        (409, "APPROVAL_REFUSED"),
    );
    refused(client.ask("fay", post.clone(), &decide, json!({})).await, (400, "INVALID_BODY"));
    // Nor with a key that rita made for fay, on no route.
    let own = [("x-creators", "olga,rita")];
    for (route, body) in
        [("approve", &decision), ("reject", &decision), ("delegate", &json!({"to": "kim"}))]
    {
        let path = format!("{path}/{route}");
        let answer = client.ask_with("fay", post.clone(), &path, body.clone(), &own).await;
        refused(answer, (409, "APPROVAL_REFUSED"));
    }
    assert_eq!(client.ask("fay", post.clone(), &decide, decision).await.0, 200);
    loop {
        let (_, document) = client.ask("rita", get.clone(), at, json!({})).await;
        if document["state"] == "active" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (_, rebuilt) = client.ask("olga", post, &format!("{at}/rebuild"), json!({})).await;
    assert_eq!(rebuilt["same"], true, "{rebuilt}");
    let (_, position) = client.ask("olga", get, &format!("{at}/position"), json!({})).await;
    assert_eq!(position["state"], "active", "{position}");
}

// Bodies that another reader would silently change, sent to the contract that the flow has published.
async fn strict_bodies(client: &Client, contracts: &Contracts) {
    let template = templates::all().into_iter().find(|one| one.name == "invoice_approval").unwrap();
    let whole = json!(template.contract).to_string();
    let definition = json!(template.definition).to_string();
    let refuse = async |path: &str, text: &str, expect: (u16, &str), problem: (&str, &str)| {
        let url = format!("{}{path}", client.base);
        let request = client.http.post(url).header("x-person", "olga");
        let request = request.header("content-type", "application/json").body(text.to_owned());
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let found: Value = answer.json().await.unwrap();
        assert_eq!((status, found["code"].as_str().unwrap_or_default()), expect, "{found}");
        let first = &found["details"]["problems"][0];
        let place = first["pointer"].as_str().unwrap_or_default();
        assert_eq!((first["code"].as_str().unwrap_or_default(), place), problem, "{found}");
        assert!(first["help"].is_string(), "{found}");
    };
    let (types, check) = ("/contracts/types", "/contracts/invoice/check");
    let published = format!("{:?}", contracts.types().await.unwrap());
    let invalid = (400, "INVALID_BODY");
    let changed = |from: &str, to: &str| {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole);
        text
    };
    let twice = changed("{", r#"{"version": 2, "#);
    refuse(types, &twice, invalid, ("JSON_DUPLICATE_KEY", "/version")).await;
    let shape = changed(r#""editWindow":""#, r#""editWindow":"un"#);
    refuse(types, &shape, invalid, ("CONTRACT_SHAPE", "/gates/0")).await;
    let large = format!("{whole}{}", " ".repeat(1024 * 1024));
    refuse(types, &large, (413, "BODY_TOO_LARGE"), ("JSON_TOO_LARGE", "")).await;
    assert_eq!(format!("{:?}", contracts.types().await.unwrap()), published);
    let large = format!("{definition}{}", " ".repeat(1024 * 1024));
    refuse(check, &large, (413, "BODY_TOO_LARGE"), ("JSON_TOO_LARGE", "")).await;
    let typo = definition.replacen("baseRef", "baseRev", 1);
    refuse(check, &typo, invalid, ("CONTRACT_SHAPE", "")).await;
    let documents = "/documents/invoice";
    let digits = r#"{"id": "i-0", "content": {"id": "i-0", "total": 9007199254740993}}"#;
    refuse(documents, digits, invalid, ("JSON_NUMBER_INEXACT", "/content/total")).await;
    let rounded = r#"{"id": "i-0", "content": {"id": "i-0", "total": 0.10000000000000000001}}"#;
    refuse(documents, rounded, invalid, ("JSON_NUMBER_INEXACT", "/content/total")).await;
    let twice = r#"{"id": "i-0", "content": {"id": "i-0", "total": 1, "total": 900}}"#;
    refuse(documents, twice, invalid, ("JSON_DUPLICATE_KEY", "/content/total")).await;
    refuse(documents, "[", invalid, ("JSON_INVALID", "")).await;
    refuse(documents, r#"{"id": 5}"#, invalid, ("CONTRACT_SHAPE", "")).await;
    let read = client.ask("olga", Method::GET, "/documents/invoice/i-0", json!({})).await;
    refused(read, (404, "DOCUMENT_NOT_FOUND"));
}

async fn listings(client: &Client) {
    let (get, post, put) = (Method::GET, Method::POST, Method::PUT);
    let (_, versions) =
        client.ask("dana", get.clone(), "/contracts/types/invoice/versions", json!({})).await;
    assert_eq!(versions["versions"][0]["version"], 1, "{versions}");
    assert_eq!(versions["versions"][0]["by"], "olga", "{versions}");
    let at = "/contracts/types/invoice/versions/1";
    let (_, contract) = client.ask("dana", get.clone(), at, json!({})).await;
    assert_eq!((&contract["entityType"], &contract["version"]), (&json!("invoice"), &json!(1)));
    let missing = client.ask("dana", get.clone(), "/contracts/types/invoice/versions/9", json!({}));
    refused(missing.await, (404, "CONTRACT_TYPE_NOT_FOUND"));
    // A definition that tells fay, published twice: the second time nothing has changed. Version 1 is that of `pinned`.
    let slot = "submitted_to_approved";
    let fay = json!({"strategy": "direct", "users": ["fay"]});
    let tell = json!({"id": format!("usr:{slot}:tell"), "type": "notification", "config": {
        "channel": "in_app", "to": fay, "subject": "Invoice {entity.id}"}});
    let ask = json!({"id": format!("usr:{slot}:ask"), "type": "approval",
                     "config": {"approvers": {"strategy": "role", "role": "finance_manager"}}});
    let edge = json!({"id": "e", "source": format!("usr:{slot}:tell"), "target": format!("usr:{slot}:ask")});
    let definition = json!({"baseRef": {"entityType": "invoice", "envelopeVersion": 1},
                            "slots": {slot: {"nodes": [tell, ask], "edges": [edge]}}});
    for _ in 0..2 {
        let path = "/contracts/invoice/draft";
        assert_eq!(client.ask("dana", put.clone(), path, definition.clone()).await.0, 200);
        let (status, published) =
            client.ask("dana", post.clone(), "/contracts/invoice/publish", json!({})).await;
        assert_eq!((status, &published["version"]), (200, &json!(2)), "{published}");
    }
    let versions = "/contracts/invoice/versions?limit=5";
    let (_, versions) = client.ask("dana", get.clone(), versions, json!({})).await;
    let found: Vec<&Value> = versions["versions"].as_array().unwrap().iter().collect();
    assert_eq!((found.len(), &found[0]["by"]), (2, &json!("dana")), "{versions}");
    let chain = json!({"stages": [{"approvers": {"strategy": "direct", "users": ["fay"]}}]});
    let (status, _) = client.ask("olga", put, "/contracts/chains/two_stages", chain).await;
    assert_eq!(status, 200);
    let (_, chains) = client.ask("dana", get.clone(), "/contracts/chains", json!({})).await;
    assert_eq!(chains, json!({"chains": ["two_stages"]}));
    notifications(client).await;
    // A type that is archived takes no new documents; only the operator archives it.
    let other = [("x-namespace", "tenant-b")];
    let archive = "/contracts/types/invoice/archive";
    let answer = client.ask_with("olga", post.clone(), archive, json!({}), &other).await;
    refused(answer, (403, "FORBIDDEN"));
    let (status, head) = client.ask("olga", post.clone(), archive, json!({})).await;
    assert_eq!((status, &head["archived"]), (200, &json!(true)), "{head}");
    let new = json!({"id": "i-9", "content": {}});
    refused(
        client.ask("rita", post, "/documents/invoice", new).await,
        (409, "CONTRACT_TYPE_NOT_FOUND"),
    );
}

async fn notifications(client: &Client) {
    let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
    let content = json!({
        "id": "i-2", "total": 90, "currency": "EUR", "requester": "rita", "vendor_class": "new",
        "budget_owner": "bob",
    });
    let new = json!({"id": "i-2", "content": content});
    assert_eq!(client.ask("rita", post.clone(), "/documents/invoice", new).await.0, 201);
    let submit = "/documents/invoice/i-2/actions/submit";
    assert_eq!(client.ask("rita", post, submit, json!({})).await.0, 202);
    let note = loop {
        let (status, found) = client.ask("fay", get.clone(), "/notifications", json!({})).await;
        assert_eq!(status, 200, "{found}");
        if let Some(note) = found["notifications"].get(0) {
            break note.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!((&note["document"], &note["subject"]), (&json!("i-2"), &json!("Invoice i-2")));
    let at = format!("/notifications/{}", note["id"].as_str().unwrap());
    // Nobody reads or dismisses those of others, and a credential without a person has none.
    let (_, others) = client.ask("rita", get.clone(), "/notifications", json!({})).await;
    assert_eq!(others, json!({"notifications": []}));
    refused(client.ask("rita", delete.clone(), &at, json!({})).await, (404, "RECORD_NOT_FOUND"));
    refused(client.ask("", get.clone(), "/notifications", json!({})).await, (403, "FORBIDDEN"));
    assert_eq!(client.ask("fay", delete, &at, json!({})).await.0, 204);
    let (_, left) = client.ask("fay", get, "/notifications", json!({})).await;
    assert_eq!(left, json!({"notifications": []}));
}

// A document keeps the workflow that it began with; new documents get the published one.
async fn pinned(client: &Client, definition: &impl serde::Serialize) {
    let (get, put, post) = (Method::GET, Method::PUT, Method::POST);
    let at = "/documents/invoice/i-1/workflow";
    let (status, before) = client.ask("rita", get.clone(), at, json!({})).await;
    assert_eq!((status, &before["entityType"]), (200, &json!("invoice")), "{before}");
    let draft = "/contracts/invoice/draft";
    assert_eq!(client.ask("dana", put, draft, json!(definition)).await.0, 200);
    let publish = "/contracts/invoice/publish";
    assert_eq!(client.ask("dana", post, publish, json!({})).await.0, 200);
    let effective = "/contracts/invoice/effective";
    let (_, now) = client.ask("dana", get.clone(), effective, json!({})).await;
    let (_, after) = client.ask("rita", get.clone(), at, json!({})).await;
    assert_eq!((&after["hash"], &after["nodes"]), (&before["hash"], &before["nodes"]));
    assert_ne!(now["hash"], after["hash"], "the published definition differs");
    for (scope, status) in [("records", 200), ("read", 403), ("define", 403)] {
        let scoped = [("x-scopes", scope)];
        let answer = client.ask_with("dana", get.clone(), at, json!({}), &scoped).await;
        assert_eq!(answer.0, status, "{scope}");
    }
    let other = [("x-namespace", "tenant-b")];
    let elsewhere = client.ask_with("rita", get, at, json!({}), &other).await;
    refused(elsewhere, (404, "DOCUMENT_NOT_FOUND"));
}

// Tried against the contract that the flow has published.
async fn expressions(client: &Client) {
    let ask =
        async |body: Value| client.ask("dana", Method::POST, "/expressions/evaluate", body).await;
    let text = "entity.total > 50 && entity.currency == 'EUR'";
    let entity = json!({"total": 90, "currency": "USD"});
    let body = json!({"expression": text, "type": "invoice", "condition": true, "entity": entity});
    let (status, found) = ask(body).await;
    assert_eq!((status, &found["type"]), (200, &json!("a boolean")), "{found}");
    assert_eq!(found["evaluated"]["result"], false, "{found}");
    assert_eq!(found["evaluated"]["variables"]["entity.total"], 90);
    assert_eq!(found["evaluated"]["steps"][0]["text"], "entity.total > 50");
    // A problem is a result; without a document the expression is only checked.
    let (status, found) = ask(json!({"expression": "entity.totl > 1", "type": "invoice"})).await;
    assert_eq!(status, 200);
    assert_eq!(found["problems"][0]["code"], "EXPRESSION_UNKNOWN_NAME", "{found}");
    assert_eq!(found["problems"][0]["span"], json!({"start": 7, "end": 11}), "{found}");
    let (_, found) = ask(json!({"expression": "entity.total > 1", "type": "invoice"})).await;
    assert_eq!((&found["problems"], found.get("evaluated")), (&json!([]), None), "{found}");
    let (_, found) = ask(json!({"expression": "now > '2026-01-01T00:00:00Z'", "entity": {},
                                "now": "2026-01-02T00:00:00Z"}))
    .await;
    assert_eq!(found["evaluated"]["isTrue"], true, "{found}");
    // A number that would lose digits is refused, not rounded.
    let inexact = "{\"expression\":\"true\",\"entity\":{\"total\":12345678901234567890.1}}";
    let request = client.http.post(format!("{}/expressions/evaluate", client.base));
    let request = request.header("x-person", "dana").header("content-type", "application/json");
    let answer = request.body(inexact).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    assert_eq!(answer.json::<Value>().await.unwrap()["code"], "INVALID_BODY");
    for (body, expect) in [
        (json!({"expression": "true", "type": "none"}), (404, "CONTRACT_TYPE_NOT_FOUND")),
        (json!({"expression": "true", "version": 1}), (400, "INVALID_BODY")),
        (json!({"expression": "true", "entity": {}, "now": "monday"}), (400, "INVALID_BODY")),
        (json!({"expression": "true", "entity": {}, "more": 1}), (400, "INVALID_BODY")),
        (json!({}), (400, "INVALID_BODY")),
    ] {
        refused(ask(body).await, expect);
    }
    let scoped = [("x-scopes", "read")];
    let body = json!({"expression": "true"});
    let answer =
        client.ask_with("dana", Method::POST, "/expressions/evaluate", body, &scoped).await;
    refused(answer, (403, "FORBIDDEN"));
}
