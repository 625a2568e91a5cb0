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
    files.run("simulate", &["invoice.json", "acme.json"], &[]).expect(2);
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
