//! Writes the rows of a commit that passed all checks.

use std::collections::hash_map::Entry;
use std::sync::LazyLock;

use rusqlite::{OptionalExtension, params};
use windlass_kernel::{
    Commit, DeadLetter, Delivery, Hold, LogLine, MessageKind, NewMessage, Op, Reschedule, Route,
    Run, RunChange, RunGuard, RunKey, Task, TaskGuard, TaskId, Timestamp, Turn, TurnChange, Wake,
    Wakeup, WorkerKey,
};

use super::{Buffers, CachedBindings, CachedRun, Writer};
use crate::error::UnitError;
use crate::rows::{Blob, DEAD_LETTER, LOG, MESSAGE, RUN, TASK, body, labels_text, micros, number};

// Bits for the groups of columns that an UPDATE of a run sets in addition to those that every
// commit sets. A statement names an indexed column only if it changes, because SQLite rewrites an
// index whenever one of its columns is named.
const STATUS: u16 = 1;
const TURN: u16 = 1 << 1;
const SEEN: u16 = 1 << 2;
const OUTPUT: u16 = 1 << 3;
const ERROR: u16 = 1 << 4;
const STATE: u16 = 1 << 5;
const DEADLINE: u16 = 1 << 6;
const STARTED: u16 = 1 << 7;
const ENDED: u16 = 1 << 8;
const RETENTION: u16 = 1 << 9;
const READY: u16 = 1 << 10;
const DUE: u16 = 1 << 11;

const PARTS: [(u16, &str); 12] = [
    (STATUS, ", status = ?"),
    (TURN, ", turn_worker = ?, turn_claim_no = ?, turn_claimed_at = ?, turn_last = ?"),
    (READY, ", turn_ready = ?"),
    (DUE, ", turn_due_at = ?"),
    (SEEN, ", seen = ?"),
    (OUTPUT, ", output_encoding = ?, output = ?"),
    (ERROR, ", error_encoding = ?, error = ?"),
    (STATE, ", state_encoding = ?, state = ?"),
    (DEADLINE, ", deadline_at = ?"),
    (STARTED, ", started_at = ?"),
    (ENDED, ", ended_at = ?"),
    (RETENTION, ", retention_until = ?"),
];

/// Inserts a run.
pub(super) static INSERT_RUN: LazyLock<String> = LazyLock::new(|| insert_into("runs", RUN));
/// Inserts a run unless its key or its name exists.
pub(super) static INSERT_RUN_IF_NEW: LazyLock<String> =
    LazyLock::new(|| format!("{} ON CONFLICT DO NOTHING", *INSERT_RUN));
static INSERT_MESSAGE: LazyLock<String> = LazyLock::new(|| insert_into("messages", MESSAGE));
static INSERT_TASK: LazyLock<String> = LazyLock::new(|| insert_into("tasks", TASK));
static INSERT_DEAD_LETTER: LazyLock<String> =
    LazyLock::new(|| insert_into("dead_letters", DEAD_LETTER));
static INSERT_LOG: LazyLock<String> = LazyLock::new(|| insert_into("logs", LOG));

fn insert_into(table: &str, columns: &str) -> String {
    let values = super::placeholders(columns.split(',').count(), 1);
    format!("INSERT INTO {table} ({columns}) VALUES {values}")
}

/// Inserts the runs of a commit. This comes first, because a message of the same commit may be for
/// one of them.
pub(super) fn create_runs(w: &mut Writer<'_>, commit: &Commit) -> Result<(), UnitError> {
    for op in commit.ops.iter() {
        if let Op::CreateRun(run) = op {
            create_run(w, run, false)?;
        }
    }
    Ok(())
}

