//! Random patches: no panic, and no accepted patch gets round a gate or an obligation.
//!
//! `WINDLASS_CONTRACTS_CASES` sets the number of patches.

mod oracle;
mod patches;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use windlass_contracts::compile::{compile, load};
use windlass_contracts::tokens::{Input, Status, StepRow, StepStatus, Verdict};
use windlass_contracts::types::{
    CompiledWorkflow, EditWindow, EntryEdgeMode, LifecycleContract, Need, NodeConfig,
    SlotGraphPatch,
};

use self::oracle::{Oracle, gates_stand_in_order, windows_are_not_wider};
use self::patches::{BEHIND, CHANGE, CHECK, DRAFT, Random, patches};
use crate::support::{Run, SLOT, contract, definition, invoice, node, vote};

fn cases() -> u64 {
    std::env::var("WINDLASS_CONTRACTS_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(500)
}

/// Contracts with different obligations. A patch is compiled against one of them.
fn contracts() -> Vec<LifecycleContract> {
    let unless = json!({"rule": "fast_track", "outcome": "yes"});
    [
        json!({"needs": {"kind": "approvals", "count": 1}, "unless": unless}),
        json!({"needs": {"kind": "approvals", "count": 2}, "unless": unless}),
        json!({"needs": {"kind": "approvals", "count": 1, "role": "finance_manager"}}),
        json!({"needs": {"kind": "action", "actionType": CHECK}, "unless": unless}),
        json!({"needs": {"kind": "action", "actionType": CHANGE}}),
    ]
    .into_iter()
    .map(|mut obligation| {
        obligation["id"] = json!("one");
        obligation["gate"] = json!("approve");
        let mut contract = contract();
        contract.obligations = vec![serde_json::from_value(obligation).unwrap()];
        contract.defaults.remove(SLOT);
        contract.document_actions = vec![CHANGE.to_owned()];
        contract
    })
    .collect()
}

/// Gives random inputs to a run. `Run` compares every state with its rebuild.
fn random_run(artefact: CompiledWorkflow, random: &mut Random) {
    let mut run = Run::new(artefact, invoice());
    run.turn(&Input::Start);
    for _ in 0..60 {
        if run.state.status != Status::Running || run.state.cycle > 3 {
            break;
        }
        let waiting: Vec<_> =
            run.state.open.values().filter(|row| row.status == StepStatus::Waiting).collect();
        assert!(!waiting.is_empty(), "a running run has no waiting step");
        let row = waiting[random.below(waiting.len())].clone();
        let input = random_input(&mut run, &row, random);
        run.turn(&input);
        assert_order(&run);
    }
    if run.state.status == Status::Completed && run.state.lifecycle == "active" {
        assert_met(&run);
    }
}

/// The gate `approve` was passed only behind `submit`, in the same cycle.
fn assert_order(run: &Run) {
    let passed = |gate: &'static str| {
        let rows = run.rows.values().filter(move |row| row.node == gate);
        rows.filter(|row| row.status == StepStatus::Completed && row.outcome.is_none())
    };
    for approve in passed("sys:gate:approve") {
        let mut submits = passed("sys:gate:submit");
        assert!(
            submits.any(|row| row.cycle == approve.cycle && row.seq < approve.seq),
            "{} was passed before sys:gate:submit",
            approve.key
        );
    }
}

fn random_input(run: &mut Run, row: &StepRow, random: &mut Random) -> Input {
    let key = row.key.clone();
    let due = |run: &mut Run, key: String, at: i64| {
        run.now = run.now.max(jiff::Timestamp::from_microsecond(at).unwrap());
        Input::Timer { key }
    };
    match (&run.artefact.nodes[&row.node].config, row.resume_at) {
        (NodeConfig::LifecycleGate(config), _) => Input::Action { gate: config.gate.clone() },
        (NodeConfig::Approval(_), _)
            if random.chance(5) && run.state.edit_window(&run.artefact) != EditWindow::Locked =>
        {
            run.version += 1;
            run.material_version = run.version;
            Input::DocumentChanged
        }
        (NodeConfig::Approval(_), Some(at)) if random.chance(30) => due(run, key, at),
        (NodeConfig::Approval(_), _) => {
            let verdict = if random.chance(10) { Verdict::Rejected } else { Verdict::Approved };
            let person = ["ann", "bob", "kim"][random.below(3)];
            let other = ["ann", "bob", "kim", "lee"][random.below(4)];
            vote(key, &[(person, verdict), (other, verdict)])
        }
        (NodeConfig::Action(config), _) => {
            if config.mutation.action_type == CHANGE {
                run.version += 1;
                (run.material_version, run.own_version) = (run.version, run.version);
            }
            Input::ActionResult { key, result: Value::Null }
        }
        (NodeConfig::WaitEvent(_), Some(at)) if random.chance(40) => due(run, key, at),
        (NodeConfig::WaitEvent(_), _) => Input::Event { key, payload: json!({"by": "x"}) },
        (_, at) => due(run, key, at.unwrap()),
    }
}

