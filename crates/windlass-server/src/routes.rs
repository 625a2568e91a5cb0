//! The routes, one file for each subject, and the sets that the router mounts.

use axum::routing::get;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::options::Options;
use crate::table::{Access, Routes};
use crate::{dashboard, docs};

#[cfg(feature = "agents")]
pub(crate) mod agents;
pub(crate) mod attention;
pub(crate) mod control;
pub(crate) mod durable;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod inbox;
pub(crate) mod index;
pub(crate) mod instances;
pub(crate) mod kept;
pub(crate) mod keys;
pub(crate) mod ledger;
pub(crate) mod live;
pub(crate) mod metrics;
pub(crate) mod operator;
pub(crate) mod queues;
pub(crate) mod receipts;
pub(crate) mod records;
pub(crate) mod result;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod search;
pub(crate) mod series;
pub(crate) mod session;
pub(crate) mod tick;
pub(crate) mod timeline;
pub(crate) mod tree;
pub(crate) mod tries;
pub(crate) mod updates;
#[cfg(feature = "webhooks")]
pub(crate) mod webhooks;
pub(crate) mod why;
pub(crate) mod workflows;

/// Adds a set of routes to the table.
pub(crate) type AddRoutes = fn(Routes, &Options) -> Routes;

/// The sets that every server has.
pub(crate) const SETS: &[AddRoutes] = &[
    probes,
    dashboard::routes,
    instances,
    sessions,
    operations,
    records::routes,
    inbox::routes,
    durable::routes,
    #[cfg(feature = "webhooks")]
    webhooks::routes,
    tick::routes,
];

/// The sets of models, by the name that the description of the model has for them.
pub(crate) const MODEL_SETS: &[(&str, AddRoutes)] = &[
    #[cfg(feature = "agents")]
    ("agents", agents::routes),
];

pub(crate) const READ: Access = Access::Scope(Scope::Read);
pub(crate) const CREATE: Access = Access::Scope(Scope::Create);
pub(crate) const MANAGE: Access = Access::Scope(Scope::Manage);
pub(crate) const SEND: Access = Access::Scope(Scope::SendEvent);
pub(crate) const RECORDS: Access = Access::Scope(Scope::Records);
pub(crate) const DECIDE: Access = Access::Scope(Scope::Decide);
pub(crate) const ADMIN: Access = Access::Scope(Scope::Admin);

/// The access that a scrape of metrics needs.
pub(crate) fn scrape(options: &Options) -> Access {
    if options.metrics_open { Access::Public } else { Access::Operator }
}

fn probes(routes: Routes, options: &Options) -> Routes {
    let base = &options.base;
    routes
        .add_probe(Access::Public, "/healthz", get(health::healthz))
        .add_probe(Access::Public, "/readyz", get(health::readyz))
        .add_probe(scrape(options), "/metrics", get(metrics::metrics))
        .add_outside(Access::Public, &format!("{base}/openapi.json"), get(docs::openapi))
        .add_outside(Access::Public, &format!("{base}/docs"), get(docs::to_page))
        .add_outside(Access::Public, &format!("{base}/docs/"), get(docs::page))
        .add_outside(Access::Public, &format!("{base}/docs/{{*file}}"), get(docs::page_file))
}

fn instances(routes: Routes, options: &Options) -> Routes {
    let batch = format!("{}/workflows/{{workflowName}}/instances/batch", options.base);
    routes
        .add_outside(READ, &batch, get(instances::get_batch))
        .add_outside(READ, &format!("{batch}/"), get(instances::get_batch))
        .add(READ, routes!(index::index))
        .add(READ, routes!(workflows::list))
        .add(READ, routes!(instances::list))
        .add_waiting(CREATE, routes!(instances::create))
        .add(CREATE, routes!(instances::batch))
        .add(READ, routes!(instances::get))
        .add(MANAGE, routes!(control::pause))
        .add(MANAGE, routes!(control::resume))
        .add(MANAGE, routes!(control::terminate))
        .add(MANAGE, routes!(control::restart))
        .add(MANAGE, routes!(control::retry))
        .add(SEND, routes!(events::send))
        .add(SEND, routes!(events::send_by_key))
        .add(READ, routes!(history::history))
        .add_waiting(READ, routes!(result::result))
        .add(READ, routes!(ledger::ledger))
        .add(READ, routes!(ledger::generations))
        .add(READ, routes!(kept::list))
        .add(READ, routes!(kept::get))
        .add(READ, routes!(receipts::list))
        .add(READ, routes!(timeline::timeline))
        .add(READ, routes!(timeline::step))
        .add(READ, routes!(timeline::state))
        .add(READ, routes!(tree::tree))
        .add(READ, routes!(tree::verify))
        .add(MANAGE, routes!(export::export))
        .add(READ, routes!(tree::event))
        .add(READ, routes!(live::live))
        .add(READ, routes!(why::why))
        .add(READ, routes!(runs::search))
        .add(READ, routes!(runs::get))
        .add(MANAGE, routes!(runs::bulk))
}

// The handlers authenticate: a sign-in brings its credential in the body, and any credential may ask who
// it is.
fn sessions(routes: Routes, _: &Options) -> Routes {
    routes
        .add(Access::Public, routes!(session::whoami))
        .add(Access::Public, routes!(session::sign_in))
        .add(Access::Public, routes!(session::sign_out))
}

fn operations(routes: Routes, _: &Options) -> Routes {
    routes
        .add(READ, routes!(schedules::list))
        .add(READ, routes!(schedules::get))
        .add(MANAGE, routes!(schedules::put))
        .add(MANAGE, routes!(schedules::delete))
        .add(MANAGE, routes!(schedules::pause))
        .add(MANAGE, routes!(schedules::resume))
        .add(READ, routes!(queues::queues))
        .add(READ, routes!(schedules::preview))
        .add(MANAGE, routes!(schedules::run))
        .add(READ, routes!(search::search))
        .add(MANAGE, routes!(operator::set_limit))
        .add(READ, routes!(operator::rates))
        .add(Access::Operator, routes!(operator::namespaces))
        .add(Access::Operator, routes!(operator::config))
        .add(READ, routes!(receipts::get))
        .add(READ, routes!(attention::attention))
        .add(READ, routes!(series::series))
        .add(READ, routes!(updates::updates))
        .add(Access::Operator, routes!(queues::workers))
        .add(ADMIN, routes!(keys::list))
        .add(ADMIN, routes!(keys::create))
        .add(ADMIN, routes!(keys::revoke))
}
