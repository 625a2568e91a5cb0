//! Flipped bits and cut files: `windlass-bench flips` damages copies of a store and examines each. A
//! damage is detected, harmless, or changes only columns that docs/reliability.md lists.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use super::phase::{Outcomes, Setting};
use super::{Torture, cargo_build};
use crate::process;

/// At least this many copies are damaged. More follow while the phase has time.
const DAMAGES_MIN: u64 = 10_000;
/// Damages of one process of `windlass-bench`: files and logs.
const FILES: u64 = 900;
const LOGS: u64 = 100;

pub(crate) fn run(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    cargo_build(&torture.root, &["--package", "windlass-bench"], setting.interrupt)?;
    let began = Instant::now();
    let mut outcomes = Outcomes::default();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut done = 0;
    while done < DAMAGES_MIN || began.elapsed() < setting.lasts {
        setting.interrupt.check()?;
        slice(torture, setting.seed.wrapping_add(done) % u64::from(u32::MAX), &mut counts)?;
        done += FILES + LOGS;
    }
    let of = |word: &str| counts.get(word).copied().unwrap_or_default();
    let missed = of("file_missed") + of("log_missed");
    outcomes.faults = usize::try_from(done)?;
    outcomes.acknowledged = usize::try_from(done - missed)?;
    for (word, count) in counts.iter().filter(|(_, count)| **count > 0) {
        outcomes.notes.push(format!("{count:6} {word}"));
    }
    if missed > 0 {
        outcomes.findings.lost.push(format!("{missed} damages changed a result unnoticed"));
    }
    Ok(outcomes)
}

/// Runs one process and adds its counts.
fn slice(torture: &Torture<'_>, seed: u64, counts: &mut BTreeMap<String, u64>) -> Result<()> {
    let mut bench = Command::new(torture.target.join("debug").join("windlass-bench"));
    bench.args(["flips", "--json", "--seed", &seed.to_string()]);
    bench.args(["--flips", &FILES.to_string(), "--log-flips", &LOGS.to_string()]);
    bench.arg("--path").arg(&torture.target);
    // A missed damage ends the process with an error, after its report.
    let printed = match process::capture(&mut bench) {
        Ok(printed) => printed,
        Err(error) => format!("{error:#}"),
    };
    let report = printed.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let report = report.with_context(|| format!("windlass-bench gave no report:\n{printed}"))?;
    add(&report, counts);
    Ok(())
}

/// Adds the outcomes of files and of logs; the report also has sizes.
fn add(report: &Value, counts: &mut BTreeMap<String, u64>) {
    let sizes = ["file_bytes", "file_runs", "log_bytes", "log_commits"];
    for (word, count) in report.as_object().into_iter().flatten() {
        let is_outcome = word.starts_with("file_") || word.starts_with("log_");
        if is_outcome && !sizes.contains(&word.as_str()) {
            *counts.entry(word.clone()).or_default() += count.as_u64().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn outcomes_are_added_and_sizes_are_not() {
        let mut counts = BTreeMap::new();
        for _ in 0..2 {
            add(
                &json!({ "seed": 1, "file_bytes": 9, "file_open": 3, "log_prefix": 4 }),
                &mut counts,
            );
        }
        assert_eq!(counts, BTreeMap::from([("file_open".into(), 6), ("log_prefix".into(), 8)]));
    }
}
