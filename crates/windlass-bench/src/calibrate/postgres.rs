//! The calibration on PostgreSQL: two connections, one transaction per phase, array parameters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;
use windlass_kernel::{Body, Run, RunChange, Step, Timestamp};

use super::{Phase, RunRows};
use crate::backend::Databases;

/// At most as many connections as the store has committers.
const CONNECTIONS_MAX: usize = 2;

const RUN_COLUMNS: &[(&str, &str)] = &[
    ("run_key", "uuid"),
    ("namespace", "text"),
    ("workflow", "text"),
    ("model", "text"),
    ("id", "text"),
    ("generation", "int8"),
    ("status", "text"),
    ("input", "bytea"),
    ("input_encoding", "text"),
    ("input_hash", "bytea"),
    ("output", "bytea"),
    ("output_encoding", "text"),
    ("error", "bytea"),
    ("error_encoding", "text"),
    ("state", "bytea"),
    ("state_encoding", "text"),
    ("head", "bytea"),
    ("next_ordinal", "int8"),
    ("cursor", "uuid"),
    ("root", "uuid"),
    ("parent", "uuid"),
    ("fork", "text"),
    ("labels", "text"),
    ("trace", "text"),
    ("deadline_at", "int8"),
    ("created_at", "int8"),
    ("started_at", "int8"),
    ("updated_at", "int8"),
    ("ended_at", "int8"),
    ("retention_until", "int8"),
    ("queue", "text"),
    ("priority", "int2"),
    ("turn_ready", "bool"),
    ("turn_due_at", "int8"),
    ("turn_worker", "uuid"),
    ("turn_claim_no", "int8"),
    ("turn_claimed_at", "int8"),
    ("turn_reclaims", "int8"),
    ("limit_key", "text"),
    ("accepted", "int8"),
    ("seen", "int8"),
    ("turn_first", "bool"),
];
const EVENT_COLUMNS: &[(&str, &str)] = &[
    ("run_key", "uuid"),
    ("ordinal", "int8"),
    ("event_id", "uuid"),
    ("event_type", "text"),
    ("version", "int2"),
    ("caused_by", "bytea"),
    ("payload", "bytea"),
    ("created_at", "int8"),
    ("hash", "bytea"),
];
const STEP_COLUMNS: &[(&str, &str)] = &[
    ("run_key", "uuid"),
    ("step_key", "text"),
    ("name", "text"),
    ("kind", "text"),
    ("status", "text"),
    ("position", "int8"),
    ("attempt", "int8"),
    ("attempts_max", "int8"),
    ("input", "bytea"),
    ("input_encoding", "text"),
    ("result", "bytea"),
    ("result_encoding", "text"),
    ("error", "bytea"),
    ("error_encoding", "text"),
    ("timeout_us", "int8"),
    ("due_at", "int8"),
    ("wait_for", "text"),
    ("created_at", "int8"),
    ("updated_at", "int8"),
];
const FIRST_STEP: &[(&str, &str)] = &[
    ("run_key", "uuid"),
    ("head", "bytea"),
    ("next_ordinal", "int8"),
    ("cursor", "uuid"),
    ("updated_at", "int8"),
    ("started_at", "int8"),
];
const END: &[(&str, &str)] = &[
    ("run_key", "uuid"),
    ("head", "bytea"),
    ("next_ordinal", "int8"),
    ("cursor", "uuid"),
    ("updated_at", "int8"),
    ("ended_at", "int8"),
    ("status", "text"),
    ("output", "bytea"),
    ("output_encoding", "text"),
    ("turn_worker", "uuid"),
    ("turn_claimed_at", "int8"),
    ("turn_claim_no", "int8"),
    ("turn_first", "bool"),
];

/// One array for each parameter of a statement.
type Arrays = Vec<Box<dyn ToSql + Sync + Send>>;

/// The writing connections.
pub(super) struct Writer {
    connections: Vec<Arc<Connection>>,
}

struct Connection {
    client: Client,
    insert_runs: Statement,
    insert_events: Statement,
    insert_steps: Statement,
    update_first: Statement,
    update_next: Statement,
    update_end: Statement,
}

/// The rows of one transaction, as arrays.
struct Batch {
    runs: RunsBatch,
    events: Arrays,
    steps: Option<Arrays>,
}

