//! Terminal hooks: calls at the end of runs.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use windlass_kernel::retry::RetryLimit;
use windlass_kernel::{Error, RetryPolicy, RunKey, Timestamp};

use super::outcome::RelayError;

/// The engine calls it at the end of each run: at least once, with a stable id, after the commit that ended
/// the run.
///
/// Every commit that ends a run enqueues the call, in any process. The engine repeats a failed call with
/// backoff until it succeeds; if the retries are used up, the call becomes a dead letter.
pub trait TerminalHook: Send + Sync + 'static {
    /// Handles the end of one run. The engine calls it again with the same [`RunOutcome::id`] if it fails, or if
    /// the process ends before its success is recorded.
    ///
    /// # Errors
    ///
    /// A transient error is tried again; a permanent one becomes a dead letter.
    fn on_termination(
        &self,
        outcome: &RunOutcome,
    ) -> impl Future<Output = Result<(), HookError>> + Send;

    /// Whether the hook handles the end of a run with these headers. The engine asks once, when the run is
    /// created. If not, it enqueues no call; an error refuses the run. If a process that does not serve the
    /// relay created the run, the engine asks before the call, and an error becomes a dead letter.
    ///
    /// # Errors
    ///
    /// The headers are not valid; the start of the run is refused.
    fn wants(&self, headers: &BTreeMap<String, String>) -> Result<bool, Error> {
        let _ = headers;
        Ok(true)
    }

    /// Whether the hook may handle any end at all. A process that does not serve the relay and
    /// starts a run of it cannot ask [`TerminalHook::wants`]; it enqueues the call unless this returns
    /// `false`, and `wants` is asked before the call.
    fn listens(&self) -> bool {
        true
    }

    /// Whether this process can make the calls. If not, it leaves them to other processes, and no attempt is
    /// used up.
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

/// How a run ended, as hooks get it.
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

/// Why a call of a hook failed, and whether another call can help.
pub type HookError = RelayError;
