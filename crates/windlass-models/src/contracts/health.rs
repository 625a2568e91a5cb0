//! The health of documents: how many wait, which are stuck, and how long nodes take.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use windlass_contracts::types::NodeType;
use windlass_engine::{ThreadPool, Why};
use windlass_kernel::{
    Error, MessageKind, Order, Query, Run, RunStatus, RunsQuery, Subject, Timestamp,
};

use super::handle::Contracts;
use super::names::{DOCUMENT_WRITTEN, WORKFLOW_PREFIX, workflow_of};
use super::operations::Position;

/// The most stuck documents of one type and status that are listed.
pub const STUCK_MAX: u32 = 100;
/// The most runs of one type and status that are read to find them.
const SEARCHED_MAX: u32 = 2_000;
/// A run that should go on and has not for so long counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(5 * 60);
/// Upper bounds of durations in milliseconds. The last bucket has no bound.
const BOUNDS_MS: [u64; 15] = [
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    500,
    1_000,
    10_000,
    60_000,
    600_000,
    3_600_000,
    86_400_000,
    u64::MAX,
];

/// Durations in buckets. A quantile is the upper bound of its bucket.
#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u64; BOUNDS_MS.len()],
    count: u64,
}

impl Histogram {
    fn add(&mut self, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let at = BOUNDS_MS.partition_point(|bound| *bound < ms);
        self.buckets[at.min(BOUNDS_MS.len() - 1)] += 1;
        self.count += 1;
    }

    /// The bound below which this share of the durations is; nothing without durations.
    fn quantile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        self.buckets.iter().zip(BOUNDS_MS).find_map(|(count, bound)| {
            seen += count;
            (self.count > 0 && seen >= rank).then_some(bound)
        })
    }
}

/// The most durations of advances that are remembered.
const ADVANCES_MAX: usize = 4_096;

/// The durations of the last advances, in microseconds.
#[derive(Debug, Default)]
struct Recent {
    us: VecDeque<u64>,
    count: u64,
}

impl Recent {
    fn add(&mut self, took: Duration) {
        if self.us.len() == ADVANCES_MAX {
            self.us.pop_front();
        }
        self.us.push_back(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.count += 1;
    }

    /// The time that this share of them took at most, in milliseconds.
    fn quantile_ms(&self, percent: usize) -> Option<f64> {
        let mut sorted: Vec<u64> = self.us.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).map(|us| *us as f64 / 1_000.0)
    }
}

/// The figures of one process since it started.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    advances: Recent,
    lost: u64,
    nodes: BTreeMap<NodeType, Histogram>,
}

impl Figures {
    /// An advance has committed.
    pub(crate) fn advanced(&self, took: Duration) {
        self.inner.lock().advances.add(took);
    }

    /// A commit has lost against another writer of the document and is decided again.
    pub(crate) fn lost(&self) {
        self.inner.lock().lost += 1;
    }

    fn read(&self) -> (Vec<NodeDurations>, (u64, Option<f64>), u64) {
        let inner = self.inner.lock();
        let nodes = inner.nodes.iter().map(|(node_type, durations)| NodeDurations {
            node_type: *node_type,
            count: durations.count,
            p50_ms: durations.quantile(50).unwrap_or_default(),
            p95_ms: durations.quantile(95).unwrap_or_default(),
        });
        let advances = (inner.advances.count, inner.advances.quantile_ms(95));
        (nodes.collect(), advances, inner.lost)
    }

    /// A node has ended.
    pub(crate) fn ended(&self, node_type: NodeType, took: Duration) {
        self.inner.lock().nodes.entry(node_type).or_default().add(took);
    }
}

