//! Applies one commit: guards, then refusals, then the user's SQL, then the rows.
//!
//! All checks read before the commit writes, so that no savepoint is needed in the normal case.
//! There are two exceptions. The upsert of a settled step changes no row, which shows only when the
//! steps of the batch are written; the batch is then rolled back and every commit is written in its
//! own savepoint, with that check made first ([`Writer::check_steps_first`]). A commit that only
//! creates a run inserts first; the insert changes no row if the run exists.

mod cached_bindings;
mod counts;
mod guards;
mod ops;
mod refusals;
mod runs;

pub(crate) use guards::answer_if_written;

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension, Statement, params};
use windlass_kernel::{
    Commit, Committed, Event, LimitKey, Limits, Namespace, Op, RunStatus, Step, Timestamp, Wakeup,
    WorkflowName,
};

use crate::error::UnitError;
use crate::rows::{Blob, count, micros, number, span};
use crate::user_sql::{Sandbox, run_statements};

use cached_bindings::CachedBindings;
use counts::Counts;

pub(crate) use runs::{CachedRun, RunCache};

// Rows per INSERT, in the order in which they are tried. Larger sizes did not help, smaller ones
// cost up to a tenth. The smaller sizes are for the remainder.
const ROWS: [usize; 3] = [32, 8, 1];
const EVENT_COLUMNS: usize = 9;
const STEP_COLUMNS: usize = 19;

/// The write side: the connection, its statements and its caches.
pub(crate) struct Writer<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) sandbox: &'c Sandbox,
    pub(crate) limits: &'c Limits,
    /// The store's clock for this batch.
    pub(crate) now: Timestamp,
    pub(crate) runs: RunCache,
    /// Whether steps are checked by reading, because each commit has its own savepoint.
    pub(crate) check_steps_first: bool,
    /// When old rows of workers, breakers and rates are deleted next.
    pub(crate) delete_old_at: Timestamp,
    /// Whether there are listeners for wake-ups.
    pub(crate) has_listeners: bool,
    /// Wake-ups of this batch.
    pub(crate) wakeups: HashSet<Wakeup>,
    counts: Counts,
    updates: HashMap<u16, CachedBindings<'c>>,
    run_by_key: Statement<'c>,
    run_by_name: Statement<'c>,
    run_insert: CachedBindings<'c>,
    run_insert_new: CachedBindings<'c>,
    event_inserts: Inserts<'c>,
    step_inserts: Inserts<'c>,
}

/// The same INSERT for each size in [`ROWS`].
type Inserts<'c> = [CachedBindings<'c>; ROWS.len()];

