//! Arguments of `windlass schedules`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{duration, label};

#[derive(Subcommand)]
pub(crate) enum SchedulesCommand {
    /// List all schedules.
    #[command(visible_alias = "ls")]
    List,
    /// Show a schedule, with its last and next firing.
    Get {
        /// The name of the schedule.
        name: String,
    },
    /// Create or update a schedule.
    #[command(after_help = "\
Examples:
  windlass schedules put nightly --workflow report --cron '0 3 * * *' --timezone Europe/Berlin
  windlass schedules put poll --workflow sync --every '5 minutes' --overlap skip")]
    Put(Box<PutArgs>),
    /// Hidden: prints a hint to use `put`.
    #[command(hide = true, disable_help_flag = true)]
    Create {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Delete a schedule. Runs that it started continue.
    #[command(visible_alias = "rm")]
    Delete {
        /// The name of the schedule.
        name: String,
    },
    /// Pause a schedule: it starts no runs until it is resumed.
    Pause {
        /// The name of the schedule.
        name: String,
    },
    /// Resume a paused schedule.
    Resume {
        /// The name of the schedule.
        name: String,
    },
}

#[derive(Args)]
pub(crate) struct PutArgs {
    /// The name of the schedule.
    pub(crate) name: String,
    /// The workflow to run.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: String,
    /// A cron expression with five fields, or six with seconds first.
    #[arg(long, value_name = "EXPRESSION", required_unless_present = "every")]
    pub(crate) cron: Option<String>,
    /// A fixed interval, instead of a cron expression.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "cron")]
    pub(crate) every: Option<Duration>,
    /// The time zone of the cron expression. [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) timezone: Option<String>,
    /// The input of the runs: JSON, `@FILE`, or `-` for standard input.
    #[arg(short, long, value_name = "JSON")]
    pub(crate) params: Option<String>,
    /// A label of the runs. Can be repeated.
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Whether to start a run while the previous one has not ended: `allow` starts it, `skip` omits
    /// it. [default: allow]
    #[arg(long, value_name = "WORD", value_parser = ["allow", "skip"])]
    pub(crate) overlap: Option<String>,
    /// Which missed firings to start late: the `last` one, `all`, or none (`skip`). [default: last]
    #[arg(long, value_name = "WORD", value_parser = ["last", "all", "skip"])]
    pub(crate) missed: Option<String>,
}