/// The health of the documents of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Documents whose runs have not ended.
    pub pending: u64,
    /// How long ago the oldest of them began.
    pub oldest_pending_seconds: Option<u64>,
    /// Runs that have failed and were not retried, all generations.
    pub errored: u64,
    /// Documents that need an operator, at most [`STUCK_MAX`] of each type.
    pub stuck: u64,
    /// Effects that were given up and not requeued, of all workflows.
    pub dead_effects: u64,
    /// Advances of this process since its start.
    pub advances: u64,
    /// The time that 95 of 100 of the last 4,096 advances of this process took at most, from reading the document
    /// to the commit.
    pub advance_p95_ms: Option<f64>,
    /// How often an advance of this process was decided again, because another writer was first.
    pub retries: u64,
    /// Durations by node type in this process.
    pub nodes: Vec<NodeDurations>,
}

/// How long the nodes of a type took.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDurations {
    /// The type.
    pub node_type: NodeType,
    /// How many have ended.
    pub count: u64,
    /// The time that half of them took at most.
    pub p50_ms: u64,
    /// The time that 95 of 100 took at most.
    pub p95_ms: u64,
}

/// A document that makes no progress without an operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stuck {
    /// The namespace of the tenant.
    pub namespace: String,
    /// The document type.
    #[serde(rename = "type")]
    pub entity_type: String,
    /// The id of the document.
    pub id: String,
    /// The lifecycle state.
    pub state: String,
    /// The status of its run.
    pub run_status: String,
    /// Why, as a sentence.
    pub reason: String,
}

