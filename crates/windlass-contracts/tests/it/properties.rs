//! Random patches: no panic, and no accepted patch gets round a gate or an obligation.
//!
//! The oracle shares no code with the compiler: it plays the token game on the edges of the artefact
//! and tries every choice. `WINDLASS_CONTRACTS_CASES` sets the number of patches.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use windlass_contracts::compile::{compile, load};
use windlass_contracts::tokens::{Input, Status, StepStatus, Verdict};
use windlass_contracts::types::{
    CompiledEdge, CompiledWorkflow, JoinMode, NodeConfig, SlotGraphPatch,
};

use crate::support::{
    Run, SLOT, approval, contract, definition, edge, id, invoice, labelled, node, vote,
};

const NEEDED: u32 = 1;

fn cases() -> u64 {
    std::env::var("WINDLASS_CONTRACTS_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(500)
}

/// SplitMix64: each seed is one patch.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Builds patches from nested blocks, then breaks some of them.
struct Builder {
    random: Random,
    nodes: Vec<Value>,
    edges: Vec<Value>,
}

impl Builder {
    fn patch(seed: u64) -> Value {
        let mut builder = Self { random: Random(seed), nodes: Vec::new(), edges: Vec::new() };
        let (first, last) = builder.block(3);
        builder.link("in", &first);
        for end in last {
            builder.link_end(&end, "out");
        }
        for _ in 0..builder.random.below(3) {
            builder.damage();
        }
        json!({"nodes": builder.nodes, "edges": builder.edges, "exitEdgeMode": "join"})
    }

    fn add(&mut self, node_type: &str, config: Value) -> String {
        let name = format!("n{}", self.nodes.len());
        self.nodes.push(match node_type {
            "approval" => approval(&name),
            other => node(&name, other, config),
        });
        name
    }

    fn link(&mut self, from: &str, to: &str) {
        let mut edge = edge(from, to);
        edge["id"] = json!(format!("e{}", self.edges.len()));
        self.edges.push(edge);
    }

    /// An end is a node, or a node and the label of the edge that leaves it.
    fn link_end(&mut self, end: &(String, Option<String>), to: &str) {
        let mut edge = match &end.1 {
            Some(label) => labelled(&end.0, to, label),
            None => edge(&end.0, to),
        };
        edge["id"] = json!(format!("e{}", self.edges.len()));
        self.edges.push(edge);
    }

    fn block(&mut self, depth: usize) -> (String, Vec<(String, Option<String>)>) {
        let leaf = |name: String| (name.clone(), vec![(name, None)]);
        match if depth == 0 { self.random.below(4) } else { self.random.below(9) } {
            0 | 1 => leaf(self.add("approval", Value::Null)),
            2 => leaf(self.add("wait_timer", json!({"for": "1 hour"}))),
            3 => leaf(self.add("action", json!({"mutation": {"actionType": "a.b"}}))),
            4 => {
                let (first, ends) = self.block(depth - 1);
                let (second, last) = self.block(depth - 1);
                for end in ends {
                    self.link_end(&end, &second);
                }
                (first, last)
            }
            5 => {
                let choice = self.add("condition", json!({}));
                let (a, mut ends) = self.block(depth - 1);
                let (b, more) = self.block(depth - 1);
                self.link(&choice, &a);
                self.edges.last_mut().unwrap()["condition"] = json!("entity.total > 5");
                self.link(&choice, &b);
                self.edges.last_mut().unwrap()["priority"] = json!(1);
                ends.extend(more);
                (choice, ends)
            }
            6 => {
                let rule = self.add("rule", json!({"rule": "fast_track"}));
                let (other, mut ends) = self.block(depth - 1);
                let (way_out, stays) =
                    if self.random.chance(80) { ("yes", "no") } else { ("no", "yes") };
                self.link_end(&(rule.clone(), Some(stays.to_owned())), &other);
                ends.push((rule.clone(), Some(way_out.to_owned())));
                (rule, ends)
            }
            _ => {
                let split = self.add("parallel_split", json!({}));
                let mode = if self.random.chance(60) { "all" } else { "any" };
                let join = self.add("parallel_join", json!({"mode": mode}));
                for _ in 0..2 + self.random.below(2) {
                    let (first, ends) = self.block(depth - 1);
                    self.link(&split, &first);
                    for end in ends {
                        self.link_end(&end, &join);
                    }
                }
                (split, vec![(join, None)])
            }
        }
    }

    fn damage(&mut self) {
        let (nodes, edges) = (self.nodes.len(), self.edges.len());
        if edges == 0 || nodes == 0 {
            return;
        }
        let any = |random: &mut Random| self.nodes[random.below(nodes)]["id"].clone();
        match self.random.below(8) {
            0 => drop(self.edges.remove(self.random.below(edges))),
            1 => {
                let target = any(&mut self.random);
                let at = self.random.below(edges);
                self.edges[at]["target"] = target;
            }
            2 => {
                let target = if self.random.chance(50) {
                    json!(id("out"))
                } else {
                    json!("sys:state:active")
                };
                let at = self.random.below(edges);
                self.edges[at]["target"] = target;
            }
            3 => {
                let (from, to) = (any(&mut self.random), any(&mut self.random));
                self.edges.push(json!({"id": format!("x{edges}"), "source": from, "target": to}));
            }
            4 => {
                let at = self.random.below(nodes);
                self.nodes[at] = approval(&format!("n{at}"));
            }
            5 => drop(self.nodes.remove(self.random.below(nodes))),
            6 => {
                let label =
                    ["rejected", "yes", "no", "approved", "exhausted"][self.random.below(5)];
                let at = self.random.below(edges);
                self.edges[at]["label"] = json!(label);
            }
            _ => {
                let at = self.random.below(nodes);
                if let Some(mode) = self.nodes[at]["config"].get_mut("mode") {
                    *mode = json!("any");
                }
            }
        }
    }
}

/// A token: its node and the branches that it is in, as (split, branch).
type Token = (String, Vec<(String, usize)>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Game {
    tokens: BTreeSet<Token>,
    credit: u32,
    waived: bool,
}

struct Oracle<'a> {
    artefact: &'a CompiledWorkflow,
    leaving: BTreeMap<&'a str, Vec<&'a CompiledEdge>>,
}

impl<'a> Oracle<'a> {
    fn new(artefact: &'a CompiledWorkflow) -> Self {
        let mut leaving: BTreeMap<&str, Vec<&CompiledEdge>> = BTreeMap::new();
        for edge in artefact.edges_by_id.values().filter(|edge| !edge.is_return) {
            leaving.entry(&edge.source).or_default().push(edge);
        }
        Self { artefact, leaving }
    }

    /// Plays all games of the slot. Every end must have enough approvals and no other token.
    fn play(&self) -> Result<usize, String> {
        let start =
            Game { tokens: BTreeSet::from([(id("in"), Vec::new())]), credit: 0, waived: false };
        let (mut seen, mut todo) = (BTreeSet::from([start.clone()]), vec![start]);
        while let Some(game) = todo.pop() {
            if game.tokens.iter().any(|(node, _)| *node == id("out")) {
                if game.tokens.len() > 1 {
                    return Err(format!("tokens are left behind: {:?}", game.tokens));
                }
                if !game.waived && game.credit < NEEDED {
                    return Err("a run leaves the slot without an approval".to_owned());
                }
                continue;
            }
            let next = self.moves(&game)?;
            if next.is_empty() && !game.tokens.is_empty() {
                return Err(format!("the run hangs at {:?}", game.tokens));
            }
            for game in next {
                if seen.insert(game.clone()) {
                    todo.push(game);
                }
            }
            if seen.len() > 20_000 {
                break;
            }
        }
        Ok(seen.len())
    }

    fn moves(&self, game: &Game) -> Result<Vec<Game>, String> {
        let mut found = Vec::new();
        for token in &game.tokens {
            let (node, stack) = token;
            let edges = self.leaving.get(node.as_str()).map_or(&[][..], Vec::as_slice);
            let config = &self.artefact.nodes[node].config;
            let step = |edge: &CompiledEdge, credit: u32, waived: bool| {
                let mut next = game.clone();
                next.tokens.remove(token);
                next.tokens.insert((edge.target.clone(), stack.clone()));
                next.credit = (next.credit + credit).min(NEEDED);
                next.waived |= waived;
                next
            };
            match config {
                NodeConfig::ParallelSplit(_) => {
                    let mut next = game.clone();
                    next.tokens.remove(token);
                    for (branch, edge) in edges.iter().enumerate() {
                        let mut inner = stack.clone();
                        inner.push((node.clone(), branch));
                        next.tokens.insert((edge.target.clone(), inner));
                    }
                    found.push(next);
                }
                NodeConfig::ParallelJoin(join) => {
                    found.extend(self.join(game, token, join.mode, edges)?);
                }
                NodeConfig::Approval(_) => {
                    for edge in edges {
                        let granted = edge.label.as_deref().is_none_or(|label| label == "approved");
                        found.push(step(edge, u32::from(granted), false));
                    }
                    if !edges.iter().any(|edge| edge.label.as_deref() == Some("rejected")) {
                        // The whole run goes back to the draft.
                        found.push(Game { tokens: BTreeSet::new(), ..game.clone() });
                    }
                }
                NodeConfig::Rule(_) => {
                    for edge in edges {
                        found.push(step(edge, 0, edge.label.as_deref() == Some("yes")));
                    }
                }
                _ => found.extend(edges.iter().map(|edge| step(edge, 0, false))),
            }
        }
        Ok(found)
    }

    fn join(
        &self,
        game: &Game,
        token: &Token,
        mode: JoinMode,
        edges: &[&CompiledEdge],
    ) -> Result<Option<Game>, String> {
        let (node, stack) = token;
        let Some(((split, _), outer)) = stack.split_last() else {
            return Err(format!("a token reaches the join {node} outside a region"));
        };
        let of_region = |other: &Token| {
            other.1.len() > outer.len()
                && other.1.starts_with(outer)
                && other.1[outer.len()].0 == *split
        };
        let waiting =
            game.tokens.iter().filter(|other| other.0 == *node && other.1.len() == stack.len());
        let all =
            waiting.filter(|other| of_region(other)).count() == self.leaving[split.as_str()].len();
        if mode == JoinMode::All && !all {
            return Ok(None);
        }
        let mut next = game.clone();
        next.tokens.retain(|other| !of_region(other));
        next.tokens.insert((edges[0].target.clone(), outer.to_vec()));
        Ok(Some(next))
    }
}

/// Without a gate on the way, the active state cannot be reached.
fn gates_cannot_be_avoided(artefact: &CompiledWorkflow) -> Result<(), String> {
    for gate in ["sys:gate:submit", "sys:gate:approve"] {
        let (mut seen, mut todo) = (BTreeSet::new(), vec!["sys:start"]);
        while let Some(at) = todo.pop() {
            if at == gate || !seen.insert(at) {
                continue;
            }
            let next = artefact.edges_by_id.values().filter(|edge| edge.source == at);
            todo.extend(next.map(|edge| edge.target.as_str()));
        }
        if seen.contains("sys:state:active") {
            return Err(format!("a path avoids {gate}"));
        }
    }
    Ok(())
}

/// Gives random inputs to a run. `Run` compares every state with its rebuild.
fn random_run(artefact: CompiledWorkflow, random: &mut Random) {
    let mut run = Run::submitted(artefact, invoice());
    for _ in 0..30 {
        if run.state.status != Status::Running || run.state.cycle > 3 {
            break;
        }
        let waiting: Vec<_> =
            run.state.open.values().filter(|row| row.status == StepStatus::Waiting).collect();
        assert!(!waiting.is_empty(), "a running run has no waiting step");
        let row = waiting[random.below(waiting.len())];
        let key = row.key.clone();
        let input = match &run.artefact.nodes[&row.node].config {
            NodeConfig::LifecycleGate(config) => Input::Action { gate: config.gate.clone() },
            NodeConfig::Approval(_) if random.chance(5) => {
                run.version += 1;
                run.material_version = run.version;
                Input::DocumentChanged
            }
            NodeConfig::Approval(_) => {
                let verdict = if random.chance(10) { Verdict::Rejected } else { Verdict::Approved };
                vote(key, &[("p", verdict)])
            }
            _ => {
                run.now = jiff::Timestamp::from_microsecond(row.resume_at.unwrap()).unwrap();
                Input::Timer { key }
            }
        };
        run.turn(&input);
    }
    if run.state.status == Status::Completed && run.state.lifecycle == "active" {
        let applied = run.rows.values().filter(|row| row.applied == Some(true)).count();
        let waived = run.rows.values().any(|row| row.outcome.as_deref() == Some("yes"));
        assert!(waived || applied >= NEEDED as usize, "the run is active without an approval");
    }
}

#[test]
fn accepted_patches_keep_gates_and_obligations_on_every_path() {
    let contract = contract();
    let (mut accepted, mut refused) = (0_u32, BTreeMap::<String, u32>::new());
    for seed in 0..cases() {
        let Ok(patch) = serde_json::from_value::<SlotGraphPatch>(Builder::patch(seed)) else {
            continue;
        };
        let mut one = definition(json!({}));
        one.slots.insert(SLOT.to_owned(), patch);
        match compile(&contract, &one) {
            Ok(artefact) => {
                accepted += 1;
                gates_cannot_be_avoided(&artefact).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                Oracle::new(&artefact).play().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert_eq!(load(&artefact.to_json().unwrap()).unwrap(), artefact, "seed {seed}");
                random_run(artefact, &mut Random(seed));
            }
            Err(error) => {
                *refused.entry(error.problems[0].code.to_string()).or_default() += 1;
            }
        }
    }
    // The generator must reach all parts of the compiler.
    if cases() >= 500 {
        assert!(accepted > 50, "only {accepted} patches were accepted: {refused:?}");
        for code in
            ["GRAPH_CYCLE", "GRAPH_REGION", "OBLIGATION_BROKEN", "NODE_EDGES", "PATCH_SCOPE"]
        {
            assert!(refused.contains_key(code), "{code} is not in {refused:?}");
        }
    }
}

/// The oracle itself must notice a broken artefact.
#[test]
fn the_oracle_finds_an_artefact_without_an_approval() {
    let mut contract = contract();
    contract.obligations.clear();
    let mut one = definition(json!({}));
    let nodes = json!([node("t", "wait_timer", json!({"for": "1 hour"}))]);
    one.slots.insert(SLOT.to_owned(), serde_json::from_value(json!({"nodes": nodes})).unwrap());
    let artefact = compile(&contract, &one).unwrap();
    let error = Oracle::new(&artefact).play().unwrap_err();
    assert_eq!(error, "a run leaves the slot without an approval");
}
