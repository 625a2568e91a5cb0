//! Rate limits: how often attempts with a key may start. A pure function over a small row that all
//! processes share. The store keeps the row and replaces it by compare-and-swap on its version.

use std::time::Duration;

use crate::duration::IntoDuration;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{LimitKey, Namespace};
use crate::time::Timestamp;

/// An attempt that may start within this time waits in the worker. One that must wait longer is
/// requeued.
const GRACE: Duration = Duration::from_millis(250);
/// How far ahead start times are reserved for requeued attempts. An attempt beyond that asks again
/// at that time, so a cancelled attempt delays others by at most this long.
const AHEAD: Duration = Duration::from_secs(30);
/// How late requeued attempts may be before other attempts take their start times.
const IDLE: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const BURST_MAX: u32 = 1_000_000;

/// How often attempts may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many attempts may start in a period.
    pub count: u32,
    /// The period.
    pub period: Duration,
    /// How many may start at once after a pause. At most `count + burst - 1` start in any period.
    pub burst: u32,
}

impl Rate {
    /// A rate that spreads attempts evenly: never more than `count` in any period. The period is a text, a
    /// [`Duration`], or milliseconds.
    ///
    /// ```
    /// # use windlass_kernel::Rate;
    /// let rate = Rate::per(20, "1 second")?;
    /// assert!(rate.validate().is_ok());
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidRate`] if the period is no duration.
    pub fn per(count: u32, period: impl IntoDuration) -> Result<Self, Error> {
        let period = period.into_duration().map_err(|error| {
            let message = format!("the period of a rate: {error}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidRate, message)
        })?;
        Ok(Self { count, period, burst: 1 })
    }

    /// Sets how many attempts may start at once after a pause.
    ///
    /// ```
    /// # use windlass_kernel::Rate;
    /// let rate = Rate::per(20, "1 second")?.burst(5);
    /// assert_eq!(rate.burst, 5);
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    pub fn burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }

    /// Checks every setting; the error names the setting and its value.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidRate`] if the count, the period or the burst is out of range.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { count, period, burst } = *self;
        let refuse = |message| Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRate, message));
        if count == 0 || Duration::from_micros(u64::from(count)) > period {
            return refuse(format!(
                "a rate of {count} in {period:?}: use 1 or more, and at most one per microsecond; to \
                                 allow no attempts, set a limit of 0"
            ));
        }
        if period > PERIOD_MAX {
            return refuse(format!("the period of a rate is {period:?}; use at most a day"));
        }
        if burst == 0 || burst > BURST_MAX {
            return refuse(format!("the burst of a rate is {burst}; use 1 to {BURST_MAX}"));
        }
        Ok(())
    }

    // Rounded up, so that the rate is never exceeded.
    fn interval_us(&self) -> u64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        period.div_ceil(u64::from(self.count.max(1)))
    }
}

/// The stored form of a rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateRow {
    /// The namespace.
    pub namespace: Namespace,
    /// The key.
    pub key: LimitKey,
    /// The time between two starts. 0 means no rate: the row only blocks starts until
    /// `spent_until`.
    pub interval_us: u64,
    /// How many attempts may start at once after a pause.
    pub burst: u32,
    /// The time until which started attempts use up the rate.
    pub spent_until: Timestamp,
    /// The time until which start times are reserved for requeued attempts.
    pub queued_until: Timestamp,
    /// Rises by one with every swap.
    pub version: u64,
}

/// The decision when an attempt may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateDecision {
    /// Start at this time, which is reserved for the attempt. It is now or very soon.
    At(Timestamp),
    /// Requeue the attempt and ask again at this time, when it is likely to start.
    Later(Timestamp),
}

impl RateRow {
    /// The row of a key without a rate.
    pub fn new(namespace: Namespace, key: LimitKey) -> Self {
        let zero = Timestamp::ZERO;
        let (spent_until, queued_until) = (zero, zero);
        Self { namespace, key, interval_us: 0, burst: 1, spent_until, queued_until, version: 0 }
    }

    /// How long the row of a key without a rate is kept.
    pub const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

    /// Whether a store deletes the row: it has no rate and has restricted nothing for a day.
    pub fn is_old(&self, now: Timestamp) -> bool {
        let used_until = self.spent_until.max(self.queued_until);
        self.interval_us == 0 && now > used_until.plus(Self::KEPT_FOR)
    }

