//! Registers relays; starts, finds and describes their runs.

use std::sync::Arc;

use bytes::Bytes;
use windlass_engine::{EFFECTS_QUEUE, Engine, Serving, events};
use windlass_kernel::{
    Body, BodyOwner, Error, ErrorCode, ErrorKind, Event, IntoDuration, Query, QueueName,
    RetryLimit, RetryPolicy, Route, Run, RunKey, RunOverview, RunStatus, StepStatus, bodies,
};

use super::description::{
    DESCRIPTION, MEMO_RECORDED, NAME, RELAY, RETRY, SIGNAL_TIMED_OUT, STEP_CANCELLED,
    STEP_COMPLETED, STEP_FAILED, STEP_RETRIED,
};
use super::group::RunGroup;
use super::hook::{TerminalHook, TerminalStatus};
use super::outcome::StepRunner;
use super::program::delay_max;
use super::relay::{
    HookHandler, Relay, RelayModel, Terms, headers_of, hook_route, message_of, terminal,
};
use super::spec::{RESERVED_PREFIX, RunSpec, header_rules};
use crate::run::{RunHandle, is_continued};
use crate::workflow_ref::{Due, Format, Start, StartRequest, StartRules, WorkflowRef};

/// How much of a ledger is read at once.
const EVENTS_AT_ONCE: u64 = 50;

/// A relay that is about to be registered. [`RelayBuilder::build`] registers it.
pub struct RelayBuilder<R, H> {
    engine: Engine,
    runner: R,
    hook: H,
    name: String,
    retry: RetryPolicy,
    concurrency: Option<usize>,
    refused: Option<String>,
}

impl<R: StepRunner, H: TerminalHook> RelayBuilder<R, H> {
    /// The name of the relay, the same in every process. Default `relay`.
    ///
    /// ```
    /// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
    /// # struct Report;
    /// # impl StepRunner for Report {
    /// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// #         Ok(StepOutcome::done(step.payload.clone()))
    /// #     }
    /// # }
    /// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
    /// engine.relay("draft", Report, NoopTerminalHook).name("report").build()?;
    /// # Ok(()) }
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many runs this process takes at once, each with one step at a time; it leaves the others
    /// to other processes that serve the relay. Default: `turns_max` of the engine.
    ///
    /// ```
    /// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
    /// # struct Report;
    /// # impl StepRunner for Report {
    /// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// #         Ok(StepOutcome::done(step.payload.clone()))
    /// #     }
    /// # }
    /// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
    /// engine.relay("report", Report, NoopTerminalHook).concurrency(8).build()?;
    /// # Ok(()) }
    /// ```
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.concurrency = Some(runs);
        self
    }

    /// How often a step is tried again after its first attempt. Default 2.
    ///
    /// ```
    /// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
    /// # struct Report;
    /// # impl StepRunner for Report {
    /// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// #         Ok(StepOutcome::done(step.payload.clone()))
    /// #     }
    /// # }
    /// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
    /// engine.relay("report", Report, NoopTerminalHook).retries(4).build()?;
    /// # Ok(()) }
    /// ```
    pub fn retries(mut self, retries: impl Into<RetryLimit>) -> Self {
        self.retry.limit = retries.into();
        self
    }

    /// The delay before the second attempt, and the longest delay; it doubles each time. Default one
    /// second and one minute. Text such as `"5 seconds"`, or a `Duration`.
    ///
    /// ```
    /// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
    /// # struct Report;
    /// # impl StepRunner for Report {
    /// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// #         Ok(StepOutcome::done(step.payload.clone()))
    /// #     }
    /// # }
    /// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
    /// engine.relay("report", Report, NoopTerminalHook).backoff("1 second", "1 minute").build()?;
    /// # Ok(()) }
    /// ```
    pub fn backoff(mut self, delay: impl IntoDuration, max_delay: impl IntoDuration) -> Self {
        match (delay.into_duration(), max_delay.into_duration()) {
            (Ok(delay), Ok(max_delay)) => {
                self.retry.delay = delay;
                self.retry.max_delay = Some(max_delay);
            }
            (Err(error), _) | (_, Err(error)) => self.refused = Some(error.to_string()),
        }
        self
    }

    /// Replaces the whole retry policy.
    ///
    /// ```
    /// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
    /// # struct Report;
    /// # impl StepRunner for Report {
    /// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// #         Ok(StepOutcome::done(step.payload.clone()))
    /// #     }
    /// # }
    /// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
    /// use windlass::RetryPolicy;
    ///
    /// engine.relay("report", Report, NoopTerminalHook).retry_policy(RetryPolicy::none()).build()?;
    /// # Ok(()) }
    /// ```
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Registers the relay: from now on this process serves its runs and its hook.
    ///
    /// ```
    /// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
    /// # struct Report;
    /// # impl StepRunner for Report {
    /// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// #         Ok(StepOutcome::done(step.payload.clone()))
    /// #     }
    /// # }
    /// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
    /// let reports = engine.relay("report", Report, NoopTerminalHook).build()?;
    /// # drop(reports);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`] if an option is not valid, [`ErrorCode::WorkflowExists`] if a workflow
    /// with this name is registered.
    pub fn build(self) -> Result<WorkflowRef<Bytes, Bytes>, Error> {
        let Self { engine, runner, hook, name, retry, concurrency, refused } = self;
        let invalid =
            |message: String| Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message);
        if let Some(refused) = refused {
            return Err(invalid(format!("the relay's backoff: {refused}")));
        }
        let workflow_ref = remote(&engine, name)?;
        let name = workflow_ref.name.clone();
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
        let hook = Arc::new(hook);
        let terms = Terms { name: name.clone(), retry };
        let relay = Relay::new(runner, Arc::clone(&hook), terms, engine.parts())?;
        let serving = Serving { slots: concurrency };
        engine.register_with(name.clone(), Arc::new(RelayModel(Arc::new(relay))), serving)?;
        let route =
            Route { queue: QueueName::from_stored(EFFECTS_QUEUE), name: hook_route(&name)? };
        let handler = HookHandler { hook, store: Arc::clone(engine.store()) };
        engine.serve_tasks(route, Arc::new(handler))?;
        Ok(workflow_ref)
    }
}

