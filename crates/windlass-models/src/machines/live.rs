//! Inputs of a live run (messages, timers) and the actions that follow, in one commit.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_engine::{
    ActivityResult, AttemptError, ChildResult, ClosedRequest, FailureCause, LocalCompletion,
    RequestMessage, RequestRef, TaskBody, Turn, events,
};
use windlass_kernel::{
    Actor, Body, Error, EventType, LimitKey, LogLevel, LogLine, Message, MessageKind, Op,
    QueueName, Route, RouteName, Stamp, Step, StepKey, StepStatus, TaskId, Timestamp, WorkflowName,
};

use super::action::{ActivityOptions, WorkflowSignal, signal_types};
use super::activity::ActivityError;
use super::description::{
    NAME, RECORDS_REFUSED, RECORDS_WRITTEN, SIGNAL_RECEIVED, TIMER_CANCELLED, TIMER_FIRED,
    TIMER_STARTED,
};
use super::machine::Input;
use super::pending::{Entry, Kind, Planned, Spec};
use super::program::{Ending, MachineProgram, Work};
use super::replay::input_of;
use super::workflow::WorkflowError;
use crate::kit::{
    NewActivity, NewChild, close_request, name_child, new_step, open_request, schedule_activity,
    start_child,
};

/// An input of the machine, as it goes into the ledger.
pub(crate) enum Fact {
    /// A step is over because of a message.
    Message {
        message: Message,
        row: Step,
        event: EventType,
        payload: Value,
        earlier: Vec<AttemptError>,
        started: Option<Value>,
    },
    /// A step is over because of a result that came without a message.
    LocalCompletion {
        completion: LocalCompletion,
        row: Step,
        event: EventType,
        payload: Value,
        started: Value,
    },
    /// A step is over because of a time.
    Time {
        row: Step,
        event: EventType,
        payload: Value,
        earlier: Vec<AttemptError>,
        ops: Vec<Op>,
    },
    Signal(Message),
    /// People have decided, or the request has ended in another way.
    Request {
        message: Message,
        row: Step,
        closed: ClosedRequest,
    },
}

impl MachineProgram {
    /// Tells the machine something, and puts it and what it answers into the commit.
    pub(crate) fn tell(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        fact: Option<Fact>,
        input: Input,
    ) -> Result<(), Error> {
        let mut answer = self.machine.tell(input)?;
        let snapshot = answer.snapshot.take();
        let planned = self.pending.plan(answer)?;
        for one in &planned {
            if let Planned::Request { key, request } = one {
                turn.check_request(request, &StepKey::from_stored(&**key))?;
            }
        }
        work.torn = true;
        if let Some(fact) = fact {
            record(turn, work, fact)?;
        }
        for one in planned {
            self.carry_out(turn, work, one)?;
        }
        work.torn = false;
        work.callbacks += 1;
        self.snapshot_changed |= snapshot != self.snapshot.snapshot;
        self.snapshot.snapshot = snapshot;
        Ok(())
    }

    pub(crate) fn message_came(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        message: Message,
    ) -> Result<(), Error> {
        match message.kind {
            MessageKind::ActivityResult => self.activity_over(turn, work, message),
            MessageKind::ChildResult => self.child_over(turn, work, message),
            MessageKind::Decision => self.request_over(turn, work, message),
            _ => self.signal_came(turn, work, message),
        }
    }

    fn activity_over(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        message: Message,
    ) -> Result<(), Error> {
        let Ok(done) = ActivityResult::from_message(&message) else {
            return pass_over(turn, work, &message, "it does not read");
        };
        let key = done.step_key.as_deref().unwrap_or_default();
        let Some((entry, mut row)) = self.take_open(key, Kind::Activity) else {
            return pass_over(turn, work, &message, "its activity is over");
        };
        let started = json!({
            "key": key, "attempt": done.attempt, "worker": done.worker,
            "started_at": done.started_at,
        });
        let result = match &done.error {
            Some(error) => {
                let failed = ActivityError::non_retryable(&error.message).named(&error.name);
                Err(ActivityError { timeout: error.timeout, ..failed })
            }
            None => Ok(done.result()),
        };
        let (event, payload) = settle(&mut row, done.attempt, result)?;
        let input = input_of(&entry, &row)?;
        let (started, earlier) = (Some(started), done.earlier);
        let fact = Fact::Message { message, row, event, payload, earlier, started };
        self.tell(turn, work, Some(fact), input)
    }