/// Rows of a batch that are written together, with their sort keys. The keys are copied here so
/// that sorting does not follow a pointer for every comparison.
#[derive(Default)]
pub(crate) struct Buffers<'b> {
    events: Vec<(u128, &'b Event)>,
    steps: Vec<(u128, &'b Step)>,
}

impl<'b> Buffers<'b> {
    fn event(&mut self, event: &'b Event) {
        self.events.push((event.event_id.0.as_u128(), event));
    }

    fn step(&mut self, step: &'b Step) {
        self.steps.push((step.run_key.0.as_u128(), step));
    }
}

impl<'c> Writer<'c> {
    /// Prepares the statements that every batch needs.
    pub(crate) fn new(
        conn: &'c Connection,
        sandbox: &'c Sandbox,
        limits: &'c Limits,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            conn,
            sandbox,
            limits,
            now: Timestamp::ZERO,
            runs: RunCache::default(),
            check_steps_first: false,
            delete_old_at: Timestamp::ZERO,
            has_listeners: false,
            wakeups: HashSet::new(),
            counts: Counts::default(),
            updates: HashMap::new(),
            run_by_key: conn.prepare(guards::BY_KEY)?,
            run_by_name: conn.prepare(guards::BY_NAME)?,
            run_insert: CachedBindings::prepare(conn, &ops::INSERT_RUN)?,
            run_insert_new: CachedBindings::prepare(conn, &ops::INSERT_RUN_IF_NEW)?,
            event_inserts: inserts(conn, insert_events)?,
            step_inserts: inserts(conn, upsert_steps)?,
        })
    }

    /// Writes one commit. On an error nothing of it was written.
    pub(crate) fn apply<'b>(
        &mut self,
        buffers: &mut Buffers<'b>,
        commit: &'b Commit,
    ) -> Result<Committed, UnitError> {
        // If inserting the run is the first step that can fail, skip the read before it.
        let insert_first = if self.check_steps_first { None } else { guards::only_creates(commit) };
        let mut deliveries = Vec::new();
        if let Some(run) = insert_first {
            if !ops::create_run(self, run, true)? {
                return match guards::check(self, commit)? {
                    Some(conflict) => guards::answer_conflict(self, buffers, commit, conflict),
                    None => Err(UnitError::NeedsStepCheck),
                };
            }
        } else {
            if let Some(conflict) = guards::check(self, commit)? {
                return guards::answer_conflict(self, buffers, commit, conflict);
            }
            deliveries = refusals::check(self, buffers, commit)?;
            run_statements(self.conn, self.sandbox, commit.user_sql())?;
            ops::create_runs(self, commit)?;
        }
        ops::write(self, buffers, commit, &deliveries)?;

        let run_key = commit.run_key();
        let (mut accepted, mut hold, mut ended) = (0, None, false);
        if let Some(key) = run_key
            && let Some(run) = self.run(key)?
        {
            accepted = run.accepted;
            hold = run.turn.hold();
            ended = run.status.is_ended();
        }
        if let Some(key) = run_key.filter(|_| ended) {
            // An ended run is not needed any more; removing it keeps the cache small.
            self.runs.remove(key);
        }
        Ok(Committed {
            run_key,
            repeated: false,
            accepted,
            hold,
            messages: deliveries,
            now: self.now,
        })
    }

    /// The cached fields of a run's row.
    pub(crate) fn run(
        &mut self,
        key: windlass_kernel::RunKey,
    ) -> Result<Option<&mut CachedRun>, UnitError> {
        self.runs.find(self.conn, key)
    }

    /// Clears the caches after a rollback.
    pub(crate) fn clear_caches(&mut self) {
        self.runs.clear();
        self.counts.clear();
        self.wakeups.clear();
    }

    /// Counts runs that entered or left a status.
    pub(crate) fn count(&mut self, run: (&Namespace, &WorkflowName), status: RunStatus, by: i64) {
        self.counts.add(run.0, run.1, status, by);
    }

    /// Records a wake-up for the listeners.
    pub(crate) fn wake(&mut self, wakeup: impl FnOnce() -> Wakeup) {
        if self.has_listeners {
            self.wakeups.insert(wakeup());
        }
    }

    /// Wakes all listeners if the key has a limit: a slot may be free now for a row that is ready
    /// already, and the writer does not know which.
    pub(crate) fn wake_limited(
        &mut self,
        namespace: &Namespace,
        key: Option<&LimitKey>,
    ) -> Result<(), UnitError> {
        let Some(key) = key.filter(|_| self.has_listeners) else { return Ok(()) };
        let sql = "SELECT 1 FROM limits WHERE namespace = ?1 AND limit_key = ?2";
        let mut limited = self.conn.prepare_cached(sql)?;
        if limited.exists(params![namespace.as_str(), key.as_str()])? {
            self.wakeups.insert(Wakeup::Missed);
        }
        Ok(())
    }

    /// Writes the buffered rows and the counters.
    pub(crate) fn finish(&mut self, buffers: &mut Buffers<'_>) -> Result<(), UnitError> {
        self.flush_events(buffers)?;
        self.flush_steps(buffers)?;
        self.flush_counts()
    }

    fn flush_counts(&mut self) -> Result<(), UnitError> {
        let sql = "INSERT INTO counters (name, namespace, workflow, status, shard, value) \
                   VALUES ('runs', ?1, ?2, ?3, 0, ?4) \
                   ON CONFLICT DO UPDATE SET value = value + excluded.value";
        for ((namespace, workflow, status), by) in self.counts.drain() {
            let mut add = self.conn.prepare_cached(sql)?;
            add.execute(params![namespace.as_str(), workflow.as_str(), status.as_str(), by])?;
        }
        Ok(())
    }

    fn flush_events(&mut self, buffers: &mut Buffers<'_>) -> Result<(), UnitError> {
        // Event ids rise with time. Written in this order they are appended to the end of their
        // index, where SQLite neither searches nor splits pages. This does not work for the index
        // of ordinals, because many runs are active at once.
        buffers.events.sort_unstable_by_key(|(id, _)| *id);
        insert(&mut self.event_inserts, &buffers.events, |to, (_, event)| bind_event(to, event))?;
        buffers.events.clear();
        Ok(())
    }

    fn flush_steps(&mut self, buffers: &mut Buffers<'_>) -> Result<(), UnitError> {
        // The sort must be stable: of two writes of one step, the later one must win.
        buffers.steps.sort_by(|(a, one), (b, other)| {
            a.cmp(b).then_with(|| one.step_key.cmp(&other.step_key))
        });
        let written =
            insert(&mut self.step_inserts, &buffers.steps, |to, (_, step)| bind_step(to, step))?;
        if written != buffers.steps.len() {
            return Err(UnitError::NeedsStepCheck);
        }
        buffers.steps.clear();
        Ok(())
    }
}

