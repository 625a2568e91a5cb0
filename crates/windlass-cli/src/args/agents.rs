//! Arguments of `windlass ledger`, `windlass transcript` and `windlass agents`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Remote, RunRef};

#[derive(Args)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The generation of the run, by number. [default: the newest]
    #[arg(long = "run", value_name = "N")]
    pub(crate) run_number: Option<u32>,
    /// Show the ledgers of the whole tree: the run, its parents and its children.
    #[arg(long)]
    pub(crate) root: bool,
    /// Show the whole tree, with the events of each child below the event that started it.
    #[arg(long)]
    pub(crate) tree: bool,
    /// Show ledgers that stayed when retention deleted their runs: all of them, with the key of a run the
    /// ledger of this run, with --root and the key of a root those of its tree.
    #[arg(long, conflicts_with_all = ["run_number", "tree", "html"])]
    pub(crate) kept: bool,
    /// Also show causes and hashes.
    #[arg(long)]
    pub(crate) full: bool,
    /// Continue a previous listing: the `cursor` printed by `-o json`.
    #[arg(long, value_name = "CURSOR", conflicts_with_all = ["tree", "html"])]
    pub(crate) cursor: Option<String>,
    /// Write the ledgers of the whole tree to one HTML file, without scripts. `-` is standard output.
    /// Payloads of custom events show only shapes and sizes.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Also write the payloads of custom events and the conversations of agents to the HTML file.
    #[arg(long, requires = "html")]
    pub(crate) break_glass: bool,
}

#[derive(Args)]
pub(crate) struct TranscriptArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The generation of the run, by number. [default: the newest]
    #[arg(long = "run", value_name = "N")]
    pub(crate) run_number: Option<u32>,
    /// The conversation. [default: all]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print the text of provider calls as it arrives, until the run ends.
    #[arg(long, conflicts_with_all = ["name", "run_number"])]
    pub(crate) follow: bool,
}

#[derive(Args)]
pub(crate) struct AgentsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: AgentsCommand,
}

#[derive(Subcommand)]
pub(crate) enum AgentsCommand {
    /// Load the snapshots of all live runs with the build of the server, and list those that it
    /// cannot resume. The exit code is 1 if there are any.
    ///
    /// Nothing runs and nothing is written.
    #[command(after_help = "\
Examples:
  windlass agents check
  windlass agents check support --url https://new.example/api")]
    Check {
        /// The agent. [default: all that the server serves]
        agent: Option<String>,
    },
}
