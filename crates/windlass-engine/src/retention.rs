//! Retention: trees of runs that ended long enough ago are deleted, by a policy for each workflow, and rows
//! of records that were removed long enough ago.
//!
//! Policies are in the store, so all its processes apply the same ones. A new policy also applies to
//! runs that have ended before. Without a policy, runs are kept for ever.

use std::sync::Arc;
use std::time::Duration;

use futures::future::Either;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use windlass_kernel::kept::{self, KeptLedger};
use windlass_kernel::{
    Body, BoxFuture, Commit, DeleteRemovedRecords, DeleteTrees, Deleted, Error, ErrorCode,
    ErrorKind, Expect, IntoDuration, Namespace, Op, Query, RecordOp, RecordPut, RecordWrite, Run,
    RunKey, SettingName, Store, TasksQuery, Terms, WorkflowName, WriteId, format_duration,
};

use crate::core::Core;
use crate::env::new_uuid;
use crate::registry::Registry;
use crate::turn::refusal;

/// The kind of the settings that store policies.
const KIND: &str = "retention";
/// How many trees are listed at once.
const PAGE: u32 = 200;
/// A policy keeps runs for at least this many times `create_resend_max`. A commit that creates a run may
/// be on its way for as long as the store tries to answer, besides the time in which it is sent again.
const KEPT_RESENDS_MIN: u32 = 4;
/// When the first sweep of a process comes, if `sweep_every` is longer.
const FIRST: Duration = Duration::from_secs(60);

/// How long the ended runs of a workflow are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// For how many milliseconds a tree is kept after the last of its runs has ended.
    keep_ms: u64,
    /// Whether the events stay when the rest is deleted. Default false.
    pub keep_ledger: bool,
    /// Whether a tree is archived first. A process without an [`Archive`] then deletes no runs of the
    /// workflow. Default false.
    pub archive: bool,
}

impl Retention {
    /// Keeps a tree for `span` after the last of its runs has ended; at least one second. An engine
    /// accepts the policy if it is at least four times as long as `Options::create_resend_max`, by
    /// default four minutes.
    ///
    /// ```
    /// # use windlass_engine::Retention;
    /// let month = Retention::keep_for("30 days")?;
    /// assert!(Retention::keep_for("10 ms").is_err());
    /// # drop(month);
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidRetention`] if the text is no duration, or is shorter than a second.
    pub fn keep_for(span: impl IntoDuration) -> Result<Self, Error> {
        let span = span.into_duration().map_err(|error| {
            let message = format!("the time that ended runs are kept for: {error}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidRetention, message)
        })?;
        if span < Duration::from_secs(1) {
            let message = format!("ended runs would be kept for {span:?}; use at least 1 second");
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRetention, message));
        }
        let keep_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Ok(Self { keep_ms, keep_ledger: false, archive: false })
    }

    /// Keeps the events.
    ///
    /// ```
    /// # use windlass_engine::Retention;
    /// assert!(Retention::keep_for("30 days")?.keep_ledger().keep_ledger);
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    pub fn keep_ledger(mut self) -> Self {
        self.keep_ledger = true;
        self
    }

    /// Archives trees before they are deleted.
    ///
    /// ```
    /// # use windlass_engine::Retention;
    /// assert!(Retention::keep_for("30 days")?.archive().archive);
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    pub fn archive(mut self) -> Self {
        self.archive = true;
        self
    }

    /// How long a tree is kept.
    ///
    /// ```
    /// # use windlass_engine::Retention;
    /// assert_eq!(Retention::keep_for("1 minute")?.span().as_secs(), 60);
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    pub fn span(&self) -> Duration {
        Duration::from_millis(self.keep_ms)
    }
}

/// Stores trees of runs before they are deleted. A tree must be durable when `take` returns. A tree can
/// come twice, if the process died before it was deleted.
pub trait Archive: Send + Sync {
    /// Archives the tree of a root.
    ///
    /// # Errors
    ///
    /// The tree is not durable; the engine keeps it and tries again.
    fn take<'a>(
        &'a self,
        store: &'a Arc<dyn Store>,
        root: RunKey,
    ) -> BoxFuture<'a, Result<(), Error>>;
}

