//! An independent judge of artefacts. It shares no code with the compiler: it plays the token game on
//! the edges of the artefact and tries every choice.

use std::collections::{BTreeMap, BTreeSet};

use windlass_contracts::types::{
    CompiledEdge, CompiledWorkflow, DueAction, EditWindow, JoinMode, LifecycleContract, Need,
    NodeConfig, Obligation, Quorum,
};

use super::patches::CHANGE;
/// Games are given up after this many positions.
const POSITIONS_MAX: usize = 20_000;

/// The approvals or actions on the path of a token, and whether it passed the exemption.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Credit {
    count: u32,
    waived: bool,
}

/// A split that a token is inside of, and what the run had collected before it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    split: String,
    branch: usize,
    before: Credit,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Token {
    node: String,
    frames: Vec<Frame>,
    credit: Credit,
}

type Game = BTreeSet<Token>;

pub(super) struct Oracle<'a> {
    artefact: &'a CompiledWorkflow,
    leaving: BTreeMap<&'a str, Vec<&'a CompiledEdge>>,
    obligation: Option<&'a Obligation>,
    needed: u32,
}

impl<'a> Oracle<'a> {
    pub(super) fn new(artefact: &'a CompiledWorkflow, obligation: Option<&'a Obligation>) -> Self {
        let mut leaving: BTreeMap<&str, Vec<&CompiledEdge>> = BTreeMap::new();
        for edge in artefact.edges_by_id.values().filter(|edge| !edge.is_return) {
            leaving.entry(&edge.source).or_default().push(edge);
        }
        let needed = match obligation.map(|one| &one.needs) {
            Some(Need::Approvals { count, .. }) => *count,
            Some(Need::Action { .. }) => 1,
            None => 0,
        };
        Self { artefact, leaving, obligation, needed }
    }

