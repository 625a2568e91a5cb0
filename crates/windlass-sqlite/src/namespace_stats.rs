//! Counts of one namespace: the current rows, and the attempts of the last hour.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};
use windlass_kernel::{
    Capped, DeadLetterCount, Error, LimitKey, Namespace, NamespaceStats, QueueName, RouteName,
    RunCount, RunStatus, TaskCount, TaskStat, Timestamp, WorkflowName,
};

use crate::apply::Writer;
use crate::error::{UnitError, sql};
use crate::rows::{self, Cols, count, number};

const RUNS: &str = "SELECT workflow, status, sum(value) FROM counters \
     WHERE name = 'runs' AND namespace = ?1 GROUP BY workflow, status HAVING sum(value) > 0";
// Each of these reads at most one row more than the bound of `Capped`. New runs have the largest
// keys, so the runs that have not started are searched from that end.
const RUNS_NEW: &str = "SELECT workflow, count(*) FROM \
     (SELECT workflow, started_at FROM runs INDEXED BY runs_status \
      WHERE namespace = ?1 AND status = 'active' ORDER BY run_key DESC LIMIT ?2) \
     WHERE started_at IS NULL GROUP BY workflow";
// Few tasks are held, so this skips few.
const TASKS_FREE: &str = "SELECT queue, name, priority, sum(ready), sum(1 - ready), 0, min(iif(ready, due_at, NULL)) \
     FROM (SELECT queue, name, priority, ready, due_at FROM tasks INDEXED BY tasks_namespace \
      WHERE namespace = ?1 AND worker IS NULL ORDER BY task_id LIMIT ?2) \
     GROUP BY queue, name, priority";
const TASKS_HELD: &str = "SELECT queue, name, priority, 0, 0, count(*), NULL \
     FROM (SELECT queue, name, priority FROM tasks INDEXED BY tasks_held \
      WHERE worker IS NOT NULL AND namespace = ?1 LIMIT ?2) \
     GROUP BY queue, name, priority";
const LETTERS: &str = "SELECT queue, name, count(*) FROM \
     (SELECT queue, name FROM dead_letters INDEXED BY dead_letters_namespace \
      WHERE namespace = ?1 ORDER BY task_id LIMIT ?2) GROUP BY queue, name";
const LETTERS_OPEN: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM dead_letters INDEXED BY dead_letters_open \
      WHERE namespace = ?1 AND requeued_at IS NULL LIMIT ?2)";
const BREAKERS: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM breakers WHERE namespace = ?1 LIMIT ?2)";
const BREAKERS_OPEN: &str = "SELECT breaker_key FROM breakers INDEXED BY breakers_open \
     WHERE namespace = ?1 AND status <> 'closed' ORDER BY breaker_key LIMIT ?2";

const ADD: &str = "INSERT INTO tallies (minute, namespace, name, field, value) \
     VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET value = value + excluded.value";
const DELETE_OLD: &str = "DELETE FROM tallies WHERE minute <= ?1";
const SUMS: &str = "SELECT name, field, sum(value) FROM tallies \
     WHERE namespace = ?1 AND minute > ?2 GROUP BY name, field";

