//! A relay as the engine serves it: its runner, its hook and its policy, without their types.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use serde_json::value::RawValue;
use windlass_engine::{
    EFFECTS_QUEUE, EngineParts, GivenUp, Model, ModelDescription, Opened, Program, StartRun,
    TaskBody, TaskContext, TaskFailure, TaskHandler, TaskResult, Template, panic_text,
    read_headers,
};
use windlass_kernel::{
    Body, BoxFuture, Error, ErrorCode, ErrorKind, Loaded, OnEnd, QueueName, RetryPolicy, RouteName,
    Run, RunStatus, Store, WorkflowName, bodies,
};

use super::description::{DESCRIPTION, NAME};
use super::hook::{HookError, RunOutcome, TerminalHook, TerminalStatus};
use super::outcome::{RelayError, StepOutcome, StepRunner};
use super::program::RelayProgram;
use super::spec::header_rules;
use super::step::RelayStep;

/// The result of one attempt of a step.
pub(crate) type Ran = Result<StepOutcome, RelayError>;

/// Serves the runs of one relay.
pub(crate) struct Relay {
    pub(crate) run: Box<dyn Fn(Arc<RelayStep>) -> BoxFuture<'static, Ran> + Send + Sync>,
    pub(crate) retry: RetryPolicy,
    pub(crate) engine: EngineParts,
    on_end: OnEndFor,
    template: Template,
}

// The effect at the end of a run with these headers.
type OnEndFor =
    Box<dyn Fn(&BTreeMap<String, String>) -> Result<Option<Arc<str>>, Error> + Send + Sync>;

/// How a relay is served.
pub(crate) struct Terms {
    pub(crate) name: WorkflowName,
    pub(crate) retry: RetryPolicy,
}

impl Relay {
    pub(crate) fn new<R: StepRunner, H: TerminalHook>(
        runner: R,
        hook: Arc<H>,
        terms: Terms,
        engine: EngineParts,
    ) -> Result<Self, Error> {
        let runner = Arc::new(runner);
        let run = move |step: Arc<RelayStep>| -> BoxFuture<'static, Ran> {
            let runner = Arc::clone(&runner);
            Box::pin(async move {
                // The call inside as well: a runner may panic before it has made its future.
                let work = AssertUnwindSafe(async { runner.run_step(&step).await });
                work.catch_unwind().await.unwrap_or_else(|panic| {
                    Err(RelayError::transient(format!(
                        "the step panicked: {}",
                        panic_text(&*panic)
                    )))
                })
            })
        };
        let name = hook_route(&terms.name)?;
        let unasked = hook.listens().then(|| told_by(&*hook, &name, ASK)).transpose()?;
        let on_end = move |headers: &BTreeMap<String, String>| match hook.wants(headers)? {
            true => told_by(&*hook, &name, "{}").map(Some),
            false => Ok(None),
        };
        let template = Template { model: NAME, on_end: unasked, headers: Some(header_rules()) };
        let (run, on_end) = (Box::new(run), Box::new(on_end));
        Ok(Self { run, retry: terms.retry, engine, on_end, template })
    }
}

// The input of a hook's task whose run was created where the hook could not be asked.
const ASK: &str = r#"{"ask":true}"#;

// The effect that calls the hook at the end of a run.
fn told_by<H: TerminalHook>(hook: &H, name: &RouteName, input: &str) -> Result<Arc<str>, Error> {
    let timeout = u64::try_from(hook.timeout().as_millis()).unwrap_or(u64::MAX);
    let body = TaskBody {
        input: RawValue::from_string(input.to_owned()).map_err(internal)?,
        retry: hook.retry(),
        start_to_close_ms: Some(timeout),
        heartbeat_ms: None,
        close_by: None,
        breaker: None,
        receipt: false,
        wakes_run: false,
    };
    let body = serde_json::value::to_raw_value(&body).map_err(internal)?;
    let queue = QueueName::from_stored(EFFECTS_QUEUE);
    OnEnd { queue, name: name.clone(), body }.to_json()
}

fn internal(source: serde_json::Error) -> Error {
    Error::new(ErrorKind::Internal, ErrorCode::Internal, "a hook's task cannot be written")
        .with_source(source)
}

/// The name of the tasks of a relay's hook.
pub(crate) fn hook_route(relay: &WorkflowName) -> Result<RouteName, Error> {
    RouteName::new(format!("hook:{relay}")).map_err(|_| {
        let message = format!(
            "the relay's name {relay:?} is too long: with \"hook:\" before it, it may have 64 \
             characters"
        );
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidName, message)
    })
}

