//! The shape of an exported run: plain JSON, times in microseconds since 1970, bodies as they came.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use windlass_kernel::verify::WholeRun;
use windlass_kernel::{
    Body, CausalRef, Consumed, Encoding, Error, ErrorCode, ErrorKind, Event, EventId, EventType,
    Head, LimitKey, LogId, LogLevel, LogLine, Message, MessageId, MessageKind, MessageName,
    ModelName, Namespace, QueueName, RouteName, Run, RunId, RunKey, RunStatus, Sha256Digest, Step,
    StepKey, StepKind, StepStatus, Task, TaskId, Timestamp, Turn, WorkflowName,
};

use super::Parts;

/// The shape that this build writes and reads.
const FORMAT: u32 = 1;

/// A run as it was when it was exported: one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunExport {
    /// Which shape of this line it is.
    format: u32,
    run: RunLine,
    events: Vec<EventLine>,
    steps: Vec<StepLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    messages: Vec<MessageLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tasks: Vec<TaskLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    logs: Vec<LogEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bodies: Vec<BodyText>,
}

impl RunExport {
    pub(super) fn of(parts: &Parts) -> Self {
        let WholeRun { run, steps, messages, events } = &parts.whole;
        Self {
            format: FORMAT,
            run: RunLine::of(run),
            events: events.iter().map(EventLine::of).collect(),
            steps: steps.iter().map(StepLine::of).collect(),
            messages: messages.iter().map(MessageLine::of).collect(),
            tasks: parts.tasks.iter().map(TaskLine::of).collect(),
            logs: parts.logs.iter().map(LogEntry::of).collect(),
            bodies: parts.bodies.iter().map(BodyText::of).collect(),
        }
    }

