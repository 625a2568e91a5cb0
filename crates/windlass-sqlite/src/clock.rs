//! The store's clock.

use std::sync::{Arc, Mutex, PoisonError};

use windlass_kernel::{Clock, Timestamp};

use crate::options::Options;

/// The clock corrects a difference to the system clock by at most this part of the time that
/// passes, so a wrong system clock moves timers by at most 5 %.
const CORRECTION: i64 = 20;

/// The store's clock: the last commit plus elapsed time. It neither stops nor jumps when somebody
/// sets the system clock. It approaches the system clock slowly instead.
pub(crate) struct StoreClock {
    system: Clock,
    elapsed: Clock,
    last: Mutex<Reading>,
}

#[derive(Clone, Copy)]
struct Reading {
    time: i64,
    elapsed: i64,
}

impl StoreClock {
    /// Starts at the system clock, but never before the last commit. Nobody knows how much time
    /// passed since that commit.
    pub(crate) fn new(options: &Options, last_commit: Timestamp) -> Arc<Self> {
        let system = options.clock.clone();
        let elapsed = options.elapsed.clone().unwrap_or_else(|| system.clone());
        let time = system().max(last_commit).as_micros();
        let last = Reading { time, elapsed: elapsed().as_micros() };
        Arc::new(Self { system, elapsed, last: Mutex::new(last) })
    }

    pub(crate) fn now(&self) -> Timestamp {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let system = (self.system)().as_micros();
        let elapsed = (self.elapsed)().as_micros();
        let passed = elapsed.saturating_sub(last.elapsed).max(0);
        let expected = last.time.saturating_add(passed);
        let most = passed / CORRECTION;
        let time = expected + system.saturating_sub(expected).clamp(-most, most);
        // A remainder below the divisor must not be lost when calls follow each other quickly.
        if passed >= CORRECTION {
            *last = Reading { time, elapsed: last.elapsed + passed };
        }
        Timestamp::from_micros(time)
    }
}
