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
use crate::output::plain_line;

pub(super) async fn run(api: Api, command: RunsCommand) -> Outcome {
    match command {
        RunsCommand::List(args) => list::run(api, args).await,
        RunsCommand::Get(args) => get::run(api, args).await,
        RunsCommand::History(args) => history::run(api, args).await,
        RunsCommand::Logs(args) => logs::run(api, args).await,
        RunsCommand::Events(args) => ledger::run(api, args).await,
        RunsCommand::Create(args) => create::run(api, args).await,
        RunsCommand::Pause(args) => control::run(api, "pause", args).await,
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
}

impl RunName {
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

/// The run that the command line names; a run key is looked up.
pub(super) async fn resolve(client: &Client, run: &RunRef) -> Result<RunName, Failure> {
    let hint =
        "name it as WORKFLOW/ID, as WORKFLOW ID, by its run key, or with --workflow and --id";
    match run.named().map_err(|message| Failure::usage(message).with_hint(hint))? {
        Named::Run { workflow, id } => Ok(RunName { workflow, id }),
        Named::Word(word) if word.parse::<windlass::kernel::RunKey>().is_ok() => {
            let found = client.get(&["runs", &word], &Vec::new()).await?;
            match (found["workflowName"].as_str(), found["id"].as_str()) {
                (Some(workflow), Some(id)) => {
                    Ok(RunName { workflow: workflow.to_owned(), id: id.to_owned() })
                }
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
