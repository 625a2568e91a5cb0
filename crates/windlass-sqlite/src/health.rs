//! Counts and ages, whose cost does not grow with ended or sleeping runs, and the search for
//! damage.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_kernel::{
    Capped, Error, Fact, Health, Namespace, QueueHealth, RunCount, RunStatus, Timestamp,
    WorkflowName,
};

use crate::error::{UnitError, sql};
use crate::holds::{self, NEXT_TASK, NEXT_TURN, ReadyQueries};
use crate::rows::{self, Cols, WORKER, count, number};
use crate::schema;

const RUNS: &str = "SELECT namespace, workflow, status, sum(value) FROM counters \
     WHERE name = 'runs' GROUP BY namespace, workflow, status HAVING sum(value) > 0";
// Each count stops at the bound of `Capped` plus one.
const TURNS_READY: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM runs INDEXED BY runs_ready WHERE turn_ready = 1 LIMIT ?1)";
const TURNS_SCHEDULED: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM runs INDEXED BY runs_scheduled WHERE turn_ready = 0 \
      AND turn_worker IS NULL AND turn_due_at IS NOT NULL AND status <> 'paused' LIMIT ?1)";
const TURNS_HELD: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM runs INDEXED BY runs_held WHERE turn_worker IS NOT NULL LIMIT ?1)";
const TASKS_READY: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM tasks INDEXED BY tasks_ready WHERE ready = 1 LIMIT ?1)";
const TASKS_SCHEDULED: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM tasks INDEXED BY tasks_scheduled WHERE ready = 0 \
      AND worker IS NULL AND due_at IS NOT NULL LIMIT ?1)";
const TASKS_HELD: &str = "SELECT count(*) FROM \
     (SELECT 1 FROM tasks INDEXED BY tasks_held WHERE worker IS NOT NULL LIMIT ?1)";
const DEAD_LETTERS: &str =
    "SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE requeued_at IS NULL LIMIT ?1)";

/// Reads the health of the store.
pub(crate) fn health(conn: &Connection, now: Timestamp) -> Result<Health, Error> {
    let tx = conn.unchecked_transaction().map_err(sql)?;
    read(&tx, now).map_err(UnitError::into_error)
}

/// How many turns and tasks are ready, each counted up to `max`.
pub(crate) fn ready_counts(conn: &Connection, max: u64) -> Result<(u64, u64), Error> {
    let read = |text: &str| -> Result<u64, UnitError> {
        let mut select = conn.prepare_cached(text)?;
        Ok(select.query_row(params![number(max)], |row| count(row, 0))?)
    };
    let counts = read(TURNS_READY).and_then(|turns| Ok((turns, read(TASKS_READY)?)));
    counts.map_err(UnitError::into_error)
}

fn read(conn: &Connection, now: Timestamp) -> Result<Health, UnitError> {
    let mut select = conn.prepare_cached(RUNS)?;
    let mut runs = rows::collect(select.query([])?, |row| {
        let c = &mut Cols::new(row);
        Ok(RunCount {
            namespace: Namespace::from_stored(c.text()?),
            workflow: WorkflowName::from_stored(c.text()?),
            status: c.word(RunStatus::parse)?,
            count: c.number()?,
        })
    })?;
    runs.sort_unstable();
    // There are few workers, and the kernel decides which of them are live.
    let mut select = conn.prepare_cached(&format!("SELECT {WORKER} FROM workers"))?;
    let workers = rows::collect(select.query([])?, rows::worker)?;
    let live = workers.iter().filter(|worker| worker.is_live(now)).count();
    Ok(Health {
        runs,
        turns: queue(conn, &holds::TURNS, [TURNS_READY, TURNS_SCHEDULED, TURNS_HELD], NEXT_TURN)?,
        tasks: queue(conn, &holds::TASKS, [TASKS_READY, TASKS_SCHEDULED, TASKS_HELD], NEXT_TASK)?,
        dead_letters: capped(conn, DEAD_LETTERS)?,
        workers_live: live as u64,
        now,
    })
}

fn queue(
    conn: &Connection,
    ready: &ReadyQueries,
    counts: [&str; 3],
    next: &str,
) -> Result<QueueHealth, UnitError> {
    let next: Option<i64> =
        conn.prepare_cached(next)?.query_row([], |row| row.get(0)).optional()?;
    Ok(QueueHealth {
        ready: capped(conn, counts[0])?,
        ready_oldest: holds::ready_oldest(conn, ready)?,
        scheduled: capped(conn, counts[1])?,
        scheduled_next: next.map(Timestamp::from_micros),
        held: capped(conn, counts[2])?,
    })
}

