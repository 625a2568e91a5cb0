//! A turn: what a program gets to advance its run, and the only way it writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::json;
use tracing::{Instrument as _, Span};
use windlass_kernel::{
    Body, BoxFuture, Commit, CommitError, Committed, Draft, Encoding, End, Error, ErrorKind, Hold,
    Limits, LogId, Looked, Message, MessageId, MessageKind, MessageName, ModelName, NewMessage,
    NewRun, Op, Query, Run, RunKey, RunStatus, Stamp, StepKey, Task, TaskId, Timestamp, Wake,
    WorkerKey, WorkflowName,
};

use crate::at_hand::{AtHand, Taking};
use crate::cancel::{call_off, terminated_with};
use crate::control::Control;
use crate::engine::Inner;
use crate::env::{Env, Lane};
use crate::metrics::Metrics;
use crate::model::TurnError;
use crate::options::EnqueuedReason;
use crate::slot::Slot;
use crate::start::StartRun;
use crate::tasks::{CANCEL_RUN, CARRY_OVER, Promised};
use crate::telemetry;

/// A held turn of a run.
pub struct Turn {
    pub(crate) inner: Arc<Inner>,
    /// The run's row as it is after every commit that was sent.
    pub run: Box<Run>,
    /// The messages that were read and not consumed, by sequence number.
    pub mailbox: BTreeMap<u64, Message>,
    pub(crate) hold: Hold,
    pub(crate) slot: Arc<Slot>,
    // Every message up to this one was read.
    pub(crate) read_to: u64,
    // As far as commits and claims told.
    pub(crate) accepted: u64,
    // Somebody knows of a message that the counters do not show yet.
    poked: bool,
    // A commit was refused: the row here is ahead of the store's.
    stale: bool,
    pub(crate) released: bool,
    pub(crate) steps_left: Option<Arc<AtomicI64>>,
    last_at: Timestamp,
    // The row before a commit that may be refused without the turn being lost.
    before: Option<Box<Run>>,
    // Room for the tasks of the next commit that this worker will hold.
    promised: Vec<Promised>,
    // The run was read from the store, and no turn was taken with it yet.
    pub(crate) loaded: bool,
    // Until the program is where it was.
    replay: Option<Span>,
    // Until its first commit is answered, if that one takes the turn.
    pub(crate) taking: Option<Box<Taking>>,
}

/// A commit on its way.
pub type Sent = BoxFuture<'static, Result<Committed, CommitError>>;

impl Turn {
    pub(crate) fn new(inner: Arc<Inner>, run: Box<Run>, hold: Hold, slot: Arc<Slot>) -> Self {
        Self {
            accepted: run.accepted,
            read_to: run.accepted,
            last_at: run.updated_at,
            inner,
            run,
            mailbox: BTreeMap::new(),
            hold,
            slot,
            poked: false,
            stale: false,
            released: false,
            steps_left: None,
            before: None,
            promised: Vec::new(),
            loaded: false,
            replay: None,
            taking: None,
        }
    }

    pub(crate) fn begin_replay(&mut self, within: &Span) {
        if std::mem::take(&mut self.loaded) {
            self.replay = Some(telemetry::replay(within, &self.run));
        }
    }

    /// Says that the program is where it was when the run was last in memory.
    pub fn replayed(&mut self) {
        self.replay = None;
    }

    /// Makes later times rise above this one. The row of a run that is read back may be older than
    /// the last of its steps, and this process's clock may lag behind the one that wrote them.
    pub(crate) fn rise_above(&mut self, at: Timestamp) {
        self.last_at = self.last_at.max(at);
    }