    /// Plays all games of a slot. Every end must have met the obligation and left no token behind.
    /// Returns whether all games were played to their end.
    pub(super) fn play(&self, slot: &str) -> Result<bool, String> {
        let (node, out) = (format!("sys:slot:{slot}:in"), format!("sys:slot:{slot}:out"));
        let begin = Token { node, frames: Vec::new(), credit: Credit::default() };
        let start = Game::from([begin]);
        let (mut seen, mut todo) = (BTreeSet::from([start.clone()]), vec![start]);
        while let Some(game) = todo.pop() {
            if let Some(end) = game.iter().find(|token| token.node == out) {
                if game.len() > 1 || !end.frames.is_empty() {
                    return Err("tokens are left behind".to_owned());
                }
                if !end.credit.waived && end.credit.count < self.needed {
                    let count = end.credit.count;
                    return Err(format!("a run leaves the slot with {count} of {}", self.needed));
                }
                continue;
            }
            let next = self.moves(&game)?;
            if next.is_empty() && !game.is_empty() {
                return Err("the run hangs".to_owned());
            }
            todo.extend(next.into_iter().filter(|game| seen.insert(game.clone())));
            if seen.len() > POSITIONS_MAX {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The credit of taking an edge from a node.
    fn earned(&self, config: &NodeConfig, edge: &CompiledEdge) -> Credit {
        let label = edge.label.as_deref();
        let waiver = self.obligation.and_then(|one| one.unless.as_ref());
        let count = match (config, self.obligation.map(|one| &one.needs)) {
            (NodeConfig::Approval(approval), Some(Need::Approvals { role, .. })) => {
                let role_of = approval.approvers.as_ref().map(|one| serde_json::json!(one));
                let fits = role.as_ref().is_none_or(|role| role_of.unwrap()["role"] == **role);
                let granted = matches!(label, None | Some("approved"));
                let by_itself =
                    approval.due.as_ref().is_some_and(|due| due.then == DueAction::Approve);
                match (&approval.quorum, fits && granted && !by_itself) {
                    (_, false) => 0,
                    (Quorum::Count { count }, true) => *count,
                    (_, true) => 1,
                }
            }
            (NodeConfig::Action(action), Some(Need::Action { action_type })) => {
                u32::from(action.mutation.action_type == *action_type)
            }
            _ => 0,
        };
        let waived = matches!((config, waiver), (NodeConfig::Rule(rule), Some(waiver))
            if rule.rule == waiver.rule && label == Some(&waiver.outcome));
        Credit { count, waived }
    }

    fn add(&self, a: Credit, b: Credit) -> Credit {
        Credit { count: (a.count + b.count).min(self.needed), waived: a.waived || b.waived }
    }

    fn moves(&self, game: &Game) -> Result<Vec<Game>, String> {
        let mut found = Vec::new();
        for token in game {
            let edges = self.leaving.get(token.node.as_str()).map_or(&[][..], Vec::as_slice);
            let config = &self.artefact.nodes[&token.node].config;
            if let NodeConfig::ParallelJoin(join) = config {
                found.extend(self.join(game, token, join.mode, join.accept.is_some(), edges)?);
                continue;
            }
            let mut rest = game.clone();
            rest.remove(token);
            if matches!(config, NodeConfig::ParallelSplit(_)) {
                for (branch, edge) in edges.iter().enumerate() {
                    let mut frames = token.frames.clone();
                    let split = token.node.clone();
                    frames.push(Frame { split, branch, before: token.credit });
                    let credit = Credit::default();
                    rest.insert(Token { node: edge.target.clone(), frames, credit });
                }
                found.push(rest);
                continue;
            }
            let changes = matches!(config, NodeConfig::Action(action)
                if action.mutation.action_type == CHANGE);
            if changes && !token.frames.is_empty() {
                return Err(format!("{} changes the document in a branch", token.node));
            }
            let before = if changes { Credit::default() } else { token.credit };
            for edge in edges {
                let mut next = rest.clone();
                let credit = self.add(before, self.earned(config, edge));
                next.insert(Token { node: edge.target.clone(), credit, ..token.clone() });
                found.push(next);
            }
            let is_rejected = |edge: &&CompiledEdge| edge.label.as_deref() == Some("rejected");
            if matches!(config, NodeConfig::Approval(_)) && !edges.iter().any(is_rejected) {
                // The whole run goes back to the draft.
                found.push(Game::new());
            }
        }
        Ok(found)
    }

    /// The ways in which a token at a join goes on.
    fn join(
        &self,
        game: &Game,
        token: &Token,
        mode: JoinMode,
        accepts: bool,
        edges: &[&CompiledEdge],
    ) -> Result<Vec<Game>, String> {
        let Some((frame, outer)) = token.frames.split_last() else {
            return Err(format!("a token reaches the join {} outside a region", token.node));
        };
        let depth = outer.len();
        let of_region = |other: &&Token| {
            other.frames.len() > depth
                && other.frames[..depth] == *outer
                && other.frames[depth].split == frame.split
        };
        let here = |other: &&Token| other.node == token.node && other.frames.len() == depth + 1;
        let arrived: Vec<&Token> = game.iter().filter(of_region).filter(here).collect();
        let all = arrived.len() == self.leaving[frame.split.as_str()].len();
        let go = |label: Option<&str>, inner: Credit| {
            // Only a join that accepts has outcomes; another one has one edge.
            let fits = |edge: &&&CompiledEdge| match (accepts, label) {
                (false, _) => true,
                (true, Some("exhausted")) => edge.label.as_deref() == Some("exhausted"),
                (true, _) => edge.label.as_deref().is_none_or(|own| own == "accepted"),
            };
            let edge = edges.iter().find(fits).ok_or("a join without a fitting edge")?;
            let mut next: Game = game.iter().filter(|other| !of_region(other)).cloned().collect();
            let credit = self.add(frame.before, inner);
            next.insert(Token { node: edge.target.clone(), frames: outer.to_vec(), credit });
            Ok::<Game, String>(next)
        };
        let sum = || arrived.iter().fold(Credit::default(), |sum, one| self.add(sum, one.credit));
        let mut found = Vec::new();
        match mode {
            JoinMode::All if all => found.push(go(None, sum())?),
            JoinMode::All => {}
            JoinMode::Any => {
                found.push(go(Some("accepted"), token.credit)?);
                if accepts && all {
                    found.push(go(Some("exhausted"), sum())?);
                }
            }
        }
        Ok(found)
    }
}

/// The nodes of a run that becomes active, in the order in which it must pass them.
const ORDER: [&str; 4] =
    ["sys:gate:submit", "sys:state:submitted", "sys:gate:approve", "sys:state:active"];

/// The nodes where a run begins, also after a rejection or an amendment.
const BEGINS: [&str; 3] = ["sys:start", "sys:state:draft", "sys:state:amended"];

/// From each beginning, no path reaches a node of [`ORDER`] without the one before it.
pub(super) fn gates_stand_in_order(artefact: &CompiledWorkflow) -> Result<(), String> {
    for (begin, pair) in BEGINS.iter().flat_map(|begin| ORDER.windows(2).map(move |p| (*begin, p)))
    {
        let (first, then) = (pair[0], pair[1]);
        let (mut seen, mut todo) = (BTreeSet::new(), vec![begin]);
        while let Some(at) = todo.pop() {
            if at == first || !seen.insert(at) {
                continue;
            }
            let next = artefact.edges_by_id.values().filter(|edge| edge.source == at);
            todo.extend(next.map(|edge| edge.target.as_str()));
        }
        if seen.contains(then) {
            return Err(format!("a path from {begin} reaches {then} before {first}"));
        }
    }
    Ok(())
}

/// No node of a slot has a wider edit window than the contract gives the slot.
pub(super) fn windows_are_not_wider(
    artefact: &CompiledWorkflow,
    contract: &LifecycleContract,
) -> Result<(), String> {
    let strictness = |window: EditWindow| match window {
        EditWindow::Editable => 0,
        EditWindow::AmendOnly => 1,
        EditWindow::Locked => 2,
    };
    for (node, owner) in &artefact.slot_map {
        let Some(slot) = contract.slots.iter().find(|slot| slot.slot_id == *owner) else {
            continue;
        };
        if strictness(artefact.edit_windows[node]) < strictness(slot.default_edit_window) {
            return Err(format!("{node} has a wider edit window than {owner}"));
        }
    }
    Ok(())
}