/// The rows of the last cycle show that the obligation was met for the content that became active.
fn assert_met(run: &Run) {
    let rows: Vec<&StepRow> = run
        .rows
        .values()
        .filter(|row| row.cycle == run.state.cycle && row.status == StepStatus::Completed)
        // Steps of other slots do not count.
        .filter(|row| !row.lost && row.node.contains(&format!(":{SLOT}:")))
        .collect();
    let obligation = &run.artefact.obligations[0];
    let waived = obligation.unless.is_some()
        && rows.iter().any(|row| {
            row.outcome.as_deref() == Some("yes") && row.version >= run.material_version
        });
    let met = match &obligation.needs {
        Need::Approvals { count, .. } => {
            let applied = rows.iter().filter(|row| row.applied == Some(true));
            let people: BTreeSet<&str> = applied
                .inspect(|row| assert!(row.version >= run.material_version, "{row:?} is stale"))
                .flat_map(|row| row.output["by"].as_array().unwrap())
                .map(|person| person.as_str().unwrap())
                .collect();
            people.len() >= *count as usize
        }
        Need::Action { action_type } => rows.iter().any(|row| {
            matches!(&run.artefact.nodes[&row.node].config,
                NodeConfig::Action(action) if action.mutation.action_type == *action_type)
        }),
    };
    assert!(waived || met, "the run is active although {obligation:?} is not met");
}

#[test]
fn accepted_patches_keep_gates_and_obligations_on_every_path() {
    let contracts = contracts();
    let (mut accepted, mut given_up) = (0_u64, 0_u64);
    let mut refused = BTreeMap::<String, u32>::new();
    let (mut overrides, mut branches) = (0, 0);
    let mut seconds = BTreeMap::<&str, u32>::new();
    for seed in 0..cases() {
        let slots = serde_json::from_value::<BTreeMap<String, SlotGraphPatch>>(patches(seed));
        let Ok(slots) = slots else { continue };
        let contract = &contracts[Random(seed).below(contracts.len())];
        let mut one = definition(json!({}));
        one.slots = slots;
        match compile(contract, &one) {
            Ok(artefact) => {
                accepted += 1;
                let judge = |result: Result<bool, String>| {
                    result.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
                };
                judge(gates_stand_in_order(&artefact).map(|()| true));
                judge(windows_are_not_wider(&artefact, contract).map(|()| true));
                let obligation = artefact.obligations.first();
                given_up += u64::from(!judge(Oracle::new(&artefact, obligation).play(SLOT)));
                for slot in [DRAFT, BEHIND].into_iter().filter(|slot| one.slots.contains_key(*slot))
                {
                    *seconds.entry(slot).or_default() += 1;
                    given_up += u64::from(!judge(Oracle::new(&artefact, None).play(slot)));
                }
                let windows =
                    one.slots.values().filter(|patch| patch.edit_window_override.is_some());
                overrides += windows.count();
                let is_branch =
                    |patch: &&SlotGraphPatch| patch.entry_edge_mode == EntryEdgeMode::Branch;
                branches += one.slots.values().filter(is_branch).count();
                assert_eq!(load(&artefact.to_json().unwrap()).unwrap(), artefact, "seed {seed}");
                random_run(artefact, &mut Random(seed));
            }
            Err(error) => {
                *refused.entry(error.problems[0].code.to_string()).or_default() += 1;
            }
        }
    }
    println!("{accepted} accepted, {given_up} too large for the oracle, refused: {refused:?}");
    println!("accepted: {overrides} overrides, {branches} branches, second patches {seconds:?}");
    // The generator must reach all parts of the compiler, and the oracle nearly all games.
    assert!(given_up * 20 <= accepted, "{given_up} of {accepted} were not played to their end");
    if cases() >= 500 {
        assert!(accepted > 50, "only {accepted} patches were accepted: {refused:?}");
        assert!(overrides > 0 && branches > 0, "{overrides} {branches}");
        assert_eq!(seconds.len(), 2, "{seconds:?}");
        for code in [
            "GRAPH_CYCLE",
            "GRAPH_REGION",
            "OBLIGATION_BROKEN",
            "NODE_EDGES",
            "PATCH_SCOPE",
            "PATCH_DOCUMENT_ACTION",
            "PATCH_EDIT_WINDOW",
        ] {
            assert!(refused.contains_key(code), "{code} is not in {refused:?}");
        }
    }
}

