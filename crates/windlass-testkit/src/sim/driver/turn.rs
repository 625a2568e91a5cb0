//! A turn: load, decide, write, until the run waits or ends or its hold is gone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_kernel::{
    Body, CausalRef, Decision, Draft, End, Error, HeldItem, Hold, LimitKey, Limits, Message,
    MessageId, MessageKind, MessageName, ModelName, NewMessage, NewRun, QueueName, Route,
    RouteName, Run, RunId, RunKey, RunStatus, Step, StepKey, StepStatus, Task, TaskId, Timestamp,
    Turn, TurnChange, Wake,
};

use super::super::faults::PlantedBug;
use super::super::program::{Activity, Input, Stage};
use super::decide::{Action, View, decide, step_key, timeout};
use super::{LIMIT, Worker, World, fold};

// A run that was reaped so often without a commit is given up.
const RECLAIMS_MAX: u32 = 3;

impl Worker {
    pub(super) async fn drive(self: &Arc<Self>, run_key: RunKey, hold: Hold) {
        // On a conflict the memory of the run is worth nothing: its row says whether to go on.
        for _ in 0..4 {
            let Some(mut view) = self.read(run_key, hold).await else { return };
            self.stall().await;
            if !self.advance(&mut view, hold).await {
                return;
            }
        }
        let claim_no = hold.claim_no;
        self.give_back(HeldItem::Turn { run_key, worker: hold.worker, claim_no }).await;
    }

    async fn read(&self, run_key: RunKey, hold: Hold) -> Option<View> {
        for _ in 0..6 {
            if let Ok(mut loaded) = self.store.load(vec![run_key]).await {
                let view = View::new(loaded.pop()?)?;
                // The hold that this was read under must still be ours when it was read, or the
                // body of a step that somebody completed could run again.
                return (view.run.turn.hold() == Some(hold)).then_some(view);
            }
        }
        self.give_back(HeldItem::Turn { run_key, worker: hold.worker, claim_no: hold.claim_no })
            .await;
        None
    }

    // Goes on until the turn is over; says whether a commit failed and the row is to be read again.
    async fn advance(self: &Arc<Self>, view: &mut View, hold: Hold) -> bool {
        let mut accepted = view.read;
        loop {
            let now = self.now();
            let draft = if view.run.status == RunStatus::Paused && !view.has_control() {
                // What it was sent is for later: it has been seen, and stays where it is.
                let mut draft = Draft::held(&view.run, hold, now);
                draft.release(Wake::OnMessage, view.read);
                Ok(draft)
            } else if view.run.turn.reclaims >= RECLAIMS_MAX {
                self.world.sim.sometimes("run gave up without progress");
                view.run.turn.reclaims = 0;
                let mut draft = Draft::held(&view.run, hold, now);
                let end = End::Errored(text("NoProgress"));
                self.world.end(&mut draft, view, end, now).map(|()| draft)
            } else {
                let newest_first = self.world.has(PlantedBug::NewestFirst);
                let action = decide(view, now, newest_first);
                let seen =
                    if self.world.has(PlantedBug::SeenIsGuessed) { accepted } else { view.read };
                self.write(view, action, hold, now, seen).await
            };
            let commit = draft.expect("the driver's drafts are well-formed").finish();
            match self.world.commit(&self.store, &commit, &self.rng).await {
                Ok(done) => {
                    self.saw(done.now);
                    accepted = done.accepted;
                    view.apply(&commit);
                    let kept = commit.run_change().is_some_and(|c| c.turn == TurnChange::Keep);
                    if !kept || view.run.status.is_ended() || done.hold != Some(hold) {
                        return false;
                    }
                }
                Err(error) if error.is_retryable() => continue,
                Err(_) => return true,
            }
        }
    }

