//! Graph algorithms of the compiler: order, cycles, reachability, dominators, parallel regions.

mod regions;

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::dominators::{Dominators, simple_fast};
use petgraph::graph::{DiGraph, NodeIndex};

pub(crate) use regions::{REGION_DEPTH_MAX, RegionError, Regions, find_regions};

/// A directed graph over sorted ids, so that the order of indices is the order of ids.
#[derive(Clone, Debug)]
pub(crate) struct Graph<'a> {
    ids: Vec<&'a str>,
    index: BTreeMap<&'a str, usize>,
    /// Targets and edge numbers by source.
    out: Vec<Vec<(usize, usize)>>,
    /// Sources and edge numbers by target.
    inward: Vec<Vec<(usize, usize)>>,
    edges: usize,
}

impl<'a> Graph<'a> {
    /// Builds a graph. An edge has the number of its place in `edges`. Edges with unknown ends are
    /// left out; the caller reports them.
    pub(crate) fn new(
        ids: impl IntoIterator<Item = &'a str>,
        edges: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let ids: Vec<&str> = ids.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let index: BTreeMap<&str, usize> = ids.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let mut out = vec![Vec::new(); ids.len()];
        let mut inward = vec![Vec::new(); ids.len()];
        let mut count = 0;
        for (edge, (source, target)) in edges.into_iter().enumerate() {
            if let (Some(&from), Some(&to)) = (index.get(source), index.get(target)) {
                out[from].push((to, edge));
                inward[to].push((from, edge));
            }
            count += 1;
        }
        Self { ids, index, out, inward, edges: count }
    }

    pub(crate) fn id(&self, index: usize) -> &'a str {
        self.ids[index]
    }

    pub(crate) fn index(&self, id: &str) -> Option<usize> {
        self.index.get(id).copied()
    }

    /// The sources and the numbers of the edges that enter a node.
    pub(crate) fn incoming(&self, node: usize) -> &[(usize, usize)] {
        &self.inward[node]
    }

    /// The topological order; of several nodes that could come next, the smallest id comes first.
    ///
    /// If there is a cycle, returns its nodes in order; the first one is repeated at the end.
    pub(crate) fn order(&self) -> Result<Vec<usize>, Vec<&'a str>> {
        let mut degree: Vec<usize> = self.inward.iter().map(Vec::len).collect();
        let mut ready: BTreeSet<usize> = (0..self.ids.len()).filter(|&i| degree[i] == 0).collect();
        let mut order = Vec::with_capacity(self.ids.len());
        while let Some(next) = ready.pop_first() {
            order.push(next);
            for &(to, _) in &self.out[next] {
                degree[to] -= 1;
                if degree[to] == 0 {
                    ready.insert(to);
                }
            }
        }
        if order.len() == self.ids.len() { Ok(order) } else { Err(self.cycle(&degree)) }
    }

    /// Finds a cycle among the nodes that still have incoming edges after the order was made.
    fn cycle(&self, degree: &[usize]) -> Vec<&'a str> {
        let Some(mut at) = (0..degree.len()).find(|&i| degree[i] > 0) else { return Vec::new() };
        // Each of these nodes has a predecessor of the same kind, so the walk back must repeat.
        let mut walked = Vec::new();
        let mut seen = BTreeMap::new();
        while !seen.contains_key(&at) {
            seen.insert(at, walked.len());
            walked.push(at);
            let before = self.inward[at].iter().map(|&(i, _)| i).filter(|&i| degree[i] > 0).min();
            let Some(before) = before else { return Vec::new() };
            at = before;
        }
        let mut cycle: Vec<usize> = walked[seen[&at]..].to_vec();
        cycle.reverse();
        let first = cycle.iter().enumerate().min_by_key(|(_, node)| **node).map_or(0, |(i, _)| i);
        cycle.rotate_left(first);
        cycle.push(cycle[0]);
        cycle.into_iter().map(|i| self.ids[i]).collect()
    }

    /// The nodes that can be reached from `from`, itself included.
    pub(crate) fn reachable(&self, from: &str) -> BTreeSet<&'a str> {
        self.walk(from, &self.out)
    }

    /// The nodes from which `to` can be reached, itself included.
    pub(crate) fn reaching(&self, to: &str) -> BTreeSet<&'a str> {
        self.walk(to, &self.inward)
    }

    fn walk(&self, from: &str, edges: &[Vec<(usize, usize)>]) -> BTreeSet<&'a str> {
        let mut seen = vec![false; self.ids.len()];
        let mut stack: Vec<usize> = self.index(from).into_iter().collect();
        while let Some(at) = stack.pop() {
            if !std::mem::replace(&mut seen[at], true) {
                stack.extend(edges[at].iter().map(|&(next, _)| next));
            }
        }
        (0..seen.len()).filter(|&i| seen[i]).map(|i| self.ids[i]).collect()
    }

    /// For each node of `wanted` that can be reached: its nearest strict dominator in `wanted`.
    pub(crate) fn dominators_within(
        &self,
        root: &str,
        wanted: &BTreeSet<String>,
    ) -> BTreeMap<String, String> {
        let Some(root) = self.index(root) else { return BTreeMap::new() };
        let mut graph: DiGraph<(), ()> = DiGraph::new();
        let nodes: Vec<NodeIndex> = self.ids.iter().map(|_| graph.add_node(())).collect();
        for (from, targets) in self.out.iter().enumerate() {
            for &(to, _) in targets {
                graph.add_edge(nodes[from], nodes[to], ());
            }
        }
        let tree: Dominators<NodeIndex> = simple_fast(&graph, nodes[root]);
        let mut found = BTreeMap::new();
        for id in wanted {
            let Some(start) = self.index(id) else { continue };
            let mut at = tree.immediate_dominator(nodes[start]);
            while let Some(node) = at {
                if let Some(name) = wanted.get(self.ids[node.index()]) {
                    found.insert(id.clone(), name.clone());
                    break;
                }
                at = tree.immediate_dominator(node);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &'static [(&'static str, &'static str)]) -> Graph<'static> {
        Graph::new(edges.iter().flat_map(|(a, b)| [*a, *b]), edges.iter().copied())
    }

    #[test]
    fn ties_are_ordered_by_id() {
        let graph = graph(&[("z", "b"), ("z", "a"), ("a", "c"), ("b", "c"), ("z", "d")]);
        let order: Vec<&str> = graph.order().unwrap().into_iter().map(|i| graph.id(i)).collect();
        assert_eq!(order, ["z", "a", "b", "c", "d"]);
    }

    #[test]
    fn a_cycle_is_a_path() {
        let graph = graph(&[("s", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "t")]);
        assert_eq!(graph.order().unwrap_err(), ["a", "b", "c", "a"]);
    }

    #[test]
    fn a_node_that_points_to_itself_is_a_cycle() {
        assert_eq!(graph(&[("s", "a"), ("a", "a")]).order().unwrap_err(), ["a", "a"]);
    }

    #[test]
    fn dominators_skip_other_nodes() {
        let graph =
            graph(&[("s", "x"), ("x", "g"), ("s", "y"), ("y", "g"), ("g", "z"), ("z", "e")]);
        let wanted = ["s", "g", "e"].into_iter().map(str::to_owned).collect();
        let found = graph.dominators_within("s", &wanted);
        assert_eq!(found["g"], "s");
        assert_eq!(found["e"], "g");
        assert!(!found.contains_key("s"));
    }
}
