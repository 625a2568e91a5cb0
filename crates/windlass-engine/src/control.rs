//! Control from outside a run: pause, resume, terminate, restart, retry.

use std::sync::Arc;

use serde_json::json;
use windlass_kernel::{
    Actor, Body, CausalRef, ClaimedTurn, Commit, CommitError, Committed, Conflict, DeadLetter,
    Draft, EFFECT, End, Error, ErrorKind, Hold, Loaded, Looked, Message, MessageKind, NewMessage,
    NewRun, OnExisting, Op, Query, Route, RouteName, Run, RunGuard, RunKey, RunStatus, Stamp, Step,
    StepKey, StepStatus, Task, TasksQuery, Timestamp, Turn as TurnRow,
};

use crate::cancel::{Order, call_off, shortened};
use crate::drive::held;
use crate::engine::{Engine, Inner};
use crate::options::EnqueuedReason;
use crate::tasks::{CANCEL_TREE, internal_queue};
use crate::turn::{refusal, result_for_parent};

/// Kinds of steps that are waits and nothing else: a retried run asks for them anew. Any other step
/// may wait before it is tried.
const WAITS: [&str; 3] = ["event", "child", "activity"];

/// How often a control request is decided again because the run moved on under it.
pub(crate) const ATTEMPTS_MAX: u32 = 20;

/// What a control message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Stop before the next piece of user code.
    Pause,
    /// Go on.
    Resume,
    /// Look again: for runs that wait for a new build.
    Wake,
    /// End, as soon as what is being done is over.
    Cancel,
    /// Something that this build does not know; it is consumed and has no effect.
    Unknown,
}

impl Control {
    /// Reads a control message.
    pub fn of(message: &Message) -> Self {
        match message.name.as_str() {
            "pause" => Self::Pause,
            "resume" => Self::Resume,
            "wake" => Self::Wake,
            "cancel" => Self::Cancel,
            _ => Self::Unknown,
        }
    }
}

/// The next generation of a run that was replaced.
pub(crate) struct Superseded {
    pub(crate) run: Run,
    /// Whether it pauses before it does anything.
    pub(crate) paused: bool,
}

impl Engine {
    /// Asks a run that waits for a new build or an operator to try again now.
    pub async fn wake_run(&self, run: &Run) -> Result<(), Error> {
        refuse_ended(run, "woken")?;
        self.control(run.run_key, "wake", json!({})).await
    }

    /// Ends a run, whatever it is doing, in whichever generation it is by then. One that has ended cannot
    /// be terminated.
    pub async fn terminate(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<Actor>,
    ) -> Result<(), Error> {
        let (engine, reason) = (self.clone(), reason.map(str::to_owned));
        let ending = async move { engine.terminate_newest(run_key, reason, actor).await };
        self.inner.to_the_end(ending).await?
    }

