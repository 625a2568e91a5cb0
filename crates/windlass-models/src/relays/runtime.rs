//! Serving a relay, submitting its runs, and asking after them from any process.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use windlass_engine::{EFFECTS_QUEUE, Engine, Serving, StartRun};
use windlass_kernel::{
    Actor, Body, Error, ErrorKind, Event, Looked, MessageId, MessageName, Query, QueueName,
    RetryLimit, RetryPolicy, Route, Run, RunId, RunKey, RunStatus, StepStatus, WorkflowName,
};

use super::group::RunGroup;
use super::hook::{TerminalHook, TerminalStatus};
use super::outcome::StepRunner;
use super::program::{STEP_KIND, delay_max};
use super::relay::{
    HookHandler, Relay, RelayModel, Terms, headers_of, hook_route, message_of, model_name, terminal,
};
use super::spec::RunSpec;

/// How much of a ledger is read at once.
const EVENTS_AT_ONCE: u64 = 50;

/// A relay: what submits runs of it, and asks after them. Cheap to clone.
#[derive(Clone)]
pub struct WorkflowRuntime {
    pub(crate) engine: Engine,
    pub(crate) name: WorkflowName,
}

/// A relay in the making.
pub struct RuntimeBuilder<R, H> {
    engine: Engine,
    runner: R,
    hook: H,
    name: String,
    retry: RetryPolicy,
    concurrency: Option<usize>,
    untried: bool,
}

impl<R: StepRunner, H: TerminalHook> RuntimeBuilder<R, H> {
    /// What the relay is called: its runs are found by it, in every process. Default `relay`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many runs this process takes at once, each with one step at a time; the others are left
    /// to whoever else serves the relay. Default: as many as the engine takes turns.
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.concurrency = Some(runs);
        self
    }

    /// How often a step is tried, the first time included; at least once. Default 3.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.untried = attempts == 0;
        self.retry.limit = RetryLimit::Times(attempts.saturating_sub(1));
        self
    }

    /// The delay before a second attempt, and the most to which doubling it may lead. Default one
    /// second and one minute.
    pub fn backoff(mut self, delay: Duration, max_delay: Duration) -> Self {
        self.retry.delay = delay;
        self.retry.max_delay = Some(max_delay);
        self
    }

    /// What to do about failed attempts, all of it.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.untried = false;
        self.retry = policy;
        self
    }

    /// Registers the relay: this process serves its runs and its hook from now on.
    pub fn build(self) -> Result<WorkflowRuntime, Error> {
        let Self { engine, runner, hook, name, retry, concurrency, untried } = self;
        let invalid = |message: String| Error::new(ErrorKind::Invalid, "INVALID_OPTION", message);
        let name = WorkflowName::with_limits(name, &engine.options().limits)?;
        retry.validate().map_err(|source| invalid(format!("the relay's policy: {source}")))?;
        hook.retry()
            .validate()
            .map_err(|source| invalid(format!("the hook's policy: {source}")))?;
        if hook.timeout().is_zero() {
            return Err(invalid("the hook's timeout is zero; give it some time".into()));
        }
        if concurrency == Some(0) {
            return Err(invalid(
                "concurrency is 0; a relay needs room for at least one step".into(),
            ));
        }
        if untried {
            return Err(invalid("max_attempts is 0; a step is tried at least once".into()));
        }
        let hook = Arc::new(hook);
        let terms = Terms { name: name.clone(), retry };
        let relay = Relay::new(runner, Arc::clone(&hook), terms, engine.parts())?;
        let serving = Serving { slots: concurrency };
        engine.register_with(name.clone(), Arc::new(RelayModel(Arc::new(relay))), serving)?;
        let route =
            Route { queue: QueueName::from_stored(EFFECTS_QUEUE), name: hook_route(&name)? };
        let handler = HookHandler { hook, store: Arc::clone(engine.store()) };
        engine.serve_tasks(route, Arc::new(handler))?;
        Ok(WorkflowRuntime { engine, name })
    }
}

