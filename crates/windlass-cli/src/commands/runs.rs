//! `windlass runs`: list, inspect and control runs over HTTP.

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

pub(super) use self::ledger::{fetch_ledger, print_ledger, summary};
pub(super) use self::watch::follow_stream;
use super::Api;
use crate::args::{RunRef, RunTarget, RunsCommand};
use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::output::{cell, sanitize_line};

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

/// A run, by workflow and id.
#[derive(Clone, Debug)]
pub(super) struct RunName {
    pub(super) workflow: String,
    pub(super) id: String,
    /// The generation, if the user gave a run key.
    pub(super) generation: Option<Generation>,
}

/// One generation of a run.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    run_key: String,
    number: u32,
}

impl RunName {
    /// Names the newest generation of a run.
    pub(super) fn new(workflow: String, id: String) -> Self {
        Self { workflow, id, generation: None }
    }

    /// The API path of the run: of the given generation, or of the newest.
    pub(super) fn view(&self) -> Vec<&str> {
        match &self.generation {
            Some(generation) => vec!["runs", &generation.run_key],
            None => self.path(&[]),
        }
    }

    /// The generation to read, from the run key or from `--run`.
    pub(super) fn number(&self, asked: Option<u32>) -> Result<Option<u32>, Failure> {
        match (&self.generation, asked) {
            (Some(generation), Some(asked)) if generation.number != asked => {
                let Generation { run_key, number } = generation;
                let message = format!("{run_key} is generation {number}, but --run is {asked}");
                Err(Failure::usage(message))
            }
            (Some(generation), _) => Ok(Some(generation.number)),
            (None, asked) => Ok(asked),
        }
    }

    /// The path of the run, with further segments appended.
    pub(super) fn path<'a>(&'a self, below: &[&'a str]) -> Vec<&'a str> {
        let mut path = vec!["workflows", self.workflow.as_str(), "instances", self.id.as_str()];
        path.extend(below);
        path
    }
}

impl std::fmt::Display for RunName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&sanitize_line(&format!("{}/{}", self.workflow, self.id)))
    }
}

/// Like [`resolve`], for commands that change a run. Only the newest generation can be changed, so
/// a run key of an older generation is an error.
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
    Err(Failure::error(message).with_hint(format!("use {run}, or the newest run key")))
}

/// Resolves the run on the command line. Looks up run keys on the server.
pub(super) async fn resolve(client: &Client, run: &RunRef) -> Result<RunName, Failure> {
    let hint = "use WORKFLOW/ID, WORKFLOW ID, a run key, or --workflow and --id";
    match run.target().map_err(|message| Failure::usage(message).with_hint(hint))? {
        RunTarget::Run { workflow, id } => Ok(RunName::new(workflow, id)),
        RunTarget::Word(word) if word.parse::<windlass::kernel::RunKey>().is_ok() => {
            let found = client.get(&["runs", &word], &Vec::new()).await?;
            let number = found["meta"]["runNumber"].as_u64().and_then(|n| u32::try_from(n).ok());
            match (found["workflowName"].as_str(), found["id"].as_str(), number) {
                (Some(workflow), Some(id), Some(number)) => Ok(RunName {
                    workflow: workflow.to_owned(),
                    id: id.to_owned(),
                    generation: Some(Generation { run_key: word, number }),
                }),
                _ => Err(Failure::error(format!(
                    "the response for run {word} has no workflow, id or runNumber"
                ))),
            }
        }
        RunTarget::Word(word) => {
            Err(Failure::usage(format!("{word:?} is not a run")).with_hint(hint))
        }
        RunTarget::Workflow(workflow) => {
            Err(Failure::usage(format!("the run of workflow {workflow:?} is missing"))
                .with_hint(hint))
        }
        RunTarget::Nothing => Err(Failure::usage("the run is missing").with_hint(hint)),
    }
}
