//! Random patches: nested blocks, of which some are broken afterwards.

use serde_json::{Value, json};

use crate::support::{SLOT, edge, id, labelled, node};

/// An action that changes the document, and one that does not.
pub(super) const CHANGE: &str = "doc.fix";
pub(super) const CHECK: &str = "credit.check";

/// The slots beside [`SLOT`]: one before the submit gate, and one behind the approve gate.
pub(super) const DRAFT: &str = "draft_to_submit";
pub(super) const BEHIND: &str = "approved_to_active";

/// SplitMix64: each seed is one patch.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// The patches of a seed, by slot: always one in [`SLOT`], and sometimes one in another slot.
pub(super) fn patches(seed: u64) -> Value {
    let mut random = Random(seed.wrapping_mul(7));
    let mut slots = json!({SLOT: patch(seed, true)});
    if random.chance(40) {
        let other = if random.chance(60) { DRAFT } else { BEHIND };
        // The builder names the nodes after the first slot.
        let text = patch(seed ^ 0xABCD, false).to_string().replace(SLOT, other);
        let mut second: Value = serde_json::from_str(&text).unwrap();
        for edge in second["edges"].as_array_mut().unwrap() {
            edge["id"] = json!(format!("second-{}", edge["id"].as_str().unwrap()));
        }
        slots[other] = second;
    }
    for patch in slots.as_object_mut().unwrap().values_mut() {
        if !random.chance(25) {
            continue;
        }
        let windows = ["locked", "locked", "amend_only", "editable"];
        patch["editWindowOverride"] = json!(windows[random.below(4)]);
    }
    slots
}

/// `can_reject` says that the gate behind the slot has a way back, which an approval without an edge for its
/// rejection takes.
fn patch(seed: u64, can_reject: bool) -> Value {
    let (nodes, edges) = (Vec::new(), Vec::new());
    let mut builder = Builder { random: Random(seed), can_reject, nodes, edges };
    let depth = if can_reject { 3 } else { 2 };
    let (first, mut last) = builder.block(depth);
    builder.link("in", &first);
    let branches = builder.random.chance(20);
    if branches {
        builder.edges.last_mut().unwrap()["condition"] = json!("entity.total > 5");
        let (second, more) = builder.block(1);
        builder.link("in", &second);
        builder.edges.last_mut().unwrap()["priority"] = json!(1);
        last.extend(more);
    }
    let last = if builder.random.chance(25) { builder.enough(last) } else { last };
    for end in last {
        builder.link_end(&end, "out");
    }
    if builder.random.chance(40) {
        for _ in 0..1 + builder.random.below(2) {
            builder.damage();
        }
    }
    let entry = if branches { "branch" } else { "serial" };
    let (nodes, edges) = (builder.nodes, builder.edges);
    json!({"nodes": nodes, "edges": edges, "entryEdgeMode": entry, "exitEdgeMode": "join"})
}

/// The end of a block: a node, and the label of the edge that leaves it.
type End = (String, Option<String>);

struct Builder {
    random: Random,
    can_reject: bool,
    nodes: Vec<Value>,
    edges: Vec<Value>,
}

impl Builder {
    fn add(&mut self, node_type: &str, config: Value) -> String {
        let name = format!("n{}", self.nodes.len());
        self.nodes.push(node(&name, node_type, config));
        name
    }

    fn link(&mut self, from: &str, to: &str) {
        let mut edge = edge(from, to);
        edge["id"] = json!(format!("e{}", self.edges.len()));
        self.edges.push(edge);
    }

    fn link_end(&mut self, end: &End, to: &str) {
        let mut edge = match &end.1 {
            Some(label) => labelled(&end.0, to, label),
            None => edge(&end.0, to),
        };
        edge["id"] = json!(format!("e{}", self.edges.len()));
        self.edges.push(edge);
    }

    /// Ends a patch with what meets most obligations, so that many patches are accepted.
    fn enough(&mut self, ends: Vec<End>) -> Vec<End> {
        let check = self.add("action", json!({"mutation": {"actionType": CHECK}}));
        let quorum = json!({"kind": "count", "count": 2});
        let approvers = json!({"strategy": "role", "role": "finance_manager"});
        let ask = self.add("approval", json!({"approvers": approvers, "quorum": quorum}));
        for end in ends {
            self.link_end(&end, &check);
        }
        self.link(&check, &ask);
        let mut last = vec![(ask.clone(), None)];
        if !self.can_reject {
            last.push((ask, Some("rejected".to_owned())));
        }
        last
    }

