//! The arguments of `windlass runs`, and how a run is named on the command line.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::{duration, label, time};

#[derive(Subcommand)]
pub(crate) enum RunsCommand {
    /// Runs, newest first.
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
    /// Where a run is: status, current step or what it waits for.
    #[command(after_help = "\
Examples:
  windlass runs get order/order-42
  windlass runs get order order-42 --full
  windlass runs get --workflow order --id order-42 -o json")]
    Get(GetArgs),
    /// The steps of a run and the events that were sent to it.
    #[command(after_help = "\
Examples:
  windlass runs history order/order-42
  windlass runs history order/order-42 --run 0 --include-logs --log-level warn")]
    History(HistoryArgs),
    /// The durable log lines of a run.
    #[command(after_help = "\
Examples:
  windlass runs logs order/order-42 --follow
  windlass runs logs order/order-42 --log-level warn --log-category payments

With --follow, -o json prints one line an item, as jsonl does. A server that is restarted is waited for.")]
    Logs(LogsArgs),
    /// The ledger of a run: what happened, in order, with causes and hashes.
    #[command(after_help = "\
Examples:
  windlass runs events order/order-42
  windlass runs events order/order-42 --root   with its parents and children
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
    /// Stop a run before its next piece of code. Its timers go on.
    #[command(after_help = "\
Examples:
  windlass runs pause order/order-42
  windlass runs pause order/order-42 --wait --timeout 1m
  windlass runs pause --all --workflow order --status active --dry-run")]
    Pause(PauseArgs),
    /// Let a paused run go on.
    #[command(after_help = "\
Examples:
  windlass runs resume order/order-42 --wait
  windlass runs resume --all --workflow order")]
    Resume(ControlArgs),
    /// Begin a run again from the start, as a new generation with the same input.
    #[command(after_help = "\
Examples:
  windlass runs restart order/order-42
  windlass runs restart order/order-42 --wait --timeout 5m")]
    Restart(RestartArgs),
    /// End a run for good.
    #[command(after_help = "\
Examples:
  windlass runs terminate order/order-42 --reason 'customer called'
  windlass runs terminate --all --label batch=7 --dry-run
  windlass runs terminate --all --label batch=7 --reason 'batch 7 was wrong'")]
    Terminate(TerminateArgs),
    /// Ask a run to end: what it is doing is finished or given up first.
    #[command(after_help = "\
Examples:
  windlass runs cancel order/order-42 --reason 'customer called'")]
    Cancel(CancelArgs),
    /// Carry a failed run on at the step that failed, as a new generation.
    #[command(after_help = "\
Examples:
  windlass runs retry order/order-42 --wait
  windlass runs retry --all --workflow order --status errored --dry-run")]
    Retry(ControlArgs),
    /// Send an event to a run; it is kept until the run waits for it.
    #[command(after_help = "\
Examples:
  windlass runs send-event order/order-42 --type approval --payload '{\"approved\":true}'
  windlass runs send-event --workflow order --id order-42 --type approval --event-id once-1")]
    SendEvent(SendEventArgs),
    /// Follow a run live until it ends: status, steps, logs and events.
    #[command(after_help = "\
Examples:
  windlass runs watch order/order-42
  windlass runs watch order/order-42 --timeout 10m -o jsonl

The exit code is 0 if the run completed and 4 if it did not. A server that is restarted is waited for.
-o json prints one line an item, as jsonl does. The lines of what was before come first.")]
    Watch(WatchArgs),
}

/// A run: `WORKFLOW/ID`, `WORKFLOW ID`, a run key, or `--workflow` and `--id`.
#[derive(Args, Clone, Default)]
pub(crate) struct RunRef {
    /// The run: WORKFLOW/ID, or WORKFLOW ID, or its run key.
    #[arg(value_name = "RUN", num_args = 0..=2)]
    pub(crate) names: Vec<String>,
    /// The workflow.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// The run's id.
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
}

/// A run as the command line names it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Nothing was named.
    Nothing,
    /// A workflow and no run.
    Workflow(String),
    /// A run.
    Run { workflow: String, id: String },
    /// One word: a run key, or a workflow where one is expected.
    Word(String),
}

impl RunRef {
    /// Reads what was written, in all the ways it can be.
    pub(crate) fn named(&self) -> Result<Named, String> {
        let both = "the run is named twice: by words and by --workflow or --id";
        match (self.names.as_slice(), &self.workflow, &self.id) {
            ([], None, None) => Ok(Named::Nothing),
            ([], None, Some(_)) => Err("--id needs --workflow".to_owned()),
            ([], Some(workflow), None) => Ok(Named::Workflow(workflow.clone())),
            ([], Some(workflow), Some(id)) => Ok(run(workflow, id)),
            ([word], Some(workflow), None) => Ok(run(workflow, word)),
            ([word], None, Some(id)) => Ok(run(word, id)),
            ([word], None, None) => Ok(match word.rsplit_once('/') {
                // A workflow's name may have a slash; an id has none.
                Some((workflow, id)) if !workflow.is_empty() && !id.is_empty() => run(workflow, id),
                _ => Named::Word(word.clone()),
            }),
            ([workflow, id], None, None) => Ok(run(workflow, id)),
            _ => Err(both.to_owned()),
        }
    }
}