fn capped(conn: &Connection, text: &str) -> Result<Capped, UnitError> {
    let mut select = conn.prepare_cached(text)?;
    Ok(Capped::new(select.query_row(params![number(Capped::MAX + 1)], |row| count(row, 0))?))
}

/// Properties of the database.
pub(crate) fn facts(conn: &Connection, panics: u64) -> Result<Vec<Fact>, Error> {
    let number = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let read = || -> rusqlite::Result<Vec<Fact>> {
        let bytes = number("page_count")? * number("page_size")?;
        let free = number("freelist_count")? * number("page_size")?;
        let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        let unexpected = "the journal mode was changed; open the store only with Windlass";
        let warning = (mode != "wal").then(|| unexpected.to_owned());
        let panicked = "calls of the store panicked; see the log of the process";
        let panicked = (panics > 0).then(|| panicked.to_owned());
        Ok(vec![
            Fact::new("database", format!("SQLite {}", rusqlite::version())),
            Fact::new("schema", format!("version {}", number("user_version")?)),
            Fact::new("size", format!("{bytes} bytes, {free} of them free")),
            Fact::new("journal", mode).warning(warning),
            Fact::new("panics", panics.to_string()).warning(panicked),
            Fact::new("compiled with", compile_options(conn)?),
        ])
    };
    read().map_err(sql)
}

/// The compile options of SQLite that cost time. A program that embeds the crate sets them itself, as
/// docs/deployment.md describes.
fn compile_options(conn: &Connection) -> rusqlite::Result<String> {
    let mut pragma = conn.prepare("PRAGMA compile_options")?;
    let options: Vec<String> = pragma.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let find = |name: &str| options.iter().find(|option| option.starts_with(name)).cloned();
    let or = |name: &str, default: &str| find(name).unwrap_or_else(|| format!("{name}{default}"));
    let armor = find("ENABLE_API_ARMOR").map_or("no API armor", |_| "API armor");
    Ok(format!(
        "{}, {}, {armor}",
        or("DEFAULT_MEMSTATUS=", "1"),
        or("DEFAULT_LOOKASIDE=", "1200,40"),
    ))
}

/// Looks for damage and returns one sentence for each finding. It reads the whole file.
pub(crate) fn check(conn: &Connection) -> Result<Vec<String>, Error> {
    let tx = conn.unchecked_transaction().map_err(sql)?;
    let mut findings = Vec::new();
    let read = || -> rusqlite::Result<Vec<String>> {
        let mut pragma = tx.prepare("PRAGMA integrity_check(1000)")?;
        pragma.query_map([], |row| row.get(0))?.collect()
    };
    match read() {
        Ok(lines) => {
            let bad = lines.into_iter().filter(|line| line != "ok");
            findings.extend(bad.map(|line| format!("SQLite reports: {line}.")));
        }
        Err(error) => findings.push(format!("SQLite cannot check the file: {error}.")),
    }
    match schema::differences(&tx) {
        Ok(names) => {
            let sentence = |name| format!("The schema object {name:?} is missing or changed.");
            findings.extend(names.into_iter().map(sentence));
        }
        Err(error) => findings.push(format!("Cannot read the schema: {error}.")),
    }
    match counters(&tx) {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(format!("Cannot read the run counters: {error}.")),
    }
    Ok(findings)
}

// The writer maintains the counters, not the database. This compares them with the rows.
fn counters(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let text = "WITH kept AS (SELECT namespace, workflow, status, sum(value) AS n FROM counters \
                WHERE name = 'runs' GROUP BY 1, 2, 3 HAVING n <> 0), \
                real AS (SELECT namespace, workflow, status, count(*) AS n FROM runs GROUP BY 1, 2, 3), \
                apart AS (SELECT * FROM (SELECT * FROM kept EXCEPT SELECT * FROM real) \
                UNION SELECT * FROM (SELECT * FROM real EXCEPT SELECT * FROM kept)) \
                SELECT DISTINCT namespace, workflow, status FROM apart";
    let mut select = conn.prepare(text)?;
    let found = select.query_map([], |row| {
        let (namespace, workflow): (String, String) = (row.get(0)?, row.get(1)?);
        let status: String = row.get(2)?;
        Ok(format!(
            "The counter of {status} runs of workflow {workflow:?} in namespace {namespace:?} does \
                         not match the rows."
        ))
    })?;
    found.collect()
}
