//! The artefact: determinism, hash, integrity, diff.

use serde_json::{Value, json};
use windlass_contracts::compile::{
    COMPILER_VERSION, compile, load, read_contract, read_definition,
};
use windlass_contracts::diff::{diff, mermaid};
use windlass_contracts::envelope::generate;
use windlass_contracts::types::{CompiledWorkflow, NodeType};

use crate::support::{approval, contract, edge, id, node, patched, template};

fn invoice() -> CompiledWorkflow {
    let template = template("invoice_approval");
    compile(&template.contract, &template.definition).unwrap()
}

/// Reverses all arrays of nodes, edges and other lists without an order, and all object keys.
fn shuffled(value: &Value) -> String {
    fn write(value: &Value, key: &str, out: &mut String) {
        match value {
            Value::Object(fields) => {
                out.push('{');
                for (index, (key, value)) in fields.iter().rev().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(&json!(key).to_string());
                    out.push(':');
                    // The rows of a table of the kind `first` have an order.
                    let ordered = key == "rows" && fields["hitPolicy"] == json!("first");
                    write(value, if ordered { "" } else { key }, out);
                }
                out.push('}');
            }
            Value::Array(items) => {
                let lists = [
                    "nodes",
                    "edges",
                    "states",
                    "gates",
                    "transitions",
                    "slots",
                    "obligations",
                    "users",
                    "rows",
                    "inputs",
                    "outputs",
                    "in",
                    "values",
                    "required",
                    "enum",
                    "type",
                    "immaterialFields",
                ];
                let mut items: Vec<&Value> = items.iter().collect();
                if lists.contains(&key) {
                    items.reverse();
                }
                out.push('[');
                for (index, item) in items.into_iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write(item, "", out);
                }
                out.push(']');
            }
            other => out.push_str(&other.to_string()),
        }
    }
    let mut out = String::new();
    write(value, "", &mut out);
    out
}

#[test]
fn shuffled_input_compiles_to_the_same_bytes() {
    for template in windlass_contracts::templates::all() {
        let first = compile(&template.contract, &template.definition).unwrap();
        let contract = shuffled(&serde_json::to_value(&template.contract).unwrap());
        let definition = shuffled(&serde_json::to_value(&template.definition).unwrap());
        assert_ne!(contract, serde_json::to_string(&template.contract).unwrap());
        let contract = read_contract(&contract).unwrap();
        let definition = read_definition(&definition).unwrap();
        let second = compile(&contract, &definition).unwrap();
        assert_eq!(first.to_json().unwrap(), second.to_json().unwrap(), "{}", template.name);
    }
}

/// A child process compiles the same input in another order; the parent compares the bytes.
#[test]
fn another_process_compiles_the_same_bytes() {
    const CHILD: &str = "WINDLASS_TEST_COMPILE_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let template = template("invoice_approval");
        let contract = shuffled(&serde_json::to_value(&template.contract).unwrap());
        let definition = shuffled(&serde_json::to_value(&template.definition).unwrap());
        let contract = read_contract(&contract).unwrap();
        let compiled = compile(&contract, &read_definition(&definition).unwrap()).unwrap();
        let bytes = compiled.to_json().unwrap();
        print!("\n<<{}>>\n", String::from_utf8(bytes).unwrap());
        return;
    }
    let bytes = invoice().to_json().unwrap();
    let name = "artefact::another_process_compiles_the_same_bytes";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rest) = text.split_once("<<").unwrap();
    let (child, _) = rest.split_once(">>").unwrap();
    assert_eq!(child.as_bytes(), bytes);
}

#[test]
fn a_stored_artefact_loads_and_a_changed_one_is_refused() {
    let compiled = invoice();
    let bytes = compiled.to_json().unwrap();
    assert_eq!(load(&bytes).unwrap(), compiled);
    let value: Value = serde_json::from_slice(&bytes).unwrap();
    let check = |change: &dyn Fn(&mut Value), code: &str| {
        let mut changed = value.clone();
        change(&mut changed);
        assert_ne!(changed, value);
        let error = load(&serde_json::to_vec(&changed).unwrap()).unwrap_err();
        assert_eq!(error.code.as_str(), code, "{error}");
    };
    let finance = "usr:submitted_to_approved:finance";
    check(
        &|v| v["nodes"][finance]["config"]["approvers"]["role"] = json!("intern"),
        "ARTEFACT_HASH",
    );
    check(&|v| v["edgesById"]["large"]["condition"] = json!("entity.total > 5"), "ARTEFACT_HASH");
    check(
        &|v| v["rules"]["fast_track"]["rows"][0]["then"]["outcome"] = json!("no"),
        "ARTEFACT_HASH",
    );
    check(&|v| v["obligations"] = json!([]), "ARTEFACT_HASH");
    check(&|v| v["schemaDigest"] = v["hash"].clone(), "ARTEFACT_HASH");
    check(&|v| v["compilerVersion"] = json!("0.9.0"), "WORKFLOW_COMPILER_STALE");
    check(
        &|v| drop(v.as_object_mut().unwrap().remove("compilerVersion")),
        "WORKFLOW_COMPILER_STALE",
    );
    check(&|v| drop(v.as_object_mut().unwrap().remove("slotMap")), "CONTRACT_SHAPE");
    assert_eq!(compiled.compiler_version, COMPILER_VERSION);
}

