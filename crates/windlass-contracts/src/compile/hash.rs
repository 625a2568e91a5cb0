//! The hash of an artefact, and loading with verification (WF-07).

use serde_json::Value;
use windlass_kernel::Sha256Digest;
use windlass_kernel::canonical::{to_canonical, value_to_canonical};

use super::{READABLE_VERSIONS, integrity, merge};
use crate::codes::{ARTEFACT_HASH, CONTRACT_SHAPE, WORKFLOW_COMPILER_STALE};
use crate::diagnostic::Diagnostic;
use crate::types::{CompiledWorkflow, NodeType};

/// The digest of the canonical JSON of all fields but `hash`.
pub(super) fn of(compiled: &CompiledWorkflow) -> Result<Sha256Digest, Diagnostic> {
    let value = serde_json::to_value(compiled).map_err(|error| not_canonical(&error))?;
    of_value(value)
}

/// As [`of`], of an artefact as it is stored: another compiler may have left out a field.
fn of_value(mut value: Value) -> Result<Sha256Digest, Diagnostic> {
    if let Value::Object(fields) = &mut value {
        fields.remove("hash");
    }
    let bytes = value_to_canonical(&value).map_err(|error| not_canonical(&error))?;
    Ok(Sha256Digest::of(&bytes))
}

fn not_canonical(error: &dyn std::error::Error) -> Diagnostic {
    Diagnostic::new(CONTRACT_SHAPE, error.to_string())
        .help("write the numbers of the configurations with fewer digits")
}

impl CompiledWorkflow {
    /// The canonical JSON of the artefact, which is the form that is stored.
    ///
    /// # Errors
    /// Fails if a number in a configuration would lose digits.
    pub fn to_json(&self) -> Result<Vec<u8>, Diagnostic> {
        to_canonical(self).map_err(|error| not_canonical(&error))
    }
}

/// Checks that the tables of an artefact know all of its nodes, because the token engine looks them
/// up there.
fn check_complete(compiled: &CompiledWorkflow) -> Result<(), Diagnostic> {
    let broken = |message: String| {
        Err(Diagnostic::new(ARTEFACT_HASH, message).help("compile the definition again"))
    };
    for (id, node) in &compiled.nodes {
        let is_join = node.node_type() == NodeType::ParallelJoin;
        let known = node.id == *id
            && compiled.slot_map.contains_key(id)
            && compiled.edit_windows.contains_key(id)
            && (!is_join || compiled.join_requirements.contains_key(id));
        if !known {
            return broken(format!("the artefact does not describe the node {id:?}"));
        }
    }
    for (id, edge) in &compiled.edges_by_id {
        let ends = [&edge.source, &edge.target];
        if edge.id != *id || ends.iter().any(|end| !compiled.nodes.contains_key(*end)) {
            return broken(format!("the artefact does not describe the edge {id:?}"));
        }
    }
    Ok(())
}

/// Loads a stored artefact.
///
/// # Errors
/// Fails if this build does not read the version of the compiler that made it, if its hash does not match its content, or if
/// its derived parts or its gates do not match its nodes and edges.
pub fn load(bytes: &[u8]) -> Result<CompiledWorkflow, Diagnostic> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        Diagnostic::new(CONTRACT_SHAPE, format!("the artefact is not JSON: {error}"))
            .help("restore the artefact from a backup, or compile the definition again")
    })?;
    // The version is checked first: another compiler may write another shape.
    match value.get("compilerVersion").and_then(Value::as_str) {
        Some(version) if READABLE_VERSIONS.contains(&version) => {}
        version => {
            let version = version.unwrap_or("none");
            let [earlier @ .., last] = &READABLE_VERSIONS;
            let message = format!(
                "the artefact is of compiler version {version}, this build reads {} and {last}",
                earlier.join(", ")
            );
            return Err(Diagnostic::new(WORKFLOW_COMPILER_STALE, message)
                .at("/compilerVersion")
                .help("compile the definition again; a document that is pinned to it needs a build that reads it"));
        }
    }
    let compiled: CompiledWorkflow = serde_json::from_value(value.clone()).map_err(|error| {
        Diagnostic::new(CONTRACT_SHAPE, format!("this is not a compiled workflow: {error}"))
            .help("restore the artefact from a backup, or compile the definition again")
    })?;
    let hash = of_value(value)?;
    if hash != compiled.hash {
        let message = format!("the artefact has the hash {}, its content {hash}", compiled.hash);
        return Err(Diagnostic::new(ARTEFACT_HASH, message)
            .at("/hash")
            .help("the artefact was changed after it was compiled; compile the definition again"));
    }
    check_complete(&compiled)?;
    let derived = merge::order(&compiled.nodes, &compiled.edges_by_id)?
        == compiled.topological_order
        && merge::adjacency(&compiled.nodes, &compiled.edges_by_id) == compiled.adjacency
        && merge::reverse_adjacency(&compiled.nodes, &compiled.edges_by_id)
            == compiled.reverse_adjacency;
    if !derived {
        let message = "the order or the adjacency does not match the nodes and edges";
        return Err(Diagnostic::new(ARTEFACT_HASH, message).help("compile the definition again"));
    }
    integrity::recheck(&compiled)?;
    Ok(compiled)
}
