//! Circuit breakers decide whether a service may be called now. A breaker is a pure state machine
//! over a small value that all processes share. The store keeps the value and replaces it by
//! compare-and-swap on its version.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{LimitKey, Namespace, WorkerKey};
use crate::rows::BreakerStatus;
use crate::time::Timestamp;

/// The most failures that a breaker remembers.
const FAILURES_KEPT: usize = 1_000;

/// When a breaker opens and closes. As JSON, durations are whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerPolicy {
    /// The breaker opens after this many failures within the window. Default 5.
    pub failures_max: u32,
    /// How long a failure counts. Default one minute.
    pub window_ms: u64,
    /// How long the breaker stays open before it allows a probe. Default 30 s.
    pub reset_ms: u64,
    /// The breaker closes after this many successful probes in a row. Default 2.
    pub successes_min: u32,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self { failures_max: 5, window_ms: 60_000, reset_ms: 30_000, successes_min: 2 }
    }
}

impl BreakerPolicy {
    /// Checks every setting; the error names the setting and its value.
    pub fn validate(&self) -> Result<(), Error> {
        let bounds = [
            ("failure_threshold", u64::from(self.failures_max), FAILURES_KEPT as u64),
            ("success_threshold", u64::from(self.successes_min), 1_000),
            ("window_size in milliseconds", self.window_ms, 86_400_000),
            ("reset_timeout in milliseconds", self.reset_ms, 86_400_000),
        ];
        match bounds.iter().find(|(_, value, max)| *value == 0 || value > max) {
            None => Ok(()),
            Some((name, value, max)) => {
                let message = format!("the {name} of a circuit breaker is {value}; use 1 to {max}");
                Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidBreaker, message))
            }
        }
    }
}

/// The stored form of a breaker. Stores do not parse `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerRow {
    /// The namespace.
    pub namespace: Namespace,
    /// The key of the service that is called.
    pub key: LimitKey,
    /// Whether the breaker allows calls.
    pub status: BreakerStatus,
    /// When the breaker may allow a call again.
    pub retry_at: Option<Timestamp>,
    /// The [`Breaker`], as JSON.
    pub data: Body,
    /// Rises by one with every change; the first version is 1.
    pub version: u64,
    /// When it last changed, by the store's clock.
    pub updated_at: Timestamp,
}

impl BreakerRow {
    /// How long the row of an unused breaker is kept.
    pub const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

    /// Whether a store deletes the row: the breaker is closed and has not changed for a day, so it
    /// says the same as no row.
    pub fn is_old(&self, now: Timestamp) -> bool {
        self.status == BreakerStatus::Closed && now > self.updated_at.plus(Self::KEPT_FOR)
    }
}

/// The breaker's answer to a worker that wants to make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Make the call.
    Call,
    /// Make the call as the only one. Its result changes the breaker if it arrives before the probe
    /// expires.
    Probe(Probe),
    /// Do not call before this time.
    Wait(Timestamp),
}

/// The state machine of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    #[serde(with = "status_word")]
    status: BreakerStatus,
    failures_us: Vec<i64>,
    successes: u32,
    retry_at_us: Option<i64>,
    probe: Option<Probe>,
    // The called service asked for no calls before this time (for example by `Retry-After`).
    wait_until_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened_at_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    half_open_at_us: Option<i64>,
}

/// The single call that is allowed while a breaker is half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    worker: WorkerKey,
    // The probe expires at this time, so that a crashed worker does not keep the breaker half open.
    until_us: i64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            status: BreakerStatus::Closed,
            failures_us: Vec::new(),
            successes: 0,
            retry_at_us: None,
            probe: None,
            wait_until_us: None,
            opened_at_us: None,
            half_open_at_us: None,
        }
    }
}

impl Breaker {
    /// Decodes a row. A missing row is a closed breaker.
    pub fn of(row: Option<&BreakerRow>) -> Result<Self, Error> {
        row.map_or_else(|| Ok(Self::default()), |row| row.data.read())
    }

    /// Builds the row that replaces `before`.
    pub fn row(
        &self,
        namespace: Namespace,
        key: LimitKey,
        before: Option<&BreakerRow>,
        now: Timestamp,
    ) -> Result<BreakerRow, Error> {
        Ok(BreakerRow {
            namespace,
            key,
            status: self.status,
            retry_at: self.retry_at_us.max(self.wait_until_us).map(Timestamp::from_micros),
            data: Body::of(self)?,
            version: before.map_or(0, |row| row.version) + 1,
            updated_at: now,
        })
    }

    /// The current status.
    pub fn status(&self) -> BreakerStatus {
        self.status
    }

    /// How many failures the breaker counts: those within the window, or those that opened it.
    pub fn failures(&self) -> usize {
        self.failures_us.len()
    }

    /// The time of the newest counted failure.
    pub fn last_failure(&self) -> Option<Timestamp> {
        self.failures_us.last().copied().map(Timestamp::from_micros)
    }

