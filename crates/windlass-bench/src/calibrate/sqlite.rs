//! The calibration on SQLite: one connection, prepared multi-row statements, one transaction per
//! phase.

mod checkpoint;

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, Statement, ToSql};
use windlass_kernel::{Body, Event, Run, Step, Timestamp};

use self::checkpoint::Checkpointer;
use super::{Phase, RunRows};

/// The numbers of rows of multi-row statements. Smaller ones write the remainder.
const SIZES: [usize; 3] = [64, 8, 1];

const RUN_COLUMNS: &str = "run_key, namespace, workflow, queue, status, head, next_ordinal, cursor, \
    priority, turn_ready, turn_due_at, turn_worker, turn_claim_no, turn_claimed_at, turn_reclaims, \
    limit_key, accepted, seen, created_at, started_at, updated_at, ended_at, deadline_at, \
    retention_until, model, id, generation, root, parent, fork, labels, trace, input_hash, \
    input_encoding, output_encoding, error_encoding, state_encoding, input, state, output, error";
const EVENT_COLUMNS: &str =
    "run_key, ordinal, event_id, event_type, version, caused_by, payload, created_at, hash";
const STEP_COLUMNS: &str = "run_key, step_key, name, kind, status, position, attempt, attempts_max, \
    timeout_us, due_at, wait_for, created_at, updated_at, input_encoding, result_encoding, \
    error_encoding, input, result, error";

// In SQLite, one prepared statement per row is the fastest way to update many rows: a join with
// VALUES would first write those into a temporary table.
const FIRST_STEP: &str = "UPDATE runs SET head = ?2, next_ordinal = ?3, cursor = ?4, \
    updated_at = ?5, started_at = ?6 WHERE run_key = ?1";
const NEXT_STEP: &str = "UPDATE runs SET head = ?2, next_ordinal = ?3, cursor = ?4, \
    updated_at = ?5 WHERE run_key = ?1";
const END: &str = "UPDATE runs SET head = ?2, next_ordinal = ?3, cursor = ?4, updated_at = ?5, \
    ended_at = ?6, status = ?7, output_encoding = ?8, output = ?9, turn_worker = NULL, \
    turn_claimed_at = NULL, turn_claim_no = turn_claim_no + 1 WHERE run_key = ?1";

/// The writing connection.
pub(super) struct Writer {
    connection: Connection,
    checkpointer: Checkpointer,
}

impl Writer {
    /// Opens a database that the store created, with the settings of the store's writer.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        let options = windlass_sqlite::Options::default();
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; \
             PRAGMA cell_size_check = on; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; \
             PRAGMA foreign_keys = on; PRAGMA cache_size = -{}",
            options.cache_bytes / 1_024
        ))?;
        connection.set_prepared_statement_cache_capacity(64);
        let pages_max = options.wal_bytes_soft / u64::from(options.page_bytes);
        let checkpointer = Checkpointer::watch(&mut connection, path, pages_max)?;
        Ok(Self { connection, checkpointer })
    }

    /// Writes phase by phase, one batch per transaction.
    pub(super) fn write(&mut self, rows: &[RunRows], batch: usize) -> anyhow::Result<Duration> {
        let started = Instant::now();
        for group in rows.chunks(batch) {
            let phases = group.first().map_or(0, |rows| rows.phases.len());
            for n in 0..phases {
                self.connection.prepare_cached("BEGIN IMMEDIATE")?.raw_execute()?;
                self.write_phase(group, n)?;
                self.connection.prepare_cached("COMMIT")?.raw_execute()?;
                self.checkpointer.checkpoint_if_needed(&self.connection)?;
            }
        }
        Ok(started.elapsed())
    }

    fn write_phase(&self, group: &[RunRows], n: usize) -> rusqlite::Result<()> {
        if n == 0 {
            let rows: Vec<&Run> = group.iter().map(|rows| &rows.run).collect();
            self.insert("runs", RUN_COLUMNS, &rows, bind_run)?;
        } else {
            self.update(group, n)?;
        }
        let phases: Vec<&Phase> = group.iter().map(|rows| &rows.phases[n]).collect();
        self.insert("events", EVENT_COLUMNS, &phases, bind_event)?;
        let steps: Vec<&Step> = phases.iter().filter_map(|phase| phase.step.as_ref()).collect();
        self.insert("steps", STEP_COLUMNS, &steps, bind_step)
    }

    fn insert<T>(
        &self,
        table: &str,
        columns: &str,
        rows: &[&T],
        bind: fn(&mut Binder<'_, '_>, &T) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let mut rest = rows;
        for size in SIZES {
            if rest.len() < size {
                continue;
            }
            let mut statement =
                self.connection.prepare_cached(&insert_sql(table, columns, size))?;
            while rest.len() >= size {
                let (now, later) = rest.split_at(size);
                let mut binder = Binder { statement: &mut statement, next: 1 };
                for row in now {
                    bind(&mut binder, row)?;
                }
                statement.raw_execute()?;
                rest = later;
            }
        }
        Ok(())
    }

    fn update(&self, group: &[RunRows], n: usize) -> rusqlite::Result<()> {
        let last = group.first().is_some_and(|rows| n + 1 == rows.phases.len());
        let sql = match (n, last) {
            (_, true) => END,
            (1, _) => FIRST_STEP,
            _ => NEXT_STEP,
        };
        let mut statement = self.connection.prepare_cached(sql)?;
        for rows in group {
            let Some(change) = &rows.phases[n].change else { continue };
            let mut b = Binder { statement: &mut statement, next: 1 };
            b.put(&change.run_key.as_bytes()[..])?;
            b.put(&change.head.hash.as_bytes()[..])?;
            b.number(change.head.next_ordinal)?;
            b.put(&change.cursor.as_bytes()[..])?;
            b.time(Some(change.updated_at))?;
            if last {
                b.time(change.ended_at)?;
                b.put(change.status.map(|status| status.as_str()))?;
                b.encoding(change.output.as_ref())?;
                b.body(change.output.as_ref())?;
            } else if n == 1 {
                b.time(change.started_at)?;
            }
            statement.raw_execute()?;
        }
        Ok(())
    }
}

