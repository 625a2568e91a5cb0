//! `windlass contracts`: the arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{OutputArg, Remote};

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
    /// Print the JSON schema of a kind of file, for editors.
    #[command(after_help = "\
Examples:
  windlass contracts schema contract > contract.schema.json")]
    Schema {
        /// The kind of file.
        kind: SchemaKind,
    },
    #[command(flatten)]
    Online(OnlineCommand),
}

/// A kind of file that has a JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaKind {
    Contract,
    Definition,
    Patch,
    Table,
    Scenario,
    Directory,
    Template,
    Artefact,
}

/// Commands that call a server.
#[derive(Subcommand)]
pub(crate) enum OnlineCommand {
    /// List the document types of a server.
    #[command(after_help = "\
Examples:
  windlass contracts types")]
    Types(Remote),
    /// Print the templates of a server: contracts and definitions to start from.
    #[command(after_help = "\
Examples:
  windlass contracts templates")]
    Templates(Remote),
    /// Print the newest contract of a type, or an earlier version.
    #[command(after_help = "\
Examples:
  windlass contracts show invoice
  windlass contracts show invoice --version 1")]
    Show {
        #[command(flatten)]
        at: TypeArgs,
        /// The version.
        #[arg(long, value_name = "N")]
        version: Option<u32>,
    },
    /// List the published versions of your definition of a type, the newest first.
    #[command(after_help = "\
Examples:
  windlass contracts versions invoice
  windlass contracts versions invoice --of-contract")]
    Versions {
        #[command(flatten)]
        at: TypeArgs,
        /// List the versions of the lifecycle contract instead.
        #[arg(long)]
        of_contract: bool,
        /// List versions before this one.
        #[arg(long, value_name = "N")]
        before: Option<u32>,
        /// The most versions.
        #[arg(long, default_value_t = 25)]
        limit: u32,
    },
    /// Accept no more documents of a type (operator). Documents that exist keep their workflow.
    #[command(after_help = "\
Examples:
  windlass contracts archive-type invoice")]
    ArchiveType(TypeArgs),
    /// Run a scenario through your draft on the server, or through the published version without one.
    #[command(after_help = "\
Examples:
  windlass contracts try invoice @large.json")]
    Try {
        /// The document type.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// The scenario: JSON, @FILE, or - for standard input.
        #[arg(value_name = "JSON")]
        scenario: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Publish the next version of a lifecycle contract (operator).
    #[command(after_help = "\
Examples:
  windlass contracts publish-type @invoice.json")]
    PublishType {
        /// The contract: JSON, @FILE, or - for standard input.
        #[arg(value_name = "JSON")]
        contract: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print your definition of a type: the draft and the published version.
    #[command(after_help = "\
Examples:
  windlass contracts definition invoice")]
    Definition(TypeArgs),
    /// Store a draft of your definition. It need not compile.
    #[command(after_help = "\
Examples:
  windlass contracts draft invoice @acme.json")]
    Draft {
        /// The document type.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// The definition: JSON, @FILE, or - for standard input.
        #[arg(value_name = "JSON")]
        definition: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Compile your draft and publish it as the next version. The exit code is 1 if it is refused.
    #[command(after_help = "\
Examples:
  windlass contracts draft invoice @acme.json
  windlass contracts publish invoice")]
    Publish(TypeArgs),
    /// Return to the defaults of the contract. Documents that exist keep their workflow.
    #[command(after_help = "\
Examples:
  windlass contracts archive invoice")]
    Archive(TypeArgs),
    /// Make a draft for the newest contract from your published version.
    #[command(after_help = "\
Examples:
  windlass contracts rebase invoice")]
    Rebase(TypeArgs),
    /// Publish the content of an earlier version again.
    #[command(after_help = "\
Examples:
  windlass contracts rollback invoice 3")]
    Rollback {
        /// The document type.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// The version.
        version: u32,
        #[command(flatten)]
        remote: Remote,
    },
    /// Compile your published version, or the contract without one, again with the compiler of the server.
    #[command(after_help = "\
Examples:
  windlass contracts recompile invoice")]
    Recompile(TypeArgs),
    /// Print the workflow that a new document of a type gets.
    #[command(after_help = "\
Examples:
  windlass contracts effective invoice --diff
  windlass contracts effective invoice --mermaid > invoice.mmd")]
    Effective {
        #[command(flatten)]
        at: TypeArgs,
        /// Print what your definition adds, by slot.
        #[arg(long)]
        diff: bool,
        /// Draw the workflow as a Mermaid flowchart.
        #[arg(long, conflicts_with = "diff")]
        mermaid: bool,
    },
    /// Print the people, roles, managers and delegations, or replace them.
    #[command(after_help = "\
Examples:
  windlass contracts directory
  windlass contracts directory --set @people.json")]
    Directory(SettingsArgs),
    /// Print the settings that expressions read as `org`, or replace them.
    #[command(after_help = "\
Examples:
  windlass contracts settings --set '{\"currency\":\"EUR\"}'")]
    Settings(SettingsArgs),
    /// Print an approval chain, or replace it.
    #[command(after_help = "\
Examples:
  windlass contracts chain two_steps
  windlass contracts chain two_steps --set @chain.json")]
    Chain {
        /// The name of the chain.
        name: String,
        #[command(flatten)]
        args: SettingsArgs,
    },
    /// List the names of your approval chains.
    #[command(after_help = "\
Examples:
  windlass contracts chains")]
    Chains(Remote),
    /// Show the health of documents: pending and stuck runs, retries, durations by node type.
    Health(Remote),
    /// List the documents whose runs are stuck, with the reason.
    #[command(after_help = "\
Examples:
  windlass contracts stuck")]
    Stuck(Remote),
}

/// A document type on a server.
#[derive(Args)]
pub(crate) struct TypeArgs {
    /// The document type.
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// A document that is read or replaced.
#[derive(Args)]
pub(crate) struct SettingsArgs {
    /// Replace it: JSON, @FILE, or - for standard input.
    #[arg(long, value_name = "JSON")]
    pub(crate) set: Option<String>,
    #[command(flatten)]
    pub(crate) remote: Remote,
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