/// Writes everything of a commit except new runs.
pub(super) fn write<'b>(
    w: &mut Writer<'_>,
    buffers: &mut Buffers<'b>,
    commit: &'b Commit,
    deliveries: &[Delivery],
) -> Result<(), UnitError> {
    let advanced = match &commit.run {
        Some(guard @ (RunGuard::Held { .. } | RunGuard::Free { .. })) => Some(guard.run_key()),
        _ => None,
    };
    let mut deliveries = deliveries.iter();
    let mut task_moved = false;
    for op in commit.ops.iter() {
        match op {
            Op::CreateRun(_) | Op::SetRun(_) | Op::UserSql(_) => {}
            Op::PutBody(put) => crate::bodies::put(w, put)?,
            Op::AppendEvent { event, .. } => buffers.event(event),
            Op::PutStep(step) => buffers.step(step),
            Op::PutMessage(message) => {
                if let Some(Delivery::Accepted { seq }) = deliveries.next() {
                    put_message(w, message, *seq, advanced)?;
                }
            }
            Op::ConsumeMessage { run_key, seq, by, at } => {
                let sql = "UPDATE messages SET consumed_by = ?3, consumed_at = ?4 \
                           WHERE run_key = ?1 AND seq = ?2";
                let key = Blob(run_key.as_bytes());
                let mut consume = w.conn.prepare_cached(sql)?;
                consume.execute(params![key, number(*seq), by.as_str(), at.as_micros()])?;
                drop(consume);
                if let Some(run) = w.run(*run_key)? {
                    run.unread = None;
                }
            }
            Op::Enqueue(task) => enqueue(w, task)?,
            Op::Reschedule(change) => {
                task_moved = true;
                reschedule(w, change)?;
            }
            Op::Settle { task_id } => {
                let guarded = commit.task.is_some_and(|guard| guard.task_id() == *task_id);
                task_moved |= guarded;
                settle(w, *task_id, if guarded { None } else { advanced })?;
            }
            Op::DeadLetter(letter) => dead_letter(w, letter)?,
            Op::Requeue { task_id, at } => {
                let sql = "UPDATE dead_letters SET requeues = requeues + 1, requeued_at = ?2 \
                           WHERE task_id = ?1";
                let mut mark = w.conn.prepare_cached(sql)?;
                mark.execute(params![Blob(task_id.as_bytes()), at.as_micros()])?;
            }
            Op::PutLog(line) => put_log(w, line)?,
            Op::Record(record) => crate::records::write(w, record)?,
        }
    }
    // The change of the run comes last, because messages of the same commit affect the turn.
    if let (Some(guard), Some(change)) = (&commit.run, commit.run_change()) {
        set_run(w, guard, change)?;
    }
    match &commit.task {
        Some(guard) if !task_moved => keep_task(w, guard),
        _ => Ok(()),
    }
}

/// Inserts a run. With `if_new`, returns `false` if its key or its name exists.
pub(super) fn create_run(w: &mut Writer<'_>, run: &Run, if_new: bool) -> Result<bool, UnitError> {
    let turn = run.turn.clone().normalised(w.now);
    let labels = labels_text(&run.labels)?;
    let to = if if_new { w.run_insert_new.start() } else { w.run_insert.start() };
    bind_run(to, run, &turn, labels.as_deref())?;
    if to.run()? == 0 {
        return Ok(false);
    }
    let rowid = w.conn.last_insert_rowid();
    put_labels(w, run)?;
    w.counts.add(&run.namespace, &run.workflow, run.status, 1);
    let cached = CachedRun {
        rowid,
        namespace: run.namespace.clone(),
        workflow: run.workflow.clone(),
        status: run.status,
        head: run.head,
        turn,
        started: run.started_at.is_some(),
        accepted: run.accepted,
        unread: None,
    };
    wake_turn(w, &cached);
    w.runs.put(run.run_key, cached);
    Ok(true)
}

