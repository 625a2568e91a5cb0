//! Detects a commit that was sent again: after a failed guard, the commit's key tells whether it
//! was written before.

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_kernel::{
    Commit, CommitError, CommitKey, Committed, Conflict, Delivery, Error, Head, Hold, OnExisting,
    Op, RunGuard, RunKey, Sha256Digest, WorkerKey,
};

use crate::error::{constraint, error_text, is_unique, unknown};
use crate::rows::Cells;
use crate::store::Shared;

use super::Outcome;

/// Looks up a commit's key, a run's turn and the messages that the commit sends.
pub(crate) const RESOLVE: &str = "SELECT CASE $1::int2 \
    WHEN 1 THEN EXISTS (SELECT FROM @schema@.runs WHERE run_key = $2) \
    WHEN 2 THEN EXISTS (SELECT FROM @schema@.events \
        WHERE run_key = $2 AND ordinal = $3 AND event_id = $4) \
    WHEN 3 THEN EXISTS (SELECT FROM @schema@.messages WHERE run_key = $2 AND message_id = $5) \
    WHEN 4 THEN EXISTS (SELECT FROM @schema@.tasks WHERE task_id = $2) \
    WHEN 5 THEN EXISTS (SELECT FROM @schema@.records \
        WHERE namespace = $9 AND collection = $10 AND id = $5 AND write_id = $2) \
    ELSE false END, \
    @schema@.clock_us(), r.accepted, r.turn_worker, r.turn_claim_no, r.head, r.next_ordinal, \
    ARRAY(SELECT m.seq FROM unnest($7::uuid[], $8::text[]) \
        WITH ORDINALITY x (run_key, message_id, place) \
        LEFT JOIN @schema@.messages m ON m.run_key = x.run_key AND m.message_id = x.message_id \
        ORDER BY x.place) \
    FROM (VALUES (1)) one LEFT JOIN @schema@.runs r ON r.run_key = $6";

/// Returns `Committed` if the commit was written before. Otherwise returns `error`: a conflict, or
/// the violation of a unique key by a commit without guards.
pub(crate) async fn resolve(shared: &Shared, commit: &Commit, error: CommitError) -> Outcome {
    let conflict = match &error {
        CommitError::Conflict(conflict) => Some(conflict.clone()),
        _ => None,
    };
    match find_written(shared, commit, conflict).await {
        Ok(Some(committed)) => Ok(committed),
        Ok(None) => Err(error),
        // The commit may have been written before, so the original error could be wrong.
        Err(error) => Err(unknown(&error.to_string())),
    }
}

/// The answer to a commit that is known to be written: its messages are looked up.
pub(crate) async fn repeat_answer(shared: &Shared, commit: &Commit) -> Outcome {
    let run = commit.run_key();
    let answer = async {
        let row = query_key(shared, commit, run).await?;
        committed(commit, run, &row, true)
    };
    answer.await.map_err(|error: Error| unknown(&error.to_string()))
}

/// Answers a commit that violates a constraint. For a commit without a guard, a duplicate key is
/// the only sign that it was written before. If it was sent before, a missing key proves nothing,
/// because another commit may have removed it since.
pub(crate) async fn answer_constraint(
    shared: &Shared,
    commit: &Commit,
    error: &tokio_postgres::Error,
    sent_before: bool,
) -> Outcome {
    let refused = constraint(&error_text(error));
    match commit.is_unguarded() && is_unique(error) {
        true if sent_before => resolve(shared, commit, unknown(&error_text(error))).await,
        true => resolve(shared, commit, refused).await,
        false => Err(refused),
    }
}

async fn find_written(
    shared: &Shared,
    commit: &Commit,
    conflict: Option<Conflict>,
) -> Result<Option<Committed>, Error> {
    let own = commit.run_key();
    let row = query_key(shared, commit, own).await?;
    if row.try_get(0).unwrap_or(false) {
        return committed(commit, own, &row, true).map(Some);
    }
    match (&commit.run, conflict) {
        (
            Some(RunGuard::Absent { run_key, on_existing: OnExisting::Return }),
            Some(Conflict::RunExists { run_key: existing, same_input: true }),
        ) if existing != *run_key && is_the_guarded(shared, commit, *run_key, existing).await? => {
            let row = query_key(shared, commit, Some(existing)).await?;
            committed(commit, Some(existing), &row, false).map(Some)
        }
        _ => Ok(None),
    }
}

