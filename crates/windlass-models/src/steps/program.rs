//! A run of `steps` in memory: polls the workflow, records what it did, and puts it away.

mod end;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use serde_json::json;
use windlass_engine::{EnqueuedReason, Program, Revived, Sent, Turn, TurnError, conflict_delay};
use windlass_kernel::{
    Body, BoxFuture, CommitError, Committed, Conflict, Decision, Draft, Error, ErrorCode,
    ErrorKind, LogLine, RunStatus, Stamp, Step as StepRow, StepKey, StepStatus, Timestamp, Wake,
};

use crate::effects::Writes;
use crate::kit::{self, LargeResults, RequestResults, ResultIndex, micros};

use super::core::{
    Completion, Core, Entry, Key, Outcome, Place, Plan, Started, State, nondeterminism,
};
use super::ctx::Ctx;
use super::description::{STEP_COMPLETED, STEP_FAILED, STEP_RETRIED};
use super::error::Failure;
use super::open::WaitScan;
use super::wake::{RootWaker, polling};

/// A workflow's own future, its output already written.
pub(crate) type Root = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A commit takes at most so many records; the next ones wait for it.
const RECORDS_MAX: usize = 2_000;

pub(crate) struct StepsProgram {
    root: Option<Root>,
    pub(crate) ctx: Ctx,
    waker: Waker,
    draft: Option<Draft>,
    records: usize,
    in_flight: Option<InFlight>,
    // A step with SQL or records, whose commit can be refused: its result is delivered after that commit.
    fallible: Option<FallibleStep>,
    must_poll: bool,
    finished: Option<Outcome>,
    future_bytes: usize,
    out_of_steps: bool,
    pub(crate) large: LargeResults,
    pub(crate) results: ResultIndex,
    pub(crate) requests: RequestResults,
    pub(crate) scan: WaitScan,
    // Activities that died in the generation before and are tried again in this one.
    pub(crate) revived: Option<Revived>,
}

struct FallibleStep {
    completion: Completion,
    // The time of its record; none before its commit is drafted.
    drafted_at: Option<Timestamp>,
}

struct InFlight {
    sent: Sent,
    // So many records are durable once it holds.
    records: u64,
}

impl StepsProgram {
    pub(crate) fn new(root: Root, ctx: Ctx, future_bytes: usize) -> Self {
        let waker = Waker::from(Arc::clone(&ctx.shared.waker));
        Self {
            root: Some(root),
            ctx,
            waker,
            draft: None,
            records: 0,
            in_flight: None,
            fallible: None,
            must_poll: true,
            finished: None,
            future_bytes,
            out_of_steps: false,
            large: LargeResults::default(),
            results: ResultIndex::default(),
            requests: RequestResults::default(),
            scan: WaitScan::default(),
            revived: None,
        }
    }

