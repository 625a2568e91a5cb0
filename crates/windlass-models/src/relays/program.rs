//! A run of a relay in memory: runs its steps one after the other, a commit each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_engine::{
    Control, EnqueuedReason, GivenUp, Program, Sent, Turn, TurnError, conflict_delay, events,
};
use windlass_kernel::request::{Request, RequestOutcome};
use windlass_kernel::{
    Body, BoxFuture, CommitError, Conflict, Decision, Draft, Encoding, Error, Message, MessageKind,
    Run, RunStatus, Stamp, Step as StepRow, StepKey, StepStatus, Timestamp, Wake,
};

use super::description::{MEMO, MEMO_RECORDED, RELAY, SIGNAL_TIMED_OUT, STEP_CANCELLED};
use super::effects::Effects;
use super::outcome::RelayError;
use super::record::{self, After, Verdict};
use super::relay::{Ran, Relay, headers_of};
use super::step::{Memos, RelayStep, Signal, Wanted};
use crate::kit::{self, RequestResults, micros};

/// How many errors of failed attempts a step keeps, the latest ones.
const ERRORS_MAX: usize = 20;
/// After this many steps a turn is released if other runs wait for its capacity, so that a long run
/// does not hold the only slot of its workflow until it ends.
const STEPS_PER_TURN: u32 = 16;
/// The same for slow steps.
const TURN_MAX: Duration = Duration::from_secs(1);

pub(crate) struct RelayProgram {
    relay: Arc<Relay>,
    headers: BTreeMap<String, String>,
    // A run that came with JSON ends with JSON, if its result is some.
    json: bool,
    pub(crate) number: u32,
    payload: Bytes,
    pub(crate) open: Open,
    memos: Arc<Memos>,
    pub(crate) requests: RequestResults,
    // The step before, for what the next one has in common with it.
    before: Option<RelayStep>,
    // How long the last attempt took; none if there was no attempt.
    pub(crate) took: Option<Duration>,
}

/// The next step.
#[derive(Debug, Default)]
pub(crate) struct Open {
    // Its row's place and time, if it has a row.
    pub(crate) stored: Option<(u64, Timestamp)>,
    // How often it failed.
    pub(crate) attempt: u32,
    pub(crate) errors: Vec<Value>,
    // When it is tried, or gives up waiting for its signal.
    pub(crate) due: Option<Timestamp>,
    // The signal that it waits for, or waited for.
    pub(crate) wait_for: Option<Arc<str>>,
    pub(crate) signal: Option<Signal>,
    // The request that is to be answered before the step begins.
    pub(crate) asks: Option<Box<Request>>,
    // The row of the open request.
    pub(crate) asked: Option<StepRow>,
    // How often the step has asked, in all generations.
    pub(crate) asked_times: u32,
    pub(crate) outcome: Option<RequestOutcome>,
}

impl Open {
    fn read(row: &StepRow) -> Self {
        let waits = row.status == StepStatus::Waiting && row.attempt == 0;
        let asks = super::request::asks_of(row);
        let signal = match (&row.wait_for, &row.input) {
            _ if asks.is_some() => None,
            (None, _) => None,
            (Some(_), Some(body)) => Some(Signal::Received(body.bytes.clone())),
            (Some(_), None) if waits => None,
            (Some(_), None) => Some(Signal::TimedOut),
        };
        let error: Option<Value> = row.error.as_ref().and_then(|error| error.read().ok());
        let errors = error.and_then(|error| error.get("errors")?.as_array().cloned());
        Self {
            stored: Some((row.position, row.created_at)),
            attempt: row.attempt,
            errors: errors.unwrap_or_default(),
            due: row.due_at,
            wait_for: row.wait_for.clone(),
            signal,
            asks,
            ..Self::default()
        }
    }

    fn waits_for_signal(&self) -> Option<&Arc<str>> {
        self.wait_for.as_ref().filter(|_| self.signal.is_none() && self.asks.is_none())
    }
}

