//! Rates: how often attempts under a key may begin. A pure function over a small row that all processes
//! share; a store keeps the row and swaps it only for whoever read the last one.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ids::{LimitKey, Namespace};
use crate::time::Timestamp;

/// An attempt that may begin so soon waits where it is; one that must wait longer is put back.
const GRACE: Duration = Duration::from_millis(250);
/// How far ahead slots are kept for those that are put back; whoever is behind that asks again then. So
/// what is called off meanwhile holds nobody up for longer.
const AHEAD: Duration = Duration::from_secs(30);
/// How late those that were put back may be before others take their slots.
const IDLE: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const BURST_MAX: u32 = 1_000_000;

/// How often attempts may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So many in a period.
    pub count: u32,
    /// The period.
    pub period: Duration,
    /// How many may begin at once after a pause. In any period at most `count + burst - 1` begin.
    pub burst: u32,
}

impl Rate {
    /// So many in a period, evenly spread: never more than that in any period.
    pub fn per(count: u32, period: Duration) -> Self {
        Self { count, period, burst: 1 }
    }

    /// The rate with so many at once after a pause.
    pub fn burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }

    /// Refuses what makes no sense, by name and value.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { count, period, burst } = *self;
        let refuse = |message| Err(Error::new(ErrorKind::Invalid, "INVALID_RATE", message));
        if count == 0 || Duration::from_micros(u64::from(count)) > period {
            return refuse(format!(
                "a rate of {count} in {period:?}: use 1 or more, and at most one a microsecond; to \
                 let nothing begin, set a limit of 0"
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

    // Rounded up: the rate is not exceeded.
    fn interval_us(&self) -> u64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        period.div_ceil(u64::from(self.count.max(1)))
    }
}

/// A rate as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateRow {
    /// The tenant.
    pub namespace: Namespace,
    /// What it is for.
    pub key: LimitKey,
    /// The time between two beginnings; 0 if there is no rate, only a time until which nothing begins.
    pub interval_us: u64,
    /// How many may begin at once after a pause.
    pub burst: u32,
    /// Until when what has begun uses up the rate.
    pub spent_until: Timestamp,
    /// Until when beginnings are expected of those that were put back.
    pub queued_until: Timestamp,
    /// Rises with every swap.
    pub version: u64,
}

/// When an attempt may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateSlot {
    /// At this time, which is now or very soon, and is kept for it.
    At(Timestamp),
    /// It must ask again, and at this time it should get through.
    Later(Timestamp),
}

impl RateRow {
    /// A key without a rate.
    pub fn new(namespace: Namespace, key: LimitKey) -> Self {
        let zero = Timestamp::ZERO;
        let (spent_until, queued_until) = (zero, zero);
        Self { namespace, key, interval_us: 0, burst: 1, spent_until, queued_until, version: 0 }
    }