    /// When the breaker opened last, if it has not closed since.
    pub fn opened_at(&self) -> Option<Timestamp> {
        self.opened_at_us.map(Timestamp::from_micros)
    }

    /// When the breaker became half open, if it has neither opened nor closed since.
    pub fn half_open_at(&self) -> Option<Timestamp> {
        self.half_open_at_us.map(Timestamp::from_micros)
    }

    /// How many probes in a row have succeeded.
    pub fn successes(&self) -> u32 {
        self.successes
    }

    /// Decides whether a worker may call now. `attempt_max` is the longest that its probe may take.
    pub fn permit(
        &mut self,
        policy: &BreakerPolicy,
        worker: WorkerKey,
        attempt_max: Duration,
        now: Timestamp,
    ) -> Permit {
        if let Some(until) = self.wait_until_us.map(Timestamp::from_micros) {
            if until > now {
                return Permit::Wait(until);
            }
            self.wait_until_us = None;
        }
        let retry_at = self.retry_at_us.map(Timestamp::from_micros);
        match self.status {
            BreakerStatus::Closed => return Permit::Call,
            BreakerStatus::Open => {
                if let Some(at) = retry_at.filter(|at| *at > now) {
                    return Permit::Wait(at);
                }
                (self.status, self.successes, self.probe) = (BreakerStatus::HalfOpen, 0, None);
                self.half_open_at_us = Some(now.as_micros());
            }
            BreakerStatus::HalfOpen => {
                let probe = self.probe.as_ref().map(|probe| Timestamp::from_micros(probe.until_us));
                // The worker of the probe releases the waiting tasks when it has a result. This is the
                // time of those that it misses.
                if let Some(until) = probe.filter(|until| *until > now) {
                    let again = now.plus(Duration::from_millis(policy.reset_ms));
                    return Permit::Wait(again.min(until));
                }
            }
        }
        let until = now.plus(attempt_max.max(Duration::from_millis(policy.reset_ms)));
        let probe = Probe { worker, until_us: until.as_micros() };
        self.probe = Some(probe);
        Permit::Probe(probe)
    }

    /// Records a failed call.
    pub fn failed(&mut self, policy: &BreakerPolicy, permit: Permit, now: Timestamp) {
        match self.status {
            BreakerStatus::HalfOpen if self.is_probe(permit) => {
                if self.failures_us.len() >= FAILURES_KEPT {
                    self.failures_us.remove(0);
                }
                self.failures_us.push(now.as_micros());
                self.open(policy, now);
            }
            BreakerStatus::Closed => {
                let since = now.minus(Duration::from_millis(policy.window_ms)).as_micros();
                self.failures_us.retain(|at| *at > since);
                self.failures_us.push(now.as_micros());
                if self.failures_us.len() >= policy.failures_max as usize {
                    self.open(policy, now);
                }
            }
            // The call began before the breaker opened, or another probe has replaced this one. The
            // result is out of date.
            _ => {}
        }
    }

    /// Records a successful call.
    pub fn succeeded(&mut self, policy: &BreakerPolicy, permit: Permit) {
        if self.status != BreakerStatus::HalfOpen || !self.is_probe(permit) {
            return;
        }
        self.probe = None;
        self.successes += 1;
        if self.successes >= policy.successes_min {
            *self = Self { wait_until_us: self.wait_until_us, ..Self::default() };
        }
    }

    /// Records that the called service asked for no calls before `until`.
    pub fn wait_until(&mut self, permit: Permit, until: Timestamp) {
        self.wait_until_us = self.wait_until_us.max(Some(until.as_micros()));
        self.not_called(permit);
    }

    /// Releases a permit whose call was not made, or whose result does not count.
    pub fn not_called(&mut self, permit: Permit) {
        if self.is_probe(permit) {
            self.probe = None;
        }
    }

    // Whether the permit is the current probe, and not one that has expired and been replaced.
    fn is_probe(&self, permit: Permit) -> bool {
        matches!(permit, Permit::Probe(probe) if self.probe == Some(probe))
    }

    fn open(&mut self, policy: &BreakerPolicy, now: Timestamp) {
        let retry_at = now.plus(Duration::from_millis(policy.reset_ms));
        self.status = BreakerStatus::Open;
        self.retry_at_us = Some(retry_at.as_micros());
        (self.successes, self.probe) = (0, None);
        (self.opened_at_us, self.half_open_at_us) = (Some(now.as_micros()), None);
    }
}

mod status_word {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::rows::BreakerStatus;

