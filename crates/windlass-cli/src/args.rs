//! The command line: every command, option and example, as clap reads and documents it.

mod admin;
mod http;
mod runs;
mod schedules;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use admin::{
    BreakersArgs, BreakersCommand, DlqArgs, DlqCommand, HealthArgs, PageArgs, TasksArgs,
    TasksCommand, WebhooksArgs, WebhooksCommand, WorkersArgs, WorkersCommand,
};
pub(crate) use http::HttpArgs;
pub(crate) use runs::{
    BulkArgs, CancelArgs, ControlArgs, CreateArgs, EventsArgs, FilterArgs, GetArgs, HistoryArgs,
    ListArgs, LogFilter, LogsArgs, Named, PauseArgs, PauseWaitArgs, RestartArgs, RunRef,
    RunsCommand, SendEventArgs, TerminateArgs, WaitArgs, WatchArgs,
};
pub(crate) use schedules::{PutArgs, SchedulesCommand};
pub(crate) use store::{ExportArgs, ImportArgs, InspectArgs, OutputArg, StoreArg, VerifyArgs};

const EXAMPLES: &str = "\
Examples:
  windlass                                     start a development server in this folder
  windlass runs create hello --params '\"world\"' --wait
                                               start a run and wait for its result
  windlass runs list --status errored          which runs failed
  windlass why order/order-42                  why is this run not moving
  windlass server --store postgres://db/app --bind 0.0.0.0:7878
                                               serve a store to others
  windlass verify --store sqlite:app.db        recompute every hash of a store

Exit codes:
  0 done   1 something failed   2 wrong usage   3 not found
  4 the run that was waited for failed   5 timeout   6 not allowed

