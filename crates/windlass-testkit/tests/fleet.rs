//! Real engines in the simulator: many seeds, each twice with equal traces; every point reached;
//! every planted bug caught.
//!
//! `WINDLASS_SEEDS=n` runs n seeds, `WINDLASS_SEED=s` runs one and prints its trace (with
//! `-- --nocapture`), `WINDLASS_BUG=Name` plants a bug in that one, `WINDLASS_ALL=1` goes on after a
//! failure.

#![allow(clippy::disallowed_methods, reason = "seeds are spread over the machine's threads")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use windlass_testkit::sim::{POINTS, PlantedBug, Reached, Report, run_seed};

const SEEDS: u64 = 300;
const SEEDS_OF_A_BUG: u64 = 200;
const THREADS: usize = 2;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Describes the violation of a seed, if there is one.
fn violation_text(report: &Report) -> Option<String> {
    let seed = report.seed;
    let violation = report.failure.as_ref()?;
    let tail: Vec<&str> = report.trace.lines().collect();
    let tail = tail[tail.len().saturating_sub(12)..].join("\n    ");
    Some(format!(
        "seed {seed} breaks invariant {}\n  {}\n  the last lines of its trace:\n    {tail}\n  \
         reproduce: WINDLASS_SEED={seed} cargo test -p windlass-testkit --test fleet fleet_of \
         -- --nocapture",
        violation.invariant, violation.detail
    ))
}

/// Runs a seed twice. No invariant may break, and both traces must be equal.
fn check_seed(seed: u64, reached: &Mutex<Reached>) -> Option<String> {
    let report = run_seed(seed, None);
    reached.lock().unwrap().merge(&report.reached);
    let again = run_seed(seed, None);
    let differs = report.trace.difference(&again.trace);
    violation_text(&report)
        .or_else(|| differs.map(|text| format!("seed {seed} runs differently: {text}")))
}

/// Runs `work` for 0..count on a few threads until it returns an error text. Returns the texts.
fn spread(count: u64, work: impl Fn(u64) -> Option<String> + Sync) -> Vec<String> {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let go_on = std::env::var_os("WINDLASS_ALL").is_some();
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if let Some(failure) = work(number) {
                        failures.lock().unwrap().push(failure);
                        stop.store(!go_on, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

fn show_one(seed: u64) {
    let name = std::env::var("WINDLASS_BUG").ok();
    let bug = name.map(|name| {
        let found = PlantedBug::ALL.iter().find(|bug| format!("{bug:?}").contains(&name));
        *found.unwrap_or_else(|| panic!("WINDLASS_BUG={name} is none of {:?}", PlantedBug::ALL))
    });
    let report = run_seed(seed, bug);
    for line in report.trace.lines() {
        println!("{line}");
    }
    let again = run_seed(seed, bug);
    assert_eq!(report.trace.difference(&again.trace), None, "seed {seed} runs differently");
    if let Some(text) = violation_text(&report) {
        panic!("{text}");
    }
}

#[test]
fn fleet_of_real_engines() {
    if let Some(seed) = number("WINDLASS_SEED") {
        return show_one(seed);
    }
    let seeds = number("WINDLASS_SEEDS").unwrap_or(SEEDS);
    let reached = Mutex::new(Reached::default());
    let failures = spread(seeds, |seed| check_seed(seed, &reached));
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
    let reached = reached.into_inner().unwrap();
    for point in POINTS {
        println!("{:>9}  {point}", reached.count(point));
    }
    if seeds >= SEEDS {
        let missing = reached.missing();
        assert!(missing.is_empty(), "{seeds} seeds never reached: {missing:?}");
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let caught = |number: u64| {
        let bug = PlantedBug::ALL[number as usize];
        let mut malformed = String::new();
        for seed in 0..SEEDS_OF_A_BUG {
            let Some(violation) = run_seed(seed, Some(bug)).failure else { continue };
            let invariant = violation.invariant;
            // Invariant 0 is about the simulator: a bug that breaks only this one proves nothing.
            if invariant.starts_with("0 ") {
                malformed = format!("; it made a malformed commit: {}", violation.detail);
                continue;
            }
            println!("{bug:?}: caught by seed {seed}: {invariant}");
            return None;
        }
        Some(format!("{bug:?} was not caught within {SEEDS_OF_A_BUG} seeds{malformed}"))
    };
    let missed = spread(PlantedBug::ALL.len() as u64, caught);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
