//! A turn: the handle with which a program advances its run. All writes of a program go through it.

mod control;
mod inbox;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tracing::{Instrument as _, Span};
use windlass_kernel::{
    Body, BodyKey, BodyOwner, BoxFuture, CauseCheck, Commit, CommitError, Committed, Conflict,
    Draft, Encoding, End, Error, ErrorCode, ErrorKind, Hold, Limits, LogId, Message, MessageKind,
    ModelName, NewEvent, NewRun, Op, Query, Run, RunKey, RunOverview, Sha256Digest, Stamp, StepKey,
    Task, TaskId, Timestamp, WorkerKey, WorkflowName, bodies,
};

use crate::commit::CommitClient;
use crate::control::Control;
use crate::core::Core;
use crate::description::ModelDescription;
use crate::env::{Env, ThreadPool};
use crate::held_run::HeldRun;
use crate::keyed::{EventAddress, KeyedWait};
use crate::local_completion::{LocalCompletion, PendingClaim};
use crate::metrics::Metrics;
use crate::model::{Program, TurnError};
use crate::options::EnqueuedReason;
use crate::result_message::ChildResult;
use crate::run_cache::CachedRun;
use crate::start::StartRun;
use crate::tasks::{CANCEL_RUN, CARRY_OVER, TaskReservation};
use crate::telemetry;
use crate::turn_runner::TurnRunner;
use crate::workflow_counts::WorkflowFigure;

use inbox::Inbox;

const READ_DELAY_MIN: Duration = Duration::from_millis(10);
const READ_DELAY_MAX: Duration = Duration::from_secs(5);

/// A held turn of a run.
pub struct Turn {
    runner: Arc<TurnRunner>,
    /// The run's row as it will be after all commits that were sent.
    pub run: Box<Run>,
    /// The messages that were read but not consumed, by sequence number.
    pub mailbox: BTreeMap<u64, Message>,
    pub(crate) hold: Hold,
    pub(crate) held_run: Arc<HeldRun>,
    pub(crate) inbox: Inbox,
    pub(crate) row: RowState,
    /// How many steps may still begin, if the host that drives the engine limits them.
    pub(crate) steps_left: Option<Arc<AtomicI64>>,
    // Capacity for the tasks that this worker will hold if the next commit succeeds.
    reservations: Vec<TaskReservation>,
    pub(crate) replay: Replay,
    /// Until the first commit is answered, if that one claims the turn.
    pub(crate) pending_claim: Option<Box<PendingClaim>>,
}

/// How the row in the turn relates to the row in the store.
pub(crate) struct RowState {
    // A commit was refused: the row here is ahead of the store's.
    stale: bool,
    /// The turn is released, or the commit that releases it was sent.
    pub(crate) released: bool,
    // The row before a commit that can be refused without the loss of the turn.
    before: Option<Box<Run>>,
    // The time of the last stamp.
    last_at: Timestamp,
}

/// Whether the run is being replayed.
#[derive(Default)]
pub(crate) struct Replay {
    /// The run was loaded from the store, and its program has had no turn yet.
    pub(crate) loaded: bool,
    // Open until the program has reached the stored state.
    span: Option<Span>,
}

/// A commit that was sent; the future resolves to its result.
pub type Sent = BoxFuture<'static, Result<Committed, CommitError>>;

impl Turn {
    pub(crate) fn new(
        runner: Arc<TurnRunner>,
        run: Box<Run>,
        hold: Hold,
        held_run: Arc<HeldRun>,
    ) -> Self {
        let inbox = Inbox::new(run.accepted);
        let last_at = run.updated_at;
        Self {
            runner,
            run,
            mailbox: BTreeMap::new(),
            hold,
            held_run,
            inbox,
            row: RowState { stale: false, released: false, before: None, last_at },
            steps_left: None,
            reservations: Vec::new(),
            replay: Replay::default(),
            pending_claim: None,
        }
    }

