//! The JSON schemas of the types accept what the types accept.

use schemars::{JsonSchema, schema_for};
use serde_json::{Value, json};
use windlass_contracts::approvers::Directory;
use windlass_contracts::compile::compile;
use windlass_contracts::envelope::generate;
use windlass_contracts::rules::DecisionTable;
use windlass_contracts::simulate::{Scenario, simulate};
use windlass_contracts::templates::{self, Template};
use windlass_contracts::tokens::{Input, State, StepRow};
use windlass_contracts::types::{
    ApprovalConfig, BodySlot, CompiledEdge, CompiledWorkflow, Edge, EditWindow, Envelope,
    JoinConfig, LifecycleContract, MutationSpecRef, Node, NodeConfig, NodeType,
    OrgWorkflowDefinition, SlotGraphPatch, Token,
};

use crate::support::{Run, invoice, template};

fn validator<T: JsonSchema>() -> jsonschema::Validator {
    jsonschema::validator_for(&json!(schema_for!(T))).unwrap()
}

fn accepts<T: JsonSchema>(value: &Value) {
    let found: Vec<String> =
        validator::<T>().iter_errors(value).map(|error| format!("{error:?}")).collect();
    assert!(found.is_empty(), "{}: {found:?}", T::schema_name());
}

#[test]
fn the_schemas_accept_all_templates_and_what_is_made_from_them() {
    for one in templates::all() {
        accepts::<Template>(&json!(one));
        accepts::<LifecycleContract>(&json!(one.contract));
        accepts::<OrgWorkflowDefinition>(&json!(one.definition));
        accepts::<Envelope>(&json!(generate(&one.contract).unwrap()));
        one.contract.slots.iter().for_each(|slot| accepts::<BodySlot>(&json!(slot)));
        one.contract.rules.values().for_each(|table| accepts::<DecisionTable>(&json!(table)));
        for patch in one.definition.slots.values() {
            accepts::<SlotGraphPatch>(&json!(patch));
            patch.nodes.iter().for_each(|node| accepts::<Node>(&json!(node)));
            patch.edges.iter().for_each(|edge| accepts::<Edge>(&json!(edge)));
        }
        let compiled = compile(&one.contract, &one.definition).unwrap();
        accepts::<CompiledWorkflow>(&json!(compiled));
        compiled.edges_by_id.values().for_each(|edge| accepts::<CompiledEdge>(&json!(edge)));
        for sample in &one.samples {
            let scenario = Scenario::new(sample.document.clone(), jiff::Timestamp::UNIX_EPOCH);
            accepts::<Scenario>(&json!(scenario));
            for step in simulate(&compiled, &scenario).unwrap().steps {
                accepts::<StepRow>(&json!(step));
            }
        }
    }
    accepts::<Directory>(&json!({"people": {"a": {"roles": ["x"]}}}));
    accepts::<EditWindow>(&json!("amend_only"));
    accepts::<MutationSpecRef>(&json!({"actionType": "a.b", "payloadTemplate": {"x": "now"}}));
    accepts::<JoinConfig>(&json!({"mode": "any", "accept": "entity.total > 1"}));
    accepts::<ApprovalConfig>(&json!({"chain": "c", "quorum": {"kind": "count", "count": 2}}));
    accepts::<Input>(&json!({"input": "action", "gate": "submit"}));
}

#[test]
fn the_schemas_accept_states_and_tokens() {
    let one = template("invoice_approval");
    let mut run = Run::new(compile(&one.contract, &one.definition).unwrap(), invoice());
    run.turn(&Input::Start);
    run.turn(&Input::Action { gate: "submit".to_owned() });
    accepts::<State>(&json!(run.state));
    let tokens = run.state.tokens();
    assert!(!tokens.is_empty());
    tokens.iter().for_each(|token| accepts::<Token>(&json!(token)));
}

/// One node of each type, with a configuration that the type and the schema read alike.
#[test]
fn the_schema_of_a_node_knows_all_types() {
    let approvers = json!({"strategy": "role", "role": "r"});
    let configs = [
        ("start", json!({})),
        ("end", json!({})),
        ("state", json!({"state": "draft", "final": false})),
        ("lifecycle_gate", json!({"gate": "submit", "trigger": "action"})),
        ("policy_gate", json!({"guards": "usr:s:a", "actionType": "a.b", "runAs": "system"})),
        ("attachment", json!({"slot": "s", "side": "in"})),
        ("action", json!({"mutation": {"actionType": "a.b"}, "writes": {"x": "a.b"}})),
        ("approval", json!({"approvers": approvers, "due": {"after": "1 day", "then": "timeout"}})),
        ("condition", json!({})),
        ("parallel_split", json!({})),
        ("parallel_join", json!({"mode": "all"})),
        ("wait_timer", json!({"cron": "0 0 1 * *"})),
        ("wait_event", json!({"eventKey": "k", "timeout": "1 day"})),
        ("webhook_out", json!({"url": "https://x.example", "await": "delivered"})),
        ("notification", json!({"channel": "in_app", "to": approvers, "subject": "s"})),
        ("script", json!({"writes": {"x": "true"}})),
        ("rule", json!({"rule": "r"})),
    ];
    assert_eq!(configs.len(), NodeType::ALL.len());
    let schema = validator::<Node>();
    for (kind, config) in configs {
        let node = json!({"id": "usr:s:a", "type": kind, "config": config});
        accepts::<Node>(&node);
        accepts::<NodeConfig>(&json!({"type": kind, "config": config}));
        let read: Node = serde_json::from_value(node.clone()).unwrap();
        assert_eq!(read.node_type().as_str(), kind);
        let mut wrong = node.clone();
        wrong["config"]["typo"] = json!(1);
        assert!(serde_json::from_value::<Node>(wrong.clone()).is_err(), "{kind}");
        assert!(!schema.is_valid(&wrong), "{kind}");
        let mut wrong = node;
        wrong["typo"] = json!(1);
        assert!(serde_json::from_value::<Node>(wrong.clone()).is_err(), "{kind}");
        assert!(!schema.is_valid(&wrong), "{kind} {wrong}");
    }
    // A node without settings may leave `config` out.
    accepts::<Node>(&json!({"id": "usr:s:a", "type": "condition"}));
}
