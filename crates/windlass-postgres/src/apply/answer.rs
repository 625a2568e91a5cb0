//! Decodes the rows that `commit_batch` returns.

use std::sync::Arc;

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_kernel::{
    Commit, CommitError, CommitKey, Committed, Conflict, Delivery, Error, Head, Hold, MessageKind,
    OnExisting, Op, QueueName, RecordFound, RecordKey, Refusal, Route, RouteName, RunGuard, RunKey,
    RunStatus, Task, Timestamp, Turn, Wakeup, WorkerKey,
};

use crate::rows::Cells;

/// The results of a batch.
#[derive(Debug)]
pub(crate) struct Answers {
    /// One for each commit, in order.
    pub(crate) results: Vec<Result<Committed, CommitError>>,
    /// Wake-ups for rows that became ready or were scheduled.
    pub(crate) wakeups: Vec<Wakeup>,
}

struct ResultRow<'a> {
    code: i16,
    idx: usize,
    op: usize,
    key: Option<Uuid>,
    worker: Option<Uuid>,
    n: Option<i64>,
    m: Option<i64>,
    hash: Option<&'a [u8]>,
    queue: Option<&'a str>,
    name: Option<&'a str>,
    flag: Option<bool>,
    due: Option<i64>,
}

impl<'a> ResultRow<'a> {
    fn read(row: &'a Row) -> Result<Self, Error> {
        let mut cells = Cells::of(row);
        let c = &mut cells;
        Ok(Self {
            code: c.take()?,
            idx: c.take::<Option<i32>>()?.unwrap_or(0) as usize,
            op: c.take::<Option<i32>>()?.unwrap_or(0) as usize,
            key: c.take()?,
            worker: c.take()?,
            n: c.take()?,
            m: c.take()?,
            hash: c.take()?,
            queue: c.take()?,
            name: c.take()?,
            flag: c.take()?,
            due: c.take()?,
        })
    }

    fn route(&self) -> Option<Route> {
        Some(Route {
            queue: QueueName::from_stored(self.queue?),
            name: RouteName::from_stored(self.name?),
        })
    }

    fn hold(&self, claim_no: Option<i64>) -> Option<Hold> {
        let worker = WorkerKey(self.worker?);
        Some(Hold { worker, claim_no: claim_no.unwrap_or(0) as u64 })
    }
}

/// Decodes the result of a batch of these commits.
pub(crate) fn read_answers(commits: &[&Commit], rows: &[Row]) -> Result<Answers, Error> {
    let lines = rows.iter().map(ResultRow::read).collect::<Result<Vec<_>, _>>()?;
    let now = lines.iter().find(|line| line.code == 0).and_then(|line| line.n);
    let now = Timestamp::from_micros(now.unwrap_or(0));
    let success = |commit: &&Commit| Ok(success(commit, now));
    let mut answers =
        Answers { results: commits.iter().map(success).collect(), wakeups: Vec::new() };
    for line in &lines {
        let Some(at) = line.idx.checked_sub(1).filter(|at| *at < commits.len()) else {
            if line.code == 4 {
                answers.wakeups.extend(line.route().map(Wakeup::Turn));
            }
            continue;
        };
        answers.apply(at, commits[at], line)?;
    }
    for (commit, result) in commits.iter().zip(&mut answers.results) {
        if let Ok(committed) = result
            && !committed.repeated
        {
            finish(commit, committed);
            new_wakeups(commit, now, &mut answers.wakeups);
            let control = commit.messages().filter(|m| m.kind == MessageKind::Control);
            answers.wakeups.extend(control.map(|message| Wakeup::Control(message.run_key)));
        }
    }
    Ok(answers)
}

impl Answers {
    fn apply(&mut self, at: usize, commit: &Commit, line: &ResultRow<'_>) -> Result<(), Error> {
        let result = &mut self.results[at];
        match (line.code, &mut *result) {
            (1, Ok(committed)) => {
                committed.accepted = line.n.unwrap_or(0) as u64;
                // The row has the claim number under which a free turn was claimed.
                if let Some(hold) = &mut committed.hold {
                    hold.claim_no = line.m.unwrap_or(0) as u64;
                }
                self.wakeups.extend(line.route().map(Wakeup::Turn));
                self.wakeups.extend(line.due.map(Timestamp::from_micros).map(Wakeup::Due));
            }
            (2 | 3, Ok(committed)) => {
                let seq = line.n.unwrap_or(0) as u64;
                let delivery = match line.code {
                    2 => Delivery::Accepted { seq },
                    _ => Delivery::Duplicate { seq },
                };
                committed.messages[message_index(commit, line.op)] = delivery;
            }
            (5, Ok(_)) => match (line.flag, line.due) {
                (Some(true), _) => self.wakeups.extend(line.route().map(Wakeup::Task)),
                (_, Some(due)) => self.wakeups.push(Wakeup::Due(Timestamp::from_micros(due))),
                _ => {}
            },
            _ => *result = failed(commit, line, result)?,
        }
        Ok(())
    }
}

