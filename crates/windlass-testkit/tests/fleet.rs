//! Real engines in the simulator: many seeds, each twice with equal traces; every point reached;
//! every planted bug caught.
//!
//! `WINDLASS_SEEDS=n` runs n seeds, `WINDLASS_SEED=s` runs one and prints its trace (with
//! `-- --nocapture`), `WINDLASS_BUG=Name` plants a bug in that one, `WINDLASS_ALL=1` goes on after a
//! failure.

#![allow(clippy::disallowed_methods, reason = "seeds are spread over the machine's threads")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use windlass_testkit::sim::{FLEET_POINTS, FleetBug, Reached, Report, run_fleet};

const SEEDS: u64 = 300;
const SEEDS_OF_A_BUG: u64 = 200;
const THREADS: usize = 2;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Why a seed is not fine, in words.
fn complaint(report: &Report) -> Option<String> {
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

/// Runs a seed twice: it must hold, and do the same both times.
fn check_seed(seed: u64, reached: &Mutex<Reached>) -> Option<String> {
    let report = run_fleet(seed, None);
    reached.lock().unwrap().merge(&report.reached);
    let again = run_fleet(seed, None);
    let differs = report.trace.difference(&again.trace);
    complaint(&report)
        .or_else(|| differs.map(|text| format!("seed {seed} runs differently: {text}")))
}

/// Runs `work` for 0..count on a few threads until it complains; gives the complaints.
fn spread(count: u64, work: impl Fn(u64) -> Option<String> + Sync) -> Vec<String> {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let go_on = std::env::var_os("WINDLASS_ALL").is_some();
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
                        stop.store(!go_on, Ordering::Relaxed);
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
        let found = FleetBug::ALL.iter().find(|bug| format!("{bug:?}").contains(&name));
        *found.unwrap_or_else(|| panic!("WINDLASS_BUG={name} is none of {:?}", FleetBug::ALL))
    });
    let report = run_fleet(seed, bug);
    for line in report.trace.lines() {
        println!("{line}");
    }
    let again = run_fleet(seed, bug);
    assert_eq!(report.trace.difference(&again.trace), None, "seed {seed} runs differently");
    if let Some(complaint) = complaint(&report) {
        panic!("{complaint}");
    }
}

#[test]
fn fleet_of_real_engines() {
    if let Some(seed) = number("WINDLASS_SEED") {
        return show_one(seed);
    }
    let seeds = number("WINDLASS_SEEDS").unwrap_or(SEEDS);
    let reached = Mutex::new(Reached::default());
    let complaints = spread(seeds, |seed| check_seed(seed, &reached));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n\n"));
    let reached = reached.into_inner().unwrap();
    for point in FLEET_POINTS {
        println!("{:>9}  {point}", reached.count(point));
    }
    if seeds >= SEEDS {
        let missing = reached.missing(FLEET_POINTS);
        assert!(missing.is_empty(), "{seeds} seeds never reached: {missing:?}");
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let caught = |number: u64| {
        let bug = FleetBug::ALL[number as usize];
        for seed in 0..SEEDS_OF_A_BUG {
            if let Some(violation) = run_fleet(seed, Some(bug)).failure {
                println!("{bug:?}: caught by seed {seed}: {}", violation.invariant);
                return None;
            }
        }
        Some(format!("{bug:?} was not caught within {SEEDS_OF_A_BUG} seeds"))
    };
    let missed = spread(FleetBug::ALL.len() as u64, caught);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
