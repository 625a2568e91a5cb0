//! `cargo xtask ci`: runs all checks and tests in stages.

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::interrupt::{Interrupt, Interrupted};
use crate::{deny, features, process, publish, test, tidy, torture, ui, workspace};

const FORMAT: &[&str] = &["fmt", "--all", "--check"];
const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];

/// `cargo doc` of the workspace; a broken link is an error.
const DOC: &[&str] = &["doc", "--workspace", "--no-deps", "--all-features"];
const DENY_DOC_WARNINGS: (&str, &str) = ("RUSTDOCFLAGS", "-D warnings");

/// Runs every stage, even after a failure, so that one run shows all problems. Fast stages come
/// first. The doc tests are part of `test`.
pub(crate) fn run(root: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    let stages: [(&str, &dyn Fn() -> Result<ExitCode>); 10] = [
        ("format", &|| cargo(root, FORMAT, None, interrupt)),
        ("tidy", &|| tidy::run(root)),
        ("deny", &|| deny::run(root)),
        ("clippy", &|| cargo(root, CLIPPY, None, interrupt)),
        ("package", &|| publish::run(root, interrupt)),
        ("features", &|| features::run(root, interrupt)),
        ("doc", &|| cargo(root, DOC, Some(DENY_DOC_WARNINGS), interrupt)),
        ("ui", &|| ui::run(root, interrupt)),
        ("test", &|| test::run(root, &[], interrupt)),
        ("torture", &|| torture::run(root, &torture::TortureArgs::short(root), interrupt)),
    ];
    let start = Instant::now();
    let mut reports = Vec::new();
    for (name, stage) in stages {
        interrupt.check()?;
        reports.push(report(name, start, stage)?);
    }
    Ok(summary(&reports, start.elapsed()))
}

struct Report {
    name: &'static str,
    passed: bool,
    took: Duration,
}

fn report(
    name: &'static str,
    start: Instant,
    stage: &dyn Fn() -> Result<ExitCode>,
) -> Result<Report> {
    println!("\n== {name} (at {:.1} s)", start.elapsed().as_secs_f64());
    let began = Instant::now();
    let passed = match stage() {
        Ok(code) => code == ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(error) => {
            eprintln!("error: {error:#}");
            false
        }
    };
    Ok(Report { name, passed, took: began.elapsed() })
}

fn summary(reports: &[Report], took: Duration) -> ExitCode {
    println!("\n== summary ({:.1} s)", took.as_secs_f64());
    for report in reports {
        let word = if report.passed { "ok" } else { "FAILED" };
        println!("{:8} {word:6} {:7.1} s", report.name, report.took.as_secs_f64());
    }
    if reports.iter().all(|report| report.passed) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cargo(
    root: &Path,
    args: &[&str],
    variable: Option<(&str, &str)>,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    let mut cargo = workspace::cargo(root);
    cargo.args(args).envs(variable).stdin(Stdio::null());
    Ok(process::exit_code(process::run(&mut cargo, interrupt)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_stage_fails_the_whole() {
        let stage = |passed| Report { name: "a stage", passed, took: Duration::ZERO };
        for (passed, expect) in
            [(vec![true, true], ExitCode::SUCCESS), (vec![true, false, true], ExitCode::FAILURE)]
        {
            let reports: Vec<Report> = passed.into_iter().map(stage).collect();
            assert_eq!(summary(&reports, Duration::ZERO), expect);
        }
    }

    #[test]
    fn an_error_is_a_failure_and_an_interrupt_ends_all() {
        let broken = report("broken", Instant::now(), &|| anyhow::bail!("no")).unwrap();
        assert!(!broken.passed);
        assert!(report("stopped", Instant::now(), &|| Err(Interrupted.into())).is_err());
    }
}
