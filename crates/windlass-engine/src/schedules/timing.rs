//! When a schedule starts runs: its firings, and the treatment of those that were missed.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{Error, ErrorCode, ErrorKind, Limits, ModelName, Timestamp, WorkflowName};

/// At most this many missed firings are started at once.
const MISSED_MAX: usize = 100;
/// A firing that is later than this was missed.
const LATE_MAX: Duration = Duration::from_secs(60);
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// When a schedule starts runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Timing {
    /// By a cron expression, in a time zone.
    Cron {
        /// Five fields, or six with seconds first.
        expression: String,
        /// A name of the IANA time zone database, such as `Europe/Berlin`.
        time_zone: String,
    },
    /// At a fixed interval.
    Every {
        /// The time between two firings, in milliseconds.
        interval_ms: u64,
    },
}

/// The treatment of firings that were missed because no process served the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Start the last of them, late.
    #[default]
    Last,
    /// Start all of them, late, up to a hundred.
    All,
    /// Start none of them.
    Skip,
}

/// The treatment of a firing if the run of the previous one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Start it too.
    #[default]
    Allow,
    /// Skip it.
    Skip,
}

/// A schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// When it starts runs.
    pub timing: Timing,
    /// The workflow whose runs it starts.
    pub workflow: WorkflowName,
    /// The model of that workflow.
    pub model: ModelName,
    /// The input of each run.
    pub input: Box<RawValue>,
    /// Labels of each run.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The treatment of missed firings.
    #[serde(default)]
    pub missed: Missed,
    /// The treatment of a firing if the previous run has not ended.
    #[serde(default)]
    pub overlap: Overlap,
}

