//! Retry policies: which failure is retried, and after how long. Pure arithmetic.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::{IntoDuration, format_duration};

/// The longest delay between two attempts, regardless of policies and `Retry-After`: 365 days.
pub const DELAY_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The most error names that a policy may list.
pub const NON_RETRYABLE_NAMES_MAX: usize = 64;

/// The longest error name in a policy, in bytes.
pub const NON_RETRYABLE_NAME_BYTES_MAX: usize = 256;

/// The most delays that a policy may list.
pub const DELAYS_MAX: usize = 64;

const FACTOR_DEFAULT: f64 = 2.0;

/// The reasons why a policy is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A delay is longer than [`DELAY_MAX`].
    #[error("{field} is {}, the limit is 365 days; make it shorter", format_duration(*.value))]
    TooLong {
        /// `delay`, `max_delay` or `a listed delay`.
        field: &'static str,
        /// Its value.
        value: Duration,
    },
    /// A delay that was given as text is not a duration, or a delay is longer than any may be.
    #[error("{field}: {reason}")]
    Unreadable {
        /// `delay`, `max_delay` or `a listed delay`.
        field: &'static str,
        /// The reason, which names the text.
        reason: String,
    },
    /// A delay is not a whole number of milliseconds.
    #[error("{field} is {value:?}; policies keep whole milliseconds, so round it")]
    NotWholeMillis {
        /// `delay`, `max_delay` or `a listed delay`.
        field: &'static str,
        /// Its value.
        value: Duration,
    },
    /// The cap is below the delay it caps.
    #[error(
        "max_delay ({}) is below delay ({}); raise max_delay or lower delay",
        format_duration(*.max_delay), format_duration(*.delay)
    )]
    MaxBelowDelay {
        /// The delay before the first retry.
        delay: Duration,
        /// The cap.
        max_delay: Duration,
    },
    /// The growth factor is below 1 or not finite.
    #[error("the backoff factor is {0}; use a finite number of at least 1, such as 2")]
    Factor(f64),
    /// A factor was given for a backoff that does not use one.
    #[error(
        "a factor ({0}) is only valid with exponential backoff; remove it or change the backoff"
    )]
    FactorUnused(f64),
    /// A list of delays is empty or too long.
    #[error("the backoff lists {0} delays; list 1 to {DELAYS_MAX}")]
    Delays(usize),
    /// Delays were listed for a backoff that computes its own.
    #[error("{0} delays are listed; set the backoff to \"listed\" or remove them")]
    DelaysUnused(usize),
    /// The jitter is not between 0 and 1.
    #[error("jitter is {0}; use a fraction of the delay from 0 to 1, such as 0.1")]
    Jitter(f64),
    /// There are too many error names.
    #[error("non_retryable lists {0} names, the limit is {NON_RETRYABLE_NAMES_MAX}; list fewer")]
    TooManyNames(usize),
    /// An error name is empty or too long.
    #[error(
        "non_retryable has a name of {0} bytes; names have 1 to {NON_RETRYABLE_NAME_BYTES_MAX}"
    )]
    NameLength(usize),
}

/// How many retries may follow the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "LimitWire", into = "LimitWire")]
pub enum RetryLimit {
    /// This many retries; 0 means a single attempt.
    Times(u32),
    /// No limit.
    Forever,
}

impl From<u32> for RetryLimit {
    fn from(times: u32) -> Self {
        Self::Times(times)
    }
}

/// How the delay grows from one retry to the next.
#[derive(Debug, Clone, PartialEq)]
pub enum Backoff {
    /// The same delay each time.
    Constant,
    /// The delay times the number of failed attempts.
    Linear,
    /// The delay multiplied by the factor for each failed attempt after the first.
    Exponential {
        /// At least 1; 2 doubles the delay each time.
        factor: f64,
    },
    /// The listed delays one after the other, then the last one repeatedly. No delay is shorter
    /// than the policy's own `delay`.
    Listed(Vec<Duration>),
}

