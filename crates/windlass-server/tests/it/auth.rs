//! Who may do what: every route of the router's own list, for every scope, in every namespace.

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use reqwest::Method;
use serde_json::{Value, json};
use windlass::kernel::{BoxFuture, Namespace};
use windlass_server::auth::{
    Algorithm, Auth, Authorize, Caller, Denied, Jwt, JwtKey, KeyStore, Keys, MemoryKeys, NewKey,
    Scope, StoredKeys, Target,
};
use windlass_server::{Access, Entry, Options, route_list};

use crate::harness::{Kind, Server, on_both_stores, read, refused};

on_both_stores!(
    every_route_needs_its_scope,
    no_namespace_sees_another,
    keys_over_http,
    hooks_of_an_embedding_program,
);

/// Keys in memory, and the options of a server that takes them.
fn keyed() -> (Arc<dyn KeyStore>, Options) {
    let store: Arc<dyn KeyStore> = Arc::new(MemoryKeys::default());
    let auth = Auth::Credentials { keys: Some(Arc::clone(&store)), jwt: None };
    (store, Options { auth, tick: true, ..Options::default() })
}

/// Makes keys beside the server, as the command line does.
struct Maker(Keys);

impl Maker {
    fn new(store: &Arc<dyn KeyStore>, server: &Server) -> Self {
        let engine = server.engine.clone();
        Self(Keys::new(Arc::clone(store), Arc::new(move || engine.clock().now())))
    }

    async fn key(&self, namespace: &str, scopes: &[Scope]) -> String {
        let new = NewKey {
            name: "test".into(),
            namespace: Namespace::new(namespace).unwrap(),
            scopes: scopes.to_vec(),
            expires_in: None,
        };
        self.0.make(new).await.unwrap().key
    }
}

/// A path for a template: names that do not exist, so that nothing happens where it is let in.
fn path_of(entry: &Entry) -> String {
    let mut path = entry.path.clone();
    for (name, value) in [
        ("{workflowName}", "greet"),
        ("{instanceId}", "nobody"),
        ("{runKey}", "00000000-0000-7000-8000-000000000000"),
        ("{name}", "nothing"),
        ("{id}", "0000000000000000"),
        ("{key}", "nothing"),
        ("{*file}", "index.html"),
    ] {
        path = path.replace(name, value);
    }
    assert!(!path.contains('{'), "a template that the test does not know: {path}");
    format!("/{path}")
}

