//! Batches and lanes as people see them, and what they can ask of a lane.

use serde::{Deserialize, Serialize};
use windlass_engine::Engine;
use windlass_kernel::{
    Collection, Error, ErrorCode, ErrorKind, LoadSteps, MessageKind, MessageName, Namespace, Order,
    Query, RecordId, RecordKey, RunStatus, RunsQuery, Store, Timestamp,
};

use super::program::ask_of;
use super::state::{Ask, LaneInput, LaneState, MESSAGE};
use super::{LANE_LABEL, LANE_LABEL_VALUE};

/// The collection of batches.
pub(super) const BATCHES: &str = "windlass.batches";

/// A batch of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchInfo {
    /// Names the batch: the beginning of each `custom_id`.
    pub intent: String,
    /// The provider.
    pub provider: String,
    /// The model, if the provider wants one for each batch.
    pub model: Option<String>,
    /// The id of the lane.
    pub lane: String,
    /// The run of the lane; its ledger has the events of the batch.
    pub lane_run: String,
    /// `waiting` (not sent yet, or refused for now), `unknown` (sent, without an answer so far), `in_flight`,
    /// `ended` or `failed`.
    pub status: String,
    /// The provider's id.
    pub provider_batch_id: Option<String>,
    /// The provider's name for the state.
    pub provider_state: Option<String>,
    /// Whether it was found by its size and time alone, and no result has proved yet that it is ours.
    pub provisional: bool,
    /// How many calls it has.
    pub members: u64,
    /// How many of them have no end yet, as the provider said last.
    pub processing: Option<u64>,
    /// About how many bytes its requests have.
    pub bytes: u64,
    /// How often it was sent.
    pub attempts: u32,
    /// When it was formed.
    pub created_at: Timestamp,
    /// When it changed last.
    pub updated_at: Timestamp,
}

/// A lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneInfo {
    /// The id: `all`, or the model.
    pub id: String,
    /// The provider.
    pub provider: String,
    /// Its run.
    pub run_key: String,
    /// How many calls wait for a batch.
    pub waiting: u64,
    /// How many batches are in flight.
    pub in_flight: usize,
    /// How long nine of ten recent batches took at most, in seconds, from the oldest call to its end.
    pub p90_seconds: Option<u64>,
    /// When a provider that limits calls may be called again.
    pub closed_until: Option<Timestamp>,
}

pub(super) fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// A batch with its revision.
pub(super) async fn read(
    store: &dyn Store,
    namespace: &Namespace,
    intent: &str,
) -> Result<Option<(u64, BatchInfo)>, Error> {
    let key = RecordKey {
        namespace: namespace.clone(),
        collection: Collection::from_stored(BATCHES),
        id: RecordId::from_stored(intent),
    };
    let found = store.records(vec![key]).await?.pop().flatten();
    let read = |record: windlass_kernel::Record| {
        let body = record.body?;
        Some(body.read().map(|info| (record.revision, info)))
    };
    found.and_then(read).transpose()
}

/// Whether a batch of a provider is one of this namespace already.
pub(super) async fn is_known(
    store: &dyn Store,
    namespace: &Namespace,
    id: &str,
) -> Result<bool, Error> {
    let query = Query::Records {
        namespace: namespace.clone(),
        collection: Collection::from_stored(BATCHES),
        term: Some(("provider_batch".into(), short(id).into())),
        after: None,
        limit: 1,
    };
    Ok(!store.list(query).await?.records()?.is_empty())
}