    /// The store's time, as far as is known here.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The environment.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.inner.env
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.inner.options.limits
    }

    /// What this build calls itself.
    pub fn version(&self) -> &str {
        &self.inner.options.version
    }

    /// The worker that holds the turn.
    pub fn worker(&self) -> WorkerKey {
        self.hold.worker
    }

    /// A new event's id and time. Times of one run's events rise strictly, so the order of what is
    /// recorded can be read from rows that carry them.
    pub fn stamp(&mut self) -> Stamp {
        let at = self.now().max(self.last_at.plus(Duration::from_micros(1)));
        self.last_at = at;
        self.inner.clock.stamp(at)
    }

    /// A new run's key.
    pub fn new_run_key(&self) -> RunKey {
        self.inner.clock.run_key()
    }

    /// A new task's id.
    pub fn new_task_id(&self) -> TaskId {
        self.inner.clock.task_id()
    }

    /// A new log line's id.
    pub fn new_log_id(&self, at: Timestamp) -> LogId {
        self.inner.clock.log_id(at)
    }

    /// A commit in the making, under this turn.
    pub fn draft(&mut self) -> Draft {
        let at = self.now().max(self.last_at);
        let mut draft = match self.taking {
            Some(_) => Draft::free(&self.run, self.hold.worker, at),
            None => Draft::held(&self.run, self.hold, at),
        };
        draft.set_limits(&self.inner.options.limits);
        draft
    }

    /// Whether the turn is at hand for a result, which [`Turn::take_result`] gives.
    pub fn has_result(&self) -> bool {
        self.taking.as_ref().is_some_and(|taking| taking.result.is_some())
    }

    /// The result that the turn is taken with. The commit that records it must settle the activity
    /// ([`AtHand::settle`]); if that commit does not hold, the result comes back as a message.
    pub fn take_result(&mut self) -> Option<AtHand> {
        self.taking.as_mut().and_then(|taking| taking.result.take())
    }

    /// Says that the next commit gives the turn back and that the run then waits for results. One that
    /// is there sooner waits until the run is put away: a message would cost a commit more.
    pub fn expect_result(&self) {
        self.slot.expect_result();
    }

    /// Sends a commit. The run's row is taken to be as it will be if the commit holds; whoever
    /// awaits the answer hands it to [`Turn::answered`].
    pub fn send(&mut self, draft: Draft) -> Sent {
        let commit = draft.finish();
        // The user's own SQL can fail, and then the run is where it was.
        self.before = commit.user_sql().next().map(|_| self.run.clone());
        if let Some(change) = commit.run_change() {
            change.apply_to(&mut self.run);
            // Rows and events of this run rise together.
            self.run.updated_at = self.run.updated_at.max(self.last_at);
            let ended = self.run.status.is_ended();
            if ended || change.turn != windlass_kernel::TurnChange::Keep {
                self.released = true;
                self.slot.released();
            }
        }
        if let Some(taking) = &mut self.taking {
            taking.sent(commit.task);
        }
        self.inner.metrics.commits.add(1);
        let worker = Some(self.hold.worker);
        let begins = commit.ops.iter().any(|op| match op {
            Op::CreateRun(run) => run.turn.worker == worker,
            Op::Enqueue(task) => task.worker == worker,
            _ => false,
        });
        let append = telemetry::append(&self.run.workflow, &commit);
        let sending = Arc::clone(&self.inner).commit_until_known(commit).instrument(append);
        if !begins {
            return Box::pin(sending);
        }
        // What this commit makes us hold is begun even if the turn is dropped before the answer.
        let (answer, answered) = tokio::sync::oneshot::channel();
        let promised = std::mem::take(&mut self.promised);
        let sending = async move {
            let _ = answer.send(sending.await);
            // By now they run, or never will.
            drop(promised);
        };
        self.inner.env.spawn(Lane::User, Box::pin(sending));
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| {
                let message = "the engine stopped before a commit was answered";
                let error = Error::new(ErrorKind::Closed, "ENGINE_STOPPING", message);
                Err(CommitError::Unknown(Arc::new(error)))
            })
        })
    }

    /// Takes in the answer to a commit. A conflict means that the turn is lost.
    pub fn answered(
        &mut self,
        answer: Result<Committed, CommitError>,
    ) -> Result<Result<Committed, CommitError>, TurnError> {
        if let (Err(error), Some(taking)) = (&answer, &mut self.taking) {
            taking.refused(error);
        }
        match answer {
            Ok(committed) => {
                self.inner.clock.learn(committed.now);
                self.accepted = self.accepted.max(committed.accepted);
                if let Some(taking) = self.taking.take() {
                    self.hold = committed.hold.unwrap_or(self.hold);
                    taking.held();
                }
                if !self.released && committed.hold != Some(self.hold) {
                    return Err(TurnError::Lost);
                }
                Ok(Ok(committed))
            }
            Err(CommitError::Conflict(conflict)) => {
                tracing::debug!(run_key = %self.run.run_key, %conflict, "a turn was lost");
                Err(TurnError::Lost)
            }
            Err(CommitError::Unavailable(error) | CommitError::Unknown(error)) => {
                Err(TurnError::Store(Error::new(error.kind(), error.code(), error.message())))
            }
            Err(refused) => {
                match self.before.take() {
                    // Whatever it was, the turn is still here.
                    Some(before) => {
                        self.run = before;
                        self.released = false;
                        self.slot.kept();
                    }
                    None => self.stale = true,
                }
                Ok(Err(refused))
            }
        }
    }

    /// Whether a commit was refused, so that nothing more can be sent on top of it.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Reads the run's row again after a refused commit.
    pub(crate) async fn refresh(&mut self) -> Result<(), TurnError> {
        if std::mem::take(&mut self.stale) {
            let looked = self.inner.store.look_at(self.run.run_key).await;
            *self.run = looked.map_err(TurnError::Store)?.ok_or(TurnError::Lost)?.run;
            self.released = false;
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

    /// Whether messages may have come that were not read.
    pub fn has_unread(&self) -> bool {
        self.poked || self.accepted > self.read_to
    }

    /// Reads the messages that came since the last time.
    pub async fn read_messages(&mut self) -> Result<(), TurnError> {
        self.poked = false;
        loop {
            let limit = self.inner.options.limits.page_rows_max.min(1_000);
            let query = Query::Messages { run_key: self.run.run_key, after: self.read_to, limit };
            let rows = self.inner.store.list(query).await.and_then(|rows| rows.messages());
            let rows = rows.map_err(TurnError::Store)?;
            let count = rows.len();
            for message in rows {
                self.read_to = message.seq;
                self.accepted = self.accepted.max(message.seq);
                if message.consumed.is_none() {
                    self.mailbox.insert(message.seq, message);
                }
            }
            if count < limit as usize {
                // A poke may have come for nothing; what is accepted from here on is told anew.
                self.accepted = self.read_to;
                return Ok(());
            }
        }
    }

    /// Ready when something outside the turn wants it: messages came, it was revoked, or the engine
    /// is stopping.
    pub fn poll_poked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let poked = self.slot.poll_poked(cx);
        self.poked |= poked.is_ready();
        poked
    }

    /// Whether the turn was taken away.
    pub fn is_lost(&self) -> bool {
        self.slot.is_lost()
    }

    /// Whether the engine wants no new work to be begun.
    pub fn is_draining(&self) -> bool {
        self.inner.is_draining()
    }

    /// Whether another step may be begun in this turn. A host that drives the engine by ticks can
    /// say how many.
    pub fn take_step(&self) -> bool {
        match &self.steps_left {
            Some(left) => left.fetch_sub(1, Ordering::Relaxed) > 0,
            None => true,
        }
    }

    /// The oldest control request that was read.
    pub fn control(&self) -> Option<(Control, &Message)> {
        let message = self.mailbox.values().find(|m| m.kind == MessageKind::Control)?;
        Some((Control::of(message), message))
    }

    /// Consumes the control requests and does what they say: `true` if the turn was given back
    /// because the run is paused now, or has ended because it was cancelled. A paused run's timers go
    /// on: a resumed run has a turn at once, and looks at them itself.
    pub async fn obey(&mut self) -> Result<bool, TurnError> {
        let mut paused = self.run.status == RunStatus::Paused;
        let mut draft = self.draft();
        let mut controls: Vec<Message> = Vec::new();
        self.mailbox.retain(|_, message| {
            let control = message.kind == MessageKind::Control;
            if control {
                controls.push(message.clone());
            }
            !control
        });
        let by = StepKey::from_stored("windlass");
        let mut cancelled = None;
        for message in &controls {
            let stamp = self.stamp();
            let event = match Control::of(message) {
                Control::Pause => {
                    paused = true;
                    "workflow.paused"
                }
                Control::Resume => {
                    paused = false;
                    "workflow.resumed"
                }
                Control::Cancel => {
                    cancelled.get_or_insert(message);
                    "message.received"
                }
                Control::Wake | Control::Unknown => "message.received",
            };
            let payload = control_payload(message);
            draft
                .consume(event, &payload, message, by.clone(), stamp)
                .map_err(TurnError::Blocked)?;
        }
        if let Some(message) = cancelled {
            self.end_cancelled(&mut draft, message).await?;
            self.commit(draft).await?;
            return Ok(true);
        }
        if paused {
            draft.status(RunStatus::Paused);
            draft.release(Wake::OnMessage, self.read_to);
        } else if self.run.status == RunStatus::Paused {
            // Not only here: whoever takes the run next finds no request any more.
            draft.status(RunStatus::Active);
        }
        self.commit(draft).await?;
        Ok(paused)
    }

    /// Ends the run because a control request says so. The request itself is consumed elsewhere.
    pub async fn end_cancelled(
        &mut self,
        draft: &mut Draft,
        message: &Message,
    ) -> Result<(), TurnError> {
        let model = self.inner.registered(&self.run.workflow).map(|registered| registered.model);
        let has_reach = |kind| model.as_ref().is_none_or(|model| model.has_reach(kind));
        if has_reach("child") || has_reach("activity") {
            for op in self.reach().await? {
                draft.op(op);
            }
        }
        let open = self.inner.store.look_at(self.run.run_key).await.map_err(TurnError::Store)?;
        let open = open.map(|looked| looked.open_steps).unwrap_or_default();
        let called_off = self.inner.manners(&self.run).called_off;
        call_off(draft, open, called_off, || self.stamp()).map_err(TurnError::Blocked)?;
        let mut payload = control_payload(message);
        payload["request"] = "cancel".into();
        let reason = cancel_reason(message);
        if let Some(reason) = &reason {
            payload["reason"] = reason.as_str().into();
        }
        let error = terminated_with(reason.as_deref()).map_err(TurnError::Blocked)?;
        self.end(draft, "workflow.terminated", &payload, End::Terminated(error))
            .map_err(TurnError::Blocked)
    }

    /// Ends the run: the event, the row and what its parent hears of it.
    pub fn end<T: Serialize>(
        &mut self,
        draft: &mut Draft,
        event_type: &'static str,
        payload: &T,
        end: End,
    ) -> Result<(), Error> {
        let stamp = self.stamp();
        let message = result_for_parent(&self.run, &end, stamp)?;
        draft.end(event_type, payload, end, stamp)?;
        if let Some(message) = message {
            draft.send(message);
        }
        Ok(())
    }

    /// A child run of this one, with what its model gives every run if that is served here, and held
    /// by this worker if it has room for it.
    pub fn child(&mut self, new: NewRun, may_hold: bool) -> NewRun {
        let mut new = new;
        if let Some(registered) = self.inner.registered(&new.workflow) {
            new.model = registered.model.name();
            let mut start =
                StartRun::new(new.workflow.clone(), new.model.clone(), Body::json("null"));
            match registered.model.prepare(&mut start) {
                Ok(()) => new.on_end = start.on_end,
                // Its end is told all the same: whoever is told is asked once more.
                Err(error) => {
                    tracing::warn!(%error, workflow = %new.workflow, "a child's hook cannot be asked");
                    new.on_end = registered.model.template().and_then(|template| template.on_end);
                }
            }
        } else if let Some(template) = self.inner.template_read(&new.workflow) {
            new.model = template.model;
        }
        if may_hold && self.inner.takes_eagerly(&new.workflow, new.turn.limit_key.as_ref()) {
            new.turn.worker = Some(self.hold.worker);
            new.turn.ready = false;
            new.turn.claim_no = 1;
        }
        new
    }

    /// A task as it is enqueued: held by this worker if it serves the task and has room for it.
    pub fn may_hold(&mut self, mut task: Task) -> Task {
        let leaving = usize::from(self.taking.is_some());
        if let Some(promised) = self.inner.takes_task_eagerly(&task, leaving) {
            task.worker = Some(self.hold.worker);
            task.ready = false;
            task.claim_no = 1;
            self.promised.push(promised);
        }
        task
    }

    /// The model that this process serves a workflow with.
    pub fn model_of(&self, workflow: &WorkflowName) -> Option<ModelName> {
        self.inner.registered(workflow).map(|registered| registered.model.name())
    }

    /// How long a run may go on after it was told to end.
    pub fn cancel_grace(&self) -> Duration {
        self.inner.options.cancel_grace
    }

    /// The messages of these kinds that the run has consumed, by sequence number.
    pub async fn consumed(&self, kinds: &[MessageKind]) -> Result<Vec<Message>, TurnError> {
        let limit = self.inner.options.limits.page_rows_max;
        let (mut after, mut found) = (0, Vec::new());
        loop {
            let query = Query::Messages { run_key: self.run.run_key, after, limit };
            let page = self.inner.store.list(query).await.and_then(|rows| rows.messages());
            let page = page.map_err(TurnError::Store)?;
            let last = page.len() < limit as usize;
            after = page.last().map_or(after, |message| message.seq);
            let told = |m: &Message| m.consumed.is_some() && kinds.contains(&m.kind);
            found.extend(page.into_iter().filter(told));
            if last {
                return Ok(found);
            }
        }
    }

    /// What must end with the run, for the commit that ends it: its tasks are settled, and a task of
    /// the engine's reaches its children.
    pub async fn reach(&mut self) -> Result<Vec<Op>, TurnError> {
        let ops = self.inner.reach_of(&self.run, self.now()).await;
        let mut ops = ops.map_err(TurnError::Store)?;
        // The task whose result is at hand is settled as such, once.
        ops.retain(|op| !self.taking.as_ref().is_some_and(|taking| taking.is_of(op)));
        Ok(ops)
    }

    /// Tells the host that the run has something to do at a later time.
    pub fn announce(&self, reason: EnqueuedReason) {
        self.inner.enqueued(&self.run, reason);
    }

    /// The tasks that work for this run.
    pub async fn tasks(&self) -> Result<Vec<Task>, TurnError> {
        self.inner.tasks_of(&self.run).await.map_err(TurnError::Store)
    }

    /// A task of the engine's that ends a child which this run no longer waits for.
    pub fn call_off(&self, child: RunKey, at: Timestamp) -> Result<Task, Error> {
        let mut task = self.inner.internal_task(CANCEL_RUN, &self.run, at)?;
        task.body = Some(Body::of(&child)?);
        Ok(task)
    }

    /// A task of the engine's that sends what came too late for this generation to the next one.
    pub fn carry_over(&self, at: Timestamp) -> Result<Task, Error> {
        let mut task = self.inner.internal_task(CARRY_OVER, &self.run, at)?;
        task.body = Some(Body::of(&self.read_to)?);
        Ok(task)
    }

    /// Counters of what the engine did.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Every message up to this one was read.
    pub fn read_to(&self) -> u64 {
        self.read_to
    }

    /// What a child ended with, for a result that did not go into its message. What is not JSON comes as
    /// `{"encoding":"base64","bytes":"…"}`, as clients of the HTTP API get it.
    pub async fn result_of(&self, run_key: RunKey) -> Result<Option<Body>, TurnError> {
        let looked = self.inner.store.look_at(run_key).await.map_err(TurnError::Store)?;
        let result = looked.and_then(|Looked { run, .. }| run.output.or(run.error));
        let read = |body: Body| match body.encoding {
            Encoding::Json => Ok(body),
            Encoding::Bytes => {
                let bytes = BASE64_STANDARD.encode(&body.bytes);
                Body::of(&json!({ "encoding": "base64", "bytes": bytes }))
            }
        };
        result.map(read).transpose().map_err(TurnError::Blocked)
    }

    /// Looks up the newest generation of a run by its name.
    pub async fn find(
        &self,
        workflow: &WorkflowName,
        id: &windlass_kernel::RunId,
    ) -> Result<Option<Run>, TurnError> {
        let namespace = self.run.namespace.clone();
        let found = self.inner.store.find(namespace, workflow.clone(), id.clone()).await;
        found.map_err(TurnError::Store)
    }
}

