//! `cargo xtask test --fast`: builds all tests, and runs those that take little time.
//!
//! Cargo's own filters apply to all packages alike and change the features of what it builds, so this
//! starts the programs of the tests itself.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::interrupt::Interrupt;
use crate::postgres::Cluster;
use crate::{packages, process, workspace};

/// Tests of one package that `--fast` leaves out.
struct Slow {
    package: &'static str,
    /// The test target, a file or directory below `tests`.
    target: &'static str,
    /// Parts of the names of tests; none means the whole target.
    tests: &'static [&'static str],
}

/// Simulations, random comparisons, tests that start or kill programs, tests that wait for a timeout,
/// and whatever has a variant on a store that needs no server. CONTRIBUTING.md describes the choice.
const SLOW: &[Slow] = &[
    Slow { package: "windlass-cli", target: "it", tests: &[] },
    Slow { package: "windlass-postgres", target: "it", tests: &[] },
    Slow { package: "windlass-testkit", target: "fleet", tests: &[] },
    Slow { package: "windlass-sqlite", target: "it", tests: &["damage::", "differential::"] },
    Slow {
        package: "windlass-server",
        target: "it",
        tests: &["::postgres", "bad_requests::", "durable::", "limits::", "server::"],
    },
    Slow {
        package: "windlass",
        target: "it",
        tests: &[
            "::postgres",
            "agent_reach::",
            "carried::",
            "compile_errors::",
            "contracts_crashes::",
            "contracts_races::",
            "examples::",
            "machines_activity_retry::",
            "machines_backpressure::",
            "machines_generations::",
            "machines_rates::",
            "machines_scale_1000_workers::",
            "machines_stops::",
            "outbound::",
            "pair::",
            "relay_http::",
        ],
    },
];

/// Builds everything, runs the fast tests and fails if one of them does.
pub(crate) fn run(root: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    packages::python(interrupt)?;
    let build = ["test", "--workspace", "--all-features", "--lib", "--bins", "--tests", "--no-run"];
    let built = process::run(workspace::cargo(root).args(build).arg("--quiet"), interrupt)?;
    if !built.success() {
        return Ok(process::exit_code(built));
    }
    // Everything is fresh now, so this only lists the programs.
    let listed = process::capture(workspace::cargo(root).args(build).args([
        "--quiet",
        "--message-format",
        "json",
    ]))?;
    let cluster = Cluster::start(&workspace::target_dir(root), interrupt)?;
    let began = Instant::now();
    let mut failed = Vec::new();
    for program in programs(&listed)? {
        let Some(skip) = skipped(program.package(), &program.target.name) else { continue };
        println!("{} {}", program.package(), program.target.name);
        let mut command = Command::new(&program.executable);
        command.arg("--quiet").args(skip.iter().flat_map(|name| ["--skip", name]));
        command.current_dir(program.directory()).envs(cluster.environment()).stdin(Stdio::null());
        if !process::run(&mut command, interrupt)?.success() {
            failed.push(format!("{} {}", program.package(), program.target.name));
        }
    }
    println!("fast tests took {:.0} s; `cargo xtask test` runs all", began.elapsed().as_secs_f64());
    for name in &failed {
        println!("failed: {name}");
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The names to skip, or none if the whole target is left out.
fn skipped(package: &str, target: &str) -> Option<&'static [&'static str]> {
    match SLOW.iter().find(|slow| slow.package == package && slow.target == target) {
        None => Some(&[]),
        Some(slow) if slow.tests.is_empty() => None,
        Some(slow) => Some(slow.tests),
    }
}

/// A program with tests, as cargo reports it.
#[derive(Deserialize)]
struct Program {
    manifest_path: PathBuf,
    target: Target,
    executable: PathBuf,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Program {
    /// The directory of the package, where cargo starts its tests.
    fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }

    /// The name of the package, which is that of its directory.
    fn package(&self) -> &str {
        self.directory().file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("cargo printed `{line}`"))?;
        if message["executable"].is_string() && message["profile"]["test"] == true {
            programs.push(serde_json::from_value(message).context("cargo changed its messages")?);
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_programs_with_tests_are_run() {
        let messages = [
            r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/a/Cargo.toml","target":{"name":"it"},"profile":{"test":true},"executable":"/r/target/debug/deps/it-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":"/r/target/debug/a"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/a/Cargo.toml","target":{"name":"a"},"profile":{"test":true},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let programs = programs(&messages.join("\n")).unwrap();
        let shown: Vec<_> =
            programs.iter().map(|p| (p.package(), p.target.name.as_str())).collect();
        assert_eq!(shown, [("a", "it")]);
        assert!(super::programs("no json").is_err());
    }

    #[test]
    fn a_target_is_run_in_part_or_whole_or_not_at_all() {
        assert_eq!(skipped("windlass-cli", "it"), None);
        assert_eq!(skipped("windlass-cli", "windlass"), Some(&[][..]));
        assert!(skipped("windlass", "it").is_some_and(|skip| skip.contains(&"::postgres")));
    }

    #[test]
    fn what_is_left_out_exists() {
        let root = workspace::root().unwrap();
        for slow in SLOW {
            let tests = root.join("crates").join(slow.package).join("tests");
            let file = tests.join(format!("{}.rs", slow.target));
            assert!(file.is_file() || tests.join(slow.target).is_dir(), "{}", file.display());
            for module in slow.tests.iter().filter_map(|name| name.strip_suffix("::")) {
                let main = fs::read_to_string(tests.join(slow.target).join("main.rs")).unwrap();
                let declared = format!("mod {module};");
                assert!(main.contains(&declared), "{} has no {declared}", slow.package);
            }
        }
    }
}