/// Reads the counts of a namespace.
pub(crate) fn namespace_stats(
    conn: &Connection,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<NamespaceStats, Error> {
    let tx = conn.unchecked_transaction().map_err(sql)?;
    read(&tx, namespace, now).map_err(UnitError::into_error)
}

fn read(
    conn: &Connection,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<NamespaceStats, UnitError> {
    let counted = number(Capped::MAX + 1);
    let bounded = params![namespace.as_str(), counted];
    let mut select = conn.prepare_cached(RUNS)?;
    let mut runs = rows::collect(select.query(params![namespace.as_str()])?, |row| {
        let c = &mut Cols::new(row);
        Ok(RunCount {
            namespace: namespace.clone(),
            workflow: WorkflowName::from_stored(c.text()?),
            status: c.word(RunStatus::parse)?,
            count: c.number()?,
        })
    })?;
    runs.sort_unstable();
    let mut select = conn.prepare_cached(RUNS_NEW)?;
    let runs_new = rows::collect(select.query(bounded)?, |row| {
        let c = &mut Cols::new(row);
        Ok((WorkflowName::from_stored(c.text()?), c.number()?))
    })?;
    let mut select = conn.prepare_cached(LETTERS)?;
    let letters = rows::collect(select.query(bounded)?, |row| {
        let c = &mut Cols::new(row);
        Ok(DeadLetterCount {
            queue: QueueName::from_stored(c.text()?),
            name: RouteName::from_stored(c.text()?),
            count: c.number()?,
        })
    })?;
    let mut select = conn.prepare_cached(LETTERS_OPEN)?;
    let letters_open = Capped::new(select.query_row(bounded, |row| count(row, 0))?);
    let mut select = conn.prepare_cached(BREAKERS)?;
    let breakers = Capped::new(select.query_row(bounded, |row| count(row, 0))?);
    let mut select = conn.prepare_cached(BREAKERS_OPEN)?;
    let found = select.query(params![namespace.as_str(), NamespaceStats::BREAKERS_MAX])?;
    let breakers_open =
        rows::collect(found, |row| Ok(LimitKey::from_stored(Cols::new(row).text()?)))?;
    let tasks = tasks(conn, namespace)?;
    Ok(NamespaceStats {
        runs,
        runs_new,
        tasks,
        letters,
        letters_open,
        breakers,
        breakers_open,
        now,
    })
}

fn tasks(conn: &Connection, namespace: &Namespace) -> Result<Vec<TaskCount>, UnitError> {
    let mut groups: BTreeMap<_, TaskCount> = BTreeMap::new();
    for text in [TASKS_FREE, TASKS_HELD] {
        let mut select = conn.prepare_cached(text)?;
        let found = select.query(params![namespace.as_str(), number(Capped::MAX + 1)])?;
        let found = rows::collect(found, |row| {
            let c = &mut Cols::new(row);
            Ok(TaskCount {
                queue: QueueName::from_stored(c.text()?),
                name: RouteName::from_stored(c.text()?),
                priority: c.get()?,
                ready: c.number()?,
                scheduled: c.number()?,
                held: c.number()?,
                ready_oldest: c.time_opt()?,
            })
        })?;
        for found in found {
            let key = (found.queue.clone(), found.name.clone(), found.priority);
            match groups.get_mut(&key) {
                Some(group) => group.held += found.held,
                None => drop(groups.insert(key, found)),
            }
        }
    }
    Ok(groups.into_values().collect())
}

/// Adds figures to their minutes and deletes old minutes.
pub(crate) fn add_task_stats(w: &mut Writer<'_>, stats: &[TaskStat]) -> Result<(), UnitError> {
    let mut add = w.conn.prepare_cached(ADD)?;
    for stat in stats {
        let (namespace, name) = (stat.namespace.as_str(), stat.name.as_str());
        add.execute(params![stat.minute, namespace, name, stat.field, number(stat.value)])?;
    }
    let since = TaskStat::minute_of(w.now) - TaskStat::MINUTES;
    w.conn.prepare_cached(DELETE_OLD)?.execute(params![since])?;
    // No worker of a store with a single process reaps.
    if w.now >= w.delete_old_at {
        crate::workers::delete_old(w.conn, w.now)?;
        w.delete_old_at = w.now.plus(crate::workers::DELETE_EVERY);
    }
    Ok(())
}

/// Reads the figures of the last hour.
pub(crate) fn task_stats(
    conn: &Connection,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<Vec<TaskStat>, Error> {
    let minute = TaskStat::minute_of(now);
    let read = || -> Result<Vec<TaskStat>, UnitError> {
        let mut select = conn.prepare_cached(SUMS)?;
        let found = select.query(params![namespace.as_str(), minute - TaskStat::MINUTES])?;
        Ok(rows::collect(found, |row| {
            let c = &mut Cols::new(row);
            Ok(TaskStat {
                minute,
                namespace: namespace.clone(),
                name: RouteName::from_stored(c.text()?),
                field: c.number()?,
                value: c.number()?,
            })
        })?)
    };
    read().map_err(UnitError::into_error)
}
