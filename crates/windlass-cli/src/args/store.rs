//! The arguments of the commands that open a store themselves.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// The store that a command opens.
#[derive(Args, Clone)]
pub(crate) struct StoreArg {
    /// Where the state is kept: `sqlite:PATH` or `postgres://…`. [default: WINDLASS_STORE, else `store`
    /// in the config file, else sqlite:.windlass/windlass.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The config file of the server. [default: windlass.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// How a command that asks no server prints.
#[derive(Args, Clone, Copy)]
pub(crate) struct OutputArg {
    /// How to print: text for people, json as one document, jsonl as one line an item.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

/// A store, and how to print what it says.
#[derive(Args, Clone)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}

/// Which namespace runs are looked up in by their names.
#[derive(Args)]
pub(crate) struct NamespaceArg {
    /// The namespace of runs that are named WORKFLOW/ID.
    #[arg(long, default_value = "default")]
    pub(crate) namespace: String,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass verify --store sqlite:app.db
  windlass verify --store sqlite:app.db order/order-42
  windlass verify --store postgres://db/app --save heads.txt      keep the heads elsewhere
  windlass verify --store postgres://db/app --anchor heads.txt    compare with them later

Ends with 1 if anything is wrong.")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Only these runs: WORKFLOW/ID or a run key. [default: all]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) within: NamespaceArg,
    /// Heads that were saved before: each must still lie on its run's chain.
    #[arg(long = "anchor", visible_alias = "anchors", value_name = "FILE")]
    pub(crate) anchors: Option<PathBuf>,
    /// Save the heads of what was verified, to be kept where the store's owner cannot change them.
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

Stop the engines on the store first, or export runs that have ended: a run that is exported while it
moves would go on in two stores.")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Only these runs, all generations: WORKFLOW/ID, or one generation by its run key.
    /// [default: all]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) within: NamespaceArg,
    /// The file to write. [default: standard output]
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
    /// The file to read. [default: standard input]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}
