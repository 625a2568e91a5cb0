//! Encodes a batch of commits as the arguments of `commit_batch`, and decodes its result rows.

mod answer;
mod body;
mod encode;
mod record;

use std::collections::HashMap;

use tokio_postgres::types::ToSql;
use windlass_kernel::canonical::to_canonical;
use windlass_kernel::{
    CausalRef, Commit, DeadLetter, Event, LogLine, MessageId, NewMessage, Op, PutBody, RecordKey,
    RecordOp, Reschedule, Run, RunChange, RunGuard, RunKey, RunStatus, Sha256Digest, Step, StepKey,
    Task, TaskGuard, TaskId, Timestamp, TurnChange, Wake,
};

pub(crate) use answer::{Answers, read_answers, unavailable};
use encode::Records;

/// A record of a batch: its key, the number of its commit, of its op, and the op.
type RecordRow<'c> = (&'c RecordKey, usize, usize, &'c RecordOp);

/// The rows of a batch that are sorted before they are encoded.
#[derive(Default)]
struct Sorted<'c> {
    records: Vec<RecordRow<'c>>,
    /// Bodies: the digest, the number of the commit, and the op.
    bodies: Vec<(Sha256Digest, usize, &'c PutBody)>,
}

/// The call of `commit_batch`. Its parameters are those of [`Batch::params`].
pub(crate) const CALL: &str = "SELECT code, idx, op, key, worker, n, m, hash, queue, name, flag, \
    due FROM @schema@.commit_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
    $15, $16, $17, $18, $19, $20, $21, $22, $23)";

/// The call of `settle_batch` for [`Settles`].
pub(crate) const SETTLE: &str = "SELECT code, idx, op, key, worker, n, m, hash, queue, name, flag, \
    due FROM @schema@.settle_batch($1, $2, $3)";

/// Commits that only settle the task that they guard, ordered by task.
#[derive(Debug, Default)]
pub(crate) struct Settles {
    tasks: Vec<uuid::Uuid>,
    workers: Vec<uuid::Uuid>,
    claims: Vec<i64>,
}

impl Settles {
    /// Returns `None` if any commit does more than that.
    pub(crate) fn of(commits: &[&Commit]) -> Option<Self> {
        let mut rows = Vec::with_capacity(commits.len());
        for commit in commits {
            match (&commit.run, &commit.task, commit.ops.as_slice()) {
                (
                    None,
                    Some(TaskGuard::Held { task_id: guarded, hold }),
                    [Op::Settle { task_id }],
                ) if task_id == guarded => {
                    let claim_no = i64::try_from(hold.claim_no).ok()?;
                    rows.push((task_id.0, hold.worker.0, claim_no));
                }
                _ => return None,
            }
        }
        rows.sort_unstable();
        let mut settles = Self::default();
        for (task, worker, claim_no) in rows {
            settles.tasks.push(task);
            settles.workers.push(worker);
            settles.claims.push(claim_no);
        }
        Some(settles)
    }

    /// The parameters of [`SETTLE`].
    pub(crate) fn params(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.tasks, &self.workers, &self.claims]
    }
}

/// How `commit_batch` handles a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Write at once. Fail the whole batch with [`Failure::NeedsChecks`](crate::error::Failure) if
    /// the function cannot tell which commit is at fault.
    Fast = 0,
    /// Check everything before writing.
    Checked = 1,
    /// Check everything and write nothing.
    CheckOnly = 2,
    /// Like `Fast`, but first look for runs that exist.
    FastExisting = 3,
    /// Only settle the guarded tasks; the call is [`SETTLE`].
    Settle = 4,
}

