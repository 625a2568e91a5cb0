//! Next generations of runs: restart, replace and retry.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_kernel::{
    Actor, Body, CausalRef, Commit, CommitError, DeadLetter, Draft, Error, ErrorCode, ErrorKind,
    LoadSteps, Loaded, Message, MessageKind, NewMessage, NewRun, OnExisting, Op, Run, RunKey,
    RunStatus, Step, StepKey, StepStatus, Turn as TurnRow,
};

use crate::cancel::TerminateRequest;
use crate::control::{ATTEMPTS_MAX, Control, busy, control_message, with_actor};
use crate::core::Core;
use crate::dead_letters::requeue_ops;
use crate::events;
use crate::options::EnqueuedReason;
use crate::registry::Registry;
use crate::terminate::Terminator;
use crate::turn::refusal;

/// Creates next generations of runs.
pub(crate) struct Generations {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) terminator: Arc<Terminator>,
}

/// The next generation of a run that was replaced.
pub(crate) struct Superseded {
    pub(crate) run: Run,
    /// Whether it is paused before its first turn.
    pub(crate) paused: bool,
}

impl Generations {
    /// Restarts a run as its next generation, with the same input.
    pub(crate) async fn restart(
        &self,
        run_key: RunKey,
        actor: Option<Actor>,
    ) -> Result<Run, Error> {
        let core = &self.core;
        for _ in 0..ATTEMPTS_MAX {
            let run = self.core.newest(&self.core.current(run_key).await?).await?;
            let commit = if run.status.is_ended() {
                let new = self.next_generation(&run, CausalRef::event(run.cursor));
                let stamp = core.clock.stamp(core.clock.now());
                Draft::create(new, OnExisting::Refuse, stamp)?.finish()
            } else {
                let request = TerminateRequest::new("restart", Some("restarted"), actor.as_ref());
                let terminating =
                    self.terminator.revoke_and_draft_end(run.run_key, request).await?;
                let Some((mut draft, run)) = terminating else { continue };
                let new = self.next_generation(&run, draft.cursor());
                let stamp = core.clock.stamp(core.clock.now().max(run.updated_at));
                draft.also_create(new, stamp)?;
                draft.finish()
            };
            if let Some(created) = self.superseded(commit).await? {
                return Ok(created);
            }
        }
        Err(busy(&self.core.current(run_key).await?))
    }

