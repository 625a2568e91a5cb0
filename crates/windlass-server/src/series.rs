//! Counters of this process by minute, in all and by workflow, for the charts of the dashboard. They live in
//! memory: a restart begins anew, and other processes have their own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use windlass::Timestamp;
use windlass::kernel::{Namespace, WorkflowName};
use windlass_engine::{Engine, WorkflowFigures};

/// The number of minutes that are kept: a day.
pub(crate) const MINUTES_MAX: usize = 24 * 60;
/// The most workflows whose minutes are kept: together less than 2 MiB.
pub(crate) const WORKFLOWS_MAX: usize = 40;
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

/// Those of one workflow, in the order of [`windlass_engine::WorkflowFigure::ALL`]: they are the first of [`NAMES`].
pub(crate) const WORKFLOW_NAMES: usize = 5;

type Values = [u64; NAMES.len()];
type Name = (Namespace, WorkflowName);

/// How much each counter grew within a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Minute {
    /// Minutes since 1970.
    pub(crate) minute: i64,
    pub(crate) values: Vec<u64>,
}

/// The counters by minute.
pub(crate) struct Series {
    pub(crate) since: Timestamp,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    all: Growth<{ NAMES.len() }>,
    workflows: BTreeMap<Name, Growth<WORKFLOW_NAMES>>,
}

/// The minutes of one set of counters. Narrow numbers, because there are many of them.
struct Growth<const N: usize> {
    minutes: VecDeque<(u32, [u32; N])>,
    last: [u64; N],
}

impl<const N: usize> Default for Growth<N> {
    fn default() -> Self {
        Self { minutes: VecDeque::new(), last: [0; N] }
    }
}

impl<const N: usize> Growth<N> {
    fn add(&mut self, minute: i64, counters: [u64; N]) {
        let minute = u32::try_from(minute).unwrap_or_default();
        let grown: [u32; N] = std::array::from_fn(|index| {
            let grown = counters[index].saturating_sub(self.last[index]);
            u32::try_from(grown).unwrap_or(u32::MAX)
        });
        self.last = counters;
        match self.minutes.back_mut().filter(|(last, _)| *last >= minute) {
            Some((_, last)) => {
                for (value, more) in last.iter_mut().zip(grown) {
                    *value = value.saturating_add(more);
                }
            }
            // A minute in which nothing happened takes no place.
            None if grown == [0; N] => {}
            None => self.minutes.push_back((minute, grown)),
        }
        let first = minute.saturating_sub(MINUTES_MAX as u32 - 1);
        while self.minutes.front().is_some_and(|(oldest, _)| *oldest < first) {
            self.minutes.pop_front();
        }
    }

    fn from(&self, minute: i64) -> Vec<Minute> {
        let kept = self.minutes.iter().map(|(minute, values)| Minute {
            minute: i64::from(*minute),
            values: values.iter().map(|value| u64::from(*value)).collect(),
        });
        kept.filter(|kept| kept.minute >= minute).collect()
    }
}

impl Kept {
    fn counts(&self, name: &Name) -> bool {
        self.workflows.len() < WORKFLOWS_MAX || self.workflows.contains_key(name)
    }

    fn add(
        &mut self,
        minute: i64,
        all: Values,
        workflows: Vec<(Namespace, WorkflowName, WorkflowFigures)>,
    ) {
        self.all.add(minute, all);
        for (namespace, workflow, figures) in workflows {
            let name = (namespace, workflow);
            if self.counts(&name) {
                self.workflows.entry(name).or_default().add(minute, figures);
            }
        }
    }
}

impl Series {
    /// Samples the counters of an engine until the series is dropped.
    pub(crate) fn of(engine: &Engine) -> Arc<Self> {
        let since = engine.clock().now();
        let mut kept = Kept::default();
        kept.all.last = counters(engine);
        for (namespace, workflow, figures) in
            engine.metrics().workflows().into_iter().take(WORKFLOWS_MAX)
        {
            kept.workflows.entry((namespace, workflow)).or_default().last = figures;
        }
        let series = Arc::new(Self { since, kept: Mutex::new(kept) });
        tokio::spawn(sample(engine.clone(), Arc::downgrade(&series)));
        series
    }

