//! Random machines for the real engine: what they ask for follows from a number, their input, and so
//! does what they must come to, in whatever order their activities are over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_engine::Engine;
use windlass_kernel::{RetryLimit, RetryPolicy};
use windlass_models::machines::{
    self, ActivityError, ActivityOptions, MachineRef, Workflow, WorkflowAction, WorkflowSignal,
};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::{Rng, mix};
use super::client::{Told, pause_and_resume, send_events, terminate_soon, until_answered};
use super::program::{ACTIVITY, CAUGHT, Labour, event_value, step_value};

/// The machine that all simulated runs of machines are of.
pub(crate) const MILL: &str = "mill";
/// The signal that some of them wait for.
const SIGNAL: &str = "grist";
/// An activity that fails so often fails for good.
const DOOMED: u32 = u32::MAX;

/// What a machine asks for before it goes on.
#[derive(Clone, Debug)]
enum Round {
    /// Activities at once, each with its number of failures.
    Work(Vec<u32>),
    /// A timer.
    Nap { ms: u64 },
    /// The next signal.
    Signal,
}

fn rounds(seed: u64) -> Vec<Round> {
    let mut rng = Rng::new(seed ^ 0x3111);
    let count = rng.range(1, 6);
    let round = |_| match rng.below(8) {
        0 => Round::Nap { ms: rng.range(1, 3_000) },
        1 => Round::Signal,
        2 | 3 => Round::Work((0..rng.range(2, 5)).map(|_| fails(&mut rng)).collect()),
        _ => Round::Work(vec![fails(&mut rng)]),
    };
    (0..count).map(round).collect()
}

fn fails(rng: &mut Rng) -> u32 {
    match rng.below(10) {
        0 => DOOMED,
        1 | 2 => 1,
        _ => 0,
    }
}

/// What the machine of a seed comes to.
pub(crate) fn expected(seed: u64) -> u64 {
    let (mut sum, mut signals) = (seed, 0);
    for (place, round) in rounds(seed).iter().enumerate() {
        let value = match round {
            Round::Work(works) => works.iter().enumerate().fold(0, |all, (n, fails)| {
                all ^ if *fails == DOOMED {
                    caught(&key(place, n))
                } else {
                    step_value(&key(place, n))
                }
            }),
            Round::Nap { .. } => 1,
            Round::Signal => {
                signals += 1;
                event_value(SIGNAL, signals - 1)
            }
        };
        sum = mix(sum ^ value);
    }
    sum
}

fn key(place: usize, n: usize) -> String {
    format!("{place}.{n}")
}

fn caught(key: &str) -> u64 {
    step_value(key) ^ CAUGHT
}

/// The machine.
pub(crate) struct Mill {
    rounds: Vec<Round>,
    place: usize,
    // Of the round: what is not over, and what came of the rest.
    open: usize,
    value: u64,
    sum: u64,
    signals: VecDeque<u64>,
}

impl Mill {
    fn goes_on(&mut self, value: u64) -> Vec<WorkflowAction> {
        self.sum = mix(self.sum ^ value);
        self.place += 1;
        self.begins()
    }

    fn begins(&mut self) -> Vec<WorkflowAction> {
        let place = self.place;
        match self.rounds.get(place).cloned() {
            None => vec![WorkflowAction::complete(json!(self.sum))],
            Some(Round::Work(works)) => {
                (self.open, self.value) = (works.len(), 0);
                let work = |(n, fails): (usize, &u32)| work(&key(place, n), *fails);
                works.iter().enumerate().map(work).collect()
            }
            Some(Round::Nap { ms }) => {
                vec![WorkflowAction::timer(format!("nap-{place}"), Duration::from_millis(ms))]
            }
            Some(Round::Signal) => match self.signals.pop_front() {
                Some(value) => self.goes_on(value),
                None => Vec::new(),
            },
        }
    }

    fn is_over(&mut self, value: u64) -> Vec<WorkflowAction> {
        self.value ^= value;
        self.open -= 1;
        match self.open {
            0 => self.goes_on(self.value),
            _ => Vec::new(),
        }
    }
}

fn work(key: &str, fails: u32) -> WorkflowAction {
    // The last attempt of one that is not doomed succeeds.
    let retries = RetryLimit::Times(if fails == DOOMED { 1 } else { fails });
    let policy = RetryPolicy::constant(retries, Duration::from_millis(500));
    let labour = json!(Labour { fails, key: key.to_owned() });
    WorkflowAction::activity_with(key, ACTIVITY, labour, ActivityOptions::retrying(policy))
}

impl Workflow for Mill {
    const TYPE: &'static str = MILL;
    type Input = u64;
    type Output = u64;

    fn new(seed: u64) -> Self {
        let (rounds, signals) = (rounds(seed), VecDeque::new());
        Self { rounds, place: 0, open: 0, value: 0, sum: seed, signals }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        self.begins()
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        self.is_over(result.as_u64().unwrap_or_default())
    }

    fn on_activity_failed(&mut self, id: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        match error.name.as_str() {
            "NoProgress" => vec![WorkflowAction::fail(error)],
            _ => self.is_over(caught(id)),
        }
    }

    fn on_timer_fired(&mut self, _: &str) -> Vec<WorkflowAction> {
        self.goes_on(1)
    }

    fn on_signal(&mut self, signal: &WorkflowSignal) -> Vec<WorkflowAction> {
        let value = signal.payload.as_u64().unwrap_or_default();
        match self.rounds.get(self.place) {
            Some(Round::Signal) => self.goes_on(value),
            _ => {
                self.signals.push_back(value);
                Vec::new()
            }
        }
    }
}

/// Serves the machine; its activities are those of the other workflows.
pub(crate) fn serve(engine: &Engine) {
    machines::register::<Mill>(engine).expect("the machine is registered once");
}

/// Sees a run through, from a process that serves nothing.
pub(crate) async fn see_through(
    sim: Handle,
    node: NodeId,
    engine: Engine,
    (told, seed): (Arc<Mutex<Told>>, u64),
    mut rng: Rng,
) {
    let id = locked(&told).id.clone();
    let mills = MachineRef::<Mill>::remote(&engine).expect("a valid name");
    sim.sleep_us(rng.range(1, 2_000_000)).await;
    let run = until_answered(&sim, || mills.start(seed).id(id.clone())).await;
    let run = (*run.expect("a run of a new name can be started")).clone();
    let signals = rounds(seed).iter().filter(|round| matches!(round, Round::Signal)).count();
    let signals: Vec<_> = (0..signals as u64).map(|number| (SIGNAL, number)).collect();
    sim.spawn(node, send_events(sim.clone(), run.clone(), signals, rng.fork()));
    if rng.chance(400) {
        sim.spawn(node, pause_and_resume(sim.clone(), run.clone(), rng.fork()));
    }
    if rng.chance(200) {
        let wait_us = rng.range(1, 8_000_000);
        sim.spawn(node, terminate_soon(sim.clone(), run.clone(), told.clone(), wait_us));
    }
    let ended = until_answered(&sim, || run.result()).await;
    locked(&told).ended = Some(ended.map_err(|error| error.code().to_owned()));
}
