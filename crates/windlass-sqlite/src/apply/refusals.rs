//! Refusals: checks by reading, before any write, whether the rows that a commit names accept it.

use std::collections::HashSet;

use rusqlite::{OptionalExtension, params};
use windlass_kernel::{
    CausalRef, CauseCheck, Commit, CommitError, Delivery, NewMessage, Op, Refusal, RunGuard,
    RunKey, RunStatus, StepStatus, Unread,
};

use super::{Buffers, Writer, created, message_seq};
use crate::error::UnitError;
use crate::rows::{Blob, count, number};

// The reference to a large body ends with its size.
const UNREAD: &str = "SELECT count(*), coalesce(sum(CASE \
     WHEN body_encoding IN ('json_ref', 'bytes_ref') \
     THEN CAST(CAST(substr(body, 33) AS TEXT) AS INTEGER) ELSE length(body) END), 0) \
     FROM messages INDEXED BY messages_unread WHERE run_key = ?1 AND consumed_at IS NULL";

/// Returns the delivery of each message, or why the commit is refused.
pub(super) fn check(
    w: &mut Writer<'_>,
    buffers: &mut Buffers<'_>,
    commit: &Commit,
) -> Result<Vec<Delivery>, UnitError> {
    ended_run(w, commit)?;
    let deliveries = deliveries(w, commit)?;
    causes(w, buffers, commit)?;
    if w.check_steps_first {
        settled_steps(w, commit)?;
    }
    let rest = consumed_messages(w, commit).and_then(|()| dead_letters(w, commit));
    if rest.is_err()
        && !w.check_steps_first
        && commit.ops.iter().any(|op| matches!(op, Op::PutStep(_)))
    {
        // A settled step takes precedence over the other refusals. Nothing of this commit will be
        // written, so the upsert cannot detect it; check it here.
        w.flush_steps(buffers)?;
        settled_steps(w, commit)?;
    }
    rest?;
    Ok(deliveries)
}

fn refuse<T>(refusal: Refusal) -> Result<T, UnitError> {
    Err(UnitError::Commit(CommitError::Refused(refusal)))
}

fn deliveries(w: &mut Writer<'_>, commit: &Commit) -> Result<Vec<Delivery>, UnitError> {
    let mut planned: Vec<(&NewMessage, Delivery)> = Vec::new();
    for message in commit.messages() {
        let run_key = message.run_key;
        let earlier = planned.iter().find_map(|(other, delivery)| match delivery {
            Delivery::Accepted { seq } | Delivery::Duplicate { seq }
                if other.run_key == run_key && other.message_id == message.message_id =>
            {
                Some(*seq)
            }
            _ => None,
        });
        let known = match earlier {
            Some(seq) => Some(seq),
            None => message_seq(w.conn, run_key, &message.message_id)?,
        };
        let delivery = match known {
            Some(seq) => Delivery::Duplicate { seq },
            None => deliver(w, commit, message, &planned)?,
        };
        planned.push((message, delivery));
    }
    Ok(planned.into_iter().map(|(_, delivery)| delivery).collect())
}

fn deliver(
    w: &mut Writer<'_>,
    commit: &Commit,
    message: &NewMessage,
    planned: &[(&NewMessage, Delivery)],
) -> Result<Delivery, UnitError> {
    let run_key = message.run_key;
    let new = created(commit, run_key);
    let found: Option<(RunStatus, u64)> = match new {
        Some(run) => Some((run.status, run.accepted)),
        None => w.run(run_key)?.map(|run| (run.status, run.accepted)),
    };
    match found {
        None if message.required => refuse(Refusal::RunMissing { run_key }),
        Some((status, _)) if status.is_ended() && message.required && new.is_none() => {
            refuse(Refusal::RunEnded { run_key, status })
        }
        Some((status, accepted)) if !status.is_ended() => {
            if new.is_none() && message.is_limited() {
                check_unread(w, message, accepted, planned)?;
            }
            let last = planned.iter().rev().find_map(|(other, delivery)| match delivery {
                Delivery::Accepted { seq } if other.run_key == run_key => Some(*seq),
                _ => None,
            });
            Ok(Delivery::Accepted { seq: last.unwrap_or(accepted) + 1 })
        }
        _ => Ok(Delivery::Dropped),
    }
}