    /// Restarts a run as its next generation, with another input. A paused run stays paused: the same
    /// commit sends a pause request to the next generation.
    pub(crate) async fn replace(
        &self,
        run: &Run,
        input: Body,
        actor: Option<Actor>,
    ) -> Result<Superseded, Error> {
        let core = &self.core;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                // Concurrent requests revoke the turn from each other: a random delay separates them.
                let span = core.env.random() % (u64::from(attempt) * 10);
                core.env.sleep(Duration::from_millis(span)).await;
            }
            let run = self.core.newest(run).await?;
            let stamp = core.clock.stamp(core.clock.now().max(run.updated_at));
            let mut paused = false;
            let commit = if run.status.is_ended() {
                let mut new = self.next_generation(&run, CausalRef::event(run.cursor));
                new.input = input.clone();
                Draft::create(new, OnExisting::Refuse, stamp)?.finish()
            } else {
                let request = TerminateRequest::new("replace", Some("replaced"), actor.as_ref());
                let terminating =
                    self.terminator.revoke_and_draft_end(run.run_key, request).await?;
                let Some((mut draft, run)) = terminating else { continue };
                let mut new = self.next_generation(&run, draft.cursor());
                new.input = input.clone();
                let run_key = new.run_key;
                draft.also_create(new, stamp)?;
                paused = run.status == RunStatus::Paused;
                if paused {
                    let body = with_actor(actor.as_ref());
                    draft.send(control_message(core, run_key, Control::Pause, &body)?);
                }
                draft.finish()
            };
            if let Some(run) = self.superseded(commit).await? {
                return Ok(Superseded { run, paused });
            }
        }
        Err(busy(run))
    }

    /// Retries an errored run as its next generation. For a dead letter of the run its step is tried
    /// again too.
    pub(crate) async fn retry(
        &self,
        run_key: RunKey,
        actor: Option<Actor>,
        letter: Option<&DeadLetter>,
    ) -> Result<Run, Error> {
        let core = &self.core;
        for _ in 0..ATTEMPTS_MAX {
            let run = self.core.newest(&self.core.current(run_key).await?).await?;
            if letter.is_some() && run.run_key != run_key {
                let message = format!(
                    "run {:?} continued as generation {} meanwhile; check that one, and delete the letter",
                    run.id, run.generation
                );
                return Err(Error::new(ErrorKind::Conflict, ErrorCode::RunSuperseded, message));
            }
            if run.status != RunStatus::Errored {
                let message = format!(
                    "run {:?} is {}; only an errored run can be retried",
                    run.id, run.status
                );
                return Err(Error::new(ErrorKind::Refused, ErrorCode::RunNotErrored, message));
            }
            self.refuse_consumed(&run).await?;
            let Some(loaded) = core.store.load(vec![run.run_key]).await?.into_iter().next() else {
                continue;
            };
            let step = letter.and_then(|letter| letter.step_key.as_ref());
            let mut commit = self.carried_on(loaded, actor.as_ref(), step)?;
            commit.ops_mut().extend(requeue_ops(core, &run, letter).await?);
            match self.superseded(commit).await {
                Ok(Some(created)) => return Ok(created),
                Ok(None) => {}
                // A letter of the run was requeued or deleted meanwhile; read the run again.
                Err(error) if letter.is_none() && error.code() == ErrorCode::DeadLetterNotFound => {
                }
                Err(error) => return Err(error),
            }
        }
        Err(busy(&self.core.current(run_key).await?))
    }

    // A parent that has consumed its child's failure does not wait for the child any more, so it would
    // never get the result of a retry.
    async fn refuse_consumed(&self, run: &Run) -> Result<(), Error> {
        let (Some(parent), Some(fork)) = (run.parent, &run.fork) else { return Ok(()) };
        let parent = self.core.store.load(vec![parent]).await?.into_iter().next();
        let Some(Loaded { run: parent, steps, .. }) = parent else { return Ok(()) };
        let of_child = |step: &&Step| step.step_key.as_str() == &**fork;
        if !steps.iter().find(of_child).is_some_and(|step| step.status.is_settled()) {
            return Ok(());
        }
        let message = format!(
            "run {:?} of workflow {:?} has consumed the failure of its child {:?}; retry or restart that run",
            parent.id, parent.workflow, run.id
        );
        Err(Error::new(ErrorKind::Refused, ErrorCode::FailureConsumed, message))
    }

    // Sends a commit that creates a next generation; `None` after a conflict.
    async fn superseded(&self, commit: Commit) -> Result<Option<Run>, Error> {
        let created = commit.ops.iter().find_map(|op| match op {
            Op::CreateRun(run) => Some((**run).clone()),
            _ => None,
        });
        match self.terminator.commit_revoked(commit).await {
            Ok(_) => {
                if let Some(run) = &created {
                    self.core.run_enqueued(run, EnqueuedReason::Create);
                }
                Ok(created)
            }
            Err(CommitError::Conflict(_)) => Ok(None),
            Err(error) => Err(refusal(&error)),
        }
    }

    fn next_generation(&self, run: &Run, caused_by: CausalRef) -> NewRun {
        let mut turn = TurnRow::ready();
        turn.queue = run.turn.queue.clone();
        turn.priority = run.turn.priority;
        turn.limit_key = run.turn.limit_key.clone();
        NewRun {
            run_key: self.core.clock.run_key(),
            namespace: run.namespace.clone(),
            workflow: run.workflow.clone(),
            model: run.model.clone(),
            id: run.id.clone(),
            generation: run.generation + 1,
            input: run.input.clone(),
            parent: run.parent.map(|parent| (run.root, parent)),
            fork: run.fork.clone(),
            labels: run.labels.clone(),
            trace: run.trace.clone(),
            headers: run.headers.clone(),
            on_end: run.on_end.clone(),
            deadline_at: None,
            turn,
            caused_by: Some(caused_by),
        }
    }

    // The next generation of an errored run: with its settled steps, except for the failed step and the
    // requested one, and with its unread events.
    fn carried_on(
        &self,
        loaded: Loaded,
        actor: Option<&Actor>,
        asked_for: Option<&StepKey>,
    ) -> Result<Commit, Error> {
        let Loaded { run, mut steps, messages } = loaded;
        let new = self.next_generation(&run, CausalRef::event(run.cursor));
        let run_key = new.run_key;
        let mut at = self.core.clock.now().max(run.updated_at);
        let mut draft = Draft::create(new, OnExisting::Refuse, self.core.clock.stamp(at))?;
        let model = self.registry.description(&run);
        if let Some(state) = (model.retry_state)(&run)? {
            draft.state(state);
        }
        let failed = (model.failed_step)(&run, &steps);
        let again = |step: &Step| {
            [failed.as_ref(), asked_for].contains(&Some(&step.step_key))
                && step.status != StepStatus::Completed
        };
        let mut first = true;
        // The message that a step waited for is consumed, so the step is carried over with it.
        let given = |step: &&Step| {
            step.wait_for.is_some()
                && !model.step(&step.kind).role.is_wait()
                && (!step.status.is_settled() || again(step))
        };
        let given: Vec<Step> = steps.iter().filter(given).cloned().collect();
        // In the order of recording: replay delivers them in this order.
        steps.retain(|step| step.status.is_settled() && !again(step));
        steps.sort_by_key(|step| step.updated_at);
        for mut step in steps {
            at = at.plus(Duration::from_micros(1));
            let mut payload = if first { with_actor(actor) } else { json!({}) };
            first = false;
            payload["key"] = step.step_key.as_str().into();
            payload["carried_from"] = run.run_key.to_string().into();
            step.run_key = run_key;
            step.position = draft.head().next_ordinal;
            step.updated_at = at;
            payload["status"] = step.status.as_str().into();
            draft.step(events::STEP_CARRIED, &payload, step, self.core.clock.stamp(at))?;
        }
        for step in given {
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
                updated_at: at.plus(Duration::from_micros(1)),
                ..step
            });
        }
        for message in messages {
            if matches!(message.kind, MessageKind::Event | MessageKind::Signal) {
                draft.send(forwarded(message, run_key));
            }
        }
        Ok(draft.finish())
    }

    /// Operations that send the events that came too late for a generation to the newest one. They are
    /// part of the commit that settles the internal task, so each event is sent once.
    pub(crate) async fn carry_over(&self, run_key: RunKey, after: u64) -> Result<Vec<Op>, Error> {
        let loaded = self.core.store.load_with(vec![run_key], LoadSteps::Open).await?;
        let Some(loaded) = loaded.into_iter().next() else { return Ok(Vec::new()) };
        let Loaded { run, messages, .. } = loaded;
        let newest = self.core.store.find(run.namespace, run.workflow, run.id).await?;
        let Some(newest) = newest.filter(|newest| !newest.status.is_ended()) else {
            return Ok(Vec::new());
        };
        let late = |message: &Message| message.kind == MessageKind::Event && message.seq > after;
        let late = messages.into_iter().filter(late);
        let sent_on = late.map(|message| NewMessage {
            // A generation that has ended meanwhile refuses it; then the task finds the next one.
            required: true,
            ..forwarded(message, newest.run_key)
        });
        Ok(sent_on.map(|message| Op::PutMessage(Box::new(message))).collect())
    }
}

// A copy of a message for another generation of its run.
fn forwarded(message: Message, run_key: RunKey) -> NewMessage {
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
