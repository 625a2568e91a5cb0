//! Who holds what: claim, release, revoke, promote, and the limits on holders.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;
use windlass_kernel::{
    Beat, BreakerRow, ClaimOrder, ClaimRequest, ClaimedTurn, Claims, Error, ErrorKind, HeldItem,
    Hold, LimitKey, Limits, Namespace, Promoted, QueueName, Route, RouteName, RunKey, RunStatus,
    Task, TaskId, Timestamp, Wakeup, Want, WorkerKey, WorkflowName,
};

use crate::apply::Writer;
use crate::error::Fail;
use crate::rows::{self, Blob, Cols, micros, number};

/// The statements that find ready rows of one kind.
pub(crate) struct Ready {
    /// The best of a route, in the order of a claim: rowid, priority, first turn, due, key.
    best: &'static str,
    /// The oldest of a route, a priority and first turns or not.
    oldest: &'static str,
    /// The next lower priority of a route.
    priority: &'static str,
    /// The next route.
    route: &'static str,
}

pub(crate) const TURNS: Ready = Ready {
    best: "SELECT rowid, priority, started_at IS NULL, turn_due_at, run_key \
           FROM runs INDEXED BY runs_ready \
           WHERE queue = ?1 AND workflow = ?2 AND turn_ready = 1 \
           ORDER BY priority DESC, (started_at IS NULL), turn_due_at, run_key LIMIT ?3 OFFSET ?4",
    oldest: "SELECT rowid, 0, 0, turn_due_at, run_key FROM runs INDEXED BY runs_ready \
             WHERE queue = ?1 AND workflow = ?2 AND turn_ready = 1 \
             AND priority = ?5 AND (started_at IS NULL) = ?6 \
             ORDER BY turn_due_at, run_key LIMIT ?3 OFFSET ?4",
    priority: "SELECT priority FROM runs INDEXED BY runs_ready \
               WHERE queue = ?1 AND workflow = ?2 AND turn_ready = 1 AND priority < ?3 \
               ORDER BY priority DESC LIMIT 1",
    route: "SELECT queue, workflow FROM runs INDEXED BY runs_ready \
            WHERE turn_ready = 1 AND (queue, workflow) > (?1, ?2) \
            ORDER BY queue, workflow LIMIT 1",
};

pub(crate) const TASKS: Ready = Ready {
    best: "SELECT rowid, priority, 0, due_at, task_id FROM tasks INDEXED BY tasks_ready \
           WHERE queue = ?1 AND name = ?2 AND ready = 1 \
           ORDER BY priority DESC, due_at, task_id LIMIT ?3 OFFSET ?4",
    oldest: "SELECT rowid, 0, 0, due_at, task_id FROM tasks INDEXED BY tasks_ready \
             WHERE queue = ?1 AND name = ?2 AND ready = 1 AND priority = ?5 AND ?6 = 0 \
             ORDER BY due_at, task_id LIMIT ?3 OFFSET ?4",
    priority: "SELECT priority FROM tasks INDEXED BY tasks_ready \
               WHERE queue = ?1 AND name = ?2 AND ready = 1 AND priority < ?3 \
               ORDER BY priority DESC LIMIT 1",
    route: "SELECT queue, name FROM tasks INDEXED BY tasks_ready \
            WHERE ready = 1 AND (queue, name) > (?1, ?2) ORDER BY queue, name LIMIT 1",
};

const LIMIT: &str = "SELECT slots FROM limits WHERE namespace = ?1 AND limit_key = ?2";
pub(crate) const TURN_HOLDERS: &str = "SELECT count(*) FROM runs INDEXED BY runs_limit \
     WHERE namespace = ?1 AND limit_key = ?2 AND turn_worker IS NOT NULL AND limit_key IS NOT NULL";
pub(crate) const TASK_HOLDERS: &str = "SELECT count(*) FROM tasks INDEXED BY tasks_limit \
     WHERE namespace = ?1 AND limit_key = ?2 AND worker IS NOT NULL AND limit_key IS NOT NULL";

const TURN_BY_ROWID: &str = "SELECT rowid, run_key, namespace, workflow, status, turn_claim_no, \
     head, next_ordinal, accepted, turn_reclaims, limit_key, turn_last FROM runs WHERE rowid = ?1";
const TURN_BY_KEY: &str = "SELECT rowid, run_key, namespace, workflow, status, turn_claim_no, \
     head, next_ordinal, accepted, turn_reclaims, limit_key FROM runs WHERE run_key = ?1";

