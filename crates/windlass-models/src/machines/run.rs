//! Registering machines, starting runs of them, and signalling them.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use windlass_engine::{Engine, EngineParts, Manners, Model, Opened, Program, StartRun};
use windlass_kernel::{
    Body, Error, ErrorKind, IntoDuration, MessageId, MessageKind, MessageName, ModelName,
    OnExisting, RunId, WorkflowName,
};

use super::action::signal_types;
use super::machine::{Maker, Typed};
use super::program::MachineProgram;
use super::workflow::Workflow;
use crate::run::{RunHandle, check_body, invalid};

/// The name of this model, as runs carry it.
pub(crate) const MODEL: &str = "machines";

pub(crate) fn model_name() -> ModelName {
    ModelName::from_stored(MODEL)
}

/// A machine is told that it is to end, and ends by itself.
pub(crate) const MANNERS: Manners = Manners {
    cancel: Some(signal_types::CANCEL),
    controls: &[signal_types::CANCEL, signal_types::SHUTDOWN],
    called_off: Some(|step| {
        let is_timer = &*step.kind == "timer";
        is_timer.then(|| ("timer.cancelled", json!({ "key": step.step_key.as_str() })))
    }),
};

struct Machines {
    maker: Arc<dyn Maker>,
    engine: EngineParts,
}

impl Model for Machines {
    fn name(&self) -> ModelName {
        model_name()
    }

    fn manners(&self) -> Manners {
        MANNERS
    }

    fn has_reach(&self, step_kind: &str) -> bool {
        matches!(step_kind, "child" | "activity")
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let loaded = match &opened {
            Opened::New(_) => None,
            Opened::Loaded(loaded) => Some(loaded.steps.clone()),
        };
        let limits = self.engine.limits.clone();
        let maker = Arc::clone(&self.maker);
        Ok(Box::new(MachineProgram::new(maker, opened.run(), loaded, limits)?))
    }
}

/// Registers a machine under its type's name.
pub fn register<W: Workflow>(engine: &Engine) -> Result<MachineRef<W>, Error> {
    let machines = MachineRef::remote(engine)?;
    let maker: Arc<dyn Maker> = Arc::new(Typed::<W>::default());
    let model = Machines { maker, engine: engine.parts() };
    engine.register(machines.name.clone(), Arc::new(model))?;
    Ok(machines)
}

/// A machine's workflow: what starts its runs and finds them.
pub struct MachineRef<W> {
    engine: Engine,
    name: WorkflowName,
    of: PhantomData<fn() -> W>,
}

impl<W> Clone for MachineRef<W> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), name: self.name.clone(), of: PhantomData }
    }
}

impl<W: Workflow> MachineRef<W> {
    /// A machine that another process serves: runs of it can be started and found from here.
    pub fn remote(engine: &Engine) -> Result<Self, Error> {
        let name = WorkflowName::with_limits(W::TYPE, &engine.options().limits)?;
        Ok(Self { engine: engine.clone(), name, of: PhantomData })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Starts a run. Await what this returns.
    pub fn start(&self, input: W::Input) -> Start<W> {
        let limits = &self.engine.options().limits;
        let body = Body::of(&input).and_then(|body| {
            check_body("the input", body, limits.input_bytes_max, limits.json_depth_max)
        });
        let request = body.map(|body| StartRun::new(self.name.clone(), model_name(), body));
        Start { machines: self.clone(), request, labels: BTreeMap::new(), id: None }
    }

    /// The run with an id.
    pub async fn get(&self, id: impl AsRef<str>) -> Result<MachineRun<W::Output>, Error> {
        let id = RunId::from_stored(id.as_ref());
        let found = self.engine.find_run(&self.name, &id).await?;
        let run = found.ok_or_else(|| {
            let message = format!("there is no run {:?} of workflow {:?}", id, self.name);
            Error::new(ErrorKind::NotFound, "RUN_NOT_FOUND", message)
        })?;
        let started = windlass_engine::Started { run_key: run.run_key, id, existed: true };
        Ok(MachineRun(RunHandle::new(self.engine.clone(), self.name.clone(), started)))
    }
}

/// A run that is about to be started.
#[must_use = "a run is started when this is awaited"]
pub struct Start<W> {
    machines: MachineRef<W>,
    request: Result<StartRun, Error>,
    labels: BTreeMap<String, String>,
    id: Option<String>,
}

impl<W> Start<W> {
    /// The run's name. Starting it again with the same input finds it; another input is an error.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Makes a known id an error, whatever the input.
    pub fn must_not_exist(self) -> Self {
        self.set(|request| {
            request.on_existing = OnExisting::Refuse;
            Ok(())
        })
    }

