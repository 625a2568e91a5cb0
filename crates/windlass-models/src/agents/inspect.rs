//! Looks into stored runs of agents: which of them a build can resume, and what was said.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::Value;
use windlass_engine::Engine;
use windlass_kernel::inspect::{self, EventRecord};
use windlass_kernel::{
    Error, ErrorCode, ErrorKind, EventId, Query, RunKey, RunStatus, RunsQuery, Step as StepRow,
    StepKey, WorkflowName, bodies,
};

use super::agent::Agent;
use super::description::RESPONSE;
use super::provider::WireFormat;
use super::request::{Response, ResponseInfo};
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

/// A part of the live runs of an agent.
#[derive(Debug)]
pub struct CheckedPage {
    /// How many runs were checked.
    pub checked: usize,
    /// Those that the build cannot resume.
    pub unfit: Vec<Unfit>,
    /// Where the next page begins; none after the last one.
    pub next: Option<CheckPosition>,
}

/// The last run that a page checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckPosition {
    /// The status by which it was listed.
    pub status: RunStatus,
    /// The run; none at the beginning of this status.
    pub run_key: Option<RunKey>,
}

/// More than one event records at most.
const ROWS_PER_EVENT: u32 = 100;

const LIVE: [RunStatus; 3] = [RunStatus::Active, RunStatus::Waiting, RunStatus::Paused];

/// Loads the snapshot of every live run of an agent, and lists those that this build cannot resume. The upcasters
/// of the function that runs next are tried on a copy of the env, with `null` for a result that the run waits
/// for. No function runs and nothing is written, so it can be called before a deployment.
///
/// # Errors
///
/// The store cannot be read, or the name of the agent is not valid.
pub async fn check(engine: &Engine, agent: &Agent) -> Result<Vec<Unfit>, Error> {
    let (mut unfit, mut after) = (Vec::new(), None);
    loop {
        let limit = engine.options().limits.page_rows_max;
        let page = check_page(engine, agent, after, limit).await?;
        unfit.extend(page.unfit);
        after = page.next;
        if after.is_none() {
            return Ok(unfit);
        }
    }
}

/// As [`check`], for at most `limit` runs after a position.
///
/// # Errors
///
/// As [`check`].
pub async fn check_page(
    engine: &Engine,
    agent: &Agent,
    after: Option<CheckPosition>,
    limit: u32,
) -> Result<CheckedPage, Error> {
    let limits = &engine.options().limits;
    let workflow = WorkflowName::with_limits(&agent.name, limits)?;
    let position = after.unwrap_or(CheckPosition { status: LIVE[0], run_key: None });
    let CheckPosition { status, run_key } = position;
    let limit = limit.clamp(1, limits.page_rows_max);
    let query = RunsQuery {
        workflow: Some(workflow),
        status: Some(status),
        after: run_key,
        ..RunsQuery::all(engine.namespace().clone(), limit)
    };
    let runs = engine.store().list(Query::Runs(query)).await?.runs()?;
    let mut unfit = Vec::new();
    for run in &runs {
        let checked = match load(engine, run.run_key).await {
            Ok(Some(workflow)) => {
                agent.check(&workflow).and_then(|()| agent.trampoline.try_upcasters(&workflow))
            }
            Ok(None) => Ok(()),
            // A run that was deleted meanwhile needs no build.
            Err(error) if error.code() == ErrorCode::RunNotFound => Ok(()),
            // A store that does not answer says nothing about the run.
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => Err(error),
        };
        if let Err(error) = checked {
            unfit.push(Unfit { run_key: run.run_key, id: run.id.to_string(), error });
        }
    }
    let last = runs.last().filter(|_| runs.len() == limit as usize);
    let next_status = || LIVE.iter().skip_while(|known| **known != status).nth(1);
    let next = match last {
        Some(run) => Some(CheckPosition { status, run_key: Some(run.run_key) }),
        None => next_status().map(|status| CheckPosition { status: *status, run_key: None }),
    };
    Ok(CheckedPage { checked: runs.len(), unfit, next })
}