    async fn terminate_newest(
        &self,
        mut run_key: RunKey,
        reason: Option<String>,
        actor: Option<Actor>,
    ) -> Result<(), Error> {
        let inner = &self.inner;
        for _ in 0..ATTEMPTS_MAX {
            let run = self.current(run_key).await?;
            if run.status.is_ended() {
                // It may have been restarted since its key was read.
                let newest = self.newest(&run).await?;
                if newest.run_key == run_key {
                    return refuse_ended(&run, "terminated");
                }
                run_key = newest.run_key;
                continue;
            }
            let order = Order::new("terminate", reason.as_deref(), actor.as_ref());
            let Some((draft, run)) = inner.terminating(run_key, order).await? else { continue };
            match inner.commit_taken(draft.finish()).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict(Conflict::RunHead { .. } | Conflict::RunHold { .. })) => {
                    tracing::debug!(run_key = %run.run_key, "a termination is decided again");
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
        Err(busy(&self.current(run_key).await?))
    }

    /// Begins a run anew as its next generation, with the same input. A live generation is ended
    /// as terminated; its unread messages are dropped with it.
    pub async fn restart(&self, run_key: RunKey, actor: Option<Actor>) -> Result<Run, Error> {
        let engine = self.clone();
        let restarting = async move { engine.restart_newest(run_key, actor).await };
        self.inner.to_the_end(restarting).await?
    }

    async fn restart_newest(&self, run_key: RunKey, actor: Option<Actor>) -> Result<Run, Error> {
        let inner = &self.inner;
        for _ in 0..ATTEMPTS_MAX {
            let run = self.newest(&self.current(run_key).await?).await?;
            let commit = if run.status.is_ended() {
                let new = inner.next_generation(&run, CausalRef::event(run.cursor));
                let stamp = inner.clock.stamp(inner.clock.now());
                Draft::create(new, OnExisting::Refuse, stamp)?.finish()
            } else {
                let order = Order::new("restart", Some("restarted"), actor.as_ref());
                let terminating = inner.terminating(run.run_key, order).await?;
                let Some((mut draft, run)) = terminating else { continue };
                let new = inner.next_generation(&run, draft.cursor());
                let stamp = inner.clock.stamp(inner.clock.now().max(run.updated_at));
                draft.also_create(new, stamp)?;
                draft.finish()
            };
            if let Some(created) = self.superseded(commit).await? {
                return Ok(created);
            }
        }
        Err(busy(&self.current(run_key).await?))
    }

    /// Begins a run anew with another input, as its next generation. One that was paused stays so: the
    /// next generation is sent a pause before anybody can take its turn.
    pub(crate) async fn supersede(
        &self,
        run: &Run,
        input: Body,
        actor: Option<Actor>,
    ) -> Result<Superseded, Error> {
        let (engine, run) = (self.clone(), run.clone());
        let replacing = async move { engine.supersede_newest(&run, input, actor).await };
        self.inner.to_the_end(replacing).await?
    }

    async fn supersede_newest(
        &self,
        run: &Run,
        input: Body,
        actor: Option<Actor>,
    ) -> Result<Superseded, Error> {
        let inner = &self.inner;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                // Others may be at it too, and each takes the turn from the other.
                let span = inner.env.random() % (u64::from(attempt) * 10);
                inner.env.sleep(std::time::Duration::from_millis(span)).await;
            }
            let run = self.newest(run).await?;
            let stamp = inner.clock.stamp(inner.clock.now().max(run.updated_at));
            let mut paused = false;
            let commit = if run.status.is_ended() {
                let mut new = inner.next_generation(&run, CausalRef::event(run.cursor));
                new.input = input.clone();
                Draft::create(new, OnExisting::Refuse, stamp)?.finish()
            } else {
                let order = Order::new("replace", Some("replaced"), actor.as_ref());
                let terminating = inner.terminating(run.run_key, order).await?;
                let Some((mut draft, run)) = terminating else { continue };
                let mut new = inner.next_generation(&run, draft.cursor());
                new.input = input.clone();
                let run_key = new.run_key;
                draft.also_create(new, stamp)?;
                paused = run.status == RunStatus::Paused;
                if paused {
                    let body = with_actor(actor.as_ref());
                    draft.send(inner.control_message(run_key, "pause", &body)?);
                }
                draft.finish()
            };
            if let Some(run) = self.superseded(commit).await? {
                return Ok(Superseded { run, paused });
            }
        }
        Err(busy(run))
    }

    /// Carries an errored run on as its next generation: completed steps are taken along, and the
    /// failed one is tried again.
    pub async fn retry(&self, run_key: RunKey, actor: Option<Actor>) -> Result<Run, Error> {
        self.retry_with(run_key, actor, None).await
    }

    /// As [`Engine::retry`], for a dead letter of the run, whose step is tried again as well.
    pub(crate) async fn retry_with(
        &self,
        run_key: RunKey,
        actor: Option<Actor>,
        letter: Option<&DeadLetter>,
    ) -> Result<Run, Error> {
        let inner = &self.inner;
        for _ in 0..ATTEMPTS_MAX {
            let run = self.newest(&self.current(run_key).await?).await?;
            if letter.is_some() && run.run_key != run_key {
                let message = format!(
                    "run {:?} has gone on as generation {} since; look at that one, and delete the letter",
                    run.id, run.generation
                );
                return Err(Error::new(ErrorKind::Conflict, "RUN_SUPERSEDED", message));
            }
            if run.status != RunStatus::Errored {
                let message = format!(
                    "run {:?} is {}; only an errored run can be retried",
                    run.id, run.status
                );
                return Err(Error::new(ErrorKind::Refused, "RUN_NOT_ERRORED", message));
            }
            self.refuse_consumed(&run).await?;
            let Some(loaded) = inner.store.load(vec![run.run_key]).await?.into_iter().next() else {
                continue;
            };
            let step = letter.and_then(|letter| letter.step_key.as_ref());
            let mut commit = inner.carried_on(loaded, actor.as_ref(), step)?;
            commit.ops_mut().extend(self.requeued_with(&run, letter).await?);
            match self.superseded(commit).await {
                Ok(Some(created)) => return Ok(created),
                Ok(None) => {}
                // Somebody has requeued or deleted it meanwhile: the run is looked at again.
                Err(error) if letter.is_none() && error.code() == "DEAD_LETTER_NOT_FOUND" => {}
                Err(error) => return Err(error),
            }
        }
        Err(busy(&self.current(run_key).await?))
    }

    // A parent that has consumed its child's failure goes on without it, and would never hear of what
    // comes of a retry.
    async fn refuse_consumed(&self, run: &Run) -> Result<(), Error> {
        let (Some(parent), Some(fork)) = (run.parent, &run.fork) else { return Ok(()) };
        let parent = self.inner.store.load(vec![parent]).await?.into_iter().next();
        let Some(Loaded { run: parent, steps, .. }) = parent else { return Ok(()) };
        let of_child = |step: &&Step| step.step_key.as_str() == &**fork;
        if !steps.iter().find(of_child).is_some_and(|step| step.status.is_settled()) {
            return Ok(());
        }
        let message = format!(
            "run {:?} of workflow {:?} has consumed the failure of its child {:?}; retry or restart that run",
            parent.id, parent.workflow, run.id
        );
        Err(Error::new(ErrorKind::Refused, "FAILURE_CONSUMED", message))
    }

    // Sends a commit that makes a next generation; none if somebody was faster.
    async fn superseded(&self, commit: Commit) -> Result<Option<Run>, Error> {
        let created = commit.ops.iter().find_map(|op| match op {
            Op::CreateRun(run) => Some((**run).clone()),
            _ => None,
        });
        match self.inner.commit_taken(commit).await {
            Ok(_) => {
                if let Some(run) = &created {
                    self.inner.enqueued(run, EnqueuedReason::Create);
                }
                Ok(created)
            }
            Err(CommitError::Conflict(_)) => Ok(None),
            Err(error) => Err(refusal(&error)),
        }
    }

    /// A run's row as it is now.
    pub async fn current(&self, run_key: RunKey) -> Result<Run, Error> {
        let looked = self.inner.store.look_at(run_key).await?;
        looked.map(|looked| looked.run).ok_or_else(|| {
            let message = format!("there is no run {run_key}");
            Error::new(ErrorKind::NotFound, "RUN_NOT_FOUND", message)
        })
    }

    /// The generation that follows a run's.
    pub async fn next_generation_of(&self, run_key: RunKey) -> Result<RunKey, Error> {
        let run = self.current(run_key).await?;
        let query = Query::Generations {
            namespace: run.namespace.clone(),
            workflow: run.workflow.clone(),
            id: run.id.clone(),
            before: Some(run.generation + 2),
            limit: 1,
        };
        let next = self.inner.store.list(query).await?.runs()?.into_iter().next();
        let next = next.filter(|next| next.generation == run.generation + 1);
        next.map(|next| next.run_key).ok_or_else(|| {
            let message = format!("run {:?} has no generation after {}", run.id, run.generation);
            Error::new(ErrorKind::NotFound, "RUN_NOT_FOUND", message)
        })
    }

    /// Whether a run has no later generation. One that has not ended never has.
    pub async fn is_newest(&self, run: &Run) -> Result<bool, Error> {
        Ok(!run.status.is_ended() || self.newest(run).await?.run_key == run.run_key)
    }

    /// The newest generation of a run.
    pub async fn newest(&self, run: &Run) -> Result<Run, Error> {
        let (namespace, workflow) = (run.namespace.clone(), run.workflow.clone());
        let newest = self.inner.store.find(namespace, workflow, run.id.clone()).await?;
        Ok(newest.unwrap_or_else(|| run.clone()))
    }

    /// Whether somebody has asked for a run to be cancelled, and it has not ended yet.
    pub async fn is_cancelling(&self, run: &Run) -> Result<bool, Error> {
        // A turn that gives itself back has obeyed all that it has seen, so what is unread came since. What
        // a paused run has unread may be much, and is none of it: a cancel ends such a run by itself.
        let is_at_rest = run.status.is_ended() || run.status == RunStatus::Paused;
        if is_at_rest || run.accepted <= run.seen {
            return Ok(false);
        }
        let ends = self.manners_of(run).cancel;
        let asks = |message: &Message| {
            message.consumed.is_none()
                && match message.kind {
                    MessageKind::Control => Control::of(message) == Control::Cancel,
                    MessageKind::Signal | MessageKind::Event => ends == Some(message.name.as_str()),
                    _ => false,
                }
        };
        let limit = self.inner.options.limits.page_rows_max;
        let mut after = run.seen;
        loop {
            let query = Query::Messages { run_key: run.run_key, after, limit };
            let page = self.inner.store.list(query).await?.messages()?;
            if page.iter().any(asks) {
                return Ok(true);
            }
            match page.last().filter(|_| page.len() == limit as usize) {
                Some(last) => after = last.seq,
                None => return Ok(false),
            }
        }
    }
}

