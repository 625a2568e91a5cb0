//! Steps and messages that a retried run takes over from its previous generation.
//!
//! If they do not fit into one commit, the next generation is created with its messages and with a
//! start that is delayed for a century, and an internal task copies the steps in bounded commits. The
//! last one of them moves the start to now. A run does not start before its time whatever happens to
//! it, so a generation with a part of its steps never runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_kernel::{
    Body, CommitError, Draft, Error, Limits, Loaded, Message, MessageId, MessageKind, NewMessage,
    Run, RunKey, RunStatus, Step, StepKey, StepStatus, Timestamp, Wake,
};

use crate::cancel::TerminateRequest;
use crate::control::{ATTEMPTS_MAX, busy};
use crate::core::Core;
use crate::description::ModelDescription;
use crate::events;
use crate::generations::Generations;
use crate::options::EnqueuedReason;
use crate::turn::refusal;

/// The bounds of one commit of a run whose rows do not fit into one.
const OPS_MAX: usize = 2_000;
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// The rows of a run with fewer bytes are written in one commit, if there are not too many of them.
const BYTES_AT_ONCE_MAX: usize = 64 * 1024 * 1024;
/// The ops of a commit besides the rows that it carries: the run, its event, dead letters, a task.
const OTHER_OPS_MAX: usize = 1_100;
/// How long the start of a generation is delayed that does not have all its steps yet.
const START_DELAY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// How long the copying waits for a worker that reads a control message of the run.
const BUSY_DELAY: Duration = Duration::from_millis(50);

/// The body of the internal task that copies the rows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CarryTask {
    from: RunKey,
    /// The step of the dead letter that was requeued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again: Option<StepKey>,
}

/// Whether a generation waits for the rest of its steps.
pub(crate) fn is_incomplete(run: &Run) -> bool {
    run.started_at.is_none() && run.turn.due_at == Some(start_of_incomplete(run.created_at))
}

/// The start of a generation that was created at this time and does not have all its steps yet.
pub(crate) fn start_of_incomplete(created_at: Timestamp) -> Timestamp {
    created_at.plus(START_DELAY)
}

/// A row that the next generation takes over.
enum Row {
    Message(Message),
    Settled(Box<Step>),
    /// A step whose message is consumed, so that the step is carried over with it.
    Open(Box<Step>),
}

impl Row {
    fn ops(&self) -> usize {
        if matches!(self, Self::Settled(_)) { 2 } else { 1 }
    }

    fn bytes(&self) -> usize {
        let bodies = match self {
            Self::Message(message) => [message.body.as_ref(), None, None],
            Self::Settled(step) | Self::Open(step) => {
                [step.input.as_ref(), step.result.as_ref(), step.error.as_ref()]
            }
        };
        bodies.into_iter().flatten().map(Body::len).sum()
    }
}

/// The rows that the next generation of an errored run takes over, in the order of writing: unread
/// events, settled steps in the order of recording, steps with a consumed message.
pub(crate) struct CarriedRows {
    from: RunKey,
    rows: std::vec::IntoIter<Row>,
}

impl CarriedRows {
    /// The rows of a run, without the failed step and the one that is asked for.
    pub(crate) fn of(loaded: Loaded, model: &ModelDescription, again: Option<&StepKey>) -> Self {
        let Loaded { run, mut steps, messages } = loaded;
        let from = run.run_key;
        let failed = (model.failed_step)(&run, &steps);
        let is_again = |step: &Step| {
            [failed.as_ref(), again].contains(&Some(&step.step_key))
                && step.status != StepStatus::Completed
        };
        let is_open = |step: &&Step| {
            step.wait_for.is_some()
                && !model.step(&step.kind).role.is_wait()
                && (!step.status.is_settled() || is_again(step))
        };
        let open: Vec<Step> = steps.iter().filter(is_open).cloned().collect();
        steps.retain(|step| {
            step.status.is_settled() && !is_again(step) && (model.retry_carries)(&run, step)
        });
        steps.sort_by_key(|step| step.updated_at);
        let is_sent = |message: &Message| (model.retry_forwards)(&run, message);
        let messages = messages.into_iter().filter(is_sent).map(Row::Message);
        let settled = steps.into_iter().map(|step| Row::Settled(Box::new(step)));
        let open = open.into_iter().map(|step| Row::Open(Box::new(step)));
        let rows: Vec<Row> = messages.chain(settled).chain(open).collect();
        Self { from, rows: rows.into_iter() }
    }