/// A run that was submitted, or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The run.
    pub run_id: String,
    /// Its generation's key.
    pub run_key: RunKey,
    /// Whether it had been submitted before.
    pub existed: bool,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunState {
    /// It waits for a process to take it.
    Queued,
    /// Its next step is due later: it was put off, or is to be tried again.
    Scheduled,
    /// A process has it.
    Running,
    /// Its next step waits for a signal.
    AwaitingSignal,
    /// An operator stopped it.
    Paused,
    /// It has ended.
    Ended(TerminalStatus),
}

/// What is known of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// The run.
    pub run_id: String,
    /// Its generation's key.
    pub run_key: RunKey,
    /// Which generation that is, from 0.
    pub generation: u32,
    /// Where it is.
    pub state: RunState,
    /// Whether it has been cancelled and has not ended yet.
    pub cancelling: bool,
    /// How many steps have handed on their payload: the number of the one that comes next, or last.
    pub step: u32,
    /// How often that one has failed.
    pub failed_attempts: u32,
    /// What it ended with.
    pub result: Option<Bytes>,
    /// Why it failed or was cancelled.
    pub error: Option<String>,
    /// The submitter's headers.
    pub headers: std::collections::BTreeMap<String, String>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The run.
    pub run_id: String,
    /// How it ended.
    pub status: TerminalStatus,
    /// What it ended with, if it succeeded.
    pub result: Option<Bytes>,
    /// Why it failed or was cancelled.
    pub error: Option<String>,
}

impl WorkflowRuntime {
    /// A relay in the making.
    pub fn builder<R: StepRunner, H: TerminalHook>(
        engine: &Engine,
        runner: R,
        hook: H,
    ) -> RuntimeBuilder<R, H> {
        RuntimeBuilder {
            engine: engine.clone(),
            runner,
            hook,
            name: "relay".into(),
            retry: RetryPolicy::relays(),
            concurrency: None,
            untried: false,
        }
    }

