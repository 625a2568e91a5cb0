//! Patches that the compiler refuses, each with a code, a place and a reason.

use serde_json::{Value, json};
use windlass_contracts::compile::{BYTES_MAX, compile, read_contract, read_definition};

use crate::support::{
    SLOT, approval, contract, definition, edge, free_contract, id, labelled, node, patched, refused,
};

const NODES: &str = "/slots/submitted_to_approved/nodes";
const EDGES: &str = "/slots/submitted_to_approved/edges";

fn serial(nodes: Value, edges: Value) -> windlass_contracts::types::OrgWorkflowDefinition {
    patched(json!({"nodes": nodes, "edges": edges, "exitEdgeMode": "join"}))
}

#[test]
fn system_nodes_are_refused() {
    let gate = json!({"gate": "approve", "trigger": "arrival"});
    let patch = serial(json!([node("sys:gate:approve", "lifecycle_gate", gate)]), json!([]));
    let found = refused(&contract(), &patch, "PATCH_SYSTEM_NODE", &format!("{NODES}/0/type"));
    assert!(found.message.contains("sys:gate:approve"), "{}", found.message);
    for system in ["start", "end"] {
        let patch = serial(json!([node("x", system, json!({}))]), json!([]));
        let found = refused(&contract(), &patch, "PATCH_SYSTEM_NODE", &format!("{NODES}/0/type"));
        assert!(found.message.contains("usr:submitted_to_approved:x"), "{}", found.message);
    }
    let policy = json!({"guards": "x", "actionType": "a.b", "runAs": "actor"});
    let patch = serial(json!([node("x", "policy_gate", policy)]), json!([]));
    refused(&contract(), &patch, "PATCH_SYSTEM_NODE", &format!("{NODES}/0/type"));
}

#[test]
fn edges_that_leave_the_slot_are_refused() {
    for (source, target, field) in [
        ("a", "usr:draft_to_submit:b", "target"),
        ("a", "sys:state:active", "target"),
        ("a", "sys:slot:draft_to_submit:out", "target"),
        ("a", "sys:slot:submitted_to_approved:in", "target"),
        ("sys:state:submitted", "a", "source"),
        ("sys:slot:submitted_to_approved:out", "a", "source"),
    ] {
        let mut edge = edge(source, target);
        edge["id"] = json!("e");
        let patch = serial(json!([approval("a")]), json!([edge]));
        refused(&contract(), &patch, "PATCH_SCOPE", &format!("{EDGES}/0/{field}"));
    }
}

#[test]
fn node_ids_of_other_slots_and_look_alikes_are_refused() {
    for wrong in [
        "usr:draft_to_submit:a",
        "usr:submitted_to_\u{0430}pproved:a",
        "usr:submitted_to_approved:\u{0430}",
        "usr:submitted_to_approved:a\0",
        "usr:submitted_to_approved:",
        "USR:submitted_to_approved:a",
        "sys:policy:a",
    ] {
        let patch = serial(json!([approval(wrong)]), json!([]));
        refused(&contract(), &patch, "PATCH_SCOPE", &format!("{NODES}/0/id"));
    }
    let uuid = "usr:submitted_to_approved:0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10";
    compile(&contract(), &serial(json!([approval(uuid)]), json!([]))).unwrap();
}