    /// Whether one commit can take all rows.
    pub(crate) fn fit(&self, limits: &Limits) -> bool {
        let rows = self.rows.as_slice();
        let ops: usize = rows.iter().map(Row::ops).sum();
        ops <= limits.commit_ops_max.saturating_sub(OTHER_OPS_MAX)
            && rows.iter().map(Row::bytes).sum::<usize>() <= BYTES_AT_ONCE_MAX
    }

    /// Adds all rows to the commit that creates the next generation.
    pub(crate) fn add_all(
        mut self,
        core: &Core,
        draft: &mut Draft,
        to: &mut Target,
    ) -> Result<(), Error> {
        let rows: Vec<Row> = self.rows.by_ref().collect();
        rows.into_iter().try_for_each(|row| to.add(core, self.from, draft, row))
    }

    /// Adds the messages to the commit that creates the next generation: those that the next
    /// generation gets itself come after them.
    pub(crate) fn add_messages(
        &mut self,
        core: &Core,
        draft: &mut Draft,
        to: &mut Target,
    ) -> Result<(), Error> {
        let ops_max = core.options.limits.commit_ops_max.saturating_sub(OTHER_OPS_MAX);
        for _ in 0..ops_max {
            let Some(Row::Message(_)) = self.rows.as_slice().first() else { break };
            let Some(row) = self.rows.next() else { break };
            to.add(core, self.from, draft, row)?;
        }
        Ok(())
    }

    // Adds rows up to the bounds of a commit, at least one. Returns whether there are more.
    fn add_some(&mut self, core: &Core, draft: &mut Draft, to: &mut Target) -> Result<bool, Error> {
        let ops_max = OPS_MAX.min(core.options.limits.commit_ops_max.saturating_sub(10));
        let (mut ops, mut bytes) = (0, 0);
        while let Some(next) = self.rows.as_slice().first() {
            ops += next.ops();
            bytes += next.bytes();
            if ops > next.ops() && (ops > ops_max || bytes > BYTES_MAX) {
                return Ok(true);
            }
            let Some(row) = self.rows.next() else { break };
            to.add(core, self.from, draft, row)?;
        }
        Ok(false)
    }

    // Leaves out the rows that the next generation has already.
    fn without(self, loaded: &Loaded) -> Self {
        let steps: BTreeSet<&StepKey> = loaded.steps.iter().map(|step| &step.step_key).collect();
        let messages: BTreeSet<&MessageId> =
            loaded.messages.iter().map(|message| &message.message_id).collect();
        let is_missing = |row: &Row| match row {
            Row::Message(message) => !messages.contains(&message.message_id),
            Row::Settled(step) | Row::Open(step) => !steps.contains(&step.step_key),
        };
        let rows: Vec<Row> = self.rows.filter(is_missing).collect();
        Self { from: self.from, rows: rows.into_iter() }
    }
}

/// The generation that takes over rows.
pub(crate) struct Target {
    run_key: RunKey,
    /// The time of the last row.
    at: Timestamp,
}

impl Target {
    pub(crate) fn new(run_key: RunKey, at: Timestamp) -> Self {
        Self { run_key, at }
    }

    fn add(&mut self, core: &Core, from: RunKey, draft: &mut Draft, row: Row) -> Result<(), Error> {
        let run_key = self.run_key;
        match row {
            Row::Message(message) => {
                draft.send(forwarded(message, run_key));
            }
            Row::Settled(mut step) => {
                self.at = self.at.plus(Duration::from_micros(1));
                let payload = json!({
                    "key": step.step_key.as_str(),
                    "carried_from": from.to_string(),
                    "status": step.status.as_str(),
                });
                step.run_key = run_key;
                step.position = draft.head().next_ordinal;
                step.updated_at = self.at;
                let stamp = core.clock.stamp(self.at);
                draft.step(events::STEP_CARRIED, &payload, *step, stamp)?;
            }
            Row::Open(step) => {
                // A step that was never tried still waits, unless its message has come.
                let waits = step.attempt == 0 && step.status != StepStatus::Pending;
                draft.open_step(Step {
                    run_key,
                    status: if waits { StepStatus::Waiting } else { StepStatus::Pending },
                    position: draft.head().next_ordinal,
                    attempt: 0,
                    result: None,
                    error: None,
                    due_at: step.due_at.filter(|_| waits),
                    updated_at: self.at.plus(Duration::from_micros(1)),
                    ..*step
                });
            }
        }
        Ok(())
    }
}

