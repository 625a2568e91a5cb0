//! Edit windows and stable regions of the merged graph.

use std::collections::{BTreeMap, BTreeSet};

use super::Slot;
use super::merge::Merged;
use crate::types::{EditWindow, Envelope, OnDrift};

/// The edit window of each node: its own for a system node, that of the slot for all others.
pub(super) fn edit_windows(merged: &Merged, slots: &[Slot<'_>]) -> BTreeMap<String, EditWindow> {
    let of_slot: BTreeMap<&str, EditWindow> = slots
        .iter()
        .map(|slot| {
            let (own, patch) = (slot.attached.slot, slot.attached.patch);
            let window = patch.edit_window_override.unwrap_or(own.default_edit_window);
            (own.slot_id.as_str(), window)
        })
        .collect();
    let window = |id: &str, own: Option<EditWindow>| {
        // Every node has its own window or stands in a slot.
        own.or_else(|| of_slot.get(merged.slot_map[id].as_str()).copied())
            .unwrap_or(EditWindow::Locked)
    };
    merged
        .nodes
        .values()
        .map(|node| (node.id.clone(), window(&node.id, node.edit_window)))
        .collect()
}

/// The nodes of stable regions: the slot, and the system nodes at both of its ends.
pub(super) fn stable_nodes(merged: &Merged, envelope: &Envelope) -> BTreeSet<String> {
    let mut stable = BTreeSet::new();
    for slot in envelope.slots.iter().filter(|slot| slot.stable_region) {
        let inside = merged.slot_map.iter().filter(|(_, owner)| **owner == slot.slot_id);
        stable.extend(inside.map(|(id, _)| id.clone()));
        stable.extend([slot.entry.clone(), slot.exit.clone()]);
    }
    stable
}

/// The reaction to drift of each stable slot.
pub(super) fn on_drift(envelope: &Envelope) -> BTreeMap<String, OnDrift> {
    let stable = envelope.slots.iter().filter(|slot| slot.stable_region);
    stable.map(|slot| (slot.slot_id.clone(), slot.on_drift)).collect()
}
