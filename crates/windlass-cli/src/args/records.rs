//! Arguments of `windlass records`.

use clap::{Args, Subcommand};

use super::{PageArgs, Remote, term};

#[derive(Args)]
pub(crate) struct RecordsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: RecordsCommand,
}

#[derive(Subcommand)]
pub(crate) enum RecordsCommand {
    /// Print a record's document. Its revision and terms go to standard error.
    #[command(after_help = "\
Examples:
  windlass records get carts c-7
  windlass records get carts c-7 > cart.json
  windlass records get carts c-7 --revision 2
  windlass records get carts c-7 -o json       with revision, terms and times")]
    Get {
        /// The collection.
        collection: String,
        /// The id of the record.
        id: String,
        /// A kept version of the record, instead of the current one.
        #[arg(long, value_name = "N")]
        revision: Option<u64>,
    },
    /// Write a record that is in the expected state. The exit code is 1 if it is in another state.
    #[command(after_help = "\
Examples:
  windlass records put carts c-7 '{\"items\":[\"lamp\"]}' --create --term customer=ann
  windlass records put carts c-7 @cart.json --if-revision 1 --term customer=ann --keep
  jq '.ordered = true' cart.json | windlass records put carts c-7 - --if-revision 2")]
    Put(Box<PutRecordArgs>),
    /// List the records of a collection by id, all or those with a term.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  windlass records list carts
  windlass records list carts --term customer=ann -o jsonl"
    )]
    List {
        /// The collection.
        collection: String,
        /// Only records with this term.
        #[arg(short, long, value_name = "NAME=VALUE", value_parser = term)]
        term: Option<(String, String)>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List the collections by name. Names that begin with `windlass.` are the engine's own.
    #[command(after_help = "\
Examples:
  windlass records collections
  windlass records collections -o json")]
    Collections {
        #[command(flatten)]
        page: PageArgs,
    },
    /// List the kept versions of a record, newest first.
    #[command(after_help = "\
Examples:
  windlass records versions carts c-7
  windlass records get carts c-7 --revision 2")]
    Versions {
        /// The collection.
        collection: String,
        /// The id of the record.
        id: String,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Remove a record that is in the expected state. Its kept versions stay.
    #[command(
        visible_alias = "rm",
        after_help = "\
Examples:
  windlass records delete carts c-7 --if-revision 2
  windlass records delete carts c-7 --if-exists"
    )]
    Delete {
        /// The collection.
        collection: String,
        /// The id of the record.
        id: String,
        #[command(flatten)]
        state: StateArgs,
    },
}

#[derive(Args)]
pub(crate) struct PutRecordArgs {
    /// The collection.
    pub(crate) collection: String,
    /// The id of the record.
    pub(crate) id: String,
    /// The document: JSON, `@FILE`, or `-` for standard input.
    #[arg(value_name = "JSON", allow_negative_numbers = true)]
    pub(crate) document: String,
    #[command(flatten)]
    pub(crate) state: PutStateArgs,
    /// A term by which listings find the record. Can be repeated. The terms of a write replace all
    /// earlier ones.
    #[arg(short, long = "term", value_name = "NAME=VALUE", value_parser = term)]
    pub(crate) terms: Vec<(String, String)>,
    /// Keep this revision as a version that never changes.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// The state that a write expects. Exactly one is required: a write without it could overwrite a change
/// that its sender has not seen.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PutStateArgs {
    /// The record must not exist.
    #[arg(long)]
    pub(crate) create: bool,
    /// The record must have this revision.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    /// The record must exist, at any revision.
    #[arg(long)]
    pub(crate) if_exists: bool,
}

/// The state that a removal expects. Exactly one is required.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct StateArgs {
    /// The record must have this revision.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    /// The record may have any revision.
    #[arg(long)]
    pub(crate) if_exists: bool,
}
