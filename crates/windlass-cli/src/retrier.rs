//! Retries of requests to a server that is unreachable or asks the client to wait.

use std::time::{Duration, Instant};

use crate::exit::Failure;
use crate::output::note;

/// How long a server may be unreachable before the command fails.
const UNAVAILABLE_MAX: Duration = Duration::from_secs(60);
/// The delay between attempts, unless the server sends `Retry-After`.
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// Waits between attempts after transient failures, such as a server restart.
pub(crate) struct Retrier {
    unavailable_max: Duration,
    /// When the server last answered.
    last_answer: Instant,
    /// The caller's deadline.
    deadline: Option<Instant>,
    warned: bool,
}

impl Retrier {
    /// Creates a retrier that stops waiting after `timeout`, if there is one.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        let now = Instant::now();
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        Self { unavailable_max: UNAVAILABLE_MAX, last_answer: now, deadline, warned: false }
    }

    #[cfg(test)]
    pub(crate) fn with_unavailable_max(unavailable_max: Duration) -> Self {
        Self { unavailable_max, ..Self::new(None) }
    }

    /// Records that the server answered.
    pub(crate) fn reset(&mut self) {
        self.last_answer = Instant::now();
        self.warned = false;
    }

    /// Waits for the next attempt, or returns the failure if a retry cannot help.
    pub(crate) async fn wait(&mut self, failure: Failure) -> Result<(), Failure> {
        let now = Instant::now();
        let Some(pause) = self.pause(&failure, now) else { return Err(failure) };
        if failure.retry_after.is_some() {
            // `Retry-After` proves that the server is reachable; the pause does not count as an
            // outage.
            self.last_answer = now + pause;
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Like [`Self::wait`], but prints a warning the first time.
    pub(crate) async fn wait_and_warn(&mut self, failure: Failure) -> Result<(), Failure> {
        if !self.warned && self.pause(&failure, Instant::now()).is_some() {
            note(&format!("{failure}; retrying"));
            self.warned = true;
        }
        self.wait(failure).await
    }

    fn pause(&self, failure: &Failure, now: Instant) -> Option<Duration> {
        if !failure.transient
            || now.saturating_duration_since(self.last_answer) >= self.unavailable_max
        {
            return None;
        }
        let pause = failure.retry_after.unwrap_or_default().max(RETRY_DELAY);
        // Limits the pause to a value that can be added to any `Instant`.
        let pause = pause.min(Duration::from_secs(86_400));
        Some(match self.deadline {
            Some(deadline) => pause.min(deadline.saturating_duration_since(now)),
            None => pause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_failures_are_retried_until_the_outage_limit() {
        let second = Duration::from_secs(1);
        let retrier = Retrier::new(Some(100 * second));
        let start = retrier.last_answer;
        let unavailable = || Failure::error("unavailable").transient();
        let busy = |seconds: u64| unavailable().retry_after(Some(Duration::from_secs(seconds)));
        for (failure, after, expect) in [
            (unavailable(), 0, Some(RETRY_DELAY)),
            (unavailable(), 59, Some(RETRY_DELAY)),
            (unavailable(), 60, None),
            (Failure::error("no"), 0, None),
            (busy(7), 1, Some(7 * second)),
            (busy(0), 1, Some(RETRY_DELAY)),
            // The caller's deadline limits the pause.
            (busy(3_600), 40, Some(60 * second)),
        ] {
            let pause = retrier.pause(&failure, start + after * second);
            assert_eq!(pause, expect, "{failure} after {after} s");
        }
    }
}
