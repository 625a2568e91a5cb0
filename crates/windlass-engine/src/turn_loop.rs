//! The loop of a held run: opened from the cache or from the store, advanced turn by turn, cached again.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use tracing::Instrument as _;
use windlass_kernel::{
    BoxFuture, ClaimedTurn, Error, ErrorCode, ErrorKind, Hold, Loaded, Run, RunStatus,
};

use crate::held_run::HeldRun;
use crate::local_completion::PendingClaim;
use crate::metrics::Measure;
use crate::model::{Opened, Program, TurnError};
use crate::registry::Registered;
use crate::run_cache::{CachedRun, claim_after, is_current};
use crate::telemetry;
use crate::turn::Turn;
use crate::turn_failure;
use crate::turn_runner::TurnRunner;

/// The source of a run whose turn begins.
pub(crate) enum Start {
    New(Box<Run>),
    Memory(Box<CachedRun>, ClaimedTurn),
    Store(Box<Loaded>, ClaimedTurn),
    LocalCompletion(Box<CachedRun>, PendingClaim),
}

impl Start {
    pub(crate) fn run(&self) -> &Run {
        match self {
            Start::New(run) => run,
            Start::Memory(cached, _) | Start::LocalCompletion(cached, _) => &cached.run,
            Start::Store(loaded, _) => &loaded.run,
        }
    }
}

// Takes a turn, and the following turns as long as they were claimed meanwhile.
pub(crate) async fn take_turns(
    runner: &Arc<TurnRunner>,
    start: Start,
    held_run: &Arc<HeldRun>,
    steps_left: Option<Arc<AtomicI64>>,
) {
    let opened = open(runner, start, held_run).await;
    let Some((mut program, mut turn)) = opened else { return };
    turn.steps_left = steps_left;
    loop {
        runner.core.metrics.turns.add(1);
        let taken = take_turn(&mut *program, &mut turn).await;
        if turn.pending_claim.is_some() {
            // No commit succeeded, but the program has seen the result, so it cannot be cached. When
            // the turn is dropped, the task runner sends the result as a message; by then the run
            // must not be marked as held.
            drop(program);
            runner.runs.unhold(turn.run.run_key, held_run);
            return;
        }
        if let Err(error) = taken {
            // Before the failure is handled: destructors of the program run user code.
            drop(program);
            Box::pin(turn_failure::fail(runner, turn, error)).await;
            return;
        }
        if turn.run.status.is_ended() {
            let took = turn.now().since(turn.run.created_at);
            runner.core.metrics.time(Measure::Workflow, turn.run.workflow.as_str(), took);
            let (of, workflow) = (&turn.run.namespace, &turn.run.workflow);
            runner.core.metrics.workflows.ended(of, workflow, turn.run.status);
            return;
        }
        let claimed = match runner.runs.end_turn(turn.run.run_key, held_run) {
            Ok(claimed) => claimed,
            // It has no program yet.
            Err(_) if turn.run.started_at.is_none() => return,
            Err(ending) => {
                let evicted = ending.cache(turn.into_cached(program));
                runner.core.metrics.evictions.add(evicted.len() as u64);
                return;
            }
        };
        let (head, released) = (turn.run.head, turn.hold.claim_no);
        if !is_current(head, released, claimed.head, claimed.hold.claim_no) {
            // Another worker had a turn in between: the program in memory is stale.
            drop(program);
            runner.begin_again(claimed);
            return;
        }
        turn.hold = claimed.hold;
        turn.inbox.accepted = turn.inbox.accepted.max(claimed.accepted);
        turn.row.released = false;
    }
}

async fn take_turn(program: &mut dyn Program, turn: &mut Turn) -> Result<(), TurnError> {
    if turn.has_unread() {
        Box::pin(turn.read_messages()).await?;
    }
    // Control requests come before any user code. A paused run has a turn only to read them.
    let paused = turn.run.status == RunStatus::Paused;
    if (paused || turn.control().is_some()) && Box::pin(turn.apply_control()).await? {
        return Ok(());
    }
    // A control request gives a run a turn before the time of its start.
    if let Some(start) = turn.run.delayed_until(turn.now()) {
        return Box::pin(turn.postpone(start)).await;
    }
    if turn.is_draining() {
        return Err(TurnError::Store(stopping()));
    }
    let span = telemetry::turn(&turn.run, turn.hold.worker);
    turn.begin_replay(&span);
    // Tasks and children of the turn are children of its span; the stored row keeps the context in
    // which the run was started.
    let began_in = turn.run.trace.clone();
    if let Some(trace) = telemetry::traceparent(&span) {
        turn.run.trace = Some(trace);
    }
    let taken = program.turn(turn).instrument(span.clone()).await;
    turn.run.trace = began_in;
    turn.replayed();
    telemetry::turn_ended(&span, &turn.run);
    taken
}

