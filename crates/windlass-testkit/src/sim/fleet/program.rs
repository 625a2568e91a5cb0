//! Random workflows for the real engine. The seed in the input determines their steps and their output.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use serde::{Deserialize, Serialize};
use windlass_kernel::{
    BoxFuture, Collection, ErrorCode, Expect, Namespace, RecordId, RecordKey, RetryLimit,
};
use windlass_models::AnyError;
use windlass_models::steps::{Ctx, StepError, StepTx};

use super::super::rng::{Rng, mix};
use super::NodeContext;

/// The name of the simulated workflow of `steps`.
pub(crate) const WORKFLOW: &str = "program";
/// The same workflow under another name, whose runs are deleted when they have ended.
pub(crate) const BRIEF: &str = "brief";
/// The activity that some of them call.
pub(crate) const ACTIVITY: &str = "labour";
/// The collection of the shared counter.
pub(crate) const COUNTERS: &str = "counters";
/// The value of a caught failure.
pub(crate) const CAUGHT: u64 = 7;

/// The input of a run. It determines the whole program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Input {
    /// The seed of the program.
    pub(crate) seed: u64,
    /// How many generations of children it may have.
    pub(crate) depth: u32,
    /// Whether it waits for events.
    pub(crate) events: bool,
}

/// One thing that a program does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// A step that fails so many times first.
    Step { fails: u32, intent: bool },
    /// A step that fails for good; the program catches it.
    Doomed,
    /// A sleep.
    Sleep { ms: u64 },
    /// A wait for the next event of a name.
    Event { name: &'static str, number: u64 },
    /// A wait for an event that never comes.
    Late { ms: u64 },
    /// An activity that fails so many times first.
    Activity { fails: u32 },
    /// A child.
    Child(Input),
    /// A sleep against a step: either may win.
    Race { ms: u64 },
    /// A step that counts in the record that all programs of a namespace share.
    Count,
    /// Several at once.
    Join(Vec<Act>),
}

/// A whole program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its actions, in order.
    pub(crate) acts: Vec<Act>,
    /// The events that it waits for, in the order in which it does.
    pub(crate) events: Vec<(&'static str, u64)>,
    /// Whether it fails at its end.
    pub(crate) fails: bool,
    /// The input of the generation that follows it.
    pub(crate) next: Option<Input>,
}

impl Program {
    /// The program of an input.
    pub(crate) fn of(input: &Input) -> Self {
        let mut rng = Rng::new(input.seed);
        let mut program = Self { acts: Vec::new(), events: Vec::new(), fails: false, next: None };
        for _ in 0..rng.range(1, 6) {
            let act = program.act(&mut rng, input, true);
            program.acts.push(act);
        }
        program.fails = rng.chance(80);
        if rng.chance(120) && input.depth > 0 {
            program.next = Some(Input { seed: rng.next_u64(), depth: 0, events: false });
        }
        program
    }

    fn act(&mut self, rng: &mut Rng, input: &Input, outer: bool) -> Act {
        match rng.below(12) {
            0 => Act::Sleep { ms: rng.range(1, 6_000) },
            1 | 2 if input.events && outer => {
                let name = if rng.chance(500) { "red" } else { "blue" };
                let number = self.events.iter().filter(|(known, _)| *known == name).count() as u64;
                self.events.push((name, number));
                Act::Event { name, number }
            }
            3 => Act::Late { ms: rng.range(1_000, 3_000) },
            4 => Act::Activity { fails: if rng.chance(300) { 1 } else { 0 } },
            5 if input.depth > 0 => {
                let (seed, depth) = (rng.next_u64(), input.depth - 1);
                Act::Child(Input { seed, depth, events: false })
            }
            6 => Act::Race { ms: rng.range(1, 300) },
            7 | 8 if outer => {
                let count = rng.range(2, 4);
                Act::Join((0..count).map(|_| self.act(rng, input, false)).collect())
            }
            9 => Act::Doomed,
            10 => Act::Count,
            _ => {
                let fails = if rng.chance(300) { rng.range(1, 2) as u32 } else { 0 };
                Act::Step { fails, intent: rng.chance(200) }
            }
        }
    }

    /// The expected output; none if the run must fail.
    pub(crate) fn expected(&self) -> Option<u64> {
        if let Some(next) = &self.next {
            return Program::of(next).expected();
        }
        if self.fails {
            return None;
        }
        let values = self.acts.iter().enumerate();
        Some(values.fold(1, |sum, (place, act)| mix(sum ^ value_of(act, &place.to_string()))))
    }
}

/// The value of an act that nothing disturbs.
pub(crate) fn value_of(act: &Act, key: &str) -> u64 {
    match act {
        Act::Step { .. } | Act::Activity { .. } | Act::Count => step_value(key),
        Act::Doomed | Act::Late { .. } => CAUGHT,
        Act::Sleep { .. } | Act::Race { .. } => 1,
        Act::Event { name, number } => event_value(name, *number),
        Act::Child(input) => Program::of(input).expected().unwrap_or(CAUGHT),
        Act::Join(acts) => acts
            .iter()
            .enumerate()
            .fold(2, |sum, (place, act)| mix(sum ^ value_of(act, &format!("{key}.{place}")))),
    }
}

/// The result of a step or an activity.
pub(crate) fn step_value(key: &str) -> u64 {
    key.bytes().fold(3, |sum, byte| mix(sum ^ u64::from(byte)))
}

/// The payload of an event.
pub(crate) fn event_value(name: &str, number: u64) -> u64 {
    mix(step_value(name) ^ number)
}

