//! Runs a workflow against a sample document: the path, the people who are asked, the obligations.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::approvers::{self, Directory, Request, Resolution, resolve};
use crate::codes::CONTRACT_UNKNOWN;
use crate::diagnostic::{Diagnostic, pointer_join};
use crate::dsl::Scope;
use crate::tokens::{
    AllowAll, Decision, Effect, Facts, Input, State, Status, StepRow, StepStatus, Verdict, advance,
    approvers, is_role, is_rule, leads_to,
};
use crate::types::{
    ApprovalConfig, CompiledWorkflow, Need, Node, NodeConfig, NodeType, Obligation, Quorum,
};

/// The most turns of a simulation.
pub const TURNS_MAX: usize = 2_000;
/// The most names that an advice repeats.
const NAMES_SHOWN_MAX: usize = 20;

/// The document and the choices of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The document.
    pub document: Value,
    /// The person who acts.
    #[serde(default)]
    pub actor: Value,
    /// The settings of the tenant.
    #[serde(default)]
    pub org: Value,
    /// The id of the person who made the document. That person is never asked.
    #[serde(default)]
    pub requester: String,
    /// The people of the tenant. With it, the simulation says who is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Directory>,
    /// The time at the begin. Timers move it forward. [default: 1970-01-01T00:00:00Z]
    #[serde(default)]
    #[schemars(with = "String")]
    pub now: Timestamp,
    /// Decisions by approval node. [default: approved]
    #[serde(default)]
    pub verdicts: BTreeMap<String, Verdict>,
    /// Payloads of events and results of actions by node. [default: null]
    #[serde(default)]
    pub payloads: BTreeMap<String, Value>,
    /// The approval at which the document changes once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_at: Option<String>,
}

impl Scenario {
    /// A scenario in which everybody approves.
    pub fn new(document: Value, now: Timestamp) -> Self {
        Self {
            name: None,
            document,
            actor: Value::Null,
            org: Value::Null,
            requester: String::new(),
            directory: None,
            now,
            verdicts: BTreeMap::new(),
            payloads: BTreeMap::new(),
            change_at: None,
        }
    }

    /// Reads a scenario from JSON text.
    ///
    /// # Errors
    /// Fails if the text is too long, is not JSON, has a number that would lose digits, or does not
    /// have the shape of a scenario.
    pub fn read(text: &str) -> Result<Self, Diagnostic> {
        crate::compile::read(text, "scenario")
    }
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Simulation {
    /// The lifecycle state at the end.
    pub state: String,
    /// The status of the run at the end.
    pub status: Status,
    /// The nodes that the run visited, in order.
    pub path: Vec<String>,
    /// The requests for approval, in order.
    pub asked: Vec<Asked>,
    /// How each obligation was met.
    pub obligations: Vec<Held>,
    /// The effects, in order.
    pub effects: Vec<Effect>,
    /// All step rows, in order.
    pub steps: Vec<StepRow>,
    /// The problem of the step that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Value>,
    /// Why the run would wait for ever: nobody can give the input that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
}

/// A request for approval.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// The approval node.
    pub node: String,
    /// The version of the document.
    pub version: u64,
    /// The request.
    pub request: ApprovalConfig,
    /// The decision of the scenario.
    pub verdict: Verdict,
    /// The people who are asked, if the scenario has a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub people: Option<Resolution>,
    /// Why nobody could be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Diagnostic>,
}

/// An obligation of a gate that the run passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The obligation.
    pub id: String,
    /// How the run met it.
    pub by: String,
}

/// Simulates a run until its end, until it repeats after a rejection, or until a step fails.
///
/// # Errors
/// Fails if the scenario names a node that the workflow does not have, and if the run does not end
/// after [`TURNS_MAX`] turns.
pub fn simulate(
    artefact: &CompiledWorkflow,
    scenario: &Scenario,
) -> Result<Simulation, Diagnostic> {
    check_names(artefact, scenario)?;
    let mut run = Run {
        artefact,
        scenario,
        now: scenario.now,
        version: 1,
        changed: false,
        state: State::default(),
        rows: BTreeMap::new(),
        effects: Vec::new(),
        asked: Vec::new(),
        stuck: None,
    };
    run.turn(&Input::Start)?;
    for _ in 0..TURNS_MAX {
        let Some(input) = run.next_input() else { return Ok(run.finish()) };
        run.turn(&input)?;
    }
    Err(Diagnostic::new(
        crate::codes::WORKFLOW_STEP_LIMIT,
        format!("the simulation does not end after {TURNS_MAX} turns"),
    )
    .help("give other decisions or payloads"))
}

