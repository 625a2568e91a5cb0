//! Starting runs: the request, admission, and the commit that creates a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{Instrument as _, Span};
use windlass_kernel::{
    Body, CausalRef, Commit, CommitError, Conflict, Draft, Error, ErrorCode, ErrorKind, Ledger,
    LimitKey, Limits, ModelName, Namespace, NewEvent, NewRun, OnExisting, Op, Run, RunId, RunKey,
    Stamp, Timestamp, Turn as TurnRow, WorkflowName,
};

use crate::admission::AdmissionControl;
use crate::capacity::Capacity;
use crate::commit::CommitClient;
use crate::core::{Core, after_write, interrupted};
use crate::env::Lane;
use crate::held_run::HeldRun;
use crate::local_runs::LocalRuns;
use crate::model::Creating;
use crate::options::EnqueuedReason;
use crate::record_change::RecordChange;
use crate::registry::{Registered, Registry};
use crate::telemetry;
use crate::turn::refusal;
use crate::turn_runner::TurnRunner;
use crate::workflow_counts::WorkflowFigure;

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
    /// Events that follow `workflow.enqueued` in the commit that creates the run, at most
    /// [`START_EVENTS_MAX`]. A run that exists gets none of them.
    pub events: Vec<StartEvent>,
    /// Records that the commit which creates the run checks or writes. If one is not as expected, no run is
    /// created. A start that finds its run does not look at them.
    pub records: Vec<RecordChange>,
}

/// How many events a request to start a run can have.
pub const START_EVENTS_MAX: usize = 100;

/// An event that follows the first event of a new run.
#[derive(Clone, Debug)]
pub struct StartEvent {
    event: NewEvent,
    custom: Option<(u16, Option<CausalRef>)>,
    payload: serde_json::Value,
}

impl StartEvent {
    /// An event of a model.
    pub fn new(event: impl Into<NewEvent>, payload: serde_json::Value) -> Self {
        Self { event: event.into(), custom: None, payload }
    }

    /// An event of the user, with a name that is not reserved.
    ///
    /// # Errors
    ///
    /// The name, the version or the payload is invalid.
    pub fn custom(
        event_type: &str,
        version: u16,
        payload: serde_json::Value,
        caused_by: Option<CausalRef>,
        limits: &Limits,
    ) -> Result<Self, Error> {
        let (event_type, _) = Ledger::check_custom(event_type, version, &payload, limits)?;
        Ok(Self { event: event_type.into(), custom: Some((version, caused_by)), payload })
    }

    fn append(self, draft: &mut Draft, stamp: Stamp, limits: &Limits) -> Result<(), Error> {
        let Self { event, custom, payload } = self;
        let name = event.event_type().clone();
        let name = name.as_str();
        match custom {
            None => draft.event(event, &payload, stamp),
            Some((version, None)) => draft.record_event(name, version, &payload, stamp, limits),
            Some((version, Some(cause))) => {
                draft.record_event_caused_by(name, version, &payload, cause, stamp, limits)
            }
        }
        .map(|_| ())
    }
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
            events: Vec::new(),
            records: Vec::new(),
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

/// Additions of a request to the commit that creates its run.
struct Follows {
    events: Vec<StartEvent>,
    records: Vec<RecordChange>,
}

/// Creates runs, and starts those that this worker holds from the start.
pub(crate) struct RunStarter {
    core: Arc<Core>,
    registry: Arc<Registry>,
    capacity: Arc<Capacity>,
    runs: Arc<LocalRuns>,
    commits: Arc<CommitClient>,
    turns: Arc<TurnRunner>,
    pub(crate) admission: Arc<AdmissionControl>,
}

impl RunStarter {
    pub(crate) fn new(turns: Arc<TurnRunner>, admission: Arc<AdmissionControl>) -> Self {
        Self {
            core: Arc::clone(&turns.core),
            registry: Arc::clone(&turns.registry),
            capacity: Arc::clone(&turns.capacity),
            runs: Arc::clone(&turns.runs),
            commits: Arc::clone(&turns.commits),
            turns,
            admission,
        }
    }

    /// Starts a run. If a run with this id exists, the same input returns it, and another input is an
    /// error.
    pub(crate) async fn start(
        self: &Arc<Self>,
        namespace: &Namespace,
        start: StartRun,
    ) -> Result<Started, Error> {
        self.admit_start(namespace, &start).await?;
        let mut start = start;
        self.turns.templates.complete_start(&mut start).await?;
        let (commit, id, span) = self.creating(namespace.clone(), start)?;
        let run_key = commit.run_key().expect("a create names its run");
        let workflow = workflow_of(&commit);
        let answer = self.create(commit).instrument(span).await;
        let mut started = started(answer, run_key, id)?;
        if started.existed
            && let Some(workflow) = workflow
            && let Some(newest) = self.find(namespace, &workflow, &started.id).await?
        {
            // The store found the first generation; the run may be in a later one.
            started.run_key = newest.run_key;
        }
        Ok(started)
    }

    // Admission does not apply to a run that exists.
    async fn admit_start(&self, namespace: &Namespace, start: &StartRun) -> Result<(), Error> {
        let ours = start.workflow.as_str().starts_with("windlass.");
        let refused = if ours { None } else { self.admission.admit().await.err() };
        let Some(refused) = refused else { return Ok(()) };
        let found = match &start.id {
            Some(id) => self.find(namespace, &start.workflow, id).await?,
            None => None,
        };
        found.map_or(Err(refused), |_| Ok(()))
    }

