//! Agents as the engine serves them.

use std::any::Any;
use std::sync::Arc;

use serde_json::Value;
use windlass_engine::{
    Creating, Engine, EngineParts, Model, ModelDescription, Opened, Program, StartRun, WeakEngine,
};
use windlass_kernel::{Error, ErrorCode, RunKey, WorkflowName};

use super::agent::Agent;
use super::description::{CALL_STARTED, DESCRIPTION};
use super::program::{AgentProgram, first_workflow};
use super::state::{self, Progress, StoredValues};
use super::stream::{CallWatch, Streams};
use super::workflow::Step;
use crate::workflow_ref::{Format, WorkflowRef};

/// A run with a larger input begins with its first turn.
const BEGIN_BYTES_MAX: usize = 4 * 1024;

struct Agents {
    agent: Arc<Agent>,
    engine: EngineParts,
    handle: WeakEngine,
    streams: Arc<Streams>,
}

impl Model for Agents {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let mut program = AgentProgram::open(
            &self.agent,
            &self.engine,
            &self.streams,
            opened.run(),
            opened.steps(),
        );
        program.handle = Some(self.handle.clone());
        Ok(Box::new(program))
    }

    // A budget that cannot be kept refuses the start, and so does an input that is no env.
    fn prepare(&self, start: &mut StartRun) -> Result<(), Error> {
        if start.headers.is_some() {
            let message = format!("runs of {:?} take no headers", start.workflow);
            return Err(super::env::invalid(ErrorCode::InvalidHeaders, message));
        }
        // `begin` reads smaller inputs.
        if self.agent.budget_input.is_none() && start.input.len() <= BEGIN_BYTES_MAX {
            return Ok(());
        }
        let input: Value = start.input.read()?;
        self.agent.check_budget(self.agent.budget_of(&input)?.as_ref())?;
        first_workflow(&self.agent, "", input).map(drop)
    }

    // The first function's event rides in the commit that creates the run. A snapshot with large values needs
    // rows, which the first turn writes.
    fn begin(&self, creating: &mut Creating<'_>) -> Result<(), Error> {
        let run = creating.run();
        if run.state.is_some() || run.input.len() > BEGIN_BYTES_MAX {
            return Ok(());
        }
        let workflow = first_workflow(&self.agent, run.id.as_str(), run.input.read()?)?;
        let Step::Call { function, version } = &workflow.step else { return Ok(()) };
        let mut payload =
            serde_json::json!({ "function": function, "version": version, "depth": 0 });
        if !self.agent.tools.sources().is_empty() {
            payload["tool_sources"] = serde_json::json!(self.agent.tools.sources());
        }
        let budget = self.agent.budget_of(&run.input.read()?)?;
        let progress =
            Progress { begun: true, ..Progress::first(run, budget.as_ref(), &self.agent.tools) };
        let body = state::save(&workflow, &progress, &StoredValues::default())?;
        let stamp = creating.stamp();
        creating.draft.event(CALL_STARTED, &payload, stamp)?;
        let stamp = creating.stamp();
        creating.draft.state(body, stamp);
        Ok(())
    }
}

/// Registers an agent under its name. The input of a run is a JSON object, which becomes the env of the workflow;
/// its output is the env at the end, or the key that [`Agent::output`] names.
///
/// # Errors
///
/// The name is not valid, or a workflow with this name is registered; or the entry function is missing.
pub fn register(engine: &Engine, agent: Agent) -> Result<WorkflowRef<Value, Value>, Error> {
    agent.check_options()?;
    agent.trampoline.version_of(&agent.entry)?;
    agent.resolve_loops()?;
    agent.check_budget(agent.budget.as_ref())?;
    let workflow = remote(engine, &agent.name)?;
    super::lane::register(engine, &agent)?;
    let (parts, handle) = (engine.parts(), engine.downgrade());
    let streams = Arc::default();
    let model = Agents { agent: Arc::new(agent), engine: parts, handle, streams };
    engine.register(workflow.name.clone(), Arc::new(model))?;
    Ok(workflow)
}

fn agents_of(engine: &Engine, workflow: &WorkflowName) -> Option<Arc<Agents>> {
    let model: Arc<dyn Any + Send + Sync> = engine.served(workflow)?;
    model.downcast().ok()
}

/// The agent that this process serves under a name.
pub fn served(engine: &Engine, workflow: &WorkflowName) -> Option<Arc<Agent>> {
    agents_of(engine, workflow).map(|agents| Arc::clone(&agents.agent))
}

/// Watches the provider calls of a run while they run in this process; none if this process does not serve
/// the agent.
pub fn watch(engine: &Engine, workflow: &WorkflowName, run: RunKey) -> Option<CallWatch> {
    Some(CallWatch::new(&agents_of(engine, workflow)?.streams, run))
}

/// An agent that another process serves: this process can start its runs and find them.
///
/// # Errors
///
/// The name is not valid.
pub fn remote(engine: &Engine, name: impl AsRef<str>) -> Result<WorkflowRef<Value, Value>, Error> {
    WorkflowRef::new(engine, name, Format::json(&DESCRIPTION))
}
