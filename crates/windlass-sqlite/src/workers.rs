//! Workers: leases, holds, and reaping the holds of dead workers.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;
use windlass_kernel::{
    BreakerRow, HeldItem, RateRow, Reaped, Renewed, RunKey, TaskId, Timestamp, Wakeup, Worker,
    WorkerInfo, WorkerKey,
};

use crate::apply::Writer;
use crate::error::UnitError;
use crate::holds;
use crate::rows::{self, Blob, number, routes_text, span};

// How long the row of a dead worker is kept for display.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

const UPSERT: &str = "INSERT INTO workers (worker, name, version, status, lease_us, turns, tasks, \
     slots, note, load, task_slots, task_load, accepting, worker_group, host, \
     tasks_completed, tasks_failed, tasks_took_us, started_at, renewed_at, steady_since, drain) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, \
     ?19, ?20, ?21, 0) \
     ON CONFLICT (worker) DO UPDATE SET name = excluded.name, version = excluded.version, \
     status = excluded.status, lease_us = excluded.lease_us, turns = excluded.turns, \
     tasks = excluded.tasks, slots = excluded.slots, note = excluded.note, \
     load = excluded.load, task_slots = excluded.task_slots, task_load = excluded.task_load, \
     accepting = excluded.accepting, worker_group = excluded.worker_group, host = excluded.host, \
     tasks_completed = excluded.tasks_completed, tasks_failed = excluded.tasks_failed, \
     tasks_took_us = excluded.tasks_took_us, \
     renewed_at = excluded.renewed_at, steady_since = excluded.steady_since";
const DRAIN: &str = "UPDATE workers SET drain = 1 WHERE worker = ?1 AND status <> 'stopped'";
const CONTROL: &str = "SELECT run_key FROM runs INDEXED BY runs_held WHERE turn_worker = ?1 \
     AND EXISTS (SELECT 1 FROM messages INDEXED BY messages_control \
                 WHERE messages.run_key = runs.run_key \
                 AND messages.kind = 'control' AND messages.consumed_at IS NULL)";
const HELD_TURNS: &str = "SELECT run_key, turn_claim_no, turn_claimed_at \
     FROM runs INDEXED BY runs_held WHERE turn_worker = ?1";
const HELD_TASKS: &str = "SELECT task_id, claim_no, claimed_at \
     FROM tasks INDEXED BY tasks_held WHERE worker = ?1";
const NEXT_TURN_HOLDER: &str = "SELECT turn_worker FROM runs INDEXED BY runs_held \
     WHERE turn_worker > ?1 ORDER BY turn_worker LIMIT 1";
const NEXT_TASK_HOLDER: &str = "SELECT worker FROM tasks INDEXED BY tasks_held \
     WHERE worker > ?1 ORDER BY worker LIMIT 1";
// There are few workers: one for each process start of the last day.
const DELETE_DEAD: &str = "DELETE FROM workers WHERE renewed_at < ?1 \
     AND (status = 'stopped' OR renewed_at + lease_us < ?2)";

const DELETE_BREAKERS: &str = "DELETE FROM breakers WHERE status = 'closed' AND updated_at < ?1";
const DELETE_RATES: &str = "DELETE FROM rates WHERE interval_us = 0 \
     AND spent_until < ?1 AND queued_until < ?1";

/// Finds a worker by its key.
pub(crate) fn find(conn: &Connection, key: WorkerKey) -> Result<Option<Worker>, UnitError> {
    let sql = format!("SELECT {} FROM workers WHERE worker = ?1", rows::WORKER);
    let mut select = conn.prepare_cached(&sql)?;
    let mut found = select.query(params![Blob(key.as_bytes())])?;
    found.next()?.map(rows::worker).transpose().map_err(UnitError::Kernel)
}

fn all(conn: &Connection) -> Result<Vec<Worker>, UnitError> {
    let sql = format!("SELECT {} FROM workers", rows::WORKER);
    let mut select = conn.prepare_cached(&sql)?;
    Ok(rows::collect(select.query([])?, rows::worker)?)
}

/// Registers a worker or renews its lease.
pub(crate) fn renew(w: &mut Writer<'_>, info: &WorkerInfo) -> Result<Renewed, UnitError> {
    let now = w.now;
    let before = find(w.conn, info.worker)?;
    let lapsed = before.as_ref().is_some_and(|known| now > known.renewed_at.plus(known.info.lease));
    let mut worker = Worker {
        info: info.clone(),
        started_at: before.as_ref().map_or(now, |known| known.started_at),
        renewed_at: now,
        drain: before.as_ref().is_some_and(|known| known.drain),
        steady_since: before.filter(|_| !lapsed).map_or(now, |known| known.steady_since),
    };
    // There are few workers, and the kernel decides which of them are live.
    let others = all(w.conn)?;
    if !worker.may_reap(now) {
        worker.steady_since = worker.steady_with(&others);
    }
    let live = others.iter().filter(|other| other.info.worker != info.worker && other.is_live(now));
    let next_lapse = live.map(|other| other.renewed_at.plus(other.info.lease)).min();
    w.conn.prepare_cached(UPSERT)?.execute(params![
        Blob(info.worker.as_bytes()),
        &*info.name,
        &*info.version,
        info.status.as_str(),
        span(info.lease),
        routes_text(&info.turns),
        routes_text(&info.tasks),
        info.slots,
        info.note.as_deref(),
        info.load,
        info.task_slots,
        info.task_load,
        info.accepting,
        &*info.group,
        &*info.host,
        number(info.tasks_completed),
        number(info.tasks_failed),
        span(info.tasks_took),
        worker.started_at.as_micros(),
        worker.renewed_at.as_micros(),
        worker.steady_since.as_micros(),
    ])?;
    let mut select = w.conn.prepare_cached(CONTROL)?;
    let control = select.query_map(params![Blob(info.worker.as_bytes())], |row| row.get(0))?;
    let mut control: Vec<RunKey> =
        control.map(|key| key.map(RunKey)).collect::<rusqlite::Result<_>>()?;
    control.sort_unstable();
    let (may_reap, drain) = (worker.may_reap(now), worker.drain);
    Ok(Renewed { now, lapsed, may_reap, control, drain, next_lapse })
}

