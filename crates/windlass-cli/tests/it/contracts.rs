//! `windlass contracts`: files are checked, compiled, compared and simulated without a server.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{CommandOutput, run_cli};

/// The contract and the definition of the template, as files of their own.
struct Files {
    folder: tempfile::TempDir,
    definition: Value,
}

impl Files {
    fn new() -> Self {
        let templates = windlass_contracts::templates::all();
        let template = templates.iter().find(|one| one.name == "invoice_approval").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let files = Self { folder, definition: json!(template.definition) };
        files.write("invoice.json", &json!(template.contract));
        files.write("acme.json", &files.definition);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &Value) {
        std::fs::write(self.path(name), content.to_string()).unwrap();
    }

    fn run(&self, command: &str, names: &[&str], flags: &[&str]) -> CommandOutput {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.path(name)).collect();
        let mut args = vec!["contracts", command];
        args.extend(paths.iter().map(|path: &PathBuf| Path::to_str(path).unwrap()));
        args.extend(flags);
        run_cli(&args)
    }
}

fn scenario(total: u64, vendor: &str) -> Value {
    json!({"document": {
        "id": "d-1", "total": total, "currency": "EUR", "requester": "rita",
        "vendor_class": vendor, "budget_owner": "bob",
    }})
}

#[test]
fn files_are_checked_and_problems_have_a_place() {
    let files = Files::new();
    let checked = files.run("check", &["invoice.json", "acme.json"], &["-o", "json"]).expect(0);
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    let kinds: Vec<_> = checked["files"].as_array().unwrap().iter().map(|f| &f["kind"]).collect();
    assert_eq!(kinds, ["contract", "definition"]);

    // A system node in a patch.
    let mut patched = files.definition.clone();
    patched["slots"]["submitted_to_approved"]["nodes"][0]["id"] = "sys:gate:approve".into();
    files.write("patched.json", &patched);
    let refused = files.run("check", &["invoice.json", "patched.json"], &["-o", "json"]).expect(1);
    let refused: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(refused["files"][0]["ok"], true, "{refused}");
    assert_eq!(refused["files"][1]["ok"], false, "{refused}");
    let problem = &refused["files"][1]["problems"][0];
    assert!(problem["message"].as_str().unwrap().contains("sys:gate:approve"), "{problem}");

    files.run("check", &["invoice.json", "gone.json"], &[]).expect(1);
    let no_json = files.path("text.json");
    std::fs::write(no_json, "{").unwrap();
    files.run("check", &["text.json"], &[]).expect(1);
}

/// A definition whose one patch has these nodes and edges; names get the prefix of the slot.
fn patch(nodes: &[Value], edges: &[Value]) -> Value {
    json!({"baseRef": {"entityType": "invoice", "envelopeVersion": 1},
           "slots": {"submitted_to_approved":
               {"nodes": nodes, "edges": edges, "exitEdgeMode": "join"}}})
}

fn usr(name: &str) -> String {
    format!("usr:submitted_to_approved:{name}")
}

fn approval(name: &str) -> Value {
    json!({"id": usr(name), "type": "approval",
           "config": {"approvers": {"strategy": "role", "role": "finance_manager"}}})
}

fn wait_event(key: &str) -> Value {
    json!({"id": usr("wait"), "type": "wait_event", "config": {"eventKey": key}})
}

fn edge(id: &str, from: &str, to: &str) -> Value {
    json!({"id": id, "source": usr(from), "target": usr(to)})
}

/// A condition with two ways to an approval, of which the first has this expression.
fn condition(expression: &str) -> Value {
    let mut first = edge("e1", "if", "a");
    first["condition"] = expression.into();
    let mut other = edge("e2", "if", "b");
    other["priority"] = 1.into();
    let branch = json!({"id": usr("if"), "type": "condition"});
    patch(&[branch, approval("a"), approval("b")], &[first, other])
}