/// One event of a ledger, with the place of its run in its tree; none if the namespace of the engine has no such
/// event.
///
/// # Errors
///
/// The store cannot be read.
pub async fn load_workflow_event(
    engine: &Engine,
    event_id: EventId,
) -> Result<Option<EventRecord>, Error> {
    let found = inspect::load_event(&**engine.store(), event_id).await?;
    match found {
        Some(record) if is_visible(engine, record.event.run_key).await? => Ok(Some(record)),
        _ => Ok(None),
    }
}

/// The events of a run, in order; none if the namespace of the engine has no such run.
///
/// # Errors
///
/// The store cannot be read.
pub async fn load_workflow_events(
    engine: &Engine,
    run_key: RunKey,
) -> Result<Vec<EventRecord>, Error> {
    match is_visible(engine, run_key).await? {
        true => inspect::load_events(&**engine.store(), run_key).await,
        false => Ok(Vec::new()),
    }
}

/// The events of a run and of all its descendants by time, then id. The order is exact only within a run.
///
/// # Errors
///
/// The store cannot be read.
pub async fn load_root_workflow_events(
    engine: &Engine,
    root: RunKey,
) -> Result<Vec<EventRecord>, Error> {
    match is_visible(engine, root).await? {
        true => inspect::load_root_events(&**engine.store(), root).await,
        false => Ok(Vec::new()),
    }
}

async fn is_visible(engine: &Engine, run_key: RunKey) -> Result<bool, Error> {
    let overview = engine.store().run_overview_by_key(run_key).await?;
    Ok(overview.is_some_and(|overview| overview.run.namespace == *engine.namespace()))
}

/// A transcript of a run.
#[derive(Debug)]
pub struct Conversation {
    /// Its name.
    pub name: String,
    /// The format of its items, once a response has fixed it.
    pub format: Option<WireFormat>,
    /// Its items, as the next request would send them.
    pub items: Vec<Item>,
}

/// The transcripts of a run, by name.
///
/// # Errors
///
/// [`ErrorCode::RunNotFound`] if there is no such run, [`ErrorCode::AgentSnapshotInvalid`] if it is no run of an agent.
pub async fn conversations(engine: &Engine, run_key: RunKey) -> Result<Vec<Conversation>, Error> {
    let Some(workflow) = load(engine, run_key).await? else { return Ok(Vec::new()) };
    let conversation = |(name, transcript): (&String, &super::transcript::Transcript)| {
        let items = transcript.items().map(ToOwned::to_owned).collect();
        Conversation { name: name.clone(), format: transcript.wire_format(), items }
    };
    Ok(workflow.transcripts.iter().map(conversation).collect())
}

/// As [`conversations`], only the items.
///
/// # Errors
///
/// As [`conversations`].
pub async fn transcripts(
    engine: &Engine,
    run_key: RunKey,
) -> Result<BTreeMap<String, Vec<Item>>, Error> {
    let found = conversations(engine, run_key).await?;
    Ok(found.into_iter().map(|found| (found.name, found.items)).collect())
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

/// The recorded response in a step of a run, as `response_ref` of the event names it that completed the call;
/// `ordinal` is the place of that event.
///
/// # Errors
///
/// [`ErrorCode::StepNotFound`] if the run has no such step with a response.
pub async fn response_at(
    engine: &Engine,
    run_key: RunKey,
    ordinal: u64,
    step: &StepKey,
) -> Result<Response, Error> {
    // The event that first records a step is the step's position.
    let after = Some((ordinal, StepKey::from_stored(String::new())));
    let query = Query::Steps { run_key, after, limit: ROWS_PER_EVENT };
    let rows = engine.store().list(query).await?.steps()?;
    let found = rows.into_iter().find(|row| row.step_key == *step && row.kind == RESPONSE);
    let mut found: Vec<StepRow> = found.into_iter().collect();
    bodies::fill(&**engine.store(), bodies::of_steps(&mut found)).await?;
    let response = found.pop().and_then(|row| {
        let format = WireFormat::deserialize(&row.input?.read::<Value>().ok()?["format"]).ok()?;
        Some((format, row.result?))
    });
    let Some((format, body)) = response else {
        let message = format!("run {run_key} has no response at {step:?}");
        return Err(Error::new(ErrorKind::NotFound, ErrorCode::StepNotFound, message));
    };
    Ok(Response { format, body: body.bytes, info: ResponseInfo::default() })
}
