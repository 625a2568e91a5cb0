//! Holds: claim, release, revoke, promote, and concurrency limits.

mod ready;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use uuid::Uuid;
use windlass_kernel::{
    BreakerRow, ClaimRequest, ClaimedTurn, Claims, Error, ErrorCode, ErrorKind, Heartbeat,
    HeldItem, Hold, LimitKey, Limits, Namespace, Promoted, QueueName, Route, RouteName, RunKey,
    RunStatus, Task, TaskId, Timestamp, Wakeup, WorkerKey, WorkflowName,
};

use crate::apply::Writer;
use crate::error::UnitError;
use crate::rows::{self, Blob, Cols, micros, number};

use ready::{Candidate, Taker, Verdict, pick};
pub(crate) use ready::{ReadyQueries, TASKS, TURNS, ready_oldest};

const LIMIT: &str = "SELECT slots FROM limits WHERE namespace = ?1 AND limit_key = ?2";
pub(crate) const TURN_HOLDERS: &str = "SELECT count(*) FROM runs INDEXED BY runs_limit \
     WHERE namespace = ?1 AND limit_key = ?2 AND turn_worker IS NOT NULL AND limit_key IS NOT NULL";
pub(crate) const TASK_HOLDERS: &str = "SELECT count(*) FROM tasks INDEXED BY tasks_limit \
     WHERE namespace = ?1 AND limit_key = ?2 AND worker IS NOT NULL AND limit_key IS NOT NULL";

const TURN_BY_ROWID: &str = "SELECT rowid, run_key, namespace, workflow, status, turn_claim_no, \
     head, next_ordinal, accepted, turn_reclaims, limit_key, turn_last FROM runs WHERE rowid = ?1";
const TURN_BY_KEY: &str = "SELECT rowid, run_key, namespace, workflow, status, turn_claim_no, \
     head, next_ordinal, accepted, turn_reclaims, limit_key FROM runs WHERE run_key = ?1";

const CLAIM_TURN: &str = "UPDATE runs SET turn_worker = ?1, turn_claimed_at = ?2, \
     turn_claim_no = turn_claim_no + 1, turn_ready = 0 WHERE rowid = ?3";
const CLAIM_TASK: &str = "UPDATE tasks SET worker = ?1, claimed_at = ?2, \
     claim_no = claim_no + 1, ready = 0 WHERE task_id = ?3";

const RELEASE_TURN: &str = "UPDATE runs SET turn_worker = NULL, turn_claimed_at = NULL, \
     turn_last = NULL, \
     turn_claim_no = turn_claim_no + 1, turn_reclaims = turn_reclaims + ?5, \
     turn_ready = (status IN ('active', 'waiting') OR status = 'paused' AND accepted > seen), \
     turn_due_at = CASE WHEN started_at IS NULL AND turn_due_at > ?4 THEN turn_due_at \
                   WHEN status IN ('active', 'waiting') \
                          OR status = 'paused' AND accepted > seen \
                   THEN MIN(COALESCE(turn_due_at, ?4), ?4) ELSE turn_due_at END \
     WHERE run_key = ?1 AND turn_worker = ?2 AND turn_claim_no = ?3 \
     RETURNING namespace, queue, workflow, limit_key, turn_ready";
const RELEASE_TASK: &str = "UPDATE tasks SET worker = NULL, claimed_at = NULL, \
     claim_no = claim_no + 1, reclaims = reclaims + ?5, ready = 1, \
     due_at = MIN(COALESCE(due_at, ?4), ?4) \
     WHERE task_id = ?1 AND worker = ?2 AND claim_no = ?3 \
     RETURNING namespace, queue, name, limit_key, ready";

const HEARTBEAT: &str = "UPDATE tasks SET beat_at = ?4, \
     beat_encoding = COALESCE(?5, beat_encoding), \
     beat = CASE WHEN ?5 IS NULL THEN beat ELSE ?6 END \
     WHERE task_id = ?1 AND worker = ?2 AND claim_no = ?3";

const PROMOTE_TURNS: &str = "UPDATE runs SET turn_ready = 1 WHERE rowid IN \
     (SELECT rowid FROM runs INDEXED BY runs_scheduled \
      WHERE turn_ready = 0 AND turn_worker IS NULL AND turn_due_at IS NOT NULL \
      AND status <> 'paused' AND turn_due_at <= ?1 ORDER BY turn_due_at, run_key LIMIT ?2) \
     RETURNING run_key, queue, workflow";
