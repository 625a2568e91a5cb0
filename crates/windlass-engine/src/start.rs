//! Starting runs, sending them messages, and waiting for their ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{Instrument as _, Span};
use windlass_kernel::{
    Body, CausalRef, Commit, CommitError, Conflict, Delivery, Draft, Error, ErrorCode, ErrorKind,
    LimitKey, MessageId, MessageKind, MessageName, ModelName, Namespace, NewMessage, NewRun,
    OnExisting, Op, Query, Run, RunId, RunKey, Timestamp, Turn as TurnRow, WorkflowName,
};

use crate::capacity::Capacity;
use crate::commit::CommitClient;
use crate::core::{Core, after_write, interrupted};
use crate::engine::Engine;
use crate::env::{Lane, new_uuid};
use crate::held_run::HeldRun;
use crate::local_runs::LocalRuns;
use crate::options::EnqueuedReason;
use crate::registry::Registry;
use crate::results::Ended;
use crate::telemetry;
use crate::turn::refusal;
use crate::turn_runner::TurnRunner;

/// How often a message is sent again because its run was replaced meanwhile.
const RESOLVE_MAX: u32 = 5;

/// A request to start a run.
#[derive(Clone, Debug)]
pub struct StartRun {
    /// The workflow.
    pub workflow: WorkflowName,
    /// The model of the workflow, for processes that do not serve it.
    pub model: ModelName,
    /// The user's id for the run; without one the engine creates it.
    pub id: Option<RunId>,
    /// The input.
    pub input: Body,
    /// Labels to find it by.
    pub labels: BTreeMap<String, String>,
    /// Higher first.
    pub priority: i16,
    /// When its first turn is due. Default: at once.
    pub due_at: Option<Timestamp>,
    /// The limit that its turns count against.
    pub limit_key: Option<LimitKey>,
    /// The trace context of the caller.
    pub trace: Option<Arc<str>>,
    /// Headers beside the input: a JSON object of strings.
    pub headers: Option<Arc<str>>,
    /// The tasks that the commit which ends it enqueues; see [`windlass_kernel::OnEnd`].
    pub on_end: Option<Arc<str>>,
    /// The event or message that caused it.
    pub caused_by: Option<CausalRef>,
    /// The answer if a run with this id exists.
    pub on_existing: OnExisting,
}

impl StartRun {
    /// A request with an input and no other options.
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

/// A run that was started or found.
#[derive(Clone, Debug)]
pub struct Started {
    /// The key of this generation.
    pub run_key: RunKey,
    /// The id.
    pub id: RunId,
    /// Whether the run existed before.
    pub existed: bool,
}

impl Engine {
    /// Starts a run. If a run with this id exists, the same input returns it, and another input is an
    /// error.
    pub async fn start_run(&self, start: StartRun) -> Result<Started, Error> {
        let starter = &self.parts.run_starter;
        self.admit_start(&start).await?;
        let mut start = start;
        self.parts.templates.complete_start(&mut start).await?;
        let (commit, id, span) = starter.creating(self.namespace.clone(), start)?;
        let run_key = commit.run_key().expect("a create names its run");
        let workflow = workflow_of(&commit);
        let answer = starter.create(commit).instrument(span).await;
        let mut started = started(answer, run_key, id)?;
        if started.existed
            && let Some(workflow) = workflow
            && let Some(newest) = self.find_run(&workflow, &started.id).await?
        {
            // The store found the first generation; the run may be in a later one.
            started.run_key = newest.run_key;
        }
        Ok(started)
    }

    // Admission does not apply to a run that exists.
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

