//! A run of a machine in memory: calls the callbacks, with one commit for inputs that arrive together.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_engine::{EnqueuedReason, Program, Revived, Turn, TurnError, events};
use windlass_kernel::{
    Body, BoxFuture, Draft, End, Error, Limits, Run, Step, StepKey, Timestamp, Wake,
};

use super::machine::{Factory, Input, Machine};
use super::pending::{Ended, Kind, Pending};
use super::workflow::WorkflowError;
use crate::kit::{self, LargeResults, RequestResults};
use crate::run::check_body;

/// A commit takes at most so many callbacks; the next ones are in the next.
const CALLBACKS_MAX: usize = 500;

/// The data in the run's row beside its steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Whether `on_start` was called.
    pub(crate) started: bool,
    /// When the engine terminates a run that was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancel_by_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancel_reason: Option<String>,
    #[serde(default)]
    pub(crate) shutdown: bool,
    /// Steps of an earlier generation whose results the machine has received in this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) told_of_carried: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<Value>,
}

impl Snapshot {
    pub(crate) fn of(run: &Run) -> Result<Self, Error> {
        run.state.as_ref().map_or_else(|| Ok(Self::default()), Body::read)
    }

    fn cancel_by(&self) -> Option<Timestamp> {
        self.cancel_by_us.map(Timestamp::from_micros)
    }
}

/// How a run ends.
pub(crate) enum Ending {
    Returned(Result<Body, WorkflowError>),
    Continued(Body),
    Terminated { request: &'static str, reason: String },
}

/// A commit in the making.
pub(crate) struct Work {
    pub(crate) draft: Draft,
    pub(crate) callbacks: usize,
    pub(crate) ending: Option<Ending>,
    /// Only a part of a callback's actions is in the draft.
    pub(crate) torn: bool,
    /// How many dead letters are in the draft.
    pub(crate) dead: u64,
}

pub(crate) struct MachineProgram {
    pub(crate) factory: Arc<dyn Factory>,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) pending: Pending,
    pub(crate) snapshot: Snapshot,
    pub(crate) snapshot_changed: bool,
    /// Rows whose callbacks have not been replayed yet.
    pub(crate) loaded: Option<Vec<Step>>,
    pub(crate) large: LargeResults,
    pub(crate) requests: RequestResults,
    /// Activities that died in the generation before and are tried again in this one.
    pub(crate) revived: Revived,
    pub(crate) limits: Limits,
}

impl MachineProgram {
    pub(crate) fn new(
        factory: Arc<dyn Factory>,
        run: &Run,
        loaded: Option<Vec<Step>>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let machine = factory.make(&run.input)?;
        Ok(Self {
            factory,
            machine,
            pending: Pending::new(limits.clone()),
            snapshot: Snapshot::of(run)?,
            snapshot_changed: false,
            loaded,
            large: LargeResults::default(),
            requests: RequestResults::default(),
            revived: Revived::default(),
            limits,
        })
    }

    async fn take(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        if let Some(steps) = self.loaded.take() {
            self.revived = turn.revived().await?;
            self.replay(turn, steps).await?;
            turn.replayed();
        }
        self.requests.begin_turn();
        loop {
            if kit::apply_control(turn).await? {
                return Ok(());
            }
            // Before the callbacks.
            self.large.fetch(turn).await?;
            if !turn.has_result() {
                self.look_at_requests(turn).await?;
                self.write_records(turn).await?;
            }
            let draft = turn.draft();
            let mut work = Work { draft, callbacks: 0, ending: None, torn: false, dead: 0 };
            // Looking may take a commit of its own, and the first one is that of the result. What is
            // due stays so, and the turn comes back for it at once.
            if !turn.has_result() {
                self.look(turn, &mut work).await?;
            }
            let advanced = self.advance(turn, &mut work);
            if !work.torn {
                self.keep(turn, &mut work).map_err(TurnError::Blocked)?;
            }
            let (dead, is_full) = (work.dead, work.callbacks >= CALLBACKS_MAX);
            if let Err(error) = advanced {
                // Callbacks before the failed one stay done.
                if work.callbacks > 0 && !work.torn {
                    turn.commit(work.draft).await?;
                    turn.metrics().tasks_dead.add(dead);
                }
                return Err(TurnError::Blocked(error));
            }
            let continues = work.ending.is_none() && (is_full || self.has_unwritten());
            match work.ending.take() {
                Some(ending) => self.finish(turn, work.draft, ending).await?,
                None if continues => turn.commit(work.draft).await.map(|_| ())?,
                None => self.park(turn, work.draft).await?,
            }
            turn.metrics().tasks_dead.add(dead);
            if !continues {
                return Ok(());
            }
        }
    }

