//! Converts PostgreSQL rows to kernel rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;
use windlass_kernel::{
    Body, BreakerRow, BreakerStatus, CausalRef, Consumed, DeadLetter, Error, Event, EventId,
    EventType, Head, LimitKey, LogId, LogLevel, LogLine, Message, MessageId, MessageKind,
    MessageName, ModelName, Namespace, QueueName, RateRow, Route, RouteName, Run, RunCount, RunId,
    RunKey, RunStatus, Setting, SettingName, Sha256Digest, Step, StepKey, StepKind, StepStatus,
    Task, TaskId, Timestamp, Turn, Worker, WorkerInfo, WorkerKey, WorkerStatus, WorkflowName,
};

/// The columns of a run, from a table with the alias `r`.
pub(crate) const RUN: &str = "r.run_key, r.namespace, r.workflow, r.model, r.id, r.generation, \
    r.status, r.input, r.input_encoding, r.input_hash, r.output, r.output_encoding, r.error, \
    r.error_encoding, r.state, r.state_encoding, r.head, r.next_ordinal, r.cursor, r.root, \
    r.parent, r.fork, r.labels, r.trace, r.headers, r.on_end, r.deadline_at, r.created_at, r.started_at, \
    r.updated_at, r.ended_at, r.retention_until, r.queue, r.priority, r.turn_ready, r.turn_due_at, \
    r.turn_worker, r.turn_claim_no, r.turn_claimed_at, r.turn_reclaims, r.limit_key, r.turn_last, \
    r.accepted, r.seen";

/// The columns of a step, from a table with the alias `s`.
pub(crate) const STEP: &str = "s.run_key, s.step_key, s.name, s.kind, s.status, s.position, \
    s.attempt, s.attempts_max, s.input, s.input_encoding, s.result, s.result_encoding, s.error, \
    s.error_encoding, s.timeout_us, s.due_at, s.wait_for, s.created_at, s.updated_at";

/// The columns of an event, from a table with the alias `e`.
pub(crate) const EVENT: &str = "e.run_key, e.ordinal, e.event_id, e.event_type, e.version, \
    e.caused_by, e.payload, e.created_at, e.hash";

/// The columns of a message, from a table with the alias `m`.
pub(crate) const MESSAGE: &str = "m.run_key, m.seq, m.message_id, m.kind, m.name, m.body, \
    m.body_encoding, m.caused_by, m.sent_at, m.consumed_by, m.consumed_at";

/// The columns of a task, from a table with the alias `t`.
pub(crate) const TASK: &str = "t.task_id, t.namespace, t.run_key, t.step_key, t.kind, t.queue, \
    t.name, t.priority, t.ready, t.due_at, t.worker, t.claim_no, t.claimed_at, t.attempt, \
    t.reclaims, t.body, t.body_encoding, t.errors, t.errors_encoding, t.limit_key, t.trace, \
    t.created_at, t.beat_at, t.beat, t.beat_encoding";

/// The columns of a log line, from a table with the alias `l`.
pub(crate) const LOG: &str = "l.run_key, l.log_id, l.step_key, l.attempt, l.level, l.category, \
    l.message, l.data, l.data_encoding, l.replay, l.created_at";

/// The columns of a dead letter, from a table with the alias `d`.
pub(crate) const DEAD_LETTER: &str = "d.task_id, d.namespace, d.run_key, d.step_key, d.kind, \
    d.queue, d.name, d.attempt, d.body, d.body_encoding, d.errors, d.errors_encoding, d.reason, \
    d.dead_at, d.requeues, d.requeued_at";

/// The columns of a worker, from a table with the alias `w`.
pub(crate) const WORKER: &str = "w.worker, w.name, w.version, w.status, w.lease_us, w.turns, \
    w.tasks, w.slots, w.note, w.load, w.task_slots, w.task_load, w.accepting, w.worker_group, w.host, \
    w.tasks_completed, w.tasks_failed, w.tasks_took_us, w.started_at, w.renewed_at, w.steady_since, w.drain";

/// Reads the columns of a row one after the other.
pub(crate) struct Cells<'a> {
    row: &'a Row,
    next: usize,
}

impl<'a> Cells<'a> {
    pub(crate) fn of(row: &'a Row) -> Self {
        Self { row, next: 0 }
    }