const PROMOTE_TASKS: &str = "UPDATE tasks SET ready = 1 WHERE rowid IN \
     (SELECT rowid FROM tasks INDEXED BY tasks_scheduled \
      WHERE ready = 0 AND worker IS NULL AND due_at IS NOT NULL AND due_at <= ?1 \
      ORDER BY due_at, task_id LIMIT ?2) \
     RETURNING task_id, queue, name";
/// The due time of the next turn that is not ready.
pub(crate) const NEXT_TURN: &str = "SELECT turn_due_at FROM runs INDEXED BY runs_scheduled \
     WHERE turn_ready = 0 AND turn_worker IS NULL AND turn_due_at IS NOT NULL \
     AND status <> 'paused' ORDER BY turn_due_at LIMIT 1";
/// The due time of the next task that is not ready.
pub(crate) const NEXT_TASK: &str = "SELECT due_at FROM tasks INDEXED BY tasks_scheduled \
     WHERE ready = 0 AND worker IS NULL AND due_at IS NOT NULL ORDER BY due_at LIMIT 1";

const SET_LIMIT: &str = "INSERT INTO limits (namespace, limit_key, slots) VALUES (?1, ?2, ?3) \
     ON CONFLICT DO UPDATE SET slots = excluded.slots";
const REMOVE_LIMIT: &str = "DELETE FROM limits WHERE namespace = ?1 AND limit_key = ?2";

/// Claims ready turns and tasks.
pub(crate) fn claim(
    w: &mut Writer<'_>,
    request: &ClaimRequest,
    limits: &Limits,
) -> Result<Claims, UnitError> {
    let max = limits.claim_rows_max;
    let requested = request.turns.max.max(request.tasks.max);
    if requested > max {
        let message =
            format!("a claim asks for {requested} turns or tasks; at most {max} are allowed");
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidClaim, message).into());
    }
    let mut slots = Slots::default();
    let (turns, passed_over) = claim_turns(w, request, &mut slots)?;
    let tasks = claim_tasks(w, request, &mut slots)?;
    Ok(Claims { turns, tasks, passed_over, now: w.now })
}

fn claim_turns(
    w: &mut Writer<'_>,
    request: &ClaimRequest,
    slots: &mut Slots,
) -> Result<(Vec<ClaimedTurn>, bool), UnitError> {
    let conn = w.conn;
    let mut taker = TurnTaker {
        conn,
        by_rowid: conn.prepare_cached(TURN_BY_ROWID)?,
        worker: request.worker,
        since: w.now.minus(request.offer).as_micros(),
        slots,
        claimed: Vec::new(),
        passed_over: false,
    };
    pick(conn, &TURNS, &request.turns, request.order, &mut taker)?;
    let TurnTaker { claimed, mut passed_over, .. } = taker;
    let mut claim = conn.prepare_cached(CLAIM_TURN)?;
    let mut turns = Vec::with_capacity(claimed.len());
    for (rowid, turn) in claimed {
        claim.execute(params![Blob(request.worker.as_bytes()), w.now.as_micros(), rowid])?;
        w.runs.remove(turn.run_key);
        turns.push(turn);
    }
    passed_over &= turns.len() < request.turns.max as usize;
    Ok((turns, passed_over))
}

struct TurnTaker<'a> {
    conn: &'a Connection,
    by_rowid: CachedStatement<'a>,
    worker: WorkerKey,
    // A later due time reserves a turn for the worker that released it last.
    since: i64,
    slots: &'a mut Slots,
    claimed: Vec<(i64, ClaimedTurn)>,
    passed_over: bool,
}

impl Taker for TurnTaker<'_> {
    fn take(&mut self, candidate: &Candidate) -> Result<Verdict, UnitError> {
        let mut found = self.by_rowid.query(params![candidate.rowid])?;
        let Some(row) = found.next()? else { return Ok(Verdict::PassedOver) };
        let (rowid, turn, limit_key) = match read_turn(row, self.worker) {
            Ok(turn) => turn,
            Err(error) => return Ok(skip_damaged(&error, candidate)),
        };
        let last: Option<Uuid> = row.get(11)?;
        let is_reserved = last.is_some_and(|last| last != self.worker.0)
            && candidate.due_at.is_some_and(|at| at > self.since);
        if is_reserved {
            self.passed_over |= limit_key.is_none();
            return Ok(Verdict::PassedOver);
        }
        if !self.slots.take(self.conn, &turn.namespace, limit_key.as_ref())? {
            return Ok(Verdict::Full);
        }
        self.claimed.push((rowid, turn));
        Ok(Verdict::Taken)
    }

    fn has_slot(&mut self, namespace: &str, limit_key: &str) -> Result<bool, UnitError> {
        self.slots.has_slot(self.conn, namespace, limit_key)
    }
}

