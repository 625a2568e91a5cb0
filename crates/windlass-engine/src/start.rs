//! Starting runs, sending them events, and waiting for how they end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument as _, Span};
use windlass_kernel::{
    Body, CausalRef, Commit, CommitError, Conflict, Delivery, Draft, Error, ErrorKind, LimitKey,
    MessageId, MessageKind, MessageName, ModelName, Namespace, NewMessage, NewRun, OnExisting, Op,
    Query, Run, RunId, RunKey, Timestamp, Turn as TurnRow, WorkflowName,
};

use crate::engine::{Engine, Inner};
use crate::env::{Lane, new_uuid};
use crate::options::EnqueuedReason;
use crate::results::Ended;
use crate::slot::Slot;
use crate::telemetry;
use crate::turn::refusal;

/// How long a waiter for a run that another process holds sleeps between two looks.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(1);
/// How often a message is sent again because its run was superseded meanwhile.
const RESOLVE_MAX: u32 = 5;

/// A run to be started.
#[derive(Clone, Debug)]
pub struct StartRun {
    /// The workflow.
    pub workflow: WorkflowName,
    /// The model of the workflow, for processes that do not serve it.
    pub model: ModelName,
    /// The user's name for the run; the engine makes one if there is none.
    pub id: Option<RunId>,
    /// What it is started with.
    pub input: Body,
    /// Small strings to find it by.
    pub labels: BTreeMap<String, String>,
    /// Higher first.
    pub priority: i16,
    /// When its first turn is due; at once if there is none.
    pub due_at: Option<Timestamp>,
    /// A key under which its turns count against a limit.
    pub limit_key: Option<LimitKey>,
    /// The trace context it is started in.
    pub trace: Option<Arc<str>>,
    /// What comes beside the input, a JSON object of strings.
    pub headers: Option<Arc<str>>,
    /// What the commit that ends it enqueues; see [`windlass_kernel::OnEnd`].
    pub on_end: Option<Arc<str>>,
    /// What caused it.
    pub caused_by: Option<CausalRef>,
    /// What to do if the run exists.
    pub on_existing: OnExisting,
}

impl StartRun {
    /// A run with an input and nothing else.
    pub fn new(workflow: WorkflowName, model: ModelName, input: Body) -> Self {
        Self {
            workflow,
            model,
            id: None,
            input,
            labels: BTreeMap::new(),
            priority: 0,
            due_at: None,
            limit_key: None,
            trace: None,
            headers: None,
            on_end: None,
            caused_by: None,
            on_existing: OnExisting::Return,
        }
    }
}

/// A run that was started, or found.
#[derive(Clone, Debug)]
pub struct Started {
    /// Names this generation.
    pub run_key: RunKey,
    /// The user's name for it.
    pub id: RunId,
    /// Whether it was there before.
    pub existed: bool,
}

impl Engine {
    /// Starts a run. With an id, the same input finds the run that exists; another is an error.
    pub async fn start_run(&self, start: StartRun) -> Result<Started, Error> {
        let inner = &self.inner;
        self.admit_start(&start).await?;
        let mut start = start;
        inner.complete_start(&mut start).await?;
        let (commit, id, span) = inner.creating(self.namespace.clone(), start)?;
        let run_key = commit.run_key().expect("a create names its run");
        let workflow = workflow_of(&commit);
        let answer = inner.create(commit).instrument(span).await;
        let mut started = started(answer, run_key, id)?;
        if started.existed
            && let Some(workflow) = workflow
            && let Some(newest) = self.find_run(&workflow, &started.id).await?
        {
            // The one that was found is the first generation; the run may be in a later one.
            started.run_key = newest.run_key;
        }
        Ok(started)
    }

    // A run that is there already is found however busy everybody is.
    async fn admit_start(&self, start: &StartRun) -> Result<(), Error> {
        let ours = start.workflow.as_str().starts_with("windlass.");
        let refused = if ours { None } else { self.admit().await.err() };
        let Some(refused) = refused else { return Ok(()) };
        let found = match &start.id {
            Some(id) => self.find_run(&start.workflow, id).await?,
            None => None,
        };
        found.map_or(Err(refused), |_| Ok(()))
    }

