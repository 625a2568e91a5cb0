//! Runs that belong together: submitted, waited for, cancelled and counted as one.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use windlass_kernel::{
    Error, ErrorCode, ErrorKind, Order, Query, Run, RunKey, RunStatus, RunsQuery,
};

use super::runtime::{Finished, finished};
use super::spec::RunSpec;
use crate::run::RunHandle;
use crate::workflow_ref::WorkflowRef;

/// The label that runs of a group carry.
pub const GROUP_LABEL: &str = "workflow.group";

/// How many runs are read, submitted or cancelled at once.
const CHUNK: usize = 100;

/// Runs of one relay that belong together. Any process can name the group and has all of it.
#[derive(Clone)]
pub struct RunGroup {
    pub(crate) relay: WorkflowRef<Bytes, Bytes>,
    pub(crate) name: String,
}

/// How many runs of a group are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Those that have not ended.
    pub live: u64,
    /// Those that ended with a result.
    pub succeeded: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
}

impl GroupCounts {
    /// All of them.
    ///
    /// ```
    /// use windlass::relays::GroupCounts;
    ///
    /// let counts = GroupCounts { live: 2, failed: 1, ..GroupCounts::default() };
    /// assert_eq!(counts.total(), 3);
    /// ```
    pub fn total(&self) -> u64 {
        self.live + self.succeeded + self.failed + self.cancelled
    }
}

impl RunGroup {
    /// Its name.
    ///
    /// ```
    /// # async fn example(night: windlass::relays::RunGroup) -> windlass::Result<()> {
    /// println!("{}", night.name());
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts runs of the group. Each start is idempotent by its id; the handles are in order. A run that exists
    /// and is not in the group is refused ([`ErrorCode::RunNotInGroup`]). A hundred runs are started at once:
    /// if one of them is refused, the others of its hundred and those before it are started, and those after it
    /// are not. Call this again with all runs to start the rest.
    ///
    /// ```
    /// # async fn example(night: windlass::relays::RunGroup) -> windlass::Result<()> {
    /// use windlass::relays::RunSpec;
    ///
    /// night.start(vec![RunSpec::new("a.csv").id("night-1-a")]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// A run is not valid or is not in the group, or the store cannot be written.
    pub async fn start(&self, specs: Vec<RunSpec>) -> Result<Vec<RunHandle<Bytes>>, Error> {
        for spec in &specs {
            spec.validate()?;
        }
        let mut started = Vec::with_capacity(specs.len());
        let mut specs = specs.into_iter().peekable();
        while specs.peek().is_some() {
            let chunk = specs.by_ref().take(CHUNK).map(|spec| self.start_one(spec));
            for answer in futures::future::join_all(chunk).await {
                started.push(answer?);
            }
        }
        Ok(started)
    }

    async fn start_one(&self, spec: RunSpec) -> Result<RunHandle<Bytes>, Error> {
        let mut start = self.relay.start_from(spec);
        start.own_labels.insert(GROUP_LABEL.to_owned(), self.name.clone());
        let handle = start.await?;
        if handle.existed() {
            let run = self.relay.engine.current(handle.run_key()).await?;
            let found = run.labels.get(GROUP_LABEL);
            if found != Some(&self.name) {
                let message = format!(
                    "run {:?} exists and belongs to {}; give this run another id",
                    handle.id(),
                    found.map_or("no group".to_owned(), |group| format!("group {group:?}")),
                );
                return Err(Error::new(ErrorKind::Conflict, ErrorCode::RunNotInGroup, message));
            }
        }
        Ok(handle)
    }