impl Schedule {
    /// The firings to start now, by the policy for missed ones. Moves `next` past `now`.
    pub(super) fn due_firings(
        &self,
        next: &mut Timestamp,
        anchor: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Timestamp>, Error> {
        let mut due = Vec::new();
        while *next <= now && due.len() < MISSED_MAX {
            due.push(*next);
            *next = self.timing.next_after(*next, anchor)?;
        }
        // Firings beyond the bound are skipped at once.
        if *next <= now {
            *next = self.timing.next_after(now, anchor)?;
        }
        match self.missed {
            Missed::All => {}
            Missed::Last => drop(due.drain(..due.len().saturating_sub(1))),
            Missed::Skip => due.retain(|firing| now.since(*firing) < LATE_MAX),
        }
        Ok(due)
    }
}

impl Timing {
    /// Checks the timing.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSchedule`] if the interval is out of range or the cron expression is not valid.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        match self {
            Self::Every { interval_ms } => {
                let interval = Duration::from_millis(*interval_ms);
                if interval < INTERVAL_MIN {
                    let message = format!(
                        "an interval of {interval_ms} ms is too short; use at least 1 second"
                    );
                    return Err(invalid(message));
                }
                let days = limits.sleep_days_max;
                if interval > Duration::from_secs(u64::from(days) * 86_400) {
                    let message = format!(
                        "an interval of {interval_ms} ms is too long; use at most {days} days"
                    );
                    return Err(invalid(message));
                }
                Ok(())
            }
            Self::Cron { .. } => self.next_after(Timestamp::ZERO, Timestamp::ZERO).map(|_| ()),
        }
    }

    /// The first firing after a time. `anchor` is when an interval began.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSchedule`] if the cron expression or the time zone is not valid.
    pub fn next_after(&self, after: Timestamp, anchor: Timestamp) -> Result<Timestamp, Error> {
        match self {
            Self::Every { interval_ms } => {
                let interval = i64::try_from(interval_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
                let passed = after.as_micros().saturating_sub(anchor.as_micros());
                let count = passed.div_euclid(interval.max(1)) + 1;
                let at = anchor.as_micros().saturating_add(interval.saturating_mul(count.max(1)));
                Ok(Timestamp::from_micros(at))
            }
            Self::Cron { expression, time_zone } => {
                let cron = croner::Cron::from_str(expression).map_err(|error| {
                    invalid(format!("failed to parse the cron expression {expression:?}: {error}"))
                })?;
                let zone = jiff::tz::TimeZone::get(time_zone).map_err(|_| {
                    invalid(format!("there is no time zone {time_zone:?}; use a name such as Europe/Berlin or UTC"))
                })?;
                let after = jiff::Timestamp::from_microsecond(after.as_micros())
                    .map_err(|error| invalid(format!("the time does not fit: {error}")))?;
                let next =
                    cron.find_next_occurrence(&after.to_zoned(zone), false).map_err(|error| {
                        invalid(format!(
                            "the cron expression {expression:?} has no next time: {error}"
                        ))
                    })?;
                Ok(Timestamp::from_micros(next.timestamp().as_microsecond()))
            }
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidSchedule, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let time: jiff::Timestamp = text.parse().expect("a time");
        Timestamp::from_micros(time.as_microsecond())
    }

    fn cron(expression: &str, time_zone: &str) -> Timing {
        Timing::Cron { expression: expression.into(), time_zone: time_zone.into() }
    }

    #[track_caller]
    fn check(timing: &Timing, after: &str, expect: &str) {
        let next = timing.next_after(at(after), at("2026-01-01T00:00:10Z")).expect("a next time");
        assert_eq!(next.to_string(), expect, "{timing:?} after {after}");
    }

    #[test]
    fn firings() {
        let utc = cron("0 3 * * *", "UTC");
        check(&utc, "2026-01-01T02:59:59Z", "2026-01-01T03:00:00Z");
        check(&utc, "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z");
        let berlin = cron("30 2 * * *", "Europe/Berlin");
        check(&berlin, "2026-01-10T00:00:00Z", "2026-01-10T01:30:00Z");
        check(&berlin, "2026-07-10T00:00:00Z", "2026-07-10T00:30:00Z");
        let every = Timing::Every { interval_ms: 60_000 };
        check(&every, "2026-01-01T00:00:10Z", "2026-01-01T00:01:10Z");
        check(&every, "2026-01-01T00:01:10Z", "2026-01-01T00:02:10Z");
        check(&every, "2026-01-01T00:01:11Z", "2026-01-01T00:02:10Z");
    }

    #[test]
    fn missed_firings_follow_the_policy() {
        // Every minute since 00:00:10. The first firing is at 00:01:10.
        let table = [
            ("2026-01-01T00:01:09Z", Missed::All, 0, "2026-01-01T00:01:10Z"),
            ("2026-01-01T00:01:10Z", Missed::All, 1, "2026-01-01T00:02:10Z"),
            ("2026-01-01T00:05:00Z", Missed::All, 4, "2026-01-01T00:05:10Z"),
            ("2026-01-01T00:05:00Z", Missed::Last, 1, "2026-01-01T00:05:10Z"),
            ("2026-01-01T00:05:00Z", Missed::Skip, 1, "2026-01-01T00:05:10Z"),
            ("2026-01-01T00:05:09.999Z", Missed::Skip, 1, "2026-01-01T00:05:10Z"),
            ("2026-01-01T10:00:00Z", Missed::All, MISSED_MAX, "2026-01-01T10:00:10Z"),
            ("2026-01-01T10:00:00Z", Missed::Skip, 0, "2026-01-01T10:00:10Z"),
        ];
        for (now, missed, count, next) in table {
            let schedule = Schedule {
                timing: Timing::Every { interval_ms: 60_000 },
                workflow: WorkflowName::from_stored("report"),
                model: ModelName::from_stored("steps"),
                input: RawValue::from_string("null".into()).expect("JSON"),
                labels: BTreeMap::new(),
                missed,
                overlap: Overlap::Allow,
            };
            let mut found = at("2026-01-01T00:01:10Z");
            let anchor = at("2026-01-01T00:00:10Z");
            let due = schedule.due_firings(&mut found, anchor, at(now)).expect("a timing");
            assert_eq!((due.len(), found), (count, at(next)), "{missed:?} at {now}");
            assert!(due.is_sorted() && due.iter().all(|firing| *firing <= at(now)));
        }
    }

    #[test]
    fn invalid_timings_are_refused() {
        for (timing, expect) in [
            (cron("61 * * * *", "UTC"), "failed to parse"),
            (cron("* * * * *", "Mars/Olympus"), "no time zone"),
            (Timing::Every { interval_ms: 10 }, "at least 1 second"),
            (Timing::Every { interval_ms: 366 * 86_400_000 }, "at most 365 days"),
            (Timing::Every { interval_ms: u64::MAX }, "at most 365 days"),
        ] {
            let error = timing.validate(&Limits::DEFAULT).expect_err("it is refused");
            assert_eq!(error.code(), "INVALID_SCHEDULE");
            assert!(error.to_string().contains(expect), "{error}");
        }
    }
}