    // Puts what the run's row keeps into the commit.
    fn keep(&mut self, turn: &mut Turn, work: &mut Work) -> Result<(), Error> {
        if self.snapshot_changed {
            work.draft.state(Body::of(&self.snapshot)?, turn.stamp());
            self.snapshot_changed = false;
        }
        Ok(())
    }

    /// Commits the callbacks so far, if there are any.
    pub(crate) async fn commit_callbacks(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
    ) -> Result<(), TurnError> {
        if work.callbacks == 0 || work.ending.is_some() {
            return Ok(());
        }
        self.keep(turn, work).map_err(TurnError::Blocked)?;
        let recorded = std::mem::replace(&mut work.draft, turn.draft());
        turn.commit(recorded).await?;
        turn.metrics().tasks_dead.add(std::mem::take(&mut work.dead));
        work.draft = turn.draft();
        Ok(())
    }

    // Tells the machine what there is, as far as one commit goes.
    fn advance(&mut self, turn: &mut Turn, work: &mut Work) -> Result<(), Error> {
        if !self.snapshot.started {
            self.tell(turn, work, None, Input::Start)?;
            self.snapshot.started = true;
            self.snapshot_changed = true;
        }
        if let Some(completion) = turn.take_result() {
            self.result_locally(turn, work, completion)?;
        }
        while work.ending.is_none() && work.callbacks < CALLBACKS_MAX && !self.has_unwritten() {
            if let Some(key) = self.pending.next_records(true) {
                self.records_over(turn, work, &key)?;
                continue;
            }
            if let Some((entry, step)) = self.pending.next_carried() {
                self.tell(turn, work, None, super::replay::input_of(&entry, &step)?)?;
                self.snapshot.told_of_carried.push(step.step_key.as_str().to_owned());
                self.snapshot_changed = true;
                continue;
            }
            if let Some(message) = self.next_message(turn) {
                self.message_came(turn, work, message)?;
                continue;
            }
            let now = turn.now();
            if let Some(key) = self.due_timer(now) {
                self.timer_fired(turn, work, &key)?;
                continue;
            }
            if self.snapshot.cancel_by().is_some_and(|by| by <= now) {
                work.ending = Some(self.cancelled());
            } else if self.pending.shutdown && !self.pending.is_working() {
                work.ending = Some(shut_down());
            }
            return Ok(());
        }
        Ok(())
    }

    pub(crate) fn cancelled(&self) -> Ending {
        let reason = self.snapshot.cancel_reason.clone();
        let reason = reason.unwrap_or_else(|| "it was cancelled".into());
        Ending::Terminated { request: "cancel", reason }
    }

    /// How the run ends if the machine ends it. A run that was asked to end does not continue as a new
    /// generation, which would not know of the request.
    pub(crate) fn ending(&self, end: Ended) -> Ending {
        match end {
            Ended::Returned(result) => Ending::Returned(result),
            Ended::Continued(_) if self.snapshot.cancel_by_us.is_some() => self.cancelled(),
            Ended::Continued(_) if self.pending.shutdown => shut_down(),
            Ended::Continued(input) => Ending::Continued(input),
        }
    }

    fn due_timer(&self, now: Timestamp) -> Option<Arc<str>> {
        let timers = self.pending.open.iter().filter(|(_, entry)| entry.kind == Kind::Timer);
        let due = timers.filter_map(|(key, entry)| Some((entry.row.as_ref()?.due_at?, key)));
        due.filter(|(at, _)| *at <= now).min().map(|(_, key)| Arc::clone(key))
    }

