//! A workflow: its env, its transcripts, its step and the steps that are deferred, as plain data.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windlass_kernel::request::Request as HumanRequest;
use windlass_kernel::summary::MapDiff;
use windlass_kernel::{
    CausalRef, Error, ErrorCode, ErrorKind, EventId, Ledger, Limits, RunKey, SetsumDigest,
};

use super::continuation::{Choice, Next};
use super::env::{Env, RESPONSE_MEMBER, invalid};
use super::observe::{
    FlowSummary, ObservabilityConfig, ObservabilityContext, PendingCause, PendingWorkflowEvent,
    StepSummary, WorkflowNext,
};
use super::provider::WireFormat;
use super::request::{
    ForkBranch, LlmRequest, Response, ResponseInfo, TOOL_USES_MAX, ToolResult, ToolUse,
};
use super::transcript::Transcript;

/// The version of the snapshot's form.
pub(crate) const SNAPSHOT_VERSION: u32 = 1;
/// How many steps are deferred at most.
pub const DEFERRED_MAX: usize = 1_024;
/// How many events one function records at most.
const PENDING_EVENTS_MAX: usize = 1_000;

/// A workflow in memory. Its serde form is a snapshot: plain JSON that a later build can resume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Snapshot", into = "Snapshot")]
pub struct Workflow {
    run_id: String,
    pub(crate) env: Env,
    pub(crate) transcripts: BTreeMap<String, Transcript>,
    pub(crate) step: Step,
    pub(crate) stack: Vec<Step>,
    pub(crate) counters: Counters,
    // Bodies of responses that the env refers to, by run and item.
    pub(crate) bodies: BTreeMap<(RunKey, u64), Bytes>,
    observability: ObservabilityState,
}

/// Pending events and the cursor; never part of a snapshot.
#[derive(Clone, Debug, Default)]
struct ObservabilityState {
    config: ObservabilityConfig,
    // The limit of the engine, which may be below that of the program.
    event_bytes_max: Option<usize>,
    cursor: Option<CausalRef>,
    pending: Vec<PendingWorkflowEvent>,
}

/// The current or a deferred step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    #[serde(rename = "halt")]
    Halt { explicit: bool, discarded: usize },
    #[serde(rename = "call")]
    Call { function: String, version: u32 },
    #[serde(rename = "llm")]
    Llm { request: LlmRequest, output_key: String },
    #[serde(rename = "human")]
    Human { request: Box<HumanRequest>, output_key: String },
    #[serde(rename = "tools")]
    Tools { uses: Vec<ToolUse>, output_key: String },
    #[serde(rename = "fork_join")]
    ForkJoin {
        branches: Vec<ForkBranch>,
        join: String,
        // Snapshots of builds that did not record it.
        #[serde(default = "first_version")]
        join_version: u32,
    },
}

fn first_version() -> u32 {
    1
}

impl Step {
    pub(crate) fn summary(&self) -> StepSummary {
        let key = |key: &String| Some(key.clone());
        match self {
            Self::Halt { .. } => StepSummary { kind: "halt", ..StepSummary::default() },
            Self::Call { function, .. } => StepSummary {
                kind: "local_call",
                function: key(function),
                ..StepSummary::default()
            },
            Self::Llm { request, output_key } => StepSummary {
                kind: "llm",
                provider: key(&request.provider),
                output_key: key(output_key),
                ..StepSummary::default()
            },
            Self::Human { output_key, .. } => {
                StepSummary { kind: "human", output_key: key(output_key), ..StepSummary::default() }
            }
            Self::Tools { output_key, .. } => StepSummary {
                kind: "tool_call",
                output_key: key(output_key),
                ..StepSummary::default()
            },
            Self::ForkJoin { join, .. } => {
                StepSummary { kind: "fork_join", function: key(join), ..StepSummary::default() }
            }
        }
    }
}

/// How often a workflow has done what; the numbers name its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counters {
    /// All steps, for the limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) steps: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) llm: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) tools: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) human: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) forks: u64,
    /// Items of transcripts in rows of this run.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) items: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) compactions: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The serialized form.
#[derive(Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) v: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) run_id: String,
    pub(crate) env: Map<String, Value>,
    pub(crate) step: Step,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stack: Vec<Step>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) transcripts: BTreeMap<String, Transcript>,
    #[serde(default)]
    pub(crate) counters: Counters,
}

impl From<Workflow> for Snapshot {
    fn from(workflow: Workflow) -> Self {
        Self {
            v: SNAPSHOT_VERSION,
            env: workflow.env.to_map(),
            run_id: workflow.run_id,
            step: workflow.step,
            stack: workflow.stack,
            transcripts: workflow.transcripts,
            counters: workflow.counters,
        }
    }
}

