//! Limits the unread messages of a run.
//!
//! A committer counts the messages that it sends to each run. It asks the database only when the
//! messages since the last count could matter, so that an ordinary message costs no query. Other
//! processes send at the same time, so a run can exceed the limits by a sixteenth for each process.

use std::collections::{HashMap, HashSet};

use windlass_kernel::{Commit, CommitError, Error, Limits, MessageId, NewMessage, Op, Refusal};
use windlass_kernel::{RunKey, Unread};

use crate::rows::Cells;
use crate::store::Shared;

use super::{Job, decide};

/// Unread messages of runs that exist and have not ended. The reference to a large body ends with its
/// size. A damaged reference counts as it is: an error would turn the limits off for the whole batch.
pub(crate) const UNREAD: &str = "SELECT r.run_key, u.n, u.bytes FROM unnest($1::uuid[]) k (run_key) \
     JOIN @schema@.runs r ON r.run_key = k.run_key \
     CROSS JOIN LATERAL (SELECT count(*) AS n, coalesce(sum(CASE \
             WHEN m.body_encoding IN ('json_ref', 'bytes_ref') \
                 AND encode(substring(m.body FROM 33), 'escape') ~ '^[0-9]{1,15}$' \
             THEN encode(substring(m.body FROM 33), 'escape')::int8 \
             ELSE octet_length(m.body) END), 0)::int8 AS bytes \
         FROM @schema@.messages m WHERE m.run_key = r.run_key AND m.consumed_by IS NULL) u \
     WHERE r.status NOT IN ('complete', 'errored', 'terminated')";

/// The messages that exist already.
pub(crate) const KNOWN: &str = "SELECT m.run_key, m.message_id \
     FROM unnest($1::uuid[], $2::text[]) k (run_key, message_id) \
     JOIN @schema@.messages m ON m.run_key = k.run_key AND m.message_id = k.message_id";

/// The part of the limits that may be sent to a run between two counts.
const SLACK: u64 = 16;

/// The most runs whose messages are counted.
const RUNS_MAX: usize = 10_000;

type MessageKey = (RunKey, MessageId);

/// The counts of one committer.
#[derive(Default)]
pub(super) struct Mailboxes {
    runs: HashMap<RunKey, Sent>,
}

// The messages that a run had at the last count, and those that were sent to it since.
#[derive(Clone, Copy, Default)]
struct Sent {
    counted: Unread,
    since: Unread,
}

impl Mailboxes {
    /// Answers the jobs that the limits refuse. Returns the others: those of this batch, and those
    /// whose answer depends on the outcome of this batch.
    pub(super) async fn admit(&mut self, shared: &Shared, jobs: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
        let limits = &shared.options.limits;
        let mut incoming: HashMap<RunKey, Unread> = HashMap::new();
        for job in &jobs {
            for message in limited(&job.commit) {
                incoming.entry(message.run_key).or_default().add(message);
            }
        }
        if incoming.is_empty() {
            return (jobs, Vec::new());
        }
        if self.runs.len() > RUNS_MAX {
            self.runs.clear();
        }
        let mut to_count = Vec::new();
        for (run_key, new) in incoming {
            let sent = self.runs.entry(run_key).or_default();
            if must_count(*sent, new, limits) {
                to_count.push(run_key);
            } else {
                sent.since = plus(sent.since, new);
            }
        }
        if to_count.is_empty() {
            return (jobs, Vec::new());
        }
        match self.admit_counted(shared, &to_count, &jobs).await {
            Ok((refused, decided)) => {
                let mut jobs = jobs;
                let undecided = jobs.split_off(decided);
                (answer(jobs, &refused), undecided)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot count unread messages; accepting new ones");
                (jobs, Vec::new())
            }
        }
    }

    // Returns the jobs to refuse, by index, and how many jobs are decided. A job that fits only if an
    // earlier one of the batch is not written cannot be decided before the batch.
    async fn admit_counted(
        &mut self,
        shared: &Shared,
        to_count: &[RunKey],
        jobs: &[Job],
    ) -> Result<(HashMap<usize, RunKey>, usize), Error> {
        let limits = &shared.options.limits;
        let is_counted = |message: &NewMessage| to_count.contains(&message.run_key);
        let checked = |job: &&Job| limited(&job.commit).any(is_counted);
        let messages: Vec<&NewMessage> =
            jobs.iter().filter(checked).flat_map(|job| to_others(&job.commit)).collect();
        let mut unread = count_unread(shared, &messages).await?;
        let stored = unread.clone();
        let mut decided = jobs.len();
        let mut known = find_known(shared, &messages).await?;
        let mut refused = HashMap::new();
        for (index, job) in jobs.iter().enumerate() {
            let mut before = Vec::new();
            // The messages that are stored, and those of this commit.
            let mut alone: HashMap<RunKey, Unread> = HashMap::new();
            for message in to_others(&job.commit) {
                let id = (message.run_key, message.message_id.clone());
                if known.contains(&id) {
                    continue;
                }
                let Some(unread) = unread.get_mut(&message.run_key) else {
                    // The run does not exist or has ended. The batch says so, if the message is
                    // required.
                    if message.required && limited(&job.commit).any(is_counted) {
                        break;
                    }
                    continue;
                };
                if message.is_limited() && !unread.admits(message, limits) {
                    let alone = alone.get(&message.run_key).unwrap_or(&stored[&message.run_key]);
                    if !alone.admits(message, limits) {
                        refused.insert(index, message.run_key);
                    } else {
                        decided = index;
                    }
                    break;
                }
                before.push((id.clone(), *unread));
                known.insert(id);
                unread.add(message);
                let own = alone.entry(message.run_key).or_insert(stored[&message.run_key]);
                own.add(message);
            }
            if refused.contains_key(&index) || decided == index {
                for (id, old) in before.into_iter().rev() {
                    unread.insert(id.0, old);
                    known.remove(&id);
                }
            }
            if decided == index {
                break;
            }
        }
        for run_key in to_count {
            let counted = unread.get(run_key).copied().unwrap_or_default();
            self.runs.insert(*run_key, Sent { counted, since: Unread::default() });
        }
        keep_failed_guards(shared, jobs, &mut refused).await?;
        Ok((refused, decided))
    }
}