    fn next_due(&self) -> Option<Timestamp> {
        let of = |entry: &super::pending::Entry| match entry.kind {
            Kind::Timer => entry.row.as_ref().and_then(|row| row.due_at),
            _ => entry.check_at,
        };
        let dues = self.pending.open.values().filter_map(of);
        dues.chain(self.snapshot.cancel_by()).min()
    }

    // Results of several activities may arrive together. Each local completion would race the message of the
    // other for the turn, and the loser is loaded from the store again. As messages they share one turn.
    fn waits_for_one(&self) -> bool {
        self.pending.open.values().filter(|entry| entry.kind == Kind::Activity).count() == 1
    }

    async fn park(&mut self, turn: &mut Turn, mut draft: Draft) -> Result<(), TurnError> {
        let wake = self.next_due().map_or(Wake::OnMessage, Wake::At);
        kit::release(turn, &mut draft, wake);
        if self.waits_for_one() {
            turn.expect_result();
        }
        turn.commit(draft).await?;
        if let Wake::At(_) = wake {
            turn.announce(EnqueuedReason::Wake);
        }
        Ok(())
    }

    async fn finish(
        &mut self,
        turn: &mut Turn,
        mut draft: Draft,
        ending: Ending,
    ) -> Result<(), TurnError> {
        // Unread messages go along.
        if matches!(ending, Ending::Continued(_)) && turn.has_unread() {
            turn.read_messages().await?;
        }
        if self.pending.reaches_outside() {
            kit::stop_descendants(turn, &mut draft).await?;
        }
        if !self.pending.open.is_empty() {
            turn.cancel_open_steps(&mut draft).await?;
        }
        let ending =
            match ending {
                Ending::Returned(Ok(output)) => {
                    let checked = kit::check_output(output, &self.limits);
                    Ending::Returned(checked.map_err(|error| {
                        WorkflowError::new(error.to_string()).named("ResultTooLarge")
                    }))
                }
                other => other,
            };
        let (bytes, depth) = (self.limits.output_bytes_max, self.limits.json_depth_max);
        let ended = match ending {
            Ending::Returned(Ok(output)) => kit::complete(turn, &mut draft, output),
            Ending::Returned(Err(error)) => Body::of(&error)
                .and_then(|body| check_body("the error", body, bytes, depth))
                .and_then(|body| kit::fail(turn, &mut draft, &error.name, body)),
            Ending::Continued(input) => kit::continue_as_new(turn, &mut draft, input),
            Ending::Terminated { request, reason } => {
                let payload = json!({ "request": request, "reason": reason });
                let error = WorkflowError::new(reason).named("Cancelled");
                Body::of(&error).and_then(|body| {
                    let end = End::Terminated(Some(body));
                    turn.end(&mut draft, events::WORKFLOW_TERMINATED, &payload, end)
                })
            }
        };
        ended.map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }
}

fn shut_down() -> Ending {
    Ending::Terminated { request: "shutdown", reason: "it was shut down".to_owned() }
}

impl Program for MachineProgram {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(self.take(turn))
    }

    fn takes_result(&self, step_key: &StepKey) -> bool {
        let entry = self.pending.open.get(step_key.as_str());
        self.loaded.is_none()
            && entry.is_some_and(|entry| entry.kind == Kind::Activity && entry.row.is_some())
            && self.waits_for_one()
    }

    fn bytes(&self) -> usize {
        // Rows, maps and keys of what is open, as a rough guess a piece.
        const ENTRY: usize = 1_200;
        let inputs = |entry: &super::pending::Entry| {
            entry.row.as_ref().and_then(|row| row.input.as_ref()).map_or(0, |input| input.len())
        };
        let open: usize = self.pending.open.values().map(|entry| ENTRY + inputs(entry)).sum();
        let snapshot = self.snapshot.snapshot.as_ref().map_or(0, |_| 500);
        size_of::<Self>() + self.machine.bytes() + open + snapshot
    }
}
