//! Book-keeping of a machine's actions and their results, the same live and on replay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use windlass_engine::RecordChange;
use windlass_kernel::request::Request;
use windlass_kernel::{
    Body, Error, ErrorCode, ErrorKind, LimitKey, Limits, QueueName, RetryPolicy, RouteName, RunKey,
    Step, StepKind, StepStatus, TaskId, Timestamp, WorkflowName,
};

use super::action::{ActivityOptions, WorkflowAction};
use super::machine::Answer;
use super::workflow::WorkflowError;
use crate::effects::{Effect, Writes};
use crate::run::{check_body, invalid};

const ID_CHARS_MAX: usize = 200;
/// Bytes that a step needs beside its specification, for the ids of its task or its child.
const ADDED_BYTES: usize = 2 * 1024;
/// The prefixes of step keys, except those of activities.
const PREFIXES: [&str; 5] = ["timer/", "child/", "effect/", "request/", "records/"];

/// An action as it was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Activity,
    Timer,
    Child,
    Effect,
    /// A request to people.
    Request,
    /// Writes of records, all in one commit.
    Records,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Activity => "activity",
            Self::Timer => "timer",
            Self::Child => "child",
            Self::Effect => "effect",
            Self::Request => "request",
            Self::Records => "records",
        }
    }

    const fn with_article(self) -> &'static str {
        match self {
            Self::Activity => "an activity",
            Self::Timer => "a timer",
            Self::Child => "a child",
            Self::Effect => "an effect",
            Self::Request => "a request",
            Self::Records => "a write of records",
        }
    }

    fn parse(kind: &StepKind) -> Option<Self> {
        let kinds =
            [Self::Activity, Self::Timer, Self::Child, Self::Effect, Self::Request, Self::Records];
        kinds.into_iter().find(|known| known.as_str() == kind.as_str())
    }

    // Activities have the plain names: they are what people look for.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Activity => "",
            Self::Timer => "timer/",
            Self::Child => "child/",
            Self::Effect => "effect/",
            Self::Request => "request/",
            Self::Records => "records/",
        }
    }
}

/// The machine's own name for what a step's key stands for.
pub(crate) fn id_of(step_key: &str) -> &str {
    let id = PREFIXES.iter().find_map(|prefix| step_key.strip_prefix(prefix));
    let id = id.unwrap_or(step_key);
    id.split('#').next().unwrap_or(id)
}

/// An activity or a child as its step records it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    #[serde(rename = "type")]
    pub(crate) type_name: String,
    pub(crate) input: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) options: Option<ActivityOptions>,
    /// The activity's task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) task_id: Option<TaskId>,
    /// The child's run, by the words that steps of other models name theirs with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workflow: Option<WorkflowName>,
    /// A text: the id is composed, and read as a user's own it would be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_key: Option<RunKey>,
}

impl Spec {
    pub(crate) fn of(step: &Step) -> Option<Self> {
        step.input.as_ref().and_then(|input| input.read().ok())
    }
}

/// Something that was asked for and is not over.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    /// Its row; none between being asked for and being written.
    pub(crate) row: Option<Step>,
    pub(crate) options: Option<ActivityOptions>,
    /// When an activity's timeouts are looked at.
    pub(crate) check_at: Option<Timestamp>,
}

/// The validated actions of a callback.
#[derive(Debug)]
pub(crate) enum Planned {
    Activity {
        key: Arc<str>,
        spec: Spec,
    },
    Timer {
        key: Arc<str>,
        duration: Duration,
    },
    Child {
        key: Arc<str>,
        workflow: WorkflowName,
        spec: Spec,
    },
    Cancel {
        key: Arc<str>,
        entry: Box<Entry>,
    },
    Effect {
        key: Arc<str>,
        spec: Spec,
        effect: Effect,
    },
    Request {
        key: Arc<str>,
        request: Box<Request>,
    },
    Records {
        key: Arc<str>,
        spec: Spec,
    },
    /// An earlier generation has enqueued the effect.
    EffectCarried {
        key: Arc<str>,
    },
    /// Requested after the signal `shutdown`.
    HeldBack {
        what: String,
    },
    End(Ended),
}

