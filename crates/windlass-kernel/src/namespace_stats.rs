//! Counts of one namespace for operators: the current rows, and the attempts of the last hour.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;
use crate::ids::{LimitKey, Namespace, QueueName, RouteName, WorkflowName};
use crate::limits::{Limits, check_max};
use crate::store::{Capped, RunCount};
use crate::time::Timestamp;

/// The current rows of a namespace. Grouped counts cover at most [`Capped::MAX`] + 1 rows; if there
/// are more, the store chooses which rows it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceStats {
    /// Runs by workflow and status, in that order.
    pub runs: Vec<RunCount>,
    /// Runs among the newest active ones that have not committed a turn, by workflow.
    pub runs_new: Vec<(WorkflowName, u64)>,
    /// Tasks by queue, name and priority, in that order.
    pub tasks: Vec<TaskCount>,
    /// Dead letters, including requeued ones, by queue and name.
    pub letters: Vec<DeadLetterCount>,
    /// Dead letters that were not requeued.
    pub letters_open: Capped,
    /// Circuit breakers.
    pub breakers: Capped,
    /// The keys of circuit breakers that are not closed, at most [`NamespaceStats::BREAKERS_MAX`].
    pub breakers_open: Vec<LimitKey>,
    /// The store's clock.
    pub now: Timestamp,
}

impl NamespaceStats {
    /// The most open breakers that are listed.
    pub const BREAKERS_MAX: u32 = 1_000;
}

/// The number of tasks with one queue, name and priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskCount {
    /// The queue.
    pub queue: QueueName,
    /// The activity or effect type.
    pub name: RouteName,
    /// The priority.
    pub priority: i16,
    /// Tasks that can be claimed.
    pub ready: u64,
    /// Tasks that are due later.
    pub scheduled: u64,
    /// Tasks that a worker holds.
    pub held: u64,
    /// The due time of the oldest task that can be claimed.
    pub ready_oldest: Option<Timestamp>,
}

/// The number of dead letters with one queue and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadLetterCount {
    /// The queue.
    pub queue: QueueName,
    /// The activity or effect type.
    pub name: RouteName,
    /// The number of dead letters.
    pub count: u64,
}

/// An amount to add to one figure of one minute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskStat {
    /// Minutes since 1970.
    pub minute: i64,
    /// The namespace.
    pub namespace: Namespace,
    /// The activity or effect type.
    pub name: RouteName,
    /// The figure; see [`Figures`].
    pub field: u16,
    /// The amount to add.
    pub value: u64,
}

impl TaskStat {
    /// How many minutes are kept, including the current one.
    pub const MINUTES: i64 = 60;

    /// The minute of a time.
    pub fn minute_of(at: Timestamp) -> i64 {
        at.as_micros().div_euclid(60_000_000)
    }

    /// Refuses more figures at once than the limit.
    pub fn validate(stats: &[Self], limits: &Limits) -> Result<(), Error> {
        check_max("a batch of task statistics", "figures", stats.len(), limits.task_stats_max)
    }
}

/// Outcomes and durations of attempts. Stores add up the fields without knowing their meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures(BTreeMap<u16, u64>);

const COMPLETED: u16 = 0;
const FAILED: u16 = 1;
const TOOK_US: u16 = 2;
const WAITED_US: u16 = 3;
/// The first field of the duration histogram, which has four buckets for each doubling.
const SPREAD: u16 = 16;

impl Figures {
    /// Counts an attempt with its wait before the start and its duration.
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

    /// Adds all fields of `other`.
    pub fn merge(&mut self, other: &Self) {
        other.fields().for_each(|(field, value)| self.add(field, value));
    }

    /// All fields that are not zero.
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

    /// The total duration of all attempts, in microseconds.
    pub fn took_us(&self) -> u64 {
        self.get(TOOK_US)
    }

    /// The average duration of an attempt, in milliseconds; 0 if there was none.
    pub fn took_ms_avg(&self) -> f64 {
        self.ms_avg(TOOK_US)
    }

    /// The average wait between due time and start, in milliseconds.
    pub fn waited_ms_avg(&self) -> f64 {
        self.ms_avg(WAITED_US)
    }

    fn ms_avg(&self, field: u16) -> f64 {
        match self.completed() + self.failed() {
            0 => 0.0,
            count => self.get(field) as f64 / count as f64 / 1_000.0,
        }
    }

    /// The 99th percentile of the duration, in milliseconds; at most a quarter too large.
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

// The highest bit and the two bits below it.
fn bucket(us: u64) -> u16 {
    if us < 4 {
        return us as u16;
    }
    let top = us.ilog2();
    (top * 4) as u16 + ((us >> (top - 2)) & 3) as u16
}

// The largest number of microseconds in a bucket.
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
    fn buckets_are_ordered_and_cover_their_values() {
        for us in (0..10_000).chain([u64::MAX / 3, 86_400_000_000]) {
            let bucket = bucket(us);
            assert!(bucket_end(bucket) >= us, "{us} ends at {}", bucket_end(bucket));
            assert!(bucket_end(bucket) <= us + us / 4, "{us} ends at {}", bucket_end(bucket));
            assert!(us == 0 || super::bucket(us - 1) <= bucket);
        }
        assert_eq!(bucket_end(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn averages_and_percentiles() {
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
    fn minutes_before_1970_are_negative() {
        assert_eq!(TaskStat::minute_of(Timestamp::from_micros(59_999_999)), 0);
        assert_eq!(TaskStat::minute_of(Timestamp::from_micros(60_000_000)), 1);
        assert_eq!(TaskStat::minute_of(Timestamp::from_micros(-1)), -1);
    }
}
