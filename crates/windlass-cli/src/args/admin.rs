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
    /// List workers, with their load and their task counts.
    #[command(visible_alias = "ls")]
    List {
        /// Only workers with this status.
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
    /// Show one worker.
    Get {
        /// The id of the worker.
        id: String,
    },
    /// Drain a worker: it accepts no new work, finishes its current work, and stops.
    #[command(after_help = "\
Examples:
  windlass workers list --status active
  windlass workers drain 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Drain {
        /// The id of the worker.
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
    /// List queued and running tasks, oldest first.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  windlass tasks list --state pending --type charge_card
  windlass tasks list --queue effects -o jsonl"
    )]
    List {
        /// Only tasks in this state. `pending` includes `ready` and `scheduled`.
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
    /// Show statistics for each activity type: pending tasks, and results of the last hour.
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
    /// List dead letters, oldest first. A requeued entry stays in the list until it is deleted.
    #[command(visible_alias = "ls")]
    List {
        /// Only entries of this activity type.
        #[arg(short = 't', long = "type", value_name = "TYPE")]
        activity_type: Option<String>,
        /// Only entries of this queue.
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Retry a dead letter: an effect is queued again, any other task retries its failed run.
    #[command(after_help = "\
Examples:
  windlass dlq list --type charge_card
  windlass dlq requeue 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Requeue {
        /// The id of the dead letter.
        id: String,
    },
    /// Delete a dead letter. Its run does not change.
    #[command(visible_alias = "rm")]
    Delete {
        /// The id of the dead letter.
        id: String,
    },
    /// Delete all dead letters that are older than a given time, requeued or not.
    #[command(after_help = "\
Examples:
  windlass dlq purge --older-than '30 days'
  windlass dlq purge --older-than 2026-03-01T00:00:00Z --queue effects")]
    Purge {
        /// The minimum age (duration), or the time (RFC 3339) before which the task failed.
        #[arg(long, value_name = "DURATION|TIME")]
        older_than: String,
        /// Only entries of this queue.
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
    /// List circuit breakers and their states.
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
        /// The key of the breaker.
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
    /// List disabled endpoints: those that answered 410 Gone and receive no more webhooks.
    #[command(visible_alias = "ls")]
    List,
    /// Enable an endpoint again.
    #[command(after_help = "\
Examples:
  windlass webhooks enable https://shop.example/hooks")]
    Enable {
        /// The URL of the endpoint, as shown by `webhooks list`.
        #[arg(value_name = "ENDPOINT")]
        endpoint: String,
    },
}

#[derive(Args)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
}

#[derive(Args)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// The page of a listing.
#[derive(Args, Clone)]
pub(crate) struct PageArgs {
    /// The maximum number of rows.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,
    /// Continue a previous listing: the `cursor` printed by `-o json`.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}
