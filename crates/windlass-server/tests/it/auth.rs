//! Authorization: every route, with every scope, in every namespace.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::templates;
use windlass::kernel::{Actor, Namespace, Subject};
use windlass_server::auth::{
    Algorithm, Auth, Jwt, JwtKey, KeyStore, Keys, MemoryKeys, NewKey, Scope, StoredKeys,
};
use windlass_server::{Access, Entry, Options};

use crate::harness::{Kind, Server, assert_error, on_both_stores, read, text_of, wait_until};

on_both_stores!(
    every_route_needs_its_scope,
    no_namespace_sees_another,
    keys_over_http,
    an_expired_key_is_rejected,
    messages_that_cancel_a_run_require_manage,
    queues_of_other_namespaces_require_an_operator,
    results_require_the_scope_read,
    a_key_of_a_person_records_the_person,
    the_ledger_of_a_schedule_records_the_actor,
);

/// Keys in memory, and the options of a server that accepts them.
pub(crate) fn options_with_keys() -> (Arc<dyn KeyStore>, Options) {
    let store: Arc<dyn KeyStore> = Arc::new(MemoryKeys::default());
    let auth = Auth::Credentials { keys: Some(Arc::clone(&store)), jwt: None };
    (store, Options { auth, tick: true, ..Options::default() })
}

/// Creates keys directly in the store of the server.
pub(crate) struct KeyFactory(pub(crate) Keys);

impl KeyFactory {
    pub(crate) fn new(store: &Arc<dyn KeyStore>, server: &Server) -> Self {
        let engine = server.engine.clone();
        Self(Keys::new(Arc::clone(store), Arc::new(move || engine.core().clock().now())))
    }

    pub(crate) async fn key(&self, namespace: &str, scopes: &[Scope]) -> String {
        self.key_of(None, namespace, scopes).await
    }

    async fn key_of(&self, person: Option<&str>, namespace: &str, scopes: &[Scope]) -> String {
        let new = NewKey {
            name: "test".into(),
            namespace: Namespace::new(namespace).unwrap(),
            scopes: scopes.to_vec(),
            subject: person.map(|person| Subject::parse(person).unwrap()),
            created_by: None,
            expires_in: None,
        };
        self.0.create(new).await.unwrap().key
    }
}

/// Fills a path template with names that do not exist, so that an allowed request changes nothing.
fn path_of(entry: &Entry) -> String {
    let mut path = entry.path.clone();
    for (name, value) in [
        ("{workflowName}", "greet"),
        ("{instanceId}", "nobody"),
        ("{stepKey}", "nothing"),
        ("{eventId}", "00000000-0000-7000-8000-000000000000"),
        ("{runKey}", "00000000-0000-7000-8000-000000000000"),
        ("{name}", "nothing"),
        ("{collection}", "nothing"),
        ("{revision}", "1"),
        ("{id}", "0000000000000000"),
        ("{key}", "nothing"),
        ("{eventType}", "nothing"),
        ("{eventKey}", "nothing"),
        ("{taskId}", "00000000-0000-7000-8000-000000000000"),
        ("{*file}", "index.html"),
        ("{type}", "nothing"),
        ("{chain}", "nothing"),
        ("{version}", "1"),
        ("{format}", "json"),
        ("{document}", "nothing"),
        ("{action}", "nothing"),
        ("{from}", "1"),
        ("{to}", "2"),
        ("{approval}", "nothing"),
        ("{notification}", "nothing"),
        ("{decision}", "approve"),
        ("{intent}", "nothing"),
        ("{provider}", "nothing"),
        ("{budget}", "nothing"),
    ] {
        path = path.replace(name, value);
    }
    assert!(!path.contains('{'), "unknown path template: {path}");
    format!("/{path}")
}

