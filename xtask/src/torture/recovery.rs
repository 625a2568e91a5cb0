//! How long processes take after a restart until they do work again, from the log of a phase.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::log::{Entry, Line};

/// The times of the restarts of a phase, sorted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Times {
    sorted: Vec<Duration>,
    /// Processes that were killed before they did any work.
    without: usize,
}

/// The time from when each process answered to the first call of a step that it made.
pub(crate) fn of(lines: &[Line]) -> Times {
    let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sorted = Vec::new();
    for line in lines {
        match &line.entry {
            Entry::Ready { process } => drop(waiting.insert(process, line.at_ms)),
            Entry::Effect(effect) => {
                if let Some(ready) = waiting.remove(effect.process.as_str()) {
                    sorted.push(Duration::from_millis(line.at_ms - ready));
                }
            }
            _ => {}
        }
    }
    sorted.sort_unstable();
    Times { sorted, without: waiting.len() }
}

impl Times {
    pub(crate) fn median(&self) -> Option<Duration> {
        self.sorted.get(self.sorted.len() / 2).copied()
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Option<Duration>| time.unwrap_or_default().as_millis();
        let (median, last) = (ms(self.median()), ms(self.sorted.last().copied()));
        let (count, without) = (self.sorted.len(), self.without);
        write!(f, "p50 {median} ms, at most {last} ms of {count} restarts; {without} did none")
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Effect;
    use super::*;

    #[test]
    fn the_first_work_of_each_restarted_process_counts() {
        let ready = |process: &str| Entry::Ready { process: process.into() };
        let effect = |process: &str| {
            Entry::Effect(Effect {
                process: process.into(),
                run_key: "r".into(),
                run: "chain/r".into(),
                step: 0,
                attempt: 1,
                token: "t".into(),
                earlier: Vec::new(),
            })
        };
        let lines = [
            (5, effect("a.1")),
            (10, ready("a.2")),
            (12, effect("b.1")),
            (30, effect("a.2")),
            (90, effect("a.2")),
            (100, ready("a.3")),
            (110, ready("a.4")),
            (150, effect("a.4")),
        ]
        .map(|(at_ms, entry)| Line { at_ms, entry });
        let times = of(&lines);
        assert_eq!(times.sorted, [20, 40].map(Duration::from_millis));
        assert_eq!(times.without, 1);
        let text = "p50 40 ms, at most 40 ms of 2 restarts; 1 did none";
        assert_eq!((times.to_string(), of(&[]).median()), (text.into(), None));
    }
}
