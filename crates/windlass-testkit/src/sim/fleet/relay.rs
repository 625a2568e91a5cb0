//! Random relays for the real engine. The seed in the input determines their steps and their output.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use windlass_engine::Engine;
use windlass_kernel::{Error, ErrorCode, RetryLimit, RetryPolicy, RunKey};
use windlass_models::RunHandle;
use windlass_models::relays::{
    self, HookError, RelayError, RelayStep, RunOutcome, RunSpec, Signal, StepOutcome, StepRunner,
    TerminalHook, TerminalStatus,
};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::{Rng, mix};
use super::NodeContext;
use super::client::until_answered;
use super::program::{event_value, step_value};

/// The name of all simulated relays.
pub(crate) const RELAY: &str = "relay";
/// The signal that some of them wait for.
const SIGNAL: &str = "go";

/// The outcome of a step of a relay.
#[derive(Clone, Debug)]
enum Leg {
    /// The next step at once.
    Next,
    /// The next step after a delay.
    After { ms: u64 },
    /// This many failed attempts first. Its memo stays the same over all attempts.
    Flaky { fails: u32 },
    /// The next step with the next signal.
    Signal,
    /// The next step after the timeout of a signal that never comes.
    Late { ms: u64 },
}

/// How a relay ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// With a result.
    Succeed,
    /// By a verdict.
    Fail,
    /// By a verdict.
    Cancel,
    /// With a dead step.
    Break,
}

/// A whole relay.
#[derive(Clone, Debug)]
pub(crate) struct TestRelay {
    legs: Vec<Leg>,
    /// How it ends.
    pub(crate) finish: Finish,
}

impl TestRelay {
    /// The relay of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xBA70);
        let legs = (0..rng.range(1, 5)).map(|_| match rng.below(6) {
            0 => Leg::After { ms: rng.range(1, 5_000) },
            1 => Leg::Flaky { fails: rng.range(1, 2) as u32 },
            2 => Leg::Signal,
            3 => Leg::Late { ms: rng.range(500, 3_000) },
            _ => Leg::Next,
        });
        let legs = legs.collect();
        let finish = match rng.below(8) {
            0 => Finish::Fail,
            1 => Finish::Cancel,
            2 => Finish::Break,
            _ => Finish::Succeed,
        };
        Self { legs, finish }
    }

    /// How many signals it waits for.
    fn signals(&self) -> u64 {
        self.legs.iter().filter(|leg| matches!(leg, Leg::Signal)).count() as u64
    }

    /// Its output, if it succeeds.
    pub(crate) fn expected(&self, seed: u64) -> u64 {
        let (mut sum, mut number) = (seed, 0);
        for (place, leg) in self.legs.iter().enumerate() {
            sum = mix(sum ^ step_value(&place.to_string()));
            match leg {
                Leg::Signal => {
                    sum = mix(sum ^ event_value(SIGNAL, number));
                    number += 1;
                }
                Leg::Late { .. } => sum = mix(sum ^ 7),
                _ => {}
            }
        }
        sum
    }
}

/// Runs the steps on a node. The payload is the seed and the sum so far.
pub(crate) struct Runner(pub(crate) Arc<NodeContext>);

impl StepRunner for Runner {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let node_context = &self.0;
        if let Some(run_key) = step.run_key {
            node_context.body_begins(run_key, &step.step_number.to_string(), None);
        }
        let text = String::from_utf8_lossy(&step.payload).into_owned();
        let numbers =
            text.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (seed, mut sum): (u64, u64) =
            numbers.ok_or_else(|| RelayError::permanent(format!("{text:?} is no relay")))?;
        match &step.signal {
            Some(Signal::Received(bytes)) => {
                let value = String::from_utf8_lossy(bytes).parse::<u64>();
                sum = mix(sum ^ value.map_err(RelayError::permanent)?);
            }
            Some(Signal::TimedOut) => sum = mix(sum ^ 7),
            None => {}
        }
        node_context.work().await;
        // Some are slow, unless they see their cancellation.
        if seed % 4 == 0 {
            let heard = std::pin::pin!(step.cancel_token.cancelled());
            let lingers = std::pin::pin!(node_context.linger(2_000_000));
            futures::future::select(heard, lingers).await;
        }
        if step.cancel_token.is_cancelled() {
            node_context.sometimes("step of a relay saw its cancellation");
        }
        let relay = TestRelay::of(seed);
        let Some(leg) = relay.legs.get(step.step_number as usize) else {
            return match relay.finish {
                Finish::Succeed => Ok(StepOutcome::done(sum.to_string())),
                Finish::Fail => Ok(StepOutcome::Fail { reason: "no".into() }),
                Finish::Cancel => Ok(StepOutcome::Cancel { reason: "no".into() }),
                Finish::Break => Err(RelayError::permanent("broken")),
            };
        };
        let sum = mix(sum ^ step_value(&step.step_number.to_string()));
        let payload = format!("{seed} {sum}").into();
        Ok(match leg {
            Leg::Next => StepOutcome::Continue { payload },
            Leg::After { ms } => {
                StepOutcome::ContinueAfter { payload, delay: Duration::from_millis(*ms) }
            }
            Leg::Flaky { fails } => {
                let asked: u32 = step.memo("asked", || async { Ok(step.attempt) }).await?;
                if step.attempt <= *fails {
                    return Err(RelayError::transient("again"));
                }
                // A crash costs no attempt, and a recorded memo stays.
                if asked > 1 {
                    node_context.wrong("a memo was worked out in a later attempt than the first");
                }
                StepOutcome::Continue { payload }
            }
            Leg::Signal => {
                StepOutcome::ContinueOnSignal { payload, signal: SIGNAL.into(), timeout: None }
            }
            Leg::Late { ms } => StepOutcome::ContinueOnSignal {
                payload,
                signal: "never".into(),
                timeout: Some(Duration::from_millis(*ms)),
            },
        })
    }
}

