//! Registers machines and opens their runs.

use std::sync::Arc;

use serde_json::json;
use windlass_engine::{Engine, EngineParts, Model, ModelDescription, Opened, Program};
use windlass_kernel::Error;

use super::action::signal_types;
use super::description::DESCRIPTION;
use super::machine::{Factory, Typed};
use super::program::MachineProgram;
use super::workflow::Workflow;
use crate::run::RunHandle;
use crate::workflow_ref::{Format, WorkflowRef};

struct Machines {
    factory: Arc<dyn Factory>,
    engine: EngineParts,
}

impl Model for Machines {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let loaded = match &opened {
            Opened::New(_) => None,
            Opened::Loaded(loaded) => Some(loaded.steps.clone()),
        };
        let limits = self.engine.limits.clone();
        let factory = Arc::clone(&self.factory);
        Ok(Box::new(MachineProgram::new(factory, opened.run(), loaded, limits)?))
    }
}

/// Registers a machine under the name of its type.
///
/// ```
/// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
/// use serde_json::Value;
/// use windlass::machines::{ActivityError, Workflow, WorkflowAction};
///
/// struct Hello;
///
/// impl Workflow for Hello {
///     const TYPE: &'static str = "hello";
///     type Input = ();
///     type Output = String;
///
///     fn new((): ()) -> Self {
///         Self
///     }
///
///     fn on_start(&mut self) -> Vec<WorkflowAction> {
///         vec![WorkflowAction::complete("hello".into())]
///     }
///
///     fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
///         vec![]
///     }
///
///     fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
///         vec![WorkflowAction::fail(error)]
///     }
/// }
///
/// let hellos = windlass::machines::register::<Hello>(engine.core())?;
/// println!("{}", hellos.start(()).await?.result().await?);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The name is not valid, or a workflow with this name is registered.
pub fn register<W: Workflow>(engine: &Engine) -> Result<WorkflowRef<W::Input, W::Output>, Error> {
    let workflow_ref = remote::<W>(engine)?;
    let factory: Arc<dyn Factory> = Arc::new(Typed::<W>::default());
    let model = Machines { factory, engine: engine.parts() };
    engine.register(workflow_ref.name.clone(), Arc::new(model))?;
    Ok(workflow_ref)
}

/// A machine that another process serves: this process can start its runs and find them.
///
/// ```
/// # fn example<W: windlass::machines::Workflow>(engine: &windlass::Engine) -> windlass::Result<()> {
/// let orders = windlass::machines::remote::<W>(engine.core())?;
/// # drop(orders);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The name of its type is not valid.
pub fn remote<W: Workflow>(engine: &Engine) -> Result<WorkflowRef<W::Input, W::Output>, Error> {
    WorkflowRef::new(engine, W::TYPE, Format::json(&DESCRIPTION))
}

impl<O> RunHandle<O> {
    /// Asks a machine to finish the work that it has begun and to begin nothing new.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.shutdown().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The run has ended.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.signal(signal_types::SHUTDOWN, &json!({})).await
    }
}
