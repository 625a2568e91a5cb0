//! The router: the routes of every set, and one guard around all of them.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use windlass::{Error, ErrorCode};
use windlass_engine::{Engine, ModelDescription};

use crate::app::App;
use crate::auth::{Guard, StoredKeys};
use crate::docs::{self, Docs};
use crate::error::ApiError;
use crate::guard::guard;
use crate::mcp;
use crate::options::Options;
use crate::routes::{MODEL_SETS, SETS};
use crate::store_status::StoreStatus;
use crate::table::{Access, Entry, Routes};

/// Creates the HTTP API of an engine, within a Tokio runtime. Merge it with the routes of a program:
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let engine = windlass::Engine::open("memory:").await?;
/// let api = windlass_server::router(&engine, windlass_server::Options::default())?;
/// let app: axum::Router = axum::Router::new().merge(api);
/// # drop(app);
/// # Ok::<(), windlass::Error>(()) }).unwrap();
/// ```
pub fn router(engine: &windlass::Engine, options: Options) -> Result<Router, Error> {
    Ok(router_with_status(engine, options)?.0)
}

/// Like [`router`], with the status of the store: a server should end when its store has closed.
pub fn router_with_status(
    engine: &windlass::Engine,
    options: Options,
) -> Result<(Router, StoreStatus), Error> {
    let (router, app) = build(engine.core(), options)?;
    Ok((router, app.store_status.clone()))
}

/// Returns the OpenAPI document of a router with these options, as JSON.
pub fn openapi(options: &Options) -> String {
    let (_, _, api) =
        all_routes(options, windlass::model::MODELS).finish(docs::about(&options.base));
    api.to_pretty_json().unwrap_or_default()
}

/// Lists all routes of a router with these options. Requests to other routes are rejected.
pub fn route_list(options: &Options) -> Vec<Entry> {
    let (_, table, _) =
        all_routes(options, windlass::model::MODELS).finish(docs::about(&options.base));
    table.entries().cloned().collect()
}

fn build(engine: &Engine, options: Options) -> Result<(Router, App), Error> {
    options.validate()?;
    let models = &engine.options().models;
    let (routes, table, api) = all_routes(&options, models).finish(docs::about(&options.base));
    let clock = engine.clone();
    let guarding = Guard::new(
        options.auth.clone(),
        options.authorize.clone(),
        engine.namespace().clone(),
        move || clock.clock().now(),
        || Arc::new(StoredKeys::new(Arc::clone(engine.store()))),
    );
    let base = options.base.clone();
    let docs = Docs::new(&api);
    let app = App::new(engine.clone(), options, guarding, table, docs)?;
    let rest = format!("{base}/{{*rest}}");
    let guard = axum::middleware::from_fn_with_state(app.clone(), guard);
    let router = routes.route(&rest, any(nowhere)).layer(guard.clone()).with_state(app.clone());
    // Its handler calls the routes above, so it comes after them and passes the guard itself.
    let mcp = mcp::router(&app, &router).layer(guard);
    Ok((router.merge(mcp), app))
}

/// Never called: the guard rejects unknown routes before.
async fn nowhere() -> Response {
    ApiError::new(StatusCode::NOT_FOUND, ErrorCode::RouteNotFound, "unknown route").into_response()
}

/// Every set of routes: the server's own, those of the models that the engine knows, and those of the
/// program that embeds the server.
fn all_routes(options: &Options, models: &[&ModelDescription]) -> Routes {
    let routes = Routes::new(&options.base);
    let routes = SETS.iter().fold(routes, |routes, add| add(routes, options));
    let brought = models.iter().flat_map(|model| model.routes);
    let brought = MODEL_SETS.iter().filter(|(name, _)| brought.clone().any(|used| used == name));
    let routes = brought.fold(routes, |routes, (_, add)| add(routes, options));
    let brought = options.routes.iter().filter(|set| set.is_mounted(models));
    let routes = brought.fold(routes, |routes, set| routes.add_set(set, options.body_bytes_max));
    mcp::paths(options)
        .iter()
        .fold(routes, |routes, path| routes.add_relay(Access::Credential, Method::POST, path))
}
