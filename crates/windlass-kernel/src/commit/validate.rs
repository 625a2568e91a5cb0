//! Validates commits before a store sees them, so that all stores refuse the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::bodies::{BodyOwner, PutBody};
use crate::body::Body;
use crate::commit::{Commit, CommitError, Op, RunChange, RunGuard, SqlValue, Statement};
use crate::draft::NewRun;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::RunKey;
use crate::ledger::Head;
use crate::limits::{Limits, check_max, check_text};
use crate::record::{Expect, RecordOp, RecordWrite};
use crate::rows::{LogLine, Run, Step, Task};

impl Commit {
    /// Refuses a commit that is malformed or exceeds a limit.
    pub fn validate(&self, limits: &Limits) -> Result<(), CommitError> {
        self.check(limits).map_err(|error| CommitError::Invalid(Arc::new(error)))
    }

    fn check(&self, limits: &Limits) -> Result<(), Error> {
        let bodies = self.ops.iter().filter(|op| matches!(op, Op::PutBody(_))).count();
        check_max("a commit", "ops", self.ops.len() - bodies, limits.commit_ops_max)?;
        check_max("a commit", "large bodies", bodies, limits.commit_ops_max)?;
        if let Some(unknown) = self.unknown_reference() {
            return Err(malformed(&format!(
                "it refers to the body {} of {}, and does not store it there",
                unknown.digest, unknown.owner
            )));
        }
        let mut ledgers = Ledgers::of(self);
        let mut created = 0;
        let mut set = 0;
        let mut requeued = BTreeSet::new();
        let (mut enqueued, mut settled) = (BTreeSet::new(), BTreeSet::new());
        let (mut names, mut records, mut record_bytes) = (BTreeSet::new(), BTreeSet::new(), 0);
        for op in self.ops.iter() {
            match op {
                Op::CreateRun(run) => {
                    created += 1;
                    check_run(run, limits)?;
                    if !names.insert((&run.namespace, &run.workflow, &run.id, run.generation)) {
                        return Err(malformed(&format!(
                            "it creates two runs {:?} of workflow {:?}",
                            run.id, run.workflow
                        )));
                    }
                    ledgers.begin(run);
                }
                Op::SetRun(change) => {
                    set += 1;
                    self.check_guarded(change.run_key, "SetRun")?;
                    check_change(change, limits)?;
                }
                Op::AppendEvent { event, .. } => {
                    let max = limits.event_payload_bytes_max + STATE_SEAL_BYTES_MAX;
                    check_max("an event's payload", "bytes", event.payload.len(), max)?;
                    ledgers.append(event.run_key, event.ordinal, event.event_id, event.hash)?;
                }
                Op::PutStep(step) => {
                    self.check_guarded(step.run_key, "PutStep")?;
                    check_step(step, limits)?;
                }
                Op::PutMessage(message) => {
                    check_body("a message", &message.body, limits.message_bytes_max)?;
                }
                Op::ConsumeMessage { run_key, .. } => {
                    self.check_guarded(*run_key, "ConsumeMessage")?
                }
                Op::Enqueue(task) => {
                    enqueued.insert(task.task_id);
                    check_task(task, limits)?;
                }
                Op::Reschedule(change) => {
                    if self.task.map(|guard| guard.task_id()) != Some(change.task_id) {
                        return Err(malformed("Reschedule names a task that is not guarded"));
                    }
                    check_body("a task's errors", &change.errors, limits.task_bytes_max)?;
                }
                Op::Settle { task_id } => {
                    let guarded = self.task.map(|guard| guard.task_id()) == Some(*task_id);
                    if !guarded && !self.advances_run() {
                        return Err(malformed("Settle names a task that is not guarded"));
                    }
                    settled.insert(*task_id);
                }
                Op::DeadLetter(letter) => {
                    check_body("a dead letter", &letter.body, limits.task_bytes_max)?;
                    check_body("a dead letter's errors", &letter.errors, limits.task_bytes_max)?;
                    check_text("a dead letter's reason", &letter.reason, 2_048)?;
                }
                Op::Requeue { task_id, .. } => {
                    if !requeued.insert(*task_id) {
                        return Err(malformed("a dead letter is requeued twice"));
                    }
                }
                Op::PutLog(line) => {
                    // The worker of a task writes log lines of the task's run.
                    if self.task.is_none() {
                        self.check_guarded(line.run_key, "PutLog")?;
                    }
                    check_log(line, limits)?;
                }
                Op::Record(record) => {
                    if !records.insert(&record.key) {
                        return Err(malformed(&format!("it names record {} twice", record.key)));
                    }
                    if let RecordWrite::Put(put) = &record.write {
                        record_bytes += put.body.len();
                    }
                    self.check_record(record, limits)?;
                }
                Op::PutBody(put) => {
                    self.check_put_body(put)?;
                    put.validate(limits)?;
                }
                Op::UserSql(_) => {}
            }
        }
        check_max("a commit", "records", records.len(), limits.records_per_commit_max)?;
        let max = limits.records_bytes_per_commit_max;
        check_max("the records of a commit", "bytes", record_bytes, max)?;
        // The order of the two would be undefined.
        if let Some(task_id) = enqueued.intersection(&settled).next() {
            return Err(malformed(&format!("it enqueues and settles task {task_id}")));
        }
        self.check_user_sql(limits)?;
        self.check_guard(created, set)?;
        ledgers.finish(self)
    }

