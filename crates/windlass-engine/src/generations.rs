//! Next generations of runs: restart, replace and retry.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{
    Actor, Body, CausalRef, Commit, CommitError, DeadLetter, Draft, Error, ErrorCode, ErrorKind,
    LoadSteps, Loaded, Message, MessageKind, NewMessage, NewRun, OnExisting, Op, PutBody, Run,
    RunKey, RunStatus, Stamp, Step, StepKey, Timestamp, Turn as TurnRow,
};

use crate::cancel::TerminateRequest;
use crate::carried::{CarriedRows, Target, forwarded, is_incomplete, start_of_incomplete};
use crate::control::{ATTEMPTS_MAX, Control, busy, control_message, with_actor};
use crate::core::Core;
use crate::dead_letters::requeue_ops;
use crate::events;
use crate::options::EnqueuedReason;
use crate::registry::Registry;
use crate::tasks::CARRY_STEPS;
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
            let mut run = self.core.newest(&self.core.current(run_key).await?).await?;
            let commit = if run.status.is_ended() {
                self.core.fill_run(&mut run).await?;
                let new = self.next_generation(&run, CausalRef::event(run.cursor));
                self.restarted(&run, new, actor.as_ref())?.finish()
            } else {
                let request = TerminateRequest::new("restart", Some("restarted"), actor.as_ref());
                let terminating =
                    self.terminator.revoke_and_draft_end(run.run_key, request).await?;
                let Some((mut draft, mut run)) = terminating else { continue };
                self.core.fill_run(&mut run).await?;
                let new = self.next_generation(&run, draft.cursor());
                let stamp = core.clock.stamp(core.clock.now().max(run.updated_at));
                self.also_restart(&mut draft, &run, new, stamp)?;
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
            let mut run = self.core.newest(run).await?;
            self.core.fill_run(&mut run).await?;
            let stamp = core.clock.stamp(core.clock.now().max(run.updated_at));
            let mut paused = false;
            let commit = if run.status.is_ended() {
                let mut new = self.next_generation(&run, CausalRef::event(run.cursor));
                new.input = input.clone();
                self.restarted(&run, new, actor.as_ref())?.finish()
            } else {
                let request = TerminateRequest::new("replace", Some("replaced"), actor.as_ref());
                let terminating =
                    self.terminator.revoke_and_draft_end(run.run_key, request).await?;
                let Some((mut draft, run)) = terminating else { continue };
                let mut new = self.next_generation(&run, draft.cursor());
                new.input = input.clone();
                let run_key = new.run_key;
                self.also_restart(&mut draft, &run, new, stamp)?;
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
                let message = match letter {
                    Some(_) => not_requeued(&run),
                    None => format!(
                        "run {:?} is {}; only an errored run can be retried",
                        run.id, run.status
                    ),
                };
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
                // Retention has deleted the run meanwhile; reading it again says so.
                Err(error) if error.code() == ErrorCode::CauseNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(busy(&self.core.current(run_key).await?))
    }

    // A parent that has consumed its child's failure does not wait for the child any more, so it would
    // never get the result of a retry.
    async fn refuse_consumed(&self, run: &Run) -> Result<(), Error> {
        let Some(parent) = run.parent else { return Ok(()) };
        let parent = self.core.store.load(vec![parent]).await?.into_iter().next();
        let Some(Loaded { run: parent, steps, .. }) = parent else { return Ok(()) };
        let model = self.registry.description(&parent);
        let of_child = |step: &&Step| (model.waits_for_child)(step, run);
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
                if let Some(run) = created.as_ref().filter(|run| !is_incomplete(run)) {
                    self.core.run_enqueued(run, EnqueuedReason::Create);
                }
                Ok(created)
            }
            Err(CommitError::Conflict(_)) => Ok(None),
            Err(error) => Err(refusal(&error)),
        }
    }

    // A draft that creates the next generation of an ended run. If the author of the request is known,
    // the ledger names them.
    fn create(&self, new: NewRun, at: Timestamp, actor: Option<&Actor>) -> Result<Draft, Error> {
        let core = &self.core;
        let mut draft = Draft::create(new, OnExisting::Refuse, core.clock.stamp(at))?;
        draft.set_limits(&core.options.limits);
        if actor.is_some() {
            let stamp = core.clock.stamp(at.plus(Duration::from_micros(1)));
            draft.event(events::WORKFLOW_RESTARTED, &with_actor(actor), stamp)?;
        }
        Ok(draft)
    }

    // The draft of a generation that follows an ended one and begins from its start.
    fn restarted(&self, run: &Run, new: NewRun, actor: Option<&Actor>) -> Result<Draft, Error> {
        let at = self.core.clock.now().max(run.updated_at);
        let run_key = new.run_key;
        let mut draft = self.create(new, at, actor)?;
        if let Some(state) = self.restart_state(run)? {
            self.copy_bodies(&mut draft, run, run_key, &state);
            draft.state(state, self.core.clock.stamp(at));
        }
        Ok(draft)
    }

    // Adds a generation that begins from its start to the draft that ends the one before.
    fn also_restart(
        &self,
        draft: &mut Draft,
        run: &Run,
        new: NewRun,
        stamp: Stamp,
    ) -> Result<(), Error> {
        let state = self.restart_state(run)?;
        if let Some(state) = &state {
            self.copy_bodies(draft, run, new.run_key, state);
        }
        draft.also_create_with_state(new, state, stamp).map(drop)
    }

    // The next generation of a root is a root itself, and owns the bodies that its state names.
    fn copy_bodies(&self, draft: &mut Draft, run: &Run, to: RunKey, state: &Body) {
        for digest in (self.registry.description(run).bodies_of_state)(state) {
            draft.op(Op::PutBody(Box::new(PutBody::copy(run.run_key, to, digest))));
        }
    }

    fn restart_state(&self, run: &Run) -> Result<Option<Body>, Error> {
        (self.registry.description(run).restart_state)(run)
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
    // requested one, and with its unread events. If they do not fit into one commit, a task copies them.
    fn carried_on(
        &self,
        loaded: Loaded,
        actor: Option<&Actor>,
        asked_for: Option<&StepKey>,
    ) -> Result<Commit, Error> {
        let core = &self.core;
        let run = loaded.run.clone();
        let model = self.registry.description(&run);
        let mut rows = CarriedRows::of(loaded, model, asked_for);
        let is_complete = rows.fit(&core.options.limits);
        let at = core.clock.now().max(run.updated_at);
        let mut new = self.next_generation(&run, CausalRef::event(run.cursor));
        let run_key = new.run_key;
        if !is_complete {
            let start = start_of_incomplete(at);
            new.turn = TurnRow { ready: false, due_at: Some(start), ..new.turn };
        }
        let mut draft = self.create(new, at, actor)?;
        if let Some(state) = (model.retry_state)(&run)? {
            self.copy_bodies(&mut draft, &run, run_key, &state);
            draft.state(state, self.core.clock.stamp(at));
        }
        let mut target = Target::new(run_key, at.plus(Duration::from_micros(1)));
        if is_complete {
            rows.add_all(core, &mut draft, &mut target)?;
            return Ok(draft.finish());
        }
        rows.add_messages(core, &mut draft, &mut target)?;
        let mut task = self.terminator.internal_task(CARRY_STEPS, &run, at)?;
        task.run_key = Some(run_key);
        task.body = Some(Self::carry_task(run.run_key, asked_for)?);
        draft.enqueue(task);
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
        let late = |message: &Message| {
            let carried = [MessageKind::Event, MessageKind::Signal, MessageKind::KeyedEvent];
            carried.contains(&message.kind) && message.seq > after
        };
        let late = messages.into_iter().filter(late);
        let sent_on = late.map(|message| NewMessage {
            // A generation that has ended meanwhile refuses it; then the task finds the next one.
            required: true,
            ..forwarded(message, newest.run_key)
        });
        Ok(sent_on.map(|message| Op::PutMessage(Box::new(message))).collect())
    }
}

// Why a letter of a run that has not failed cannot be requeued, and what to do instead.
fn not_requeued(run: &Run) -> String {
    let instead = match run.status.is_ended() {
        true => "it ended without this work; restart the run to do all of it again",
        false => {
            "it has received the failure and continues; let the workflow schedule the work again, for \
             example by a signal that it handles"
        }
    };
    format!(
        "run {:?} is {}, and only the letters of an errored run are requeued: {instead}; then delete \
         the letter",
        run.id, run.status
    )
}
