//! The workflows that this process serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use windlass_kernel::{
    Error, ErrorCode, ErrorKind, LimitKey, MessageName, ModelName, QueueName, Route, RouteName,
    Run, WorkflowName,
};

use crate::concurrency::Concurrency;
use crate::description::{ModelDescription, UNKNOWN};
use crate::model::Model;

/// A workflow that this process serves.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) limit: Option<LimitKey>,
    pub(crate) concurrency: Option<Arc<Concurrency>>,
}

/// How a process serves a workflow.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// How many turns of the workflow this process holds at once; other processes can claim the rest.
    /// Default: only `turns_max` of the engine applies.
    pub slots: Option<usize>,
}

impl Serving {
    pub(crate) fn validate(&self, workflow: &WorkflowName) -> Result<(), Error> {
        if self.slots == Some(0) {
            let message = format!("{workflow:?} has 0 slots; use at least 1");
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
        }
        Ok(())
    }
}

/// The workflows that this process serves, by name.
pub(crate) struct Registry {
    workflows: RwLock<BTreeMap<WorkflowName, Registered>>,
    // For runs of workflows that this process does not serve.
    models: Vec<&'static ModelDescription>,
}

impl Registry {
    pub(crate) fn new(mut models: Vec<&'static ModelDescription>) -> Self {
        models.push(&crate::schedules::DESCRIPTION);
        Self { workflows: RwLock::default(), models }
    }

    pub(crate) fn register(
        &self,
        workflow: WorkflowName,
        model: Arc<dyn Model>,
        serving: &Serving,
    ) -> Result<(), Error> {
        let mut workflows = self.workflows.write();
        if workflows.contains_key(&workflow) {
            let message = format!(
                "a workflow named {workflow:?} is registered already; give this one another name"
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::WorkflowExists, message));
        }
        let concurrency = serving.slots.map(|slots| Arc::new(Concurrency::new(slots)));
        workflows.insert(workflow, Registered { model, limit: None, concurrency });
        Ok(())
    }

    pub(crate) fn get(&self, workflow: &WorkflowName) -> Option<Registered> {
        self.workflows.read().get(workflow).cloned()
    }

    pub(crate) fn model(&self, workflow: &WorkflowName) -> Option<Arc<dyn Model>> {
        self.workflows.read().get(workflow).map(|registered| Arc::clone(&registered.model))
    }

    pub(crate) fn model_name(&self, workflow: &WorkflowName) -> Option<ModelName> {
        self.workflows.read().get(workflow).map(|registered| registered.model.name())
    }

    pub(crate) fn serves(&self, workflow: &str) -> bool {
        self.workflows.read().contains_key(workflow)
    }

    /// Whether this process serves a workflow, and neither a limit nor slots apply to it.
    pub(crate) fn serves_without_limits(&self, workflow: &WorkflowName) -> bool {
        let workflows = self.workflows.read();
        let served = workflows.get(workflow);
        served.is_some_and(|served| served.limit.is_none() && served.concurrency.is_none())
    }

    pub(crate) fn concurrency(&self, workflow: &WorkflowName) -> Option<Arc<Concurrency>> {
        self.workflows.read().get(workflow).and_then(|served| served.concurrency.clone())
    }

    pub(crate) fn set_limit(&self, workflow: &WorkflowName, limit: Option<LimitKey>) {
        if let Some(registered) = self.workflows.write().get_mut(workflow) {
            registered.limit = limit;
        }
    }

    /// The names of all workflows, the engine's own included.
    pub(crate) fn names(&self) -> Vec<WorkflowName> {
        self.workflows.read().keys().cloned().collect()
    }

    /// The routes of the turns, each with the slots of its workflow.
    pub(crate) fn routes(&self) -> Vec<(Route, Option<Arc<Concurrency>>)> {
        let workflows = self.workflows.read();
        let served = workflows.iter().map(|(name, registered)| {
            let route = Route { queue: QueueName::default_queue(), name: RouteName::from(name) };
            (route, registered.concurrency.clone())
        });
        served.collect()
    }

    /// The description of a run's model: one that this process was built with or serves, else a neutral
    /// one.
    pub(crate) fn description(&self, run: &Run) -> &'static ModelDescription {
        let known = self.models.iter().find(|model| model.name == run.model);
        let served = || {
            let served = self.workflows.read();
            let served = served.get(&run.workflow).map(|served| served.model.description());
            served.filter(|model| model.name == run.model)
        };
        known.copied().or_else(served).unwrap_or(&UNKNOWN)
    }

    /// Whether a message of this name asks the runs of some model to end. Few names do; for the
    /// others the caller need not read the run.
    pub(crate) fn is_cancel_message(&self, name: &MessageName) -> bool {
        let asks = |model: &ModelDescription| model.cancel.message.as_ref() == Some(name);
        self.models.iter().any(|model| asks(model))
            || self.workflows.read().values().any(|served| asks(served.model.description()))
    }
}
