//! Small random programs: what a simulated workflow does, made from a number in its input.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_kernel::{Body, Namespace, RetryLimit, RetryPolicy};

use super::rng::Rng;

/// What a run is started with: enough to know its whole program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The tenant, so that a body that ends up with another one is noticed.
    pub namespace: String,
    /// What the program is made from.
    pub seed: u32,
    /// How many generations of children it may have.
    pub depth: u32,
}

impl Input {
    /// The body of an input.
    pub fn body(namespace: &Namespace, seed: u32, depth: u32) -> Body {
        let input = Self { namespace: namespace.to_string(), seed, depth };
        Body::of(&input).expect("an input is JSON")
    }
}

/// An activity as its task carries it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// How many of its attempts fail.
    pub fails: u32,
    /// Its policy.
    pub policy: RetryPolicy,
    /// Whether it counts against the limit of its namespace.
    pub limited: bool,
}

/// One stage of a program. Stages run one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// Runs user code in the turn.
    Do {
        /// How many attempts fail.
        fails: u32,
        /// What happens then.
        policy: RetryPolicy,
        /// Whether its commit asks for an effect.
        effect: bool,
        /// Whether it takes its whole process down, each time.
        poison: bool,
    },
    /// Sleeps.
    Sleep {
        /// For so long.
        ms: u64,
    },
    /// Waits for a message.
    Wait {
        /// Of this name.
        name: &'static str,
        /// At most so long.
        timeout_ms: Option<u64>,
    },
    /// Runs activities at the same time, and waits for all.
    Activities(Vec<Activity>),
    /// Runs a child, and waits for it.
    Child {
        /// What the child's program is made from.
        seed: u32,
    },
}

/// What a run does.
#[derive(Clone, Debug, PartialEq)]
pub struct Program(pub Vec<Stage>);

impl Program {
    /// The program of an input.
    pub fn of(seed: u32, depth: u32) -> Self {
        let mut rng = Rng::new(u64::from(seed) ^ 0x5eed);
        let count = rng.range(1, 5);
        Self((0..count).map(|_| stage(&mut rng, depth)).collect())
    }
}

fn stage(rng: &mut Rng, depth: u32) -> Stage {
    match rng.below(if depth > 0 { 10 } else { 9 }) {
        0..=2 => {
            let policy = policy(rng);
            let (fails, effect) = (fails(rng, &policy), rng.chance(350));
            Stage::Do { fails, policy, effect, poison: rng.chance(10) }
        }
        3 | 4 => Stage::Sleep { ms: rng.range(50, 6_000) },
        5 | 6 => {
            let name = if rng.chance(600) { "news" } else { "orders" };
            let timeout_ms = rng.chance(400).then(|| rng.range(200, 6_000));
            Stage::Wait { name, timeout_ms }
        }
        7 | 8 => {
            let count = rng.range(1, 3);
            Stage::Activities((0..count).map(|_| activity(rng)).collect())
        }
        _ => Stage::Child { seed: rng.next_u64() as u32 },
    }
}

fn activity(rng: &mut Rng) -> Activity {
    let policy = policy(rng);
    Activity { fails: fails(rng, &policy), policy, limited: rng.chance(500) }
}

fn policy(rng: &mut Rng) -> RetryPolicy {
    let limit = RetryLimit::Times(rng.below(4) as u32);
    let delay = Duration::from_millis(rng.range(20, 1_500));
    let policy = match rng.below(3) {
        0 => RetryPolicy::constant(limit, delay),
        1 => RetryPolicy::linear(limit, delay),
        _ => RetryPolicy::exponential(limit, delay),
    };
    if rng.chance(500) { policy.with_jitter(0.2) } else { policy }
}

// Mostly within the policy; one in eight fails more often than it may.
fn fails(rng: &mut Rng, policy: &RetryPolicy) -> u32 {
    let max = policy.attempts_max().unwrap_or(1);
    if rng.chance(125) { max } else { rng.below(u64::from(max)) as u32 }
}
