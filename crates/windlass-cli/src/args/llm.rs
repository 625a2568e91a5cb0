//! Arguments of `windlass llm`.

use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum LlmCommand {
    /// List batches of calls, or show one.
    #[command(after_help = "\
Examples:
  windlass llm batches --status in_flight
  windlass llm batches 5f0c9d1e2b3a4c5d")]
    Batches {
        /// The intent of a batch, as the list shows it.
        intent: Option<String>,
        /// Only batches with this status: waiting, unknown, in_flight, ended or failed.
        #[arg(long, value_name = "STATUS", conflicts_with = "intent")]
        status: Option<String>,
    },
    /// Cancel a batch. Calls that the provider has finished keep their answers.
    #[command(after_help = "\
Examples:
  windlass llm cancel 5f0c9d1e2b3a4c5d")]
    Cancel {
        /// The intent of the batch.
        intent: String,
    },
    /// List lanes: where calls wait for a batch.
    Lanes,
    /// Send what waits in the lanes of a provider now.
    #[command(after_help = "\
Examples:
  windlass llm flush anthropic")]
    Flush {
        /// The provider.
        provider: String,
    },
    /// List budgets, or show one.
    #[command(after_help = "\
Examples:
  windlass llm budgets --workflow research
  windlass llm budgets 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Budgets {
        /// The id of a budget: the key of the run with which it began.
        budget: Option<String>,
        /// Only budgets of this workflow.
        #[arg(short, long, value_name = "NAME", conflicts_with = "budget")]
        workflow: Option<String>,
    },
    /// Add to a budget. A run that failed because of it can be retried afterwards.
    #[command(after_help = "\
Examples:
  windlass llm raise 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10 --usd 5 --calls 100")]
    Raise {
        /// The id of the budget.
        budget: String,
        /// Money to add, in US dollars.
        #[arg(long, value_name = "USD")]
        usd: Option<f64>,
        /// Tokens to add.
        #[arg(long, value_name = "COUNT")]
        tokens: Option<u64>,
        /// Calls to add.
        #[arg(long, value_name = "COUNT")]
        calls: Option<u64>,
    },
    /// Show what calls have used, by day, workflow, model and lane, or for the tree of one run.
    #[command(after_help = "\
Examples:
  windlass llm spend --from 2026-11-01 --workflow research
  windlass llm spend --root 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Spend {
        /// The first day, such as 2026-11-01.
        #[arg(long, value_name = "DAY")]
        from: Option<String>,
        /// The last day.
        #[arg(long, value_name = "DAY")]
        to: Option<String>,
        /// Only calls of this workflow.
        #[arg(short, long, value_name = "NAME")]
        workflow: Option<String>,
        /// Only calls of this model.
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// The key of a root run.
        #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to", "workflow", "model"])]
        root: Option<String>,
    },
}
