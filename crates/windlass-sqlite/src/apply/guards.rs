//! Guards: what must be true for a commit to hold, and whether it is the same commit again.

use rusqlite::{OptionalExtension, params};
use uuid::Uuid;
use windlass_kernel::{
    CauseCheck, Commit, CommitError, CommitKey, Committed, Conflict, Delivery, Hold, OnExisting,
    Op, Run, RunGuard, RunKey, TaskGuard, WorkerKey,
};

use super::{Buffers, Writer, created, message_seq};
use crate::error::Fail;
use crate::rows::{Blob, count, number};

/// Whether a run has a key.
pub(super) const BY_KEY: &str = "SELECT run_key, input_hash FROM runs WHERE run_key = ?1";
/// Whether a run has a name.
pub(super) const BY_NAME: &str = "SELECT run_key, input_hash FROM runs \
     WHERE namespace = ?1 AND workflow = ?2 AND id = ?3 AND generation = ?4";

/// The first guard that fails, if one does.
pub(super) fn check(w: &mut Writer<'_>, commit: &Commit) -> Result<Option<Conflict>, Fail> {
    if let Some(conflict) = run_guard(w, commit)? {
        return Ok(Some(conflict));
    }
    // The guarded run, its children and next generations must all be new.
    for op in commit.ops.iter() {
        if let Op::CreateRun(run) = op
            && let Some(conflict) = existing(w, run)?
        {
            return Ok(Some(conflict));
        }
    }
    match &commit.task {
        Some(guard) => task_guard(w, guard),
        None => Ok(None),
    }
}

/// The run of a commit that creates it, if nothing else has to be looked for beforehand. A task or a log
/// line beside it may still break a key, and with it the batch.
pub(super) fn only_creates(commit: &Commit) -> Option<&Run> {
    if commit.task.is_some() || !matches!(commit.run, Some(RunGuard::Absent { .. })) {
        return None;
    }
    let mut created = None;
    for op in commit.ops.iter() {
        match op {
            Op::CreateRun(run) if created.is_none() => created = Some(&**run),
            Op::AppendEvent { cause, .. } if *cause != CauseCheck::Look => {}
            Op::PutStep(_) | Op::Enqueue(_) | Op::PutLog(_) => {}
            _ => return None,
        }
    }
    created
}

fn run_guard(w: &mut Writer<'_>, commit: &Commit) -> Result<Option<Conflict>, Fail> {
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

fn existing(w: &mut Writer<'_>, run: &Run) -> Result<Option<Conflict>, Fail> {
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

fn task_guard(w: &Writer<'_>, guard: &TaskGuard) -> Result<Option<Conflict>, Fail> {
    let task_id = guard.task_id;
    let sql = "SELECT worker, claim_no FROM tasks WHERE task_id = ?1";
    let mut find = w.conn.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        let claim_no = count(row, 1)?;
        let worker = row.get::<_, Option<Uuid>>(0)?;
        Ok(worker.map(|worker| Hold { worker: WorkerKey(worker), claim_no }))
    };
    let found = find.query_row(params![Blob(task_id.as_bytes())], read).optional()?;
    Ok(match found {
        None => Some(Conflict::TaskMissing { task_id }),
        Some(hold) if hold != Some(guard.hold) => Some(Conflict::TaskHold { task_id, found: hold }),
        Some(_) => None,
    })
}

/// The answer to a commit whose guard failed: the one that was lost, if it is the same commit
/// again; the run that a create found, if that will do; else the conflict.
pub(super) fn repeated(
    w: &mut Writer<'_>,
    buffers: &mut Buffers<'_>,
    commit: &Commit,
    conflict: Conflict,
) -> Result<Committed, Fail> {
    let run_key = if is_there(w, buffers, &commit.key)? {
        commit.run_key()
    } else {
        match (&commit.run, conflict) {
            (
                Some(RunGuard::Absent { run_key: own, on_existing: OnExisting::Return }),
                Conflict::RunExists { run_key: found, same_input: true },
            ) if created(commit, *own).is_some_and(|run| existing_is(w, run, found)) => Some(found),
            _ => return Err(Fail::Answer(CommitError::Conflict(conflict))),
        }
    };
    answer_again(w, commit, run_key)
}

/// The answer to a commit without guards that breaks a key: the one that was lost, if it is the
/// same commit again.
pub(crate) fn found_again(w: &mut Writer<'_>, commit: &Commit) -> Result<Option<Committed>, Fail> {
    if !is_there(w, &mut Buffers::default(), &commit.key)? {
        return Ok(None);
    }
    answer_again(w, commit, None).map(Some)
}

fn answer_again(
    w: &mut Writer<'_>,
    commit: &Commit,
    run_key: Option<RunKey>,
) -> Result<Committed, Fail> {
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
            .filter(|hold| run_key == commit.run_key() && commit.still_has(run.head, *hold));
    }
    Ok(Committed { run_key, repeated: true, accepted, hold, messages, now: w.now })
}

// Whether the conflict is about the guarded run itself, not about a child of another name.
fn existing_is(w: &mut Writer<'_>, run: &Run, found: RunKey) -> bool {
    let conflict = existing(w, run);
    matches!(conflict, Ok(Some(Conflict::RunExists { run_key, .. })) if run_key == found)
}

fn is_there(w: &mut Writer<'_>, buffers: &mut Buffers<'_>, key: &CommitKey) -> Result<bool, Fail> {
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
        CommitKey::Nothing => false,
    };
    Ok(found)
}
