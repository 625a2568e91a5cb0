//! Arguments of the commands that open a store directly.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// The store of a command.
#[derive(Args, Clone)]
pub(crate) struct StoreArg {
    /// The store: `sqlite:PATH` or `postgres://…`. [default: WINDLASS_STORE, else `store` in the
    /// config file, else sqlite:.windlass/windlass.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The config file of the server. [default: windlass.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The output format of commands that do not call a server.
#[derive(Args, Clone, Copy)]
pub(crate) struct OutputArg {
    /// The output format: text, json (one document) or jsonl (one line per item).
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

/// A store and an output format.
#[derive(Args, Clone)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}

/// The namespace in which runs are looked up by name.
#[derive(Args)]
pub(crate) struct NamespaceArg {
    /// The namespace of runs that are given as WORKFLOW/ID.
    #[arg(long, default_value = "default")]
    pub(crate) namespace: String,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass verify --store sqlite:app.db
  windlass verify --store sqlite:app.db order/order-42
  windlass verify --store postgres://db/app --save heads.txt      save the chain heads
  windlass verify --store postgres://db/app --anchor heads.txt    compare with saved heads

The exit code is 1 if the store has any flaw.")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Only these runs: WORKFLOW/ID or a run key. [default: all]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) within: NamespaceArg,
    /// A file with saved heads. Each must still be on the chain of its run.
    #[arg(long = "anchor", visible_alias = "anchors", value_name = "FILE")]
    pub(crate) anchors: Option<PathBuf>,
    /// Save the chain heads of the verified runs. Store the file where the owner of the store
    /// cannot change it.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass export --store sqlite:app.db --out runs.jsonl
  windlass export --store sqlite:app.db order/order-42 | gzip > order-42.jsonl.gz
  windlass export --store sqlite:old.db | windlass import --store postgres://db/app

First stop all engines on the store, or export only ended runs: a run that is exported while it executes
would continue in two stores.")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Only these runs: WORKFLOW/ID for all generations, or a run key for one generation. [default:
    /// all]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) within: NamespaceArg,
    /// The output file. [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Only runs that have ended.
    #[arg(long)]
    pub(crate) ended: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass import --store postgres://db/app runs.jsonl
  gunzip < runs.jsonl.gz | windlass import --store sqlite:new.db")]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// The input file. [default: standard input]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}
