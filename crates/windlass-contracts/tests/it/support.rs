//! Contracts, definitions and a driver for runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};
use windlass_contracts::compile::{Error, compile};
use windlass_contracts::project::project;
use windlass_contracts::templates::{self, Template};
use windlass_contracts::tokens::{
    AllowAll, Decision, Facts, Input, Policy, State, StepRow, StepStatus, Verdict, advance,
};
use windlass_contracts::types::{
    CompiledWorkflow, LifecycleContract, OrgWorkflowDefinition, SlotGraphPatch,
};

pub(crate) const SLOT: &str = "submitted_to_approved";

pub(crate) fn template(name: &str) -> Template {
    templates::all().into_iter().find(|one| one.name == name).unwrap()
}

/// The contract for invoices, with context variables for scripts and events.
pub(crate) fn contract() -> LifecycleContract {
    let mut contract = template("invoice_approval").contract;
    contract.schemas.context = json!({
        "type": "object",
        "properties": {
            "reserved": {"type": "boolean"},
            "checked": {"type": "boolean"},
            "signed_by": {"type": "string"},
            "amount": {"type": "number"},
        },
    });
    contract
}

/// A contract without obligations, for tests of other rules.
pub(crate) fn free_contract() -> LifecycleContract {
    let mut contract = contract();
    contract.obligations.clear();
    contract
}

/// Lets a contract amend to the state `draft`, to which rejections lead too.
pub(crate) fn amend_to_draft(contract: &mut Value) {
    contract["amended"] = json!("draft");
    let mut keep = |list: &str, field: &str, not: &str| {
        contract[list].as_array_mut().unwrap().retain(|one| one[field] != not);
    };
    keep("states", "name", "amended");
    keep("transitions", "from", "amended");
    keep("slots", "slotId", "amendment_cycle");
    contract["defaults"].as_object_mut().unwrap().remove("amendment_cycle");
}

pub(crate) fn definition(slots: Value) -> OrgWorkflowDefinition {
    serde_json::from_value(json!({
        "baseRef": {"entityType": "invoice", "envelopeVersion": 1},
        "slots": slots,
    }))
    .unwrap()
}

/// A definition with one patch in the slot between submit and approve.
pub(crate) fn patched(patch: Value) -> OrgWorkflowDefinition {
    let patch: SlotGraphPatch = serde_json::from_value(patch).unwrap();
    let mut definition = definition(json!({}));
    definition.slots.insert(SLOT.to_owned(), patch);
    definition
}

pub(crate) fn id(name: &str) -> String {
    match name {
        "in" | "out" => format!("sys:slot:{SLOT}:{name}"),
        name if name.contains(':') => name.to_owned(),
        name => format!("usr:{SLOT}:{name}"),
    }
}

pub(crate) fn node(name: &str, node_type: &str, config: Value) -> Value {
    json!({"id": id(name), "type": node_type, "config": config})
}

pub(crate) fn approval(name: &str) -> Value {
    node(name, "approval", json!({"approvers": {"strategy": "role", "role": "finance_manager"}}))
}

pub(crate) fn edge(source: &str, target: &str) -> Value {
    json!({"id": format!("{source}-{target}"), "source": id(source), "target": id(target)})
}

pub(crate) fn labelled(source: &str, target: &str, label: &str) -> Value {
    let mut edge = edge(source, target);
    edge["label"] = json!(label);
    edge["id"] = json!(format!("{source}-{label}"));
    edge
}

/// Checks that a definition is refused with this code at this place, and returns the message.
pub(crate) fn refused(
    contract: &LifecycleContract,
    definition: &OrgWorkflowDefinition,
    code: &str,
    pointer: &str,
) -> windlass_contracts::diagnostic::Diagnostic {
    let error: Error = compile(contract, definition).unwrap_err();
    let found = error.problems.iter().find(|problem| {
        problem.code.as_str() == code && problem.place.pointer.as_deref() == Some(pointer)
    });
    let found = found.unwrap_or_else(|| panic!("{code} at {pointer} is not in {error}"));
    assert!(!found.help.is_empty(), "{found} has no help");
    found.clone()
}

