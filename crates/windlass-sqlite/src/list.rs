//! Listings: each is a fixed statement on an index, one page at a time.

mod readable;

use std::time::Duration;

use rusqlite::{Connection, Params, Row, params};
use windlass_kernel::{
    BreakerRow, Capped, Error, Event, LimitKey, LimitState, LogLevel, Namespace, Order, Query,
    RateRow, Rows, Run, RunCount, RunKey, RunStatus, RunsQuery, Task, TaskState, TasksQuery,
    Timestamp, UnreadableRows, WorkflowName,
};

use crate::error::sql;
use crate::holds::{TASK_HOLDERS, TURN_HOLDERS};
use crate::list::readable::{Of, Readable};
use crate::load;
use crate::rows::{
    self, BREAKER, Blob, Cols, DEAD_LETTER, EVENT, LOG, MESSAGE, RATE, RUN, STEP, TASK, WORKER,
    number,
};

const TURNS_WAITING: &str = "SELECT count(*) FROM (SELECT 1 FROM runs INDEXED BY runs_limit_ready \
     WHERE namespace = ?1 AND limit_key = ?2 AND turn_ready = 1 AND limit_key IS NOT NULL \
     LIMIT 10001)";
const TASKS_WAITING: &str = "SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY tasks_limit_ready \
     WHERE namespace = ?1 AND limit_key = ?2 AND ready = 1 AND limit_key IS NOT NULL LIMIT 10001)";

// Keys have 16 bytes: the empty key sorts before all of them, this one after.
const ABOVE_ALL: [u8; 17] = [0xff; 17];