/// The run that a commit creates with this key.
fn created(commit: &Commit, key: windlass_kernel::RunKey) -> Option<&windlass_kernel::Run> {
    commit.ops.iter().find_map(|op| match op {
        Op::CreateRun(run) if run.run_key == key => Some(&**run),
        _ => None,
    })
}

/// The sequence number of a message in a mailbox.
fn message_seq(
    conn: &Connection,
    run_key: windlass_kernel::RunKey,
    message_id: &windlass_kernel::MessageId,
) -> Result<Option<u64>, UnitError> {
    let sql = "SELECT seq FROM messages WHERE run_key = ?1 AND message_id = ?2";
    let mut find = conn.prepare_cached(sql)?;
    let key = Blob(run_key.as_bytes());
    let seq = find.query_row(params![key, message_id.as_str()], |row| count(row, 0));
    Ok(seq.optional()?)
}

// On an error the caller rolls back, so the statement need not undo itself. OR FAIL saves SQLite
// the statement journal.
fn insert_events(rows: usize) -> String {
    let columns = crate::rows::EVENT;
    format!("INSERT OR FAIL INTO events ({columns}) VALUES {}", placeholders(EVENT_COLUMNS, rows))
}

fn upsert_steps(rows: usize) -> String {
    let columns = crate::rows::STEP;
    let values = placeholders(STEP_COLUMNS, rows);
    format!(
        "INSERT OR FAIL INTO steps ({columns}) VALUES {values} \
         ON CONFLICT (run_key, step_key) DO UPDATE SET status = excluded.status, \
         attempt = excluded.attempt, attempts_max = excluded.attempts_max, \
         timeout_us = excluded.timeout_us, due_at = excluded.due_at, \
         wait_for = excluded.wait_for, updated_at = excluded.updated_at, \
         input_encoding = excluded.input_encoding, input = excluded.input, \
         result_encoding = excluded.result_encoding, result = excluded.result, \
         error_encoding = excluded.error_encoding, error = excluded.error \
         WHERE steps.status <> 'completed' AND steps.status <> 'errored' \
         AND steps.status <> 'skipped' AND steps.status <> 'cancelled'"
    )
}

fn placeholders(columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

fn inserts(conn: &Connection, sql: fn(usize) -> String) -> rusqlite::Result<Inserts<'_>> {
    let [many, some, one] = ROWS.map(|rows| CachedBindings::prepare(conn, &sql(rows)));
    Ok([many?, some?, one?])
}

// Uses the largest statement that fits. Returns how many rows were written.
fn insert<T>(
    statements: &mut Inserts<'_>,
    mut rows: &[T],
    bind: impl Fn(&mut CachedBindings<'_>, &T) -> rusqlite::Result<()>,
) -> rusqlite::Result<usize> {
    let mut written = 0;
    for (statement, size) in statements.iter_mut().zip(ROWS) {
        let mut chunks = rows.chunks_exact(size);
        for chunk in &mut chunks {
            statement.start();
            for row in chunk {
                bind(statement, row)?;
            }
            written += statement.run()?;
        }
        rows = chunks.remainder();
    }
    Ok(written)
}

fn bind_event(to: &mut CachedBindings<'_>, event: &Event) -> rusqlite::Result<()> {
    to.bytes(event.run_key.as_bytes())?;
    to.number(number(event.ordinal))?;
    to.bytes(event.event_id.as_bytes())?;
    to.name(event.event_type.as_str())?;
    to.number(event.version)?;
    to.text(&event.caused_by.canonical())?;
    to.bytes(&event.payload)?;
    to.number(event.created_at.as_micros())?;
    to.bytes(event.hash.as_bytes())
}

fn bind_step(to: &mut CachedBindings<'_>, step: &Step) -> rusqlite::Result<()> {
    to.bytes(step.run_key.as_bytes())?;
    to.text(step.step_key.as_str())?;
    to.name(&step.name)?;
    to.name(step.kind.as_str())?;
    to.name(step.status.as_str())?;
    to.number(number(step.position))?;
    to.number(step.attempt)?;
    to.number_opt(step.attempts_max)?;
    to.number_opt(step.timeout.map(span))?;
    to.number_opt(micros(step.due_at))?;
    to.text_opt(step.wait_for.as_deref())?;
    to.number(step.created_at.as_micros())?;
    to.number(step.updated_at.as_micros())?;
    to.body(&step.input)?;
    to.body(&step.result)?;
    to.body(&step.error)
}
