//! Reads: loading runs with the rows that a turn needs, finding a run by name, and the reader
//! threads.

mod local_reader;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use futures::channel::oneshot;
use rusqlite::{Connection, ToSql, params};
use windlass_kernel::{
    Error, ErrorCode, ErrorKind, LoadSteps, Loaded, Message, Namespace, Run, RunId, RunKey,
    RunOverview, Step, WorkflowName,
};

use crate::error::{self, sql};
use crate::rows::{self, Blob, MESSAGE, RUN, STEP};
use crate::schema;

pub(crate) use local_reader::LocalReader;

// Built once, because building the text takes about as long as a read by name.
static RUN_BY_KEY: LazyLock<String> = LazyLock::new(run_by_key);
static STEPS_OF_RUN: LazyLock<String> = LazyLock::new(steps_of_run);
static OPEN_AND_LAST_SETTLED: LazyLock<String> = LazyLock::new(open_and_last_settled);
static OPEN_AND_FROM_LAST: LazyLock<String> = LazyLock::new(open_and_from_last);
static OPEN_STEPS: LazyLock<String> = LazyLock::new(open_steps_of_run);
static RUN_OVERVIEW: LazyLock<String> = LazyLock::new(run_overview_sql);
static MESSAGES_UNREAD: LazyLock<String> = LazyLock::new(messages_unread);
static NEWEST_GENERATION: LazyLock<String> = LazyLock::new(newest_generation);

pub(crate) fn run_by_key() -> String {
    format!("SELECT {RUN} FROM runs WHERE run_key = ?1")
}

pub(crate) fn steps_of_run() -> String {
    format!("SELECT {STEP} FROM steps WHERE run_key = ?1")
}

/// Uses `<>`, because SQLite builds a temporary table for an `IN` list on every call.
pub(crate) fn open_steps_of_run() -> String {
    format!(
        "SELECT {STEP} FROM steps s WHERE s.run_key = ?1 \
         AND s.status <> 'completed' AND s.status <> 'errored' \
         AND s.status <> 'skipped' AND s.status <> 'cancelled'"
    )
}

/// The subquery finds the row without its bodies.
pub(crate) fn open_and_last_settled() -> String {
    format!(
        "SELECT {STEP} FROM steps s WHERE s.run_key = ?1 \
         AND (s.status <> 'completed' AND s.status <> 'errored' \
         AND s.status <> 'skipped' AND s.status <> 'cancelled' \
         OR s.rowid = (SELECT rowid FROM steps WHERE run_key = ?1 \
         AND (status = 'completed' OR status = 'errored' \
         OR status = 'skipped' OR status = 'cancelled') \
         ORDER BY position DESC, step_key DESC LIMIT 1))"
    )
}

pub(crate) fn open_and_from_last() -> String {
    format!(
        "SELECT {STEP} FROM steps s WHERE s.run_key = ?1 \
         AND (s.status <> 'completed' AND s.status <> 'errored' \
         AND s.status <> 'skipped' AND s.status <> 'cancelled' \
         OR s.position >= (SELECT coalesce(max(position), 0) FROM steps WHERE run_key = ?1 \
         AND kind = ?2 AND (status = 'completed' OR status = 'errored' \
         OR status = 'skipped' OR status = 'cancelled')))"
    )
}

pub(crate) fn messages_unread() -> String {
    format!(
        "SELECT {MESSAGE} FROM messages INDEXED BY messages_unread \
         WHERE run_key = ?1 AND consumed_at IS NULL ORDER BY seq"
    )
}

pub(crate) fn newest_generation() -> String {
    format!(
        "SELECT {RUN} FROM runs WHERE namespace = ?1 AND workflow = ?2 AND id = ?3 \
         ORDER BY generation DESC LIMIT 1"
    )
}

/// The newest generation of a run, joined with its open steps if there are any. If the steps are
/// not wanted, the join key is null, so that SQLite reads no steps. The run is found by its rowid,
/// so that the index is searched once.
pub(crate) fn run_overview_sql() -> String {
    let columns = |table: &str, of: &str| of.replace(", ", &format!(", {table}."));
    let overview = format!("r.{}, s.{}", columns("r", RUN), columns("s", STEP));
    format!(
        "SELECT {overview} FROM runs r LEFT JOIN steps s \
         ON s.run_key = CASE WHEN r.ended_at IS NULL AND r.next_ordinal <= ?4 THEN r.run_key END \
         AND s.status <> 'completed' AND s.status <> 'errored' \
         AND s.status <> 'skipped' AND s.status <> 'cancelled' \
         WHERE r.rowid = (SELECT rowid FROM runs \
         WHERE namespace = ?1 AND workflow = ?2 AND id = ?3 ORDER BY generation DESC LIMIT 1)"
    )
}