    fn core(&self) -> parking_lot::MutexGuard<'_, Core> {
        self.ctx.shared.core.lock()
    }

    fn root_waker(&self) -> &Arc<RootWaker> {
        &self.ctx.shared.waker
    }

    async fn take(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        self.out_of_steps = false;
        self.requests.begin_turn();
        if self.revived.is_none() {
            self.revived = Some(turn.revived().await?);
        }
        loop {
            kit::read_messages(turn).await?;
            // Before the workflow is asked whether it waits for them.
            self.large.fetch(turn).await?;
            self.requests.fetch(turn).await?;
            let hold_back = turn.control().is_some() || turn.is_draining() || self.out_of_steps;
            self.advance(turn, hold_back)?;
            let flooded = self.core().outbox.logs.len() > RECORDS_MAX;
            if self.finished.is_some() && self.in_flight.is_none() && !flooded {
                return self.finish(turn).await;
            }
            let busy = {
                let mut core = self.core();
                core.queues.bodies.is_running()
                    || !core.queues.bodies.completions.is_empty()
                    || self.fallible.is_some()
                    || (core.has_deferred() && !hold_back && !self.out_of_steps)
                    // A full commit: the rest of the waits follows after it.
                    || self.records >= RECORDS_MAX
                    || flooded
            };
            if self.in_flight.is_none() {
                if !busy && self.finished.is_none() {
                    if turn.control().is_some() {
                        self.settle(turn).await?;
                        if turn.apply_control().await? {
                            return Ok(());
                        }
                        continue;
                    }
                    // The code has claimed its waits by now, also in a run that was loaded.
                    if self.close_stale(turn).await? {
                        continue;
                    }
                    return self.park(turn).await;
                }
                self.send(turn)?;
            }
            self.wait(turn).await?;
        }
    }

    // Work that was done before the run got stuck stays done.
    async fn keep(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        if let Some(InFlight { sent, records }) = self.in_flight.take() {
            let answer = sent.await;
            self.answered(turn, records, answer)?;
        }
        // Lines of steps that are recorded belong to them. The code writes the others again.
        if !turn.is_stale() && self.draft.is_some() {
            self.core().keep_recorded_lines();
            self.take_lines(turn)?;
        }
        if !turn.is_stale()
            && let Some(draft) = self.draft.take()
        {
            let records = self.core().records.appended;
            let answer = turn.send(draft).await;
            self.answered(turn, records, answer)?;
        }
        Ok(())
    }

    // Takes the workflow as far as it gets without waiting for anything.
    fn advance(&mut self, turn: &mut Turn, hold_back: bool) -> Result<(), TurnError> {
        self.scan = WaitScan::default();
        while self.finished.is_none() && self.fallible.is_none() {
            if std::mem::take(&mut self.must_poll) | self.root_waker().take_woken() {
                self.poll_root(turn)?;
                continue;
            }
            if self.core().deliver_next() {
                self.must_poll = true;
                self.check_fault()?;
                continue;
            }
            if self.core().queues.replay.active {
                self.core().end_replay();
                turn.replayed();
                self.check_fault()?;
                continue;
            }
            if self.records >= RECORDS_MAX {
                return Ok(());
            }
            let completion = self.core().queues.bodies.completions.pop_front();
            if let Some(completion) = completion {
                self.record_completion(turn, completion)?;
                continue;
            }
            if self.settle_one_wait(turn)? {
                continue;
            }
            self.show_long_running(turn)?;
            if hold_back || !self.start_bodies(turn)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn poll_root(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let Some(root) = &mut self.root else { return Ok(()) };
        let id = self.ctx.shared.waker.id();
        let mut cx = Context::from_waker(&self.waker);
        let polled = polling(id, || catch_unwind(AssertUnwindSafe(|| root.as_mut().poll(&mut cx))));
        self.check_fault()?;
        if self.root_waker().take_foreign() {
            return Err(TurnError::Blocked(foreign()));
        }
        match polled {
            Ok(Poll::Pending) => Ok(()),
            Ok(Poll::Ready(outcome)) => {
                if let Some(key) = self.core().queues.replay.records.front() {
                    return Err(TurnError::Blocked(nondeterminism(format!(
                        "the code has returned, and the record has step {key:?} next"
                    ))));
                }
                if self.core().queues.replay.active {
                    self.core().end_replay();
                    self.check_fault()?;
                }
                self.root = None;
                self.finished = Some(outcome);
                Ok(())
            }
            Err(panic) => {
                let text = windlass_engine::panic_text(&*panic);
                tracing::error!(run_key = %turn.run.run_key, panic = text, "a workflow panicked");
                let message = "the workflow panicked outside its steps";
                let error = Error::new(ErrorKind::Invalid, ErrorCode::WorkflowPanicked, message);
                Err(TurnError::Blocked(error.with_source(text)))
            }
        }
    }

    fn check_fault(&self) -> Result<(), TurnError> {
        match self.core().fault.take() {
            Some(fault) => Err(TurnError::Blocked(fault)),
            None => Ok(()),
        }
    }

    // The commit that is being made.
    fn draft(&mut self, turn: &mut Turn) -> &mut Draft {
        self.draft.get_or_insert_with(|| {
            let mut draft = turn.draft();
            if turn.run.status == RunStatus::Waiting {
                draft.status(RunStatus::Active);
            }
            draft
        })
    }

    // Records the end of an attempt: a result, an error, or the time of another attempt.
    fn record_completion(
        &mut self,
        turn: &mut Turn,
        completion: Completion,
    ) -> Result<(), TurnError> {
        if completion.writes.can_fail() && completion.outcome.is_ok() {
            // Its commit may be refused by itself, so it goes alone, and the result is delivered after it.
            self.fallible = Some(FallibleStep { completion, drafted_at: None });
            return Ok(());
        }
        let Completion { key, attempt, took, outcome, writes, .. } = completion;
        let retry_at = match &outcome {
            Ok(_) => None,
            Err(failure) => self.next_attempt(turn, &key, attempt, failure),
        };
        let event = match (&outcome, retry_at) {
            (Ok(_), _) => {
                turn.count_completed_step();
                STEP_COMPLETED
            }
            (Err(_), Some(_)) => {
                turn.metrics().steps_retried.add(1);
                STEP_RETRIED
            }
            (Err(_), None) => {
                turn.count_failed_step();
                STEP_FAILED
            }
        };
        self.core().set_attempt(&key, attempt);
        let stamp = turn.stamp();
        let mut row = self.row(turn, &key, stamp.at);
        row.attempt = attempt;
        let mut payload = json!({ "key": &*key, "attempt": attempt, "took_us": micros(took) });
        match &outcome {
            Ok(result) => {
                row.status = StepStatus::Completed;
                payload["result_bytes"] = result.len().into();
                row.result = Some(result.clone());
            }
            Err(failure) => {
                let retried = retry_at.is_some();
                row.status = if retried { StepStatus::Waiting } else { StepStatus::Errored };
                row.due_at = retry_at;
                payload["error"] = json!({ "name": failure.name });
                row.error = Some(failure.body().map_err(TurnError::Blocked)?);
                let probe = self.core().entry(&key).is_some_and(Entry::needs_probe);
                row.input = (retried && probe).then(intent_mark);
            }
        }
        self.draft(turn).step(event, &payload, row, stamp).map_err(TurnError::Blocked)?;
        self.write(turn, &key, &writes)?;
        self.records += 1 + writes.effects.len();
        match retry_at {
            Some(due) => self.core().retry_at(&key, due),
            None => {
                self.core().recorded(&key, outcome, stamp.at);
                self.must_poll = true;
            }
        }
        Ok(())
    }

    // The writes of a step are in the commit that records it.
    fn write(&mut self, turn: &mut Turn, key: &Key, writes: &Writes) -> Result<(), TurnError> {
        let draft = self.draft(turn);
        writes.write(turn, draft, ("key", (**key).into())).map_err(TurnError::Blocked)
    }

    fn next_attempt(
        &self,
        turn: &Turn,
        key: &Key,
        attempt: u32,
        failure: &Failure,
    ) -> Option<Timestamp> {
        let core = self.core();
        let entry = core.entry(key)?;
        let Some(Plan::Do { policy, .. }) = &entry.plan else { return None };
        let seed = turn.env().random();
        match policy.decide(attempt, &failure.name, failure.retryable, None, seed) {
            Decision::RetryIn(_) if failure.lost_record => {
                Some(turn.now().plus(conflict_delay(seed, attempt)))
            }
            Decision::RetryIn(delay) => Some(turn.now().plus(delay)),
            Decision::GiveUp(_) => None,
        }
    }

    // The row of a step as far as it does not depend on what became of it.
    fn row(&mut self, turn: &mut Turn, key: &Key, at: Timestamp) -> StepRow {
        let position = self.draft(turn).head().next_ordinal;
        let step_key = StepKey::from_stored(Arc::clone(key));
        let mut core = self.core();
        let next = Place { position, created_at: at };
        let (entry, place) = core.place_row(key, next);
        let kind = entry.kind.step_kind();
        let mut row = kit::blank_step(&turn.run, place.position, step_key, kind, at);
        (row.attempts_max, row.timeout) = match &entry.plan {
            Some(Plan::Do { policy, timeout, .. }) => (policy.attempts_max(), *timeout),
            Some(Plan::Activity { attempts_max, .. }) => (*attempts_max, None),
            _ => (None, None),
        };
        row.attempt = entry.attempt;
        row.created_at = place.created_at;
        row
    }

    fn start_bodies(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        let started = self.core().start_deferred(|| turn.take_step());
        match started {
            Started::Bodies(0) => Ok(false),
            Started::Bodies(count) => {
                turn.metrics().steps_begun.add(count as u64);
                self.must_poll = true;
                Ok(true)
            }
            Started::NoPermit => {
                self.out_of_steps = true;
                Ok(false)
            }
            Started::Intent(key) => {
                let at = turn.stamp().at;
                let mut row = self.row(turn, &key, at);
                row.status = StepStatus::Running;
                row.attempt += 1;
                row.input = Some(intent_mark());
                self.draft(turn).open_step(row);
                self.core().intent_recorded(&key);
                Ok(false)
            }
        }
    }

    // People should see what takes long, also before it has ended.
    fn show_long_running(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let keys = std::mem::take(&mut self.core().queues.bodies.long_running);
        for key in keys {
            let is_running = |entry: &Entry| matches!(entry.state, State::Running { .. });
            let running = self.core().entry(&key).is_some_and(is_running);
            if running {
                let at = turn.stamp().at;
                let mut row = self.row(turn, &key, at);
                row.status = StepStatus::Running;
                row.attempt += 1;
                let has_intent = |entry: &Entry| entry.plan.as_ref().is_some_and(Plan::has_intent);
                let intent = self.core().entry(&key).is_some_and(has_intent);
                row.input = intent.then(intent_mark);
                self.draft(turn).open_step(row);
                self.core().row_stored(&key);
            }
        }
        Ok(())
    }

    // Moves what the code logged and recorded into the commit.
    fn take_lines(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let (logs, events) = {
            let outbox = &mut self.core().outbox;
            (outbox.take_logs(RECORDS_MAX), std::mem::take(&mut outbox.events))
        };
        if logs.is_empty() && events.is_empty() {
            return Ok(());
        }
        for event in events {
            let stamp = Stamp { event_id: event.event_id, at: turn.stamp().at };
            let limits = turn.limits().clone();
            let draft = self.draft(turn);
            let (name, version, payload) = (&event.event_type, event.version, &event.payload);
            let recorded = match event.caused_by {
                Some(cause) => {
                    draft.record_event_caused_by(name, version, payload, cause, stamp, &limits)
                }
                None => draft.record_event(name, version, payload, stamp, &limits),
            };
            recorded.map_err(TurnError::Blocked)?;
            if event.outside_step {
                self.core().outbox.count_event();
            }
        }
        for log in logs {
            let at = turn.stamp().at;
            let line = LogLine {
                log_id: turn.new_log_id(at),
                run_key: turn.run.run_key,
                attempt: log.step.as_ref().map(|(_, attempt)| *attempt),
                step_key: log.step.map(|(key, _)| StepKey::from_stored(key)),
                level: log.level,
                category: log.category.into(),
                message: log.message.into(),
                data: log.data,
                replay: log.replay,
                created_at: at,
            };
            self.draft(turn).log(line);
        }
        let changed = self.core().outbox.take_changed_snapshot();
        if let Some(snapshot) = changed {
            let state = Body::of(&snapshot).map_err(TurnError::Blocked)?;
            let stamp = turn.stamp();
            self.draft(turn).state(state, stamp);
        }
        Ok(())
    }

    // Sends what there is to send, if nothing is on its way.
    fn send(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        debug_assert!(self.in_flight.is_none(), "one commit of a run is on its way at a time");
        self.take_lines(turn)?;
        if self.draft.is_none()
            && let Some(step) = &self.fallible
        {
            let key = Arc::clone(&step.completion.key);
            self.draft_fallible(turn, &key)?;
        }
        if let Some(draft) = self.draft.take() {
            let records = self.core().records.appended;
            self.records = 0;
            self.in_flight = Some(InFlight { sent: turn.send(draft), records });
        }
        Ok(())
    }

    // The commit of a step that can be refused holds nothing else.
    fn draft_fallible(&mut self, turn: &mut Turn, key: &Key) -> Result<(), TurnError> {
        let stamp = turn.stamp();
        let mut row = self.row(turn, key, stamp.at);
        let step = self.fallible.as_mut().expect("there is a step whose commit can be refused");
        step.drafted_at = Some(stamp.at);
        let completion = &mut step.completion;
        let writes = std::mem::take(&mut completion.writes);
        let (attempt, outcome) = (completion.attempt, completion.outcome.clone());
        let took_us = micros(completion.took);
        row.attempt = attempt;
        row.status = StepStatus::Completed;
        row.result = outcome.ok();
        let statements = writes.sql.len();
        let payload = json!({
            "key": &**key, "attempt": attempt, "statements": statements, "took_us": took_us,
        });
        let draft = self.draft(turn);
        draft.step(STEP_COMPLETED, &payload, row, stamp).map_err(TurnError::Blocked)?;
        self.write(turn, key, &writes)?;
        self.core().set_attempt(key, attempt);
        Ok(())
    }

    fn answered(
        &mut self,
        turn: &mut Turn,
        records: u64,
        answer: Result<Committed, CommitError>,
    ) -> Result<(), TurnError> {
        let is_fallible = self.fallible.as_ref().is_some_and(|step| step.drafted_at.is_some());
        match turn.answered(answer)? {
            Ok(_) => {
                let mut core = self.core();
                core.records.durable = core.records.durable.max(records);
                drop(core);
                if is_fallible
                    && let Some(FallibleStep { completion, drafted_at: Some(at) }) =
                        self.fallible.take()
                {
                    let mut core = self.core();
                    core.recorded(&completion.key, completion.outcome, at);
                    core.records.durable = core.records.appended;
                    drop(core);
                    turn.count_completed_step();
                    self.must_poll = true;
                }
                Ok(())
            }
            Err(refused) if is_fallible => {
                let Some(failure) = failure_of(&refused) else {
                    return Err(TurnError::Blocked(windlass_engine::refusal(&refused)));
                };
                let Some(FallibleStep { completion, .. }) = self.fallible.take() else {
                    return Ok(());
                };
                let Completion { key, attempt, took, .. } = completion;
                let (outcome, unknown, writes) = (Err(failure), false, Writes::default());
                let completion = Completion { key, attempt, took, outcome, unknown, writes };
                self.record_completion(turn, completion)
            }
            Err(refused) => Err(TurnError::Blocked(windlass_engine::refusal(&refused))),
        }
    }

    // Until a body, an answer, a message or a time moves something.
    async fn wait(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        // While the commit of such a step is on its way, nothing else advances: a time that is due or a
        // woken workflow would make this return at once, again and again.
        let only_the_answer = self.fallible.is_some() && self.in_flight.is_some();
        let due = self.core().next_due().filter(|_| !only_the_answer);
        let mut timer: Option<BoxFuture<'static, ()>> = due.map(|due| {
            // The clock here only lags behind the store's: when the timer is over, it is due.
            turn.env().sleep(due.since(turn.now()))
        });
        let mut answer = None;
        std::future::poll_fn(|cx| {
            self.root_waker().driver.register(cx.waker());
            if let Some(in_flight) = &mut self.in_flight
                && let Poll::Ready(ready) = in_flight.sent.as_mut().poll(cx)
            {
                answer = Some((in_flight.records, ready));
                return Poll::Ready(());
            }
            let woken = !only_the_answer && self.root_waker().is_woken();
            if turn.poll_notified(cx).is_ready() || woken {
                return Poll::Ready(());
            }
            match &mut timer {
                Some(timer) => timer.as_mut().poll(cx),
                None => Poll::Pending,
            }
        })
        .await;
        if let Some((records, answer)) = answer {
            self.in_flight = None;
            self.answered(turn, records, answer)?;
        }
        Ok(())
    }

    // Commits what is being made and waits for it.
    async fn settle(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        self.send(turn)?;
        if let Some(InFlight { sent, records }) = self.in_flight.take() {
            let answer = sent.await;
            self.answered(turn, records, answer)?;
        }
        Ok(())
    }

    // Everything that the run waits for is in the store, or in this commit: the turn is given back.
    async fn park(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        self.cancel_dropped(turn).await?;
        self.take_lines(turn)?;
        let (wake, waiting) = {
            let mut core = self.core();
            if core.has_deferred() {
                (Wake::Now, false)
            } else if !core.queues.waits.is_empty() {
                (core.next_due().map_or(Wake::OnMessage, Wake::At), true)
            } else {
                return Err(TurnError::Blocked(waits_for_nothing()));
            }
        };
        let read_to = turn.read_to();
        let records = self.core().records.appended;
        let mut draft = self.draft.take().unwrap_or_else(|| turn.draft());
        draft.status(if waiting { RunStatus::Waiting } else { RunStatus::Active });
        draft.release(wake, read_to);
        self.records = 0;
        let answer = turn.send(draft).await;
        self.answered(turn, records, answer)?;
        let retries = |core: &Core| {
            core.open().any(|(_, entry)| matches!(entry.state, State::Retrying { .. }))
        };
        match wake {
            Wake::At(_) if retries(&self.core()) => turn.announce(EnqueuedReason::Retry),
            // The turn was released before its end, for example because a tick may begin no more steps.
            Wake::At(_) | Wake::Now => turn.announce(EnqueuedReason::Wake),
            Wake::OnMessage => {}
        }
        Ok(())
    }

    pub(crate) fn pieces(&mut self) -> (&Ctx, &mut usize, &mut bool) {
        (&self.ctx, &mut self.records, &mut self.must_poll)
    }

    pub(crate) fn make_row(&mut self, turn: &mut Turn, key: &Key, at: Timestamp) -> StepRow {
        self.row(turn, key, at)
    }

    pub(crate) fn make_draft(&mut self, turn: &mut Turn) -> &mut Draft {
        self.draft(turn)
    }
}