impl RelayProgram {
    pub(crate) fn open(relay: Arc<Relay>, run: &Run, rows: &[StepRow]) -> Result<Self, Error> {
        let number_of = |row: &StepRow| row.step_key.as_str().parse::<u32>().ok();
        let steps = rows.iter().filter(|row| row.kind == RELAY);
        let done = steps.clone().filter(|row| row.status == StepStatus::Completed);
        let last = done.filter_map(|row| Some((number_of(row)?, row))).max_by_key(|(n, _)| *n);
        let (number, payload) = match last {
            None => (0, run.input.bytes.clone()),
            Some((n, row)) => {
                let result = row.result.as_ref().ok_or_else(|| {
                    Error::corrupt(format!("step {n} of a relay is completed and has no payload"))
                })?;
                (n + 1, result.bytes.clone())
            }
        };
        let mut next = steps.filter(|row| !row.status.is_settled());
        let open = next.find(|row| number_of(row) == Some(number)).map(Open::read);
        let mut open = open.unwrap_or_default();
        open.read_requests(number, rows)?;
        let prefix = format!("{number}/");
        let memos = rows.iter().filter(|row| row.kind == MEMO).filter_map(|row| {
            let name = row.step_key.as_str().strip_prefix(&prefix)?;
            Some((name.to_owned(), row.result.clone()?))
        });
        let memos = Arc::new(memos_of(&relay, memos.collect()));
        Ok(Self {
            headers: headers_of(run)?,
            json: run.input.encoding == Encoding::Json,
            relay,
            number,
            payload,
            open,
            memos,
            requests: RequestResults::default(),
            before: None,
            took: None,
        })
    }

    async fn take(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let began = turn.now();
        let mut steps = 0;
        self.requests.begin_turn();
        loop {
            if kit::apply_control(turn).await? {
                return Ok(());
            }
            if self.open.asks.is_some() && !self.take_request(turn).await? {
                return Ok(());
            }
            if self.open.waits_for_signal().is_some() && !self.take_signal(turn).await? {
                let due = self.open.due;
                return self.park(turn, due.map_or(Wake::OnMessage, Wake::At)).await;
            }
            if let Some(due) = self.open.due.filter(|due| *due > turn.now()) {
                return self.park(turn, Wake::At(due)).await;
            }
            let long = steps >= STEPS_PER_TURN || turn.now().since(began) >= TURN_MAX;
            let yields = steps > 0 && long && turn.is_contended();
            if yields || turn.is_draining() || !turn.take_step() {
                return self.park(turn, Wake::Now).await;
            }
            if self.run_step(turn).await? {
                return Ok(());
            }
            steps += 1;
        }
    }

    // The turn is given back: all that the run waits for is in the store.
    async fn park(&mut self, turn: &mut Turn, wake: Wake) -> Result<(), TurnError> {
        let mut draft = turn.draft();
        kit::release(turn, &mut draft, wake);
        turn.commit(draft).await?;
        self.announce(turn, wake);
        Ok(())
    }

    fn announce(&self, turn: &Turn, wake: Wake) {
        match wake {
            Wake::At(_) if self.open.attempt > 0 => turn.announce(EnqueuedReason::Retry),
            Wake::At(_) | Wake::Now => turn.announce(EnqueuedReason::Wake),
            Wake::OnMessage => {}
        }
    }

    // Records that the signal came or did not come in time, so that every attempt of the step sees
    // the same. `false` if neither is so.
    async fn take_signal(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        let Some(name) = self.open.waits_for_signal().cloned() else { return Ok(true) };
        let signal = signal_of(turn, &name);
        let timed_out = self.open.due.is_some_and(|due| due <= turn.now());
        if signal.is_none() && !timed_out {
            return Ok(false);
        }
        let mut draft = turn.draft();
        let stamp = turn.stamp();
        let mut row = self.row(&draft, turn, stamp.at);
        row.status = StepStatus::Pending;
        let taken = match signal {
            Some(message) => {
                let body = message.body.clone().unwrap_or_else(|| Body::bytes(Bytes::new()));
                row.input = Some(body.clone());
                let payload =
                    json!({ "step": self.number, "name": &*name, "message": message.seq });
                draft
                    .consume_into_step(events::MESSAGE_RECEIVED, &payload, &message, row, stamp)
                    .map_err(TurnError::Blocked)?;
                turn.mailbox.remove(&message.seq);
                Signal::Received(body.bytes)
            }
            None => {
                let payload = json!({ "step": self.number, "name": &*name });
                draft.step(SIGNAL_TIMED_OUT, &payload, row, stamp).map_err(TurnError::Blocked)?;
                Signal::TimedOut
            }
        };
        turn.commit(draft).await?;
        (self.open.signal, self.open.due) = (Some(taken), None);
        Ok(true)
    }

