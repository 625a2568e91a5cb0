//! Converts columns to kernel rows and back. A value that cannot be decoded is reported as damage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::types::{FromSql, ToSqlOutput, ValueRef};
use rusqlite::{Row, ToSql};
use serde_json::{Value, json};
use uuid::Uuid;
use windlass_kernel::{
    Body, BodyColumn, BreakerRow, BreakerStatus, CausalRef, Consumed, DeadLetter, Error, ErrorCode,
    ErrorKind, Event, EventId, EventType, Head, LimitKey, LogId, LogLevel, LogLine, Message,
    MessageId, MessageKind, MessageName, ModelName, Namespace, QueueName, RateRow, Route,
    RouteName, Run, RunId, RunKey, RunStatus, Setting, SettingName, Sha256Digest, Step, StepKey,
    StepKind, StepStatus, Task, TaskId, Timestamp, Turn, Worker, WorkerInfo, WorkerKey,
    WorkerStatus, WorkflowName, WriteId,
};

use crate::error;

/// The columns of a run, in the order in which [`run`] reads them.
pub(crate) const RUN: &str = "run_key, namespace, workflow, queue, status, head, next_ordinal, \
     cursor, priority, turn_ready, turn_due_at, turn_worker, turn_claim_no, turn_claimed_at, \
     turn_reclaims, limit_key, turn_last, accepted, seen, created_at, started_at, updated_at, ended_at, \
     deadline_at, retention_until, model, id, generation, root, parent, fork, labels, trace, \
     headers, on_end, input_hash, input_encoding, input, state_encoding, state, output_encoding, output, \
     error_encoding, error";
/// The columns of a step.
pub(crate) const STEP: &str = "run_key, step_key, name, kind, status, position, attempt, \
     attempts_max, timeout_us, due_at, wait_for, created_at, updated_at, input_encoding, input, \
     result_encoding, result, error_encoding, error";
/// The columns of an event.
pub(crate) const EVENT: &str =
    "run_key, ordinal, event_id, event_type, version, caused_by, payload, created_at, hash";
/// The columns of a message.
pub(crate) const MESSAGE: &str = "run_key, seq, message_id, kind, name, caused_by, sent_at, \
     consumed_by, consumed_at, body_encoding, body";
/// The columns of a task.
pub(crate) const TASK: &str = "task_id, namespace, run_key, step_key, kind, queue, name, priority, \
     ready, due_at, worker, claim_no, claimed_at, attempt, reclaims, limit_key, trace, created_at, \
     body_encoding, body, errors_encoding, errors, beat_at, beat_encoding, beat";
/// The columns of a dead letter.
pub(crate) const DEAD_LETTER: &str = "task_id, namespace, run_key, step_key, kind, queue, name, \
     attempt, reason, dead_at, requeues, requeued_at, body_encoding, body, errors_encoding, errors";
/// The columns of a log line.
pub(crate) const LOG: &str = "run_key, log_id, step_key, attempt, level, category, message, \
     replay, created_at, data_encoding, data";
/// The columns of a breaker.
pub(crate) const BREAKER: &str = "namespace, breaker_key, status, retry_at, data_encoding, data, \
     version, updated_at";
/// The columns of a rate.
pub(crate) const RATE: &str = "namespace, rate_key, interval_us, burst, spent_until, queued_until, \
     version";
/// The columns of a worker.
pub(crate) const WORKER: &str = "worker, name, version, status, lease_us, turns, tasks, slots, \
     note, load, task_slots, task_load, accepting, worker_group, host, \
     tasks_completed, tasks_failed, tasks_took_us, started_at, renewed_at, \
     steady_since, drain";

/// Reads the columns of a row one after the other.
pub(crate) struct Cols<'r> {
    row: &'r Row<'r>,
    next: usize,
}

impl<'r> Cols<'r> {
    /// Starts with the first column.
    pub(crate) fn new(row: &'r Row<'r>) -> Self {
        Self { row, next: 0 }
    }

    /// Reads the next column.
    pub(crate) fn get<T: FromSql>(&mut self) -> Result<T, Error> {
        let index = self.next;
        self.next += 1;
        self.row.get(index).map_err(error::sql)
    }

