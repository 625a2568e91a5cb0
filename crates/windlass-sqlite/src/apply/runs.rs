//! A cache of run rows, so that checking a guard does not read the row.
//!
//! There is one writer and no second process, so the cache matches the rows. A rollback, or a write
//! through another connection (a SQL prompt), clears it.

use std::collections::HashMap;

use rusqlite::{Connection, Row, params};
use windlass_kernel::{
    Error, Head, LimitKey, Namespace, QueueName, Route, RouteName, RunKey, RunStatus, Turn, Unread,
    WorkflowName,
};

use crate::error::UnitError;
use crate::rows::{Blob, Cols};

// The cache has two generations of at most this many runs. When the young one is full it replaces
// the old one.
const GENERATION_MAX: usize = 32_768;

const SELECT: &str = "SELECT rowid, namespace, workflow, status, head, next_ordinal, queue, \
     priority, turn_ready, turn_due_at, turn_worker, turn_claim_no, turn_claimed_at, \
     turn_reclaims, limit_key, turn_last, started_at IS NOT NULL, accepted FROM runs WHERE run_key = ?1";

/// The fields of a run's row that commits need.
#[derive(Clone, Debug)]
pub(crate) struct CachedRun {
    pub(crate) rowid: i64,
    pub(crate) namespace: Namespace,
    pub(crate) workflow: WorkflowName,
    pub(crate) status: RunStatus,
    pub(crate) head: Head,
    pub(crate) turn: Turn,
    pub(crate) started: bool,
    pub(crate) accepted: u64,
    /// The unread messages, if they were counted since the last one was consumed.
    pub(crate) unread: Option<Unread>,
}

impl CachedRun {
    /// The route of the turn.
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
                last_worker: c.key_opt()?,
            },
            started: c.flag()?,
            accepted: c.number()?,
            unread: None,
        })
    }
}

/// Recently used runs.
#[derive(Default)]
pub(crate) struct RunCache {
    // The index in `entries` of each run.
    young: HashMap<RunKey, usize>,
    old: HashMap<RunKey, usize>,
    // An entry whose index is in `free` is out of date and is replaced on the next use.
    entries: Vec<CachedRun>,
    free: Vec<usize>,
    // The run that was used last: a commit looks up its run several times.
    last: Option<(RunKey, usize)>,
}

impl RunCache {
    /// Returns a run from the cache or from its row.
    pub(crate) fn find(
        &mut self,
        conn: &Connection,
        key: RunKey,
    ) -> Result<Option<&mut CachedRun>, UnitError> {
        let index = match self.index_of(key) {
            Some(index) => index,
            None => match read(conn, key)? {
                Some(run) => self.put(key, run),
                None => return Ok(None),
            },
        };
        Ok(self.entries.get_mut(index))
    }

    fn index_of(&mut self, key: RunKey) -> Option<usize> {
        if let Some((last, index)) = self.last
            && last == key
        {
            return Some(index);
        }
        let index = match self.young.get(&key) {
            Some(index) => *index,
            None => {
                let index = self.take_old(key)?;
                self.insert_young(key, index);
                index
            }
        };
        self.last = Some((key, index));
        Some(index)
    }

    /// Adds a run that was just written or read.
    pub(crate) fn put(&mut self, key: RunKey, run: CachedRun) -> usize {
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index] = run;
                index
            }
            None => {
                self.entries.push(run);
                self.entries.len() - 1
            }
        };
        self.insert_young(key, index);
        self.last = Some((key, index));
        index
    }

    fn insert_young(&mut self, key: RunKey, index: usize) {
        if self.young.len() >= GENERATION_MAX {
            std::mem::swap(&mut self.young, &mut self.old);
            self.free.extend(self.young.drain().map(|(_, index)| index));
            self.last = None;
        }
        let replaced = self.young.insert(key, index);
        self.free.extend(replaced);
    }

    // Removes a run from the old generation, which is empty most of the time.
    fn take_old(&mut self, key: RunKey) -> Option<usize> {
        if self.old.is_empty() { None } else { self.old.remove(&key) }
    }

    /// Removes a run that has ended or whose row was changed by another statement.
    pub(crate) fn remove(&mut self, key: RunKey) {
        self.last.take_if(|(last, _)| *last == key);
        let (young, old) = (self.young.remove(&key), self.take_old(key));
        self.free.extend(young.into_iter().chain(old));
    }

    /// Removes all runs.
    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.entries.clear();
        self.free.clear();
        self.last = None;
    }
}

fn read(conn: &Connection, key: RunKey) -> Result<Option<CachedRun>, UnitError> {
    let mut select = conn.prepare_cached(SELECT)?;
    let mut rows = select.query(params![Blob(key.as_bytes())])?;
    rows.next()?.map(CachedRun::read).transpose().map_err(UnitError::Kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;
    use windlass_kernel::Sha256Digest;

    fn run(rowid: i64) -> CachedRun {
        CachedRun {
            rowid,
            namespace: Namespace::from_stored("n"),
            workflow: WorkflowName::from_stored("w"),
            status: RunStatus::Active,
            head: Head { next_ordinal: 0, hash: Sha256Digest::from_bytes([0; 32]) },
            turn: Turn::ready(),
            started: false,
            accepted: 0,
            unread: None,
        }
    }

    #[test]
    fn a_run_is_cached_until_it_is_removed_or_long_unused() {
        let key = |n: usize| RunKey(Uuid::from_u128(u128::try_from(n).unwrap()));
        let rowid = |cache: &mut RunCache, n: usize| {
            let index = cache.index_of(key(n))?;
            Some(cache.entries[index].rowid)
        };
        let mut cache = RunCache::default();
        for n in 0..GENERATION_MAX + 10 {
            cache.put(key(n), run(i64::try_from(n).unwrap()));
        }
        // One run of the old generation, which becomes young again, and one of the young.
        assert_eq!(rowid(&mut cache, 3), Some(3));
        assert_eq!(
            rowid(&mut cache, GENERATION_MAX + 3),
            Some(i64::try_from(GENERATION_MAX + 3).unwrap())
        );
        cache.remove(key(3));
        assert_eq!(rowid(&mut cache, 3), None);
        cache.put(key(3), run(-3));
        assert_eq!(rowid(&mut cache, 3), Some(-3));
        // Filling another generation evicts the runs that were not used.
        for n in 0..GENERATION_MAX {
            cache.put(key(2 * GENERATION_MAX + n), run(1));
        }
        assert_eq!(rowid(&mut cache, 4), None);
        assert_eq!(rowid(&mut cache, 3), Some(-3));
        assert!(cache.entries.len() <= 2 * GENERATION_MAX + 1);
        cache.clear();
        assert_eq!(rowid(&mut cache, 3), None);
    }
}
