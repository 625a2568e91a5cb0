//! The repository's own commands: `cargo xtask test`, `ci`, `tidy` and `pg`.
#![allow(
    clippy::disallowed_methods,
    reason = "a command-line tool at the edge: it measures real time and waits for real processes"
)]

mod ci;
mod interrupt;
mod packages;
mod pg;
mod postgres;
mod process;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::interrupt::{Interrupt, Interrupted};

/// The repository's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests against a throw-away PostgreSQL.
    Test {
        /// Arguments for `cargo test`, after `--`; `-p` narrows it to one crate.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run a command beside a throw-away PostgreSQL; without one, print its address and wait.
    Pg {
        /// The command and its arguments, after `--`.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Check format, lints and the rules of `tidy`, then run all tests.
    Ci,
    /// Check the rules that the compiler does not know.
    Tidy,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let root = workspace::root()?;
    let interrupt = Interrupt::listen()?;
    match command {
        Command::Test { args } => test::run(&root, &args, &interrupt),
        Command::Pg { command } => pg::run(&root, &command, &interrupt),
        Command::Ci => ci::run(&root, &interrupt),
        Command::Tidy => tidy::run(&root),
    }
}