/// A builder of a relay on an engine.
///
/// ```
/// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
/// # struct Report;
/// # impl StepRunner for Report {
/// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
/// #         Ok(StepOutcome::done(step.payload.clone()))
/// #     }
/// # }
/// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
/// let reports = windlass::relays::relay(engine.core(), "report", Report, NoopTerminalHook).build()?;
/// # drop(reports);
/// # Ok(()) }
/// ```
pub fn relay<R: StepRunner, H: TerminalHook>(
    engine: &Engine,
    name: impl Into<String>,
    runner: R,
    hook: H,
) -> RelayBuilder<R, H> {
    RelayBuilder {
        engine: engine.clone(),
        runner,
        hook,
        name: name.into(),
        retry: RETRY,
        concurrency: None,
        refused: None,
    }
}

/// A relay that another process serves: this process can start, find, signal and cancel its runs.
///
/// ```
/// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
/// let reports = windlass::relays::remote(engine.core(), "report")?;
/// # drop(reports);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The name is not valid.
pub fn remote(engine: &Engine, name: impl AsRef<str>) -> Result<WorkflowRef<Bytes, Bytes>, Error> {
    let format = Format {
        model: &DESCRIPTION,
        start: Some(&START),
        encode: |input: &Bytes, _| Ok(Body::bytes(input.clone())),
        decode: |output| Ok(output.bytes.clone()),
    };
    WorkflowRef::new(engine, name, format)
}

static START: StartRules =
    StartRules { check: |request| Box::pin(check_start(request)), error: start_error };

