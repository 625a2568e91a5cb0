//! Counts of one namespace: what there is now, and what was done lately.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};
use windlass_kernel::{
    Capped, Census, Error, LetterCount, LimitKey, Namespace, QueueName, RouteName, RunCount,
    RunStatus, Tally, TaskCount, Timestamp, WorkflowName,
};

use crate::apply::Writer;
use crate::error::{Fail, sql};
use crate::rows::{self, Cols, count, number};

const RUNS: &str = "SELECT workflow, status, sum(value) FROM counters \
     WHERE name = 'runs' AND namespace = ?1 GROUP BY workflow, status HAVING sum(value) > 0";
// Each of these looks at one row more than the bound of `Capped`. What has just been created is the
// newest, so the runs that nobody has begun are looked for from that end.
const RUNS_NEW: &str = "SELECT workflow, count(*) FROM \
     (SELECT workflow, started_at FROM runs INDEXED BY runs_status \
      WHERE namespace = ?1 AND status = 'active' ORDER BY run_key DESC LIMIT ?2) \
     WHERE started_at IS NULL GROUP BY workflow";
// What is held is few, so this passes over few.
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
const FORGET: &str = "DELETE FROM tallies WHERE minute <= ?1";
const SUMS: &str = "SELECT name, field, sum(value) FROM tallies \
     WHERE namespace = ?1 AND minute > ?2 GROUP BY name, field";

/// What a namespace has.
pub(crate) fn census(
    conn: &Connection,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<Census, Error> {
    let tx = conn.unchecked_transaction().map_err(sql)?;
    read(&tx, namespace, now).map_err(Fail::into_error)
}

fn read(conn: &Connection, namespace: &Namespace, now: Timestamp) -> Result<Census, Fail> {
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
        Ok(LetterCount {
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
    let found = select.query(params![namespace.as_str(), Census::BREAKERS_MAX])?;
    let breakers_open =
        rows::collect(found, |row| Ok(LimitKey::from_stored(Cols::new(row).text()?)))?;
    let tasks = tasks(conn, namespace)?;
    Ok(Census { runs, runs_new, tasks, letters, letters_open, breakers, breakers_open, now })
}

fn tasks(conn: &Connection, namespace: &Namespace) -> Result<Vec<TaskCount>, Fail> {
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

/// Adds to the figures of minutes, and forgets the old ones.
pub(crate) fn tally(w: &mut Writer<'_>, tallies: &[Tally]) -> Result<(), Fail> {
    let mut add = w.conn.prepare_cached(ADD)?;
    for tally in tallies {
        let (namespace, name) = (tally.namespace.as_str(), tally.name.as_str());
        add.execute(params![tally.minute, namespace, name, tally.field, number(tally.value)])?;
    }
    let since = Tally::minute_of(w.now) - Tally::MINUTES;
    w.conn.prepare_cached(FORGET)?.execute(params![since])?;
    Ok(())
}

/// The figures of the last hour.
pub(crate) fn tallied(
    conn: &Connection,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<Vec<Tally>, Error> {
    let minute = Tally::minute_of(now);
    let read = || -> Result<Vec<Tally>, Fail> {
        let mut select = conn.prepare_cached(SUMS)?;
        let found = select.query(params![namespace.as_str(), minute - Tally::MINUTES])?;
        Ok(rows::collect(found, |row| {
            let c = &mut Cols::new(row);
            Ok(Tally {
                minute,
                namespace: namespace.clone(),
                name: RouteName::from_stored(c.text()?),
                field: c.number()?,
                value: c.number()?,
            })
        })?)
    };
    read().map_err(Fail::into_error)
}