    pub(crate) fn take<T: FromSql<'a>>(&mut self) -> Result<T, Error> {
        let at = self.next;
        self.next += 1;
        self.row.try_get(at).map_err(|error| {
            Error::corrupt(format!("cannot decode column {at}")).with_source(error)
        })
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Error> {
        Ok(Timestamp::from_micros(self.take()?))
    }

    pub(crate) fn time_opt(&mut self) -> Result<Option<Timestamp>, Error> {
        Ok(self.take::<Option<i64>>()?.map(Timestamp::from_micros))
    }

    pub(crate) fn count(&mut self) -> Result<u64, Error> {
        let value: i64 = self.take()?;
        u64::try_from(value).map_err(|_| Error::corrupt(format!("the counter {value} is negative")))
    }

    pub(crate) fn count32(&mut self) -> Result<u32, Error> {
        let value: i64 = self.take()?;
        u32::try_from(value).map_err(|_| Error::corrupt(format!("{value} is out of range")))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Error> {
        self.take()
    }

    pub(crate) fn shared(&mut self) -> Result<Option<Arc<str>>, Error> {
        Ok(self.take::<Option<&str>>()?.map(Arc::from))
    }

    pub(crate) fn digest(&mut self) -> Result<Sha256Digest, Error> {
        let bytes: &[u8] = self.take()?;
        let bytes = bytes.try_into().map_err(|_| Error::corrupt("a hash is not 32 bytes long"))?;
        Ok(Sha256Digest::from_bytes(bytes))
    }

    pub(crate) fn body(&mut self) -> Result<Option<Body>, Error> {
        let bytes: Option<&[u8]> = self.take()?;
        let encoding: Option<&str> = self.take()?;
        match (bytes, encoding) {
            (Some(bytes), Some(encoding)) => {
                Body::from_columns(encoding, Bytes::copy_from_slice(bytes)).map(Some)
            }
            (None, None) => Ok(None),
            _ => Err(Error::corrupt("of a body and its encoding only one is null")),
        }
    }

    pub(crate) fn cause(&mut self) -> Result<Option<CausalRef>, Error> {
        self.take::<Option<&[u8]>>()?.map(CausalRef::parse).transpose()
    }

    fn run_key_opt(&mut self) -> Result<Option<RunKey>, Error> {
        Ok(self.take::<Option<Uuid>>()?.map(RunKey))
    }

    fn step_key_opt(&mut self) -> Result<Option<StepKey>, Error> {
        Ok(self.take::<Option<&str>>()?.map(StepKey::from_stored))
    }

    fn limit_key(&mut self) -> Result<Option<LimitKey>, Error> {
        Ok(self.take::<Option<&str>>()?.map(LimitKey::from_stored))
    }

    fn worker_opt(&mut self) -> Result<Option<WorkerKey>, Error> {
        Ok(self.take::<Option<Uuid>>()?.map(WorkerKey))
    }
}

/// Reads a run.
pub(crate) fn run(row: &Row) -> Result<Run, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(Run {
        run_key: RunKey(c.take()?),
        namespace: Namespace::from_stored(c.text()?),
        workflow: WorkflowName::from_stored(c.text()?),
        model: ModelName::from_stored(c.text()?),
        id: RunId::from_stored(c.text()?),
        generation: c.count32()?,
        status: RunStatus::parse(c.text()?)?,
        input: c.body()?.ok_or_else(|| Error::corrupt("a run has no input"))?,
        input_hash: c.digest()?,
        output: c.body()?,
        error: c.body()?,
        state: c.body()?,
        head: {
            let hash = c.digest()?;
            Head { next_ordinal: c.count()?, hash }
        },
        cursor: EventId(c.take()?),
        root: RunKey(c.take()?),
        parent: c.run_key_opt()?,
        fork: c.shared()?,
        labels: labels(c.take()?)?,
        trace: c.shared()?,
        headers: c.shared()?,
        on_end: c.shared()?,
        deadline_at: c.time_opt()?,
        created_at: c.time()?,
        started_at: c.time_opt()?,
        updated_at: c.time()?,
        ended_at: c.time_opt()?,
        retention_until: c.time_opt()?,
        turn: Turn {
            queue: QueueName::from_stored(c.text()?),
            priority: c.take()?,
            ready: c.take()?,
            due_at: c.time_opt()?,
            worker: c.worker_opt()?,
            claim_no: c.count()?,
            claimed_at: c.time_opt()?,
            reclaims: c.count32()?,
            limit_key: c.limit_key()?,
            last_worker: c.worker_opt()?,
        },
        accepted: c.count()?,
        seen: c.count()?,
    })
}

