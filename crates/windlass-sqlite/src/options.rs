//! The options of a store.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_kernel::{Clock, Error, ErrorCode, ErrorKind, Limits, Timestamp};

/// Makes a COMMIT or a checkpoint fail with this extended result code of SQLite.
pub type Fault = Arc<dyn Fn() -> Option<i32> + Send + Sync>;

/// Options of a [`SqliteStore`](crate::SqliteStore).
#[derive(Clone)]
pub struct Options {
    /// Read-only connections, each with its own thread. Default 4.
    pub readers: usize,
    /// The most commits in one transaction. Default 2,000.
    pub batch_commits_max: usize,
    /// The most calls that wait for the writer, and the most that wait for a reader. A further call fails
    /// with `STORE_UNAVAILABLE` and does nothing. Default 100,000.
    pub waiting_max: usize,
    /// The limits that commits and listings are checked against.
    pub limits: Limits,
    /// The clock at which the store's time begins, and which it approaches by at most 5 % of the
    /// time that passes. The store's time is never before its last commit. Default: the system clock.
    pub clock: Clock,
    /// A clock that nobody can set. It measures how much time passes; its zero does not matter.
    /// `None` uses `clock`, which must then never go back. Default: the monotonic clock, and on
    /// Linux also the time that the machine slept.
    pub elapsed: Option<Clock>,
    /// The page size of a new database, a power of two from 512 to 65,536. Default 4,096.
    pub page_bytes: u32,
    /// The page cache of the write connection. Default 16 MiB.
    pub cache_bytes: u64,
    /// Size of the write-ahead log at which a thread copies its pages into the database while
    /// commits continue. Default 32 MiB.
    pub wal_bytes_soft: u64,
    /// Size of the write-ahead log at which commits wait for that copy. Default 512 MiB.
    pub wal_bytes_hard: u64,
    /// The longest run time of the user SQL of one commit. Default 10 seconds.
    pub user_sql_max: Duration,
    /// Opens the store for inspection: the file must exist and have the schema of this build,
    /// nothing in it is changed, and writes are refused. `check` reports missing parts of the
    /// schema. Default `false`.
    pub inspect: bool,
    /// The most pages of the database, for tests of a full disk. Default: no limit.
    #[doc(hidden)]
    pub pages_max: Option<u32>,
    /// Injects failures of COMMIT, for tests.
    #[doc(hidden)]
    pub commit_fault: Option<Fault>,
    /// Injects failures of checkpoints, for tests. A checkpoint that fails this way copies nothing.
    #[doc(hidden)]
    pub checkpoint_fault: Option<Fault>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            readers: 4,
            batch_commits_max: 2_000,
            waiting_max: 100_000,
            limits: Limits::DEFAULT,
            clock: Arc::new(system_time),
            elapsed: Some(elapsed_time()),
            page_bytes: 4_096,
            cache_bytes: 16 << 20,
            wal_bytes_soft: 32 << 20,
            wal_bytes_hard: 512 << 20,
            user_sql_max: Duration::from_secs(10),
            inspect: false,
            pages_max: None,
            commit_fault: None,
            checkpoint_fault: None,
        }
    }
}

impl Options {
    /// Refuses invalid options.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse =
            |message: &str| Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
        if self.readers == 0 || self.readers > 64 {
            return refuse("readers must be 1 to 64");
        }
        if self.batch_commits_max == 0 {
            return refuse("batch_commits_max must be at least 1");
        }
        if self.waiting_max == 0 {
            return refuse("waiting_max must be at least 1");
        }
        if !self.page_bytes.is_power_of_two() || !(512..=65_536).contains(&self.page_bytes) {
            return refuse("page_bytes must be a power of two from 512 to 65,536");
        }
        if self.wal_bytes_hard < self.wal_bytes_soft {
            return refuse("wal_bytes_hard must not be less than wal_bytes_soft");
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("readers", &self.readers)
            .field("batch_commits_max", &self.batch_commits_max)
            .field("waiting_max", &self.waiting_max)
            .field("page_bytes", &self.page_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("wal_bytes_soft", &self.wal_bytes_soft)
            .field("wal_bytes_hard", &self.wal_bytes_hard)
            .field("user_sql_max", &self.user_sql_max)
            .field("inspect", &self.inspect)
            .finish_non_exhaustive()
    }
}

#[expect(clippy::disallowed_methods, reason = "the default of the `clock` option")]
fn system_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

// How often the time that the machine slept is read, and the least that counts.
const SLEEP_CHECK: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "the default of the `elapsed` option")]
fn elapsed_time() -> Clock {
    let (began, began_uptime) = (Instant::now(), uptime());
    let asleep_and_check = Mutex::new((Duration::ZERO, SLEEP_CHECK));
    Arc::new(move || {
        let awake = began.elapsed();
        let mut state = asleep_and_check.lock().unwrap_or_else(PoisonError::into_inner);
        let (asleep, check_at) = &mut *state;
        if awake >= *check_at {
            *check_at = awake + SLEEP_CHECK;
            if let (Some(from), Some(to)) = (began_uptime, uptime()) {
                let found = to.saturating_sub(from).saturating_sub(awake);
                if found > *asleep + SLEEP_CHECK {
                    *asleep = found;
                }
            }
        }
        Timestamp::ZERO.plus(awake + *asleep)
    })
}

// The time since the machine started. Unlike `Instant` it includes the time that the machine slept.
fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    Duration::try_from_secs_f64(text.split_whitespace().next()?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_never_goes_back() {
        let elapsed = elapsed_time();
        let first = elapsed();
        while elapsed() == first {}
        assert!(elapsed() > first);
        #[cfg(target_os = "linux")]
        assert!(uptime().is_some_and(|uptime| uptime > Duration::ZERO));
    }
}