impl TryFrom<Snapshot> for Workflow {
    type Error = Error;

    fn try_from(snapshot: Snapshot) -> Result<Self, Error> {
        let Snapshot { v, run_id, env, step, stack, transcripts, counters } = snapshot;
        if v != SNAPSHOT_VERSION {
            let message = format!(
                "the snapshot has version {v}; this build reads version {SNAPSHOT_VERSION}"
            );
            return Err(invalid(ErrorCode::AgentSnapshotInvalid, message));
        }
        let env = Env::from_map(env);
        Ok(Self {
            run_id,
            env,
            transcripts,
            step,
            stack,
            counters,
            bodies: BTreeMap::new(),
            observability: ObservabilityState::default(),
        })
    }
}

impl Workflow {
    /// A workflow that begins with a function and an empty env.
    ///
    /// ```
    /// use windlass_models::agents::Workflow;
    ///
    /// let mut workflow = Workflow::new("ticket-7", "classify");
    /// workflow.set("text", &"It does not start.")?;
    /// let copy: Workflow = serde_json::from_str(&serde_json::to_string(&workflow)?)?;
    /// assert_eq!(copy.get::<String>("text")?, "It does not start.");
    /// # Ok::<(), windlass_models::AnyError>(())
    /// ```
    pub fn new(run_id: impl Into<String>, function: impl Into<String>) -> Self {
        Self {
            run_id: run_id.into(),
            env: Env::default(),
            transcripts: BTreeMap::new(),
            step: Step::Call { function: function.into(), version: 1 },
            stack: Vec::new(),
            counters: Counters::default(),
            bodies: BTreeMap::new(),
            observability: ObservabilityState::default(),
        }
    }

    /// The id of the run.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// assert_eq!(Workflow::new("run-1", "begin").run_id(), "run-1");
    /// ```
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    pub(crate) fn rename(&mut self, run_id: &str) {
        run_id.clone_into(&mut self.run_id);
    }

