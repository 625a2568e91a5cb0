//! Control of runs from outside: the requests of operators, and control messages.

use std::sync::Arc;

use serde_json::json;
use windlass_kernel::{
    Actor, Body, Commit, Error, ErrorCode, ErrorKind, Message, MessageId, MessageKind, MessageName,
    Namespace, NewMessage, Op, Run, RunKey,
};

use crate::cancel::Canceller;
use crate::commit::CommitClient;
use crate::core::Core;
use crate::env::new_uuid;
use crate::generations::Generations;
use crate::keyed::KeyedEvents;
use crate::pause::Pauser;
use crate::receipts::Receipts;
use crate::requests::Requests;
use crate::terminate::Terminator;
use crate::turn::refusal;

/// How often a control request is repeated because the run changed meanwhile.
pub(crate) const ATTEMPTS_MAX: u32 = 20;

/// The request of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Pause before the next piece of user code.
    Pause,
    /// Continue.
    Resume,
    /// Try again: for blocked runs.
    Wake,
    /// End as soon as the current work is done.
    Cancel,
    /// A request that this build does not know; it is consumed and has no effect.
    Unknown,
}

impl Control {
    const KNOWN: [Self; 4] = [Self::Pause, Self::Resume, Self::Wake, Self::Cancel];

    /// Reads a control message.
    pub fn of(message: &Message) -> Self {
        let name = message.name.as_str();
        Self::KNOWN.into_iter().find(|control| control.as_str() == name).unwrap_or(Self::Unknown)
    }

    /// The name of its message.
    pub(crate) const fn name(self) -> MessageName {
        MessageName::from_static(self.as_str())
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Wake => "wake",
            Self::Cancel => "cancel",
            Self::Unknown => "unknown",
        }
    }
}

/// The components that control runs from outside.
pub(crate) struct RunControl {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) terminator: Arc<Terminator>,
    pub(crate) generations: Arc<Generations>,
    pub(crate) canceller: Arc<Canceller>,
    pub(crate) pauser: Arc<Pauser>,
    pub(crate) keyed: Arc<KeyedEvents>,
    pub(crate) receipts: Arc<Receipts>,
}

impl RunControl {
    /// The requests to people of a namespace.
    pub(crate) fn requests(&self, namespace: &Namespace) -> Requests {
        Requests {
            core: Arc::clone(&self.core),
            commits: Arc::clone(&self.commits),
            namespace: namespace.clone(),
        }
    }

    /// Makes a blocked run try again now.
    pub(crate) async fn wake_run(&self, run: &Run) -> Result<(), Error> {
        refuse_ended(run, "woken")?;
        send_control(&self.core, &self.commits, run.run_key, Control::Wake, json!({})).await
    }

    /// Terminates a run, in its newest generation. An ended run cannot be terminated.
    pub(crate) async fn terminate(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<Actor>,
    ) -> Result<(), Error> {
        self.core.check_actor(actor.as_ref())?;
        let terminator = Arc::clone(&self.terminator);
        let reason = reason.map(str::to_owned);
        let ending = async move { terminator.terminate(run_key, reason, actor).await };
        self.core.run_to_completion(ending).await?
    }

    /// Restarts a run as its next generation, with the same input. A generation that has not ended is
    /// terminated; its unread messages are dropped.
    pub(crate) async fn restart(
        &self,
        run_key: RunKey,
        actor: Option<Actor>,
    ) -> Result<Run, Error> {
        self.core.check_actor(actor.as_ref())?;
        let generations = Arc::clone(&self.generations);
        let restarting = async move { generations.restart(run_key, actor).await };
        self.core.run_to_completion(restarting).await?
    }

    /// Retries an errored run as its next generation: completed steps are kept, and the failed step is
    /// tried again.
    pub(crate) async fn retry(&self, run_key: RunKey, actor: Option<Actor>) -> Result<Run, Error> {
        self.core.check_actor(actor.as_ref())?;
        self.generations.retry(run_key, actor, None).await
    }

    /// Cancels a run. If nobody holds its turn, this call ends it with its own commit. Otherwise the
    /// worker that holds the turn gets a request, finishes or abandons its current work, and ends the run.
    /// This returns when the run has ended: `true` if it was terminated, `false` if it is unknown or
    /// ended in another way.
    pub(crate) async fn cancel(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<Actor>,
    ) -> Result<bool, Error> {
        self.core.check_actor(actor.as_ref())?;
        self.canceller.cancel(run_key, reason, actor.as_ref()).await
    }

    /// Pauses a run before its next piece of user code. An ended run cannot be paused; a paused run
    /// stays paused.
    pub(crate) async fn pause(&self, run: &Run, actor: Option<Actor>) -> Result<(), Error> {
        self.core.check_actor(actor.as_ref())?;
        self.pauser.pause(run, actor.as_ref()).await
    }

    /// Resumes a paused run. Any other run stays as it is.
    pub(crate) async fn resume(&self, run: &Run, actor: Option<Actor>) -> Result<(), Error> {
        self.core.check_actor(actor.as_ref())?;
        self.pauser.resume(run, actor.as_ref()).await
    }
}

/// A control message with a new id.
pub(crate) fn control_message(
    core: &Core,
    run_key: RunKey,
    control: Control,
    body: &serde_json::Value,
) -> Result<NewMessage, Error> {
    let now = core.clock.now();
    Ok(NewMessage {
        run_key,
        message_id: MessageId::new(format!("control:{}", new_uuid(&*core.env, now)))?,
        kind: MessageKind::Control,
        name: control.name(),
        body: Some(Body::of(body)?),
        caused_by: None,
        sent_at: now,
        required: true,
    })
}

/// Sends a control message to a run.
pub(crate) async fn send_control(
    core: &Core,
    commits: &Arc<CommitClient>,
    run_key: RunKey,
    control: Control,
    body: serde_json::Value,
) -> Result<(), Error> {
    let message = control_message(core, run_key, control, &body)?;
    let commit = Commit::new(None, None, vec![Op::PutMessage(Box::new(message))]);
    match Arc::clone(commits).commit_for_caller(commit).await {
        Ok(_) => Ok(()),
        Err(error) => Err(refusal(&error)),
    }
}

pub(crate) fn with_actor(actor: Option<&Actor>) -> serde_json::Value {
    match actor {
        Some(actor) => json!({ "actor": actor }),
        None => json!({}),
    }
}

pub(crate) fn refuse_ended(run: &Run, verb: &str) -> Result<(), Error> {
    if !run.status.is_ended() {
        return Ok(());
    }
    let message = format!("run {:?} is {} and cannot be {verb}", run.id, run.status);
    Err(Error::new(ErrorKind::Refused, ErrorCode::RunTerminal, message))
}

pub(crate) fn busy(run: &Run) -> Error {
    let message =
        format!("run {:?} changed during {ATTEMPTS_MAX} attempts of the request; retry", run.id);
    Error::new(ErrorKind::Unavailable, ErrorCode::RunBusy, message)
}