/// A refusal as an error that says what refused.
pub fn refusal(error: &CommitError) -> Error {
    Error::new(error.kind(), error.code(), error.message())
}

fn cancel_reason(message: &Message) -> Option<String> {
    let body: serde_json::Value = message.body.as_ref()?.read().ok()?;
    body.get("reason")?.as_str().map(str::to_owned)
}

pub(crate) fn control_payload(message: &Message) -> serde_json::Value {
    let body: Option<serde_json::Value> = message.body.as_ref().and_then(|body| body.read().ok());
    let actor = body.as_ref().and_then(|body| body.get("actor")).cloned();
    match actor {
        Some(actor) => json!({ "message": message.seq, "actor": actor }),
        None => json!({ "message": message.seq }),
    }
}

/// The message that tells a run's parent how it ended, if it has a parent.
pub(crate) fn result_for_parent(
    run: &Run,
    end: &End,
    stamp: Stamp,
) -> Result<Option<NewMessage>, Error> {
    let Some(parent) = run.parent else { return Ok(None) };
    let (status, result) = match end {
        End::Complete(output) => ("complete", Some(output)),
        End::Errored(error) => ("errored", Some(error)),
        End::Terminated(error) => ("terminated", error.as_ref()),
    };
    let head = json!({
        "workflow": run.workflow, "id": run.id, "run_key": run.run_key, "status": status,
        "fork": run.fork,
    });
    Ok(Some(NewMessage {
        run_key: parent,
        message_id: MessageId::new(format!("child:{}", run.run_key))?,
        kind: MessageKind::ChildResult,
        name: MessageName::new("child")?,
        body: Some(with_result(head, result)?),
        caused_by: Some(windlass_kernel::CausalRef::event(stamp.event_id)),
        sent_at: stamp.at,
        required: false,
    }))
}

