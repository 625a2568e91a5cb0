//! The snapshot of a run in its row, and the rows of its items and large values.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use windlass_engine::Turn;
use windlass_kernel::{
    Body, Draft, Error, ErrorCode, Query, Run, RunKey, Sha256Digest, Step as StepRow, StepKey,
    StepKind, StepStatus, Store, Timestamp, bodies,
};

use super::accounts::BudgetRef;
use super::budget::Budget;
use super::description::{COMPACTION, ITEMS, RESPONSE, VALUE};
use super::env::{Env, VALUE_MEMBER, invalid};
use super::fork::ForkState;
use super::lane::BatchedCall;
use super::provider::WireFormat;
use super::tool::ToolSet;
use super::transcript::{Piece, Transcript};
use super::workflow::{ResponseAt, Snapshot, Step, Workflow};
use crate::kit;

/// An env value above this size has a row of its own, which the snapshot refers to.
const VALUE_BYTES_MAX: usize = 4 * 1024;
/// Parameters of a request above this size have a row of their own.
const PARAMS_BYTES_MAX: usize = 1024;
/// How many rows for items and values one commit writes at most: the event seals each of them.
const ROWS_MAX: usize = 64;
const PARAMS: &str = "$params";

/// The state of a run besides its workflow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Whether the event that begins the current step is written.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) begun: bool,
    /// The generation that began with the input: later ones retry it, and a restart begins anew.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) began: u32,
    /// Whether the run is a branch of a fork.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) branch: bool,
    /// How often the provider was called for the current step in earlier generations.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) attempts: u32,
    /// The generation that this one retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retried: Option<RunKey>,
    /// The branches of the current fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fork: Option<ForkState>,
    /// Further generations before `retried` that may have receipts of the current dispatch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) receipts: Vec<RunKey>,
    /// The budgets that its calls count for, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) budgets: Vec<BudgetRef>,
    /// When the root of a branch or of a retry started; deadlines count from then. None: when the run did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<Timestamp>,
    /// How often the run has asked a person for more budget.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) asked: u32,
    /// The batch lane that has the current call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batched: Option<BatchedCall>,
    /// The digests of the sources of tools with which the run began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tool_sources: BTreeMap<String, Sha256Digest>,
    /// The call that begins now has been reserved.
    #[serde(skip)]
    pub(crate) admitted: bool,
}