Commands that manage runs speak HTTP with the server at --url (WINDLASS_URL, by default
http://127.0.0.1:7878/api). Commands with --store open a store themselves.";

/// Durable workflows: one SQLite file, or PostgreSQL for many machines.
#[derive(Parser)]
#[command(
    name = "windlass",
    version,
    args_conflicts_with_subcommands = true,
    after_help = EXAMPLES,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// What `windlass` without a command does.
    #[command(flatten)]
    pub(crate) dev: DevArgs,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a development server with sample workflows. The default command.
    #[command(after_help = DEV_EXAMPLES)]
    Dev(DevArgs),
    /// Serve a store over HTTP, for production.
    #[command(after_help = SERVER_EXAMPLES)]
    Server(Box<ServerArgs>),
    /// Which workflows there are.
    Workflows(WorkflowsArgs),
    /// List, inspect and operate runs.
    #[command(visible_alias = "instances")]
    Runs(RunsArgs),
    /// Why a run is not moving: the chain of what it waits for, in plain words.
    #[command(after_help = "\
Examples:
  windlass why order/order-42
  windlass why order order-42
  windlass why 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Why(WhyArgs),
    /// Start runs at times that repeat.
    Schedules(SchedulesArgs),
    /// API keys of a server.
    Keys(KeysArgs),
    /// The processes that do the work: list, look at one, drain one.
    Workers(WorkersArgs),
    /// Activities and effects that wait or are being done.
    Tasks(TasksArgs),
    /// Dead letters: tasks that were given up.
    Dlq(DlqArgs),
    /// Circuit breakers.
    Breakers(BreakersArgs),
    /// Endpoints of webhooks that are disabled.
    Webhooks(WebhooksArgs),
    /// How the system is. Ends with 1 if it is unhealthy.
    Health(HealthArgs),
    /// Say what a store is and what is in it.
    #[command(after_help = "\
Examples:
  windlass info
  windlass info --store postgres://db/app -o json")]
    Info(InspectArgs),
    /// Check a store and the machine under it: schema, clock, disk, fsync, old transactions.
    ///
    /// Ends with 1 if something should be done. Nothing in the store is changed. A SQLite store belongs
    /// to one process at a time: stop the server first.
    #[command(after_help = "\
Examples:
  windlass doctor
  windlass doctor --store postgres://db/app -o json")]
    Doctor(InspectArgs),
    /// Recompute the hash chains of a store, and what events say of their rows.
    ///
    /// Nothing in the store is changed. A SQLite store belongs to one process at a time: stop the server
    /// first.
    Verify(VerifyArgs),
    /// Bring the schema of a store up to what this build needs.
    #[command(after_help = "\
Examples:
  windlass migrate --store sqlite:app.db
  windlass migrate --store postgres://db/app")]
    Migrate(InspectArgs),
    /// Write runs as JSON Lines, to be imported into another store.
    Export(ExportArgs),
    /// Read runs that were exported. Runs that are there already are skipped.
    Import(ImportArgs),
    /// The settings of `windlass server`.
    Config(ConfigArgs),
    /// Print the completion script of a shell.
    #[command(after_help = "\
Examples:
  windlass completions bash > /etc/bash_completion.d/windlass
  windlass completions zsh > ~/.zfunc/_windlass
  windlass completions fish > ~/.config/fish/completions/windlass.fish")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write man pages, one for each command.
    #[command(after_help = "\
Examples:
  windlass man --out /usr/local/share/man/man1")]
    Man {
        /// The folder they are written to. It is made if it is missing.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Print the reference of the command line as Markdown.
    #[command(hide = true)]
    Docs,
}

const DEV_EXAMPLES: &str = "\
Examples:
  windlass dev                                 state in ./.windlass, port 7878 or the next free one
  windlass dev --ephemeral                     keep nothing
  windlass dev --port 9000 --store sqlite:/tmp/try.db
  windlass dev --relay greet=http://127.0.0.1:9000/";

#[derive(Args, Clone, Default)]
pub(crate) struct DevArgs {
    /// The port to listen on. [default: 7878 or the next free one]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Keep everything in memory, and forget it at the end.
    #[arg(long, conflicts_with = "store")]
    pub(crate) ephemeral: bool,
    /// Where the state is kept. [default: sqlite:.windlass/windlass.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Serve a relay whose steps are run by a URL on this machine, signed with the secret in
    /// WINDLASS_RELAY_SECRET. Can be given more than once.
    #[arg(long = "relay", value_name = "NAME=URL")]
    pub(crate) relays: Vec<String>,
    /// A config file with the tables `[[relays]]` and `[webhooks]`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

const SERVER_EXAMPLES: &str = "\
Examples:
  windlass server --store sqlite:/var/lib/windlass/app.db
  windlass server --store postgres://app@db/app --bind 0.0.0.0:7878
  WINDLASS_STORE=postgres://app@db/app windlass server --config /etc/windlass.toml
  windlass config show                         what would be used, and where it comes from

Every setting can be a flag, an environment variable WINDLASS_<NAME> or a line of the config file
(TOML, windlass.toml in the current folder or --config). A flag wins over the environment, the
environment over the file. Without a credential a server listens on loopback only.";

#[derive(Args, Clone, Default)]
pub(crate) struct ServerArgs {
    /// The config file. [default: windlass.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where the state is kept: `sqlite:PATH`, `postgres://…` or `memory:`.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The address to listen on. [default: 127.0.0.1:7878]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) bind: Option<String>,
    /// Who may call: `off` (on loopback only), `keys` or `jwt`. [default: off on loopback, else keys]
    #[arg(long, value_name = "MODE")]
    pub(crate) auth: Option<String>,
    /// A key of all scopes that is accepted beside those in the store, for the first start. Better
    /// given by the environment (WINDLASS_ADMIN_KEY) than on a command line.
    #[arg(long, value_name = "KEY")]
    pub(crate) admin_key: Option<String>,
    /// JWT: the issuer that tokens must name.
    #[arg(long, value_name = "TEXT")]
    pub(crate) jwt_issuer: Option<String>,
    /// JWT: the audience that tokens must name.
    #[arg(long, value_name = "TEXT")]
    pub(crate) jwt_audience: Option<String>,
    /// JWT: the file with the public key (PEM), or with the secret of HS256.
    #[arg(long, value_name = "FILE")]
    pub(crate) jwt_key: Option<String>,
    /// JWT: the algorithm that tokens must use. [default: RS256]
    #[arg(long, value_name = "NAME")]
    pub(crate) jwt_algorithm: Option<String>,
    /// JWT: the claim that says which namespace a token speaks for. [default: namespace]
    #[arg(long, value_name = "NAME")]
    pub(crate) jwt_namespace_claim: Option<String>,
    /// Serve the sample workflows too.
    #[arg(long)]
    pub(crate) samples: bool,
    /// How long requests and steps may take to finish when the server is stopped. [default: 30 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) drain: Option<String>,
    /// What is logged to standard error, as a `tracing` filter. [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How log lines look: `text` or `json`. [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// How to reach a server, and how to print what it says.
#[derive(Args, Clone)]
pub(crate) struct Remote {
    /// The base URL of the server's API.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "WINDLASS_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7878/api",
        help_heading = "Server"
    )]
    pub(crate) url: String,
    /// A header to send along. Can be given more than once.
    #[arg(short = 'H', long, global = true, value_name = "NAME: VALUE", help_heading = "Server")]
    pub(crate) header: Vec<String>,
    /// An API key or a token, sent as `Authorization: Bearer`.
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "WINDLASS_KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub(crate) key: Option<String>,
    /// How to print: text for people, json as one document, jsonl as one line an item.
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t = Format::Text,
        help_heading = "Server"
    )]
    pub(crate) output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
    Jsonl,
}