    // Runs one attempt of the next step and commits what came of it. `true` if the turn is over.
    async fn run_step(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        turn.metrics().steps_begun.add(1);
        let step = Arc::new(self.step(&turn.run));
        let mut work = (self.relay.run)(Arc::clone(&step));
        // All work that the step has started elsewhere should stop with it, also when the engine stops and
        // all of this is dropped.
        let stops = step.cancel_token.clone().drop_guard();
        let began = turn.env().elapsed();
        let ran = self.drive(turn, &step, &mut work).await?;
        self.took = Some(turn.env().elapsed() - began);
        stops.disarm();
        drop(work);
        if turn.has_unread() {
            turn.read_messages().await?;
        }
        if cancellation(turn).is_some() {
            self.cancelled(turn, &step).await?;
            return Ok(true);
        }
        let verdict = self.verdict(turn, &step, ran);
        let over = self.record(turn, &step, verdict).await?;
        self.before = Arc::into_inner(step);
        Ok(over)
    }

    fn step(&mut self, run: &Run) -> RelayStep {
        let limits = &self.relay.engine.limits;
        let effects = Effects::new(limits);
        let memos = Arc::clone(&self.memos);
        let mut step = match self.before.take() {
            Some(before) => RelayStep {
                step_number: self.number,
                payload: self.payload.clone(),
                cancel_token: CancellationToken::new(),
                memos,
                ..before
            },
            None => {
                let (run_id, workflow) = (run.id.as_str().into(), run.workflow.as_str().into());
                let payload = self.payload.clone();
                let mut step = RelayStep::new(run_id, workflow, self.number, payload, memos);
                step.run_key = Some(run.run_key);
                step.generation = run.generation;
                step.namespace = run.namespace.as_str().into();
                step.answer_bytes_max = limits.step_bytes_max.max(limits.output_bytes_max);
                step.headers.clone_from(&self.headers);
                step.headers.insert("workflow.run_id".into(), step.run_id.clone());
                step
            }
        };
        match step.headers.get_mut("workflow.step") {
            Some(number) => *number = self.number.to_string(),
            None => drop(step.headers.insert("workflow.step".into(), self.number.to_string())),
        }
        step.effects = effects;
        step.attempt = self.open.attempt + 1;
        step.signal.clone_from(&self.open.signal);
        step.request.clone_from(&self.open.outcome);
        step
    }