fn bind_run(
    to: &mut CachedBindings<'_>,
    run: &Run,
    turn: &Turn,
    labels: Option<&str>,
) -> rusqlite::Result<()> {
    to.bytes(run.run_key.as_bytes())?;
    to.name(run.namespace.as_str())?;
    to.name(run.workflow.as_str())?;
    to.name(turn.queue.as_str())?;
    to.name(run.status.as_str())?;
    to.bytes(run.head.hash.as_bytes())?;
    to.number(number(run.head.next_ordinal))?;
    to.bytes(run.cursor.as_bytes())?;
    to.number(turn.priority)?;
    to.number(turn.ready)?;
    to.number_opt(micros(turn.due_at))?;
    to.bytes_opt(turn.worker.as_ref().map(|worker| &worker.as_bytes()[..]))?;
    to.number(number(turn.claim_no))?;
    to.number_opt(micros(turn.claimed_at))?;
    to.number(turn.reclaims)?;
    to.text_opt(turn.limit_key.as_ref().map(|key| key.as_str()))?;
    to.null()?;
    to.number(number(run.accepted))?;
    to.number(number(run.seen))?;
    to.number(run.created_at.as_micros())?;
    to.number_opt(micros(run.started_at))?;
    to.number(run.updated_at.as_micros())?;
    to.number_opt(micros(run.ended_at))?;
    to.number_opt(micros(run.deadline_at))?;
    to.number_opt(micros(run.retention_until))?;
    to.name(run.model.as_str())?;
    to.text(run.id.as_str())?;
    to.number(run.generation)?;
    to.bytes(run.root.as_bytes())?;
    to.bytes_opt(run.parent.as_ref().map(|key| &key.as_bytes()[..]))?;
    to.text_opt(run.fork.as_deref())?;
    to.text_opt(labels)?;
    to.text_opt(run.trace.as_deref())?;
    to.text_opt(run.headers.as_deref())?;
    to.text_opt(run.on_end.as_deref())?;
    to.bytes(run.input_hash.as_bytes())?;
    to.name(run.input.column())?;
    to.bytes(&run.input.bytes)?;
    to.body(&run.state)?;
    to.body(&run.output)?;
    to.body(&run.error)
}

fn put_labels(w: &Writer<'_>, run: &Run) -> Result<(), UnitError> {
    let sql = "INSERT INTO labels (namespace, key, value, run_key) VALUES (?1, ?2, ?3, ?4)";
    for (key, value) in &run.labels {
        let mut insert = w.conn.prepare_cached(sql)?;
        let run_key = Blob(run.run_key.as_bytes());
        insert.execute(params![run.namespace.as_str(), key, value, run_key])?;
    }
    Ok(())
}

// Wakes listeners for a turn that nobody holds.
fn wake_turn(w: &mut Writer<'_>, run: &CachedRun) {
    match run.turn.due_at {
        _ if run.turn.ready => w.wake(|| Wakeup::Turn(run.route())),
        Some(at) if run.turn.worker.is_none() => w.wake(|| Wakeup::Due(at)),
        _ => {}
    }
}

fn set_run(w: &mut Writer<'_>, guard: &RunGuard, change: &RunChange) -> Result<(), UnitError> {
    let now = w.now;
    let Some(run) = w.runs.find(w.conn, change.run_key)? else { return Ok(()) };
    let before = run.status;
    let status = change.status.unwrap_or(before);
    let mut parts = 0;
    let mut set = |part: u16, is: bool| parts |= if is { part } else { 0 };
    set(STATUS, status != before);
    set(OUTPUT, change.output.is_some());
    set(ERROR, change.error.is_some());
    set(STATE, change.state.is_some());
    set(DEADLINE, change.deadline_at.is_some());
    set(STARTED, change.started_at.is_some());
    set(ENDED, change.ended_at.is_some());
    set(RETENTION, change.retention_until.is_some());
    set(SEEN, matches!(change.turn, TurnChange::Release { .. }));

    let held_before = run.turn.worker.is_some();
    let mut turn = run.turn.clone();
    if let RunGuard::Free { worker, .. } = guard {
        let hold = Hold { worker: *worker, claim_no: turn.claim_no + 1 };
        turn = turn.claimed(hold, now);
    }
    run.started |= change.started_at.is_some();
    turn = turn.after_commit(change.turn, status, run.started, run.accepted, now);
    // The claim number changes whenever the holder changes.
    set(TURN, turn.claim_no != run.turn.claim_no);
    set(READY, turn.ready != run.turn.ready);
    set(DUE, turn.due_at != run.turn.due_at);
    let is_released = turn.worker.is_none();
    run.turn = turn;
    run.status = status;
    run.head = change.head;
    let statement = match w.updates.entry(parts) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(CachedBindings::prepare(w.conn, &update_sql(parts))?),
    };
    update_run(statement, parts, run, change)?;

    if status != before {
        w.counts.add(&run.namespace, &run.workflow, before, -1);
        w.counts.add(&run.namespace, &run.workflow, status, 1);
    }
    if is_released && w.has_listeners {
        let run = run.clone();
        wake_turn(w, &run);
        if held_before {
            w.wake_limited(&run.namespace, run.turn.limit_key.as_ref())?;
        }
    }
    Ok(())
}

