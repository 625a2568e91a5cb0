//! The result table: one line per engine, with the ratio of Windlass to it.

use serde_json::{Value, json};

use crate::Cli;
use crate::peer::{RELAYS, Store};

/// One engine on one store.
pub(crate) struct Row {
    /// The name.
    pub(crate) name: &'static str,
    /// The version; empty for Windlass, which is built from the current sources.
    pub(crate) version: &'static str,
    /// Where it stores its data.
    pub(crate) store: Store,
    /// The result.
    pub(crate) outcome: Outcome,
}

/// The result of an engine.
pub(crate) enum Outcome {
    /// The measured figures.
    Measured(Figures),
    /// The reason why it was not measured.
    NotRun(String),
}

/// The figures of an engine.
pub(crate) struct Figures {
    /// The number of callers with the best result.
    pub(crate) in_flight: u64,
    /// Runs per second with that number of callers.
    pub(crate) runs_per_s: f64,
    /// The median duration of a sequential run.
    pub(crate) p50_ms: f64,
    /// The numbers of callers with which it failed, and the errors.
    pub(crate) failed: Vec<String>,
}

impl Figures {
    /// The mean of two measurements.
    pub(crate) fn mean(&self, other: &Self) -> Self {
        let faster = if self.runs_per_s > other.runs_per_s { self } else { other };
        Self {
            in_flight: faster.in_flight,
            runs_per_s: f64::midpoint(self.runs_per_s, other.runs_per_s),
            p50_ms: f64::midpoint(self.p50_ms, other.p50_ms),
            failed: [&self.failed[..], &other.failed[..]].concat(),
        }
    }
}

/// Prints the table, and optionally a JSON object.
pub(crate) fn print(rows: &[Row], cli: &Cli) {
    println!(
        "{} runs of 3 steps, {:?} in flight; {} runs one at a time\n",
        cli.runs, cli.in_flight, cli.sequential
    );
    print!("{}", text(rows));
    if cli.json {
        println!("{}", object(rows, cli));
    }
}

fn text(rows: &[Row]) -> String {
    let heads = [
        "peer",
        "store",
        "in flight",
        "runs/s",
        "p50 sequential",
        "windlass SQLite ÷ peer",
        "windlass PostgreSQL ÷ peer",
        "windlass relays ÷ peer",
    ];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    for row in rows {
        let name = format!("{} {}", row.name, row.version).trim_end().to_owned();
        let mut line = vec![name, row.store.to_string()];
        match &row.outcome {
            Outcome::NotRun(why) => line.push(format!("not run: {why}")),
            Outcome::Measured(figures) => {
                line.push(figures.in_flight.to_string());
                line.push(format!("{:.0}", figures.runs_per_s));
                line.push(format!("{:.2} ms", figures.p50_ms));
                let plain = [Store::Sqlite, Store::Postgres].map(|store| ratio(rows, row, store));
                for ratio in plain.into_iter().chain([relay_ratio(rows, row)]) {
                    let ratio = ratio.map(|ratio| format!("{ratio:.1}"));
                    line.push(ratio.unwrap_or_else(|| "-".to_owned()));
                }
            }
        }
        lines.push(line);
    }
    let mut text = align(&lines);
    for row in rows {
        if let Outcome::Measured(figures) = &row.outcome {
            text.extend(figures.failed.iter().map(|failed| format!("{} {failed}\n", row.name)));
        }
    }
    text
}

/// The ratio of Windlass's relays to another relay engine.
fn relay_ratio(rows: &[Row], row: &Row) -> Option<f64> {
    let ours = rows.iter().find(|row| row.name == RELAYS)?;
    row.name.starts_with("taquba").then(|| rate_ratio(ours, row)).flatten()
}

fn rate_ratio(ours: &Row, row: &Row) -> Option<f64> {
    match (&ours.outcome, &row.outcome) {
        (Outcome::Measured(ours), Outcome::Measured(theirs)) => {
            Some(ours.runs_per_s / theirs.runs_per_s)
        }
        _ => None,
    }
}

/// The ratio of Windlass on this store to a peer. PostgreSQL is compared only with peers that use
/// it.
fn ratio(rows: &[Row], row: &Row, store: Store) -> Option<f64> {
    if row.version.is_empty() || (store == Store::Postgres && row.store != Store::Postgres) {
        return None;
    }
    let ours = rows.iter().find(|row| row.name == "windlass" && row.store == store)?;
    rate_ratio(ours, row)
}

/// Aligns the columns. Reasons do not count for the width.
fn align(lines: &[Vec<String>]) -> String {
    let is_reason = |cell: &str| cell.starts_with("not run:");
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column)).filter(|c| !is_reason(c));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn object(rows: &[Row], cli: &Cli) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| match &row.outcome {
            Outcome::NotRun(why) => {
                json!({"peer": row.name, "version": row.version, "store": row.store.to_string(), "not_run": why})
            }
            Outcome::Measured(figures) => json!({
                "peer": row.name,
                "version": row.version,
                "store": row.store.to_string(),
                "in_flight": figures.in_flight,
                "runs_per_s": figures.runs_per_s,
                "sequential_p50_ms": figures.p50_ms,
                "failed": figures.failed,
                "ratio_sqlite": ratio(rows, row, Store::Sqlite),
                "ratio_postgres": ratio(rows, row, Store::Postgres),
                "ratio_relays": relay_ratio(rows, row),
            }),
        })
        .collect();
    json!({"runs": cli.runs, "in_flight": cli.in_flight, "sequential": cli.sequential, "peers": rows})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, version: &'static str, store: Store, runs_per_s: f64) -> Row {
        let figures = Figures { in_flight: 10, runs_per_s, p50_ms: 1.0, failed: Vec::new() };
        Row { name, version, store, outcome: Outcome::Measured(figures) }
    }

    #[test]
    fn ratios_compare_shared_stores() {
        let rows = [
            row("windlass", "", Store::Sqlite, 900.0),
            row("windlass", "", Store::Postgres, 600.0),
            row("a", "1", Store::Files, 300.0),
            row("b", "1", Store::Postgres, 100.0),
        ];
        for (index, sqlite, postgres) in
            [(0, None, None), (1, None, None), (2, Some(3.0), None), (3, Some(9.0), Some(6.0))]
        {
            assert_eq!(ratio(&rows, &rows[index], Store::Sqlite), sqlite);
            assert_eq!(ratio(&rows, &rows[index], Store::Postgres), postgres);
        }
    }

    #[test]
    fn relays_are_compared_with_relays() {
        let rows = [
            row("windlass", "", Store::Sqlite, 900.0),
            row(RELAYS, "", Store::Sqlite, 1_000.0),
            row("taquba-workflow", "1", Store::Files, 100.0),
            row("taquba-workflow-unsynced", "1", Store::Files, 200.0),
            row("b", "1", Store::Files, 100.0),
        ];
        let ratios: Vec<_> = rows.iter().map(|row| relay_ratio(&rows, row)).collect();
        assert_eq!(ratios, [None, None, Some(10.0), Some(5.0), None]);
        assert_eq!(ratio(&rows, &rows[2], Store::Sqlite), Some(9.0));
    }

    #[test]
    fn a_peer_that_did_not_run_has_a_reason() {
        let mut rows = [row("windlass", "", Store::Sqlite, 9.0), row("a", "1", Store::Files, 1.0)];
        rows[1].outcome = Outcome::NotRun("not installed".to_owned());
        let table = text(&rows);
        assert_eq!(table.lines().nth(2).unwrap(), "a 1       files   not run: not installed");
        assert_eq!(ratio(&rows, &rows[1], Store::Sqlite), None);
    }
}