#[test]
fn duplicate_ids_are_refused() {
    let patch = serial(json!([approval("a"), approval("a")]), json!([]));
    refused(&contract(), &patch, "CONTRACT_DUPLICATE", &format!("{NODES}/1/id"));
    let twice = json!([edge("a", "b"), edge("a", "b")]);
    let patch = serial(json!([approval("a"), approval("b")]), twice);
    refused(&contract(), &patch, "CONTRACT_DUPLICATE", &format!("{EDGES}/1/id"));
    // The same edge id in two slots.
    let patch = json!({"nodes": [approval("a"), approval("b")], "edges": [edge("a", "b")]});
    let other = json!({
        "nodes": [
            {"id": "usr:draft_to_submit:a", "type": "approval",
             "config": {"approvers": {"strategy": "direct", "users": ["u"]}}},
            {"id": "usr:draft_to_submit:b", "type": "wait_timer", "config": {"for": "1 hour"}},
            {"id": "usr:draft_to_submit:c", "type": "wait_timer", "config": {"for": "1 hour"}},
        ],
        "edges": [
            {"id": "a-b", "source": "usr:draft_to_submit:a", "target": "usr:draft_to_submit:b"},
            {"id": "no", "source": "usr:draft_to_submit:a", "target": "usr:draft_to_submit:c",
             "label": "rejected"},
        ],
        "exitEdgeMode": "join",
    });
    let both = definition(json!({SLOT: patch, "draft_to_submit": other}));
    refused(&contract(), &both, "CONTRACT_DUPLICATE", &format!("{EDGES}/0/id"));
}

#[test]
fn an_unknown_slot_and_an_absent_envelope_version_are_refused() {
    let unknown = definition(json!({"elsewhere": {}}));
    refused(&contract(), &unknown, "CONTRACT_UNKNOWN", "/slots/elsewhere");
    let mut old = definition(json!({}));
    old.base_ref.envelope_version = 2;
    refused(&contract(), &old, "CONTRACT_BASE_REF", "/baseRef/envelopeVersion");
    old.base_ref.entity_type = "order".to_owned();
    refused(&contract(), &old, "CONTRACT_BASE_REF", "/baseRef/entityType");
    let absent = r#"{"baseRef": {"entityType": "invoice"}, "slots": {}}"#;
    let found = read_definition(absent).unwrap_err();
    assert_eq!(found.code.as_str(), "CONTRACT_SHAPE");
    assert!(found.message.contains("envelopeVersion"), "{}", found.message);
    assert!(found.place.span.is_some());
}

#[test]
fn a_less_strict_edit_window_is_refused() {
    let mut patch = json!({"nodes": [approval("a")], "editWindowOverride": "editable"});
    let at = format!("/slots/{SLOT}/editWindowOverride");
    refused(&contract(), &patched(patch.clone()), "PATCH_EDIT_WINDOW", &at);
    patch["editWindowOverride"] = json!("locked");
    let compiled = compile(&contract(), &patched(patch)).unwrap();
    assert_eq!(compiled.edit_windows[&id("a")].as_str(), "locked");
}

#[test]
fn a_cycle_is_printed_as_a_path() {
    let nodes = json!([approval("a"), approval("b"), approval("c")]);
    let edges = json!([edge("in", "a"), edge("a", "b"), edge("b", "c"), edge("c", "a")]);
    let found = refused(&contract(), &serial(nodes, edges), "GRAPH_CYCLE", EDGES);
    assert_eq!(found.path, [id("a"), id("b"), id("c"), id("a")]);
}

#[test]
fn unreachable_nodes_are_refused() {
    let edges = json!([edge("in", "a"), edge("b", "c")]);
    let patch = serial(json!([approval("a"), approval("b"), approval("c")]), edges);
    refused(&contract(), &patch, "GRAPH_UNREACHABLE", &format!("{NODES}/1"));
    refused(&contract(), &patch, "GRAPH_UNREACHABLE", &format!("{NODES}/2"));
}

#[test]
fn broken_parallel_regions_are_refused() {
    let split = || node("split", "parallel_split", json!({}));
    let join = || node("join", "parallel_join", json!({"mode": "all"}));
    let (a, b) = (approval("a"), approval("b"));
    let check = |nodes: Value, edges: Value, place: &str, part: &str| {
        let found = refused(&contract(), &serial(nodes, edges), "GRAPH_REGION", place);
        assert!(found.message.contains(part), "{}", found.message);
    };
    let place = |index: usize| format!("{NODES}/{index}");
    check(
        json!([split(), a, b, join()]),
        json!([edge("split", "a"), edge("split", "b"), edge("a", "join"), edge("b", "out")]),
        &place(0),
        "outside its join",
    );
    check(json!([a, join()]), json!([edge("a", "join")]), &place(1), "no split leads to the join");
    check(
        json!([split(), a, b]),
        json!([edge("split", "a"), edge("split", "b")]),
        &place(0),
        "outside its join",
    );
}