/// How a machine ends its run.
#[derive(Debug)]
pub(crate) enum Ended {
    Returned(Result<Body, WorkflowError>),
    /// The next generation begins with this input.
    Continued(Body),
}

pub(crate) struct Pending {
    pub(crate) open: BTreeMap<Arc<str>, Entry>,
    used: BTreeMap<(Kind, String), u32>,
    /// Settled rows that an earlier generation left; they answer at once when they are asked for.
    carried: BTreeMap<Arc<str>, Step>,
    asked_of_carried: BTreeSet<Arc<str>>,
    /// The recorded actions, during a replay.
    record: Option<BTreeMap<Arc<str>, Step>>,
    steps: usize,
    pub(crate) shutdown: bool,
    limits: Limits,
}

impl Pending {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            open: BTreeMap::new(),
            used: BTreeMap::new(),
            carried: BTreeMap::new(),
            asked_of_carried: BTreeSet::new(),
            record: None,
            steps: 0,
            shutdown: false,
            limits,
        }
    }

    /// Takes in rows: of an earlier generation, and of this one, which the code is to ask for again.
    pub(crate) fn begin_replay(&mut self, carried: Vec<Step>, record: Vec<Step>) {
        let keyed = |step: Step| (Arc::from(step.step_key.as_str()), step);
        self.carried = carried.into_iter().map(keyed).collect();
        self.record = Some(record.into_iter().map(keyed).collect());
    }

    /// Loads the rows of a machine that was restored from its snapshot. `delivered` has the carried steps
    /// whose results the machine has received.
    pub(crate) fn restore(&mut self, carried: Vec<Step>, rows: Vec<Step>, delivered: &[String]) {
        let was_delivered = |step: &Step| delivered.iter().any(|key| key == step.step_key.as_str());
        let (known, carried): (Vec<Step>, Vec<Step>) = carried.into_iter().partition(was_delivered);
        for step in rows.into_iter().chain(known) {
            let Some(kind) = Kind::parse(&step.kind) else { continue };
            let id = id_of(step.step_key.as_str()).to_owned();
            let used = self.used.entry((kind, id.clone())).or_default();
            *used = (*used).max(occurrence(step.step_key.as_str()));
            self.steps += usize::from(kind != Kind::Timer);
            if !step.status.is_settled() {
                let options = Spec::of(&step).and_then(|spec| spec.options);
                let key = Arc::from(step.step_key.as_str());
                let entry = Entry { kind, id, row: Some(step), options, check_at: None };
                self.open.insert(key, entry);
            }
        }
        let keyed = |step: Step| (Arc::from(step.step_key.as_str()), step);
        self.carried = carried.into_iter().map(keyed).collect();
    }

    /// The rest of the record must be what the code has asked for and still waits for.
    pub(crate) fn end_replay(&mut self) -> Result<(), Error> {
        let Some(record) = self.record.take() else { return Ok(()) };
        for (key, step) in record {
            if step.kind == Kind::Effect.step_kind() {
                let used = self.used.get(&(Kind::Effect, id_of(&key).to_owned()));
                if used.copied().unwrap_or(0) < occurrence(&key) {
                    return Err(nondeterminism(format!(
                        "the record has effect {key:?}, which the code has not asked for"
                    )));
                }
                continue;
            }
            match (step.status.is_settled(), self.open.contains_key(&key)) {
                (true, false) | (false, true) => {}
                (true, true) => {
                    return Err(nondeterminism(format!(
                        "the record has {} {key:?} called off, and the code still waits for it",
                        step.kind
                    )));
                }
                (false, false) => {
                    return Err(nondeterminism(format!(
                        "the record has {} {key:?}, which the code has not asked for",
                        step.kind
                    )));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.record.is_some()
    }

    /// The oldest result of an earlier generation that the code has asked for.
    pub(crate) fn next_carried(&mut self) -> Option<(Entry, Step)> {
        let of = |key: &Arc<str>| self.carried.get(key).map(|step| step.updated_at);
        let key = self.asked_of_carried.iter().min_by_key(|key| of(key)).cloned()?;
        self.asked_of_carried.remove(&key);
        let entry = self.open.remove(&key)?;
        Some((entry, self.carried.remove(&key)?))
    }

    /// Whether activities, children or writes are under way. People may take weeks, so a run that is shut
    /// down does not wait for them.
    pub(crate) fn is_working(&self) -> bool {
        let works = |kind| matches!(kind, Kind::Activity | Kind::Child | Kind::Records);
        self.open.values().any(|entry| works(entry.kind))
    }

    /// Whether the end of the run must stop something outside it.
    pub(crate) fn reaches_outside(&self) -> bool {
        let reaches = |kind| matches!(kind, Kind::Activity | Kind::Child | Kind::Request);
        self.open.values().any(|entry| reaches(entry.kind))
    }

    /// The oldest write of records whose outcome is known (`true`) or not known (`false`).
    pub(crate) fn next_records(&self, known: bool) -> Option<Arc<str>> {
        let of = |(key, entry): (&Arc<str>, &Entry)| {
            let row = entry.row.as_ref().filter(|_| entry.kind == Kind::Records)?;
            let is_known = row.result.is_some() || row.error.is_some();
            (is_known == known).then(|| (row.position, Arc::clone(key)))
        };
        self.open.iter().filter_map(of).min().map(|(_, key)| key)
    }

    /// The validated actions of a callback. Nothing is written before all of it is known to be right.
    pub(crate) fn plan(&mut self, answer: Answer) -> Result<Vec<Planned>, Error> {
        let mut planned = Vec::new();
        let mut begun = false;
        for action in answer.actions {
            if matches!(planned.last(), Some(Planned::End(_))) {
                return Err(misuse("an action follows the one that ends the run; end it last"));
            }
            begun |= matches!(
                action,
                WorkflowAction::ScheduleActivity { .. }
                    | WorkflowAction::StartTimer { .. }
                    | WorkflowAction::ScheduleChildWorkflow { .. }
                    | WorkflowAction::OpenRequest { .. }
                    | WorkflowAction::WriteRecords { .. }
            );
            planned.extend(self.plan_one(action)?);
        }
        if let Some(end) = answer.end
            && !matches!(planned.last(), Some(Planned::End(_)))
        {
            planned.push(Planned::End(Ended::Returned(end)));
        }
        if let Some(Planned::End(end)) = planned.last() {
            if begun && !self.shutdown {
                return Err(misuse(
                    "the callback that ends the run also begins something; nobody would wait for it",
                ));
            }
            if self.record.is_some() {
                let how = match end {
                    Ended::Returned(Ok(_)) => "completes",
                    Ended::Returned(Err(_)) => "fails",
                    Ended::Continued(_) => "continues as a new generation of",
                };
                return Err(nondeterminism(format!(
                    "the code {how} the run, where the record goes on"
                )));
            }
        }
        Ok(planned)
    }

    fn plan_one(&mut self, action: WorkflowAction) -> Result<Option<Planned>, Error> {
        match action {
            WorkflowAction::None => Ok(None),
            WorkflowAction::Invalid(message) => Err(invalid(ErrorCode::InvalidDuration, message)),
            WorkflowAction::ScheduleActivity { activity_id, activity_type, input, options } => {
                self.activity(activity_id, activity_type, &input, options)
            }
            WorkflowAction::StartTimer { timer_id, duration } => {
                let days = Duration::from_secs(u64::from(self.limits.sleep_days_max) * 86_400);
                if duration > days {
                    let max = self.limits.sleep_days_max;
                    return Err(misuse(&format!(
                        "timer {timer_id:?} runs for {duration:?}; at most {max} days are allowed"
                    )));
                }
                if self.shutdown {
                    return Ok(Some(held_back(Kind::Timer, &timer_id)));
                }
                let asked = self.ask(Kind::Timer, timer_id, None)?;
                Ok(asked.map(|key| Planned::Timer { key, duration }))
            }
            WorkflowAction::ScheduleChildWorkflow { workflow_id, workflow_type, input } => {
                let workflow = WorkflowName::with_limits(&workflow_type, &self.limits)?;
                let spec = self.spec("the child's input", workflow_type, &input, None)?;
                let (found, max) = (spec.input.get().len(), self.limits.input_bytes_max);
                if found > max {
                    let message =
                        format!("the child's input has {found} bytes; at most {max} are allowed");
                    return Err(invalid(ErrorCode::InvalidSize, message));
                }
                if self.shutdown {
                    return Ok(Some(held_back(Kind::Child, &workflow_id)));
                }
                let asked = self.ask(Kind::Child, workflow_id, Some(&spec))?;
                Ok(asked.map(|key| Planned::Child { key, workflow, spec }))
            }
            WorkflowAction::CancelActivity { activity_id } => {
                self.cancel(Kind::Activity, activity_id)
            }
            WorkflowAction::CancelTimer { timer_id } => self.cancel(Kind::Timer, timer_id),
            WorkflowAction::OpenRequest { request_id, request } => {
                request.check(&self.limits)?;
                if self.shutdown {
                    return Ok(Some(held_back(Kind::Request, &request_id)));
                }
                let request = Box::new(request.or_title(&request_id));
                let asked = self.ask(Kind::Request, request_id, None)?;
                Ok(asked.map(|key| Planned::Request { key, request }))
            }
            WorkflowAction::WithdrawRequest { request_id } => {
                self.cancel(Kind::Request, request_id)
            }
            WorkflowAction::WriteRecords { write_id, changes } => self.records(write_id, changes),
            WorkflowAction::EnqueueEffect { name, input, retry_policy, receipt } => {
                self.effect(name, &input, (retry_policy, receipt))
            }
            WorkflowAction::CompleteWorkflow { result } => {
                Ok(Some(Planned::End(Ended::Returned(Ok(Body::of(&result)?)))))
            }
            WorkflowAction::FailWorkflow { error } => {
                Ok(Some(Planned::End(Ended::Returned(Err(error)))))
            }
            WorkflowAction::ContinueAsNew { input } => {
                let (bytes, depth) = (self.limits.input_bytes_max, self.limits.json_depth_max);
                let input = Body::of(&input)?;
                let input = check_body("the next generation's input", input, bytes, depth)?;
                Ok(Some(Planned::End(Ended::Continued(input))))
            }
        }
    }

    fn activity(
        &mut self,
        id: String,
        activity_type: String,
        input: &Value,
        options: ActivityOptions,
    ) -> Result<Option<Planned>, Error> {
        RouteName::with_limits(&activity_type, &self.limits)?;
        QueueName::with_limits(&options.queue, &self.limits)?;
        if let Some(key) = &options.limit_key {
            LimitKey::with_limits(key, &self.limits)?;
        }
        options.check()?;
        options.breaker(&activity_type, &self.limits)?;
        options
            .retry_policy
            .validate()
            .map_err(|error| invalid(ErrorCode::InvalidRetryPolicy, error.to_string()))?;
        let spec = self.spec("the activity's input", activity_type, input, Some(options))?;
        if self.shutdown {
            return Ok(Some(held_back(Kind::Activity, &id)));
        }
        let asked = self.ask(Kind::Activity, id, Some(&spec))?;
        Ok(asked.map(|key| Planned::Activity { key, spec }))
    }

    // Nobody waits for an effect, so what is left of it is its row: a run that is read back, or is
    // retried, finds it there and enqueues nothing.
    fn effect(
        &mut self,
        name: String,
        input: &Value,
        delivery: (RetryPolicy, bool),
    ) -> Result<Option<Planned>, Error> {
        let effect = Effect::new(&name, input, delivery, self.limits.task_bytes_max)?;
        let spec = self.spec("the effect's input", name.clone(), input, None)?;
        let id = (Kind::Effect, name);
        let mut number = self.used.get(&id).copied().unwrap_or(0) + 1;
        // One of an earlier generation that has another input is another effect.
        let key = loop {
            let key = key_of(Kind::Effect, &id.1, number);
            match self.carried.get(&key) {
                Some(step) if same(&key, Kind::Effect, Some(&spec), step).is_err() => number += 1,
                _ => break key,
            }
        };
        self.count_step(Kind::Effect, &id.1)?;
        self.used.insert(id, number);
        if self.carried.remove(&key).is_some() {
            return Ok(self.record.is_none().then_some(Planned::EffectCarried { key }));
        }
        let Some(record) = &self.record else {
            return Ok(Some(Planned::Effect { key, spec, effect }));
        };
        match record.get(&key) {
            Some(step) => same(&key, Kind::Effect, Some(&spec), step).map(|()| None),
            None => Err(nondeterminism(format!(
                "the code asks for effect {key:?}, which the record does not have"
            ))),
        }
    }

    fn records(
        &mut self,
        id: String,
        changes: Vec<RecordChange>,
    ) -> Result<Option<Planned>, Error> {
        if changes.is_empty() {
            return Err(misuse(&format!("the write of records {id:?} changes no record")));
        }
        let mut writes = Writes::default();
        for change in &changes {
            writes.add_record(change.clone(), &self.limits)?;
        }
        let input = Body::of(&changes)?;
        let what = format!("the write of records {id:?}");
        let input = check_body(&what, input, self.limits.step_bytes_max, usize::MAX)?;
        let (type_name, input) = ("records".to_owned(), input.read::<Box<RawValue>>()?);
        let (options, task_id, workflow, child, run_key) = (None, None, None, None, None);
        let spec = Spec { type_name, input, options, task_id, workflow, id: child, run_key };
        let asked = self.ask(Kind::Records, id, Some(&spec))?;
        Ok(asked.map(|key| Planned::Records { key, spec }))
    }

    fn count_step(&mut self, kind: Kind, id: &str) -> Result<(), Error> {
        self.steps += 1;
        let max = self.limits.steps_per_run_max;
        match self.steps > max {
            true => Err(misuse(&format!(
                "the {} {id:?} would be number {}; a run has at most {max} activities, children and \
                 effects; return WorkflowAction::continue_as_new before that",
                kind.as_str(),
                self.steps
            ))),
            false => Ok(()),
        }
    }

    fn spec(
        &self,
        what: &str,
        type_name: String,
        input: &Value,
        options: Option<ActivityOptions>,
    ) -> Result<Spec, Error> {
        let body = Body::of(input)?;
        // A step carries the input beside its options, within the same limit.
        check_body(what, body, self.limits.step_bytes_max / 2, self.limits.json_depth_max)?;
        let input = to_raw_value(input).map_err(|source| {
            invalid(ErrorCode::InvalidBody, format!("{what} cannot be written as JSON"))
                .with_source(source)
        })?;
        let (task_id, workflow, id, run_key) = (None, None, None, None);
        let spec = Spec { type_name, input, options, task_id, workflow, id, run_key };
        // The store would refuse the step or the task with its commit, and the run would be stuck.
        let max = self.limits.step_bytes_max.min(self.limits.task_bytes_max);
        let found = Body::of(&spec)?.len() + ADDED_BYTES;
        if found > max {
            let message =
                format!("{what} and its options have {found} bytes; at most {max} are allowed");
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        Ok(spec)
    }

    // The key under which something is begun. None if an earlier generation has its result, or the
    // record has it and the code only asks for it again.
    fn ask(
        &mut self,
        kind: Kind,
        id: String,
        spec: Option<&Spec>,
    ) -> Result<Option<Arc<str>>, Error> {
        check_id(kind, &id)?;
        let used = self.used.get(&(kind, id.clone())).copied().unwrap_or(0);
        if used > 0 && self.open.contains_key(&key_of(kind, &id, used)) {
            let kind = kind.with_article();
            return Err(misuse(&format!("there is {kind} {id:?} already, and it is not over")));
        }
        let mut number = used + 1;
        // An action that was cancelled in an earlier generation starts again under a new key.
        let on_step_cancelled = |step: &Step| step.status == StepStatus::Cancelled;
        while self.carried.get(&key_of(kind, &id, number)).is_some_and(on_step_cancelled) {
            number += 1;
        }
        self.used.insert((kind, id.clone()), number);
        let key = key_of(kind, &id, number);
        if kind != Kind::Timer {
            self.count_step(kind, &id)?;
        }
        let options = spec.and_then(|spec| spec.options.clone());
        let mut entry = Entry { kind, id, row: None, options, check_at: None };
        if let Some(step) = self.carried.get(&key) {
            same(&key, kind, spec, step)?;
            self.asked_of_carried.insert(Arc::clone(&key));
            self.open.insert(key, entry);
            return Ok(None);
        }
        let replayed = match &self.record {
            Some(record) => {
                let Some(step) = record.get(&key) else {
                    let kind = kind.as_str();
                    return Err(nondeterminism(format!(
                        "the code asks for {kind} {key:?}, which the record does not have"
                    )));
                };
                same(&key, kind, spec, step)?;
                // The task has the timeouts that were recorded with it, whatever this build asks for.
                entry.options = Spec::of(step).and_then(|spec| spec.options);
                entry.row = Some(step.clone());
                true
            }
            None => false,
        };
        self.open.insert(Arc::clone(&key), entry);
        Ok((!replayed).then_some(key))
    }

    fn cancel(&mut self, kind: Kind, id: String) -> Result<Option<Planned>, Error> {
        let used = self.used.get(&(kind, id.clone())).copied().unwrap_or(0);
        let key = key_of(kind, &id, used);
        let Some(entry) = self.open.remove(&key) else { return Ok(None) };
        if self.asked_of_carried.remove(&key) {
            return Ok(None);
        }
        if let Some(record) = &self.record {
            return match record.get(&key) {
                Some(step) if step.status == StepStatus::Cancelled => Ok(None),
                _ => Err(nondeterminism(format!(
                    "the code calls {} {key:?} off, and the record does not",
                    kind.as_str()
                ))),
            };
        }
        Ok(Some(Planned::Cancel { key, entry: Box::new(entry) }))
    }
}

// The type and the input must be the same; how it is run may change from one build to the next.
fn same(key: &str, kind: Kind, spec: Option<&Spec>, step: &Step) -> Result<(), Error> {
    if step.kind != kind.step_kind() {
        return Err(nondeterminism(format!(
            "the code asks for {} {key:?}, which is a {} in the record",
            kind.as_str(),
            step.kind
        )));
    }
    let Some(spec) = spec else { return Ok(()) };
    let recorded = Spec::of(step);
    let agrees = recorded.as_ref().is_some_and(|recorded| {
        recorded.type_name == spec.type_name && recorded.input.get() == spec.input.get()
    });
    match agrees {
        true => Ok(()),
        false => Err(nondeterminism(format!(
            "the code asks for {} {key:?} of type {:?}, and the record has it with another type ({:?}) \
             or another input",
            kind.as_str(),
            spec.type_name,
            recorded.map(|recorded| recorded.type_name).unwrap_or_default()
        ))),
    }
}

fn key_of(kind: Kind, id: &str, number: u32) -> Arc<str> {
    let prefix = kind.prefix();
    match number {
        0 | 1 => format!("{prefix}{id}").into(),
        _ => format!("{prefix}{id}#{number}").into(),
    }
}

fn occurrence(step_key: &str) -> u32 {
    step_key.split_once('#').and_then(|(_, number)| number.parse().ok()).unwrap_or(1)
}

fn check_id(kind: Kind, id: &str) -> Result<(), Error> {
    let plain = !id.is_empty() && id.chars().count() <= ID_CHARS_MAX && !id.contains(['#', '\0']);
    let prefixed = PREFIXES.iter().any(|prefix| id.starts_with(prefix));
    let taken = kind == Kind::Activity && prefixed;
    match plain && !taken {
        true => Ok(()),
        false => Err(misuse(&format!(
            "{id:?} cannot be the id of {}: use 1 to {ID_CHARS_MAX} characters without '#', and none of \
             {} in front",
            kind.with_article(),
            PREFIXES.join(" ")
        ))),
    }
}

fn held_back(kind: Kind, id: &str) -> Planned {
    Planned::HeldBack { what: format!("{} {id:?}", kind.as_str()) }
}

fn misuse(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidAction, message)
}

pub(crate) fn nondeterminism(message: String) -> Error {
    let message = format!(
        "{message}; the code has changed, or does something that differs from one run to the next"
    );
    Error::new(ErrorKind::Invalid, ErrorCode::NonDeterminism, message)
}

#[cfg(test)]
mod tests;
