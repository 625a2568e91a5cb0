//! The difference between an effective workflow and its bare envelope, by slot.

mod mermaid;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::ids;
use crate::types::{CompiledEdge, CompiledWorkflow, EditWindow, Envelope, Node, PatchOrigin};

pub use mermaid::mermaid;

/// The changes of the patches, by slot id.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// The document type.
    pub entity_type: String,
    /// The version of the envelope.
    pub envelope_version: u32,
    /// The changes of each slot that has a patch.
    pub slots: BTreeMap<String, SlotDiff>,
}

/// The changes of one slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotDiff {
    /// The author of the patch.
    pub origin: PatchOrigin,
    /// The nodes that the patch and the compiler add, in topological order.
    pub added_nodes: Vec<Node>,
    /// The edges that the patch and the compiler add, sorted by id.
    pub added_edges: Vec<CompiledEdge>,
    /// The ids of envelope edges that the slot replaces.
    pub removed_edges: Vec<String>,
    /// The edit window, if it is not the default of the slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edit_window: Option<WindowChange>,
}

/// A changed edit window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WindowChange {
    /// The window of the slot in the contract.
    pub from: EditWindow,
    /// The window in the workflow.
    pub to: EditWindow,
}

/// Compares a workflow with its envelope.
pub fn diff(envelope: &Envelope, compiled: &CompiledWorkflow) -> Diff {
    let mut slots = BTreeMap::new();
    for slot in &envelope.slots {
        let Some(origin) = compiled.patch_origins.get(&slot.slot_id) else { continue };
        let added_nodes = compiled
            .topological_order
            .iter()
            .filter(|id| compiled.slot_map.get(*id) == Some(&slot.slot_id))
            .filter_map(|id| compiled.nodes.get(id))
            .cloned()
            .collect();
        let added_edges = compiled
            .edges_by_id
            .values()
            .filter(|edge| edge.provenance == slot.slot_id)
            .cloned()
            .collect();
        let direct = ids::system_edge(&slot.entry, &slot.exit);
        let removed = !compiled.edges_by_id.contains_key(&direct);
        let begin = ids::slot_in(&slot.slot_id);
        let window = compiled.edit_windows.get(&begin).copied().unwrap_or(slot.default_edit_window);
        let changed = (window != slot.default_edit_window)
            .then_some(WindowChange { from: slot.default_edit_window, to: window });
        slots.insert(
            slot.slot_id.clone(),
            SlotDiff {
                origin: *origin,
                added_nodes,
                added_edges,
                removed_edges: removed.then_some(direct).into_iter().collect(),
                edit_window: changed,
            },
        );
    }
    Diff {
        entity_type: compiled.entity_type.clone(),
        envelope_version: compiled.envelope_version,
        slots,
    }
}

/// The text form: `+` for additions, `-` for removals, `~` for changes.
impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (envelope version {})", self.entity_type, self.envelope_version)?;
        for (slot, changes) in &self.slots {
            let origin = match changes.origin {
                PatchOrigin::Contract => "default of the contract",
                PatchOrigin::Definition => "definition",
            };
            writeln!(f, "\nslot {slot} ({origin})")?;
            if let Some(window) = changes.edit_window {
                writeln!(f, "  ~ edit window {} -> {}", window.from, window.to)?;
            }
            for node in &changes.added_nodes {
                let label = node.label.as_ref().map(|label| format!(" {label:?}"));
                writeln!(f, "  + {} {}{}", node.node_type(), node.id, label.unwrap_or_default())?;
            }
            for edge in &changes.added_edges {
                let label = edge.label.as_ref().map(|label| format!(" [{}]", plain(label)));
                let condition = edge.condition.as_ref();
                let condition = condition.map(|text| format!(" if {}", plain(text.as_str())));
                writeln!(
                    f,
                    "  + {} -> {}{}{}",
                    edge.source,
                    edge.target,
                    label.unwrap_or_default(),
                    condition.unwrap_or_default()
                )?;
            }
            for edge in &changes.removed_edges {
                writeln!(f, "  - {edge}")?;
            }
        }
        Ok(())
    }
}

/// A text on one line, without invisible characters, so that no condition can look like another line of
/// the comparison or like another condition.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() => out.push(' '),
            c if c.is_ascii() || c.is_alphanumeric() => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_text_stays_on_its_line() {
        let text = "true\n|| entity.x == '\u{202e}ü\u{200b}'";
        assert_eq!(plain(text), "true || entity.x == '\\u{202e}ü\\u{200b}'");
    }
}
