//! How a model plugs in: given a turn, it advances a run.

use std::any::Any;
use std::time::Duration;

use windlass_kernel::{
    BoxFuture, Draft, Error, ErrorCode, ErrorKind, Loaded, ModelName, Run, Stamp, Step, StepKey,
    Timestamp,
};

use crate::clock::Clock;
use crate::description::ModelDescription;
use crate::start::StartRun;
use crate::templates::Template;
use crate::turn::Turn;

/// A way to write workflows. One model serves all runs of the workflows that it is registered for.
pub trait Model: Any + Send + Sync {
    /// The static description of the model.
    fn description(&self) -> &'static ModelDescription;

    /// The model's name, as runs carry it.
    fn name(&self) -> ModelName {
        self.description().name.clone()
    }

    /// Opens a run that is not in memory: a new run, or one that was loaded from the store.
    fn open(&self, loaded: Opened<'_>) -> Result<Box<dyn Program>, Error>;

    /// Adds to a request to start a run what every run of the workflow has, such as the task that its end
    /// enqueues. An error refuses the request. By default a run with headers is refused.
    fn prepare(&self, start: &mut StartRun) -> Result<(), Error> {
        if start.headers.is_some() {
            let message = format!("runs of {:?} take no headers", start.workflow);
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidHeaders, message));
        }
        Ok(())
    }

    /// Adds to the commit that creates a run which this process holds from the start: events, steps, a
    /// snapshot. A run that is queued instead begins with its first turn, so the model must be able to
    /// write the same there. By default nothing is added.
    fn begin(&self, creating: &mut Creating<'_>) -> Result<(), Error> {
        let _ = creating;
        Ok(())
    }

    /// The settings of every run of the workflow, for processes that start runs and do not serve the workflow.
    /// The engine stores it when the workflow is registered.
    fn template(&self) -> Option<Template> {
        None
    }

    /// Ends a run whose turn was reclaimed too often: `true` if the draft ends it. By default the engine
    /// ends it. A model whose failed steps become dead letters leaves one here too.
    fn give_up(&self, given_up: GivenUp<'_>) -> Result<bool, Error> {
        let _ = given_up;
        Ok(false)
    }
}

/// A run that is being created, held by this process from the start.
pub struct Creating<'a> {
    /// The commit that creates it.
    pub draft: &'a mut Draft,
    pub(crate) clock: &'a Clock,
    pub(crate) last_at: Timestamp,
}

impl Creating<'_> {
    /// The run as it will be created.
    pub fn run(&self) -> &Run {
        self.draft.created().expect("the draft creates a run")
    }

    /// A new event's id and time, later than all before it.
    pub fn stamp(&mut self) -> Stamp {
        self.last_at = self.clock.now().max(self.last_at.plus(Duration::from_micros(1)));
        self.clock.stamp(self.last_at)
    }
}

/// A run that is not tried again.
pub struct GivenUp<'a> {
    /// The run with its steps.
    pub loaded: &'a Loaded,
    /// Its turn.
    pub turn: &'a mut Turn,
    /// The commit that is to end it.
    pub draft: &'a mut Draft,
    /// The name of the error.
    pub name: &'static str,
    /// The message of the error.
    pub message: &'a str,
}

/// The source of a run that is opened.
pub enum Opened<'a> {
    /// This process has just created it.
    New(&'a Run),
    /// It was read from the store.
    Loaded(&'a Loaded),
}

impl Opened<'_> {
    /// The run's row.
    pub fn run(&self) -> &Run {
        match self {
            Opened::New(run) => run,
            Opened::Loaded(loaded) => &loaded.run,
        }
    }

    /// The steps that the model asked for ([`ModelDescription::load`]); none of a new run.
    pub fn steps(&self) -> &[Step] {
        match self {
            Opened::New(_) => &[],
            Opened::Loaded(loaded) => &loaded.steps,
        }
    }
}

/// A run in memory. It stays there while it waits, until the run cache evicts it.
pub trait Program: Send {
    /// Advances the run until it has ended, or until it has released its turn because everything that it
    /// waits for is in the store.
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>>;

    /// About how many bytes it uses while it waits.
    fn bytes(&self) -> usize;

    /// Whether it waits for the result of this step's activity and takes the result from its turn
    /// ([`Turn::take_result`]) instead of a message. The first commit of such a turn claims the turn, so
    /// the program sends no second commit before the first is answered.
    fn takes_result(&self, step_key: &StepKey) -> bool {
        let _ = step_key;
        false
    }
}

/// Why a turn stopped before it was given back.
#[derive(Debug)]
#[non_exhaustive]
pub enum TurnError {
    /// Another worker has the turn, or the run has moved on: drop the run from memory.
    Lost,
    /// This build cannot advance the run; it waits for another build or for an operator.
    Blocked(Error),
    /// The store does not answer. The turn may still be held here, so it is released.
    Store(Error),
}
