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
    // Where in `slots` a run stands.
    young: HashMap<RunKey, usize>,
    old: HashMap<RunKey, usize>,
    // What is in a free slot is stale, and is replaced when the slot is used again.
    slots: Vec<HotRun>,
    free: Vec<usize>,
    // A commit asks for its run again and again.
    last: Option<(RunKey, usize)>,
}

impl RunCache {
    /// A run, from memory or from its row.
    pub(crate) fn find(
        &mut self,
        conn: &Connection,
        key: RunKey,
    ) -> Result<Option<&mut HotRun>, Fail> {
        let slot = match self.place(key) {
            Some(slot) => slot,
            None => match read(conn, key)? {
                Some(run) => self.put(key, run),
                None => return Ok(None),
            },
        };
        Ok(self.slots.get_mut(slot))
    }

    fn place(&mut self, key: RunKey) -> Option<usize> {
        if let Some((last, slot)) = self.last
            && last == key
        {
            return Some(slot);
        }
        let slot = match self.young.get(&key) {
            Some(slot) => *slot,
            None => {
                let slot = self.aged(key)?;
                self.keep(key, slot);
                slot
            }
        };
        self.last = Some((key, slot));
        Some(slot)
    }

    /// Remembers a run as it was just written.
    pub(crate) fn put(&mut self, key: RunKey, run: HotRun) -> usize {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = run;
                slot
            }
            None => {
                self.slots.push(run);
                self.slots.len() - 1
            }
        };
        self.keep(key, slot);
        self.last = Some((key, slot));
        slot
    }

    fn keep(&mut self, key: RunKey, slot: usize) {
        if self.young.len() >= HALF {
            std::mem::swap(&mut self.young, &mut self.old);
            self.free.extend(self.young.drain().map(|(_, slot)| slot));
            self.last = None;
        }
        let replaced = self.young.insert(key, slot);
        self.free.extend(replaced);
    }

    // Takes a run out of the old half, which mostly is empty.
    fn aged(&mut self, key: RunKey) -> Option<usize> {
        if self.old.is_empty() { None } else { self.old.remove(&key) }
    }

    /// Forgets a run: it has ended, or its row was changed by a statement.
    pub(crate) fn forget(&mut self, key: RunKey) {
        self.last.take_if(|(last, _)| *last == key);
        let (young, old) = (self.young.remove(&key), self.aged(key));
        self.free.extend(young.into_iter().chain(old));
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.slots.clear();
        self.free.clear();
        self.last = None;
    }
}

fn read(conn: &Connection, key: RunKey) -> Result<Option<HotRun>, Fail> {
    let mut select = conn.prepare_cached(SELECT)?;
    let mut rows = select.query(params![Blob(key.as_bytes())])?;
    rows.next()?.map(HotRun::read).transpose().map_err(Fail::Kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;
    use windlass_kernel::Sha256Digest;

    fn run(rowid: i64) -> HotRun {
        HotRun {
            rowid,
            namespace: Namespace::from_stored("n"),
            workflow: WorkflowName::from_stored("w"),
            status: RunStatus::Active,
            head: Head { next_ordinal: 0, hash: Sha256Digest::from_bytes([0; 32]) },
            turn: Turn::ready(),
            accepted: 0,
        }
    }

    #[test]
    fn a_run_is_found_until_it_is_forgotten_or_long_unused() {
        let key = |n: usize| RunKey(Uuid::from_u128(u128::try_from(n).unwrap()));
        let rowid = |cache: &mut RunCache, n: usize| {
            let slot = cache.place(key(n))?;
            Some(cache.slots[slot].rowid)
        };
        let mut cache = RunCache::default();
        for n in 0..HALF + 10 {
            cache.put(key(n), run(i64::try_from(n).unwrap()));
        }
        // One of the old half, which is young again, and one of the young.
        assert_eq!(rowid(&mut cache, 3), Some(3));
        assert_eq!(rowid(&mut cache, HALF + 3), Some(i64::try_from(HALF + 3).unwrap()));
        cache.forget(key(3));
        assert_eq!(rowid(&mut cache, 3), None);
        cache.put(key(3), run(-3));
        assert_eq!(rowid(&mut cache, 3), Some(-3));
        // A second half that fills up pushes out what was not asked for.
        for n in 0..HALF {
            cache.put(key(2 * HALF + n), run(1));
        }
        assert_eq!(rowid(&mut cache, 4), None);
        assert_eq!(rowid(&mut cache, 3), Some(-3));
        assert!(cache.slots.len() <= 2 * HALF + 1);
        cache.clear();
        assert_eq!(rowid(&mut cache, 3), None);
    }
}