/// Reads one page.
pub(crate) fn list(
    conn: &Connection,
    query: &Query,
    now: Timestamp,
    unreadable: &UnreadableRows,
) -> Result<Rows, Error> {
    // One snapshot, because some listings need more than one statement.
    let tx = conn.unchecked_transaction().map_err(sql)?;
    let conn = &*tx;
    let readable = Readable { conn, unreadable };
    Ok(match query {
        Query::Runs(query) => Rows::Runs(runs(&readable, query)?),
        Query::RunKeys { after, limit } => {
            let sql = "SELECT run_key FROM runs WHERE run_key > ?1 ORDER BY run_key LIMIT ?2";
            let after = after.map(|key| key.as_bytes().to_vec()).unwrap_or_default();
            Rows::RunKeys(page(conn, sql, params![after, limit], rows::run_key)?)
        }
        Query::Generations { namespace, workflow, id, before, limit } => {
            let sql = format!(
                "SELECT {RUN} FROM runs INDEXED BY runs_name WHERE namespace = ?1 \
                 AND workflow = ?2 AND id = ?3 AND generation < ?4 \
                 ORDER BY generation DESC LIMIT ?5"
            );
            let before = before.map_or(i64::MAX, i64::from);
            let name = params![namespace.as_str(), workflow.as_str(), id.as_str(), before, limit];
            Rows::Runs(page(conn, &sql, name, rows::run)?)
        }
        Query::Tree { root, after, limit } => Rows::Runs(tree(conn, *root, *after, *limit)?),
        Query::Steps { run_key, after, limit } => {
            let sql = format!(
                "SELECT {STEP} FROM steps WHERE run_key = ?1 AND (position, step_key) > (?2, ?3) \
                 ORDER BY position, step_key LIMIT ?4"
            );
            let (position, step_key) =
                after.as_ref().map_or((-1, ""), |(at, key)| (number(*at), key.as_str()));
            let key = Blob(run_key.as_bytes());
            Rows::Steps(page(conn, &sql, params![key, position, step_key, limit], rows::step)?)
        }
        Query::Events { .. } | Query::RootEvents { .. } | Query::Event { .. } => {
            Rows::Events(events(conn, query)?)
        }
        Query::Messages { run_key, after, limit } => {
            let sql = format!(
                "SELECT {MESSAGE} FROM messages WHERE run_key = ?1 AND seq > ?2 \
                 ORDER BY seq LIMIT ?3"
            );
            let from = params![Blob(run_key.as_bytes()), number(*after), limit];
            Rows::Messages(page(conn, &sql, from, rows::message)?)
        }
        Query::Tasks(query) => Rows::Tasks(tasks(&readable, query)?),
        Query::Expired { namespace, workflow, ended_for, after, limit } => {
            let mut query = RunsQuery::all(namespace.clone(), *limit);
            query.workflow = Some(workflow.clone());
            (query.order, query.after) = (Order::Ascending, *after);
            // A run cannot end before it is created.
            query.created_before = Some(now.minus(*ended_for).plus(Duration::from_millis(1)));
            Rows::RunKeys(expired(conn, &query, now.minus(*ended_for), now)?)
        }
        Query::Settings { kind, after, limit } => {
            let sql = "SELECT kind, name, value_encoding, value, updated_at FROM settings \
                       WHERE kind = ?1 AND name > ?2 ORDER BY name";
            let of = Of { table: "settings", key_columns: 2, limit: *limit };
            let after = after.as_deref().unwrap_or("");
            Rows::Settings(readable.page(of, sql, params![&**kind, after], rows::setting)?)
        }
        Query::Breakers { namespace, after, limit } => {
            let sql = format!(
                "SELECT {BREAKER} FROM breakers WHERE namespace = ?1 AND breaker_key > ?2 \
                 ORDER BY breaker_key LIMIT ?3"
            );
            let after = after.as_ref().map_or("", |after| after.as_str());
            let found = page(conn, &sql, params![namespace.as_str(), after, limit], rows::breaker)?;
            Rows::Breakers(found)
        }
        Query::Rates { namespace, after, limit } => {
            let sql = format!(
                "SELECT {RATE} FROM rates WHERE namespace = ?1 AND rate_key > ?2 \
                 ORDER BY rate_key LIMIT ?3"
            );
            let after = after.as_ref().map_or("", |after| after.as_str());
            Rows::Rates(page(conn, &sql, params![namespace.as_str(), after, limit], rows::rate)?)
        }
        Query::Logs { .. }
        | Query::Workers { .. }
        | Query::DeadLetters { .. }
        | Query::DeadLetter { .. }
        | Query::DeadLettersOfRun { .. }
        | Query::LabelCounts { .. }
        | Query::Limits { .. } => other_rows(&readable, query)?,
        Query::Bodies { owner, after, limit } => {
            Rows::Bodies(crate::bodies::list(conn, owner, *after, *limit)?)
        }
        Query::Records { .. }
        | Query::Collections { .. }
        | Query::AllRecords { .. }
        | Query::RecordVersions { .. } => crate::records::list(conn, query)?,
    })
}

/// Reads one breaker.
pub(crate) fn breaker(
    conn: &Connection,
    namespace: &Namespace,
    key: &LimitKey,
) -> Result<Option<BreakerRow>, Error> {
    let sql = format!("SELECT {BREAKER} FROM breakers WHERE namespace = ?1 AND breaker_key = ?2");
    let found = page(conn, &sql, params![namespace.as_str(), key.as_str()], rows::breaker)?;
    Ok(found.into_iter().next())
}

/// Reads the rate of a key.
pub(crate) fn rate(
    conn: &Connection,
    namespace: &Namespace,
    key: &LimitKey,
) -> Result<Option<RateRow>, Error> {
    let sql = format!("SELECT {RATE} FROM rates WHERE namespace = ?1 AND rate_key = ?2");
    let found = page(conn, &sql, params![namespace.as_str(), key.as_str()], rows::rate)?;
    Ok(found.into_iter().next())
}