    /// Reads one line.
    ///
    /// ```
    /// use windlass::admin::transfer::RunExport;
    ///
    /// assert!(RunExport::parse("no run").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidExport`] if the line is no exported run, or has a format that this build does not know.
    pub fn parse(line: &str) -> Result<Self, Error> {
        // The format first: the members of another one need not be known.
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let unreadable = |source: serde_json::Error| {
            let message = "the line is not an exported run";
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidExport, message).with_source(source)
        };
        let Format { format } = serde_json::from_str(line).map_err(unreadable)?;
        if format != FORMAT {
            let message = format!("the line has format {format}; this build reads {FORMAT}");
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidExport, message));
        }
        serde_json::from_str(line).map_err(unreadable)
    }

    /// Writes one line, without its end.
    ///
    /// ```
    /// # async fn example(export: windlass::admin::transfer::RunExport) -> windlass::Result<()> {
    /// println!("{}", export.to_line()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::Internal`] if the run cannot be written as JSON.
    pub fn to_line(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|source| {
            Error::new(ErrorKind::Internal, ErrorCode::Internal, "an export cannot be written")
                .with_source(source)
        })
    }

    /// Names the generation.
    ///
    /// ```
    /// # async fn example(export: windlass::admin::transfer::RunExport) -> windlass::Result<()> {
    /// println!("{}", export.run_key());
    /// # Ok(()) }
    /// ```
    pub fn run_key(&self) -> RunKey {
        self.run.run_key
    }

    /// The run as people name it: workflow, id and generation.
    ///
    /// ```
    /// # async fn example(export: windlass::admin::transfer::RunExport) -> windlass::Result<()> {
    /// println!("{}", export.name());
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> String {
        format!("{}/{} generation {}", self.run.workflow, self.run.id, self.run.generation)
    }

    /// Whether the run had ended.
    ///
    /// ```
    /// # async fn example(export: windlass::admin::transfer::RunExport) -> windlass::Result<()> {
    /// if !export.is_ended() {
    ///     println!("{} continues in the new store", export.name());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_ended(&self) -> bool {
        RunStatus::parse(&self.run.status).is_ok_and(RunStatus::is_ended)
    }

    /// The rows, as a store keeps them.
    pub(super) fn parts(self) -> Result<Parts, Error> {
        let run_key = self.run.run_key;
        let run = self.run.back(self.messages.len() as u64)?;
        let events = self.events.into_iter().map(|event| event.back(run_key)).collect();
        let steps: Result<_, _> = self.steps.into_iter().map(|step| step.back(run_key)).collect();
        let messages: Result<_, _> =
            self.messages.into_iter().map(|message| message.back(run_key)).collect();
        let tasks: Result<_, _> = self.tasks.into_iter().map(|task| task.back(&run)).collect();
        let logs: Result<_, _> = self.logs.into_iter().map(|line| line.back(run_key)).collect();
        let whole = WholeRun { run, steps: steps?, messages: messages?, events };
        let bodies: Result<_, _> = self.bodies.into_iter().map(BodyText::back).collect();
        Ok(Parts { whole, tasks: tasks?, logs: logs?, bodies: bodies? })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BodyText {
    /// JSON, as the text that was stored.
    Json(String),
    /// Bytes that only the user understands.
    Base64(String),
}

impl BodyText {
    pub(super) fn of(body: &Body) -> Self {
        match (body.encoding, std::str::from_utf8(&body.bytes)) {
            (Encoding::Json, Ok(text)) => Self::Json(text.to_owned()),
            _ => Self::Base64(BASE64.encode(&body.bytes)),
        }
    }

    pub(super) fn back(self) -> Result<Body, Error> {
        match self {
            Self::Json(text) => Ok(Body::json(text)),
            Self::Base64(text) => {
                let bytes = BASE64.decode(text).map_err(|source| {
                    let message = "a body is not base64";
                    Error::new(ErrorKind::Invalid, ErrorCode::InvalidExport, message)
                        .with_source(source)
                })?;
                Ok(Body::bytes(bytes))
            }
        }
    }
}

fn out(body: &Option<Body>) -> Option<BodyText> {
    body.as_ref().map(BodyText::of)
}

fn back(body: Option<BodyText>) -> Result<Option<Body>, Error> {
    body.map(BodyText::back).transpose()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RunLine {
    run_key: RunKey,
    namespace: Namespace,
    workflow: WorkflowName,
    model: ModelName,
    id: String,
    generation: u32,
    status: String,
    input: BodyText,
    output: Option<BodyText>,
    error: Option<BodyText>,
    state: Option<BodyText>,
    next_ordinal: u64,
    head: Sha256Digest,
    cursor: EventId,
    root: RunKey,
    parent: Option<RunKey>,
    fork: Option<String>,
    labels: BTreeMap<String, String>,
    trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    headers: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on_end: Option<String>,
    deadline_at: Option<Timestamp>,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    updated_at: Timestamp,
    ended_at: Option<Timestamp>,
    retention_until: Option<Timestamp>,
    seen: u64,
    queue: QueueName,
    priority: i16,
    /// Whether its turn was ready, or somebody had it.
    ready: bool,
    due_at: Option<Timestamp>,
    limit_key: Option<LimitKey>,
}

impl RunLine {
    fn of(run: &Run) -> Self {
        Self {
            run_key: run.run_key,
            namespace: run.namespace.clone(),
            workflow: run.workflow.clone(),
            model: run.model.clone(),
            id: run.id.as_str().to_owned(),
            generation: run.generation,
            status: run.status.as_str().to_owned(),
            input: BodyText::of(&run.input),
            output: out(&run.output),
            error: out(&run.error),
            state: out(&run.state),
            next_ordinal: run.head.next_ordinal,
            head: run.head.hash,
            cursor: run.cursor,
            root: run.root,
            parent: run.parent,
            fork: run.fork.as_deref().map(Into::into),
            labels: run.labels.clone(),
            trace: run.trace.as_deref().map(Into::into),
            headers: run.headers.as_deref().map(Into::into),
            on_end: run.on_end.as_deref().map(Into::into),
            deadline_at: run.deadline_at,
            created_at: run.created_at,
            started_at: run.started_at,
            updated_at: run.updated_at,
            ended_at: run.ended_at,
            retention_until: run.retention_until,
            seen: run.seen,
            queue: run.turn.queue.clone(),
            priority: run.turn.priority,
            ready: run.turn.ready || run.turn.worker.is_some(),
            due_at: run.turn.due_at,
            limit_key: run.turn.limit_key.clone(),
        }
    }

    fn back(self, accepted: u64) -> Result<Run, Error> {
        let input = self.input.back()?;
        Ok(Run {
            run_key: self.run_key,
            namespace: self.namespace,
            workflow: self.workflow,
            model: self.model,
            // The engine composes some ids itself, with characters that users may not.
            id: RunId::composed(&self.id)?,
            generation: self.generation,
            status: RunStatus::parse(&self.status)?,
            input_hash: input.digest(),
            input,
            output: back(self.output)?,
            error: back(self.error)?,
            state: back(self.state)?,
            head: Head { next_ordinal: self.next_ordinal, hash: self.head },
            cursor: self.cursor,
            root: self.root,
            parent: self.parent,
            fork: self.fork.map(Into::into),
            labels: self.labels,
            trace: self.trace.map(Into::into),
            headers: self.headers.map(Into::into),
            on_end: self.on_end.map(Into::into),
            deadline_at: self.deadline_at,
            created_at: self.created_at,
            started_at: self.started_at,
            updated_at: self.updated_at,
            ended_at: self.ended_at,
            retention_until: self.retention_until,
            turn: Turn {
                queue: self.queue,
                priority: self.priority,
                ready: self.ready,
                due_at: self.due_at,
                limit_key: self.limit_key,
                ..Turn::ready()
            },
            accepted,
            seen: self.seen,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EventLine {
    ordinal: u64,
    event_id: EventId,
    event_type: String,
    version: u16,
    caused_by: CausalRef,
    /// The canonical text that was hashed.
    payload: String,
    created_at: Timestamp,
    hash: Sha256Digest,
}

impl EventLine {
    fn of(event: &Event) -> Self {
        Self {
            ordinal: event.ordinal,
            event_id: event.event_id,
            event_type: event.event_type.as_str().to_owned(),
            version: event.version,
            caused_by: event.caused_by,
            payload: String::from_utf8_lossy(&event.payload).into_owned(),
            created_at: event.created_at,
            hash: event.hash,
        }
    }

    fn back(self, run_key: RunKey) -> Event {
        Event {
            run_key,
            ordinal: self.ordinal,
            event_id: self.event_id,
            event_type: EventType::from_stored(self.event_type),
            version: self.version,
            caused_by: self.caused_by,
            payload: self.payload.into_bytes().into(),
            created_at: self.created_at,
            hash: self.hash,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StepLine {
    key: StepKey,
    name: String,
    kind: String,
    status: String,
    position: u64,
    attempt: u32,
    attempts_max: Option<u32>,
    input: Option<BodyText>,
    result: Option<BodyText>,
    error: Option<BodyText>,
    timeout_us: Option<u64>,
    due_at: Option<Timestamp>,
    wait_for: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl StepLine {
    fn of(step: &Step) -> Self {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self {
            key: step.step_key.clone(),
            name: step.name.to_string(),
            kind: step.kind.to_string(),
            status: step.status.as_str().to_owned(),
            position: step.position,
            attempt: step.attempt,
            attempts_max: step.attempts_max,
            input: out(&step.input),
            result: out(&step.result),
            error: out(&step.error),
            timeout_us: step.timeout.map(micros),
            due_at: step.due_at,
            wait_for: step.wait_for.as_deref().map(Into::into),
            created_at: step.created_at,
            updated_at: step.updated_at,
        }
    }

    fn back(self, run_key: RunKey) -> Result<Step, Error> {
        Ok(Step {
            run_key,
            step_key: self.key,
            name: self.name.into(),
            kind: StepKind::from_stored(self.kind),
            status: StepStatus::parse(&self.status)?,
            position: self.position,
            attempt: self.attempt,
            attempts_max: self.attempts_max,
            input: back(self.input)?,
            result: back(self.result)?,
            error: back(self.error)?,
            timeout: self.timeout_us.map(Duration::from_micros),
            due_at: self.due_at,
            wait_for: self.wait_for.map(Into::into),
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MessageLine {
    seq: u64,
    message_id: MessageId,
    kind: String,
    name: MessageName,
    body: Option<BodyText>,
    caused_by: Option<CausalRef>,
    sent_at: Timestamp,
    consumed_by: Option<StepKey>,
    consumed_at: Option<Timestamp>,
}

impl MessageLine {
    fn of(message: &Message) -> Self {
        let consumed = message.consumed.as_ref();
        Self {
            seq: message.seq,
            message_id: message.message_id.clone(),
            kind: message.kind.as_str().to_owned(),
            name: message.name.clone(),
            body: out(&message.body),
            caused_by: message.caused_by,
            sent_at: message.sent_at,
            consumed_by: consumed.map(|consumed| consumed.by.clone()),
            consumed_at: consumed.map(|consumed| consumed.at),
        }
    }

    fn back(self, run_key: RunKey) -> Result<Message, Error> {
        Ok(Message {
            run_key,
            seq: self.seq,
            message_id: self.message_id,
            kind: MessageKind::parse(&self.kind)?,
            name: self.name,
            body: back(self.body)?,
            caused_by: self.caused_by,
            sent_at: self.sent_at,
            consumed: self.consumed_by.zip(self.consumed_at).map(|(by, at)| Consumed { by, at }),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TaskLine {
    task_id: TaskId,
    step_key: Option<StepKey>,
    kind: String,
    queue: QueueName,
    name: RouteName,
    priority: i16,
    /// Whether it was ready, or somebody had it.
    ready: bool,
    due_at: Option<Timestamp>,
    claim_no: u64,
    attempt: u32,
    body: Option<BodyText>,
    errors: Option<BodyText>,
    limit_key: Option<LimitKey>,
    trace: Option<String>,
    created_at: Timestamp,
}

impl TaskLine {
    fn of(task: &Task) -> Self {
        Self {
            task_id: task.task_id,
            step_key: task.step_key.clone(),
            kind: task.kind.to_string(),
            queue: task.queue.clone(),
            name: task.name.clone(),
            priority: task.priority,
            ready: task.ready || task.worker.is_some(),
            due_at: task.due_at,
            // Its holder at the time of the export must not settle it in the new store.
            claim_no: task.claim_no + u64::from(task.worker.is_some()),
            attempt: task.attempt,
            body: out(&task.body),
            errors: out(&task.errors),
            limit_key: task.limit_key.clone(),
            trace: task.trace.as_deref().map(Into::into),
            created_at: task.created_at,
        }
    }

    fn back(self, run: &Run) -> Result<Task, Error> {
        Ok(Task {
            task_id: self.task_id,
            namespace: run.namespace.clone(),
            run_key: Some(run.run_key),
            step_key: self.step_key,
            kind: self.kind.into(),
            queue: self.queue,
            name: self.name,
            priority: self.priority,
            ready: self.ready,
            due_at: self.due_at,
            worker: None,
            claim_no: self.claim_no,
            claimed_at: None,
            attempt: self.attempt,
            reclaims: 0,
            body: back(self.body)?,
            errors: back(self.errors)?,
            // A sign of life means nothing in another store.
            heartbeat_at: None,
            heartbeat: None,
            limit_key: self.limit_key,
            trace: self.trace.map(Into::into),
            created_at: self.created_at,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LogEntry {
    log_id: LogId,
    step_key: Option<StepKey>,
    attempt: Option<u32>,
    level: String,
    category: String,
    message: String,
    data: Option<BodyText>,
    replay: bool,
    created_at: Timestamp,
}

impl LogEntry {
    fn of(line: &LogLine) -> Self {
        Self {
            log_id: line.log_id,
            step_key: line.step_key.clone(),
            attempt: line.attempt,
            level: line.level.as_str().to_owned(),
            category: line.category.to_string(),
            message: line.message.to_string(),
            data: out(&line.data),
            replay: line.replay,
            created_at: line.created_at,
        }
    }

    fn back(self, run_key: RunKey) -> Result<LogLine, Error> {
        Ok(LogLine {
            log_id: self.log_id,
            run_key,
            step_key: self.step_key,
            attempt: self.attempt,
            level: LogLevel::parse(&self.level)?,
            category: self.category.into(),
            message: self.message.into(),
            data: back(self.data)?,
            replay: self.replay,
            created_at: self.created_at,
        })
    }
}