/// What a sweep does with an expired tree.
enum Prepared {
    Deletable {
        /// Whether newer generations of the root read its rows.
        reads_earlier: bool,
    },
    Kept,
    /// Another process has deleted it.
    Gone,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many trees were deleted.
    pub trees: u64,
    /// How many runs they had.
    pub runs: u64,
    /// How many trees were due but are kept, because a run has not ended or a task is open.
    pub kept: u64,
    /// How many trees or policies failed. The next sweep tries them again.
    pub failed: u64,
    /// How many rows of removed records were deleted.
    pub records: u64,
}

/// A stored policy.
pub(crate) struct Policy {
    namespace: Namespace,
    workflow: WorkflowName,
    retention: Retention,
}

fn name_of(namespace: &Namespace, workflow: &WorkflowName) -> SettingName {
    SettingName::new(KIND, &format!("{namespace}/{workflow}"))
}

fn parse_name(name: &str) -> Option<(Namespace, WorkflowName)> {
    let (namespace, workflow) = name.split_once('/')?;
    Some((Namespace::from_stored(namespace), WorkflowName::from_stored(workflow)))
}

// When the first sweep comes; `None` if it waits for the first policy or the first removal of a record.
fn first_sweep(has_work: bool, shared: bool, every: Duration) -> Option<Duration> {
    (has_work || shared).then_some(every.min(FIRST))
}

/// Deletes trees of ended runs by the policies in the store.
pub(crate) struct Sweeper {
    core: Arc<Core>,
    registry: Arc<Registry>,
    policy_set: Notify,
}

impl Sweeper {
    pub(crate) fn new(core: Arc<Core>, registry: Arc<Registry>) -> Arc<Self> {
        Arc::new(Self { core, registry, policy_set: Notify::new() })
    }

    // The shortest time that ended runs are kept for: the create of a deleted run that is sent again
    // would execute it a second time.
    fn kept_min(&self) -> Duration {
        self.core.options.create_resend_max * KEPT_RESENDS_MIN
    }

