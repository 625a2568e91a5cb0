//! The clap definition of the command line: commands, options, help and examples.

mod admin;
mod agents;
mod contracts;
mod documents;
mod engine;
mod events;
mod http;
mod inbox;
mod llm;
mod receipts;
mod records;
mod runs;
mod schedules;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use admin::{
    BreakersArgs, BreakersCommand, DlqArgs, DlqCommand, HealthArgs, McpArgs, PageArgs, TasksArgs,
    TasksCommand, WebhooksArgs, WebhooksCommand, WorkersArgs, WorkersCommand,
};
pub(crate) use agents::{AgentsArgs, AgentsCommand, LedgerArgs, TranscriptArgs};
pub(crate) use contracts::{
    ContractsArgs, ContractsCommand, FilesArgs, OnlineCommand, SchemaKind, SettingsArgs, TypeArgs,
};
pub(crate) use documents::{
    AfterArgs, ApprovalsArgs, ApprovalsCommand, DocumentRef, DocumentsArgs, DocumentsCommand,
    VerdictArgs,
};
pub(crate) use engine::EngineArgs;
pub(crate) use events::{EventsCommand, KeyEventsArgs, SendByKeyArgs};
pub(crate) use http::HttpArgs;
pub(crate) use inbox::{InboxArgs, InboxCommand};
pub(crate) use llm::LlmCommand;
pub(crate) use receipts::{ReceiptsArgs, ReceiptsCommand};
pub(crate) use records::{PutRecordArgs, RecordsArgs, RecordsCommand, StateArgs};
pub(crate) use runs::{
    BulkArgs, CancelArgs, ControlArgs, CreateArgs, EventsArgs, FilterArgs, GetArgs, HistoryArgs,
    ListArgs, LogFilter, LogsArgs, PauseArgs, PauseWaitArgs, RestartArgs, RunRef, RunTarget,
    RunsCommand, SendEventArgs, TerminateArgs, WaitArgs, WatchArgs,
};
pub(crate) use schedules::{PutArgs, SchedulesCommand};
pub(crate) use store::{ExportArgs, ImportArgs, InspectArgs, OutputArg, StoreArg, VerifyArgs};

const EXAMPLES: &str = "\
Examples:
  windlass                                     start a development server in this folder
  windlass runs create hello --params '\"world\"' --wait
                                               start a run and wait for its result
    windlass runs list --status errored          list failed runs
    windlass why order/order-42                  explain why a run makes no progress
  windlass server --store postgres://db/app --bind 0.0.0.0:7878
                                               serve a store over the network
  windlass verify --store sqlite:app.db        recompute all hashes of a store

