//! One input and everything that follows from it, until all tokens wait: the content of one commit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp as Time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use windlass_contracts::approvers::Directory;
use windlass_contracts::codes::WORKFLOW_STEP_LIMIT;
use windlass_contracts::diagnostic::Diagnostic;
use windlass_contracts::document::changes;
use windlass_contracts::ids;
use windlass_contracts::tokens::{
    Decision, Effect as TokenEffect, Facts, Input, State, Status, StepRow, StepStatus as RowStatus,
    Verdict, advance, check_result,
};
use windlass_contracts::types::{GateTrigger, NodeConfig, NodeType, NotificationChannel};
use windlass_engine::RecordChange;
use windlass_kernel::{
    Body, Error, ErrorCode, Expect, Namespace, RetryPolicy, Sha256Digest, Timestamp,
};

use super::actions::ActionCall;
use super::approvals::{Approval, ApprovalStatus};
use super::document::{DocumentRow, Person};
use super::error::{bad_document, invalid};
use super::policy::NodePolicy;
use super::program::{DocumentProgram, View};
use super::waits::Ending;
use super::withdrawals::WITHDRAW_EFFECT;
use crate::effects::Effect;

/// The largest changes that an amendment step holds, in bytes of JSON.
const CHANGES_BYTES_MAX: usize = 16 * 1024;
/// The most names of changed fields that it holds instead.
const CHANGED_NAMES_MAX: usize = 100;

/// The effect of a node that calls a URL. Its input is a [`WebhookInput`].
pub const WEBHOOK_EFFECT: &str = "contracts.webhook";

/// The input of the effect [`WEBHOOK_EFFECT`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookInput {
    /// The URL.
    pub url: String,
    /// The body.
    pub body: Map<String, Value>,
    /// Identifies the step, also after a crash or a retry of its run.
    pub idempotency_key: String,
    /// The document type.
    #[serde(rename = "type")]
    pub entity_type: String,
    /// The id of the document.
    pub document: String,
}

/// The effect of a node that sends a mail. Its input is a [`MailInput`].
pub const MAIL_EFFECT: &str = "contracts.mail";

/// The input of the effect [`MAIL_EFFECT`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MailInput {
    /// The address of the receiver.
    pub to: String,
    /// The subject.
    pub subject: String,
    /// The text.
    pub body: String,
    /// Identifies step and receiver, also after a crash or a retry of the run.
    pub idempotency_key: String,
    /// The document type.
    #[serde(rename = "type")]
    pub entity_type: String,
    /// The id of the document.
    pub document: String,
}

/// The name of the error of a run whose action cannot be carried out.
pub(crate) const ACTION_FAILED: &str = "ACTION_FAILED";

/// Why a run stops with an error.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) name: String,
    message: String,
    step: Option<String>,
    pub(crate) retryable: bool,
}

impl Stop {
    pub(crate) fn new(name: &str, message: impl Into<String>, step: Option<&str>) -> Self {
        let (name, message) = (name.to_owned(), message.into());
        Self { name, message, step: step.map(str::to_owned), retryable: false }
    }

    pub(crate) fn problem(problem: &Diagnostic, step: &str) -> Self {
        Self::new(problem.code.as_str(), &problem.message, Some(step))
    }

    pub(crate) fn of(error: &Error) -> Self {
        let mut stop = Self::new(error.code().as_str(), error.message(), None);
        stop.retryable = error.is_retryable();
        stop
    }

    pub(crate) fn error(&self) -> Error {
        let kind = windlass_kernel::ErrorKind::Unavailable;
        Error::new(kind, ErrorCode::StoreUnavailable, self.message.clone())
    }

    pub(crate) fn body(&self) -> Result<Body, Error> {
        Body::of(&json!({"name": self.name, "message": self.message, "step": self.step}))
    }
}

/// A request for approval that the commit may change.
pub(crate) struct Held {
    pub(crate) approval: Approval,
    pub(crate) expect: Expect,
    pub(crate) before: Option<Approval>,
}

impl Held {
    pub(crate) fn is_changed(&self) -> bool {
        self.before.as_ref() != Some(&self.approval)
    }
}