    // The locks on the rows that the commit names keep the owner while the body is stored.
    fn check_put_body(&self, put: &PutBody) -> Result<(), Error> {
        let is_named = |op: &Op| match (op, put.owner()) {
            (Op::CreateRun(run), BodyOwner::Run(key)) => run.run_key == *key,
            (Op::PutMessage(message), BodyOwner::Run(key)) => message.run_key == *key,
            (Op::Record(record), BodyOwner::Record(key)) => record.key == *key && record.is_write(),
            _ => false,
        };
        let is_guarded = matches!(put.owner(), BodyOwner::Run(key) if self.run_key() == Some(*key));
        if is_guarded || self.ops.iter().any(is_named) {
            return Ok(());
        }
        Err(malformed(&format!("PutBody is for {}, which the commit does not name", put.owner())))
    }

    // A write at any revision would be written again when the commit is sent again, unless another
    // guard refuses it then.
    fn check_record(&self, record: &RecordOp, limits: &Limits) -> Result<(), Error> {
        if record.expect == Expect::Present && record.is_write() && self.is_unguarded() {
            let message = format!(
                "the write of record {} expects no revision, and nothing else guards the commit",
                record.key
            );
            return Err(malformed(&message));
        }
        record.validate(limits)
    }

    fn check_user_sql(&self, limits: &Limits) -> Result<(), Error> {
        let max = limits.user_sql_statements_max;
        check_max("user SQL", "statements", self.user_sql().count(), max)?;
        let value = |value: &SqlValue| match value {
            SqlValue::Text(text) => text.len(),
            SqlValue::Bytes(bytes) => bytes.len(),
            _ => 8,
        };
        let bytes = |statement: &Statement| {
            statement.sql.len() + statement.params.iter().map(value).sum::<usize>()
        };
        let bytes = self.user_sql().map(bytes).sum();
        check_max("user SQL", "bytes", bytes, limits.user_sql_bytes_max)
    }

    fn advances_run(&self) -> bool {
        matches!(self.run, Some(RunGuard::Held { .. } | RunGuard::Free { .. }))
    }

    // Only the holder of a turn may write to its run, in a commit that has the guard.
    fn check_guarded(&self, run_key: RunKey, op: &str) -> Result<(), Error> {
        let created = |op: &Op| matches!(op, Op::CreateRun(run) if run.run_key == run_key);
        let may_set = op != "SetRun";
        if self.run_key() == Some(run_key) && (self.advances_run() || may_set)
            || may_set && self.ops.iter().any(created)
        {
            return Ok(());
        }
        Err(malformed(&format!("{op} names run {run_key}, which the commit does not guard")))
    }