/// Runs a statement and reads its rows.
pub(crate) fn page<T>(
    conn: &Connection,
    text: &str,
    params: impl Params,
    read: fn(&Row<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut select = conn.prepare_cached(text).map_err(sql)?;
    let found = select.query(params).map_err(sql)?;
    rows::collect(found, read)
}

fn run_key(row: &Row<'_>) -> Result<RunKey, Error> {
    Cols::new(row).key()
}

fn runs(readable: &Readable<'_>, query: &RunsQuery) -> Result<Vec<Run>, Error> {
    let limit = query.limit as usize;
    let mut query = query.clone();
    let mut runs = Vec::new();
    loop {
        query.limit = (limit - runs.len()) as u32;
        let keys = keys_of_runs(readable.conn, &query)?;
        let is_last = keys.len() < query.limit as usize;
        query.after = keys.last().copied();
        for key in keys {
            runs.extend(readable.run(key)?);
        }
        if is_last || runs.len() >= limit {
            return Ok(runs);
        }
    }
}

fn keys_of_runs(conn: &Connection, query: &RunsQuery) -> Result<Vec<RunKey>, Error> {
    let mut keys = match &query.label {
        Some(label) => runs_by_label(conn, query, label)?,
        None => {
            // No index has all statuses of a workflow or a namespace in key order. There are six
            // statuses: read a page of keys of each and merge them.
            let all = RunStatus::ALL;
            let statuses = query.status.as_ref().map_or(all, std::slice::from_ref);
            let mut keys = Vec::new();
            for status in statuses {
                keys.extend(runs_by_status(conn, query, *status)?);
            }
            keys
        }
    };
    match query.order {
        Order::Ascending => keys.sort_unstable(),
        Order::Descending => keys.sort_unstable_by(|a, b| b.cmp(a)),
    }
    keys.truncate(query.limit as usize);
    Ok(keys)
}

fn bounds(query: &RunsQuery) -> (Vec<u8>, Vec<u8>) {
    let (lower, upper) = query.key_range();
    let bytes = |key: RunKey| key.as_bytes().to_vec();
    (lower.map(bytes).unwrap_or_default(), upper.map_or(ABOVE_ALL.to_vec(), bytes))
}

fn order(query: &RunsQuery) -> &'static str {
    match query.order {
        Order::Ascending => "ASC",
        Order::Descending => "DESC",
    }
}

fn runs_by_status(
    conn: &Connection,
    query: &RunsQuery,
    status: RunStatus,
) -> Result<Vec<RunKey>, Error> {
    let (lower, upper) = bounds(query);
    let (namespace, status, order) = (query.namespace.as_str(), status.as_str(), order(query));
    match &query.workflow {
        Some(workflow) => {
            let sql = format!(
                "SELECT run_key FROM runs INDEXED BY runs_workflow \
                 WHERE namespace = ?1 AND workflow = ?2 AND status = ?3 \
                 AND run_key > ?4 AND run_key < ?5 ORDER BY run_key {order} LIMIT ?6"
            );
            let from = params![namespace, workflow.as_str(), status, lower, upper, query.limit];
            page(conn, &sql, from, run_key)
        }
        None => {
            let sql = format!(
                "SELECT run_key FROM runs INDEXED BY runs_status \
                 WHERE namespace = ?1 AND status = ?2 \
                 AND run_key > ?3 AND run_key < ?4 ORDER BY run_key {order} LIMIT ?5"
            );
            page(conn, &sql, params![namespace, status, lower, upper, query.limit], run_key)
        }
    }
}

fn runs_by_label(
    conn: &Connection,
    query: &RunsQuery,
    label: &(String, String),
) -> Result<Vec<RunKey>, Error> {
    let (lower, upper) = bounds(query);
    let order = order(query);
    let sql = format!(
        "SELECT labels.run_key FROM labels CROSS JOIN runs USING (run_key) \
         WHERE labels.namespace = ?1 AND labels.key = ?2 AND labels.value = ?3 \
         AND labels.run_key > ?4 AND labels.run_key < ?5 \
         AND (?6 IS NULL OR runs.workflow = ?6) AND (?7 IS NULL OR runs.status = ?7) \
         ORDER BY labels.run_key {order} LIMIT ?8"
    );
    let workflow = query.workflow.as_ref().map(|name| name.as_str());
    let status = query.status.map(RunStatus::as_str);
    let namespace = query.namespace.as_str();
    let from = params![namespace, label.0, label.1, lower, upper, workflow, status, query.limit];
    page(conn, &sql, from, run_key)
}

