//! Runs VACUUM on the table of tasks after many claims.
//!
//! A claimed task leaves its entry at the start of the index of ready tasks. PostgreSQL marks the
//! entry as dead, but its page stays in the chain until a VACUUM, and every claim reads that chain:
//! after a few hundred thousand claims this takes half of their time. Autovacuum runs once a minute
//! at best, which is too late for a busy queue. So a process that claims many tasks also runs
//! VACUUM.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use windlass_kernel::Error;

use crate::error::call_error;
use crate::store::Shared;

/// How many claimed tasks make a VACUUM worthwhile.
const CLAIMED_MIN: u64 = 20_000;

/// A VACUUM reads all indexes of the table, so it takes longer the more tasks there are. The pause
/// after it is this many times its duration.
const PAUSE_FACTOR: u32 = 8;

/// The pause after a VACUUM that failed or that the user may not run.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(600);

// If autovacuum or another process is already running VACUUM, skip it. The table is not truncated,
// because that would lock out all other sessions.
pub(super) const VACUUM: &str =
    "VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF, PROCESS_TOAST OFF) @schema@.tasks";

/// Counts claimed tasks since the last VACUUM of this process.
#[derive(Debug, Default)]
pub(crate) struct TaskVacuum {
    claimed: AtomicU64,
    is_running: AtomicBool,
    paused_until: Mutex<Option<Instant>>,
}

impl TaskVacuum {
    // Whether the caller must start a VACUUM now.
    fn is_due(&self, count: u64) -> bool {
        let claimed = self.claimed.fetch_add(count, Ordering::Relaxed) + count;
        let is_paused = || {
            let until = *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
            until.is_some_and(|until| Instant::now() < until)
        };
        let starts =
            claimed >= CLAIMED_MIN && !is_paused() && !self.is_running.swap(true, Ordering::AcqRel);
        if starts {
            self.claimed.store(0, Ordering::Relaxed);
        }
        starts
    }

    fn done(&self, pause: Duration) {
        *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Instant::now() + pause);
        self.is_running.store(false, Ordering::Release);
    }
}

/// Counts claimed tasks, and starts a VACUUM in the background when it is due.
pub(crate) fn count_claimed(shared: &Arc<Shared>, count: usize) {
    if !shared.task_vacuum.is_due(count as u64) {
        return;
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let started = Instant::now();
        let pause = match vacuum(&shared).await {
            Ok(()) => started.elapsed() * PAUSE_FACTOR,
            Err(error) => {
                tracing::debug!(%error, "VACUUM of the table of tasks failed");
                PAUSE_AFTER_FAILURE
            }
        };
        shared.task_vacuum.done(pause);
    });
}

// Uses its own connection, because it may take longer than the statement timeout of the pool.
async fn vacuum(shared: &Shared) -> Result<(), Error> {
    let client = shared.connector.client().await?;
    client.batch_execute("SET statement_timeout = 0").await.map_err(call_error)?;
    client.batch_execute(&shared.sql(VACUUM)).await.map_err(call_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vacuum_at_a_time_and_a_pause_after_it() {
        let vacuum = TaskVacuum::default();
        assert!(!vacuum.is_due(CLAIMED_MIN - 1));
        assert!(vacuum.is_due(1));
        assert!(!vacuum.is_due(CLAIMED_MIN), "one is running");
        vacuum.done(Duration::from_secs(3600));
        assert!(!vacuum.is_due(CLAIMED_MIN), "it is paused");
        vacuum.done(Duration::ZERO);
        assert!(vacuum.is_due(0), "claims during the pause count");
    }
}