impl Progress {
    /// The progress of a run that begins.
    pub(crate) fn first(run: &Run, budget: Option<&Budget>, tools: &ToolSet) -> Self {
        let budgets = budget.map(|own| BudgetRef::new(run.run_key, run.id.as_str(), own));
        let tool_sources = tools.sources().clone();
        let (began, budgets) = (run.generation, budgets.into_iter().collect());
        Self { began, budgets, tool_sources, ..Self::default() }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

#[derive(Serialize, Deserialize)]
struct State {
    workflow: Snapshot,
    progress: Progress,
}

/// Where large values are stored, by digest.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredValues(BTreeMap<Sha256Digest, RunKey>);

#[derive(Serialize, Deserialize)]
struct ValueRef {
    run: RunKey,
    digest: Sha256Digest,
    bytes: usize,
}

/// The rows that a commit writes before it saves a snapshot.
pub(crate) fn flush(
    workflow: &mut Workflow,
    stored: &mut StoredValues,
    turn: &Turn,
    draft: &Draft,
    at: Timestamp,
) -> Result<Vec<StepRow>, Error> {
    let mut rows = Vec::new();
    let run = turn.run.run_key;
    let max = turn.limits().step_bytes_max;
    let mut put = |key: String, kind, result: Body, input: Option<Body>| -> Result<(), Error> {
        if result.len() > max {
            let message =
                format!("an item or a value has {} bytes; at most {max} are allowed", result.len());
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        if rows.len() == ROWS_MAX {
            let message = format!(
                "one step writes more than {ROWS_MAX} large values and pieces of transcripts"
            );
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        let mut row = kit::new_step(&turn.run, draft, StepKey::from_stored(key), kind, at);
        (row.status, row.result, row.input) = (StepStatus::Completed, Some(result), input);
        rows.push(row);
        Ok(())
    };
    let Workflow { transcripts, counters, env, step, .. } = workflow;
    for (name, transcript) in transcripts.iter_mut() {
        if !transcript.pieces().iter().any(|piece| matches!(piece, Piece::Inline(_))) {
            continue;
        }
        let unstored = transcript.take_unstored();
        if !unstored.is_empty() {
            for items in parts(unstored, max) {
                let from = counters.items;
                counters.items += items.len() as u64;
                put(format!("item:{from}"), ITEMS, array(&items), None)?;
            }
        }
        for piece in std::mem::take(transcript.pieces_mut()) {
            match piece {
                Piece::Stored(stored) => {
                    transcript.push_stored(stored.run, stored.from, stored.items)
                }
                Piece::Inline(items) => {
                    for items in parts(items, max) {
                        let from = counters.items;
                        counters.items += items.len() as u64;
                        put(format!("item:{from}"), ITEMS, array(&items), None)?;
                        transcript.push_stored(run, from, items);
                    }
                }
            }
        }
        if let Some(dropped) = transcript.take_dropped() {
            counters.compactions += 1;
            let record = compaction(name, transcript, dropped)?;
            put(format!("compact:{}", counters.compactions), COMPACTION, record, None)?;
        }
    }
    let large = env.entries().filter(|(.., summary)| summary.bytes > VALUE_BYTES_MAX);
    let mut texts: Vec<Vec<u8>> =
        large.map(|(_, value, _)| value.to_string().into_bytes()).collect();
    if let Step::Llm { request, .. } = step {
        let text = params_text(&request.params);
        texts.extend((text.len() > PARAMS_BYTES_MAX).then_some(text));
    }
    for text in texts {
        let digest = Sha256Digest::of(&text);
        if let Entry::Vacant(missing) = stored.0.entry(digest) {
            put(value_key(&digest), VALUE, Body::json(text), None)?;
            missing.insert(run);
        }
    }
    Ok(rows)
}

// The first of the items is the summary, the others are those that were kept.
fn compaction(name: &str, transcript: &Transcript, dropped: usize) -> Result<Body, Error> {
    let items: Vec<_> = transcript
        .pieces()
        .iter()
        .filter_map(|piece| match piece {
            Piece::Stored(stored) => Some((stored.run, stored.from, stored.to)),
            Piece::Inline(_) => None,
        })
        .collect();
    Body::of(&json!({ "transcript": name, "dropped": dropped, "items": items }))
}

/// The row of a response.
pub(crate) fn response_row(
    turn: &Turn,
    draft: &Draft,
    from: u64,
    format: WireFormat,
    body: Bytes,
    at: Timestamp,
) -> Result<StepRow, Error> {
    let max = turn.limits().step_bytes_max;
    if body.len() > max {
        let message = format!("the response has {} bytes; at most {max} are allowed", body.len());
        return Err(invalid(ErrorCode::InvalidSize, message));
    }
    let key = StepKey::from_stored(format!("item:{from}"));
    let mut row = kit::new_step(&turn.run, draft, key, RESPONSE, at);
    row.status = StepStatus::Completed;
    row.input = Some(Body::of(&json!({ "format": format }))?);
    row.result = Some(Body::json(body));
    Ok(row)
}

fn value_key(digest: &Sha256Digest) -> String {
    format!("value:{digest}")
}

fn params_text(params: &[(String, Box<RawValue>)]) -> Vec<u8> {
    serde_json::to_vec(params).unwrap_or_default()
}

fn array(items: &[Arc<RawValue>]) -> Body {
    let texts: Vec<&str> = items.iter().map(|item| item.get()).collect();
    Body::json(format!("[{}]", texts.join(",")))
}

// Items in rows of at most `max` bytes.
fn parts(items: Vec<Arc<RawValue>>, max: usize) -> Vec<Vec<Arc<RawValue>>> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 2);
    for item in items {
        let more = item.get().len() + 1;
        if bytes + more > max && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            bytes = 2;
        }
        bytes += more;
        part.push(item);
    }
    parts.push(part);
    parts
}

/// The env as the snapshot has it: large values are references.
pub(crate) fn stored_env(env: &Env, stored: &StoredValues) -> Map<String, Value> {
    let reference = |value: &Value| {
        let text = value.to_string();
        let digest = Sha256Digest::of(text.as_bytes());
        let run = stored.0.get(&digest)?;
        let at = ValueRef { run: *run, digest, bytes: text.len() };
        Some(json!({ VALUE_MEMBER: at }))
    };
    let entries = env.entries().map(|(key, value, summary)| {
        let large = summary.bytes > VALUE_BYTES_MAX;
        let value = large.then(|| reference(value)).flatten().unwrap_or_else(|| value.clone());
        (key.to_owned(), value)
    });
    entries.collect()
}

/// The snapshot of a run, after [`flush`].
pub(crate) fn save(
    workflow: &Workflow,
    progress: &Progress,
    stored: &StoredValues,
) -> Result<Body, Error> {
    let mut step = workflow.step.clone();
    if let Step::Llm { request, .. } = &mut step {
        let text = params_text(&request.params);
        let digest = Sha256Digest::of(&text);
        if let Some(run) = stored.0.get(&digest).filter(|_| text.len() > PARAMS_BYTES_MAX) {
            let at = ValueRef { run: *run, digest, bytes: text.len() };
            let at = serde_json::value::to_raw_value(&at).map_err(unwritable)?;
            request.params = vec![(PARAMS.to_owned(), at)];
        }
    }
    let snapshot = Snapshot {
        v: super::workflow::SNAPSHOT_VERSION,
        // The run's row has it.
        run_id: String::new(),
        env: stored_env(&workflow.env, stored),
        step,
        stack: workflow.stack.clone(),
        transcripts: workflow.transcripts.clone(),
        counters: workflow.counters,
    };
    Body::of(&State { workflow: snapshot, progress: progress.clone() })
}

fn unwritable(source: serde_json::Error) -> Error {
    invalid(ErrorCode::AgentSnapshotInvalid, "the snapshot cannot be written").with_source(source)
}

fn read_state(body: &Body) -> Result<State, Error> {
    serde_json::from_slice(&body.bytes).map_err(|source| {
        let message = "the snapshot of the run cannot be read by this build";
        invalid(ErrorCode::AgentSnapshotInvalid, message).with_source(source)
    })
}

/// A run with all that its snapshot refers to, except its id.
pub(crate) async fn load(
    store: &dyn Store,
    body: &Body,
    page: u32,
) -> Result<(Workflow, Progress, StoredValues), Error> {
    let State { workflow: mut snapshot, progress } = read_state(body)?;
    let mut rows = Rows::default();
    rows.read(store, runs_of(&snapshot.env, &snapshot.transcripts, Some(&snapshot.step)), page)
        .await?;
    let mut stored = StoredValues::default();
    let bodies = rows.resolve(&mut snapshot.env, &mut snapshot.transcripts, &mut stored)?;
    if let Step::Llm { request, .. } = &mut snapshot.step
        && let [(name, at)] = request.params.as_slice()
        && name == PARAMS
    {
        let at: ValueRef = serde_json::from_str(at.get()).map_err(unwritable)?;
        let text = rows.value(&at)?;
        stored.0.insert(at.digest, at.run);
        request.params = serde_json::from_slice(&text).map_err(unwritable)?;
    }
    let mut workflow = Workflow::try_from(snapshot)?;
    workflow.bodies = bodies;
    Ok((workflow, progress, stored))
}

/// Reads the values and items that the end of a branch refers to, except those that `known` has in memory: a
/// join must not read the history of the run again.
pub(crate) async fn resolve(
    store: &dyn Store,
    known: &Workflow,
    env: &mut Map<String, Value>,
    transcripts: &mut BTreeMap<String, Transcript>,
    stored: &mut StoredValues,
    page: u32,
) -> Result<BTreeMap<(RunKey, u64), Bytes>, Error> {
    let mut rows = Rows::of(known, stored, env);
    let missing = rows.missing(env, transcripts);
    rows.read(store, missing, page).await?;
    rows.resolve(env, transcripts, stored)
}

// The runs whose rows a snapshot refers to.
fn runs_of(
    env: &Map<String, Value>,
    transcripts: &BTreeMap<String, Transcript>,
    step: Option<&Step>,
) -> BTreeSet<RunKey> {
    let mut runs = BTreeSet::new();
    for value in env.values() {
        runs.extend(value_ref(value).map(|at| at.run));
        runs.extend(ResponseAt::of(value).map(|(run, _)| run));
    }
    for piece in transcripts.values().flat_map(Transcript::pieces) {
        if let Piece::Stored(stored) = piece {
            runs.insert(stored.run);
        }
    }
    if let Some(Step::Llm { request, .. }) = step
        && let [(name, at)] = request.params.as_slice()
        && name == PARAMS
        && let Ok(at) = serde_json::from_str::<ValueRef>(at.get())
    {
        runs.insert(at.run);
    }
    runs
}

fn value_ref(value: &Value) -> Option<ValueRef> {
    ValueRef::deserialize(value.get(VALUE_MEMBER)?).ok()
}

/// Items, responses and values of runs.
#[derive(Default)]
struct Rows {
    items: BTreeMap<(RunKey, u64), Arc<RawValue>>,
    responses: BTreeMap<(RunKey, u64), Bytes>,
    values: BTreeMap<Sha256Digest, Bytes>,
}

impl Rows {
    // The rows that a workflow has in memory, as far as `env` can refer to them.
    fn of(workflow: &Workflow, stored: &StoredValues, env: &Map<String, Value>) -> Self {
        let mut rows = Self { responses: workflow.bodies.clone(), ..Self::default() };
        for piece in workflow.transcripts.values().flat_map(Transcript::pieces) {
            if let Piece::Stored(piece) = piece {
                let items = (piece.from..).zip(&piece.items);
                rows.items.extend(items.map(|(n, item)| ((piece.run, n), Arc::clone(item))));
            }
        }
        let wanted: BTreeSet<_> = env.values().filter_map(|v| Some(value_ref(v)?.digest)).collect();
        if wanted.iter().any(|digest| stored.0.contains_key(digest)) {
            let large = workflow.env.entries().filter(|(.., s)| s.bytes > VALUE_BYTES_MAX);
            for (_, value, _) in large {
                let text = Bytes::from(value.to_string());
                rows.values.insert(Sha256Digest::of(&text), text);
            }
        }
        rows
    }

