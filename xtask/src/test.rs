//! `cargo xtask test`: runs all tests with a temporary PostgreSQL.

use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::postgres::Cluster;
use crate::{packages, process, workspace};

/// Runs the tests and returns the exit code of `cargo test`.
pub(crate) fn run(root: &Path, args: &[String], interrupt: &Interrupt) -> Result<ExitCode> {
    packages::python(interrupt)?;
    if opens_a_browser(args) {
        packages::chromium(interrupt)?;
        packages::chromedriver(interrupt)?;
    }
    let cluster = Cluster::start(&workspace::target_dir(root), interrupt)?;
    let mut cargo = workspace::cargo(root);
    cargo.args(arguments(args)).envs(cluster.environment()).stdin(Stdio::null());
    Ok(process::exit_code(process::run(&mut cargo, interrupt)?))
}

/// Uses `cargo test`, which needs no additional tool and runs the doc tests.
fn arguments(extra: &[String]) -> Vec<&str> {
    let mut args = vec!["test", "--no-fail-fast", "--all-features"];
    // Cargo ignores `-p` if `--workspace` is given.
    if !names_a_package(extra) {
        args.push("--workspace");
    }
    args.extend(extra.iter().map(String::as_str));
    args
}

fn names_a_package(args: &[String]) -> bool {
    args.iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| arg.starts_with("-p") || arg.starts_with("--package"))
}

/// Only the tests of the server open the dashboard. A browser is large, so others do without it.
fn opens_a_browser(args: &[String]) -> bool {
    !names_a_package(args) || args.iter().any(|arg| arg.ends_with("windlass-server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_of_the_server_need_a_browser() {
        for (args, expect) in [
            ("", true),
            ("claim", true),
            ("-p windlass-server", true),
            ("--package=windlass-server --test it", true),
            ("-p windlass-sqlite", false),
        ] {
            let args: Vec<String> = args.split_whitespace().map(String::from).collect();
            assert_eq!(opens_a_browser(&args), expect, "{args:?}");
        }
    }

    #[test]
    fn all_crates_unless_one_is_named() {
        for (extra, expect) in [
            ("", "--workspace"),
            ("claim", "--workspace claim"),
            ("-p windlass-sqlite", "-p windlass-sqlite"),
            ("--package=xtask", "--package=xtask"),
            ("-- -p", "--workspace -- -p"),
        ] {
            let extra: Vec<String> = extra.split_whitespace().map(String::from).collect();
            let expect = format!("test --no-fail-fast --all-features {expect}");
            assert_eq!(arguments(&extra).join(" "), expect);
        }
    }
}
