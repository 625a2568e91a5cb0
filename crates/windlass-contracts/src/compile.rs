//! The compiler: merges an envelope with patches into one checked and hashed artefact.

mod changes;
mod hash;
mod integrity;
mod joins;
mod merge;
mod obligations;
mod shape;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::DeserializeOwned;
use windlass_kernel::Sha256Digest;

use crate::codes::{CONTRACT_BASE_REF, CONTRACT_DUPLICATE, CONTRACT_LIMIT, CONTRACT_SHAPE};
use crate::diagnostic::{Diagnostic, pointer_join};
use crate::envelope;
use crate::language::Language;
use crate::patch::{self, Attached, Surroundings};
use crate::source;
use crate::types::{
    CompiledWorkflow, Envelope, LifecycleContract, Node, NodeConfig, NodeType,
    OrgWorkflowDefinition, PatchOrigin, SlotGraphPatch,
};

pub use hash::load;

/// The version of this compiler. It rises with each change of what the compiler accepts or makes.
pub const COMPILER_VERSION: &str = "1.2.0";
/// The versions whose artefacts this build loads: documents that are pinned to them go on. Version 1.0.0
/// accepted edit windows that let a change pass a gate. Version 1.1.0 gave two edges between the same nodes one
/// id, and its artefacts do not have the schema of the context.
pub const READABLE_VERSIONS: [&str; 3] = ["1.0.0", "1.1.0", COMPILER_VERSION];
/// The most nodes of an artefact.
pub const NODES_MAX: usize = 500;
/// The most edges of an artefact.
pub const EDGES_MAX: usize = 2_000;
/// The most decision tables of a contract and a definition together.
pub const TABLES_MAX: usize = 50;
/// The most obligations of a contract.
pub const OBLIGATIONS_MAX: usize = 50;
/// The most action types that a contract lists.
pub const DOCUMENT_ACTIONS_MAX: usize = 100;
/// The most problems that one error has.
pub const PROBLEMS_MAX: usize = 100;
/// The largest contract or definition, in bytes of JSON.
pub const BYTES_MAX: usize = 1024 * 1024;

/// The input that a problem is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The lifecycle contract.
    Contract,
    /// The definition of the tenant.
    Definition,
}

/// The reasons why an input does not compile.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Error {
    /// The input that the problems are in.
    pub origin: Origin,
    /// The problems, at least one.
    pub problems: Vec<Diagnostic>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.origin {
            Origin::Contract => "contract",
            Origin::Definition => "definition",
        };
        write!(f, "the {name} does not compile:")?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Keeps the first problems: a small patch can have thousands.
    fn shortened(mut self) -> Self {
        let more = self.problems.len().saturating_sub(PROBLEMS_MAX);
        if more > 0 {
            self.problems.truncate(PROBLEMS_MAX);
            self.problems.push(
                Diagnostic::new(CONTRACT_LIMIT, format!("{more} more problems are not shown"))
                    .help("correct these problems, then check again"),
            );
        }
        self
    }
}

/// Reads a contract from JSON text of at most [`BYTES_MAX`] bytes.
///
/// # Errors
/// Fails if the text is too long, is not JSON, or does not have the shape of a contract.
pub fn read_contract(text: &str) -> Result<LifecycleContract, Diagnostic> {
    read(text, "lifecycle contract")
}

/// Reads a definition from JSON text of at most [`BYTES_MAX`] bytes.
///
/// # Errors
/// Fails if the text is too long, is not JSON, or does not have the shape of a definition.
pub fn read_definition(text: &str) -> Result<OrgWorkflowDefinition, Diagnostic> {
    read(text, "workflow definition")
}

/// Reads another value from JSON text, as strictly: no number loses digits, and no key comes twice. `kind` names
/// the value in problems.
///
/// # Errors
/// Fails if the text is too long, is not JSON, or does not have the shape of the value.
pub fn read_strictly<T: DeserializeOwned>(
    text: &str,
    kind: &str,
    bytes_max: usize,
) -> Result<T, Diagnostic> {
    source::read(text, bytes_max)?;
    serde_json::from_str(text).map_err(|error| {
        let at = source::offset(text, error.line(), error.column());
        Diagnostic::new(CONTRACT_SHAPE, format!("this is not a {kind}: {error}"))
            .span(at..at)
            .help("check the names and the types of the fields")
    })
}

pub(crate) fn read<T: DeserializeOwned>(text: &str, kind: &str) -> Result<T, Diagnostic> {
    let value = source::read(text, BYTES_MAX)?;
    serde_json::from_str(text).map_err(|error| {
        let new = |reason: &str| {
            Diagnostic::new(CONTRACT_SHAPE, format!("this is not a {kind}: {reason}"))
                .help("check the spelling, and compare it with one of the templates")
        };
        if let Some((pointer, reason)) = shape::find(&value)
            && let Some(span) = source::locate(text, &pointer)
        {
            return new(&reason).at(pointer).span(span);
        }
        let at = source::offset(text, error.line(), error.column());
        new(&error.to_string()).span(at..at)
    })
}

