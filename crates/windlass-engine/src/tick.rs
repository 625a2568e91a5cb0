//! One round of work at the request of a host that drives the engine itself.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use windlass_kernel::{Error, RunKey};

use crate::claim::{Claimed, Claimer};
use crate::local_runs::LocalRuns;
use crate::signals::Work;
use crate::tasks::Claim;

const POLL_EVERY: Duration = Duration::from_millis(1);

/// The limits of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// How many turns are taken at most. Default 100.
    pub runs_max: u32,
    /// How many steps are begun at most. Default unlimited.
    pub steps_max: Option<u32>,
    /// How long the tick waits for what it took. Default until all of it is done. Work that is not done
    /// by then goes on.
    pub wait_max: Option<Duration>,
}

impl Default for Tick {
    fn default() -> Self {
        Self { runs_max: 100, steps_max: None, wait_max: None }
    }
}

/// The result of a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ticked {
    /// How many turns and tasks the tick took.
    pub processed: u32,
    /// How many of them this process still works on.
    pub in_progress: u32,
}

/// Promotes what is due, takes ready turns and tasks, and waits for them.
pub(crate) async fn tick(
    claimer: &Arc<Claimer>,
    runs: &LocalRuns,
    Tick { runs_max, steps_max, wait_max }: Tick,
) -> Result<Ticked, Error> {
    let env = &claimer.core.env;
    let until = wait_max.and_then(|wait| env.elapsed().checked_add(wait));
    claimer.signals.everything();
    claimer.promote_due().await?;
    let claimed = claimer.claim(Work::ALL, runs_max).await?;
    let Some(Claimed { claims, permits }) = claimed else { return Ok(Ticked::default()) };
    let steps_left = steps_max.map(|max| Arc::new(AtomicI64::new(i64::from(max))));
    let keys: Vec<RunKey> = claims.turns.iter().map(|claimed| claimed.run_key).collect();
    // Only the tasks of this tick: those of another tick have another caller.
    let tasks: Vec<Claim> = claims.tasks.iter().map(|task| (task.task_id, task.claim_no)).collect();
    let processed = u32::try_from(keys.len() + tasks.len()).unwrap_or(u32::MAX);
    for task in claims.tasks {
        claimer.task_runner.start(task);
    }
    claimer.turn_runner.begin_turns(claims.turns, steps_left);
    drop(permits);
    loop {
        let held = keys.iter().filter(|key| runs.is_held(**key)).count()
            + tasks.iter().filter(|claim| claimer.tasks.is_held(claim)).count();
        if held == 0 || until.is_some_and(|until| env.elapsed() >= until) {
            let in_progress = u32::try_from(held).unwrap_or(u32::MAX);
            return Ok(Ticked { processed, in_progress });
        }
        env.sleep(POLL_EVERY).await;
    }
}