#[test]
fn a_path_round_the_approval_breaks_the_obligation() {
    let size = node("size", "condition", json!({}));
    let mut large = edge("size", "a");
    large["condition"] = json!("entity.total > 1000");
    let mut small = edge("size", "out");
    small["priority"] = json!(1);
    let patch = serial(json!([size, approval("a")]), json!([large, small]));
    let found = refused(&contract(), &patch, "OBLIGATION_BROKEN", &format!("/slots/{SLOT}"));
    let path = ["sys:state:submitted", &id("in"), &id("size"), &id("out"), "sys:gate:approve"];
    assert_eq!(found.path, path);

    let lane = node("lane", "rule", json!({"rule": "fast_track"}));
    let edges = json!([labelled("lane", "out", "yes"), labelled("lane", "a", "no")]);
    compile(&contract(), &serial(json!([lane, approval("a")]), edges)).unwrap();
    // The other outcome is no exemption.
    let lane = node("lane", "rule", json!({"rule": "fast_track"}));
    let edges = json!([labelled("lane", "out", "no"), labelled("lane", "a", "yes")]);
    let patch = serial(json!([lane, approval("a")]), edges);
    refused(&contract(), &patch, "OBLIGATION_BROKEN", &format!("/slots/{SLOT}"));
}

#[test]
fn approvals_that_do_not_count_break_the_obligation() {
    let at = format!("/slots/{SLOT}");
    // The empty patch has no approval.
    refused(&contract(), &patched(json!({})), "OBLIGATION_BROKEN", &at);
    // Nobody decides, and the due date approves.
    let mut due = approval("a");
    due["config"]["due"] = json!({"after": "1 day", "then": "approve"});
    refused(&contract(), &serial(json!([due]), json!([])), "OBLIGATION_BROKEN", &at);
    // A rejection that leads on.
    let edges = json!([edge("a", "out"), labelled("a", "wait", "rejected")]);
    let wait = node("wait", "wait_timer", json!({"for": "1 day"}));
    let patch = serial(json!([approval("a"), wait]), edges);
    refused(&contract(), &patch, "OBLIGATION_BROKEN", &at);
    // An ANY join in which another branch can win.
    let nodes = json!([
        node("split", "parallel_split", json!({})),
        approval("a"),
        node("wait", "wait_timer", json!({"for": "1 day"})),
        node("join", "parallel_join", json!({"mode": "any"})),
    ]);
    let edges =
        json!(
            [edge("split", "a"), edge("split", "wait"), edge("a", "join"), edge("wait", "join"),]
        );
    let found =
        refused(&contract(), &serial(nodes.clone(), edges.clone()), "OBLIGATION_BROKEN", &at);
    assert!(found.path.contains(&id("wait")), "{:?}", found.path);
    let mut all = nodes;
    all[3]["config"]["mode"] = json!("all");
    compile(&contract(), &serial(all, edges)).unwrap();
}

#[test]
fn obligations_count_roles_and_parallel_branches() {
    let mut contract = contract();
    contract.obligations = serde_json::from_value(json!([
        {"id": "two", "gate": "approve", "needs": {"kind": "approvals", "count": 2}},
        {"id": "cfo", "gate": "approve", "needs": {"kind": "approvals", "count": 1, "role": "cfo"}},
    ]))
    .unwrap();
    let mut cfo = approval("b");
    cfo["config"]["approvers"]["role"] = json!("cfo");
    let nodes = |second: &Value| {
        json!([
            node("split", "parallel_split", json!({})),
            approval("a"),
            second,
            node("join", "parallel_join", json!({"mode": "all"})),
        ])
    };
    let edges =
        json!([edge("split", "a"), edge("split", "b"), edge("a", "join"), edge("b", "join")]);
    compile(&contract, &serial(nodes(&cfo), edges.clone())).unwrap();
    let patch = serial(nodes(&approval("b")), edges);
    let found = refused(&contract, &patch, "OBLIGATION_BROKEN", &format!("/slots/{SLOT}"));
    assert!(found.message.contains("\"cfo\""), "{}", found.message);
}

