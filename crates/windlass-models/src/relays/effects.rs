//! What a step stores beside its outcome: written in the same commit, or not at all.

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;
use windlass_kernel::{Error, ErrorKind, RetryPolicy, RouteName, SqlValue, Statement};

/// How many effects one step may enqueue.
const EFFECTS_MAX: usize = 256;

/// What a task's body has beside its input: a policy and times.
const POLICY_BYTES: usize = 4 * 1024;

/// What a step stores beside its outcome. It is in the commit of the outcome, whether the run goes
/// on, succeeds, fails or is cancelled by it. What an attempt stored that is tried again is dropped.
#[derive(Debug)]
pub struct Effects {
    stored: Mutex<Stored>,
    bytes_max: usize,
}

/// What was stored.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub(crate) enqueued: Vec<Enqueued>,
    pub(crate) sql: Vec<Statement>,
}

impl Stored {
    pub(crate) fn is_empty(&self) -> bool {
        self.enqueued.is_empty() && self.sql.is_empty()
    }
}

/// An effect that a step wants.
#[derive(Debug)]
pub(crate) struct Enqueued {
    pub(crate) name: RouteName,
    pub(crate) input: Box<RawValue>,
    pub(crate) retry: RetryPolicy,
}

impl Effects {
    /// For a store that takes tasks of so many bytes.
    pub(crate) fn new(task_bytes_max: usize) -> Self {
        let bytes_max = task_bytes_max.saturating_sub(POLICY_BYTES);
        Self { stored: Mutex::default(), bytes_max }
    }

    /// Enqueues an effect: an outside side effect that a handler, registered with
    /// `Engine::serve_effects` under this name, delivers at least once.
    pub fn enqueue<T: Serialize + ?Sized>(
        &self,
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
    ) -> Result<(), Error> {
        let name = RouteName::new(name)?;
        retry.validate().map_err(|source| {
            let message = format!("the effect {name:?} has a policy that makes no sense: {source}");
            Error::new(ErrorKind::Invalid, "INVALID_OPTION", message)
        })?;
        let input = serde_json::value::to_raw_value(input).map_err(|source| {
            let message = "the input of an effect cannot be written as JSON";
            Error::new(ErrorKind::Invalid, "INVALID_BODY", message).with_source(source)
        })?;
        if input.get().len() > self.bytes_max {
            let message = format!(
                "the input of the effect {name:?} has {} bytes; at most {} are allowed",
                input.get().len(),
                self.bytes_max
            );
            return Err(Error::new(ErrorKind::Invalid, "INVALID_SIZE", message));
        }
        let mut stored = self.stored.lock();
        if stored.enqueued.len() >= EFFECTS_MAX {
            let message = format!("a step may enqueue at most {EFFECTS_MAX} effects");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_SIZE", message));
        }
        stored.enqueued.push(Enqueued { name, input, retry });
        Ok(())
    }

    /// Runs a statement of the application's own in the commit of the outcome, on the application's
    /// tables in the same database. A unique violation fails the step for good; any other error is
    /// tried again.
    pub fn sql(&self, sql: &str, params: Vec<SqlValue>) {
        self.stored.lock().sql.push(Statement { sql: sql.into(), params });
    }

    pub(crate) fn take(&self) -> Stored {
        std::mem::take(&mut *self.stored.lock())
    }
}