// This skips runs that were created long ago but ended recently; they are few.
fn expired(
    conn: &Connection,
    query: &RunsQuery,
    ended_by: Timestamp,
    now: Timestamp,
) -> Result<Vec<RunKey>, Error> {
    let (lower, upper) = bounds(query);
    let workflow = query.workflow.as_ref().map_or("", |name| name.as_str());
    let sql = "SELECT run_key FROM runs INDEXED BY runs_workflow \
               WHERE namespace = ?1 AND workflow = ?2 AND status = ?3 \
               AND run_key > ?4 AND run_key < ?5 AND root = run_key AND ended_at <= ?6 \
               AND (retention_until IS NULL OR retention_until <= ?7) \
               ORDER BY run_key LIMIT ?8";
    let mut keys = Vec::new();
    for status in RunStatus::ALL.iter().filter(|status| status.is_ended()) {
        let from = params![
            query.namespace.as_str(),
            workflow,
            status.as_str(),
            lower,
            upper,
            ended_by.as_micros(),
            now.as_micros(),
            query.limit
        ];
        keys.extend(page(conn, sql, from, run_key)?);
    }
    keys.sort_unstable();
    keys.truncate(query.limit as usize);
    Ok(keys)
}

fn tree(
    conn: &Connection,
    root: RunKey,
    after: Option<RunKey>,
    limit: u32,
) -> Result<Vec<Run>, Error> {
    let sql = format!(
        "SELECT {RUN} FROM runs INDEXED BY runs_root \
         WHERE root = ?1 AND root <> run_key AND run_key > ?2 ORDER BY run_key LIMIT ?3"
    );
    let from = after.map(|key| key.as_bytes().to_vec()).unwrap_or_default();
    let mut runs = page(conn, &sql, params![Blob(root.as_bytes()), from, limit], rows::run)?;
    // The root is not in that index, because most trees consist only of a root.
    if after.is_none_or(|after| root > after)
        && let Some(top) = load::run(conn, root)?
        && top.root == root
    {
        let at = runs.partition_point(|run| run.run_key < root);
        runs.insert(at, top);
        runs.truncate(limit as usize);
    }
    Ok(runs)
}

fn events(conn: &Connection, query: &Query) -> Result<Vec<Event>, Error> {
    match query {
        Query::Events { run_key, from, limit } => {
            let sql = format!(
                "SELECT {EVENT} FROM events WHERE run_key = ?1 AND ordinal >= ?2 \
                 ORDER BY ordinal LIMIT ?3"
            );
            let from = params![Blob(run_key.as_bytes()), number(*from), limit];
            page(conn, &sql, from, rows::event)
        }
        Query::RootEvents { root, after, limit } => {
            // The order of times within a run is only a convention, so this reads the whole tree.
            // SQLite keeps one page of it in memory.
            let sql = format!(
                "WITH tree (tree_key) AS ( \
                 SELECT run_key FROM runs INDEXED BY runs_root WHERE root = ?1 AND root <> run_key \
                 UNION ALL SELECT run_key FROM runs WHERE run_key = ?1 AND root = ?1) \
                 SELECT {EVENT} FROM tree CROSS JOIN events ON events.run_key = tree_key \
                 WHERE (created_at, event_id) > (?2, ?3) \
                 ORDER BY created_at, event_id LIMIT ?4"
            );
            let (at, id) = match after {
                Some((at, id)) => (at.as_micros(), id.as_bytes().to_vec()),
                None => (i64::MIN, Vec::new()),
            };
            page(conn, &sql, params![Blob(root.as_bytes()), at, id, limit], rows::event)
        }
        Query::Event { event_id } => {
            let sql = format!("SELECT {EVENT} FROM events WHERE event_id = ?1 LIMIT 1");
            page(conn, &sql, params![Blob(event_id.as_bytes())], rows::event)
        }
        _ => Ok(Vec::new()),
    }
}