/// The oracle itself must notice gates in another order, although no path avoids one of them.
#[test]
fn the_oracle_finds_gates_in_another_order() {
    let mut artefact = compile(
        &contracts()[0],
        &crate::support::patched(json!({
            "nodes": [crate::support::approval("a")],
        })),
    )
    .unwrap();
    gates_stand_in_order(&artefact).unwrap();
    let edges = artefact.edges_by_id.clone();
    // A shortcut past the first gate.
    let mut shortcut = edges["sys:edge:sys:start->sys:state:draft"].clone();
    shortcut.target = "sys:state:submitted".to_owned();
    artefact.edges_by_id.insert("shortcut".to_owned(), shortcut);
    let error = gates_stand_in_order(&artefact).unwrap_err();
    assert_eq!(error, "a path from sys:start reaches sys:state:submitted before sys:gate:submit");
    // Each gate takes the place of the other one.
    artefact.edges_by_id = edges;
    for edge in artefact.edges_by_id.values_mut() {
        for end in [&mut edge.source, &mut edge.target] {
            *end = match end.as_str() {
                "sys:gate:submit" => "sys:gate:approve".to_owned(),
                "sys:gate:approve" => "sys:gate:submit".to_owned(),
                _ => continue,
            };
        }
    }
    let error = gates_stand_in_order(&artefact).unwrap_err();
    assert_eq!(error, "a path from sys:start reaches sys:state:submitted before sys:gate:submit");
}

/// The oracle itself must notice a wider edit window.
#[test]
fn the_oracle_finds_a_wider_edit_window() {
    let contract = &contracts()[0];
    let patch = json!({"nodes": [crate::support::approval("a")], "editWindowOverride": "locked"});
    let mut artefact = compile(contract, &crate::support::patched(patch)).unwrap();
    windows_are_not_wider(&artefact, contract).unwrap();
    artefact.edit_windows.insert(crate::support::id("a"), EditWindow::Editable);
    windows_are_not_wider(&artefact, contract).unwrap_err();
}

/// The oracle itself must notice a broken artefact.
#[test]
fn the_oracle_finds_an_artefact_without_an_approval() {
    let judge = |nodes: Value, edges: Value| {
        let contract = &contracts()[0];
        let mut free = contract.clone();
        free.obligations.clear();
        let mut one = definition(json!({}));
        let patch = json!({"nodes": nodes, "edges": edges});
        one.slots.insert(SLOT.to_owned(), serde_json::from_value(patch).unwrap());
        let artefact = compile(&free, &one).unwrap();
        Oracle::new(&artefact, contract.obligations.first()).play(SLOT)
    };
    let none = "a run leaves the slot with 0 of 1";
    let timer = || node("t", "wait_timer", json!({"for": "1 hour"}));
    assert_eq!(judge(json!([timer()]), json!([])).unwrap_err(), none);
    let ask = || crate::support::approval("a");
    assert_eq!(judge(json!([ask()]), json!([])), Ok(true));
    // An approval of the content before a change.
    let change = node("c", "action", json!({"mutation": {"actionType": CHANGE}}));
    let edge = crate::support::edge;
    assert_eq!(judge(json!([ask(), change]), json!([edge("a", "c")])).unwrap_err(), none);
    // An approval in a branch that need not win.
    let (split, join) = (
        node("s", "parallel_split", json!({})),
        node("j", "parallel_join", json!({"mode": "any"})),
    );
    let edges = json!([edge("s", "a"), edge("s", "t"), edge("a", "j"), edge("t", "j")]);
    assert_eq!(judge(json!([split, join, ask(), timer()]), edges).unwrap_err(), none);
}