    /// An activity is over, and the turn was taken with its result.
    pub(crate) fn result_locally(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        completion: LocalCompletion,
    ) -> Result<(), Error> {
        let key = completion.step_key.clone();
        let Some((entry, mut row)) = self.take_open(key.as_str(), Kind::Activity) else {
            // It was open when the turn was taken. The commit does not settle it, so a message will.
            return Ok(());
        };
        let started = json!({
            "key": key, "attempt": completion.attempt, "worker": completion.worker,
            "started_at": completion.began_at.to_string(),
        });
        let result = completion.result.clone().map_err(|failure| {
            let timeout = match failure.cause {
                FailureCause::Timeout(kind) => Some(kind),
                _ => None,
            };
            let failed = ActivityError::non_retryable(failure.message).named(failure.name);
            ActivityError { timeout, ..failed }
        });
        let (event, payload) = settle(&mut row, completion.attempt, result)?;
        let input = input_of(&entry, &row)?;
        self.tell(
            turn,
            work,
            Some(Fact::LocalCompletion { completion, row, event, payload, started }),
            input,
        )
    }

    fn child_over(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        message: Message,
    ) -> Result<(), Error> {
        let Ok(done) = ChildResult::from_message(&message) else {
            return pass_over(turn, work, &message, "it does not read");
        };
        let key = done.fork.as_deref().unwrap_or_default();
        let Some((entry, mut row)) = self.take_open(key, Kind::Child) else {
            return pass_over(turn, work, &message, "nobody waits for the child");
        };
        let status = done.status();
        let payload = json!({ "key": key, "run_key": done.run_key, "status": status });
        let result = self.large.take(&message, &done);
        let event = if done.is_complete() {
            row.status = StepStatus::Completed;
            row.result = Some(result.unwrap_or_else(|| Body::json("null")));
            events::CHILD_COMPLETED
        } else {
            row.status = StepStatus::Errored;
            row.error = Some(match result {
                Some(error) => error,
                None => {
                    let error = WorkflowError::new(format!("the child is {status}"));
                    Body::of(&error.named("ChildEnded"))?
                }
            });
            events::CHILD_FAILED
        };
        let input = input_of(&entry, &row)?;
        let earlier = Vec::new();
        let fact = Fact::Message { message, row, event, payload, earlier, started: None };
        self.tell(turn, work, Some(fact), input)
    }

    fn request_over(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        message: Message,
    ) -> Result<(), Error> {
        let named = RequestMessage::of(&message).map(|named| named.request).unwrap_or_default();
        let Some(closed) = self.requests.take(&named) else {
            return pass_over(turn, work, &message, "its request has not ended");
        };
        let waits = |(key, entry): (&Arc<str>, &Entry)| {
            let row = entry.row.as_ref().filter(|_| entry.kind == Kind::Request)?;
            (RequestRef::of(row)?.request == named).then(|| Arc::clone(key))
        };
        let key = self.pending.open.iter().find_map(waits).unwrap_or_default();
        let Some((entry, row)) = self.take_open(&key, Kind::Request) else {
            return pass_over(turn, work, &message, "nobody waits for the request");
        };
        let outcome = Box::new(closed.outcome.clone());
        let input = Input::RequestClosed { id: entry.id, outcome };
        self.tell(turn, work, Some(Fact::Request { message, row, closed }), input)
    }