#[test]
fn each_mistake_of_a_definition_has_a_code_and_a_place() {
    let slot = "/slots/submitted_to_approved";
    let with = |place: &str, value: Value| {
        let mut definition = patch(&[approval("a")], &[]);
        *definition.pointer_mut(place).unwrap() = value;
        definition
    };
    let waits = |key: &str| patch(&[approval("a"), wait_event(key)], &[edge("e", "a", "wait")]);
    let mut open = patch(&[approval("a")], &[]);
    open["slots"]["submitted_to_approved"]["editWindowOverride"] = "editable".into();
    let join = json!({"id": usr("join"), "type": "parallel_join", "config": {"mode": "all"}});
    let cases = [
        (patch(&[approval("a"), approval("a")], &[]), "CONTRACT_DUPLICATE", "/nodes/1/id"),
        (with("/slots", json!({"nowhere": {}})), "CONTRACT_UNKNOWN", "/slots/nowhere"),
        (
            with("/baseRef/envelopeVersion", 7.into()),
            "CONTRACT_BASE_REF",
            "/baseRef/envelopeVersion",
        ),
        (with("/baseRef/entityType", "bill".into()), "CONTRACT_BASE_REF", "/baseRef/entityType"),
        (waits(&"k".repeat(300)), "NODE_CONFIG", "/nodes/1/config/eventKey"),
        (waits("pod:{entity.nope}"), "EXPRESSION_UNKNOWN_NAME", "/nodes/1/config/eventKey"),
        (condition("entity.totl > 5"), "EXPRESSION_UNKNOWN_NAME", "/edges/0/condition"),
        (condition("entity.total > 'x'"), "EXPRESSION_TYPE", "/edges/0/condition"),
        (condition("entity.total >"), "EXPRESSION_SYNTAX", "/edges/0/condition"),
        (
            patch(&[approval("a"), approval("b")], &[edge("1", "a", "b"), edge("2", "b", "a")]),
            "GRAPH_CYCLE",
            "/edges",
        ),
        (patch(&[], &[]), "OBLIGATION_BROKEN", slot),
        (open, "PATCH_EDIT_WINDOW", "/editWindowOverride"),
        (patch(&[approval("a"), join], &[edge("e", "a", "join")]), "GRAPH_REGION", "/nodes/1"),
        (
            patch(
                &[
                    json!({"id": usr("g"), "type": "lifecycle_gate", "config": {"gate": "approve", "trigger": "arrival"}}),
                ],
                &[],
            ),
            "PATCH_SYSTEM_NODE",
            "/nodes/0/type",
        ),
    ];
    let files = Files::new();
    for (definition, code, place) in cases {
        files.write("mistake.json", &definition);
        let refused = files.run("check", &["invoice.json", "mistake.json"], &["-o", "json"]);
        let refused: Value = serde_json::from_str(&refused.expect(1).stdout).unwrap();
        let problem = &refused["files"][1]["problems"][0];
        assert_eq!(problem["code"], code, "{problem}");
        assert!(problem["pointer"].as_str().unwrap().ends_with(place), "{place}: {problem}");
        assert!(!problem["message"].as_str().unwrap().is_empty(), "{problem}");
    }
}

#[test]
fn an_artefact_that_was_changed_is_refused() {
    let files = Files::new();
    let artefact = files.run("compile", &["invoice.json", "acme.json"], &[]).expect(0).stdout;
    let again = files.run("compile", &["acme.json", "invoice.json"], &[]).expect(0).stdout;
    assert_eq!(artefact, again, "the order of the files does not matter");
    std::fs::write(files.path("artefact.json"), artefact.trim_end()).unwrap();
    files.run("check", &["artefact.json"], &[]).expect(0);
    let changed = artefact.trim_end().replace("finance_manager", "intern");
    assert_ne!(changed, artefact.trim_end());
    std::fs::write(files.path("artefact.json"), changed).unwrap();
    let refused = files.run("check", &["artefact.json"], &[]).expect(1);
    assert!(refused.stdout.contains("(artefact)"), "{refused:?}");
    assert!(refused.stdout.contains("ARTEFACT_HASH"), "{refused:?}");
}

#[test]
fn scenarios_show_the_path_and_who_is_asked() {
    let files = Files::new();
    files.write("medium.json", &scenario(90_000, "new"));
    let names = ["invoice.json", "acme.json", "medium.json"];
    let result = files.run("simulate", &names, &["-o", "json"]).expect(0);
    let result: Value = serde_json::from_str(&result.stdout).unwrap();
    let result = &result["simulations"][0]["result"];
    assert_eq!(result["state"], "active", "{result}");
    assert_eq!(result["asked"][0]["node"], "usr:submitted_to_approved:manager", "{result}");
    let explained = files.run("explain", &names, &[]).expect(0);
    assert!(explained.stdout.contains("usr:submitted_to_approved:size"), "{explained:?}");

    files.write("broken.json", &json!({"document": {"total": 1}}));
    let failed = files.run("simulate", &["invoice.json", "acme.json", "broken.json"], &[]);
    let failed = failed.expect(1);
    assert!(failed.stdout.contains("[WORKFLOW_EVALUATION]"), "{failed:?}");
    assert!(failed.stdout.contains("error[DOCUMENT_INVALID]"), "{failed:?}");
    files.run("simulate", &["invoice.json", "acme.json"], &[]).expect(2);
}

