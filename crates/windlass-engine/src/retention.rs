//! Retention: trees of runs that ended long enough ago are deleted, by a policy for each workflow.
//!
//! Policies stand in the store, so every process on it follows the same ones, and a new policy is
//! for what has ended already too. Without one, everything is kept for ever.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, BoxFuture, DeleteTrees, Error, ErrorKind, Namespace, Query, RunKey, SettingName, Store,
    TasksQuery, WorkflowName,
};

use crate::engine::{Engine, Inner};

/// The kind of the settings that hold policies.
const KIND: &str = "retention";
/// How many trees are looked at before the next ones are listed.
const PAGE: u32 = 200;
/// When the first sweep of a process comes, if its rhythm is slower.
const FIRST: Duration = Duration::from_secs(60);

/// What becomes of the ended runs of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// For how many milliseconds a tree is kept after the last of its runs has ended.
    keep_ms: u64,
    /// Whether the events stay when the rest is deleted. Default false.
    pub keep_ledger: bool,
    /// Whether a tree is written out first. A process without an [`Archive`] then deletes nothing
    /// of the workflow. Default false.
    pub archive: bool,
}

impl Retention {
    /// Keeps a tree for so long after the last of its runs has ended; a second at least.
    pub fn keep_for(span: Duration) -> Result<Self, Error> {
        if span < Duration::from_secs(1) {
            let message = format!("ended runs would be kept for {span:?}; a second is the least");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_RETENTION", message));
        }
        let keep_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Ok(Self { keep_ms, keep_ledger: false, archive: false })
    }

    /// Keeps the events.
    pub fn keep_ledger(mut self) -> Self {
        self.keep_ledger = true;
        self
    }

    /// Writes trees out before they are deleted.
    pub fn archive(mut self) -> Self {
        self.archive = true;
        self
    }

    /// How long a tree is kept.
    pub fn span(&self) -> Duration {
        Duration::from_millis(self.keep_ms)
    }
}

/// Where trees of runs go before they are deleted. What it has taken must be durable when it
/// answers; a tree can come twice, if the process died before it was deleted.
pub trait Archive: Send + Sync {
    /// Takes the tree of a root.
    fn take<'a>(
        &'a self,
        store: &'a Arc<dyn Store>,
        root: RunKey,
    ) -> BoxFuture<'a, Result<(), Error>>;
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many trees were deleted.
    pub trees: u64,
    /// How many runs they had.
    pub runs: u64,
    /// How many trees were due, and stay because something of them is still wanted.
    pub kept: u64,
}

impl Engine {
    /// Sets what becomes of the ended runs of a workflow; `None` keeps them for ever.
    pub async fn set_retention(
        &self,
        workflow: impl AsRef<str>,
        retention: Option<&Retention>,
    ) -> Result<(), Error> {
        let workflow = WorkflowName::with_limits(workflow.as_ref(), &self.inner.options.limits)?;
        let name = name_of(&self.namespace, &workflow);
        let value = retention.map(Body::of).transpose()?;
        self.inner.store.put_setting(name, value).await?;
        self.inner.policy_set.notify_one();
        Ok(())
    }

    /// The policies of the engine's namespace, by workflow.
    pub async fn retentions(&self) -> Result<Vec<(WorkflowName, Retention)>, Error> {
        let own = &self.namespace;
        let all = self.inner.policies().await?.into_iter();
        let own = all.filter(|policy| policy.namespace == *own);
        Ok(own.map(|policy| (policy.workflow, policy.retention)).collect())
    }

    /// Deletes what is due by the policies of the store. The engine does so by itself every
    /// `sweep_every`; hosts that drive it themselves call this.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        self.inner.sweep().await
    }
}

/// A policy as it stands in the store.
pub(crate) struct Policy {
    namespace: Namespace,
    workflow: WorkflowName,
    retention: Retention,
}

fn name_of(namespace: &Namespace, workflow: &WorkflowName) -> SettingName {
    SettingName::new(KIND, &format!("{namespace}/{workflow}"))
}

