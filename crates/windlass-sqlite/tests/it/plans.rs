//! Checks the query plan of every statement: each must use an index.

use std::collections::BTreeMap;

use rusqlite::Connection;

const SOURCES: [(&str, &str); 13] = [
    ("apply.rs", include_str!("../../src/apply.rs")),
    ("apply/guards.rs", include_str!("../../src/apply/guards.rs")),
    ("apply/refusals.rs", include_str!("../../src/apply/refusals.rs")),
    ("apply/runs.rs", include_str!("../../src/apply/runs.rs")),
    ("namespace_stats.rs", include_str!("../../src/namespace_stats.rs")),
    ("health.rs", include_str!("../../src/health.rs")),
    ("holds.rs", include_str!("../../src/holds.rs")),
    ("holds/ready.rs", include_str!("../../src/holds/ready.rs")),
    ("list.rs", include_str!("../../src/list.rs")),
    ("load.rs", include_str!("../../src/load.rs")),
    ("records.rs", include_str!("../../src/records.rs")),
    ("retention.rs", include_str!("../../src/retention.rs")),
    ("workers.rs", include_str!("../../src/workers.rs")),
];

/// Plans that look like a full scan, and why they are allowed.
const ALLOWED: [(&str, &str, &str); 17] = [
    ("FROM labels l CROSS JOIN runs r", "USE TEMP B-TREE FOR", "groups the runs of one label"),
    ("FROM workers", "SCAN workers", "one row for each process start of a day"),
    ("LIMIT ?1)", "SCAN", "stops at the bound of `Capped`"),
    ("LIMIT 10001)", "SCAN", "stops at the bound of `Capped`"),
    ("limit_key IS NOT NULL LIMIT 1", "SCAN", "reads one entry of the index"),
    ("json_each(?2)", "SCAN json_each", "the labels of one run"),
    ("WITH kept AS", "", "`check` reads everything"),
    ("FROM steps WHERE run_key", "USE TEMP B-TREE FOR", "sorts the steps of one run"),
    ("WITH tree", "USE TEMP B-TREE FOR ORDER BY", "keeps one page of a tree's events"),
    ("LIMIT ?2)", "SCAN (subquery", "the subquery stops at the bound of `Capped`"),
    ("LIMIT ?2) ", "USE TEMP B-TREE FOR GROUP BY", "groups rows up to the bound of `Capped`"),
    ("FROM tallies", "USE TEMP B-TREE FOR GROUP BY", "groups the figures of an hour"),
    ("DELETE FROM breakers", "SCAN breakers", "once an hour"),
    ("DELETE FROM rates", "SCAN rates", "once an hour"),
    (
        "n.generation > r.generation",
        "SCAN (subquery",
        "the tree of each newer generation, up to one run",
    ),
    ("WITH RECURSIVE c (name)", "SCAN c", "the rows of the recursion, up to the page"),
    ("INDEXED BY tasks_held", "USE TEMP B-TREE FOR ORDER BY", "few tasks are held"),
];

// The string literals of a source file that are SQL statements.
fn statements(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source.split("#[cfg(test)]").next().unwrap_or_default();
    while let Some(start) = rest.find('"') {
        let mut text = String::new();
        let mut chars = rest[start + 1..].char_indices().peekable();
        let mut end = rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = start + 1 + at + 1;
                    break;
                }
                '\\' => {
                    // A continued line, or an escape that no statement contains.
                    chars.next();
                    while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
                }
                c => text.push(c),
            }
        }
        rest = &rest[end..];
        let verbs = ["SELECT ", "UPDATE ", "DELETE ", "WITH "];
        if verbs.iter().any(|verb| text.starts_with(verb)) {
            found.push(text);
        }
    }
    found
}

fn expand(text: &str) -> Vec<String> {
    let columns = [
        "RUN",
        "STEP",
        "EVENT",
        "MESSAGE",
        "TASK",
        "WORKER",
        "DEAD_LETTER",
        "LOG",
        "BREAKER",
        "RATE",
        "RECORD",
        "VERSION",
        "overview",
    ];
    let mut text = text.replace("SELECT {} FROM", "SELECT * FROM");
    for name in columns {
        text = text.replace(&format!("{{{name}}}"), "*");
    }
    if text.contains("{order}") {
        return ["ASC", "DESC"].iter().map(|order| text.replace("{order}", order)).collect();
    }
    vec![text]
}

fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut explain = conn
        .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let count = explain.parameter_count();
    let nulls = rusqlite::params_from_iter(std::iter::repeat_n(rusqlite::types::Null, count));
    let lines = explain.query_map(nulls, |row| row.get(3)).unwrap();
    lines.collect::<Result<_, _>>().unwrap()
}

#[test]
fn every_statement_uses_an_index() {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(include_str!("../../migrations/V1__kernel.sql")).unwrap();
    conn.execute_batch(include_str!("../../migrations/V2__records.sql")).unwrap();
    let mut bad = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut used = [false; ALLOWED.len()];
    for (file, source) in SOURCES {
        for sql in statements(source).iter().flat_map(|text| expand(text)) {
            *counts.entry(file).or_default() += 1;
            for line in plan(&conn, &sql) {
                let is_bad = line.starts_with("SCAN") && line != "SCAN CONSTANT ROW"
                    || line.starts_with("USE TEMP B-TREE");
                let reason = ALLOWED
                    .iter()
                    .position(|(part, start, _)| sql.contains(part) && line.starts_with(start));
                match reason {
                    Some(reason) => used[reason] |= is_bad,
                    None if is_bad => bad.push(format!("{file}: {line}\n    {sql}")),
                    None => {}
                }
            }
        }
    }
    assert!(bad.is_empty(), "statements without an index:\n{}", bad.join("\n"));
    for (file, _) in SOURCES {
        assert!(counts.contains_key(file), "found no statement in {file}");
    }
    assert!(counts.values().sum::<usize>() > 50, "found too few statements: {counts:?}");
    for (is_used, allowed) in used.iter().zip(ALLOWED) {
        assert!(is_used, "no statement needs the exception {allowed:?}");
    }
}

#[test]
fn a_full_scan_is_detected() {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(include_str!("../../migrations/V1__kernel.sql")).unwrap();
    let lines = plan(&conn, "SELECT * FROM runs WHERE model = ?1 ORDER BY updated_at");
    assert!(lines.iter().any(|line| line.starts_with("SCAN runs")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("USE TEMP B-TREE")), "{lines:?}");
}
