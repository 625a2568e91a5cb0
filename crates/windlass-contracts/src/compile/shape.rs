//! Finds the part of a JSON input that does not have the shape of its type.
//!
//! `serde` names the end of the object that it was reading, which can be far away from the mistake.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::diagnostic::pointer_join;
use crate::rules::DecisionTable;
use crate::types::{
    BaseRef, BodySlot, Edge, GateSpec, Node, Obligation, SlotGraphPatch, StateSpec, Transition,
};

/// The place of the first part that cannot be read, and the reason.
pub(super) fn find(value: &Value) -> Option<(String, String)> {
    let one = value.get("baseRef").and_then(|part| read::<BaseRef>(part, "/baseRef".to_owned()));
    one.or_else(|| patches(value, "/slots"))
        .or_else(|| patches(value, "/defaults"))
        .or_else(|| members::<DecisionTable>(value, "/rules"))
        .or_else(|| members::<StateSpec>(value, "/states"))
        .or_else(|| members::<GateSpec>(value, "/gates"))
        .or_else(|| members::<Transition>(value, "/transitions"))
        .or_else(|| match value.get("slots") {
            Some(Value::Array(_)) => members::<BodySlot>(value, "/slots"),
            _ => None,
        })
        .or_else(|| members::<Obligation>(value, "/obligations"))
}

fn patches(value: &Value, at: &str) -> Option<(String, String)> {
    let patches = value.pointer(at)?.as_object()?;
    patches.iter().find_map(|(slot, patch)| {
        let at = pointer_join(at, slot);
        members::<Node>(patch, "/nodes")
            .or_else(|| members::<Edge>(patch, "/edges"))
            .map(|(place, reason)| (format!("{at}{place}"), reason))
            .or_else(|| read::<SlotGraphPatch>(patch, at))
    })
}

/// The first member of a list or of a map that cannot be read.
fn members<T: DeserializeOwned>(value: &Value, at: &str) -> Option<(String, String)> {
    match value.pointer(at)? {
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| read::<T>(item, pointer_join(at, index)))
        }
        Value::Object(fields) => {
            let mut fields = fields.iter();
            fields.find_map(|(name, field)| read::<T>(field, pointer_join(at, name)))
        }
        _ => None,
    }
}

fn read<T: DeserializeOwned>(value: &Value, at: String) -> Option<(String, String)> {
    let reason = T::deserialize(value).err()?.to_string();
    // The name of an unknown field stands in the message, and the field may be one level deeper.
    let field = reason.split("unknown field `").nth(1).and_then(|rest| rest.split('`').next());
    let inside = ["", "/config"].into_iter().find_map(|under| {
        let place = pointer_join(under, field?);
        value.pointer(&place).map(|_| place)
    });
    let config = || reason.starts_with("the config of node").then(|| "/config".to_owned());
    let config = config().filter(|place| value.pointer(place).is_some());
    Some((format!("{at}{}", inside.or(config).unwrap_or_default()), reason))
}