    /// Starts many runs at once. Those whose id is taken are left out of the answer.
    pub async fn start_runs(&self, starts: Vec<StartRun>) -> Result<Vec<Started>, Error> {
        let inner = &self.inner;
        self.admit().await?;
        let mut pending = Vec::new();
        for mut start in starts {
            start.on_existing = OnExisting::Refuse;
            inner.complete_start(&mut start).await?;
            let (commit, id, span) = inner.creating(self.namespace.clone(), start)?;
            let run_key = commit.run_key().expect("a create names its run");
            let inner = Arc::clone(inner);
            let creating =
                async move { started(inner.create_and_begin(commit).await, run_key, id) };
            pending.push(creating.instrument(span));
        }
        let mut runs = Vec::new();
        // As one piece: they are sent in their order, so the first of two with one id is the one.
        for answer in inner.to_the_end(futures::future::join_all(pending)).await? {
            match answer {
                Ok(run) if !run.existed => runs.push(run),
                Ok(_) => {}
                Err(error) if error.code() == "RUN_EXISTS" => {}
                Err(error) => return Err(error),
            }
        }
        Ok(runs)
    }

    /// The newest generation of a run.
    pub async fn find_run(
        &self,
        workflow: &WorkflowName,
        id: &RunId,
    ) -> Result<Option<Run>, Error> {
        let (workflow, id) = (workflow.clone(), id.clone());
        self.inner.store.find(self.namespace.clone(), workflow, id).await
    }

    /// Sends an event to a run. Sent again with the same message id it is the same event; the id with
    /// another name or body is an error.
    pub async fn send_event(
        &self,
        run_key: RunKey,
        name: MessageName,
        body: Option<Body>,
        message_id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        self.send_message(run_key, MessageKind::Event, name, body, message_id).await
    }