/// A policy for failed attempts.
///
/// As JSON, durations are whole milliseconds: `{"limit": 5, "delay_ms": 10000, "backoff":
/// "exponential", "factor": 2, "max_delay_ms": 60000, "jitter": 0.1, "non_retryable": []}`. Only
/// the first two members are required. `limit` may be `"forever"`. The backoff `"listed"` requires
/// `delays_ms`, a list. Deserializing validates the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PolicyWire", into = "PolicyWire")]
pub struct RetryPolicy {
    /// How many retries may follow the first attempt.
    pub limit: RetryLimit,
    /// The delay before the first retry, and the shortest before any retry.
    pub delay: Duration,
    /// How the delay grows.
    pub backoff: Backoff,
    /// The longest delay, jitter included; [`DELAY_MAX`] if absent.
    pub max_delay: Option<Duration>,
    /// The largest random addition, as a fraction of the delay from 0 to 1.
    pub jitter: f64,
    /// Names of errors that are not retried.
    pub non_retryable: Vec<String>,
    /// The first delay that was given as text and cannot be read. [`RetryPolicy::validate`] returns it.
    pub unreadable: Option<Error>,
}

/// The decision about a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Try again after this delay.
    RetryIn(Duration),
    /// This was the last attempt.
    GiveUp(GiveUpReason),
}

/// The reasons why there is no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GiveUpReason {
    /// The error is marked as not retryable.
    NotRetryable,
    /// The policy lists the error's name.
    NonRetryableName,
    /// The retry limit is reached.
    Exhausted,
}

impl RetryPolicy {
    /// A single attempt.
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// assert_eq!(RetryPolicy::none().attempts_max(), Some(1));
    /// ```
    pub const fn none() -> Self {
        Self::new(RetryLimit::Times(0), Duration::ZERO, Backoff::Constant)
    }

    /// The same delay before each retry. Delays are a [`Duration`] or a text; a text that is no
    /// duration makes the policy invalid, see [`RetryPolicy::validate`].
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::constant(RetryLimit::Times(3), "1 second");
    /// assert_eq!(policy.attempts_max(), Some(4));
    /// assert!(RetryPolicy::constant(RetryLimit::Times(3), "soon").validate().is_err());
    /// ```
    pub fn constant(limit: RetryLimit, delay: impl IntoDuration) -> Self {
        Self::with_delay(limit, delay, Backoff::Constant)
    }

    /// A delay that grows by the same amount with each retry.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::linear(RetryLimit::Times(3), Duration::from_secs(1));
    /// assert_eq!(policy.next_delay(2, 0), Some(Duration::from_secs(2)));
    /// ```
    pub fn linear(limit: RetryLimit, delay: impl IntoDuration) -> Self {
        Self::with_delay(limit, delay, Backoff::Linear)
    }

    /// A delay that doubles with each retry.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::exponential(RetryLimit::Forever, Duration::from_secs(1));
    /// assert_eq!(policy.next_delay(3, 0), Some(Duration::from_secs(4)));
    /// ```
    pub fn exponential(limit: RetryLimit, delay: impl IntoDuration) -> Self {
        Self::with_delay(limit, delay, Backoff::Exponential { factor: FACTOR_DEFAULT })
    }

    /// As [`RetryPolicy::exponential`] with a cap, for constants.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// const POLICY: RetryPolicy = RetryPolicy::exponential_const(
    ///     RetryLimit::Times(5),
    ///     Duration::from_secs(1),
    ///     Some(Duration::from_secs(60)),
    /// );
    /// assert_eq!(POLICY, RetryPolicy::exponential(RetryLimit::Times(5), "1s").with_max_delay("1m"));
    /// ```
    pub const fn exponential_const(
        limit: RetryLimit,
        delay: Duration,
        max_delay: Option<Duration>,
    ) -> Self {
        let mut policy = Self::new(limit, delay, Backoff::Exponential { factor: FACTOR_DEFAULT });
        policy.max_delay = max_delay;
        policy
    }

    /// The default of webhooks: ten attempts within about three days, with the delays that Standard
    /// Webhooks recommends, lengthened by up to 10 %.
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// assert_eq!(RetryPolicy::webhooks().attempts_max(), Some(10));
    /// ```
    pub fn webhooks() -> Self {
        const MINUTE: u64 = 60;
        const HOUR: u64 = 60 * MINUTE;
        let seconds = [5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR]
            .into_iter()
            .chain([20 * HOUR, 24 * HOUR]);
        Self::listed(seconds.map(Duration::from_secs)).with_jitter(0.1)
    }

