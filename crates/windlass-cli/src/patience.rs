//! How long a server that is away, or asks to be left alone for a while, is waited for.

use std::time::{Duration, Instant};

use crate::exit::Failure;
use crate::output::note;

/// How long a server may be away before it is given up.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// When it is asked again, unless it said when itself.
const AGAIN_AFTER: Duration = Duration::from_millis(300);

/// Bears failures that may pass: a server that is being restarted comes back, and its runs with it.
pub(crate) struct Patience {
    away_max: Duration,
    /// The last time that a server was there.
    answered: Instant,
    /// When whoever waits gives up in any case.
    until: Option<Instant>,
    is_told: bool,
}

impl Patience {
    /// Patience that ends after `timeout`, if there is one.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        let now = Instant::now();
        let until = timeout.and_then(|timeout| now.checked_add(timeout));
        Self { away_max: AWAY_MAX, answered: now, until, is_told: false }
    }

    #[cfg(test)]
    pub(crate) fn of(away_max: Duration) -> Self {
        Self { away_max, ..Self::new(None) }
    }

    /// The server is there.
    pub(crate) fn answered(&mut self) {
        self.answered = Instant::now();
        self.is_told = false;
    }

    /// Waits until it is time to ask again, or gives the failure back if that is no use.
    pub(crate) async fn bear(&mut self, failure: Failure) -> Result<(), Failure> {
        let now = Instant::now();
        let Some(pause) = self.pause(&failure, now) else { return Err(failure) };
        if failure.retry_after.is_some() {
            // Whoever says when to come again is there, and is not away while that is waited for.
            self.answered = now + pause;
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// As [`Self::bear`], and says once that it does.
    pub(crate) async fn bear_aloud(&mut self, failure: Failure) -> Result<(), Failure> {
        if !self.is_told && self.pause(&failure, Instant::now()).is_some() {
            note(&format!("{failure}; trying again"));
            self.is_told = true;
        }
        self.bear(failure).await
    }

    fn pause(&self, failure: &Failure, now: Instant) -> Option<Duration> {
        if !failure.transient || now.saturating_duration_since(self.answered) >= self.away_max {
            return None;
        }
        let pause = failure.retry_after.unwrap_or_default().max(AGAIN_AFTER);
        // Longer than any terminal stays open, and short enough to be added to any time.
        let pause = pause.min(Duration::from_secs(86_400));
        Some(match self.until {
            Some(until) => pause.min(until.saturating_duration_since(now)),
            None => pause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_borne_until_the_server_was_away_too_long() {
        let second = Duration::from_secs(1);
        let patience = Patience::new(Some(100 * second));
        let start = patience.answered;
        let away = || Failure::error("away").transient();
        let busy = |seconds: u64| away().retry_after(Some(Duration::from_secs(seconds)));
        for (failure, after, expect) in [
            (away(), 0, Some(AGAIN_AFTER)),
            (away(), 59, Some(AGAIN_AFTER)),
            (away(), 60, None),
            (Failure::error("no"), 0, None),
            (busy(7), 1, Some(7 * second)),
            (busy(0), 1, Some(AGAIN_AFTER)),
            // Never longer than whoever waits has time.
            (busy(3_600), 40, Some(60 * second)),
        ] {
            let pause = patience.pause(&failure, start + after * second);
            assert_eq!(pause, expect, "{failure} after {after} s");
        }
    }
}
