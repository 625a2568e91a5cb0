//! The arguments of `windlass workers`, `tasks`, `dlq`, `breakers` and `health`.

use clap::{Args, Subcommand};

use super::Remote;

#[derive(Args)]
pub(crate) struct WorkersArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: WorkersCommand,
}

#[derive(Subcommand)]
pub(crate) enum WorkersCommand {
    /// The workers of the store, with what they hold and what they have done.
    #[command(visible_alias = "ls")]
    List {
        /// Only workers in this status.
        #[arg(
            long,
            value_name = "STATUS",
            value_parser = ["active", "draining", "stopped", "stale"]
        )]
        status: Option<String>,
        /// Only workers of this group.
        #[arg(long, value_name = "NAME")]
        group: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// One worker.
    Get {
        /// The worker's id.
        id: String,
    },
    /// Ask a worker to take nothing new, to finish what it holds and to stop.
    #[command(after_help = "\
Examples:
  windlass workers list --status active
  windlass workers drain 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Drain {
        /// The worker's id.
        id: String,
    },
}

#[derive(Args)]
pub(crate) struct TasksArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: TasksCommand,
}

#[derive(Subcommand)]
pub(crate) enum TasksCommand {
    /// Tasks that wait or are being done, oldest first.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  windlass tasks list --state pending --type charge_card
  windlass tasks list --queue effects -o jsonl"
    )]
    List {
        /// Only tasks in this state. The pending ones are ready or scheduled.
        #[arg(
            long,
            value_name = "STATE",
            value_parser = ["pending", "claimed", "ready", "scheduled"]
        )]
        state: Option<String>,
        /// Only tasks of this activity type.
        #[arg(short = 't', long = "type", value_name = "TYPE")]
        activity_type: Option<String>,
        /// Only tasks of this queue.
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// How each activity type fares: what waits, and what was done in the last hour.
    Stats,
}

#[derive(Args)]
pub(crate) struct DlqArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: DlqCommand,
}

#[derive(Subcommand)]
pub(crate) enum DlqCommand {
    /// Tasks that were given up, oldest first. Those that were requeued stay until they are deleted.
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this activity type.
        #[arg(short = 't', long = "type", value_name = "TYPE")]
        activity_type: Option<String>,
        /// Only those of this queue.
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Try a dead letter again: an effect by itself, anything else by carrying its failed run on.
    #[command(after_help = "\
Examples:
  windlass dlq list --type charge_card
  windlass dlq requeue 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Requeue {
        /// The letter's id.
        id: String,
    },
    /// Delete a dead letter. Its run is left as it is.
    #[command(visible_alias = "rm")]
    Delete {
        /// The letter's id.
        id: String,
    },
    /// Delete the dead letters that were given up before a time, requeued or not.
    #[command(after_help = "\
Examples:
  windlass dlq purge --older-than '30 days'
  windlass dlq purge --older-than 2026-03-01T00:00:00Z --queue effects")]
    Purge {
        /// How long ago they were given up at least, or the time (RFC 3339) before which they were.
        #[arg(long, value_name = "DURATION|TIME")]
        older_than: String,
        /// Only those of this queue.
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
    },
}

#[derive(Args)]
pub(crate) struct BreakersArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: BreakersCommand,
}

#[derive(Subcommand)]
pub(crate) enum BreakersCommand {
    /// Circuit breakers and where they are.
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Close a circuit breaker.
    #[command(after_help = "\
Examples:
  windlass breakers list
  windlass breakers reset activity:charge_card")]
    Reset {
        /// The breaker's key.
        key: String,
    },
}

#[derive(Args)]
pub(crate) struct WebhooksArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: WebhooksCommand,
}

#[derive(Subcommand)]
pub(crate) enum WebhooksCommand {
    /// The endpoints that nothing is sent to, because they said that they are gone.
    #[command(visible_alias = "ls")]
    List,
    /// Send to an endpoint again.
    #[command(after_help = "\
Examples:
  windlass webhooks enable https://shop.example/hooks")]
    Enable {
        /// Its URL, as the list shows it.
        #[arg(value_name = "ENDPOINT")]
        endpoint: String,
    },
}

#[derive(Args)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// How much of a list.
#[derive(Args, Clone)]
pub(crate) struct PageArgs {
    /// At most so many rows.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,
    /// Go on where a list ended: the `cursor` that `-o json` printed.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}