/// The definition of a tenant that published none: all slots have the contract's default patches.
pub fn default_definition(contract: &LifecycleContract) -> OrgWorkflowDefinition {
    OrgWorkflowDefinition {
        base_ref: crate::types::BaseRef {
            entity_type: contract.entity_type.clone(),
            envelope_version: contract.version,
        },
        slots: BTreeMap::new(),
        rules: BTreeMap::new(),
    }
}

/// Compiles a definition against its contract.
///
/// The same input gives the same bytes, in every process and for every order of nodes and edges.
///
/// # Errors
/// Returns all problems of the first stage that fails: the limits, the contract, the patches, the
/// merged graph, the obligations.
pub fn compile(
    contract: &LifecycleContract,
    definition: &OrgWorkflowDefinition,
) -> Result<CompiledWorkflow, Error> {
    compile_whole(contract, definition).map_err(Error::shortened)
}

fn compile_whole(
    contract: &LifecycleContract,
    definition: &OrgWorkflowDefinition,
) -> Result<CompiledWorkflow, Error> {
    let in_contract = |problems| Error { origin: Origin::Contract, problems };
    let in_definition = |problems| Error { origin: Origin::Definition, problems };
    check_limits(contract, definition)?;
    let envelope = envelope::generate(contract).map_err(in_contract)?;
    let language = Language::new(contract, &definition.rules)?;
    check_base(&envelope, definition).map_err(in_definition)?;
    let slots = check_patches(contract, definition, &envelope, &language)?;
    check_edge_ids(&slots)?;
    // The proof of the obligations relies on where actions that change the document stand.
    changes::check(contract, &envelope, &slots)?;
    obligations::check(contract, &envelope, &slots)?;
    let merged = merge::merge(&envelope, &slots);
    let integrity =
        integrity::prove(&envelope, &merged).map_err(|problem| in_definition(vec![problem]))?;
    let mut compiled = CompiledWorkflow {
        entity_type: contract.entity_type.clone(),
        envelope_version: contract.version,
        compiler_version: COMPILER_VERSION.to_owned(),
        adjacency: merged.adjacency(),
        reverse_adjacency: merged.reverse_adjacency(),
        topological_order: merged.order().map_err(|problem| in_definition(vec![problem]))?,
        join_requirements: joins::requirements(&slots),
        edit_windows: windows::edit_windows(&merged, &slots),
        stable_region_nodes: windows::stable_nodes(&merged, &envelope),
        on_drift: windows::on_drift(&envelope),
        slot_map: merged.slot_map.clone(),
        patch_origins: patch_origins(&slots),
        rules: language.used_rules(contract, merged.nodes.values()),
        obligations: obligations::sorted(contract),
        immaterial_fields: contract.immaterial_fields.iter().cloned().collect(),
        document_actions: contract.document_actions.iter().cloned().collect(),
        context_schema: language.context_schema(merged.nodes.values()),
        schema_digest: language.schema_digest(),
        system_gate_integrity: integrity,
        nodes: merged.nodes,
        edges_by_id: merged.edges,
        hash: Sha256Digest::of(b""),
    };
    compiled.hash = hash::of(&compiled).map_err(|problem| in_definition(vec![problem]))?;
    Ok(compiled)
}

/// Checks the sizes before any graph is built.
fn check_limits(
    contract: &LifecycleContract,
    definition: &OrgWorkflowDefinition,
) -> Result<(), Error> {
    let mut nodes = 2 + contract.states.len() + contract.gates.len();
    let mut edges = 2 * contract.transitions.len() + contract.states.len() + contract.slots.len();
    for slot in &contract.slots {
        let patch = definition.slots.get(&slot.slot_id).or(contract.defaults.get(&slot.slot_id));
        let Some(patch) = patch else { continue };
        let is_action = |node: &&Node| node.node_type() == NodeType::Action;
        let policies = patch.nodes.iter().filter(is_action).count();
        // Two attachment points.
        nodes += 2 + patch.nodes.len() + policies;
        edges += patch.edges.len() + patch.nodes.len() + policies;
    }
    let tables = contract.rules.len() + definition.rules.len();
    let obligations = contract.obligations.len();
    let document_actions = contract.document_actions.len();
    for (name, count, max, origin) in [
        ("nodes", nodes, NODES_MAX, Origin::Definition),
        ("edges", edges, EDGES_MAX, Origin::Definition),
        ("decision tables", tables, TABLES_MAX, Origin::Definition),
        ("obligations", obligations, OBLIGATIONS_MAX, Origin::Contract),
        ("document actions", document_actions, DOCUMENT_ACTIONS_MAX, Origin::Contract),
    ] {
        if count > max {
            let message = format!("the workflow has {count} {name}, the limit is {max}");
            let problem = Diagnostic::new(CONTRACT_LIMIT, message)
                .at("")
                .help("split the process into several document types");
            return Err(Error { origin, problems: vec![problem] });
        }
    }
    Ok(())
}