impl Inner {
    pub(crate) async fn policies(&self) -> Result<Vec<Policy>, Error> {
        let limit = self.options.limits.page_rows_max;
        let mut policies = Vec::new();
        let mut after = None;
        loop {
            let query = Query::Settings { kind: KIND.into(), after, limit };
            let page = self.store.list(query).await?.settings()?;
            after = page.last().map(|setting| Arc::clone(&setting.name.name));
            let last = page.len() < limit as usize;
            for setting in page {
                let Some((namespace, workflow)) = setting.name.name.split_once('/') else {
                    continue;
                };
                policies.push(Policy {
                    namespace: Namespace::from_stored(namespace),
                    workflow: WorkflowName::from_stored(workflow),
                    retention: setting.value.read()?,
                });
            }
            if last {
                return Ok(policies);
            }
        }
    }

    async fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        for policy in self.policies().await? {
            self.sweep_workflow(&policy, &mut swept).await?;
        }
        self.metrics.runs_deleted.add(swept.runs);
        Ok(swept)
    }

    async fn sweep_workflow(&self, policy: &Policy, swept: &mut Swept) -> Result<(), Error> {
        let retention = &policy.retention;
        if retention.archive && self.options.archive.is_none() {
            return Ok(());
        }
        let mut after = None;
        loop {
            let due = Query::Expired {
                namespace: policy.namespace.clone(),
                workflow: policy.workflow.clone(),
                ended_for: retention.span(),
                after,
                limit: PAGE,
            };
            let page = self.store.list(due).await?.runs()?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.run_key);
            let mut roots = Vec::new();
            for run in &page {
                if let Some(archive) = self.options.archive.as_ref().filter(|_| retention.archive) {
                    // What is not deleted now would be written out again by the next sweep.
                    if !self.is_over(&policy.namespace, run.run_key).await? {
                        swept.kept += 1;
                        continue;
                    }
                    archive.take(&self.store, run.run_key).await?;
                }
                roots.push(run.run_key);
            }
            let (asked, keep_ledger) = (roots.len() as u64, retention.keep_ledger);
            let request = DeleteTrees { roots, ended_for: retention.span(), keep_ledger };
            let deleted = self.store.delete_trees(request).await?;
            swept.trees += deleted.roots.len() as u64;
            swept.runs += deleted.runs;
            swept.kept += asked - deleted.roots.len() as u64;
        }
    }

    // Whether every run of a tree has ended and no task works for any of them.
    async fn is_over(&self, namespace: &Namespace, root: RunKey) -> Result<bool, Error> {
        let limit = self.options.limits.page_rows_max;
        let mut after = None;
        loop {
            let page = self.store.list(Query::Tree { root, after, limit }).await?.runs()?;
            after = page.last().map(|run| run.run_key);
            for run in &page {
                let tasks = Query::Tasks(TasksQuery {
                    run_key: Some(run.run_key),
                    ..TasksQuery::all(namespace.clone(), 1)
                });
                if !run.status.is_ended() || !self.store.list(tasks).await?.tasks()?.is_empty() {
                    return Ok(false);
                }
            }
            if page.len() < limit as usize {
                return Ok(true);
            }
        }
    }
}

/// Sweeps now and then, until the engine stops. An engine that has its store for itself does not
/// look as long as nobody has set a policy.
pub(crate) async fn serve(inner: Arc<Inner>, has_policies: bool) {
    let every = inner.options.sweep_every;
    let mut wait = (has_policies || inner.options.shared).then_some(every.min(FIRST));
    loop {
        until_due(&inner, wait).await;
        if inner.is_stopped() {
            return;
        }
        match inner.sweep().await {
            Ok(swept) if swept.trees > 0 => {
                tracing::info!(trees = swept.trees, runs = swept.runs, "deleted what was due");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a sweep stopped early; the next one goes on"),
        }
        wait = Some(every);
    }
}

// Until it is time, a policy was set, or the engine stops.
async fn until_due(inner: &Inner, wait: Option<Duration>) {
    let due = async {
        match wait {
            Some(wait) => inner.env.sleep(wait).await,
            None => std::future::pending().await,
        }
    };
    let (due, set) = (std::pin::pin!(due), std::pin::pin!(inner.policy_set.notified()));
    let next = futures::future::select(due, set);
    futures::future::select(next, std::pin::pin!(inner.stopped())).await;
}
