//! Checks guards, and detects that a commit was sent again.

use rusqlite::{OptionalExtension, params};
use uuid::Uuid;
use windlass_kernel::{
    CauseCheck, Commit, CommitError, CommitKey, Committed, Conflict, Delivery, Hold, OnExisting,
    Op, Run, RunGuard, RunKey, TaskGuard, WorkerKey,
};

use super::{Buffers, Writer, created, message_seq};
use crate::error::UnitError;
use crate::records;
use crate::rows::{Blob, count, number};

/// Finds a run by its key.
pub(super) const BY_KEY: &str = "SELECT run_key, input_hash FROM runs WHERE run_key = ?1";
/// Finds a run by its name.
pub(super) const BY_NAME: &str = "SELECT run_key, input_hash FROM runs \
     WHERE namespace = ?1 AND workflow = ?2 AND id = ?3 AND generation = ?4";

/// Returns the first guard that fails.
pub(super) fn check(w: &mut Writer<'_>, commit: &Commit) -> Result<Option<Conflict>, UnitError> {
    if let Some(conflict) = run_guard(w, commit)? {
        return Ok(Some(conflict));
    }
    // The guarded run, its children and next generations must not exist.
    for op in commit.ops.iter() {
        if let Op::CreateRun(run) = op
            && let Some(conflict) = existing(w, run)?
        {
            return Ok(Some(conflict));
        }
    }
    let task = match &commit.task {
        Some(guard) => task_guard(w, guard)?,
        None => None,
    };
    match task {
        Some(conflict) => Ok(Some(conflict)),
        None => records::check(w, commit),
    }
}

/// Returns the run of a commit that creates it and needs no other check first. A task or a log line
/// of the commit may still violate a unique key, which fails the batch.
pub(super) fn only_creates(commit: &Commit) -> Option<&Run> {
    if commit.task.is_some() || !matches!(commit.run, Some(RunGuard::Absent { .. })) {
        return None;
    }
    let mut created = None;
    for op in commit.ops.iter() {
        match op {
            Op::CreateRun(run) if created.is_none() => created = Some(&**run),
            Op::AppendEvent { cause, .. } if *cause != CauseCheck::LookUp => {}
            Op::PutStep(_) | Op::Enqueue(_) | Op::PutLog(_) => {}
            _ => return None,
        }
    }
    created
}

fn run_guard(w: &mut Writer<'_>, commit: &Commit) -> Result<Option<Conflict>, UnitError> {
    let Some(guard) = &commit.run else { return Ok(None) };
    let run_key = guard.run_key();
    let (head, hold) = match guard {
        RunGuard::Absent { .. } => return Ok(None),
        RunGuard::Held { head, hold, .. } => (head, Some(*hold)),
        RunGuard::Free { head, .. } => (head, None),
    };
    let Some(run) = w.run(run_key)? else {
        return Ok(Some(Conflict::RunMissing { run_key }));
    };
    if run.turn.hold() != hold {
        return Ok(Some(Conflict::RunHold { run_key, found: run.turn.hold() }));
    }
    if run.head != *head {
        return Ok(Some(Conflict::RunHead { run_key, found: run.head }));
    }
    Ok(None)
}

fn existing(w: &mut Writer<'_>, run: &Run) -> Result<Option<Conflict>, UnitError> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Uuid>(0)?, row.get::<_, [u8; 32]>(1)?));
    let key = params![Blob(run.run_key.as_bytes())];
    let mut found = w.run_by_key.query_row(key, read).optional()?;
    if found.is_none() {
        let name =
            params![run.namespace.as_str(), run.workflow.as_str(), run.id.as_str(), run.generation];
        found = w.run_by_name.query_row(name, read).optional()?;
    }
    Ok(found.map(|(key, hash)| Conflict::RunExists {
        run_key: RunKey(key),
        same_input: hash == *run.input_hash.as_bytes(),
    }))
}

