//! Functions by name, and the loop that runs them one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::FutureExt;
use serde_json::{Map, Value};
use windlass_engine::panic_text;
use windlass_kernel::{BoxFuture, Error, ErrorCode, ErrorKind};

use super::continuation::{Choice, Continuation};
use super::env::{Env, invalid};
use super::observe::{
    EnvChangeSetSummary, FlowSummary, ObservabilityConfig, PendingWorkflowEvent, WorkflowNext,
};
use super::workflow::{Step, Workflow};
use crate::any_error::AnyError;

/// The result of a function.
pub type CallResult = Result<Choice, AnyError>;

/// An `async fn(&mut Workflow, Continuation) -> Result<Choice>`.
pub trait Function<'a>: Send + Sync + 'static {
    /// The future of a call.
    type Call: Future<Output = CallResult> + Send + 'a;

    /// Calls it.
    fn call(&self, workflow: &'a mut Workflow, continuation: Continuation) -> Self::Call;
}

impl<'a, F, Fut> Function<'a> for F
where
    F: Fn(&'a mut Workflow, Continuation) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = CallResult> + Send + 'a,
{
    type Call = Fut;

    fn call(&self, workflow: &'a mut Workflow, continuation: Continuation) -> Fut {
        self(workflow, continuation)
    }
}

type Boxed =
    dyn for<'a> Fn(&'a mut Workflow, Continuation) -> BoxFuture<'a, CallResult> + Send + Sync;
type Upcast = dyn Fn(&mut Map<String, Value>) -> Result<(), AnyError> + Send + Sync;

#[derive(Clone)]
struct Registered {
    version: u32,
    call: Arc<Boxed>,
}

/// The functions of a program.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use windlass_models::AnyError;
/// use windlass_models::agents::{Choice, Continuation, Trampoline, Workflow, WorkflowResult};
///
/// async fn double(workflow: &mut Workflow, next: Continuation) -> Result<Choice, AnyError> {
///     let n: u32 = workflow.get("n")?;
///     workflow.set("n", &(n * 2))?;
///     Ok(if n < 10 { next.call("double") } else { next.halt() })
/// }
///
/// let mut program = Trampoline::new();
/// program.register("double", double);
/// let mut workflow = Workflow::new("w-1", "double");
/// workflow.set("n", &3)?;
/// let outcome = program.run(workflow).await.map_err(AnyError::from)?;
/// let WorkflowResult::Halt(workflow) = outcome.result else { panic!("it halts") };
/// assert_eq!(workflow.get::<u32>("n")?, 24);
/// # Ok::<(), AnyError>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Trampoline {
    functions: BTreeMap<String, Registered>,
    renamed: BTreeMap<String, String>,
    upcasters: BTreeMap<(String, u32), Arc<Upcast>>,
    observability: ObservabilityConfig,
}

impl fmt::Debug for Trampoline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trampoline")
            .field("functions", &self.functions.keys())
            .finish_non_exhaustive()
    }
}

impl Trampoline {
    /// No functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a function. A second one with the same name replaces the first.
    pub fn register<F>(&mut self, name: impl Into<String>, function: F) -> &mut Self
    where
        F: for<'a> Function<'a>,
    {
        self.register_version(name, 1, function)
    }

    /// Registers a function that expects another env than a former version of it. Snapshots of the former
    /// version need [`Trampoline::upcast`].
    pub fn register_version<F>(
        &mut self,
        name: impl Into<String>,
        version: u32,
        function: F,
    ) -> &mut Self
    where
        F: for<'a> Function<'a>,
    {
        let function = Arc::new(function);
        self.register_boxed(name, version, move |workflow, continuation| {
            // The call inside as well: a function may panic before it has made its future.
            let function = Arc::clone(&function);
            Box::pin(async move { function.call(workflow, continuation).await })
        })
    }

