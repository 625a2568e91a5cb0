//! The ids of nodes and edges, and the characters that names may have.

use crate::codes::CONTRACT_NAME;
use crate::diagnostic::Diagnostic;

/// The node at which a run begins.
pub const START: &str = "sys:start";
/// The node at which a run ends.
pub const END: &str = "sys:end";
/// The owner of system nodes and edges.
pub const ENVELOPE: &str = "envelope";
/// The longest name of a type, state, gate, slot or node.
pub const NAME_CHARS_MAX: usize = 64;
/// The longest id of an edge.
pub const EDGE_ID_CHARS_MAX: usize = 128;

/// The node of a state.
pub fn state(name: &str) -> String {
    format!("sys:state:{name}")
}

/// The name of the state of a node.
pub fn state_name(node: &str) -> Option<&str> {
    node.strip_prefix("sys:state:")
}

/// The node of a gate.
pub fn gate(name: &str) -> String {
    format!("sys:gate:{name}")
}

/// The attachment point at which a slot begins.
pub fn slot_in(slot: &str) -> String {
    format!("sys:slot:{slot}:in")
}

/// The attachment point at which a slot ends.
pub fn slot_out(slot: &str) -> String {
    format!("sys:slot:{slot}:out")
}

/// The policy check before an action node.
pub fn policy(node: &str) -> String {
    format!("sys:policy:{node}")
}

/// The system edge between two nodes.
pub fn system_edge(source: &str, target: &str) -> String {
    format!("sys:edge:{source}->{target}")
}

/// The system edge between two nodes that has a label. Two nodes can have several edges: a rejection and an
/// amendment can lead to one state.
pub fn labelled_system_edge(source: &str, target: &str, label: &str) -> String {
    format!("{}[{label}]", system_edge(source, target))
}

/// Whether a text is a name: a lowercase letter, then lowercase letters, digits and `_`.
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_CHARS_MAX
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The problem of a text that is not a name.
pub(crate) fn not_a_name(text: &str, pointer: String) -> Diagnostic {
    Diagnostic::new(CONTRACT_NAME, format!("{text:?} is not a name"))
        .at(pointer)
        .help("write 1 to 64 lowercase letters, digits and _, beginning with a letter")
}

/// Whether a text is a dotted name such as `invoice.post`.
pub fn is_dotted_name(text: &str) -> bool {
    text.len() <= 2 * NAME_CHARS_MAX && text.split('.').all(is_name)
}

/// Whether `id` is `usr:<slot>:<name>`. The name has lowercase letters, digits, `_` and `-`, so that
/// a UUID is a name too.
pub fn is_custom_node(id: &str, slot: &str) -> bool {
    let Some(name) = id
        .strip_prefix("usr:")
        .and_then(|rest| rest.strip_prefix(slot))
        .and_then(|rest| rest.strip_prefix(':'))
    else {
        return false;
    };
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

/// Whether a text can be the id of a custom edge.
pub fn is_custom_edge(id: &str) -> bool {
    (1..=EDGE_ID_CHARS_MAX).contains(&id.len())
        && !id.starts_with("sys:")
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_node_belongs_to_its_slot() {
        assert!(is_custom_node("usr:review:manager", "review"));
        assert!(is_custom_node("usr:review:0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10", "review"));
        for id in [
            "usr:other:manager",
            "usr:review:",
            "usr:review:a:b",
            "usr:review",
            "usr:reviews:a",
            "sys:review:a",
            "usr:review:m\u{0430}nager",
            "usr:review:a\0",
            "usr:review:A",
            "USR:review:a",
        ] {
            assert!(!is_custom_node(id, "review"), "{id:?}");
        }
    }

    #[test]
    fn names_have_a_small_alphabet() {
        assert!(is_name("draft_2"));
        for text in ["", "2a", "_a", "Draft", "a-b", "a b", "\u{0430}", &"a".repeat(65)] {
            assert!(!is_name(text), "{text:?}");
        }
        assert!(is_dotted_name("invoice.post"));
        assert!(!is_dotted_name("invoice..post"));
        assert!(is_custom_edge("e1:x"));
        assert!(!is_custom_edge("sys:edge:x"));
    }
}
