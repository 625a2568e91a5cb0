//! The open waits of a run: begun, met by a message or a time, or called off.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use windlass_engine::{ActivityResult, ChildResult, RequestRef, Turn, TurnError, events};
use windlass_kernel::{
    Body, Error, EventKey, Message, MessageName, Stamp, Step as StepRow, StepStatus, Task,
    Timestamp,
};

use crate::kit::{self, ChildRef, EventAddress, KeyedWait, NewActivity, NewChild, ResultIndex};

use super::core::{EventMeta, Key, Kind, Outcome, Plan, State, Wait};
use super::description::{
    EVENT_AWAITED, EVENT_CONSUMED, EVENT_TIMED_OUT, SLEEP_ELAPSED, SLEEP_STARTED, STEP_FAILED,
};
use super::error::Failure;
use super::operation::EVENT_UNREADABLE;
use super::program::StepsProgram;

/// The current result of an open wait.
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

/// A pass over the open waits. It goes on where the last settlement left it, so that settling n waits
/// takes two passes and not n.
#[derive(Default)]
pub(crate) struct WaitScan {
    next: u64,
    // The pass has settled something, so the code was polled, and may have claimed earlier waits again.
    settled: bool,
}

impl StepsProgram {
    /// Brings one open wait forward. `false` if there is none that can be: a whole pass has found none.
    pub(crate) fn settle_one_wait(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        self.results.update(&turn.mailbox);
        loop {
            if self.settle_next_wait(turn)? {
                self.scan.settled = true;
                return Ok(true);
            }
            if !std::mem::take(&mut self.scan).settled {
                return Ok(false);
            }
        }
    }

    fn settle_next_wait(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        let now = turn.now();
        let found = {
            let (results, requests) = (&mut self.results, &self.requests);
            let core = self.ctx.shared.core.lock();
            let mut open = core.open_from(self.scan.next).filter(|(.., entry)| entry.is_live());
            open.find_map(|(place, key, entry)| {
                let met = match &entry.state {
                    State::Retrying { due, .. } => (*due <= now).then_some(Met::Retry),
                    State::Asked => Some(match &entry.plan {
                        Some(Plan::SleepUntil(at)) if *at <= now => Met::Due,
                        Some(Plan::Event { name, key, .. }) => {
                            let address = key.clone().map(|key| address(name, key));
                            let mailbox = &turn.mailbox;
                            match find_event(results, mailbox, name.as_str(), address.as_ref()) {
                                Some(message) => Met::Message(message.seq),
                                None => Met::Begin,
                            }
                        }
                        _ => Met::Begin,
                    }),
                    State::Waiting(Wait { request: Some(request), .. }) => {
                        requests.message(&request.request).map(Met::Message)
                    }
                    State::Waiting(wait) => wait_met(turn, results, key, entry.kind, wait),
                    _ => None,
                };
                met.map(|met| (place, Arc::clone(key), entry.kind, met))
            })
        };
        let Some((place, key, kind, met)) = found else { return Ok(false) };
        self.scan.next = place + 1;
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
        let Some(plan) = plan else { return Ok(()) };
        let stamp = turn.stamp();
        let mut row = self.make_row(turn, key, stamp.at);
        row.status = StepStatus::Waiting;
        let (mut child, mut keyed) = (None, None);
        let row = match plan {
            Plan::Do { .. } => return Ok(()),
            Plan::SleepFor(span) => self.begin_sleep(turn, row, stamp.at.plus(span), stamp)?,
            Plan::SleepUntil(at) => self.begin_sleep(turn, row, at, stamp)?,
            Plan::Event { name, key: event_key, timeout, .. } => {
                let due = stamp.at.plus(timeout);
                (row.due_at, row.timeout) = (Some(due), Some(timeout));
                row.wait_for = Some(name.as_str().into());
                let mut payload =
                    json!({ "key": &**key, "event_type": name, "due_at": due.to_string() });
                if let Some(event_key) = event_key {
                    payload["event_key"] = json!(event_key);
                    let address = address(&name, event_key);
                    let draft = self.make_draft(turn);
                    let wait =
                        kit::begin_keyed_wait(turn, draft, &mut row, address, due, stamp.at)?;
                    keyed = Some(Box::new(wait));
                }
                self.make_draft(turn).step(EVENT_AWAITED, &payload, row.clone(), stamp)?;
                row
            }
            Plan::Child { workflow, model, input, labels } => {
                let named = kit::name_child(turn, key, &workflow)?;
                row.input = Some(Body::of(&named)?);
                child = Some(named.clone());
                let new = NewChild { child: named, model, input, labels };
                let draft = self.make_draft(turn);
                kit::start_child(turn, draft, row, new, stamp)?
            }
            Plan::Activity { route, body, priority, .. } => {
                let (task_id, limit_key) = (turn.new_task_id(), None);
                let activity =
                    NewActivity { task_id, route, body, priority, limit_key, eager: false };
                let revived = self.revived.take();
                let draft = self.make_draft(turn);
                let row =
                    kit::schedule_activity(turn, draft, row, activity, revived.as_ref(), stamp);
                self.revived = revived;
                row?
            }
            Plan::Request(request) => {
                let draft = self.make_draft(turn);
                match kit::open_request(turn, draft, row.clone(), &request, stamp) {
                    Ok(row) => row,
                    Err(error) => return self.request_refused(turn, key, row, &error, stamp),
                }
            }
        };
        self.begun(key, row, child, keyed);
        Ok(())
    }

