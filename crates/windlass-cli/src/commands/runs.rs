//! `windlass runs`: list, inspect and operate runs over HTTP.

mod bulk;
mod control;
mod create;
mod get;
mod history;
mod ledger;
mod list;
mod logs;
mod wait;
mod watch;

use super::Api;
use crate::args::{Named, RunRef, RunsCommand};
use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::output::{cell, plain_line};

pub(super) async fn run(api: Api, command: RunsCommand) -> Outcome {
    match command {
        RunsCommand::List(args) => list::run(api, args).await,
        RunsCommand::Get(args) => get::run(api, args).await,
        RunsCommand::History(args) => history::run(api, args).await,
        RunsCommand::Logs(args) => logs::run(api, args).await,
        RunsCommand::Events(args) => ledger::run(api, args).await,
        RunsCommand::Create(args) => create::run(api, args).await,
        RunsCommand::Pause(args) => control::pause(api, args).await,
        RunsCommand::Resume(args) => control::run(api, "resume", args).await,
        RunsCommand::Retry(args) => control::run(api, "retry", args).await,
        RunsCommand::Restart(args) => control::restart(api, args).await,
        RunsCommand::Terminate(args) => control::terminate(api, args).await,
        RunsCommand::Cancel(args) => control::cancel(api, args).await,
        RunsCommand::SendEvent(args) => control::send_event(api, args).await,
        RunsCommand::Watch(args) => watch::run(api, args).await,
    }
}

/// A run by its workflow and id.
#[derive(Clone, Debug)]
pub(super) struct RunName {
    pub(super) workflow: String,
    pub(super) id: String,
    /// The generation, if the run was named by its key.
    pub(super) generation: Option<Generation>,
}

/// One generation of a run.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    run_key: String,
    number: u32,
}

impl RunName {
    /// The newest generation of a run, whichever that is.
    pub(super) fn new(workflow: String, id: String) -> Self {
        Self { workflow, id, generation: None }
    }

    /// The path of the view of the run: of the generation that was named, or of the newest.
    pub(super) fn view(&self) -> Vec<&str> {
        match &self.generation {
            Some(generation) => vec!["runs", &generation.run_key],
            None => self.path(&[]),
        }
    }

    /// The number of the generation to read, from the run's key or from `--run`.
    pub(super) fn number(&self, asked: Option<u32>) -> Result<Option<u32>, Failure> {
        match (&self.generation, asked) {
            (Some(generation), Some(asked)) if generation.number != asked => {
                let Generation { run_key, number } = generation;
                let message = format!("{run_key} is generation {number}, and --run says {asked}");
                Err(Failure::usage(message))
            }
            (Some(generation), _) => Ok(Some(generation.number)),
            (None, asked) => Ok(asked),
        }
    }

    /// The path of the run below the base, and of what is below the run.
    pub(super) fn path<'a>(&'a self, below: &[&'a str]) -> Vec<&'a str> {
        let mut path = vec!["workflows", self.workflow.as_str(), "instances", self.id.as_str()];
        path.extend(below);
        path
    }
}

impl std::fmt::Display for RunName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&plain_line(&format!("{}/{}", self.workflow, self.id)))
    }
}

/// As [`resolve`], for what is done to a run: only its newest generation can be acted on, and a key
/// of another one is refused before that is done to what nobody named.
pub(super) async fn resolve_newest(client: &Client, run: &RunRef) -> Result<RunName, Failure> {
    let run = resolve(client, run).await?;
    let Some(Generation { run_key, number }) = &run.generation else { return Ok(run) };
    let newest = client.get(&run.path(&[]), &Vec::new()).await?;
    let meta = &newest["meta"];
    if meta["runNumber"].as_u64().is_none_or(|newest| newest == u64::from(*number)) {
        return Ok(run);
    }
    let message = format!(
        "{run_key} is generation {number} of {run}; the newest is {}, {}",
        cell(meta, "runNumber"),
        cell(meta, "runKey")
    );
    Err(Failure::error(message).with_hint(format!("name the newest one by {run}, or by its key")))
}

/// The run that the command line names; a run key is looked up.
pub(super) async fn resolve(client: &Client, run: &RunRef) -> Result<RunName, Failure> {
    let hint =
        "name it as WORKFLOW/ID, as WORKFLOW ID, by its run key, or with --workflow and --id";
    match run.named().map_err(|message| Failure::usage(message).with_hint(hint))? {
        Named::Run { workflow, id } => Ok(RunName::new(workflow, id)),
        Named::Word(word) if word.parse::<windlass::kernel::RunKey>().is_ok() => {
            let found = client.get(&["runs", &word], &Vec::new()).await?;
            let number = found["meta"]["runNumber"].as_u64().and_then(|n| u32::try_from(n).ok());
            match (found["workflowName"].as_str(), found["id"].as_str(), number) {
                (Some(workflow), Some(id), Some(number)) => Ok(RunName {
                    workflow: workflow.to_owned(),
                    id: id.to_owned(),
                    generation: Some(Generation { run_key: word, number }),
                }),
                _ => Err(Failure::error(format!("the server does not say which run {word} is"))),
            }
        }
        Named::Word(word) => {
            Err(Failure::usage(format!("{word:?} does not name a run")).with_hint(hint))
        }
        Named::Workflow(workflow) => {
            Err(Failure::usage(format!("which run of {workflow:?}?")).with_hint(hint))
        }
        Named::Nothing => Err(Failure::usage("no run is named").with_hint(hint)),
    }
}