/// Reads from one snapshot.
fn snapshot<T>(
    conn: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, Error>,
) -> Result<T, Error> {
    if !conn.is_autocommit() {
        return read(conn);
    }
    let run = |text: &str| conn.prepare_cached(text)?.execute([]);
    run("BEGIN").map_err(sql)?;
    let read = catch_unwind(AssertUnwindSafe(|| read(conn)));
    run("COMMIT").map_err(sql)?;
    read.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Loads runs with the selected steps and their unread messages, all in one snapshot.
pub(crate) fn load(
    conn: &Connection,
    keys: &[RunKey],
    selected: &LoadSteps,
) -> Result<Vec<Loaded>, Error> {
    snapshot(conn, |conn| {
        let mut loaded = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(run) = run(conn, *key)? {
                loaded.push(with_rows(conn, run, selected)?);
            }
        }
        Ok(loaded)
    })
}

/// Like [`load`], of one run. `None` if its ledger is long.
pub(crate) fn load_short(
    conn: &Connection,
    key: RunKey,
    selected: &LoadSteps,
) -> Result<Option<Vec<Loaded>>, Error> {
    snapshot(conn, |conn| match run(conn, key)? {
        Some(run) if run.head.next_ordinal > SHORT => Ok(None),
        Some(run) => Ok(Some(vec![with_rows(conn, run, selected)?])),
        None => Ok(Some(Vec::new())),
    })
}

fn with_rows(conn: &Connection, run: Run, selected: &LoadSteps) -> Result<Loaded, Error> {
    let key = run.run_key;
    let steps = match selected {
        LoadSteps::All => steps(conn, &STEPS_OF_RUN, params![Blob(key.as_bytes())])?,
        LoadSteps::Open => steps(conn, &OPEN_STEPS, params![Blob(key.as_bytes())])?,
        LoadSteps::OpenAndLastSettled => {
            steps(conn, &OPEN_AND_LAST_SETTLED, params![Blob(key.as_bytes())])?
        }
        LoadSteps::OpenAndFromLast(kind) => {
            steps(conn, &OPEN_AND_FROM_LAST, params![Blob(key.as_bytes()), kind.as_str()])?
        }
    };
    let messages = messages(conn, run.run_key)?;
    Ok(Loaded { run, steps, messages })
}

/// The newest generation of a run and its open steps. With `short`, returns the outer `None` if the
/// run may have many steps.
pub(crate) fn run_overview(
    conn: &Connection,
    name: &RunName,
    short: bool,
) -> Result<Option<Option<RunOverview>>, Error> {
    let events_max = if short { SHORT } else { u64::MAX };
    let mut select = conn.prepare_cached(&RUN_OVERVIEW).map_err(sql)?;
    let (namespace, workflow, id) = name.texts();
    let mut found =
        select.query(params![namespace, workflow, id, rows::number(events_max)]).map_err(sql)?;
    let Some(row) = found.next().map_err(sql)? else { return Ok(Some(None)) };
    let run = rows::run(row)?;
    if !run.status.is_ended() && run.head.next_ordinal > events_max {
        return Ok(None);
    }
    let mut open_steps = Vec::from_iter(rows::joined_step(row)?);
    while let Some(row) = found.next().map_err(sql)? {
        open_steps.extend(rows::joined_step(row)?);
    }
    in_order(&mut open_steps);
    Ok(Some(Some(RunOverview { run, open_steps })))
}

/// One generation of a run and its open steps. With `short`, returns the outer `None` if the run
/// may have many steps.
pub(crate) fn run_overview_by_key(
    conn: &Connection,
    key: RunKey,
    short: bool,
) -> Result<Option<Option<RunOverview>>, Error> {
    snapshot(conn, |conn| {
        let Some(run) = run(conn, key)? else { return Ok(Some(None)) };
        if run.status.is_ended() {
            return Ok(Some(Some(RunOverview { run, open_steps: Vec::new() })));
        }
        if short && run.head.next_ordinal > SHORT {
            return Ok(None);
        }
        let open_steps = steps(conn, &OPEN_STEPS, params![Blob(key.as_bytes())])?;
        Ok(Some(Some(RunOverview { run, open_steps })))
    })
}

