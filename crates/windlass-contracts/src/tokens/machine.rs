//! One turn: takes an input to the token that waits for it, and moves tokens until all wait.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::flow::has_drifted;
use super::state::is_live;
use super::{Decision, Effect, Facts, Input, State, Status, StepRow, StepStatus};
use crate::codes::WORKFLOW_STEP_LIMIT;
use crate::diagnostic::Diagnostic;
use crate::document::check_written;
use crate::dsl::Scope;
use crate::ids;
use crate::types::edge::labels;
use crate::types::{
    CompiledEdge, CompiledWorkflow, DueAction, GateTrigger, Node, NodeConfig, RunAs,
};

/// The most steps of one turn.
pub const STEPS_PER_TURN_MAX: usize = 10_000;

/// The first token.
pub(super) const ROOT: &str = "0";

/// A token on its way to a node.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) token: String,
    pub(super) spawned_from: String,
    pub(super) path_index: u32,
    pub(super) node: String,
}

pub(super) struct Machine<'a> {
    pub(super) artefact: &'a CompiledWorkflow,
    pub(super) facts: &'a Facts<'a>,
    pub(super) state: State,
    pub(super) context: Value,
    changed: BTreeMap<u64, StepRow>,
    effects: Vec<Effect>,
    pub(super) queue: VecDeque<Move>,
    pub(super) ignored: Option<String>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(artefact: &'a CompiledWorkflow, state: State, facts: &'a Facts<'a>) -> Self {
        let context = Value::Object(state.context.clone());
        Self {
            artefact,
            facts,
            state,
            context,
            changed: BTreeMap::new(),
            effects: Vec::new(),
            queue: VecDeque::new(),
            ignored: None,
        }
    }

    pub(super) fn run(mut self, input: &Input) -> Result<Decision, Diagnostic> {
        self.take(input);
        let mut steps = 0;
        while let Some(next) = self.queue.pop_front() {
            steps += 1;
            if steps > STEPS_PER_TURN_MAX {
                let message = format!("a turn has more than {STEPS_PER_TURN_MAX} steps");
                return Err(Diagnostic::new(WORKFLOW_STEP_LIMIT, message)
                    .help("the workflow does not reach a step that waits; check its gates"));
            }
            self.enter(next);
        }
        Ok(Decision {
            steps: self.changed.into_values().collect(),
            effects: self.effects,
            state: self.state,
            ignored: self.ignored,
        })
    }

    fn take(&mut self, input: &Input) {
        match (self.state.status, input) {
            (Status::New, Input::Start) => self.root_to(ids::START.to_owned()),
            (Status::New, Input::StartAt { state }) => self.start_at(state),
            (Status::New, _) => self.ignore("the run has not begun"),
            (_, Input::Start | Input::StartAt { .. }) => self.ignore("the run has begun already"),
            (Status::Completed, _) => self.ignore("the run is complete"),
            (_, Input::Action { gate }) if self.cancels(gate) => self.cancel(gate),
            (_, _) if self.drift() => {
                self.ignored = Some("the document changed in a stable region".to_owned());
            }
            (_, input) => self.take_running(input),
        }
    }

    fn start_at(&mut self, state: &str) {
        let id = ids::state(state);
        match self.artefact.nodes.contains_key(&id) {
            true => self.root_to(id),
            false => self.ignored = Some(format!("the workflow has no state {state:?}")),
        }
    }

    fn take_running(&mut self, input: &Input) {
        match input {
            Input::Start | Input::StartAt { .. } | Input::DocumentChanged => {}
            Input::Retry => self.retry(),
            Input::Action { gate } => self.open_gate(gate),
            Input::Approval { key, asked, decisions, givers } => {
                let Some((row, node)) = self.waiting(key) else { return };
                match &node.config {
                    NodeConfig::Approval(config) => {
                        self.vote(row, config, asked, decisions, givers);
                    }
                    _ => self.ignore("the step is not an approval"),
                }
            }
            Input::Timer { key } => self.timer(key),
            Input::Event { key, payload } => {
                let Some((row, node)) = self.waiting(key) else { return };
                match &node.config {
                    NodeConfig::WaitEvent(config) => {
                        let mut row = row;
                        row.output = json!({"event": payload});
                        match pick(self.artefact, &row.node, &config.writes, payload) {
                            Ok(writes) => {
                                row.writes = writes;
                                self.end_wait(row, config.timeout.is_some(), "received");
                            }
                            Err(problem) => self.fail(row, &problem),
                        }
                    }
                    _ => self.ignore("the step does not wait for an event"),
                }
            }
            Input::ActionResult { key, result } => {
                let Some((row, node)) = self.waiting(key) else { return };
                match &node.config {
                    NodeConfig::Action(config) => {
                        let mut row = row;
                        match pick(self.artefact, &row.node, &config.writes, result) {
                            Ok(writes) => self.finish(row, json!({"result": result}), writes),
                            Err(problem) => {
                                row.output = json!({"result": result});
                                self.fail(row, &problem);
                            }
                        }
                    }
                    _ => self.ignore("the step does not wait for an action"),
                }
            }
            Input::Delivered { key } => {
                let Some((row, node)) = self.waiting(key) else { return };
                match node.config {
                    NodeConfig::WebhookOut(_) => {
                        self.finish(row, json!({"delivered": true}), Map::new());
                    }
                    _ => self.ignore("the step does not wait for a delivery"),
                }
            }
        }
    }

    fn timer(&mut self, key: &str) {
        let Some((row, node)) = self.waiting(key) else { return };
        if row.resume_at.is_none_or(|at| at > self.facts.now.as_microsecond()) {
            return self.ignore("the step is not due yet");
        }
        match &node.config {
            NodeConfig::WaitTimer(_) => self.finish(row, json!({"due": true}), Map::new()),
            NodeConfig::WaitEvent(_) => {
                let mut row = row;
                row.output = json!({"timeout": true});
                self.end_wait(row, true, labels::TIMEOUT);
            }
            NodeConfig::Approval(config) => {
                let Some(due) = &config.due else { return };
                match &due.then {
                    DueAction::Approve => self.decide(row, labels::APPROVED, json!({"due": true})),
                    DueAction::Reject => self.decide(row, labels::REJECTED, json!({"due": true})),
                    DueAction::Timeout => self.decide(row, labels::TIMEOUT, json!({"due": true})),
                    DueAction::Escalate(to) => {
                        let mut row = row;
                        row.resume_at = None;
                        row.output = merged(row.output, json!({"escalated": true}));
                        self.effect(Effect::Escalate { key: row.key.clone(), to: to.clone() });
                        self.put(row);
                    }
                }
            }
            _ => self.ignore("the step does not wait for a time"),
        }
    }

    /// Ends a wait for an event. Without a timeout there is only one edge.
    fn end_wait(&mut self, mut row: StepRow, has_timeout: bool, outcome: &str) {
        row.outcome = Some(outcome.to_owned());
        match has_timeout {
            true => self.by_outcome(row, outcome, "received"),
            false => self.single(row),
        }
    }

    pub(super) fn ignore(&mut self, reason: &str) {
        self.ignored = Some(reason.to_owned());
    }

    fn waiting(&mut self, key: &str) -> Option<(StepRow, &'a Node)> {
        let found = self.state.waiting(key).cloned();
        let node = found.as_ref().and_then(|row| self.artefact.nodes.get(&row.node));
        if node.is_none() {
            self.ignored = Some(format!("no step waits under the key {key:?}"));
        }
        Some((found?, node?))
    }

    pub(super) fn scope(&self) -> Scope<'_> {
        Scope::new(self.facts.entity, self.facts.now)
            .actor(self.facts.actor)
            .org(self.facts.org)
            .context(&self.context)
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Writes a row into the decision and into the state.
    pub(super) fn put(&mut self, row: StepRow) {
        self.state.apply(self.artefact, &row);
        self.changed.insert(row.seq, row);
    }

    pub(super) fn root_to(&mut self, node: String) {
        self.queue.push_back(Move {
            token: ROOT.to_owned(),
            spawned_from: ids::START.to_owned(),
            path_index: 0,
            node,
        });
    }

    pub(super) fn new_row(&self, to: &Move, node: &Node) -> StepRow {
        let (version, cycle) = (self.facts.version, self.state.cycle);
        StepRow {
            seq: self.state.next_seq,
            key: format!("{}|{}|v{version}|{cycle}", to.node, to.token),
            node: to.node.clone(),
            node_type: node.node_type(),
            token: to.token.clone(),
            spawned_from: to.spawned_from.clone(),
            path_index: to.path_index,
            version,
            cycle,
            status: StepStatus::Waiting,
            done: None,
            attempts: 1,
            run_as: match &node.config {
                NodeConfig::Action(action) => action.mutation.run_as,
                _ => RunAs::System,
            },
            outcome: None,
            chosen_edge_ids: None,
            output: Value::Null,
            writes: Map::new(),
            applied: None,
            lost: false,
            resume_at: None,
            waiting_for_event_key: None,
        }
    }

    /// Ends a step and moves its token along the chosen edges.
    pub(super) fn complete(&mut self, mut row: StepRow, edges: &[&'a CompiledEdge]) {
        row.status = StepStatus::Completed;
        row.done = Some(self.state.next_done);
        row.chosen_edge_ids = Some(edges.iter().map(|edge| edge.id.clone()).collect());
        for edge in edges {
            self.queue.push_back(Move {
                token: row.token.clone(),
                spawned_from: row.spawned_from.clone(),
                path_index: row.path_index,
                node: edge.target.clone(),
            });
        }
        self.put_completed(row);
    }

    pub(super) fn put_completed(&mut self, row: StepRow) {
        self.state.apply_writes(&row);
        if !row.writes.is_empty() {
            self.context = Value::Object(self.state.context.clone());
        }
        self.put(row);
    }

    /// Marks a step as failed. The token stays there until a retry.
    pub(super) fn fail(&mut self, mut row: StepRow, problem: &Diagnostic) {
        row.status = StepStatus::Failed;
        let mut output = match std::mem::take(&mut row.output) {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        output.insert("error".to_owned(), json!(problem));
        row.output = Value::Object(output);
        self.put(row);
    }

    /// Cancels the live rows that `which` selects, and withdraws what they wait for.
    pub(super) fn cancel_rows(&mut self, reason: &str, which: impl Fn(&StepRow) -> bool) {
        let rows: Vec<StepRow> =
            self.state.open.values().filter(|row| is_live(row) && which(row)).cloned().collect();
        for mut row in rows {
            if row.status == StepStatus::Waiting {
                self.effect(Effect::Withdraw { key: row.key.clone() });
            }
            row.status = StepStatus::Cancelled;
            row.done = Some(self.state.next_done);
            row.output = json!({"cancelled": reason});
            self.put(row);
        }
    }

    fn open_gate(&mut self, gate: &str) {
        let id = ids::gate(gate);
        let row = self
            .state
            .open
            .values()
            .find(|row| row.node == id && row.status == StepStatus::Waiting);
        match row.cloned() {
            Some(row) => self.pass_gate(row),
            None => self.ignored = Some(format!("the run does not wait at the gate {gate:?}")),
        }
    }

    fn cancels(&self, gate: &str) -> bool {
        matches!(
            self.artefact.nodes.get(&ids::gate(gate)).map(|node| &node.config),
            Some(NodeConfig::LifecycleGate(config)) if config.trigger == GateTrigger::Cancel
        )
    }

    fn retry(&mut self) {
        let failed: Vec<StepRow> = self
            .state
            .open
            .values()
            .filter(|row| row.status == StepStatus::Failed && !has_drifted(row))
            .cloned()
            .collect();
        if failed.is_empty() {
            return self.ignore("no failed step can be retried");
        }
        for failed in failed {
            // The retry of another row may have fired a join and cancelled this one.
            let Some(mut row) =
                self.state.open.get(&failed.seq).filter(|row| **row == failed).cloned()
            else {
                continue;
            };
            row.attempts += 1;
            row.status = StepStatus::Waiting;
            row.output = Value::Null;
            self.handle(row);
        }
    }
}

/// Adds fields to the evidence of a row.
pub(super) fn merged(evidence: Value, more: Value) -> Value {
    match (evidence, more) {
        (Value::Object(mut fields), Value::Object(more)) => {
            fields.extend(more);
            Value::Object(fields)
        }
        (_, more) => more,
    }
}

/// Checks a result of an action before the caller writes anything: a step that fails later would call the action
/// again.
///
/// # Errors
/// Fails if a value that the node writes into the context does not fit its schema.
pub fn check_result(
    artefact: &CompiledWorkflow,
    state: &State,
    key: &str,
    result: &Value,
) -> Result<(), Diagnostic> {
    let node = state.waiting(key).and_then(|row| artefact.nodes.get(&row.node));
    match node.map(|node| (&node.id, &node.config)) {
        Some((id, NodeConfig::Action(config))) => {
            pick(artefact, id, &config.writes, result).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// Takes fields of a payload: variable name to path. A value that does not fit the schema of the context is
/// refused: an expression that reads it later would fail, and no retry could ever pass.
fn pick(
    artefact: &CompiledWorkflow,
    node: &str,
    writes: &BTreeMap<String, String>,
    payload: &Value,
) -> Result<Map<String, Value>, Diagnostic> {
    let read = |path: &str| {
        path.split('.').try_fold(payload, |at, step| at.get(step)).cloned().unwrap_or(Value::Null)
    };
    let picked: Map<String, Value> =
        writes.iter().map(|(variable, path)| (variable.clone(), read(path))).collect();
    // An artefact of an earlier compiler has no schema.
    if artefact.context_schema.is_null() || picked.is_empty() {
        return Ok(picked);
    }
    match check_written(&artefact.context_schema, &picked) {
        Ok(()) => Ok(picked),
        Err(problem) => {
            let place = problem.place.pointer.unwrap_or_default();
            let variable = place.trim_start_matches('/').split('/').next().unwrap_or_default();
            let path = writes.get(variable).map_or("", String::as_str);
            let message = format!(
                "{path:?} of the payload does not fit the context variable {variable:?} of {node}: {}",
                problem.message
            );
            Err(Diagnostic::new(problem.code, message).at(place).help(problem.help))
        }
    }
}