// Refuses a start that no process could serve.
async fn check_start(request: StartRequest<'_>) -> Result<(), Error> {
    let StartRequest { engine, name, headers, labels, delay } = request;
    header_rules().check(headers)?;
    if let Some(key) = labels.keys().find(|key| key.starts_with(RESERVED_PREFIX)) {
        return Err(header_rules().refused("label", key));
    }
    if engine.model_known(name).await? != Some(NAME) {
        let message = format!(
            "no process has served a relay {name:?} on this store, so the tasks that the end of a run \
             enqueues are not known; serve the relay first, or check its name"
        );
        return Err(Error::new(ErrorKind::NotFound, ErrorCode::WorkflowNotFound, message));
    }
    let days = engine.options().limits.sleep_days_max;
    match delay {
        Some(delay) if delay > delay_max(days) => {
            let message = format!("the run's delay is {delay:?}; at most {days} days are allowed");
            Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, message))
        }
        _ => Ok(()),
    }
}

// A relay has a code of its own for a run that exists.
fn start_error(error: Error) -> Error {
    match error.code() {
        ErrorCode::RunExists => Error::new(error.kind(), ErrorCode::DuplicateRun, error.message()),
        _ => error,
    }
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

/// Where a run of a relay is, in the words of relays.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
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
    /// Its final status.
    pub result: Option<Bytes>,
    /// Why it failed or was cancelled.
    pub error: Option<String>,
    /// The headers that the run was started with.
    pub headers: std::collections::BTreeMap<String, String>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The run.
    pub run_id: String,
    /// How it ended.
    pub status: TerminalStatus,
    /// The result, if it succeeded.
    pub result: Option<Bytes>,
    /// Why it failed or was cancelled.
    pub error: Option<String>,
}

impl WorkflowRef<Bytes, Bytes> {
    /// Starts a run of a relay from a [`RunSpec`]. Await the returned [`Start`].
    ///
    /// ```
    /// # async fn example(relay: windlass::WorkflowRef<bytes::Bytes, bytes::Bytes>) -> windlass::Result<()> {
    /// use windlass::relays::RunSpec;
    ///
    /// let run = relay.start_from(RunSpec::new("figures").id("report-1")).await?;
    /// # drop(run);
    /// # Ok(()) }
    /// ```
    pub fn start_from(&self, spec: RunSpec) -> Start<Bytes, Bytes> {
        let RunSpec { run_id, input, headers, labels, priority, delay, json } = spec;
        let mut start = self.start(input.into());
        if json {
            start = start.json();
        }
        start.id = run_id;
        (start.headers, start.labels, start.priority) = (headers, labels, priority);
        start.due = delay.map(|delay| Ok(Due::After(delay)));
        start
    }

    /// A group: runs of a relay that belong together.
    ///
    /// ```
    /// # async fn example(relay: windlass::WorkflowRef<bytes::Bytes, bytes::Bytes>) -> windlass::Result<()> {
    /// let night = relay.group("night-1");
    /// println!("{}", night.counts().await?.total());
    /// # Ok(()) }
    /// ```
    pub fn group(&self, name: impl Into<String>) -> RunGroup {
        RunGroup { relay: self.clone(), name: name.into() }
    }
}

impl Start<Bytes, Bytes> {
    /// Says that the input of a relay's run is JSON: tools then show it as JSON, and payloads and the result
    /// too where they are JSON.
    ///
    /// ```
    /// # async fn example(relay: windlass::WorkflowRef<bytes::Bytes, bytes::Bytes>) -> windlass::Result<()> {
    /// let run = relay.start(r#"{"topic": "ropes"}"#.into()).json().await?;
    /// # drop(run);
    /// # Ok(()) }
    /// ```
    pub fn json(mut self) -> Self {
        self.input = self.input.map(|body| Body::json(body.bytes));
        self
    }
}

