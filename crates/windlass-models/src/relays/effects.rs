//! Data that a step stores beside its outcome: written in the same commit, or not at all.

use parking_lot::Mutex;
use serde::Serialize;
use windlass_kernel::{Error, Limits, RetryPolicy, SqlValue, Statement};

use crate::effects::{EFFECTS_MAX, Effect, too_much};

/// Data that a step stores beside its outcome. It is in the commit of the outcome, whether the run goes
/// on, succeeds, fails or is cancelled by it. What an attempt stored that is tried again is dropped.
#[derive(Debug)]
pub struct Effects {
    stored: Mutex<Stored>,
    limits: EffectLimits,
}

/// The limits of a store for effects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EffectLimits {
    task_bytes: usize,
    statements: usize,
    sql_bytes: usize,
}

impl From<&Limits> for EffectLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            task_bytes: limits.task_bytes_max,
            statements: limits.user_sql_statements_max,
            sql_bytes: limits.user_sql_bytes_max,
        }
    }
}

/// The stored data.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub(crate) enqueued: Vec<Effect>,
    pub(crate) sql: Vec<Statement>,
    sql_bytes: usize,
}

impl Effects {
    /// For a store with these limits.
    pub(crate) fn new(limits: EffectLimits) -> Self {
        Self { stored: Mutex::default(), limits }
    }

    /// Enqueues an effect: an outside side effect that a handler, registered with
    /// `Engine::serve_effects` under this name, delivers at least once.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, RelayStep, StepOutcome};
    /// # async fn example(step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// step.effects.enqueue("mail", "the report is written", windlass::RetryPolicy::none())?;
    /// Ok(StepOutcome::done("written"))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The name or the policy is not valid, the input is too large, or the step has enqueued too many effects.
    pub fn enqueue<T: Serialize + ?Sized>(
        &self,
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
    ) -> Result<(), Error> {
        let effect = Effect::new(name, input, retry, self.limits.task_bytes)?;
        let mut stored = self.stored.lock();
        if stored.enqueued.len() >= EFFECTS_MAX {
            return Err(too_much(format!("a step may enqueue at most {EFFECTS_MAX} effects")));
        }
        stored.enqueued.push(effect);
        Ok(())
    }

    /// Runs a statement of the application's own in the commit of the outcome, on the application's
    /// tables in the same database. A unique violation fails the step for good; any other error is
    /// tried again. More than a commit can take is refused here.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, RelayStep, StepOutcome};
    /// # async fn example(step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// use windlass::SqlValue;
    ///
    /// let paid = vec![SqlValue::Bool(true)];
    /// step.effects.sql("UPDATE orders SET paid = ?1", paid)?;
    /// Ok(StepOutcome::done("written"))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The step has too many statements, or they are too large.
    pub fn sql(&self, sql: &str, params: Vec<SqlValue>) -> Result<(), Error> {
        let value = |value: &SqlValue| match value {
            SqlValue::Text(text) => text.len(),
            SqlValue::Bytes(bytes) => bytes.len(),
            _ => 8,
        };
        let bytes = sql.len() + params.iter().map(value).sum::<usize>();
        let EffectLimits { statements, sql_bytes, .. } = self.limits;
        let mut stored = self.stored.lock();
        if stored.sql.len() >= statements {
            return Err(too_much(format!("a step may run at most {statements} statements")));
        }
        if stored.sql_bytes + bytes > sql_bytes {
            return Err(too_much(format!(
                "the step's SQL has {} bytes with this statement; at most {sql_bytes} are allowed",
                stored.sql_bytes + bytes
            )));
        }
        stored.sql_bytes += bytes;
        stored.sql.push(Statement { sql: sql.into(), params });
        Ok(())
    }

    pub(crate) fn take(&self) -> Stored {
        std::mem::take(&mut *self.stored.lock())
    }
}
