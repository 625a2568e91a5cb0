//! Writes that a step adds to the commit of its outcome: effects, records and the user's SQL. Each is
//! checked where it is added.

use serde::Serialize;
use serde_json::json;
use windlass_engine::events::EFFECT_ENQUEUED;
use windlass_engine::{EFFECTS_QUEUE, RecordChange, TaskBody, Turn};
use windlass_kernel::{
    Body, Draft, EFFECT, Error, ErrorCode, ErrorKind, Limits, QueueName, RetryPolicy, Route,
    RouteName, Statement, Task, TaskId,
};

/// How many effects one step may enqueue.
pub(crate) const EFFECTS_MAX: usize = 256;

/// The writes that one attempt of a step has added.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    pub(crate) effects: Vec<Effect>,
    pub(crate) records: Vec<RecordChange>,
    pub(crate) sql: Vec<Statement>,
}

impl Writes {
    pub(crate) fn add_effect<T: Serialize + ?Sized>(
        &mut self,
        name: impl AsRef<str>,
        input: &T,
        (retry, receipt): (RetryPolicy, bool),
        limits: &Limits,
    ) -> Result<(), Error> {
        let effect = Effect::new(name, input, (retry, receipt), limits.task_bytes_max)?;
        if self.effects.len() >= EFFECTS_MAX {
            return Err(too_much(format!("a step may enqueue at most {EFFECTS_MAX} effects")));
        }
        self.effects.push(effect);
        Ok(())
    }

    pub(crate) fn add_record(
        &mut self,
        record: RecordChange,
        limits: &Limits,
    ) -> Result<(), Error> {
        record.check_writable()?;
        record.check_limits(limits)?;
        if self.records.iter().any(|other| other.is_of_same_record(&record)) {
            return Err(too_much(format!("the step changes record {record} twice")));
        }
        let max = limits.records_per_commit_max;
        if self.records.len() >= max {
            return Err(too_much(format!("a step may change at most {max} records")));
        }
        let bytes: usize = self.records.iter().map(RecordChange::bytes).sum();
        let (found, max) = (bytes + record.bytes(), limits.records_bytes_per_commit_max);
        if found > max {
            return Err(too_much(format!(
                "the records of a step have {found} bytes; at most {max} are allowed"
            )));
        }
        self.records.push(record);
        Ok(())
    }

    /// Whether the store can refuse the commit because of one of them.
    pub(crate) fn can_fail(&self) -> bool {
        !self.sql.is_empty() || !self.records.is_empty()
    }

    /// Puts all of them into a commit, with their events. `of` names the part of the run that adds them.
    pub(crate) fn write(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        of: (&str, serde_json::Value),
    ) -> Result<(), Error> {
        for effect in &self.effects {
            effect.enqueue(turn, draft, of.clone())?;
        }
        for record in &self.records {
            let stamp = turn.stamp();
            draft.record(record.op(&turn.run.namespace, stamp), stamp)?;
        }
        if !self.sql.is_empty() {
            draft.user_sql(self.sql.clone());
        }
        Ok(())
    }
}

/// An effect that is wanted. What could refuse it has been asked.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    name: RouteName,
    body: Body,
    input_bytes: usize,
}

impl Effect {
    /// With a retry policy, and whether it asks for a receipt. `bytes_max` is what a task may have.
    pub(crate) fn new<T: Serialize + ?Sized>(
        name: impl AsRef<str>,
        input: &T,
        (retry, receipt): (RetryPolicy, bool),
        bytes_max: usize,
    ) -> Result<Self, Error> {
        Self::of(name, input, (retry, receipt, false), bytes_max)
    }

    /// With a receipt, and a message that wakes the run when it is delivered.
    #[cfg(feature = "contracts")]
    pub(crate) fn waking<T: Serialize + ?Sized>(
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
        bytes_max: usize,
    ) -> Result<Self, Error> {
        Self::of(name, input, (retry, true, true), bytes_max)
    }

    fn of<T: Serialize + ?Sized>(
        name: impl AsRef<str>,
        input: &T,
        (retry, receipt, wakes_run): (RetryPolicy, bool, bool),
        bytes_max: usize,
    ) -> Result<Self, Error> {
        let name = RouteName::new(name)?;
        retry.validate().map_err(|source| {
            let message = format!("the effect {name:?} has a policy that makes no sense: {source}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message)
        })?;
        let input = serde_json::value::to_raw_value(input).map_err(|source| {
            let message = "the input of an effect cannot be written as JSON";
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message).with_source(source)
        })?;
        let input_bytes = input.get().len();
        let body = Body::of(&TaskBody {
            input,
            retry,
            start_to_close_ms: Some(60_000),
            heartbeat_ms: None,
            close_by: None,
            breaker: None,
            receipt,
            wakes_run,
        })?;
        if body.len() > bytes_max {
            return Err(too_much(format!(
                "the effect {name:?} has {} bytes, {input_bytes} of them its input; at most \
                 {bytes_max} are allowed",
                body.len(),
            )));
        }
        Ok(Self { name, body, input_bytes })
    }

    /// Puts it into a commit, with the event that says so. `of` says which part of the run wants it.
    pub(crate) fn enqueue(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        of: (&str, serde_json::Value),
    ) -> Result<TaskId, Error> {
        let task_id = turn.new_task_id();
        let mut payload = self.summary(task_id);
        payload[of.0] = of.1;
        let stamp = turn.stamp();
        draft.event(EFFECT_ENQUEUED, &payload, stamp)?;
        draft.enqueue(self.task(turn, task_id));
        Ok(task_id)
    }

    /// Its payload in the ledger.
    pub(crate) fn summary(&self, task_id: TaskId) -> serde_json::Value {
        json!({ "task_id": task_id, "name": self.name, "input_bytes": self.input_bytes })
    }

    /// Its task.
    pub(crate) fn task(&self, turn: &Turn, task_id: TaskId) -> Task {
        let queue = QueueName::from_stored(EFFECTS_QUEUE);
        let route = Route { queue, name: self.name.clone() };
        let namespace = turn.run.namespace.clone();
        let mut task = Task::new(task_id, namespace, EFFECT, route, turn.now()).of_run(&turn.run);
        task.body = Some(self.body.clone());
        task
    }
}

/// More than a commit can take.
pub(crate) fn too_much(message: String) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidSize, message)
}