const TAKE_TURN: &str = "UPDATE runs SET turn_worker = ?1, turn_claimed_at = ?2, \
     turn_claim_no = turn_claim_no + 1, turn_ready = 0 WHERE rowid = ?3";
const TAKE_TASK: &str = "UPDATE tasks SET worker = ?1, claimed_at = ?2, \
     claim_no = claim_no + 1, ready = 0 WHERE task_id = ?3";

const RELEASE_TURN: &str = "UPDATE runs SET turn_worker = NULL, turn_claimed_at = NULL, \
     turn_last = NULL, \
     turn_claim_no = turn_claim_no + 1, turn_reclaims = turn_reclaims + ?5, \
     turn_ready = (status IN ('active', 'waiting') OR status = 'paused' AND accepted > seen), \
     turn_due_at = CASE WHEN status IN ('active', 'waiting') \
                          OR status = 'paused' AND accepted > seen \
                   THEN MIN(COALESCE(turn_due_at, ?4), ?4) ELSE turn_due_at END \
     WHERE run_key = ?1 AND turn_worker = ?2 AND turn_claim_no = ?3 \
     RETURNING namespace, queue, workflow, limit_key, turn_ready";
const RELEASE_TASK: &str = "UPDATE tasks SET worker = NULL, claimed_at = NULL, \
     claim_no = claim_no + 1, reclaims = reclaims + ?5, ready = 1, \
     due_at = MIN(COALESCE(due_at, ?4), ?4) \
     WHERE task_id = ?1 AND worker = ?2 AND claim_no = ?3 \
     RETURNING namespace, queue, name, limit_key, ready";

const BEAT: &str = "UPDATE tasks SET beat_at = ?4, \
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
/// When the next turn is due that is not ready.
pub(crate) const NEXT_TURN: &str = "SELECT turn_due_at FROM runs INDEXED BY runs_scheduled \
     WHERE turn_ready = 0 AND turn_worker IS NULL AND turn_due_at IS NOT NULL \
     AND status <> 'paused' ORDER BY turn_due_at LIMIT 1";
/// When the next task is due that is not ready.
pub(crate) const NEXT_TASK: &str = "SELECT due_at FROM tasks INDEXED BY tasks_scheduled \
     WHERE ready = 0 AND worker IS NULL AND due_at IS NOT NULL ORDER BY due_at LIMIT 1";

const SET_LIMIT: &str = "INSERT INTO limits (namespace, limit_key, slots) VALUES (?1, ?2, ?3) \
     ON CONFLICT DO UPDATE SET slots = excluded.slots";
const LIFT_LIMIT: &str = "DELETE FROM limits WHERE namespace = ?1 AND limit_key = ?2";

/// Takes ready turns and tasks.
pub(crate) fn claim(
    w: &mut Writer<'_>,
    request: &ClaimRequest,
    limits: &Limits,
) -> Result<Claims, Fail> {
    let max = limits.claim_rows_max;
    let asked = request.turns.max.max(request.tasks.max);
    if asked > max {
        let message = format!("a claim asks for {asked} turns or tasks; at most {max} are allowed");
        return Err(Error::new(ErrorKind::Invalid, "INVALID_CLAIM", message).into());
    }
    let mut slots = Slots::default();
    let turns = claim_turns(w, request, &mut slots)?;
    let tasks = claim_tasks(w, request, &mut slots)?;
    Ok(Claims { turns, tasks, now: w.now })
}

fn claim_turns(
    w: &mut Writer<'_>,
    request: &ClaimRequest,
    slots: &mut Slots,
) -> Result<Vec<ClaimedTurn>, Fail> {
    let conn = w.conn;
    let mut by_rowid = conn.prepare_cached(TURN_BY_ROWID)?;
    let since = w.now.minus(request.offer).as_micros();
    let mut taken = Vec::new();
    pick(conn, &TURNS, &request.turns, request.order, |candidate| {
        let mut found = by_rowid.query(params![candidate.rowid])?;
        let Some(row) = found.next()? else { return Ok(false) };
        let turn = match read_turn(row, request.worker) {
            Ok(turn) => turn,
            Err(error) => return skip_damaged(&error, candidate),
        };
        let last: Option<Uuid> = row.get(11)?;
        let left_to_another = last.is_some_and(|last| last != request.worker.0)
            && candidate.due_at.is_some_and(|at| at > since);
        if left_to_another || !slots.take(conn, &turn.1.namespace, turn.2.as_ref())? {
            return Ok(false);
        }
        taken.push((turn.0, turn.1));
        Ok(true)
    })?;
    let mut take = conn.prepare_cached(TAKE_TURN)?;
    let mut turns = Vec::with_capacity(taken.len());
    for (rowid, turn) in taken {
        take.execute(params![Blob(request.worker.as_bytes()), w.now.as_micros(), rowid])?;
        w.runs.forget(turn.run_key);
        turns.push(turn);
    }
    Ok(turns)
}