impl Inner {
    /// Takes a run's turn from whoever has it, and drafts its end. None if it ended meanwhile.
    async fn terminating(
        self: &Arc<Self>,
        run_key: RunKey,
        order: Order<'_>,
    ) -> Result<Option<(Draft, Run)>, Error> {
        let slot = self.live.lock().get(&run_key).cloned();
        let Some(claimed) = self.store.revoke(run_key, self.worker).await? else {
            return Ok(None);
        };
        if let Some(slot) = slot {
            slot.lose();
        }
        let drafted = self.draft_end(&claimed, order).await;
        if !matches!(drafted, Ok(Some(_))) {
            self.let_go(run_key, claimed.hold).await;
        }
        drafted
    }

    // Commits what a turn was taken for; if it does not hold, the turn is given back.
    async fn commit_taken(self: &Arc<Self>, commit: Commit) -> Result<Committed, CommitError> {
        let taken = match &commit.run {
            Some(RunGuard::Held { run_key, hold, .. }) => Some((*run_key, *hold)),
            _ => None,
        };
        let committed = Arc::clone(self).commit_until_known(commit).await;
        if let (Err(_), Some((run_key, hold))) = (&committed, taken) {
            self.let_go(run_key, hold).await;
        }
        committed
    }

    // Nobody else would give back a turn that was taken for a request which then failed. If it is
    // somebody else's by now, this does nothing: the claim's number has changed.
    async fn let_go(&self, run_key: RunKey, hold: Hold) {
        if let Err(error) = self.store.release(vec![held(run_key, hold)]).await {
            tracing::warn!(%run_key, %error, "a turn cannot be given back; it will be found again");
        }
    }

