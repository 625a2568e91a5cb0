//! The open waits of a run: begun, met by a message or a time, or called off.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use windlass_engine::{Turn, TurnError};
use windlass_kernel::{
    Body, Error, ErrorKind, Message, MessageKind, NewRun, RunKey, StepKey, StepStatus, Task,
    Timestamp, Turn as TurnRow,
};

use crate::run::child_id;

use super::core::{ChildRef, Key, Kind, Outcome, Plan, State};
use super::error::Failure;
use super::program::StepsProgram;

/// What an open wait comes to now.
enum Met {
    /// The body of a step is to be tried again.
    Retry,
    /// It is to be put into the store.
    Begin,
    /// A time has come.
    Due,
    /// A message has come, by its sequence number.
    Message(u64),
}

impl StepsProgram {
    /// Brings one open wait forward. `false` if there is none that can be.
    pub(crate) fn settle_one_wait(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        let now = turn.now();
        let found = {
            let core = self.ctx.shared.core.lock();
            core.open().filter(|(_, entry)| entry.live).find_map(|(key, entry)| {
                let due = entry.due.is_some_and(|due| due <= now);
                let met = match (&entry.state, entry.kind) {
                    (State::Retrying, _) => due.then_some(Met::Retry),
                    (State::Asked, kind) => Some(match (&entry.plan, kind) {
                        (Some(Plan::SleepUntil(at)), _) if *at <= now => Met::Due,
                        (Some(Plan::Event { name, .. }), _) => {
                            match event_for(&turn.mailbox, name.as_str()) {
                                Some(seq) => Met::Message(seq),
                                None => Met::Begin,
                            }
                        }
                        _ => Met::Begin,
                    }),
                    (State::Waiting, Kind::Sleep) => due.then_some(Met::Due),
                    (State::Waiting, Kind::Event) => {
                        let name = entry.wait_for.as_deref().unwrap_or_default();
                        let message = event_for(&turn.mailbox, name).map(Met::Message);
                        message.or(due.then_some(Met::Due))
                    }
                    (State::Waiting, Kind::Child) => {
                        child_result(&turn.mailbox, entry.child.as_ref()).map(Met::Message)
                    }
                    (State::Waiting, Kind::Activity) => {
                        activity_result(&turn.mailbox, key).map(Met::Message)
                    }
                    _ => None,
                };
                met.map(|met| (Arc::clone(key), entry.kind, met))
            })
        };
        let Some((key, kind, met)) = found else { return Ok(false) };
        match met {
            Met::Retry => self.ctx.shared.core.lock().retry_due(&key),
            Met::Begin => self.begin_wait(turn, &key).map_err(TurnError::Blocked)?,
            Met::Due => self.time_came(turn, &key, kind).map_err(TurnError::Blocked)?,
            Met::Message(seq) => self.message_came(turn, &key, kind, seq)?,
        }
        Ok(true)
    }