    fn block(&mut self, depth: usize) -> (String, Vec<End>) {
        let leaf = |name: String| (name.clone(), vec![(name, None)]);
        match if depth == 0 { self.random.below(7) } else { self.random.below(14) } {
            0..=2 => self.approval(),
            3 => leaf(self.add("wait_timer", json!({"for": "1 hour"}))),
            4 => {
                let kind = [CHECK, CHECK, CHANGE, "a.b"][self.random.below(4)];
                let mut config = json!({"mutation": {"actionType": kind}});
                if self.random.chance(30) {
                    config["compensate"] = json!({"actionType": "a.undo"});
                }
                leaf(self.add("action", config))
            }
            5 => leaf(self.add("script", json!({"writes": {"checked": "entity.total > 5"}}))),
            6 => self.event(),
            7 | 8 => {
                let (first, ends) = self.block(depth - 1);
                let (second, last) = self.block(depth - 1);
                for end in ends {
                    self.link_end(&end, &second);
                }
                (first, last)
            }
            9 => self.condition(depth),
            10 => self.rule(depth),
            _ => self.region(depth),
        }
    }

    fn approval(&mut self) -> (String, Vec<End>) {
        let role = ["finance_manager", "finance_manager", "clerk"][self.random.below(3)];
        let mut config = json!({"approvers": {"strategy": "role", "role": role}});
        if self.random.chance(15) {
            config["quorum"] = json!({"kind": "count", "count": 2});
        }
        let then = match self.random.below(10) {
            0 => Some("approve"),
            1 => Some("reject"),
            2 => Some("timeout"),
            _ => None,
        };
        if let Some(then) = then {
            config["due"] = json!({"after": "1 day", "then": then});
        }
        let name = self.add("approval", config);
        let mut ends = vec![(name.clone(), None)];
        if then == Some("timeout") {
            ends.push((name.clone(), Some("timeout".to_owned())));
        }
        if !self.can_reject || self.random.chance(10) {
            ends.push((name.clone(), Some("rejected".to_owned())));
        }
        (name, ends)
    }

    fn event(&mut self) -> (String, Vec<End>) {
        let mut config = json!({"eventKey": "pod:{entity.id}", "writes": {"signed_by": "by"}});
        let timeout = self.random.chance(50);
        if timeout {
            config["timeout"] = json!("1 day");
        }
        let name = self.add("wait_event", config);
        let mut ends = vec![(name.clone(), None)];
        if timeout {
            ends.push((name.clone(), Some("timeout".to_owned())));
        }
        (name, ends)
    }

    fn condition(&mut self, depth: usize) -> (String, Vec<End>) {
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

    fn rule(&mut self, depth: usize) -> (String, Vec<End>) {
        let rule = self.add("rule", json!({"rule": "fast_track"}));
        let (other, mut ends) = self.block(depth - 1);
        let (way_out, stays) = if self.random.chance(80) { ("yes", "no") } else { ("no", "yes") };
        self.link_end(&(rule.clone(), Some(stays.to_owned())), &other);
        ends.push((rule.clone(), Some(way_out.to_owned())));
        (rule, ends)
    }

    fn region(&mut self, depth: usize) -> (String, Vec<End>) {
        let split = self.add("parallel_split", json!({}));
        let config = match self.random.below(10) {
            0..=4 => json!({"mode": "all"}),
            5..=7 => json!({"mode": "any"}),
            _ => json!({"mode": "any", "accept": "context.checked"}),
        };
        let accepts = config.get("accept").is_some();
        let join = self.add("parallel_join", config);
        for _ in 0..2 + self.random.below(2) {
            let (first, ends) = self.block(depth - 1);
            self.link(&split, &first);
            for end in ends {
                self.link_end(&end, &join);
            }
        }
        let mut ends = vec![(join.clone(), None)];
        if accepts {
            ends.push((join, Some("exhausted".to_owned())));
        }
        (split, ends)
    }

    fn damage(&mut self) {
        let (nodes, edges) = (self.nodes.len(), self.edges.len());
        if edges == 0 || nodes == 0 {
            return;
        }
        let any = |random: &mut Random| self.nodes[random.below(nodes)]["id"].clone();
        match self.random.below(9) {
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
                let approvers = json!({"approvers": {"strategy": "role", "role": "clerk"}});
                self.nodes[at] = node(&format!("n{at}"), "approval", approvers);
            }
            5 => drop(self.nodes.remove(self.random.below(nodes))),
            6 => {
                let labels = ["rejected", "yes", "no", "approved", "exhausted", "timeout"];
                let at = self.random.below(edges);
                self.edges[at]["label"] = json!(labels[self.random.below(labels.len())]);
            }
            7 => {
                let at = self.random.below(nodes);
                let change = json!({"mutation": {"actionType": CHANGE}});
                self.nodes[at] = node(&format!("n{at}"), "action", change);
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
