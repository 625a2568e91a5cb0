//! Data that a step stores beside its outcome: written in the same commit, or not at all.

use parking_lot::Mutex;
use serde::Serialize;
use windlass_engine::RecordChange;
use windlass_kernel::{Error, Expect, Limits, RetryPolicy, SqlValue, Statement};

use crate::effects::{Writes, too_much};

/// Data that a step stores beside its outcome. It is in the commit of the outcome, whether the run goes
/// on, succeeds, fails or is cancelled by it. What an attempt stored that is tried again is dropped.
#[derive(Debug)]
pub struct Effects {
    stored: Mutex<Stored>,
    limits: Limits,
}

#[derive(Debug, Default)]
struct Stored {
    writes: Writes,
    sql_bytes: usize,
}

impl Effects {
    /// For a store with these limits.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { stored: Mutex::default(), limits: limits.clone() }
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
        self.stored.lock().writes.add_effect(name, input, (retry, false), &self.limits)
    }

    /// As [`Effects::enqueue`], with a receipt: when the effect is delivered or given up, the same commit
    /// writes a record that says so. `Engine::receipts` reads the receipts of a run.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, RelayStep, StepOutcome};
    /// # use windlass::RetryPolicy;
    /// # async fn example(step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// step.effects.enqueue_with_receipt("mail", "it is written", RetryPolicy::none())?;
    /// # Ok(StepOutcome::done(step.payload.clone())) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Effects::enqueue`].
    pub fn enqueue_with_receipt<T: Serialize + ?Sized>(
        &self,
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
    ) -> Result<(), Error> {
        self.stored.lock().writes.add_effect(name, input, (retry, true), &self.limits)
    }

    /// Writes a record in the commit of the outcome. It must have the revision that is given, or not exist
    /// (`Expect::Absent`). If it does not, the attempt fails as `RecordConflict` and nothing of it is
    /// written; the next attempt follows after some milliseconds and can read the record again.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, RelayStep, StepOutcome};
    /// # async fn example(step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// step.effects.put_record("reports", "r-1", "written", windlass::Expect::Absent)?;
    /// Ok(StepOutcome::done("written"))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RecordChange::put`] and [`Effects::record`].
    pub fn put_record<T: Serialize + ?Sized>(
        &self,
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        document: &T,
        expect: impl Into<Expect>,
    ) -> Result<(), Error> {
        self.record(RecordChange::put(collection, id, document, expect)?)
    }

    /// Checks, writes or removes a record in the commit of the outcome; see [`Effects::put_record`].
    ///
    /// ```
    /// # use windlass::relays::{RelayError, RelayStep, StepOutcome};
    /// # async fn example(step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// step.effects.record(windlass::RecordChange::remove("drafts", "r-1", 3)?)?;
    /// Ok(StepOutcome::done("written"))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The step changes too many records, one record twice, or a record that is too large.
    pub fn record(&self, change: RecordChange) -> Result<(), Error> {
        self.stored.lock().writes.add_record(change, &self.limits)
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
        let (statements, sql_bytes) =
            (self.limits.user_sql_statements_max, self.limits.user_sql_bytes_max);
        let mut stored = self.stored.lock();
        if stored.writes.sql.len() >= statements {
            return Err(too_much(format!("a step may run at most {statements} statements")));
        }
        if stored.sql_bytes + bytes > sql_bytes {
            return Err(too_much(format!(
                "the step's SQL has {} bytes with this statement; at most {sql_bytes} are allowed",
                stored.sql_bytes + bytes
            )));
        }
        stored.sql_bytes += bytes;
        stored.writes.sql.push(Statement { sql: sql.into(), params });
        Ok(())
    }

    pub(crate) fn take(&self) -> Writes {
        std::mem::take(&mut *self.stored.lock()).writes
    }
}
