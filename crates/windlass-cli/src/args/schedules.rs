//! The arguments of `windlass schedules`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{duration, label};

#[derive(Subcommand)]
pub(crate) enum SchedulesCommand {
    /// All schedules.
    #[command(visible_alias = "ls")]
    List,
    /// One schedule: when it was last due, and when it is next.
    Get {
        /// The schedule.
        name: String,
    },
    /// Make a schedule, or change one.
    #[command(after_help = "\
Examples:
  windlass schedules put nightly --workflow report --cron '0 3 * * *' --timezone Europe/Berlin
  windlass schedules put poll --workflow sync --every '5 minutes' --overlap skip")]
    Put(Box<PutArgs>),
    /// What others call it; only to say what it is called here.
    #[command(hide = true, disable_help_flag = true)]
    Create {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Remove a schedule. Runs that it started go on.
    #[command(visible_alias = "rm")]
    Delete {
        /// The schedule.
        name: String,
    },
    /// Start nothing until it is resumed.
    Pause {
        /// The schedule.
        name: String,
    },
    /// Go on after a pause.
    Resume {
        /// The schedule.
        name: String,
    },
}

#[derive(Args)]
pub(crate) struct PutArgs {
    /// The schedule.
    pub(crate) name: String,
    /// The workflow whose runs it starts.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: String,
    /// When: five cron fields, or six with seconds first.
    #[arg(long, value_name = "EXPRESSION", required_unless_present = "every")]
    pub(crate) cron: Option<String>,
    /// When: every so often.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "cron")]
    pub(crate) every: Option<Duration>,
    /// The time zone of the cron expression. [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) timezone: Option<String>,
    /// What runs are started with: JSON, `@FILE`, or `-` for standard input.
    #[arg(short, long, value_name = "JSON")]
    pub(crate) params: Option<String>,
    /// A label of the runs. Can be given more than once.
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// What to do when the run before has not ended: start beside it, or leave it out.
    /// [default: allow]
    #[arg(long, value_name = "WORD", value_parser = ["allow", "skip"])]
    pub(crate) overlap: Option<String>,
    /// Which of the times that were missed are made up for. [default: last]
    #[arg(long, value_name = "WORD", value_parser = ["last", "all", "skip"])]
    pub(crate) missed: Option<String>,
}
