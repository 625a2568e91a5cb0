//! How a model plugs in: given a turn, it advances a run.

use serde_json::Value;
use windlass_kernel::{BoxFuture, Draft, Error, ErrorKind, Loaded, ModelName, Run, Step, StepKey};

use crate::start::StartRun;
use crate::templates::Template;
use crate::turn::Turn;

/// A way to write workflows. One model serves all runs of the workflows that it is registered for.
pub trait Model: Send + Sync + 'static {
    /// The model's name, as runs carry it.
    fn name(&self) -> ModelName;

    /// Opens a run that has not been in memory: a new one, or one that is read back from the store.
    fn open(&self, loaded: Opened<'_>) -> Result<Box<dyn Program>, Error>;

    /// Completes a run that this process is asked to start, whoever asks: what its end enqueues, and
    /// what else every run of the workflow has. An error refuses it. A model that says nothing here
    /// has no use for headers.
    fn prepare(&self, start: &mut StartRun) -> Result<(), Error> {
        if start.headers.is_some() {
            let message = format!("runs of {:?} take no headers", start.workflow);
            return Err(Error::new(ErrorKind::Invalid, "INVALID_HEADERS", message));
        }
        Ok(())
    }

    /// What every run of the workflow has, for processes that start runs and do not serve it. Kept in
    /// the store when the workflow is registered.
    fn template(&self) -> Option<Template> {
        None
    }

    /// Ends a run that workers died of again and again, without opening it for good: `true` if the
    /// draft ends it now. A model whose failed steps are dead letters leaves one here too.
    fn give_up(&self, given_up: GivenUp<'_>) -> Result<bool, Error> {
        let _ = given_up;
        Ok(false)
    }

    /// How runs of this model are asked to end.
    fn manners(&self) -> Manners {
        Manners::default()
    }

    /// Which kinds of a run's open steps reach outside it, so that ending the run must reach them.
    fn has_reach(&self, step_kind: &str) -> bool;
}

/// How runs of a model are asked to end, and what is told of it. The default is that of models that have no
/// word in it: the engine ends their runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manners {
    /// The message that asks a run to end in its own time, with `{reason}` as its body.
    pub cancel: Option<&'static str>,
    /// The names of messages that end runs, or keep them from going on. Whoever sends one manages the run,
    /// and must be allowed to.
    pub controls: &'static [&'static str],
    /// What the ledger says of a step that is open when somebody ends its run: the type and payload of an
    /// event, where the model has words of its own.
    pub called_off: Option<CalledOff>,
}

/// The event of a step that is called off; none if the engine's own words do.
pub type CalledOff = fn(&Step) -> Option<(&'static str, Value)>;

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
    /// What to tell people.
    pub message: &'a str,
}

/// What a run is opened from.
pub enum Opened<'a> {
    /// It was created by this process and has nothing yet.
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
}

/// A run in memory. It stays there while it waits, as long as there is room.
pub trait Program: Send {
    /// Takes the run as far as it gets: until it has ended, or until it has given its turn back
    /// because all that it waits for is in the store.
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>>;

    /// About how many bytes it takes while it waits.
    fn bytes(&self) -> usize;

    /// Whether it waits for the result of the activity that this step stands for, and takes it from
    /// its turn ([`Turn::take_result`]) instead of a message. Such a turn is taken by its first
    /// commit, so a program that says yes sends no second one before the first is answered.
    fn takes_result(&self, step_key: &StepKey) -> bool {
        let _ = step_key;
        false
    }
}

/// Why a turn stopped before it was given back.
#[derive(Debug)]
pub enum TurnError {
    /// Somebody else has the turn, or the run has moved on: forget what is in memory.
    Lost,
    /// This build cannot carry the run on; it waits for another, or for an operator.
    Blocked(Error),
    /// The store does not answer; the turn stays ours as far as we know, so it is given back.
    Store(Error),
}