// The failure of a step whose writes the store refused; `None` if the refusal is not about them.
fn failure_of(refused: &CommitError) -> Option<Failure> {
    match refused {
        CommitError::UserSql { unique, message } => {
            let name = if *unique { "UniqueViolation" } else { "SqlError" };
            Some(Failure::new(name, message.to_string(), !unique))
        }
        CommitError::Conflict(conflict @ Conflict::Record { .. }) => {
            let failure = Failure::new("RecordConflict", conflict.to_string(), true);
            Some(Failure { lost_record: true, ..failure })
        }
        _ => None,
    }
}

/// Says in a step's row that its body has perhaps begun, and that its probe is to be asked.
fn intent_mark() -> Body {
    Body::json("{\"intent\":true}")
}

impl Program for StepsProgram {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(async move {
            match self.take(turn).await {
                Err(TurnError::Blocked(error)) => {
                    self.keep(turn).await?;
                    Err(TurnError::Blocked(error))
                }
                taken => taken,
            }
        })
    }

    fn bytes(&self) -> usize {
        // Maps, queues and boxes of a small run, as `windlass-bench sleeping` shows them.
        const AROUND: usize = 2_600;
        AROUND + self.future_bytes + size_of::<Self>() + size_of::<Core>() + self.core().bytes
    }
}

impl Drop for StepsProgram {
    fn drop(&mut self) {
        // The operations are dropped together with the run in memory; the code did not drop them.
        self.core().closed = true;
        self.root = None;
    }
}

fn foreign() -> Error {
    let message = "the workflow was woken by something that is not one of its steps (a socket, a \
                   timer, a channel or a spawned task); move it into a step";
    Error::new(ErrorKind::Invalid, ErrorCode::ForeignWake, message)
}

fn waits_for_nothing() -> Error {
    let message = "the workflow waits, but for no step, sleep, event, child or activity: whatever \
                   it waits for is lost when the process ends; move it into a step";
    Error::new(ErrorKind::Invalid, ErrorCode::ForeignWait, message)
}