#[test]
fn a_simulation_names_the_chain_of_an_approval() {
    let files = Files::new();
    let chain =
        json!({"id": usr("board"), "type": "approval", "config": {"chain": "board_of_five"}});
    files.write("chain.json", &patch(&[chain], &[]));
    files.write("medium.json", &scenario(90_000, "new"));
    let shown =
        files.run("simulate", &["invoice.json", "chain.json", "medium.json"], &[]).expect(0);
    assert!(shown.stdout.contains("the approval chain board_of_five: approved"), "{shown:?}");
}

#[test]
fn a_diff_names_what_each_slot_adds() {
    let files = Files::new();
    let diff = files.run("diff", &["invoice.json", "acme.json"], &[]).expect(0).stdout;
    assert!(diff.contains("slot submitted_to_approved (definition)"), "{diff}");
    assert!(diff.contains("+ approval usr:submitted_to_approved:budget"), "{diff}");
    let chart = files.run("diff", &["invoice.json", "acme.json"], &["--mermaid"]).expect(0).stdout;
    assert!(chart.starts_with("flowchart"), "{chart}");
}

/// The worked example of docs/contracts-language.md: its files are saved, its commands are run.
#[test]
fn the_commands_of_the_documentation_run() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/contracts-language.md");
    let text = std::fs::read_to_string(path).unwrap();
    let files = Files::new();
    let names = ["defaults.json", "empty.json", "manager.json", "parallel.json", "large.json"];
    let blocks: Vec<&str> =
        text.split("```json\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert_eq!(blocks.len(), names.len());
    for (name, block) in names.iter().zip(blocks) {
        assert!(text.contains(&format!("`{name}`")), "{name} is not named");
        std::fs::write(files.path(name), block).unwrap();
    }
    let commands = text.lines().filter_map(|line| line.strip_prefix("    windlass contracts "));
    let outputs: Vec<(&str, String)> = commands
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (line, files.run(words[0], &words[1..], &[]).expect(0).stdout)
        })
        .collect();
    assert_eq!(outputs.len(), 6);
    let simulated = &outputs.iter().find(|(line, _)| line.starts_with("simulate")).unwrap().1;
    for part in ["completed in state active", ": bob: approved", ": kim: approved", "2 approvals"] {
        assert!(simulated.contains(part), "{part:?} is not in\n{simulated}");
    }
    let refused = files.run("check", &["invoice.json", "empty.json"], &[]).expect(1);
    assert!(refused.stdout.contains("OBLIGATION_BROKEN"), "{}", refused.stdout);
    assert!(refused.stdout.contains("= path: sys:state:submitted"), "{}", refused.stdout);
}

/// Without somebody who may decide, a simulation says so instead of going on.
#[test]
fn a_simulation_that_cannot_go_on_is_an_error() {
    let files = Files::new();
    let mut alone = scenario(90_000, "new");
    alone["requester"] = "rita".into();
    alone["directory"] = json!({"people": {"rita": {"manager": "kim"}, "kim": {"active": false}}});
    files.write("alone.json", &alone);
    let found = files.run("simulate", &["invoice.json", "acme.json", "alone.json"], &[]).expect(1);
    assert!(found.stdout.contains("stuck: usr:submitted_to_approved:manager waits for ever"));
}

/// A typing error in a scenario is not a decision that everybody approves.
#[test]
fn a_scenario_must_name_nodes_and_fit_the_schema() {
    let files = Files::new();
    let mut typo = scenario(90_000, "new");
    typo["verdicts"] = json!({"manager": "rejected"});
    files.write("typo.json", &typo);
    let found = files.run("simulate", &["invoice.json", "acme.json", "typo.json"], &[]).expect(1);
    assert!(found.stderr.contains("has no node \"manager\" of the type approval"), "{found:?}");
    assert!(found.stderr.contains("usr:submitted_to_approved:manager"), "{found:?}");

    let mut text = scenario(90_000, "new");
    text["document"]["total"] = "90000".into();
    files.write("text.json", &text);
    let names = ["invoice.json", "acme.json", "text.json"];
    let found = files.run("simulate", &names, &["-o", "json"]).expect(1);
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    let problem = &found["simulations"][0]["problems"][0];
    assert_eq!(problem["pointer"], "/document/total", "{found}");
}

