//! Clients: they create runs, send messages, pause, resume and terminate, and log what they were
//! told.

use std::sync::{Arc, Mutex};

use serde_json::json;
use windlass_kernel::{
    Commit, CommitError, Conflict, Draft, End, LimitKey, MessageId, MessageKind, MessageName,
    ModelName, Namespace, NewMessage, NewRun, OnExisting, Op, RunId, RunKey, RunStatus, Store,
    Timestamp, Turn, Wake, WorkerKey, WorkflowName,
};

use super::super::check::Told;
use super::super::executor::locked;
use super::super::program::{Input, Program, Stage};
use super::super::rng::Rng;
use super::decide::View;
use super::turn::text;
use super::{LIMIT, WORKFLOWS, Worker, World};

/// What a client wants of one run.
#[derive(Clone, Debug)]
pub struct Order {
    /// The tenant.
    pub namespace: Namespace,
    /// The user's id.
    pub id: RunId,
    /// What the program is made from.
    pub seed: u32,
}

/// Somebody who uses the engine and does not trust it.
pub struct Client {
    world: World,
    store: Arc<dyn Store>,
    // Turns are taken under this key; no worker's row has it, so what it leaves is reaped.
    key: WorkerKey,
    rng: Mutex<Rng>,
}

impl Client {
    /// A client with a way to the store.
    pub fn new(world: World, store: Arc<dyn Store>, rng: &mut Rng) -> Self {
        let key = WorkerKey(world.key());
        world.checker.control_worker(key);
        Self { world, store, key, rng: Mutex::new(rng.fork()) }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut locked(&self.rng))
    }

    async fn pause_us(&self, low: u64, high: u64) {
        let us = self.draw(|rng| rng.range(low, high));
        self.world.sim.sleep_us(us).await;
    }

    async fn now(&self) -> Timestamp {
        loop {
            if let Ok(now) = self.store.now().await {
                return now;
            }
            self.pause_us(1_000, 100_000).await;
        }
    }

    /// Sees one order through: creates the run, perhaps more than once, and meddles with it. An
    /// eager create is made in the process of `worker`, which then holds the turn.
    pub async fn see_through(&self, order: Order, worker: Option<Arc<Worker>>) {
        self.pause_us(0, 4_000_000).await;
        let mut known = None;
        for _ in 0..self.draw(|rng| rng.range(1, 3)) {
            known = self.create(&order, order.seed, worker.as_ref()).await.or(known);
        }
        if self.draw(|rng| rng.chance(200)) {
            self.create(&order, order.seed ^ 1, None).await;
        }
        let Some(run_key) = known else { return };
        let workflow = workflow_of(&order);
        let _ = self.store.find(order.namespace.clone(), workflow, order.id.clone()).await;
        self.send_messages(&order, run_key).await;
        if self.draw(|rng| rng.chance(300)) {
            self.pause_us(0, 2_000_000).await;
            self.set_paused(run_key, true).await;
            self.pause_us(100_000, 4_000_000).await;
            self.set_paused(run_key, false).await;
        }
        if self.draw(|rng| rng.chance(180)) {
            self.pause_us(0, 3_000_000).await;
            self.terminate(run_key).await;
        }
    }

    async fn create(
        &self,
        order: &Order,
        seed: u32,
        worker: Option<&Arc<Worker>>,
    ) -> Option<RunKey> {
        let world = &self.world;
        let now = self.now().await;
        let mut turn = worker.map_or_else(Turn::ready, |worker| Turn::held_by(worker.key));
        // An eager create must not take a slot that it did not ask for.
        let limited = worker.is_none() && seed.is_multiple_of(5);
        turn.limit_key = limited.then(|| LimitKey::new(LIMIT).expect("a valid key"));
        turn.priority = (seed % 3) as i16;
        let new = NewRun {
            run_key: RunKey(world.key()),
            namespace: order.namespace.clone(),
            workflow: workflow_of(order),
            model: ModelName::new("sim").expect("a valid name"),
            id: order.id.clone(),
            generation: 0,
            input: Input::body(&order.namespace, seed, 2),
            parent: None,
            fork: None,
            labels: Default::default(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn,
            caused_by: None,
        };
        let input = new.input.digest();
        let draft = Draft::create(new, OnExisting::Return, world.stamp(now));
        let commit = draft.expect("the client's drafts are well-formed").finish();
        // A client that gives up after an unknown outcome was told nothing.
        if self.draw(|rng| rng.chance(150)) {
            let _ = self.store.commit(vec![commit]).await;
            return None;
        }
        let result = world.commit(&self.store, &commit, &self.rng).await;
        let run_key = match &result {
            Ok(done) => done.run_key,
            Err(CommitError::Conflict(Conflict::RunExists { same_input: false, .. })) => None,
            Err(_) => return None,
        };
        let (namespace, id) = (order.namespace.clone(), order.id.clone());
        world.checker.told(Told { namespace, id, input, run_key });
        if let (Some(worker), Ok(done)) = (worker, &result)
            && let (Some(run_key), Some(hold)) = (done.run_key, done.hold)
        {
            worker.take_turn(run_key, hold);
        }
        run_key
    }

    // A message for most of the waits of the program, some twice, some that nobody waits for.
    async fn send_messages(&self, order: &Order, run_key: RunKey) {
        for stage in Program::of(order.seed, 2).0 {
            let name = match stage {
                Stage::Wait { name, .. } if self.draw(|rng| rng.chance(850)) => name,
                _ if self.draw(|rng| rng.chance(60)) => "news",
                _ => continue,
            };
            self.pause_us(0, 2_500_000).await;
            let message = NewMessage {
                run_key,
                message_id: MessageId::new(format!("m:{}", self.world.sim.unique()))
                    .expect("valid"),
                kind: MessageKind::Event,
                name: MessageName::new(name).expect("a valid name"),
                body: Some(text(&order.id)),
                caused_by: None,
                sent_at: Timestamp::ZERO,
                required: true,
            };
            let commit = Commit::new(None, None, vec![Op::PutMessage(Box::new(message))]);
            let sent = self.world.commit(&self.store, &commit, &self.rng).await;
            if sent.is_ok() && self.draw(|rng| rng.chance(200)) {
                let _ = self.world.commit(&self.store, &commit, &self.rng).await;
            }
        }
    }

    // Takes the turn from whoever holds it, so that nothing has to be waited for.
    async fn take(&self, run_key: RunKey) -> Option<(View, windlass_kernel::Hold)> {
        let turn = self.store.revoke(run_key, self.key).await.ok()??;
        if self.draw(|rng| rng.chance(100)) {
            self.world.sim.sometimes("client abandoned a revoked turn");
            return None;
        }
        let view = View::new(self.store.load(vec![run_key]).await.ok()?.pop()?)?;
        (view.run.turn.hold() == Some(turn.hold)).then_some((view, turn.hold))
    }

    /// Pauses a run, or resumes it, if it can be done now.
    pub async fn set_paused(&self, run_key: RunKey, paused: bool) {
        let Some((view, hold)) = self.take(run_key).await else { return };
        let now = self.now().await;
        let is_paused = view.run.status == RunStatus::Paused;
        let mut draft = Draft::held(&view.run, hold, now);
        let run = &view.run;
        if paused && !is_paused {
            let event = draft.event("workflow.paused", &json!({}), self.world.stamp(now));
            event.expect("the client's drafts are well-formed");
            // Timers go on while a run is paused; a message is found when it is resumed.
            let wake = run.turn.due_at.map_or(Wake::OnMessage, Wake::At);
            draft.status(RunStatus::Paused).release(wake, run.seen);
        } else {
            let event = draft.event("workflow.resumed", &json!({}), self.world.stamp(now));
            event.expect("the client's drafts are well-formed");
            draft.status(RunStatus::Active).release(Wake::Now, run.seen);
        }
        let _ = self.world.commit(&self.store, &draft.finish(), &self.rng).await;
    }

    async fn terminate(&self, run_key: RunKey) {
        let now = self.now().await;
        let loaded = self.store.load(vec![run_key]).await.ok().and_then(|mut rows| rows.pop());
        let Some(view) = loaded.and_then(View::new) else { return };
        // A careless client does not look whether there is anything left to end.
        if view.run.status.is_ended() && self.draw(|rng| rng.chance(700)) {
            return;
        }
        // A turn that nobody holds can be taken in the commit itself.
        let (view, mut draft) = if view.run.turn.worker.is_none() {
            let draft = Draft::free(&view.run, self.key, now);
            (view, draft)
        } else {
            let Some((view, hold)) = self.take(run_key).await else { return };
            let draft = Draft::held(&view.run, hold, now);
            (view, draft)
        };
        let ended = self.world.end(&mut draft, &view, End::Terminated(None), now);
        ended.expect("the client's drafts are well-formed");
        let _ = self.world.commit(&self.store, &draft.finish(), &self.rng).await;
    }
}

fn workflow_of(order: &Order) -> WorkflowName {
    let name = WORKFLOWS[order.id.as_str().len() % WORKFLOWS.len()];
    WorkflowName::new(name).expect("a valid name")
}
