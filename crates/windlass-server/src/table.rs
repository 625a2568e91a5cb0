//! The table of all routes with their required access and handlers. The router, the guard and the
//! OpenAPI document are built from this table, so that they always agree.

use std::collections::HashMap;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::Method;
use axum::routing::MethodRouter;
use utoipa::openapi::path::{PathItem, Paths};
use utoipa::openapi::{ComponentsBuilder, OpenApi, RefOr, Schema};
use utoipa_axum::router::UtoipaMethodRouter;
use windlass_engine::ModelDescription;

use crate::app::App;
use crate::auth::Scope;
use crate::metrics::Labels;
use crate::route_doc::{RouteDoc, http_method};

/// The access that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No authentication.
    Public,
    /// Any credential. The handler decides what the caller may do.
    Credential,
    /// A credential with this scope.
    Scope(Scope),
    /// A credential with `admin` in the server's own namespace, because the route shows all
    /// namespaces.
    Operator,
}

/// Which limits apply to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// The normal limits.
    Usual,
    /// The route may also wait for a run to end.
    Waits,
    /// No limit on concurrent requests, so that probes work on a busy server.
    Always,
    /// The handler calls other routes, to which the normal limits apply.
    Relays,
}

/// A route in the table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The method.
    pub method: Method,
    /// The path template.
    pub path: String,
    /// The required access.
    pub access: Access,
    pub(crate) pace: Pace,
    pub(crate) labels: Labels,
    // The handler is not the server's own, and gets the caller's engine from the guard.
    pub(crate) is_brought: bool,
}

impl Entry {
    fn new(method: Method, path: String, access: Access, pace: Pace) -> Self {
        let labels = Labels::new(&method, &path);
        Self { method, path, access, pace, labels, is_brought: false }
    }
}

/// Routes that come from outside the server: from the crate of a model, or from the program that embeds
/// the server ([`crate::Options::routes`]). They are in the same table as all others and pass the same
/// guard.
///
/// A handler takes the engine of its caller with [`crate::CallerEngine`]:
///
/// ```
/// use axum::http::Method;
/// use axum::routing::get;
/// use windlass_server::auth::Scope;
/// use windlass_server::{Access, CallerEngine, RouteSet};
///
/// async fn workers(CallerEngine(engine): CallerEngine) -> String {
///     engine.namespace().to_string()
/// }
///
/// let read = Access::Scope(Scope::Read);
/// let routes = RouteSet::new("toys").route(read, Method::GET, "/toys", get(workers));
/// # drop(routes);
/// ```
#[derive(Clone)]
pub struct RouteSet {
    name: &'static str,
    is_of_model: bool,
    routes: Vec<Brought>,
}

#[derive(Clone)]
struct Brought {
    access: Access,
    method: Method,
    path: String,
    handler: MethodRouter,
    doc: RouteDoc,
}

impl RouteSet {
    /// An empty set. Its name is its tag in the OpenAPI document.
    pub fn new(name: &'static str) -> Self {
        Self { name, is_of_model: false, routes: Vec::new() }
    }

    /// The same set, mounted only if a model that the engine knows has this name in its
    /// [`ModelDescription::routes`].
    pub fn of_model(mut self) -> Self {
        self.is_of_model = true;
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether a server whose engine knows these models mounts it.
    pub(crate) fn is_mounted(&self, models: &[&ModelDescription]) -> bool {
        !self.is_of_model || models.iter().any(|model| model.routes.contains(&self.name))
    }

    /// Adds a handler under the base of the API, with and without a slash at the end. The handler
    /// answers one method; its own state, if it has any, is part of it already.
    pub fn route(
        mut self,
        access: Access,
        method: Method,
        path: &str,
        handler: MethodRouter,
    ) -> Self {
        let (path, doc) = (path.trim_end_matches('/').to_owned(), RouteDoc::default());
        self.routes.push(Brought { access, method, path, handler, doc });
        self
    }

    /// Describes the routes for the OpenAPI document.
    #[cfg(any(feature = "agents", feature = "contracts"))]
    pub(crate) fn described(mut self, doc: impl Fn(&Method, &str) -> RouteDoc) -> Self {
        for route in &mut self.routes {
            route.doc = doc(&route.method, &route.path);
        }
        self
    }
}

/// Builds the table and the router.
pub(crate) struct Routes {
    base: String,
    router: Router<App>,
    entries: Vec<Entry>,
    paths: Paths,
    schemas: Vec<(String, RefOr<Schema>)>,
}

impl Routes {
    pub(crate) fn new(base: &str) -> Self {
        Self {
            base: base.to_owned(),
            router: Router::new(),
            entries: Vec::new(),
            paths: Paths::new(),
            schemas: Vec::new(),
        }
    }

    /// Adds the routes of a handler below the base path, with and without a trailing slash.
    pub(crate) fn add(self, access: Access, route: UtoipaMethodRouter<App>) -> Self {
        self.add_paced(access, Pace::Usual, route)
    }

