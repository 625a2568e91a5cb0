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
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let orders = engine.runs().workflow("order").await?.runs;
    /// # drop(orders);
    /// # Ok(()) }
    /// ```
    pub fn workflow(mut self, name: impl AsRef<str>) -> Self {
        match WorkflowName::with_limits(name, &self.engine.options().limits) {
            Ok(name) => self.query.workflow = Some(name),
            Err(error) => self.refused = Some(error),
        }
        self
    }

    /// Only runs with this status.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::RunStatus;
    ///
    /// let failed = engine.runs().status(RunStatus::Errored).await?.runs;
    /// # drop(failed);
    /// # Ok(()) }
    /// ```
    pub fn status(mut self, status: RunStatus) -> Self {
        self.query.status = Some(status);
        self
    }

    /// Only runs with this label.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let hers = engine.runs().label("customer", "ann").await?.runs;
    /// # drop(hers);
    /// # Ok(()) }
    /// ```
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.label = Some((key.into(), value.into()));
        self
    }

    /// Only runs that were created at this time or later.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::Timestamp;
    ///
    /// let all = engine.runs().created_from(Timestamp::from_millis(1_700_000_000_000)).await?.runs;
    /// # drop(all);
    /// # Ok(()) }
    /// ```
    pub fn created_from(mut self, at: Timestamp) -> Self {
        self.query.created_from = Some(at);
        self
    }

    /// Only runs that were created before this time.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::Timestamp;
    ///
    /// let old = engine.runs().created_before(Timestamp::from_millis(1_700_000_000_000)).await?.runs;
    /// # drop(old);
    /// # Ok(()) }
    /// ```
    pub fn created_before(mut self, at: Timestamp) -> Self {
        self.query.created_before = Some(at);
        self
    }

    /// Oldest first.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let oldest = engine.runs().oldest_first().limit(1).await?.runs;
    /// # drop(oldest);
    /// # Ok(()) }
    /// ```
    pub fn oldest_first(mut self) -> Self {
        self.query.order = windlass_kernel::Order::Ascending;
        self
    }

    /// Begins behind a run, usually with [`RunsPage::next`].
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let first = engine.runs().limit(20).await?;
    /// if let Some(next) = first.next {
    ///     let second = engine.runs().limit(20).after(next).await?;
    ///     # drop(second);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn after(mut self, run_key: RunKey) -> Self {
        self.query.after = Some(run_key);
        self
    }

    /// How many runs a page has at most. Default 100.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let page = engine.runs().limit(20).await?;
    /// assert!(page.runs.len() <= 20);
    /// # Ok(()) }
    /// ```
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