async fn ask(server: &Server, entry: &Entry, token: Option<&str>) -> (u16, Value) {
    let mut request = server.request(entry.method.clone(), &path_of(entry));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let text = text_of(response).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

async fn every_route_needs_its_scope(kind: Kind) {
    let (store, options) = options_with_keys();
    let (server, routes) = Server::start_with_all_routes(kind, options).await;
    let keys_factory = KeyFactory::new(&store, &server);
    server
        .engine
        .remote_workflow::<Value, Value>("greet")
        .unwrap()
        .start(json!(null))
        .await
        .unwrap();
    assert!(routes.len() > 120, "{}", routes.len());
    let mut scopes_seen = std::collections::BTreeSet::new();
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        for namespace in ["default", "other"] {
            // Decisions need a person.
            keys.push((
                scope,
                namespace,
                keys_factory.key_of(Some("ann"), namespace, &[scope]).await,
            ));
        }
    }
    let none = keys_factory.key("default", &[]).await;
    for entry in &routes {
        let (status, body) = ask(&server, entry, None).await;
        let shown = format!("{} {}", entry.method, entry.path);
        let needed = match entry.access {
            Access::Scope(needed) => needed,
            Access::Operator => Scope::Admin,
            Access::Credential => {
                assert_eq!((status, &body["code"]), (401, &json!("UNAUTHENTICATED")), "{shown}");
                let (status, body) = ask(&server, entry, Some(&none)).await;
                // Notifications are those of a person, and this key has none.
                let needs_person = entry.path.contains("/notifications");
                let is_person_asked = needs_person && body["code"] == "FORBIDDEN";
                assert!(is_person_asked || !matches!(status, 401 | 403), "{shown}: {status}");
                continue;
            }
            Access::Public => {
                let is_session = entry.path.contains("/whoami") || entry.path.contains("/session");
                assert!(is_session || !matches!(status, 401 | 403), "{shown}: {status}");
                continue;
            }
        };
        scopes_seen.insert(needed.as_str());
        assert_eq!((status, &body["code"]), (401, &json!("UNAUTHENTICATED")), "{shown}");
        assert_eq!(ask(&server, entry, Some("wl_0000000000000000_x")).await.0, 401, "{shown}");
        for (scope, namespace, key) in &keys {
            let (scope, namespace) = (*scope, *namespace);
            let (status, body) = ask(&server, entry, Some(key)).await;
            let shown = format!("{shown} with {} in {namespace}: {status} {body}", scope.as_str());
            if entry.access == Access::Operator && scope == needed && namespace == "other" {
                assert_eq!((status, &body["code"]), (403, &json!("FORBIDDEN")), "{shown}");
            } else if scope == needed || scope == Scope::Admin {
                assert!(!matches!(status, 401 | 403) && status < 500, "{shown}");
            } else {
                assert_eq!((status, &body["code"]), (403, &json!("FORBIDDEN")), "{shown}");
                assert_eq!(body["details"]["scope"], needed.as_str());
            }
        }
        assert_eq!(ask(&server, entry, Some(&none)).await.0, 403, "{shown}");
    }
    let unused: Vec<_> =
        Scope::ALL.into_iter().filter(|scope| !scopes_seen.contains(scope.as_str())).collect();
    assert!(unused.is_empty(), "no route requires {unused:?}");
    // Unknown routes are rejected as well.
    for path in
        ["/nothing", "/workflows/greet/instances/x/configs", "/keys/health", "/_runner/tock"]
    {
        assert_error(server.get(path).await, (401, "UNAUTHENTICATED"));
    }
    server.stop().await;
}

