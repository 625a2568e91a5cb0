//! A listing of runs with filters and pages.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use windlass_kernel::{Error, Query, Run, RunKey, RunStatus, RunsQuery, Timestamp, WorkflowName};

use crate::model;

/// A listing of runs: set filters, then await it. Newest first, 100 a page by default.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let engine = windlass::Engine::open("memory:").await?;
/// use windlass::RunStatus;
///
/// let mut page = engine.runs().status(RunStatus::Waiting).await?;
/// while let Some(next) = page.next {
///     page = engine.runs().status(RunStatus::Waiting).after(next).await?;
/// }
/// # Ok::<(), windlass::Error>(()) }).unwrap();
/// ```
#[must_use = "runs are listed when this is awaited"]
pub struct Runs {
    engine: model::Engine,
    query: RunsQuery,
    refused: Option<Error>,
}

/// One page of runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunsPage {
    /// The runs, each generation as its own run.
    pub runs: Vec<Run>,
    /// Where the next page begins: pass it to [`Runs::after`]. `None` on the last page.
    pub next: Option<RunKey>,
}

impl Runs {
    pub(crate) fn new(engine: model::Engine) -> Self {
        let query = RunsQuery::all(engine.namespace().clone(), 100);
        Self { engine, query, refused: None }
    }

    /// Only runs of this workflow.
    pub fn workflow(mut self, name: impl AsRef<str>) -> Self {
        match WorkflowName::with_limits(name, &self.engine.options().limits) {
            Ok(name) => self.query.workflow = Some(name),
            Err(error) => self.refused = Some(error),
        }
        self
    }

    /// Only runs with this status.
    pub fn status(mut self, status: RunStatus) -> Self {
        self.query.status = Some(status);
        self
    }

    /// Only runs with this label.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.label = Some((key.into(), value.into()));
        self
    }

    /// Only runs that were created at this time or later.
    pub fn created_from(mut self, at: Timestamp) -> Self {
        self.query.created_from = Some(at);
        self
    }

    /// Only runs that were created before this time.
    pub fn created_before(mut self, at: Timestamp) -> Self {
        self.query.created_before = Some(at);
        self
    }

    /// Oldest first.
    pub fn oldest_first(mut self) -> Self {
        self.query.order = windlass_kernel::Order::Ascending;
        self
    }

    /// Begins behind a run, usually with [`RunsPage::next`].
    pub fn after(mut self, run_key: RunKey) -> Self {
        self.query.after = Some(run_key);
        self
    }

    /// How many runs a page has at most. Default 100.
    pub fn limit(mut self, limit: u32) -> Self {
        self.query.limit = limit;
        self
    }
}

impl IntoFuture for Runs {
    type Output = Result<RunsPage, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            if let Some(refused) = self.refused {
                return Err(refused);
            }
            let limit = self.query.limit as usize;
            let runs = self.engine.store().list(Query::Runs(self.query)).await?.runs()?;
            let next = runs.last().filter(|_| runs.len() >= limit).map(|run| run.run_key);
            Ok(RunsPage { runs, next })
        })
    }
}