    // Does what was decided and drafts the commit that says so.
    async fn write(
        &self,
        view: &View,
        action: Action,
        hold: Hold,
        now: Timestamp,
        seen: u64,
    ) -> Result<Draft, Error> {
        let mut draft = Draft::held(&view.run, hold, now);
        let world = &self.world;
        let mut wake = self.local().rng.chance(200).then_some(Wake::Now);
        match action {
            Action::Park(until) => wake = Some(until),
            Action::Complete => {
                let output = fold(view.steps.values());
                world.end(&mut draft, view, End::Complete(output), now)?;
                return Ok(draft);
            }
            Action::Cancel(messages) => {
                world.sim.sometimes("cancel reached a child");
                for message in &messages {
                    let by = StepKey::new("control")?;
                    draft.consume("message.consumed", &json!({}), message, by, world.stamp(now))?;
                }
                world.end(&mut draft, view, End::Terminated(None), now)?;
                return Ok(draft);
            }
            Action::Execute { stage } => return self.execute(view, stage, hold, now, seen).await,
            Action::StartSleep { stage, ms } => {
                let due = now.plus(Duration::from_millis(ms));
                let step = waiting(view, step_key(stage, None), "sleep", Some(due), None, now);
                draft.step("sleep.started", &json!({}), step, world.stamp(now))?;
                wake = Some(Wake::At(due));
            }
            Action::FinishSleep { stage } => {
                self.finish(
                    &mut draft,
                    view,
                    vec![(step_key(stage, None), text("slept"), None)],
                    now,
                )?;
            }
            Action::StartWait { stage } => {
                wake = Some(self.start_wait(&mut draft, view, stage, now)?);
            }
            Action::FinishWait { stage, message } => {
                self.finish_wait(&mut draft, view, stage, message, now)?;
            }
            Action::StartActivities { stage } => {
                self.start_activities(&mut draft, view, stage, now)?;
                wake = Some(Wake::OnMessage);
            }
            Action::FinishActivities(done) => {
                self.finish(&mut draft, view, done.into_iter().map(received).collect(), now)?;
            }
            Action::StartChild { stage, seed } => {
                self.start_child(&mut draft, view, stage, seed, now)?;
                wake = Some(Wake::OnMessage);
            }
            Action::FinishChild { stage, message } => {
                let done = vec![received((step_key(stage, None), message))];
                self.finish(&mut draft, view, done, now)?;
            }
        }
        self.hand_over(&mut draft, view, wake, seen);
        Ok(draft)
    }

    fn hand_over(&self, draft: &mut Draft, view: &View, wake: Option<Wake>, seen: u64) {
        if let Some(wake) = wake {
            draft.release(wake, seen);
        }
        let waits = matches!(wake, Some(Wake::At(_) | Wake::OnMessage));
        let status = if waits { RunStatus::Waiting } else { RunStatus::Active };
        if view.run.status != status {
            draft.status(status);
        }
    }

    // Runs user code in the turn.
    async fn execute(
        &self,
        view: &View,
        stage: usize,
        hold: Hold,
        now: Timestamp,
        seen: u64,
    ) -> Result<Draft, Error> {
        let Stage::Do { fails, policy, effect, poison } = &view.program.0[stage] else {
            unreachable!()
        };
        let world = &self.world;
        let key = step_key(stage, None);
        world.checker.executing(world.faulty.inner(), view.run.run_key, &key, hold);
        if *poison {
            world.faulty.kill(self.node);
        }
        self.work().await;
        let mut draft = Draft::held(&view.run, hold, now);
        let mut step = waiting(view, key.clone(), "do", None, None, now);
        step.attempt = view.steps.get(&key).map_or(0, |step| step.attempt) + 1;
        step.attempts_max = policy.attempts_max();
        if step.attempt > *fails {
            step.status = StepStatus::Completed;
            step.result = Some(text(&format!("{} by claim {}", step.attempt, hold.claim_no)));
            draft.step("step.completed", &json!({}), step, world.stamp(now))?;
            count_steps(&mut draft, view, 1);
            if *effect {
                let task = self.effect(view, key, now);
                if world.has(PlantedBug::EffectBeforeCommit) {
                    world.checker.effect(task.task_id);
                }
                draft.enqueue(task);
            }
            if self.local().rng.chance(250) {
                let (limits, event) = (Limits::DEFAULT, CausalRef::event(view.run.cursor));
                let stamp = world.stamp(now);
                draft.record_event_caused_by("sim.noted", 1, &json!({}), event, stamp, &limits)?;
            }
            let wake = self.local().rng.chance(200).then_some(Wake::Now);
            self.hand_over(&mut draft, view, wake, seen);
            return Ok(draft);
        }
        let attempt = if world.has(PlantedBug::RetriesForever) { 0 } else { step.attempt };
        let seed = u64::from(view.input.seed);
        match policy.decide(attempt, "Flaky", true, None, seed) {
            Decision::RetryIn(delay) => {
                world.sim.sometimes("step was tried again after a backoff");
                let due = self.now().plus(delay);
                step.due_at = Some(due);
                step.error = Some(text("Flaky"));
                draft.step("step.retried", &json!({}), step, world.stamp(now))?;
                self.hand_over(&mut draft, view, Some(Wake::At(due)), seen);
            }
            Decision::GiveUp(_) => {
                step.status = StepStatus::Errored;
                step.error = Some(text("Flaky"));
                draft.step("step.errored", &json!({}), step, world.stamp(now))?;
                count_steps(&mut draft, view, 1);
                world.end(&mut draft, view, End::Errored(text("Flaky")), now)?;
            }
        }
        Ok(draft)
    }

