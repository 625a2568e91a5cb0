//! Replay of exported runs against new code: does a build still understand the runs that others
//! began?
//!
//! [`export_run`] writes a run down as JSON: its facts, its steps, and the messages it has not
//! consumed. [`replay`] reads that back into a scratch store, opens the run with the code at hand and
//! lets it go as far as the record does. No body of a step or an activity runs. Keep exports of runs
//! of every shape beside the code, and replay them in its tests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_engine::{Engine, Options, Tick, new_uuid};
use windlass_kernel::{
    Body, Commit, Draft, Encoding, Error, ErrorCode, ErrorKind, EventId, Loaded, MemoryStore,
    Message, MessageId, MessageKind, MessageName, ModelName, Namespace, NewMessage, NewRun,
    OnExisting, Op, Query, RunId, RunKey, RunStatus, Stamp, Step, StepKey, StepKind, StepStatus,
    Store, Timestamp, Turn, WorkflowName,
};

use crate::engine::{VirtualWorld, in_words};
use crate::events;
use crate::sim::executor::NodeId;

const FORMAT: u32 = 1;
const STEPS_MAX: u64 = 20_000_000;

/// A run as it was when it was exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedRun {
    /// Which shape of this file it is.
    pub format: u32,
    /// The store's time of the export, in microseconds since 1970.
    pub exported_at: i64,
    /// The workflow.
    pub workflow: String,
    /// The model that runs it.
    pub model: String,
    /// The run's name.
    pub id: String,
    /// Which generation it is.
    pub generation: u32,
    /// Names this generation.
    pub run_key: RunKey,
    /// Where it was.
    pub status: String,
    /// When it was created, in microseconds since 1970.
    pub created_at: i64,
    /// Small strings to find it by.
    pub labels: BTreeMap<String, String>,
    /// Its input.
    pub input: ExportedBody,
    /// Its output.
    pub output: Option<ExportedBody>,
    /// Why it failed.
    pub error: Option<ExportedBody>,
    /// The state that the model stores beside the steps.
    pub state: Option<ExportedBody>,
    /// Its steps, in the order in which they were first recorded.
    pub steps: Vec<ExportedStep>,
    /// The messages that it has not consumed, in the order of their acceptance.
    pub messages: Vec<ExportedMessage>,
}

/// The bytes of a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportedBody {
    /// JSON, as the text that was stored.
    Json(String),
    /// Bytes that only the user understands.
    Bytes(Vec<u8>),
}

/// A step of an exported run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedStep {
    /// Its key.
    pub key: String,
    /// Its kind.
    pub kind: String,
    /// Where it is.
    pub status: String,
    /// Its place among the steps.
    pub position: u64,
    /// How often it was tried.
    pub attempt: u32,
    /// How often it may be tried.
    pub attempts_max: Option<u32>,
    /// Its input.
    pub input: Option<ExportedBody>,
    /// Its result.
    pub result: Option<ExportedBody>,
    /// Why it failed.
    pub error: Option<ExportedBody>,
    /// How long an attempt may take, in microseconds.
    pub timeout_us: Option<u64>,
    /// When it wakes, in microseconds since 1970.
    pub due_at: Option<i64>,
    /// The name of the event that it waits for, or another wait.
    pub wait_for: Option<String>,
    /// When it was first recorded.
    pub created_at: i64,
    /// When it last changed: the order of settled steps.
    pub updated_at: i64,
}

/// A message that an exported run has not consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedMessage {
    /// The sender's id for it.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its body.
    pub body: Option<ExportedBody>,
    /// When it was sent.
    pub sent_at: i64,
}

/// The first difference between the code and the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// A stable code: `NON_DETERMINISM`, `INPUT_UNREADABLE`, `WORKFLOW_PANICKED`,
    /// `OUTPUT_DIFFERS`, …
    pub code: String,
    /// Describes the operation of the code and the one in the record.
    pub reason: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.reason, self.code)
    }
}

impl std::error::Error for Divergence {}

impl Divergence {
    fn new(code: &str, reason: impl Into<String>) -> Self {
        Self { code: code.into(), reason: reason.into() }
    }
}

impl From<Error> for Divergence {
    fn from(error: Error) -> Self {
        Self::new(error.code().as_str(), error.to_string())
    }
}

/// Reads a run out of a store. The answer is plain data that serde writes as JSON.
pub async fn export_run(store: &dyn Store, run_key: RunKey) -> Result<ExportedRun, Error> {
    let loaded = store.load(vec![run_key]).await?.into_iter().next();
    let Some(Loaded { run, steps, messages }) = loaded else {
        let message = format!("there is no run {run_key}");
        return Err(Error::new(ErrorKind::NotFound, ErrorCode::RunNotFound, message));
    };
    Ok(ExportedRun {
        format: FORMAT,
        exported_at: store.now().await?.as_micros(),
        workflow: run.workflow.as_str().to_owned(),
        model: run.model.as_str().to_owned(),
        id: run.id.as_str().to_owned(),
        generation: run.generation,
        run_key,
        status: run.status.as_str().to_owned(),
        created_at: run.created_at.as_micros(),
        labels: run.labels,
        input: out(&run.input),
        output: run.output.as_ref().map(out),
        error: run.error.as_ref().map(out),
        state: run.state.as_ref().map(out),
        steps: steps.iter().map(step_out).collect(),
        messages: messages.iter().map(message_out).collect(),
    })
}