    /// The outcome of a write of records is known: the machine gets it.
    pub(crate) fn records_over(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        key: &str,
    ) -> Result<(), Error> {
        let Some((entry, mut row)) = self.take_open(key, Kind::Records) else { return Ok(()) };
        let event = match row.error {
            None => {
                row.status = StepStatus::Completed;
                RECORDS_WRITTEN
            }
            Some(_) => {
                row.status = StepStatus::Errored;
                RECORDS_REFUSED
            }
        };
        let input = input_of(&entry, &row)?;
        let payload = json!({ "key": key });
        let (earlier, ops) = Default::default();
        self.tell(turn, work, Some(Fact::Time { row, event, payload, earlier, ops }), input)
    }

    fn signal_came(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        message: Message,
    ) -> Result<(), Error> {
        let signal = signal_of(&message);
        let cancel = signal.signal_type == signal_types::CANCEL;
        let shutdown = signal.signal_type == signal_types::SHUTDOWN;
        if cancel && self.snapshot.cancel_by_us.is_some() {
            return pass_over(turn, work, &message, "the run was asked to end before");
        }
        let reason = signal.payload.get("reason").and_then(Value::as_str);
        let reason = reason.map(|text| text.chars().take(1_000).collect());
        self.pending.shutdown |= shutdown;
        // One that was carried over is as old as the generation that gets it.
        let sent_at = message.sent_at.max(turn.run.created_at);
        self.tell(turn, work, Some(Fact::Signal(message)), Input::Signal(signal))?;
        if cancel {
            // As the task that ends a run which cannot see to it itself counts.
            let by = sent_at.plus(turn.cancel_grace());
            (self.snapshot.cancel_by_us, self.snapshot.cancel_reason) =
                (Some(by.as_micros()), reason);
            // The callback of the request may have asked for a next generation.
            if let Some(Ending::Continued(_)) = work.ending {
                work.ending = Some(self.cancelled());
            }
        }
        self.snapshot.shutdown |= shutdown;
        self.snapshot_changed |= cancel || shutdown;
        Ok(())
    }

    pub(crate) fn timer_fired(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        key: &str,
    ) -> Result<(), Error> {
        let Some((entry, mut row)) = self.take_open(key, Kind::Timer) else { return Ok(()) };
        row.status = StepStatus::Completed;
        let input = input_of(&entry, &row)?;
        let payload = json!({ "key": key });
        let (earlier, ops) = Default::default();
        let fact = Fact::Time { row, event: TIMER_FIRED, payload, earlier, ops };
        self.tell(turn, work, Some(fact), input)
    }

    /// Something that is over now, with its row.
    pub(crate) fn take_open(&mut self, key: &str, kind: Kind) -> Option<(Entry, Step)> {
        let entry = self.pending.open.get(key).filter(|entry| entry.kind == kind)?;
        let row = entry.row.clone()?;
        let entry = self.pending.open.remove(key)?;
        Some((entry, row))
    }