    /// As many retries as there are delays.
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::listed(["1 second", "10 seconds"]);
    /// assert_eq!(policy.attempts_max(), Some(3));
    /// ```
    pub fn listed(delays: impl IntoIterator<Item = impl IntoDuration>) -> Self {
        let mut policy = Self::new(RetryLimit::Times(0), Duration::ZERO, Backoff::Constant);
        let read = |delay| policy.read("a listed delay", delay);
        let delays: Vec<Duration> = delays.into_iter().map(read).collect();
        policy.limit = RetryLimit::Times(u32::try_from(delays.len()).unwrap_or(u32::MAX));
        policy.backoff = Backoff::Listed(delays);
        policy
    }

    /// Sets the cap on delays.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::exponential(RetryLimit::Forever, "1 second");
    /// let policy = policy.with_max_delay("1 minute");
    /// assert_eq!(policy.next_delay(20, 0), Some(Duration::from_secs(60)));
    /// ```
    pub fn with_max_delay(mut self, max_delay: impl IntoDuration) -> Self {
        self.max_delay = Some(self.read("max_delay", max_delay));
        self
    }

    /// Lengthens delays by a random amount, up to this fraction of the delay.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::constant(RetryLimit::Forever, Duration::from_secs(1)).with_jitter(0.1);
    /// assert!(policy.next_delay(1, 7) >= Some(Duration::from_secs(1)));
    /// ```
    pub const fn with_jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the names of errors that are not retried.
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::none().with_non_retryable(["Declined"]);
    /// assert!(!policy.is_retryable("Declined"));
    /// ```
    pub fn with_non_retryable<N: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        self.non_retryable = names.into_iter().map(Into::into).collect();
        self
    }

    /// The most attempts, including the first; `None` if there is no limit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::constant(RetryLimit::Forever, Duration::from_secs(1));
    /// assert_eq!(policy.attempts_max(), None);
    /// ```
    pub const fn attempts_max(&self) -> Option<u32> {
        match self.limit {
            RetryLimit::Times(times) => Some(times.saturating_add(1)),
            RetryLimit::Forever => None,
        }
    }

    /// Checks that the fields are valid together. Deserializing a policy runs this check.
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::none().with_jitter(2.0);
    /// assert!(policy.validate().is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// The first field that is not valid.
    pub fn validate(&self) -> Result<(), Error> {
        if let Some(unreadable) = &self.unreadable {
            return Err(unreadable.clone());
        }
        let listed = match &self.backoff {
            Backoff::Listed(delays) if !(1..=DELAYS_MAX).contains(&delays.len()) => {
                return Err(Error::Delays(delays.len()));
            }
            Backoff::Listed(delays) => delays.as_slice(),
            _ => &[],
        };
        let own = [("delay", Some(self.delay)), ("max_delay", self.max_delay)];
        let own = own.into_iter().filter_map(|(field, value)| Some((field, value?)));
        for (field, value) in own.chain(listed.iter().map(|delay| ("a listed delay", *delay))) {
            if value > DELAY_MAX {
                return Err(Error::TooLong { field, value });
            }
            if !value.subsec_nanos().is_multiple_of(1_000_000) {
                return Err(Error::NotWholeMillis { field, value });
            }
        }
        let delay = self.delay;
        if let Some(max_delay) = self.max_delay.filter(|max| *max < delay) {
            return Err(Error::MaxBelowDelay { delay, max_delay });
        }
        if let Backoff::Exponential { factor } = self.backoff
            && !(factor.is_finite() && factor >= 1.0)
        {
            return Err(Error::Factor(factor));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(Error::Jitter(self.jitter));
        }
        if self.non_retryable.len() > NON_RETRYABLE_NAMES_MAX {
            return Err(Error::TooManyNames(self.non_retryable.len()));
        }
        let lengths = 1..=NON_RETRYABLE_NAME_BYTES_MAX;
        match self.non_retryable.iter().map(String::len).find(|n| !lengths.contains(n)) {
            Some(length) => Err(Error::NameLength(length)),
            None => Ok(()),
        }
    }

    /// The delay after attempt number `attempt` (from 1) has failed, or `None` if it was the last.
    ///
    /// The same seed and attempt give the same delay, so use a different seed for each run or task.
    /// Jitter only lengthens a delay, and the cap includes jitter: delays that have grown to the cap
    /// are spread below it, so that tasks that failed together do not come back together. No delay
    /// is below the first one. An invalid policy gives a useless delay but does not panic.
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// assert_eq!(RetryPolicy::none().next_delay(1, 0), None);
    /// ```
    pub fn next_delay(&self, attempt: u32, seed: u64) -> Option<Duration> {
        let attempt = attempt.max(1);
        match self.limit {
            RetryLimit::Times(times) if attempt > times => return None,
            RetryLimit::Times(_) | RetryLimit::Forever => {}
        }
        let delay = whole_micros(self.delay);
        let grown = match &self.backoff {
            Backoff::Constant => delay,
            Backoff::Linear => delay.saturating_mul(u64::from(attempt)),
            // Rounded up, so that a fraction of a microsecond does not fall below the delay. A cast
            // from a float beyond u64 gives u64::MAX, from NaN 0.
            Backoff::Exponential { factor } => {
                (delay as f64 * power(*factor, attempt - 1)).ceil() as u64
            }
            Backoff::Listed(delays) => {
                let nth = delays.get(attempt as usize - 1).or(delays.last());
                whole_micros(nth.copied().unwrap_or_default())
            }
        };
        let ceiling = whole_micros(self.max_delay.unwrap_or(DELAY_MAX).min(DELAY_MAX));
        let below_ceiling = (ceiling as f64 / (1.0 + self.jitter)) as u64;
        let base = grown.min(below_ceiling).max(delay);
        let extra = (base as f64 * self.jitter * unit(seed, attempt)) as u64;
        let micros = base.saturating_add(extra).min(ceiling);
        Some(Duration::from_micros(micros))
    }

    /// Whether the policy allows retries of this error name. Names must match exactly.
    ///
    /// ```
    /// # use windlass_kernel::{RetryLimit, RetryPolicy};
    /// assert!(RetryPolicy::none().is_retryable("Declined"));
    /// ```
    pub fn is_retryable(&self, error_name: &str) -> bool {
        !self.non_retryable.iter().any(|name| name == error_name)
    }

    /// Decides about the failure of attempt number `attempt` (from 1).
    ///
    /// `retryable` is the error's own property. `retry_after` is the delay that the called service
    /// asked for. It can raise the delay above the policy's cap, because an earlier attempt would
    /// be wasted; [`DELAY_MAX`] still applies.
    pub fn decide(
        &self,
        attempt: u32,
        error_name: &str,
        retryable: bool,
        retry_after: Option<Duration>,
        seed: u64,
    ) -> Decision {
        if !retryable {
            return Decision::GiveUp(GiveUpReason::NotRetryable);
        }
        if !self.is_retryable(error_name) {
            return Decision::GiveUp(GiveUpReason::NonRetryableName);
        }
        match self.next_delay(attempt, seed) {
            Some(delay) => {
                let requested = retry_after.unwrap_or_default().min(DELAY_MAX);
                Decision::RetryIn(delay.max(requested))
            }
            None => Decision::GiveUp(GiveUpReason::Exhausted),
        }
    }

    const fn new(limit: RetryLimit, delay: Duration, backoff: Backoff) -> Self {
        let non_retryable = Vec::new();
        let (max_delay, jitter) = (None, 0.0);
        Self { limit, delay, backoff, max_delay, jitter, non_retryable, unreadable: None }
    }

    fn with_delay(limit: RetryLimit, delay: impl IntoDuration, backoff: Backoff) -> Self {
        let mut policy = Self::new(limit, Duration::ZERO, backoff);
        policy.delay = policy.read("delay", delay);
        policy
    }

    // Zero in place of a text that is no duration. The policy is invalid then.
    fn read(&mut self, field: &'static str, delay: impl IntoDuration) -> Duration {
        delay.into_duration().unwrap_or_else(|error| {
            let unreadable = Error::Unreadable { field, reason: error.to_string() };
            self.unreadable.get_or_insert(unreadable);
            Duration::ZERO
        })
    }
}

