//! Descriptions of models: static data that the engine, the server and `why` read.
//!
//! A description exists once per model and needs no served workflow, so a process that serves nothing
//! still describes the runs of every model that it was built with.

use serde_json::{Value, json};
use windlass_kernel::request::RequestStatus;
use windlass_kernel::{
    Body, Error, EventType, LoadSteps, Message, MessageKind, MessageName, ModelName, RetryPolicy,
    Run, Sha256Digest, Step, StepKey, StepKind, StepStatus, Timestamp,
};

use crate::events;
use crate::explain::{
    ChildRef, Explain, explain_activity, explain_child, explain_request, explain_sleep,
    explain_wait, explain_work,
};
use crate::keyed::KeyedWait;
use crate::requests::RequestRef;

/// A step that waits for an activity; its task does the work.
pub const ACTIVITY: StepKind = StepKind::from_static("activity");
/// A step that waits for a child run.
pub const CHILD: StepKind = StepKind::from_static("child");

/// A step that waits for a request to people.
pub const REQUEST: StepKind = StepKind::from_static("request");

/// The steps of an activity and of a child are the same in every model.
pub const ACTIVITY_STEP: StepDescription = StepDescription::new(ACTIVITY, StepRole::Activity);
/// See [`ACTIVITY_STEP`].
pub const CHILD_STEP: StepDescription = StepDescription::new(CHILD, StepRole::Child);
/// See [`ACTIVITY_STEP`].
pub const REQUEST_STEP: StepDescription =
    StepDescription::new(REQUEST, StepRole::Request).on_cancelled(request_withdrawn);

fn request_withdrawn(step: &Step) -> Option<(EventType, Value)> {
    let request = RequestRef::of(step).map(|request| request.request);
    let status = RequestStatus::Withdrawn;
    let payload = json!({ "key": step.step_key, "request": request, "status": status });
    Some((events::REQUEST_CLOSED, payload))
}

/// The retry policy of an activity that names none: five attempts, 1 s doubling up to 60 s, 10 % jitter.
pub const ACTIVITY_RETRY: RetryPolicy = RetryPolicy::exponential_const(
    windlass_kernel::RetryLimit::Times(4),
    std::time::Duration::from_secs(1),
    Some(std::time::Duration::from_secs(60)),
)
.with_jitter(0.1);

/// A model, as data. Build it with [`ModelDescription::new`] in a `static`.
pub struct ModelDescription {
    /// The name that its runs carry.
    pub name: ModelName,
    /// How its runs are asked to end.
    pub cancel: &'static CancelPolicy,
    /// The kind of the message that `signal` of a run's handle sends. By default a signal is an event.
    pub signal_kind: MessageKind,
    /// The kinds of its steps.
    pub steps: &'static [StepDescription],
    /// The events that only this model writes.
    pub events: &'static [EventDescription],
    /// The retry policy of its steps; none if it tries no step by itself.
    pub retry: Option<&'static RetryPolicy>,
    /// Which steps a run of it needs in order to go on.
    pub load: &'static LoadSteps,
    /// Where the dead letters of its own steps go; none if it leaves none.
    pub dead_letters: Option<DeadLetterRoute>,
    /// The step whose failure ended a run; a retry tries it again and carries the other settled steps over.
    pub failed_step: fn(&Run, &[Step]) -> Option<StepKey>,
    /// Whether a retry carries a settled step over. The failed step is never carried. A model whose
    /// next generation reads the rows of the one before carries none.
    pub retry_carries: fn(&Run, &Step) -> bool,
    /// Whether a next generation reads rows of those before it. Retention keeps those as long as a newer
    /// generation is not over.
    pub reads_earlier_generations: bool,
    /// Whether a retry carries an unread message over. By default it carries events and signals.
    pub retry_forwards: fn(&Run, &Message) -> bool,
    /// Whether a step of a run is the one that waits, or has waited, for this child. By default it is
    /// the step whose input names the child, as [`crate::explain::ChildRef`] does.
    pub waits_for_child: fn(&Step, &Run) -> bool,
    /// The snapshot with which a retry of a run begins.
    pub retry_state: fn(&Run) -> Result<Option<Body>, Error>,
    /// The snapshot with which a restart of a run begins, with the same input or with another one.
    pub restart_state: fn(&Run) -> Result<Option<Body>, Error>,
    /// The large bodies that a snapshot names ([`Draft::put_body`](windlass_kernel::Draft::put_body)). A
    /// next generation that begins with the snapshot gets a copy of those that its tree does not have.
    pub bodies_of_state: fn(&Body) -> Vec<Sha256Digest>,
    /// The name that the model's own code has for a step, from the step's key.
    pub step_id: fn(&str) -> &str,
    /// The input and the options of a scheduled activity, from the JSON of its step's input.
    pub activity_arguments: fn(Value) -> ActivityArguments,
    /// The route sets of the server that belong to it, by name.
    pub routes: &'static [&'static str],
    // The neutral description stands for models that this build does not know.
    known: bool,
}

