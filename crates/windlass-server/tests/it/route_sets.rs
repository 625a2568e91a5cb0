//! Routes that a model brings: they pass the same guard as the server's own.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Path;
use axum::routing::{get, post};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use windlass::admin::Options as EngineOptions;
use windlass::kernel::{Body, ModelName, Query, RunId, RunsQuery, WorkflowName};
use windlass_engine::{ModelDescription, StartRun};
use windlass_server::auth::Scope;
use windlass_server::{
    Access, ApiError, CallerEngine, Options, RouteSet, ServeOptions, route_list,
};

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, assert_error, on_both_stores, open, read, wait_until};

on_both_stores!(
    a_route_of_a_model_needs_its_scope,
    a_route_of_a_model_sees_one_namespace,
    a_route_of_a_model_has_the_limits_of_all_routes,
    without_the_model_there_is_no_route,
);

static TOYS: ModelDescription = {
    let mut model = ModelDescription::new(ModelName::from_static("toys"));
    model.routes = &["toys"];
    model
};

async fn list(CallerEngine(engine): CallerEngine) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::Runs(RunsQuery::all(engine.namespace().clone(), 100));
    let runs = engine.store().list(query).await?.runs()?;
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    Ok(axum::Json(json!({ "namespace": engine.namespace(), "toys": ids })))
}

async fn start(
    CallerEngine(engine): CallerEngine,
    Path(name): Path<String>,
    body: String,
) -> Result<axum::Json<Value>, ApiError> {
    let mut start = StartRun::new(WorkflowName::new("toy")?, TOYS.name.clone(), Body::of(&body)?);
    start.id = Some(RunId::new(&name)?);
    let started = engine.start_run(start).await?;
    Ok(axum::Json(json!({ "runKey": started.run_key })))
}

async fn broken() -> String {
    panic!("a toy is broken")
}

fn no_permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

// The routes of the toys. `/toys/busy` answers when the semaphore has a permit.
fn toys(permits: &Arc<Semaphore>) -> RouteSet {
    let permits = Arc::clone(permits);
    let busy = move || async move { drop(permits.acquire().await) };
    let (read, create) = (Access::Scope(Scope::Read), Access::Scope(Scope::Create));
    RouteSet::new("toys")
        .of_model()
        .route(read, Method::GET, "/toys", get(list))
        .route(create, Method::POST, "/toys/{name}", post(start))
        .route(read, Method::GET, "/toys/busy", get(busy))
        .route(read, Method::GET, "/toys/broken", get(broken))
}