    /// Registers a closure that returns a boxed future: `|workflow, next| Box::pin(async move { … })`.
    pub fn register_boxed<F>(
        &mut self,
        name: impl Into<String>,
        version: u32,
        function: F,
    ) -> &mut Self
    where
        F: for<'a> Fn(&'a mut Workflow, Continuation) -> BoxFuture<'a, CallResult>
            + Send
            + Sync
            + 'static,
    {
        self.functions.insert(name.into(), Registered { version, call: Arc::new(function) });
        self
    }

    /// Changes the env of a snapshot that waits for version `from` of a function, so that version `from + 1`
    /// can run.
    pub fn upcast<F>(&mut self, function: impl Into<String>, from: u32, change: F) -> &mut Self
    where
        F: Fn(&mut Map<String, Value>) -> Result<(), AnyError> + Send + Sync + 'static,
    {
        self.upcasters.insert((function.into(), from), Arc::new(change));
        self
    }

    /// Lets snapshots that name a function by an old name call it by its new name.
    pub fn rename(&mut self, old: impl Into<String>, new: impl Into<String>) -> &mut Self {
        self.renamed.insert(old.into(), new.into());
        self
    }

    /// Sets the limits of what functions record.
    pub fn observability(&mut self, config: ObservabilityConfig) -> &mut Self {
        self.observability = config;
        self
    }

    pub(crate) fn config(&self) -> ObservabilityConfig {
        self.observability
    }

    fn find(&self, name: &str) -> Option<(&str, &Registered)> {
        let found = self
            .functions
            .get_key_value(name)
            .or_else(|| self.renamed.get(name).and_then(|new| self.functions.get_key_value(new)));
        found.map(|(name, registered)| (name.as_str(), registered))
    }

    pub(crate) fn version_of(&self, name: &str) -> Result<u32, Error> {
        self.find(name).map(|(_, function)| function.version).ok_or_else(|| not_found(name))
    }

    /// Checks that this build can go on with a workflow: all functions that it will call are registered, and
    /// there are upcasters from their recorded versions.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::AgentFunctionNotFound`] or [`ErrorCode::AgentSnapshotInvalid`]; the message names the function.
    pub fn check(&self, workflow: &Workflow) -> Result<(), Error> {
        let steps = std::iter::once(&workflow.step).chain(&workflow.stack);
        for step in steps {
            match step {
                Step::Call { function, version } => self.check_version(function, *version)?,
                Step::ForkJoin { branches, join, join_version } => {
                    self.check_version(join, *join_version)?;
                    branches.iter().try_for_each(|b| self.version_of(&b.function).map(drop))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_version(&self, function: &str, version: u32) -> Result<(), Error> {
        let (name, registered) = self.find(function).ok_or_else(|| not_found(function))?;
        if version > registered.version {
            let message = format!(
                "the snapshot waits for version {version} of function {function:?}, and this build has \
                 version {}",
                registered.version
            );
            return Err(invalid(ErrorCode::AgentSnapshotInvalid, message));
        }
        for from in version..registered.version {
            if !self.upcasters.contains_key(&(name.to_owned(), from)) {
                let message = format!(
                    "the snapshot waits for version {version} of function {function:?}, and there is no \
                     upcaster from version {from}"
                );
                return Err(invalid(ErrorCode::AgentSnapshotInvalid, message));
            }
        }
        Ok(())
    }

    // Brings the env of a workflow to the form that the current function expects.
    fn prepare(&self, workflow: &mut Workflow) -> Result<Arc<Boxed>, Error> {
        let Step::Call { function, version } = &workflow.step else {
            let message = "the workflow does not wait for a function";
            return Err(invalid(ErrorCode::AgentSnapshotInvalid, message));
        };
        self.check_version(function, *version)?;
        let (name, registered) = self.find(function).ok_or_else(|| not_found(function))?;
        if *version < registered.version {
            let mut env = workflow.env.to_map();
            self.upcast_env(name, *version..registered.version, &mut env)?;
            workflow.env = Env::from_map(env);
        }
        let call = Arc::clone(&registered.call);
        let (function, version) = (name.to_owned(), registered.version);
        workflow.step = Step::Call { function, version };
        Ok(call)
    }

    fn upcast_env(
        &self,
        name: &str,
        versions: Range<u32>,
        env: &mut Map<String, Value>,
    ) -> Result<(), Error> {
        for from in versions {
            let change = &self.upcasters[&(name.to_owned(), from)];
            let changed = catch_unwind(AssertUnwindSafe(|| change(&mut *env)))
                .unwrap_or_else(|panic| Err(AnyError::msg(panic_text(&*panic))));
            changed.map_err(|error| {
                let message = format!(
                    "the upcaster of function {name:?} from version {from} failed: {error}"
                );
                invalid(ErrorCode::AgentSnapshotInvalid, message)
            })?;
        }
        Ok(())
    }

    /// Tries the upcasters of the function that runs next, on a copy of the env. A result that the workflow waits
    /// for is `null` there. Branches change the env before their join runs, so a join is not tried.
    pub(crate) fn try_upcasters(&self, workflow: &Workflow) -> Result<(), Error> {
        let mut env = workflow.env.to_map();
        let next = match &workflow.step {
            step @ Step::Call { .. } => Some(step),
            Step::Llm { output_key, .. }
            | Step::Human { output_key, .. }
            | Step::Tools { output_key, .. } => {
                env.entry(output_key.as_str()).or_insert(Value::Null);
                workflow.stack.last()
            }
            Step::ForkJoin { .. } | Step::Halt { .. } => None,
        };
        let Some(Step::Call { function, version }) = next else { return Ok(()) };
        let (name, registered) = self.find(function).ok_or_else(|| not_found(function))?;
        self.upcast_env(name, *version..registered.version, &mut env)
    }

    /// The next action of a workflow.
    pub fn next_action(&self, workflow: &Workflow) -> WorkflowNext {
        workflow.next()
    }

    /// Runs the function that a workflow waits for.
    ///
    /// # Errors
    ///
    /// A [`WorkflowError`] with the workflow as the function left it. Do not resume that one: resume the workflow
    /// as it was before the call.
    pub async fn run_one_local_call(
        &self,
        mut workflow: Workflow,
    ) -> Result<WorkflowStepOutcome, WorkflowError> {
        workflow.set_config(self.observability);
        let flow = workflow.flow_mark();
        let function = flow.0.function.clone();
        let call = match self.prepare(&mut workflow) {
            Ok(call) => call,
            Err(error) => return Err(WorkflowError::new(workflow, function, None, error.into())),
        };
        workflow.env.mark();
        let called = AssertUnwindSafe(async { call(&mut workflow, Continuation::new()).await });
        let chosen = called.catch_unwind().await.unwrap_or_else(|panic| {
            Err(AnyError::from(Error::new(
                ErrorKind::Failed,
                ErrorCode::WorkflowPanicked,
                format!("the function panicked: {}", panic_text(&*panic)),
            )))
        });
        let applied = chosen.and_then(|choice| {
            workflow.apply(choice, |name| self.version_of(name)).map_err(AnyError::from)
        });
        let flow = workflow.flow_since(flow);
        match applied {
            Ok(()) => {
                workflow.counters.steps += 1;
                let env_changes = workflow.env_changes();
                let events = workflow.take_pending_events();
                let next = workflow.next();
                let function = function.unwrap_or_default();
                Ok(WorkflowStepOutcome { workflow, function, env_changes, flow, events, next })
            }
            Err(error) => Err(WorkflowError::new(workflow, function, Some(flow), error)),
        }
    }

    /// Runs functions until the workflow waits for something else or has ended.
    ///
    /// # Errors
    ///
    /// A [`WorkflowError`] of the function that failed, with all events that were recorded before.
    pub async fn run(&self, workflow: Workflow) -> Result<WorkflowOutcome, WorkflowError> {
        let (mut workflow, mut events) = (workflow, Vec::new());
        events.extend(workflow.take_pending_events());
        while let Step::Call { .. } = &workflow.step {
            match self.run_one_local_call(workflow).await {
                Ok(outcome) => {
                    events.extend(outcome.events);
                    workflow = outcome.workflow;
                }
                Err(mut error) => {
                    events.append(&mut error.events);
                    error.events = events;
                    return Err(error);
                }
            }
        }
        let result = match workflow.next() {
            WorkflowNext::Halt => WorkflowResult::Halt(workflow),
            next => WorkflowResult::Suspended { workflow, next },
        };
        Ok(WorkflowOutcome { result, events })
    }
}

fn not_found(name: &str) -> Error {
    let message = format!("no function named {name:?} is registered in this program");
    Error::new(ErrorKind::NotFound, ErrorCode::AgentFunctionNotFound, message)
}

/// One function has run.
#[derive(Debug)]
pub struct WorkflowStepOutcome {
    /// The workflow after it.
    pub workflow: Workflow,
    /// The function.
    pub function: String,
    /// The changes of the env.
    pub env_changes: EnvChangeSetSummary,
    /// Where the workflow was and is.
    pub flow: FlowSummary,
    /// The events that the function recorded.
    pub events: Vec<PendingWorkflowEvent>,
    /// The next action.
    pub next: WorkflowNext,
}

/// A workflow has run until it waits or ends.
#[derive(Debug)]
pub struct WorkflowOutcome {
    /// Where it is.
    pub result: WorkflowResult,
    /// The events that its functions recorded.
    pub events: Vec<PendingWorkflowEvent>,
}

/// Where a workflow is after [`Trampoline::run`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum WorkflowResult {
    /// It has ended.
    Halt(Workflow),
    /// It waits for something outside.
    Suspended {
        /// The workflow.
        workflow: Workflow,
        /// The call that it waits for.
        next: WorkflowNext,
    },
}

/// A function failed.
#[derive(Debug)]
pub struct WorkflowError {
    /// The workflow as the function left it: to look at, not to resume.
    pub workflow: Box<Workflow>,
    /// The function.
    pub function: Option<String>,
    /// The changes of the env that the function made before it failed.
    pub env_changes: Box<EnvChangeSetSummary>,
    /// Where the workflow was, if the function ran.
    pub flow: Option<FlowSummary>,
    /// The events that were recorded before it failed.
    pub events: Vec<PendingWorkflowEvent>,
    /// The error.
    pub source: AnyError,
}

impl WorkflowError {
    fn new(
        mut workflow: Workflow,
        function: Option<String>,
        flow: Option<FlowSummary>,
        source: AnyError,
    ) -> Self {
        let env_changes = Box::new(workflow.env_changes());
        let events = workflow.take_pending_events();
        Self { workflow: Box::new(workflow), function, env_changes, flow, events, source }
    }
}

impl fmt::Display for WorkflowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.as_deref().unwrap_or("none");
        write!(
            f,
            "function {function:?} of run {:?} failed with {} pending events: {}",
            self.workflow.run_id(),
            self.events.len(),
            self.source
        )
    }
}

impl std::error::Error for WorkflowError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_error())
    }
}

#[cfg(test)]
mod tests;