/// Finds a run by its key.
pub(crate) fn run(conn: &Connection, key: RunKey) -> Result<Option<Run>, Error> {
    read_run(conn, key)?.transpose()
}

/// Like [`run`]; the inner error is that the row cannot be decoded.
pub(crate) fn read_run(
    conn: &Connection,
    key: RunKey,
) -> Result<Option<Result<Run, Error>>, Error> {
    let mut select = conn.prepare_cached(&RUN_BY_KEY).map_err(sql)?;
    let mut found = select.query(params![Blob(key.as_bytes())]).map_err(sql)?;
    Ok(found.next().map_err(sql)?.map(rows::run))
}

fn steps(conn: &Connection, text: &str, params: &[&dyn ToSql]) -> Result<Vec<Step>, Error> {
    let mut select = conn.prepare_cached(text).map_err(sql)?;
    let found = select.query(params).map_err(sql)?;
    let mut steps = rows::collect(found, rows::step)?;
    in_order(&mut steps);
    Ok(steps)
}

fn in_order(steps: &mut [Step]) {
    steps.sort_by(|a, b| (a.position, &a.step_key).cmp(&(b.position, &b.step_key)));
}

fn messages(conn: &Connection, key: RunKey) -> Result<Vec<Message>, Error> {
    let mut select = conn.prepare_cached(&MESSAGES_UNREAD).map_err(sql)?;
    let found = select.query(params![Blob(key.as_bytes())]).map_err(sql)?;
    rows::collect(found, rows::message)
}

/// The name of a run for users.
#[derive(Clone)]
pub(crate) struct RunName {
    pub(crate) namespace: Namespace,
    pub(crate) workflow: WorkflowName,
    pub(crate) id: RunId,
}

impl RunName {
    fn texts(&self) -> (&str, &str, &str) {
        (self.namespace.as_str(), self.workflow.as_str(), self.id.as_str())
    }
}

/// Finds the newest generation of a run.
pub(crate) fn find(conn: &Connection, name: &RunName) -> Result<Option<Run>, Error> {
    let mut select = conn.prepare_cached(&NEWEST_GENERATION).map_err(sql)?;
    let found = select.query(name.texts()).map_err(sql)?;
    Ok(rows::collect(found, rows::run)?.pop())
}

/// A run with more events than this is not read on the caller's thread.
const SHORT: u64 = 64;

/// How long a reader waits for a lock. Only the recovery of a log takes one.
const WAIT: Duration = Duration::from_secs(5);

/// A read for a reader thread.
type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// Read-only connections, each with its own thread. A read sees every commit that was acknowledged
/// before it began, because those are in the log.
pub(crate) struct Readers {
    queue: Mutex<Option<Sender<ReadJob>>>,
    waiting_max: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// Opens the connections and starts the threads.
    pub(crate) fn start(path: &Path, count: usize, waiting_max: usize) -> Result<Self, Error> {
        let (queue, jobs) = unbounded::<ReadJob>();
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let conn = schema::open_reader(path, WAIT)?;
            let jobs = jobs.clone();
            threads.push(schema::spawn("windlass-read", move || {
                for job in jobs {
                    // The caller sees the dropped reply channel.
                    if catch_unwind(AssertUnwindSafe(|| job(&conn))).is_err() {
                        tracing::error!("a read of the store panicked");
                    }
                }
            })?);
        }
        Ok(Self { queue: Mutex::new(Some(queue)), waiting_max, threads: Mutex::new(threads) })
    }

    /// Runs `work` on one of the connections.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let job: ReadJob = Box::new(move |conn| drop(reply.send(work(conn))));
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let queue = queue.ok_or_else(error::closed)?;
        if queue.len() >= self.waiting_max {
            return Err(error::too_many_waiting("a reader", self.waiting_max));
        }
        queue.send(job).map_err(|_| error::closed())?;
        answer.await.map_err(|_| {
            Error::new(ErrorKind::Internal, ErrorCode::Internal, "a read ended without an answer")
        })?
    }

    /// Stops the threads after all queued reads.
    pub(crate) fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}
