//! Checks that models do not import each other, and that no other part has their names, step kinds or
//! event types as strings. Shared code is in a lower layer.

use super::Finding;
use super::code::{code_only, is_word_character, strings};
use super::tree::Tree;

const HOME: &str = "crates/windlass-models/src/";
const MODELS: &[&str] = &["steps", "machines", "relays", "agents", "contracts"];
/// Prefixes of paths to other modules of the crate.
const ROOTS: &[&str] = &["crate::", "super::"];

/// The crates that serve runs of all models alike.
const SHARED: &[&str] = &["crates/windlass-kernel/", "crates/windlass-engine/", HOME];
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

/// The type of a constant in the sources of a model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Constant {
    Event,
    Kind,
    Model,
}

/// Names, step kinds and event types of a model, as strings in sources outside that model.
fn foreign_names(tree: &Tree) -> Vec<Finding> {
    let mut names = Vec::new();
    for (path, text) in tree.below(HOME) {
        let own = path.split(['/', '.']).next().unwrap_or_default();
        if !MODELS.contains(&own) || !is_checked(&format!("{HOME}{path}")) {
            continue;
        }
        let text = without_tests(text);
        for (type_name, constant) in [
            ("EventType", Constant::Event),
            ("StepKind", Constant::Kind),
            ("ModelName", Constant::Model),
        ] {
            names.extend(constants(text, type_name).map(|name| (own, name, constant)));
        }
    }
    let mut findings = Vec::new();
    for (path, text) in tree.sources().filter(|(path, _)| is_checked(path)) {
        let text = without_tests(text);
        let lines: Vec<&str> = text.lines().collect();
        for literal in strings(text) {
            let line = lines.get(literal.line - 1).copied().unwrap_or_default();
            let foreign = names.iter().find(|(model, name, constant)| {
                *name == literal.text
                    && names_constant(*constant, path, line)
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

/// Whether a literal in a line stands for such a constant. Kinds and names of models are common words.
fn names_constant(constant: Constant, path: &str, line: &str) -> bool {
    let is_shared = || SHARED.iter().any(|shared| path.starts_with(shared));
    match constant {
        Constant::Event => true,
        Constant::Kind => line.contains("kind"),
        Constant::Model => !line.contains("feature = ") && (is_shared() || line.contains("model")),
    }
}

/// Unit tests compare with what is stored and sent.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
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
        let model = "const NAME: ModelName = ModelName::from_static(\"steps\");\n\
                     const DO: StepKind = StepKind::from_static(\"do\");\n\
                     const DONE: EventType = EventType::from_static(\"step.done\");";
        for (path, text, expect) in [
            ("crates/windlass-server/src/a.rs", "f(\"step.done\")", Some("step.done")),
            ("crates/windlass-engine/src/a.rs", "if step.kind == \"do\" {}", Some("do")),
            ("crates/windlass-models/src/relays/a.rs", "f(\"step.done\")", Some("step.done")),
            ("crates/windlass-models/src/steps/a.rs", "f(\"step.done\", kind(\"do\"))", None),
            ("crates/windlass-server/src/a.rs", "let word = \"do\";", None),
            ("crates/windlass-server/src/a.rs", "// \"step.done\"", None),
            ("crates/windlass-server/tests/it/a.rs", "f(\"step.done\")", None),
            ("crates/windlass-testkit/src/a.rs", "f(\"step.done\")", None),
            ("crates/windlass-cli/src/a.rs", "if row[\"model\"] == \"steps\" {}", Some("steps")),
            ("crates/windlass-cli/src/a.rs", "get(&[\"runs\", \"steps\"])", None),
            ("crates/windlass-models/src/a.rs", "\"steps\" => Kind::A,", Some("steps")),
            ("crates/windlass-engine/src/a.rs", "f(\"steps\")", Some("steps")),
            ("crates/windlass-models/src/lib.rs", "#[cfg(feature = \"steps\")]", None),
            ("crates/windlass-models/src/steps/a.rs", "model(\"steps\")", None),
        ] {
            let expect: Vec<String> = expect
                .iter()
                .map(|name| format!("{path}:1: {name:?} is a name of the model `steps`"))
                .collect();
            // The constants may be in any file of the model.
            for home in ["steps.rs", "steps/description.rs", "steps/inner/program.rs"] {
                let home = format!("{HOME}{home}");
                let found = found(check, &[(&home, model), (path, text)]);
                assert_eq!(found, expect, "{home} {path} {text}");
            }
        }
    }

    #[test]
    fn the_crate_itself_names_them_all() {
        let text = "mod steps;\npub use crate::steps::Step;\npub use crate::machines::Machine;";
        assert_eq!(found(check, &[("crates/windlass-models/src/lib.rs", text)]), [""; 0]);
    }
}