/// Opens an exported run with the code at hand and lets it go as far as its record does. `register`
/// registers the workflow under its name, as the program does.
///
/// A run that had ended must come to the same end. One that had not may go on; whether it goes on
/// well is for other tests to say.
pub fn replay<W>(
    exported: &ExportedRun,
    register: impl FnOnce(&Engine) -> W,
) -> Result<(), Divergence> {
    if exported.format != FORMAT {
        let reason = format!("the export has format {}, {FORMAT} is known", exported.format);
        return Err(Divergence::new("FORMAT_UNKNOWN", reason));
    }
    let mut world = VirtualWorld::at(Timestamp::from_micros(exported.exported_at));
    let store = Arc::clone(&world.store);
    // The engine does not claim by itself: it takes one turn in which no body may begin.
    let options = Options { background: false, ..Options::default() };
    let engine = world.start(NodeId(1), store.clone(), options);
    let registered = register(&engine);
    let workflow = WorkflowName::new(&exported.workflow)?;
    if !engine.workflows().contains(&workflow) {
        let reason = format!("no workflow named {workflow:?} was registered");
        return Err(Divergence::new("WORKFLOW_NOT_FOUND", reason));
    }
    import(exported, &store, &engine)?;
    let ticking = engine.clone();
    let tick = Tick { runs_max: 1, steps_max: Some(0), wait_max: None };
    let ticked = world.executor.block_on(STEPS_MAX, async move { ticking.tick(tick).await });
    drop(registered);
    match ticked {
        Ok(Ok(ticked)) if ticked.processed == 1 => {}
        Ok(Ok(_)) => return Err(Divergence::new("NOT_TAKEN", "the run's turn was not taken")),
        Ok(Err(error)) => return Err(error.into()),
        Err(stuck) => return Err(Divergence::new("NOT_AT_REST", in_words(&stuck))),
    }
    judge(exported, &store)
}

fn judge(exported: &ExportedRun, store: &MemoryStore) -> Result<(), Divergence> {
    let mut from = 0;
    loop {
        let query = Query::Events { run_key: exported.run_key, from, limit: 1_000 };
        let page = at_once(store.list(query))?.events()?;
        for event in &page {
            if event.event_type.as_str() == "workflow.blocked" {
                let payload = event.payload_json()?;
                let text = |key: &str| payload[key].as_str().unwrap_or_default().to_owned();
                return Err(Divergence { code: text("code"), reason: text("reason") });
            }
        }
        from += page.len() as u64;
        if page.len() < 1_000 {
            break;
        }
    }
    let loaded = at_once(store.load(vec![exported.run_key]))?.into_iter().next();
    let run = loaded.ok_or_else(|| Divergence::new("RUN_NOT_FOUND", "the run is gone"))?.run;
    let (status, same, what) = match RunStatus::parse(&exported.status)? {
        RunStatus::Complete => {
            (RunStatus::Complete, run.output.as_ref().map(out) == exported.output, "output")
        }
        // A run that the engine gave up failed through no doing of its code.
        RunStatus::Errored if !gave_up(exported) => {
            (RunStatus::Errored, run.error.as_ref().map(out) == exported.error, "error")
        }
        _ => return Ok(()),
    };
    if run.status != status {
        let reason = format!(
            "the run was {status} at the end of its record, and with this code it is {}: the code \
             asks for more than the record has, or ends otherwise",
            run.status
        );
        return Err(Divergence::new("END_DIFFERS", reason));
    }
    if !same {
        let (now, then) = match status {
            RunStatus::Complete => (run.output.as_ref().map(out), &exported.output),
            _ => (run.error.as_ref().map(out), &exported.error),
        };
        let reason = format!("the {what} is {now:?} and was {then:?}");
        return Err(Divergence::new("OUTPUT_DIFFERS", reason));
    }
    Ok(())
}

fn gave_up(exported: &ExportedRun) -> bool {
    let error = exported.error.as_ref().map(back);
    let error: Option<serde_json::Value> = error.and_then(|error| error.read().ok());
    error.is_some_and(|error| error["name"] == "NoProgress")
}

