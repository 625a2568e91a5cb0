//! Parallel regions: every split has exactly one join, and nothing else enters or leaves between
//! them.

use std::collections::BTreeMap;

use super::Graph;

/// The most parallel regions inside each other. The key of a step names all branches that its token is
/// in, and a key of the store has at most 256 characters.
pub(crate) const REGION_DEPTH_MAX: usize = 6;

/// The parallel regions of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    /// The split and the number of branches of each join.
    pub(crate) joins: BTreeMap<String, (String, u32)>,
    /// The innermost branch of each edge, by edge number; none is outside all regions.
    pub(crate) branch_of_edge: Vec<Option<usize>>,
}

/// A way in which a region is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegionError {
    /// A join that no split leads to.
    JoinWithoutSplit { join: String },
    /// A split whose branches reach the exit of the slot without a join.
    SplitWithoutJoin { split: String },
    /// An edge that leads from one branch into another branch, or past the join.
    Escapes { split: String, from: String, to: String },
    /// A split with more than one join.
    TwoJoins { split: String, first: String, second: String },
    /// A split with fewer than two branches.
    OneBranch { split: String },
    /// A split inside too many others.
    TooDeep { split: String },
}

/// A branch of a split. Branches form a tree, because regions nest.
struct Branch {
    split: usize,
    parent: Option<usize>,
    depth: usize,
}

/// Pairs splits and joins in the nodes of `order`, a topological order of an acyclic graph.
///
/// Each edge gets the innermost branch that it is in. The edges into an ordinary node must agree on
/// that branch; the edges into a join must come from the branches of one split.
pub(crate) fn find_regions(
    graph: &Graph<'_>,
    order: &[usize],
    is_split: impl Fn(&str) -> bool,
    is_join: impl Fn(&str) -> bool,
) -> Result<Regions, RegionError> {
    let name = |node: usize| graph.id(node).to_owned();
    let mut branches: Vec<Branch> = Vec::new();
    let mut of_edge: Vec<Option<usize>> = vec![None; graph.edges];
    let mut joins: BTreeMap<usize, usize> = BTreeMap::new();
    for &node in order {
        let arriving: Vec<(usize, Option<usize>)> =
            graph.inward[node].iter().map(|&(from, edge)| (from, of_edge[edge])).collect();
        let mut branch = arriving.first().and_then(|(_, branch)| *branch);
        if is_join(graph.id(node)) {
            let split = join_split(graph, node, &arriving, &branches)?;
            if let Some(first) = joins.insert(split, node) {
                return Err(RegionError::TwoJoins {
                    split: name(split),
                    first: name(first),
                    second: name(node),
                });
            }
            branch = branch.and_then(|inner| branches[inner].parent);
        } else if let Some((from, other)) = arriving.iter().find(|(_, other)| *other != branch) {
            let inner = (*other).or(branch).map_or(node, |inner| branches[inner].split);
            return Err(RegionError::Escapes {
                split: name(inner),
                from: name(*from),
                to: name(node),
            });
        }
        let split = is_split(graph.id(node));
        if split && graph.out[node].len() < 2 {
            return Err(RegionError::OneBranch { split: name(node) });
        }
        if let (true, Some(open)) = (graph.out[node].is_empty(), branch) {
            return Err(RegionError::SplitWithoutJoin { split: name(branches[open].split) });
        }
        let depth = branch.map_or(0, |outer| branches[outer].depth) + 1;
        if split && depth > REGION_DEPTH_MAX {
            return Err(RegionError::TooDeep { split: name(node) });
        }
        for &(_, edge) in &graph.out[node] {
            of_edge[edge] = branch;
            if split {
                branches.push(Branch { split: node, parent: branch, depth });
                of_edge[edge] = Some(branches.len() - 1);
            }
        }
    }
    let count = |split: usize| u32::try_from(graph.out[split].len()).unwrap_or(u32::MAX);
    let joins = joins.into_iter().map(|(split, join)| (name(join), (name(split), count(split))));
    Ok(Regions { joins: joins.collect(), branch_of_edge: of_edge })
}