// One bad row must not keep everybody from claiming; it stays where `check` and people find it.
fn skip_damaged(error: &Error, candidate: &Candidate) -> Result<bool, Fail> {
    tracing::error!(%error, key = %candidate.key, "a ready row does not read and is passed over");
    Ok(false)
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
) -> Result<Vec<Task>, Fail> {
    let conn = w.conn;
    let sql = format!("SELECT {} FROM tasks WHERE rowid = ?1", rows::TASK);
    let mut by_rowid = conn.prepare_cached(&sql)?;
    let mut taken: Vec<Task> = Vec::new();
    pick(conn, &TASKS, &request.tasks, request.order, |candidate| {
        let mut found = by_rowid.query(params![candidate.rowid])?;
        let Some(row) = found.next()? else { return Ok(false) };
        let task = match rows::task(row) {
            Ok(task) => task,
            Err(error) => return skip_damaged(&error, candidate),
        };
        if !slots.take(conn, &task.namespace, task.limit_key.as_ref())? {
            return Ok(false);
        }
        taken.push(task);
        Ok(true)
    })?;
    let mut take = conn.prepare_cached(TAKE_TASK)?;
    for task in &mut taken {
        let (worker, id) = (Blob(request.worker.as_bytes()), Blob(task.task_id.as_bytes()));
        take.execute(params![worker, w.now.as_micros(), id])?;
        task.worker = Some(request.worker);
        task.claimed_at = Some(w.now);
        task.claim_no += 1;
        task.ready = false;
    }
    Ok(taken)
}

/// How many may still hold under each limit that a claim met.
#[derive(Default)]
struct Slots(HashMap<(Namespace, LimitKey), Option<i64>>);

impl Slots {
    // Takes a slot if the row needs one and there is one.
    fn take(
        &mut self,
        conn: &Connection,
        namespace: &Namespace,
        key: Option<&LimitKey>,
    ) -> Result<bool, Fail> {
        let Some(key) = key else { return Ok(true) };
        let left = match self.0.entry((namespace.clone(), key.clone())) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(slots_left(conn, namespace, key)?)
            }
        };
        Ok(match left {
            None => true,
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            Some(_) => false,
        })
    }
}

fn slots_left(
    conn: &Connection,
    namespace: &Namespace,
    key: &LimitKey,
) -> Result<Option<i64>, Fail> {
    let name = params![namespace.as_str(), key.as_str()];
    let number = |sql: &str| -> rusqlite::Result<Option<i64>> {
        conn.prepare_cached(sql)?.query_row(name, |row| row.get(0)).optional()
    };
    let Some(slots) = number(LIMIT)? else { return Ok(None) };
    let held = number(TURN_HOLDERS)?.unwrap_or(0) + number(TASK_HOLDERS)?.unwrap_or(0);
    Ok(Some(slots - held))
}

/// A ready row, by what it is compared with others.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    priority: Reverse<i64>,
    is_first: bool,
    due_at: Option<i64>,
    key: Uuid,
    rowid: i64,
}

impl Candidate {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            rowid: row.get(0)?,
            priority: Reverse(row.get(1)?),
            is_first: row.get(2)?,
            due_at: row.get(3)?,
            key: row.get(4)?,
        })
    }
}

/// Ready rows of one route, read in pieces while nothing is changed.
struct Stream<'s> {
    sql: &'static str,
    route: &'s Route,
    // The priority, and whether first turns, of a stream by age.
    group: Option<(i64, bool)>,
    ahead: VecDeque<Candidate>,
    read: usize,
    piece: usize,
    is_over: bool,
}

impl Stream<'_> {
    fn next(&mut self, conn: &Connection) -> Result<Option<Candidate>, Fail> {
        if self.ahead.is_empty() && !self.is_over {
            let (queue, name) = (self.route.queue.as_str(), self.route.name.as_str());
            let (limit, offset) = (number(self.piece as u64), number(self.read as u64));
            let mut select = conn.prepare_cached(self.sql)?;
            let mut found = match self.group {
                None => select.query(params![queue, name, limit, offset])?,
                Some((priority, is_first)) => {
                    select.query(params![queue, name, limit, offset, priority, is_first])?
                }
            };
            while let Some(row) = found.next()? {
                self.ahead.push_back(Candidate::read(row)?);
            }
            self.is_over = self.ahead.len() < self.piece;
            self.read += self.ahead.len();
            self.piece *= 4;
        }
        Ok(self.ahead.pop_front())
    }
}