/// The content of a commit.
pub(crate) struct Work {
    pub(crate) state: State,
    pub(crate) row: DocumentRow,
    pub(crate) rows: BTreeMap<u64, StepRow>,
    pub(crate) approvals: BTreeMap<String, Held>,
    pub(crate) records: Vec<RecordChange>,
    pub(crate) effects: Vec<(String, Effect)>,
    /// The steps that wait for the delivery of their effect.
    pub(crate) awaited: BTreeSet<String>,
    /// How the input ended a wait.
    pub(crate) ending: Option<Ending>,
    pub(crate) stop: Option<Stop>,
    /// The decisions that the token engine ignored.
    pub(crate) ignored: Option<(String, BTreeMap<String, Verdict>)>,
}

impl Work {
    /// Writes the rows that wait as steps of a generation that goes on with a state.
    pub(crate) fn carry_over(program: &DocumentProgram, view: &View) -> Self {
        let state = program.state().clone();
        let is_live =
            |row: &&StepRow| matches!(row.status, RowStatus::Waiting | RowStatus::Arrived);
        let rows = state.open.values().filter(is_live).map(|row| (row.seq, row.clone())).collect();
        Self { rows, ..Self::at(state, view) }
    }

    fn at(state: State, view: &View) -> Self {
        let held = |(step, (approval, revision)): (&String, &(Approval, u64))| {
            let expect = Expect::At(*revision);
            let (approval, before) = (approval.clone(), Some(approval.clone()));
            (step.clone(), Held { approval, expect, before })
        };
        Self {
            state,
            row: view.document.row.clone(),
            rows: BTreeMap::new(),
            approvals: view.approvals.iter().map(held).collect(),
            records: Vec::new(),
            effects: Vec::new(),
            awaited: BTreeSet::new(),
            ending: None,
            stop: None,
            ignored: None,
        }
    }

    /// Adds a record that an action writes. The changes of one commit name each record at most once.
    fn add_record(&mut self, record: RecordChange) -> Result<(), Error> {
        record.check_writable()?;
        if self.records.iter().any(|other| other.is_of_same_record(&record)) {
            let message = format!("two actions of one turn change the record {record}");
            return Err(invalid(ErrorCode::RecordConflict, message));
        }
        self.records.push(record);
        Ok(())
    }

    /// Gives an input to the token engine and carries out what it asks for.
    pub(crate) async fn of(
        program: &DocumentProgram,
        view: &View,
        namespace: Namespace,
        input: Input,
        person: Person,
        now: Timestamp,
    ) -> Result<Self, Stop> {
        let mut work = Self::at(program.state().clone(), view);
        let is_action = matches!(input, Input::Action { .. });
        if let Input::Action { gate } = &input {
            work.row.pending.retain(|pending| pending.gate != *gate);
        }
        let voted = match &input {
            Input::Approval { key, decisions, .. } => Some((key.clone(), decisions.clone())),
            _ => None,
        };
        let is_retry = input == Input::Retry;
        let is_start = matches!(input, Input::Start | Input::StartAt { .. });
        let now_jiff = Time::from_microsecond(now.as_micros()).unwrap_or(Time::UNIX_EPOCH);
        let mut worker = Worker {
            program,
            view,
            namespace,
            person,
            now,
            now_jiff,
            directory: None,
            queue: VecDeque::from([input]),
            work,
        };
        let ignored = worker.run().await?;
        if is_start && program.origin() > 0 {
            worker.withdraw_left()?;
        }
        let mut work = worker.work;
        work.ignored = voted.filter(|_| ignored.is_some());
        if let Some(reason) = ignored.filter(|_| is_action) {
            work.row.note.why = Some(format!("the run ignored it: {reason}"));
        }
        work.finish(program, view, is_retry, now);
        Ok(work)
    }

    /// Asks the next stage of an approval chain. The token engine has nothing to decide.
    pub(crate) async fn next_stage(
        program: &DocumentProgram,
        view: &View,
        namespace: Namespace,
        step: &str,
        now: Timestamp,
    ) -> Result<Self, Stop> {
        let person = view.document.row.actor.clone();
        let now_jiff = Time::from_microsecond(now.as_micros()).unwrap_or(Time::UNIX_EPOCH);
        let mut worker = Worker {
            program,
            view,
            namespace,
            person,
            now,
            now_jiff,
            directory: None,
            queue: VecDeque::new(),
            work: Self::at(program.state().clone(), view),
        };
        worker.ask_stage(step).await?;
        Ok(worker.work)
    }

