//! What the writer remembers of runs, so that a commit's guard need not read their rows.
//!
//! There is one writer and no second process, so what it wrote is what is there. A rollback, or a
//! change by another connection (somebody with a SQL prompt), empties the memory.

use std::collections::HashMap;

use rusqlite::{Connection, Row, params};
use windlass_kernel::{
    Error, Head, LimitKey, Namespace, QueueName, Route, RouteName, RunKey, RunStatus, Turn,
    WorkflowName,
};

use crate::error::Fail;
use crate::rows::{Blob, Cols};

// Two halves of this many: when the young one is full it becomes the old one.
const HALF: usize = 32_768;

const SELECT: &str = "SELECT rowid, namespace, workflow, status, head, next_ordinal, queue, \
     priority, turn_ready, turn_due_at, turn_worker, turn_claim_no, turn_claimed_at, \
     turn_reclaims, limit_key, turn_last, accepted FROM runs WHERE run_key = ?1";

/// The part of a run's row that commits are decided by.
#[derive(Clone, Debug)]
pub(crate) struct HotRun {
    pub(crate) rowid: i64,
    pub(crate) namespace: Namespace,
    pub(crate) workflow: WorkflowName,
    pub(crate) status: RunStatus,
    pub(crate) head: Head,
    pub(crate) turn: Turn,
    pub(crate) accepted: u64,
}

impl HotRun {
    /// What the turn is claimed by.
    pub(crate) fn route(&self) -> Route {
        Route { queue: self.turn.queue.clone(), name: RouteName::from(&self.workflow) }
    }

    fn read(row: &Row<'_>) -> Result<Self, Error> {
        let c = &mut Cols::new(row);
        Ok(Self {
            rowid: c.get()?,
            namespace: Namespace::from_stored(c.text()?),
            workflow: WorkflowName::from_stored(c.text()?),
            status: c.word(RunStatus::parse)?,
            head: c.head()?,
            turn: Turn {
                queue: QueueName::from_stored(c.text()?),
                priority: c.number()?,
                ready: c.flag()?,
                due_at: c.time_opt()?,
                worker: c.key_opt()?,
                claim_no: c.number()?,
                claimed_at: c.time_opt()?,
                reclaims: c.number()?,
                limit_key: c.text_opt()?.map(LimitKey::from_stored),
                last: c.key_opt()?,
            },
            accepted: c.number()?,
        })
    }
}

/// Runs that were used lately.
#[derive(Default)]
pub(crate) struct RunCache {
    young: HashMap<RunKey, HotRun>,
    old: HashMap<RunKey, HotRun>,
}

impl RunCache {
    /// A run, from memory or from its row.
    pub(crate) fn find(
        &mut self,
        conn: &Connection,
        key: RunKey,
    ) -> Result<Option<&mut HotRun>, Fail> {
        if !self.young.contains_key(&key) {
            let run = match self.old.remove(&key) {
                Some(run) => run,
                None => match read(conn, key)? {
                    Some(run) => run,
                    None => return Ok(None),
                },
            };
            self.put(key, run);
        }
        Ok(self.young.get_mut(&key))
    }

    /// Remembers a run as it was just written.
    pub(crate) fn put(&mut self, key: RunKey, run: HotRun) {
        if self.young.len() >= HALF {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, run);
    }

    /// Forgets a run whose row was changed by a statement.
    pub(crate) fn forget(&mut self, key: RunKey) {
        self.young.remove(&key);
        self.old.remove(&key);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

fn read(conn: &Connection, key: RunKey) -> Result<Option<HotRun>, Fail> {
    let mut select = conn.prepare_cached(SELECT)?;
    let mut rows = select.query(params![Blob(key.as_bytes())])?;
    rows.next()?.map(HotRun::read).transpose().map_err(Fail::Kernel)
}