    fn carry_out(&mut self, turn: &mut Turn, work: &mut Work, one: Planned) -> Result<(), Error> {
        let stamp = turn.stamp();
        match one {
            Planned::End(end) => work.ending = Some(self.ending(end)),
            Planned::HeldBack { what } => {
                let message = format!("{what} is not begun: the run is being shut down");
                work.draft.log(system_line(turn, stamp, message));
            }
            Planned::Timer { key, duration } => {
                let due = stamp.at.plus(duration);
                let mut row = new_row(turn, work, &key, Kind::Timer, stamp.at);
                (row.status, row.due_at) = (StepStatus::Waiting, Some(due));
                row.timeout = Some(duration);
                let payload = json!({ "key": &*key, "due_at": due.to_string() });
                work.draft.step(TIMER_STARTED, &payload, row.clone(), stamp)?;
                self.begun(&key, row);
            }
            Planned::Activity { key, spec } => {
                self.begin_activity(turn, work, &key, spec, stamp)?;
            }
            Planned::Child { key, workflow, spec } => {
                self.begin_child(turn, work, &key, workflow, spec, stamp)?;
            }
            Planned::Cancel { key, entry } => call_off(turn, work, &key, *entry, stamp)?,
            Planned::Request { key, request } => {
                let row = new_row(turn, work, &key, Kind::Request, stamp.at);
                let row = open_request(turn, &mut work.draft, row, &request, stamp)?;
                self.begun(&key, row);
            }
            Planned::Records { key, spec } => {
                let mut row = new_row(turn, work, &key, Kind::Records, stamp.at);
                (row.input, row.attempts_max) = (Some(Body::of(&spec)?), Some(1));
                work.draft.open_step(row.clone());
                self.begun(&key, row);
            }
            Planned::Effect { key, mut spec, effect } => {
                let task_id = turn.new_task_id();
                spec.task_id = Some(task_id);
                let mut row = new_row(turn, work, &key, Kind::Effect, stamp.at);
                (row.status, row.input) = (StepStatus::Completed, Some(Body::of(&spec)?));
                let mut payload = effect.summary(task_id);
                payload["key"] = (*key).into();
                work.draft.step(events::EFFECT_ENQUEUED, &payload, row, stamp)?;
                work.draft.enqueue(effect.task(turn, task_id));
            }
            Planned::EffectCarried { key } => {
                self.snapshot.told_of_carried.push((*key).to_owned());
                self.snapshot_changed = true;
            }
        }
        Ok(())
    }

    fn begin_activity(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        key: &Arc<str>,
        mut spec: Spec,
        stamp: Stamp,
    ) -> Result<(), Error> {
        let options = spec.options.clone().unwrap_or_default();
        let task_id = self.revived.task_id(key).unwrap_or_else(|| turn.new_task_id());
        spec.task_id = Some(task_id);
        let mut row = new_row(turn, work, key, Kind::Activity, stamp.at);
        row.name = spec.type_name.as_str().into();
        row.attempts_max = options.retry_policy.attempts_max();
        row.timeout = options.start_to_close_timeout;
        row.input = Some(Body::of(&spec)?);
        let activity = new_activity(turn, task_id, &spec, &options, stamp.at)?;
        let revived = Some(&self.revived);
        let row = schedule_activity(turn, &mut work.draft, row, activity, revived, stamp)?;
        self.begun(key, row);
        self.schedule_check(key, turn.now());
        Ok(())
    }

    fn begin_child(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        key: &Arc<str>,
        workflow: WorkflowName,
        mut spec: Spec,
        stamp: Stamp,
    ) -> Result<(), Error> {
        let child = name_child(turn, key, &workflow)?;
        let input = Body::json(spec.input.get().to_owned());
        (spec.id, spec.run_key) = (Some(child.id.clone()), Some(child.run_key));
        let model = turn.model_of(&workflow).unwrap_or(NAME);
        spec.workflow = Some(workflow);
        let mut row = new_row(turn, work, key, Kind::Child, stamp.at);
        row.input = Some(Body::of(&spec)?);
        let new = NewChild { child, model, input, labels: Default::default() };
        let row = start_child(turn, &mut work.draft, row, new, stamp)?;
        self.begun(key, row);
        Ok(())
    }

    fn begun(&mut self, key: &str, row: Step) {
        if let Some(entry) = self.pending.open.get_mut(key) {
            entry.row = Some(row);
        }
    }
}