impl RunHandle<Bytes> {
    /// Where a run of a relay is: its step, its attempts, its headers.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<bytes::Bytes>) -> windlass::Result<()> {
    /// let status = run.relay_status().await?;
    /// println!("step {}", status.step);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more.
    pub async fn relay_status(&self) -> Result<RelayStatus, Error> {
        let RunOverview { mut run, open_steps } = self.overview().await?;
        let owner = BodyOwner::Run(run.run_key);
        let large = [run.output.as_mut(), run.error.as_mut()].into_iter().flatten();
        let large = large.map(|body| (owner.clone(), body));
        bodies::fill(&**self.engine.store(), large).await?;
        let open = open_steps.iter().find(|step| step.kind == RELAY);
        let step = match open.and_then(|step| step.step_key.as_str().parse().ok()) {
            Some(number) => number,
            None => step_of(&self.engine, &run).await?,
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
        Ok(RelayStatus {
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
        })
    }

    /// Waits until a run of a relay has ended, and returns how: a run that failed is no error here.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<bytes::Bytes>) -> windlass::Result<()> {
    /// let finished = run.finished().await?;
    /// println!("{}", finished.status);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn finished(&self) -> Result<Finished, Error> {
        finished(&self.engine, self.run_key(), self.id()).await
    }

    /// Sends a signal with a payload of bytes to a relay.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<bytes::Bytes>) -> windlass::Result<()> {
    /// run.signal_bytes("go", "yes").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The run has ended, or the payload is too large.
    pub async fn signal_bytes(
        &self,
        name: impl AsRef<str>,
        payload: impl Into<Bytes>,
    ) -> Result<(), Error> {
        self.send_signal(name.as_ref(), Body::bytes(payload), None).await
    }

    /// As [`RunHandle::signal_bytes`], with an id: a second signal with the id of the first is dropped.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<bytes::Bytes>) -> windlass::Result<()> {
    /// run.signal_bytes_once("go", "yes", "go-1").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RunHandle::signal_bytes`].
    pub async fn signal_bytes_once(
        &self,
        name: impl AsRef<str>,
        payload: impl Into<Bytes>,
        id: impl AsRef<str>,
    ) -> Result<(), Error> {
        self.send_signal(name.as_ref(), Body::bytes(payload), Some(id.as_ref())).await
    }
}

/// Waits until a run has ended, and says how.
pub(crate) async fn finished(
    engine: &Engine,
    run_key: RunKey,
    run_id: &str,
) -> Result<Finished, Error> {
    let mut ended = engine.wait(run_key).await?;
    while is_continued(ended.output.as_ref()) {
        ended = engine.wait(engine.next_generation_of(ended.run_key).await?).await?;
    }
    let status = terminal(ended.status).ok_or_else(|| {
        let message = "the engine reported the end of a run that has not ended";
        Error::new(ErrorKind::Internal, ErrorCode::Internal, message)
    })?;
    Ok(Finished {
        run_id: run_id.to_owned(),
        status,
        result: ended.output.map(|output| output.bytes),
        error: ended.error.as_ref().map(message_of),
    })
}

// The number of the step that comes next, or came last. The end of the ledger has it without the payloads
// of the steps.
async fn step_of(engine: &Engine, run: &Run) -> Result<u32, Error> {
    let mut until = run.head.next_ordinal;
    while until > 0 {
        let from = until.saturating_sub(EVENTS_AT_ONCE);
        let limit = (until - from) as u32;
        let query = Query::Events { run_key: run.run_key, from, limit };
        let page = engine.store().list(query).await?.events()?;
        if let Some(number) = page.iter().rev().find_map(step_after) {
            return Ok(number);
        }
        until = from;
    }
    Ok(0)
}

// The step that a run is at after an event of its ledger, if that tells.
fn step_after(event: &Event) -> Option<u32> {
    let said = event.payload_json().ok()?;
    let number = || said["step"].as_u64().and_then(|number| u32::try_from(number).ok());
    let of_step = [
        STEP_COMPLETED,
        STEP_RETRIED,
        STEP_FAILED,
        STEP_CANCELLED,
        MEMO_RECORDED,
        SIGNAL_TIMED_OUT,
    ];
    match &event.event_type {
        kind if *kind == STEP_COMPLETED && said.get("outcome").is_none() => Some(number()? + 1),
        kind if of_step.contains(kind) => number(),
        // A memo is of the step whose number stands before its name.
        kind if *kind == events::STEP_CARRIED => match said["key"].as_str()?.split_once('/') {
            Some((number, _)) => number.parse().ok(),
            None => Some(said["key"].as_str()?.parse::<u32>().ok()? + 1),
        },
        _ => None,
    }
}