/// The headers of a run.
pub(crate) fn headers_of(run: &Run) -> Result<BTreeMap<String, String>, Error> {
    read_headers(run.headers.as_deref())
}

pub(crate) struct RelayModel(pub(crate) Arc<Relay>);

impl Model for RelayModel {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn prepare(&self, start: &mut StartRun) -> Result<(), Error> {
        let headers = read_headers(start.headers.as_deref())?;
        header_rules().check(&headers)?;
        start.on_end = (self.0.on_end)(&headers)?;
        Ok(())
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let (run, steps) = (opened.run(), opened.steps());
        Ok(Box::new(RelayProgram::open(Arc::clone(&self.0), run, steps)?))
    }

    fn template(&self) -> Option<Template> {
        Some(self.0.template.clone())
    }

    fn give_up(&self, given_up: GivenUp<'_>) -> Result<bool, Error> {
        let Loaded { run, steps, .. } = given_up.loaded;
        RelayProgram::open(Arc::clone(&self.0), run, steps)?.give_up(given_up)?;
        Ok(true)
    }
}

/// Delivers the ends of runs to a hook.
pub(crate) struct HookHandler<H> {
    pub(crate) hook: Arc<H>,
    pub(crate) store: Arc<dyn Store>,
}

impl<H: TerminalHook> TaskHandler for HookHandler<H> {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let (hook, store) = (Arc::clone(&self.hook), Arc::clone(&self.store));
        let asks = input.bytes.as_ref() == ASK.as_bytes();
        Box::pin(async move {
            let outcome = read_outcome(&*store, &context).await.map_err(refused)?;
            match asks.then(|| hook.wants(&outcome.headers)) {
                Some(Ok(false)) => return Ok(Body::json("null")),
                _ if !hook.can_tell() => return Err(not_here()),
                Some(Err(error)) => return Err(refused(error)),
                Some(Ok(true)) | None => {}
            }
            match hook.on_termination(&outcome).await {
                Ok(()) => Ok(Body::json("null")),
                Err(error) => Err(failure(&error)),
            }
        })
    }
}

fn refused(error: Error) -> TaskFailure {
    TaskFailure::new(error.code().as_str(), error.to_string(), error.is_retryable())
}

fn not_here() -> TaskFailure {
    TaskFailure::not_here("this process does not serve the hook")
}

fn failure(error: &HookError) -> TaskFailure {
    let name = if error.is_permanent() { "HookRefused" } else { "HookFailed" };
    let name = error.name().unwrap_or(name);
    let failure = TaskFailure::new(name, error.message(), !error.is_permanent());
    TaskFailure { retry_after: error.delay_min(), ..failure }
}

// The run's row has its end and does not change any more.
async fn read_outcome(store: &dyn Store, context: &TaskContext) -> Result<RunOutcome, Error> {
    let run_key = context.run_key.ok_or_else(|| Error::corrupt("a hook's task names no run"))?;
    let mut run =
        store.run_overview_by_key(run_key).await?.map(|overview| overview.run).ok_or_else(
            || {
                Error::new(
                    ErrorKind::NotFound,
                    ErrorCode::RunNotFound,
                    format!("there is no run {run_key}"),
                )
            },
        )?;
    bodies::fill(store, bodies::of_run(&mut run)).await?;
    let Some(status) = terminal(run.status) else {
        return Err(Error::corrupt(format!("run {run_key} has not ended")));
    };
    Ok(RunOutcome {
        id: context.idempotency_key(),
        run_id: run.id.as_str().to_owned(),
        run_key,
        generation: run.generation,
        workflow: run.workflow.as_str().to_owned(),
        namespace: run.namespace.as_str().to_owned(),
        status,
        headers: headers_of(&run)?,
        ended_at: run.ended_at.unwrap_or(run.updated_at),
        error: run.error.as_ref().map(message_of),
        result: run.output.map(|output| output.bytes),
        attempt: context.attempt,
    })
}

/// How a run ended, in the words of relays.
pub(crate) fn terminal(status: RunStatus) -> Option<TerminalStatus> {
    match status {
        RunStatus::Complete => Some(TerminalStatus::Succeeded),
        RunStatus::Errored => Some(TerminalStatus::Failed),
        RunStatus::Terminated => Some(TerminalStatus::Cancelled),
        RunStatus::Active | RunStatus::Waiting | RunStatus::Paused => None,
    }
}

/// The message of an error.
pub(crate) fn message_of(error: &Body) -> String {
    let value: Option<serde_json::Value> = error.read().ok();
    let message = value.as_ref().and_then(|value| value.get("message")?.as_str());
    match message {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(&error.bytes).into_owned(),
    }
}
