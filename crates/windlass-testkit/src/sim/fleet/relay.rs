//! Random relays for the real engine: what they do follows from a number in their input, and so does
//! what they must come to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_engine::Engine;
use windlass_kernel::{Error, RetryLimit, RetryPolicy, RunKey};
use windlass_models::relays::{
    HookError, RunOutcome, RunSpec, Signal, Step, StepError, StepOutcome, StepRunner, TerminalHook,
    TerminalStatus, WorkflowRuntime,
};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::{Rng, mix};
use super::Yard;
use super::client::until_answered;
use super::program::{event_value, step_value};

/// The relay that all simulated runs of relays are of.
pub(crate) const RELAY: &str = "baton";
/// The signal that some of them wait for.
const SIGNAL: &str = "go";

/// What a step of a relay says.
#[derive(Clone, Debug)]
enum Leg {
    /// The next one at once.
    Next,
    /// The next one later.
    After { ms: u64 },
    /// So many failures first; the answer that it asks for stays the same.
    Flaky { fails: u32 },
    /// The next one with the next signal.
    Signal,
    /// The next one with a signal that never comes.
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
pub(crate) struct Baton {
    legs: Vec<Leg>,
    /// How it ends.
    pub(crate) finish: Finish,
}

impl Baton {
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

    /// What it comes to, if it succeeds.
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
pub(crate) struct Runner(pub(crate) Arc<Yard>);

impl StepRunner for Runner {
    async fn run_step(&self, step: &Step) -> Result<StepOutcome, StepError> {
        let yard = &self.0;
        if let Some(run_key) = step.run_key {
            yard.body_begins(run_key, &step.step_number.to_string(), None);
        }
        let text = String::from_utf8_lossy(&step.payload).into_owned();
        let numbers =
            text.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (seed, mut sum): (u64, u64) =
            numbers.ok_or_else(|| StepError::permanent(format!("{text:?} is no baton")))?;
        match &step.signal {
            Some(Signal::Received(bytes)) => {
                let value = String::from_utf8_lossy(bytes).parse::<u64>();
                sum = mix(sum ^ value.map_err(StepError::permanent)?);
            }
            Some(Signal::TimedOut) => sum = mix(sum ^ 7),
            None => {}
        }
        yard.work().await;
        // Some take their time, unless they hear that nobody wants it.
        if seed % 4 == 0 {
            let heard = std::pin::pin!(step.cancel_token.cancelled());
            let lingers = std::pin::pin!(yard.linger(2_000_000));
            futures::future::select(heard, lingers).await;
        }
        if step.cancel_token.is_cancelled() {
            yard.sometimes("step of a relay heard that it was cancelled");
        }
        let baton = Baton::of(seed);
        let Some(leg) = baton.legs.get(step.step_number as usize) else {
            return match baton.finish {
                Finish::Succeed => Ok(StepOutcome::done(sum.to_string())),
                Finish::Fail => Ok(StepOutcome::Fail { reason: "no".into() }),
                Finish::Cancel => Ok(StepOutcome::Cancel { reason: "no".into() }),
                Finish::Break => Err(StepError::permanent("broken")),
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
                    return Err(StepError::transient("again"));
                }
                // A crash costs no attempt, and an answer that was recorded stays.
                if asked > 1 {
                    yard.wrong("a memo was worked out in a later attempt than the first");
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

/// Notes what it is told, half of the time the second time only.
pub(crate) struct Hook(pub(crate) Arc<Yard>);

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

/// What a client knows of one run of a relay.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The run's name.
    pub(crate) id: String,
    /// What it is made from.
    pub(crate) seed: u64,
    /// Whether somebody asked for it to be cancelled.
    pub(crate) cancelled: bool,
    /// What that was answered.
    pub(crate) answered: Option<bool>,
    /// Which generation it was told of, how it ended, and with what.
    pub(crate) ended: Option<(RunKey, TerminalStatus, Option<u64>)>,
}

/// Sees a run through, from a process that serves nothing.
pub(crate) async fn see_through(
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
    let relay = WorkflowRuntime::remote(&engine, RELAY).expect("a valid name");
    sim.sleep_us(rng.range(1, 2_000_000)).await;
    let spec = RunSpec::new(format!("{seed} {seed}")).id(&id);
    let run = loop {
        match until_answered(&sim, || relay.submit(spec.clone())).await {
            Ok(run) => break run,
            // Nobody has served it yet, or told of it.
            Err(error) if error.code() == "WORKFLOW_NOT_FOUND" => sim.sleep_us(200_000).await,
            Err(error) => panic!("a run of a new name can be submitted: {error}"),
        }
    };
    let count = Baton::of(seed).signals();
    if count > 0 {
        let (sim, relay, id, rng) = (sim.clone(), relay.clone(), id.clone(), rng.fork());
        sim.clone().spawn(node, async move { send_signals(sim, relay, id, count, rng).await });
    }
    if rng.chance(350) {
        let (sim, relay, id) = (sim.clone(), relay.clone(), id.clone());
        let (order, wait_us) = (order.clone(), rng.range(1, 8_000_000));
        sim.clone().spawn(node, async move {
            sim.sleep_us(wait_us).await;
            locked(&order).cancelled = true;
            let done = until_answered(&sim, || relay.cancel(&id)).await;
            locked(&order).answered = done.as_ref().ok().copied();
            if matches!(done, Ok(true)) {
                sim.sometimes("client cancelled a run of a relay");
            }
        });
    }
    let ended = until_answered(&sim, || relay.wait(&id)).await;
    let ended = ended.expect("a run that was submitted can be waited for");
    let result = ended.result.and_then(|bytes| String::from_utf8_lossy(&bytes).parse().ok());
    locked(&order).ended = Some((run.run_key, ended.status, result));
}

// In order, each until it is known to have arrived, and some of them once more.
async fn send_signals(sim: Handle, relay: WorkflowRuntime, id: String, count: u64, mut rng: Rng) {
    for number in 0..count {
        sim.sleep_us(rng.range(1, 1_500_000)).await;
        for _ in 0..=u32::from(rng.chance(200)) {
            let (value, once) = (event_value(SIGNAL, number).to_string(), format!("go-{number}"));
            let send = || async {
                let sent: Result<(), Error> =
                    relay.signal_once(&id, SIGNAL, value.clone(), &once).await;
                sent
            };
            if let Err(error) = until_answered(&sim, send).await {
                sim.trace(format_args!("signal {once}: {}", error.code()));
                return;
            }
        }
    }
}