async fn no_namespace_sees_another(kind: Kind) {
    let (store, options) = options_with_keys();
    let (server, routes) = Server::start_with_all_routes(kind, options).await;
    let keys_factory = KeyFactory::new(&store, &server);
    let ours = keys_factory.key_of(Some("ann"), "ours", &Scope::ALL).await;
    let theirs = keys_factory.key_of(Some("bob"), "theirs", &Scope::ALL).await;
    let post = |path: &str, key: &str, body: Value| {
        read(server.request(Method::POST, path).bearer_auth(key).json(&body))
    };
    let get = |path: &str, key: &str| read(server.request(Method::GET, path).bearer_auth(key));
    let create = "/workflows/approve/instances";
    let body = json!({ "id": "secret-run", "params": { "plan": "secret" } });
    assert_eq!(post(create, &ours, body.clone()).await.0, 200);
    let schedule = json!({ "workflow": "greet", "everyMs": 3_600_000, "params": "secret" });
    let put =
        server.request(Method::PUT, "/schedules/secret-plan").bearer_auth(&ours).json(&schedule);
    assert_eq!(read(put).await.0, 200);
    let (_, run) = get(&format!("{create}/secret-run"), &ours).await;
    let run_key = run["meta"]["runKey"].as_str().unwrap().to_owned();
    let record =
        server.request(Method::PUT, "/records/secret-carts/secret-cart?term=secret:1&keep=true");
    let record = record.bearer_auth(&ours).header("if-none-match", "*");
    assert_eq!(read(record.json(&json!({ "plan": "secret" }))).await.0, 201);
    let approval = secret_approval(&server, &ours, &keys_factory).await;
    // A dead letter, a breaker and a key of the other namespace.
    let parcels = server.engine.in_namespace("ours").unwrap();
    let letter = secret_letter(&server, parcels.core()).await;
    let named = json!({ "name": "secret-key", "scopes": ["read"] });
    let (_, key) = post("/keys", &ours, named).await;
    let key_id = key["id"].as_str().unwrap();
    let mut wrong = Vec::new();
    // Every route that can name a run, schedule, document, approval or key of the other namespace.
    for entry in &routes {
        let path = entry.path.replace("{workflowName}", "approve");
        let path = path.replace("{instanceId}", "secret-run").replace("{runKey}", &run_key);
        let path = path.replace("{name}", "secret-plan").replace("{key}", "secret-breaker");
        let id = if path.contains("/keys/") { key_id } else { &letter };
        let id = if path.contains("/records/") { "secret-cart" } else { id };
        let path = path.replace("{collection}", "secret-carts").replace("{revision}", "1");
        // An event by key stays in the namespace of its sender.
        let path = path.replace("{eventType}", "scanned").replace("{eventKey}", "parcel-17");
        let path = path.replace("{taskId}", &letter);
        let path = path.replace("{type}", "invoice").replace("{chain}", "secret-chain");
        let path = path.replace("{document}", "secret-invoice").replace("{action}", "submit");
        let path = path.replace("{approval}", &approval).replace("{decision}", "approve");
        let path = path.replace("{version}", "1").replace("{from}", "1").replace("{to}", "2");
        let path = path.replace("{format}", "json").replace("{intent}", "secret-batch");
        let path = path.replace("{notification}", "secret-note");
        let path = path.replace("{provider}", "secret-lane").replace("{budget}", "secret-budget");
        let path =
            path.replace("{id}", id).replace("{stepKey}", "x").replace("{eventId}", &run_key);
        if entry.access == Access::Public {
            continue;
        }
        assert!(!path.contains('{'), "unknown path template: {path}");
        // A body that is valid for several routes.
        let body = json!({ "type": "approval" });
        let request =
            server.request(entry.method.clone(), &format!("/{path}")).bearer_auth(&theirs);
        let request = if entry.method == Method::GET { request } else { request.json(&body) };
        let is_record = path.contains("/records/") && entry.method != Method::GET;
        let request = match (is_record, entry.method == Method::PATCH) {
            (true, _) => request.header("if-match", "*"),
            (false, true) => request.header("if-match", "\"1\""),
            (false, false) => request,
        };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let names_theirs = [run_key.as_str(), "secret", key_id, &letter, &approval];
        if entry.access == Access::Operator {
            assert_eq!(status, 403, "{} {path}", entry.method);
        } else if path.trim_end_matches('/').ends_with("/records/secret-carts") {
            assert_eq!(status, 200, "the collection of this namespace is empty");
        } else if path.contains("/records/") && entry.method == Method::PUT {
            assert_eq!(status, 412, "{path}");
        } else if path.trim_end_matches('/').ends_with("/secret-invoice/approvals") {
            assert_eq!(status, 200, "the list of this namespace is empty");
        } else if names_theirs.iter().any(|name| path.contains(name))
            && !matches!(status, 400 | 404)
        {
            wrong.push(format!("{} {path}: {status}", entry.method));
        }
        let text = text_of(response).await;
        assert!(!text.contains("\"plan\""), "{path}: {text}");
        let listed =
            !path.contains("secret") && !path.contains(&run_key) && text.contains("secret");
        assert!(!listed, "{path}: {text}");
        let approved = path.contains("/approvals") && text.contains(&*approval);
        assert!(!approved || path.contains(&*approval), "{path}: {text}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let (status, mine) = get("/records/secret-carts/secret-cart?view=full", &ours).await;
    assert_eq!(
        (status, &mine["revision"], &mine["value"]["plan"]),
        (200, &json!(1), &json!("secret"))
    );
    let bulk = json!({ "action": "terminate", "filter": {} });
    assert_eq!(post("/runs/bulk", &theirs, bulk).await.0, 200);
    let (status, _) = post(create, &theirs, body).await;
    assert_eq!(status, 200, "the same id is free in another namespace");
    let (_, run) = get(&format!("{create}/secret-run"), &ours).await;
    assert!(!run["details"]["status"].as_str().unwrap().starts_with("term"), "{run}");
    assert_eq!(run["meta"]["runKey"], run_key);
    let (_, run) = get(&format!("{create}/secret-run"), &theirs).await;
    assert_ne!(run["meta"]["runKey"], run_key);
    // The namespace comes only from the credential, not from a header, query or body.
    let request = server.request(Method::GET, "/runs?namespace=ours").bearer_auth(&theirs);
    let (_, runs) = read(request.header("x-namespace", "ours")).await;
    assert!(!runs.to_string().contains(&run_key), "{runs}");
    server.stop().await;
}

// A chain, a directory, settings, and a document with an approval, in the namespace of the key. Returns the id of
// the approval.
async fn secret_approval(server: &Server, key: &str, keys: &KeyFactory) -> String {
    let operator = keys.key_of(Some("olga"), "default", &[Scope::Admin]).await;
    let send = async |key: &str, method: Method, path: &str, body: Value| {
        let (status, answer) =
            read(server.request(method, path).bearer_auth(key).json(&body)).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    };
    let all = templates::all();
    let template = all.into_iter().find(|one| one.name == "invoice_approval").unwrap();
    let (post, put) = (Method::POST, Method::PUT);
    send(&operator, post.clone(), "/contracts/types", json!(template.contract)).await;
    let finance = Person { roles: ["finance_manager".to_owned()].into(), ..Person::default() };
    let people = [("secret-fay".to_owned(), finance)].into();
    let directory = Directory { people, delegations: Vec::new() };
    send(key, put.clone(), "/contracts/directory", json!(directory)).await;
    send(key, put, "/contracts/settings", json!({ "plan": "secret" })).await;
    let content = json!({
        "id": "secret-invoice", "total": 90, "currency": "EUR", "requester": "ann",
        "vendor_class": "new", "budget_owner": "bob",
    });
    let new = json!({ "id": "secret-invoice", "content": content });
    send(key, post.clone(), "/documents/invoice", new).await;
    send(key, post, "/documents/invoice/secret-invoice/actions/submit", json!({})).await;
    let fay = keys.key_of(Some("secret-fay"), "ours", &[Scope::Decide]).await;
    let find = async || {
        let (_, inbox) = read(server.request(Method::GET, "/approvals").bearer_auth(&fay)).await;
        inbox["approvals"][0]["id"].as_str().map(str::to_owned)
    };
    wait_until("the approval is open", async || find().await.is_some()).await;
    find().await.unwrap()
}

async fn a_key_of_a_person_records_the_person(kind: Kind) {
    let server = Server::start_with(kind, Options::default()).await;
    let store: Arc<dyn KeyStore> =
        Arc::new(StoredKeys::new(Arc::clone(server.engine.admin().store())));
    let operator = KeyFactory::new(&store, &server).key("default", &[Scope::Admin]).await;
    let ann = json!({ "id": "ann@example.com", "roles": ["lead", "cfo", "lead"] });
    let new = json!({ "name": "ann", "scopes": ["create", "manage", "read"], "subject": ann });
    let request = server.request(Method::POST, "/keys").bearer_auth(&operator).json(&new);
    let (status, made) = read(request).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(made["subject"], json!({ "id": "ann@example.com", "roles": ["cfo", "lead"] }));
    let as_ann = |method, path: &str| {
        server.request(method, path).bearer_auth(made["key"].as_str().unwrap())
    };
    for (path, body) in [
        ("/workflows/nap/instances", json!({ "id": "a", "params": "1 hour" })),
        ("/workflows/nap/instances/a/terminate", json!({})),
    ] {
        let (status, answer) = read(as_ann(Method::POST, path).json(&body)).await;
        assert_eq!(status, 200, "{path}: {answer}");
    }
    let (status, ledger) = read(as_ann(Method::GET, "/workflows/nap/instances/a/ledger")).await;
    assert_eq!(status, 200, "{ledger}");
    let actor = json!(Actor::new("user", "ann@example.com"));
    assert!(ledger.to_string().contains(actor["id_hash"].as_str().unwrap()), "{ledger}");
    let key_id = json!({ "api_key": made["id"] });
    assert!(ledger.to_string().contains(&key_id.to_string()), "{ledger}");
    assert!(!ledger.to_string().contains("ann@example.com"), "{ledger}");
    server.stop().await;
}

async fn keys_over_http(kind: Kind) {
    // The default: keys in the engine's store.
    let server = Server::start_with(kind, Options::default()).await;
    let store: Arc<dyn KeyStore> =
        Arc::new(StoredKeys::new(Arc::clone(server.engine.admin().store())));
    let keys_factory = KeyFactory::new(&store, &server);
    let operator = keys_factory.key("default", &[Scope::Admin]).await;
    let tenant = keys_factory.key("tenant", &[Scope::Admin]).await;
    let post = |key: &str, body: Value| {
        read(server.request(Method::POST, "/keys").bearer_auth(key).json(&body))
    };
    let get = |path: &str, key: &str| read(server.request(Method::GET, path).bearer_auth(key));
    let new = json!({ "name": "ci", "scopes": ["read", "send-event"], "namespace": "shop", "expiresInMs": 60_000 });
    let (status, made) = post(&operator, new.clone()).await;
    assert_eq!(status, 200, "{made}");
    let key = made["key"].as_str().unwrap();
    assert!(made["expiresAt"].is_string() && made.get("digest").is_none(), "{made}");
    assert_eq!(get("/workflows", key).await.0, 200);
    assert_error(get("/keys", key).await, (403, "FORBIDDEN"));
    assert_error(post(&tenant, new).await, (403, "FORBIDDEN"));
    let (_, own) = post(&tenant, json!({ "name": "own", "scopes": ["read"] })).await;
    assert_eq!(own["namespace"], "tenant");
    let names = async |key: &str| {
        let (_, list) = get("/keys", key).await;
        assert!(!list.to_string().contains("wl_"), "a key is shown again: {list}");
        list["keys"].as_array().unwrap().len()
    };
    assert_eq!((names(&operator).await, names(&tenant).await), (4, 2));
    let path = format!("/keys/{}", made["id"].as_str().unwrap());
    let delete = |key: &str| read(server.request(Method::DELETE, &path).bearer_auth(key));
    assert_error(delete(&tenant).await, (404, "KEY_NOT_FOUND"));
    let (status, gone) = delete(&operator).await;
    assert!(status == 200 && gone["revokedAt"].is_string(), "{gone}");
    assert_error(get("/workflows", key).await, (401, "UNAUTHENTICATED"));
    for (body, code) in [
        (json!({ "name": "", "scopes": ["read"] }), "INVALID_NAME"),
        (json!({ "name": "x", "scopes": [] }), "INVALID_SCOPE"),
        (json!({ "name": "x", "scopes": ["read"], "expiresInMs": i64::MAX }), "INVALID_DURATION"),
        (json!({ "name": "x", "scopes": ["root"] }), "INVALID_BODY"),
        (json!({ "name": "x", "scopes": ["read"], "namespace": "a b" }), "INVALID_NAME"),
        (json!({ "name": "x", "scopes": ["read"], "subject": { "id": "" } }), "INVALID_SUBJECT"),
        (
            json!({ "name": "x", "scopes": ["read"], "subject": { "id": "a", "roles": ["b c"] } }),
            "INVALID_SUBJECT",
        ),
        (json!({ "name": "x", "scopes": ["read"], "subject": "ann" }), "INVALID_BODY"),
    ] {
        assert_error(post(&operator, body).await, (400, code));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_an_issuer() {
    use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
    let secret = b"0123456789abcdef0123456789abcdef";
    let key = JwtKey::from_secret(Algorithm::HS256, secret).unwrap();
    let jwt = Jwt::new("https://issuer.example", "windlass").key(None, key);
    let auth = Auth::Credentials { keys: None, jwt: Some(jwt) };
    let server = Server::start_with(Kind::Sqlite, Options { auth, ..Options::default() }).await;
    let token = |scope: &str, audience: &str| {
        let claims = json!({
            "iss": "https://issuer.example", "aud": audience, "namespace": "shop", "scope": scope,
            "exp": get_current_timestamp() + 60,
        });
        // Issuers set a key id, even with a single key.
        let header = Header { kid: Some("2026-01".into()), ..Header::default() };
        encode(&header, &claims, &EncodingKey::from_secret(secret)).unwrap()
    };
    let get = |token: String| read(server.request(Method::GET, "/runs").bearer_auth(token));
    assert_eq!(get(token("read", "windlass")).await.0, 200);
    assert_error(get(token("create", "windlass")).await, (403, "FORBIDDEN"));
    assert_error(get(token("read", "payroll")).await, (401, "UNAUTHENTICATED"));
    assert_error(get("wl_0000000000000000_x".into()).await, (401, "UNAUTHENTICATED"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_origins_hosts_and_proxies_are_rejected() {
    let server = Server::start(Kind::Sqlite).await;
    let with = |name: &'static str, value: &str| {
        read(server.request(Method::GET, "/workflows").header(name, value))
    };
    assert_error(with("origin", "https://evil.example").await, (403, "FORBIDDEN"));
    assert_error(with("host", "evil.example").await, (403, "FORBIDDEN"));
    assert_error(with("x-forwarded-for", "192.0.2.1").await, (403, "FORBIDDEN"));
    let own = format!("http://{}", server.address);
    assert_eq!(with("origin", &own).await.0, 200);
    server.stop().await;
}

/// Adds a dead letter and an open breaker to a namespace. Returns the id of the letter.
async fn secret_letter(server: &Server, engine: &windlass_engine::Engine) -> String {
    use windlass::machines::{
        ActivityError, ActivityOptions, CircuitBreakerConfig, Workflow, WorkflowAction,
        WorkflowError,
    };

    struct Broken;
    impl Workflow for Broken {
        const TYPE: &'static str = "broken-machine";
        type Input = Value;
        type Output = Value;

        fn new(_: Value) -> Self {
            Self
        }

        fn on_start(&mut self) -> Vec<WorkflowAction> {
            let breaker =
                CircuitBreakerConfig { failure_threshold: 1, ..CircuitBreakerConfig::default() };
            let options = ActivityOptions {
                circuit_breaker: Some(breaker),
                ..ActivityOptions::retrying(windlass::RetryPolicy::none())
            };
            vec![WorkflowAction::activity_with("a", "secret-breaker", json!({}), options)]
        }

        fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
            vec![]
        }

        fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
            vec![WorkflowAction::fail(WorkflowError::from(error))]
        }
    }
    server.engine.machine::<Broken>().unwrap();
    let fail = async |_: windlass::TaskContext, _: Value| {
        Err::<Value, _>(windlass::AnyError::msg("it is broken"))
    };
    server.engine.activity("secret-breaker", fail).unwrap();
    let name = windlass::kernel::WorkflowName::new("broken-machine").unwrap();
    let model = engine.model_known(&name).await.unwrap().unwrap();
    let input = windlass::kernel::Body::json("{}");
    engine.start_run(windlass_engine::StartRun::new(name, model, input)).await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(letter) = engine.dead_letters(None, None, 1).await.unwrap().first() {
            return letter.task_id.to_string();
        }
        assert!(std::time::Instant::now() < deadline, "timeout while waiting for a dead letter");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn an_expired_key_is_rejected(kind: Kind) {
    let server = Server::start_with(kind, Options::default()).await;
    let store: Arc<dyn KeyStore> =
        Arc::new(StoredKeys::new(Arc::clone(server.engine.admin().store())));
    let operator = KeyFactory::new(&store, &server).key("default", &[Scope::Admin]).await;
    let body = json!({ "name": "short", "scopes": ["read"], "expiresInMs": 4_000 });
    let made = read(server.request(Method::POST, "/keys").bearer_auth(&operator).json(&body));
    let (_, made) = made.await;
    let key = made["key"].as_str().unwrap();
    let ask = || read(server.request(Method::GET, "/workflows").bearer_auth(key));
    assert_eq!(ask().await.0, 200);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let answer = ask().await;
        if answer.0 != 200 {
            assert_error(answer, (401, "UNAUTHENTICATED"));
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the key is still accepted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.stop().await;
}

async fn messages_that_cancel_a_run_require_manage(kind: Kind) {
    use windlass::machines::{ActivityError, Workflow, WorkflowAction};

    struct Idle;
    impl Workflow for Idle {
        const TYPE: &'static str = "idle";
        type Input = Value;
        type Output = Value;

        fn new(_: Value) -> Self {
            Self
        }

        fn on_start(&mut self) -> Vec<WorkflowAction> {
            vec![WorkflowAction::timer("rest", Duration::from_secs(3_600))]
        }

        fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
            vec![]
        }

        fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> {
            vec![]
        }
    }
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    server.engine.machine::<Idle>().unwrap();
    let keys_factory = KeyFactory::new(&store, &server);
    let sender = keys_factory.key("default", &[Scope::SendEvent]).await;
    let manager = keys_factory.key("default", &[Scope::SendEvent, Scope::Manage]).await;
    let admin = keys_factory.key("default", &[Scope::Admin]).await;
    let send = |path: &str, key: &str, body: Value| {
        read(server.request(Method::POST, path).bearer_auth(key).json(&body))
    };
    for workflow in ["idle", "nap"] {
        let path = format!("/workflows/{workflow}/instances");
        assert_eq!(send(&path, &admin, json!({ "id": "x", "params": {} })).await.0, 200);
    }
    let at = "/workflows/idle/instances/x";
    let (_, run) = read(server.request(Method::GET, at).bearer_auth(&admin)).await;
    let signal = format!("/durable/workflows/{}/signal", run["meta"]["runKey"].as_str().unwrap());
    for name in ["cancel", "shutdown"] {
        let (status, body) = send(&format!("{at}/events"), &sender, json!({ "type": name })).await;
        assert_eq!((status, &body["details"]["scope"]), (403, &json!("manage")), "{name}: {body}");
        assert_error(
            send(&signal, &sender, json!({ "signal_type": name })).await,
            (403, "FORBIDDEN"),
        );
        // Other models treat these as normal events.
        let events = "/workflows/nap/instances/x/events";
        assert_eq!(send(events, &sender, json!({ "type": name })).await.0, 200);
    }
    let events = format!("{at}/events");
    assert_eq!(send(&events, &sender, json!({ "type": "hello" })).await.0, 200);
    assert_eq!(send(&events, &manager, json!({ "type": "shutdown" })).await.0, 200);
    server.stop().await;
}

async fn queues_of_other_namespaces_require_an_operator(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let keys_factory = KeyFactory::new(&store, &server);
    server.engine.admin().set_limit("printer", Some(2)).await.unwrap();
    let get = async |path: &str, namespace: &str, scope: Scope| {
        let key = keys_factory.key(namespace, &[scope]).await;
        read(server.request(Method::GET, path).bearer_auth(key)).await
    };
    let (_, all) = get("/queues", "default", Scope::Admin).await;
    assert!(all["turns"].is_object() && all["workersLive"].is_number(), "{all}");
    for (namespace, scope, limits) in
        [("default", Scope::Read, 1), ("other", Scope::Read, 0), ("other", Scope::Admin, 0)]
    {
        let (status, own) = get("/queues", namespace, scope).await;
        assert_eq!((status, own["limits"].as_array().unwrap().len()), (200, limits), "{own}");
        for of_all in ["turns", "tasks", "deadLetters", "workersLive"] {
            assert!(own.get(of_all).is_none(), "{namespace} sees {of_all}: {own}");
        }
        assert_error(get("/workers", namespace, scope).await, (403, "FORBIDDEN"));
    }
    assert_eq!(get("/workers", "default", Scope::Admin).await.0, 200);
    server.stop().await;
}

async fn results_require_the_scope_read(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let keys_factory = KeyFactory::new(&store, &server);
    let admin = keys_factory.key("default", &[Scope::Admin]).await;
    let post = async |path: &str, key: &str, body: Value| {
        let (status, body) =
            read(server.request(Method::POST, path).bearer_auth(key).json(&body)).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    for (workflow, id, params) in [("greet", "g", json!("Ann")), ("charge", "c", json!(0))] {
        let body = json!({ "id": id, "params": params });
        let path = format!("/workflows/{workflow}/instances?waitMs=20000");
        post(&path, &admin, body).await;
    }
    let reads = keys_factory.key("default", &[Scope::Manage, Scope::Read]).await;
    let manages = keys_factory.key("default", &[Scope::Manage]).await;
    let creates = keys_factory.key("default", &[Scope::Create]).await;
    let done = post("/workflows/greet/instances/g/resume", &reads, json!({})).await;
    assert_eq!(done["details"], json!({ "status": "complete", "output": "Hello, Ann!" }));
    let done = post("/workflows/greet/instances/g/resume", &manages, json!({})).await;
    assert_eq!(done["details"], json!({ "status": "complete" }));
    let done = post("/workflows/charge/instances/c/resume", &manages, json!({})).await;
    assert_eq!(done["details"], json!({ "status": "errored" }));
    let waited = post("/workflows/greet/instances?waitMs=20000", &creates, json!({})).await;
    assert_eq!(waited["details"], json!({ "status": "complete" }));
    server.stop().await;
}

async fn the_ledger_of_a_schedule_records_the_actor(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let key = KeyFactory::new(&store, &server).key("default", &[Scope::Admin]).await;
    let ask = async |method: Method, path: &str, body: Value| {
        let (status, body) = read(server.request(method, path).bearer_auth(&key).json(&body)).await;
        assert_eq!(status, 200, "{path}: {body}");
    };
    let body = |every: u32| json!({ "workflow": "greet", "everyMs": every });
    ask(Method::PUT, "/schedules/s", body(3_600_000)).await;
    ask(Method::POST, "/schedules/s/pause", json!({})).await;
    ask(Method::POST, "/schedules/s/resume", json!({})).await;
    ask(Method::PUT, "/schedules/s", body(3_600_001)).await;
    ask(Method::DELETE, "/schedules/s", json!({})).await;
    let generations = windlass::kernel::Query::Generations {
        namespace: server.engine.namespace().clone(),
        workflow: windlass::kernel::WorkflowName::from_stored("windlass.schedule"),
        id: windlass::kernel::RunId::from_stored("s"),
        before: None,
        limit: 10,
    };
    let mut actions = Vec::new();
    for run in server.engine.admin().store().list(generations).await.unwrap().runs().unwrap() {
        let run_key = run.run_key;
        let query = windlass::kernel::Query::Events { run_key, from: 0, limit: 100 };
        for event in server.engine.admin().store().list(query).await.unwrap().events().unwrap() {
            let payload = event.payload_json().unwrap();
            if payload["actor"]["kind"] == "api_key" {
                actions.push(event.event_type.as_str().to_owned());
            }
        }
    }
    actions.sort();
    let expect =
        ["workflow.paused", "workflow.resumed", "workflow.terminated", "workflow.terminated"];
    assert_eq!(actions, expect);
    server.stop().await;
}