/// A page of batches, by intent, which is their order in time: all, or those with a status or a provider.
///
/// # Errors
///
/// The store cannot be read.
pub async fn batches(
    engine: &Engine,
    term: Option<(&str, &str)>,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<BatchInfo>, Error> {
    let records = engine.records::<BatchInfo>(BATCHES);
    let mut listing = match term {
        Some((name, value)) => records.find(name, value),
        None => records.all(),
    };
    if let Some(after) = after {
        listing = listing.after(RecordId::new(after)?);
    }
    let page = listing.page(limit).await?;
    Ok(page.into_iter().map(|found| found.value).collect())
}

/// A batch by its intent.
///
/// # Errors
///
/// [`ErrorCode::BatchNotFound`] if there is none.
pub async fn batch(engine: &Engine, intent: &str) -> Result<BatchInfo, Error> {
    let found = match RecordId::new(intent) {
        Ok(_) => read(&**engine.store(), engine.namespace(), intent).await?,
        Err(_) => None,
    };
    found.map(|(_, info)| info).ok_or_else(|| {
        let message = format!("there is no batch {intent:?}");
        Error::new(ErrorKind::NotFound, ErrorCode::BatchNotFound, message)
    })
}

/// Asks a lane to cancel a batch. Members that the provider has finished keep their answers; the others go on as the
/// agent's policy says.
///
/// # Errors
///
/// [`ErrorCode::BatchNotFound`]; [`ErrorCode::BatchEnded`] if it has ended.
pub async fn cancel_batch(engine: &Engine, intent: &str) -> Result<BatchInfo, Error> {
    let info = batch(engine, intent).await?;
    if matches!(info.status.as_str(), "ended" | "failed") {
        let message = format!("the batch {intent:?} has ended");
        return Err(Error::new(ErrorKind::Conflict, ErrorCode::BatchEnded, message));
    }
    let run = info.lane_run.parse()?;
    ask(engine, run, &Ask::Cancel { intent: intent.to_owned() }).await?;
    Ok(info)
}

/// Asks the lanes of a provider to send what waits now. Returns how many lanes were asked.
///
/// # Errors
///
/// [`ErrorCode::BatchNotFound`] if the provider has no lane.
pub async fn flush_lane(engine: &Engine, provider: &str) -> Result<usize, Error> {
    let found = lanes(engine).await?;
    let mine: Vec<_> = found.iter().filter(|lane| lane.provider == provider).collect();
    if mine.is_empty() {
        let message =
            format!("the provider {provider:?} has no lane; no call has asked for a batch");
        return Err(Error::new(ErrorKind::NotFound, ErrorCode::BatchNotFound, message));
    }
    for lane in &mine {
        ask(engine, lane.run_key.parse()?, &Ask::Flush).await?;
    }
    Ok(mine.len())
}

async fn ask(engine: &Engine, run: windlass_kernel::RunKey, what: &Ask) -> Result<(), Error> {
    let body = Some(windlass_kernel::Body::of(what)?);
    let name = MessageName::from_stored(MESSAGE);
    let sent = engine.send_message(run, MessageKind::ActivityResult, name, body, None);
    sent.await.map(|_| ())
}

/// The lanes of a namespace.
///
/// # Errors
///
/// The store cannot be read.
pub async fn lanes(engine: &Engine) -> Result<Vec<LaneInfo>, Error> {
    let limit = engine.options().limits.page_rows_max;
    let mut found = Vec::new();
    for status in [RunStatus::Waiting, RunStatus::Active, RunStatus::Paused] {
        let mut after = None;
        loop {
            let query = RunsQuery {
                status: Some(status),
                label: Some((LANE_LABEL.to_owned(), LANE_LABEL_VALUE.to_owned())),
                order: Order::Ascending,
                after,
                ..RunsQuery::all(engine.namespace().clone(), limit)
            };
            let runs = engine.store().list(Query::Runs(query)).await?.runs()?;
            after = runs.last().map(|run| run.run_key);
            for run in &runs {
                if run.workflow.as_str().starts_with(super::LANE_WORKFLOW) {
                    found.push(info_of(engine, run).await?);
                }
            }
            if runs.len() < limit as usize {
                break;
            }
        }
    }
    Ok(found)
}

async fn info_of(engine: &Engine, run: &windlass_kernel::Run) -> Result<LaneInfo, Error> {
    let run = engine.current(run.run_key).await?;
    let input: LaneInput = run.input.read()?;
    let state: Option<LaneState> = run.state.as_ref().map(|body| body.read()).transpose()?;
    let state = state.unwrap_or_default();
    // Only the messages that nobody has consumed: a lane keeps all others of its generation.
    let loaded = engine.store().load_with(vec![run.run_key], LoadSteps::Open).await?.pop();
    let joins = loaded.iter().flat_map(|loaded| &loaded.messages);
    let waiting = joins.filter(|message| matches!(ask_of(message), Some(Ask::Join(_)))).count();
    Ok(LaneInfo {
        id: run.id.to_string(),
        provider: input.provider,
        run_key: run.run_key.to_string(),
        waiting: waiting as u64,
        in_flight: state.in_flight.len(),
        p90_seconds: state.p90().map(|span| span.as_secs()),
        closed_until: state.closed_until,
    })
}