fn update_run(
    to: &mut CachedBindings<'_>,
    parts: u16,
    run: &CachedRun,
    change: &RunChange,
) -> rusqlite::Result<()> {
    to.start();
    to.bytes(change.head.hash.as_bytes())?;
    to.number(number(change.head.next_ordinal))?;
    to.bytes(change.cursor.as_bytes())?;
    to.number(change.updated_at.as_micros())?;
    to.number(number(run.accepted))?;
    for (part, _) in PARTS {
        if parts & part == 0 {
            continue;
        }
        match part {
            STATUS => to.name(run.status.as_str())?,
            TURN => {
                let turn = &run.turn;
                to.bytes_opt(turn.worker.as_ref().map(|worker| &worker.as_bytes()[..]))?;
                to.number(number(turn.claim_no))?;
                to.number_opt(micros(turn.claimed_at))?;
                to.bytes_opt(turn.last_worker.as_ref().map(|worker| &worker.as_bytes()[..]))?;
            }
            READY => to.number(run.turn.ready)?,
            DUE => to.number_opt(micros(run.turn.due_at))?,
            SEEN => {
                let TurnChange::Release { seen, .. } = change.turn else { continue };
                to.number(number(seen))?;
            }
            OUTPUT => to.body(&change.output)?,
            ERROR => to.body(&change.error)?,
            STATE => to.body(&change.state)?,
            DEADLINE => to.number_opt(micros(change.deadline_at))?,
            STARTED => to.number_opt(micros(change.started_at))?,
            ENDED => to.number_opt(micros(change.ended_at))?,
            _ => to.number_opt(micros(change.retention_until))?,
        }
    }
    to.number(run.rowid)?;
    to.run()?;
    Ok(())
}

fn update_sql(parts: u16) -> String {
    let mut sql = String::from(
        "UPDATE OR FAIL runs SET turn_reclaims = 0, head = ?, next_ordinal = ?, cursor = ?, \
         updated_at = ?, accepted = ?",
    );
    for (part, text) in PARTS {
        if parts & part != 0 {
            sql.push_str(text);
        }
    }
    sql.push_str(" WHERE rowid = ?");
    sql
}