// Puts the run into the scratch store as if it had just been given back.
fn import(exported: &ExportedRun, store: &MemoryStore, engine: &Engine) -> Result<(), Divergence> {
    let run_key = exported.run_key;
    let stamp = |at: i64| {
        let at = Timestamp::from_micros(at);
        Stamp { event_id: EventId(new_uuid(&**engine.env(), at)), at }
    };
    let new = NewRun {
        run_key,
        namespace: Namespace::default_namespace(),
        workflow: WorkflowName::new(&exported.workflow)?,
        model: ModelName::from_stored(exported.model.as_str()),
        id: RunId::from_stored(exported.id.as_str()),
        generation: exported.generation,
        input: back(&exported.input),
        parent: None,
        fork: None,
        labels: exported.labels.clone(),
        trace: None,
        headers: None,
        on_end: None,
        deadline_at: None,
        turn: Turn::ready(),
        caused_by: None,
    };
    let mut draft = Draft::create(new, OnExisting::Refuse, stamp(exported.created_at))?;
    if let Some(state) = &exported.state {
        draft.state(back(state), stamp(exported.created_at));
    }
    let mut steps: Vec<&ExportedStep> = exported.steps.iter().collect();
    steps.sort_by_key(|step| step.updated_at);
    for step in steps {
        let row = step_back(run_key, step)?;
        let payload = json!({ "key": step.key });
        match row.status {
            StepStatus::Completed => {
                draft.step(events::STEP_COMPLETED, &payload, row, stamp(step.updated_at))?;
            }
            status if status.is_settled() => {
                draft.step(events::STEP_FAILED, &payload, row, stamp(step.updated_at))?;
            }
            _ => {
                draft.open_step(row);
            }
        }
    }
    write(store, draft.finish())?;
    for message in &exported.messages {
        let message = NewMessage {
            run_key,
            message_id: MessageId::from_stored(message.id.as_str()),
            kind: MessageKind::parse(&message.kind)?,
            name: MessageName::from_stored(message.name.as_str()),
            body: message.body.as_ref().map(back),
            caused_by: None,
            sent_at: Timestamp::from_micros(message.sent_at),
            required: true,
        };
        write(store, Commit::new(None, None, vec![Op::PutMessage(Box::new(message))]))?;
    }
    Ok(())
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the memory store answers at once")
}

fn write(store: &MemoryStore, commit: Commit) -> Result<(), Divergence> {
    let answer = at_once(store.commit(vec![commit])).pop().expect("one answer for one commit");
    match answer {
        Ok(_) => Ok(()),
        Err(error) => {
            let reason = format!("the export cannot be read back: {error}");
            Err(Divergence::new("EXPORT_UNREADABLE", reason))
        }
    }
}

fn out(body: &Body) -> ExportedBody {
    match (body.encoding, std::str::from_utf8(&body.bytes)) {
        (Encoding::Json, Ok(text)) => ExportedBody::Json(text.to_owned()),
        _ => ExportedBody::Bytes(body.bytes.to_vec()),
    }
}

fn back(body: &ExportedBody) -> Body {
    match body {
        ExportedBody::Json(text) => Body::json(text.clone()),
        ExportedBody::Bytes(bytes) => Body::bytes(bytes.clone()),
    }
}

fn step_out(step: &Step) -> ExportedStep {
    ExportedStep {
        key: step.step_key.as_str().to_owned(),
        kind: step.kind.to_string(),
        status: step.status.as_str().to_owned(),
        position: step.position,
        attempt: step.attempt,
        attempts_max: step.attempts_max,
        input: step.input.as_ref().map(out),
        result: step.result.as_ref().map(out),
        error: step.error.as_ref().map(out),
        timeout_us: step.timeout.map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
        due_at: step.due_at.map(Timestamp::as_micros),
        wait_for: step.wait_for.as_ref().map(ToString::to_string),
        created_at: step.created_at.as_micros(),
        updated_at: step.updated_at.as_micros(),
    }
}

fn step_back(run_key: RunKey, step: &ExportedStep) -> Result<Step, Error> {
    Ok(Step {
        run_key,
        step_key: StepKey::from_stored(step.key.as_str()),
        name: step.key.as_str().into(),
        kind: StepKind::from_stored(step.kind.as_str()),
        status: StepStatus::parse(&step.status)?,
        position: step.position,
        attempt: step.attempt,
        attempts_max: step.attempts_max,
        input: step.input.as_ref().map(back),
        result: step.result.as_ref().map(back),
        error: step.error.as_ref().map(back),
        timeout: step.timeout_us.map(Duration::from_micros),
        due_at: step.due_at.map(Timestamp::from_micros),
        wait_for: step.wait_for.as_deref().map(Into::into),
        created_at: Timestamp::from_micros(step.created_at),
        updated_at: Timestamp::from_micros(step.updated_at),
    })
}

fn message_out(message: &Message) -> ExportedMessage {
    ExportedMessage {
        id: message.message_id.as_str().to_owned(),
        kind: message.kind.as_str().to_owned(),
        name: message.name.as_str().to_owned(),
        body: message.body.as_ref().map(out),
        sent_at: message.sent_at.as_micros(),
    }
}