/// One kind of a model's steps.
pub struct StepDescription {
    /// The kind.
    pub kind: StepKind,
    /// The role of such a step.
    pub role: StepRole,
    /// The reason that `why` gives while such a step is open.
    pub explain: Explain,
    /// The event of such a step that is open when somebody ends its run; none for the engine's own.
    pub on_cancelled: Option<OnStepCancelled>,
}

/// The event of a cancelled step: its type and payload; none if the engine's own event fits.
pub type OnStepCancelled = fn(&Step) -> Option<(EventType, Value)>;

/// The role of a step. It decides how the engine treats the step and how the API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepRole {
    /// The holder of the run's turn executes it, and tries it again when it fails.
    Work,
    /// It is written together with its result and is never open.
    Record,
    /// It waits for a time.
    Sleep,
    /// It waits for a message.
    Event,
    /// It waits for a child run.
    Child,
    /// It waits for the result of a task.
    Activity,
    /// It waits for the decision of people.
    Request,
}

impl StepRole {
    /// The word for it in `type` of the HTTP API, which knows three.
    pub const fn api_type(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Event | Self::Request => "waitForEvent",
            Self::Work | Self::Record | Self::Child | Self::Activity => "do",
        }
    }

    /// How often such a step is tried if its row has no bound; the HTTP API wants a number.
    pub const fn attempts_default(self) -> u32 {
        match self {
            Self::Work | Self::Activity => i32::MAX as u32,
            Self::Record | Self::Sleep | Self::Event | Self::Child | Self::Request => 1,
        }
    }

    /// Whether the step only waits. A retried run asks for such a step anew.
    pub const fn is_wait(self) -> bool {
        matches!(self, Self::Sleep | Self::Event | Self::Child | Self::Activity | Self::Request)
    }

    /// Whether something outside the run works for the step, so that the end of the run must stop it.
    pub const fn reaches_outside(self) -> bool {
        matches!(self, Self::Child | Self::Activity | Self::Request)
    }
}

impl StepDescription {
    /// A kind with the explanation that fits its role.
    pub const fn new(kind: StepKind, role: StepRole) -> Self {
        let explain: Explain = match role {
            StepRole::Work | StepRole::Record => explain_work,
            StepRole::Sleep => explain_sleep,
            StepRole::Event => explain_wait,
            StepRole::Child => explain_child,
            StepRole::Activity => explain_activity,
            StepRole::Request => explain_request,
        };
        Self { kind, role, explain, on_cancelled: None }
    }

    /// The same with another reason in `why`.
    pub const fn explained_by(mut self, explain: Explain) -> Self {
        self.explain = explain;
        self
    }

    /// The same with an event of its own for steps that are open when somebody ends the run.
    pub const fn on_cancelled(mut self, event: OnStepCancelled) -> Self {
        self.on_cancelled = Some(event);
        self
    }

