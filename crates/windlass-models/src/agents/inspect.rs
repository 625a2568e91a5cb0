//! Looks into stored runs of agents: which of them a build can resume, and what was said.

use std::collections::BTreeMap;

use windlass_engine::Engine;
use windlass_kernel::{
    Error, ErrorCode, ErrorKind, Query, RunKey, RunStatus, RunsQuery, WorkflowName,
};

use super::agent::Agent;
use super::state;
use super::wire::Item;
use super::workflow::Workflow;

/// A live run that a build cannot resume.
#[derive(Debug)]
pub struct Unfit {
    /// The run.
    pub run_key: RunKey,
    /// Its id.
    pub id: String,
    /// Why.
    pub error: Error,
}

/// Loads the snapshot of every live run of an agent, and lists those that this build cannot resume. Nothing
/// runs and nothing is written, so it can be called before a deployment.
///
/// # Errors
///
/// The store cannot be read, or the name of the agent is not valid.
pub async fn check(engine: &Engine, agent: &Agent) -> Result<Vec<Unfit>, Error> {
    let limits = &engine.options().limits;
    let workflow = WorkflowName::with_limits(&agent.name, limits)?;
    let mut unfit = Vec::new();
    for status in [RunStatus::Active, RunStatus::Waiting, RunStatus::Paused] {
        let mut after = None;
        loop {
            let query = RunsQuery {
                workflow: Some(workflow.clone()),
                status: Some(status),
                after,
                ..RunsQuery::all(engine.namespace().clone(), limits.page_rows_max)
            };
            let runs = engine.store().list(Query::Runs(query)).await?.runs()?;
            for run in &runs {
                let checked = match load(engine, run.run_key).await {
                    Ok(Some(workflow)) => agent.trampoline.check(&workflow),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                };
                if let Err(error) = checked {
                    unfit.push(Unfit { run_key: run.run_key, id: run.id.to_string(), error });
                }
            }
            after = runs.last().map(|run| run.run_key);
            if runs.len() < limits.page_rows_max as usize {
                break;
            }
        }
    }
    Ok(unfit)
}

/// The transcripts of a run by name, as its next request would send them.
///
/// # Errors
///
/// [`ErrorCode::RunNotFound`] if there is no such run, [`ErrorCode::AgentSnapshotInvalid`] if it is no run of an agent.
pub async fn transcripts(
    engine: &Engine,
    run_key: RunKey,
) -> Result<BTreeMap<String, Vec<Item>>, Error> {
    let Some(workflow) = load(engine, run_key).await? else { return Ok(BTreeMap::new()) };
    let items = workflow.transcripts.iter().map(|(name, transcript)| {
        let items = transcript.items().map(ToOwned::to_owned).collect();
        (name.clone(), items)
    });
    Ok(items.collect())
}

// The workflow of a run; none if it has not begun.
async fn load(engine: &Engine, run_key: RunKey) -> Result<Option<Workflow>, Error> {
    let overview = engine.store().run_overview_by_key(run_key).await?;
    let run = overview.map(|overview| overview.run).ok_or_else(|| {
        let message = format!("there is no run {run_key}");
        Error::new(ErrorKind::NotFound, ErrorCode::RunNotFound, message)
    })?;
    let Some(body) = &run.state else { return Ok(None) };
    let page = engine.options().limits.page_rows_max;
    state::load(&**engine.store(), body, page).await.map(|(workflow, ..)| Some(workflow))
}