    async fn draft_end(
        &self,
        claimed: &ClaimedTurn,
        order: Order<'_>,
    ) -> Result<Option<(Draft, Run)>, Error> {
        let Some(looked) = self.store.look_at(claimed.run_key).await? else { return Ok(None) };
        let at = self.stamp_after(looked.run.updated_at).at;
        let draft = Draft::held(&looked.run, claimed.hold, at);
        self.draft_end_of(looked, draft, at, order).await.map(Some)
    }

    /// Drafts the end of a run that somebody ends, on top of a draft with its guard.
    pub(crate) async fn draft_end_of(
        &self,
        looked: Looked,
        mut draft: Draft,
        at: Timestamp,
        order: Order<'_>,
    ) -> Result<(Draft, Run), Error> {
        let Looked { run, open_steps } = looked;
        // Of a workflow that this process does not know, any open step may reach something.
        let model = self.registered(&run.workflow).map(|registered| registered.model);
        let reaches = |step: &Step| model.as_ref().is_none_or(|model| model.has_reach(&step.kind));
        let has_reach = open_steps.iter().any(reaches);
        let mut last = open_steps.iter().map(|step| step.updated_at).fold(at, Timestamp::max);
        let mut stamp = || {
            last = last.plus(std::time::Duration::from_micros(1));
            self.clock.stamp(last)
        };
        call_off(&mut draft, open_steps, self.manners(&run).called_off, &mut stamp)?;
        let stamp = stamp();
        let mut payload = with_actor(order.actor);
        payload["request"] = order.request.into();
        if let Some(reason) = order.reason {
            payload["reason"] = shortened(reason).into();
        }
        let end = End::Terminated(order.error()?);
        // A parent waits for its child's name: a restart is nothing that it hears of.
        let message = match order.request {
            "restart" => None,
            _ => result_for_parent(&run, &end, stamp)?,
        };
        draft.end("workflow.terminated", &payload, end, stamp)?;
        if let Some(message) = message {
            draft.send(message);
        }
        if has_reach {
            for op in self.reach_of(&run, stamp.at).await? {
                draft.op(op);
            }
        }
        Ok((draft, run))
    }

