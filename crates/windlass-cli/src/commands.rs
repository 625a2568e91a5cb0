//! The implementation of the commands.

mod admin;
mod agents;
mod config;
mod contracts;
mod dev;
mod documents;
mod events;
mod inbox;
mod keys;
mod ledger;
mod llm;
mod mcp;
mod receipts;
mod records;
mod reference;
mod relays;
mod runs;
mod schedules;
mod serve;
mod server;
mod store;
mod transcript;
mod webhooks;
mod why;
mod workflows;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{Cli, Command, ConfigCommand, Remote};
use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::output::Out;

/// Executes the command.
pub(crate) async fn run(cli: Cli) -> Outcome {
    let command = cli.command.unwrap_or(Command::Dev(cli.dev));
    match command {
        Command::Dev(args) => dev::run(args).await,
        Command::Server(args) => server::run(*args).await,
        Command::Workflows(args) => workflows::run(Api::new(&args.remote)?, args.command).await,
        Command::Runs(args) => runs::run(Api::new(&args.remote)?, args.command).await,
        Command::Why(args) => why::run(Api::new(&args.remote)?, args.run).await,
        Command::Ledger(args) => ledger::run(Api::new(&args.remote)?, args).await,
        Command::Transcript(args) => transcript::run(Api::new(&args.remote)?, args).await,
        Command::Agents(args) => agents::run(Api::new(&args.remote)?, args.command).await,
        Command::Schedules(args) => schedules::run(Api::new(&args.remote)?, args.command).await,
        Command::Events(args) => events::run(Api::new(&args.remote)?, args.command).await,
        Command::Records(args) => records::run(Api::new(&args.remote)?, args.command).await,
        Command::Receipts(args) => receipts::run(Api::new(&args.remote)?, args.command).await,
        Command::Inbox(args) => inbox::run(Api::new(&args.remote)?, args.command).await,
        Command::Llm(args) => llm::run(Api::new(&args.remote)?, args.command).await,
        Command::Mcp(args) => mcp::run(Client::new(&args.remote)?).await,
        Command::Keys(args) => keys::run(Api::new(&args.remote)?, args.command).await,
        Command::Workers(args) => admin::workers(Api::new(&args.remote)?, args.command).await,
        Command::Tasks(args) => admin::tasks(Api::new(&args.remote)?, args.command).await,
        Command::Dlq(args) => admin::dlq(Api::new(&args.remote)?, args.command).await,
        Command::Breakers(args) => admin::breakers(Api::new(&args.remote)?, args.command).await,
        Command::Webhooks(args) => webhooks::run(Api::new(&args.remote)?, args.command).await,
        Command::Health(args) => admin::health(Api::new(&args.remote)?).await,
        Command::Info(args) => store::info(args).await,
        Command::Doctor(args) => store::doctor(args).await,
        Command::Verify(args) => store::verify(args).await,
        Command::Migrate(args) => store::migrate(args).await,
        Command::Export(args) => store::export(args).await,
        Command::Import(args) => store::import(args).await,
        Command::Contracts(args) => contracts::run(args.command).await,
        Command::Documents(args) => documents::run(Api::new(&args.remote)?, args.command).await,
        Command::Approvals(args) => {
            documents::approvals(Api::new(&args.remote)?, args.command).await
        }
        Command::Config(args) => match args.command {
            ConfigCommand::Show(args) => config::show(&args),
        },
        Command::Completions { shell } => reference::completions(shell),
        Command::Man { out } => reference::man(&out),
        Command::Docs => reference::print(),
    }
}

/// A server and the output format.
pub(crate) struct Api {
    pub(crate) client: Client,
    pub(crate) out: Out,
}

impl Api {
    fn new(remote: &Remote) -> Result<Self, Failure> {
        Ok(Self { client: Client::new(remote)?, out: Out::new(remote.output) })
    }
}

/// Parses JSON that is given literally, as `@FILE`, or as `-` for standard input.
fn read_json<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, Failure> {
    let read = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::error(format!("failed to read {path}: {error}")))?,
        None if text == "-" => std::io::read_to_string(std::io::stdin())?,
        None => text.to_owned(),
    };
    serde_json::from_str(&read).map_err(|error| {
        Failure::usage(format!("{what} is not JSON: {error}"))
            .with_hint(format!("quote JSON strings: {what} '\"world\"'"))
    })
}

/// Converts labels to a JSON object.
fn labels_to_json(labels: &[(String, String)]) -> Value {
    let pair = |(key, value): &(String, String)| (key.clone(), Value::from(value.as_str()));
    Value::Object(labels.iter().map(pair).collect())
}

/// Reads the subject in an argument.
fn parse_subject(argument: &str, text: &str) -> Result<windlass::kernel::Subject, Failure> {
    windlass::kernel::Subject::parse(text).map_err(|error| {
        let message = format!("{argument} {text:?} is no subject: {}", error.message());
        Failure::usage(message).with_hint("write ID or ID:ROLE,ROLE, such as ann:cfo,lead")
    })
}