/// A run in memory. After every turn it compares the state with the one rebuilt from its rows.
pub(crate) struct Run {
    pub(crate) artefact: CompiledWorkflow,
    pub(crate) state: State,
    pub(crate) rows: BTreeMap<u64, StepRow>,
    pub(crate) document: Value,
    pub(crate) version: u64,
    pub(crate) material_version: u64,
    /// The last version that an action of the run wrote.
    pub(crate) own_version: u64,
    pub(crate) now: Timestamp,
}

impl Run {
    pub(crate) fn new(artefact: CompiledWorkflow, document: Value) -> Self {
        Self {
            artefact,
            state: State::default(),
            rows: BTreeMap::new(),
            document,
            version: 1,
            material_version: 1,
            own_version: 0,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
        }
    }

    /// A run that stands behind the submit gate.
    pub(crate) fn submitted(artefact: CompiledWorkflow, document: Value) -> Self {
        let mut run = Self::new(artefact, document);
        run.turn(&Input::Start);
        run.turn(&Input::Action { gate: "submit".to_owned() });
        run
    }

    pub(crate) fn turn(&mut self, input: &Input) -> Decision {
        self.turn_with(input, &AllowAll)
    }

    pub(crate) fn turn_with(&mut self, input: &Input, policy: &dyn Policy) -> Decision {
        let null = Value::Null;
        let facts = Facts {
            version: self.version,
            material_version: self.material_version,
            drift_version: match self.own_version == self.material_version {
                true => self.material_version - 1,
                false => self.material_version,
            },
            entity: &self.document,
            actor: &null,
            org: &null,
            now: self.now,
            policy,
        };
        let decision = advance(&self.artefact, &self.state, input, &facts).unwrap();
        for row in &decision.steps {
            if let Some(old) = self.rows.get(&row.seq) {
                assert_eq!((&old.key, old.version, old.cycle), (&row.key, row.version, row.cycle));
            } else {
                let same = self.rows.values().find(|other| other.key == row.key);
                assert!(same.is_none(), "two rows have the key {}", row.key);
            }
            self.rows.insert(row.seq, row.clone());
        }
        self.state = decision.state.clone();
        let rows: Vec<StepRow> = self.rows.values().rev().cloned().collect();
        let rebuilt = project(&self.artefact, &rows);
        assert_eq!(
            serde_json::to_vec(&rebuilt).unwrap(),
            serde_json::to_vec(&self.state).unwrap(),
            "the rebuilt state differs after {input:?}"
        );
        decision
    }

    /// The key of the waiting step of a node.
    pub(crate) fn key(&self, name: &str) -> String {
        let id = id(name);
        let open = self.state.open.values();
        let row = open.into_iter().find(|row| row.node == id && row.status == StepStatus::Waiting);
        row.unwrap_or_else(|| panic!("{id} does not wait; live: {:?}", self.state.tokens()))
            .key
            .clone()
    }

    pub(crate) fn decide(&mut self, name: &str, verdict: Verdict) -> Decision {
        let key = self.key(name);
        self.turn(&vote(key, &[(name, verdict)]))
    }

    pub(crate) fn approve(&mut self, name: &str) -> Decision {
        self.decide(name, Verdict::Approved)
    }

    pub(crate) fn statuses(&self, name: &str) -> Vec<StepStatus> {
        let id = id(name);
        self.rows.values().filter(|row| row.node == id).map(|row| row.status).collect()
    }
}

pub(crate) fn invoice() -> Value {
    json!({
        "id": "i-1", "total": 90_000, "currency": "EUR", "requester": "rita",
        "vendor_class": "new", "budget_owner": "bob",
    })
}

/// The decisions of all people who are asked.
pub(crate) fn vote(key: String, decisions: &[(&str, Verdict)]) -> Input {
    let decisions: BTreeMap<String, Verdict> =
        decisions.iter().map(|(person, verdict)| ((*person).to_owned(), *verdict)).collect();
    let asked = decisions.keys().cloned().collect();
    Input::Approval { key, asked, decisions, givers: BTreeMap::new() }
}