// The answer to a commit without a result row: no row means success.
fn success(commit: &Commit, now: Timestamp) -> Committed {
    let kept = commit.run_change().is_some_and(|change| {
        change.turn == windlass_kernel::TurnChange::Keep
            && !change.status.is_some_and(RunStatus::is_ended)
    });
    let hold = match &commit.run {
        Some(RunGuard::Held { hold, .. }) if kept => Some(*hold),
        Some(RunGuard::Free { worker, .. }) if kept => Some(Hold { worker: *worker, claim_no: 0 }),
        Some(RunGuard::Absent { run_key, .. }) => {
            created_turn(commit, *run_key).and_then(Turn::hold)
        }
        _ => None,
    };
    Committed {
        run_key: commit.run_key(),
        repeated: false,
        accepted: 0,
        hold,
        messages: commit.messages().map(|_| Delivery::Dropped).collect(),
        now,
    }
}

fn created_turn(commit: &Commit, run_key: RunKey) -> Option<&Turn> {
    commit.ops.iter().find_map(|op| match op {
        Op::CreateRun(run) if run.run_key == run_key => Some(&run.turn),
        _ => None,
    })
}

fn message_index(commit: &Commit, op: usize) -> usize {
    commit.ops[..op].iter().filter(|op| matches!(op, Op::PutMessage(_))).count()
}

// A message that a commit sends twice was inserted once: the second is a duplicate of the first. A
// run that the commit creates has accepted the messages that the commit sends to it.
fn finish(commit: &Commit, committed: &mut Committed) {
    if committed.messages.is_empty() {
        return;
    }
    let sent: Vec<_> = commit.messages().collect();
    for at in 1..sent.len() {
        let same = |before: &usize| {
            sent[*before].message_id == sent[at].message_id
                && sent[*before].run_key == sent[at].run_key
        };
        if let Some(first) = (0..at).find(same) {
            committed.messages[at] = match committed.messages[first] {
                Delivery::Accepted { seq } => Delivery::Duplicate { seq },
                other => other,
            };
        }
    }
    if let Some(RunGuard::Absent { run_key, .. }) = &commit.run {
        let own = sent.iter().zip(&committed.messages).filter(|(m, _)| m.run_key == *run_key);
        let seqs = own.filter_map(|(_, delivery)| match delivery {
            Delivery::Accepted { seq } => Some(*seq),
            _ => None,
        });
        committed.accepted = seqs.max().unwrap_or(committed.accepted);
    }
}

// Adds wake-ups for new runs and tasks that nobody holds.
fn new_wakeups(commit: &Commit, now: Timestamp, wakeups: &mut Vec<Wakeup>) {
    for op in commit.ops.iter() {
        match op {
            Op::CreateRun(run) if run.turn.worker.is_none() => {
                let turn = run.turn.clone();
                let route = || Route { queue: turn.queue.clone(), name: (&run.workflow).into() };
                match (turn.due_at, turn.ready) {
                    (Some(at), _) if at > now => wakeups.push(Wakeup::Due(at)),
                    (Some(_), _) | (None, true) => wakeups.push(Wakeup::Turn(route())),
                    (None, false) => {}
                }
            }
            Op::Enqueue(task) if task.worker.is_none() => {
                let task: &Task = task;
                let route = || Route { queue: task.queue.clone(), name: task.name.clone() };
                match (task.due_at, task.ready) {
                    (Some(at), _) if at > now => wakeups.push(Wakeup::Due(at)),
                    (Some(_), _) | (None, true) => wakeups.push(Wakeup::Task(route())),
                    (None, false) => {}
                }
            }
            _ => {}
        }
    }
}

