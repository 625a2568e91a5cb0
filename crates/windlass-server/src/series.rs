//! Counters of this process by minute, for the charts of the dashboard. They live in memory: a restart
//! begins anew, and other processes have their own.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use windlass::Timestamp;
use windlass_engine::Engine;

/// The number of minutes that are kept: a day.
pub(crate) const MINUTES_MAX: usize = 24 * 60;
const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// The names of the series, in the order of [`Minute::values`].
pub(crate) const NAMES: [&str; 7] = [
    "runsStarted",
    "runsCompleted",
    "runsFailed",
    "stepsCompleted",
    "stepsFailed",
    "tasksCompleted",
    "tasksFailed",
];

/// How much each counter grew within a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    /// Minutes since 1970.
    pub(crate) minute: i64,
    pub(crate) values: [u64; NAMES.len()],
}

/// The counters by minute.
pub(crate) struct Series {
    pub(crate) since: Timestamp,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    minutes: VecDeque<Minute>,
    last: [u64; NAMES.len()],
}

impl Kept {
    fn add(&mut self, minute: i64, counters: [u64; NAMES.len()]) {
        let mut grown = Minute { minute, values: [0; NAMES.len()] };
        for (value, (now, last)) in grown.values.iter_mut().zip(counters.iter().zip(&self.last)) {
            *value = now.saturating_sub(*last);
        }
        self.last = counters;
        match self.minutes.back_mut().filter(|last| last.minute >= minute) {
            Some(last) => {
                for (value, more) in last.values.iter_mut().zip(grown.values) {
                    *value += more;
                }
            }
            None => self.minutes.push_back(grown),
        }
        while self.minutes.len() > MINUTES_MAX {
            self.minutes.pop_front();
        }
    }
}

impl Series {
    /// Samples the counters of an engine until the series is dropped.
    pub(crate) fn of(engine: &Engine) -> Arc<Self> {
        let since = engine.clock().now();
        let kept = Kept { minutes: VecDeque::new(), last: counters(engine) };
        let series = Arc::new(Self { since, kept: Mutex::new(kept) });
        tokio::spawn(sample(engine.clone(), Arc::downgrade(&series)));
        series
    }

    /// The minutes from one on, oldest first, with the current one up to now.
    pub(crate) fn from(&self, engine: &Engine, minute: i64) -> Vec<Minute> {
        let mut kept = self.kept.lock();
        kept.add(minute_of(engine.clock().now()), counters(engine));
        kept.minutes.iter().filter(|kept| kept.minute >= minute).copied().collect()
    }
}

pub(crate) fn minute_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(60_000_000)
}

async fn sample(engine: Engine, series: Weak<Series>) {
    loop {
        tokio::time::sleep(SAMPLE_EVERY).await;
        let Some(series) = series.upgrade() else { return };
        series.kept.lock().add(minute_of(engine.clock().now()), counters(&engine));
    }
}

fn counters(engine: &Engine) -> [u64; NAMES.len()] {
    let metrics = engine.metrics();
    [
        metrics.runs_created.get(),
        metrics.runs_completed.get(),
        metrics.runs_failed.get(),
        metrics.steps_completed.get(),
        metrics.steps_failed.get(),
        metrics.tasks_completed.get(),
        metrics.tasks_failed.get(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_counted_in_its_minute_and_old_minutes_go() {
        let mut kept = Kept::default();
        let at = |n: u64| [n, 0, 0, 0, 0, 0, 0];
        kept.add(10, at(3));
        kept.add(10, at(5));
        kept.add(12, at(6));
        // A clock that goes back adds to the last minute.
        kept.add(11, at(8));
        let seen: Vec<(i64, u64)> =
            kept.minutes.iter().map(|minute| (minute.minute, minute.values[0])).collect();
        assert_eq!(seen, [(10, 5), (12, 3)]);
        for minute in 0..2 * MINUTES_MAX as i64 {
            kept.add(20 + minute, at(8));
        }
        assert_eq!(kept.minutes.len(), MINUTES_MAX);
    }
}
