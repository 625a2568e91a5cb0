//! Counters of what the engine did. They can be lost without loss of state.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only rises.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Reads it.
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
    runs_created = "windlass.workflow.started",
    /// Runs that ended with an output here.
    runs_completed = "windlass.workflow.completed",
    /// Runs that ended with an error here.
    runs_failed = "windlass.workflow.failed",
    /// Runs that were terminated here.
    runs_terminated = "windlass.workflow.terminated",
    /// Runs that retention deleted here.
    runs_deleted = "windlass.workflow.deleted",
    /// Turns taken.
    turns = "windlass.turn.taken",
    /// Turns that were lost to somebody else.
    turns_lost = "windlass.turn.lost",
    /// Turns that this build could not carry on.
    turns_blocked = "windlass.turn.blocked",
    /// Runs opened from the store rather than from memory.
    replays = "windlass.turn.replayed",
    /// Waiting runs dropped from memory for want of room.
    evictions = "windlass.turn.evicted",
    /// Commits sent by turns.
    commits = "windlass.commit.sent",
    /// Commits sent again because an answer was lost or the store was away.
    commits_resent = "windlass.commit.resent",
    /// Claims asked of the store.
    claims = "windlass.claim.asked",
    /// Promotions asked of the store.
    promotions = "windlass.promote.asked",
    /// Renewals of the worker's lease.
    renewals = "windlass.worker.renewed",
    /// Step attempts begun.
    steps_begun = "windlass.step.started",
    /// Steps that ended with a result.
    steps_completed = "windlass.step.completed",
    /// Steps that failed for good.
    steps_failed = "windlass.step.failed",
    /// Steps that ended because their run was cancelled, by themselves or from outside.
    steps_cancelled = "windlass.step.cancelled",
    /// Step attempts that failed and are tried again.
    steps_retried = "windlass.step.retried",
    /// Tasks begun.
    tasks_begun = "windlass.activity.started",
    /// Tasks that ended with a result.
    tasks_completed = "windlass.activity.completed",
    /// Task attempts that failed.
    tasks_failed = "windlass.activity.failed",
    /// Dead letters written: tasks and steps that were given up.
    tasks_dead = "windlass.dlq.added",
    /// Webhooks that their receivers took.
    webhooks_delivered = "windlass.webhook.delivered",
    /// Attempts to deliver a webhook that failed.
    webhooks_failed = "windlass.webhook.failed",
    /// Endpoints that said that they are gone, and were disabled.
    webhooks_disabled = "windlass.webhook.disabled",
);