// One damaged row must not block all claims. It stays in place, where `check` finds it.
fn skip_damaged(error: &Error, candidate: &Candidate) -> Verdict {
    tracing::error!(%error, key = %candidate.key, "cannot read a ready row; skipping it");
    Verdict::PassedOver
}

fn read_turn(
    row: &Row<'_>,
    worker: WorkerKey,
) -> Result<(i64, ClaimedTurn, Option<LimitKey>), Error> {
    let c = &mut Cols::new(row);
    let rowid = c.get()?;
    let turn = ClaimedTurn {
        run_key: c.key()?,
        namespace: Namespace::from_stored(c.text()?),
        workflow: WorkflowName::from_stored(c.text()?),
        status: c.word(RunStatus::parse)?,
        hold: Hold { worker, claim_no: c.number::<u64>()? + 1 },
        head: c.head()?,
        accepted: c.number()?,
        reclaims: c.number()?,
    };
    Ok((rowid, turn, c.text_opt()?.map(LimitKey::from_stored)))
}

fn claim_tasks(
    w: &mut Writer<'_>,
    request: &ClaimRequest,
    slots: &mut Slots,
) -> Result<Vec<Task>, UnitError> {
    let conn = w.conn;
    let sql = format!("SELECT {} FROM tasks WHERE rowid = ?1", rows::TASK);
    let by_rowid = conn.prepare_cached(&sql)?;
    let mut taker = TaskTaker { conn, by_rowid, slots, claimed: Vec::new() };
    pick(conn, &TASKS, &request.tasks, request.order, &mut taker)?;
    let mut claimed = taker.claimed;
    let mut claim = conn.prepare_cached(CLAIM_TASK)?;
    for task in &mut claimed {
        let (worker, id) = (Blob(request.worker.as_bytes()), Blob(task.task_id.as_bytes()));
        claim.execute(params![worker, w.now.as_micros(), id])?;
        task.worker = Some(request.worker);
        task.claimed_at = Some(w.now);
        task.claim_no += 1;
        task.ready = false;
    }
    Ok(claimed)
}

struct TaskTaker<'a> {
    conn: &'a Connection,
    by_rowid: CachedStatement<'a>,
    slots: &'a mut Slots,
    claimed: Vec<Task>,
}

impl Taker for TaskTaker<'_> {
    fn take(&mut self, candidate: &Candidate) -> Result<Verdict, UnitError> {
        let mut found = self.by_rowid.query(params![candidate.rowid])?;
        let Some(row) = found.next()? else { return Ok(Verdict::PassedOver) };
        let task = match rows::task(row) {
            Ok(task) => task,
            Err(error) => return Ok(skip_damaged(&error, candidate)),
        };
        if !self.slots.take(self.conn, &task.namespace, task.limit_key.as_ref())? {
            return Ok(Verdict::Full);
        }
        self.claimed.push(task);
        Ok(Verdict::Taken)
    }

    fn has_slot(&mut self, namespace: &str, limit_key: &str) -> Result<bool, UnitError> {
        self.slots.has_slot(self.conn, namespace, limit_key)
    }
}

/// The free slots of each limit that a claim has met; `None` if there is no limit.
#[derive(Default)]
struct Slots(HashMap<(Namespace, LimitKey), Option<i64>>);

impl Slots {
    // Takes a slot. Returns `false` if the limit has none left.
    fn take(
        &mut self,
        conn: &Connection,
        namespace: &Namespace,
        key: Option<&LimitKey>,
    ) -> Result<bool, UnitError> {
        let Some(key) = key else { return Ok(true) };
        Ok(match self.left(conn, namespace, key)? {
            None => true,
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            Some(_) => false,
        })
    }

    // Whether a slot is left; takes none.
    fn has_slot(
        &mut self,
        conn: &Connection,
        namespace: &str,
        key: &str,
    ) -> Result<bool, UnitError> {
        let (namespace, key) = (Namespace::from_stored(namespace), LimitKey::from_stored(key));
        Ok(self.left(conn, &namespace, &key)?.is_none_or(|left| left > 0))
    }