    // The runs with rows that are referred to and not there yet.
    fn missing(
        &self,
        env: &Map<String, Value>,
        transcripts: &BTreeMap<String, Transcript>,
    ) -> BTreeSet<RunKey> {
        let mut runs = BTreeSet::new();
        for value in env.values() {
            let at = value_ref(value).filter(|at| !self.values.contains_key(&at.digest));
            runs.extend(at.map(|at| at.run));
            let at = ResponseAt::of(value).filter(|at| !self.responses.contains_key(at));
            runs.extend(at.map(|(run, _)| run));
        }
        for piece in transcripts.values().flat_map(Transcript::pieces) {
            let Piece::Stored(piece) = piece else { continue };
            if (piece.from..piece.to).any(|n| !self.items.contains_key(&(piece.run, n))) {
                runs.insert(piece.run);
            }
        }
        runs
    }

    async fn read(
        &mut self,
        store: &dyn Store,
        runs: BTreeSet<RunKey>,
        page: u32,
    ) -> Result<(), Error> {
        for run in runs {
            for row in steps_of(store, run, &[VALUE, ITEMS, RESPONSE], page).await? {
                self.take(run, &row)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, run: RunKey, row: &StepRow) -> Result<(), Error> {
        let Some(result) = &row.result else { return Ok(()) };
        let key = row.step_key.as_str();
        let damaged = || Error::corrupt(format!("row {key:?} of run {run} is damaged"));
        if row.kind == VALUE {
            let digest = Sha256Digest::of(&result.bytes);
            if value_key(&digest) != key {
                return Err(damaged());
            }
            self.values.insert(digest, result.bytes.clone());
            return Ok(());
        }
        if row.kind != ITEMS && row.kind != RESPONSE {
            return Ok(());
        }
        let from = key.strip_prefix("item:").and_then(|n| n.parse::<u64>().ok());
        let from = from.ok_or_else(damaged)?;
        let items: Vec<Box<RawValue>> = if row.kind == ITEMS {
            serde_json::from_slice(&result.bytes).map_err(|_| damaged())?
        } else {
            self.responses.insert((run, from), result.bytes.clone());
            let input: Value =
                row.input.as_ref().ok_or_else(damaged)?.read().map_err(|_| damaged())?;
            let format = WireFormat::deserialize(&input["format"]).map_err(|_| damaged())?;
            format.response_items(&result.bytes)?
        };
        let numbered = (from..).zip(items).map(|(n, item)| ((run, n), item.into()));
        self.items.extend(numbered);
        Ok(())
    }

    fn value(&self, at: &ValueRef) -> Result<Bytes, Error> {
        let missing =
            || Error::corrupt(format!("the value {} of run {} is gone", at.digest, at.run));
        self.values.get(&at.digest).cloned().ok_or_else(missing)
    }

    fn resolve(
        &self,
        env: &mut Map<String, Value>,
        transcripts: &mut BTreeMap<String, Transcript>,
        stored: &mut StoredValues,
    ) -> Result<BTreeMap<(RunKey, u64), Bytes>, Error> {
        let mut bodies = BTreeMap::new();
        for value in env.values_mut() {
            if let Some(at) = value_ref(value) {
                let text = self.value(&at)?;
                *value = serde_json::from_slice(&text).map_err(unwritable)?;
                stored.0.insert(at.digest, at.run);
            }
            if let Some(at) = ResponseAt::of(value)
                && let Some(body) = self.responses.get(&at)
            {
                bodies.insert(at, body.clone());
            }
        }
        for piece in transcripts.values_mut().flat_map(Transcript::pieces_mut) {
            let Piece::Stored(piece) = piece else { continue };
            let (run, range) = (piece.run, piece.from..piece.to);
            let items = range.map(|n| self.items.get(&(run, n)).cloned());
            piece.items = items.collect::<Option<_>>().ok_or_else(|| {
                Error::corrupt(format!("items of a transcript are gone from run {run}"))
            })?;
        }
        Ok(bodies)
    }
}

/// All steps of a run with one of these kinds.
pub(crate) async fn steps_of(
    store: &dyn Store,
    run_key: RunKey,
    kinds: &[StepKind],
    limit: u32,
) -> Result<Vec<StepRow>, Error> {
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let query = Query::Steps { run_key, after: after.clone(), limit };
        let mut page = store.list(query).await?.steps()?;
        let last = page.len() < limit as usize;
        after = page.last().map(|row| (row.position, row.step_key.clone()));
        page.retain(|row| kinds.contains(&row.kind));
        bodies::fill(store, bodies::of_steps(&mut page)).await?;
        found.extend(page);
        if last {
            return Ok(found);
        }
    }
}

/// The snapshot with which a retry begins: the same step, not begun yet.
pub(crate) fn retry_state(run: &Run) -> Result<Option<Body>, Error> {
    let Some(body) = &run.state else { return Ok(None) };
    let State { workflow, mut progress } = read_state(body)?;
    progress.begun = false;
    progress.receipts.extend(progress.retried.take());
    progress.retried = Some(run.run_key);
    progress.started_at.get_or_insert(run.created_at);
    // A retry calls the tools that there are now.
    progress.tool_sources.clear();
    Body::of(&State { workflow, progress }).map(Some)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Map, json};
    use windlass_kernel::{Limits, MemoryStore, RunKey, Timestamp};