fn tasks(readable: &Readable<'_>, query: &TasksQuery) -> Result<Vec<Task>, Error> {
    // Held tasks are always few, and so are the tasks of a run. Without a limit, because `readable` stops
    // when the page is full.
    let sql = if query.run_key.is_some() {
        format!(
            "SELECT {TASK} FROM tasks INDEXED BY tasks_run \
             WHERE run_key = ?6 AND task_id > ?2 AND namespace = ?1 \
             AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR name = ?4) \
             AND (?5 IS NULL OR ?5 = CASE WHEN worker IS NOT NULL THEN 'held' \
                  WHEN ready = 1 THEN 'ready' ELSE 'scheduled' END) \
             ORDER BY task_id"
        )
    } else if query.state == Some(TaskState::Held) {
        format!(
            "SELECT {TASK} FROM tasks INDEXED BY tasks_held \
             WHERE worker IS NOT NULL AND task_id > ?2 AND namespace = ?1 \
             AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR name = ?4) \
             AND ?5 = 'held' AND ?6 IS NULL ORDER BY task_id"
        )
    } else {
        format!(
            "SELECT {TASK} FROM tasks INDEXED BY tasks_namespace \
             WHERE namespace = ?1 AND task_id > ?2 \
             AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR name = ?4) \
             AND (?5 IS NULL OR ?5 = CASE WHEN worker IS NOT NULL THEN 'held' \
                  WHEN ready = 1 THEN 'ready' ELSE 'scheduled' END) \
             AND ?6 IS NULL ORDER BY task_id"
        )
    };
    let state = query.state.map(|state| match state {
        TaskState::Ready => "ready",
        TaskState::Scheduled => "scheduled",
        TaskState::Held => "held",
    });
    let after = query.after.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
    let from = params![
        query.namespace.as_str(),
        after,
        query.queue.as_ref().map(|queue| queue.as_str()),
        query.name.as_ref().map(|name| name.as_str()),
        state,
        query.run_key.as_ref().map(|key| Blob(key.as_bytes())),
    ];
    let of = Of { table: "tasks", key_columns: 1, limit: query.limit };
    match query.run_key {
        Some(_) => readable.whole_page(of, &sql, from, rows::task),
        None => readable.page(of, &sql, from, rows::task),
    }
}