/// A copy of a message for another generation of its run.
pub(crate) fn forwarded(message: Message, run_key: RunKey) -> NewMessage {
    NewMessage {
        run_key,
        message_id: message.message_id,
        kind: message.kind,
        name: message.name,
        body: message.body,
        caused_by: message.caused_by,
        sent_at: message.sent_at,
        required: false,
    }
}

impl Generations {
    /// The body of the task that copies the rest of the rows.
    pub(crate) fn carry_task(from: RunKey, again: Option<&StepKey>) -> Result<Body, Error> {
        Body::of(&CarryTask { from, again: again.cloned() })
    }

    /// Copies the rest of the rows to a generation that does not have all of them, and starts it.
    pub(crate) async fn carry_rest(&self, to: RunKey, task: &CarryTask) -> Result<(), Error> {
        let mut attempt = 0;
        while attempt < ATTEMPTS_MAX {
            let Some(loaded) = self.load_one(to).await? else { return Ok(()) };
            if loaded.run.status.is_ended() || !is_incomplete(&loaded.run) {
                return Ok(());
            }
            let Some(old) = self.load_one(task.from).await? else {
                let reason = Some("the generation that it continues was deleted");
                let request = TerminateRequest::new("retry", reason, None);
                return self.terminator.terminate_as(to, request).await;
            };
            let model = self.registry.description(&old.run);
            let rows = CarriedRows::of(old, model, task.again.as_ref()).without(&loaded);
            if loaded.run.turn.worker.is_none() && self.carry_rows(loaded, rows).await? {
                return Ok(());
            }
            // A worker reads a control message, or has just done so.
            attempt += 1;
            self.core.env.sleep(BUSY_DELAY).await;
        }
        Err(busy(&self.core.current(to).await?))
    }

    // Writes the rows in commits of bounded size; `false` if the run has changed meanwhile.
    async fn carry_rows(&self, loaded: Loaded, mut rows: CarriedRows) -> Result<bool, Error> {
        let Loaded { mut run, steps, messages } = loaded;
        let core = &self.core;
        let start = start_of_incomplete(run.created_at);
        // Only a control message needs a turn before the start. Messages that come later are not
        // counted as seen, because they may be control messages.
        let is_control = |message: &Message| message.kind == MessageKind::Control;
        let has_control = messages.iter().any(is_control);
        let last = steps.iter().map(|step| step.updated_at).max();
        let mut at = core.stamp_after(run.updated_at.max(last.unwrap_or(run.updated_at))).at;
        loop {
            let mut draft = Draft::free(&run, core.worker, at);
            draft.set_limits(&core.options.limits).keep_unstarted();
            let mut target = Target::new(run.run_key, at);
            let has_more = rows.add_some(core, &mut draft, &mut target)?;
            at = target.at.plus(Duration::from_micros(1));
            let seen = if has_control { run.seen } else { run.accepted };
            let wake = match run.status {
                _ if has_more => Wake::At(start),
                RunStatus::Paused => Wake::OnMessage,
                _ => Wake::Now,
            };
            draft.release(wake, seen);
            let commit = draft.finish();
            let change = commit.run_change().cloned();
            match Arc::clone(&self.terminator.commits).commit(commit).await {
                Ok(_) => {
                    if let Some(change) = change {
                        change.apply_to(&mut run);
                    }
                }
                Err(CommitError::Conflict(_) | CommitError::Refused(_)) => return Ok(false),
                Err(error) => return Err(refusal(&error)),
            }
            if !has_more {
                core.run_enqueued(&run, EnqueuedReason::Create);
                return Ok(true);
            }
        }
    }

    async fn load_one(&self, run_key: RunKey) -> Result<Option<Loaded>, Error> {
        Ok(self.core.store.load(vec![run_key]).await?.into_iter().next())
    }
}