fn check_base(
    envelope: &Envelope,
    definition: &OrgWorkflowDefinition,
) -> Result<(), Vec<Diagnostic>> {
    let base = &definition.base_ref;
    let mut found = Vec::new();
    if base.entity_type != envelope.entity_type {
        let message = format!(
            "the definition is for {:?}, the contract for {:?}",
            base.entity_type, envelope.entity_type
        );
        found.push(
            Diagnostic::new(CONTRACT_BASE_REF, message)
                .at("/baseRef/entityType")
                .help("compile it against the contract of its type"),
        );
    }
    if base.envelope_version != envelope.version {
        let message = format!(
            "the definition is for envelope version {}, the contract has version {}",
            base.envelope_version, envelope.version
        );
        found.push(
            Diagnostic::new(CONTRACT_BASE_REF, message)
                .at("/baseRef/envelopeVersion")
                .help("check the patches against the new envelope, then change the version"),
        );
    }
    let slots: BTreeSet<&str> = envelope.slots.iter().map(|slot| slot.slot_id.as_str()).collect();
    for slot in definition.slots.keys().filter(|slot| !slots.contains(slot.as_str())) {
        found.push(envelope::unknown("slot", &slots, slot, pointer_join("/slots", slot)));
    }
    if found.is_empty() { Ok(()) } else { Err(found) }
}

fn check_patches<'a>(
    contract: &'a LifecycleContract,
    definition: &'a OrgWorkflowDefinition,
    envelope: &'a Envelope,
    language: &'a Language,
) -> Result<Vec<Slot<'a>>, Error> {
    let mut slots = Vec::new();
    let mut found: [Vec<Diagnostic>; 2] = [Vec::new(), Vec::new()];
    for slot in &envelope.slots {
        let can_reject = envelope
            .return_edges
            .iter()
            .any(|edge| edge.source == slot.exit && edge.label.as_deref() == Some("reject"));
        let (origin, patch, under): (Origin, Option<&SlotGraphPatch>, &str) =
            match definition.slots.get(&slot.slot_id) {
                Some(patch) => (Origin::Definition, Some(patch), "/slots"),
                None => (Origin::Contract, contract.defaults.get(&slot.slot_id), "/defaults"),
            };
        let Some(patch) = patch else { continue };
        let at = pointer_join(under, &slot.slot_id);
        let around = Surroundings { slot, can_reject, language };
        match patch::check(&around, patch, &at) {
            Ok(attached) => slots.push(Slot { attached, origin, at }),
            Err(problems) => found[usize::from(origin == Origin::Definition)].extend(problems),
        }
    }
    let [contract, definition] = found;
    for (origin, problems) in [(Origin::Contract, contract), (Origin::Definition, definition)] {
        if !problems.is_empty() {
            return Err(Error { origin, problems });
        }
    }
    Ok(slots)
}

/// A slot with its checked patch.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    pub(crate) attached: Attached<'a>,
    pub(crate) origin: Origin,
    /// The place of the patch in its input.
    pub(crate) at: String,
}

fn patch_origins(slots: &[Slot<'_>]) -> BTreeMap<String, PatchOrigin> {
    let origin = |slot: &Slot<'_>| match slot.origin {
        Origin::Contract => PatchOrigin::Contract,
        Origin::Definition => PatchOrigin::Definition,
    };
    slots.iter().map(|slot| (slot.attached.slot.slot_id.clone(), origin(slot))).collect()
}

/// Edge ids are unique in the workflow. If a default patch of the contract and the definition have the
/// same one, the definition has to change.
fn check_edge_ids(slots: &[Slot<'_>]) -> Result<(), Error> {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    for origin in [Origin::Contract, Origin::Definition] {
        let mut problems = Vec::new();
        for slot in slots.iter().filter(|slot| slot.origin == origin) {
            for (index, edge) in slot.attached.patch.edges.iter().enumerate() {
                let place = format!("{}/edges/{index}/id", slot.at);
                if let Some(first) = seen.get(edge.id.as_str()) {
                    let message = format!("{first} is {:?} too", edge.id);
                    problems.push(
                        Diagnostic::new(CONTRACT_DUPLICATE, message)
                            .at(place)
                            .help("use each id once in a workflow"),
                    );
                } else {
                    seen.insert(&edge.id, place);
                }
            }
        }
        if !problems.is_empty() {
            return Err(Error { origin, problems });
        }
    }
    Ok(())
}

/// The node with lists in a canonical order, so that the order in the input does not matter.
pub(crate) fn normalized(node: &Node) -> Node {
    fn people(approvers: &mut crate::types::ApproverSpec) {
        if let crate::types::ApproverSpec::Direct { users } = approvers {
            users.sort();
            users.dedup();
        }
    }
    let mut node = node.clone();
    match &mut node.config {
        NodeConfig::Approval(approval) => {
            approval.approvers.iter_mut().for_each(people);
            if let Some(crate::types::DueAction::Escalate(approvers)) =
                approval.due.as_mut().map(|due| &mut due.then)
            {
                people(approvers);
            }
        }
        NodeConfig::Notification(notification) => people(&mut notification.to),
        _ => {}
    }
    node
}
