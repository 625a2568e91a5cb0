//! Checks that the two SQL stores have the same modules, so that a reader of one finds the same
//! parts in the other.
//!
//! The submodules may differ, because one store calls SQL functions with arrays and the other
//! writes single rows.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;

const TWINS: [&str; 2] = ["crates/windlass-sqlite/src/", "crates/windlass-postgres/src/"];

/// A file that only one store has, and the reason.
struct OneSided {
    path: &'static str,
    reason: &'static str,
}

const ONE_SIDED: &[OneSided] = &[
    OneSided {
        path: "crates/windlass-sqlite/src/clock.rs",
        reason: "PostgreSQL has a clock of its own",
    },
    OneSided {
        path: "crates/windlass-postgres/src/supervise.rs",
        reason: "SQLite has one loop, whose batches catch panics themselves",
    },
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    compare(tree, ONE_SIDED)
}

fn compare(tree: &Tree, allowed: &[OneSided]) -> Vec<Finding> {
    let [left, right] = TWINS.map(|home| names(tree, home));
    let mut findings = Vec::new();
    for (home, own, other_home, other) in
        [(TWINS[0], &left, TWINS[1], &right), (TWINS[1], &right, TWINS[0], &left)]
    {
        for name in own.difference(other) {
            let path = format!("{home}{name}");
            if !allowed.iter().any(|one| one.path == path) {
                let what = format!("has no twin {other_home}{name}");
                let mend = "put what both do into files of the same name, or give the reason in \
                            `ONE_SIDED` of xtask/src/tidy/twins.rs";
                findings.push(Finding::new(path, None, what, mend));
            }
        }
    }
    findings.extend(allowed.iter().filter_map(|one| stale(tree, one)));
    findings
}

fn names<'a>(tree: &'a Tree, home: &'a str) -> BTreeSet<&'a str> {
    tree.below(home)
        .map(|(path, _)| path)
        .filter(|path| path.ends_with(".rs") && !path.contains('/'))
        .collect()
}

fn stale(tree: &Tree, one: &OneSided) -> Option<Finding> {
    // A tree without the stores, as in tests of other checks, needs no exceptions.
    if !TWINS.iter().all(|home| tree.has(&format!("{home}lib.rs"))) {
        return None;
    }
    let sides = TWINS.iter().filter(|home| {
        TWINS.iter().any(|from| {
            one.path.strip_prefix(from).is_some_and(|name| tree.has(&format!("{home}{name}")))
        })
    });
    if sides.count() == 1 && tree.has(one.path) && !one.reason.is_empty() {
        return None;
    }
    let what = "is allowed to have no twin without need or without a reason";
    Some(Finding::new(one.path, None, what, "mend `ONE_SIDED` in xtask/src/tidy/twins.rs"))
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    const FILES: &[(&str, &str)] = &[
        ("crates/windlass-sqlite/src/lib.rs", ""),
        ("crates/windlass-postgres/src/lib.rs", ""),
        ("crates/windlass-sqlite/src/clock.rs", ""),
        ("crates/windlass-postgres/src/supervise.rs", ""),
        ("crates/windlass-sqlite/src/page.rs", ""),
        ("crates/windlass-sqlite/src/read/part.rs", ""),
        ("crates/windlass-postgres/src/listen.rs", ""),
        ("crates/windlass-postgres/src/batch.sql", ""),
        ("crates/windlass-postgres/src/migrations/v1.rs", ""),
    ];

    #[test]
    fn a_file_without_its_twin_is_found() {
        assert_eq!(
            found(check, FILES),
            [
                "crates/windlass-postgres/src/listen.rs: has no twin \
                 crates/windlass-sqlite/src/listen.rs",
                "crates/windlass-sqlite/src/page.rs: has no twin \
                 crates/windlass-postgres/src/page.rs",
            ]
        );
        assert_eq!(found(check, &FILES[..4]), [""; 0]);
    }

    #[test]
    fn an_exception_holds_while_it_is_needed_and_reasoned() {
        let exception = |path, reason| OneSided { path, reason };
        for (allowed, expect) in [
            (exception("crates/windlass-postgres/src/listen.rs", "SQLite has no LISTEN"), 3),
            (exception("crates/windlass-postgres/src/listen.rs", ""), 4),
            (exception("crates/windlass-postgres/src/lib.rs", "in both"), 5),
            (exception("crates/windlass-postgres/src/gone.rs", "in none"), 5),
        ] {
            let findings = compare(&Tree::of(FILES), &[allowed]);
            assert_eq!(findings.len(), expect, "{findings:?}");
        }
    }
}