    /// Like [`Routes::add`], for a handler that may wait for a run to end.
    pub(crate) fn add_waiting(self, access: Access, route: UtoipaMethodRouter<App>) -> Self {
        self.add_paced(access, Pace::Waits, route)
    }

    fn add_paced(mut self, access: Access, pace: Pace, route: UtoipaMethodRouter<App>) -> Self {
        let (schemas, paths, method_router) = route;
        for (path, item) in &paths.paths {
            let bare = format!("{}{}", self.base, path.trim_end_matches('/'));
            let slashed = format!("{bare}/");
            for full in [bare, slashed] {
                // Without a base path, the index has no form without a slash.
                if full.is_empty() {
                    continue;
                }
                for method in methods(item) {
                    self.entries.push(Entry::new(method, full.clone(), access, pace));
                }
                self.router = self.router.route(&full, method_router.clone());
            }
        }
        self.schemas.extend(schemas);
        for (path, item) in paths.paths {
            self.document(path, item);
        }
        self
    }

    /// Adds a set of routes from outside the server.
    pub(crate) fn add_set(mut self, set: &RouteSet, body_bytes_max: usize) -> Self {
        for Brought { access, method, path, handler, doc } in &set.routes {
            let bare = format!("{}{path}", self.base);
            let handler = handler.clone().layer(DefaultBodyLimit::max(body_bytes_max));
            for full in [format!("{bare}/"), bare] {
                let entry = Entry::new(method.clone(), full.clone(), *access, Pace::Usual);
                self.entries.push(Entry { is_brought: true, ..entry });
                self.router = self.router.route(&full, handler.clone().with_state(()));
            }
            if let Some(method) = http_method(method) {
                self.schemas.extend(doc.schemas.iter().cloned());
                self.document(path.replace("{*", "{"), doc.path_item(set.name, method, path));
            }
        }
        self
    }

    fn document(&mut self, path: String, item: PathItem) {
        match self.paths.paths.get_mut(&path) {
            Some(known) => known.merge_operations(item),
            None => drop(self.paths.paths.insert(path, item)),
        }
    }

    /// Adds a route outside the base path and the OpenAPI document.
    pub(crate) fn add_outside(
        self,
        access: Access,
        path: &str,
        handler: MethodRouter<App>,
    ) -> Self {
        self.add_outside_paced(access, Pace::Usual, path, handler)
    }

    /// Like [`Routes::add_outside`], for probes, with and without a trailing slash.
    pub(crate) fn add_probe(self, access: Access, path: &str, handler: MethodRouter<App>) -> Self {
        let slashed = format!("{path}/");
        self.add_outside_paced(access, Pace::Always, path, handler.clone()).add_outside_paced(
            access,
            Pace::Always,
            &slashed,
            handler,
        )
    }

    fn add_outside_paced(
        mut self,
        access: Access,
        pace: Pace,
        path: &str,
        handler: MethodRouter<App>,
    ) -> Self {
        let (method, path) = (Method::GET, path.to_owned());
        self.router = self.router.route(&path, handler);
        self.entries.push(Entry::new(method, path, access, pace));
        self
    }

    /// Adds an entry outside the OpenAPI document. The caller mounts its handler, which calls other routes.
    pub(crate) fn add_relay(mut self, access: Access, method: Method, path: &str) -> Self {
        self.entries.push(Entry::new(method, path.to_owned(), access, Pace::Relays));
        self
    }

    pub(crate) fn finish(self, mut api: OpenApi) -> (Router<App>, Table, OpenApi) {
        api.paths = self.paths;
        let components = api.components.take().unwrap_or_default();
        let components = ComponentsBuilder::from(components).schemas_from_iter(self.schemas);
        api.components = Some(components.build());
        (self.router, Table::new(self.entries), api)
    }
}

fn methods(item: &PathItem) -> Vec<Method> {
    [
        (&item.get, Method::GET),
        (&item.post, Method::POST),
        (&item.put, Method::PUT),
        (&item.delete, Method::DELETE),
    ]
    .into_iter()
    .filter_map(|(operation, method)| operation.as_ref().map(|_| method))
    .collect()
}

/// The routes by path. The guard rejects requests that are not in it.
pub(crate) struct Table {
    by_path: HashMap<String, Vec<Entry>>,
}

impl Table {
    fn new(entries: Vec<Entry>) -> Self {
        let mut by_path: HashMap<String, Vec<Entry>> = HashMap::new();
        for entry in entries {
            by_path.entry(entry.path.clone()).or_default().push(entry);
        }
        Self { by_path }
    }

    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&Entry> {
        // A GET route also serves HEAD.
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        self.by_path.get(path)?.iter().find(|entry| entry.method == *method)
    }

    /// The methods of a path.
    pub(crate) fn methods(&self, path: &str) -> Vec<&Method> {
        self.by_path.get(path).into_iter().flatten().map(|entry| &entry.method).collect()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.by_path.values().flatten()
    }
}