    /// Starts many runs at once. The result leaves out runs whose id exists.
    pub(crate) async fn start_many(
        self: &Arc<Self>,
        namespace: &Namespace,
        starts: Vec<StartRun>,
    ) -> Result<Vec<Started>, Error> {
        self.admission.admit().await?;
        let mut pending = Vec::new();
        for mut start in starts {
            start.on_existing = OnExisting::Refuse;
            self.turns.templates.complete_start(&mut start).await?;
            let (commit, id, span) = self.creating(namespace.clone(), start)?;
            let run_key = commit.run_key().expect("a create names its run");
            let starter = Arc::clone(self);
            let creating =
                async move { started(starter.create_and_begin(commit).await, run_key, id) };
            pending.push(creating.instrument(span));
        }
        let (mut runs, mut failed) = (Vec::new(), None);
        // In one task: the commits are sent in order, so of two starts with one id the first wins.
        for answer in self.core.run_to_completion(futures::future::join_all(pending)).await? {
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
    pub(crate) async fn find(
        &self,
        namespace: &Namespace,
        workflow: &WorkflowName,
        id: &RunId,
    ) -> Result<Option<Run>, Error> {
        let (workflow, id) = (workflow.clone(), id.clone());
        let mut found = self.core.store.find(namespace.clone(), workflow, id).await?;
        if let Some(run) = &mut found {
            self.core.fill_run(run).await?;
        }
        Ok(found)
    }

    /// Refuses a request that could never start a run.
    pub(crate) async fn check(
        &self,
        namespace: Namespace,
        mut start: StartRun,
    ) -> Result<(), Error> {
        self.turns.templates.complete_start(&mut start).await?;
        self.new_run(namespace, start).map(|_| ())
    }

    fn creating(
        &self,
        namespace: Namespace,
        start: StartRun,
    ) -> Result<(Commit, RunId, Span), Error> {
        let on_existing = start.on_existing;
        let mut start = start;
        let registered = self.registry.get(&start.workflow);
        if let Some(registered) = &registered {
            registered.model.prepare(&mut start)?;
        }
        let follows = Follows {
            events: std::mem::take(&mut start.events),
            records: std::mem::take(&mut start.records),
        };
        let mut new = self.prepared_run(namespace, start, registered.as_ref())?;
        let id = new.id.clone();
        let span = telemetry::start(&new.workflow, new.trace.as_deref(), new.run_key, &id);
        new.trace = telemetry::traceparent(&span).or(new.trace);
        let stamp = self.core.clock.stamp(self.core.clock.now());
        let held = new.turn.worker.is_some();
        let mut draft = Draft::create(new, on_existing, stamp)?;
        let begins = registered.filter(|_| held);
        self.follow_up(&mut draft, follows, begins, stamp.at)?;
        Ok((draft.finish(), id, span))
    }

    // Adds what follows the first event of a new run: the events and records of the request, then what
    // the model adds to a run that this process begins at once.
    fn follow_up(
        &self,
        draft: &mut Draft,
        follows: Follows,
        begins: Option<Registered>,
        last_at: Timestamp,
    ) -> Result<(), Error> {
        let limits = &self.core.options.limits;
        let count = follows.events.len();
        if count > START_EVENTS_MAX {
            let message =
                format!("a start has {count} events; at most {START_EVENTS_MAX} are allowed");
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
        }
        draft.set_limits(limits);
        let mut creating = Creating { draft, clock: &self.core.clock, last_at };
        for event in follows.events {
            let stamp = creating.stamp();
            event.append(creating.draft, stamp, limits)?;
        }
        for record in follows.records {
            record.check_limits(limits)?;
            let stamp = creating.stamp();
            let namespace =
                creating.draft.created().expect("a start creates a run").namespace.clone();
            creating.draft.record(record.op(&namespace, stamp), stamp)?;
        }
        begins.map_or(Ok(()), |registered| registered.model.begin(&mut creating))
    }

    /// The run that a request asks for. Every start, also that of a schedule, is validated here.
    fn new_run(&self, namespace: Namespace, mut start: StartRun) -> Result<NewRun, Error> {
        let registered = self.registry.get(&start.workflow);
        if let Some(registered) = &registered {
            registered.model.prepare(&mut start)?;
        }
        self.prepared_run(namespace, start, registered.as_ref())
    }

    fn prepared_run(
        &self,
        namespace: Namespace,
        start: StartRun,
        registered: Option<&Registered>,
    ) -> Result<NewRun, Error> {
        let run_key = self.core.clock.run_key();
        let id = match start.id {
            Some(id) => id,
            None => RunId::new(run_key.to_string())?,
        };
        let limit_key =
            start.limit_key.or_else(|| registered.and_then(|served| served.limit.clone()));
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
            let started = WorkflowFigure::RunsStarted;
            self.core.metrics.workflows.add(&row.namespace, &row.workflow, started);
            self.core.run_enqueued(&row, EnqueuedReason::Create);
        }
        let held = match (held_run, &answer) {
            (Some(held_run), Ok(committed)) if ours && committed.hold.is_some() => {
                Some((row, held_run))
            }
            (Some(held_run), _) => {
                self.runs.unhold(run_key, &held_run);
                if matches!(answer, Err(CommitError::Unknown(_))) {
                    // If the run exists, the store says that this worker holds it.
                    self.turns.scan_later();
                }
                None
            }
            (None, _) => None,
        };
        (answer, held)
    }
}

type Created = Result<windlass_kernel::Committed, CommitError>;
type CreatedHeld = (Box<Run>, Arc<HeldRun>);