    /// Reads a number that is never negative.
    pub(crate) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, Error> {
        let found: i64 = self.get()?;
        T::try_from(found)
            .map_err(|_| Error::corrupt(format!("the number {found} is out of range")))
    }

    fn number_opt<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, Error> {
        let Some(found) = self.get::<Option<i64>>()? else { return Ok(None) };
        let read = T::try_from(found);
        read.map(Some).map_err(|_| Error::corrupt(format!("the number {found} is out of range")))
    }

    /// Reads a boolean.
    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        match self.get::<i64>()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::corrupt(format!("{other} is not a boolean"))),
        }
    }

    /// Reads a time.
    pub(crate) fn time(&mut self) -> Result<Timestamp, Error> {
        self.get().map(Timestamp::from_micros)
    }

    /// Reads a time or null.
    pub(crate) fn time_opt(&mut self) -> Result<Option<Timestamp>, Error> {
        Ok(self.get::<Option<i64>>()?.map(Timestamp::from_micros))
    }

    /// Reads a key.
    pub(crate) fn key<K: Key>(&mut self) -> Result<K, Error> {
        self.get::<Uuid>().map(K::from_uuid)
    }

    /// Reads a key or null.
    pub(crate) fn key_opt<K: Key>(&mut self) -> Result<Option<K>, Error> {
        Ok(self.get::<Option<Uuid>>()?.map(K::from_uuid))
    }

    /// Borrows the next column without a copy.
    fn borrowed(&mut self) -> Result<ValueRef<'r>, Error> {
        let index = self.next;
        self.next += 1;
        self.row.get_ref(index).map_err(error::sql)
    }

    /// Reads a text.
    pub(crate) fn text(&mut self) -> Result<Arc<str>, Error> {
        self.text_opt()?.ok_or_else(|| Error::corrupt("a required text column is null"))
    }

    /// Reads a text or null.
    pub(crate) fn text_opt(&mut self) -> Result<Option<Arc<str>>, Error> {
        let text = self.borrowed()?.as_str_or_null();
        Ok(text
            .map_err(|source| Error::corrupt("cannot decode a text column").with_source(source))?
            .map(Arc::from))
    }

    /// Reads the name of an enum variant.
    pub(crate) fn word<T>(&mut self, parse: fn(&str) -> Result<T, Error>) -> Result<T, Error> {
        self.word_opt(parse)?.ok_or_else(|| Error::corrupt("a required enum column is null"))
    }

    fn word_opt<T>(&mut self, parse: fn(&str) -> Result<T, Error>) -> Result<Option<T>, Error> {
        match self.borrowed()? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) => parse(&String::from_utf8_lossy(bytes)).map(Some),
            _ => Err(Error::corrupt("an enum column is not text")),
        }
    }

    /// Reads a digest.
    pub(crate) fn digest(&mut self) -> Result<Sha256Digest, Error> {
        self.get::<[u8; 32]>().map(Sha256Digest::from_bytes)
    }

    /// Reads the end of a ledger: hash, then next ordinal.
    pub(crate) fn head(&mut self) -> Result<Head, Error> {
        let hash = self.digest()?;
        Ok(Head { next_ordinal: self.number()?, hash })
    }

    fn bytes(&mut self) -> Result<Bytes, Error> {
        self.get::<Vec<u8>>().map(Bytes::from)
    }

    /// Reads a body; null if its encoding is null.
    pub(crate) fn body_opt(&mut self) -> Result<Option<Body>, Error> {
        let column = self.word_opt(BodyColumn::parse)?;
        let bytes = self.get::<Option<Vec<u8>>>()?;
        match (column, bytes) {
            (None, None) => Ok(None),
            (Some(column), Some(bytes)) => Body::from_column(column, bytes).map(Some),
            _ => Err(Error::corrupt("of a body and its encoding only one is null")),
        }
    }

    /// Reads a body that is never null.
    pub(crate) fn body(&mut self) -> Result<Body, Error> {
        self.body_opt()?.ok_or_else(|| Error::corrupt("a required body is null"))
    }
}

/// A key that is stored as sixteen bytes.
pub(crate) trait Key {
    fn from_uuid(uuid: Uuid) -> Self;
}