    fn effect(&self, view: &View, key: StepKey, now: Timestamp) -> Task {
        let spec =
            Activity { fails: 0, policy: windlass_kernel::RetryPolicy::none(), limited: false };
        task(&self.world, &view.run, key, "effect", &spec, now)
    }

    // Settles steps, and consumes the messages that settle them, in one commit.
    fn finish(
        &self,
        draft: &mut Draft,
        view: &View,
        done: Vec<(StepKey, Body, Option<Message>)>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let world = &self.world;
        count_steps(draft, view, done.len());
        for (key, result, message) in done {
            if let Some(message) = &message {
                let stamp = world.stamp(now);
                draft.consume("message.consumed", &json!({}), message, key.clone(), stamp)?;
            }
            let mut step = view
                .steps
                .get(&key)
                .cloned()
                .unwrap_or_else(|| waiting(view, key.clone(), "event", None, None, now));
            step.status = StepStatus::Completed;
            step.result = Some(result);
            step.updated_at = now;
            draft.step("step.completed", &json!({}), step, world.stamp(now))?;
        }
        Ok(())
    }

    fn start_wait(
        &self,
        draft: &mut Draft,
        view: &View,
        stage: usize,
        now: Timestamp,
    ) -> Result<Wake, Error> {
        let Stage::Wait { name, .. } = view.program.0[stage] else { unreachable!() };
        let due = timeout(&view.program.0[stage], now);
        let step = waiting(view, step_key(stage, None), "event", due, Some(name), now);
        draft.step("event.awaited", &json!({}), step, self.world.stamp(now))?;
        Ok(due.map_or(Wake::OnMessage, Wake::At))
    }

    fn finish_wait(
        &self,
        draft: &mut Draft,
        view: &View,
        stage: usize,
        message: Option<Message>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let key = step_key(stage, None);
        let waited = view.steps.contains_key(&key);
        self.world.sim.sometimes(match (&message, waited) {
            (None, _) => "wait timed out",
            (Some(_), true) => "message arrived during its wait",
            (Some(_), false) => "message arrived before its wait",
        });
        let result = message.as_ref().map_or(text("timeout"), |message| text(&message.message_id));
        self.finish(draft, view, vec![(key, result, message)], now)
    }

    fn start_activities(
        &self,
        draft: &mut Draft,
        view: &View,
        stage: usize,
        now: Timestamp,
    ) -> Result<(), Error> {
        let Stage::Activities(parts) = &view.program.0[stage] else { unreachable!() };
        for (part, spec) in parts.iter().enumerate() {
            let key = step_key(stage, Some(part));
            let name = format!("act.{key}");
            let step = waiting(view, key.clone(), "activity", None, Some(&name), now);
            draft.step("activity.scheduled", &json!({}), step, self.world.stamp(now))?;
            draft.enqueue(task(&self.world, &view.run, key, "activity", spec, now));
        }
        Ok(())
    }