fn whole_micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}

/// `base` to the power `exponent` by squaring. The last bits of the standard `powi` may differ
/// between platforms; products of doubles do not.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            product *= base;
        }
        base *= base;
        exponent /= 2;
    }
    product
}

/// A pseudo-random number in `[0, 1)`: the output of splitmix64 (Steele, Lea and Flood 2014)
/// `attempt` steps after the seed, its upper 53 bits as a fraction.
fn unit(seed: u64, attempt: u32) -> f64 {
    let step = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(u64::from(attempt));
    let mut z = seed.wrapping_add(step);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 11) as f64 / (1_u64 << 53) as f64
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a limit is a whole number of retries or \"forever\"")]
enum LimitWire {
    Times(u32),
    Word(LimitWord),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LimitWord {
    Forever,
}

impl From<LimitWire> for RetryLimit {
    fn from(wire: LimitWire) -> Self {
        match wire {
            LimitWire::Times(times) => Self::Times(times),
            LimitWire::Word(LimitWord::Forever) => Self::Forever,
        }
    }
}

impl From<RetryLimit> for LimitWire {
    fn from(limit: RetryLimit) -> Self {
        match limit {
            RetryLimit::Times(times) => Self::Times(times),
            RetryLimit::Forever => Self::Word(LimitWord::Forever),
        }
    }
}

/// The JSON form of a policy. Unknown fields are refused, because a misspelled field would silently
/// change retries.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyWire {
    limit: RetryLimit,
    delay_ms: u64,
    #[serde(default)]
    backoff: BackoffWire,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    delays_ms: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_delay_ms: Option<u64>,
    #[serde(default)]
    jitter: f64,
    #[serde(default)]
    non_retryable: Vec<String>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum BackoffWire {
    Constant,
    Linear,
    #[default]
    Exponential,
    Listed,
}

impl TryFrom<PolicyWire> for RetryPolicy {
    type Error = Error;