fn other_rows(readable: &Readable<'_>, query: &Query) -> Result<Rows, Error> {
    let conn = readable.conn;
    Ok(match query {
        Query::Logs { run_key, level_min, category, after, limit } => {
            let sql = format!(
                "SELECT {LOG} FROM logs WHERE run_key = ?1 AND log_id > ?2 \
                 AND CASE level WHEN 'debug' THEN 0 WHEN 'info' THEN 1 WHEN 'warn' THEN 2 \
                 ELSE 3 END >= ?3 AND (?4 IS NULL OR category = ?4) ORDER BY log_id LIMIT ?5"
            );
            let level = level_min.unwrap_or(LogLevel::Debug);
            let level = LogLevel::ALL.iter().position(|known| *known == level).unwrap_or(0);
            let after = after.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
            let key = Blob(run_key.as_bytes());
            let level = number(level as u64);
            let from = params![key, after, level, category.as_deref(), limit];
            Rows::Logs(page(conn, &sql, from, rows::log)?)
        }
        Query::Workers { after, limit } => {
            let sql = format!("SELECT {WORKER} FROM workers WHERE worker > ?1 ORDER BY worker");
            let after = after.map(|key| key.as_bytes().to_vec()).unwrap_or_default();
            let of = Of { table: "workers", key_columns: 1, limit: *limit };
            Rows::Workers(readable.page(of, &sql, params![after], rows::worker)?)
        }
        Query::DeadLetters { namespace, queue, after, limit } => {
            let sql = format!(
                "SELECT {DEAD_LETTER} FROM dead_letters INDEXED BY dead_letters_namespace \
                 WHERE namespace = ?1 AND task_id > ?2 AND (?3 IS NULL OR queue = ?3) \
                 ORDER BY task_id"
            );
            let after = after.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
            let queue = queue.as_ref().map(|queue| queue.as_str());
            let from = params![namespace.as_str(), after, queue];
            let of = Of { table: "dead_letters", key_columns: 1, limit: *limit };
            Rows::DeadLetters(readable.page(of, &sql, from, rows::dead_letter)?)
        }
        Query::DeadLetter { task_id } => {
            let sql = format!("SELECT {DEAD_LETTER} FROM dead_letters WHERE task_id = ?1");
            let key = Blob(task_id.as_bytes());
            Rows::DeadLetters(page(conn, &sql, params![key], rows::dead_letter)?)
        }
        Query::DeadLettersOfRun { run_key, limit } => {
            let sql = format!(
                "SELECT {DEAD_LETTER} FROM dead_letters WHERE run_key = ?1 ORDER BY task_id LIMIT ?2"
            );
            let from = params![Blob(run_key.as_bytes()), limit];
            Rows::DeadLetters(page(conn, &sql, from, rows::dead_letter)?)
        }
        Query::LabelCounts { namespace, label: (key, value), limit } => {
            let from = params![namespace.as_str(), key, value, limit];
            Rows::Counts(page(conn, LABEL_COUNTS, from, run_count)?)
        }
        Query::Limits { namespace, after, limit } => {
            let sql = "SELECT limit_key, slots FROM limits \
                       WHERE namespace = ?1 AND limit_key > ?2 ORDER BY limit_key LIMIT ?3";
            let after = after.as_ref().map_or("", |key| key.as_str());
            let limits = page(conn, sql, params![namespace.as_str(), after, limit], limit_row)?;
            let counted = limits.into_iter().map(|(key, slots)| {
                let held = holders(conn, TURN_HOLDERS, namespace.as_str(), &key)?
                    + holders(conn, TASK_HOLDERS, namespace.as_str(), &key)?;
                let waiting = holders(conn, TURNS_WAITING, namespace.as_str(), &key)?
                    + holders(conn, TASKS_WAITING, namespace.as_str(), &key)?;
                Ok(LimitState { key, slots, held, waiting: Capped::new(u64::from(waiting)) })
            });
            Rows::Limits(counted.collect::<Result<_, Error>>()?)
        }
        _ => Rows::Runs(Vec::new()),
    })
}

/// Counts runs with a label by status. Only an ended generation can have a later one.
pub(crate) const LABEL_COUNTS: &str = "SELECT r.namespace, r.workflow, r.status, count(*) \
     FROM labels l CROSS JOIN runs r ON r.run_key = l.run_key \
     WHERE l.namespace = ?1 AND l.key = ?2 AND l.value = ?3 AND NOT EXISTS ( \
         SELECT 1 FROM runs n INDEXED BY runs_name WHERE n.namespace = r.namespace \
         AND n.workflow = r.workflow AND n.id = r.id AND n.generation = r.generation + 1) \
     GROUP BY r.workflow, r.status ORDER BY r.workflow, r.status LIMIT ?4";

fn run_count(row: &Row<'_>) -> Result<RunCount, Error> {
    let c = &mut Cols::new(row);
    Ok(RunCount {
        namespace: Namespace::from_stored(c.text()?),
        workflow: WorkflowName::from_stored(c.text()?),
        status: c.word(RunStatus::parse)?,
        count: c.number()?,
    })
}

fn limit_row(row: &Row<'_>) -> Result<(LimitKey, u32), Error> {
    let c = &mut Cols::new(row);
    Ok((LimitKey::from_stored(c.text()?), c.number()?))
}

fn holders(conn: &Connection, text: &str, namespace: &str, key: &LimitKey) -> Result<u32, Error> {
    let mut count = conn.prepare_cached(text).map_err(sql)?;
    count.query_row(params![namespace, key.as_str()], |row| row.get(0)).map_err(sql)
}