    /// Whether everything may begin.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.interval_us == 0 && self.spent_until <= now
    }

    /// Puts another rate in force, or lifts it.
    pub fn set(&mut self, rate: Option<&Rate>) {
        (self.interval_us, self.burst) =
            rate.map_or((0, 1), |rate| (rate.interval_us(), rate.burst));
        (self.spent_until, self.queued_until) = (Timestamp::ZERO, Timestamp::ZERO);
    }

    /// Lets nothing begin before a time.
    pub fn close_until(&mut self, until: Timestamp) {
        self.spent_until = self.spent_until.max(until.plus(self.slack()));
    }

    /// When the next attempt may begin.
    pub fn next(&self, now: Timestamp) -> Timestamp {
        now.max(self.spent_until.minus(self.slack()))
    }

    /// Slots for attempts: first for those that were put back before, then for those that ask for the
    /// first time, which do not overtake the others.
    pub fn take(&mut self, now: Timestamp, put_back: usize, fresh: usize) -> Vec<RateSlot> {
        let interval = Duration::from_micros(self.interval_us);
        let soon = now.plus(GRACE);
        // Slots went by that nobody came for: those that they were for are gone, or late.
        if self.spent_until.plus(interval).plus(IDLE) < now {
            self.queued_until = self.queued_until.min(now);
        }
        let mut slots = Vec::with_capacity(put_back + fresh);
        for n in 0..put_back + fresh {
            let start = self.next(now);
            let overtakes = n >= put_back && self.queued_until > soon;
            if start <= soon && !overtakes {
                self.spent_until = self.spent_until.max(start).plus(interval);
                slots.push(RateSlot::At(start));
            } else {
                let (at, most) = (self.queued_until.max(start), start.plus(interval.max(AHEAD)));
                if at <= most {
                    self.queued_until = at.plus(interval);
                }
                slots.push(RateSlot::Later(at.min(most)));
            }
        }
        slots
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

    // The times at which attempts begin if `count` of them ask at once and ask again as they are told.
    fn begun(row: &mut RateRow, count: usize) -> Vec<Timestamp> {
        let mut begun = Vec::new();
        let mut asking = vec![(at(10_000), false); count];
        while !asking.is_empty() {
            asking.sort();
            let now = asking[0].0;
            let due: Vec<_> = asking.iter().filter(|(at, _)| *at == now).copied().collect();
            asking.retain(|(at, _)| *at > now);
            let put_back = due.iter().filter(|(_, put_back)| *put_back).count();
            for slot in row.take(now, put_back, due.len() - put_back) {
                match slot {
                    RateSlot::At(at) => begun.push(at),
                    RateSlot::Later(at) => asking.push((at, true)),
                }
            }
        }
        begun.sort_unstable();
        begun
    }

    #[test]
    fn never_more_than_the_rate_in_any_period_and_nothing_is_wasted() {
        let second = Duration::from_secs(1);
        for (count, burst) in [(20, 1), (20, 5), (3, 1), (1_000, 10)] {
            let begun = begun(&mut row(Rate::per(count, second).burst(burst)), 300);
            let most = (count + burst - 1) as usize;
            for window in begun.windows(most + 1) {
                assert!(window[most].since(window[0]) >= second, "{count} {burst}: {window:?}");
            }
            let took = begun[299].since(begun[0]).as_secs_f64();
            let least = f64::from(300 - burst) / f64::from(count);
            assert!((took - least).abs() < 0.01, "{count} {burst}: {took} instead of {least}");
        }
    }

    #[test]
    fn those_that_were_put_back_are_not_overtaken() {
        let mut row = row(Rate::per(1, Duration::from_secs(1)));
        let slots = row.take(at(0), 0, 3);
        assert_eq!(
            slots,
            [RateSlot::At(at(0)), RateSlot::Later(at(1_000)), RateSlot::Later(at(2_000))]
        );
        assert_eq!(row.take(at(990), 0, 1), [RateSlot::Later(at(3_000))]);
        assert_eq!(row.take(at(1_001), 1, 0), [RateSlot::At(at(1_001))]);
        assert_eq!(row.take(at(2_000), 1, 0), [RateSlot::At(at(2_001))], "a little early is kept");
    }

    #[test]
    fn those_that_never_come_back_hold_nobody_up() {
        let mut row = row(Rate::per(1, Duration::from_secs(1)));
        let slots = row.take(at(0), 0, 1_000);
        assert_eq!(slots[31..], [RateSlot::Later(at(31_000)); 969]);
        assert_eq!(row.take(at(1_500), 0, 1), [RateSlot::Later(at(31_500))], "they may be late");
        // All of them were called off.
        let slots = row.take(at(3_500), 0, 3);
        assert_eq!(
            slots,
            [RateSlot::At(at(3_500)), RateSlot::Later(at(4_500)), RateSlot::Later(at(5_500))]
        );
    }

    #[test]
    fn a_key_without_a_rate_can_be_closed() {
        let mut row = RateRow::new(Namespace::default_namespace(), LimitKey::new("k").unwrap());
        row.close_until(at(5_000));
        assert!(!row.is_idle(at(4_000)));
        assert_eq!(row.take(at(1_000), 1, 1), [RateSlot::Later(at(5_000)); 2]);
        assert!(row.is_idle(at(5_000)));
        assert_eq!(row.take(at(5_000), 2, 0), [RateSlot::At(at(5_000)); 2]);
        let mut row = super::tests::row(Rate::per(10, Duration::from_secs(1)).burst(4));
        row.close_until(at(5_000));
        assert_eq!(row.next(at(1_000)), at(5_000), "a burst does not open it");
    }

    #[test]
    fn rates_that_make_no_sense_are_refused_by_value() {
        let second = Duration::from_secs(1);
        let bad = [
            (Rate::per(0, second), "a rate of 0 in 1s"),
            (Rate::per(2_000_000, second), "a rate of 2000000 in 1s"),
            (Rate::per(1, 100_000 * second), "is 100000s"),
            (Rate::per(1, second).burst(0), "burst of a rate is 0"),
        ];
        for (rate, part) in bad {
            let error = rate.validate().unwrap_err();
            assert_eq!(error.code(), "INVALID_RATE");
            assert!(error.message().contains(part), "{}", error.message());
        }
        assert!(Rate::per(1_000_000, second).validate().is_ok());
    }
}