/// Commits that do not depend on each other, as arrays of rows.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    size: i32,
    status: bool,
    /// Only [`Mode::Checked`] can decide this batch.
    pub(crate) needs_checks: bool,
    runs: Records,
    tasks: Records,
    creates: Records,
    sets: Records,
    events: Records,
    steps: Records,
    labels: Records,
    messages: Records,
    consumes: Records,
    enqueues: Records,
    reschedules: Records,
    settles: Records,
    logs: Records,
    dead_letters: Records,
    causes: Records,
    self_conflicts: Records,
    step_updates: Records,
    requeues: Records,
    record_ops: Records,
    bodies: Records,
    empty: Records,
    /// The batch sends no message, names no task or record and looks up no cause, so the fast modes
    /// need no locks on runs; see `commit_batch`.
    is_simple: bool,
}

impl Batch {
    /// Encodes commits that [`windlass_kernel::fold`] put into one batch.
    pub(crate) fn of(commits: &[&Commit]) -> Self {
        let mut batch = Self::default();
        batch.fill(commits);
        batch
    }

    /// Replaces the contents by these commits and reuses the memory.
    ///
    /// The rows are ordered by run key, so that each index is written from one end to the other and
    /// neighbouring rows go to the same page while it is cached.
    pub(crate) fn fill(&mut self, commits: &[&Commit]) {
        self.clear();
        self.size = commits.len() as i32;
        let mut order: Vec<(Option<RunKey>, usize)> =
            commits.iter().enumerate().map(|(at, commit)| (commit.run_key(), at)).collect();
        order.sort_unstable();
        let mut runs = Locks::default();
        let mut tasks = Locks::default();
        let mut sorted = Sorted::default();
        for (_, at) in order {
            let commit = commits[at];
            self.guard(at + 1, commit, &mut runs, &mut tasks);
            self.ops(at + 1, commit, &mut runs, &mut tasks, &mut sorted);
        }
        self.lock_runs(runs);
        self.lock_tasks(tasks);
        self.records(sorted.records);
        self.bodies(sorted.bodies);
    }

    fn clear(&mut self) {
        (self.size, self.status, self.needs_checks, self.is_simple) = (0, false, false, true);
        for rows in [
            &mut self.runs,
            &mut self.tasks,
            &mut self.creates,
            &mut self.sets,
            &mut self.events,
            &mut self.steps,
            &mut self.labels,
            &mut self.messages,
            &mut self.consumes,
            &mut self.enqueues,
            &mut self.reschedules,
            &mut self.settles,
            &mut self.logs,
            &mut self.dead_letters,
            &mut self.causes,
            &mut self.self_conflicts,
            &mut self.step_updates,
            &mut self.requeues,
            &mut self.record_ops,
            &mut self.bodies,
        ] {
            rows.clear();
        }
    }

