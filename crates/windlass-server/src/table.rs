//! The list of all routes: what each one needs, and what answers it. The router, the guard and the
//! OpenAPI document are made from this one list, so none of them can know a route that the others
//! do not.

use std::collections::HashMap;

use axum::Router;
use axum::http::Method;
use utoipa::openapi::path::Paths;
use utoipa::openapi::{ComponentsBuilder, OpenApi, RefOr, Schema};
use utoipa_axum::router::UtoipaMethodRouter;

use crate::app::App;
use crate::auth::Scope;
use crate::metrics::Labels;

/// What a route needs of those who call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Public,
    /// A credential with a scope.
    Scope(Scope),
    /// A credential with `admin` in the namespace of the server itself: what it shows is of all.
    Operator,
}

/// How long a route may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As long as any request.
    Usual,
    /// It may wait for a run's end besides.
    Waits,
    /// It is answered however busy the server is: whoever asks wants to know just that.
    Always,
}

/// A route, as the guard knows it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The method.
    pub method: Method,
    /// The whole path, as a template.
    pub path: String,
    /// What it needs.
    pub access: Access,
    pub(crate) pace: Pace,
    pub(crate) labels: Labels,
}

impl Entry {
    fn new(method: Method, path: String, access: Access, pace: Pace) -> Self {
        let labels = Labels::new(&method, &path);
        Self { method, path, access, pace, labels }
    }
}

/// Routes in the making.
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

    /// Adds the routes of one handler under the base, with and without a slash at the end.
    pub(crate) fn add(self, access: Access, route: UtoipaMethodRouter<App>) -> Self {
        self.add_paced(access, Pace::Usual, route)
    }

    /// As [`Routes::add`], for a handler that may wait for a run's end.
    pub(crate) fn add_waiting(self, access: Access, route: UtoipaMethodRouter<App>) -> Self {
        self.add_paced(access, Pace::Waits, route)
    }

    fn add_paced(mut self, access: Access, pace: Pace, route: UtoipaMethodRouter<App>) -> Self {
        let (schemas, paths, method_router) = route;
        for (path, item) in &paths.paths {
            let bare = format!("{}{}", self.base, path.trim_end_matches('/'));
            let slashed = format!("{bare}/");
            for full in [bare, slashed] {
                // Without a base, the index has only one spelling.
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
            match self.paths.paths.get_mut(&path) {
                Some(known) => known.merge_operations(item),
                None => drop(self.paths.paths.insert(path, item)),
            }
        }
        self
    }

    /// Adds a route outside the base and outside the OpenAPI document.
    pub(crate) fn add_outside(
        self,
        access: Access,
        path: &str,
        handler: axum::routing::MethodRouter<App>,
    ) -> Self {
        self.add_outside_paced(access, Pace::Usual, path, handler)
    }

    /// As [`Routes::add_outside`], for what says how the server is, with and without a slash at the end.
    pub(crate) fn add_probe(
        self,
        access: Access,
        path: &str,
        handler: axum::routing::MethodRouter<App>,
    ) -> Self {
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
        handler: axum::routing::MethodRouter<App>,
    ) -> Self {
        let (method, path) = (Method::GET, path.to_owned());
        self.router = self.router.route(&path, handler);
        self.entries.push(Entry::new(method, path, access, pace));
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

fn methods(item: &utoipa::openapi::PathItem) -> Vec<Method> {
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

/// What the guard looks routes up in. What is not in it is refused.
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
        // What answers GET answers HEAD.
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        self.by_path.get(path)?.iter().find(|entry| entry.method == *method)
    }

    /// The methods that a path takes.
    pub(crate) fn methods(&self, path: &str) -> Vec<&Method> {
        self.by_path.get(path).into_iter().flatten().map(|entry| &entry.method).collect()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.by_path.values().flatten()
    }
}