    /// How many of its runs are where, each in its newest generation.
    ///
    /// ```
    /// # async fn example(night: windlass::relays::RunGroup) -> windlass::Result<()> {
    /// println!("{} live", night.counts().await?.live);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn counts(&self) -> Result<GroupCounts, Error> {
        let query = Query::LabelCounts {
            namespace: self.relay.engine.namespace().clone(),
            label: (GROUP_LABEL.to_owned(), self.name.clone()),
            limit: self.relay.engine.options().limits.page_rows_max,
        };
        let rows = self.relay.engine.store().list(query).await?.counts()?;
        let mut counts = GroupCounts::default();
        for row in rows.iter().filter(|row| row.workflow == self.relay.name) {
            match row.status {
                RunStatus::Complete => counts.succeeded += row.count,
                RunStatus::Errored => counts.failed += row.count,
                RunStatus::Terminated => counts.cancelled += row.count,
                RunStatus::Active | RunStatus::Waiting | RunStatus::Paused => {
                    counts.live += row.count;
                }
            }
        }
        Ok(counts)
    }

    async fn page(
        &self,
        status: Option<RunStatus>,
        after: Option<RunKey>,
    ) -> Result<Vec<Run>, Error> {
        let query = RunsQuery {
            status,
            workflow: Some(self.relay.name.clone()),
            label: Some((GROUP_LABEL.to_owned(), self.name.clone())),
            order: Order::Ascending,
            after,
            ..RunsQuery::all(self.relay.engine.namespace().clone(), CHUNK as u32)
        };
        self.relay.engine.store().list(Query::Runs(query)).await?.runs()
    }

    /// Waits until all of its runs have ended, those that are submitted meanwhile too.
    ///
    /// ```
    /// # async fn example(night: windlass::relays::RunGroup) -> windlass::Result<()> {
    /// println!("{} failed", night.wait_all().await?.failed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read, or the engine stops.
    pub async fn wait_all(&self) -> Result<GroupCounts, Error> {
        let mut ends = self.relay.engine.watch_ends();
        loop {
            let counts = self.counts().await?;
            if counts.live == 0 {
                return Ok(counts);
            }
            ends.changed().await?;
        }
    }

    /// Waits until one of its runs has ended, and answers how; one that has ended already will do.
    /// Nothing if the group has no runs.
    ///
    /// ```
    /// # async fn example(night: windlass::relays::RunGroup) -> windlass::Result<()> {
    /// if let Some(first) = night.wait_any().await? {
    ///     println!("{} has ended", first.run_id);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read, or the engine stops.
    pub async fn wait_any(&self) -> Result<Option<Finished>, Error> {
        let mut ends = self.relay.engine.watch_ends();
        loop {
            let counts = self.counts().await?;
            if counts.total() == 0 {
                return Ok(None);
            }
            let ended = [
                (RunStatus::Complete, counts.succeeded),
                (RunStatus::Errored, counts.failed),
                (RunStatus::Terminated, counts.cancelled),
            ];
            for (status, _) in ended.into_iter().filter(|(_, count)| *count > 0) {
                if let Some(run) = self.ended(status).await? {
                    let (run_key, id) = (run.run_key, run.id.as_str());
                    return finished(&self.relay.engine, run_key, id).await.map(Some);
                }
            }
            ends.changed().await?;
        }
    }

    // A run that ended so, in its newest generation.
    async fn ended(&self, status: RunStatus) -> Result<Option<Run>, Error> {
        let mut after = None;
        loop {
            let page = self.page(Some(status), after).await?;
            let Some(last) = page.last() else { return Ok(None) };
            after = Some(last.run_key);
            for run in page {
                if self.relay.engine.is_newest(&run).await? {
                    return Ok(Some(run));
                }
            }
        }
    }

    /// Cancels all of its runs, and returns when they have ended. Answers how many were cancelled.
    ///
    /// ```
    /// # async fn example(night: windlass::relays::RunGroup) -> windlass::Result<()> {
    /// println!("{} cancelled", night.cancel_all().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written. Some runs may have been cancelled.
    pub async fn cancel_all(&self) -> Result<u64, Error> {
        let reason = format!("group {:?} was cancelled", self.name);
        let mut cancelled = 0;
        loop {
            // All are asked before any is waited for: one with a long step holds up no other.
            let mut cancels: FuturesUnordered<_> = (self.live().await?.into_iter())
                .map(|run_key| self.relay.engine.cancel(run_key, Some(&reason), None))
                .collect();
            let mut failed = None;
            while let Some(answer) = cancels.next().await {
                match answer {
                    Ok(ended) => cancelled += u64::from(ended),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            // Some may have been submitted, or retried, while the others were being cancelled.
            if self.counts().await?.live == 0 {
                return Ok(cancelled);
            }
        }
    }

    async fn live(&self) -> Result<Vec<RunKey>, Error> {
        let (mut live, mut after) = (Vec::new(), None);
        loop {
            let page = self.page(None, after).await?;
            let Some(last) = page.last() else { return Ok(live) };
            after = Some(last.run_key);
            live.extend(page.iter().filter(|run| !run.status.is_ended()).map(|run| run.run_key));
        }
    }
}
