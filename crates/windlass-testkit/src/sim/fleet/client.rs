//! Clients of the simulated fleet: they start runs, send events, pause, resume and terminate, and
//! remember what they were told.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_engine::{Engine, Retention};
use windlass_kernel::{Error, ErrorKind};
use windlass_models::steps::{RunHandle, WorkflowRef};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::Rng;
use super::program::{BRIEF, Input, Program, WORKFLOW, event_value};

/// What a client knows of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// The run's name.
    pub(crate) id: String,
    /// What it was started with.
    pub(crate) input: Option<Input>,
    /// Whether its end was asked for.
    pub(crate) terminated: bool,
    /// How it ended: an output, or the code of an error.
    pub(crate) ended: Option<Result<u64, String>>,
}

/// A client and one run of its own.
pub(crate) struct Client {
    pub(crate) sim: Handle,
    pub(crate) node: NodeId,
    pub(crate) engine: Engine,
    pub(crate) told: Arc<Mutex<Told>>,
    pub(crate) rng: Rng,
}

impl Client {
    /// Sees a run through from its start to its end.
    pub(crate) async fn see_through(mut self) {
        let (id, input) = {
            let told = locked(&self.told);
            (told.id.clone(), told.input.clone().expect("an order has an input"))
        };
        let workflow: WorkflowRef<Input, u64> =
            WorkflowRef::remote(&self.engine, WORKFLOW).expect("a valid name");
        let sim = self.sim.clone();
        sim.sleep_us(self.rng.range(1, 2_000_000)).await;
        let run = until_answered(&sim, || workflow.start(input.clone()).id(id.clone())).await;
        let run = run.expect("a run of a new name can be started");
        let events = Program::of(&input).events;
        if !events.is_empty() {
            let (sim, run, rng) = (self.sim.clone(), run.clone(), self.rng.fork());
            self.sim.spawn(self.node, async move { send_events(sim, run, events, rng).await });
        }
        if self.rng.chance(300) {
            let (sim, run, rng) = (self.sim.clone(), run.clone(), self.rng.fork());
            self.sim.spawn(self.node, async move { pause_and_resume(sim, run, rng).await });
        }
        if self.rng.chance(150) {
            let (sim, run, told) = (self.sim.clone(), run.clone(), self.told.clone());
            let wait_us = self.rng.range(1, 8_000_000);
            self.sim.spawn(self.node, terminate_soon(sim, run, told, wait_us));
        }
        let ended = until_answered(&sim, || run.result()).await;
        locked(&self.told).ended = Some(ended.map_err(|error| error.code().to_owned()));
    }
}

/// Ends a run after a while.
pub(crate) async fn terminate_soon(
    sim: Handle,
    run: RunHandle<u64>,
    told: Arc<Mutex<Told>>,
    wait_us: u64,
) {
    sim.sleep_us(wait_us).await;
    locked(&told).terminated = true;
    let done = until_answered(&sim, || run.terminate()).await;
    let known = matches!(&done, Err(error) if error.code() == "RUN_TERMINAL");
    if done.is_ok() {
        sim.sometimes("client terminated a run");
    } else if !known {
        sim.trace(format_args!("terminate: {done:?}"));
    }
}

/// In order, each until it is known to have arrived, and some of them once more.
pub(crate) async fn send_events(
    sim: Handle,
    run: RunHandle<u64>,
    events: Vec<(&'static str, u64)>,
    mut rng: Rng,
) {
    for (name, number) in events {
        sim.sleep_us(rng.range(1, 1_500_000)).await;
        for _ in 0..=u32::from(rng.chance(200)) {
            let (id, value) = (format!("{name}-{number}"), event_value(name, number));
            let sent = until_answered(&sim, || run.send_event_once(name, &value, &id)).await;
            if let Err(error) = sent {
                sim.trace(format_args!("event {id}: {}", error.code()));
                return;
            }
        }
    }
}

/// Lets a run rest.
pub(crate) async fn pause_and_resume(sim: Handle, run: RunHandle<u64>, mut rng: Rng) {
    for _ in 0..rng.range(1, 2) {
        sim.sleep_us(rng.range(1, 4_000_000)).await;
        if until_answered(&sim, || run.pause()).await.is_err() {
            return;
        }
        let wait_us = if rng.chance(500) { rng.below(20_000) } else { rng.below(4_000_000) };
        sim.sleep_us(wait_us).await;
        sim.sometimes("client paused and resumed a run");
        if until_answered(&sim, || run.resume()).await.is_err() {
            return;
        }
    }
}

/// Runs that nobody waits for: they go as soon as their policy allows.
pub(crate) async fn brief_runs(sim: Handle, engine: Engine, mut rng: Rng) {
    let span = Duration::from_millis(rng.range(1_000, 3_000));
    let policy = Retention::keep_for(span).expect("it is long enough");
    let set = until_answered(&sim, || engine.set_retention(BRIEF, Some(&policy))).await;
    set.expect("the policy is well-formed");
    let workflow: WorkflowRef<Input, u64> =
        WorkflowRef::remote(&engine, BRIEF).expect("a valid name");
    for number in 0..rng.range(1, 4) {
        let input = Input { seed: rng.next_u64(), depth: 1, events: false };
        let id = format!("brief-{number}");
        let run = until_answered(&sim, || workflow.start(input.clone()).id(id.clone())).await;
        // It may have ended and be gone before the answer to an earlier try came.
        sim.trace(format_args!("{id}: {}", run.is_ok()));
        sim.sleep_us(rng.range(1, 3_000_000)).await;
        let _ = engine.sweep().await;
    }
}

/// Asks again as long as the store does not answer.
pub(crate) async fn until_answered<T, F>(sim: &Handle, ask: impl Fn() -> F) -> Result<T, Error>
where
    F: IntoFuture<Output = Result<T, Error>>,
    F::IntoFuture: Future<Output = Result<T, Error>>,
{
    loop {
        match ask().await {
            Err(error) if matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) => {
                sim.sleep_us(50_000).await;
            }
            answer => return answer,
        }
    }
}