fn insert_sql(table: &str, columns: &str, rows: usize) -> String {
    let one = format!("({})", vec!["?"; columns.split(',').count()].join(", "));
    format!("INSERT INTO {table} ({columns}) VALUES {}", vec![one; rows].join(", "))
}

/// Binds parameters in order.
struct Binder<'a, 'c> {
    statement: &'a mut Statement<'c>,
    next: usize,
}

impl Binder<'_, '_> {
    fn put(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.next += 1;
        self.statement.raw_bind_parameter(self.next - 1, value)
    }

    fn number(&mut self, number: u64) -> rusqlite::Result<()> {
        self.put(i64::try_from(number).unwrap_or(i64::MAX))
    }

    fn time(&mut self, at: Option<Timestamp>) -> rusqlite::Result<()> {
        self.put(at.map(Timestamp::as_micros))
    }

    fn body(&mut self, body: Option<&Body>) -> rusqlite::Result<()> {
        self.put(body.map(|body| &body.bytes[..]))
    }

    fn encoding(&mut self, body: Option<&Body>) -> rusqlite::Result<()> {
        self.put(body.map(|body| body.encoding.as_str()))
    }

    fn none(&mut self) -> rusqlite::Result<()> {
        self.put(rusqlite::types::Null)
    }
}

fn bind_run(b: &mut Binder<'_, '_>, run: &Run) -> rusqlite::Result<()> {
    b.put(&run.run_key.as_bytes()[..])?;
    b.put(run.namespace.as_str())?;
    b.put(run.workflow.as_str())?;
    b.put(run.turn.queue.as_str())?;
    b.put(run.status.as_str())?;
    b.put(&run.head.hash.as_bytes()[..])?;
    b.number(run.head.next_ordinal)?;
    b.put(&run.cursor.as_bytes()[..])?;
    b.put(run.turn.priority)?;
    b.put(run.turn.ready)?;
    b.time(run.turn.due_at)?;
    b.put(run.turn.worker.as_ref().map(|worker| &worker.as_bytes()[..]))?;
    b.number(run.turn.claim_no)?;
    // The creator holds the turn from the start, so the claim time is the creation time.
    b.time(Some(run.created_at))?;
    b.put(run.turn.reclaims)?;
    b.put(run.turn.limit_key.as_ref().map(|key| key.as_str()))?;
    b.number(run.accepted)?;
    b.number(run.seen)?;
    b.time(Some(run.created_at))?;
    b.time(run.started_at)?;
    b.time(Some(run.updated_at))?;
    b.time(run.ended_at)?;
    b.time(run.deadline_at)?;
    b.time(run.retention_until)?;
    b.put(run.model.as_str())?;
    b.put(run.id.as_str())?;
    b.put(run.generation)?;
    b.put(&run.root.as_bytes()[..])?;
    b.put(run.parent.as_ref().map(|parent| &parent.as_bytes()[..]))?;
    b.put(run.fork.as_deref())?;
    // The runs of the load have no labels.
    b.none()?;
    b.put(run.trace.as_deref())?;
    b.put(&run.input_hash.as_bytes()[..])?;
    b.encoding(Some(&run.input))?;
    b.encoding(run.output.as_ref())?;
    b.encoding(run.error.as_ref())?;
    b.encoding(run.state.as_ref())?;
    b.body(Some(&run.input))?;
    b.body(run.state.as_ref())?;
    b.body(run.output.as_ref())?;
    b.body(run.error.as_ref())
}

fn bind_event(b: &mut Binder<'_, '_>, phase: &Phase) -> rusqlite::Result<()> {
    let event: &Event = &phase.event;
    b.put(&event.run_key.as_bytes()[..])?;
    b.number(event.ordinal)?;
    b.put(&event.event_id.as_bytes()[..])?;
    b.put(event.event_type.as_str())?;
    b.put(event.version)?;
    b.put(&phase.caused_by)?;
    b.put(&event.payload[..])?;
    b.time(Some(event.created_at))?;
    b.put(&event.hash.as_bytes()[..])
}

fn bind_step(b: &mut Binder<'_, '_>, step: &Step) -> rusqlite::Result<()> {
    b.put(&step.run_key.as_bytes()[..])?;
    b.put(step.step_key.as_str())?;
    b.put(&*step.name)?;
    b.put(step.kind.as_str())?;
    b.put(step.status.as_str())?;
    b.number(step.position)?;
    b.put(step.attempt)?;
    b.put(step.attempts_max)?;
    b.put(step.timeout.map(|timeout| timeout.as_micros() as i64))?;
    b.time(step.due_at)?;
    b.put(step.wait_for.as_deref())?;
    b.time(Some(step.created_at))?;
    b.time(Some(step.updated_at))?;
    b.encoding(step.input.as_ref())?;
    b.encoding(step.result.as_ref())?;
    b.encoding(step.error.as_ref())?;
    b.body(step.input.as_ref())?;
    b.body(step.result.as_ref())?;
    b.body(step.error.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_a_placeholder_per_column_and_row() {
        assert_eq!(insert_sql("t", "a, b", 2), "INSERT INTO t (a, b) VALUES (?, ?), (?, ?)");
        assert_eq!(insert_sql("runs", RUN_COLUMNS, 1).matches('?').count(), 41);
    }
}