/// Results up to this size ride in the message; a parent reads larger ones from the child's row.
const RESULT_INLINE_BYTES_MAX: usize = 64 * 1024;

// The result goes in as the bytes it is: parsing it only to write it again is work for nothing.
fn with_result(head: serde_json::Value, result: Option<&Body>) -> Result<Body, Error> {
    let mut text = head.to_string();
    let inline =
        |body: &&Body| body.encoding == Encoding::Json && body.len() <= RESULT_INLINE_BYTES_MAX;
    let Some(result) = result else { return Ok(Body::json(text)) };
    text.pop();
    match inline(&result) {
        true => {
            text.push_str(",\"result\":");
            text.push_str(&String::from_utf8_lossy(&result.bytes));
            text.push('}');
        }
        false => text.push_str(",\"large\":true}"),
    }
    Ok(Body::json(text))
}

impl Inner {
    /// Sends a commit until its outcome is known. After a lost answer the same commit is sent
    /// again: the store finds its key. Afterwards what it made ready here is dispatched.
    pub(crate) fn commit_until_known(
        self: Arc<Self>,
        commit: Commit,
    ) -> impl Future<Output = Result<Committed, CommitError>> + Send {
        self.commit_while(commit, CommitError::is_retryable)
    }

    /// As [`Inner::commit_until_known`], for somebody who can ask again: what the store says it has not
    /// written is not sent again. They may have gone by then, and must not find it done.
    pub(crate) fn commit_asked(
        self: Arc<Self>,
        commit: Commit,
    ) -> impl Future<Output = Result<Committed, CommitError>> + Send {
        let mut unknown = false;
        let again = move |error: &CommitError| {
            unknown |= matches!(error, CommitError::Unknown(_));
            unknown && error.is_retryable()
        };
        self.commit_while(commit, again)
    }

