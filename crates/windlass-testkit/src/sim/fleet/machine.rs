//! Random machines for the real engine. The seed in the input determines their actions and their
//! output, whatever the order in which their activities end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_engine::Engine;
use windlass_kernel::{RetryLimit, RetryPolicy};
use windlass_models::machines::{
    self, ActivityError, ActivityOptions, Workflow, WorkflowAction, WorkflowError, WorkflowSignal,
};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::{Rng, mix};
use super::client::{ClientView, pause_and_resume, send_events, terminate_soon, until_answered};
use super::program::{
    ACTIVITY, Act, ActivityInput, CAUGHT, Input, WORKFLOW, event_value, step_value, value_of,
};

/// The workflow name of all simulated machines.
pub(crate) const MACHINE: &str = "machine";
/// The limit key of some of their activities.
pub(crate) const LIMIT: &str = "narrow";
/// The signal that some of them wait for.
const SIGNAL: &str = "grist";
/// The value of a round whose activity may be cancelled.
const HASTY: u64 = 5;
/// The number of failures of an activity that never succeeds.
const DOOMED: u32 = u32::MAX;

/// The actions of a machine between two states.
#[derive(Clone, Debug)]
enum Round {
    /// Concurrent activities, each with its number of failures.
    Work(Vec<u32>),
    /// A timer.
    Nap { ms: u64 },
    /// The next signal.
    Signal,
    /// A child of the model `steps`.
    Child(Input),
    /// An activity with timeouts, cancelled after a time. Its value is the same, whatever happens first.
    Hasty { start_ms: u64, beat_ms: u64, cancel_ms: u64 },
}

fn rounds(seed: u64) -> Vec<Round> {
    let mut rng = Rng::new(seed ^ 0x3111);
    let count = rng.range(1, 6);
    let round = |_| match rng.below(10) {
        0 => Round::Nap { ms: rng.range(1, 3_000) },
        1 => Round::Signal,
        8 => Round::Child(Input { seed: rng.next_u64(), depth: 0, events: false }),
        9 => Round::Hasty {
            start_ms: rng.range(50, 5_000),
            beat_ms: rng.range(50, 5_000),
            cancel_ms: rng.range(50, 5_000),
        },
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

/// The output of the machine of a seed.
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
            Round::Hasty { .. } => HASTY,
            Round::Child(input) => value_of(&Act::Child(input.clone()), ""),
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
pub(crate) struct TestMachine {
    rounds: Vec<Round>,
    place: usize,
    // Of the current round: the number of open activities, and the sum of the results.
    open: usize,
    value: u64,
    sum: u64,
    signals: VecDeque<u64>,
}

impl TestMachine {
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
            Some(Round::Child(input)) => {
                vec![WorkflowAction::child(key(place, 0), WORKFLOW, json!(input))]
            }
            Some(Round::Hasty { start_ms, beat_ms, cancel_ms }) => {
                let (start, beat) =
                    (Duration::from_millis(start_ms), Duration::from_millis(beat_ms));
                let options = ActivityOptions::retrying(RetryPolicy::none())
                    .schedule_to_start_timeout(start)
                    .heartbeat_timeout(beat);
                let input = json!(ActivityInput { fails: 0, key: key(place, 0) });
                let cancel = Duration::from_millis(cancel_ms);
                vec![
                    WorkflowAction::activity_with(key(place, 0), ACTIVITY, input, options),
                    WorkflowAction::timer(key(place, 1), cancel),
                ]
            }
            Some(Round::Signal) => match self.signals.pop_front() {
                Some(value) => self.goes_on(value),
                None => Vec::new(),
            },
        }
    }

    // The end of the activity of a hasty round; `None` in other rounds.
    fn hasty_is_over(&mut self) -> Option<Vec<WorkflowAction>> {
        let place = self.place;
        let Some(Round::Hasty { .. }) = self.rounds.get(place) else { return None };
        let mut actions = vec![WorkflowAction::CancelTimer { timer_id: key(place, 1) }];
        actions.extend(self.goes_on(HASTY));
        Some(actions)
    }

    fn is_over(&mut self, value: u64) -> Vec<WorkflowAction> {
        if let Some(actions) = self.hasty_is_over() {
            return actions;
        }
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
    let input = json!(ActivityInput { fails, key: key.to_owned() });
    let mut options = ActivityOptions::retrying(policy);
    options.limit_key = step_value(key).is_multiple_of(3).then(|| LIMIT.to_owned());
    WorkflowAction::activity_with(key, ACTIVITY, input, options)
}

impl Workflow for TestMachine {
    const TYPE: &'static str = MACHINE;
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
        let place = self.place;
        let Some(Round::Hasty { .. }) = self.rounds.get(place) else { return self.goes_on(1) };
        let mut actions = vec![WorkflowAction::CancelActivity { activity_id: key(place, 0) }];
        actions.extend(self.goes_on(HASTY));
        actions
    }

    fn on_child_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        self.goes_on(result.as_u64().unwrap_or_default())
    }

    fn on_child_failed(&mut self, _: &str, _: &WorkflowError) -> Vec<WorkflowAction> {
        self.goes_on(CAUGHT)
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

/// Serves the machine. It uses the activities of the other workflows.
pub(crate) fn serve(engine: &Engine) {
    machines::register::<TestMachine>(engine).expect("the machine is registered once");
}

/// Starts a run from a process that serves nothing, and waits for its result.
pub(crate) async fn run_to_end(
    sim: Handle,
    node: NodeId,
    engine: Engine,
    (view, seed): (Arc<Mutex<ClientView>>, u64),
    mut rng: Rng,
) {
    let id = locked(&view).id.clone();
    let machine = machines::remote::<TestMachine>(&engine).expect("a valid name");
    sim.sleep_us(rng.range(1, 2_000_000)).await;
    let run = until_answered(&sim, || machine.start(seed).id(id.clone())).await;
    let run = run.expect("a run of a new name can be started");
    let signals = rounds(seed).iter().filter(|round| matches!(round, Round::Signal)).count();
    let signals: Vec<_> = (0..signals as u64).map(|number| (SIGNAL, number)).collect();
    sim.spawn(node, send_events(sim.clone(), run.clone(), signals, rng.fork()));
    if rng.chance(400) {
        sim.spawn(node, pause_and_resume(sim.clone(), run.clone(), rng.fork()));
    }
    if rng.chance(200) {
        let wait_us = rng.range(1, 8_000_000);
        sim.spawn(node, terminate_soon(sim.clone(), run.clone(), view.clone(), wait_us));
    }
    let ended = until_answered(&sim, || run.result()).await;
    locked(&view).ended = Some(ended.map_err(|error| error.code().as_str().to_owned()));
}