    /// The run as the cache keeps it until its next turn.
    pub(crate) fn into_cached(self, program: Box<dyn Program>) -> CachedRun {
        let unread = self.has_unread();
        let Self { run, hold, mailbox, inbox, .. } = self;
        let (claim_no, read_to) = (hold.claim_no, inbox.read_to);
        CachedRun { run, claim_no, program, mailbox, read_to, unread }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.runner.core
    }

    pub(crate) fn request_parts(&self) -> (Arc<Core>, Arc<CommitClient>) {
        (Arc::clone(&self.runner.core), Arc::clone(&self.runner.commits))
    }

    pub(crate) fn begin_replay(&mut self, within: &Span) {
        if std::mem::take(&mut self.replay.loaded) {
            self.replay.span = Some(telemetry::replay(within, &self.run));
        }
    }

    /// Ends the replay span: the program has reached the state in which the run was cached or stored.
    pub fn replayed(&mut self) {
        self.replay.span = None;
    }

    /// Makes all later stamps later than `at`. The row of a loaded run may be older than the last of its
    /// steps, and the clock of this process may be behind the clock that stamped them.
    pub(crate) fn stamp_after(&mut self, at: Timestamp) {
        self.row.last_at = self.row.last_at.max(at);
    }

    /// The estimated time of the store.
    pub fn now(&self) -> Timestamp {
        self.runner.core.clock.now()
    }

