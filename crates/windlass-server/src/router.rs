//! The router: every route with what it needs, and the guard around all of them.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use utoipa_axum::routes;
use windlass::Error;
use windlass_engine::Engine;

use crate::app::App;
use crate::auth::{Guard, Scope, StoredKeys};
use crate::docs::{self, Docs};
use crate::error::ApiError;
use crate::guard::guard;
use crate::options::Options;
use crate::routes::{
    control, durable, events, health, history, index, instances, keys, ledger, live, metrics,
    queues, result, runs, schedules, tick, why, workflows,
};
use crate::table::{Access, Entry, Routes};

/// The HTTP API of an engine, to be merged with the routes of a program:
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let engine = windlass::Engine::open("memory:").await?;
/// let api = windlass_server::router(&engine, windlass_server::Options::default())?;
/// let app: axum::Router = axum::Router::new().merge(api);
/// # drop(app);
/// # Ok::<(), windlass::Error>(()) }).unwrap();
/// ```
pub fn router(engine: &Engine, options: Options) -> Result<Router, Error> {
    Ok(build(engine, options)?.0)
}

/// The OpenAPI document of a router with these options, as JSON.
pub fn openapi(options: &Options) -> String {
    let (_, _, api) = all_routes(options).finish(docs::about(&options.base));
    api.to_pretty_json().unwrap_or_default()
}

/// Every route of a router with these options: what is not in this list is refused.
pub fn route_list(options: &Options) -> Vec<Entry> {
    let (_, table, _) = all_routes(options).finish(docs::about(&options.base));
    table.entries().cloned().collect()
}

fn build(engine: &Engine, options: Options) -> Result<(Router, App), Error> {
    options.validate()?;
    let (routes, table, api) = all_routes(&options).finish(docs::about(&options.base));
    let clock = engine.clone();
    let guarding = Guard::new(
        options.auth.clone(),
        options.authorize.clone(),
        engine.namespace().clone(),
        move || clock.clock().now(),
        || Arc::new(StoredKeys::new(Arc::clone(engine.store()))),
    );
    let base = options.base.clone();
    let docs = Docs::new(&api, &base);
    let app = App::new(engine.clone(), options, guarding, table, docs)?;
    let rest = format!("{base}/{{*rest}}");
    let router = routes
        .route(&rest, any(nowhere))
        .layer(axum::middleware::from_fn_with_state(app.clone(), guard))
        .with_state(app.clone());
    Ok((router, app))
}

/// The guard answers for routes that are not listed; this is never reached.
async fn nowhere() -> Response {
    ApiError::new(StatusCode::NOT_FOUND, "ROUTE_NOT_FOUND", "there is no such route")
        .into_response()
}

fn all_routes(options: &Options) -> Routes {
    let read = Access::Scope(Scope::Read);
    let create = Access::Scope(Scope::Create);
    let manage = Access::Scope(Scope::Manage);
    let send = Access::Scope(Scope::SendEvent);
    let admin = Access::Scope(Scope::Admin);
    let scrape = if options.metrics_open { Access::Public } else { Access::Operator };
    let base = &options.base;
    let routes = Routes::new(base)
        .add_probe(Access::Public, "/healthz", get(health::healthz))
        .add_probe(Access::Public, "/readyz", get(health::readyz))
        .add_probe(scrape, "/metrics", get(metrics::metrics))
        .add_outside(Access::Public, &format!("{base}/openapi.json"), get(docs::openapi))
        .add_outside(Access::Public, &format!("{base}/docs"), get(docs::to_page))
        .add_outside(Access::Public, &format!("{base}/docs/"), get(docs::page))
        .add_outside(Access::Public, &format!("{base}/docs/{{*file}}"), get(docs::page_file))
        .add(read, routes!(index::index))
        .add(read, routes!(workflows::list))
        .add(read, routes!(instances::list))
        .add_waiting(create, routes!(instances::create))
        .add(create, routes!(instances::batch))
        .add(read, routes!(instances::get))
        .add(manage, routes!(control::pause))
        .add(manage, routes!(control::resume))
        .add(manage, routes!(control::terminate))
        .add(manage, routes!(control::restart))
        .add(manage, routes!(control::retry))
        .add(send, routes!(events::send))
        .add(read, routes!(history::history))
        .add_waiting(read, routes!(result::result))
        .add(read, routes!(ledger::ledger))
        .add(read, routes!(ledger::generations))
        .add(read, routes!(live::live))
        .add(read, routes!(why::why))
        .add(read, routes!(runs::search))
        .add(read, routes!(runs::get))
        .add(manage, routes!(runs::bulk))
        .add(read, routes!(schedules::list))
        .add(read, routes!(schedules::get))
        .add(manage, routes!(schedules::put))
        .add(manage, routes!(schedules::delete))
        .add(manage, routes!(schedules::pause))
        .add(manage, routes!(schedules::resume))
        .add(read, routes!(queues::queues))
        .add(Access::Operator, routes!(queues::workers))
        .add(Access::Operator, routes!(durable::workers::list))
        .add(Access::Operator, routes!(durable::workers::get))
        .add(Access::Operator, routes!(durable::workers::drain))
        .add(read, routes!(durable::workflows::list))
        .add(read, routes!(durable::workflows::get))
        .add(read, routes!(durable::events::events))
        .add(send, routes!(durable::workflows::signal))
        .add(manage, routes!(durable::workflows::cancel))
        .add(read, routes!(durable::tasks::list))
        .add(read, routes!(durable::stats::stats))
        .add(read, routes!(durable::dlq::list))
        .add(manage, routes!(durable::dlq::requeue))
        .add(manage, routes!(durable::dlq::delete))
        .add(manage, routes!(durable::dlq::purge))
        .add(read, routes!(durable::breakers::list))
        .add(manage, routes!(durable::breakers::reset))
        .add(read, routes!(durable::health::health))
        .add(scrape, routes!(durable::health::metrics_text))
        .add(admin, routes!(keys::list))
        .add(admin, routes!(keys::create))
        .add(admin, routes!(keys::revoke));
    #[cfg(feature = "webhooks")]
    let routes = routes
        .add(read, routes!(crate::routes::webhooks::disabled))
        .add(manage, routes!(crate::routes::webhooks::enable));
    match options.tick {
        true => routes.add(Access::Scope(Scope::Tick), routes!(tick::tick)),
        false => routes,
    }
}