    fn begin_sleep(
        &mut self,
        turn: &mut Turn,
        mut row: StepRow,
        due: Timestamp,
        stamp: Stamp,
    ) -> Result<StepRow, Error> {
        row.due_at = Some(due);
        let payload = json!({ "key": row.step_key, "due_at": due.to_string() });
        self.make_draft(turn).step(SLEEP_STARTED, &payload, row.clone(), stamp)?;
        Ok(row)
    }

    // A wait is in the commit that is being made.
    fn begun(
        &mut self,
        key: &Key,
        row: StepRow,
        child: Option<ChildRef>,
        keyed: Option<Box<KeyedWait>>,
    ) {
        let (ctx, records, _) = self.pieces();
        *records += 1;
        let request = RequestRef::of(&row).filter(|_| row.kind == kit::REQUEST);
        let wait = Wait { due: row.due_at, wait_for: row.wait_for, child, request, keyed };
        ctx.shared.core.lock().wait_recorded(key, wait);
    }

    fn time_came(&mut self, turn: &mut Turn, key: &Key, kind: Kind) -> Result<(), Error> {
        let stamp = turn.stamp();
        let mut row = self.make_row(turn, key, stamp.at);
        self.keep_times(key, &mut row);
        let (event, outcome): (_, Outcome) = match kind {
            Kind::Event => {
                let wait = self.open_wait(key);
                let to = wait.as_ref().and_then(|wait| wait.keyed.as_ref());
                let to = to.map(|wait| format!(" to key {:?}", wait.address.key));
                let to = to.unwrap_or_default();
                let waited_for = wait.and_then(|wait| wait.wait_for).unwrap_or_default();
                let message = format!("no event of type {waited_for:?}{to} came in time");
                row.wait_for = Some(waited_for);
                (EVENT_TIMED_OUT, Err(Failure::new("EventTimeout", message, false)))
            }
            _ => (SLEEP_ELAPSED, Ok(Body::json("null"))),
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
        if kind == Kind::Request {
            return self.request_closed(turn, key, &message).map_err(TurnError::Blocked);
        }
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
        self.keep_times(key, &mut row);
        let mut payload = json!({ "key": &**key, "message": message.seq });
        let (event, outcome): (_, Outcome) = match kind {
            Kind::Event => {
                payload["event_type"] = json!(message.name);
                if let Some(event_key) = self.event_key(key) {
                    payload["event_key"] = json!(event_key);
                }
                if let Some(wait) = self.open_wait(key).and_then(|wait| wait.keyed) {
                    kit::end_keyed_wait(self.make_draft(turn), &wait);
                }
                row.wait_for = Some(message.name.as_str().into());
                self.keep_meta(key, message, &mut row)?;
                let null = || Body::json("null");
                (EVENT_CONSUMED, Ok(message.body.clone().unwrap_or_else(null)))
            }
            Kind::Child => {
                let result = ChildResult::from_message(message)?;
                let body = self.large.take(message, &result);
                payload["run_key"] = json!(result.run_key);
                payload["status"] = json!(result.status());
                if result.is_complete() {
                    let output = body.unwrap_or_else(|| Body::json("null"));
                    (events::CHILD_COMPLETED, Ok(output))
                } else {
                    let failure = body.as_ref().map(Failure::read).unwrap_or_else(|| {
                        let message = format!("the child is {}", result.status());
                        Failure::new("ChildEnded", message, false)
                    });
                    (events::CHILD_FAILED, Err(Failure { retryable: false, ..failure }))
                }
            }
            _ => {
                let result = ActivityResult::from_message(message)?;
                payload["attempt"] = json!(result.attempt);
                payload["started_at"] = json!(result.started_at);
                payload["worker"] = json!(result.worker);
                row.attempt = result.attempt;
                match &result.error {
                    Some(error) => {
                        let failure = Failure::new(&error.name, error.message.as_str(), false);
                        (events::ACTIVITY_FAILED, Err(failure))
                    }
                    None => (events::ACTIVITY_COMPLETED, Ok(result.result())),
                }
            }
        };
        let outcome = self.readable(key, kind, outcome);
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
        self.ctx.shared.core.lock().set_attempt(key, row.attempt);
        self.make_draft(turn).consume_into_step(event, &payload, message, row, stamp)?;
        self.recorded(key, outcome, stamp.at);
        Ok(())
    }

    // The row of a settled wait says until when, and for how long, it waited.
    fn keep_times(&self, key: &Key, row: &mut StepRow) {
        let core = self.ctx.shared.core.lock();
        let Some(entry) = core.entry(key) else { return };
        if let State::Waiting(wait) = &entry.state {
            row.due_at = wait.due;
            // The wait was written like this before.
            row.input = wait.keyed.as_ref().and_then(|wait| Body::of(wait).ok());
        }
        if let Some(Plan::Event { timeout, .. }) = &entry.plan {
            row.timeout = Some(*timeout);
        }
    }

    // Records the time of an event for code that asks for it, so that a replay finds the same.
    fn keep_meta(&self, key: &Key, message: &Message, row: &mut StepRow) -> Result<(), Error> {
        let mut core = self.ctx.shared.core.lock();
        let plan = core.entry(key).and_then(|entry| entry.plan.as_ref());
        if let Some(Plan::Event { with_meta: true, .. }) = plan {
            row.input = Some(Body::of(&EventMeta { sent_at: message.sent_at })?);
            core.set_sent_at(key, message.sent_at);
        }
        Ok(())
    }

    // A result that the code cannot read is an error that it can catch, recorded as such. Later builds
    // find it in the record.
    fn readable(&self, key: &Key, kind: Kind, outcome: Outcome) -> Outcome {
        let body = outcome?;
        let reads = self.ctx.shared.core.lock().entry(key).map(|entry| entry.reads);
        match reads.map_or(Ok(()), |reads| reads(&body)) {
            Ok(()) => Ok(body),
            Err(error) => {
                let (name, what) = match kind {
                    Kind::Event => (EVENT_UNREADABLE, "the event"),
                    _ => ("ResultUnreadable", "the result"),
                };
                let message = format!("{what} does not read as the code asks for: {error}");
                Err(Failure::new(name, message, false))
            }
        }
    }

    fn recorded(&mut self, key: &Key, outcome: Outcome, at: Timestamp) {
        let (ctx, records, must_poll) = self.pieces();
        *records += 1;
        *must_poll = true;
        ctx.shared.core.lock().recorded(key, outcome, at);
    }

    /// Cancels the waits and retries that the code dropped and did not claim again. The code may
    /// claim such a key later; a child or an activity ends for good, and its key with it.
    pub(crate) async fn cancel_dropped(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let keys = self.ctx.shared.core.lock().queues.waits.take_dropped();
        let mut tasks = None;
        for key in keys {
            let kind = self.ctx.shared.core.lock().entry(&key).map(|entry| entry.kind);
            if let Some(kind @ (Kind::Child | Kind::Activity | Kind::Request)) = kind {
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
            if let Some(wait) = self.open_wait(&key).and_then(|wait| wait.keyed) {
                let draft = self.make_draft(turn);
                kit::give_up_keyed_wait(turn, draft, &wait, at).map_err(TurnError::Blocked)?;
            }
            self.make_draft(turn).open_step(row);
            self.ctx.shared.core.lock().wait_cancelled(&key);
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
            Kind::Child => events::CHILD_FAILED,
            Kind::Request => events::REQUEST_CLOSED,
            _ => events::ACTIVITY_CANCELLED,
        };
        let payload = json!({ "key": &**key, "cancelled": true });
        let wait = self.open_wait(key);
        let request = wait.as_ref().and_then(|wait| wait.request.clone());
        let child = wait.and_then(|wait| wait.child);
        let draft = self.make_draft(turn);
        draft.step(event, &payload, row, stamp)?;
        if let Some(child) = child {
            draft.enqueue(turn.call_off(child.run_key, stamp.at)?);
        }
        if let Some(request) = request {
            draft.enqueue(turn.withdraw_request(&request.request, stamp.at)?);
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

    // A request that cannot be opened is an error that the code can catch.
    fn request_refused(
        &mut self,
        turn: &mut Turn,
        key: &Key,
        mut row: StepRow,
        error: &Error,
        stamp: Stamp,
    ) -> Result<(), Error> {
        let failure = Failure::new(error.code().as_str(), error.message(), false);
        row.status = StepStatus::Errored;
        row.error = Some(failure.body()?);
        let payload = json!({ "key": &**key, "error": { "name": failure.name } });
        self.make_draft(turn).step(STEP_FAILED, &payload, row, stamp)?;
        self.recorded(key, Err(failure), stamp.at);
        Ok(())
    }

    fn request_closed(
        &mut self,
        turn: &mut Turn,
        key: &Key,
        message: &Message,
    ) -> Result<(), Error> {
        let request = self.open_wait(key).and_then(|wait| wait.request);
        let closed = request.and_then(|request| self.requests.take(&request.request));
        let Some(closed) = closed else { return Ok(()) };
        let at = turn.stamp().at;
        let row = self.make_row(turn, key, at);
        let draft = self.make_draft(turn);
        let row = kit::close_request(turn, draft, row, message, &closed)?;
        let result = row.result.unwrap_or_else(|| Body::json("null"));
        self.recorded(key, Ok(result), row.updated_at);
        Ok(())
    }

    /// Closes the open requests whose record has changed. Returns whether there were any.
    pub(crate) async fn close_stale(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        let open: Vec<String> = {
            let core = self.ctx.shared.core.lock();
            let waits = core.open().filter_map(|(_, entry)| match &entry.state {
                State::Waiting(wait) => wait.request.as_ref(),
                _ => None,
            });
            waits.map(|request| request.request.clone()).collect()
        };
        self.requests.close_stale(turn, open).await
    }

    // The key of the events that an operation waits for.
    fn event_key(&self, key: &Key) -> Option<EventKey> {
        let core = self.ctx.shared.core.lock();
        let entry = core.entry(key)?;
        match (&entry.state, &entry.plan) {
            (State::Waiting(wait), _) => wait.keyed.as_ref().map(|wait| wait.address.key.clone()),
            (_, Some(Plan::Event { key, .. })) => key.clone(),
            _ => None,
        }
    }

    fn open_wait(&self, key: &Key) -> Option<Wait> {
        match &self.ctx.shared.core.lock().entry(key)?.state {
            State::Waiting(wait) => Some(wait.clone()),
            _ => None,
        }
    }

    /// Whether the run has begun something outside itself that is not over.
    pub(crate) fn reaches_outside(&self) -> bool {
        let core = self.ctx.shared.core.lock();
        core.open().any(|(_, entry)| {
            let State::Waiting(wait) = &entry.state else { return false };
            matches!(entry.kind, Kind::Child | Kind::Activity | Kind::Request)
                || wait.keyed.is_some()
        })
    }
}

// The message or the time that ends a wait in the store.
fn wait_met(
    turn: &Turn,
    results: &mut ResultIndex,
    key: &Key,
    kind: Kind,
    wait: &Wait,
) -> Option<Met> {
    let due = wait.due.is_some_and(|due| due <= turn.now()).then_some(Met::Due);
    match kind {
        Kind::Sleep => due,
        Kind::Event => {
            let name = wait.wait_for.as_deref().unwrap_or_default();
            // An event that came after the timeout is late, also if the run was paused meanwhile.
            let in_time = |message: &&Message| wait.due.is_none_or(|due| message.sent_at <= due);
            let address = wait.keyed.as_ref().map(|wait| &wait.address);
            let event = find_event(results, &turn.mailbox, name, address).filter(in_time);
            event.map(|message| Met::Message(message.seq)).or(due)
        }
        // By the child's name: the end of any generation of the child ends the wait.
        Kind::Child => results.take_child(&wait.child.as_ref()?.id).map(Met::Message),
        Kind::Activity => results.take_activity(key).map(Met::Message),
        Kind::Request | Kind::Do => None,
    }
}

fn address(event_type: &MessageName, key: EventKey) -> EventAddress {
    EventAddress { event_type: event_type.clone(), key }
}

// The oldest unread event that a wait can take: by key if it waits for one, otherwise by type.
fn find_event<'m>(
    results: &mut ResultIndex,
    mailbox: &'m BTreeMap<u64, Message>,
    name: &str,
    address: Option<&EventAddress>,
) -> Option<&'m Message> {
    match address {
        Some(address) => results.keyed_event(address, mailbox),
        None => results.event(name, mailbox),
    }
}