    // Puts a wait into the commit that is being made.
    fn begin_wait(&mut self, turn: &mut Turn, key: &Key) -> Result<(), Error> {
        let plan = {
            let core = self.ctx.shared.core.lock();
            core.entry(key).and_then(|entry| entry.plan.clone())
        };
        let stamp = turn.stamp();
        let mut row = self.make_row(turn, key, stamp.at);
        row.status = StepStatus::Waiting;
        let mut child = None;
        let (event, mut payload) = match &plan {
            Some(Plan::SleepFor(span)) => {
                row.due_at = Some(stamp.at.plus(*span));
                ("sleep.started", json!({}))
            }
            Some(Plan::SleepUntil(at)) => {
                row.due_at = Some(*at);
                ("sleep.started", json!({}))
            }
            Some(Plan::Event { name, timeout }) => {
                row.due_at = Some(stamp.at.plus(*timeout));
                row.timeout = Some(*timeout);
                row.wait_for = Some(name.as_str().into());
                ("event.awaited", json!({ "event_type": name }))
            }
            Some(Plan::Child { workflow, .. }) => {
                let id = child_id(&turn.run, key)?;
                let run_key = turn.new_run_key();
                row.wait_for = Some("child".into());
                let named = ChildRef { workflow: workflow.clone(), id: id.to_string(), run_key };
                row.input = Some(Body::of(&named)?);
                child = Some((id.clone(), named));
                ("child.started", json!({ "workflow": workflow, "id": id, "run_key": run_key }))
            }
            Some(Plan::Activity { route, .. }) => {
                row.wait_for = Some("activity".into());
                row.status = StepStatus::Pending;
                ("activity.scheduled", json!({ "activity": route.name, "queue": route.queue }))
            }
            Some(Plan::Do { .. }) | None => return Ok(()),
        };
        payload["key"] = json!(&**key);
        if let Some(due) = row.due_at {
            payload["due_at"] = json!(due.to_string());
        }
        let (due, wait_for) = (row.due_at, row.wait_for.clone());
        let draft = self.make_draft(turn);
        draft.step(event, &payload, row, stamp)?;
        let cause = draft.cursor();
        match plan {
            Some(Plan::Child { workflow, model, input, labels }) => {
                let (id, named) = child.clone().expect("a child was named");
                let new = NewRun {
                    run_key: named.run_key,
                    namespace: turn.run.namespace.clone(),
                    workflow,
                    model,
                    id,
                    generation: 0,
                    input,
                    parent: Some((turn.run.root, turn.run.run_key)),
                    fork: Some(Arc::clone(key)),
                    labels,
                    trace: turn.run.trace.clone(),
                    headers: None,
                    on_end: None,
                    deadline_at: None,
                    turn: TurnRow::ready(),
                    caused_by: Some(cause),
                };
                let new = turn.child(new, true);
                let stamp = turn.stamp();
                self.make_draft(turn).also_create(new, stamp)?;
            }
            Some(Plan::Activity { route, body, priority, .. }) => {
                let mut task = activity_task(turn, key, route, body, priority, stamp.at);
                if let Some(revived) = &self.revived {
                    revived.revive(&mut task);
                }
                self.make_draft(turn).enqueue(task);
            }
            _ => {}
        }
        let (ctx, records, _) = self.pieces();
        *records += 1;
        let mut core = ctx.shared.core.lock();
        core.appended += 1;
        if let Some(entry) = core.entry_mut(key) {
            entry.state = State::Waiting;
            entry.stored = true;
            entry.due = due;
            entry.wait_for = wait_for;
            entry.child = child.map(|(_, named)| named);
        }
        Ok(())
    }

    fn time_came(&mut self, turn: &mut Turn, key: &Key, kind: Kind) -> Result<(), Error> {
        let stamp = turn.stamp();
        let mut row = self.make_row(turn, key, stamp.at);
        let (event, outcome): (_, Outcome) = match kind {
            Kind::Event => {
                let waited_for = {
                    let core = self.ctx.shared.core.lock();
                    core.entry(key).and_then(|entry| entry.wait_for.clone()).unwrap_or_default()
                };
                let message = format!("no event of type {waited_for:?} came in time");
                row.wait_for = Some(waited_for);
                ("event.timed_out", Err(Failure::new("EventTimeout", message, false)))
            }
            _ => ("sleep.elapsed", Ok(Body::json("null"))),
        };
        match &outcome {
            Ok(_) => row.status = StepStatus::Completed,
            Err(failure) => {
                row.status = StepStatus::Errored;
                row.error = Some(failure.body()?);
            }
        }
        self.make_draft(turn).step(event, &json!({ "key": &**key }), row, stamp)?;
        self.recorded(key, outcome, stamp.at);
        Ok(())
    }

    fn message_came(
        &mut self,
        turn: &mut Turn,
        key: &Key,
        kind: Kind,
        seq: u64,
    ) -> Result<(), TurnError> {
        let Some(message) = turn.mailbox.remove(&seq) else { return Ok(()) };
        let consumed = self.consume(turn, key, kind, &message);
        consumed.map_err(TurnError::Blocked)
    }