    fn left(
        &mut self,
        conn: &Connection,
        namespace: &Namespace,
        key: &LimitKey,
    ) -> Result<&mut Option<i64>, UnitError> {
        Ok(match self.0.entry((namespace.clone(), key.clone())) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(slots_left(conn, namespace, key)?),
        })
    }
}

fn slots_left(
    conn: &Connection,
    namespace: &Namespace,
    key: &LimitKey,
) -> Result<Option<i64>, UnitError> {
    let name = params![namespace.as_str(), key.as_str()];
    let number = |sql: &str| -> rusqlite::Result<Option<i64>> {
        conn.prepare_cached(sql)?.query_row(name, |row| row.get(0)).optional()
    };
    let Some(slots) = number(LIMIT)? else { return Ok(None) };
    let held = number(TURN_HOLDERS)?.unwrap_or(0) + number(TASK_HOLDERS)?.unwrap_or(0);
    Ok(Some(slots - held))
}

/// Releases those holds that are still valid.
pub(crate) fn release(w: &mut Writer<'_>, holds: &[HeldItem]) -> Result<u32, UnitError> {
    let mut count = 0;
    for held in holds {
        count += u32::from(release_one(w, held, false)?);
    }
    Ok(count)
}

/// Records heartbeats of tasks that are still held.
pub(crate) fn heartbeat(
    w: &mut Writer<'_>,
    heartbeats: &[Heartbeat],
) -> Result<Vec<bool>, UnitError> {
    let mut update = w.conn.prepare_cached(HEARTBEAT)?;
    let mut held = Vec::with_capacity(heartbeats.len());
    for Heartbeat { task_id, hold, details } in heartbeats {
        let changed = update.execute(params![
            Blob(task_id.as_bytes()),
            Blob(hold.worker.as_bytes()),
            number(hold.claim_no),
            w.now.as_micros(),
            details.as_ref().map(|details| details.encoding.as_str()),
            details.as_ref().map(|details| &*details.bytes),
        ])?;
        held.push(changed > 0);
    }
    Ok(held)
}

/// Releases one hold if it is still valid, for its holder or from a dead worker.
pub(crate) fn release_one(
    w: &mut Writer<'_>,
    held: &HeldItem,
    reclaims: bool,
) -> Result<bool, UnitError> {
    let (sql, key, worker, claim_no) = match held {
        HeldItem::Turn { run_key, worker, claim_no } => {
            w.runs.remove(*run_key);
            (RELEASE_TURN, run_key.as_bytes(), worker, claim_no)
        }
        HeldItem::Task { task_id, worker, claim_no } => {
            (RELEASE_TASK, task_id.as_bytes(), worker, claim_no)
        }
    };
    let mut update = w.conn.prepare_cached(sql)?;
    let released = update
        .query_row(
            params![
                Blob(key),
                Blob(worker.as_bytes()),
                number(*claim_no),
                w.now.as_micros(),
                reclaims
            ],
            |row| {
                let text = |index: usize| row.get::<_, String>(index);
                let route = (text(1)?, text(2)?);
                Ok((text(0)?, route, row.get::<_, Option<String>>(3)?, row.get::<_, bool>(4)?))
            },
        )
        .optional()?;
    drop(update);
    let Some((namespace, (queue, name), limit_key, is_ready)) = released else { return Ok(false) };
    if is_ready {
        let route =
            Route { queue: QueueName::from_stored(queue), name: RouteName::from_stored(name) };
        w.wake(|| match held {
            HeldItem::Turn { .. } => Wakeup::Turn(route),
            HeldItem::Task { .. } => Wakeup::Task(route),
        });
    }
    let limit_key = limit_key.map(LimitKey::from_stored);
    w.wake_limited(&Namespace::from_stored(namespace), limit_key.as_ref())?;
    Ok(true)
}

/// Takes a turn away from its holder.
pub(crate) fn revoke(
    w: &mut Writer<'_>,
    run_key: RunKey,
    worker: WorkerKey,
) -> Result<Option<ClaimedTurn>, UnitError> {
    let mut select = w.conn.prepare_cached(TURN_BY_KEY)?;
    let mut found = select.query(params![Blob(run_key.as_bytes())])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let (rowid, turn, _) = read_turn(row, worker)?;
    if turn.status.is_ended() {
        return Ok(None);
    }
    let mut claim = w.conn.prepare_cached(CLAIM_TURN)?;
    claim.execute(params![Blob(worker.as_bytes()), w.now.as_micros(), rowid])?;
    w.runs.remove(run_key);
    Ok(Some(turn))
}