/// Asks a worker to drain.
pub(crate) fn drain(w: &mut Writer<'_>, worker: WorkerKey) -> Result<bool, UnitError> {
    let found = w.conn.prepare_cached(DRAIN)?.execute(params![Blob(worker.as_bytes())])? > 0;
    if found {
        w.wake(|| Wakeup::Drain(worker));
    }
    Ok(found)
}

/// Replaces the previous version of a rate.
pub(crate) fn swap_rate(
    w: &mut Writer<'_>,
    row: &RateRow,
    notify: bool,
) -> Result<bool, UnitError> {
    let sql = match row.version {
        1 => "INSERT OR IGNORE INTO rates VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        _ => {
            "UPDATE rates SET interval_us = ?3, burst = ?4, spent_until = ?5, queued_until = ?6, \
             version = ?7 WHERE namespace = ?1 AND rate_key = ?2 AND version = ?7 - 1"
        }
    };
    let changed = w.conn.prepare_cached(sql)?.execute(params![
        row.namespace.as_str(),
        row.key.as_str(),
        number(row.interval_us),
        row.burst,
        row.spent_until.as_micros(),
        row.queued_until.as_micros(),
        number(row.version),
    ])?;
    if changed > 0 && notify {
        w.wake(|| Wakeup::Missed);
    }
    Ok(changed > 0)
}

/// Everything that a worker holds.
pub(crate) fn held(conn: &Connection, worker: WorkerKey) -> Result<Vec<HeldItem>, UnitError> {
    let turns = holds::held_rows(conn, HELD_TURNS, worker)?.into_iter();
    let tasks = holds::held_rows(conn, HELD_TASKS, worker)?.into_iter();
    let turns = turns.map(|(key, claim_no, _)| holds::held_turn(key, worker, claim_no));
    let tasks = tasks.map(|(key, claim_no, _)| holds::held_task(key, worker, claim_no));
    let mut all: Vec<HeldItem> = turns.chain(tasks).collect();
    all.sort_unstable();
    Ok(all)
}

/// Releases the holds of dead workers, if the worker may reap.
pub(crate) fn reap(w: &mut Writer<'_>, worker: WorkerKey, limit: u32) -> Result<Reaped, UnitError> {
    let now = w.now;
    let permitted = find(w.conn, worker)?.is_some_and(|known| known.may_reap(now));
    if !permitted {
        return Ok(Reaped::default());
    }
    let mut reaped = Reaped { permitted, ..Reaped::default() };
    for (key, item) in orphans(w, NEXT_TURN_HOLDER, HELD_TURNS, holds::held_turn, limit)? {
        if holds::release_one(w, &item, true)? {
            reaped.turns.push(RunKey(key));
        }
    }
    for (key, item) in orphans(w, NEXT_TASK_HOLDER, HELD_TASKS, holds::held_task, limit)? {
        if holds::release_one(w, &item, true)? {
            reaped.tasks.push(TaskId(key));
        }
    }
    delete_old(w.conn, now)?;
    Ok(reaped)
}

/// How often old rows are deleted while no worker reaps.
pub(crate) const DELETE_EVERY: Duration = Duration::from_secs(60 * 60);

/// Deletes the rows of workers, breakers and rates that nobody has used for a day.
pub(crate) fn delete_old(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let old = now.minus(KEPT_FOR).as_micros();
    conn.prepare_cached(DELETE_DEAD)?.execute(params![old, now.as_micros()])?;
    let old = now.minus(BreakerRow::KEPT_FOR).as_micros();
    conn.prepare_cached(DELETE_BREAKERS)?.execute(params![old])?;
    let old = now.minus(RateRow::KEPT_FOR).as_micros();
    conn.prepare_cached(DELETE_RATES)?.execute(params![old])?;
    Ok(())
}

// The holds of workers that are not live, oldest claim first.
fn orphans(
    w: &Writer<'_>,
    next_holder: &str,
    held_rows: &str,
    item: fn(Uuid, WorkerKey, u64) -> HeldItem,
    limit: u32,
) -> Result<Vec<(Uuid, HeldItem)>, UnitError> {
    let mut next = w.conn.prepare_cached(next_holder)?;
    let mut after: Vec<u8> = Vec::new();
    let mut found = Vec::new();
    loop {
        let read = |row: &Row<'_>| row.get::<_, Uuid>(0);
        let Some(holder) = next.query_row(params![after], read).optional()? else { break };
        after = holder.as_bytes().to_vec();
        let holder = WorkerKey(holder);
        if find(w.conn, holder)?.is_some_and(|known| known.is_live(w.now)) {
            continue;
        }
        for (key, claim_no, claimed_at) in holds::held_rows(w.conn, held_rows, holder)? {
            found.push((claimed_at, key, item(key, holder, claim_no)));
        }
    }
    found.sort_unstable();
    found.truncate(limit as usize);
    Ok(found.into_iter().map(|(_, key, item)| (key, item)).collect())
}