async fn server_of(kind: Kind, options: Options, models: &[&'static ModelDescription]) -> Server {
    let models = models.to_vec();
    let engine_options = EngineOptions { models, ..EngineOptions::default() };
    Server::start_as(kind, options, engine_options, ServeOptions::default()).await
}

async fn a_route_of_a_model_needs_its_scope(kind: Kind) {
    let (store, options) = options_with_keys();
    let options = Options { routes: vec![toys(&no_permits())], ..options };
    let server = server_of(kind, options, &[&TOYS]).await;
    let keys = KeyFactory::new(&store, &server);
    let routes = [(Method::GET, "/toys", Scope::Read), (Method::POST, "/toys/a", Scope::Create)];
    for (method, path, needed) in routes {
        for path in [path.to_owned(), format!("{path}/")] {
            let ask = |key: &str| read(server.request(method.clone(), &path).bearer_auth(key));
            let bare = read(server.request(method.clone(), &path)).await;
            assert_error(bare, (401, "UNAUTHENTICATED"));
            assert_error(ask("wl_0000000000000000_x").await, (401, "UNAUTHENTICATED"));
            assert_error(ask(&keys.key("default", &[]).await).await, (403, "FORBIDDEN"));
            for scope in Scope::ALL {
                let answer = ask(&keys.key("default", &[scope]).await).await;
                match scope == needed || scope == Scope::Admin {
                    true => assert_eq!(answer.0, 200, "{path} with {}", scope.as_str()),
                    false => assert_error(answer, (403, "FORBIDDEN")),
                }
            }
        }
    }
    let all = keys.key("default", &Scope::ALL).await;
    let ask = |method, path: &str| read(server.request(method, path).bearer_auth(&all));
    assert_error(ask(Method::DELETE, "/toys").await, (405, "METHOD_NOT_ALLOWED"));
    assert_error(ask(Method::GET, "/toys/a/b").await, (404, "ROUTE_NOT_FOUND"));
    server.stop().await;
}

async fn a_route_of_a_model_sees_one_namespace(kind: Kind) {
    let (store, options) = options_with_keys();
    let options = Options { routes: vec![toys(&no_permits())], ..options };
    let server = server_of(kind, options, &[&TOYS]).await;
    let keys = KeyFactory::new(&store, &server);
    for namespace in ["ours", "theirs"] {
        let key = keys.key(namespace, &[Scope::Read, Scope::Create]).await;
        let ask = |method, path: &str| read(server.request(method, path).bearer_auth(&key));
        let (status, _) = ask(Method::POST, &format!("/toys/of-{namespace}")).await;
        assert_eq!(status, 200);
        let expect = json!({ "namespace": namespace, "toys": [format!("of-{namespace}")] });
        assert_eq!(ask(Method::GET, "/toys").await, (200, expect));
    }
    server.stop().await;
}

async fn a_route_of_a_model_has_the_limits_of_all_routes(kind: Kind) {
    let permits = no_permits();
    let routes = vec![toys(&permits)];
    let options = Options { routes, requests_max: 1, body_bytes_max: 1_000, ..open() };
    let server = server_of(kind, options, &[&TOYS]).await;
    // The only request that the server answers at once waits in a route of the model.
    let send = || tokio::spawn(server.request(Method::GET, "/toys/busy").send());
    let mut busy = send();
    wait_until("the server is busy", async || {
        // A request of the check below held the only permit when this one came.
        if busy.is_finished() {
            busy = send();
        }
        server.request(Method::GET, "/toys").send().await.unwrap().status() == 429
            && !busy.is_finished()
    })
    .await;
    assert_error(server.get("/toys").await, (429, "SERVER_BUSY"));
    permits.add_permits(1);
    assert_eq!(busy.await.unwrap().unwrap().status(), 200);
    assert_eq!(server.get("/toys").await.0, 200);
    // A panic ends one request.
    let broken = server.request(Method::GET, "/toys/broken").send().await.unwrap();
    assert_eq!(broken.status(), 500);
    assert!(broken.headers().contains_key("x-request-id"));
    assert_eq!(broken.json::<Value>().await.unwrap()["code"], "INTERNAL");
    // A body is limited.
    for (bytes, expect) in [(1_000, 200), (1_001, 413)] {
        let request = server.request(Method::POST, &format!("/toys/t{bytes}"));
        let status = request.body("x".repeat(bytes)).send().await.unwrap().status();
        assert_eq!(status, expect, "{bytes}");
    }
    server.stop().await;

    let (routes, request_timeout) = (vec![toys(&no_permits())], Duration::from_millis(50));
    let options = Options { routes, request_timeout, ..open() };
    let server = server_of(kind, options, &[&TOYS]).await;
    assert_error(server.get("/toys/busy").await, (408, "REQUEST_TIMEOUT"));
    server.stop().await;
}

async fn without_the_model_there_is_no_route(kind: Kind) {
    for (models, status) in [(vec![&TOYS], 200), (Vec::new(), 404)] {
        let options = Options { routes: vec![toys(&no_permits())], ..open() };
        let server = server_of(kind, options, &models).await;
        let (found, body) = server.get("/toys").await;
        assert_eq!(found, status, "{body}");
        let api = server.get_ok("/openapi.json").await;
        let operation = &api["paths"]["/toys/{name}"]["post"];
        assert_eq!(operation.is_object(), status == 200, "{operation}");
        if status == 200 {
            assert_eq!(operation["tags"], json!(["toys"]));
            assert_eq!(operation["parameters"][0]["name"], "name");
            let failure = &operation["responses"]["default"]["content"]["application/json"];
            assert_eq!(failure["schema"]["$ref"], "#/components/schemas/Failure");
        }
        server.stop().await;
    }
    // A set that belongs to no model is always there.
    let mounted = |set: RouteSet| {
        let options = Options { routes: vec![set], ..open() };
        route_list(&options).iter().any(|entry| entry.path.ends_with("/extra"))
    };
    let extra = RouteSet::new("extra");
    let extra = extra.route(Access::Public, Method::GET, "/extra", get(async || "extra"));
    assert!(mounted(extra.clone()));
    assert!(!mounted(extra.of_model()));
}