    fn check(&self, retention: &Retention) -> Result<(), Error> {
        let (span, kept_min) = (retention.span(), self.kept_min());
        if span >= kept_min {
            return Ok(());
        }
        let message = format!(
            "ended runs would be kept for {}; use at least {}, because a request to create a run may be \
             sent again for that long",
            format_duration(span),
            format_duration(kept_min)
        );
        Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRetention, message))
    }

    /// Sets the retention of a workflow; `None` keeps its runs for ever.
    pub(crate) async fn set_retention(
        &self,
        namespace: &Namespace,
        workflow: &str,
        retention: Option<&Retention>,
    ) -> Result<(), Error> {
        let workflow = WorkflowName::with_limits(workflow, &self.core.options.limits)?;
        let name = name_of(namespace, &workflow);
        retention.map_or(Ok(()), |retention| self.check(retention))?;
        let value = retention.map(Body::of).transpose()?;
        self.core.store.put_setting(name, value).await?;
        self.policy_set.notify_one();
        Ok(())
    }

    /// The policies of a namespace, by workflow.
    pub(crate) async fn retentions(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<(WorkflowName, Retention)>, Error> {
        let all = self.policies().await?.into_iter();
        let own = all.filter(|policy| policy.namespace == *namespace);
        Ok(own.map(|policy| (policy.workflow, policy.retention)).collect())
    }

    pub(crate) async fn policies(&self) -> Result<Vec<Policy>, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let mut policies = Vec::new();
        let mut after = None;
        loop {
            let query = Query::Settings { kind: KIND.into(), after, limit };
            let page = self.core.store.list(query).await?.settings()?;
            after = page.last().map(|setting| Arc::clone(&setting.name.name));
            let last = page.len() < limit as usize;
            for setting in page {
                let Some((namespace, workflow)) = parse_name(&setting.name.name) else { continue };
                // A policy that cannot be read keeps the runs of its workflow, and no others.
                match setting.value.read() {
                    Ok(retention) => policies.push(Policy { namespace, workflow, retention }),
                    Err(error) => tracing::error!(
                        %namespace, %workflow, %error,
                        "cannot read a retention policy; set it again"
                    ),
                }
            }
            if last {
                return Ok(policies);
            }
        }
    }

    /// Whether there is anything to delete, now or later.
    pub(crate) async fn has_work(&self) -> Result<bool, Error> {
        let options = &self.core.options;
        if options.removed_record_retention_of_applications.is_some()
            || !self.policies().await?.is_empty()
        {
            return Ok(true);
        }
        // One row shows that there are some. The start of an engine does not wait for more.
        let (removed_for, after) = (options.removed_record_retention, None);
        let one = DeleteRemovedRecords { reserved: true, removed_for, after, limit: 1 };
        let found = self.core.store.delete_removed_records(one).await?;
        Ok(found.deleted + found.left > 0)
    }

    // Deletes the rows of records that were removed long ago.
    async fn delete_removed(&self, swept: &mut Swept) -> Result<(), Error> {
        let options = &self.core.options;
        let own = (true, Some(options.removed_record_retention));
        let others = (false, options.removed_record_retention_of_applications);
        for (reserved, removed_for) in [own, others] {
            let Some(removed_for) = removed_for else { continue };
            let mut after = None;
            loop {
                let limit = options.limits.page_rows_max;
                let request = DeleteRemovedRecords { reserved, removed_for, after, limit };
                let done = self.core.store.delete_removed_records(request).await?;
                swept.records += done.deleted;
                after = done.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        for policy in self.policies().await? {
            if let Err(error) = self.sweep_workflow(&policy, &mut swept).await {
                let Policy { namespace, workflow, .. } = &policy;
                tracing::error!(
                    %namespace, %workflow, %error,
                    "failed to delete the expired runs of a workflow; the next sweep tries again"
                );
                swept.failed += 1;
            }
        }
        let removed = self.delete_removed(&mut swept).await;
        self.core.metrics.runs_deleted.add(swept.runs);
        removed?;
        Ok(swept)
    }

    async fn sweep_workflow(&self, policy: &Policy, swept: &mut Swept) -> Result<(), Error> {
        let retention = &policy.retention;
        // Another process, or an earlier build, may have stored a shorter time.
        let ended_for = retention.span().max(self.kept_min());
        if retention.archive && self.core.options.archive.is_none() {
            return Ok(());
        }
        let mut after = None;
        loop {
            let due = Query::Expired {
                namespace: policy.namespace.clone(),
                workflow: policy.workflow.clone(),
                ended_for,
                after,
                limit: PAGE,
            };
            let page = self.core.store.list(due).await?.run_keys()?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(*last);
            let (mut roots, mut keep_for_newer) = (Vec::new(), false);
            for run_key in page {
                match self.prepare(policy, run_key, ended_for).await {
                    Ok(Prepared::Deletable { reads_earlier }) => {
                        roots.push(run_key);
                        keep_for_newer |= reads_earlier;
                    }
                    Ok(Prepared::Kept) => swept.kept += 1,
                    Ok(Prepared::Gone) => {}
                    Err(error) if error.is_retryable() || error.kind() == ErrorKind::Closed => {
                        return Err(error);
                    }
                    // One tree that cannot be read or archived must not keep the others.
                    Err(error) => {
                        tracing::error!(
                            %run_key, workflow = %policy.workflow, %error,
                            "failed to read or archive an expired run; it is kept"
                        );
                        swept.failed += 1;
                    }
                }
            }
            let (asked, keep_ledger) = (roots.len() as u64, retention.keep_ledger);
            let request = DeleteTrees { roots, ended_for, keep_ledger, keep_for_newer };
            let deleted = self.delete(request, swept).await?;
            swept.trees += deleted.roots.len() as u64;
            swept.runs += deleted.runs;
            swept.kept += asked.saturating_sub(deleted.roots.len() as u64);
        }
    }

    // Finds out whether an expired tree may be deleted, and archives it if its policy says so.
    async fn prepare(
        &self,
        policy: &Policy,
        root: RunKey,
        ended_for: Duration,
    ) -> Result<Prepared, Error> {
        // One by one, so that a row which cannot be read affects its own tree only.
        let Some(overview) = self.core.store.run_overview_by_key(root).await? else {
            return Ok(Prepared::Gone);
        };
        let run = overview.run;
        let reads_earlier = self.registry.description(&run).reads_earlier_generations;
        if reads_earlier && self.is_read(&run, ended_for).await? {
            return Ok(Prepared::Kept);
        }
        Ok(match self.archived(policy, root).await? {
            true => Prepared::Deletable { reads_earlier },
            false => Prepared::Kept,
        })
    }

    // Whether a newer generation is not over, as far as can be seen before the store decides: a tree that it
    // keeps would be archived again by each sweep.
    async fn is_read(&self, run: &Run, ended_for: Duration) -> Result<bool, Error> {
        let Run { namespace, workflow, id, .. } = run;
        let found = self.core.store.find(namespace.clone(), workflow.clone(), id.clone()).await?;
        let now = self.core.clock.now();
        Ok(found.is_some_and(|newest| {
            newest.run_key != run.run_key
                && newest.ended_at.is_none_or(|at| at.plus(ended_for) > now)
        }))
    }

    // Deletes trees together, and one by one if that fails: one damaged tree must not keep the others.
    async fn delete(&self, request: DeleteTrees, swept: &mut Swept) -> Result<Deleted, Error> {
        let roots = request.roots.clone();
        let error = match self.core.store.delete_trees(request.clone()).await {
            Ok(deleted) => return Ok(deleted),
            Err(error) if error.is_retryable() || error.kind() == ErrorKind::Closed => {
                return Err(error);
            }
            Err(error) => error,
        };
        tracing::warn!(%error, "failed to delete expired runs together; deleting each alone");
        let mut deleted = Deleted::default();
        for root in roots {
            let request = DeleteTrees { roots: vec![root], ..request.clone() };
            match self.core.store.delete_trees(request).await {
                Ok(one) => {
                    deleted.roots.extend(one.roots);
                    deleted.runs += one.runs;
                }
                Err(error) => {
                    tracing::error!(run_key = %root, %error, "failed to delete an expired run");
                    swept.failed += 1;
                }
            }
        }
        Ok(deleted)
    }

    // Archives a tree and keeps its ledgers if its policy says so. Returns whether it may be deleted.
    async fn archived(&self, policy: &Policy, root: RunKey) -> Result<bool, Error> {
        let archive = self.core.options.archive.as_ref().filter(|_| policy.retention.archive);
        if archive.is_none() && !policy.retention.keep_ledger {
            return Ok(true);
        }
        // A tree that is not deleted now would be archived again by the next sweep.
        if !self.is_over(&policy.namespace, root).await? {
            return Ok(false);
        }
        if let Some(archive) = archive {
            archive.take(&self.core.store, root).await?;
        }
        if !policy.retention.keep_ledger {
            return Ok(true);
        }
        match self.keep_ledgers(&policy.namespace, root).await {
            // Another process keeps and deletes the tree at this moment.
            Err(error) if error.code() == ErrorCode::RecordConflict => Ok(false),
            kept => kept.map(|()| true),
        }
    }

    // Writes down what the ledgers of a tree are verified with. If the tree is not deleted after all, it is
    // written again by the next sweep.
    async fn keep_ledgers(&self, namespace: &Namespace, root: RunKey) -> Result<(), Error> {
        let limit = self.core.options.limits.records_per_commit_max.min(PAGE as usize);
        let mut after = None;
        loop {
            let query = Query::Tree { root, after, limit: limit as u32 };
            let page = self.core.store.list(query).await?.runs()?;
            after = page.last().map(|run| run.run_key);
            let is_last = page.len() < limit;
            let keys: Vec<_> =
                page.iter().map(|run| KeptLedger::key(namespace, run.run_key)).collect();
            let found = self.core.store.records(keys.clone()).await?;
            let at = self.core.clock.now();
            let mut ops = Vec::with_capacity(page.len());
            for ((run, key), found) in page.iter().zip(keys).zip(found) {
                let mut terms = Terms::default();
                terms.add(kept::ROOT_TERM, root.to_string())?;
                let body = Body::of(&KeptLedger::of(run))?;
                let write_id = WriteId(new_uuid(&*self.core.env, at));
                let put = RecordPut { write_id, body, terms, keep: None, at, revision: None };
                let expect = found.map_or(Expect::Absent, |found| Expect::At(found.revision));
                let write = RecordWrite::Put(Box::new(put));
                ops.push(Op::Record(Box::new(RecordOp { key, expect, write })));
            }
            if !ops.is_empty() {
                let commits = vec![Commit::new(None, None, ops)];
                for result in self.core.store.commit(commits).await {
                    result.map_err(|error| refusal(&error))?;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    // Whether every run of a tree has ended and has no open task.
    async fn is_over(&self, namespace: &Namespace, root: RunKey) -> Result<bool, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let mut after = None;
        loop {
            let page = self.core.store.list(Query::Tree { root, after, limit }).await?.runs()?;
            after = page.last().map(|run| run.run_key);
            for run in &page {
                let tasks = Query::Tasks(TasksQuery {
                    run_key: Some(run.run_key),
                    ..TasksQuery::all(namespace.clone(), 1)
                });
                if !run.status.is_ended() || !self.core.store.list(tasks).await?.tasks()?.is_empty()
                {
                    return Ok(false);
                }
            }
            if page.len() < limit as usize {
                return Ok(true);
            }
        }
    }
}

/// Sweeps periodically, until the engine stops. An engine that does not share its store starts with the
/// first policy, or with the first record that it removes.
pub(crate) async fn serve(sweeper: Arc<Sweeper>, has_work: bool) {
    let options = &sweeper.core.options;
    let every = options.sweep_every;
    let mut wait = first_sweep(has_work, options.shared, every);
    loop {
        let is_due = until_due(&sweeper, wait).await;
        if sweeper.core.lifecycle.is_stopped() {
            return;
        }
        wait = Some(every);
        if !is_due {
            continue;
        }
        match sweeper.sweep().await {
            Ok(swept) if swept.trees > 0 || swept.records > 0 => {
                let Swept { trees, runs, records, .. } = swept;
                tracing::info!(trees, runs, records, "deleted expired runs and removed records");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a sweep failed; the next one continues"),
        }
    }
}

// Until the time has passed, a policy was set, or the engine stops. Without a time, also until a record was
// removed: its row is not due yet, so the answer is `false`.
async fn until_due(sweeper: &Sweeper, wait: Option<Duration>) -> bool {
    let due = async {
        match wait {
            Some(wait) => {
                sweeper.core.env.sleep(wait).await;
                true
            }
            None => {
                sweeper.core.record_removed.notified().await;
                false
            }
        }
    };
    let set = async {
        sweeper.policy_set.notified().await;
        true
    };
    let (due, set) = (std::pin::pin!(due), std::pin::pin!(set));
    let next = futures::future::select(due, set);
    let stopped = std::pin::pin!(sweeper.core.lifecycle.stopped());
    match futures::future::select(next, stopped).await {
        Either::Left((Either::Left((is_due, _)) | Either::Right((is_due, _)), _)) => is_due,
        Either::Right(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_policy_can_be_parsed() {
        for (namespace, workflow) in [("default", "order"), ("shop", "a/b")] {
            let namespace = Namespace::from_stored(namespace);
            let workflow = WorkflowName::from_stored(workflow);
            let name = name_of(&namespace, &workflow);
            assert_eq!(parse_name(&name.name), Some((namespace, workflow)));
        }
        assert_eq!(parse_name("order"), None);
    }

    #[test]
    fn the_first_sweep_comes_soon_if_there_may_be_policies() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        let second = Duration::from_secs(1);
        for (has_policies, shared, every, expect) in [
            (false, false, hour, None),
            (true, false, hour, Some(minute)),
            (false, true, hour, Some(minute)),
            (true, true, second, Some(second)),
        ] {
            assert_eq!(first_sweep(has_policies, shared, every), expect);
        }
    }

    #[test]
    fn a_policy_keeps_runs_for_at_least_a_second() {
        for (ms, ok) in [(0, false), (999, false), (1_000, true), (1_500, true), (86_400_000, true)]
        {
            let span = Duration::from_millis(ms);
            let policy = Retention::keep_for(span);
            assert_eq!(policy.is_ok(), ok, "{ms} ms");
            assert!(policy.is_err() || policy.is_ok_and(|policy| policy.span() == span));
        }
        assert!(Retention::keep_for(Duration::MAX).is_err(), "longer than any duration may be");
    }
}
