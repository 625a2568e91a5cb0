//! Models do not import each other; what two of them share is below both.

use super::Finding;
use super::code::{code_only, is_word_character};
use super::tree::Tree;

const HOME: &str = "crates/windlass-models/src/";
const MODELS: &[&str] = &["steps", "machines", "relays", "agents", "contracts"];
/// What a path to another module of the crate begins with.
const ROOTS: &[&str] = &["crate::", "super::"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.below(HOME) {
        let own = path.split(['/', '.']).next().unwrap_or_default();
        if !MODELS.contains(&own) || !path.ends_with(".rs") {
            continue;
        }
        for (line, name) in imports(&code_only(text)) {
            if name != own && MODELS.contains(&name.as_str()) {
                let what = format!("`{own}` imports `{name}`");
                let mend = "move what both need into the engine or the kernel";
                findings.push(Finding::new(format!("{HOME}{path}"), line, what, mend));
            }
        }
    }
    findings
}

/// The modules named right after a root, with their lines; also those of a group in braces.
fn imports(code: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for root in ROOTS {
        for (at, _) in code.match_indices(root) {
            let after = at + root.len();
            for offset in heads(&code[after..]) {
                let start = after + offset;
                let name: String =
                    code[start..].chars().take_while(|c| is_word_character(*c)).collect();
                names.push((code[..start].matches('\n').count() + 1, name));
            }
        }
    }
    names
}

/// Where the first names of a path or of a group of paths begin.
fn heads(text: &str) -> Vec<usize> {
    if !text.starts_with('{') {
        return vec![0];
    }
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut at_head = false;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if at_head && is_word_character(c) => heads.push(at),
            _ => {}
        }
        if depth == 0 {
            break;
        }
        at_head = depth == 1 && (matches!(c, '{' | ',') || at_head && c.is_whitespace());
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn an_import_of_another_model_is_found() {
        for (text, expect) in [
            ("use crate::machines::Machine;", vec![(1, "machines")]),
            ("fn f() { crate::agents::run() }", vec![(1, "agents")]),
            ("use super::relays;", vec![(1, "relays")]),
            ("use crate::{\n    steps,\n    relays::{Relay, agents},\n};", vec![(3, "relays")]),
            ("use crate::{shared::{a, machines}, contracts};", vec![(1, "contracts")]),
            ("use crate::steps::other;", vec![]),
            ("use crate::shared;", vec![]),
            ("use crate::machines_shared;", vec![]),
            ("// crate::machines is apart", vec![]),
        ] {
            for path in
                ["crates/windlass-models/src/steps/a.rs", "crates/windlass-models/src/steps.rs"]
            {
                let expect: Vec<String> = expect
                    .iter()
                    .map(|(line, name)| format!("{path}:{line}: `steps` imports `{name}`"))
                    .collect();
                assert_eq!(found(check, &[(path, text)]), expect, "{text}");
            }
        }
    }

    #[test]
    fn the_crate_itself_names_them_all() {
        let text = "mod steps;\npub use crate::steps::Step;\npub use crate::machines::Machine;";
        assert_eq!(found(check, &[("crates/windlass-models/src/lib.rs", text)]), [""; 0]);
    }
}
