//! Arguments of `windlass receipts`.

use clap::{Args, Subcommand};

use super::{PageArgs, Remote, RunRef};

#[derive(Args)]
pub(crate) struct ReceiptsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: ReceiptsCommand,
}

#[derive(Subcommand)]
pub(crate) enum ReceiptsCommand {
    /// List the receipts of a run's effects.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  windlass receipts list order/order-42
  windlass receipts list order/order-42 -o jsonl"
    )]
    List {
        #[command(flatten)]
        run: RunRef,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show the receipt of an effect. The exit code is 3 if the effect has none.
    #[command(after_help = "\
Examples:
  windlass receipts show 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Show {
        /// The id of the effect's task, which is in the event `effect.enqueued`.
        task: String,
    },
}