    /// Sends a message to a run; if the run was superseded, to its newest generation.
    pub async fn send_message(
        &self,
        run_key: RunKey,
        kind: MessageKind,
        name: MessageName,
        body: Option<Body>,
        message_id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        let inner = &self.inner;
        let now = inner.clock.now();
        let message_id = match message_id {
            Some(id) => id,
            None => MessageId::new(new_uuid(&*inner.env, now).to_string())?,
        };
        let mut to = run_key;
        let mut sent = 0;
        loop {
            let message = NewMessage {
                run_key: to,
                message_id: message_id.clone(),
                kind,
                name: name.clone(),
                body: body.clone(),
                caused_by: None,
                sent_at: now,
                required: true,
            };
            let beside = inner.beside_message(&message).await?;
            let ops = std::iter::once(Op::PutMessage(Box::new(message))).chain(beside);
            let commit = Commit::new(None, None, ops.collect());
            match Arc::clone(inner).commit_asked(commit).await {
                Ok(committed) => {
                    if let Some(Delivery::Duplicate { seq }) = committed.messages.first() {
                        let sent = (kind, &name, body.as_ref());
                        self.refuse_another(to, *seq, sent).await?;
                    }
                    if inner.options.on_enqueued.is_some() {
                        let run = self.current(to).await?;
                        inner.enqueued(&run, EnqueuedReason::Event);
                    }
                    return Ok(committed.messages.first().copied().unwrap_or(Delivery::Dropped));
                }
                Err(error) if error.code() == "RUN_TERMINAL" && sent < RESOLVE_MAX => {
                    // It may have been restarted since its key was read.
                    let ended = self.current(to).await?;
                    match self.newest(&ended).await? {
                        newest if newest.run_key != to => to = newest.run_key,
                        _ => return Err(refusal(&error)),
                    }
                    sent += 1;
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
    }

    // A message that was there already is the same one, or somebody used its id for another.
    async fn refuse_another(
        &self,
        run_key: RunKey,
        seq: u64,
        (kind, name, body): (MessageKind, &MessageName, Option<&Body>),
    ) -> Result<(), Error> {
        let query = Query::Messages { run_key, after: seq.saturating_sub(1), limit: 1 };
        let found = self.inner.store.list(query).await?.messages()?.into_iter().next();
        let Some(found) = found.filter(|found| found.seq == seq) else { return Ok(()) };
        if found.kind == kind && found.name == *name && found.body.as_ref() == body {
            return Ok(());
        }
        let differs = if found.name == *name { "another body" } else { "another name" };
        let message = format!(
            "the run has a message with id {:?} and {differs}; send this one with an id of its own",
            found.message_id
        );
        Err(Error::new(ErrorKind::Conflict, "MESSAGE_EXISTS", message))
    }

    /// Waits until a run has ended. Follows it through its generations, unless it ended for good.
    pub async fn wait(&self, run_key: RunKey) -> Result<Ended, Error> {
        let inner = &self.inner;
        let mut poll = POLL_MIN;
        // Goes last: whoever stops waiting is forgotten, whatever becomes of the run.
        let _waiting = inner.results.waiting(run_key);
        loop {
            let receiver = match inner.results.wait_for(run_key) {
                Ok(ended) => return Ok(ended),
                Err(receiver) => receiver,
            };
            // A run whose turn is being taken here ends here; any other may have ended before, so long
            // ago that it is no longer remembered.
            let goes_on = inner.live.lock().get(&run_key).is_some_and(|slot| !slot.is_released());
            if !goes_on {
                let run = self.current(run_key).await?;
                if run.status.is_ended() {
                    return Ok(ended(run));
                }
            }
            if inner.is_stopped() {
                let message = "the engine has stopped; the run goes on with the next one";
                return Err(Error::new(ErrorKind::Unavailable, "ENGINE_STOPPING", message));
            }
            if !inner.options.shared {
                let stopped = std::pin::pin!(inner.stopped());
                match futures::future::select(receiver, stopped).await {
                    futures::future::Either::Left((Ok(ended), _)) => return Ok(ended),
                    _ => continue,
                }
            }
            let slept = inner.env.sleep(poll);
            match futures::future::select(receiver, slept).await {
                futures::future::Either::Left((Ok(ended), _)) => return Ok(ended),
                _ => poll = (poll * 2).min(POLL_MAX),
            }
        }
    }
}

fn workflow_of(commit: &Commit) -> Option<WorkflowName> {
    commit.ops.iter().find_map(|op| match op {
        Op::CreateRun(run) => Some(run.workflow.clone()),
        _ => None,
    })
}

fn ended(run: Run) -> Ended {
    Ended { run_key: run.run_key, status: run.status, output: run.output, error: run.error }
}

fn started(
    answer: Result<windlass_kernel::Committed, CommitError>,
    run_key: RunKey,
    id: RunId,
) -> Result<Started, Error> {
    match answer {
        Ok(committed) => {
            let found = committed.run_key.unwrap_or(run_key);
            Ok(Started { run_key: found, id, existed: found != run_key })
        }
        Err(CommitError::Conflict(Conflict::RunExists { same_input, .. })) => {
            let with = if same_input { "the same" } else { "another" };
            let message = format!("a run with id {id:?} exists, started with {with} input");
            Err(Error::new(ErrorKind::Conflict, "RUN_EXISTS", message))
        }
        Err(error) => Err(refusal(&error)),
    }
}

impl Inner {
    fn creating(
        &self,
        namespace: Namespace,
        start: StartRun,
    ) -> Result<(Commit, RunId, Span), Error> {
        let on_existing = start.on_existing;
        let mut new = self.new_run(namespace, start)?;
        let id = new.id.clone();
        let span = telemetry::start(&new.workflow, new.trace.as_deref(), new.run_key, &id);
        new.trace = telemetry::traceparent(&span).or(new.trace);
        let stamp = self.clock.stamp(self.clock.now());
        let draft = Draft::create(new, on_existing, stamp)?;
        Ok((draft.finish(), id, span))
    }

    /// The run that a start asks for, if there can be one. Everybody who starts runs, now or later, asks
    /// here before anything is written.
    pub(crate) fn new_run(
        &self,
        namespace: Namespace,
        mut start: StartRun,
    ) -> Result<NewRun, Error> {
        let registered = self.registered(&start.workflow);
        if let Some(registered) = &registered {
            registered.model.prepare(&mut start)?;
        }
        let run_key = self.clock.run_key();
        let id = match start.id {
            Some(id) => id,
            None => RunId::new(run_key.to_string())?,
        };
        let limit_key = start.limit_key.or_else(|| registered.and_then(|served| served.limit));
        let eager = start.due_at.is_none()
            && start.priority == 0
            && self.takes_eagerly(&start.workflow, limit_key.as_ref());
        let mut turn = match start.due_at {
            _ if eager => TurnRow::held_by(self.worker),
            Some(due_at) => TurnRow::due_at(due_at),
            None => TurnRow::ready(),
        };
        turn.priority = start.priority;
        turn.limit_key = limit_key;
        let new = NewRun {
            run_key,
            namespace,
            workflow: start.workflow,
            model: start.model,
            id,
            generation: 0,
            input: start.input,
            parent: None,
            fork: None,
            labels: start.labels,
            trace: start.trace,
            headers: start.headers,
            on_end: start.on_end,
            deadline_at: None,
            turn,
            caused_by: start.caused_by,
        };
        new.validate(&self.options.limits)?;
        Ok(new)
    }

    /// Sends a create. A run that is held from the start is begun here, whether or not whoever asked
    /// waits for it: nobody else would.
    async fn create(
        self: &Arc<Self>,
        commit: Commit,
    ) -> Result<windlass_kernel::Committed, CommitError> {
        let held = |op: &Op| matches!(op, Op::CreateRun(run) if run.turn.worker.is_some());
        if !commit.ops.iter().any(held) {
            return self.send_create(commit).await.0;
        }
        let inner = Arc::clone(self);
        let (tell, told) = futures::channel::oneshot::channel();
        let creating = async move { inner.send_create(commit).await }.in_current_span();
        // The turns go on in the task of the create: another one would be work for nothing.
        let inner = Arc::clone(self);
        let work = async move {
            let (answer, held) = creating.await;
            let turns = held.and_then(|(run, slot)| inner.first_turns(run, Some(slot)));
            let _ = tell.send(answer);
            if let Some(turns) = turns {
                turns.await;
            }
        };
        self.env.spawn(Lane::User, Box::pin(work));
        told.await.unwrap_or_else(|_| Err(CommitError::Unknown(Arc::new(stopped_meanwhile()))))
    }

    /// Does something to its end although whoever asked for it may go: a turn that was taken for it is
    /// given back, and a run that it holds is begun.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = futures::channel::oneshot::channel();
        let work = async move { drop(tell.send(work.await)) };
        self.env.spawn(Lane::User, Box::pin(work.in_current_span()));
        told.await.map_err(|_| stopped_meanwhile())
    }

    async fn create_and_begin(self: &Arc<Self>, commit: Commit) -> Created {
        let (answer, held) = self.send_create(commit).await;
        if let Some((run, slot)) = held {
            self.begin_new(run, Some(slot));
        }
        answer
    }

    // The answer, and the run with its slot if it is held here now.
    async fn send_create(self: &Arc<Self>, commit: Commit) -> (Created, Option<HeldRun>) {
        let run_key = commit.run_key().expect("a create names its run");
        let row = commit.ops.iter().find_map(|op| match op {
            Op::CreateRun(run) if run.run_key == run_key => Some(run.clone()),
            _ => None,
        });
        let row = row.expect("a create holds its run");
        let eager = row.turn.worker.is_some();
        let slot = eager.then(|| self.hold(run_key));
        let append = telemetry::append(&row.workflow, &commit);
        let answer = Arc::clone(self).commit_asked(commit).instrument(append).await;
        let ours = matches!(&answer, Ok(committed) if committed.run_key == Some(run_key));
        if ours {
            self.metrics.runs_created.add(1);
            self.enqueued(&row, EnqueuedReason::Create);
        }
        let held = match (slot, &answer) {
            (Some(slot), Ok(committed)) if ours && committed.hold.is_some() => Some((row, slot)),
            (Some(slot), _) => {
                self.unhold(run_key, &slot);
                None
            }
            (None, _) => None,
        };
        (answer, held)
    }
}

type Created = Result<windlass_kernel::Committed, CommitError>;
type HeldRun = (Box<Run>, Arc<Slot>);

fn stopped_meanwhile() -> Error {
    let message = "the engine has stopped; what was asked for may have been done";
    Error::new(ErrorKind::Unknown, "ENGINE_STOPPING", message)
}