macro_rules! keys {
    ($($key:ident),+) => {
        $(impl Key for $key {
            fn from_uuid(uuid: Uuid) -> Self {
                $key(uuid)
            }
        })+
    };
}

keys!(RunKey, EventId, TaskId, WorkerKey, LogId, WriteId);

/// Converts a time to a parameter.
pub(crate) fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_micros)
}

/// Converts a counter to a parameter. Counters rise by one, so they never reach the maximum.
pub(crate) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads a counter.
pub(crate) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let found: i64 = row.get(column)?;
    u64::try_from(found).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, found))
}

/// Converts a duration to a parameter.
pub(crate) fn span(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Bytes as a parameter, without a copy.
pub(crate) struct Blob<'b>(pub(crate) &'b [u8]);

impl ToSql for Blob<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.0)))
    }
}

/// The two columns of a body.
pub(crate) fn body(body: &Option<Body>) -> (Option<&'static str>, Option<Blob<'_>>) {
    match body {
        Some(body) => (Some(body.column()), Some(Blob(&body.bytes))),
        None => (None, None),
    }
}

/// The value of the labels column: canonical JSON, or null if there are no labels.
pub(crate) fn labels_text(labels: &BTreeMap<String, String>) -> Result<Option<String>, Error> {
    if labels.is_empty() {
        return Ok(None);
    }
    let invalid = |what: String| Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, what);
    let bytes =
        windlass_kernel::canonical::to_canonical(labels).map_err(|e| invalid(e.to_string()))?;
    String::from_utf8(bytes).map(Some).map_err(|e| invalid(e.to_string()))
}

fn labels(text: Option<Arc<str>>) -> Result<BTreeMap<String, String>, Error> {
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    serde_json::from_str(&text)
        .map_err(|source| Error::corrupt("cannot parse the labels of a run").with_source(source))
}

/// Reads only the key of a run.
pub(crate) fn run_key(row: &Row<'_>) -> Result<RunKey, Error> {
    Cols::new(row).key()
}

/// Reads [`RUN`].
pub(crate) fn run(row: &Row<'_>) -> Result<Run, Error> {
    let c = &mut Cols::new(row);
    // The order of the fields is the order of the columns.
    let run_key = c.key()?;
    let namespace = Namespace::from_stored(c.text()?);
    let workflow = WorkflowName::from_stored(c.text()?);
    let queue = QueueName::from_stored(c.text()?);
    let status = c.word(RunStatus::parse)?;
    let head = c.head()?;
    let cursor = c.key()?;
    let turn = Turn {
        queue,
        priority: c.number()?,
        ready: c.flag()?,
        due_at: c.time_opt()?,
        worker: c.key_opt()?,
        claim_no: c.number()?,
        claimed_at: c.time_opt()?,
        reclaims: c.number()?,
        limit_key: c.text_opt()?.map(LimitKey::from_stored),
        last_worker: c.key_opt()?,
    };
    Ok(Run {
        run_key,
        namespace,
        workflow,
        status,
        head,
        cursor,
        turn,
        accepted: c.number()?,
        seen: c.number()?,
        created_at: c.time()?,
        started_at: c.time_opt()?,
        updated_at: c.time()?,
        ended_at: c.time_opt()?,
        deadline_at: c.time_opt()?,
        retention_until: c.time_opt()?,
        model: ModelName::from_stored(c.text()?),
        id: RunId::from_stored(c.text()?),
        generation: c.number()?,
        root: c.key()?,
        parent: c.key_opt()?,
        fork: c.text_opt()?,
        labels: labels(c.text_opt()?)?,
        trace: c.text_opt()?,
        headers: c.text_opt()?,
        on_end: c.text_opt()?,
        input_hash: c.digest()?,
        input: c.body()?,
        state: c.body_opt()?,
        output: c.body_opt()?,
        error: c.body_opt()?,
    })
}

/// The number of columns in [`RUN`].
const RUN_COLUMNS: usize = 44;

/// Reads [`STEP`] after [`RUN`], if the join found a step.
pub(crate) fn joined_step(row: &Row<'_>) -> Result<Option<Step>, Error> {
    let exists = row.get_ref(RUN_COLUMNS).map_err(error::sql)? != ValueRef::Null;
    exists.then(|| step_at(&mut Cols { row, next: RUN_COLUMNS })).transpose()
}