async fn ask(server: &Server, entry: &Entry, token: Option<&str>) -> (u16, Value) {
    let mut request = server.request(entry.method.clone(), &path_of(entry));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let text = response.text().await.unwrap_or_default();
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

async fn every_route_needs_its_scope(kind: Kind) {
    let (store, options) = keyed();
    let routes = route_list(&options);
    let server = Server::start_with(kind, options).await;
    let maker = Maker::new(&store, &server);
    server
        .engine
        .remote_workflow::<Value, Value>("greet")
        .unwrap()
        .start(json!(null))
        .await
        .unwrap();
    assert!(routes.len() > 50, "{}", routes.len());
    let mut scopes_seen = std::collections::BTreeSet::new();
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        for namespace in ["default", "other"] {
            keys.push((scope, namespace, maker.key(namespace, &[scope]).await));
        }
    }
    let none = maker.key("default", &[]).await;
    for entry in &routes {
        let (status, body) = ask(&server, entry, None).await;
        let shown = format!("{} {}", entry.method, entry.path);
        let needed = match entry.access {
            Access::Scope(needed) => needed,
            Access::Operator => Scope::Admin,
            Access::Public => {
                assert!(!matches!(status, 401 | 403), "{shown}: {status}");
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
    assert_eq!(scopes_seen.len(), Scope::ALL.len(), "every scope is needed somewhere");
    // What is not in the list is refused as well.
    for path in
        ["/nothing", "/workflows/greet/instances/x/configs", "/keys/health", "/_runner/tock"]
    {
        refused(server.get(path).await, (401, "UNAUTHENTICATED"));
    }
    server.stop().await;
}

async fn no_namespace_sees_another(kind: Kind) {
    let (store, options) = keyed();
    let routes = route_list(&options);
    let server = Server::start_with(kind, options).await;
    let maker = Maker::new(&store, &server);
    let ours = maker.key("ours", &Scope::ALL).await;
    let theirs = maker.key("theirs", &Scope::ALL).await;
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
    // Every route that can name a run, a schedule or a key of somebody else's.
    for entry in &routes {
        let path = entry.path.replace("{workflowName}", "approve");
        let path = path.replace("{instanceId}", "secret-run").replace("{runKey}", &run_key);
        let path = path.replace("{name}", "secret-plan");
        if path.contains('{') || entry.access == Access::Public {
            continue;
        }
        // As an event, a reason, a filter and a schedule at once.
        let body = json!({ "type": "approval" });
        let request =
            server.request(entry.method.clone(), &format!("/{path}")).bearer_auth(&theirs);
        let request = if entry.method == Method::GET { request } else { request.json(&body) };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        if path.contains("secret") || path.contains(&run_key) {
            assert!(matches!(status, 400 | 404), "{} {path}: {status}", entry.method);
        }
        let text = response.text().await.unwrap_or_default();
        assert!(!text.contains("\"plan\""), "{path}: {text}");
        let listed =
            !path.contains("secret") && !path.contains(&run_key) && text.contains("secret");
        assert!(!listed, "{path}: {text}");
    }
    let bulk = json!({ "action": "terminate", "filter": {} });
    assert_eq!(post("/runs/bulk", &theirs, bulk).await.0, 200);
    let (status, _) = post(create, &theirs, body).await;
    assert_eq!(status, 200, "the same id is free in another namespace");
    let (_, run) = get(&format!("{create}/secret-run"), &ours).await;
    assert!(!run["details"]["status"].as_str().unwrap().starts_with("term"), "{run}");
    assert_eq!(run["meta"]["runKey"], run_key);
    let (_, run) = get(&format!("{create}/secret-run"), &theirs).await;
    assert_ne!(run["meta"]["runKey"], run_key);
    // No header, query or body chooses a namespace.
    let request = server.request(Method::GET, "/runs?namespace=ours").bearer_auth(&theirs);
    let (_, runs) = read(request.header("x-namespace", "ours")).await;
    assert!(!runs.to_string().contains(&run_key), "{runs}");
    server.stop().await;
}

async fn keys_over_http(kind: Kind) {
    // The default: keys in the engine's store.
    let server = Server::start_with(kind, Options::default()).await;
    let store: Arc<dyn KeyStore> = Arc::new(StoredKeys::new(Arc::clone(server.engine.store())));
    let maker = Maker::new(&store, &server);
    let operator = maker.key("default", &[Scope::Admin]).await;
    let tenant = maker.key("tenant", &[Scope::Admin]).await;
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
    refused(get("/keys", key).await, (403, "FORBIDDEN"));
    refused(post(&tenant, new).await, (403, "FORBIDDEN"));
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
    refused(delete(&tenant).await, (404, "KEY_NOT_FOUND"));
    let (status, gone) = delete(&operator).await;
    assert!(status == 200 && gone["revokedAt"].is_string(), "{gone}");
    refused(get("/workflows", key).await, (401, "UNAUTHENTICATED"));
    for (body, code) in [
        (json!({ "name": "", "scopes": ["read"] }), "INVALID_NAME"),
        (json!({ "name": "x", "scopes": [] }), "INVALID_SCOPE"),
        (json!({ "name": "x", "scopes": ["root"] }), "INVALID_BODY"),
        (json!({ "name": "x", "scopes": ["read"], "namespace": "a b" }), "INVALID_NAME"),
    ] {
        refused(post(&operator, body).await, (400, code));
    }
    server.stop().await;
}

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
    refused(send(Method::GET, "/workflows", None, json!({})).await, (401, "UNAUTHENTICATED"));
    refused(
        send(Method::GET, "/workflows", Some("bob"), json!({})).await,
        (401, "UNAUTHENTICATED"),
    );
    let ann = Some("ann");
    for id in ["private-1", "public-1"] {
        let body = json!({ "id": id, "params": {} });
        assert_eq!(send(Method::POST, "/workflows/nap/instances", ann, body).await.0, 200);
    }
    let path = "/workflows/nap/instances/private-1/terminate";
    refused(send(Method::POST, path, ann, json!({})).await, (403, "FORBIDDEN"));
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
    refused(event.await, (403, "FORBIDDEN"));
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
        encode(&Header::default(), &claims, &EncodingKey::from_secret(secret)).unwrap()
    };
    let get = |token: String| read(server.request(Method::GET, "/runs").bearer_auth(token));
    assert_eq!(get(token("read", "windlass")).await.0, 200);
    refused(get(token("create", "windlass")).await, (403, "FORBIDDEN"));
    refused(get(token("read", "payroll")).await, (401, "UNAUTHENTICATED"));
    refused(get("wl_0000000000000000_x".into()).await, (401, "UNAUTHENTICATED"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_sites_and_other_names_are_refused() {
    let server = Server::start(Kind::Sqlite).await;
    let with = |name: &'static str, value: &str| {
        read(server.request(Method::GET, "/workflows").header(name, value))
    };
    refused(with("origin", "https://evil.example").await, (403, "FORBIDDEN"));
    refused(with("host", "evil.example").await, (403, "FORBIDDEN"));
    let own = format!("http://{}", server.address);
    assert_eq!(with("origin", &own).await.0, 200);
    tokio::time::sleep(Duration::from_millis(10)).await;
    server.stop().await;
}
