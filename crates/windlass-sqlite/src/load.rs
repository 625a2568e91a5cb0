//! Reading: loading runs with what a turn needs, finding one by its name, and the readers' threads.

mod near;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use futures::channel::oneshot;
use rusqlite::{Connection, params};
use windlass_kernel::{
    Error, ErrorKind, Loaded, Looked, Message, Namespace, Run, RunId, RunKey, Step, WorkflowName,
};

use crate::error::{self, sql};
use crate::rows::{self, Blob, MESSAGE, RUN, STEP};
use crate::schema;

pub(crate) use near::Near;

// Written out once: a read by name takes about as long as putting its text together.
static RUN_BY_KEY: LazyLock<String> = LazyLock::new(run_by_key);
static STEPS_OF_RUN: LazyLock<String> = LazyLock::new(steps_of_run);
static OPEN_STEPS: LazyLock<String> = LazyLock::new(open_steps_of_run);
static LOOK: LazyLock<String> = LazyLock::new(look_at_run);
static MESSAGES_UNREAD: LazyLock<String> = LazyLock::new(messages_unread);
static NEWEST_GENERATION: LazyLock<String> = LazyLock::new(newest_generation);

pub(crate) fn run_by_key() -> String {
    format!("SELECT {RUN} FROM runs WHERE run_key = ?1")
}

pub(crate) fn steps_of_run() -> String {
    format!("SELECT {STEP} FROM steps WHERE run_key = ?1")
}