/// A name with a typing error must not become a decision that everybody approves.
fn check_names(artefact: &CompiledWorkflow, scenario: &Scenario) -> Result<(), Diagnostic> {
    let verdicts = scenario.verdicts.keys().map(|node| (node, pointer_join("/verdicts", node)));
    let payloads = scenario.payloads.keys().map(|node| (node, pointer_join("/payloads", node)));
    let change = scenario.change_at.iter().map(|node| (node, "/changeAt".to_owned()));
    for (wanted, (node, place)) in verdicts
        .map(|one| (&[NodeType::Approval][..], one))
        .chain(payloads.map(|one| (&[NodeType::WaitEvent, NodeType::Action][..], one)))
        .chain(change.map(|one| (&[NodeType::Approval][..], one)))
    {
        let fits = |node: &Node| wanted.contains(&node.node_type());
        if artefact.nodes.get(node).is_some_and(fits) {
            continue;
        }
        let kinds: Vec<&str> = wanted.iter().map(|kind| kind.as_str()).collect();
        let kinds = kinds.join(" or ");
        let known = artefact.nodes.values().filter(|node| fits(node));
        let known: Vec<&str> = known.map(|node| node.id.as_str()).take(NAMES_SHOWN_MAX).collect();
        let help = match known.is_empty() {
            true => format!("remove it; the workflow has no node of the type {kinds}"),
            false => format!("use one of: {}", known.join(", ")),
        };
        let message = format!("the workflow has no node {node:?} of the type {kinds}");
        return Err(Diagnostic::new(CONTRACT_UNKNOWN, message).at(place).help(help));
    }
    Ok(())
}

struct Run<'a> {
    artefact: &'a CompiledWorkflow,
    scenario: &'a Scenario,
    now: Timestamp,
    version: u64,
    changed: bool,
    state: State,
    rows: BTreeMap<u64, StepRow>,
    effects: Vec<Effect>,
    asked: Vec<Asked>,
    stuck: Option<String>,
}