    /// Sets state, edit window and open gates of the document, and closes requests that are over.
    fn finish(&mut self, program: &DocumentProgram, view: &View, is_retry: bool, now: Timestamp) {
        let artefact = &*view.artefact;
        if !self.state.lifecycle.is_empty() && self.row.state != self.state.lifecycle {
            self.row.state.clone_from(&self.state.lifecycle);
            self.row.note.who = "system".to_owned();
            self.row.note.what = "state".to_owned();
            self.row.note.when = now;
            self.row.note.why = None;
        }
        let entered = self
            .rows
            .values()
            .rev()
            .find(|row| row.node_type == NodeType::State && row.status == RowStatus::Completed);
        if let Some(entered) = entered {
            self.row.state_version = entered.version;
        }
        self.row.edit_window = self.state.edit_window(artefact);
        for row in self.rows.values().filter(|row| row.node_type == NodeType::Approval) {
            let Some(held) = self.approvals.get_mut(&row.key) else { continue };
            let is_open = held.approval.status == ApprovalStatus::Open;
            if is_open && matches!(row.status, RowStatus::Completed) {
                held.approval.status = ApprovalStatus::Closed;
            }
        }
        if self.state.status == Status::Failed {
            let failed = self.state.open.values().find(|row| row.status == RowStatus::Failed);
            self.stop = failed.map(stop_of);
        } else if self.state.status != Status::Completed
            && self.state.next_seq > program.shared.steps_max
        {
            let max = program.shared.steps_max;
            let message = format!("the run has more than {max} steps");
            self.stop = Some(Stop::new(WORKFLOW_STEP_LIMIT.as_str(), message, None));
        }
        self.row.gates = match self.state.status {
            // A run that stops goes on after a retry only, but the document can still be cancelled.
            Status::Running | Status::Failed => self.open_gates(view, self.stop.is_none()),
            Status::New | Status::Completed => BTreeSet::new(),
        };
        if self.state.status == Status::Completed {
            // Nobody carries them out any more.
            self.row.pending.clear();
        }
        // A retry that changes nothing fails as before, for example after drift.
        debug_assert!(!is_retry || self.stop.is_some() || self.state.status != Status::Failed);
    }

    fn open_gates(&self, view: &View, with_actions: bool) -> BTreeSet<String> {
        let artefact = &*view.artefact;
        let gate_of = |node: &str, trigger: GateTrigger| match artefact
            .nodes
            .get(node)
            .map(|node| &node.config)
        {
            Some(NodeConfig::LifecycleGate(config)) if config.trigger == trigger => {
                Some(config.gate.clone())
            }
            _ => None,
        };
        let waiting = self.state.open.values();
        let waiting = waiting.filter(|row| with_actions && row.status == RowStatus::Waiting);
        let actions = waiting.filter_map(|row| gate_of(&row.node, GateTrigger::Action));
        let leaving = artefact.adjacency.get(&ids::state(&self.state.lifecycle));
        let leaving = leaving.into_iter().flatten().filter_map(|id| artefact.edges_by_id.get(id));
        let cancels = leaving.filter_map(|edge| gate_of(&edge.target, GateTrigger::Cancel));
        actions.chain(cancels).collect()
    }
}

fn stop_of(row: &StepRow) -> Stop {
    let error = &row.output["error"];
    let text = |name: &str| error[name].as_str().unwrap_or_default();
    Stop::new(text("code"), text("message"), Some(&row.key))
}

pub(crate) struct Worker<'a> {
    pub(crate) program: &'a DocumentProgram,
    pub(crate) view: &'a View,
    pub(crate) namespace: Namespace,
    pub(crate) person: Person,
    pub(crate) now: Timestamp,
    pub(crate) now_jiff: Time,
    pub(crate) directory: Option<Directory>,
    queue: VecDeque<Input>,
    pub(crate) work: Work,
}