#[test]
fn wrong_configurations_are_refused_with_their_place() {
    let check = |config: Value, node_type: &str, code: &str, field: &str| {
        let patch =
            serial(json!([node("x", node_type, config), approval("a")]), json!([edge("x", "a")]));
        refused(&contract(), &patch, code, &format!("{NODES}/0/config{field}"));
    };
    let long = "k".repeat(201);
    check(json!({"eventKey": long}), "wait_event", "NODE_CONFIG", "/eventKey");
    let path = json!({"eventKey": "pod:{entity.shipment}"});
    check(path, "wait_event", "EXPRESSION_UNKNOWN_NAME", "/eventKey");
    let writes = json!({"eventKey": "k", "writes": {"other": "x"}});
    check(writes, "wait_event", "NODE_CONFIG", "/writes/other");
    check(json!({"for": "soon"}), "wait_timer", "NODE_CONFIG", "/for");
    check(json!({"cron": "every day"}), "wait_timer", "NODE_CONFIG", "/cron");
    check(json!({"until": "entity.total"}), "wait_timer", "EXPRESSION_TYPE", "/until");
    check(json!({"url": "ftp://x"}), "webhook_out", "NODE_CONFIG", "/url");
    let payload = json!({"url": "https://x.example", "payloadTemplate": {"a": "entity.nothing"}});
    check(payload, "webhook_out", "EXPRESSION_UNKNOWN_NAME", "/payloadTemplate/a");
    check(json!({"writes": {}}), "script", "NODE_CONFIG", "/writes");
    check(
        json!({"writes": {"checked": "entity.total"}}),
        "script",
        "EXPRESSION_TYPE",
        "/writes/checked",
    );
    check(json!({"writes": {"other": "true"}}), "script", "NODE_CONFIG", "/writes/other");
    let action = json!({"mutation": {"actionType": "Post It"}});
    check(action, "action", "NODE_CONFIG", "/mutation/actionType");
    let subject = json!({
        "channel": "email", "to": {"strategy": "role", "role": "x"}, "subject": "{entity.nothing}",
    });
    check(subject, "notification", "EXPRESSION_UNKNOWN_NAME", "/subject");
    let neither = json!({"quorum": {"kind": "any"}});
    check(neither, "approval", "NODE_CONFIG", "");
    let zero = json!({"approvers": {"strategy": "direct", "users": ["u"]}, "quorum": {"kind": "count", "count": 0}});
    check(zero, "approval", "NODE_CONFIG", "/quorum");
    let people = json!({"approvers": {"strategy": "expression", "expression": "entity.total"}});
    check(people, "approval", "EXPRESSION_TYPE", "/approvers/expression");
}

