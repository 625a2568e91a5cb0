//! What all requests share: the engine, the guard, the limits.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use windlass::Timestamp;
use windlass::kernel::{ModelName, Query, RunsQuery, Worker, WorkflowName};
use windlass_engine::Engine;

use crate::auth::Guard;
use crate::docs::Docs;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::table::Table;

/// How long what is known of the workers is believed.
const WORKERS_BELIEVED_FOR: Duration = Duration::from_secs(1);

/// What all requests share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) options: Options,
    pub(crate) guard: Guard,
    pub(crate) table: Table,
    pub(crate) docs: Docs,
    pub(crate) metrics: Metrics,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) waits: Semaphore,
    pub(crate) streams: Arc<Semaphore>,
    workers: Mutex<Option<(Timestamp, Arc<Vec<Worker>>)>>,
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        options: Options,
        guard: Guard,
        table: Table,
        docs: Docs,
    ) -> Result<Self, windlass::Error> {
        Ok(Self(Arc::new(Shared {
            metrics: Metrics::new(&engine)?,
            requests: Arc::new(Semaphore::new(options.requests_max)),
            waits: Semaphore::new(options.waits_max),
            streams: Arc::new(Semaphore::new(options.streams_max)),
            engine,
            options,
            guard,
            table,
            docs,
            workers: Mutex::default(),
        })))
    }

    /// Room for one more request, or the answer that there is none.
    pub(crate) fn admit(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        self.requests.try_acquire().map_err(|_| busy())
    }

    /// Room for one more request that waits for a run's end, among those that do and, until it does,
    /// among all.
    pub(crate) fn admit_waiting(&self) -> Result<(SemaphorePermit<'_>, Arc<Waiting>), ApiError> {
        let working = Arc::clone(&self.requests).try_acquire_owned().map_err(|_| busy())?;
        let message = "as many requests wait for runs as may; ask again, or ask without waiting";
        let refused = |_| {
            ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_WAITS", message)
                .retry_after(1)
        };
        let room = self.waits.try_acquire().map_err(refused)?;
        Ok((room, Arc::new(Waiting(Mutex::new(Some(working))))))
    }

    /// The workers, live or not, as they were a moment ago.
    pub(crate) async fn workers(&self) -> Result<Arc<Vec<Worker>>, ApiError> {
        let now = self.engine.clock().now();
        if let Some((at, workers)) = &*self.workers.lock()
            && now.since(*at) < WORKERS_BELIEVED_FOR
        {
            return Ok(Arc::clone(workers));
        }
        let query =
            Query::Workers { after: None, limit: self.engine.options().limits.page_rows_max };
        let mut workers = self.engine.store().list(query).await?.workers()?;
        self.engine.refresh(&mut workers);
        let workers = Arc::new(workers);
        *self.workers.lock() = Some((now, Arc::clone(&workers)));
        Ok(workers)
    }

    /// The model of a workflow that is known: served here, served before by a process that left word
    /// of it, served by a live worker, or with runs in the namespace that `engine` speaks for. None if
    /// nobody knows it.
    pub(crate) async fn model_of(
        &self,
        engine: &Engine,
        workflow: &WorkflowName,
    ) -> Result<Option<ModelName>, ApiError> {
        if let Some(model) = engine.model_known(workflow).await? {
            return Ok(Some(model));
        }
        let mut query = RunsQuery::all(engine.namespace().clone(), 1);
        query.workflow = Some(workflow.clone());
        let runs = engine.store().list(Query::Runs(query)).await?.runs()?;
        if let Some(run) = runs.into_iter().next() {
            return Ok(Some(run.model));
        }
        let served = self.is_served(workflow).await?;
        Ok(served.then(|| ModelName::from_stored("steps")))
    }

    /// Whether a live worker serves a workflow.
    pub(crate) async fn is_served(&self, workflow: &WorkflowName) -> Result<bool, ApiError> {
        let now = self.engine.clock().now();
        let serves = |worker: &Worker| {
            worker.is_live(now)
                && worker.info.turns.iter().any(|route| route.name.as_str() == workflow.as_str())
        };
        Ok(self.workers().await?.iter().any(serves))
    }
}

fn busy() -> ApiError {
    let message = "the server works on as many requests as it may; ask again";
    ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, "SERVER_BUSY", message)
        .retry_after(1)
}

/// A request that was admitted to wait: its place among those that are worked on, until it waits.
pub(crate) struct Waiting(Mutex<Option<OwnedSemaphorePermit>>);

impl Waiting {
    /// From here on there is nothing to be done but to wait.
    pub(crate) fn begin(&self) {
        self.0.lock().take();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// The engine's own workflows are no business of clients.
pub(crate) fn is_internal(workflow: &str) -> bool {
    workflow.starts_with("windlass.")
}