// Hands ready rows to `take`, best first, until it has taken as many as are wanted.
fn pick(
    conn: &Connection,
    ready: &Ready,
    want: &Want,
    order: ClaimOrder,
    mut take: impl FnMut(&Candidate) -> Result<bool, Fail>,
) -> Result<(), Fail> {
    let max = want.max as usize;
    if max == 0 {
        return Ok(());
    }
    let mut routes: Vec<&Route> = want.routes.iter().collect();
    routes.sort();
    routes.dedup();
    let mut streams = Vec::new();
    for route in routes {
        match order {
            ClaimOrder::Priority => streams.push((ready.best, route, None)),
            ClaimOrder::Oldest => {
                for priority in priorities(conn, ready, route)? {
                    streams.push((ready.oldest, route, Some((priority, false))));
                    streams.push((ready.oldest, route, Some((priority, true))));
                }
            }
        }
    }
    // With many streams few rows of each are likely to be wanted.
    let piece = (2 * max / streams.len().max(1)).clamp(16, max.max(16));
    let mut streams: Vec<Stream<'_>> = streams
        .into_iter()
        .map(|(sql, route, group)| {
            let (ahead, read, is_over) = (VecDeque::new(), 0, false);
            Stream { sql, route, group, ahead, read, piece, is_over }
        })
        .collect();
    let mut heads = BinaryHeap::new();
    for (index, stream) in streams.iter_mut().enumerate() {
        heads.extend(stream.next(conn)?.map(|candidate| Reverse((candidate, index))));
    }
    let mut taken = 0;
    while taken < max {
        let Some(Reverse((candidate, index))) = heads.pop() else { break };
        taken += usize::from(take(&candidate)?);
        heads.extend(streams[index].next(conn)?.map(|candidate| Reverse((candidate, index))));
    }
    Ok(())
}

// The priorities that ready rows of a route have, each found by one step in the index.
fn priorities(conn: &Connection, ready: &Ready, route: &Route) -> Result<Vec<i64>, Fail> {
    let mut next = conn.prepare_cached(ready.priority)?;
    let mut found = Vec::new();
    let mut below = i64::from(i16::MAX) + 1;
    let (queue, name) = (route.queue.as_str(), route.name.as_str());
    while let Some(priority) =
        next.query_row(params![queue, name, below], |row| row.get(0)).optional()?
    {
        found.push(priority);
        below = priority;
    }
    Ok(found)
}

