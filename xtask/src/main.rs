//! Development commands of this repository: `cargo xtask test`, `ci`, `tidy`, `deny`, `features`,
//! `pg` and `torture`.
#![allow(
    clippy::disallowed_methods,
    reason = "a command-line tool needs the real clock and real processes"
)]

mod ci;
mod deny;
mod fast;
mod features;
mod interrupt;
mod metadata;
mod packages;
mod pg;
mod postgres;
mod process;
mod publish;
mod test;
mod tidy;
mod torture;
mod ui;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::interrupt::{Interrupt, Interrupted};

/// Development commands of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests with a temporary PostgreSQL.
    Test {
        /// Run only the tests that take little time: under 90 seconds once they are built.
        #[arg(long, conflicts_with = "args")]
        fast: bool,
        /// Arguments for `cargo test`, after `--`; `-p` selects one crate.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run a command with a temporary PostgreSQL; without a command, print its address and wait.
    Pg {
        /// The command and its arguments, after `--`.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Run all checks and tests. They must pass before a merge.
    Ci,
    /// Check the rules of this repository that the compiler does not check.
    Tidy,
    /// Check the sources of the dashboard, build it again, and open every view in a browser.
    Ui,
    /// Check licences, bans, duplicate versions and sources of all dependencies against `deny.toml`.
    Deny,
    /// Compile crates with features: each feature alone, and omitted.
    Features,
    /// Inject faults into the real binary and check that nothing is lost, doubled or stuck.
    Torture(torture::TortureArgs),
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
        Command::Test { fast: true, .. } => fast::run(&root, &interrupt),
        Command::Test { args, .. } => test::run(&root, &args, &interrupt),
        Command::Pg { command } => pg::run(&root, &command, &interrupt),
        Command::Ci => ci::run(&root, &interrupt),
        Command::Tidy => tidy::run(&root),
        Command::Ui => ui::run(&root, &interrupt),
        Command::Deny => deny::run(&root),
        Command::Features => features::run(&root, &interrupt),
        Command::Torture(args) => torture::run(&root, &args, &interrupt),
    }
}