fn task_guard(w: &Writer<'_>, guard: &TaskGuard) -> Result<Option<Conflict>, UnitError> {
    let task_id = guard.task_id();
    let sql = "SELECT worker, claim_no FROM tasks WHERE task_id = ?1";
    let mut find = w.conn.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok((row.get::<_, Option<Uuid>>(0)?.map(WorkerKey), count(row, 1)?))
    };
    let found = find.query_row(params![Blob(task_id.as_bytes())], read).optional()?;
    Ok(match found {
        None => Some(Conflict::TaskMissing { task_id }),
        Some(found) if found == (guard.worker(), guard.claim_no()) => None,
        Some((worker, claim_no)) => {
            let found = worker.map(|worker| Hold { worker, claim_no });
            Some(Conflict::TaskHold { task_id, found })
        }
    })
}

/// Answers a commit whose guard failed. If the same commit was written before, repeats its answer.
/// If a create found an existing run that is acceptable, returns that run. Otherwise returns the
/// conflict.
pub(super) fn answer_conflict(
    w: &mut Writer<'_>,
    buffers: &mut Buffers<'_>,
    commit: &Commit,
    conflict: Conflict,
) -> Result<Committed, UnitError> {
    let run_key = if exists(w, buffers, &commit.key)? {
        commit.run_key()
    } else {
        match (&commit.run, &conflict) {
            (
                Some(RunGuard::Absent { run_key: own, on_existing: OnExisting::Return }),
                Conflict::RunExists { run_key: found, same_input: true },
            ) if created(commit, *own).is_some_and(|run| existing_is(w, run, *found)) => {
                Some(*found)
            }
            _ => return Err(UnitError::Commit(CommitError::Conflict(conflict))),
        }
    };
    repeat_answer(w, commit, run_key)
}

/// Answers a commit without guards that violated a unique key: repeats the earlier answer if the
/// same commit was written before.
pub(crate) fn answer_if_written(
    w: &mut Writer<'_>,
    commit: &Commit,
) -> Result<Option<Committed>, UnitError> {
    if !exists(w, &mut Buffers::default(), &commit.key)? {
        return Ok(None);
    }
    repeat_answer(w, commit, None).map(Some)
}

fn repeat_answer(
    w: &mut Writer<'_>,
    commit: &Commit,
    run_key: Option<RunKey>,
) -> Result<Committed, UnitError> {
    let mut messages = Vec::new();
    for message in commit.messages() {
        messages.push(match message_seq(w.conn, message.run_key, &message.message_id)? {
            Some(seq) => Delivery::Duplicate { seq },
            None => Delivery::Dropped,
        });
    }
    let (mut accepted, mut hold) = (0, None);
    if let Some(key) = run_key
        && let Some(run) = w.run(key)?
    {
        accepted = run.accepted;
        hold = run
            .turn
            .hold()
            .filter(|hold| run_key == commit.run_key() && commit.still_holds(run.head, *hold));
    }
    Ok(Committed { run_key, repeated: true, accepted, hold, messages, now: w.now })
}

// Whether the conflict is about the guarded run itself, and not about a child with another name.
fn existing_is(w: &mut Writer<'_>, run: &Run, found: RunKey) -> bool {
    let conflict = existing(w, run);
    matches!(conflict, Ok(Some(Conflict::RunExists { run_key, .. })) if run_key == found)
}

fn exists(
    w: &mut Writer<'_>,
    buffers: &mut Buffers<'_>,
    key: &CommitKey,
) -> Result<bool, UnitError> {
    let found = match key {
        CommitKey::Run(run_key) => w.run(*run_key)?.is_some(),
        CommitKey::Event { run_key, ordinal, event_id } => {
            w.flush_events(buffers)?;
            let sql = "SELECT 1 FROM events WHERE run_key = ?1 AND ordinal = ?2 AND event_id = ?3";
            let (run_key, id) = (Blob(run_key.as_bytes()), Blob(event_id.as_bytes()));
            w.conn.prepare_cached(sql)?.exists(params![run_key, number(*ordinal), id])?
        }
        CommitKey::Message { run_key, message_id } => {
            message_seq(w.conn, *run_key, message_id)?.is_some()
        }
        CommitKey::Task(task_id) => {
            let sql = "SELECT 1 FROM tasks WHERE task_id = ?1";
            w.conn.prepare_cached(sql)?.exists(params![Blob(task_id.as_bytes())])?
        }
        CommitKey::Record { key, write_id, .. } => records::was_written(w, key, *write_id)?,
        CommitKey::Nothing => false,
    };
    Ok(found)
}