/// Reads [`STEP`].
pub(crate) fn step(row: &Row<'_>) -> Result<Step, Error> {
    step_at(&mut Cols::new(row))
}

fn step_at(c: &mut Cols<'_>) -> Result<Step, Error> {
    Ok(Step {
        run_key: c.key()?,
        step_key: StepKey::from_stored(c.text()?),
        name: c.text()?,
        kind: StepKind::from_stored(c.text()?),
        status: c.word(StepStatus::parse)?,
        position: c.number()?,
        attempt: c.number()?,
        attempts_max: c.number_opt()?,
        timeout: c.number_opt::<u64>()?.map(Duration::from_micros),
        due_at: c.time_opt()?,
        wait_for: c.text_opt()?,
        created_at: c.time()?,
        updated_at: c.time()?,
        input: c.body_opt()?,
        result: c.body_opt()?,
        error: c.body_opt()?,
    })
}

/// Reads [`EVENT`].
pub(crate) fn event(row: &Row<'_>) -> Result<Event, Error> {
    let c = &mut Cols::new(row);
    Ok(Event {
        run_key: c.key()?,
        ordinal: c.number()?,
        event_id: c.key()?,
        event_type: EventType::from_stored(c.text()?),
        version: c.number()?,
        caused_by: CausalRef::parse(c.text()?.as_bytes())?,
        payload: c.bytes()?,
        created_at: c.time()?,
        hash: c.digest()?,
    })
}

/// Reads [`MESSAGE`].
pub(crate) fn message(row: &Row<'_>) -> Result<Message, Error> {
    let c = &mut Cols::new(row);
    Ok(Message {
        run_key: c.key()?,
        seq: c.number()?,
        message_id: MessageId::from_stored(c.text()?),
        kind: c.word(MessageKind::parse)?,
        name: MessageName::from_stored(c.text()?),
        caused_by: c.text_opt()?.map(|text| CausalRef::parse(text.as_bytes())).transpose()?,
        sent_at: c.time()?,
        consumed: match (c.text_opt()?, c.time_opt()?) {
            (Some(by), Some(at)) => Some(Consumed { by: StepKey::from_stored(by), at }),
            (None, None) => None,
            _ => return Err(Error::corrupt("of consumed_by and consumed_at only one is null")),
        },
        body: c.body_opt()?,
    })
}

/// Reads [`TASK`].
pub(crate) fn task(row: &Row<'_>) -> Result<Task, Error> {
    let c = &mut Cols::new(row);
    Ok(Task {
        task_id: c.key()?,
        namespace: Namespace::from_stored(c.text()?),
        run_key: c.key_opt()?,
        step_key: c.text_opt()?.map(StepKey::from_stored),
        kind: c.text()?,
        queue: QueueName::from_stored(c.text()?),
        name: RouteName::from_stored(c.text()?),
        priority: c.number()?,
        ready: c.flag()?,
        due_at: c.time_opt()?,
        worker: c.key_opt()?,
        claim_no: c.number()?,
        claimed_at: c.time_opt()?,
        attempt: c.number()?,
        reclaims: c.number()?,
        limit_key: c.text_opt()?.map(LimitKey::from_stored),
        trace: c.text_opt()?,
        created_at: c.time()?,
        body: c.body_opt()?,
        errors: c.body_opt()?,
        heartbeat_at: c.time_opt()?,
        heartbeat: c.body_opt()?,
    })
}

/// Reads [`DEAD_LETTER`].
pub(crate) fn dead_letter(row: &Row<'_>) -> Result<DeadLetter, Error> {
    let c = &mut Cols::new(row);
    Ok(DeadLetter {
        task_id: c.key()?,
        namespace: Namespace::from_stored(c.text()?),
        run_key: c.key_opt()?,
        step_key: c.text_opt()?.map(StepKey::from_stored),
        kind: c.text()?,
        queue: QueueName::from_stored(c.text()?),
        name: RouteName::from_stored(c.text()?),
        attempt: c.number()?,
        reason: c.text()?,
        dead_at: c.time()?,
        requeues: c.number()?,
        requeued_at: c.time_opt()?,
        body: c.body_opt()?,
        errors: c.body_opt()?,
    })
}