    async fn commit_while(
        self: Arc<Self>,
        mut commit: Commit,
        mut again: impl FnMut(&CommitError) -> bool,
    ) -> Result<Committed, CommitError> {
        let mut delay = Duration::from_millis(10);
        let mut incomplete = self.is_incomplete(&commit);
        loop {
            if incomplete {
                match Box::pin(self.complete_commit(&mut commit)).await {
                    Ok(()) => incomplete = false,
                    Err(error) if error.is_retryable() => {
                        let error = CommitError::Unavailable(Arc::new(error));
                        if !again(&error) {
                            return Err(error);
                        }
                        tracing::warn!(%error, "what a new run's end enqueues cannot be read");
                        self.env.sleep(delay).await;
                        delay = (delay * 2).min(Duration::from_secs(5));
                        continue;
                    }
                    Err(error) => return Err(CommitError::Invalid(Arc::new(error))),
                }
            }
            let answer = self.store.commit(vec![commit.clone()]).await.pop();
            match answer {
                Some(Ok(committed)) => {
                    self.dispatch(&commit, &committed);
                    return Ok(committed);
                }
                Some(Err(error)) if again(&error) => {
                    tracing::warn!(%error, "a commit is sent again");
                    self.metrics.commits_resent.add(1);
                    self.env.sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
                Some(Err(error)) => return Err(error),
                None => {
                    let message = "the store answered nothing to a commit";
                    let error =
                        Error::new(windlass_kernel::ErrorKind::Internal, "INTERNAL", message);
                    return Err(CommitError::Invalid(Arc::new(error)));
                }
            }
        }
    }
}