async fn open(
    runner: &Arc<TurnRunner>,
    start: Start,
    held_run: &Arc<HeldRun>,
) -> Option<(Box<dyn Program>, Turn)> {
    let (opened, turn) = match start {
        Start::New(run) => {
            let hold = run.turn.hold()?;
            let Registered { model, .. } = runner.registry.get(&run.workflow)?;
            let opened = model.open(Opened::New(&run));
            (opened, Turn::new(Arc::clone(runner), run, hold, Arc::clone(held_run)))
        }
        Start::Memory(cached, claimed) => {
            let CachedRun { run, program, mailbox, read_to, .. } = *cached;
            let mut turn = Turn::new(Arc::clone(runner), run, claimed.hold, Arc::clone(held_run));
            (turn.mailbox, turn.inbox.read_to, turn.inbox.accepted) =
                (mailbox, read_to, claimed.accepted);
            (Ok(program), turn)
        }
        Start::LocalCompletion(cached, pending_claim) => {
            let CachedRun { run, claim_no, program, mailbox, read_to, .. } = *cached;
            let hold = Hold { worker: runner.core.worker, claim_no: claim_after(claim_no) };
            let mut turn = Turn::new(Arc::clone(runner), run, hold, Arc::clone(held_run));
            // The answer to the first commit tells how many messages were accepted since.
            (turn.mailbox, turn.inbox.read_to, turn.inbox.accepted) = (mailbox, read_to, read_to);
            turn.pending_claim = Some(Box::new(pending_claim));
            (Ok(program), turn)
        }
        Start::Store(loaded, claimed) => {
            runner.core.metrics.replays.add(1);
            let model = runner.registry.model(&claimed.workflow);
            let opened = match model {
                _ if runner.trials.take_condemned(claimed.run_key.0) => {
                    Box::pin(turn_failure::no_progress(runner, *loaded, claimed, model)).await;
                    return None;
                }
                // The model sees a run when it has all its steps.
                Some(_) if loaded.run.delayed_until(runner.core.clock.now()).is_some() => {
                    Ok(Box::new(Unstarted) as Box<dyn Program>)
                }
                Some(model) => model.open(Opened::Loaded(&loaded)),
                None => Err(unknown_workflow(&loaded.run)),
            };
            let Loaded { run, messages, steps } = *loaded;
            let hold = claimed.hold;
            let mut turn = Turn::new(Arc::clone(runner), Box::new(run), hold, Arc::clone(held_run));
            let last = steps.iter().map(|step| step.updated_at).max();
            turn.stamp_after(last.unwrap_or(turn.run.updated_at));
            turn.mailbox = messages.into_iter().map(|m| (m.seq, m)).collect();
            turn.replay.loaded = true;
            (opened, turn)
        }
    };
    match opened {
        Ok(program) => Some((program, turn)),
        Err(error) => {
            Box::pin(turn_failure::fail(runner, turn, TurnError::Blocked(error))).await;
            None
        }
    }
}

/// The program of a run that must not start yet: its turns only apply control requests.
struct Unstarted;

impl Program for Unstarted {
    // The time of the start has come since the run was loaded. The error releases the turn, and the
    // next turn loads the run again.
    fn turn<'a>(&'a mut self, _: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        let message = "the run is due since it was loaded";
        let error = Error::new(ErrorKind::Unavailable, ErrorCode::RunBusy, message);
        Box::pin(std::future::ready(Err(TurnError::Store(error))))
    }

    fn bytes(&self) -> usize {
        0
    }
}

fn stopping() -> Error {
    Error::new(ErrorKind::Unavailable, ErrorCode::EngineStopping, "the engine is stopping")
}

fn unknown_workflow(run: &Run) -> Error {
    let message = format!("no workflow named {:?} is registered in this process", run.workflow);
    Error::new(ErrorKind::NotFound, ErrorCode::WorkflowNotFound, message)
}