fn labels(text: Option<&str>) -> Result<BTreeMap<String, String>, Error> {
    let Some(text) = text else {
        return Ok(BTreeMap::new());
    };
    serde_json::from_str(text)
        .map_err(|source| Error::corrupt("cannot parse the labels of a run").with_source(source))
}

/// Reads a step.
pub(crate) fn step(row: &Row) -> Result<Step, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(Step {
        run_key: RunKey(c.take()?),
        step_key: StepKey::from_stored(c.text()?),
        name: c.text()?.into(),
        kind: StepKind::from_stored(c.text()?),
        status: StepStatus::parse(c.text()?)?,
        position: c.count()?,
        attempt: c.count32()?,
        attempts_max: c.take::<Option<i64>>()?.map(|max| max as u32),
        input: c.body()?,
        result: c.body()?,
        error: c.body()?,
        timeout: c.take::<Option<i64>>()?.map(|us| Duration::from_micros(us.max(0) as u64)),
        due_at: c.time_opt()?,
        wait_for: c.shared()?,
        created_at: c.time()?,
        updated_at: c.time()?,
    })
}

/// Reads an event.
pub(crate) fn event(row: &Row) -> Result<Event, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(Event {
        run_key: RunKey(c.take()?),
        ordinal: c.count()?,
        event_id: EventId(c.take()?),
        event_type: EventType::from_stored(c.text()?),
        version: {
            let version: i16 = c.take()?;
            u16::try_from(version).map_err(|_| Error::corrupt("an event's version is negative"))?
        },
        caused_by: CausalRef::parse(c.take()?)?,
        payload: Bytes::copy_from_slice(c.take()?),
        created_at: c.time()?,
        hash: c.digest()?,
    })
}

/// Reads a message.
pub(crate) fn message(row: &Row) -> Result<Message, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(Message {
        run_key: RunKey(c.take()?),
        seq: c.count()?,
        message_id: MessageId::from_stored(c.text()?),
        kind: MessageKind::parse(c.text()?)?,
        name: MessageName::from_stored(c.text()?),
        body: c.body()?,
        caused_by: c.cause()?,
        sent_at: c.time()?,
        consumed: match (c.step_key_opt()?, c.time_opt()?) {
            (Some(by), Some(at)) => Some(Consumed { by, at }),
            _ => None,
        },
    })
}

/// Reads a task.
pub(crate) fn task(row: &Row) -> Result<Task, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(Task {
        task_id: TaskId(c.take()?),
        namespace: Namespace::from_stored(c.text()?),
        run_key: c.run_key_opt()?,
        step_key: c.step_key_opt()?,
        kind: c.text()?.into(),
        queue: QueueName::from_stored(c.text()?),
        name: RouteName::from_stored(c.text()?),
        priority: c.take()?,
        ready: c.take()?,
        due_at: c.time_opt()?,
        worker: c.worker_opt()?,
        claim_no: c.count()?,
        claimed_at: c.time_opt()?,
        attempt: c.count32()?,
        reclaims: c.count32()?,
        body: c.body()?,
        errors: c.body()?,
        limit_key: c.limit_key()?,
        trace: c.shared()?,
        created_at: c.time()?,
        heartbeat_at: c.time_opt()?,
        heartbeat: c.body()?,
    })
}

/// Reads a log line.
pub(crate) fn log(row: &Row) -> Result<LogLine, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(LogLine {
        run_key: RunKey(c.take()?),
        log_id: LogId(c.take()?),
        step_key: c.step_key_opt()?,
        attempt: c.take::<Option<i64>>()?.map(|attempt| attempt as u32),
        level: LogLevel::parse(c.text()?)?,
        category: c.text()?.into(),
        message: c.text()?.into(),
        data: c.body()?,
        replay: c.take()?,
        created_at: c.time()?,
    })
}

/// Reads a setting: kind, name, value, encoding, time.
pub(crate) fn setting(row: &Row) -> Result<Setting, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    let name = SettingName { kind: c.text()?.into(), name: c.text()?.into() };
    let missing = || Error::corrupt("a setting has no value");
    Ok(Setting { name, value: c.body()?.ok_or_else(missing)?, updated_at: c.time()? })
}