    /// The parameters of [`CALL`]. `mode` must outlive the call.
    pub(crate) fn params<'a>(&'a self, mode: &'a i16) -> [&'a (dyn ToSql + Sync); 23] {
        let is_fast = *mode == Mode::Fast as i16 || *mode == Mode::FastExisting as i16;
        [
            mode,
            &self.size,
            &self.status,
            if is_fast && self.is_simple { &self.empty } else { &self.runs },
            &self.tasks,
            &self.creates,
            &self.sets,
            &self.events,
            &self.steps,
            &self.labels,
            &self.messages,
            &self.consumes,
            &self.enqueues,
            &self.reschedules,
            &self.settles,
            &self.logs,
            &self.dead_letters,
            &self.causes,
            &self.self_conflicts,
            &self.step_updates,
            &self.requeues,
            &self.record_ops,
            &self.bodies,
        ]
    }

    fn guard<'c>(
        &mut self,
        idx: usize,
        commit: &'c Commit,
        runs: &mut Locks<RunKey, &'c RunGuard>,
        tasks: &mut Locks<TaskId, (i16, Option<uuid::Uuid>, u64)>,
    ) {
        match &commit.run {
            Some(guard @ (RunGuard::Held { run_key, .. } | RunGuard::Free { run_key, .. })) => {
                runs.add_guarded(*run_key, idx, guard);
            }
            Some(RunGuard::Absent { .. }) | None => {}
        }
        if let Some(guard) = &commit.task {
            let leaves = |op: &Op| match op {
                Op::Settle { task_id } => *task_id == guard.task_id(),
                Op::Reschedule(change) => change.task_id == guard.task_id(),
                _ => false,
            };
            let kind = if commit.ops.iter().any(leaves) { 1 } else { 2 };
            let hold = (kind, guard.worker().map(|worker| worker.0), guard.claim_no());
            tasks.add_guarded(guard.task_id(), idx, hold);
            self.is_simple = false;
        }
    }

    fn ops<'c>(
        &mut self,
        idx: usize,
        commit: &'c Commit,
        runs: &mut Locks<RunKey, &'c RunGuard>,
        tasks: &mut Locks<TaskId, (i16, Option<uuid::Uuid>, u64)>,
        sorted: &mut Sorted<'c>,
    ) {
        let mut seen = Seen::default();
        let mut checks_causes = false;
        for (op, what) in commit.ops.iter().enumerate() {
            match what {
                Op::CreateRun(run) => self.create(idx, op, run),
                Op::SetRun(change) => self.set(idx, commit, change),
                Op::AppendEvent { event, cause } => {
                    checks_causes |= *cause == windlass_kernel::CauseCheck::LookUp;
                    self.event(idx, event);
                }
                Op::PutStep(step) => {
                    if seen.step(commit, op, step) {
                        let (first_op, first) = seen.first_step(commit, op, step);
                        self.step(idx, first_op, commit, step, first);
                    }
                }
                Op::PutMessage(message) => self.message(idx, op, commit, message, runs, &mut seen),
                Op::ConsumeMessage { run_key, seq, by, at } => {
                    self.consume(idx, op, (*run_key, *seq), by, *at, &mut seen);
                }
                Op::Enqueue(task) => self.enqueue(idx, task),
                Op::Reschedule(change) => self.reschedule(idx, change),
                Op::Settle { task_id } => {
                    tasks.add(*task_id);
                    self.is_simple = false;
                    let guarded = commit.task.is_some_and(|guard| guard.task_id() == *task_id);
                    let owner = if guarded { None } else { commit.run_key().map(|key| key.0) };
                    self.settles.row(3, |row| {
                        row.int4(idx).uuid(task_id.0).uuid(owner);
                    });
                }
                Op::DeadLetter(letter) => self.dead_letter(idx, letter),
                Op::Requeue { task_id, at } => {
                    // The function must check the guards before it looks for the dead letter.
                    self.is_simple = false;
                    self.requeues.row(4, |row| {
                        row.int4(idx).int4(op).uuid(task_id.0).time(*at);
                    });
                }
                Op::PutLog(line) => self.log(idx, line),
                Op::Record(record) => sorted.records.push((&record.key, idx, op, &**record)),
                Op::PutBody(put) => sorted.bodies.push((put.digest(), idx, &**put)),
                Op::UserSql(_) => {}
            }
        }
        if checks_causes {
            self.is_simple = false;
            self.causes(idx, commit);
        }
        self.self_conflicts(idx, commit, &seen);
    }

    fn lock_runs(&mut self, runs: Locks<RunKey, &RunGuard>) {
        for (run_key, guard) in runs.sorted() {
            let (idx, kind, head, worker, claim_no) = match guard {
                None => (0, 0, None, None, None),
                Some((idx, RunGuard::Held { head, hold, .. })) => {
                    (idx, 2, Some(head), Some(hold.worker.0), Some(hold.claim_no as i64))
                }
                Some((idx, RunGuard::Free { head, .. })) => (idx, 3, Some(head), None, None),
                Some((_, RunGuard::Absent { .. })) => continue,
            };
            self.runs.row(7, |row| {
                row.int4(idx)
                    .int2(kind)
                    .uuid(run_key.0)
                    .bytes(head.map(|head| &head.hash.as_bytes()[..]))
                    .int8(head.map(|head| head.next_ordinal as i64))
                    .uuid(worker)
                    .int8(claim_no);
            });
        }
    }

    fn lock_tasks(&mut self, tasks: Locks<TaskId, (i16, Option<uuid::Uuid>, u64)>) {
        for (task_id, guard) in tasks.sorted() {
            self.tasks.row(5, |row| match guard {
                None => {
                    row.int4(0).int2(0).uuid(task_id.0).uuid(None).int8(None);
                }
                Some((idx, (kind, worker, claim_no))) => {
                    row.int4(idx).int2(kind).uuid(task_id.0).uuid(worker).count(claim_no);
                }
            });
        }
    }

    fn records(&mut self, mut rows: Vec<RecordRow<'_>>) {
        if rows.is_empty() {
            return;
        }
        // The function must decide the guards of runs before those of records.
        self.is_simple = false;
        rows.sort_unstable_by_key(|(key, idx, op, _)| (*key, *idx, *op));
        for (_, idx, op, record) in rows {
            record::encode(&mut self.record_ops, idx, op, record);
        }
    }

    // All batches insert bodies in the order of their digests, so that two batches with the same
    // bodies do not wait for each other.
    fn bodies(&mut self, mut rows: Vec<(Sha256Digest, usize, &PutBody)>) {
        rows.sort_by_key(|(digest, idx, _)| (*digest, *idx));
        for (_, idx, put) in rows {
            body::encode(&mut self.bodies, idx, put);
        }
    }

    fn create(&mut self, idx: usize, op: usize, run: &Run) {
        let labels = (!run.labels.is_empty())
            .then(|| to_canonical(&run.labels).ok())
            .flatten()
            .and_then(|bytes| String::from_utf8(bytes).ok());
        let turn = &run.turn;
        self.creates.row(44, |row| {
            row.int4(idx)
                .int4(op)
                .uuid(run.run_key.0)
                .text(run.namespace.as_str())
                .text(run.workflow.as_str())
                .text(run.model.as_str())
                .text(run.id.as_str())
                .int8(i64::from(run.generation))
                .text(run.status.as_str())
                .body(&run.input)
                .bytes(&run.input_hash.as_bytes()[..])
                .body(run.output.as_ref())
                .body(run.error.as_ref())
                .body(run.state.as_ref())
                .bytes(&run.head.hash.as_bytes()[..])
                .count(run.head.next_ordinal)
                .uuid(run.cursor.0)
                .uuid(run.root.0)
                .uuid(run.parent.map(|key| key.0))
                .text(run.fork.as_deref())
                .text(labels.as_deref())
                .text(run.trace.as_deref())
                .text(run.headers.as_deref())
                .text(run.on_end.as_deref())
                .time(run.deadline_at)
                .time(run.created_at)
                .time(run.started_at)
                .time(run.updated_at)
                .time(run.ended_at)
                .time(run.retention_until)
                .text(turn.queue.as_str())
                .int2(turn.priority)
                .bool(turn.ready)
                .time(turn.due_at)
                .uuid(turn.worker.map(|worker| worker.0))
                .count(turn.claim_no)
                .int8(i64::from(turn.reclaims))
                .text(turn.limit_key.as_ref().map(|key| key.as_str()))
                .count(run.accepted)
                .count(run.seen);
        });
        for (key, value) in &run.labels {
            self.labels.row(5, |row| {
                row.int4(idx)
                    .text(run.namespace.as_str())
                    .text(key.as_str())
                    .text(value.as_str())
                    .uuid(run.run_key.0);
            });
        }
    }

    fn set(&mut self, idx: usize, commit: &Commit, change: &RunChange) {
        self.status |= change.status.is_some();
        let (worker, claim, takes) = match &commit.run {
            Some(RunGuard::Held { hold, .. }) => {
                (Some(hold.worker.0), Some(hold.claim_no as i64), false)
            }
            Some(RunGuard::Free { worker, .. }) => (Some(worker.0), None, true),
            _ => (None, None, false),
        };
        let was = commit.run.as_ref().and_then(RunGuard::head);
        let (mut wake, wake_at, seen) = match change.turn {
            TurnChange::Keep => (0, None, None),
            TurnChange::Release { wake, seen } => {
                let (wake, at) = wake_parts(wake);
                (wake, at, Some(seen as i64))
            }
        };
        if change.status.is_some_and(RunStatus::is_ended) {
            wake = 4;
        }
        self.sets.row(25, |row| {
            row.int4(idx)
                .uuid(change.run_key.0)
                .bytes(&change.head.hash.as_bytes()[..])
                .count(change.head.next_ordinal)
                .uuid(change.cursor.0)
                .text(change.status.map(|status| status.as_str()))
                .body(change.output.as_ref())
                .body(change.error.as_ref())
                .body(change.state.as_ref())
                .time(change.deadline_at)
                .time(change.started_at)
                .time(change.ended_at)
                .time(change.retention_until)
                .time(change.updated_at)
                .uuid(worker)
                .bool(takes)
                .int2(wake)
                .time(wake_at)
                .int8(seen)
                .bytes(was.as_ref().map(|head| &head.hash.as_bytes()[..]))
                .int8(was.map(|head| head.next_ordinal as i64))
                .int8(claim);
        });
    }

    fn event(&mut self, idx: usize, event: &Event) {
        self.events.row(10, |row| {
            row.int4(idx)
                .uuid(event.run_key.0)
                .count(event.ordinal)
                .uuid(event.event_id.0)
                .text(event.event_type.as_str())
                .int2(event.version as i16)
                .cause(Some(&event.caused_by))
                .bytes(&event.payload[..])
                .time(event.created_at)
                .bytes(&event.hash.as_bytes()[..]);
        });
    }

    // `first` is the first op of the commit for this step: later ops cannot change the step's
    // identity. A step's position is the end of the ledger when it was first recorded, so a
    // position at or after the guard's end means a new step. If that is wrong, the insert fails and
    // `Mode::Checked` finds out.
    fn step(&mut self, idx: usize, op: usize, commit: &Commit, step: &Step, first: &Step) {
        let end = commit.run.as_ref().and_then(RunGuard::head).map_or(0, |head| head.next_ordinal);
        let is_new = first.position >= end;
        let rows = if is_new { &mut self.steps } else { &mut self.step_updates };
        rows.row(21, |row| {
            row.int4(idx)
                .int4(op)
                .uuid(step.run_key.0)
                .text(step.step_key.as_str())
                .text(&*first.name)
                .text(first.kind.as_str())
                .text(step.status.as_str())
                .count(first.position)
                .int8(i64::from(step.attempt))
                .int8(step.attempts_max.map(i64::from))
                .body(step.input.as_ref())
                .body(step.result.as_ref())
                .body(step.error.as_ref())
                .int8(step.timeout.map(|span| i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
                .time(step.due_at)
                .text(step.wait_for.as_deref())
                .time(first.created_at)
                .time(step.updated_at);
        });
    }

    fn message<'c>(
        &mut self,
        idx: usize,
        op: usize,
        commit: &'c Commit,
        message: &'c NewMessage,
        runs: &mut Locks<RunKey, &'c RunGuard>,
        seen: &mut Seen<'c>,
    ) {
        if !seen.messages.insert((message.run_key, &message.message_id)) {
            return;
        }
        let own = |what: &Op| matches!(what, Op::CreateRun(run) if run.run_key == message.run_key);
        let created = commit.ops.iter().any(own);
        if !created {
            runs.add(message.run_key);
        }
        let guarded = commit.run_key() == Some(message.run_key) && !created;
        seen.sends_to_itself |= guarded || created;
        self.is_simple = false;
        self.messages.row(13, |row| {
            row.int4(idx)
                .int4(op)
                .uuid(message.run_key.0)
                .text(message.message_id.as_str())
                .text(message.kind.as_str())
                .text(message.name.as_str())
                .body(message.body.as_ref())
                .cause(message.caused_by.as_ref())
                .time(message.sent_at)
                .bool(message.required)
                .bool(created)
                .bool(guarded);
        });
    }

    fn consume(
        &mut self,
        idx: usize,
        op: usize,
        (run_key, seq): (RunKey, u64),
        by: &StepKey,
        at: Timestamp,
        seen: &mut Seen<'_>,
    ) {
        if !seen.consumed.insert((run_key, seq)) {
            seen.consume_conflict.get_or_insert(op);
            return;
        }
        self.consumes.row(6, |row| {
            row.int4(idx).int4(op).uuid(run_key.0).count(seq).text(by.as_str()).time(at);
        });
    }

    fn enqueue(&mut self, idx: usize, task: &Task) {
        self.enqueues.row(22, |row| {
            row.int4(idx)
                .uuid(task.task_id.0)
                .text(task.namespace.as_str())
                .uuid(task.run_key.map(|key| key.0))
                .text(task.step_key.as_ref().map(|key| key.as_str()))
                .text(&*task.kind)
                .text(task.queue.as_str())
                .text(task.name.as_str())
                .int2(task.priority)
                .bool(task.ready)
                .time(task.due_at)
                .uuid(task.worker.map(|worker| worker.0))
                .count(task.claim_no)
                .int8(i64::from(task.attempt))
                .int8(i64::from(task.reclaims))
                .body(task.body.as_ref())
                .body(task.errors.as_ref())
                .text(task.limit_key.as_ref().map(|key| key.as_str()))
                .text(task.trace.as_deref())
                .time(task.created_at);
        });
    }

    fn reschedule(&mut self, idx: usize, change: &Reschedule) {
        let (wake, at) = wake_parts(change.wake);
        self.reschedules.row(8, |row| {
            row.int4(idx)
                .uuid(change.task_id.0)
                .int2(wake)
                .time(at)
                .int8(i64::from(change.attempt))
                .body(change.errors.as_ref())
                .bool(change.untried);
        });
    }

    fn log(&mut self, idx: usize, line: &LogLine) {
        self.logs.row(12, |row| {
            row.int4(idx)
                .uuid(line.run_key.0)
                .uuid(line.log_id.0)
                .text(line.step_key.as_ref().map(|key| key.as_str()))
                .int8(line.attempt.map(i64::from))
                .text(line.level.as_str())
                .text(&*line.category)
                .text(&*line.message)
                .body(line.data.as_ref())
                .bool(line.replay)
                .time(line.created_at);
        });
    }

    fn dead_letter(&mut self, idx: usize, letter: &DeadLetter) {
        self.dead_letters.row(17, |row| {
            row.int4(idx)
                .uuid(letter.task_id.0)
                .text(letter.namespace.as_str())
                .uuid(letter.run_key.map(|key| key.0))
                .text(letter.step_key.as_ref().map(|key| key.as_str()))
                .text(&*letter.kind)
                .text(letter.queue.as_str())
                .text(letter.name.as_str())
                .int8(i64::from(letter.attempt))
                .body(letter.body.as_ref())
                .body(letter.errors.as_ref())
                .text(&*letter.reason)
                .time(letter.dead_at)
                .int8(i64::from(letter.requeues))
                .time(letter.requeued_at);
        });
    }

    fn causes(&mut self, idx: usize, commit: &Commit) {
        for (op, (run_key, cause)) in commit.causes_to_look_up().into_iter().enumerate() {
            let namespace = commit.ops.iter().find_map(|op| match op {
                Op::CreateRun(run) if run.run_key == run_key => Some(run.namespace.as_str()),
                _ => None,
            });
            let (is_run, key) = match cause {
                CausalRef::RunId { run_id } => (true, run_id.0),
                CausalRef::EventId { event_id } => (false, event_id.0),
            };
            self.causes.row(6, |row| {
                row.int4(idx).int4(op).uuid(run_key.0).text(namespace).bool(is_run).uuid(key);
            });
        }
    }

    // Passes conflicts within the commit to the function, which decides in one place which failure
    // comes first.
    fn self_conflicts(&mut self, idx: usize, commit: &Commit, seen: &Seen<'_>) {
        let conflicts = [(1, seen.step_conflict), (2, seen.consume_conflict)];
        for (kind, op) in conflicts {
            if let Some(op) = op {
                self.self_conflicts.row(3, |row| {
                    row.int4(idx).int2(kind).int4(op);
                });
                self.needs_checks = true;
            }
        }
        // The function inserts messages before it consumes any, but a commit cannot consume its own
        // message.
        let consumes = |op: &Op| matches!(op, Op::ConsumeMessage { .. });
        self.needs_checks |= seen.sends_to_itself && commit.ops.iter().any(consumes);
        // A run that exists takes precedence over the end of the guarded run.
        let creates = |op: &Op| matches!(op, Op::CreateRun(_));
        self.needs_checks |=
            matches!(commit.run, Some(RunGuard::Free { .. })) && commit.ops.iter().any(creates);
    }

    /// The first mode to try. `expect_existing`: recent creates met runs that exist.
    pub(crate) fn mode(&self, expect_existing: bool) -> Mode {
        match (self.needs_checks, expect_existing) {
            (true, _) => Mode::Checked,
            (false, true) => Mode::FastExisting,
            (false, false) => Mode::Fast,
        }
    }
}