// The unread messages of the receivers that exist and have not ended.
async fn count_unread(
    shared: &Shared,
    messages: &[&NewMessage],
) -> Result<HashMap<RunKey, Unread>, Error> {
    let keys: HashSet<uuid::Uuid> = messages.iter().map(|message| message.run_key.0).collect();
    let keys: Vec<uuid::Uuid> = keys.into_iter().collect();
    let rows = shared.read(UNREAD, &[&keys]).await?;
    let unread = rows.iter().map(|row| {
        let cells = &mut Cells::of(row);
        let run_key = RunKey(cells.take()?);
        Ok((run_key, Unread { count: cells.count()?, bytes: cells.count()? }))
    });
    unread.collect()
}

// The messages that exist already: they are duplicates, and not refused.
async fn find_known(
    shared: &Shared,
    messages: &[&NewMessage],
) -> Result<HashSet<MessageKey>, Error> {
    let keys: Vec<uuid::Uuid> = messages.iter().map(|message| message.run_key.0).collect();
    let ids: Vec<&str> = messages.iter().map(|message| message.message_id.as_str()).collect();
    let rows = shared.read(KNOWN, &[&keys, &ids]).await?;
    let known = rows.iter().map(|row| {
        let cells = &mut Cells::of(row);
        Ok((RunKey(cells.take()?), MessageId::from_stored(cells.text()?)))
    });
    known.collect()
}

// A commit whose guard fails gets that answer from the batch.
async fn keep_failed_guards(
    shared: &Shared,
    jobs: &[Job],
    refused: &mut HashMap<usize, RunKey>,
) -> Result<(), Error> {
    let is_guarded = |commit: &Commit| {
        let is_record = |op: &Op| matches!(op, Op::Record(_));
        !commit.is_unguarded() || commit.ops.iter().any(is_record)
    };
    let guarded: Vec<usize> =
        refused.keys().copied().filter(|index| is_guarded(&jobs[*index].commit)).collect();
    for index in guarded {
        let decided = decide(shared, &jobs[index].commit).await?;
        let commit = &jobs[index].commit;
        let full = refused[&index];
        let is_first = |error: &CommitError| is_found_first(commit, error, full);
        if decided.results.iter().any(|result| result.as_ref().is_err_and(is_first)) {
            refused.remove(&index);
        }
    }
    Ok(())
}

// All stores look at the messages in their order, and then at causes, steps and dead letters.
fn is_found_first(commit: &Commit, error: &CommitError, full: RunKey) -> bool {
    let first = |run_key: RunKey| commit.messages().position(|m| m.run_key == run_key);
    match error {
        CommitError::Refused(
            Refusal::RunMissing { run_key } | Refusal::RunEnded { run_key, .. },
        ) => commit.run_key() == Some(*run_key) || first(*run_key) < first(full),
        CommitError::Refused(_) => false,
        _ => true,
    }
}

fn answer(jobs: Vec<Job>, refused: &HashMap<usize, RunKey>) -> Vec<Job> {
    let mut kept = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.into_iter().enumerate() {
        match refused.get(&index) {
            Some(run_key) => {
                let refusal = Refusal::MessagesLimit { run_key: *run_key };
                let _ = job.reply.send(Err(CommitError::Refused(refusal)));
            }
            None => kept.push(job),
        }
    }
    kept
}

// The messages to which the limits apply.
fn limited(commit: &Commit) -> impl Iterator<Item = &NewMessage> {
    to_others(commit).filter(|message| message.is_limited())
}

// The messages to runs that the commit does not itself create.
fn to_others(commit: &Commit) -> impl Iterator<Item = &NewMessage> {
    let is_created = |run_key: RunKey| {
        commit.ops.iter().any(|op| matches!(op, Op::CreateRun(run) if run.run_key == run_key))
    };
    commit.messages().filter(move |message| !is_created(message.run_key))
}

fn must_count(sent: Sent, new: Unread, limits: &Limits) -> bool {
    let since = plus(sent.since, new);
    let total = plus(sent.counted, since);
    let (count_max, bytes_max) =
        (limits.unread_messages_max as u64, limits.unread_bytes_max as u64);
    let is_above =
        |found: Unread, part: u64| found.count > count_max / part || found.bytes > bytes_max / part;
    is_above(since, SLACK) || is_above(total, 1)
}

fn plus(a: Unread, b: Unread) -> Unread {
    Unread { count: a.count + b.count, bytes: a.bytes + b.bytes }
}
