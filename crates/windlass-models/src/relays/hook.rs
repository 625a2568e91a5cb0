//! Terminal hooks: who is told how a run ended.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use windlass_kernel::retry::RetryLimit;
use windlass_kernel::{Error, RetryPolicy, RunKey, Timestamp};

use super::outcome::RelayError;

/// Is told how each run ended: at least once, under a stable id, after the commit that ended it.
///
/// The commit that ends a run enqueues the call, whoever sends it and on whatever path. It is made
/// again with backoff until it succeeds; if it never does, it is a dead letter.
pub trait TerminalHook: Send + Sync + 'static {
    /// Tells of one end. Called again with the same [`RunOutcome::id`] if it fails, or if the
    /// process ends before it is known to have succeeded.
    ///
    /// # Errors
    ///
    /// A transient error is tried again; a permanent one becomes a dead letter.
    fn on_termination(
        &self,
        outcome: &RunOutcome,
    ) -> impl Future<Output = Result<(), HookError>> + Send;

    /// Whether the end of a run with these headers is to be told; asked once, when it is created. If
    /// not, nothing is enqueued. An error refuses the run. Of a run that a process has created which
    /// does not serve the relay it is asked when the end is told, and an error is a dead letter.
    ///
    /// # Errors
    ///
    /// The headers are not valid; the start of the run is refused.
    fn wants(&self, headers: &BTreeMap<String, String>) -> Result<bool, Error> {
        let _ = headers;
        Ok(true)
    }

    /// Whether it may want to hear of any end at all. A process that does not serve the relay and
    /// starts a run of it cannot ask [`TerminalHook::wants`]; so, unless this says no, the end is
    /// enqueued, and `wants` is asked when it is told.
    fn listens(&self) -> bool {
        true
    }

    /// Whether this process can tell of ends at all. If not, those that are to be told are left to
    /// processes that can, and no attempt is spent.
    fn can_tell(&self) -> bool {
        true
    }

    /// How often and after how long a failed call is made again. Kept with each run when it is
    /// created. Default: ten attempts, 1 s doubling up to an hour.
    fn retry(&self) -> RetryPolicy {
        RetryPolicy::exponential(RetryLimit::Times(9), Duration::from_secs(1))
            .with_max_delay(Duration::from_secs(60 * 60))
            .with_jitter(0.1)
    }

    /// How long one call may take. Default one minute.
    fn timeout(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// Tells nobody, and costs nothing: no task is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopTerminalHook;

impl TerminalHook for NoopTerminalHook {
    async fn on_termination(&self, _: &RunOutcome) -> Result<(), HookError> {
        Ok(())
    }

    fn wants(&self, _: &BTreeMap<String, String>) -> Result<bool, Error> {
        Ok(false)
    }

    fn listens(&self) -> bool {
        false
    }
}

/// How a run ended, as hooks are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// The same for every call about this end: receivers deduplicate by it.
    pub id: String,
    /// The run.
    pub run_id: String,
    /// The generation of the run that ended: a run that is retried ends once more.
    pub run_key: RunKey,
    /// Which generation that is, from 0.
    pub generation: u32,
    /// The relay.
    pub workflow: String,
    /// The tenant.
    pub namespace: String,
    /// How it ended.
    pub status: TerminalStatus,
    /// The result, if it succeeded.
    pub result: Option<Bytes>,
    /// Why it failed or was cancelled.
    pub error: Option<String>,
    /// The submitter's headers.
    pub headers: BTreeMap<String, String>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Which call about this end it is, from 1.
    pub attempt: u32,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminalStatus {
    /// With a result.
    Succeeded,
    /// By the runner's verdict, or because a step could not be run.
    Failed,
    /// By the runner's verdict, or by somebody's hand.
    Cancelled,
}

impl TerminalStatus {
    /// The word for it.
    ///
    /// ```
    /// use windlass::relays::TerminalStatus;
    ///
    /// assert_eq!(TerminalStatus::Cancelled.as_str(), "cancelled");
    /// ```
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for TerminalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a hook could not tell: as for a step, another call can help or not.
pub type HookError = RelayError;
