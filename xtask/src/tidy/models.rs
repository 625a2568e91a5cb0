//! Checks that models do not import each other, and that no other part has their step kinds or event
//! types as strings. Shared code is in a lower layer.

use super::Finding;
use super::code::{code_only, is_word_character, strings};
use super::tree::Tree;

const HOME: &str = "crates/windlass-models/src/";
const MODELS: &[&str] = &["steps", "machines", "relays", "agents", "contracts"];
/// Prefixes of paths to other modules of the crate.
const ROOTS: &[&str] = &["crate::", "super::"];

/// The file of a model that has its kinds and event types as constants.
const DESCRIPTION: &str = "/description.rs";
/// Directories whose sources write rows and events as plain data.
const TEST_TOOLS: &[&str] = &["crates/windlass-testkit/", "crates/windlass-bench/", "xtask/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = foreign_names(tree);
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

/// Step kinds and event types of a model, as strings in sources outside that model.
fn foreign_names(tree: &Tree) -> Vec<Finding> {
    let mut names = Vec::new();
    for (path, text) in tree.below(HOME) {
        let Some(model) = path.strip_suffix(DESCRIPTION) else { continue };
        names.extend(constants(text, "EventType").map(|name| (model, name, false)));
        names.extend(constants(text, "StepKind").map(|name| (model, name, true)));
    }
    let mut findings = Vec::new();
    for (path, text) in tree.sources().filter(|(path, _)| is_checked(path)) {
        // Unit tests compare with what is stored and sent.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        let lines: Vec<&str> = text.lines().collect();
        for literal in strings(text) {
            let line = lines.get(literal.line - 1).copied().unwrap_or_default();
            let foreign = names.iter().find(|(model, name, is_kind)| {
                *name == literal.text
                    && (!is_kind || line.contains("kind"))
                    && !path.starts_with(&format!("{HOME}{model}"))
            });
            if let Some((model, name, _)) = foreign {
                let what = format!("{name:?} is a name of the model `{model}`");
                let mend = "ask the description of the run's model";
                findings.push(Finding::new(path.to_owned(), literal.line, what, mend));
            }
        }
    }
    findings
}

fn is_checked(path: &str) -> bool {
    let is_source = path.starts_with("crates/") && path.contains("/src/");
    let is_test = path.ends_with("/tests.rs") || path.ends_with("/fixtures.rs");
    is_source && !is_test && !TEST_TOOLS.iter().any(|tools| path.starts_with(tools))
}

/// The texts of constants of a type.
fn constants<'a>(text: &'a str, type_name: &str) -> impl Iterator<Item = &'a str> {
    let call = format!("{type_name}::from_static(\"");
    let found: Vec<&str> = text
        .match_indices(&call)
        .filter_map(|(at, _)| text[at + call.len()..].split('"').next())
        .collect();
    found.into_iter()
}

/// The modules after a root, with their lines, including those of a group in braces.
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

/// The positions of the first names of a path or a group of paths.
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
    fn a_name_of_a_model_is_found_outside_it() {
        let model = "const DO: StepKind = StepKind::from_static(\"do\");\n\
                     const DONE: EventType = EventType::from_static(\"step.done\");";
        let home = "crates/windlass-models/src/steps/description.rs";
        for (path, text, expect) in [
            ("crates/windlass-server/src/a.rs", "f(\"step.done\")", Some("step.done")),
            ("crates/windlass-engine/src/a.rs", "if step.kind == \"do\" {}", Some("do")),
            ("crates/windlass-models/src/relays/a.rs", "f(\"step.done\")", Some("step.done")),
            ("crates/windlass-models/src/steps/a.rs", "f(\"step.done\", kind(\"do\"))", None),
            ("crates/windlass-server/src/a.rs", "let word = \"do\";", None),
            ("crates/windlass-server/src/a.rs", "// \"step.done\"", None),
            ("crates/windlass-server/tests/it/a.rs", "f(\"step.done\")", None),
            ("crates/windlass-testkit/src/a.rs", "f(\"step.done\")", None),
        ] {
            let expect: Vec<String> = expect
                .iter()
                .map(|name| format!("{path}:1: {name:?} is a name of the model `steps`"))
                .collect();
            assert_eq!(found(check, &[(home, model), (path, text)]), expect, "{path} {text}");
        }
    }

    #[test]
    fn the_crate_itself_names_them_all() {
        let text = "mod steps;\npub use crate::steps::Step;\npub use crate::machines::Machine;";
        assert_eq!(found(check, &[("crates/windlass-models/src/lib.rs", text)]), [""; 0]);
    }
}
