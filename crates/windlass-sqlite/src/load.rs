//! Reading: loading runs with what a turn needs, finding one by its name, and the readers' threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use futures::channel::oneshot;
use rusqlite::{Connection, params};
use windlass_kernel::{
    Error, ErrorKind, Loaded, Message, Namespace, Run, RunId, RunKey, Step, WorkflowName,
};

use crate::error::{self, sql};
use crate::rows::{self, Blob, MESSAGE, RUN, STEP};
use crate::schema;

pub(crate) fn run_by_key() -> String {
    format!("SELECT {RUN} FROM runs WHERE run_key = ?1")
}

pub(crate) fn steps_of_run() -> String {
    format!("SELECT {STEP} FROM steps WHERE run_key = ?1")
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

/// Runs with steps and unread messages, all in one snapshot.
pub(crate) fn load(conn: &Connection, keys: &[RunKey]) -> Result<Vec<Loaded>, Error> {
    let tx = conn.unchecked_transaction().map_err(sql)?;
    let mut loaded = Vec::with_capacity(keys.len());
    for key in keys {
        if let Some(run) = run(&tx, *key)? {
            let (steps, messages) = (steps(&tx, *key)?, messages(&tx, *key)?);
            loaded.push(Loaded { run, steps, messages });
        }
    }
    Ok(loaded)
}

/// A run with what belongs to it, if its ledger is short.
pub(crate) fn load_short(conn: &Connection, key: RunKey) -> Result<Option<Vec<Loaded>>, Error> {
    let tx = conn.unchecked_transaction().map_err(sql)?;
    match run(&tx, key)? {
        Some(run) if run.head.next_ordinal > SHORT => Ok(None),
        Some(run) => {
            let (steps, messages) = (steps(&tx, key)?, messages(&tx, key)?);
            Ok(Some(vec![Loaded { run, steps, messages }]))
        }
        None => Ok(Some(Vec::new())),
    }
}

/// A run by its key.
pub(crate) fn run(conn: &Connection, key: RunKey) -> Result<Option<Run>, Error> {
    let mut select = conn.prepare_cached(&run_by_key()).map_err(sql)?;
    let found = select.query(params![Blob(key.as_bytes())]).map_err(sql)?;
    Ok(rows::collect(found, rows::run)?.pop())
}

fn steps(conn: &Connection, key: RunKey) -> Result<Vec<Step>, Error> {
    let mut select = conn.prepare_cached(&steps_of_run()).map_err(sql)?;
    let found = select.query(params![Blob(key.as_bytes())]).map_err(sql)?;
    let mut steps = rows::collect(found, rows::step)?;
    steps.sort_by(|a, b| (a.position, &a.step_key).cmp(&(b.position, &b.step_key)));
    Ok(steps)
}

fn messages(conn: &Connection, key: RunKey) -> Result<Vec<Message>, Error> {
    let mut select = conn.prepare_cached(&messages_unread()).map_err(sql)?;
    let found = select.query(params![Blob(key.as_bytes())]).map_err(sql)?;
    rows::collect(found, rows::message)
}

/// The newest generation of a run.
pub(crate) fn find(
    conn: &Connection,
    namespace: &Namespace,
    workflow: &WorkflowName,
    id: &RunId,
) -> Result<Option<Run>, Error> {
    let mut select = conn.prepare_cached(&newest_generation()).map_err(sql)?;
    let name = params![namespace.as_str(), workflow.as_str(), id.as_str()];
    let found = select.query(name).map_err(sql)?;
    Ok(rows::collect(found, rows::run)?.pop())
}

/// So many events are read where they are asked for.
const SHORT: u64 = 64;

/// How many can read on their own threads at once.
const NEAR: usize = 4;

/// How long a reader waits for a lock, which it meets only when a log is recovered.
const WAIT: Duration = Duration::from_secs(5);

/// What a reader is asked to do.
type Reading = Box<dyn FnOnce(&Connection) + Send>;

/// Read-only connections, each with a thread. A read begins after every commit that was
/// acknowledged before it, because those are in the log by then.
pub(crate) struct Readers {
    queue: Mutex<Option<Sender<Reading>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    near: [Mutex<Option<Connection>>; NEAR],
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
        let near = [const { Mutex::new(None) }; NEAR];
        for place in &near {
            let conn = schema::open_reader(path, Duration::ZERO)?;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(conn);
        }
        Ok(Self { queue: Mutex::new(Some(queue)), threads: Mutex::new(threads), near })
    }

    /// Runs a short read on the caller's thread: the way to another thread and back takes longer
    /// than the read. None if no connection is free, if `work` finds that it would not be short, or
    /// if it fails: then it is for [`Readers::read`] to give the answer.
    pub(crate) fn read_near<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<Option<T>, Error>,
    ) -> Option<T> {
        let free = self.near.iter().find_map(|place| place.try_lock().ok())?;
        work(free.as_ref()?).ok().flatten()
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
        for place in &self.near {
            place.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}
