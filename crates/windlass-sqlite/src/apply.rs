//! One commit: guards, then refusals, then the user's SQL, then the rows.
//!
//! Everything is decided by reading before anything of a commit is written, so that no savepoint
//! is needed while all goes well. There are two exceptions. A settled step: its upsert simply does
//! not take, which is noticed when the batch's steps are written; then the batch is undone and every
//! commit is written by itself, with that check made first ([`Writer::careful`]). And a commit that
//! only creates a run: its insert comes first and does not take if the run is there already.

mod bound;
mod counts;
mod guards;
mod ops;
mod refusals;
mod runs;

pub(crate) use guards::found_again;

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension, Statement, params};
use windlass_kernel::{
    Commit, Committed, Event, LimitKey, Namespace, Op, RunStatus, Step, Timestamp, Wakeup,
    WorkflowName,
};

use crate::error::Fail;
use crate::rows::{Blob, count, micros, number, span};
use crate::user_sql::{Fence, run_statements};

use bound::Bound;
use counts::Counts;

pub(crate) use runs::{HotRun, RunCache};

// Rows of one INSERT, in order of what is tried. More did not help, fewer cost up to a tenth; what
// the largest leaves over is not written one by one.
const ROWS: [usize; 3] = [32, 8, 1];
const EVENT_COLUMNS: usize = 9;
const STEP_COLUMNS: usize = 19;

/// The one who writes: the connection, its statements, and what it knows of the rows.
pub(crate) struct Writer<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) fence: &'c Fence,
    /// The store's clock for this batch.
    pub(crate) now: Timestamp,
    pub(crate) runs: RunCache,
    /// Whether steps are checked by reading, because each commit stands in a savepoint of its own.
    pub(crate) careful: bool,
    /// Whether anybody listens for wake-ups.
    pub(crate) heard: bool,
    /// Wake-ups of this batch.
    pub(crate) wakeups: HashSet<Wakeup>,
    counts: Counts,
    updates: HashMap<u16, Bound<'c>>,
    run_by_key: Statement<'c>,
    run_by_name: Statement<'c>,
    run_insert: Bound<'c>,
    run_insert_new: Bound<'c>,
    event_inserts: Inserts<'c>,
    step_inserts: Inserts<'c>,
}

/// The same INSERT for each number of [`ROWS`].
type Inserts<'c> = [Bound<'c>; ROWS.len()];

