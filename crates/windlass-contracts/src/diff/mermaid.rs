//! A workflow as a Mermaid flowchart, with one subgraph for each slot.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::ids;
use crate::types::{CompiledWorkflow, Node, NodeType};

/// Draws a workflow. Return edges are dotted.
pub fn mermaid(compiled: &CompiledWorkflow) -> String {
    let names: BTreeMap<&str, String> = compiled
        .topological_order
        .iter()
        .enumerate()
        .map(|(index, id)| (id.as_str(), format!("n{index}")))
        .collect();
    let mut by_owner: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for id in &compiled.topological_order {
        if let (Some(node), Some(owner)) = (compiled.nodes.get(id), compiled.slot_map.get(id)) {
            by_owner.entry(owner).or_default().push(node);
        }
    }
    let mut out = "flowchart TD\n".to_owned();
    for (index, (owner, nodes)) in by_owner.iter().enumerate() {
        let indent = if *owner == ids::ENVELOPE { "  " } else { "    " };
        if *owner != ids::ENVELOPE {
            let _ = writeln!(out, "  subgraph s{index}[{}]", quote(owner));
        }
        for node in nodes {
            let _ = writeln!(out, "{indent}{}{}", names[node.id.as_str()], shape(node));
        }
        if *owner != ids::ENVELOPE {
            out.push_str("  end\n");
        }
    }
    for edge in compiled.edges_by_id.values() {
        let (Some(from), Some(to)) =
            (names.get(edge.source.as_str()), names.get(edge.target.as_str()))
        else {
            continue;
        };
        let arrow = if edge.is_return { "-.->" } else { "-->" };
        let text = match (&edge.label, &edge.condition) {
            (Some(label), _) => Some(label.as_str()),
            (None, Some(condition)) => Some(condition.as_str()),
            (None, None) => None,
        };
        let text = text.map(|text| format!("|{}|", quote(text))).unwrap_or_default();
        let _ = writeln!(out, "  {from} {arrow}{text} {to}");
    }
    out
}

fn shape(node: &Node) -> String {
    let text = quote(node.label.as_deref().unwrap_or(&node.id));
    match node.node_type() {
        NodeType::Start | NodeType::End | NodeType::State => format!("([{text}])"),
        NodeType::LifecycleGate | NodeType::PolicyGate => format!("{{{{{text}}}}}"),
        NodeType::Condition | NodeType::Rule => format!("{{{text}}}"),
        NodeType::ParallelSplit | NodeType::ParallelJoin => format!("[[{text}]]"),
        _ => format!("[{text}]"),
    }
}

/// Quotes a text. Everything but letters, digits and plain punctuation becomes an entity, so that
/// no label can end the quotes or begin a directive.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        if c.is_alphanumeric() || " _-:.,>=<!/()+'".contains(c) {
            match c {
                '<' => out.push_str("#lt;"),
                '>' => out.push_str("#gt;"),
                c => out.push(c),
            }
        } else {
            let _ = write!(out, "#{};", u32::from(c));
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn labels_cannot_leave_their_quotes() {
        assert_eq!(quote("a\"]; click"), "\"a#34;#93;#59; click\"");
        assert_eq!(quote("total > 5"), "\"total #gt; 5\"");
    }
}