    use super::*;

    // The store has no rows: everything that it would be asked for is in memory.
    #[tokio::test]
    async fn a_join_reads_nothing_that_the_run_has_in_memory() {
        let store = MemoryStore::new(Arc::new(|| Timestamp::ZERO), Limits::DEFAULT);
        let (own, other) = (RunKey(uuid::Uuid::from_u128(1)), RunKey(uuid::Uuid::from_u128(2)));
        let raw = |n: u64| RawValue::from_string(n.to_string()).unwrap().into();
        let mut run = Workflow::new("r", "f");
        run.transcript("chat").push_stored(own, 0, (0..9).map(raw).collect());
        run.bodies.insert((own, 3), Bytes::from_static(b"{}"));
        let text = "x".repeat(VALUE_BYTES_MAX);
        run.set("large", &text).unwrap();
        let digest = Sha256Digest::of(json!(text).to_string().as_bytes());
        let mut stored = StoredValues(BTreeMap::from([(digest, own)]));
        // A branch ended with a part of the transcript, an answer and a value of the run.
        let mut piece = Transcript::default();
        piece.push_stored(own, 2, (2..5).map(raw).collect());
        let mut ended = BTreeMap::from([("chat".to_owned(), piece)]);
        let Piece::Stored(piece) = &mut ended.get_mut("chat").unwrap().pieces_mut()[0] else {
            panic!("the piece is stored")
        };
        piece.items.clear();
        let at =
            |run: RunKey| json!({ VALUE_MEMBER: ValueRef { run, digest, bytes: text.len() + 2 } });
        let answer =
            json!({ "$response": { "format": "anthropic_messages", "run": own, "item": 3 } });
        let mut env = Map::from_iter([("copy".to_owned(), at(own)), ("answer".to_owned(), answer)]);
        let bodies = resolve(&store, &run, &mut env, &mut ended, &mut stored, 10).await.unwrap();
        assert_eq!((bodies.len(), &env["copy"]), (1, &json!(text)));
        let items: Vec<_> = ended["chat"].items().map(|item| item.get().to_owned()).collect();
        assert_eq!(items, ["2", "3", "4"]);
        // A row of the branch is read, and is not there.
        let mut piece = Transcript::default();
        piece.push_stored(other, 0, vec![raw(0)]);
        let mut ended = BTreeMap::from([("chat".to_owned(), piece)]);
        let missing = resolve(&store, &run, &mut Map::new(), &mut ended, &mut stored, 10).await;
        assert_eq!(missing.unwrap_err().code(), "STORE_CORRUPT");
    }
}