    /// Starts many runs at once. The result leaves out runs whose id exists.
    pub async fn start_runs(&self, starts: Vec<StartRun>) -> Result<Vec<Started>, Error> {
        let starter = &self.parts.run_starter;
        self.admit().await?;
        let mut pending = Vec::new();
        for mut start in starts {
            start.on_existing = OnExisting::Refuse;
            self.parts.templates.complete_start(&mut start).await?;
            let (commit, id, span) = starter.creating(self.namespace.clone(), start)?;
            let run_key = commit.run_key().expect("a create names its run");
            let starter = Arc::clone(starter);
            let creating =
                async move { started(starter.create_and_begin(commit).await, run_key, id) };
            pending.push(creating.instrument(span));
        }
        let (mut runs, mut failed) = (Vec::new(), None);
        // In one task: the commits are sent in order, so of two starts with one id the first wins.
        for answer in self.parts.core.run_to_completion(futures::future::join_all(pending)).await? {
            match answer {
                Ok(run) if !run.existed => runs.push(run),
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::RunExists => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(runs),
            Some(error) if runs.is_empty() => Err(error),
            Some(error) => Err(after_write(error)),
        }
    }

    /// The newest generation of a run.
    pub async fn find_run(
        &self,
        workflow: &WorkflowName,
        id: &RunId,
    ) -> Result<Option<Run>, Error> {
        let (workflow, id) = (workflow.clone(), id.clone());
        self.parts.core.store.find(self.namespace.clone(), workflow, id).await
    }

    /// Sends an event to a run. The same message id, name and body again have no effect; the same id
    /// with another name or body is an error.
    pub async fn send_event(
        &self,
        run_key: RunKey,
        name: MessageName,
        body: Option<Body>,
        message_id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        self.send_message(run_key, MessageKind::Event, name, body, message_id).await
    }

    /// Sends a message to a run; if the run was replaced, to its newest generation.
    pub async fn send_message(
        &self,
        run_key: RunKey,
        kind: MessageKind,
        name: MessageName,
        body: Option<Body>,
        message_id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        let core = &self.parts.core;
        let now = core.clock.now();
        let message_id = match message_id {
            Some(id) => id,
            None => MessageId::new(new_uuid(&*core.env, now).to_string())?,
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
            let beside = self.parts.control.canceller.beside_message(&message).await?;
            let ops = std::iter::once(Op::PutMessage(Box::new(message))).chain(beside);
            let commit = Commit::new(None, None, ops.collect());
            match Arc::clone(&self.parts.commits).commit_for_caller(commit).await {
                Ok(committed) => {
                    if let Some(Delivery::Duplicate { seq }) = committed.messages.first() {
                        let sent = (kind, &name, body.as_ref());
                        self.refuse_another(to, *seq, sent).await.map_err(after_write)?;
                    }
                    if core.options.on_enqueued.is_some() {
                        match self.current(to).await {
                            Ok(run) => core.run_enqueued(&run, EnqueuedReason::Event),
                            // The message is written, so the request has succeeded.
                            Err(error) => {
                                tracing::warn!(run_key = %to, %error, "failed to read a run for the hook on_enqueued");
                            }
                        }
                    }
                    return Ok(committed.messages.first().copied().unwrap_or(Delivery::Dropped));
                }
                Err(error) if error.code() == ErrorCode::RunTerminal && sent < RESOLVE_MAX => {
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

    /// Waits until a run has ended.
    pub async fn wait(&self, run_key: RunKey) -> Result<Ended, Error> {
        self.parts.waiter.wait(run_key).await
    }

    // The message exists already: it must be the same one.
    async fn refuse_another(
        &self,
        run_key: RunKey,
        seq: u64,
        (kind, name, body): (MessageKind, &MessageName, Option<&Body>),
    ) -> Result<(), Error> {
        let query = Query::Messages { run_key, after: seq.saturating_sub(1), limit: 1 };
        let found = self.parts.core.store.list(query).await?.messages()?.into_iter().next();
        let Some(found) = found.filter(|found| found.seq == seq) else { return Ok(()) };
        if found.kind == kind && found.name == *name && found.body.as_ref() == body {
            return Ok(());
        }
        let differs = if found.name == *name { "another body" } else { "another name" };
        let message = format!(
            "the run has a message with id {:?} and {differs}; use another message id",
            found.message_id
        );
        Err(Error::new(ErrorKind::Conflict, ErrorCode::MessageExists, message))
    }
}

fn workflow_of(commit: &Commit) -> Option<WorkflowName> {
    commit.ops.iter().find_map(|op| match op {
        Op::CreateRun(run) => Some(run.workflow.clone()),
        _ => None,
    })
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
            Err(Error::new(ErrorKind::Conflict, ErrorCode::RunExists, message))
        }
        Err(error) => Err(refusal(&error)),
    }
}

/// Creates runs, and starts those that this worker holds from the start.
pub(crate) struct RunStarter {
    core: Arc<Core>,
    registry: Arc<Registry>,
    capacity: Arc<Capacity>,
    runs: Arc<LocalRuns>,
    commits: Arc<CommitClient>,
    turns: Arc<TurnRunner>,
}

impl RunStarter {
    pub(crate) fn new(turns: Arc<TurnRunner>) -> Self {
        Self {
            core: Arc::clone(&turns.core),
            registry: Arc::clone(&turns.registry),
            capacity: Arc::clone(&turns.capacity),
            runs: Arc::clone(&turns.runs),
            commits: Arc::clone(&turns.commits),
            turns,
        }
    }

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
        let stamp = self.core.clock.stamp(self.core.clock.now());
        let draft = Draft::create(new, on_existing, stamp)?;
        Ok((draft.finish(), id, span))
    }

    /// The run that a request asks for. Every start, also that of a schedule, is validated here.
    pub(crate) fn new_run(
        &self,
        namespace: Namespace,
        mut start: StartRun,
    ) -> Result<NewRun, Error> {
        let registered = self.registry.get(&start.workflow);
        if let Some(registered) = &registered {
            registered.model.prepare(&mut start)?;
        }
        let run_key = self.core.clock.run_key();
        let id = match start.id {
            Some(id) => id,
            None => RunId::new(run_key.to_string())?,
        };
        let limit_key = start.limit_key.or_else(|| registered.and_then(|served| served.limit));
        let eager = start.due_at.is_none()
            && start.priority == 0
            && self.capacity.accepts_new_run(&start.workflow, limit_key.as_ref());
        let mut turn = match start.due_at {
            _ if eager => TurnRow::held_by(self.core.worker),
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
        new.validate(&self.core.options.limits)?;
        Ok(new)
    }

    /// Sends the commit that creates a run. A run that is held from the start is started here even if
    /// the caller drops this future: no other process would start it.
    async fn create(
        self: &Arc<Self>,
        commit: Commit,
    ) -> Result<windlass_kernel::Committed, CommitError> {
        let held = |op: &Op| matches!(op, Op::CreateRun(run) if run.turn.worker.is_some());
        if !commit.ops.iter().any(held) {
            return self.send_create(commit).await.0;
        }
        let starter = Arc::clone(self);
        let (sender, receiver) = futures::channel::oneshot::channel();
        let creating = async move { starter.send_create(commit).await }.in_current_span();
        // The turns run in the task that sent the commit, which saves another task.
        let starter = Arc::clone(self);
        let work = async move {
            let (answer, held) = creating.await;
            let turns =
                held.and_then(|(run, held_run)| starter.turns.first_turns(run, Some(held_run)));
            let _ = sender.send(answer);
            if let Some(turns) = turns {
                turns.await;
            }
        };
        self.core.env.spawn(Lane::User, Box::pin(work));
        receiver.await.unwrap_or_else(|_| Err(CommitError::Unknown(Arc::new(interrupted()))))
    }

    async fn create_and_begin(self: &Arc<Self>, commit: Commit) -> Created {
        let (answer, held) = self.send_create(commit).await;
        if let Some((run, held_run)) = held {
            self.turns.start_created(run, Some(held_run));
        }
        answer
    }

    // The answer, and the run with its mark if it is held here now.
    async fn send_create(self: &Arc<Self>, commit: Commit) -> (Created, Option<CreatedHeld>) {
        let run_key = commit.run_key().expect("a create names its run");
        let row = commit.ops.iter().find_map(|op| match op {
            Op::CreateRun(run) if run.run_key == run_key => Some(run.clone()),
            _ => None,
        });
        let row = row.expect("a create holds its run");
        let eager = row.turn.worker.is_some();
        let held_run = eager.then(|| self.runs.hold(run_key));
        let append = telemetry::append(&row.workflow, &commit);
        let answer = Arc::clone(&self.commits).commit_for_caller(commit).instrument(append).await;
        let ours = matches!(&answer, Ok(committed) if committed.run_key == Some(run_key));
        if ours {
            self.core.metrics.runs_created.add(1);
            self.core.run_enqueued(&row, EnqueuedReason::Create);
        }
        let held = match (held_run, &answer) {
            (Some(held_run), Ok(committed)) if ours && committed.hold.is_some() => {
                Some((row, held_run))
            }
            (Some(held_run), _) => {
                self.runs.unhold(run_key, &held_run);
                None
            }
            (None, _) => None,
        };
        (answer, held)
    }
}

type Created = Result<windlass_kernel::Committed, CommitError>;
type CreatedHeld = (Box<Run>, Arc<HeldRun>);