fn wake_parts(wake: Wake) -> (i16, Option<Timestamp>) {
    match wake {
        Wake::Now => (1, None),
        Wake::At(at) => (2, Some(at)),
        Wake::OnMessage => (3, None),
    }
}

/// The rows that earlier ops of a commit have named.
#[derive(Default)]
struct Seen<'c> {
    messages: std::collections::HashSet<(RunKey, &'c MessageId)>,
    consumed: std::collections::HashSet<(RunKey, u64)>,
    sends_to_itself: bool,
    step_conflict: Option<usize>,
    consume_conflict: Option<usize>,
    several_steps: Option<bool>,
}

impl<'c> Seen<'c> {
    // Whether this op is the last one of its step; only that one is written. An op after a settled
    // one makes the commit fail.
    fn step(&mut self, commit: &'c Commit, op: usize, step: &Step) -> bool {
        let steps = || commit.ops.iter().filter(|op| matches!(op, Op::PutStep(_))).count();
        if !*self.several_steps.get_or_insert_with(|| steps() > 1) {
            return true;
        }
        let same = |other: &Op| match other {
            Op::PutStep(other) => other.step_key == step.step_key && other.run_key == step.run_key,
            _ => false,
        };
        let later = commit.ops[op + 1..].iter().position(same);
        if let Some(later) = later {
            if step.status.is_settled() {
                let at = op + 1 + later;
                self.step_conflict = Some(self.step_conflict.map_or(at, |known| known.min(at)));
            }
            return false;
        }
        true
    }

    // The first op of a step: a refusal names the step whose first op comes first.
    fn first_step<'s>(&self, commit: &'s Commit, op: usize, step: &'s Step) -> (usize, &'s Step) {
        if self.several_steps != Some(true) {
            return (op, step);
        }
        let first = commit.ops.iter().enumerate().find_map(|(op, what)| match what {
            Op::PutStep(other)
                if other.step_key == step.step_key && other.run_key == step.run_key =>
            {
                Some((op, &**other))
            }
            _ => None,
        });
        first.unwrap_or((op, step))
    }
}

/// The rows that a batch must lock, each once, with the commit that guards it.
struct Locks<K, G>(HashMap<K, Option<(usize, G)>>);

impl<K, G> Default for Locks<K, G> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Copy + Ord + std::hash::Hash, G> Locks<K, G> {
    fn add_guarded(&mut self, key: K, idx: usize, guard: G) {
        self.0.insert(key, Some((idx, guard)));
    }

    fn add(&mut self, key: K) {
        self.0.entry(key).or_insert(None);
    }

    fn sorted(self) -> Vec<(K, Option<(usize, G)>)> {
        let mut rows: Vec<_> = self.0.into_iter().collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        rows
    }
}