    /// The environment.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.runner.core.env
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.runner.core.options.limits
    }

    /// The version of this build.
    pub fn version(&self) -> &str {
        &self.runner.core.options.version
    }

    /// The description of the run's model.
    pub fn description(&self) -> &'static ModelDescription {
        self.runner.registry.description(&self.run)
    }

    /// The worker that holds the turn.
    pub fn worker(&self) -> WorkerKey {
        self.hold.worker
    }

    /// A new event's id and time. The times of one run's events rise strictly, so rows with these times
    /// can be sorted in the order of recording.
    pub fn stamp(&mut self) -> Stamp {
        let at = self.now().max(self.row.last_at.plus(Duration::from_micros(1)));
        self.row.last_at = at;
        self.runner.core.clock.stamp(at)
    }

    /// A new run's key.
    pub fn new_run_key(&self) -> RunKey {
        self.runner.core.clock.run_key()
    }

    /// A new task's id.
    pub fn new_task_id(&self) -> TaskId {
        self.runner.core.clock.task_id()
    }

    /// A new log line's id.
    pub fn new_log_id(&self, at: Timestamp) -> LogId {
        self.runner.core.clock.log_id(at)
    }

    /// An empty draft of a commit, guarded by this turn.
    pub fn draft(&mut self) -> Draft {
        let at = self.now().max(self.row.last_at);
        let mut draft = match self.pending_claim {
            Some(_) => Draft::free(&self.run, self.hold.worker, at),
            None => Draft::held(&self.run, self.hold, at),
        };
        draft.set_limits(&self.runner.core.options.limits);
        draft
    }

    /// Whether the turn brings the result of an activity; see [`Turn::take_result`].
    pub fn has_result(&self) -> bool {
        self.pending_claim.as_ref().is_some_and(|pending_claim| pending_claim.result.is_some())
    }

    /// Takes the result that the turn brings. The commit that records it must settle the activity with
    /// [`LocalCompletion::settle`]. If that commit fails, the result is sent as a message.
    pub fn take_result(&mut self) -> Option<LocalCompletion> {
        self.pending_claim.as_mut().and_then(|pending_claim| pending_claim.result.take())
    }

    /// Announces that the next commit releases the turn and that the run then waits for results. A result
    /// that comes earlier waits until the run is cached, because a message would cost another commit.
    pub fn expect_result(&self) {
        self.held_run.expect_result();
    }

    /// Sends a commit, and updates the run's row as if the commit succeeded. The caller passes the
    /// answer to [`Turn::answered`].
    pub fn send(&mut self, draft: Draft) -> Sent {
        let commit = draft.finish();
        // The user's SQL can fail, a named cause can be missing, a record can be another than expected,
        // and the receiver of a message can have ended; then the turn continues with the row before.
        let can_fail = commit.user_sql().next().is_some()
            || names_causes(&commit)
            || commit.records().next().is_some()
            || commit.messages().any(|message| message.required);
        self.row.before = can_fail.then(|| self.run.clone());
        if let Some(change) = commit.run_change() {
            change.apply_to(&mut self.run);
            // The row must not be older than the events.
            self.run.updated_at = self.run.updated_at.max(self.row.last_at);
            let ended = self.run.status.is_ended();
            if ended || change.turn != windlass_kernel::TurnChange::Keep {
                self.row.released = true;
                self.held_run.released();
            }
        }
        if let Some(pending_claim) = &mut self.pending_claim {
            pending_claim.sent(commit.task);
        }
        self.runner.core.metrics.commits.add(1);
        let worker = Some(self.hold.worker);
        let begins = commit.ops.iter().any(|op| match op {
            Op::CreateRun(run) => run.turn.worker == worker,
            Op::Enqueue(task) => task.worker == worker,
            _ => false,
        });
        let append = telemetry::append(&self.run.workflow, &commit);
        let sending = Arc::clone(&self.runner.commits).commit(commit).instrument(append);
        if !begins {
            return Box::pin(sending);
        }
        // In a task of its own: runs and tasks that this worker holds after the commit are started even if
        // the turn is dropped before the answer.
        let (answer, answered) = tokio::sync::oneshot::channel();
        let reservations = std::mem::take(&mut self.reservations);
        let sending = async move {
            let _ = answer.send(sending.await);
            // The tasks are started by now, or never will be.
            drop(reservations);
        };
        self.runner.core.env.spawn(ThreadPool::User, Box::pin(sending));
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| {
                let message = "the engine stopped before a commit was answered";
                let error = Error::new(ErrorKind::Closed, ErrorCode::EngineStopping, message);
                Err(CommitError::Unknown(Arc::new(error)))
            })
        })
    }

    /// Processes the answer to a commit. A conflict means that the turn is lost, unless it is about
    /// a record or about a run that the commit creates: then the turn is still held. The caller reads the
    /// record and decides again; a run that exists fails the run that was to create it.
    pub fn answered(
        &mut self,
        answer: Result<Committed, CommitError>,
    ) -> Result<Result<Committed, CommitError>, TurnError> {
        if let (Err(error), Some(pending_claim)) = (&answer, &mut self.pending_claim) {
            pending_claim.refused(error);
        }
        match answer {
            Ok(committed) => {
                self.runner.core.clock.learn(committed.now);
                self.inbox.accepted = self.inbox.accepted.max(committed.accepted);
                if let Some(pending_claim) = self.pending_claim.take() {
                    // Another number than the expected one means that another worker has held the
                    // run since; then the check below reports the turn as lost.
                    pending_claim.held();
                }
                if !self.row.released && committed.hold != Some(self.hold) {
                    return Err(TurnError::Lost);
                }
                Ok(Ok(committed))
            }
            // A record that is not as expected says nothing about the hold, and neither does a run that the
            // commit was to create and that exists: both are handled as refusals.
            Err(CommitError::Conflict(conflict))
                if !matches!(conflict, Conflict::Record { .. } | Conflict::RunExists { .. }) =>
            {
                tracing::debug!(run_key = %self.run.run_key, %conflict, "lost a turn to another worker");
                Err(TurnError::Lost)
            }
            Err(CommitError::Unavailable(error) | CommitError::Unknown(error)) => {
                Err(TurnError::Store(Error::new(error.kind(), error.code(), error.message())))
            }
            Err(refused) => {
                match self.row.before.take() {
                    // The turn is still held.
                    Some(before) => {
                        self.run = before;
                        self.row.released = false;
                        self.held_run.kept();
                    }
                    None => self.row.stale = true,
                }
                Ok(Err(refused))
            }
        }
    }

    /// Whether a commit was refused, so that no further commit can be sent on top of it.
    pub fn is_stale(&self) -> bool {
        self.row.stale
    }

    /// Reads the run's row again after a refused commit.
    pub(crate) async fn refresh(&mut self) -> Result<(), TurnError> {
        if std::mem::take(&mut self.row.stale) {
            let overview = self.runner.core.store.run_overview_by_key(self.run.run_key).await;
            let mut run = overview.map_err(TurnError::Store)?.ok_or(TurnError::Lost)?.run;
            let taken = run.turn.hold().is_some_and(|hold| hold != self.hold);
            if taken || run.status.is_ended() {
                return Err(TurnError::Lost);
            }
            self.runner.core.fill_run(&mut run).await.map_err(TurnError::Store)?;
            *self.run = run;
            self.row.released = false;
        }
        Ok(())
    }

    /// Sends a commit and waits for its answer.
    pub async fn commit(&mut self, draft: Draft) -> Result<Committed, TurnError> {
        let sent = self.send(draft);
        match self.answered(sent.await)? {
            Ok(committed) => Ok(committed),
            Err(refused) => Err(TurnError::Blocked(refusal(&refused))),
        }
    }

    /// Sends a commit and waits for its answer. A refusal is returned to the caller, which still holds the
    /// turn if the commit had user SQL, records or named causes: `CAUSE_NOT_FOUND` is then a failed call of the code
    /// that named the cause, and the caller records that failure in its next commit.
    ///
    /// # Errors
    ///
    /// [`TurnError::Lost`] if another worker has the turn, [`TurnError::Store`] if the store does not answer.
    pub async fn try_commit(
        &mut self,
        draft: Draft,
    ) -> Result<Result<Committed, CommitError>, TurnError> {
        let sent = self.send(draft);
        self.answered(sent.await)
    }

    /// Whether there may be unread messages.
    pub fn has_unread(&self) -> bool {
        self.inbox.has_unread()
    }

    /// Reads the messages that came since the last call.
    pub async fn read_messages(&mut self) -> Result<(), TurnError> {
        let Core { env, lifecycle, .. } = &*self.runner.core;
        let run_key = self.run.run_key;
        let mut delay = READ_DELAY_MIN;
        loop {
            match self.inbox.read(&self.runner.core, run_key).await {
                Ok(messages) => {
                    self.mailbox.extend(messages.map(|message| (message.seq, message)));
                    return Ok(());
                }
                // An error would drop the program with its work in progress.
                Err(error)
                    if error.is_retryable()
                        && !lifecycle.is_draining()
                        && !self.held_run.is_lost() =>
                {
                    tracing::warn!(%run_key, %error, "failed to read messages; retrying");
                    env.sleep(delay).await;
                    delay = (delay * 2).min(READ_DELAY_MAX);
                }
                Err(error) => return Err(TurnError::Store(error)),
            }
        }
    }

    /// Ready when messages came, the turn was revoked, or the engine is stopping.
    pub fn poll_notified(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let notified = self.held_run.poll_notified(cx);
        self.inbox.notified |= notified.is_ready();
        notified
    }

    /// Whether the turn was revoked.
    pub fn is_lost(&self) -> bool {
        self.held_run.is_lost()
    }

    /// Whether the engine drains, so that no new work may begin.
    pub fn is_draining(&self) -> bool {
        self.runner.core.lifecycle.is_draining()
    }

    /// Whether another step may begin in this turn. A host that drives the engine by ticks can limit
    /// their number.
    pub fn take_step(&self) -> bool {
        match &self.steps_left {
            Some(left) => left.fetch_sub(1, Ordering::Relaxed) > 0,
            None => true,
        }
    }

    /// Whether other runs may wait for the capacity that this turn uses, so that a long turn should be
    /// released between two steps.
    pub fn is_contended(&self) -> bool {
        let Run { workflow, turn, .. } = &*self.run;
        self.runner.capacity.is_contended(workflow, turn.limit_key.as_ref())
    }

    /// The oldest control request that was read.
    pub fn control(&self) -> Option<(Control, &Message)> {
        let message = self.mailbox.values().find(|m| m.kind == MessageKind::Control)?;
        Some((Control::of(message), message))
    }

    /// Consumes the control requests and applies them. Returns `true` if the turn is over: the run is
    /// paused, or has ended because it was cancelled. A paused run's timers go on: a resumed run gets a
    /// turn at once, in which it checks them.
    pub async fn apply_control(&mut self) -> Result<bool, TurnError> {
        control::apply(self).await
    }

    /// Releases the turn of a run that must not start before this time.
    pub(crate) async fn postpone(&mut self, start: Timestamp) -> Result<(), TurnError> {
        control::postpone(self, start).await
    }

    /// Drafts the end of the run for a cancel request. The caller consumes the request.
    pub async fn end_cancelled(
        &mut self,
        draft: &mut Draft,
        message: &Message,
    ) -> Result<(), TurnError> {
        control::end_cancelled(self, draft, message).await
    }

    /// Cancels the steps that are open in the store and that the draft does not write, for a commit that
    /// ends the run: an ended run has no open steps.
    pub async fn cancel_open_steps(&mut self, draft: &mut Draft) -> Result<(), TurnError> {
        let model = self.description();
        let overview = self.runner.core.store.run_overview_by_key(self.run.run_key).await;
        let open = overview.map_err(TurnError::Store)?.map(|overview| overview.open_steps);
        crate::cancel::cancel_open_steps(draft, open.unwrap_or_default(), model, || self.stamp())
            .map_err(TurnError::Blocked)
    }

    /// Drafts the end of the run: the event, the row and the message to its parent.
    pub fn end<T: Serialize>(
        &mut self,
        draft: &mut Draft,
        event: impl Into<NewEvent>,
        payload: &T,
        end: End,
    ) -> Result<(), Error> {
        let stamp = self.stamp();
        let message = ChildResult::to_message(&self.run, &end, stamp)?;
        draft.end(event, payload, end, stamp)?;
        if let Some(message) = message {
            draft.send(message);
        }
        Ok(())
    }

    /// Completes a child run: with the properties that its model adds if this process serves it, and
    /// held by this worker if it has capacity.
    pub fn child(&mut self, new: NewRun, may_hold: bool) -> NewRun {
        let mut new = new;
        if let Some(registered) = self.runner.registry.get(&new.workflow) {
            new.model = registered.model.name();
            let mut start =
                StartRun::new(new.workflow.clone(), new.model.clone(), Body::json("null"));
            match registered.model.prepare(&mut start) {
                Ok(()) => new.on_end = start.on_end,
                // Use the template's hook: its handler validates again.
                Err(error) => {
                    tracing::warn!(
                        %error, workflow = %new.workflow,
                        "the model refused a child run; using the template's end hook"
                    );
                    new.on_end = registered.model.template().and_then(|template| template.on_end);
                }
            }
        } else if let Some(template) = self.runner.templates.cached(&new.workflow) {
            new.model = template.model;
        }
        if may_hold
            && self.runner.capacity.accepts_new_run(&new.workflow, new.turn.limit_key.as_ref())
        {
            new.turn.worker = Some(self.hold.worker);
            new.turn.ready = false;
            new.turn.claim_no = 1;
        }
        new
    }

    /// Completes a task that is to be enqueued: held by this worker if it serves the task and has
    /// capacity.
    pub fn may_hold(&mut self, mut task: Task) -> Task {
        let leaving = usize::from(self.pending_claim.is_some());
        if let Some(reservation) = self.runner.capacity.reserve_task(&task, leaving) {
            task.worker = Some(self.hold.worker);
            task.ready = false;
            task.claim_no = 1;
            self.reservations.push(reservation);
        }
        task
    }

    /// The model that this process serves a workflow with.
    pub fn model_of(&self, workflow: &WorkflowName) -> Option<ModelName> {
        self.runner.registry.model_name(workflow)
    }

    /// How long a run may go on after a cancel request.
    pub fn cancel_grace(&self) -> Duration {
        self.runner.core.options.cancel_grace
    }

    /// The messages of these kinds that the run has consumed, by sequence number.
    pub async fn consumed(&self, kinds: &[MessageKind]) -> Result<Vec<Message>, TurnError> {
        let limit = self.runner.core.options.limits.page_rows_max;
        let (mut after, mut found) = (0, Vec::new());
        loop {
            let query = Query::Messages { run_key: self.run.run_key, after, limit };
            let page = self.runner.core.store.list(query).await.and_then(|rows| rows.messages());
            let page = page.map_err(TurnError::Store)?;
            let last = page.len() < limit as usize;
            after = page.last().map_or(after, |message| message.seq);
            let wanted = |m: &Message| m.consumed.is_some() && kinds.contains(&m.kind);
            found.extend(page.into_iter().filter(wanted));
            if last {
                let places = bodies::of_messages(&mut found);
                bodies::fill(&*self.runner.core.store, places).await.map_err(TurnError::Store)?;
                return Ok(found);
            }
        }
    }

    /// Operations for the commit that ends the run: they settle its tasks and enqueue an internal task
    /// that terminates its children.
    pub async fn cancel_descendants(&mut self) -> Result<Vec<Op>, TurnError> {
        let ops = self.runner.terminator.cancel_descendants_of(&self.run, self.now()).await;
        let mut ops = ops.map_err(TurnError::Store)?;
        // The task whose result this turn brings is settled once, by its completion.
        ops.retain(|op| {
            !self.pending_claim.as_ref().is_some_and(|pending_claim| pending_claim.is_of(op))
        });
        Ok(ops)
    }

    /// Calls the host's hook: the run has something to do at a later time.
    pub fn announce(&self, reason: EnqueuedReason) {
        self.runner.core.run_enqueued(&self.run, reason);
    }

    /// The tasks that work for this run.
    pub async fn tasks(&self) -> Result<Vec<Task>, TurnError> {
        self.runner.terminator.tasks_of(&self.run).await.map_err(TurnError::Store)
    }

    /// An internal task that terminates a child for which this run no longer waits.
    pub fn call_off(&self, child: RunKey, at: Timestamp) -> Result<Task, Error> {
        let mut task = self.runner.terminator.internal_task(CANCEL_RUN, &self.run, at)?;
        task.body = Some(Body::of(&child)?);
        Ok(task)
    }

    /// The task that registers the wait of a step for an event by key. The commit that makes the step wait
    /// enqueues it; the commit that ends the wait with an event settles it.
    ///
    /// # Errors
    ///
    /// If the task cannot be written as JSON.
    pub fn await_key(
        &self,
        step_key: &StepKey,
        address: &EventAddress,
        until: Timestamp,
        at: Timestamp,
    ) -> Result<Task, Error> {
        self.runner.terminator.keyed.await_task(&self.run, step_key, address, until, at)
    }

    /// The task that removes the registration of a wait which the run gave up. The same commit settles
    /// the task that registers it.
    ///
    /// # Errors
    ///
    /// If the task cannot be written as JSON.
    pub fn forget_key(&self, wait: &KeyedWait, at: Timestamp) -> Result<Task, Error> {
        self.runner.terminator.keyed.forget_task(&self.run.namespace, wait, at)
    }

    /// An internal task that sends messages that came too late for this generation to the next one.
    pub fn carry_over(&self, at: Timestamp) -> Result<Task, Error> {
        let mut task = self.runner.terminator.internal_task(CARRY_OVER, &self.run, at)?;
        task.body = Some(Body::of(&self.inbox.read_to)?);
        Ok(task)
    }

    /// The counters of the engine.
    pub fn metrics(&self) -> &Metrics {
        &self.runner.core.metrics
    }

    /// Counts a step that ended with a result.
    pub fn count_completed_step(&self) {
        self.metrics().steps_completed.add(1);
        self.count(WorkflowFigure::StepsCompleted);
    }

    /// Counts a step that failed for good.
    pub fn count_failed_step(&self) {
        self.metrics().steps_failed.add(1);
        self.count(WorkflowFigure::StepsFailed);
    }

    fn count(&self, figure: WorkflowFigure) {
        self.metrics().workflows.add(&self.run.namespace, &self.run.workflow, figure);
    }

    /// Every message up to this one was read.
    pub fn read_to(&self) -> u64 {
        self.inbox.read_to
    }

    /// The result of a child whose result was too large for its message. A result that is not JSON
    /// becomes `{"encoding":"base64","bytes":"…"}`, as in the HTTP API.
    pub async fn result_of(&self, run_key: RunKey) -> Result<Option<Body>, TurnError> {
        let overview =
            self.runner.core.store.run_overview_by_key(run_key).await.map_err(TurnError::Store)?;
        let Some(RunOverview { mut run, .. }) = overview else { return Ok(None) };
        self.runner.core.fill_run(&mut run).await.map_err(TurnError::Store)?;
        let result = run.output.or(run.error);
        let read = |body: Body| match body.encoding {
            Encoding::Json => Ok(body),
            Encoding::Bytes => {
                let bytes = BASE64_STANDARD.encode(&body.bytes);
                Body::of(&json!({ "encoding": "base64", "bytes": bytes }))
            }
        };
        result.map(read).transpose().map_err(TurnError::Blocked)
    }

    /// Large bodies of the run's tree by digest, in the order of the digests; `None` for one that does not
    /// exist. [`Draft::put_body`] stores them.
    pub async fn bodies(&self, digests: &[Sha256Digest]) -> Result<Vec<Option<Bytes>>, TurnError> {
        let owner = BodyOwner::Run(self.run.run_key);
        let mut found = Vec::with_capacity(digests.len());
        for digests in digests.chunks(bodies::BODIES_MAX) {
            let key = |digest: &Sha256Digest| BodyKey { owner: owner.clone(), digest: *digest };
            let keys = digests.iter().map(key).collect();
            found.extend(self.runner.core.store.bodies(keys).await.map_err(TurnError::Store)?);
        }
        Ok(found)
    }

    /// Looks up the newest generation of a run by its name.
    pub async fn find(
        &self,
        workflow: &WorkflowName,
        id: &windlass_kernel::RunId,
    ) -> Result<Option<Run>, TurnError> {
        let namespace = self.run.namespace.clone();
        let found = self.runner.core.store.find(namespace, workflow.clone(), id.clone()).await;
        let mut found = found.map_err(TurnError::Store)?;
        if let Some(run) = &mut found {
            self.runner.core.fill_run(run).await.map_err(TurnError::Store)?;
        }
        Ok(found)
    }
}

// Whether the store must look up a cause that neither the guard nor the commit itself proves.
fn names_causes(commit: &Commit) -> bool {
    let named = |op: &Op| matches!(op, Op::AppendEvent { cause: CauseCheck::LookUp, .. });
    commit.ops.iter().any(named) && !commit.causes_to_look_up().is_empty()
}

/// The error of a refused commit.
pub fn refusal(error: &CommitError) -> Error {
    Error::new(error.kind(), error.code(), error.message())
}