impl Worker<'_> {
    /// Returns why the first input changed nothing.
    async fn run(&mut self) -> Result<Option<String>, Stop> {
        let mut ignored = None;
        let mut first = true;
        while let Some(input) = self.queue.pop_front() {
            // The steps of the turn see the person as the requester, unless the run ignores the action.
            let requester = matches!(input, Input::Action { .. })
                .then(|| self.work.row.set_requester(&self.person));
            let mut decision = self.decide(&input)?;
            if let Some(before) = requester.filter(|_| decision.ignored.is_some()) {
                (self.work.row.requester, self.work.row.requester_key_creators) = before;
            }
            if input == Input::DocumentChanged {
                self.note_changes(&mut decision.steps).await?;
            }
            if std::mem::take(&mut first) {
                ignored = decision.ignored;
            }
            self.work.rows.extend(decision.steps.into_iter().map(|row| (row.seq, row)));
            self.work.state = decision.state;
            for effect in decision.effects {
                self.carry_out(effect).await?;
            }
        }
        Ok(ignored)
    }

    /// Adds the changed fields to the step that sends the document to its amended state. Large changes are named
    /// without their values.
    async fn note_changes(&self, steps: &mut [StepRow]) -> Result<(), Stop> {
        let amended = self.view.contract.contract.amended.as_deref().map(ids::state);
        let ended = |row: &&mut StepRow| {
            Some(&row.node) == amended.as_ref() && row.status == RowStatus::Completed
        };
        let Some(step) = steps.iter_mut().find(ended) else { return Ok(()) };
        let (row, seen) = (&self.work.row, self.program.seen_version());
        let shared = &self.program.shared;
        let before =
            shared.document_version(&self.namespace, &row.entity_type, &row.id, seen).await;
        let before = before.map_err(|error| Stop::of(&error))?;
        let fields = changes(&before.content, &row.content);
        let mut noted = json!({"from": seen, "to": row.version, "fields": fields});
        if noted.to_string().len() > CHANGES_BYTES_MAX {
            let names: Vec<&String> = fields.keys().take(CHANGED_NAMES_MAX).collect();
            noted = json!({"from": seen, "to": row.version, "names": names});
        }
        match &mut step.output {
            Value::Object(output) => drop(output.insert("changes".to_owned(), noted)),
            output => *output = json!({ "changes": noted }),
        }
        Ok(())
    }

    fn decide(&self, input: &Input) -> Result<Decision, Stop> {
        let actor = self.person.value();
        let row = &self.work.row;
        let policy = NodePolicy {
            policy: &*self.program.shared.policy,
            person: &self.person,
            document: row,
        };
        let facts = Facts {
            version: row.version,
            material_version: row.material_version,
            drift_version: row.drift_version,
            entity: &row.content,
            actor: &actor,
            org: &self.view.org,
            now: self.now_jiff,
            policy: &policy,
        };
        advance(&self.view.artefact, &self.work.state, input, &facts)
            .map_err(|problem| Stop::new(problem.code.as_str(), problem.message, None))
    }

    async fn carry_out(&mut self, effect: TokenEffect) -> Result<(), Stop> {
        match effect {
            // The state and the rows say it already.
            TokenEffect::EnterState { .. }
            | TokenEffect::SetTimer { .. }
            | TokenEffect::ApplyApprovals { .. } => Ok(()),
            // The commit registers it with the row.
            TokenEffect::AwaitEvent { .. } => Ok(()),
            TokenEffect::RequestApproval { key, node, version, config, due_at } => {
                self.request(key, node, version, &config, due_at).await
            }
            TokenEffect::Escalate { key, to } => self.escalate(&key, &to).await,
            TokenEffect::Withdraw { key } => {
                if let Some(held) = self.work.approvals.get_mut(&key) {
                    held.approval.status = ApprovalStatus::Withdrawn;
                }
                Ok(())
            }
            TokenEffect::Mutate {
                key,
                action_type,
                payload,
                run_as,
                await_result,
                may_change_document,
                ..
            } => {
                let authors = self.work.row.authors();
                let call = ActionCall {
                    action_type: &action_type,
                    entity_type: &self.work.row.entity_type,
                    id: &self.work.row.id,
                    version: self.work.row.version,
                    content: &self.work.row.content,
                    payload: &payload,
                    run_as,
                    actor: &self.person,
                    authors: &authors,
                    idempotency_key: &key,
                };
                let outcome = self.program.shared.actions.call(&call).map_err(|reason| {
                    Stop::new(ACTION_FAILED, format!("{action_type}: {reason}"), Some(&key))
                })?;
                // Nothing of this turn is written: the retry calls the action again.
                check_result(&self.view.artefact, &self.work.state, &key, &outcome.result)
                    .map_err(|problem| Stop::problem(&problem, &key))?;
                if let Some(content) = outcome.content {
                    self.change_content(content, &action_type, may_change_document, &key)?;
                }
                for (name, input) in outcome.effects {
                    self.effect(&key, &name, &input)?;
                }
                for record in outcome.records {
                    let added = self.work.add_record(record);
                    added.map_err(|reason| {
                        Stop::new(ACTION_FAILED, format!("{action_type}: {reason}"), Some(&key))
                    })?;
                }
                if await_result {
                    let result = outcome.result;
                    self.queue.push_back(Input::ActionResult { key, result });
                }
                Ok(())
            }
            TokenEffect::Webhook { key, url, body, await_delivery } => {
                let row = &self.work.row;
                let input = WebhookInput {
                    url,
                    body,
                    idempotency_key: self.unique(&key, ""),
                    entity_type: row.entity_type.clone(),
                    document: row.id.clone(),
                };
                if !await_delivery {
                    return self.effect(&key, WEBHOOK_EFFECT, &input);
                }
                let max = self.program.shared.limits.task_bytes_max;
                let effect = Effect::waking(WEBHOOK_EFFECT, &input, RetryPolicy::webhooks(), max)
                    .map_err(|error| Stop::of(&error))?;
                self.work.effects.push((key.clone(), effect));
                self.work.awaited.insert(key);
                Ok(())
            }
            TokenEffect::Notify { key, channel, to, subject, body } => {
                let found = self.resolve(&to, 0, false, &key).await?;
                match channel {
                    NotificationChannel::InApp => {
                        self.notify(&key, &found, &subject, body.as_deref())
                    }
                    NotificationChannel::Email => {
                        self.mail(&key, &found, &subject, body.as_deref())
                    }
                    NotificationChannel::Sms => {
                        let message = "the channel Sms is not configured";
                        Err(Stop::new("CONTRACT_INVALID", message, Some(&key)))
                    }
                }
            }
        }
    }

    fn change_content(
        &mut self,
        content: Value,
        action_type: &str,
        may_change: bool,
        key: &str,
    ) -> Result<(), Stop> {
        if content == self.work.row.content {
            return Ok(());
        }
        if !may_change {
            let message = format!(
                "{action_type:?} changes the document, but the contract does not list it in documentActions"
            );
            return Err(Stop::new("PATCH_DOCUMENT_ACTION", message, Some(key)));
        }
        let contract = &self.view.contract;
        contract.validator.check(&content).map_err(|problems| {
            Stop::new("DOCUMENT_INVALID", bad_document(&problems).message(), Some(key))
        })?;
        let immaterial = &self.view.artefact.immaterial_fields;
        let row = &mut self.work.row;
        row.set_content(content, immaterial, true).map_err(|error| Stop::of(&error))?;
        row.note.who = "system".to_owned();
        row.note.what = format!("run {action_type}");
        row.note.when = self.now;
        row.note.why = None;
        Ok(())
    }

    pub(crate) fn effect<T: Serialize>(
        &mut self,
        key: &str,
        name: &str,
        input: &T,
    ) -> Result<(), Stop> {
        let max = self.program.shared.limits.task_bytes_max;
        let effect = Effect::new(name, input, (RetryPolicy::webhooks(), true), max)
            .map_err(|error| Stop::of(&error))?;
        self.work.effects.push((key.to_owned(), effect));
        Ok(())
    }

    /// Asks for the withdrawal of the requests that earlier generations have left.
    fn withdraw_left(&mut self) -> Result<(), Stop> {
        let max = self.program.shared.limits.task_bytes_max;
        let terms = (RetryPolicy::webhooks(), false);
        let effect = Effect::new(WITHDRAW_EFFECT, &Value::Null, terms, max)
            .map_err(|error| Stop::of(&error))?;
        self.work.effects.push((ids::START.to_owned(), effect));
        Ok(())
    }

    /// A text that only this step of this document has; a retry of its run has the same.
    pub(crate) fn unique(&self, key: &str, part: &str) -> String {
        let (row, origin) = (&self.work.row, self.program.origin().to_string());
        let parts: [&[u8]; 5] = [
            row.entity_type.as_bytes(),
            row.id.as_bytes(),
            origin.as_bytes(),
            key.as_bytes(),
            part.as_bytes(),
        ];
        Sha256Digest::of_parts(&parts).to_string()
    }
}