/// The input of an activity.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ActivityInput {
    /// How often it fails first.
    pub(crate) fails: u32,
    /// The key of its step.
    pub(crate) key: String,
}

/// Runs a program on a node.
pub(crate) async fn run(
    node_context: Arc<NodeContext>,
    ctx: Ctx,
    input: Input,
) -> Result<u64, AnyError> {
    let program = Program::of(&input);
    let mut sum = 1;
    for (place, one) in program.acts.iter().enumerate() {
        sum = mix(sum ^ act(&node_context, &ctx, one, node_context.key(place)).await?);
    }
    if let Some(next) = &program.next {
        return ctx.continue_as_new(next);
    }
    if program.fails { Err(AnyError::msg("the program fails")) } else { Ok(sum) }
}

fn act<'a>(
    node_context: &'a Arc<NodeContext>,
    ctx: &'a Ctx,
    act: &'a Act,
    key: String,
) -> BoxFuture<'a, Result<u64, StepError>> {
    Box::pin(async move {
        match act {
            Act::Step { fails, intent } => step(node_context, ctx, &key, *fails, *intent).await,
            Act::Doomed => {
                let doomed = step(node_context, ctx, &key, u32::MAX, false).await;
                Ok(doomed.map_or(CAUGHT, |_| 0))
            }
            Act::Count => count(node_context, ctx, &key).await,
            Act::Sleep { ms } => {
                ctx.sleep(&key, Duration::from_millis(*ms)).await?;
                Ok(1)
            }
            Act::Event { name, .. } => ctx.event(&key, name).await,
            Act::Late { ms } => {
                let late = ctx.event::<u64>(&key, "never").timeout(Duration::from_millis(*ms));
                match late.await {
                    Err(error) if error.code == ErrorCode::EventTimeout => Ok(CAUGHT),
                    other => other,
                }
            }
            Act::Activity { fails } => {
                let labour = ActivityInput { fails: *fails, key: key.clone() };
                ctx.activity(&key, ACTIVITY, &labour).await
            }
            Act::Child(input) => {
                let child = ctx.child_named::<Input, u64>(&key, WORKFLOW, input).await;
                // The failure of a child is caught. An unexpected output differs from `CAUGHT`.
                Ok(child.unwrap_or(CAUGHT))
            }
            Act::Race { ms } => {
                let sleep = ctx.sleep(format!("{key}.s"), Duration::from_millis(*ms));
                let step = act_step(node_context, ctx, format!("{key}.w"));
                match select(sleep, step).await {
                    Either::Left((slept, _)) => slept.map(|()| 1),
                    Either::Right((stepped, _)) => stepped.map(|_| 1),
                }
            }
            Act::Join(acts) => {
                let parts = acts.iter().enumerate();
                let parts = parts.map(|(place, one)| {
                    self::act(node_context, ctx, one, format!("{key}.{place}"))
                });
                let mut sum = 2;
                for value in join_all(parts).await {
                    sum = mix(sum ^ value?);
                }
                Ok(sum)
            }
        }
    })
}

/// The record in which programs count. Its value is its revision, because each write adds one to both.
pub(crate) fn counter(namespace: &Namespace) -> RecordKey {
    RecordKey {
        namespace: namespace.clone(),
        collection: Collection::from_stored(COUNTERS),
        id: RecordId::from_stored("shared"),
    }
}

async fn count(node_context: &Arc<NodeContext>, ctx: &Ctx, key: &str) -> Result<u64, StepError> {
    let record = counter(&ctx.run().namespace);
    let add = |tx: StepTx| {
        let record = record.clone();
        async move {
            let found = node_context.record(record).await?;
            let expect = found.as_ref().map_or(Expect::Absent, |found| Expect::At(found.revision));
            let value: u64 = match found.and_then(|found| found.body) {
                Some(body) => body.read()?,
                None => 0,
            };
            tx.put_record(COUNTERS, "shared", &(value + 1), expect)?;
            node_context.work().await;
            Ok(step_value(key))
        }
    };
    let step = ctx.step_tx(key, add).retries(RetryLimit::Forever);
    step.delay(Duration::from_millis(300)).await
}

fn act_step<'a>(
    node_context: &'a Arc<NodeContext>,
    ctx: &'a Ctx,
    key: String,
) -> BoxFuture<'a, Result<u64, StepError>> {
    Box::pin(async move { step(node_context, ctx, &key, 0, false).await })
}

async fn step(
    node_context: &Arc<NodeContext>,
    ctx: &Ctx,
    key: &str,
    fails: u32,
    intent: bool,
) -> Result<u64, StepError> {
    let run_key = ctx.run().run_key;
    let body = |attempt: windlass_models::steps::Attempt| async move {
        node_context.body_begins(run_key, key, intent.then_some(attempt.number));
        node_context.work().await;
        if attempt.number <= fails { Err(AnyError::msg("it fails")) } else { Ok(step_value(key)) }
    };
    // The last attempt of a step that is not doomed succeeds.
    let retries = if fails == u32::MAX { 1 } else { fails };
    let step = ctx.step_with(key, body).retries(retries).delay(Duration::from_millis(700));
    if !intent {
        return step.await;
    }
    let probe = |attempt: windlass_models::steps::Attempt| async move {
        node_context.probed(run_key, key, attempt.number);
        // A probe may know, or not; both must come to the same.
        let knows = node_context.coin() && attempt.number > fails;
        Ok(knows.then(|| step_value(key)))
    };
    step.intent(probe).await
}
