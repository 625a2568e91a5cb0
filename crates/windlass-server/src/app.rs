//! State that all requests share: the engine, the guard and the limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use windlass::kernel::{ModelName, Query, RunsQuery, Worker, WorkflowName};
use windlass::{ErrorCode, Timestamp};
use windlass_engine::Engine;

use crate::auth::{Caller, Guard};
use crate::docs::Docs;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::series::Series;
use crate::store_status::StoreStatus;
use crate::table::Table;

/// How long the cached list of workers is used.
const WORKERS_CACHE_TTL: Duration = Duration::from_secs(1);

/// The maximum number of cancellations that go on after their response: each asks the store once a
/// second until its run has ended.
pub(crate) const CANCELS_MAX: usize = 1_024;

/// State that all requests share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) options: Options,
    pub(crate) guard: Guard,
    pub(crate) table: Table,
    pub(crate) docs: Docs,
    pub(crate) metrics: Metrics,
    pub(crate) store_status: StoreStatus,
    pub(crate) series: Arc<Series>,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) waits: Semaphore,
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) cancels: Arc<Semaphore>,
    pub(crate) waits_of: Arc<PerCredential>,
    pub(crate) streams_of: Arc<PerCredential>,
    /// In units of [`BODY_UNIT`] bytes.
    pub(crate) bodies: Arc<Semaphore>,
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
        let store_status = StoreStatus::probe(&engine, options.probe_every);
        Ok(Self(Arc::new(Shared {
            metrics: Metrics::new(&engine, &store_status)?,
            store_status,
            series: Series::of(&engine),
            requests: Arc::new(Semaphore::new(options.requests_max)),
            waits: Semaphore::new(options.waits_max),
            streams: Arc::new(Semaphore::new(options.streams_max)),
            cancels: Arc::new(Semaphore::new(CANCELS_MAX)),
            waits_of: Arc::new(PerCredential::new(options.waits_per_credential_max)),
            streams_of: Arc::new(PerCredential::new(options.streams_per_credential_max)),
            bodies: Arc::new(Semaphore::new(options.bodies_bytes_max.div_ceil(BODY_UNIT))),
            engine,
            options,
            guard,
            table,
            docs,
            workers: Mutex::default(),
        })))
    }

    /// Acquires a permit for one request.
    pub(crate) fn admit(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        self.requests.try_acquire().map_err(|_| busy())
    }

    /// Acquires permits for a request that waits for a run to end. The request permit is released
    /// when the wait begins.
    pub(crate) fn admit_waiting(&self) -> Result<(SemaphorePermit<'_>, Arc<WaitPermit>), ApiError> {
        let working = Arc::clone(&self.requests).try_acquire_owned().map_err(|_| busy())?;
        let message = format!(
            "too many waiting requests (limit {}); retry later or omit `waitMs`",
            self.options.waits_max
        );
        let too_many = |_| {
            ApiError::new(
                axum::http::StatusCode::TOO_MANY_REQUESTS,
                ErrorCode::TooManyWaits,
                message,
            )
            .retry_after(1)
        };
        let permit = self.waits.try_acquire().map_err(too_many)?;
        Ok((permit, Arc::new(WaitPermit(Mutex::new(Some(working))))))
    }

    /// All workers, live or not, from a cache of one second.
    pub(crate) async fn workers(&self) -> Result<Arc<Vec<Worker>>, ApiError> {
        let now = self.engine.clock().now();
        if let Some((at, workers)) = &*self.workers.lock()
            && now.since(*at) < WORKERS_CACHE_TTL
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

    /// The model of a workflow that is known: this process serves it, a process that serves it has
    /// published it, or it has runs in the namespace of `engine`. None if nobody knows it.
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
        match self.is_served(workflow).await? {
            true => Ok(engine.model_published(workflow).await?),
            false => Ok(None),
        }
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

/// Bodies count against their limit in units of this size.
pub(crate) const BODY_UNIT: usize = 1_024;

/// Counts what each credential has in progress. Callers without an identity share no limit: there is
/// nobody to tell apart.
pub(crate) struct PerCredential {
    max: usize,
    counts: Mutex<HashMap<String, usize>>,
}

impl PerCredential {
    fn new(max: usize) -> Self {
        Self { max, counts: Mutex::default() }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// A permit of the caller's credential; an error if it has as many as it may have.
    pub(crate) fn acquire(self: &Arc<Self>, caller: &Caller) -> Result<CredentialPermit, ()> {
        let Some(actor) = &caller.actor else { return Ok(CredentialPermit(None)) };
        let key = format!("{}/{}/{}", caller.namespace, actor.kind, actor.id_hash);
        let mut counts = self.counts.lock();
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.max {
            return Err(());
        }
        *count += 1;
        Ok(CredentialPermit(Some((Arc::clone(self), key))))
    }
}

/// A permit of a credential.
pub(crate) struct CredentialPermit(Option<(Arc<PerCredential>, String)>);

impl Drop for CredentialPermit {
    fn drop(&mut self) {
        let Some((of, key)) = self.0.take() else { return };
        let mut counts = of.counts.lock();
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
    }
}

fn busy() -> ApiError {
    let message = "too many concurrent requests; retry later";
    ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, ErrorCode::ServerBusy, message)
        .retry_after(1)
}

/// A request that may wait. Holds a request permit until the wait begins.
pub(crate) struct WaitPermit(Mutex<Option<OwnedSemaphorePermit>>);

impl WaitPermit {
    /// Releases the request permit: from now on the request only waits.
    pub(crate) fn begin(&self) {
        self.0.lock().take();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// Whether a workflow belongs to the engine itself. Clients cannot access those.
pub(crate) fn is_internal(workflow: &str) -> bool {
    workflow.starts_with("windlass.")
}