enum RunsBatch {
    Insert(Arrays),
    First(Arrays),
    Next(Arrays),
    End(Arrays),
}

impl Writer {
    /// Connects to a schema that the store created.
    pub(super) async fn open(
        place: &Databases,
        schema: &str,
        in_flight: usize,
    ) -> anyhow::Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..in_flight.clamp(1, CONNECTIONS_MAX) {
            connections.push(Arc::new(Connection::open(place.connect().await?, schema).await?));
        }
        Ok(Self { connections })
    }

    /// Writes phase by phase, one batch per transaction, on all connections concurrently. Creates
    /// the arrays before the measurement; their encoding by the driver is measured.
    pub(super) async fn write(
        &mut self,
        rows: &[RunRows],
        batch: usize,
    ) -> anyhow::Result<Duration> {
        let mut shares: Vec<Vec<Batch>> = self.connections.iter().map(|_| Vec::new()).collect();
        for (n, group) in rows.chunks(batch).enumerate() {
            let phases = group.first().map_or(0, |rows| rows.phases.len());
            let share = n % self.connections.len();
            shares[share].extend((0..phases).map(|phase| Batch::new(group, phase)));
        }
        let started = Instant::now();
        let mut writes = Vec::new();
        for (connection, share) in self.connections.iter().zip(shares) {
            let connection = connection.clone();
            writes.push(tokio::spawn(async move {
                for batch in &share {
                    connection.write(batch).await?;
                }
                anyhow::Ok(())
            }));
        }
        for write in writes {
            write.await.context("a connection of the calibration panicked")??;
        }
        Ok(started.elapsed())
    }
}

impl Connection {
    async fn open(client: Client, schema: &str) -> anyhow::Result<Self> {
        // Same settings as the store's committers. Without them, a plan that was made for empty
        // tables scans them sequentially, and the store would look better than it is.
        client
            .batch_execute(&format!(
                "SET search_path = \"{schema}\"; SET synchronous_commit = on; \
                 SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; SET jit = off"
            ))
            .await
            .context("failed to configure the calibration connection")?;
        Ok(Self {
            insert_runs: client.prepare(&insert_sql("runs", RUN_COLUMNS)).await?,
            insert_events: client.prepare(&insert_sql("events", EVENT_COLUMNS)).await?,
            insert_steps: client.prepare(&insert_sql("steps", STEP_COLUMNS)).await?,
            update_first: client.prepare(&update_sql(FIRST_STEP)).await?,
            update_next: client.prepare(&update_sql(&FIRST_STEP[..5])).await?,
            update_end: client.prepare(&update_sql(END)).await?,
            client,
        })
    }

    // Sends all statements before it reads the first response.
    async fn write(&self, batch: &Batch) -> anyhow::Result<()> {
        let (statement, arrays) = match &batch.runs {
            RunsBatch::Insert(arrays) => (&self.insert_runs, arrays),
            RunsBatch::First(arrays) => (&self.update_first, arrays),
            RunsBatch::Next(arrays) => (&self.update_next, arrays),
            RunsBatch::End(arrays) => (&self.update_end, arrays),
        };
        let runs = self.execute(statement, arrays);
        let events = self.execute(&self.insert_events, &batch.events);
        let begin = self.client.batch_execute("BEGIN");
        let commit = self.client.batch_execute("COMMIT");
        match &batch.steps {
            Some(steps) => {
                let steps = self.execute(&self.insert_steps, steps);
                futures::try_join!(begin, runs, events, steps, commit)?;
            }
            None => {
                futures::try_join!(begin, runs, events, commit)?;
            }
        }
        Ok(())
    }

    async fn execute(
        &self,
        statement: &Statement,
        arrays: &Arrays,
    ) -> Result<u64, tokio_postgres::Error> {
        let params = arrays.iter().map(|array| &**array as &(dyn ToSql + Sync));
        self.client.execute_raw(statement, params.collect::<Vec<_>>()).await
    }
}

