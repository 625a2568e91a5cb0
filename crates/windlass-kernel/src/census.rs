//! Counts of one namespace, for those who look after it: what there is now, and what was done lately.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;
use crate::ids::{LimitKey, Namespace, QueueName, RouteName, WorkflowName};
use crate::limits::{Limits, check_max};
use crate::store::{Capped, RunCount};
use crate::time::Timestamp;

/// What a namespace has now. Where a count is told by groups, it is taken over at most one more than
/// [`Capped::MAX`] rows, and which they are beyond that is the store's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// Runs by workflow and status, in that order.
    pub runs: Vec<RunCount>,
    /// Of the newest active runs, those whose first turn was never committed, by workflow.
    pub runs_new: Vec<(WorkflowName, u64)>,
    /// Tasks by queue, name and priority, in that order.
    pub tasks: Vec<TaskCount>,
    /// Dead letters, requeued ones too, by queue and name.
    pub letters: Vec<LetterCount>,
    /// Dead letters that were not requeued.
    pub letters_open: Capped,
    /// Circuit breakers.
    pub breakers: Capped,
    /// Circuit breakers that are not closed, by key: at most [`Census::BREAKERS_MAX`].
    pub breakers_open: Vec<LimitKey>,
    /// The store's clock.
    pub now: Timestamp,
}

impl Census {
    /// How many open breakers are named.
    pub const BREAKERS_MAX: u32 = 1_000;
}

/// How many tasks of a kind there are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskCount {
    /// The queue.
    pub queue: QueueName,
    /// What is to be run.
    pub name: RouteName,
    /// The priority.
    pub priority: i16,
    /// Those that can be claimed.
    pub ready: u64,
    /// Those that are due later.
    pub scheduled: u64,
    /// Those that somebody holds.
    pub held: u64,
    /// Since when the oldest of those that can be claimed has been due.
    pub ready_oldest: Option<Timestamp>,
}

/// How many dead letters of a kind there are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LetterCount {
    /// The queue.
    pub queue: QueueName,
    /// What was to be run.
    pub name: RouteName,
    /// How many.
    pub count: u64,
}

/// One figure of one minute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tally {
    /// The minute, counted from 1970.
    pub minute: i64,
    /// The tenant.
    pub namespace: Namespace,
    /// What was run.
    pub name: RouteName,
    /// Which figure; see [`Figures`].
    pub field: u16,
    /// How much is added to it.
    pub value: u64,
}

impl Tally {
    /// How many minutes are kept: this one and those before it.
    pub const MINUTES: i64 = 60;

    /// The minute of a time.
    pub fn minute_of(at: Timestamp) -> i64 {
        at.as_micros().div_euclid(60_000_000)
    }

    /// Refuses more figures at once than the limit.
    pub fn validate(tallies: &[Self], limits: &Limits) -> Result<(), Error> {
        check_max("a tally", "figures", tallies.len(), limits.tallies_max)
    }
}

/// What became of attempts, and how long they took. Stores add the fields up without knowing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures(BTreeMap<u16, u64>);

const COMPLETED: u16 = 0;
const FAILED: u16 = 1;
const TOOK_US: u16 = 2;
const WAITED_US: u16 = 3;
/// From here on, how many attempts took how long: four buckets for each doubling.
const SPREAD: u16 = 16;

impl Figures {
    /// Counts an attempt that waited so long to begin and took so long.
    pub fn attempt(&mut self, succeeded: bool, waited: Duration, took: Duration) {
        let (waited, took) = (micros(waited), micros(took));
        self.add(if succeeded { COMPLETED } else { FAILED }, 1);
        self.add(TOOK_US, took);
        self.add(WAITED_US, waited);
        self.add(SPREAD + bucket(took), 1);
    }

    /// Adds to a field.
    pub fn add(&mut self, field: u16, value: u64) {
        let known = self.0.entry(field).or_default();
        *known = known.saturating_add(value);
    }

    /// Adds others to these.
    pub fn merge(&mut self, other: &Self) {
        other.fields().for_each(|(field, value)| self.add(field, value));
    }