/// Rows of a batch that wait to be written together, beside what they are sorted by: the keys of
/// rows that lie about in memory are not fetched again for every comparison.
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
    /// Prepares what every batch needs.
    pub(crate) fn new(conn: &'c Connection, fence: &'c Fence) -> rusqlite::Result<Self> {
        Ok(Self {
            conn,
            fence,
            now: Timestamp::ZERO,
            runs: RunCache::default(),
            careful: false,
            heard: false,
            wakeups: HashSet::new(),
            counts: Counts::default(),
            updates: HashMap::new(),
            run_by_key: conn.prepare(guards::BY_KEY)?,
            run_by_name: conn.prepare(guards::BY_NAME)?,
            run_insert: Bound::prepare(conn, &ops::INSERT_RUN)?,
            run_insert_new: Bound::prepare(conn, &ops::INSERT_RUN_IF_NEW)?,
            event_inserts: inserts(conn, insert_events)?,
            step_inserts: inserts(conn, upsert_steps)?,
        })
    }

    /// Writes one commit, or says why not; then nothing of it was written.
    pub(crate) fn apply<'b>(
        &mut self,
        buffers: &mut Buffers<'b>,
        commit: &'b Commit,
    ) -> Result<Committed, Fail> {
        // A new run is looked for by inserting it, where that is the first thing that can fail.
        let blind = if self.careful { None } else { guards::only_creates(commit) };
        let mut deliveries = Vec::new();
        if let Some(run) = blind {
            if !ops::create_run(self, run, true)? {
                return match guards::check(self, commit)? {
                    Some(conflict) => guards::repeated(self, buffers, commit, conflict),
                    None => Err(Fail::Redo),
                };
            }
        } else {
            if let Some(conflict) = guards::check(self, commit)? {
                return guards::repeated(self, buffers, commit, conflict);
            }
            deliveries = refusals::check(self, buffers, commit)?;
            run_statements(self.conn, self.fence, commit.user_sql())?;
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
            // Nothing more is expected of it, and a memory of living runs stays small.
            self.runs.forget(key);
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

    /// A run's row as far as commits need it.
    pub(crate) fn run(
        &mut self,
        key: windlass_kernel::RunKey,
    ) -> Result<Option<&mut HotRun>, Fail> {
        self.runs.find(self.conn, key)
    }

    /// Forgets what it believed of rows that a rollback has undone.
    pub(crate) fn forget(&mut self) {
        self.runs.clear();
        self.counts.clear();
        self.wakeups.clear();
    }

    /// Counts runs that came to a status, or left it.
    pub(crate) fn count(&mut self, run: (&Namespace, &WorkflowName), status: RunStatus, by: i64) {
        self.counts.add(run.0, run.1, status, by);
    }

    /// Notes something that listeners want to know.
    pub(crate) fn wake(&mut self, wakeup: impl FnOnce() -> Wakeup) {
        if self.heard {
            self.wakeups.insert(wakeup());
        }
    }

    /// A slot of a limit may have come free for something that is ready already. Nobody knows
    /// what, so listeners look at everything.
    pub(crate) fn freed(
        &mut self,
        namespace: &Namespace,
        key: Option<&LimitKey>,
    ) -> Result<(), Fail> {
        let Some(key) = key.filter(|_| self.heard) else { return Ok(()) };
        let sql = "SELECT 1 FROM limits WHERE namespace = ?1 AND limit_key = ?2";
        let mut limited = self.conn.prepare_cached(sql)?;
        if limited.exists(params![namespace.as_str(), key.as_str()])? {
            self.wakeups.insert(Wakeup::Missed);
        }
        Ok(())
    }

    /// Writes what waits, and the counters.
    pub(crate) fn finish(&mut self, buffers: &mut Buffers<'_>) -> Result<(), Fail> {
        self.flush_events(buffers)?;
        self.flush_steps(buffers)?;
        self.flush_counts()
    }

    fn flush_counts(&mut self) -> Result<(), Fail> {
        let sql = "INSERT INTO counters (name, namespace, workflow, status, shard, value) \
                   VALUES ('runs', ?1, ?2, ?3, 0, ?4) \
                   ON CONFLICT DO UPDATE SET value = value + excluded.value";
        for ((namespace, workflow, status), by) in self.counts.drain() {
            let mut add = self.conn.prepare_cached(sql)?;
            add.execute(params![namespace.as_str(), workflow.as_str(), status.as_str(), by])?;
        }
        Ok(())
    }

    fn flush_events(&mut self, buffers: &mut Buffers<'_>) -> Result<(), Fail> {
        // Ids rise with time: written in their order, they go to the end of their index, where
        // SQLite neither searches nor splits pages. The index of ordinals has no end to write to,
        // because many runs go on at once.
        buffers.events.sort_unstable_by_key(|(id, _)| *id);
        insert(&mut self.event_inserts, &buffers.events, |to, (_, event)| bind_event(to, event))?;
        buffers.events.clear();
        Ok(())
    }

    fn flush_steps(&mut self, buffers: &mut Buffers<'_>) -> Result<(), Fail> {
        // A stable sort: of two writes of one step the later one stays the later one.
        buffers.steps.sort_by(|(a, one), (b, other)| {
            a.cmp(b).then_with(|| one.step_key.cmp(&other.step_key))
        });
        let written =
            insert(&mut self.step_inserts, &buffers.steps, |to, (_, step)| bind_step(to, step))?;
        if written != buffers.steps.len() {
            return Err(Fail::Redo);
        }
        buffers.steps.clear();
        Ok(())
    }
}

/// The run that a commit creates under a key.
fn created(commit: &Commit, key: windlass_kernel::RunKey) -> Option<&windlass_kernel::Run> {
    commit.ops.iter().find_map(|op| match op {
        Op::CreateRun(run) if run.run_key == key => Some(&**run),
        _ => None,
    })
}

/// The sequence number of a message that is in a mailbox.
fn message_seq(
    conn: &Connection,
    run_key: windlass_kernel::RunKey,
    message_id: &windlass_kernel::MessageId,
) -> Result<Option<u64>, Fail> {
    let sql = "SELECT seq FROM messages WHERE run_key = ?1 AND message_id = ?2";
    let mut find = conn.prepare_cached(sql)?;
    let key = Blob(run_key.as_bytes());
    let seq = find.query_row(params![key, message_id.as_str()], |row| count(row, 0));
    Ok(seq.optional()?)
}

// On an error the caller rolls back, so a statement need not be able to undo itself: OR FAIL saves
// SQLite the journal for that.
fn insert_events(rows: usize) -> String {
    let columns = crate::rows::EVENT;
    format!("INSERT OR FAIL INTO events ({columns}) VALUES {}", places(EVENT_COLUMNS, rows))
}

fn upsert_steps(rows: usize) -> String {
    let columns = crate::rows::STEP;
    let places = places(STEP_COLUMNS, rows);
    format!(
        "INSERT OR FAIL INTO steps ({columns}) VALUES {places} \
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

fn places(columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

fn inserts(conn: &Connection, sql: fn(usize) -> String) -> rusqlite::Result<Inserts<'_>> {
    let [many, some, one] = ROWS.map(|rows| Bound::prepare(conn, &sql(rows)));
    Ok([many?, some?, one?])
}

// As many rows at a time as there are statements for; says how many rows were written.
fn insert<T>(
    statements: &mut Inserts<'_>,
    mut rows: &[T],
    bind: impl Fn(&mut Bound<'_>, &T) -> rusqlite::Result<()>,
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

fn bind_event(to: &mut Bound<'_>, event: &Event) -> rusqlite::Result<()> {
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

fn bind_step(to: &mut Bound<'_>, step: &Step) -> rusqlite::Result<()> {
    to.bytes(step.run_key.as_bytes())?;
    to.text(step.step_key.as_str())?;
    to.name(&step.name)?;
    to.name(&step.kind)?;
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