#[test]
fn wrong_edges_are_refused() {
    let check = |nodes: Value, edges: Value, place: &str, part: &str| {
        let found = refused(&free_contract(), &serial(nodes, edges), "NODE_EDGES", place);
        assert!(found.message.contains(part), "{}", found.message);
    };
    let wait = |name: &str| node(name, "wait_timer", json!({"for": "1 day"}));
    let first = format!("{NODES}/0");
    check(
        json!([wait("x"), wait("y"), wait("z")]),
        json!([edge("x", "y"), edge("x", "z")]),
        &first,
        "2 edges that leave it",
    );
    check(json!([node("c", "condition", json!({}))]), json!([]), &first, "no edges to choose from");
    check(
        json!([node("r", "rule", json!({"rule": "fast_track"})), wait("x")]),
        json!([labelled("r", "x", "yes")]),
        &first,
        "no edge of usr:submitted_to_approved:r has the outcome \"no\"",
    );
    check(
        json!([approval("a"), wait("x")]),
        json!([labelled("a", "x", "maybe")]),
        &first,
        "never has the outcome \"maybe\"",
    );
    let event = node("e", "wait_event", json!({"eventKey": "k", "timeout": "1 day"}));
    check(json!([event, wait("x")]), json!([edge("e", "x")]), &first, "\"timeout\"");
    let mut conditional = edge("x", "y");
    conditional["condition"] = json!("true");
    check(json!([wait("x"), wait("y")]), json!([conditional]), &first, "does not choose");
    let mut never = edge("c", "y");
    never["condition"] = json!("entity.total > 1");
    never["priority"] = json!(2);
    check(
        json!([node("c", "condition", json!({})), wait("x"), wait("y")]),
        json!([edge("c", "x"), never]),
        &first,
        "is never taken",
    );
}

#[test]
fn a_rejection_needs_a_way_back_or_an_edge() {
    let ask = json!({
        "nodes": [{"id": "usr:draft_to_submit:a", "type": "approval",
                   "config": {"approvers": {"strategy": "direct", "users": ["u"]}}}],
    });
    let patch = definition(json!({"draft_to_submit": ask}));
    let found = refused(&contract(), &patch, "NODE_EDGES", "/slots/draft_to_submit/nodes/0");
    assert!(found.message.contains("\"rejected\""), "{}", found.message);
}

#[test]
fn wrong_conditions_have_a_span() {
    for (text, code) in [
        ("entity.total > 'x'", "EXPRESSION_TYPE"),
        ("entity.nothing == 1", "EXPRESSION_UNKNOWN_NAME"),
        ("entity.total < 1 < 2", "EXPRESSION_CHAINED_COMPARISON"),
        ("now.x", "EXPRESSION_UNKNOWN_NAME"),
        ("entity.total", "EXPRESSION_TYPE"),
    ] {
        let mut edge = edge("c", "a");
        edge["condition"] = json!(text);
        let patch =
            serial(json!([node("c", "condition", json!({})), approval("a")]), json!([edge]));
        let error = compile(&contract(), &patch).unwrap_err();
        let problem = &error.problems[0];
        assert_eq!(problem.place.pointer.as_deref(), Some(format!("{EDGES}/0/condition").as_str()));
        assert!(problem.place.span.is_some(), "{problem}");
        assert!(problem.code.as_str().starts_with("EXPRESSION_"), "{text}: {problem}, not {code}");
    }
}

#[test]
fn schemas_that_refer_to_other_documents_are_refused() {
    let mut remote = contract();
    remote.schemas.document["properties"]["total"] = json!({"$ref": "https://x.example/total"});
    let at = "/schemas/document/properties/total/$ref";
    refused(&remote, &definition(json!({})), "SCHEMA_REMOTE_REF", at);
    let mut wrong = contract();
    wrong.schemas.context = json!({"type": "thing"});
    let error = compile(&wrong, &definition(json!({}))).unwrap_err();
    assert_eq!(error.problems[0].code.as_str(), "CONTRACT_SCHEMA");
}

#[test]
fn numbers_that_would_lose_digits_are_refused() {
    let mut text = serde_json::to_string(&contract()).unwrap();
    text = text.replace("\"minimum\":0", "\"minimum\":9007199254740993");
    assert_eq!(read_contract(&text).unwrap_err().code.as_str(), "JSON_NUMBER_INEXACT");
}