impl Run<'_> {
    fn turn(&mut self, input: &Input) -> Result<(), Diagnostic> {
        let facts = Facts {
            version: self.version,
            material_version: self.version,
            drift_version: self.version,
            entity: &self.scenario.document,
            actor: &self.scenario.actor,
            org: &self.scenario.org,
            now: self.now,
            policy: &AllowAll,
        };
        let decision: Decision = advance(self.artefact, &self.state, input, &facts)?;
        for effect in &decision.effects {
            if let Effect::RequestApproval { node, version, config, .. } = effect {
                let (people, problem) = match self.people(node, config) {
                    Some(Ok(people)) => (Some(people), None),
                    Some(Err(problem)) => (None, Some(problem)),
                    None => (None, None),
                };
                self.asked.push(Asked {
                    node: node.clone(),
                    version: *version,
                    request: config.clone(),
                    verdict: self.verdict(node),
                    people,
                    problem,
                });
            }
        }
        self.effects.extend(decision.effects);
        if decision.steps.is_empty() {
            self.stuck = decision.ignored;
        }
        self.rows.extend(decision.steps.into_iter().map(|row| (row.seq, row)));
        self.state = decision.state;
        Ok(())
    }

    /// The people that a request asks; nothing without a directory, or if a chain names them.
    fn people(
        &self,
        node: &str,
        config: &ApprovalConfig,
    ) -> Option<Result<Resolution, Diagnostic>> {
        let (directory, spec) = (self.scenario.directory.as_ref()?, config.approvers.as_ref()?);
        let context = Value::Object(self.state.context.clone());
        let counter = self.asked.iter().filter(|asked| asked.node == node).count();
        let request = Request {
            requester: &self.scenario.requester,
            editors: &BTreeSet::new(),
            counter: counter as u64,
            scope: Scope::new(&self.scenario.document, self.now)
                .actor(&self.scenario.actor)
                .org(&self.scenario.org)
                .context(&context),
            rules: &self.artefact.rules,
        };
        Some(resolve(spec, directory, &request))
    }

    /// The people whose decisions the simulation makes up. Without a directory they have the name
    /// of the node, and there are as many as the quorum needs.
    fn asked_people(&mut self, node: &str, config: &ApprovalConfig) -> Option<BTreeSet<String>> {
        let asked = self.asked.iter().rfind(|asked| asked.node == node)?;
        if let Some(problem) = &asked.problem {
            self.stuck = Some(format!("{node} waits for ever: {}", problem.message));
            return None;
        }
        Some(match (&asked.people, &config.quorum) {
            (Some(people), _) => people.asked.iter().map(|one| one.person.clone()).collect(),
            (None, Quorum::Weighted { weights, .. }) => weights.keys().cloned().collect(),
            (None, Quorum::Count { count }) => {
                (1..=*count).map(|number| format!("{node}#{number}")).collect()
            }
            (None, _) => BTreeSet::from([node.to_owned()]),
        })
    }

    /// The people whom delegates represent, by delegate.
    fn givers(&self, node: &str) -> BTreeMap<String, String> {
        let asked = self.asked.iter().rfind(|asked| asked.node == node);
        let people = asked.and_then(|asked| asked.people.as_ref());
        let of = |one: &approvers::Asked| Some((one.person.clone(), one.on_behalf_of.clone()?));
        people.iter().flat_map(|people| &people.asked).filter_map(of).collect()
    }

    fn verdict(&self, node: &str) -> Verdict {
        self.scenario.verdicts.get(node).copied().unwrap_or(Verdict::Approved)
    }

    fn payload(&self, node: &str) -> Value {
        self.scenario.payloads.get(node).cloned().unwrap_or(Value::Null)
    }

    /// The input that the first waiting step waits for; nothing if the simulation is over.
    fn next_input(&mut self) -> Option<Input> {
        let rejected = self.state.cycle > u32::from(self.changed);
        if self.stuck.is_some() || self.state.status != Status::Running || rejected {
            return None;
        }
        let row = self.state.open.values().find(|row| row.status == StepStatus::Waiting)?.clone();
        let key = row.key.clone();
        Some(match &self.artefact.nodes.get(&row.node)?.config {
            NodeConfig::LifecycleGate(config) => Input::Action { gate: config.gate.clone() },
            NodeConfig::Approval(config) => {
                if !self.changed && self.scenario.change_at.as_ref() == Some(&row.node) {
                    self.changed = true;
                    self.version += 1;
                    return Some(Input::DocumentChanged);
                }
                let asked = self.asked_people(&row.node, config)?;
                let verdict = self.verdict(&row.node);
                let decisions = asked.iter().map(|person| (person.clone(), verdict)).collect();
                let givers = self.givers(&row.node);
                Input::Approval { key, asked, decisions, givers }
            }
            NodeConfig::WaitEvent(_) => Input::Event { key, payload: self.payload(&row.node) },
            NodeConfig::Action(_) => Input::ActionResult { key, result: self.payload(&row.node) },
            NodeConfig::WebhookOut(_) => Input::Delivered { key },
            _ => {
                let at = Timestamp::from_microsecond(row.resume_at?).ok()?;
                self.now = self.now.max(at);
                Input::Timer { key }
            }
        })
    }

    fn finish(self) -> Simulation {
        let rows: Vec<StepRow> = self.rows.into_values().collect();
        let failed = rows.iter().find(|row| row.status == StepStatus::Failed);
        let failure = failed.and_then(|row| row.output.get("error").cloned());
        let held =
            self.artefact.obligations.iter().filter_map(|one| held(one, self.artefact, &rows));
        Simulation {
            state: self.state.lifecycle.clone(),
            status: self.state.status,
            path: rows.iter().map(|row| row.node.clone()).collect(),
            asked: self.asked,
            obligations: held.collect(),
            effects: self.effects,
            failure,
            stuck: self.stuck,
            steps: rows,
        }
    }
}

/// How the steps met an obligation; nothing if the run did not pass the gate. Counts what the gate counted: steps
/// of the slot that leads to it, for the version that passed.
fn held(obligation: &Obligation, artefact: &CompiledWorkflow, rows: &[StepRow]) -> Option<Held> {
    let gate = crate::ids::gate(&obligation.gate);
    let passed = rows.iter().rfind(|row| {
        row.node == gate && row.status == StepStatus::Completed && row.outcome.is_none()
    })?;
    let before = || {
        rows.iter().filter(|row| {
            row.seq < passed.seq
                && !row.lost
                && (row.cycle, row.version) == (passed.cycle, passed.version)
                && leads_to(artefact, &row.node, &gate)
        })
    };
    let waived = obligation.unless.as_ref().filter(|waiver| {
        before().any(|row| {
            row.outcome.as_ref() == Some(&waiver.outcome)
                && is_rule(artefact, &row.node, &waiver.rule)
        })
    });
    let by = match (waived, &obligation.needs) {
        (Some(waiver), _) => {
            format!("the rule {} with the outcome {}", waiver.rule, waiver.outcome)
        }
        (None, Need::Approvals { role, .. }) => {
            let fits = |row: &&StepRow| {
                row.applied == Some(true)
                    && role.as_ref().is_none_or(|role| is_role(artefact, &row.node, role))
            };
            let people: BTreeSet<&str> = before().filter(fits).flat_map(approvers).collect();
            let plural = if people.len() == 1 { "" } else { "s" };
            let role = role.as_ref().map(|role| format!(" by the role {role}"));
            format!("{} approval{plural}{}", people.len(), role.unwrap_or_default())
        }
        (None, Need::Action { action_type }) => format!("the action {action_type}"),
    };
    Some(Held { id: obligation.id.clone(), by })
}