    /// Reads a value.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.set("count", &3)?;
    /// assert_eq!(workflow.get::<u32>("count")?, 3);
    /// assert!(workflow.get::<String>("count").is_err());
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::EnvKeyNotFound`] if there is none, [`ErrorCode::EnvValueInvalid`] if it is of another type.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<T, Error> {
        self.env.read(key)
    }

    /// Sets a value.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.set("name", "Ann")?;
    /// assert_eq!(workflow.get::<String>("name")?, "Ann");
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] or [`ErrorCode::EnvValueInvalid`]: the key or the value is not valid.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), Error> {
        self.env.write(key, &value)
    }

    /// Reads a value and removes it. A value of another type stays.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.set("count", &3)?;
    /// assert_eq!(workflow.take::<u32>("count")?, 3);
    /// assert!(workflow.value("count").is_none());
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Workflow::get`].
    pub fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, Error> {
        let value = self.env.read(key)?;
        self.env.remove(key);
        Ok(value)
    }

    /// Removes a value.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.set("count", &3)?;
    /// assert!(workflow.remove("count").is_some());
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.env.remove(key)
    }

    /// The JSON value of a key.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.set("count", &3)?;
    /// assert_eq!(workflow.value("count"), Some(&3.into()));
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.env.value(key)
    }

    /// The keys, sorted.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.set("b", &1)?;
    /// workflow.set("a", &2)?;
    /// assert_eq!(workflow.keys().collect::<Vec<_>>(), ["a", "b"]);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.env.keys()
    }

    /// The env as JSON.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.set("count", &3)?;
    /// assert_eq!(workflow.env()["count"], 3);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn env(&self) -> Map<String, Value> {
        self.env.to_map()
    }

    /// The transcript with a name; an empty one if there is none yet.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.transcript("chat").push_user("Why is the sky blue?")?;
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn transcript(&mut self, name: &str) -> &mut Transcript {
        self.transcripts.entry(name.to_owned()).or_default()
    }

    /// Removes a transcript. Its items stay in the store.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.transcript("chat").push_user("Why is the sky blue?")?;
    /// assert!(workflow.remove_transcript("chat").is_some());
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn remove_transcript(&mut self, name: &str) -> Option<Transcript> {
        self.transcripts.remove(name)
    }

    /// The response at a key.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// async fn read_response(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     let text = workflow.response("response")?.text()?;
    ///     workflow.set("answer", &text)?;
    ///     Ok(next.halt())
    /// }
    /// # windlass::agents::Agent::new("a", "b").function("b", read_response).name();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::EnvKeyNotFound`] if there is no value, [`ErrorCode::EnvValueInvalid`] if it is no response.
    pub fn response(&self, key: &str) -> Result<Response, Error> {
        let value: ResponseValue = self.env.read(key)?;
        let body = match (&value.at.body, value.at.run, value.at.item) {
            (Some(body), ..) => Bytes::from(body.clone()),
            (None, Some(run), Some(item)) => {
                self.bodies.get(&(run, item)).cloned().ok_or_else(|| {
                    let message = format!("the body of the response at {key:?} is not loaded");
                    Error::new(ErrorKind::Internal, ErrorCode::Internal, message)
                })?
            }
            _ => return Err(invalid(ErrorCode::EnvValueInvalid, "the response has no body")),
        };
        Ok(Response { format: value.at.format, body, info: value.info })
    }

    /// The results of the tool calls at a key.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// async fn read_results(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     let results = workflow.tool_results("results")?;
    ///     workflow.set("count", &results.len())?;
    ///     Ok(next.halt())
    /// }
    /// # windlass::agents::Agent::new("a", "b").function("b", read_results).name();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Workflow::get`].
    pub fn tool_results(&self, key: &str) -> Result<Vec<ToolResult>, Error> {
        self.env.read(key)
    }

    /// Records an event. It is written with the commit that ends the running function.
    ///
    /// ```
    /// # use windlass::agents::Workflow;
    /// let mut workflow = Workflow::new("run-1", "begin");
    /// workflow.record_event("invoice.read", serde_json::json!({ "pages": 3 }))?;
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The type is reserved or no dotted name, or the payload is too large or cannot be written as JSON.
    pub fn record_event(
        &mut self,
        event_type: impl Into<String>,
        payload: impl Serialize,
    ) -> Result<EventId, Error> {
        self.record(event_type.into(), &payload, PendingCause::Automatic)
    }

    /// Records an event with a cause that the program names. The commit fails the function if there is
    /// no such run or event.
    ///
    /// # Errors
    ///
    /// As [`Workflow::record_event`].
    pub fn record_event_caused_by(
        &mut self,
        event_type: impl Into<String>,
        payload: impl Serialize,
        cause: CausalRef,
    ) -> Result<EventId, Error> {
        self.record(event_type.into(), &payload, PendingCause::Explicit(cause))
    }

    fn record(
        &mut self,
        event_type: String,
        payload: &impl Serialize,
        cause: PendingCause,
    ) -> Result<EventId, Error> {
        let state = &mut self.observability;
        if state.pending.len() >= PENDING_EVENTS_MAX {
            let message = format!("one function records at most {PENDING_EVENTS_MAX} events");
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        let payload = serde_json::to_value(payload).map_err(|source| {
            let message = "the payload of an event cannot be written as JSON";
            invalid(ErrorCode::InvalidEventPayload, message).with_source(source)
        })?;
        let own = state.config.max_event_payload_bytes;
        let event_payload_bytes_max = state.event_bytes_max.map_or(own, |max| max.min(own));
        let limits = Limits { event_payload_bytes_max, ..Limits::DEFAULT };
        Ledger::check_custom(&event_type, 1, &payload, &limits)?;
        let event_id = EventId(windlass_engine::detached_uuid());
        state.pending.push(PendingWorkflowEvent {
            event_id,
            event_type,
            event_version: 1,
            cause,
            payload,
        });
        state.cursor = Some(CausalRef::event(event_id));
        Ok(event_id)
    }

    /// Sets the place in the ledger. An executor calls it before it runs the workflow.
    pub fn set_observability_context(&mut self, context: ObservabilityContext) {
        self.observability.cursor = Some(context.causal_cursor);
    }

    /// The cause of the next automatic event, as far as it is known.
    pub fn causal_cursor(&self) -> Option<CausalRef> {
        self.observability.cursor
    }

    /// The events that no commit has written yet.
    pub fn pending_events(&self) -> &[PendingWorkflowEvent] {
        &self.observability.pending
    }

    /// Takes the pending events out. An executor calls it when it writes them.
    pub fn take_pending_events(&mut self) -> Vec<PendingWorkflowEvent> {
        std::mem::take(&mut self.observability.pending)
    }

    pub(crate) fn set_config(&mut self, config: ObservabilityConfig) {
        self.observability.config = config;
    }

    /// Refuses events that the engine would not write.
    pub(crate) fn set_event_bytes_max(&mut self, bytes: usize) {
        self.observability.event_bytes_max = Some(bytes);
    }

    pub(crate) fn env_digest(&self) -> SetsumDigest {
        self.env.digest()
    }

    /// The changes of the env since the last boundary.
    pub(crate) fn env_changes(&self) -> MapDiff {
        self.env.changes(self.observability.config.max_env_changes)
    }

    pub(crate) fn flow_mark(&self) -> (StepSummary, usize) {
        (self.step.summary(), self.stack.len())
    }

    pub(crate) fn flow_since(&self, (before, depth_before): (StepSummary, usize)) -> FlowSummary {
        let (after, depth_after) = self.flow_mark();
        FlowSummary { before, after, depth_before, depth_after }
    }

    pub(crate) fn next(&self) -> WorkflowNext {
        match &self.step {
            Step::Halt { .. } => WorkflowNext::Halt,
            Step::Call { function, .. } => WorkflowNext::LocalCall { function: function.clone() },
            Step::Llm { request, output_key } => WorkflowNext::Llm {
                provider: request.provider.clone(),
                output_key: output_key.clone(),
            },
            Step::Human { output_key, .. } => {
                WorkflowNext::Human { output_key: output_key.clone() }
            }
            Step::Tools { uses, output_key } => WorkflowNext::ToolCall {
                tool_names: uses.iter().map(|tool_use| tool_use.name.clone()).collect(),
                output_key: output_key.clone(),
            },
            Step::ForkJoin { branches, join, .. } => WorkflowNext::ForkJoin {
                branches: branches.iter().map(|b| (b.name.clone(), b.function.clone())).collect(),
                join_function: join.clone(),
            },
        }
    }

    /// Goes where a function decided to go. `version_of` knows the functions of this build.
    pub(crate) fn apply(
        &mut self,
        choice: Choice,
        version_of: impl Fn(&str) -> Result<u32, Error>,
    ) -> Result<(), Error> {
        let Choice { next, deferred } = choice;
        let call = |function: String| -> Result<Step, Error> {
            let version = version_of(&function)?;
            Ok(Step::Call { function, version })
        };
        let deferred = deferred.into_iter().map(call).collect::<Result<Vec<_>, _>>()?;
        if self.stack.len() + deferred.len() > DEFERRED_MAX {
            let message = format!("more than {DEFERRED_MAX} steps are deferred");
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        let step = match next {
            Next::Refused(error) => return Err(error),
            Next::Goto => None,
            Next::Halt => {
                let discarded = self.stack.len() + deferred.len();
                self.stack.clear();
                self.step = Step::Halt { explicit: true, discarded };
                return Ok(());
            }
            Next::Call(function) => Some(call(function)?),
            Next::Llm(request, output_key) => Some(Step::Llm { request, output_key }),
            Next::Human(request, output_key) => Some(Step::Human { request, output_key }),
            Next::Tools(uses, output_key) => {
                if uses.is_empty() || uses.len() > TOOL_USES_MAX {
                    let found = uses.len();
                    let message =
                        format!("{found} tool calls at once; 1 to {TOOL_USES_MAX} are allowed");
                    return Err(invalid(ErrorCode::InvalidSize, message));
                }
                Some(Step::Tools { uses, output_key })
            }
            Next::ForkJoin(branches, join) => {
                let join_version = version_of(&join)?;
                branches.iter().try_for_each(|branch| version_of(&branch.function).map(drop))?;
                Some(Step::ForkJoin { branches, join, join_version })
            }
        };
        self.stack.extend(deferred);
        match step {
            Some(step) => self.step = step,
            None => self.pop(),
        }
        Ok(())
    }

    /// Goes on with the step that was deferred last.
    pub(crate) fn pop(&mut self) {
        self.step = self.stack.pop().unwrap_or(Step::Halt { explicit: false, discarded: 0 });
    }

    /// Writes the result of a wait into the env and goes on.
    pub(crate) fn resume(&mut self, output_key: &str, value: Value) -> Result<(), Error> {
        self.env.put(output_key, value)?;
        self.pop();
        Ok(())
    }
}

/// A response, as the env has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResponseValue {
    #[serde(rename = "$response")]
    pub(crate) at: ResponseAt,
    #[serde(flatten)]
    pub(crate) info: ResponseInfo,
}

/// Where the body of a response is: in a row of a run, or here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResponseAt {
    pub(crate) format: WireFormat,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<RunKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) item: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
}

impl ResponseAt {
    /// The row that an env value refers to.
    pub(crate) fn of(value: &Value) -> Option<(RunKey, u64)> {
        let at = Self::deserialize(value.get(RESPONSE_MEMBER)?).ok()?;
        Some((at.run?, at.item?))
    }
}

impl ResponseValue {
    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }
}