/// Reads [`LOG`].
pub(crate) fn log(row: &Row<'_>) -> Result<LogLine, Error> {
    let c = &mut Cols::new(row);
    Ok(LogLine {
        run_key: c.key()?,
        log_id: c.key()?,
        step_key: c.text_opt()?.map(StepKey::from_stored),
        attempt: c.number_opt()?,
        level: c.word(LogLevel::parse)?,
        category: c.text()?,
        message: c.text()?,
        replay: c.flag()?,
        created_at: c.time()?,
        data: c.body_opt()?,
    })
}

/// Reads a setting: kind, name, encoding, value, time.
pub(crate) fn setting(row: &Row<'_>) -> Result<Setting, Error> {
    let c = &mut Cols::new(row);
    Ok(Setting {
        name: SettingName { kind: c.text()?, name: c.text()? },
        value: c.body()?,
        updated_at: c.time()?,
    })
}

/// Reads [`BREAKER`].
pub(crate) fn breaker(row: &Row<'_>) -> Result<BreakerRow, Error> {
    let c = &mut Cols::new(row);
    Ok(BreakerRow {
        namespace: Namespace::from_stored(c.text()?),
        key: LimitKey::from_stored(c.text()?),
        status: BreakerStatus::parse(&c.text()?)?,
        retry_at: c.time_opt()?,
        data: c.body()?,
        version: c.number()?,
        updated_at: c.time()?,
    })
}

/// Reads [`RATE`].
pub(crate) fn rate(row: &Row<'_>) -> Result<RateRow, Error> {
    let c = &mut Cols::new(row);
    Ok(RateRow {
        namespace: Namespace::from_stored(c.text()?),
        key: LimitKey::from_stored(c.text()?),
        interval_us: c.number()?,
        burst: c.number()?,
        spent_until: c.time()?,
        queued_until: c.time()?,
        version: c.number()?,
    })
}

/// Reads [`WORKER`].
pub(crate) fn worker(row: &Row<'_>) -> Result<Worker, Error> {
    let c = &mut Cols::new(row);
    Ok(Worker {
        info: WorkerInfo {
            worker: c.key()?,
            name: c.text()?,
            version: c.text()?,
            status: c.word(WorkerStatus::parse)?,
            lease: Duration::from_micros(c.number()?),
            turns: routes(&c.text()?)?,
            tasks: routes(&c.text()?)?,
            slots: c.number()?,
            note: c.text_opt()?,
            load: c.number()?,
            task_slots: c.number()?,
            task_load: c.number()?,
            accepting: c.flag()?,
            group: c.text()?,
            host: c.text()?,
            tasks_completed: c.number()?,
            tasks_failed: c.number()?,
            tasks_took: Duration::from_micros(c.number()?),
        },
        started_at: c.time()?,
        renewed_at: c.time()?,
        steady_since: c.time()?,
        drain: c.flag()?,
    })
}

/// Formats routes as JSON.
pub(crate) fn routes_text(routes: &[Route]) -> String {
    let one = |route: &Route| json!({"queue": route.queue, "name": route.name});
    Value::Array(routes.iter().map(one).collect()).to_string()
}

fn routes(text: &str) -> Result<Vec<Route>, Error> {
    let invalid = || Error::corrupt("cannot parse the routes of a worker");
    let list: Vec<BTreeMap<String, String>> = serde_json::from_str(text).map_err(|_| invalid())?;
    let one = |mut fields: BTreeMap<String, String>| {
        let queue = QueueName::from_stored(fields.remove("queue").ok_or_else(invalid)?);
        let name = RouteName::from_stored(fields.remove("name").ok_or_else(invalid)?);
        Ok(Route { queue, name })
    };
    list.into_iter().map(one).collect()
}

/// Reads all rows of a statement.
pub(crate) fn collect<T>(
    mut rows: rusqlite::Rows<'_>,
    read: impl Fn(&Row<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut all = Vec::new();
    while let Some(row) = rows.next().map_err(error::sql)? {
        all.push(read(row)?);
    }
    Ok(all)
}