fn put_message(
    w: &mut Writer<'_>,
    message: &NewMessage,
    seq: u64,
    advanced: Option<RunKey>,
) -> Result<(), UnitError> {
    let (encoding, bytes) = body(&message.body);
    let cause = message.caused_by.as_ref().map(windlass_kernel::CausalRef::canonical);
    w.conn.prepare_cached(&INSERT_MESSAGE)?.execute(params![
        Blob(message.run_key.as_bytes()),
        number(seq),
        message.message_id.as_str(),
        message.kind.as_str(),
        message.name.as_str(),
        cause,
        message.sent_at.as_micros(),
        None::<&str>,
        None::<i64>,
        encoding,
        bytes,
    ])?;
    if message.kind == MessageKind::Control {
        w.wake(|| Wakeup::Control(message.run_key));
    }
    let now = w.now;
    let Some(run) = w.run(message.run_key)? else { return Ok(()) };
    run.accepted = seq;
    if let Some(unread) = &mut run.unread {
        unread.add(message);
    }
    if advanced == Some(message.run_key) {
        // `set_run` updates this row later and also writes the counter.
        return Ok(());
    }
    let was_ready = run.turn.ready;
    run.turn = run.turn.clone().after_message(run.status, run.started, message.kind, now);
    let became_ready = run.turn.ready && !was_ready;
    let run = run.clone();
    if became_ready {
        let sql =
            "UPDATE runs SET accepted = ?1, turn_ready = 1, turn_due_at = ?2 WHERE rowid = ?3";
        let mut update = w.conn.prepare_cached(sql)?;
        update.execute(params![number(seq), micros(run.turn.due_at), run.rowid])?;
        wake_turn(w, &run);
    } else {
        let sql = "UPDATE runs SET accepted = ?1 WHERE rowid = ?2";
        w.conn.prepare_cached(sql)?.execute(params![number(seq), run.rowid])?;
    }
    Ok(())
}

fn enqueue(w: &mut Writer<'_>, task: &Task) -> Result<(), UnitError> {
    let (ready, due_at) = match (task.worker, task.due_at) {
        (Some(_), due_at) => (false, due_at),
        (None, Some(at)) => (at <= w.now, Some(at)),
        (None, None) => (task.ready, task.ready.then_some(w.now)),
    };
    let (body_encoding, bytes) = body(&task.body);
    let (errors_encoding, errors) = body(&task.errors);
    w.conn.prepare_cached(&INSERT_TASK)?.execute(params![
        Blob(task.task_id.as_bytes()),
        task.namespace.as_str(),
        task.run_key.as_ref().map(|key| Blob(key.as_bytes())),
        task.step_key.as_ref().map(|key| key.as_str()),
        &*task.kind,
        task.queue.as_str(),
        task.name.as_str(),
        task.priority,
        ready,
        micros(due_at),
        task.worker.as_ref().map(|worker| Blob(worker.as_bytes())),
        number(task.claim_no),
        micros(task.worker.map(|_| w.now)),
        task.attempt,
        task.reclaims,
        task.limit_key.as_ref().map(|key| key.as_str()),
        task.trace.as_deref(),
        task.created_at.as_micros(),
        body_encoding,
        bytes,
        errors_encoding,
        errors,
        None::<i64>,
        None::<&str>,
        None::<&[u8]>,
    ])?;
    let route = || Route { queue: task.queue.clone(), name: task.name.clone() };
    wake_task(w, ready, due_at, task.worker, route);
    Ok(())
}

fn wake_task(
    w: &mut Writer<'_>,
    ready: bool,
    due_at: Option<Timestamp>,
    worker: Option<WorkerKey>,
    route: impl FnOnce() -> Route,
) {
    match due_at {
        _ if ready => w.wake(|| Wakeup::Task(route())),
        Some(at) if worker.is_none() => w.wake(|| Wakeup::Due(at)),
        _ => {}
    }
}

fn reschedule(w: &mut Writer<'_>, change: &Reschedule) -> Result<(), UnitError> {
    let (ready, due_at) = match change.wake {
        Wake::Now | Wake::OnMessage => (true, Some(w.now)),
        Wake::At(at) => (at <= w.now, Some(at)),
    };
    let sql = "UPDATE tasks SET ready = ?2, due_at = ?3, worker = NULL, claimed_at = NULL, \
               claim_no = claim_no + 1, attempt = ?4, reclaims = reclaims * ?7, \
               errors_encoding = COALESCE(?5, errors_encoding), \
               errors = CASE WHEN ?5 IS NULL THEN errors ELSE ?6 END \
               WHERE task_id = ?1 RETURNING namespace, queue, name, limit_key";
    let (encoding, errors) = body(&change.errors);
    let id = Blob(change.task_id.as_bytes());
    let found = w.conn.prepare_cached(sql)?.query_row(
        params![id, ready, micros(due_at), change.attempt, encoding, errors, change.untried],
        task_names,
    )?;
    let (namespace, route, limit_key) = found;
    wake_task(w, ready, due_at, None, || route);
    w.wake_limited(&namespace, limit_key.as_ref())
}