    /// What must end with a run, for the commit that ends it.
    pub(crate) async fn reach_of(&self, run: &Run, at: Timestamp) -> Result<Vec<Op>, Error> {
        let cancel_tree = self.internal_task(CANCEL_TREE, run, at)?;
        let mut ops = vec![Op::Enqueue(Box::new(cancel_tree))];
        let tasks = self.tasks_of(run).await?;
        // Effects are wanted however the run ends.
        let works = tasks.iter().filter(|task| &*task.kind != EFFECT);
        ops.extend(works.map(|task| Op::Settle { task_id: task.task_id }));
        Ok(ops)
    }

    /// The tasks that work for a run.
    pub(crate) async fn tasks_of(&self, run: &Run) -> Result<Vec<Task>, Error> {
        let limit = self.options.limits.page_rows_max;
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            let page = self.store.list(Query::Tasks(TasksQuery {
                run_key: Some(run.run_key),
                after: tasks.last().map(|task| task.task_id),
                ..TasksQuery::all(run.namespace.clone(), limit)
            }));
            let page = page.await?.tasks()?;
            let last = page.len() < limit as usize;
            tasks.extend(page);
            if last {
                return Ok(tasks);
            }
        }
    }

    /// A task of the engine's own for a run.
    pub(crate) fn internal_task(
        &self,
        name: &str,
        run: &Run,
        at: Timestamp,
    ) -> Result<Task, Error> {
        let route = Route { queue: internal_queue(), name: RouteName::new(name)? };
        Ok(Task::new(self.task_id(), run.namespace.clone(), "internal", route, at).of_run(run))
    }

    pub(crate) fn stamp_after(&self, at: Timestamp) -> Stamp {
        let at = self.clock.now().max(at.plus(std::time::Duration::from_micros(1)));
        self.clock.stamp(at)
    }

    fn next_generation(&self, run: &Run, caused_by: CausalRef) -> NewRun {
        let mut turn = TurnRow::ready();
        turn.queue = run.turn.queue.clone();
        turn.priority = run.turn.priority;
        turn.limit_key = run.turn.limit_key.clone();
        NewRun {
            run_key: self.clock.run_key(),
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

    // The next generation of an errored run: with what it had settled, except for the step that
    // failed it and the one that is asked for, and with the events that it had not read.
    fn carried_on(
        &self,
        loaded: Loaded,
        actor: Option<&Actor>,
        asked_for: Option<&StepKey>,
    ) -> Result<Commit, Error> {
        let Loaded { run, mut steps, messages } = loaded;
        let new = self.next_generation(&run, CausalRef::event(run.cursor));
        let run_key = new.run_key;
        let mut at = self.clock.now().max(run.updated_at);
        let mut draft = Draft::create(new, OnExisting::Refuse, self.clock.stamp(at))?;
        let failed = failed_step(&run, &steps);
        let again = |step: &Step| {
            [failed.as_ref(), asked_for].contains(&Some(&step.step_key))
                && step.status != StepStatus::Completed
        };
        let mut first = true;
        // What a step was given before it was tried is consumed: its next attempt begins with it.
        let given = |step: &&Step| {
            step.wait_for.is_some()
                && !WAITS.contains(&&*step.kind)
                && (!step.status.is_settled() || again(step))
        };
        let given: Vec<Step> = steps.iter().filter(given).cloned().collect();
        // In the order in which they were recorded: replay delivers them in it.
        steps.retain(|step| step.status.is_settled() && !again(step));
        steps.sort_by_key(|step| step.updated_at);
        for mut step in steps {
            at = at.plus(std::time::Duration::from_micros(1));
            let mut payload = if first { with_actor(actor) } else { json!({}) };
            first = false;
            payload["key"] = step.step_key.as_str().into();
            payload["carried_from"] = run.run_key.to_string().into();
            step.run_key = run_key;
            step.position = draft.head().next_ordinal;
            step.updated_at = at;
            payload["status"] = step.status.as_str().into();
            draft.step("step.carried", &payload, step, self.clock.stamp(at))?;
        }
        for step in given {
            // One that was never tried still waits, unless what it waits for has come.
            let waits = step.attempt == 0 && step.status != StepStatus::Pending;
            draft.open_step(Step {
                run_key,
                status: if waits { StepStatus::Waiting } else { StepStatus::Pending },
                position: draft.head().next_ordinal,
                attempt: 0,
                result: None,
                error: None,
                due_at: step.due_at.filter(|_| waits),
                updated_at: at.plus(std::time::Duration::from_micros(1)),
                ..step
            });
        }
        for message in messages {
            if matches!(message.kind, MessageKind::Event | MessageKind::Signal) {
                draft.send(sent_on(message, run_key));
            }
        }
        Ok(draft.finish())
    }

    /// What sends the events that came too late for a generation to the newest one, for the commit
    /// that settles the task: so each of them is sent once.
    pub(crate) async fn carry_over(&self, run_key: RunKey, after: u64) -> Result<Vec<Op>, Error> {
        let Some(loaded) = self.store.load(vec![run_key]).await?.into_iter().next() else {
            return Ok(Vec::new());
        };
        let Loaded { run, messages, .. } = loaded;
        let newest = self.store.find(run.namespace, run.workflow, run.id).await?;
        let Some(newest) = newest.filter(|newest| !newest.status.is_ended()) else {
            return Ok(Vec::new());
        };
        let late = |message: &Message| message.kind == MessageKind::Event && message.seq > after;
        let late = messages.into_iter().filter(late);
        let sent_on = late.map(|message| NewMessage {
            // A generation that has ended meanwhile refuses it, and the next one is looked up.
            required: true,
            ..sent_on(message, newest.run_key)
        });
        Ok(sent_on.map(|message| Op::PutMessage(Box::new(message))).collect())
    }

    /// Ends a child that its parent no longer waits for, in whatever generation it is.
    pub(crate) async fn call_off(self: &Arc<Self>, child: RunKey) -> Result<(), Error> {
        let Some(looked) = self.store.look_at(child).await? else { return Ok(()) };
        let Run { namespace, workflow, id, .. } = looked.run;
        match self.store.find(namespace, workflow, id).await? {
            Some(newest) if !newest.status.is_ended() => self.terminate_child(newest.run_key).await,
            _ => Ok(()),
        }
    }

    /// Terminates what a run that has ended left behind.
    pub(crate) async fn reach_descendants(self: &Arc<Self>, run_key: RunKey) -> Result<(), Error> {
        let engine_free = |error: &Error| matches!(error.code(), "RUN_TERMINAL" | "RUN_NOT_FOUND");
        let Some(parent) = self.store.look_at(run_key).await? else { return Ok(()) };
        let limit = self.options.limits.page_rows_max;
        let mut after = None;
        loop {
            let query = Query::Tree { root: parent.run.root, after, limit };
            let page = self.store.list(query).await?.runs()?;
            after = page.last().map(|run| run.run_key);
            let full = page.len() == limit as usize;
            for run in page {
                if run.parent != Some(run_key) || run.status.is_ended() {
                    continue;
                }
                let ended = self.terminate_child(run.run_key).await;
                if let Err(error) = ended
                    && !engine_free(&error)
                {
                    return Err(error);
                }
            }
            if !full {
                return Ok(());
            }
        }
    }

    async fn terminate_child(self: &Arc<Self>, run_key: RunKey) -> Result<(), Error> {
        let reason = Some("the parent run has ended, or no longer waits for it");
        self.terminate_as(run_key, Order::new("parent", reason, None)).await
    }

    /// Ends a run, unless it has ended.
    pub(crate) async fn terminate_as(
        self: &Arc<Self>,
        run_key: RunKey,
        order: Order<'_>,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS_MAX {
            let Some((draft, _)) = self.terminating(run_key, order).await? else {
                return Ok(());
            };
            match self.commit_taken(draft.finish()).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(refusal(&error)),
            }
        }
        let message = format!("run {run_key} moves on faster than it can be terminated");
        Err(Error::new(ErrorKind::Unavailable, "RUN_BUSY", message))
    }
}

// The step whose failure ended a run: the one that its error names, else the last that failed.
fn failed_step(run: &Run, steps: &[Step]) -> Option<StepKey> {
    let error: Option<serde_json::Value> = run.error.as_ref().and_then(|error| error.read().ok());
    let named = error.as_ref().and_then(|error| error["step"].as_str());
    let failed = steps
        .iter()
        .filter(|step| step.status.is_settled() && step.status != StepStatus::Completed);
    match named {
        Some(named) => failed.map(|step| &step.step_key).find(|key| key.as_str() == named).cloned(),
        // What was called off did not fail anything.
        None => failed
            .filter(|step| step.status == StepStatus::Errored)
            .max_by_key(|step| step.updated_at)
            .map(|step| step.step_key.clone()),
    }
}

// A message as it goes to another generation of its run.
fn sent_on(message: Message, run_key: RunKey) -> NewMessage {
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
    Err(Error::new(ErrorKind::Refused, "RUN_TERMINAL", message))
}

pub(crate) fn busy(run: &Run) -> Error {
    let message = format!("run {:?} moves on faster than the request; ask again", run.id);
    Error::new(ErrorKind::Unavailable, "RUN_BUSY", message)
}