    fn check_guard(&self, created: usize, set: usize) -> Result<(), Error> {
        match &self.run {
            Some(RunGuard::Absent { run_key, .. }) => {
                let own = |op: &Op| matches!(op, Op::CreateRun(run) if run.run_key == *run_key);
                if !self.ops.iter().any(own) {
                    return Err(malformed("the guard is Absent but no op creates the run"));
                }
            }
            Some(_) if set != 1 => {
                return Err(malformed("a commit of a turn needs exactly one SetRun"));
            }
            Some(_) => {}
            None if created > 0 => {
                return Err(malformed("a commit that creates a run needs a run guard"));
            }
            None => {}
        }
        if let Some(guard) = &self.task {
            let ends = |op: &Op| match op {
                Op::Settle { task_id } => *task_id == guard.task_id(),
                Op::Reschedule(change) => change.task_id == guard.task_id(),
                _ => false,
            };
            match self.ops.iter().filter(|op| ends(op)).count() {
                // The sender keeps its hold on the task.
                0 if guard.worker().is_some() => {}
                0 => {
                    let message = "the guarded task is unheld, and neither settled nor rescheduled";
                    return Err(malformed(message));
                }
                1 => {}
                _ => return Err(malformed("the guarded task is settled or rescheduled twice")),
            }
        }
        Ok(())
    }
}

// The ledgers that a commit appends to. Each must continue at its head, and its row must have the
// new head.
struct Ledgers {
    guarded: Option<Appended>,
    created: Vec<Appended>,
}

type Appended = (RunKey, Head, Option<crate::ids::EventId>);

impl Ledgers {
    fn of(commit: &Commit) -> Self {
        let guarded = commit
            .run
            .as_ref()
            .and_then(|guard| guard.head().map(|head| (guard.run_key(), head, None)));
        Self { guarded, created: Vec::new() }
    }

    fn begin(&mut self, run: &Run) {
        self.created.push((run.run_key, crate::ledger::genesis(run), None));
    }

    fn append(
        &mut self,
        run_key: RunKey,
        ordinal: u64,
        event_id: crate::ids::EventId,
        hash: crate::digest::Sha256Digest,
    ) -> Result<(), Error> {
        let mut ledgers = self.guarded.iter_mut().chain(&mut self.created);
        let ledger = ledgers.find(|(key, ..)| *key == run_key).ok_or_else(|| {
            malformed(&format!("an event is for run {run_key}, which the commit does not guard"))
        })?;
        if ledger.1.next_ordinal != ordinal {
            let next = ledger.1.next_ordinal;
            let message = format!("an event of run {run_key} has ordinal {ordinal}, not {next}");
            return Err(malformed(&message));
        }
        ledger.1 = Head { next_ordinal: ordinal + 1, hash };
        ledger.2 = Some(event_id);
        Ok(())
    }

    fn finish(&self, commit: &Commit) -> Result<(), Error> {
        for op in commit.ops.iter() {
            let (run_key, head, cursor) = match op {
                Op::CreateRun(run) => (run.run_key, run.head, run.cursor),
                Op::SetRun(change) => (change.run_key, change.head, change.cursor),
                _ => continue,
            };
            let mut ledgers = self.guarded.iter().chain(&self.created);
            let Some((_, end, last)) = ledgers.find(|(key, ..)| *key == run_key) else {
                continue;
            };
            if *end != head || last.is_some_and(|last| last != cursor) {
                let message =
                    format!("the row and the ledger of run {run_key} have different ends");
                return Err(malformed(&message));
            }
            if matches!(op, Op::CreateRun(_)) && last.is_none() {
                return Err(malformed(&format!("run {run_key} is created without an event")));
            }
        }
        Ok(())
    }
}

// A draft checks the payloads of its events before it adds the seal of the run's state to one.
const STATE_SEAL_BYTES_MAX: usize = 192;

fn malformed(message: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        ErrorCode::InvalidCommit,
        format!("the commit is malformed: {message}"),
    )
}

fn check_body(what: impl fmt::Display, body: &Option<Body>, max: usize) -> Result<(), Error> {
    body.as_ref().map_or(Ok(()), |body| check_max(what, "bytes", body.len(), max))
}