type TaskNames = (windlass_kernel::Namespace, Route, Option<windlass_kernel::LimitKey>);

fn task_names(row: &rusqlite::Row<'_>) -> rusqlite::Result<TaskNames> {
    use windlass_kernel::{LimitKey, Namespace, QueueName, RouteName};
    let text = |index: usize| row.get::<_, String>(index);
    let route =
        Route { queue: QueueName::from_stored(text(1)?), name: RouteName::from_stored(text(2)?) };
    let limit_key = row.get::<_, Option<String>>(3)?.map(LimitKey::from_stored);
    Ok((Namespace::from_stored(text(0)?), route, limit_key))
}

// Removes the guarded task, or a task of the run `of`.
fn settle(w: &mut Writer<'_>, task_id: TaskId, of: Option<RunKey>) -> Result<(), UnitError> {
    let sql = "DELETE FROM tasks WHERE task_id = ?1 AND (?2 IS NULL OR run_key = ?2) \
               RETURNING namespace, queue, name, limit_key";
    let run_key = of.as_ref().map(|key| Blob(key.as_bytes()));
    let mut delete = w.conn.prepare_cached(sql)?;
    let gone =
        delete.query_row(params![Blob(task_id.as_bytes()), run_key], task_names).optional()?;
    drop(delete);
    match gone {
        Some((namespace, _, limit_key)) => w.wake_limited(&namespace, limit_key.as_ref()),
        None => Ok(()),
    }
}

fn keep_task(w: &Writer<'_>, guard: &TaskGuard) -> Result<(), UnitError> {
    let sql = "UPDATE tasks SET reclaims = 0 WHERE task_id = ?1 AND reclaims <> 0";
    w.conn.prepare_cached(sql)?.execute(params![Blob(guard.task_id().as_bytes())])?;
    Ok(())
}

fn dead_letter(w: &Writer<'_>, letter: &DeadLetter) -> Result<(), UnitError> {
    // Replace an earlier dead letter that was requeued, and keep its count.
    let sql = "DELETE FROM dead_letters WHERE task_id = ?1 AND requeued_at IS NOT NULL \
               RETURNING requeues";
    let id = Blob(letter.task_id.as_bytes());
    let mut delete = w.conn.prepare_cached(sql)?;
    let requeues: Option<u32> = delete.query_row(params![id], |row| row.get(0)).optional()?;
    drop(delete);
    let (body_encoding, bytes) = body(&letter.body);
    let (errors_encoding, errors) = body(&letter.errors);
    w.conn.prepare_cached(&INSERT_DEAD_LETTER)?.execute(params![
        Blob(letter.task_id.as_bytes()),
        letter.namespace.as_str(),
        letter.run_key.as_ref().map(|key| Blob(key.as_bytes())),
        letter.step_key.as_ref().map(|key| key.as_str()),
        &*letter.kind,
        letter.queue.as_str(),
        letter.name.as_str(),
        letter.attempt,
        &*letter.reason,
        letter.dead_at.as_micros(),
        requeues.unwrap_or(letter.requeues),
        micros(letter.requeued_at),
        body_encoding,
        bytes,
        errors_encoding,
        errors,
    ])?;
    Ok(())
}

fn put_log(w: &Writer<'_>, line: &LogLine) -> Result<(), UnitError> {
    let (encoding, data) = body(&line.data);
    w.conn.prepare_cached(&INSERT_LOG)?.execute(params![
        Blob(line.run_key.as_bytes()),
        Blob(line.log_id.as_bytes()),
        line.step_key.as_ref().map(|key| key.as_str()),
        line.attempt,
        line.level.as_str(),
        &*line.category,
        &*line.message,
        line.replay,
        line.created_at.as_micros(),
        encoding,
        data,
    ])?;
    Ok(())
}