// Refuses a message to a run that has as many unread messages as the limits allow.
fn check_unread(
    w: &mut Writer<'_>,
    message: &NewMessage,
    accepted: u64,
    planned: &[(&NewMessage, Delivery)],
) -> Result<(), UnitError> {
    let run_key = message.run_key;
    let limits = w.limits;
    if !Unread::may_exceed(accepted + planned.len() as u64, limits) {
        return Ok(());
    }
    let known = w.run(run_key)?.and_then(|run| run.unread);
    let mut unread = match known {
        Some(unread) => unread,
        None => {
            let mut select = w.conn.prepare_cached(UNREAD)?;
            let unread = select.query_row([Blob(run_key.as_bytes())], |row| {
                Ok(Unread { count: count(row, 0)?, bytes: count(row, 1)? })
            })?;
            drop(select);
            if let Some(run) = w.run(run_key)? {
                run.unread = Some(unread);
            }
            unread
        }
    };
    for (other, delivery) in planned {
        if other.run_key == run_key && matches!(delivery, Delivery::Accepted { .. }) {
            unread.add(other);
        }
    }
    if unread.admits(message, limits) { Ok(()) } else { refuse(Refusal::MessagesLimit { run_key }) }
}

fn causes(w: &mut Writer<'_>, buffers: &mut Buffers<'_>, commit: &Commit) -> Result<(), UnitError> {
    let look = |op: &Op| matches!(op, Op::AppendEvent { cause: CauseCheck::LookUp, .. });
    if !commit.ops.iter().any(look) {
        return Ok(());
    }
    w.flush_events(buffers)?;
    for (run_key, cause) in commit.causes_to_look_up() {
        let namespace = match created(commit, run_key) {
            Some(run) => Some(run.namespace.clone()),
            None => w.run(run_key)?.map(|run| run.namespace.clone()),
        };
        let sql = match cause {
            CausalRef::EventId { .. } => {
                "SELECT 1 FROM events JOIN runs USING (run_key) \
                 WHERE event_id = ?1 AND namespace = ?2"
            }
            CausalRef::RunId { .. } => "SELECT 1 FROM runs WHERE run_key = ?1 AND namespace = ?2",
        };
        let key = match &cause {
            CausalRef::EventId { event_id } => Blob(event_id.as_bytes()),
            CausalRef::RunId { run_id } => Blob(run_id.as_bytes()),
        };
        let namespace = namespace.as_ref().map(|namespace| namespace.as_str());
        if !w.conn.prepare_cached(sql)?.exists(params![key, namespace])? {
            return refuse(Refusal::CauseMissing { cause });
        }
    }
    Ok(())
}

fn settled_steps(w: &Writer<'_>, commit: &Commit) -> Result<(), UnitError> {
    let mut settled_here = HashSet::new();
    for op in commit.ops.iter() {
        let Op::PutStep(step) = op else { continue };
        let step_key = &step.step_key;
        let sql = "SELECT status FROM steps WHERE run_key = ?1 AND step_key = ?2";
        let mut find = w.conn.prepare_cached(sql)?;
        let key = Blob(step.run_key.as_bytes());
        let status: Option<String> =
            find.query_row(params![key, step_key.as_str()], |row| row.get(0)).optional()?;
        let settled = match status {
            Some(word) => StepStatus::parse(&word)?.is_settled(),
            None => false,
        };
        if settled || settled_here.contains(&(step.run_key, step_key)) {
            return refuse(Refusal::StepSettled { step_key: step_key.clone() });
        }
        if step.status.is_settled() {
            settled_here.insert((step.run_key, step_key));
        }
    }
    Ok(())
}

fn consumed_messages(w: &Writer<'_>, commit: &Commit) -> Result<(), UnitError> {
    let mut consumed_here: HashSet<(RunKey, u64)> = HashSet::new();
    for op in commit.ops.iter() {
        let Op::ConsumeMessage { run_key, seq, .. } = op else { continue };
        let sql = "SELECT 1 FROM messages WHERE run_key = ?1 AND seq = ?2 AND consumed_at IS NULL";
        let mut find = w.conn.prepare_cached(sql)?;
        let unread = find.exists(params![Blob(run_key.as_bytes()), number(*seq)])?;
        if !unread || !consumed_here.insert((*run_key, *seq)) {
            return refuse(Refusal::MessageConsumed { seq: *seq });
        }
    }
    Ok(())
}

fn dead_letters(w: &Writer<'_>, commit: &Commit) -> Result<(), UnitError> {
    for op in commit.ops.iter() {
        let Op::Requeue { task_id, .. } = op else { continue };
        let sql = "SELECT 1 FROM dead_letters WHERE task_id = ?1 AND requeued_at IS NULL";
        if !w.conn.prepare_cached(sql)?.exists(params![Blob(task_id.as_bytes())])? {
            return refuse(Refusal::DeadLetterMissing { task_id: *task_id });
        }
    }
    Ok(())
}

// Nobody holds the turn of an ended run, so a commit that claims it passes the guards.
fn ended_run(w: &mut Writer<'_>, commit: &Commit) -> Result<(), UnitError> {
    let Some(guard @ (RunGuard::Held { .. } | RunGuard::Free { .. })) = &commit.run else {
        return Ok(());
    };
    let run_key = guard.run_key();
    match w.run(run_key)? {
        Some(run) if run.status.is_ended() => {
            refuse(Refusal::RunEnded { run_key, status: run.status })
        }
        _ => Ok(()),
    }
}