/// The split of a join: the one that all arriving edges are a branch of.
fn join_split(
    graph: &Graph<'_>,
    join: usize,
    arriving: &[(usize, Option<usize>)],
    branches: &[Branch],
) -> Result<usize, RegionError> {
    let name = |node: usize| graph.id(node).to_owned();
    let Some(inner) = arriving.iter().find_map(|(_, branch)| *branch) else {
        return Err(RegionError::JoinWithoutSplit { join: name(join) });
    };
    let split = branches[inner].split;
    for &(from, other) in arriving {
        if other.is_none_or(|other| branches[other].split != split) {
            return Err(RegionError::Escapes {
                split: name(split),
                from: name(from),
                to: name(join),
            });
        }
    }
    Ok(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Joins = Vec<(String, String, u32)>;

    fn check(edges: &'static [(&'static str, &'static str)]) -> Result<Joins, RegionError> {
        let graph = Graph::new(edges.iter().flat_map(|(a, b)| [*a, *b]), edges.iter().copied());
        let order = graph.order().unwrap();
        let found =
            find_regions(&graph, &order, |id| id.starts_with("split"), |id| id.starts_with("join"));
        let joins = |found: Regions| found.joins.into_iter().map(|(join, (s, n))| (s, join, n));
        found.map(|found| joins(found).collect())
    }

    fn join(split: &str, join: &str, branches: u32) -> (String, String, u32) {
        (split.to_owned(), join.to_owned(), branches)
    }

    #[test]
    fn regions_nest() {
        let found = check(&[
            ("in", "split1"),
            ("split1", "a"),
            ("split1", "split2"),
            ("split2", "b"),
            ("split2", "c"),
            ("b", "join2"),
            ("c", "join2"),
            ("join2", "join1"),
            ("a", "join1"),
            ("join1", "out"),
        ]);
        assert_eq!(found.unwrap(), [join("split1", "join1", 2), join("split2", "join2", 2)]);
    }

    #[test]
    fn exclusive_paths_may_meet_inside_a_branch() {
        let found = check(&[
            ("split1", "if"),
            ("split1", "x"),
            ("if", "a"),
            ("if", "b"),
            ("a", "join1"),
            ("b", "join1"),
            ("x", "join1"),
            ("join1", "out"),
        ]);
        assert_eq!(found.unwrap(), [join("split1", "join1", 2)]);
    }

    #[test]
    fn broken_regions_are_named() {
        use RegionError::*;
        let name = str::to_owned;
        assert_eq!(
            check(&[("in", "join1"), ("join1", "out")]),
            Err(JoinWithoutSplit { join: name("join1") })
        );
        assert_eq!(
            check(&[
                ("split1", "a"),
                ("split1", "b"),
                ("a", "join1"),
                ("b", "out"),
                ("join1", "out")
            ]),
            Err(Escapes { split: name("split1"), from: name("join1"), to: name("out") })
        );
        assert_eq!(
            check(&[("split1", "a"), ("split1", "b")]),
            Err(SplitWithoutJoin { split: name("split1") })
        );
        assert_eq!(
            check(&[
                ("split1", "a"),
                ("split1", "b"),
                ("a", "b"),
                ("b", "join1"),
                ("join1", "out")
            ]),
            Err(Escapes { split: name("split1"), from: name("a"), to: name("b") })
        );
        assert_eq!(
            check(&[
                ("split1", "a"),
                ("split1", "b"),
                ("a", "join1"),
                ("b", "join2"),
                ("join1", "out"),
                ("join2", "out")
            ]),
            Err(TwoJoins { split: name("split1"), first: name("join1"), second: name("join2") })
        );
        assert_eq!(
            check(&[("split1", "a"), ("a", "join1"), ("join1", "out")]),
            Err(OneBranch { split: name("split1") })
        );
    }
}