    fn try_from(wire: PolicyWire) -> Result<Self, Error> {
        let backoff = match (wire.backoff, wire.factor) {
            (BackoffWire::Exponential, factor) => {
                Backoff::Exponential { factor: factor.unwrap_or(FACTOR_DEFAULT) }
            }
            (_, Some(factor)) => return Err(Error::FactorUnused(factor)),
            (BackoffWire::Constant, None) => Backoff::Constant,
            (BackoffWire::Linear, None) => Backoff::Linear,
            (BackoffWire::Listed, None) => {
                Backoff::Listed(wire.delays_ms.iter().copied().map(Duration::from_millis).collect())
            }
        };
        if !matches!(backoff, Backoff::Listed(_)) && !wire.delays_ms.is_empty() {
            return Err(Error::DelaysUnused(wire.delays_ms.len()));
        }
        let policy = Self {
            limit: wire.limit,
            delay: Duration::from_millis(wire.delay_ms),
            backoff,
            max_delay: wire.max_delay_ms.map(Duration::from_millis),
            jitter: wire.jitter,
            non_retryable: wire.non_retryable,
            unreadable: None,
        };
        policy.validate()?;
        Ok(policy)
    }
}

impl From<RetryPolicy> for PolicyWire {
    fn from(policy: RetryPolicy) -> Self {
        let millis = |duration: Duration| duration.as_millis().try_into().unwrap_or(u64::MAX);
        let mut delays_ms = Vec::new();
        let (backoff, factor) = match policy.backoff {
            Backoff::Constant => (BackoffWire::Constant, None),
            Backoff::Linear => (BackoffWire::Linear, None),
            Backoff::Exponential { factor } => (BackoffWire::Exponential, Some(factor)),
            Backoff::Listed(delays) => {
                delays_ms = delays.into_iter().map(millis).collect();
                (BackoffWire::Listed, None)
            }
        };
        Self {
            limit: policy.limit,
            delay_ms: millis(policy.delay),
            backoff,
            factor,
            delays_ms,
            max_delay_ms: policy.max_delay.map(millis),
            jitter: policy.jitter,
            non_retryable: policy.non_retryable,
        }
    }
}

#[cfg(test)]
mod tests;