fn record(turn: &mut Turn, work: &mut Work, fact: Fact) -> Result<(), Error> {
    match fact {
        Fact::Message { message, mut row, event, payload, earlier, started } => {
            retried(turn, work, &row, &earlier)?;
            if let Some(started) = started {
                let stamp = turn.stamp();
                work.draft.event(events::ACTIVITY_STARTED, &started, stamp)?;
            }
            let stamp = turn.stamp();
            row.updated_at = stamp.at;
            work.draft.consume_into_step(event, &payload, &message, row, stamp)?;
        }
        Fact::LocalCompletion { completion, mut row, event, payload, started } => {
            retried(turn, work, &row, &completion.earlier)?;
            let stamp = turn.stamp();
            work.draft.event(events::ACTIVITY_STARTED, &started, stamp)?;
            let stamp = turn.stamp();
            row.updated_at = stamp.at;
            work.draft.step(event, &payload, row, stamp)?;
            completion.settle(&mut work.draft);
        }
        Fact::Time { mut row, event, payload, earlier, ops } => {
            retried(turn, work, &row, &earlier)?;
            let stamp = turn.stamp();
            row.updated_at = stamp.at;
            work.draft.step(event, &payload, row, stamp)?;
            for op in ops {
                work.draft.op(op);
            }
        }
        Fact::Request { message, row, closed } => {
            close_request(turn, &mut work.draft, row, &message, &closed)?;
        }
        Fact::Signal(message) => {
            let stamp = turn.stamp();
            let mut payload = json!({ "signal_type": message.name, "message": message.seq });
            if let Some(actor) = actor_of(&message) {
                payload["actor"] = json!(actor);
            }
            work.draft.consume(SIGNAL_RECEIVED, &payload, &message, by_machine(), stamp)?;
        }
    }
    Ok(())
}

// The attempts that failed before the one that settled the activity: an event for each, whose text is in
// the log of the run.
fn retried(
    turn: &mut Turn,
    work: &mut Work,
    row: &Step,
    earlier: &[AttemptError],
) -> Result<(), Error> {
    for error in earlier {
        let stamp = turn.stamp();
        let payload = json!({
            "key": row.step_key, "attempt": error.attempt, "failed_at": error.at,
            "error": { "name": error.name },
        });
        work.draft.event(events::ACTIVITY_RETRIED, &payload, stamp)?;
        let message =
            format!("attempt {} failed: {}: {}", error.attempt, error.name, error.message);
        work.draft.log(LogLine {
            step_key: Some(row.step_key.clone()),
            attempt: Some(error.attempt),
            category: "activity".into(),
            ..system_line(turn, stamp, message)
        });
        // Each counts against the size of the commit.
        work.callbacks += 1;
    }
    Ok(())
}

// How an activity ended, into its row; the event that says so, and what it says.
fn settle(
    row: &mut Step,
    attempt: u32,
    result: Result<Body, ActivityError>,
) -> Result<(EventType, Value), Error> {
    row.attempt = attempt;
    let mut payload = json!({ "key": row.step_key, "attempt": attempt });
    let event = match result {
        Ok(result) => {
            payload["result_bytes"] = result.len().into();
            (row.status, row.result) = (StepStatus::Completed, Some(result));
            events::ACTIVITY_COMPLETED
        }
        Err(error) => {
            let timeout = error.timeout;
            payload["error"] = json!({ "name": error.name });
            row.status = StepStatus::Errored;
            row.error = Some(Body::of(&error)?);
            match timeout {
                Some(timeout) => {
                    payload["timeout_type"] = json!(timeout);
                    events::ACTIVITY_TIMED_OUT
                }
                None => events::ACTIVITY_FAILED,
            }
        }
    };
    Ok((event, payload))
}

// A message that changes nothing is consumed all the same, and the ledger says why.
fn pass_over(turn: &mut Turn, work: &mut Work, message: &Message, why: &str) -> Result<(), Error> {
    let stamp = turn.stamp();
    let payload =
        json!({ "message": message.seq, "kind": message.kind.as_str(), "passed_over": why });
    let by = StepKey::from_stored("passed over");
    work.draft.consume(events::MESSAGE_RECEIVED, &payload, message, by, stamp)?;
    work.callbacks += 1;
    Ok(())
}