    /// Whether an open step is being executed now, or is about to be, whatever its row says: a step that
    /// had to wait is begun without another commit.
    pub fn is_executing(&self, run: &Run, step: &Step, now: Timestamp) -> bool {
        let tried = self.role == StepRole::Work && !step.status.is_settled();
        let for_signal = step.status == StepStatus::Waiting && step.attempt == 0;
        tried
            && run.turn.worker.is_some()
            && !(for_signal && step.wait_for.is_some())
            && step.due_at.is_none_or(|due| due <= now)
    }

    /// The event of such a step that is open when somebody ends its run.
    pub fn cancelled_event(&self, step: &Step) -> (EventType, Value) {
        let own = self.on_cancelled.and_then(|event| event(step));
        let key = step.step_key.as_str();
        own.unwrap_or_else(|| match self.role {
            StepRole::Activity => (events::ACTIVITY_CANCELLED, json!({ "key": key })),
            StepRole::Child => {
                let child = step.input.as_ref().and_then(|input| input.read::<Value>().ok());
                let run_key = child.map(|child| child["run_key"].clone());
                let payload = json!({ "key": key, "run_key": run_key, "cancelled": true });
                (events::CHILD_FAILED, payload)
            }
            _ => (events::STEP_CANCELLED, json!({ "key": key })),
        })
    }
}

/// How runs of a model are asked to end. By default the engine ends them, and the model is not asked.
pub struct CancelPolicy {
    /// The message that asks a run to end in its own time, with `{reason}` as its body.
    pub message: Option<MessageName>,
    /// The names of messages that end runs, or keep them from going on. The sender of such a message
    /// manages the run and needs the right to.
    pub controls: &'static [MessageName],
}

static ENGINE_CANCELS: CancelPolicy = CancelPolicy { message: None, controls: &[] };

/// Where dead letters of a model's own steps go.
pub struct DeadLetterRoute {
    /// The kind of the letter.
    pub kind: &'static str,
    /// The queue that it is listed under.
    pub queue: &'static str,
}

/// The arguments of a scheduled activity.
#[derive(Debug, Default)]
pub struct ActivityArguments {
    /// Its input.
    pub input: Value,
    /// Its options, if the model keeps them.
    pub options: Option<Value>,
}

/// An event type, with what it means to readers of the durable API.
pub struct EventDescription {
    /// The type.
    pub event_type: EventType,
    /// Its meaning.
    pub meaning: EventMeaning,
    /// Whether it writes a step that is still open; any other event with a step settles the step.
    pub opens_step: bool,
}

impl EventDescription {
    /// An event that settles its step, if it has one.
    pub const fn new(event_type: EventType, meaning: EventMeaning) -> Self {
        Self { event_type, meaning, opens_step: false }
    }

    /// An event whose step is still open after it.
    pub const fn opening(event_type: EventType, meaning: EventMeaning) -> Self {
        Self { event_type, meaning, opens_step: true }
    }
}

/// The meaning of an event, in the vocabulary of the durable API. [`EventMeaning::Other`] keeps the name and
/// the summary of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventMeaning {
    /// A run was created.
    WorkflowStarted,
    /// A run completed.
    WorkflowCompleted,
    /// A run failed.
    WorkflowFailed,
    /// Somebody ended a run.
    WorkflowCancelled,
    /// Work was scheduled.
    ActivityScheduled,
    /// A worker began it.
    ActivityStarted,
    /// It gave a result.
    ActivityCompleted,
    /// It failed for good.
    ActivityFailed,
    /// It failed and is tried again.
    ActivityRetried,
    /// It took too long.
    ActivityTimedOut,
    /// It was cancelled.
    ActivityCancelled,
    /// A time was waited for.
    TimerStarted,
    /// The time came.
    TimerFired,
    /// The wait was cancelled.
    TimerCancelled,
    /// A message was consumed.
    SignalReceived,
    /// A child was started.
    ChildStarted,
    /// It completed.
    ChildCompleted,
    /// It failed or was ended.
    ChildFailed,
    /// Anything else.
    Other,
}