/// The place of a problem is that in the file of the user, also if the file is a template.
#[test]
fn problems_of_a_template_have_their_line_in_the_file() {
    let files = Files::new();
    let templates = windlass_contracts::templates::all();
    let mut template = json!(templates.iter().find(|one| one.name == "fast_track").unwrap());
    let patch = &mut template["definition"]["slots"]["submitted_to_approved"];
    patch["nodes"][0]["id"] = "sys:gate:approve".into();
    let text = serde_json::to_string_pretty(&template).unwrap();
    std::fs::write(files.path("template.json"), &text).unwrap();
    let line = text.lines().position(|line| line.contains("\"id\": \"sys:gate:approve\"")).unwrap();
    let found = files.run("check", &["template.json"], &[]).expect(1);
    assert!(found.stdout.contains(&format!("template.json:{}:", line + 1)), "{}", found.stdout);
    let found = files.run("check", &["template.json"], &["-o", "json"]).expect(1);
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    let pointer = found["files"][1]["problems"][0]["pointer"].as_str().unwrap();
    assert!(pointer.starts_with("/definition/slots/"), "{pointer}");

    // A typing error in a key has its line too.
    let text = text.replace("sys:gate:approve", "usr:submitted_to_approved:x");
    let text = text.replace("\"baseRef\"", "\"baseref\"");
    std::fs::write(files.path("template.json"), &text).unwrap();
    let line = text.lines().position(|line| line.contains("baseref")).unwrap();
    let found = files.run("check", &["template.json"], &[]).expect(1);
    assert!(found.stdout.contains(&format!("template.json:{}:", line + 1)), "{}", found.stdout);
}

#[test]
fn broken_defaults_are_found_although_a_definition_replaces_them() {
    let files = Files::new();
    let mut contract: Value =
        serde_json::from_str(&std::fs::read_to_string(files.path("invoice.json")).unwrap())
            .unwrap();
    contract["defaults"]["submitted_to_approved"] = json!({});
    files.write("invoice.json", &contract);
    let found = files.run("check", &["invoice.json", "acme.json"], &["-o", "json"]).expect(1);
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(found["files"][0]["problems"][0]["code"], "OBLIGATION_BROKEN", "{found}");
    assert_eq!(found["files"][1]["ok"], true, "{found}");
    files.run("compile", &["invoice.json", "acme.json"], &[]).expect(0);
}

#[test]
fn a_definition_uses_the_contract_of_its_version() {
    let files = Files::new();
    let mut newer: Value =
        serde_json::from_str(&std::fs::read_to_string(files.path("invoice.json")).unwrap())
            .unwrap();
    newer["version"] = 2.into();
    files.write("newer.json", &newer);
    files.run("check", &["newer.json", "invoice.json", "acme.json"], &[]).expect(0);
}

#[test]
fn the_schemas_of_files_are_printed_for_editors() {
    let files = Files::new();
    let read = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(files.path(name)).unwrap()).unwrap()
    };
    for (kind, title, file) in [
        ("contract", "LifecycleContract", "invoice.json"),
        ("definition", "OrgWorkflowDefinition", "acme.json"),
    ] {
        let printed = run_cli(&["contracts", "schema", kind]).expect(0);
        let schema: Value = serde_json::from_str(&printed.stdout).unwrap();
        assert_eq!(schema["title"], title);
        for field in read(file).as_object().unwrap().keys() {
            assert!(schema["properties"][field].is_object(), "{kind} has no {field}");
        }
    }
    for kind in ["patch", "table", "scenario", "directory", "template", "artefact"] {
        let printed = run_cli(&["contracts", "schema", kind]).expect(0);
        let schema: Value = serde_json::from_str(&printed.stdout).unwrap();
        assert!(schema["title"].is_string(), "{kind}");
    }
    let unknown = run_cli(&["contracts", "schema", "invoice"]).expect(2);
    assert!(unknown.stderr.contains("possible values: contract, definition"), "{}", unknown.stderr);
}