    /// Every field that is not zero.
    pub fn fields(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.0.iter().map(|(field, value)| (*field, *value)).filter(|(_, value)| *value > 0)
    }

    fn get(&self, field: u16) -> u64 {
        self.0.get(&field).copied().unwrap_or(0)
    }

    /// How many attempts succeeded.
    pub fn completed(&self) -> u64 {
        self.get(COMPLETED)
    }

    /// How many attempts failed.
    pub fn failed(&self) -> u64 {
        self.get(FAILED)
    }

    /// How long all attempts together took, in microseconds.
    pub fn took_us(&self) -> u64 {
        self.get(TOOK_US)
    }

    /// How long an attempt took on average, in milliseconds; 0 if there was none.
    pub fn took_ms_avg(&self) -> f64 {
        self.ms_avg(TOOK_US)
    }

    /// How long an attempt waited to begin after it was due, on average, in milliseconds.
    pub fn waited_ms_avg(&self) -> f64 {
        self.ms_avg(WAITED_US)
    }

    fn ms_avg(&self, field: u16) -> f64 {
        match self.completed() + self.failed() {
            0 => 0.0,
            count => self.get(field) as f64 / count as f64 / 1_000.0,
        }
    }

    /// How long all but one in a hundred took at most, in milliseconds; at most a quarter too much.
    pub fn took_ms_p99(&self) -> f64 {
        let spread = || self.0.range(SPREAD..);
        let count: u64 = spread().map(|(_, count)| count).sum();
        let rank = count - count / 100;
        let mut seen = 0;
        for (field, count) in spread() {
            seen += count;
            if seen >= rank {
                return bucket_end(field - SPREAD) as f64 / 1_000.0;
            }
        }
        0.0
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

// The highest bit and the two below it.
fn bucket(us: u64) -> u16 {
    if us < 4 {
        return us as u16;
    }
    let top = us.ilog2();
    (top * 4) as u16 + ((us >> (top - 2)) & 3) as u16
}

// The last number of microseconds that is in a bucket.
fn bucket_end(bucket: u16) -> u64 {
    if bucket < 4 {
        return bucket.into();
    }
    let (top, part) = (u32::from(bucket / 4), u64::from(bucket % 4));
    match top {
        2..=62 => ((5 + part) << (top - 2)) - 1,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_what_they_say() {
        for us in (0..10_000).chain([u64::MAX / 3, 86_400_000_000]) {
            let bucket = bucket(us);
            assert!(bucket_end(bucket) >= us, "{us} ends at {}", bucket_end(bucket));
            assert!(bucket_end(bucket) <= us + us / 4, "{us} ends at {}", bucket_end(bucket));
            assert!(us == 0 || super::bucket(us - 1) <= bucket);
        }
        assert_eq!(bucket_end(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn averages_and_the_hundredth() {
        let ms = Duration::from_millis;
        let mut figures = Figures::default();
        assert_eq!((figures.took_ms_avg(), figures.took_ms_p99()), (0.0, 0.0));
        (0..99).for_each(|_| figures.attempt(true, ms(1), ms(10)));
        assert_eq!(figures.took_ms_avg(), 10.0);
        figures.attempt(false, ms(101), ms(1_010));
        assert_eq!((figures.completed(), figures.failed()), (99, 1));
        assert_eq!((figures.took_ms_avg(), figures.waited_ms_avg()), (20.0, 2.0));
        assert!((10.0..=12.5).contains(&figures.took_ms_p99()), "{}", figures.took_ms_p99());
        figures.attempt(true, ms(0), ms(1_000));
        assert!((1_000.0..=1_250.0).contains(&figures.took_ms_p99()));
        let mut twice = figures.clone();
        twice.merge(&figures);
        assert_eq!((twice.completed(), twice.took_ms_avg()), (200, figures.took_ms_avg()));
    }

    #[test]
    fn minutes_are_counted_down_too() {
        assert_eq!(Tally::minute_of(Timestamp::from_micros(59_999_999)), 0);
        assert_eq!(Tally::minute_of(Timestamp::from_micros(60_000_000)), 1);
        assert_eq!(Tally::minute_of(Timestamp::from_micros(-1)), -1);
    }
}