    /// A small string to find the run by.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Higher first. Default 0.
    pub fn priority(self, priority: i16) -> Self {
        self.set(|request| {
            request.priority = priority;
            Ok(())
        })
    }

    /// Begins the run later.
    pub fn delay(self, delay: impl IntoDuration) -> Self {
        let now = self.machines.engine.clock().now();
        self.set(|request| {
            let delay = delay.into_duration();
            let delay = delay.map_err(|error| invalid("INVALID_DURATION", error.to_string()))?;
            request.due_at = Some(now.plus(delay));
            Ok(())
        })
    }

    fn set(mut self, change: impl FnOnce(&mut StartRun) -> Result<(), Error>) -> Self {
        if let Ok(request) = &mut self.request
            && let Err(error) = change(request)
        {
            self.request = Err(error);
        }
        self
    }
}

impl<W: Workflow> IntoFuture for Start<W> {
    type Output = Result<MachineRun<W::Output>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Start { machines, request, labels, id } = self;
        Box::pin(async move {
            let mut request = request?;
            let limits = &machines.engine.options().limits;
            request.id = id.map(|id| RunId::with_limits(id, limits)).transpose()?;
            request.labels = labels;
            let started = machines.engine.start_run(request).await?;
            let MachineRef { engine, name, .. } = machines;
            Ok(MachineRun(RunHandle::new(engine, name, started)))
        })
    }
}

/// A handle to a run of a machine: all that a [`RunHandle`] can do, and signals.
pub struct MachineRun<O>(RunHandle<O>);

impl<O> Clone for MachineRun<O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<O> Deref for MachineRun<O> {
    type Target = RunHandle<O>;

    fn deref(&self) -> &RunHandle<O> {
        &self.0
    }
}

impl<O> MachineRun<O> {
    /// Sends a signal to the run.
    pub async fn signal<T: Serialize>(
        &self,
        signal_type: impl AsRef<str>,
        payload: &T,
    ) -> Result<(), Error> {
        self.send(signal_type.as_ref(), payload, None).await
    }

    /// As [`MachineRun::signal`], with an id: sent again it is the same signal.
    pub async fn signal_once<T: Serialize>(
        &self,
        signal_type: impl AsRef<str>,
        payload: &T,
        id: impl AsRef<str>,
    ) -> Result<(), Error> {
        let id = MessageId::with_limits(id, &self.engine().options().limits)?;
        self.send(signal_type.as_ref(), payload, Some(id)).await
    }

    /// Asks the run to end. One that has not ended by itself when the grace period is over (30 s by
    /// default) is terminated.
    pub async fn cancel(&self, reason: &str) -> Result<(), Error> {
        self.signal(signal_types::CANCEL, &json!({ "reason": reason })).await
    }

    /// Asks the run to finish what it has begun and to begin nothing new.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.signal(signal_types::SHUTDOWN, &json!({})).await
    }

    async fn send<T: Serialize>(
        &self,
        signal_type: &str,
        payload: &T,
        id: Option<MessageId>,
    ) -> Result<(), Error> {
        let engine = self.engine();
        let limits = &engine.options().limits;
        let name = MessageName::with_limits(signal_type, limits)?;
        let (bytes, depth) = (limits.message_bytes_max, limits.json_depth_max);
        let body = check_body("the signal's payload", Body::of(payload)?, bytes, depth)?;
        let sent = engine.send_message(self.run_key(), MessageKind::Signal, name, Some(body), id);
        sent.await.map(|_| ())
    }
}