fn call_off(
    turn: &Turn,
    work: &mut Work,
    key: &str,
    entry: Entry,
    stamp: Stamp,
) -> Result<(), Error> {
    let event = match entry.kind {
        Kind::Timer => TIMER_CANCELLED,
        Kind::Request => events::REQUEST_CLOSED,
        _ => events::ACTIVITY_CANCELLED,
    };
    // An action of the same answer has its row in this commit.
    let begun = || work.draft.written_step(key).cloned();
    let Some(mut row) = entry.row.or_else(begun) else { return Ok(()) };
    let task_id = Spec::of(&row).and_then(|spec| spec.task_id);
    let request = RequestRef::of(&row).filter(|_| entry.kind == Kind::Request);
    row.status = StepStatus::Cancelled;
    row.updated_at = stamp.at;
    row.error = Some(Body::of(&json!({ "name": "Cancelled", "message": "it was called off" }))?);
    work.draft.step(event, &json!({ "key": key }), row, stamp)?;
    if let Some(task_id) = task_id {
        work.draft.settle(task_id);
    }
    if let Some(request) = request {
        work.draft.enqueue(turn.withdraw_request(&request.request, stamp.at)?);
    }
    Ok(())
}

fn new_row(turn: &Turn, work: &Work, key: &str, kind: Kind, at: Timestamp) -> Step {
    let step_key = StepKey::from_stored(key);
    let row = new_step(&turn.run, &work.draft, step_key, kind.step_kind(), at);
    Step { name: super::pending::id_of(key).into(), ..row }
}

fn new_activity(
    turn: &Turn,
    task_id: TaskId,
    spec: &Spec,
    options: &ActivityOptions,
    at: Timestamp,
) -> Result<NewActivity, Error> {
    let limits = turn.limits();
    let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let body = TaskBody {
        input: spec.input.clone(),
        retry: options.retry_policy.clone(),
        start_to_close_ms: options.start_to_close_timeout.map(millis),
        heartbeat_ms: options.heartbeat_timeout.map(millis),
        close_by: options.schedule_to_close_timeout.map(|span| at.plus(span).as_micros()),
        breaker: options.breaker(&spec.type_name, limits)?,
        receipt: false,
        wakes_run: false,
    };
    let route = Route {
        queue: QueueName::with_limits(&options.queue, limits)?,
        name: RouteName::with_limits(&spec.type_name, limits)?,
    };
    let key = |key: &String| LimitKey::with_limits(key, limits);
    Ok(NewActivity {
        task_id,
        route,
        body: Body::of(&body)?,
        priority: options.priority,
        limit_key: options.limit_key.as_ref().map(key).transpose()?,
        eager: true,
    })
}

fn system_line(turn: &Turn, stamp: Stamp, message: String) -> LogLine {
    LogLine {
        log_id: turn.new_log_id(stamp.at),
        run_key: turn.run.run_key,
        step_key: None,
        attempt: None,
        level: LogLevel::Warn,
        category: "system".into(),
        message: message.into(),
        data: None,
        replay: false,
        created_at: stamp.at,
    }
}

// The actor of a request to end the run, if it names one.
fn actor_of(message: &Message) -> Option<Actor> {
    let said: Value = message.body.as_ref()?.read().ok()?;
    let cancel = message.name.as_str() == signal_types::CANCEL;
    serde_json::from_value(said.get("actor").filter(|_| cancel)?.clone()).ok()
}

fn by_machine() -> StepKey {
    StepKey::from_stored("machine")
}

/// A signal as `on_signal` gets it.
pub(crate) fn signal_of(message: &Message) -> WorkflowSignal {
    let payload = message.body.as_ref().map_or(Value::Null, |body| {
        let text = || Value::String(String::from_utf8_lossy(&body.bytes).into_owned());
        body.read().unwrap_or_else(|_| text())
    });
    let signal_type = message.name.as_str().to_owned();
    WorkflowSignal { signal_type, payload, sent_at: message.sent_at }
}

/// A child's error as `on_child_failed` gets it.
pub(crate) fn child_error(error: Option<&Body>) -> WorkflowError {
    let read = error.and_then(|error| error.read().ok());
    read.unwrap_or_else(|| WorkflowError::new("no reason was recorded").named("ChildEnded"))
}