/// Makes due turns and tasks ready.
pub(crate) fn promote(w: &mut Writer<'_>, limit: u32) -> Result<Promoted, UnitError> {
    let turns = promote_rows(w, PROMOTE_TURNS, limit)?;
    for (key, route) in &turns {
        w.runs.remove(RunKey(*key));
        w.wake(|| Wakeup::Turn(route.clone()));
    }
    let tasks = promote_rows(w, PROMOTE_TASKS, limit)?;
    for (_, route) in &tasks {
        w.wake(|| Wakeup::Task(route.clone()));
    }
    let next = |sql: &str| -> rusqlite::Result<Option<i64>> {
        w.conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()
    };
    let next_due = [next(NEXT_TURN)?, next(NEXT_TASK)?].into_iter().flatten().min();
    Ok(Promoted {
        turns: u32::try_from(turns.len()).unwrap_or(u32::MAX),
        tasks: u32::try_from(tasks.len()).unwrap_or(u32::MAX),
        next_due: next_due.map(Timestamp::from_micros),
        now: w.now,
    })
}

fn promote_rows(w: &Writer<'_>, sql: &str, limit: u32) -> Result<Vec<(Uuid, Route)>, UnitError> {
    let mut update = w.conn.prepare_cached(sql)?;
    let read = |row: &Row<'_>| {
        let queue = QueueName::from_stored(row.get::<_, String>(1)?);
        let name = RouteName::from_stored(row.get::<_, String>(2)?);
        Ok((row.get(0)?, Route { queue, name }))
    };
    let promoted = update.query_map(params![micros(Some(w.now)), limit], read)?;
    Ok(promoted.collect::<rusqlite::Result<_>>()?)
}

/// Sets or removes a limit.
pub(crate) fn set_limit(
    w: &mut Writer<'_>,
    namespace: &Namespace,
    key: &LimitKey,
    slots: Option<u32>,
) -> Result<(), UnitError> {
    let (namespace, key) = (namespace.as_str(), key.as_str());
    match slots {
        Some(slots) => w.conn.prepare_cached(SET_LIMIT)?.execute(params![namespace, key, slots])?,
        None => w.conn.prepare_cached(REMOVE_LIMIT)?.execute(params![namespace, key])?,
    };
    // The rows that the limit held back are ready already, and the store does not know which they
    // are.
    w.wake(|| Wakeup::Missed);
    Ok(())
}

/// Replaces the previous version of a breaker.
pub(crate) fn swap_breaker(w: &mut Writer<'_>, row: &BreakerRow) -> Result<bool, UnitError> {
    let sql = match row.version {
        1 => "INSERT OR IGNORE INTO breakers VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        _ => {
            "UPDATE breakers SET status = ?3, retry_at = ?4, data_encoding = ?5, data = ?6, \
             version = ?7, updated_at = ?8 \
             WHERE namespace = ?1 AND breaker_key = ?2 AND version = ?7 - 1"
        }
    };
    let changed = w.conn.prepare_cached(sql)?.execute(params![
        row.namespace.as_str(),
        row.key.as_str(),
        row.status.as_str(),
        row.retry_at.map(|at| at.as_micros()),
        row.data.encoding.as_str(),
        Blob(&row.data.bytes),
        number(row.version),
        w.now.as_micros(),
    ])?;
    Ok(changed > 0)
}

/// The rows that a worker holds: key, claim number, and the third column of the query.
pub(crate) fn held_rows(
    conn: &Connection,
    sql: &str,
    worker: WorkerKey,
) -> Result<Vec<(Uuid, u64, Option<i64>)>, UnitError> {
    let mut select = conn.prepare_cached(sql)?;
    let read = |row: &Row<'_>| Ok((row.get(0)?, rows::count(row, 1)?, row.get(2)?));
    let held = select.query_map(params![Blob(worker.as_bytes())], read)?;
    Ok(held.collect::<rusqlite::Result<_>>()?)
}

/// Builds a hold on a task.
pub(crate) fn held_task(key: Uuid, worker: WorkerKey, claim_no: u64) -> HeldItem {
    HeldItem::Task { task_id: TaskId(key), worker, claim_no }
}

/// Builds a hold on a turn.
pub(crate) fn held_turn(key: Uuid, worker: WorkerKey, claim_no: u64) -> HeldItem {
    HeldItem::Turn { run_key: RunKey(key), worker, claim_no }
}