fn insert_sql(table: &str, columns: &[(&str, &str)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let arrays = arrays_sql(columns);
    format!("INSERT INTO {table} ({}) SELECT * FROM unnest({arrays})", names.join(", "))
}

fn update_sql(columns: &[(&str, &str)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let sets: Vec<String> = names[1..].iter().map(|name| format!("{name} = u.{name}")).collect();
    let arrays = arrays_sql(columns);
    format!(
        "UPDATE runs r SET {} FROM unnest({arrays}) AS u ({}) WHERE r.run_key = u.run_key",
        sets.join(", "),
        names.join(", ")
    )
}

fn arrays_sql(columns: &[(&str, &str)]) -> String {
    let array = |(n, (_, of)): (usize, &(&str, &str))| format!("${}::{of}[]", n + 1);
    columns.iter().enumerate().map(array).collect::<Vec<_>>().join(", ")
}

impl Batch {
    fn new(group: &[RunRows], phase: usize) -> Self {
        let last = group.first().is_some_and(|rows| phase + 1 == rows.phases.len());
        let phases: Vec<&Phase> = group.iter().map(|rows| &rows.phases[phase]).collect();
        let runs = match (phase, last) {
            (0, _) => RunsBatch::Insert(run_arrays(group)),
            (_, true) => RunsBatch::End(change_arrays(group, &phases, Shape::End)),
            (1, _) => RunsBatch::First(change_arrays(group, &phases, Shape::First)),
            _ => RunsBatch::Next(change_arrays(group, &phases, Shape::Next)),
        };
        let steps: Vec<&Step> = phases.iter().filter_map(|phase| phase.step.as_ref()).collect();
        let steps = (!steps.is_empty()).then(|| step_arrays(&steps));
        Self { runs, events: event_arrays(&phases), steps }
    }
}

fn array<R, T>(rows: &[R], of: impl Fn(&R) -> T) -> Box<dyn ToSql + Sync + Send>
where
    T: ToSql + Sync + Send + 'static,
{
    Box::new(rows.iter().map(of).collect::<Vec<T>>())
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn bytes(body: Option<&Body>) -> Option<Vec<u8>> {
    body.map(|body| body.bytes.to_vec())
}

fn encoding(body: Option<&Body>) -> Option<String> {
    body.map(|body| body.encoding.as_str().to_owned())
}

fn time(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_micros)
}

fn run_arrays(group: &[RunRows]) -> Arrays {
    let rows: Vec<&Run> = group.iter().map(|rows| &rows.run).collect();
    vec![
        array(&rows, |r| r.run_key.0),
        array(&rows, |r| text(r.namespace.as_str())),
        array(&rows, |r| text(r.workflow.as_str())),
        array(&rows, |r| text(r.model.as_str())),
        array(&rows, |r| text(r.id.as_str())),
        array(&rows, |r| i64::from(r.generation)),
        array(&rows, |r| text(r.status.as_str())),
        array(&rows, |r| bytes(Some(&r.input))),
        array(&rows, |r| encoding(Some(&r.input))),
        array(&rows, |r| r.input_hash.as_bytes().to_vec()),
        array(&rows, |r| bytes(r.output.as_ref())),
        array(&rows, |r| encoding(r.output.as_ref())),
        array(&rows, |r| bytes(r.error.as_ref())),
        array(&rows, |r| encoding(r.error.as_ref())),
        array(&rows, |r| bytes(r.state.as_ref())),
        array(&rows, |r| encoding(r.state.as_ref())),
        array(&rows, |r| r.head.hash.as_bytes().to_vec()),
        array(&rows, |r| r.head.next_ordinal as i64),
        array(&rows, |r| r.cursor.0),
        array(&rows, |r| r.root.0),
        array(&rows, |r| r.parent.map(|key| key.0)),
        array(&rows, |r| r.fork.as_deref().map(text)),
        // The runs of the load have no labels.
        array(&rows, |_| None::<String>),
        array(&rows, |r| r.trace.as_deref().map(text)),
        array(&rows, |r| time(r.deadline_at)),
        array(&rows, |r| r.created_at.as_micros()),
        array(&rows, |r| time(r.started_at)),
        array(&rows, |r| r.updated_at.as_micros()),
        array(&rows, |r| time(r.ended_at)),
        array(&rows, |r| time(r.retention_until)),
        array(&rows, |r| text(r.turn.queue.as_str())),
        array(&rows, |r| r.turn.priority),
        array(&rows, |r| r.turn.ready),
        array(&rows, |r| time(r.turn.due_at)),
        array(&rows, |r| r.turn.worker.map(|key| key.0)),
        array(&rows, |r| r.turn.claim_no as i64),
        // The creator holds the turn from the start, so the claim time is the creation time.
        array(&rows, |r| Some(r.created_at.as_micros())),
        array(&rows, |r| i64::from(r.turn.reclaims)),
        array(&rows, |r| r.turn.limit_key.as_ref().map(|key| text(key.as_str()))),
        array(&rows, |r| r.accepted as i64),
        array(&rows, |r| r.seen as i64),
        array(&rows, |r| r.started_at.is_none()),
    ]
}

fn event_arrays(phases: &[&Phase]) -> Arrays {
    vec![
        array(phases, |p| p.event.run_key.0),
        array(phases, |p| p.event.ordinal as i64),
        array(phases, |p| p.event.event_id.0),
        array(phases, |p| text(p.event.event_type.as_str())),
        array(phases, |p| p.event.version as i16),
        array(phases, |p| p.caused_by.clone().into_bytes()),
        array(phases, |p| p.event.payload.to_vec()),
        array(phases, |p| p.event.created_at.as_micros()),
        array(phases, |p| p.event.hash.as_bytes().to_vec()),
    ]
}

fn step_arrays(steps: &[&Step]) -> Arrays {
    vec![
        array(steps, |s| s.run_key.0),
        array(steps, |s| text(s.step_key.as_str())),
        array(steps, |s| text(&s.name)),
        array(steps, |s| text(s.kind.as_str())),
        array(steps, |s| text(s.status.as_str())),
        array(steps, |s| s.position as i64),
        array(steps, |s| i64::from(s.attempt)),
        array(steps, |s| s.attempts_max.map(i64::from)),
        array(steps, |s| bytes(s.input.as_ref())),
        array(steps, |s| encoding(s.input.as_ref())),
        array(steps, |s| bytes(s.result.as_ref())),
        array(steps, |s| encoding(s.result.as_ref())),
        array(steps, |s| bytes(s.error.as_ref())),
        array(steps, |s| encoding(s.error.as_ref())),
        array(steps, |s| s.timeout.map(|timeout| timeout.as_micros() as i64)),
        array(steps, |s| time(s.due_at)),
        array(steps, |s| s.wait_for.as_deref().map(text)),
        array(steps, |s| s.created_at.as_micros()),
        array(steps, |s| s.updated_at.as_micros()),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    First,
    Next,
    End,
}

fn change_arrays(group: &[RunRows], phases: &[&Phase], shape: Shape) -> Arrays {
    let changes: Vec<&RunChange> = phases.iter().filter_map(|p| p.change.as_ref()).collect();
    let mut arrays = vec![
        array(&changes, |c| c.run_key.0),
        array(&changes, |c| c.head.hash.as_bytes().to_vec()),
        array(&changes, |c| c.head.next_ordinal as i64),
        array(&changes, |c| c.cursor.0),
        array(&changes, |c| c.updated_at.as_micros()),
    ];
    match shape {
        Shape::First => arrays.push(array(&changes, |c| time(c.started_at))),
        Shape::Next => {}
        Shape::End => arrays.extend([
            array(&changes, |c| time(c.ended_at)),
            array(&changes, |c| c.status.map(|status| text(status.as_str()))),
            array(&changes, |c| bytes(c.output.as_ref())),
            array(&changes, |c| encoding(c.output.as_ref())),
            array(group, |_| None::<Uuid>),
            array(group, |_| None::<i64>),
            array(group, |rows| rows.run.turn.claim_no as i64 + 1),
            array(group, |_| false),
        ]),
    }
    arrays
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_one_array_per_column() {
        assert_eq!(
            update_sql(&FIRST_STEP[..3]),
            "UPDATE runs r SET head = u.head, next_ordinal = u.next_ordinal \
             FROM unnest($1::uuid[], $2::bytea[], $3::int8[]) AS u (run_key, head, next_ordinal) \
             WHERE r.run_key = u.run_key"
        );
        assert_eq!(RUN_COLUMNS.len(), 42);
    }
}
