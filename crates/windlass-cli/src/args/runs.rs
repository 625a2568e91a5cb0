//! Arguments of `windlass runs`, and the ways to name a run on the command line.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::{duration, label, time};

#[derive(Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, newest first.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  windlass runs list
  windlass runs list --workflow order --status waiting
  windlass runs list --label customer=42 --limit 500 -o jsonl
  windlass runs list -o json --cursor \"$(jq -r .cursor page.json)\"      the next page"
    )]
    List(ListArgs),
    /// Show a run: its status, its current step, and what it waits for.
    #[command(after_help = "\
Examples:
  windlass runs get order/order-42
  windlass runs get order order-42 --full
  windlass runs get --workflow order --id order-42 -o json")]
    Get(GetArgs),
    /// Show the steps of a run and the events that it received.
    #[command(after_help = "\
Examples:
  windlass runs history order/order-42
  windlass runs history order/order-42 --run 0 --include-logs --log-level warn")]
    History(HistoryArgs),
    /// Show the durable log of a run.
    #[command(after_help = "\
Examples:
  windlass runs logs order/order-42 --follow
  windlass runs logs order/order-42 --log-level warn --log-category payments

With --follow, -o json prints one line per item, like jsonl. The command reconnects after a server
restart.")]
    Logs(LogsArgs),
    /// Show the ledger of a run: all events in order, with causes and hashes.
    #[command(after_help = "\
Examples:
  windlass runs events order/order-42
  windlass runs events order/order-42 --root   include its parents and children
  windlass runs events order/order-42 --full -o jsonl")]
    Events(EventsArgs),
    /// Start a run.
    #[command(after_help = "\
Examples:
  windlass runs create hello --params '\"world\"'
  windlass runs create order/order-42 --params @order.json --wait --timeout 5m
  cat order.json | windlass runs create order --id order-42 --params - --label customer=42
  windlass runs create report --delay '2 hours'")]
    Create(CreateArgs),
    /// Pause a run before its next turn. Its timers continue.
    #[command(after_help = "\
Examples:
  windlass runs pause order/order-42
  windlass runs pause order/order-42 --wait --timeout 1m
  windlass runs pause --all --workflow order --status active --dry-run")]
    Pause(PauseArgs),
    /// Resume a paused run.
    #[command(after_help = "\
Examples:
  windlass runs resume order/order-42 --wait
  windlass runs resume --all --workflow order")]
    Resume(ControlArgs),
    /// Restart a run from the beginning, as a new generation with the same input.
    #[command(after_help = "\
Examples:
  windlass runs restart order/order-42
  windlass runs restart order/order-42 --wait --timeout 5m")]
    Restart(RestartArgs),
    /// Terminate a run immediately.
    #[command(after_help = "\
Examples:
  windlass runs terminate order/order-42 --reason 'customer request'
  windlass runs terminate --all --label batch=7 --dry-run
  windlass runs terminate --all --label batch=7 --reason 'batch 7 was wrong'")]
    Terminate(TerminateArgs),
    /// Ask a run to stop: running steps finish or are abandoned first.
    #[command(after_help = "\
Examples:
  windlass runs cancel order/order-42 --reason 'customer request'")]
    Cancel(CancelArgs),
    /// Retry a failed run from the failed step, as a new generation.
    #[command(after_help = "\
Examples:
  windlass runs retry order/order-42 --wait
  windlass runs retry --all --workflow order --status errored --dry-run")]
    Retry(ControlArgs),
    /// Send an event to a run. The run keeps the event until it waits for it.
    #[command(after_help = "\
Examples:
  windlass runs send-event order/order-42 --type approval --payload '{\"approved\":true}'
  windlass runs send-event --workflow order --id order-42 --type approval --event-id once-1")]
    SendEvent(SendEventArgs),
    /// Watch a run until it ends: status, steps, logs and events.
    #[command(after_help = "\
Examples:
  windlass runs watch order/order-42
  windlass runs watch order/order-42 --timeout 10m -o jsonl

The exit code is 0 if the run completed and 4 otherwise. The command reconnects after a server restart.
-o json prints one line per item, like jsonl. Earlier items are printed first.")]
    Watch(WatchArgs),
}