    fn consume(
        &mut self,
        turn: &mut Turn,
        key: &Key,
        kind: Kind,
        message: &Message,
    ) -> Result<(), Error> {
        let stamp = turn.stamp();
        let mut row = self.make_row(turn, key, stamp.at);
        let mut payload = json!({ "key": &**key, "message": message.seq });
        let (event, outcome): (_, Outcome) = match kind {
            Kind::Event => {
                payload["event_type"] = json!(message.name);
                row.wait_for = Some(message.name.as_str().into());
                let null = || Body::json("null");
                ("event.consumed", Ok(message.body.clone().unwrap_or_else(null)))
            }
            Kind::Child => {
                let mut result: ChildResult = read(message)?;
                if let Some(large) = self.large.remove(&message.seq) {
                    result.result = Some(raw_value(&large)?);
                }
                payload["run_key"] = json!(result.run_key);
                payload["status"] = json!(result.status);
                match result.status.as_str() {
                    "complete" => ("child.completed", Ok(raw_body(result.result))),
                    status => {
                        let failure = match result.result {
                            Some(raw) => Failure::read(&raw_body(Some(raw))),
                            None => {
                                Failure::new("ChildEnded", format!("the child is {status}"), false)
                            }
                        };
                        ("child.failed", Err(Failure { retryable: false, ..failure }))
                    }
                }
            }
            _ => {
                let result: ActivityResult = read(message)?;
                payload["attempt"] = json!(result.attempt);
                row.attempt = result.attempt;
                match result.error {
                    Some(error) => ("activity.failed", Err(Failure { retryable: false, ..error })),
                    None => ("activity.completed", Ok(raw_body(result.result))),
                }
            }
        };
        match &outcome {
            Ok(result) => {
                row.status = StepStatus::Completed;
                row.result = Some(result.clone());
            }
            Err(failure) => {
                row.status = StepStatus::Errored;
                row.error = Some(failure.body()?);
            }
        }
        if let Some(entry) = self.ctx.shared.core.lock().entry_mut(key) {
            entry.attempt = row.attempt;
        }
        self.make_draft(turn).consume_into_step(event, &payload, message, row, stamp)?;
        self.recorded(key, outcome, stamp.at);
        Ok(())
    }

    fn recorded(&mut self, key: &Key, outcome: Outcome, at: Timestamp) {
        let (ctx, records, must_poll) = self.pieces();
        *records += 1;
        *must_poll = true;
        ctx.shared.core.lock().recorded(key, outcome, at);
    }

    /// Calls off what the code let go and did not ask for again. A key that is let go can be asked
    /// for again; an activity or a child is really ended, and its key with it.
    pub(crate) async fn cancel_let_go(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let keys = std::mem::take(&mut self.ctx.shared.core.lock().let_go);
        let mut tasks = None;
        for key in keys {
            let kind = self.ctx.shared.core.lock().entry(&key).map(|entry| entry.kind);
            if let Some(kind @ (Kind::Child | Kind::Activity)) = kind {
                if kind == Kind::Activity && tasks.is_none() {
                    tasks = Some(turn.tasks().await?);
                }
                let tasks = tasks.as_deref().unwrap_or_default();
                self.call_off(turn, &key, kind, tasks).map_err(TurnError::Blocked)?;
                continue;
            }
            let at = turn.stamp().at;
            let mut row = self.make_row(turn, &key, at);
            row.status = StepStatus::Pending;
            self.make_draft(turn).open_step(row);
            let mut core = self.ctx.shared.core.lock();
            core.take_open(&key);
            if let Some(entry) = core.entry_mut(&key) {
                (entry.state, entry.due, entry.wait_for) = (State::Idle, None, None);
            }
        }
        Ok(())
    }

    // Ends a child or an activity that nobody waits for.
    fn call_off(
        &mut self,
        turn: &mut Turn,
        key: &Key,
        kind: Kind,
        tasks: &[Task],
    ) -> Result<(), Error> {
        let stamp = turn.stamp();
        let mut row = self.make_row(turn, key, stamp.at);
        let failure = Failure::new("Cancelled", "it was called off", false);
        row.status = StepStatus::Cancelled;
        row.error = Some(failure.body()?);
        let event = match kind {
            Kind::Child => "child.failed",
            _ => "activity.cancelled",
        };
        let payload = json!({ "key": &**key, "cancelled": true });
        let child = self.ctx.shared.core.lock().entry(key).and_then(|entry| entry.child.clone());
        let draft = self.make_draft(turn);
        draft.step(event, &payload, row, stamp)?;
        if let Some(child) = child {
            draft.enqueue(turn.call_off(child.run_key, stamp.at)?);
        }
        let of_step =
            |task: &&Task| task.step_key.as_ref().is_some_and(|step| step.as_str() == &**key);
        for task in tasks.iter().filter(of_step) {
            draft.settle(task.task_id);
        }
        // One that was asked for in this very commit is in no store yet.
        draft.withdraw(|task| of_step(&task));
        self.recorded(key, Err(failure), stamp.at);
        Ok(())
    }