    /// Whether the row restricts nothing.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.interval_us == 0 && self.spent_until <= now
    }

    /// Sets or removes the rate.
    pub fn set(&mut self, rate: Option<&Rate>) {
        (self.interval_us, self.burst) =
            rate.map_or((0, 1), |rate| (rate.interval_us(), rate.burst));
        (self.spent_until, self.queued_until) = (Timestamp::ZERO, Timestamp::ZERO);
    }

    /// Blocks all starts before a time.
    pub fn block_until(&mut self, until: Timestamp) {
        self.spent_until = self.spent_until.max(until.plus(self.slack()));
    }

    /// The earliest start of the next attempt.
    pub fn next(&self, now: Timestamp) -> Timestamp {
        now.max(self.spent_until.minus(self.slack()))
    }

    /// Decides for a number of attempts: first for requeued ones, then for fresh ones, which do not
    /// overtake the requeued ones.
    pub fn take(&mut self, now: Timestamp, requeued: usize, fresh: usize) -> Vec<RateDecision> {
        let interval = Duration::from_micros(self.interval_us);
        let soon = now.plus(GRACE);
        // Reserved start times have passed unused: the requeued attempts are cancelled or late.
        if self.spent_until.plus(interval).plus(IDLE) < now {
            self.queued_until = self.queued_until.min(now);
        }
        let mut decisions = Vec::with_capacity(requeued + fresh);
        for n in 0..requeued + fresh {
            let start = self.next(now);
            let overtakes = n >= requeued && self.queued_until > soon;
            if start <= soon && !overtakes {
                self.spent_until = self.spent_until.max(start).plus(interval);
                decisions.push(RateDecision::At(start));
            } else {
                let (at, most) = (self.queued_until.max(start), start.plus(interval.max(AHEAD)));
                if at <= most {
                    self.queued_until = at.plus(interval);
                }
                decisions.push(RateDecision::Later(at.min(most)));
            }
        }
        decisions
    }

    fn slack(&self) -> Duration {
        Duration::from_micros(self.interval_us.saturating_mul(u64::from(self.burst.max(1) - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_micros(ms * 1_000)
    }

    fn row(rate: Rate) -> RateRow {
        let mut row = RateRow::new(Namespace::default_namespace(), LimitKey::new("k").unwrap());
        row.set(Some(&rate));
        row
    }

    // The start times if `count` attempts ask at once and each asks again at the given time.
    fn started(row: &mut RateRow, count: usize) -> Vec<Timestamp> {
        let mut started = Vec::new();
        let mut asking = vec![(at(10_000), false); count];
        while !asking.is_empty() {
            asking.sort();
            let now = asking[0].0;
            let due: Vec<_> = asking.iter().filter(|(at, _)| *at == now).copied().collect();
            asking.retain(|(at, _)| *at > now);
            let requeued = due.iter().filter(|(_, requeued)| *requeued).count();
            for decision in row.take(now, requeued, due.len() - requeued) {
                match decision {
                    RateDecision::At(at) => started.push(at),
                    RateDecision::Later(at) => asking.push((at, true)),
                }
            }
        }
        started.sort_unstable();
        started
    }

    #[test]
    fn starts_stay_within_the_rate_and_use_all_of_it() {
        let second = Duration::from_secs(1);
        for (count, burst) in [(20, 1), (20, 5), (3, 1), (1_000, 10)] {
            let started = started(&mut row(Rate::per(count, second).unwrap().burst(burst)), 300);
            let most = (count + burst - 1) as usize;
            for window in started.windows(most + 1) {
                assert!(window[most].since(window[0]) >= second, "{count} {burst}: {window:?}");
            }
            let took = started[299].since(started[0]).as_secs_f64();
            let least = f64::from(300 - burst) / f64::from(count);
            assert!((took - least).abs() < 0.01, "{count} {burst}: {took} instead of {least}");
        }
    }

    #[test]
    fn requeued_attempts_are_not_overtaken() {
        let mut row = row(Rate::per(1, Duration::from_secs(1)).unwrap());
        let decisions = row.take(at(0), 0, 3);
        assert_eq!(
            decisions,
            [
                RateDecision::At(at(0)),
                RateDecision::Later(at(1_000)),
                RateDecision::Later(at(2_000))
            ]
        );
        assert_eq!(row.take(at(990), 0, 1), [RateDecision::Later(at(3_000))]);
        assert_eq!(row.take(at(1_001), 1, 0), [RateDecision::At(at(1_001))]);
        assert_eq!(
            row.take(at(2_000), 1, 0),
            [RateDecision::At(at(2_001))],
            "asking a little early keeps the reserved time"
        );
    }

    #[test]
    fn requeued_attempts_that_never_return_do_not_block_others() {
        let mut row = row(Rate::per(1, Duration::from_secs(1)).unwrap());
        let decisions = row.take(at(0), 0, 1_000);
        assert_eq!(decisions[31..], [RateDecision::Later(at(31_000)); 969]);
        assert_eq!(
            row.take(at(1_500), 0, 1),
            [RateDecision::Later(at(31_500))],
            "they may be late"
        );
        // All of them were cancelled.
        let decisions = row.take(at(3_500), 0, 3);
        assert_eq!(
            decisions,
            [
                RateDecision::At(at(3_500)),
                RateDecision::Later(at(4_500)),
                RateDecision::Later(at(5_500))
            ]
        );
    }

    #[test]
    fn a_key_without_a_rate_can_be_blocked() {
        let mut row = RateRow::new(Namespace::default_namespace(), LimitKey::new("k").unwrap());
        row.block_until(at(5_000));
        assert!(!row.is_idle(at(4_000)));
        assert_eq!(row.take(at(1_000), 1, 1), [RateDecision::Later(at(5_000)); 2]);
        assert!(row.is_idle(at(5_000)));
        assert_eq!(row.take(at(5_000), 2, 0), [RateDecision::At(at(5_000)); 2]);
        let mut row = super::tests::row(Rate::per(10, Duration::from_secs(1)).unwrap().burst(4));
        row.block_until(at(5_000));
        assert_eq!(row.next(at(1_000)), at(5_000), "a burst does not bypass the block");
    }

    #[test]
    fn validate_names_the_wrong_value() {
        let second = Duration::from_secs(1);
        let bad = [
            (Rate::per(0, second).unwrap(), "a rate of 0 in 1s"),
            (Rate::per(2_000_000, second).unwrap(), "a rate of 2000000 in 1s"),
            (Rate::per(1, 100_000 * second).unwrap(), "is 100000s"),
            (Rate::per(1, second).unwrap().burst(0), "burst of a rate is 0"),
        ];
        for (rate, part) in bad {
            let error = rate.validate().unwrap_err();
            assert_eq!(error.code(), "INVALID_RATE");
            assert!(error.message().contains(part), "{}", error.message());
        }
        assert!(Rate::per(1_000_000, second).unwrap().validate().is_ok());
    }
}