/// Names a run: `WORKFLOW/ID`, `WORKFLOW ID`, a run key, or `--workflow` and `--id`.
#[derive(Args, Clone, Default)]
pub(crate) struct RunRef {
    /// The run: WORKFLOW/ID, WORKFLOW ID, or a run key.
    #[arg(value_name = "RUN", num_args = 0..=2)]
    pub(crate) names: Vec<String>,
    /// The workflow.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// The id of the run.
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
}

/// A parsed [`RunRef`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunTarget {
    Nothing,
    /// A workflow without a run id.
    Workflow(String),
    Run {
        workflow: String,
        id: String,
    },
    /// One word: a run key, or the name of a workflow.
    Word(String),
}

impl RunRef {
    /// Parses the arguments.
    pub(crate) fn target(&self) -> Result<RunTarget, String> {
        let both = "the run is given twice: as an argument and with --workflow or --id";
        match (self.names.as_slice(), &self.workflow, &self.id) {
            ([], None, None) => Ok(RunTarget::Nothing),
            ([], None, Some(_)) => Err("--id needs --workflow".to_owned()),
            ([], Some(workflow), None) => Ok(RunTarget::Workflow(workflow.clone())),
            ([], Some(workflow), Some(id)) => Ok(run(workflow, id)),
            ([word], Some(workflow), None) => Ok(run(workflow, word)),
            ([word], None, Some(id)) => Ok(run(word, id)),
            ([word], None, None) => Ok(match word.rsplit_once('/') {
                // The name of a workflow may contain a slash; an id cannot.
                Some((workflow, id)) if !workflow.is_empty() && !id.is_empty() => run(workflow, id),
                _ => RunTarget::Word(word.clone()),
            }),
            ([workflow, id], None, None) => Ok(run(workflow, id)),
            _ => Err(both.to_owned()),
        }
    }
}

fn run(workflow: &str, id: &str) -> RunTarget {
    RunTarget::Run { workflow: workflow.to_owned(), id: id.to_owned() }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Status {
    Active,
    Waiting,
    Paused,
    Complete,
    Errored,
    Terminated,
}

impl Status {
    /// The name in the HTTP API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Complete => "complete",
            Self::Errored => "errored",
            Self::Terminated => "terminated",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

impl LogLevel {
    /// The name in the HTTP API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Filters for runs.
#[derive(Args, Clone, Default)]
pub(crate) struct FilterArgs {
    /// Only runs with this status.
    #[arg(long, value_enum)]
    pub(crate) status: Option<Status>,
    /// Only runs with this label. Can be repeated.
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Only runs created at this time (RFC 3339) or later.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) created_from: Option<String>,
    /// Only runs created before this time (RFC 3339).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) created_before: Option<String>,
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only runs of this workflow.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// The maximum number of runs.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,
    /// List the oldest runs first.
    #[arg(long)]
    pub(crate) oldest: bool,
    /// Continue a previous listing: the `cursor` printed by `-o json`.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}

#[derive(Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The generation of the run, by number. [default: the newest]
    #[arg(long = "run", value_name = "N")]
    pub(crate) run_number: Option<u32>,
    /// Also show input, output and all metadata.
    #[arg(long)]
    pub(crate) full: bool,
}

/// The generation, and filters for log lines.
#[derive(Args)]
pub(crate) struct LogFilter {
    /// The generation of the run, by number. [default: the newest]
    #[arg(long = "run", value_name = "N")]
    pub(crate) run_number: Option<u32>,
    /// Only lines of this level or higher.
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// Only lines of this category.
    #[arg(long, value_name = "NAME")]
    pub(crate) log_category: Option<String>,
}

#[derive(Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    #[command(flatten)]
    pub(crate) filter: LogFilter,
    /// Also show log lines.
    #[arg(long)]
    pub(crate) include_logs: bool,
    /// Show results and payloads in full.
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    #[command(flatten)]
    pub(crate) filter: LogFilter,
    /// Print new lines until the run ends. The exit code does not depend on the result of the run.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Also show the data of each line.
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The generation of the run, by number. [default: the newest]
    #[arg(long = "run", value_name = "N")]
    pub(crate) run_number: Option<u32>,
    /// Show the ledgers of the whole tree: the run, its parents and its children.
    #[arg(long)]
    pub(crate) root: bool,
    /// Also show causes and hashes.
    #[arg(long)]
    pub(crate) full: bool,
    /// Continue a previous listing: the `cursor` printed by `-o json`.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}

/// Options that wait for a run to end.
#[derive(Args, Clone, Default)]
pub(crate) struct WaitArgs {
    /// Wait until the run ends. The exit code is 0 if it completed and 4 otherwise.
    #[arg(long)]
    pub(crate) wait: bool,
    /// The maximum time to wait; the exit code is then 5. [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The input of the run: JSON, `@FILE`, or `-` for standard input.
    #[arg(short, long, value_name = "JSON")]
    pub(crate) params: Option<String>,
    /// A label of the run. Can be repeated.
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// The priority; higher runs first.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i16>,
    /// Start after this delay.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Start at this time (RFC 3339).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at: Option<String>,
    /// A header that all steps and the terminal hook of a relay receive. Can be repeated.
    #[arg(long = "run-header", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) headers: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// Options that select many runs.
#[derive(Args, Clone, Default)]
pub(crate) struct BulkArgs {
    /// Apply to all runs that match the filter. Without a filter, asks for confirmation or needs
    /// --yes.
    #[arg(long, help_heading = "Many runs")]
    pub(crate) all: bool,
    /// Do not ask for confirmation when there is no filter.
    #[arg(short = 'y', long, requires = "all", help_heading = "Many runs")]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only count the matching runs.
    #[arg(long, requires = "all", help_heading = "Many runs")]
    pub(crate) dry_run: bool,
    /// The maximum number of runs in one call, 1 to 1000. [default: 1000]
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        requires = "all",
        value_parser = clap::value_parser!(u32).range(1..=1_000),
        help_heading = "Many runs"
    )]
    pub(crate) limit: Option<u32>,
}

#[derive(Args)]
pub(crate) struct ControlArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    #[command(flatten)]
    pub(crate) bulk: BulkArgs,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Args)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    #[command(flatten)]
    pub(crate) bulk: BulkArgs,
    #[command(flatten)]
    pub(crate) wait: PauseWaitArgs,
}

