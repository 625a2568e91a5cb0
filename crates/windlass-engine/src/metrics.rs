//! Counters and durations of the engine. They live in memory only.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::telemetry::attribute;
use crate::workflow_counts::{WorkflowCounts, WorkflowFigures};
use windlass_kernel::{Namespace, WorkflowName};

/// A counter.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $field:ident = $name:literal),+ $(,)?) => {
        /// Counters of one engine, named as docs/metrics.md lists them.
        #[derive(Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $field: Counter,)+
            pub(crate) workflows: WorkflowCounts,
            recorder: OnceLock<Box<dyn Recorder>>,
        }

        impl Metrics {
            /// Every counter with its name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field.get())),+]
            }
        }
    };
}

metrics!(
    /// Runs created by this process.
    runs_created = "durable.workflows.started",
    /// Runs that ended with an output here.
    runs_completed = "durable.workflows.completed",
    /// Runs that ended with an error here.
    runs_failed = "durable.workflows.failed",
    /// Runs that were terminated here.
    runs_terminated = "durable.workflows.terminated",
    /// Runs that retention deleted here.
    runs_deleted = "durable.workflows.deleted",
    /// Panics in loops of the engine itself, which were restarted.
    service_panics = "windlass.service.panics",
    /// Turns taken.
    turns = "windlass.turn.taken",
    /// Turns that were lost to another worker.
    turns_lost = "windlass.turn.lost",
    /// Turns that this build could not carry on.
    turns_blocked = "windlass.turn.blocked",
    /// Turns that were claimed by the commit that settled an activity of their run.
    turns_completed_locally = "windlass.turn.at_hand",
    /// Runs that were loaded from the store because they were not cached.
    replays = "windlass.turn.replayed",
    /// Waiting runs that were evicted from the cache.
    evictions = "windlass.turn.evicted",
    /// Commits sent by turns.
    commits = "windlass.commit.sent",
    /// Commits that were sent again because an answer was lost or the store was unavailable.
    commits_resent = "windlass.commit.resent",
    /// Commits that the store could not write.
    commits_refused = "windlass.commit.refused",
    /// Claims sent to the store.
    claims = "windlass.claim.asked",
    /// Promotions sent to the store.
    promotions = "windlass.promote.asked",
    /// Renewals of the worker's lease.
    renewals = "windlass.worker.renewed",
    /// Step attempts begun.
    steps_begun = "windlass.step.started",
    /// Steps that ended with a result.
    steps_completed = "windlass.step.completed",
    /// Steps that failed for good.
    steps_failed = "windlass.step.failed",
    /// Steps that ended because their run was cancelled.
    steps_cancelled = "windlass.step.cancelled",
    /// Step attempts that failed and are retried.
    steps_retried = "windlass.step.retried",
    /// Activities and effects that commits of this process enqueued.
    tasks_scheduled = "durable.activities.scheduled",
    /// Attempts at activities and effects begun.
    tasks_begun = "durable.activities.started",
    /// Tasks that ended with a result.
    tasks_completed = "durable.activities.completed",
    /// Task attempts that failed.
    tasks_failed = "durable.activities.failed",
    /// Task attempts that failed and are retried.
    tasks_retried = "durable.activities.retried",
    /// Claimed tasks. A task that a process holds from the start is not claimed.
    tasks_claimed = "durable.tasks.claimed",
    /// Circuit breakers that were opened here.
    breaker_opens = "durable.circuit_breaker.opens",
    /// Dead letters that were requeued here.
    dead_requeued = "durable.dlq.requeued",
    /// Dead letters written.
    tasks_dead = "durable.dlq.added",
    /// Webhooks that their receivers accepted.
    webhooks_delivered = "windlass.webhook.delivered",
    /// Attempts to deliver a webhook that failed.
    webhooks_failed = "windlass.webhook.failed",
    /// Endpoints that answered 410 Gone and were disabled.
    webhooks_disabled = "windlass.webhook.disabled",
);

/// A duration that the engine measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// From a run's creation to its end by a turn.
    Workflow,
    /// One attempt at an activity or an effect.
    Activity,
    /// From when a task was due to when its attempt began.
    ScheduleToStart,
    /// One claim that asked for tasks.
    Claim,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Workflow, Self::Activity, Self::ScheduleToStart, Self::Claim];

    /// Its name, as docs/metrics.md lists it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Workflow => "durable.workflow.duration",
            Self::Activity => "durable.activity.duration",
            Self::ScheduleToStart => "durable.activity.schedule_to_start_latency",
            Self::Claim => "durable.tasks.claim_latency",
        }
    }

    /// The attribute that the durations are grouped by.
    pub const fn label(self) -> Option<&'static str> {
        match self {
            Self::Workflow => Some(attribute::WORKFLOW_TYPE),
            Self::Activity | Self::ScheduleToStart => Some(attribute::ACTIVITY_TYPE),
            Self::Claim => None,
        }
    }
}

/// A metric of a model, as static data. The engine only passes its values to the [`Recorder`].
#[derive(Debug)]
pub struct ModelMetric {
    /// Its name, as docs/metrics.md lists it.
    pub name: &'static str,
    /// Its unit, in the notation of UCUM.
    pub unit: &'static str,
    /// The upper limits of the buckets of a histogram; none for a counter.
    pub buckets: Option<&'static [f64]>,
}

/// Records durations, and the metrics of models.
pub trait Recorder: Send + Sync + 'static {
    /// Records a duration; `of` is the value of the attribute [`Measure::label`].
    fn record(&self, measure: Measure, of: &str, took: Duration);

    /// Records a value of a metric of a model: a sample of a histogram, or what is added to a counter. By default
    /// it is dropped.
    fn record_for_model(
        &self,
        metric: &'static ModelMetric,
        value: f64,
        attributes: &[(&'static str, &str)],
    ) {
        let _ = (metric, value, attributes);
    }
}

impl Metrics {
    /// Sets the recorder; there is none by default. Returns `false` if one is set already.
    pub fn set_recorder(&self, recorder: impl Recorder) -> bool {
        self.recorder.set(Box::new(recorder)).is_ok()
    }

    /// The figures of each workflow that this process has counted, at most
    /// [`COUNTED_WORKFLOWS_MAX`](crate::COUNTED_WORKFLOWS_MAX).
    pub fn workflows(&self) -> Vec<(Namespace, WorkflowName, WorkflowFigures)> {
        self.workflows.all()
    }

    /// Whether somebody listens to the metrics of models.
    pub fn is_recorded(&self) -> bool {
        self.recorder.get().is_some()
    }

    /// Records a value of a metric of a model.
    pub fn record(
        &self,
        metric: &'static ModelMetric,
        value: f64,
        attributes: &[(&'static str, &str)],
    ) {
        if let Some(recorder) = self.recorder.get() {
            recorder.record_for_model(metric, value, attributes);
        }
    }

    pub(crate) fn time(&self, measure: Measure, of: &str, took: Duration) {
        if let Some(recorder) = self.recorder.get() {
            recorder.record(measure, of, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_every_name() {
        let page = include_str!("../../../docs/metrics.md");
        let counters = Metrics::default().all().into_iter().map(|(name, _)| name);
        for name in counters.chain(Measure::ALL.map(Measure::name)) {
            assert!(page.contains(&format!("| `{name}` |")), "docs/metrics.md has no {name}");
        }
    }
}