/// `<>` because for a list SQLite builds a table every time.
pub(crate) fn open_steps_of_run() -> String {
    format!(
        "SELECT {STEP} FROM steps s WHERE s.run_key = ?1 \
         AND s.status <> 'completed' AND s.status <> 'errored' \
         AND s.status <> 'skipped' AND s.status <> 'cancelled'"
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

/// The newest generation of a run beside each of its open steps, or beside nothing. The key that steps
/// are looked up by is null where there are none to find, so that they are not read through. The row is
/// found by its number, so that the index is gone down once.
pub(crate) fn look_at_run() -> String {
    let columns = |table: &str, of: &str| of.replace(", ", &format!(", {table}."));
    let looked = format!("r.{}, s.{}", columns("r", RUN), columns("s", STEP));
    format!(
        "SELECT {looked} FROM runs r LEFT JOIN steps s \
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

/// Runs with steps and unread messages, all in one snapshot.
pub(crate) fn load(conn: &Connection, keys: &[RunKey]) -> Result<Vec<Loaded>, Error> {
    snapshot(conn, |conn| {
        let mut loaded = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(run) = run(conn, *key)? {
                loaded.push(with_all(conn, run)?);
            }
        }
        Ok(loaded)
    })
}

/// A run with what belongs to it, if its ledger is short.
pub(crate) fn load_short(conn: &Connection, key: RunKey) -> Result<Option<Vec<Loaded>>, Error> {
    snapshot(conn, |conn| match run(conn, key)? {
        Some(run) if run.head.next_ordinal > SHORT => Ok(None),
        Some(run) => Ok(Some(vec![with_all(conn, run)?])),
        None => Ok(Some(Vec::new())),
    })
}

fn with_all(conn: &Connection, run: Run) -> Result<Loaded, Error> {
    let steps = steps(conn, &STEPS_OF_RUN, run.run_key)?;
    let messages = messages(conn, run.run_key)?;
    Ok(Loaded { run, steps, messages })
}

/// The newest generation of a run and its open steps. None if there may be many to read through and
/// `short` is wanted.
pub(crate) fn look(
    conn: &Connection,
    name: &RunName,
    short: bool,
) -> Result<Option<Option<Looked>>, Error> {
    let events_max = if short { SHORT } else { u64::MAX };
    let mut select = conn.prepare_cached(&LOOK).map_err(sql)?;
    let (namespace, workflow, id) = name.texts();
    let mut found =
        select.query(params![namespace, workflow, id, rows::number(events_max)]).map_err(sql)?;
    let Some(row) = found.next().map_err(sql)? else { return Ok(Some(None)) };
    let run = rows::run(row)?;
    if !run.status.is_ended() && run.head.next_ordinal > events_max {
        return Ok(None);
    }
    let mut open_steps = Vec::from_iter(rows::step_beside_run(row)?);
    while let Some(row) = found.next().map_err(sql)? {
        open_steps.extend(rows::step_beside_run(row)?);
    }
    in_order(&mut open_steps);
    Ok(Some(Some(Looked { run, open_steps })))
}

/// One generation of a run and its open steps. None if there may be many to read through and `short` is
/// wanted.
pub(crate) fn look_at(
    conn: &Connection,
    key: RunKey,
    short: bool,
) -> Result<Option<Option<Looked>>, Error> {
    snapshot(conn, |conn| {
        let Some(run) = run(conn, key)? else { return Ok(Some(None)) };
        if run.status.is_ended() {
            return Ok(Some(Some(Looked { run, open_steps: Vec::new() })));
        }
        if short && run.head.next_ordinal > SHORT {
            return Ok(None);
        }
        let open_steps = steps(conn, &OPEN_STEPS, key)?;
        Ok(Some(Some(Looked { run, open_steps })))
    })
}

/// A run by its key.
pub(crate) fn run(conn: &Connection, key: RunKey) -> Result<Option<Run>, Error> {
    let mut select = conn.prepare_cached(&RUN_BY_KEY).map_err(sql)?;
    let found = select.query(params![Blob(key.as_bytes())]).map_err(sql)?;
    Ok(rows::collect(found, rows::run)?.pop())
}

fn steps(conn: &Connection, text: &str, key: RunKey) -> Result<Vec<Step>, Error> {
    let mut select = conn.prepare_cached(text).map_err(sql)?;
    let found = select.query(params![Blob(key.as_bytes())]).map_err(sql)?;
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

/// What people call a run.
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

/// The newest generation of a run.
pub(crate) fn find(conn: &Connection, name: &RunName) -> Result<Option<Run>, Error> {
    let mut select = conn.prepare_cached(&NEWEST_GENERATION).map_err(sql)?;
    let found = select.query(name.texts()).map_err(sql)?;
    Ok(rows::collect(found, rows::run)?.pop())
}

/// So many events are read where they are asked for.
const SHORT: u64 = 64;

/// How long a reader waits for a lock, which it meets only when a log is recovered.
const WAIT: Duration = Duration::from_secs(5);

/// What a reader is asked to do.
type Reading = Box<dyn FnOnce(&Connection) + Send>;

/// Read-only connections, each with a thread. A read begins after every commit that was
/// acknowledged before it, because those are in the log by then.
pub(crate) struct Readers {
    queue: Mutex<Option<Sender<Reading>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// Opens the connections and starts the threads.
    pub(crate) fn start(path: &Path, count: usize) -> Result<Self, Error> {
        let (queue, readings) = unbounded::<Reading>();
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let conn = schema::open_reader(path, WAIT)?;
            let readings = readings.clone();
            threads.push(schema::spawn("windlass-read", move || {
                for reading in readings {
                    // Whoever asked learns it from the answer that does not come.
                    if catch_unwind(AssertUnwindSafe(|| reading(&conn))).is_err() {
                        tracing::error!("a read panicked");
                    }
                }
            })?);
        }
        Ok(Self { queue: Mutex::new(Some(queue)), threads: Mutex::new(threads) })
    }

    /// Runs `work` on one of the connections.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let reading: Reading = Box::new(move |conn| drop(reply.send(work(conn))));
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        queue.ok_or_else(error::closed)?.send(reading).map_err(|_| error::closed())?;
        answer.await.map_err(|_| {
            Error::new(ErrorKind::Internal, "INTERNAL", "a read ended without an answer")
        })?
    }

    /// Ends the threads after what was asked.
    pub(crate) fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}
