//! A run of an agent in memory: takes one step after the other, a commit each.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use serde_json::{Value, json};
use tracing::Instrument as _;
use windlass_engine::{Control, EngineParts, Program, Turn, TurnError, WeakEngine};
use windlass_kernel::ledger::run_events::{WORKFLOW_FAILED, WORKFLOW_HALTED};
use windlass_kernel::{
    Body, BoxFuture, Draft, Encoding, End, Error, ErrorCode, ErrorKind, EventType, Ledger, Message,
    Run, Stamp, Step as StepRow, StepStatus, Wake,
};

use super::accounts::check_price;
use super::agent::Agent;
use super::description::{CALL_COMPLETED, CALL_FAILED, CALL_STARTED, LLM, SAVED, TOOL};
use super::live::step_limit;
use super::observe::{ObservabilityContext, PendingCause, PendingWorkflowEvent};
use super::state::{self, Progress, StoredValues};
use super::stream::Streams;
use super::telemetry::Invocations;
use super::trampoline::{WorkflowError, WorkflowStepOutcome};
use super::workflow::{Step, Workflow};
use crate::any_error::AnyError;
use crate::kit;

/// How many characters of an error the run keeps.
const ERROR_CHARS_MAX: usize = 2_000;

pub(crate) struct AgentProgram {
    pub(crate) agent: Arc<Agent>,
    pub(crate) engine: EngineParts,
    pub(crate) streams: Arc<Streams>,
    pub(crate) live: Option<Live>,
    /// For the start of lanes.
    pub(crate) handle: Option<WeakEngine>,
    /// The message that the next commit about the current call consumes.
    pub(crate) answered: Option<Message>,
    // The snapshot and the open steps of a run that is not loaded yet.
    first: Option<Body>,
    rows: Vec<StepRow>,
}

/// A run with all that its snapshot refers to.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) workflow: Workflow,
    pub(crate) progress: Progress,
    pub(crate) stored: StoredValues,
    /// The rows of the current step that are open.
    pub(crate) rows: Vec<StepRow>,
    /// The work of the rows may have begun: they come from the store, or it was cut off.
    pub(crate) interrupted: bool,
    /// The number and the body of the request that the current step sends, between the commit of its intent and
    /// its first attempt.
    pub(crate) built: Option<(u64, Bytes)>,
}

impl Live {
    /// Takes an open row out.
    pub(crate) fn take_row(&mut self, key: &str) -> Option<StepRow> {
        let at = self.rows.iter().position(|row| row.step_key.as_str() == key)?;
        Some(self.rows.remove(at))
    }
}

/// Whether the turn goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Over,
}

/// The outcome of user code.
pub(crate) enum Driven<T> {
    Done(T),
    /// Somebody asked the run to end.
    Cancelled,
}

