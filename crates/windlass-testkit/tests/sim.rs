//! The simulation: many seeds, each twice with equal traces; every point reached; every planted
//! bug caught.
//!
//! `WINDLASS_SEEDS=n` runs n seeds, `WINDLASS_SEED=s` runs one and prints its trace (with
//! `-- --nocapture`), `WINDLASS_BUG=Name` plants a bug in that one.

#![allow(clippy::disallowed_methods, reason = "seeds are spread over the machine's threads")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use windlass_testkit::sim::{POINTS, PlantedBug, Reached, Report, run_seed};

const SEEDS: u64 = 2_000;
const SEEDS_OF_A_BUG: u64 = 200;
const THREADS: usize = 2;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Why a seed is not fine, in words.
fn complaint(report: &Report) -> Option<String> {
    let seed = report.seed;
    if let Some(violation) = &report.failure {
        let tail: Vec<&str> = report.trace.lines().collect();
        let tail = tail[tail.len().saturating_sub(12)..].join("\n    ");
        return Some(format!(
            "seed {seed} breaks invariant {}\n  {}\n  the last lines of its trace:\n    {tail}\n  \
             reproduce: WINDLASS_SEED={seed} cargo test -p windlass-testkit --test sim simulation \
             -- --nocapture",
            violation.invariant, violation.detail
        ));
    }
    None
}

/// Runs a seed twice: it must hold, and do the same both times.
fn check_seed(seed: u64, reached: &Mutex<Reached>) -> Option<String> {
    let report = run_seed(seed, None);
    reached.lock().unwrap().merge(&report.reached);
    let again = run_seed(seed, None);
    let differs = report.trace.difference(&again.trace);
    complaint(&report)
        .or_else(|| differs.map(|text| format!("seed {seed} runs differently: {text}")))
}

/// Runs `work` for 0..count on a few threads until it complains; gives the complaints.
fn spread(count: u64, work: impl Fn(u64) -> Option<String> + Sync) -> Vec<String> {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let complaints = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if let Some(complaint) = work(number) {
                        complaints.lock().unwrap().push(complaint);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    complaints.into_inner().unwrap()
}

fn show_one(seed: u64) {
    let name = std::env::var("WINDLASS_BUG").ok();
    let bug = name.map(|name| {
        let found = PlantedBug::ALL.iter().find(|bug| format!("{bug:?}") == name);
        *found.unwrap_or_else(|| panic!("WINDLASS_BUG={name} is none of {:?}", PlantedBug::ALL))
    });
    let report = run_seed(seed, bug);
    for line in report.trace.lines() {
        println!("{line}");
    }
    let again = run_seed(seed, bug);
    assert_eq!(report.trace.difference(&again.trace), None, "seed {seed} runs differently");
    if let Some(complaint) = complaint(&report) {
        panic!("{complaint}");
    }
}

#[test]
fn simulation() {
    if let Some(seed) = number("WINDLASS_SEED") {
        return show_one(seed);
    }
    let seeds = number("WINDLASS_SEEDS").unwrap_or(SEEDS);
    let reached = Mutex::new(Reached::default());
    let complaints = spread(seeds, |seed| check_seed(seed, &reached));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n\n"));
    let reached = reached.into_inner().unwrap();
    for point in POINTS {
        println!("{:>9}  {point}", reached.count(point));
    }
    if seeds >= SEEDS {
        let missing = reached.missing(POINTS);
        assert!(missing.is_empty(), "{seeds} seeds never reached: {missing:?}");
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let caught = |number: u64| {
        let bug = PlantedBug::ALL[number as usize];
        for seed in 0..SEEDS_OF_A_BUG {
            if let Some(violation) = run_seed(seed, Some(bug)).failure {
                let invariant = violation.invariant;
                println!("{bug:?}: caught by seed {seed}: {invariant}");
                // Number 0 is about the simulator itself: a bug that trips it proves nothing.
                let own = invariant.starts_with("0 ");
                return own
                    .then(|| format!("{bug:?} made a malformed commit: {}", violation.detail));
            }
        }
        Some(format!("{bug:?} was not caught within {SEEDS_OF_A_BUG} seeds"))
    };
    let missed = spread(PlantedBug::ALL.len() as u64, caught);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