fn failed(
    commit: &Commit,
    line: &ResultRow<'_>,
    so_far: &Result<Committed, CommitError>,
) -> Result<Result<Committed, CommitError>, Error> {
    let unknown =
        || Error::corrupt(format!("commit_batch returned the unknown code {}", line.code));
    let run_key = || commit.run_key().ok_or_else(unknown);
    let task_id = || commit.task.map(|guard| guard.task_id()).ok_or_else(unknown);
    let error = match line.code {
        10 => CommitError::Conflict(Conflict::RunMissing { run_key: run_key()? }),
        11 => CommitError::Conflict(Conflict::RunHold {
            run_key: run_key()?,
            found: line.hold(line.n),
        }),
        12 => {
            let hash = line.hash.and_then(|hash| hash.try_into().ok()).ok_or_else(unknown)?;
            let hash = windlass_kernel::Sha256Digest::from_bytes(hash);
            let found = Head { next_ordinal: line.n.unwrap_or(0) as u64, hash };
            CommitError::Conflict(Conflict::RunHead { run_key: run_key()?, found })
        }
        13 => {
            let existing = RunKey(line.key.ok_or_else(unknown)?);
            let same_input = line.flag == Some(true);
            let conflict = Conflict::RunExists { run_key: existing, same_input };
            let now = so_far.as_ref().map_or(Timestamp::ZERO, |committed| committed.now);
            if let Some(committed) = repeated_create(commit, line, existing, same_input, now) {
                return Ok(Ok(committed));
            }
            CommitError::Conflict(conflict)
        }
        14 => CommitError::Conflict(Conflict::TaskMissing { task_id: task_id()? }),
        15 => CommitError::Conflict(Conflict::TaskHold {
            task_id: task_id()?,
            found: line.hold(line.n),
        }),
        16 => {
            let Some(Op::Record(record)) = commit.ops.get(line.op) else { return Err(unknown()) };
            let found = match (line.n, line.flag) {
                (None, _) => RecordFound::Absent,
                (Some(revision), Some(true)) => RecordFound::Removed(revision as u64),
                (Some(revision), _) => RecordFound::At(revision as u64),
            };
            let RecordKey { collection, id, .. } = record.key.clone();
            // The batch holds the lock of the row, so this is the only moment in which the write id
            // tells for certain whether the commit was written before.
            let now = so_far.as_ref().map_or(Timestamp::ZERO, |committed| committed.now);
            if let CommitKey::Record { key, write_id, .. } = &commit.key
                && *key == record.key
                && line.key == Some(write_id.0)
            {
                return Ok(Ok(Committed { repeated: true, hold: None, ..success(commit, now) }));
            }
            let expected = record.expect;
            CommitError::Conflict(Conflict::Record { collection, id, expected, found })
        }
        25 => {
            let status = RunStatus::parse(line.name.unwrap_or_default())?;
            CommitError::Refused(Refusal::RunEnded { run_key: run_key()?, status })
        }
        20..=24 | 26 => CommitError::Refused(refusal(commit, line)?),
        _ => return Err(unknown()),
    };
    Ok(Err(error))
}

fn refusal(commit: &Commit, line: &ResultRow<'_>) -> Result<Refusal, Error> {
    let unknown =
        || Error::corrupt(format!("commit_batch refused op {}, which cannot fail", line.op));
    Ok(match (line.code, commit.ops.get(line.op)) {
        (20, Some(Op::PutMessage(message))) => Refusal::RunMissing { run_key: message.run_key },
        (21, Some(Op::PutMessage(message))) => {
            let status = RunStatus::parse(line.name.unwrap_or_default())?;
            Refusal::RunEnded { run_key: message.run_key, status }
        }
        (22, _) => {
            let causes = commit.causes_to_look_up();
            Refusal::CauseMissing { cause: causes.get(line.op).ok_or_else(unknown)?.1 }
        }
        (23, Some(Op::PutStep(step))) => Refusal::StepSettled { step_key: step.step_key.clone() },
        (24, Some(Op::ConsumeMessage { seq, .. })) => Refusal::MessageConsumed { seq: *seq },
        (26, Some(Op::Requeue { task_id, .. })) => Refusal::DeadLetterMissing { task_id: *task_id },
        _ => return Err(unknown()),
    })
}

// Answers a create that was written before, or that found a run which it may return, without
// another query, so that an idempotent start takes one round trip. A create that sends messages
// needs a query for them.
fn repeated_create(
    commit: &Commit,
    line: &ResultRow<'_>,
    existing: RunKey,
    same_input: bool,
    now: Timestamp,
) -> Option<Committed> {
    let Some(RunGuard::Absent { run_key, on_existing }) = commit.run else {
        return None;
    };
    if commit.messages().next().is_some() {
        return None;
    }
    let found = commit.key == CommitKey::Run(existing) && existing == run_key;
    let named = on_existing == OnExisting::Return && same_input && existing != run_key;
    let guarded =
        matches!(commit.ops.get(line.op), Some(Op::CreateRun(run)) if run.run_key == run_key);
    let returned = named && guarded;
    if !found && !returned {
        return None;
    }
    let hold = line
        .hold(line.m)
        .filter(|hold| found && created_turn(commit, run_key).and_then(Turn::hold) == Some(*hold));
    Some(Committed {
        run_key: Some(existing),
        repeated: true,
        accepted: line.n.unwrap_or(0) as u64,
        hold,
        messages: Vec::new(),
        now,
    })
}

/// Wraps a store error as the answer to a commit.
pub(crate) fn unavailable(error: Error) -> CommitError {
    CommitError::Unavailable(Arc::new(error))
}
