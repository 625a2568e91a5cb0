//! Catches panics of the store's own loops and tasks, counts them, and starts the loop again.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;

/// The pause before a loop that panicked starts again.
const PAUSE: Duration = Duration::from_millis(100);

/// The number of panics since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Panics(AtomicU64);

impl Panics {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs a future. Returns `None` if it panics.
    pub(crate) async fn catch<T>(&self, what: &str, work: impl Future<Output = T>) -> Option<T> {
        let done = AssertUnwindSafe(work).catch_unwind().await.ok();
        if done.is_none() {
            self.0.fetch_add(1, Ordering::Relaxed);
            tracing::error!("{what} of the PostgreSQL store panicked; the store goes on");
        }
        done
    }

    /// Runs a loop until it ends, again after each panic.
    pub(crate) async fn restart<F: Future<Output = ()>>(&self, what: &str, work: impl Fn() -> F) {
        while self.catch(what, work()).await.is_none() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_that_panics_starts_again() {
        let panics = Panics::default();
        let starts = AtomicU64::new(0);
        let work = || async {
            assert!(starts.fetch_add(1, Ordering::Relaxed) > 1, "injected");
        };
        panics.restart("a test loop", work).await;
        assert_eq!((starts.load(Ordering::Relaxed), panics.count()), (3, 2));
    }
}
