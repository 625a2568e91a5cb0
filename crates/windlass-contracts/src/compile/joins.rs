//! The requirements of joins, taken from the regions that the slot validator found.

use std::collections::BTreeMap;

use super::Slot;
use crate::types::{JoinMode, JoinRequirement, NodeConfig};

pub(super) fn requirements(slots: &[Slot<'_>]) -> BTreeMap<String, JoinRequirement> {
    let mut found = BTreeMap::new();
    for slot in slots {
        for node in &slot.attached.patch.nodes {
            let NodeConfig::ParallelJoin(config) = &node.config else { continue };
            if let Some((split, branches)) = slot.attached.regions.joins.get(&node.id) {
                let mode: JoinMode = config.mode;
                let split = split.clone();
                let requirement = JoinRequirement { split, required_token_count: *branches, mode };
                found.insert(node.id.clone(), requirement);
            }
        }
    }
    found
}