    /// A relay that another process serves: its runs can be submitted, asked after, signalled and
    /// cancelled from here, also while nobody serves it.
    pub fn remote(engine: &Engine, name: impl AsRef<str>) -> Result<Self, Error> {
        let name = WorkflowName::with_limits(name, &engine.options().limits)?;
        Ok(Self { engine: engine.clone(), name })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Submits a run. With a name it is idempotent: the same input finds the run, also when it has
    /// ended; another input is `DUPLICATE_RUN`.
    pub async fn submit(&self, spec: RunSpec) -> Result<Submitted, Error> {
        spec.validate()?;
        self.submit_as(spec).await
    }

    pub(crate) async fn submit_as(&self, spec: RunSpec) -> Result<Submitted, Error> {
        if self.engine.model_known(&self.name).await? != Some(model_name()) {
            let message = format!(
                "no process has served a relay {:?} on this store, so what its runs' ends enqueue is \
                 not known; serve it first, or look at its name",
                self.name
            );
            return Err(Error::new(ErrorKind::NotFound, "WORKFLOW_NOT_FOUND", message));
        }
        let RunSpec { run_id, input, headers, labels, priority, delay, json } = spec;
        let input = if json { Body::json(input) } else { Body::bytes(input) };
        let mut start = StartRun::new(self.name.clone(), model_name(), input);
        let limits = &self.engine.options().limits;
        let days = limits.sleep_days_max;
        if let Some(delay) = delay.filter(|delay| *delay > delay_max(days)) {
            let message = format!("the run's delay is {delay:?}; at most {days} days are allowed");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_DURATION", message));
        }
        start.id = run_id.map(|id| RunId::with_limits(id, limits)).transpose()?;
        start.labels = labels;
        start.priority = priority;
        start.due_at = delay.map(|delay| self.engine.clock().now().plus(delay));
        if !headers.is_empty() {
            start.headers = Some(written(&headers)?);
        }
        let started = self.engine.start_run(start).await.map_err(|error| match error.code() {
            "RUN_EXISTS" => Error::new(error.kind(), "DUPLICATE_RUN", error.message()),
            _ => error,
        })?;
        Ok(Submitted {
            run_id: started.id.as_str().to_owned(),
            run_key: started.run_key,
            existed: started.existed,
        })
    }

    /// Many runs that belong together.
    pub fn group(&self, name: impl Into<String>) -> RunGroup {
        RunGroup { runtime: self.clone(), name: name.into() }
    }

    pub(crate) async fn find(&self, run_id: &str) -> Result<Option<Run>, Error> {
        self.engine.find_run(&self.name, &RunId::from_stored(run_id)).await
    }

    async fn found(&self, run_id: &str) -> Result<Run, Error> {
        self.find(run_id).await?.ok_or_else(|| {
            let message = format!("there is no run {run_id:?} of relay {:?}", self.name);
            Error::new(ErrorKind::NotFound, "RUN_NOT_FOUND", message)
        })
    }

    /// What is known of a run; nothing if there is none.
    pub async fn status(&self, run_id: &str) -> Result<Option<RunInfo>, Error> {
        let (namespace, id) = (self.engine.namespace().clone(), RunId::from_stored(run_id));
        let looked = self.engine.store().look(namespace, self.name.clone(), id).await?;
        let Some(Looked { run, open_steps }) = looked else { return Ok(None) };
        let open = open_steps.iter().find(|step| &*step.kind == STEP_KIND);
        let step = match open.and_then(|step| step.step_key.as_str().parse().ok()) {
            Some(number) => number,
            None => self.step_of(&run).await?,
        };
        let waits = open.is_some_and(|step| {
            step.wait_for.is_some() && step.attempt == 0 && step.status == StepStatus::Waiting
        });
        let state = match (terminal(run.status), run.status) {
            (Some(status), _) => RunState::Ended(status),
            (None, RunStatus::Paused) => RunState::Paused,
            _ if run.turn.worker.is_some() => RunState::Running,
            _ if run.turn.ready => RunState::Queued,
            _ if waits => RunState::AwaitingSignal,
            _ => RunState::Scheduled,
        };
        let cancelling = self.engine.is_cancelling(&run).await?;
        Ok(Some(RunInfo {
            run_id: run.id.as_str().to_owned(),
            run_key: run.run_key,
            generation: run.generation,
            state,
            cancelling,
            step,
            failed_attempts: open.map_or(0, |step| step.attempt),
            headers: headers_of(&run)?,
            error: run.error.as_ref().map(message_of),
            result: run.output.map(|output| output.bytes),
        }))
    }

    // The number of the step that comes next, or came last. The end of the ledger says it without what
    // the steps handed on.
    async fn step_of(&self, run: &Run) -> Result<u32, Error> {
        let mut until = run.head.next_ordinal;
        while until > 0 {
            let from = until.saturating_sub(EVENTS_AT_ONCE);
            let limit = (until - from) as u32;
            let query = Query::Events { run_key: run.run_key, from, limit };
            let page = self.engine.store().list(query).await?.events()?;
            if let Some(number) = page.iter().rev().find_map(step_after) {
                return Ok(number);
            }
            until = from;
        }
        Ok(0)
    }

    /// Waits until a run has ended.
    pub async fn wait(&self, run_id: &str) -> Result<Finished, Error> {
        let run = self.found(run_id).await?;
        self.ended(run.run_key, run_id).await
    }

    /// As [`WorkflowRuntime::wait`], for the generation that was submitted: it need not be looked up.
    pub async fn wait_for(&self, run: &Submitted) -> Result<Finished, Error> {
        self.ended(run.run_key, &run.run_id).await
    }

    pub(crate) async fn ended(&self, run_key: RunKey, run_id: &str) -> Result<Finished, Error> {
        let ended = self.engine.wait(run_key).await?;
        let status = terminal(ended.status).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "INTERNAL", "a run was waited for and has not ended")
        })?;
        Ok(Finished {
            run_id: run_id.to_owned(),
            status,
            result: ended.output.map(|output| output.bytes),
            error: ended.error.as_ref().map(message_of),
        })
    }

    /// Cancels a run, and returns when it has ended: `true` if it was cancelled, `false` if it is
    /// unknown or ended otherwise.
    ///
    /// A run that no process has at the moment ends in this very call. One whose step is running ends
    /// when the step returns: its token fires, and its outcome is discarded. Whoever does not want to
    /// wait for that may drop this call once `status` says `cancelling`: the request is durable.
    pub async fn cancel(&self, run_id: &str) -> Result<bool, Error> {
        self.cancel_because(run_id, "cancelled", None).await
    }

    /// As [`WorkflowRuntime::cancel`], with a reason and whoever asks for it.
    pub async fn cancel_because(
        &self,
        run_id: &str,
        reason: &str,
        actor: Option<Actor>,
    ) -> Result<bool, Error> {
        match self.find(run_id).await? {
            Some(run) => self.engine.cancel(run.run_key, Some(reason), actor).await,
            None => Ok(false),
        }
    }

    /// Sends a signal to a run. It waits until a step asks for it.
    pub async fn signal(
        &self,
        run_id: &str,
        signal: &str,
        payload: impl Into<Bytes>,
    ) -> Result<(), Error> {
        self.signal_with(run_id, signal, payload.into(), None).await
    }

    /// As [`WorkflowRuntime::signal`], with an id: sent again it is the same signal.
    pub async fn signal_once(
        &self,
        run_id: &str,
        signal: &str,
        payload: impl Into<Bytes>,
        id: &str,
    ) -> Result<(), Error> {
        let id = MessageId::with_limits(id, &self.engine.options().limits)?;
        self.signal_with(run_id, signal, payload.into(), Some(id)).await
    }

    async fn signal_with(
        &self,
        run_id: &str,
        signal: &str,
        payload: Bytes,
        id: Option<MessageId>,
    ) -> Result<(), Error> {
        let run = self.found(run_id).await?;
        let name = MessageName::with_limits(signal, &self.engine.options().limits)?;
        let body = Some(Body::bytes(payload));
        self.engine.send_event(run.run_key, name, body, id).await.map(|_| ())
    }

    /// Carries a failed run on as its next generation, at the step that failed.
    pub async fn retry(&self, run_id: &str) -> Result<RunKey, Error> {
        let run = self.found(run_id).await?;
        Ok(self.engine.retry(run.run_key, None).await?.run_key)
    }
}

// The step that a run is at after an event of its ledger, if that tells.
fn step_after(event: &Event) -> Option<u32> {
    let said = event.payload_json().ok()?;
    let number = || said["step"].as_u64().and_then(|number| u32::try_from(number).ok());
    match event.event_type.as_str() {
        "relay.step_completed" if said.get("outcome").is_none() => Some(number()? + 1),
        "relay.step_completed"
        | "relay.step_retried"
        | "relay.step_failed"
        | "relay.step_cancelled"
        | "relay.memo_recorded" => number(),
        // A memo is of the step whose number stands before its name.
        "step.carried" => match said["key"].as_str()?.split_once('/') {
            Some((number, _)) => number.parse().ok(),
            None => Some(said["key"].as_str()?.parse::<u32>().ok()? + 1),
        },
        _ => None,
    }
}

fn written(headers: &std::collections::BTreeMap<String, String>) -> Result<Arc<str>, Error> {
    let text = serde_json::to_string(headers).map_err(|source| {
        let message = "the headers cannot be written as JSON";
        Error::new(ErrorKind::Invalid, "INVALID_HEADERS", message).with_source(source)
    })?;
    Ok(text.into())
}