/// The columns of a breaker, from a table with the alias `b`.
pub(crate) const BREAKER: &str = "b.namespace, b.breaker_key, b.status, b.retry_at, b.data, \
    b.data_encoding, b.version, b.updated_at";

/// Reads a breaker.
pub(crate) fn breaker(row: &Row) -> Result<BreakerRow, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    let missing = || Error::corrupt("a breaker has no data");
    Ok(BreakerRow {
        namespace: Namespace::from_stored(c.text()?),
        key: LimitKey::from_stored(c.text()?),
        status: BreakerStatus::parse(c.text()?)?,
        retry_at: c.time_opt()?,
        data: c.body()?.ok_or_else(missing)?,
        version: c.count()?,
        updated_at: c.time()?,
    })
}

/// Reads a rate.
pub(crate) fn rate(row: &Row) -> Result<RateRow, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(RateRow {
        namespace: Namespace::from_stored(c.text()?),
        key: LimitKey::from_stored(c.text()?),
        interval_us: c.count()?,
        burst: c.count32()?,
        spent_until: c.time()?,
        queued_until: c.time()?,
        version: c.count()?,
    })
}

/// Reads a dead letter.
pub(crate) fn dead_letter(row: &Row) -> Result<DeadLetter, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(DeadLetter {
        task_id: TaskId(c.take()?),
        namespace: Namespace::from_stored(c.text()?),
        run_key: c.run_key_opt()?,
        step_key: c.step_key_opt()?,
        kind: c.text()?.into(),
        queue: QueueName::from_stored(c.text()?),
        name: RouteName::from_stored(c.text()?),
        attempt: c.count32()?,
        body: c.body()?,
        errors: c.body()?,
        reason: c.text()?.into(),
        dead_at: c.time()?,
        requeues: c.count32()?,
        requeued_at: c.time_opt()?,
    })
}

/// Reads a worker.
pub(crate) fn worker(row: &Row) -> Result<Worker, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(Worker {
        info: WorkerInfo {
            worker: WorkerKey(c.take()?),
            name: c.text()?.into(),
            version: c.text()?.into(),
            status: WorkerStatus::parse(c.text()?)?,
            lease: Duration::from_micros(c.count()?),
            turns: routes(c.text()?)?,
            tasks: routes(c.text()?)?,
            slots: c.count32()?,
            note: c.shared()?,
            load: c.count32()?,
            task_slots: c.count32()?,
            task_load: c.count32()?,
            accepting: c.take()?,
            group: c.text()?.into(),
            host: c.text()?.into(),
            tasks_completed: c.count()?,
            tasks_failed: c.count()?,
            tasks_took: Duration::from_micros(c.count()?),
        },
        started_at: c.time()?,
        renewed_at: c.time()?,
        steady_since: c.time()?,
        drain: c.take()?,
    })
}

/// The routes column of a worker: a JSON array of pairs.
pub(crate) fn routes_text(routes: &[Route]) -> String {
    let pair = |route: &Route| {
        let texts = [route.queue.as_str(), route.name.as_str()];
        Value::from(texts.map(Value::from).to_vec())
    };
    Value::from(routes.iter().map(pair).collect::<Vec<_>>()).to_string()
}

fn routes(text: &str) -> Result<Vec<Route>, Error> {
    let pairs: Vec<(String, String)> = serde_json::from_str(text).map_err(|source| {
        Error::corrupt("cannot parse the routes of a worker").with_source(source)
    })?;
    let route = |(queue, name): (String, String)| Route {
        queue: QueueName::from_stored(queue),
        name: RouteName::from_stored(name),
    };
    Ok(pairs.into_iter().map(route).collect())
}

/// The error of a column that cannot be decoded.
pub(crate) fn undecoded(error: tokio_postgres::Error) -> Error {
    Error::corrupt("cannot decode a column").with_source(error)
}

/// Converts all rows.
pub(crate) fn all<T>(
    rows: &[Row],
    read: impl Fn(&Row) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    rows.iter().map(read).collect()
}

/// Reads the number of runs of a workflow with a status.
pub(crate) fn run_count(row: &Row) -> Result<RunCount, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(RunCount {
        namespace: Namespace::from_stored(c.text()?),
        workflow: WorkflowName::from_stored(c.text()?),
        status: RunStatus::parse(c.text()?)?,
        count: c.count()?,
    })
}
