//! Clients of the simulated fleet: they start runs, send events, pause, resume and terminate, and
//! remember the answers.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_engine::{Engine, Retention};
use windlass_kernel::{Error, ErrorCode, ErrorKind, Namespace, Run};
use windlass_models::{RunHandle, WorkflowRef, steps};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::Rng;
use super::program::{BRIEF, Input, Program, WORKFLOW, event_value};

/// A client's view of one run.
#[derive(Clone, Debug)]
pub(crate) struct ClientView {
    /// The tenant.
    pub(crate) namespace: Namespace,
    /// The run's id.
    pub(crate) id: String,
    /// The run's input.
    pub(crate) input: Option<Input>,
    /// Whether the client has asked for its termination.
    pub(crate) terminated: bool,
    /// Its result: an output, or the code of an error.
    pub(crate) ended: Option<Result<u64, String>>,
}

impl ClientView {
    pub(crate) fn new(namespace: Namespace, id: String, input: Option<Input>) -> Self {
        Self { namespace, id, input, terminated: false, ended: None }
    }

    /// Whether this is a generation of that run.
    pub(crate) fn is_about(&self, run: &Run) -> bool {
        self.id == run.id.as_str() && self.namespace == run.namespace
    }
}

/// A client and one run of its own.
pub(crate) struct Client {
    pub(crate) sim: Handle,
    pub(crate) node: NodeId,
    pub(crate) engine: Engine,
    pub(crate) view: Arc<Mutex<ClientView>>,
    pub(crate) rng: Rng,
}

impl Client {
    /// Starts a run, interferes with it, and waits for its result.
    pub(crate) async fn run_to_end(mut self) {
        let (id, input) = {
            let view = locked(&self.view);
            (view.id.clone(), view.input.clone().expect("an order has an input"))
        };
        let workflow: WorkflowRef<Input, u64> =
            steps::remote(&self.engine, WORKFLOW).expect("a valid name");
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
            let (sim, run, view) = (self.sim.clone(), run.clone(), self.view.clone());
            let wait_us = self.rng.range(1, 8_000_000);
            self.sim.spawn(self.node, terminate_soon(sim, run, view, wait_us));
        }
        let ended = until_answered(&sim, || run.result()).await;
        locked(&self.view).ended = Some(ended.map_err(|error| error.code().as_str().to_owned()));
    }
}

/// Terminates a run after a while.
pub(crate) async fn terminate_soon<O: 'static>(
    sim: Handle,
    run: RunHandle<O>,
    view: Arc<Mutex<ClientView>>,
    wait_us: u64,
) {
    sim.sleep_us(wait_us).await;
    locked(&view).terminated = true;
    let done = until_answered(&sim, || run.terminate()).await;
    let known = matches!(&done, Err(error) if error.code() == ErrorCode::RunTerminal);
    if done.is_ok() {
        sim.sometimes("client terminated a run");
    } else if !known {
        sim.trace(format_args!("terminate: {done:?}"));
    }
}

/// Sends events in order, each until the store has answered, and some of them twice.
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

/// Pauses a run once or twice, and resumes it.
pub(crate) async fn pause_and_resume<O: 'static>(sim: Handle, run: RunHandle<O>, mut rng: Rng) {
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

/// Starts runs that nobody waits for. Retention deletes them soon after their end.
pub(crate) async fn brief_runs(sim: Handle, engine: Engine, mut rng: Rng) {
    let span = Duration::from_millis(rng.range(1_000, 3_000));
    let policy = Retention::keep_for(span).expect("it is long enough");
    let set = until_answered(&sim, || engine.set_retention(BRIEF, Some(&policy))).await;
    set.expect("the policy is well-formed");
    let workflow: WorkflowRef<Input, u64> = steps::remote(&engine, BRIEF).expect("a valid name");
    for number in 0..rng.range(1, 4) {
        let input = Input { seed: rng.next_u64(), depth: 1, events: false };
        let id = format!("brief-{number}");
        let run = until_answered(&sim, || workflow.start(input.clone()).id(id.clone())).await;
        // It may have ended and be deleted before the answer to an earlier attempt came.
        sim.trace(format_args!("{id}: {}", run.is_ok()));
        sim.sleep_us(rng.range(1, 3_000_000)).await;
        let _ = engine.sweep().await;
    }
}

/// Repeats a call until the store has answered it.
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
