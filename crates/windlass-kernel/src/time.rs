//! Points in time of the store's clock: microseconds since 1970.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time, in microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z, earlier than any time in a store.
    pub const ZERO: Timestamp = Timestamp(0);

    /// From microseconds since 1970.
    ///
    /// ```
    /// # use windlass_kernel::Timestamp;
    /// assert_eq!(Timestamp::from_micros(1_500).as_millis(), 1);
    /// ```
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From milliseconds since 1970.
    ///
    /// ```
    /// # use windlass_kernel::Timestamp;
    /// assert_eq!(Timestamp::from_millis(1_500).to_string(), "1970-01-01T00:00:01.5Z");
    /// ```
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Microseconds since 1970.
    ///
    /// ```
    /// # use windlass_kernel::Timestamp;
    /// assert_eq!(Timestamp::from_millis(1).as_micros(), 1_000);
    /// ```
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since 1970, rounded down.
    ///
    /// ```
    /// # use windlass_kernel::Timestamp;
    /// assert_eq!(Timestamp::from_millis(7).as_millis(), 7);
    /// ```
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// This time plus `span`; the largest timestamp if that overflows.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::Timestamp;
    /// assert_eq!(Timestamp::ZERO.plus(Duration::from_millis(5)), Timestamp::from_millis(5));
    /// ```
    pub fn plus(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// This time minus `span`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::Timestamp;
    /// assert_eq!(Timestamp::from_millis(5).minus(Duration::from_millis(5)), Timestamp::ZERO);
    /// ```
    pub fn minus(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// The time since `earlier`; zero if this is not later.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_kernel::Timestamp;
    /// assert_eq!(Timestamp::from_millis(5).since(Timestamp::ZERO), Duration::from_millis(5));
    /// ```
    pub fn since(self, earlier: Timestamp) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