    /// The minutes from one on, oldest first, with the current one up to now. Minutes in which nothing happened are
    /// left out. With a workflow, those of this workflow.
    pub(crate) fn from(&self, engine: &Engine, minute: i64, of: Option<&Name>) -> Vec<Minute> {
        let mut kept = self.kept.lock();
        kept.add(minute_of(engine.clock().now()), counters(engine), engine.metrics().workflows());
        match of {
            None => kept.all.from(minute),
            Some(name) => {
                kept.workflows.get(name).map(|growth| growth.from(minute)).unwrap_or_default()
            }
        }
    }
}

impl Series {
    /// Whether the figures of a workflow are kept. Those of workflows after the first 40 are not.
    pub(crate) fn counts(&self, name: &Name) -> bool {
        self.kept.lock().counts(name)
    }
}

pub(crate) fn minute_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(60_000_000)
}

async fn sample(engine: Engine, series: Weak<Series>) {
    loop {
        tokio::time::sleep(SAMPLE_EVERY).await;
        let Some(series) = series.upgrade() else { return };
        let workflows = engine.metrics().workflows();
        let minute = minute_of(engine.clock().now());
        series.kept.lock().add(minute, counters(&engine), workflows);
    }
}

fn counters(engine: &Engine) -> Values {
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

    fn seen<const N: usize>(growth: &Growth<N>) -> Vec<(u32, u32)> {
        growth.minutes.iter().map(|(minute, values)| (*minute, values[0])).collect()
    }

    #[test]
    fn growth_is_counted_in_its_minute_and_old_minutes_go() {
        let mut growth = Growth::<{ NAMES.len() }>::default();
        let at = |n: u64| [n, 0, 0, 0, 0, 0, 0];
        growth.add(10, at(3));
        growth.add(10, at(5));
        growth.add(11, at(5));
        growth.add(12, at(6));
        // A clock that goes back adds to the last minute.
        growth.add(11, at(8));
        assert_eq!(seen(&growth), [(10, 5), (12, 3)]);
        for minute in 0..2 * MINUTES_MAX as i64 {
            growth.add(20 + minute, at(9 + minute as u64));
        }
        assert_eq!(growth.minutes.len(), MINUTES_MAX);
        assert_eq!(seen(&growth)[0], (20 + MINUTES_MAX as u32, 1));
    }

    #[test]
    fn workflows_have_minutes_of_their_own_up_to_a_limit() {
        let mut kept = Kept::default();
        let of = |name: &str| (Namespace::from_stored("n"), WorkflowName::from_stored(name));
        let figures = |name: &str, started: u64| {
            let (namespace, workflow) = of(name);
            (namespace, workflow, [started, 0, 0, 0, 0])
        };
        kept.add(1, [5, 0, 0, 0, 0, 0, 0], vec![figures("a", 3), figures("b", 2)]);
        kept.add(2, [6, 0, 0, 0, 0, 0, 0], vec![figures("a", 3), figures("b", 3)]);
        assert_eq!(seen(&kept.all), [(1, 5), (2, 1)]);
        assert_eq!(seen(&kept.workflows[&of("a")]), [(1, 3)]);
        assert_eq!(seen(&kept.workflows[&of("b")]), [(1, 2), (2, 1)]);
        let many = (0..2 * WORKFLOWS_MAX).map(|n| figures(&format!("w-{n}"), 1)).collect();
        assert!(kept.counts(&of("w-0")) && kept.counts(&of("later")));
        kept.add(3, [7, 0, 0, 0, 0, 0, 0], many);
        assert!(kept.counts(&of("a")) && !kept.counts(&of("later")));
        assert_eq!(kept.workflows.len(), WORKFLOWS_MAX);
    }
}
