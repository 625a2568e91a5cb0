//! Sweeps up behind the claims.
//!
//! A claimed task leaves its entry at the head of the index of ready tasks. PostgreSQL marks such an
//! entry as dead, but its page stays in the chain until a VACUUM, and every claim walks that chain:
//! after a few hundred thousand claims it is half of their time. Autovacuum comes by once a minute at
//! best, which is too late for a busy queue. So whoever claims much also has it swept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use windlass_kernel::Error;

use crate::error::of_call;
use crate::store::Shared;

/// Claimed tasks after which a sweep is worth its while.
const CLAIMED_MIN: u64 = 20_000;

/// A sweep reads all indexes of the table from end to end, so it takes longer the more tasks sleep.
/// It is followed by a rest of so many times its own length.
const REST_FACTOR: u32 = 8;

/// The rest after a sweep that failed, or that the server does not let this user do.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(600);

// Another sweep of the same table, autovacuum's or another process's, is as good: do not wait for
// it. The end of the table is not cut off, because that would lock out everybody else.
pub(super) const SWEEP: &str =
    "VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF, PROCESS_TOAST OFF) @schema@.tasks";

/// How much was claimed since the last sweep of this process.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    claimed: AtomicU64,
    under_way: AtomicBool,
    rests_until: Mutex<Option<Instant>>,
}

impl Sweeper {
    // Whether the caller is the one to begin a sweep now.
    fn is_due(&self, count: u64) -> bool {
        let claimed = self.claimed.fetch_add(count, Ordering::Relaxed) + count;
        let rests = || {
            let until = *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
            until.is_some_and(|until| Instant::now() < until)
        };
        let begins =
            claimed >= CLAIMED_MIN && !rests() && !self.under_way.swap(true, Ordering::AcqRel);
        if begins {
            self.claimed.store(0, Ordering::Relaxed);
        }
        begins
    }

    fn done(&self, rest: Duration) {
        *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Instant::now() + rest);
        self.under_way.store(false, Ordering::Release);
    }
}

/// Counts claimed tasks, and begins a sweep in the background when it is due.
pub(crate) fn claimed(shared: &Arc<Shared>, count: usize) {
    if !shared.sweeper.is_due(count as u64) {
        return;
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let started = Instant::now();
        let rest = match sweep(&shared).await {
            Ok(()) => started.elapsed() * REST_FACTOR,
            Err(error) => {
                tracing::debug!(%error, "a sweep failed");
                REST_AFTER_FAILURE
            }
        };
        shared.sweeper.done(rest);
    });
}

// Over a connection of its own, for it may take longer than a call may.
async fn sweep(shared: &Shared) -> Result<(), Error> {
    let client = shared.connector.client().await?;
    client.batch_execute("SET statement_timeout = 0").await.map_err(of_call)?;
    client.batch_execute(&shared.sql(SWEEP)).await.map_err(of_call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sweep_at_a_time_and_a_rest_after_it() {
        let sweeper = Sweeper::default();
        assert!(!sweeper.is_due(CLAIMED_MIN - 1));
        assert!(sweeper.is_due(1));
        assert!(!sweeper.is_due(CLAIMED_MIN), "one is under way");
        sweeper.done(Duration::from_secs(3600));
        assert!(!sweeper.is_due(CLAIMED_MIN), "it rests");
        sweeper.done(Duration::ZERO);
        assert!(sweeper.is_due(0), "what was claimed meanwhile counts");
    }
}