/// Someone who can write to the store can also recompute the hash. The graph is checked as well.
#[test]
fn a_changed_artefact_with_a_new_hash_is_still_refused() {
    let compiled = invoice();
    let check = |change: &dyn Fn(&mut CompiledWorkflow), code: &str| {
        let mut changed = compiled.clone();
        change(&mut changed);
        let mut value = serde_json::to_value(&changed).unwrap();
        value.as_object_mut().unwrap().remove("hash");
        let canonical = windlass_kernel::canonical::to_canonical(&value).unwrap();
        changed.hash = windlass_kernel::Sha256Digest::of(&canonical);
        let error = load(&changed.to_json().unwrap()).unwrap_err();
        assert_eq!(error.code.as_str(), code, "{error}");
    };
    check(&|c| c.topological_order.swap(0, 1), "ARTEFACT_HASH");
    check(&|c| drop(c.adjacency.remove("sys:start")), "ARTEFACT_HASH");
    check(&|c| c.system_gate_integrity.valid = false, "ENVELOPE_INTEGRITY");
    check(
        &|c| drop(c.system_gate_integrity.dominators.remove("sys:gate:approve")),
        "ENVELOPE_INTEGRITY",
    );
}

#[test]
fn every_action_has_a_policy_check_before_it() {
    let compiled = invoice();
    let post = "usr:approved_to_active:post";
    let entering = &compiled.reverse_adjacency[post];
    assert_eq!(entering.len(), 1);
    assert_eq!(compiled.edges_by_id[&entering[0]].source, format!("sys:policy:{post}"));
    let policies = compiled.nodes.values().filter(|node| node.node_type() == NodeType::PolicyGate);
    assert_eq!(policies.count(), 1);
}

#[test]
fn joins_windows_and_stable_nodes_are_precomputed() {
    let compiled = invoice();
    let join = &compiled.join_requirements["usr:submitted_to_approved:both"];
    assert_eq!(
        (join.required_token_count, join.split.as_str()),
        (2, "usr:submitted_to_approved:fork")
    );
    assert!(compiled.stable_region_nodes.contains("usr:submitted_to_approved:finance"));
    assert!(compiled.stable_region_nodes.contains("sys:gate:approve"));
    assert!(!compiled.stable_region_nodes.contains("usr:approved_to_active:post"));
    assert_eq!(compiled.edit_windows["usr:approved_to_active:post"].as_str(), "locked");
    for node in compiled.nodes.keys() {
        assert!(compiled.edit_windows.contains_key(node), "{node}");
    }
}

#[test]
fn the_order_breaks_ties_by_id() {
    let nodes = json!([
        node("split", "parallel_split", json!({})),
        approval("z"),
        approval("a"),
        node("join", "parallel_join", json!({"mode": "all"})),
    ]);
    let edges =
        json!([edge("split", "z"), edge("split", "a"), edge("z", "join"), edge("a", "join")]);
    let compiled = compile(&contract(), &patched(json!({"nodes": nodes, "edges": edges}))).unwrap();
    let place =
        |name: &str| compiled.topological_order.iter().position(|node| *node == id(name)).unwrap();
    assert!(place("split") < place("a") && place("a") < place("z") && place("z") < place("join"));
}

#[test]
fn the_diff_names_each_change_and_its_origin() {
    let template = template("invoice_approval");
    let compiled = compile(&template.contract, &template.definition).unwrap();
    let envelope = generate(&template.contract).unwrap();
    let found = diff(&envelope, &compiled);
    let text = found.to_string();
    for part in [
        "slot submitted_to_approved (definition)",
        "+ approval usr:submitted_to_approved:finance \"Finance manager\"",
        "+ policy_gate sys:policy:usr:approved_to_active:post",
        "- sys:edge:sys:state:submitted->sys:gate:approve",
        "if entity.total > 1000000",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let slot = &serde_json::to_value(&found).unwrap()["slots"]["submitted_to_approved"];
    assert_eq!(slot["removedEdges"], json!(["sys:edge:sys:state:submitted->sys:gate:approve"]));
    let chart = mermaid(&compiled);
    assert!(chart.starts_with("flowchart TD\n"), "{chart}");
    for part in ["subgraph", "-.->|\"reject\"|", "\"Finance manager\""] {
        assert!(chart.contains(part), "{part:?} is not in\n{chart}");
    }
    let default = windlass_contracts::compile::default_definition(&template.contract);
    let compiled = compile(&template.contract, &default).unwrap();
    assert!(diff(&envelope, &compiled).to_string().contains("(default of the contract)"));
}