impl Contracts {
    /// The health of the documents of this tenant.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{} runs wait", contracts.health().await?.pending);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn health(&self) -> Result<Health, Error> {
        let store = self.engine.store();
        let stats = store.namespace_stats(self.engine.namespace().clone()).await?;
        let of = |status: RunStatus| -> u64 {
            let own = stats.runs.iter().filter(|count| {
                count.status == status && count.workflow.as_str().starts_with(WORKFLOW_PREFIX)
            });
            own.map(|count| count.count).sum()
        };
        let mut oldest: Option<Timestamp> = None;
        for head in self.types().await? {
            for status in [RunStatus::Active, RunStatus::Waiting, RunStatus::Paused] {
                let query = self.runs_of(&head.entity_type, status, 1)?;
                let first = self.engine.store().list(Query::Runs(query)).await?.runs()?;
                let first = first.first().map(|run| run.created_at);
                oldest = oldest.into_iter().chain(first).min();
            }
        }
        let age = oldest.map(|at| stats.now.since(at).as_secs());
        let (nodes, (advances, advance_p95_ms), retries) = self.shared.figures.read();
        Ok(Health {
            pending: of(RunStatus::Active) + of(RunStatus::Waiting) + of(RunStatus::Paused),
            oldest_pending_seconds: age,
            errored: of(RunStatus::Errored),
            stuck: self.stuck().await?.len() as u64,
            dead_effects: stats.letters_open.count,
            advances,
            advance_p95_ms,
            retries,
            nodes,
        })
    }

    /// Runs of a type with a status, the oldest first.
    fn runs_of(
        &self,
        entity_type: &str,
        status: RunStatus,
        limit: u32,
    ) -> Result<RunsQuery, Error> {
        Ok(RunsQuery {
            workflow: Some(workflow_of(entity_type)?),
            status: Some(status),
            order: Order::Ascending,
            ..RunsQuery::all(self.engine.namespace().clone(), limit)
        })
    }

    /// The documents that make no progress without an operator: their run has failed, was terminated before
    /// the document reached a final state, cannot be continued by this build, or has not moved for
    /// [`STUCK_AFTER`] although nothing holds it up. At most [`STUCK_MAX`] of each type and status are listed.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for stuck in contracts.stuck().await? {
    ///     println!("{}/{}: {}", stuck.entity_type, stuck.id, stuck.reason);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn stuck(&self) -> Result<Vec<Stuck>, Error> {
        let mut found = Vec::new();
        for head in self.types().await? {
            for status in [RunStatus::Errored, RunStatus::Terminated, RunStatus::Active] {
                found.extend(self.stuck_of(&head.entity_type, status).await?);
            }
        }
        Ok(found)
    }

    /// As [`Contracts::stuck`], of all tenants that have documents.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for stuck in contracts.stuck_of_all_tenants().await? {
    ///     println!("{}: {}/{}", stuck.namespace, stuck.entity_type, stuck.id);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn stuck_of_all_tenants(&self) -> Result<Vec<Stuck>, Error> {
        let mut found = Vec::new();
        for tenant in self.tenants().await? {
            found.extend(self.in_namespace(tenant).stuck().await?);
        }
        Ok(found)
    }

    async fn stuck_of(&self, entity_type: &str, status: RunStatus) -> Result<Vec<Stuck>, Error> {
        // The generations before the newest one are not stuck. A new failure is found however many there are.
        let mut query = self.runs_of(entity_type, status, STUCK_MAX)?;
        if status.is_ended() {
            query.order = Order::Descending;
        }
        let (mut found, mut searched) = (Vec::new(), 0);
        loop {
            let page = self.engine.store().list(Query::Runs(query.clone())).await?.runs()?;
            for run in &page {
                found.extend(self.stuck_reason(entity_type, run).await?);
            }
            searched += STUCK_MAX;
            let is_last = page.len() < STUCK_MAX as usize || searched >= SEARCHED_MAX;
            if is_last || found.len() >= STUCK_MAX as usize {
                found.truncate(STUCK_MAX as usize);
                return Ok(found);
            }
            query.after = page.last().map(|run| run.run_key);
        }
    }

    async fn stuck_reason(&self, entity_type: &str, run: &Run) -> Result<Option<Stuck>, Error> {
        let id = run.id.as_str();
        if !self.engine.is_newest(run).await? {
            return Ok(None);
        }
        let namespace = self.engine.namespace();
        let Some(document) = self.shared.document(namespace, entity_type, id).await? else {
            return Ok(None);
        };
        let reason = match run.status {
            RunStatus::Errored => {
                let error: Option<serde_json::Value> =
                    run.error.as_ref().and_then(|body| body.read().ok());
                let text = |name: &str| {
                    let text = error.as_ref().and_then(|error| error[name].as_str());
                    text.unwrap_or_default().to_owned()
                };
                format!("the run failed with {}: {}", text("name"), text("message"))
            }
            RunStatus::Terminated if document.row.is_last_run(run.run_key) => {
                "the run was terminated before the document reached a final state".to_owned()
            }
            RunStatus::Active => {
                let now = self.engine.clock().now();
                if let Some(blocked) = self.engine.blocked(run).await? {
                    format!("the run is blocked by {}: {}", blocked.code, blocked.reason)
                } else if now.since(run.updated_at) >= STUCK_AFTER {
                    let why = self.engine.why(run.run_key).await?;
                    let held_up = why.reasons.iter().find(|reason| reason.code != Why::Held);
                    match held_up {
                        Some(reason) => reason.text.clone(),
                        None => return Ok(None),
                    }
                } else {
                    return Ok(None);
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(Stuck {
            namespace: namespace.to_string(),
            entity_type: entity_type.to_owned(),
            id: id.to_owned(),
            state: document.row.state,
            run_status: run.status.to_string(),
            reason,
        }))
    }

    /// Makes the run of a document read the document again: wakes it with a message, and makes a blocked run
    /// try again now. A failed run is retried.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for stuck in contracts.stuck().await? {
    ///     contracts.advance_again(&stuck.entity_type, &stuck.id).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::RunNotFound`] if the document has no run, or the code of the refused retry.
    pub async fn advance_again(&self, entity_type: &str, id: &str) -> Result<Position, Error> {
        let run = self.run(entity_type, id).await?;
        match run.status {
            RunStatus::Errored => drop(self.engine.retry(run.run_key, None).await?),
            RunStatus::Terminated => drop(self.engine.restart(run.run_key, None).await?),
            RunStatus::Complete => {}
            _ => {
                self.engine.wake_run(&run).await?;
                let (kind, name) = (MessageKind::Event, DOCUMENT_WRITTEN);
                let wake = self.engine.wake_message(run.run_key, kind, name, None)?;
                let sent = self.engine.commit_with(&[], vec![wake]).await;
                sent.map_err(|error| windlass_engine::refusal(&error))?;
            }
        }
        self.position(entity_type, id).await
    }

    /// Ends the run of a document at once. The document keeps its content and state;
    /// [`Contracts::advance_again`] begins a run at that state, which passes every gate behind it.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// contracts.force_fail("invoice", "i-1", &dana, "a test document").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::RunNotFound`] if the document has no run; the run has ended already.
    pub async fn force_fail(
        &self,
        entity_type: &str,
        id: &str,
        by: &Subject,
        reason: &str,
    ) -> Result<Position, Error> {
        super::documents::check_reason(Some(reason))?;
        let run = self.run(entity_type, id).await?;
        self.engine.terminate(run.run_key, Some(reason), Some(by.actor())).await?;
        self.withdraw_ended(entity_type, id).await?;
        self.position(entity_type, id).await
    }

    /// Looks for stuck documents of all tenants from now on and warns about each once. The task ends with the
    /// engine.
    pub(crate) fn watch_stuck(&self, every: Duration) {
        let (env, shared) = (Arc::clone(self.engine.env()), Arc::downgrade(&self.shared));
        let engine = self.engine.downgrade();
        let sleep = Arc::clone(&env);
        let task = async move {
            let mut warned = std::collections::BTreeSet::new();
            loop {
                sleep.sleep(every).await;
                let (Some(engine), Some(shared)) = (engine.upgrade(), shared.upgrade()) else {
                    return;
                };
                if engine.is_stopping() {
                    return;
                }
                let found = match Self::new(engine, shared).stuck_of_all_tenants().await {
                    Ok(found) => found,
                    Err(error) => {
                        tracing::warn!(%error, "failed to look for stuck documents; retrying");
                        continue;
                    }
                };
                let name = |one: &Stuck| {
                    let Stuck { namespace, entity_type, id, .. } = one;
                    (namespace.clone(), format!("{entity_type}/{id}"))
                };
                for (stuck, name) in found.iter().map(|one| (one, name(one))) {
                    if !warned.contains(&name) {
                        let (namespace, document) = name;
                        let reason = &stuck.reason;
                        tracing::warn!(%namespace, %document, %reason, "a document is stuck; correct the cause, then advance it again");
                    }
                }
                warned = found.iter().map(name).collect();
            }
        };
        env.spawn(ThreadPool::Service, Box::pin(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_advances_are_exact() {
        let mut recent = Recent::default();
        assert_eq!(recent.quantile_ms(95), None);
        (0..10).for_each(|_| recent.add(Duration::from_secs(1)));
        for us in 1..=ADVANCES_MAX as u64 {
            recent.add(Duration::from_micros(us));
        }
        assert_eq!((recent.count, recent.us.len()), (ADVANCES_MAX as u64 + 10, ADVANCES_MAX));
        assert_eq!(recent.quantile_ms(95), Some(3.892));
        assert_eq!(recent.quantile_ms(100), Some(4.096));
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut durations = Histogram::default();
        assert_eq!(durations.quantile(95), None);
        for _ in 0..95 {
            durations.add(Duration::from_micros(900));
        }
        for _ in 0..5 {
            durations.add(Duration::from_millis(70));
        }
        assert_eq!((durations.quantile(50), durations.quantile(95)), (Some(1), Some(1)));
        assert_eq!(durations.quantile(96), Some(100));
        durations.add(Duration::from_secs(1_000_000));
        assert_eq!(durations.quantile(100), Some(u64::MAX));
    }
}