/// Why a run fails.
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn of(error: &AnyError) -> Self {
        let code = error.downcast_ref::<Error>().map(|error| error.code().as_str().to_owned());
        let name = code.unwrap_or_else(|| error.name().to_owned());
        Self { name, message: error.to_string() }
    }

    pub(crate) fn body(&self) -> Result<Body, Error> {
        let message: String = self.message.chars().take(ERROR_CHARS_MAX).collect();
        Body::of(&json!({ "name": self.name, "message": message }))
    }

    /// The failure without its text.
    pub(crate) fn summary(&self) -> Value {
        let digest = windlass_kernel::Sha256Digest::of(self.message.as_bytes());
        json!({
            "name": self.name, "bytes": self.message.len(), "digest": digest,
            "at": { "kind": "run_error" },
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { name: error.code().as_str().to_owned(), message: error.to_string() }
    }
}

impl AgentProgram {
    pub(crate) fn open(
        agent: &Arc<Agent>,
        engine: &EngineParts,
        streams: &Arc<Streams>,
        run: &Run,
        rows: &[StepRow],
    ) -> Self {
        Self {
            agent: Arc::clone(agent),
            engine: engine.clone(),
            streams: Arc::clone(streams),
            live: None,
            handle: None,
            answered: None,
            first: run.state.clone(),
            rows: rows.to_vec(),
        }
    }

    async fn advance(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        if let Some(error) = self.load(turn).await? {
            return self.refuse_input(turn, error).await.map(|_| ());
        }
        let mut invoked = Invocations::default();
        loop {
            if self.apply_control(turn).await? {
                return Ok(());
            }
            if turn.is_draining() || !turn.take_step() {
                return self.park_unsent(turn).await;
            }
            let span = invoked.of(&turn.run, self.agent.in_charge(&self.live().workflow));
            if self.step(turn).instrument(span).await? == Flow::Over {
                invoked.ended(&turn.run);
                return Ok(());
            }
        }
    }

    async fn step(&mut self, turn: &mut Turn) -> Result<Flow, TurnError> {
        match &self.live().workflow.step {
            Step::Halt { .. } => self.halt_again(turn).await,
            Step::Call { .. } => self.local_call(turn).await,
            Step::Llm { .. } => self.llm(turn).await,
            Step::Tools { .. } => self.tools(turn).await,
            Step::Human { .. } => self.human(turn).await,
            Step::ForkJoin { .. } => self.fork(turn).await,
        }
    }

    pub(crate) fn live(&self) -> &Live {
        self.live.as_ref().expect("the run is loaded before anything else")
    }

    pub(crate) fn live_mut(&mut self) -> &mut Live {
        self.live.as_mut().expect("the run is loaded before anything else")
    }

    // Returns what is wrong with the input of a run that begins.
    async fn load(&mut self, turn: &Turn) -> Result<Option<Error>, TurnError> {
        if self.live.is_some() {
            return Ok(None);
        }
        let (mut workflow, progress, stored) = match &self.first {
            Some(body) => {
                let page = self.engine.limits.page_rows_max;
                let loaded = state::load(&*self.engine.store, body, page).await;
                loaded.map_err(|error| match error.is_retryable() {
                    true => TurnError::Store(error),
                    false => TurnError::Blocked(error),
                })?
            }
            None => {
                let begun = turn.run.input.read().and_then(|input| {
                    let budget = self.agent.budget_of(&input)?;
                    Ok((first_workflow(&self.agent, turn.run.id.as_str(), input)?, budget))
                });
                let (workflow, budget) = match begun {
                    Ok(begun) => begun,
                    // A body that this process cannot open says nothing about the input.
                    Err(error)
                        if error.kind() == ErrorKind::Invalid
                            && turn.run.input.encoding == Encoding::Json =>
                    {
                        return Ok(Some(error));
                    }
                    Err(error) => return Err(TurnError::Blocked(error)),
                };
                let tools = &self.agent.tools;
                let progress = Progress::first(&turn.run, budget.as_ref(), tools);
                (workflow, progress, StoredValues::default())
            }
        };
        self.agent.check(&workflow).map_err(TurnError::Blocked)?;
        // A snapshot does not have them.
        workflow.rename(turn.run.id.as_str());
        workflow.set_config(self.agent.trampoline.config());
        workflow.set_event_bytes_max(turn.limits().event_payload_bytes_max);
        let rows = std::mem::take(&mut self.rows);
        let built = None;
        self.live = Some(Live { workflow, progress, stored, rows, interrupted: true, built });
        self.first = None;
        Ok(None)
    }

    // A run whose input cannot be its env fails: no later build and no retry can begin it.
    async fn refuse_input(&self, turn: &mut Turn, error: Error) -> Result<Flow, TurnError> {
        let failure = Failure::from(error);
        let mut draft = turn.draft();
        let payload = json!({ "error": failure.summary() });
        let body = failure.body().map_err(TurnError::Blocked)?;
        turn.end(&mut draft, WORKFLOW_FAILED, &payload, End::Errored(body))
            .map_err(TurnError::Blocked)?;
        turn.commit(draft).await?;
        Ok(Flow::Over)
    }

    // As `kit::apply_control`. A pause may last longer than this process, and then the rows of a step that has
    // sent nothing must not look like work that was interrupted.
    async fn apply_control(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        loop {
            kit::read_messages(turn).await?;
            match turn.control() {
                None => return Ok(false),
                Some((Control::Cancel, _)) => {}
                Some(_) => {
                    let mut draft = turn.draft();
                    if self.put_off(turn, &mut draft) {
                        turn.commit(draft).await?;
                    }
                }
            }
            if turn.apply_control().await? {
                return Ok(true);
            }
        }
    }

    // Releases the turn before the current step has sent anything.
    async fn park_unsent(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let mut draft = turn.draft();
        self.put_off(turn, &mut draft);
        kit::release(turn, &mut draft, Wake::Now);
        turn.commit(draft).await.map(|_| ())
    }

    // Marks the rows of a step that has begun and has sent nothing as waiting: the next worker begins their
    // work without asking whether it was done. Returns whether there are any.
    fn put_off(&mut self, turn: &mut Turn, draft: &mut Draft) -> bool {
        let live = self.live_mut();
        // Another worker may have sent the requests of rows from the store.
        if live.interrupted {
            return false;
        }
        let unsent = |row: &&mut StepRow| {
            row.status == StepStatus::Running && (row.kind == LLM || row.kind == TOOL)
        };
        let mut found = false;
        for row in live.rows.iter_mut().filter(unsent) {
            (row.status, row.updated_at) = (StepStatus::Waiting, turn.stamp().at);
            draft.open_step(row.clone());
            found = true;
        }
        found
    }

    pub(crate) async fn park(&mut self, turn: &mut Turn, wake: Wake) -> Result<(), TurnError> {
        let mut draft = turn.draft();
        kit::release(turn, &mut draft, wake);
        turn.commit(draft).await.map(|_| ())
    }

    // A snapshot at its end belongs to a run that has ended, so this is a retry of one that failed there.
    async fn halt_again(&mut self, turn: &mut Turn) -> Result<Flow, TurnError> {
        let mut draft = turn.draft();
        let mut live = self.live().clone();
        self.enter(turn, &mut draft, &mut live, Vec::new()).map_err(TurnError::Blocked)?;
        turn.commit(draft).await?;
        Ok(Flow::Over)
    }

    async fn local_call(&mut self, turn: &mut Turn) -> Result<Flow, TurnError> {
        match self.begin(turn).await {
            // The first snapshot is the input.
            Err(TurnError::Blocked(error))
                if turn.run.state.is_none()
                    && error.kind() == ErrorKind::Invalid
                    && !turn.is_stale() =>
            {
                return self.refuse_input(turn, error).await;
            }
            begun => begun?,
        }
        let steps_max = self.agent.steps_max;
        let mut workflow = self.live().workflow.clone();
        if workflow.counters.steps >= steps_max {
            let failure = step_limit(steps_max).into();
            return self.fail(turn, CALL_FAILED, json!({}), Vec::new(), failure).await;
        }
        let causal_cursor = windlass_kernel::CausalRef::event(turn.run.cursor);
        workflow.set_observability_context(ObservabilityContext { causal_cursor });
        turn.metrics().steps_begun.add(1);
        let began = turn.now();
        let agent = Arc::clone(&self.agent);
        let call = agent.trampoline.run_one_local_call(workflow);
        let called = match drive(turn, call).await? {
            Driven::Done(called) => called,
            Driven::Cancelled => return Ok(Flow::Continue),
        };
        let micros = turn.now().since(began).as_micros() as u64;
        match called {
            Ok(outcome) => self.call_completed(turn, outcome, micros).await,
            Err(error) => self.call_failed(turn, error, micros).await,
        }
    }

    /// Writes the event that begins the current step, unless an earlier commit has.
    pub(crate) async fn begin(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        if self.live().progress.begun {
            return Ok(());
        }
        let mut draft = turn.draft();
        let mut live = self.live().clone();
        let at = turn.stamp().at;
        let rows = state::flush(&mut live.workflow, &mut live.stored, turn, &draft, at)
            .map_err(TurnError::Blocked)?;
        self.enter(turn, &mut draft, &mut live, rows).map_err(TurnError::Blocked)?;
        turn.commit(draft).await?;
        self.live = Some(live);
        Ok(())
    }

    async fn call_completed(
        &mut self,
        turn: &mut Turn,
        outcome: WorkflowStepOutcome,
        micros: u64,
    ) -> Result<Flow, TurnError> {
        let WorkflowStepOutcome { workflow, function, env_changes, flow, events, .. } = outcome;
        let payload = json!({
            "function": function, "duration_us": micros, "env": env_changes, "flow": flow,
        });
        let mut live = Live { workflow, ..self.live().clone() };
        // The next step is not a retry any more.
        (live.progress.attempts, live.progress.retried) = (0, None);
        live.progress.receipts.clear();
        let mut draft = turn.draft();
        let built = self.check_entry(&live.workflow).and_then(|()| {
            record(turn, &mut draft, &events)?;
            self.complete(turn, &mut draft, &mut live, CALL_COMPLETED, &payload, Vec::new())
        });
        let refused = match built {
            Ok(over) => match turn.try_commit(draft).await? {
                Ok(_) => {
                    turn.count_completed_step();
                    self.live = Some(live);
                    return Ok(over);
                }
                // Most often a cause that the function named does not exist. The turn is still held.
                Err(refused) => windlass_engine::refusal(&refused),
            },
            Err(error) => error,
        };
        if turn.is_stale() {
            return Err(TurnError::Blocked(refused));
        }
        // Events with causes of their own may be the reason, so only the others are kept.
        let kept = events.into_iter().filter(|event| event.cause == PendingCause::Automatic);
        let payload = json!({ "function": function, "duration_us": micros, "flow": flow });
        self.fail(turn, CALL_FAILED, payload, kept.collect(), refused.into()).await
    }

    async fn call_failed(
        &mut self,
        turn: &mut Turn,
        error: WorkflowError,
        micros: u64,
    ) -> Result<Flow, TurnError> {
        let failure = Failure::of(&error.source);
        let WorkflowError { workflow, function, env_changes, flow, events, .. } = error;
        let payload = json!({
            "function": function, "duration_us": micros, "flow": flow, "env": env_changes,
            "partial_env_digest": workflow.env_digest(),
        });
        turn.count_failed_step();
        self.fail(turn, CALL_FAILED, payload, events, failure).await
    }

    /// Ends the run: the event of the operation that failed, then `workflow.failed`. The snapshot stays as it
    /// was before the operation, so a retry begins there.
    pub(crate) async fn fail(
        &mut self,
        turn: &mut Turn,
        event: EventType,
        mut payload: Value,
        mut events: Vec<PendingWorkflowEvent>,
        failure: Failure,
    ) -> Result<Flow, TurnError> {
        payload["error"] = failure.summary();
        // An event that cannot be written must not hide the failure.
        let limits = turn.limits().clone();
        events.retain(|event| {
            let PendingWorkflowEvent { event_type, event_version, payload, .. } = event;
            Ledger::check_custom(event_type, *event_version, payload, &limits).is_ok()
        });
        loop {
            let mut draft = turn.draft();
            record(turn, &mut draft, &events).map_err(TurnError::Blocked)?;
            let stamp = turn.stamp();
            draft.event(event.clone(), &payload, stamp).map_err(TurnError::Blocked)?;
            self.end_failed(turn, &mut draft, &failure, &payload).map_err(TurnError::Blocked)?;
            let Err(refused) = turn.try_commit(draft).await? else { return Ok(Flow::Over) };
            let all = events.len();
            events.retain(|event| event.cause == PendingCause::Automatic);
            // Without events that have causes of their own there is nothing left to leave out.
            if turn.is_stale() || events.len() == all {
                return Err(TurnError::Blocked(windlass_engine::refusal(&refused)));
            }
        }
    }

    /// The last event of a run that failed.
    pub(crate) fn end_failed(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        failure: &Failure,
        operation: &Value,
    ) -> Result<(), Error> {
        let workflow = &self.live().workflow;
        let committed = workflow.env_digest();
        let partial = operation.get("partial_env_digest").cloned();
        let payload = json!({
            "error": failure.summary(), "env_keys": workflow.env.len(),
            "committed_env_digest": committed, "partial_env_digest": partial.unwrap_or(json!(committed)),
        });
        turn.end(draft, WORKFLOW_FAILED, &payload, End::Errored(failure.body()?))
    }

    /// Writes the event that ends an operation with the rows of its results, then enters the next step.
    pub(crate) fn complete(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &mut Live,
        event: EventType,
        payload: &Value,
        mut rows: Vec<StepRow>,
    ) -> Result<Flow, Error> {
        let stamp = turn.stamp();
        let Live { workflow, stored, .. } = live;
        rows.extend(state::flush(workflow, stored, turn, draft, stamp.at)?);
        draft.steps(event, payload, rows, stamp)?;
        self.enter(turn, draft, live, Vec::new())
    }

    /// Writes the event that begins the step at which the workflow is now, and the snapshot. `rows` are
    /// sealed by an event of their own.
    pub(crate) fn enter(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &mut Live,
        rows: Vec<StepRow>,
    ) -> Result<Flow, Error> {
        if !rows.is_empty() {
            let payload = json!({ "rows": rows.len() });
            draft.steps(SAVED, &payload, rows, turn.stamp())?;
        }
        live.progress.begun = true;
        live.rows.clear();
        live.interrupted = false;
        let flow = match &live.workflow.step {
            Step::Halt { .. } => {
                self.end(turn, draft, live)?;
                Flow::Over
            }
            Step::Call { function, version } => {
                let payload = json!({
                    "function": function, "version": version, "depth": live.workflow.stack.len(),
                });
                draft.event(CALL_STARTED, &payload, turn.stamp())?;
                Flow::Continue
            }
            // The intent needs an answer of the store first, so it has a commit of its own.
            Step::Llm { .. } if self.must_admit(live) => {
                live.progress.begun = false;
                Flow::Continue
            }
            Step::Llm { .. } => self.enter_llm(turn, draft, live)?,
            Step::Tools { .. } => self.enter_tools(turn, draft, live)?,
            Step::Human { .. } => self.enter_human(turn, draft, live)?,
            Step::ForkJoin { .. } => self.enter_fork(turn, draft, live)?,
        };
        let used = &live.workflow;
        let used: std::collections::BTreeSet<_> =
            used.env.entries().filter_map(|(_, v, _)| super::workflow::ResponseAt::of(v)).collect();
        live.workflow.bodies.retain(|at, _| used.contains(at));
        live.workflow.env.mark();
        let body = state::save(&live.workflow, &live.progress, &live.stored)?;
        let max = turn.limits().state_bytes_max;
        if body.len() > max {
            let message =
                format!("the snapshot has {} bytes; at most {max} are allowed", body.len());
            return Err(super::env::invalid(ErrorCode::InvalidSize, message));
        }
        draft.state(body, turn.stamp());
        Ok(flow)
    }

    // Errors that the author of the program made are failures of the function that made them.
    fn check_entry(&self, workflow: &Workflow) -> Result<(), Error> {
        let Step::Llm { request, .. } = &workflow.step else { return Ok(()) };
        let provider = self.agent.provider_named(&request.provider)?;
        if let Some(function) = &request.on_overflow {
            self.agent.trampoline.version_of(function)?;
        }
        check_price(&self.live().progress.budgets, &request.model, self.agent.prices())?;
        let transcript =
            request.transcript.as_ref().and_then(|name| workflow.transcripts.get(name));
        match (transcript, &request.transcript) {
            (Some(transcript), Some(name)) => transcript.check_format(name, provider.wire_format()),
            _ => Ok(()),
        }
    }

    fn end(&self, turn: &mut Turn, draft: &mut Draft, live: &Live) -> Result<(), Error> {
        let workflow = &live.workflow;
        let output = match &self.agent.output_key {
            _ if live.progress.branch => Body::of(&json!({
                "env": state::stored_env(&workflow.env, &live.stored),
                "transcripts": serde_json::to_value(&workflow.transcripts).map_err(unwritable)?,
            }))?,
            Some(key) => Body::of(&workflow.env.value(key))?,
            None => Body::of(&workflow.env.to_map())?,
        };
        let output = kit::check_output(output, turn.limits())?;
        let Step::Halt { explicit, discarded } = workflow.step else { return Ok(()) };
        let payload = json!({
            "reason": if explicit { "explicit_halt" } else { "stack_exhausted" },
            "discarded_depth": discarded, "env_digest": workflow.env_digest(),
            "env_keys": workflow.env.len(), "output_bytes": output.len(),
        });
        turn.end(draft, WORKFLOW_HALTED, &payload, End::Complete(output))
    }
}

fn unwritable(source: serde_json::Error) -> Error {
    super::env::invalid(ErrorCode::AgentSnapshotInvalid, "a transcript cannot be written")
        .with_source(source)
}

/// The workflow with which a run begins: its input is the env.
pub(crate) fn first_workflow(agent: &Agent, id: &str, input: Value) -> Result<Workflow, Error> {
    let version = agent.trampoline.version_of(&agent.entry)?;
    let mut workflow = Workflow::new(id, "");
    workflow.step = Step::Call { function: agent.entry.clone(), version };
    match input {
        Value::Object(members) => {
            let members = members.iter();
            let own = members.filter(|(key, _)| agent.budget_input.as_ref() != Some(*key));
            for (key, value) in own {
                workflow.set(key, value)?;
            }
        }
        Value::Null => {}
        other => workflow.set("input", &other)?,
    }
    workflow.env.mark();
    Ok(workflow)
}

/// Writes the events that a function recorded.
pub(crate) fn record(
    turn: &mut Turn,
    draft: &mut Draft,
    events: &[PendingWorkflowEvent],
) -> Result<(), Error> {
    let limits = turn.limits().clone();
    for event in events {
        let PendingWorkflowEvent { event_id, event_type, event_version, cause, payload } = event;
        let stamp = Stamp { event_id: *event_id, at: turn.stamp().at };
        match cause {
            PendingCause::Automatic => {
                draft.record_event(event_type, *event_version, payload, stamp, &limits)?;
            }
            PendingCause::Explicit(cause) => {
                let version = *event_version;
                draft
                    .record_event_caused_by(event_type, version, payload, *cause, stamp, &limits)?;
            }
        }
    }
    Ok(())
}

/// Polls user code until it is done, and stops when somebody cancels the run. A pause waits until it is done.
pub(crate) async fn drive<T>(
    turn: &mut Turn,
    work: impl Future<Output = T>,
) -> Result<Driven<T>, TurnError> {
    let mut work = pin!(work);
    loop {
        let mut done = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(ready) = work.as_mut().poll(cx) {
                done = Some(ready);
                return Poll::Ready(());
            }
            turn.poll_notified(cx)
        })
        .await;
        if turn.is_lost() {
            return Err(TurnError::Lost);
        }
        if let Some(done) = done {
            return Ok(Driven::Done(done));
        }
        if turn.has_unread() {
            turn.read_messages().await?;
        }
        if turn.control().is_some_and(|(control, _)| matches!(control, Control::Cancel)) {
            return Ok(Driven::Cancelled);
        }
    }
}

impl Program for AgentProgram {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(self.advance(turn))
    }

    fn bytes(&self) -> usize {
        let items = self.live.as_ref().map_or(0, |live| {
            let transcripts = live.workflow.transcripts.values();
            transcripts.flat_map(|t| t.items()).map(|item| item.get().len() + 16).sum()
        });
        let env = self.live.as_ref().map_or(0, |live| {
            live.workflow.env.entries().map(|(key, _, summary)| key.len() + summary.bytes).sum()
        });
        let built = self.live.as_ref().and_then(|live| live.built.as_ref());
        2_000 + items + env + built.map_or(0, |(_, body)| body.len())
    }
}