impl EventMeaning {
    /// The word of the durable API. [`EventMeaning::Other`] has none.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WorkflowStarted => "WorkflowStarted",
            Self::WorkflowCompleted => "WorkflowCompleted",
            Self::WorkflowFailed => "WorkflowFailed",
            Self::WorkflowCancelled => "WorkflowCancelled",
            Self::ActivityScheduled => "ActivityScheduled",
            Self::ActivityStarted => "ActivityStarted",
            Self::ActivityCompleted => "ActivityCompleted",
            Self::ActivityFailed | Self::ActivityRetried => "ActivityFailed",
            Self::ActivityTimedOut => "ActivityTimedOut",
            Self::ActivityCancelled => "ActivityCancelled",
            Self::TimerStarted => "TimerStarted",
            Self::TimerFired => "TimerFired",
            Self::TimerCancelled => "TimerCancelled",
            Self::SignalReceived => "SignalReceived",
            Self::ChildStarted => "ChildWorkflowStarted",
            Self::ChildCompleted => "ChildWorkflowCompleted",
            Self::ChildFailed => "ChildWorkflowFailed",
            Self::Other => "",
        }
    }
}

/// The events that runs of every model have.
pub static COMMON_EVENTS: &[EventDescription] = &[
    EventDescription::new(events::WORKFLOW_ENQUEUED, EventMeaning::WorkflowStarted),
    EventDescription::new(events::WORKFLOW_COMPLETED, EventMeaning::WorkflowCompleted),
    EventDescription::new(events::WORKFLOW_FAILED, EventMeaning::WorkflowFailed),
    EventDescription::new(events::WORKFLOW_TERMINATED, EventMeaning::WorkflowCancelled),
    EventDescription::opening(events::MESSAGE_RECEIVED, EventMeaning::Other),
    EventDescription::opening(events::ACTIVITY_SCHEDULED, EventMeaning::ActivityScheduled),
    EventDescription::new(events::ACTIVITY_STARTED, EventMeaning::ActivityStarted),
    EventDescription::new(events::ACTIVITY_COMPLETED, EventMeaning::ActivityCompleted),
    EventDescription::opening(events::ACTIVITY_RETRIED, EventMeaning::ActivityRetried),
    EventDescription::new(events::ACTIVITY_FAILED, EventMeaning::ActivityFailed),
    EventDescription::new(events::ACTIVITY_TIMED_OUT, EventMeaning::ActivityTimedOut),
    EventDescription::new(events::ACTIVITY_CANCELLED, EventMeaning::ActivityCancelled),
    EventDescription::opening(events::CHILD_STARTED, EventMeaning::ChildStarted),
    EventDescription::new(events::CHILD_COMPLETED, EventMeaning::ChildCompleted),
    EventDescription::new(events::CHILD_FAILED, EventMeaning::ChildFailed),
    EventDescription::opening(events::REQUEST_OPENED, EventMeaning::Other),
    EventDescription::opening(events::REQUEST_DECIDED, EventMeaning::Other),
    EventDescription::new(events::REQUEST_CLOSED, EventMeaning::Other),
];

/// Whether an event may leave the step open that it writes, by the descriptions of these models and of the
/// engine's own. [`verify_store`](windlass_kernel::verify::verify_store) needs it.
pub fn opens_step(
    models: &'static [&'static ModelDescription],
) -> impl Fn(&Run, &EventType) -> bool + Send + Sync {
    move |run, event_type| {
        let mut known = models.iter().copied().chain([&crate::schedules::DESCRIPTION]);
        let model = known.find(|model| model.name == run.model).unwrap_or(&UNKNOWN);
        model.opens_step(event_type)
    }
}

// A step of a kind that no description has.
static OTHER_STEP: StepDescription =
    StepDescription::new(StepKind::from_static("step"), StepRole::Record);