    fn start_child(
        &self,
        draft: &mut Draft,
        view: &View,
        stage: usize,
        seed: u32,
        now: Timestamp,
    ) -> Result<(), Error> {
        let world = &self.world;
        let key = step_key(stage, None);
        let name = format!("child.{key}");
        let step = waiting(view, key.clone(), "child", None, Some(&name), now);
        let cause = draft.step("child.started", &json!({}), step, world.stamp(now))?;
        let child = NewRun {
            run_key: RunKey(world.key()),
            namespace: view.run.namespace.clone(),
            workflow: view.run.workflow.clone(),
            model: ModelName::new("sim")?,
            id: RunId::composed(format!("{}:{key}", view.run.id))?,
            generation: 0,
            input: Input::body(&view.run.namespace, seed, view.input.depth.saturating_sub(1)),
            parent: Some((view.run.root, view.run.run_key)),
            fork: Some(key.as_str().into()),
            labels: Default::default(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: Turn::ready(),
            caused_by: Some(CausalRef::event(cause)),
        };
        draft.also_create(child, world.stamp(now))?;
        Ok(())
    }
}

impl World {
    /// Ends a run: tells its parent, and calls off the children that it still waits for.
    pub(super) fn end(
        &self,
        draft: &mut Draft,
        view: &View,
        end: End,
        now: Timestamp,
    ) -> Result<(), Error> {
        let run = &view.run;
        let event = match end {
            End::Complete(_) => "workflow.completed",
            End::Errored(_) => "workflow.failed",
            End::Terminated(_) => "workflow.terminated",
        };
        draft.end(event, &json!({}), end, self.stamp(now))?;
        if let (Some(parent), Some(fork)) = (run.parent, &run.fork) {
            let twice = if self.has(PlantedBug::ChildTellsTwice) { 2 } else { 1 };
            for time in 0..twice {
                draft.send(NewMessage {
                    run_key: parent,
                    message_id: MessageId::new(format!("c{time}:{}", run.run_key))?,
                    kind: MessageKind::ChildResult,
                    name: MessageName::new(format!("child.{fork}"))?,
                    body: Some(text(&run.run_key.to_string())),
                    caused_by: None,
                    sent_at: now,
                    required: false,
                });
            }
        }
        let open = view.steps.values().filter(|step| !step.status.is_settled());
        for step in open.filter(|step| &*step.kind == "child") {
            self.cancel_child(draft, run, step, now)?;
        }
        Ok(())
    }

    fn cancel_child(
        &self,
        draft: &mut Draft,
        run: &Run,
        step: &Step,
        now: Timestamp,
    ) -> Result<(), Error> {
        let Some(child) = self.child_of(run, &step.step_key) else { return Ok(()) };
        if self.has(PlantedBug::CancelStopsAtParent) {
            return Ok(());
        }
        draft.send(NewMessage {
            run_key: child,
            message_id: MessageId::new(format!("x:{}", run.run_key))?,
            kind: MessageKind::Control,
            name: MessageName::new("terminate")?,
            body: None,
            caused_by: None,
            sent_at: now,
            required: false,
        });
        Ok(())
    }

    // A model would keep the child's key in its step; reading it from the side spares the driver
    // one more body.
    fn child_of(&self, run: &Run, key: &StepKey) -> Option<RunKey> {
        let runs = self.checker.runs(self.faulty.inner());
        let child = runs.into_iter().find(|child| {
            child.parent == Some(run.run_key) && child.fork.as_deref() == Some(key.as_str())
        });
        child.map(|child| child.run_key)
    }
}

/// A body of JSON text.
pub(super) fn text(text: &(impl AsRef<str> + ?Sized)) -> Body {
    Body::of(text.as_ref()).expect("text is JSON")
}

// A step that the message settles, with what it carries.
fn received((key, message): (StepKey, Message)) -> (StepKey, Body, Option<Message>) {
    let body = message.body.clone().unwrap_or_else(|| text("none"));
    (key, body, Some(message))
}

fn count_steps(draft: &mut Draft, view: &View, more: usize) {
    let settled = view.steps.values().filter(|step| step.status.is_settled()).count();
    draft.state(Body::of(&(settled + more)).expect("a number is JSON"));
}

fn waiting(
    view: &View,
    step_key: StepKey,
    kind: &str,
    due_at: Option<Timestamp>,
    wait_for: Option<&str>,
    now: Timestamp,
) -> Step {
    Step {
        run_key: view.run.run_key,
        name: step_key.as_str().into(),
        step_key,
        kind: kind.into(),
        status: StepStatus::Waiting,
        position: view.run.head.next_ordinal,
        attempt: 0,
        attempts_max: None,
        input: None,
        result: None,
        error: None,
        timeout: None,
        due_at,
        wait_for: wait_for.map(Into::into),
        created_at: now,
        updated_at: now,
    }
}

fn task(
    world: &World,
    run: &Run,
    step_key: StepKey,
    kind: &str,
    spec: &Activity,
    now: Timestamp,
) -> Task {
    let route = Route {
        queue: QueueName::default_queue(),
        name: RouteName::new(kind).expect("a valid name"),
    };
    Task {
        step_key: Some(step_key),
        body: Some(Body::of(spec).expect("a spec is JSON")),
        limit_key: spec.limited.then(|| LimitKey::new(LIMIT).expect("a valid key")),
        ..Task::new(TaskId(world.key()), run.namespace.clone(), kind, route, now).of_run(run)
    }
}
