//! Loads a run: restores the machine from its snapshot, or replays the callbacks in the order of the
//! ledger and compares their actions with the record.

use windlass_engine::{Turn, TurnError};
use windlass_kernel::{Error, MessageKind, Step, StepStatus, Timestamp};

use super::action::{WorkflowSignal, signal_types};
use super::activity::{recorded, result};
use super::live::{child_error, signal_of};
use super::machine::Input;
use super::pending::{Entry, Kind, nondeterminism};
use super::program::MachineProgram;

// An input that the machine got before.
enum RecordedInput {
    Settled(Box<Step>),
    Signal(WorkflowSignal),
}

impl MachineProgram {
    pub(crate) async fn replay(
        &mut self,
        turn: &mut Turn,
        steps: Vec<Step>,
    ) -> Result<(), TurnError> {
        // Rows of an earlier generation are older than this one.
        let created_at = turn.run.created_at;
        let (carried, own): (Vec<Step>, Vec<Step>) =
            steps.into_iter().partition(|step| step.created_at < created_at);
        if !self.snapshot.started {
            self.pending.restore(carried, own, &[]);
            return Ok(());
        }
        self.pending.shutdown = self.snapshot.shutdown;
        if let Some(snapshot) = self.snapshot.snapshot.clone() {
            let restored = self.factory.restore(&turn.run.input, snapshot);
            if let Some(machine) = restored.map_err(TurnError::Blocked)? {
                self.machine = machine;
                self.pending.restore(carried, own, &self.snapshot.told_of_carried);
                self.look_at_all(turn);
                return Ok(());
            }
        }
        let signals = turn.consumed(&[MessageKind::Signal, MessageKind::Event]).await?;
        let mut inputs: Vec<(Timestamp, RecordedInput)> = Vec::new();
        for message in signals {
            let at = message.consumed.as_ref().map_or(Timestamp::ZERO, |consumed| consumed.at);
            inputs.push((at, RecordedInput::Signal(signal_of(&message))));
        }
        for step in own.iter().filter(|step| has_callback(step)) {
            inputs.push((step.updated_at, RecordedInput::Settled(Box::new(step.clone()))));
        }
        inputs.sort_by_key(|(at, _)| *at);
        self.pending.shutdown = false;
        self.pending.begin_replay(carried, own);
        self.replay_inputs(inputs).map_err(TurnError::Blocked)?;
        self.look_at_all(turn);
        Ok(())
    }

    fn replay_inputs(&mut self, inputs: Vec<(Timestamp, RecordedInput)>) -> Result<(), Error> {
        let mut has_cancel = false;
        self.deliver(Input::Start)?;
        self.deliver_carried()?;
        for (_, recorded) in inputs {
            let input = match recorded {
                RecordedInput::Signal(signal) => {
                    let cancel = signal.signal_type == signal_types::CANCEL;
                    if cancel && std::mem::replace(&mut has_cancel, true) {
                        continue;
                    }
                    self.pending.shutdown |= signal.signal_type == signal_types::SHUTDOWN;
                    Input::Signal(signal)
                }
                RecordedInput::Settled(step) => {
                    let key = step.step_key.as_str();
                    let Some(entry) = self.pending.open.remove(key) else {
                        return Err(nondeterminism(format!(
                            "the record has {} {key:?} over next, and the code has not asked for it",
                            step.kind
                        )));
                    };
                    input_of(&entry, &step)?
                }
            };
            self.deliver(input)?;
            self.deliver_carried()?;
        }
        self.pending.end_replay()
    }

    fn deliver_carried(&mut self) -> Result<(), Error> {
        while let Some((entry, step)) = self.pending.next_carried() {
            self.deliver(input_of(&entry, &step)?)?;
        }
        Ok(())
    }

    fn deliver(&mut self, input: Input) -> Result<(), Error> {
        debug_assert!(self.pending.is_replaying(), "live callbacks are recorded");
        let answer = self.machine.tell(input)?;
        self.pending.plan(answer).map(|_| ())
    }
}

fn has_callback(step: &Step) -> bool {
    let over = matches!(step.status, StepStatus::Completed | StepStatus::Errored);
    over && step.kind != Kind::Effect.step_kind()
}

/// The input that a settled step gives to the machine.
pub(crate) fn input_of(entry: &Entry, step: &Step) -> Result<Input, Error> {
    let id = entry.id.clone();
    Ok(match (entry.kind, step.status) {
        // An effect has no callback.
        (Kind::Timer | Kind::Effect, _) => Input::TimerFired { id },
        (Kind::Activity, StepStatus::Completed) => {
            Input::ActivityCompleted { id, result: result(step.result.as_ref()) }
        }
        (Kind::Activity, _) => Input::ActivityFailed { id, error: recorded(step.error.as_ref()) },
        (Kind::Child, StepStatus::Completed) => {
            Input::ChildCompleted { id, result: result(step.result.as_ref()) }
        }
        (Kind::Child, _) => Input::ChildFailed { id, error: child_error(step.error.as_ref()) },
        (Kind::Request, _) => {
            let outcome = step.result.as_ref().map(|outcome| outcome.read().map(Box::new));
            let missing = || Err(Error::corrupt("a request that has ended has no outcome"));
            Input::RequestClosed { id, outcome: outcome.unwrap_or_else(missing)? }
        }
        (Kind::Records, StepStatus::Completed) => Input::RecordsWritten { id },
        (Kind::Records, _) => Input::RecordsRefused { id, error: child_error(step.error.as_ref()) },
    })
}