Exit codes:
    0 success   1 failure   2 invalid usage   3 not found
    4 the run did not complete successfully   5 timeout   6 not authorized
    7 the store of the server has closed itself

  Commands that manage runs call the server at --url (WINDLASS_URL, by default
  http://127.0.0.1:7878/api) over HTTP. Commands with --store open the store directly.";

/// Durable workflows on one SQLite file, or on PostgreSQL for many machines.
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
    /// Options of `windlass dev`, the default command.
    #[command(flatten)]
    pub(crate) dev: DevArgs,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a development server with sample workflows (the default command).
    #[command(after_help = DEV_EXAMPLES)]
    Dev(DevArgs),
    /// Start a production server that serves a store over HTTP.
    #[command(after_help = SERVER_EXAMPLES)]
    Server(Box<ServerArgs>),
    /// List workflows.
    Workflows(WorkflowsArgs),
    /// List, inspect and control runs.
    #[command(visible_alias = "instances")]
    Runs(RunsArgs),
    /// Explain why a run makes no progress: everything that it waits for.
    #[command(after_help = "\
Examples:
  windlass why order/order-42
  windlass why order order-42
  windlass why 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Why(WhyArgs),
    /// Show the ledger of a run, or of its whole tree: all events with their causes.
    #[command(after_help = "\
Examples:
  windlass ledger order/order-42
  windlass ledger support/run-7 --tree
  windlass ledger support/run-7 --html ledger.html
  windlass ledger --kept                          the ledgers of deleted runs")]
    Ledger(LedgerArgs),
    /// Show the conversations of an agent with its language models.
    #[command(after_help = "\
Examples:
  windlass transcript support/run-7
  windlass transcript support/run-7 --name chat -o json
  windlass transcript support/run-7 --follow      the text of calls as it arrives")]
    Transcript(TranscriptArgs),
    /// Check live runs of agents against the build of the server.
    Agents(AgentsArgs),
    /// Manage schedules, which start runs at recurring times.
    Schedules(SchedulesArgs),
    /// Send events to keys, for all runs that wait for a key.
    Events(KeyEventsArgs),
    /// Read and write records: documents outside any run.
    Records(RecordsArgs),
    /// Show what became of effects that asked for a receipt.
    Receipts(ReceiptsArgs),
    /// List requests to people, and decide about them.
    Inbox(InboxArgs),
    /// Look into batches, budgets and spending of calls of language models.
    Llm(LlmArgs),
    /// Serve the tools of a server to a language model: MCP over standard input and output.
    ///
    /// An MCP client starts this command. Every message goes to the server at --url, with the key: the
    /// model sees only the tools that the scopes of the key allow. Clients that speak HTTP use /mcp of the
    /// server instead.
    #[command(after_help = "\
Examples:
  windlass mcp                                 tools of the development server on this machine
  WINDLASS_KEY=wl_… windlass mcp --url https://windlass.example/api")]
    Mcp(McpArgs),
    /// Manage the API keys of a server.
    Keys(KeysArgs),
    /// List, inspect and drain workers, the processes that execute runs and tasks.
    Workers(WorkersArgs),
    /// Inspect queued and running tasks (activities and effects).
    Tasks(TasksArgs),
    /// Manage dead letters: tasks that failed permanently.
    Dlq(DlqArgs),
    /// List and reset circuit breakers.
    Breakers(BreakersArgs),
    /// List and enable disabled webhook endpoints.
    Webhooks(WebhooksArgs),
    /// Show the health of the system. The exit code is 1 if it is unhealthy.
    Health(HealthArgs),
    /// Show the version, clock and contents of a store.
    #[command(after_help = "\
Examples:
  windlass info
  windlass info --store postgres://db/app -o json")]
    Info(InspectArgs),
    /// Check a store and its machine: schema, clock, disk, fsync, old transactions.
    ///
    /// The exit code is 1 if a check finds a problem. The command does not change the store. Only
    /// one process can open a SQLite store at a time: stop the server first.
    #[command(after_help = "\
Examples:
  windlass doctor
  windlass doctor --store postgres://db/app -o json")]
    Doctor(InspectArgs),
    /// Recompute the hash chains of a store and compare events with their rows.
    ///
    /// The command does not change the store. Only one process can open a SQLite store at a time:
    /// stop the server first.
    Verify(VerifyArgs),
    /// Migrate the schema of a store to the version of this build.
    #[command(after_help = "\
Examples:
  windlass migrate --store sqlite:app.db
  windlass migrate --store postgres://db/app")]
    Migrate(InspectArgs),
    /// Export runs as JSON Lines for import into another store.
    Export(ExportArgs),
    /// Import exported runs. Runs that already exist are skipped.
    Import(ImportArgs),
    /// Check and compile contracts offline, and publish them on a server.
    Contracts(ContractsArgs),
    /// Create, edit and inspect documents.
    Documents(DocumentsArgs),
    /// List requests for approval of documents, and decide about them.
    Approvals(ApprovalsArgs),
    /// Inspect the settings of `windlass server`.
    Config(ConfigArgs),
    /// Print a shell completion script.
    #[command(after_help = "\
Examples:
  windlass completions bash > /etc/bash_completion.d/windlass
  windlass completions zsh > ~/.zfunc/_windlass
  windlass completions fish > ~/.config/fish/completions/windlass.fish")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write one man page for each command.
    #[command(after_help = "\
Examples:
  windlass man --out /usr/local/share/man/man1")]
    Man {
        /// The output directory. It is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Print this reference as Markdown.
    #[command(hide = true)]
    Docs,
}

const DEV_EXAMPLES: &str = "\
Examples:
  windlass dev                                 state in ./.windlass, port 7878 or the next free one
  windlass dev --ephemeral                     keep the state in memory
  windlass dev --port 9000 --store sqlite:/tmp/try.db
  windlass dev --relay greet=http://127.0.0.1:9000/
  windlass dev --as ann:cfo,lead               act as a person with roles
  windlass dev --scripted-llm script.json      answers of language models from a script";

#[derive(Args, Clone, Default)]
pub(crate) struct DevArgs {
    /// The port to listen on. [default: 7878, or the next free port]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Keep the state in memory; it is lost when the server stops.
    #[arg(long, conflicts_with = "store")]
    pub(crate) ephemeral: bool,
    /// The store. [default: sqlite:.windlass/windlass.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Serve a relay whose steps are executed by a URL on this machine. Requests are signed with
    /// the secret in WINDLASS_RELAY_SECRET. Can be repeated.
    #[arg(long = "relay", value_name = "NAME=URL")]
    pub(crate) relays: Vec<String>,
    /// A config file with the tables `[[relays]]` and `[webhooks]`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The person that all requests to this server act for, with their roles.
    #[arg(long = "as", value_name = "ID[:ROLE,…]")]
    pub(crate) subject: Option<String>,
    /// Start a provider of language models that follows a script (JSON), on loopback. Without a file it
    /// answers with what it was sent.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub(crate) scripted_llm: Option<Option<PathBuf>>,
}

const SERVER_EXAMPLES: &str = "\
Examples:
  windlass server --store sqlite:/var/lib/windlass/app.db
  windlass server --store postgres://app@db/app --bind 0.0.0.0:7878
  WINDLASS_STORE=postgres://app@db/app windlass server --config /etc/windlass.toml
  windlass config show                         show the effective settings and their origin

Set each setting with a flag, with an environment variable WINDLASS_<NAME>, or in the config file
(TOML; windlass.toml in the current directory, or --config). Flags override the environment, the
environment overrides the file. A server without authentication (--auth off) listens on loopback
only.";

#[derive(Args, Clone, Default)]
pub(crate) struct ServerArgs {
    /// The config file. [default: windlass.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The store: `sqlite:PATH`, `postgres://…` or `memory:`.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The address to listen on. [default: 127.0.0.1:7878]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) bind: Option<String>,
    /// Authentication: `keys`, `jwt`, or `off` (loopback only): every local process then has full
    /// access. [default: keys]
    #[arg(long, value_name = "MODE")]
    pub(crate) auth: Option<String>,
    /// A key with all scopes that is accepted in addition to the keys in the store, for the first
    /// start. Prefer the environment variable WINDLASS_ADMIN_KEY: other users can read command
    /// lines.
    #[arg(long, value_name = "KEY")]
    pub(crate) admin_key: Option<String>,
    /// JWT: the required issuer (`iss`).
    #[arg(long, value_name = "TEXT")]
    pub(crate) jwt_issuer: Option<String>,
    /// JWT: the required audience (`aud`).
    #[arg(long, value_name = "TEXT")]
    pub(crate) jwt_audience: Option<String>,
    /// JWT: the file with the public key (PEM), or with the HS256 secret.
    #[arg(long, value_name = "FILE")]
    pub(crate) jwt_key: Option<String>,
    /// JWT: the required algorithm. [default: RS256]
    #[arg(long, value_name = "NAME")]
    pub(crate) jwt_algorithm: Option<String>,
    /// JWT: the claim that contains the namespace. [default: namespace]
    #[arg(long, value_name = "NAME")]
    pub(crate) jwt_namespace_claim: Option<String>,
    /// JWT: the claim that contains the id of the person. [default: sub]
    #[arg(long, value_name = "NAME")]
    pub(crate) jwt_subject_claim: Option<String>,
    /// JWT: the claim that contains the roles of the person. [default: roles]
    #[arg(long, value_name = "NAME")]
    pub(crate) jwt_roles_claim: Option<String>,
    /// Also serve the sample workflows.
    #[arg(long)]
    pub(crate) samples: bool,
    /// The time that requests and steps get to finish when the server stops. [default: 30 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) drain: Option<String>,
    /// The log filter, in the syntax of `tracing`. Logs go to standard error. [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// The log format: `text` or `json`. [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// The address of a server, and the output format.
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
    /// An additional HTTP header. Can be repeated.
    #[arg(short = 'H', long, global = true, value_name = "NAME: VALUE", help_heading = "Server")]
    pub(crate) header: Vec<String>,
    /// An API key or JWT, sent as `Authorization: Bearer`.
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "WINDLASS_KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub(crate) key: Option<String>,
    /// The person to act for, with their roles. Only `windlass dev` accepts it: elsewhere the credential
    /// names the person.
    #[arg(
        long = "as",
        global = true,
        value_name = "ID[:ROLE,…]",
        env = "WINDLASS_AS",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub(crate) person: Option<String>,
    /// The output format: text, json (one document) or jsonl (one line per item).
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
    /// List the workflows of the server, with the number of runs in each status.
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
pub(crate) struct LlmArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: LlmCommand,
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
    /// List keys, without their secrets.
    #[command(visible_alias = "ls")]
    List,
    /// Create a key. The secret is printed once.
    #[command(after_help = "\
Examples:
  windlass keys create ci --scope create --scope read --expires '90 days'
  windlass keys create ops --scope admin
  windlass keys create ann --scope read --scope manage --subject ann@example.com:cfo,lead")]
    Create {
        /// The purpose of the key.
        name: String,
        /// A scope of the key. Can be repeated.
        #[arg(
            long = "scope",
            value_name = "SCOPE",
            required = true,
            value_parser = [
                "read", "create", "manage", "send-event", "tick", "records", "decide", "define", "admin",
            ]
        )]
        scopes: Vec<String>,
        /// The person that the key is for, with their roles. The ledger then records a digest of
        /// the person instead of the key. [default: a key of a program]
        #[arg(long, value_name = "ID[:ROLE,…]")]
        subject: Option<String>,
        /// The namespace of the key. [default: the namespace of the caller]
        #[arg(long)]
        namespace: Option<String>,
        /// The lifetime of the key. [default: unlimited]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<Duration>,
    },
    /// Revoke a key immediately.
    #[command(after_help = "\
Examples:
  windlass keys list
  windlass keys revoke 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10")]
    Revoke {
        /// The id of the key, as shown by `keys list`.
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
    /// Show the effective settings of `windlass server`, and the origin of each.
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

/// Parses a duration such as `90s`, `10 minutes` or `1h`. The library reads a bare number as
/// milliseconds; on the command line that is ambiguous, so a unit is required.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if number != 0.0 => {
            Err(format!("{text:?} has no unit; write {0}s or {0}ms", text.trim()))
        }
        _ => windlass::kernel::parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// Checks that the text is an RFC 3339 time. The server parses it.
pub(crate) fn time(text: &str) -> Result<String, String> {
    match text.parse::<jiff::Timestamp>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("write a time such as 2026-03-01T12:00:00Z".to_owned()),
    }
}

/// Parses a term, `name=value` or `name:value`. The first separator ends the name.
pub(crate) fn term(text: &str) -> Result<(String, String), String> {
    match text.split_once(['=', ':']) {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

/// Parses a label, `key=value`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let split = text.split_once('=').or_else(|| text.split_once(':'));
    let (key, value) = split.ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    if key.is_empty() {
        return Err("the key of the label is empty; write KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}