#[test]
fn limits_are_named_before_a_graph_is_built() {
    let wait = |i: usize| node(&format!("n{i}"), "wait_timer", json!({"for": "1 day"}));
    // All nodes form a cycle, so that only the limit can be the reason.
    let many = |count: usize| {
        let nodes: Vec<Value> = (0..count).map(wait).collect();
        let next = |i: usize| edge(&format!("n{i}"), &format!("n{}", (i + 1) % count));
        serial(json!(nodes), json!((0..count).map(next).collect::<Vec<_>>()))
    };
    let found = refused(&free_contract(), &many(501), "CONTRACT_LIMIT", "");
    assert!(found.message.contains("the limit is 500"), "{}", found.message);
    let text = format!("{{\"baseRef\": \"{}\"}}", "x".repeat(BYTES_MAX));
    let found = read_definition(&text).unwrap_err();
    assert_eq!(found.code.as_str(), "JSON_TOO_LARGE");
    assert!(found.message.contains("1048576"), "{}", found.message);
}

#[test]
fn unknown_and_duplicate_keys_are_refused() {
    let base = r#""baseRef": {"entityType": "invoice", "envelopeVersion": 1}"#;
    for (text, code) in [
        (format!("{{{base}, \"slot\": {{}}}}"), "CONTRACT_SHAPE"),
        (format!("{{{base}, \"slots\": {{\"a\": {{}}, \"a\": {{}}}}}}"), "JSON_DUPLICATE_KEY"),
        (
            format!(
                "{{{base}, \"slots\": {{\"s\": {{\"nodes\": [{{\"id\": \"usr:s:a\", \"type\": \
                 \"script\", \"config\": {{\"writes\": {{}}, \"x\": 1}}}}]}}}}}}"
            ),
            "CONTRACT_SHAPE",
        ),
    ] {
        let found = read_definition(&text).unwrap_err();
        assert_eq!(found.code.as_str(), code, "{text}: {found}");
        assert!(found.place.span.is_some() || found.place.pointer.is_some(), "{found}");
    }
}

/// The place of a mistake in the shape is the mistake, not the end of the object around it.
#[test]
fn mistakes_in_the_shape_have_their_place() {
    let check = |patch: Value, place: &str, part: &str| {
        let base = json!({"entityType": "invoice", "envelopeVersion": 1});
        let text = json!({"baseRef": base, "slots": {SLOT: patch}}).to_string();
        let found = read_definition(&text).unwrap_err();
        assert_eq!(found.code.as_str(), "CONTRACT_SHAPE", "{found}");
        let pointer = found.place.pointer.clone().unwrap();
        assert_eq!(pointer, format!("/slots/{SLOT}{place}"), "{found}");
        assert!(found.message.contains(part), "{found}");
        let span = found.place.span.unwrap();
        assert!(span.start < span.end && span.end <= text.len(), "{span:?}");
    };
    let typo = json!({"aprovers": {"strategy": "role", "role": "x"}});
    check(
        json!({"nodes": [approval("a"), node("b", "approval", typo)]}),
        "/nodes/1/config/aprovers",
        "unknown field `aprovers`",
    );
    let wrong = json!({"approvers": {"strategy": "boss"}});
    check(json!({"nodes": [node("b", "approval", wrong)]}), "/nodes/0/config", "unknown variant");
    check(json!({"nodes": [node("b", "aproval", json!({}))]}), "/nodes/0", "unknown variant");
    let mut arrow = edge("a", "b");
    arrow["to"] = json!("x");
    check(json!({"edges": [arrow]}), "/edges/0/to", "unknown field `to`");
    check(json!({"edgeMode": "serial"}), "/edgeMode", "unknown field `edgeMode`");
    let absent = r#"{"baseRef": {"entityType": "invoice"}, "slots": {}}"#;
    let found = read_definition(absent).unwrap_err();
    assert_eq!(found.place.pointer.as_deref(), Some("/baseRef"));
    let mut text = serde_json::to_value(contract()).unwrap();
    text["transitions"][0]["form"] = json!("draft");
    let found = read_contract(&text.to_string()).unwrap_err();
    assert_eq!(found.place.pointer.as_deref(), Some("/transitions/0/form"));
}
