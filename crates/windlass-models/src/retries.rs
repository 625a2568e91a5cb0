//! How often a failed attempt is repeated, in all models.

use windlass_kernel::RetryLimit;

/// How often a step or an activity is tried again after its first attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retries {
    /// So many times after the first attempt.
    Times(u32),
    /// Without end.
    Forever,
}

impl From<u32> for Retries {
    fn from(times: u32) -> Self {
        Self::Times(times)
    }
}

impl Retries {
    pub(crate) fn limit(self) -> RetryLimit {
        match self {
            Self::Times(times) => RetryLimit::Times(times),
            Self::Forever => RetryLimit::Forever,
        }
    }
}