#[derive(Args)]
pub(crate) struct WorkflowsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: WorkflowsCommand,
}

#[derive(Subcommand)]
pub(crate) enum WorkflowsCommand {
    /// The workflows that the server knows, and how many runs of each are where.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  windlass workflows list
  windlass workflows list --url https://ops.example/api -H 'X-Team: billing' -o json"
    )]
    List,
}

#[derive(Args)]
pub(crate) struct RunsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: RunsCommand,
}

#[derive(Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(flatten)]
    pub(crate) run: RunRef,
}

#[derive(Args)]
pub(crate) struct SchedulesArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: SchedulesCommand,
}

#[derive(Args)]
pub(crate) struct KeysArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// The keys, without their secrets.
    #[command(visible_alias = "ls")]
    List,
    /// Make a key. It is shown once.
    #[command(after_help = "\
Examples:
  windlass keys create ci --scope create --scope read --expires '90 days'
  windlass keys create ops --scope admin")]
    Create {
        /// What the key is for.
        name: String,
        /// What it may do. Can be given more than once.
        #[arg(
            long = "scope",
            value_name = "SCOPE",
            required = true,
            value_parser = ["read", "create", "manage", "send-event", "tick", "admin"]
        )]
        scopes: Vec<String>,
        /// The namespace that it speaks for.
        #[arg(long)]
        namespace: Option<String>,
        /// After how long it is refused.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<Duration>,
    },
    /// Refuse a key from now on.
    #[command(after_help = "\
Examples:
  windlass keys list
  windlass keys revoke 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Revoke {
        /// The key's id, as `keys list` shows it.
        id: String,
    },
}

#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// What `windlass server` would use, and where each setting comes from.
    #[command(after_help = "\
Examples:
  windlass config show
  windlass config show --config /etc/windlass.toml -o json")]
    Show(Box<ShowArgs>),
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}

/// A duration as people write it: `90s`, `10 minutes`, `1h`. To the library a bare number is
/// milliseconds; here it could as well be meant as seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if number != 0.0 => {
            Err(format!("{text:?} has no unit; write {0}s or {0}ms", text.trim()))
        }
        _ => windlass::kernel::parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// A time as RFC 3339 has it; the server reads it.
pub(crate) fn time(text: &str) -> Result<String, String> {
    match text.parse::<jiff::Timestamp>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("write a time such as 2026-03-01T12:00:00Z".to_owned()),
    }
}

/// A label as `key=value`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let split = text.split_once('=').or_else(|| text.split_once(':'));
    let (key, value) = split.ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    if key.is_empty() {
        return Err("a label's key is empty; write KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}