    // Polls the step until it returns, records its memos meanwhile, and hands cancellation on.
    async fn drive(
        &self,
        turn: &mut Turn,
        step: &RelayStep,
        work: &mut BoxFuture<'static, Ran>,
    ) -> Result<Ran, TurnError> {
        let mut sent: Option<(Sent, Vec<Wanted>)> = None;
        let mut ran = None;
        loop {
            let mut answer = None;
            std::future::poll_fn(|cx| {
                self.memos.waker.register(cx.waker());
                if let Some((sent, _)) = &mut sent
                    && let Poll::Ready(ready) = sent.poll_unpin(cx)
                {
                    answer = Some(ready);
                    return Poll::Ready(());
                }
                if ran.is_none()
                    && let Poll::Ready(ready) = work.poll_unpin(cx)
                {
                    ran = Some(ready);
                    return Poll::Ready(());
                }
                let records = sent.is_none() && self.memos.has_wanted();
                match records || turn.poll_notified(cx).is_ready() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            if let Some(answer) = answer
                && let Some((_, wanted)) = sent.take()
            {
                match turn.answered(answer)? {
                    Ok(_) => self.memos.recorded(wanted),
                    Err(refused) => {
                        return Err(TurnError::Blocked(windlass_engine::refusal(&refused)));
                    }
                }
            }
            if turn.is_lost() {
                return Err(TurnError::Lost);
            }
            // Also when the step has returned: the work of a finished memo is kept even if its future was
            // dropped meanwhile.
            if sent.is_none() && self.memos.has_wanted() {
                sent = self.send_memos(turn)?;
            }
            if turn.has_unread() && sent.is_none() {
                turn.read_messages().await?;
                if cancellation(turn).is_some() {
                    step.cancel_token.cancel();
                }
            }
            if sent.is_none()
                && let Some(ran) = ran.take()
            {
                return Ok(ran);
            }
        }
    }

    // One commit for all memos that are waiting. Of two with one name the first stays.
    fn send_memos(&self, turn: &mut Turn) -> Result<Option<(Sent, Vec<Wanted>)>, TurnError> {
        let wanted = self.memos.take_new();
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut draft = turn.draft();
        for Wanted { name, body, .. } in &wanted {
            let stamp = turn.stamp();
            let key = StepKey::with_limits(format!("{}/{name}", self.number), turn.limits())
                .map_err(TurnError::Blocked)?;
            let mut row = kit::new_step(&turn.run, &draft, key, MEMO, stamp.at);
            row.attempt = self.open.attempt + 1;
            row.status = StepStatus::Completed;
            row.result = Some(body.clone());
            let payload = json!({
                "step": self.number, "memo": name, "attempt": row.attempt,
                "result_bytes": body.len(),
            });
            draft.step(MEMO_RECORDED, &payload, row, stamp).map_err(TurnError::Blocked)?;
        }
        Ok(Some((turn.send(draft), wanted)))
    }

    // The record of an attempt.
    fn verdict(&self, turn: &mut Turn, step: &RelayStep, ran: Ran) -> Verdict {
        let limits = turn.limits();
        let checked =
            ran.and_then(|outcome| record::check(outcome, self.number, &turn.run, limits));
        let checked = checked.and_then(|outcome| self.check_request(turn, outcome));
        match checked {
            Ok(outcome) => Verdict::Outcome(outcome),
            Err(error) => self.failed(turn, step.attempt, error),
        }
    }

    fn failed(&self, turn: &Turn, attempt: u32, error: RelayError) -> Verdict {
        let name = if error.is_permanent() { "Permanent" } else { "Transient" };
        let name = error.name().unwrap_or(name).to_owned();
        let message: String = error.message().chars().take(2_000).collect();
        let errors = self.errors_with(turn, attempt, &name, &message);
        let decision = self.relay.retry.decide(
            attempt,
            &name,
            !error.is_permanent(),
            error.delay_min(),
            turn.env().random(),
        );
        match decision {
            Decision::RetryIn(delay) => Verdict::Retry { name, message, errors, delay },
            Decision::GiveUp(_) => Verdict::Dead { name, message, errors },
        }
    }

    // The errors of earlier attempts and of this one.
    fn errors_with(&self, turn: &Turn, attempt: u32, name: &str, message: &str) -> Vec<Value> {
        let mut errors = self.open.errors.clone();
        let at = turn.now().to_string();
        errors.push(json!({ "attempt": attempt, "name": name, "message": message, "at": at }));
        let skip = errors.len().saturating_sub(ERRORS_MAX);
        errors.drain(..skip);
        errors
    }

    /// Ends the run at the step that workers died of: as one that failed for good, so that operators
    /// find it where they look.
    pub(crate) fn give_up(&self, given_up: GivenUp<'_>) -> Result<(), Error> {
        let GivenUp { turn, draft, name, message, .. } = given_up;
        // One that still waits for its signal has not been tried.
        let waits = self.open.waits_for_signal().is_some() || self.open.asks.is_some();
        let attempt = if waits { 0 } else { self.open.attempt + 1 };
        let errors = self.errors_with(turn, attempt, name, message);
        let (name, message) = (name.to_owned(), message.to_owned());
        let verdict = Verdict::Dead { name, message, errors };
        self.withdraw_request(turn, draft)?;
        record::write(self, turn, draft, &verdict, attempt, self.json)?;
        record::count(turn, &verdict);
        Ok(())
    }

    pub(crate) fn attempts_max(&self) -> Option<u32> {
        self.relay.retry.attempts_max()
    }

    // The row of the step as far as it does not depend on what became of it.
    pub(crate) fn row(&self, draft: &Draft, turn: &Turn, at: Timestamp) -> StepRow {
        let mut row = kit::new_step(&turn.run, draft, record::key(self.number), RELAY, at);
        if let Some((position, created_at)) = self.open.stored {
            (row.position, row.created_at) = (position, created_at);
        }
        row.attempt = self.open.attempt;
        row.attempts_max = self.relay.retry.attempts_max();
        row.wait_for.clone_from(&self.open.wait_for);
        // A retried run asks again.
        if let Some(request) = &self.open.asks {
            row.input = Body::of(request).ok();
        }
        if let Some(Signal::Received(bytes)) = &self.open.signal {
            row.input = Some(record::body(bytes, self.json));
        }
        row
    }

    // Commits what came of a step, and what follows from it. `true` if the turn is over.
    async fn record(
        &mut self,
        turn: &mut Turn,
        step: &RelayStep,
        verdict: Verdict,
    ) -> Result<bool, TurnError> {
        let mut verdict = verdict;
        let mut stored = step.effects.take();
        loop {
            let mut draft = turn.draft();
            if turn.run.status == RunStatus::Waiting {
                draft.status(RunStatus::Active);
            }
            // An attempt that is tried again leaves nothing.
            if !verdict.is_retry() {
                let of = ("step", self.number.into());
                stored.write(turn, &mut draft, of).map_err(TurnError::Blocked)?;
            }
            let after = record::write(self, turn, &mut draft, &verdict, step.attempt, self.json)
                .map_err(TurnError::Blocked)?;
            let sent = turn.send(draft);
            match turn.answered(sent.await)? {
                Ok(_) => {
                    record::count(turn, &verdict);
                    self.took = None;
                    return Ok(self.follow(turn, verdict, after));
                }
                Err(refused) if is_about_writes(&refused) && verdict.is_final() => {
                    tracing::warn!(
                        run_id = %turn.run.id, %refused,
                        "the store refused the writes of a failed step; recording the step without them"
                    );
                    stored = Default::default();
                }
                Err(CommitError::Conflict(conflict @ Conflict::Record { .. })) => {
                    let error = RelayError::transient(conflict.to_string()).named("RecordConflict");
                    verdict = self.failed(turn, step.attempt, error);
                    if let Verdict::Retry { delay, .. } = &mut verdict {
                        *delay = conflict_delay(turn.env().random(), step.attempt);
                    }
                    stored = Default::default();
                }
                // The runner's own SQL failed: that is a failed attempt like any other.
                Err(CommitError::UserSql { unique, message }) => {
                    let error = match unique {
                        true => RelayError::permanent(message),
                        false => RelayError::transient(message),
                    };
                    verdict = self.failed(turn, step.attempt, error);
                    stored = Default::default();
                }
                Err(refused) => {
                    return Err(TurnError::Blocked(windlass_engine::refusal(&refused)));
                }
            }
        }
    }

    // Goes on in memory where the commit has gone in the store.
    fn follow(&mut self, turn: &Turn, verdict: Verdict, after: After) -> bool {
        let wake = match after {
            After::Ended => return true,
            After::Same(open, wake) => {
                self.open = open;
                wake
            }
            After::Next(open, wake) => {
                if let Verdict::Outcome(outcome) = verdict
                    && let Some(payload) = record::payload_of(outcome)
                {
                    self.payload = payload;
                }
                self.number += 1;
                self.open = open;
                self.memos = Arc::new(memos_of(&self.relay, BTreeMap::new()));
                wake
            }
        };
        if let Some(wake) = wake {
            self.announce(turn, wake);
        }
        wake.is_some()
    }

    // Somebody cancelled the run while the step was running: what it returned is discarded, and what
    // it stored beside that is kept.
    async fn cancelled(&mut self, turn: &mut Turn, step: &RelayStep) -> Result<(), TurnError> {
        let controls: Vec<Message> = turn
            .mailbox
            .values()
            .filter(|message| message.kind == MessageKind::Control)
            .cloned()
            .collect();
        let Some(cancel) = controls.iter().find(|message| Control::of(message) == Control::Cancel)
        else {
            return Ok(());
        };
        let mut stored = step.effects.take();
        loop {
            let mut draft = turn.draft();
            let of = ("step", self.number.into());
            stored.write(turn, &mut draft, of).map_err(TurnError::Blocked)?;
            let by = StepKey::from_stored("windlass");
            for message in &controls {
                let stamp = turn.stamp();
                let payload = json!({ "message": message.seq });
                draft
                    .consume(events::MESSAGE_RECEIVED, &payload, message, by.clone(), stamp)
                    .map_err(TurnError::Blocked)?;
            }
            let stamp: Stamp = turn.stamp();
            let mut row = self.row(&draft, turn, stamp.at);
            row.status = StepStatus::Cancelled;
            row.attempt = step.attempt;
            let took_us = self.took.map(micros);
            let payload =
                json!({ "step": self.number, "attempt": step.attempt, "took_us": took_us });
            draft.step(STEP_CANCELLED, &payload, row, stamp).map_err(TurnError::Blocked)?;
            turn.end_cancelled(&mut draft, cancel).await?;
            let sent = turn.send(draft);
            match turn.answered(sent.await)? {
                Ok(_) => {
                    turn.metrics().steps_cancelled.add(1);
                    return Ok(());
                }
                Err(refused) if is_about_writes(&refused) => {
                    tracing::warn!(
                        run_id = %turn.run.id, %refused,
                        "the store refused the writes of a cancelled step; recording the step without them"
                    );
                    // Enqueued effects belong to it: all of them are written, or none.
                    stored = Default::default();
                }
                Err(refused) => {
                    return Err(TurnError::Blocked(windlass_engine::refusal(&refused)));
                }
            }
        }
    }
}

// Whether the store refused what a step wrote beside its outcome.
fn is_about_writes(refused: &CommitError) -> bool {
    matches!(refused, CommitError::UserSql { .. } | CommitError::Conflict(Conflict::Record { .. }))
}

fn memos_of(relay: &Relay, known: BTreeMap<String, Body>) -> Memos {
    let limits = &relay.engine.limits;
    // The step's number and a slash come before the name.
    let chars = limits.step_key_chars_max.saturating_sub(11);
    Memos::new(known, chars, limits.step_bytes_max)
}

// The oldest signal of a name.
pub(crate) fn signal_of(turn: &Turn, name: &str) -> Option<Message> {
    let is =
        |message: &&Message| message.kind == MessageKind::Event && message.name.as_str() == name;
    turn.mailbox.values().find(is).cloned()
}

fn cancellation(turn: &Turn) -> Option<&Message> {
    let is = |message: &&Message| {
        message.kind == MessageKind::Control && Control::of(message) == Control::Cancel
    };
    turn.mailbox.values().find(is)
}

/// The longest a step may be put off, by the limits.
pub(crate) fn delay_max(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 24 * 60 * 60)
}

impl Program for RelayProgram {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        turn.replayed();
        Box::pin(async move {
            let taken = self.take(turn).await;
            // While the run waits, it keeps nothing of a step that is over.
            self.before = None;
            taken
        })
    }

    fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len() + 100).sum();
        size_of::<Self>() + 500 + self.payload.len() + headers + self.memos.bytes()
    }
}