/// Since when the oldest ready row has been due, at one step in the index for each route,
/// priority, and first turns or not.
pub(crate) fn ready_oldest(conn: &Connection, ready: &Ready) -> Result<Option<Timestamp>, Fail> {
    let mut next = conn.prepare_cached(ready.route)?;
    let mut after = (String::new(), String::new());
    let mut oldest: Option<i64> = None;
    loop {
        let found = next
            .query_row(params![after.0, after.1], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((queue, name)) = found else { break };
        let route: (String, String) = (queue, name);
        after = route.clone();
        let route =
            Route { queue: QueueName::from_stored(route.0), name: RouteName::from_stored(route.1) };
        for priority in priorities(conn, ready, &route)? {
            for is_first in [false, true] {
                let (queue, name) = (route.queue.as_str(), route.name.as_str());
                let due: Option<Option<i64>> = conn
                    .prepare_cached(ready.oldest)?
                    .query_row(params![queue, name, 1, 0, priority, is_first], |row| row.get(3))
                    .optional()?;
                oldest = [oldest, due.flatten()].into_iter().flatten().min();
            }
        }
    }
    Ok(oldest.map(Timestamp::from_micros))
}

/// Gives back holds that are still held.
pub(crate) fn release(w: &mut Writer<'_>, holds: &[HeldItem]) -> Result<u32, Fail> {
    let mut count = 0;
    for held in holds {
        count += u32::from(free(w, held, false)?);
    }
    Ok(count)
}

/// Notes signs of life of tasks that are still held.
pub(crate) fn beat(w: &mut Writer<'_>, beats: &[Beat]) -> Result<Vec<bool>, Fail> {
    let mut update = w.conn.prepare_cached(BEAT)?;
    let mut held = Vec::with_capacity(beats.len());
    for Beat { task_id, hold, details } in beats {
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

/// Frees one hold if it is held, for its holder or from a dead one.
pub(crate) fn free(w: &mut Writer<'_>, held: &HeldItem, reclaims: bool) -> Result<bool, Fail> {
    let (sql, key, worker, claim_no) = match held {
        HeldItem::Turn { run_key, worker, claim_no } => {
            w.runs.forget(*run_key);
            (RELEASE_TURN, run_key.as_bytes(), worker, claim_no)
        }
        HeldItem::Task { task_id, worker, claim_no } => {
            (RELEASE_TASK, task_id.as_bytes(), worker, claim_no)
        }
    };
    let mut update = w.conn.prepare_cached(sql)?;
    let freed = update
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
    let Some((namespace, (queue, name), limit_key, is_ready)) = freed else { return Ok(false) };
    if is_ready {
        let route =
            Route { queue: QueueName::from_stored(queue), name: RouteName::from_stored(name) };
        w.wake(|| match held {
            HeldItem::Turn { .. } => Wakeup::Turn(route),
            HeldItem::Task { .. } => Wakeup::Task(route),
        });
    }
    let limit_key = limit_key.map(LimitKey::from_stored);
    w.freed(&Namespace::from_stored(namespace), limit_key.as_ref())?;
    Ok(true)
}

/// Takes a turn from whoever holds it.
pub(crate) fn revoke(
    w: &mut Writer<'_>,
    run_key: RunKey,
    worker: WorkerKey,
) -> Result<Option<ClaimedTurn>, Fail> {
    let mut select = w.conn.prepare_cached(TURN_BY_KEY)?;
    let mut found = select.query(params![Blob(run_key.as_bytes())])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let (rowid, turn, _) = read_turn(row, worker)?;
    if turn.status.is_ended() {
        return Ok(None);
    }
    let mut take = w.conn.prepare_cached(TAKE_TURN)?;
    take.execute(params![Blob(worker.as_bytes()), w.now.as_micros(), rowid])?;
    w.runs.forget(run_key);
    Ok(Some(turn))
}

/// Readies what is due.
pub(crate) fn promote(w: &mut Writer<'_>, limit: u32) -> Result<Promoted, Fail> {
    let turns = promote_rows(w, PROMOTE_TURNS, limit)?;
    for (key, route) in &turns {
        w.runs.forget(RunKey(*key));
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

fn promote_rows(w: &Writer<'_>, sql: &str, limit: u32) -> Result<Vec<(Uuid, Route)>, Fail> {
    let mut update = w.conn.prepare_cached(sql)?;
    let read = |row: &Row<'_>| {
        let queue = QueueName::from_stored(row.get::<_, String>(1)?);
        let name = RouteName::from_stored(row.get::<_, String>(2)?);
        Ok((row.get(0)?, Route { queue, name }))
    };
    let promoted = update.query_map(params![micros(Some(w.now)), limit], read)?;
    Ok(promoted.collect::<rusqlite::Result<_>>()?)
}

/// Sets or lifts a limit.
pub(crate) fn set_limit(
    w: &mut Writer<'_>,
    namespace: &Namespace,
    key: &LimitKey,
    slots: Option<u32>,
) -> Result<(), Fail> {
    let (namespace, key) = (namespace.as_str(), key.as_str());
    match slots {
        Some(slots) => w.conn.prepare_cached(SET_LIMIT)?.execute(params![namespace, key, slots])?,
        None => w.conn.prepare_cached(LIFT_LIMIT)?.execute(params![namespace, key])?,
    };
    // What the limit kept waiting is ready already, and nobody knows what it is.
    w.wake(|| Wakeup::Missed);
    Ok(())
}

/// Puts a breaker in the place of the version before it.
pub(crate) fn swap_breaker(w: &mut Writer<'_>, row: &BreakerRow) -> Result<bool, Fail> {
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

/// What a worker's key holds, by the given statement: key and claim number.
pub(crate) fn held_rows(
    conn: &Connection,
    sql: &str,
    worker: WorkerKey,
) -> Result<Vec<(Uuid, u64, Option<i64>)>, Fail> {
    let mut select = conn.prepare_cached(sql)?;
    let read = |row: &Row<'_>| Ok((row.get(0)?, rows::count(row, 1)?, row.get(2)?));
    let held = select.query_map(params![Blob(worker.as_bytes())], read)?;
    Ok(held.collect::<rusqlite::Result<_>>()?)
}

/// A hold on a task by its parts.
pub(crate) fn held_task(key: Uuid, worker: WorkerKey, claim_no: u64) -> HeldItem {
    HeldItem::Task { task_id: TaskId(key), worker, claim_no }
}

/// A hold on a turn by its parts.
pub(crate) fn held_turn(key: Uuid, worker: WorkerKey, claim_no: u64) -> HeldItem {
    HeldItem::Turn { run_key: RunKey(key), worker, claim_no }
}