    pub(super) fn serialize<S: Serializer>(word: &BreakerStatus, to: S) -> Result<S::Ok, S::Error> {
        word.as_str().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BreakerStatus, D::Error> {
        let word = String::deserialize(from)?;
        BreakerStatus::parse(&word).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerKey = WorkerKey(uuid::Uuid::from_u128(1));
    const B: WorkerKey = WorkerKey(uuid::Uuid::from_u128(2));

    fn policy() -> BreakerPolicy {
        BreakerPolicy { failures_max: 3, window_ms: 10_000, reset_ms: 5_000, successes_min: 2 }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO.plus(Duration::from_secs(seconds))
    }

    fn permit_text(breaker: &mut Breaker, worker: WorkerKey, seconds: u64) -> String {
        match breaker.permit(&policy(), worker, Duration::from_secs(1), at(seconds)) {
            Permit::Wait(until) => format!("wait {} ms", until.since(at(seconds)).as_millis()),
            Permit::Call => "call".to_owned(),
            Permit::Probe(_) => "probe".to_owned(),
        }
    }

    fn probe(breaker: &mut Breaker, worker: WorkerKey, seconds: u64) -> Permit {
        let permit = breaker.permit(&policy(), worker, Duration::from_secs(1), at(seconds));
        assert!(matches!(permit, Permit::Probe(_)), "{permit:?}");
        permit
    }

    fn record_failure(breaker: &mut Breaker, permit: Permit, seconds: u64) {
        breaker.failed(&policy(), permit, at(seconds));
    }

    #[test]
    fn failures_within_the_window_open_the_breaker() {
        let mut breaker = Breaker::default();
        for seconds in [0, 6, 12, 18, 24] {
            record_failure(&mut breaker, Permit::Call, seconds);
            assert_eq!(permit_text(&mut breaker, A, seconds), "call");
        }
        record_failure(&mut breaker, Permit::Call, 25);
        assert_eq!(breaker.status(), BreakerStatus::Open);
        assert_eq!(permit_text(&mut breaker, A, 26), "wait 4000 ms");
        record_failure(&mut breaker, Permit::Call, 29);
        assert_eq!(
            permit_text(&mut breaker, A, 29),
            "wait 1000 ms",
            "a late failure changes nothing"
        );
    }

    fn open_breaker() -> Breaker {
        let mut breaker = Breaker::default();
        (0..3).for_each(|_| record_failure(&mut breaker, Permit::Call, 0));
        breaker
    }

    #[test]
    fn successful_probes_one_at_a_time_close_the_breaker() {
        let mut breaker = open_breaker();
        let first = probe(&mut breaker, A, 5);
        assert_eq!(permit_text(&mut breaker, B, 5), "wait 5000 ms");
        breaker.succeeded(&policy(), Permit::Call);
        assert_eq!(permit_text(&mut breaker, B, 5), "wait 5000 ms", "only the probe counts");
        breaker.succeeded(&policy(), first);
        let second = probe(&mut breaker, B, 6);
        breaker.succeeded(&policy(), second);
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn a_failed_probe_opens_the_breaker_again() {
        let mut breaker = open_breaker();
        let first = probe(&mut breaker, A, 5);
        assert_eq!((breaker.opened_at(), breaker.half_open_at()), (Some(at(0)), Some(at(5))));
        record_failure(&mut breaker, first, 6);
        assert_eq!(permit_text(&mut breaker, B, 6), "wait 5000 ms");
        assert_eq!((breaker.failures(), breaker.last_failure()), (4, Some(at(6))));
        assert_eq!((breaker.opened_at(), breaker.half_open_at()), (Some(at(6)), None));
    }

    #[test]
    fn a_probe_without_a_result_expires() {
        let mut breaker = open_breaker();
        let first = probe(&mut breaker, A, 5);
        assert_eq!(permit_text(&mut breaker, B, 9), "wait 1000 ms", "until it expires");
        let second = probe(&mut breaker, B, 10);
        let before = breaker.clone();
        breaker.succeeded(&policy(), first);
        breaker.not_called(first);
        record_failure(&mut breaker, first, 11);
        assert_eq!(breaker, before, "the result arrived after the probe expired");
        breaker.not_called(second);
        assert_eq!(
            permit_text(&mut breaker, A, 11),
            "probe",
            "a released probe is free for others"
        );
    }

    #[test]
    fn wait_until_delays_calls() {
        let mut breaker = Breaker::default();
        breaker.wait_until(Permit::Call, at(7));
        breaker.wait_until(Permit::Call, at(3));
        assert_eq!(permit_text(&mut breaker, A, 2), "wait 5000 ms");
        assert_eq!(permit_text(&mut breaker, A, 7), "call");
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn rows_keep_the_state() {
        let breaker = open_breaker();
        let key = LimitKey::new("k").unwrap();
        let row = breaker.row(Namespace::default_namespace(), key.clone(), None, at(1)).unwrap();
        assert_eq!((row.version, row.status, row.retry_at), (1, BreakerStatus::Open, Some(at(5))));
        assert_eq!(Breaker::of(Some(&row)).unwrap(), breaker);
        let next = breaker.row(Namespace::default_namespace(), key, Some(&row), at(2)).unwrap();
        assert_eq!(next.version, 2);
        assert_eq!(Breaker::of(None).unwrap(), Breaker::default());
    }
}