/// Records the ends that it receives. Half of the calls fail once.
pub(crate) struct Hook(pub(crate) Arc<NodeContext>);

impl TerminalHook for Hook {
    async fn on_termination(&self, outcome: &RunOutcome) -> Result<(), HookError> {
        self.0.work().await;
        self.0.hooked(outcome);
        if outcome.attempt == 1 && self.0.coin() {
            return Err(HookError::transient("say it again"));
        }
        Ok(())
    }

    fn retry(&self) -> RetryPolicy {
        RetryPolicy::constant(RetryLimit::Times(1_000), Duration::from_millis(500))
    }
}

/// A client's view of one run of a relay.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The run's name.
    pub(crate) id: String,
    /// The seed of its steps.
    pub(crate) seed: u64,
    /// Whether the client has asked for its cancellation.
    pub(crate) cancelled: bool,
    /// The answer to that.
    pub(crate) answered: Option<bool>,
    /// The generation, the status and the output that the client received.
    pub(crate) ended: Option<(RunKey, TerminalStatus, Option<u64>)>,
}

/// Starts a run from a process that serves nothing, and waits for its result.
pub(crate) async fn run_to_end(
    sim: Handle,
    node: NodeId,
    engine: Engine,
    order: Arc<Mutex<Order>>,
    mut rng: Rng,
) {
    let (id, seed) = {
        let order = locked(&order);
        (order.id.clone(), order.seed)
    };
    let relay = relays::remote(&engine, RELAY).expect("a valid name");
    sim.sleep_us(rng.range(1, 2_000_000)).await;
    let spec = RunSpec::new(format!("{seed} {seed}")).id(&id);
    let run = loop {
        match until_answered(&sim, || relay.start_from(spec.clone())).await {
            Ok(run) => break run,
            // No process has served it yet, or published its template.
            Err(error) if error.code() == ErrorCode::WorkflowNotFound => {
                sim.sleep_us(200_000).await
            }
            Err(error) => panic!("a run of a new name can be submitted: {error}"),
        }
    };
    let count = TestRelay::of(seed).signals();
    if count > 0 {
        let (sim, run, rng) = (sim.clone(), run.clone(), rng.fork());
        sim.clone().spawn(node, async move { send_signals(sim, run, count, rng).await });
    }
    if rng.chance(350) {
        let (sim, run) = (sim.clone(), run.clone());
        let (order, wait_us) = (order.clone(), rng.range(1, 8_000_000));
        sim.clone().spawn(node, async move {
            sim.sleep_us(wait_us).await;
            locked(&order).cancelled = true;
            let done = until_answered(&sim, || run.cancel("cancelled")).await;
            locked(&order).answered = done.as_ref().ok().copied();
            if matches!(done, Ok(true)) {
                sim.sometimes("client cancelled a run of a relay");
            }
        });
    }
    let ended = until_answered(&sim, || async { relay.get(&id).await?.finished().await }).await;
    let ended = ended.expect("a run that was submitted can be waited for");
    let result = ended.result.and_then(|bytes| String::from_utf8_lossy(&bytes).parse().ok());
    locked(&order).ended = Some((run.run_key(), ended.status, result));
}

// Sends signals in order, each until the store has answered, and some of them twice.
async fn send_signals(sim: Handle, run: RunHandle<Bytes>, count: u64, mut rng: Rng) {
    for number in 0..count {
        sim.sleep_us(rng.range(1, 1_500_000)).await;
        for _ in 0..=u32::from(rng.chance(200)) {
            let (value, once) = (event_value(SIGNAL, number).to_string(), format!("go-{number}"));
            let send = || async {
                let sent: Result<(), Error> =
                    run.signal_bytes_once(SIGNAL, value.clone(), &once).await;
                sent
            };
            if let Err(error) = until_answered(&sim, send).await {
                sim.trace(format_args!("signal {once}: {}", error.code()));
                return;
            }
        }
    }
}