impl NewRun {
    /// Checks the data of a new run against the limits. A caller that starts many runs checks all
    /// of them before it writes the first, because a store refuses runs one by one.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        check_max("the input", "bytes", self.input.len(), limits.input_bytes_max)?;
        let texts = [&self.fork, &self.trace, &self.headers, &self.on_end];
        check_texts(texts.map(|text| text.as_deref().unwrap_or_default()), limits)?;
        check_labels(&self.labels, limits)
    }
}

fn check_texts([fork, trace, headers, on_end]: [&str; 4], limits: &Limits) -> Result<(), Error> {
    check_text("a fork's name", fork, 256)?;
    check_text("a trace context", trace, 1_024)?;
    check_max("the run's headers", "bytes", headers.len(), limits.headers_bytes_max)?;
    check_max("the task at the run's end", "bytes", on_end.len(), limits.task_bytes_max)
}

fn check_labels(labels: &BTreeMap<String, String>, limits: &Limits) -> Result<(), Error> {
    check_max("a run", "labels", labels.len(), limits.labels_max)?;
    for (key, value) in labels {
        check_text("a label's key", key, limits.label_key_chars_max)?;
        check_text(&format!("the value of label {key:?}"), value, limits.label_value_chars_max)?;
        if key.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                ErrorCode::InvalidName,
                "a label's key is empty",
            ));
        }
    }
    Ok(())
}

fn check_run(run: &Run, limits: &Limits) -> Result<(), Error> {
    check_max("the input", "bytes", run.input.len(), limits.input_bytes_max)?;
    check_body("the output", &run.output, limits.output_bytes_max)?;
    check_body("the error", &run.error, limits.output_bytes_max)?;
    check_body("the state", &run.state, limits.state_bytes_max)?;
    let texts = [&run.fork, &run.trace, &run.headers, &run.on_end];
    check_texts(texts.map(|text| text.as_deref().unwrap_or_default()), limits)?;
    check_labels(&run.labels, limits)?;
    if run.input_hash != run.input.digest() {
        return Err(malformed("the input hash is not the hash of the input"));
    }
    if run.turn.worker.is_some() && run.turn.ready {
        return Err(malformed("a turn is both held and ready"));
    }
    Ok(())
}

fn check_change(change: &RunChange, limits: &Limits) -> Result<(), Error> {
    check_body("the output", &change.output, limits.output_bytes_max)?;
    check_body("the error", &change.error, limits.output_bytes_max)?;
    check_body("the state", &change.state, limits.state_bytes_max)
}

fn check_step(step: &Step, limits: &Limits) -> Result<(), Error> {
    let max = limits.step_bytes_max;
    check_text("a step's name", &step.name, limits.step_key_chars_max)?;
    check_text("a step's kind", step.kind.as_str(), 64)?;
    check_text("a step's awaited name", step.wait_for.as_deref().unwrap_or_default(), 256)?;
    let key = &step.step_key;
    check_body(format_args!("the input of step {key:?}"), &step.input, max)?;
    check_body(format_args!("the result of step {key:?}"), &step.result, max)?;
    check_body(format_args!("the error of step {key:?}"), &step.error, max)
}

fn check_task(task: &Task, limits: &Limits) -> Result<(), Error> {
    check_body("a task", &task.body, limits.task_bytes_max)?;
    check_body("a task's errors", &task.errors, limits.task_bytes_max)?;
    check_text("a task's kind", &task.kind, 64)?;
    check_text("a trace context", task.trace.as_deref().unwrap_or_default(), 1_024)?;
    if task.worker.is_some() && task.ready {
        return Err(malformed("a task is both held and ready"));
    }
    Ok(())
}

fn check_log(line: &LogLine, limits: &Limits) -> Result<(), Error> {
    check_text("a log line", &line.message, limits.log_message_chars_max)?;
    check_text("a log line's category", &line.category, limits.log_category_chars_max)?;
    check_body("a log line's data", &line.data, limits.log_data_bytes_max)
}