/// Options that wait for a run to pause.
#[derive(Args)]
pub(crate) struct PauseWaitArgs {
    /// Wait until the run is paused. A running step finishes first.
    #[arg(long)]
    pub(crate) wait: bool,
    /// The maximum time to wait; the exit code is then 5. [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Args)]
pub(crate) struct TerminateArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    #[command(flatten)]
    pub(crate) bulk: BulkArgs,
    /// The reason, which is recorded in the ledger.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The reason, which is recorded in the ledger.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Args)]
pub(crate) struct SendEventArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The type of the event.
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    pub(crate) event_type: String,
    /// The payload of the event: JSON, `@FILE`, or `-` for standard input.
    #[arg(short, long, value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// An id for deduplication: the server ignores a second event with the same id.
    #[arg(long, value_name = "ID")]
    pub(crate) event_id: Option<String>,
}

#[derive(Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The maximum time to watch; the exit code is then 5. [default: until the run ends]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ref_accepts_all_forms() {
        let of = |names: &[&str], workflow: Option<&str>, id: Option<&str>| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            RunRef { names, workflow: workflow.map(Into::into), id: id.map(Into::into) }.target()
        };
        let run = Ok(run("order", "a-1"));
        assert_eq!(of(&["order/a-1"], None, None), run);
        assert_eq!(of(&["order", "a-1"], None, None), run);
        assert_eq!(of(&[], Some("order"), Some("a-1")), run);
        assert_eq!(of(&["a-1"], Some("order"), None), run);
        assert_eq!(of(&["order"], None, Some("a-1")), run);
        assert_eq!(of(&["a/b/c"], None, None), Ok(super::run("a/b", "c")));
        assert_eq!(of(&["order"], None, None), Ok(RunTarget::Word("order".into())));
        assert_eq!(of(&[], Some("order"), None), Ok(RunTarget::Workflow("order".into())));
        assert_eq!(of(&[], None, None), Ok(RunTarget::Nothing));
        assert!(of(&["order", "a-1"], Some("order"), None).is_err());
        assert!(of(&[], None, Some("a-1")).is_err());
    }
}