/// Whether a run has a name.
pub(crate) const SAME_NAME: &str = "SELECT EXISTS (SELECT FROM @schema@.runs \
    WHERE run_key = $1 AND namespace = $2 AND workflow = $3 AND id = $4 AND generation = $5)";

// The existing run may have the name of a child; only the guarded run is returned.
async fn is_the_guarded(
    shared: &Shared,
    commit: &Commit,
    guarded: RunKey,
    existing: RunKey,
) -> Result<bool, Error> {
    let row = commit.ops.iter().find_map(|op| match op {
        Op::CreateRun(run) if run.run_key == guarded => Some(run),
        _ => None,
    });
    let Some(run) = row else { return Ok(false) };
    let (namespace, workflow) = (run.namespace.as_str(), run.workflow.as_str());
    let (id, generation) = (run.id.as_str(), i64::from(run.generation));
    let rows =
        shared.query(SAME_NAME, &[&existing.0, &namespace, &workflow, &id, &generation]).await?;
    Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
}

async fn query_key(shared: &Shared, commit: &Commit, run: Option<RunKey>) -> Result<Row, Error> {
    let mut kind = 0_i16;
    let (mut key, mut ordinal, mut event) = (None::<Uuid>, None::<i64>, None::<Uuid>);
    let (mut message, mut record) = (None::<&str>, (None::<&str>, None::<&str>));
    match &commit.key {
        CommitKey::Run(run_key) => (kind, key) = (1, Some(run_key.0)),
        CommitKey::Event { run_key, ordinal: number, event_id } => {
            (kind, key) = (2, Some(run_key.0));
            (ordinal, event) = (Some(*number as i64), Some(event_id.0));
        }
        CommitKey::Message { run_key, message_id } => {
            (kind, key, message) = (3, Some(run_key.0), Some(message_id.as_str()));
        }
        CommitKey::Task(task_id) => (kind, key) = (4, Some(task_id.0)),
        CommitKey::Record { key: name, write_id, .. } => {
            (kind, key, message) = (5, Some(write_id.0), Some(name.id.as_str()));
            record = (Some(name.namespace.as_str()), Some(name.collection.as_str()));
        }
        CommitKey::Nothing => {}
    }
    let run = run.map(|run| run.0);
    let runs: Vec<Uuid> = commit.messages().map(|message| message.run_key.0).collect();
    let ids: Vec<&str> = commit.messages().map(|message| message.message_id.as_str()).collect();
    let rows = shared
        .query(
            RESOLVE,
            &[&kind, &key, &ordinal, &event, &message, &run, &runs, &ids, &record.0, &record.1],
        )
        .await?;
    rows.into_iter().next().ok_or_else(|| Error::corrupt("the look-up of a commit returned no row"))
}

fn committed(
    commit: &Commit,
    run_key: Option<RunKey>,
    row: &Row,
    found: bool,
) -> Result<Committed, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    let _: bool = c.take()?;
    let now = c.time()?;
    let accepted: Option<i64> = c.take()?;
    let worker: Option<Uuid> = c.take()?;
    let claim_no: Option<i64> = c.take()?;
    let hash: Option<&[u8]> = c.take()?;
    let next_ordinal: Option<i64> = c.take()?;
    let seqs: Vec<Option<i64>> = c.take()?;
    let hash = hash.and_then(|hash| hash.try_into().ok()).map(Sha256Digest::from_bytes);
    let head = hash.zip(next_ordinal).map(|(hash, next)| Head { next_ordinal: next as u64, hash });
    let hold = worker
        .zip(claim_no)
        .map(|(worker, claim_no)| Hold { worker: WorkerKey(worker), claim_no: claim_no as u64 });
    let delivery = |seq: Option<i64>| match seq {
        Some(seq) => Delivery::Duplicate { seq: seq as u64 },
        None => Delivery::Dropped,
    };
    Ok(Committed {
        run_key,
        repeated: true,
        accepted: accepted.unwrap_or(0) as u64,
        hold: head
            .zip(hold)
            .filter(|(head, hold)| found && commit.still_holds(*head, *hold))
            .map(|(_, hold)| hold),
        messages: seqs.into_iter().map(delivery).collect(),
        now,
    })
}