/// Stands for a model that this build does not know.
pub(crate) static UNKNOWN: ModelDescription = {
    let mut description = ModelDescription::new(ModelName::from_static("unknown"));
    description.known = false;
    description.reads_earlier_generations = true;
    description
};

impl ModelDescription {
    /// A model whose runs the engine ends, that loads all steps and has no steps or events of its own.
    pub const fn new(name: ModelName) -> Self {
        Self {
            name,
            cancel: &ENGINE_CANCELS,
            signal_kind: MessageKind::Event,
            steps: &[],
            events: &[],
            retry: None,
            load: &LoadSteps::All,
            dead_letters: None,
            failed_step,
            retry_carries: |_, _| true,
            reads_earlier_generations: false,
            retry_forwards: |_, message| {
                use MessageKind::{Event, KeyedEvent, Signal};
                matches!(message.kind, Event | KeyedEvent | Signal)
            },
            waits_for_child,
            retry_state: |_| Ok(None),
            restart_state: |_| Ok(None),
            bodies_of_state: |_| Vec::new(),
            step_id: same,
            activity_arguments: input_alone,
            routes: &[],
            known: true,
        }
    }

    /// The kind of a step, or a neutral one if the model has no such kind.
    pub fn step(&self, kind: &StepKind) -> &'static StepDescription {
        self.steps.iter().find(|step| step.kind == *kind).unwrap_or(&OTHER_STEP)
    }

    /// The meaning of an event in runs of this model.
    pub fn meaning(&self, event_type: &EventType) -> EventMeaning {
        let mut known = self.events.iter().chain(COMMON_EVENTS);
        let found = known.find(|event| event.event_type == *event_type);
        found.map_or(EventMeaning::Other, |event| event.meaning)
    }

    /// Whether an event in runs of this model may leave the step open that it writes. Of an unknown model,
    /// every event may.
    pub fn opens_step(&self, event_type: &EventType) -> bool {
        let mut known = self.events.iter().chain(COMMON_EVENTS);
        let found = known.find(|event| event.event_type == *event_type);
        found.map_or(!self.known, |event| event.opens_step)
    }

    /// Whether something outside the run may work for an open step, or keeps a registration of it. Of an
    /// unknown model, it may for every step.
    pub fn reaches_outside(&self, step: &Step) -> bool {
        let role = self.step(&step.kind).role;
        let waits_for_key = || role == StepRole::Event && KeyedWait::of(step).is_some();
        !self.known || role.reaches_outside() || waits_for_key()
    }

    /// Whether any step of such a run can reach outside it.
    pub fn has_reach(&self) -> bool {
        let reaches =
            |step: &StepDescription| step.role.reaches_outside() || step.role == StepRole::Event;
        !self.known || self.steps.iter().any(reaches)
    }
}

fn same(key: &str) -> &str {
    key
}

fn input_alone(input: Value) -> ActivityArguments {
    ActivityArguments { input, options: None }
}

// A child keeps its name over generations, and each generation has a key of its own.
fn waits_for_child(step: &Step, child: &Run) -> bool {
    match ChildRef::of(step) {
        Some(named) => named.workflow == child.workflow && named.id == child.id.as_str(),
        // A settled step may keep no input.
        None => child.fork.as_deref() == Some(step.step_key.as_str()),
    }
}

/// The step that the error of a run names, else the last one that failed.
pub fn failed_step(run: &Run, steps: &[Step]) -> Option<StepKey> {
    let error: Option<Value> = run.error.as_ref().and_then(|error| error.read().ok());
    let named = error.as_ref().and_then(|error| error["step"].as_str());
    let failed = steps
        .iter()
        .filter(|step| step.status.is_settled() && step.status != StepStatus::Completed);
    match named {
        Some(named) => failed.map(|step| &step.step_key).find(|key| key.as_str() == named).cloned(),
        // A cancelled step did not end the run.
        None => failed
            .filter(|step| step.status == StepStatus::Errored)
            .max_by_key(|step| step.updated_at)
            .map(|step| step.step_key.clone()),
    }
}
