//! `cargo xtask pg`: a temporary PostgreSQL for one command, or until Ctrl-C.

use std::io::{IsTerminal, stdin};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::postgres::Cluster;
use crate::{process, workspace};

/// Runs the command and returns its exit code; without a command, waits for an interrupt.
pub(crate) fn run(root: &Path, command: &[String], interrupt: &Interrupt) -> Result<ExitCode> {
    let cluster = Cluster::start(&workspace::target_dir(root), interrupt)?;
    let Some((program, args)) = command.split_first() else {
        return wait(&cluster, interrupt);
    };
    let mut command = program_of(root, program);
    command.args(args).envs(cluster.environment()).envs(cluster.client_environment());
    let status = if stdin().is_terminal() {
        process::run_in_terminal(&mut command, interrupt)?
    } else {
        process::run(&mut command, interrupt)?
    };
    Ok(process::exit_code(status))
}

/// Runs cargo like `test` does, and any other command unchanged in the current directory.
fn program_of(root: &Path, program: &str) -> Command {
    if program == "cargo" { workspace::cargo(root) } else { Command::new(program) }
}

fn wait(cluster: &Cluster, interrupt: &Interrupt) -> Result<ExitCode> {
    for (name, value) in cluster.environment() {
        println!("{name}={value}");
    }
    eprintln!("Ctrl-C stops it and deletes its data.");
    while !interrupt.requested() {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(ExitCode::SUCCESS)
}
