//! `windlass contracts`: the arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputArg;

#[derive(Args)]
pub(crate) struct ContractsArgs {
    #[command(subcommand)]
    pub(crate) command: ContractsCommand,
}

#[derive(Subcommand)]
pub(crate) enum ContractsCommand {
    /// Check contracts, definitions and artefacts.
    ///
    /// The exit code is 1 if a file has a problem.
    #[command(after_help = "\
Examples:
  windlass contracts check invoice.json
  windlass contracts check invoice.json acme.json globex.json -o json")]
    Check(FilesArgs),
    /// Compile a definition, or the defaults of a contract, and print the artefact.
    #[command(after_help = "\
Examples:
  windlass contracts compile invoice.json acme.json > acme.artefact.json")]
    Compile(FilesArgs),
    /// Show what a definition adds to its envelope, by slot.
    #[command(after_help = "\
Examples:
  windlass contracts diff invoice.json acme.json
  windlass contracts diff invoice.json acme.json --mermaid > acme.mmd")]
    Diff {
        #[command(flatten)]
        args: FilesArgs,
        /// Draw the whole workflow as a Mermaid flowchart.
        #[arg(long)]
        mermaid: bool,
    },
    /// Run sample documents through a definition: the path, the people who are asked, the
    /// obligations.
    ///
    /// A scenario is a JSON file with a `document`, and optionally `verdicts`, `directory` and more.
    /// The exit code is 1 if a step of a scenario fails.
    #[command(after_help = "\
Examples:
  windlass contracts simulate invoice.json acme.json large.json")]
    Simulate(FilesArgs),
    /// Simulate, and explain each choice with the values that it read.
    #[command(after_help = "\
Examples:
  windlass contracts explain invoice.json acme.json large.json")]
    Explain(FilesArgs),
}

/// The input files and the output format.
#[derive(Args)]
pub(crate) struct FilesArgs {
    /// JSON files. The content says what a file is: a contract, a definition, a scenario, an
    /// artefact, or a template that has a contract and a definition.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}