fn run(workflow: &str, id: &str) -> Named {
    Named::Run { workflow: workflow.to_owned(), id: id.to_owned() }
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
    /// The word on the wire.
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
    /// The word on the wire.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Which runs.
#[derive(Args, Clone, Default)]
pub(crate) struct FilterArgs {
    /// Only runs of this status.
    #[arg(long, value_enum)]
    pub(crate) status: Option<Status>,
    /// Only runs with this label. Can be given more than once.
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
    /// How many runs at most.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,
    /// Oldest first.
    #[arg(long)]
    pub(crate) oldest: bool,
    /// Go on where a list ended: the `cursor` that `-o json` printed.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}

#[derive(Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// With input, output and everything else the server knows.
    #[arg(long)]
    pub(crate) full: bool,
}

/// Which generation and which log lines.
#[derive(Args)]
pub(crate) struct LogFilter {
    /// Which generation of the run, by its number. [default: the newest]
    #[arg(long = "run", value_name = "N")]
    pub(crate) run_number: Option<u32>,
    /// Only lines of this level or above.
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
    /// With the log lines.
    #[arg(long)]
    pub(crate) include_logs: bool,
    /// With results and payloads.
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    #[command(flatten)]
    pub(crate) filter: LogFilter,
    /// Go on printing until the run ends; the exit code does not tell how.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// With the data beside each line.
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Which generation of the run, by its number. [default: the newest]
    #[arg(long = "run", value_name = "N")]
    pub(crate) run_number: Option<u32>,
    /// The ledgers of the whole tree: the run, its parents and its children.
    #[arg(long)]
    pub(crate) root: bool,
    /// With causes and hashes.
    #[arg(long)]
    pub(crate) full: bool,
    /// Go on where a list ended: the `cursor` that `-o json` printed.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}

/// Waiting for a run's end.
#[derive(Args, Clone, Default)]
pub(crate) struct WaitArgs {
    /// Wait until the run ends; the exit code is 0 if it completed and 4 if it did not.
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait; then the exit code is 5. [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// What the run is started with: JSON, `@FILE`, or `-` for standard input.
    #[arg(short, long, value_name = "JSON")]
    pub(crate) params: Option<String>,
    /// A label to find it by. Can be given more than once.
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Higher goes first.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i16>,
    /// Begin after this time.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Begin at this time (RFC 3339).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at: Option<String>,
    /// A text that every step and the terminal hook of a relay see. Can be given more than once.
    #[arg(long = "run-header", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) headers: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// Many runs at once.
#[derive(Args, Clone, Default)]
pub(crate) struct BulkArgs {
    /// All runs that the filter takes, not one. Without a filter it asks first, or wants --yes.
    #[arg(long, help_heading = "Many runs")]
    pub(crate) all: bool,
    /// Do it to every run there is without asking, if there is no filter.
    #[arg(short = 'y', long, requires = "all", help_heading = "Many runs")]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only count what would be done.
    #[arg(long, requires = "all", help_heading = "Many runs")]
    pub(crate) dry_run: bool,
    /// At most so many in one call, 1 to 1000. [default: 1000]
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

/// Waiting until a run is paused.
#[derive(Args)]
pub(crate) struct PauseWaitArgs {
    /// Wait until the run is paused: a step that is being done is finished first.
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait; then the exit code is 5. [default: for ever]
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
    /// Why, for the record.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Why, for the record.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Args)]
pub(crate) struct SendEventArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// The type that the run waits for.
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    pub(crate) event_type: String,
    /// What the event carries: JSON, `@FILE`, or `-` for standard input.
    #[arg(short, long, value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// An id: a second event with the same one is the same event.
    #[arg(long, value_name = "ID")]
    pub(crate) event_id: Option<String>,
}

#[derive(Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// How long to watch; then the exit code is 5. [default: until the run ends]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_in_many_ways() {
        let of = |names: &[&str], workflow: Option<&str>, id: Option<&str>| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            RunRef { names, workflow: workflow.map(Into::into), id: id.map(Into::into) }.named()
        };
        let run = Ok(run("order", "a-1"));
        assert_eq!(of(&["order/a-1"], None, None), run);
        assert_eq!(of(&["order", "a-1"], None, None), run);
        assert_eq!(of(&[], Some("order"), Some("a-1")), run);
        assert_eq!(of(&["a-1"], Some("order"), None), run);
        assert_eq!(of(&["order"], None, Some("a-1")), run);
        assert_eq!(of(&["a/b/c"], None, None), Ok(super::run("a/b", "c")));
        assert_eq!(of(&["order"], None, None), Ok(Named::Word("order".into())));
        assert_eq!(of(&[], Some("order"), None), Ok(Named::Workflow("order".into())));
        assert_eq!(of(&[], None, None), Ok(Named::Nothing));
        assert!(of(&["order", "a-1"], Some("order"), None).is_err());
        assert!(of(&[], None, Some("a-1")).is_err());
    }
}
