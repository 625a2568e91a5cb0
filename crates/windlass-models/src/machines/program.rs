//! A run of a machine in memory: told what came, one commit for all that came together.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_engine::{EnqueuedReason, Program, Revived, Turn, TurnError};
use windlass_kernel::{
    Body, BoxFuture, Draft, End, Error, Limits, MessageKind, Run, RunStatus, Step, StepKey,
    Timestamp, Wake,
};

use super::book::{Book, Kind};
use super::machine::{Input, Machine, Maker};
use super::workflow::WorkflowError;
use crate::run::check_body;

/// A commit takes at most so many callbacks; the next ones are in the next.
const CALLBACKS_MAX: usize = 500;

/// What the run's row keeps beside its steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// The machine was told that the run begins.
    pub(crate) started: bool,
    /// When a run that was told to end is terminated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancel_by_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancel_reason: Option<String>,
    #[serde(default)]
    pub(crate) shutdown: bool,
    /// Steps of an earlier generation that the machine was told of in this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) told_of_carried: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<Value>,
}

impl Kept {
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
    Terminated { request: &'static str, reason: String },
}

/// A commit in the making.
pub(crate) struct Work {
    pub(crate) draft: Draft,
    pub(crate) callbacks: usize,
    pub(crate) ending: Option<Ending>,
    /// What a callback led to is only partly in the draft.
    pub(crate) torn: bool,
}

pub(crate) struct MachineProgram {
    pub(crate) maker: Arc<dyn Maker>,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) book: Book,
    pub(crate) kept: Kept,
    pub(crate) kept_changed: bool,
    /// Rows that the machine has not been told of again.
    pub(crate) loaded: Option<Vec<Step>>,
    /// Results of children that were too large for their messages, by the message's number.
    pub(crate) large: BTreeMap<u64, Body>,
    /// Activities that died in the generation before and are tried again in this one.
    pub(crate) revived: Revived,
    pub(crate) limits: Limits,
}