    /// Whether the run has begun something outside itself that is not over.
    pub(crate) fn reaches_outside(&self) -> bool {
        let core = self.ctx.shared.core.lock();
        core.open().any(|(_, entry)| {
            matches!(entry.kind, Kind::Child | Kind::Activity)
                && matches!(entry.state, State::Waiting)
        })
    }
}

fn event_for(mailbox: &BTreeMap<u64, Message>, name: &str) -> Option<u64> {
    let matches = |m: &&Message| m.kind == MessageKind::Event && m.name.as_str() == name;
    mailbox.values().find(matches).map(|message| message.seq)
}

#[derive(Deserialize)]
struct ChildResult {
    run_key: RunKey,
    id: String,
    status: String,
    #[serde(default)]
    large: bool,
    result: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ActivityResult {
    step_key: Option<String>,
    attempt: u32,
    error: Option<Failure>,
    result: Option<Box<RawValue>>,
}

/// The child whose result is too large for this message.
pub(crate) fn large_result(message: &Message) -> Option<RunKey> {
    let result = (message.kind == MessageKind::ChildResult)
        .then(|| read::<ChildResult>(message).ok())
        .flatten()?;
    result.large.then_some(result.run_key)
}

fn raw_value(body: &Body) -> Result<Box<RawValue>, Error> {
    let text = String::from_utf8_lossy(&body.bytes).into_owned();
    RawValue::from_string(text).map_err(|source| {
        let message = "the result of a child does not read as JSON";
        Error::new(ErrorKind::Corrupt, "RESULT_UNREADABLE", message).with_source(source)
    })
}

// By its name: whichever generation of the child ends, ends the wait.
fn child_result(mailbox: &BTreeMap<u64, Message>, child: Option<&ChildRef>) -> Option<u64> {
    let child = child?;
    let of_child = |message: &&Message| {
        message.kind == MessageKind::ChildResult
            && read::<ChildResult>(message).is_ok_and(|result| result.id == child.id)
    };
    mailbox.values().find(of_child).map(|message| message.seq)
}

fn activity_result(mailbox: &BTreeMap<u64, Message>, key: &Key) -> Option<u64> {
    let of_step = |message: &&Message| {
        message.kind == MessageKind::ActivityResult
            && read::<ActivityResult>(message)
                .is_ok_and(|result| result.step_key.as_deref() == Some(&**key))
    };
    mailbox.values().find(of_step).map(|message| message.seq)
}

fn read<T: for<'de> Deserialize<'de>>(message: &Message) -> Result<T, Error> {
    let body = message.body.as_ref().map_or(&b""[..], |body| &body.bytes);
    serde_json::from_slice(body).map_err(|source| {
        let text = format!("message {} does not read as a {}", message.seq, message.kind);
        Error::new(ErrorKind::Invalid, "MESSAGE_UNREADABLE", text).with_source(source)
    })
}

fn raw_body(raw: Option<Box<RawValue>>) -> Body {
    match raw {
        Some(raw) => Body::json(raw.get().to_owned()),
        None => Body::json("null"),
    }
}

fn activity_task(
    turn: &Turn,
    key: &Key,
    route: windlass_kernel::Route,
    body: Body,
    priority: i16,
    at: Timestamp,
) -> Task {
    Task {
        step_key: Some(StepKey::from_stored(Arc::clone(key))),
        priority,
        body: Some(body),
        ..Task::new(turn.new_task_id(), turn.run.namespace.clone(), "activity", route, at)
            .of_run(&turn.run)
    }
}