impl MachineProgram {
    pub(crate) fn new(
        maker: Arc<dyn Maker>,
        run: &Run,
        loaded: Option<Vec<Step>>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let machine = maker.make(&run.input)?;
        Ok(Self {
            maker,
            machine,
            book: Book::new(limits.clone()),
            kept: Kept::of(run)?,
            kept_changed: false,
            loaded,
            large: BTreeMap::new(),
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
        loop {
            if turn.is_lost() {
                return Err(TurnError::Lost);
            }
            if turn.has_unread() {
                turn.read_messages().await?;
            }
            if turn.control().is_some() {
                if turn.obey().await? {
                    return Ok(());
                }
                continue;
            }
            self.fetch_large(turn).await?;
            let mut work = Work { draft: turn.draft(), callbacks: 0, ending: None, torn: false };
            // Looking may take a commit of its own, and the first one is that of the result. What is
            // due stays so, and the turn comes back for it at once.
            if !turn.has_result() {
                self.look(turn, &mut work).await?;
            }
            let advanced = self.advance(turn, &mut work);
            if !work.torn {
                self.keep(&mut work).map_err(TurnError::Blocked)?;
            }
            if let Err(error) = advanced {
                // What came before the callback that cannot be carried out stays done.
                if work.callbacks > 0 && !work.torn {
                    turn.commit(work.draft).await?;
                }
                return Err(TurnError::Blocked(error));
            }
            if let Some(ending) = work.ending.take() {
                return self.finish(turn, work.draft, ending).await;
            }
            if work.callbacks < CALLBACKS_MAX {
                return self.park(turn, work.draft).await;
            }
            turn.commit(work.draft).await?;
        }
    }

    // Puts what the run's row keeps into the commit.
    fn keep(&mut self, work: &mut Work) -> Result<(), Error> {
        if self.kept_changed {
            work.draft.state(Body::of(&self.kept)?);
            self.kept_changed = false;
        }
        Ok(())
    }

    /// Commits what the machine was told so far, if there is something.
    pub(crate) async fn commit_told(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
    ) -> Result<(), TurnError> {
        if work.callbacks == 0 || work.ending.is_some() {
            return Ok(());
        }
        self.keep(work).map_err(TurnError::Blocked)?;
        let told = std::mem::replace(&mut work.draft, turn.draft());
        turn.commit(told).await?;
        work.draft = turn.draft();
        Ok(())
    }

    // Tells the machine what there is, as far as one commit goes.
    fn advance(&mut self, turn: &mut Turn, work: &mut Work) -> Result<(), Error> {
        if !self.kept.started {
            self.tell(turn, work, None, Input::Start)?;
            self.kept.started = true;
            self.kept_changed = true;
        }
        if let Some(at_hand) = turn.take_result() {
            self.result_at_hand(turn, work, at_hand)?;
        }
        while work.ending.is_none() && work.callbacks < CALLBACKS_MAX {
            if let Some((entry, step)) = self.book.next_carried() {
                self.tell(turn, work, None, super::replay::input_of(&entry, &step))?;
                self.kept.told_of_carried.push(step.step_key.as_str().to_owned());
                self.kept_changed = true;
                continue;
            }
            if let Some(message) = next_message(turn) {
                self.message_came(turn, work, message)?;
                continue;
            }
            let now = turn.now();
            if let Some(key) = self.due_timer(now) {
                self.timer_fired(turn, work, &key)?;
                continue;
            }
            if self.kept.cancel_by().is_some_and(|by| by <= now) {
                let reason = self.kept.cancel_reason.clone();
                let reason = reason.unwrap_or_else(|| "it was cancelled".into());
                work.ending = Some(Ending::Terminated { request: "cancel", reason });
            } else if self.book.shutdown && !self.book.is_working() {
                let reason = "it was shut down".to_owned();
                work.ending = Some(Ending::Terminated { request: "shutdown", reason });
            }
            return Ok(());
        }
        Ok(())
    }

    fn due_timer(&self, now: Timestamp) -> Option<Arc<str>> {
        let timers = self.book.open.iter().filter(|(_, entry)| entry.kind == Kind::Timer);
        let due = timers.filter_map(|(key, entry)| Some((entry.row.as_ref()?.due_at?, key)));
        due.filter(|(at, _)| *at <= now).min().map(|(_, key)| Arc::clone(key))
    }

    fn next_due(&self) -> Option<Timestamp> {
        let of = |entry: &super::book::Entry| match entry.kind {
            Kind::Timer => entry.row.as_ref().and_then(|row| row.due_at),
            _ => entry.look_at,
        };
        let dues = self.book.open.values().filter_map(of);
        dues.chain(self.kept.cancel_by()).min()
    }

    // Large results of children are read before the machine is told of them.
    async fn fetch_large(&mut self, turn: &Turn) -> Result<(), TurnError> {
        let large = |(seq, message)| Some((seq, super::live::large_result(message)?));
        let wanted: Vec<_> = turn.mailbox.iter().filter_map(large).collect();
        for (seq, child) in wanted {
            if self.large.contains_key(seq) {
                continue;
            }
            if let Some(result) = turn.result_of(child).await? {
                self.large.insert(*seq, result);
            }
        }
        Ok(())
    }

    // Results of several activities may come together. Each would race the message of the other for the
    // turn, and whoever loses such a race is read back; as messages they are read in one turn.
    fn waits_for_one(&self) -> bool {
        self.book.open.values().filter(|entry| entry.kind == Kind::Activity).count() == 1
    }

    async fn park(&mut self, turn: &mut Turn, mut draft: Draft) -> Result<(), TurnError> {
        let wake = self.next_due().map_or(Wake::OnMessage, Wake::At);
        draft.status(RunStatus::Waiting);
        draft.release(wake, turn.read_to());
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
        if self.book.is_working() {
            for op in turn.reach().await? {
                draft.op(op);
            }
        }
        let (bytes, depth) = (self.limits.output_bytes_max, self.limits.json_depth_max);
        let ending =
            match ending {
                Ending::Returned(Ok(output)) => {
                    let checked = check_body("the output", output, bytes, depth);
                    Ending::Returned(checked.map_err(|error| {
                        WorkflowError::new(error.to_string()).named("ResultTooLarge")
                    }))
                }
                other => other,
            };
        let ended = match ending {
            Ending::Returned(Ok(output)) => {
                let payload = json!({ "output_bytes": output.len() });
                turn.end(&mut draft, "workflow.completed", &payload, End::Complete(output))
            }
            Ending::Returned(Err(error)) => {
                let payload = json!({ "error": { "name": error.name } });
                Body::of(&error)
                    .and_then(|body| check_body("the error", body, bytes, depth))
                    .and_then(|body| {
                        turn.end(&mut draft, "workflow.failed", &payload, End::Errored(body))
                    })
            }
            Ending::Terminated { request, reason } => {
                let payload = json!({ "request": request, "reason": reason });
                let error = WorkflowError::new(reason).named("Cancelled");
                Body::of(&error).and_then(|body| {
                    let end = End::Terminated(Some(body));
                    turn.end(&mut draft, "workflow.terminated", &payload, end)
                })
            }
        };
        ended.map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }
}

fn next_message(turn: &mut Turn) -> Option<windlass_kernel::Message> {
    let told = |kind: MessageKind| {
        matches!(
            kind,
            MessageKind::ActivityResult
                | MessageKind::ChildResult
                | MessageKind::Signal
                | MessageKind::Event
        )
    };
    let seq = turn.mailbox.values().find(|message| told(message.kind))?.seq;
    turn.mailbox.remove(&seq)
}

impl Program for MachineProgram {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(self.take(turn))
    }

    fn takes_result(&self, step_key: &StepKey) -> bool {
        let entry = self.book.open.get(step_key.as_str());
        self.loaded.is_none()
            && entry.is_some_and(|entry| entry.kind == Kind::Activity && entry.row.is_some())
            && self.waits_for_one()
    }

    fn bytes(&self) -> usize {
        // Rows, maps and keys of what is open, as a rough guess a piece.
        const ENTRY: usize = 1_200;
        let inputs = |entry: &super::book::Entry| {
            entry.row.as_ref().and_then(|row| row.input.as_ref()).map_or(0, |input| input.len())
        };
        let open: usize = self.book.open.values().map(|entry| ENTRY + inputs(entry)).sum();
        let snapshot = self.kept.snapshot.as_ref().map_or(0, |_| 500);
        size_of::<Self>() + self.machine.bytes() + open + snapshot
    }
}
