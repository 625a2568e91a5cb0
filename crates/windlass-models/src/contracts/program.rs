//! A run of a document: reads the records, decides with the token engine, and commits.
//!
//! A message only wakes the run. Each round reads the document's row and the requests for approval again, and
//! each commit checks the revision of the document that the decision was made for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use windlass_contracts::tokens::{Input, State, Status, StepStatus as RowStatus, Verdict, restart};
use windlass_contracts::types::{CompiledWorkflow, NodeType};
use windlass_engine::{Program, RecordChange, Turn, TurnError, conflict_delay};
use windlass_kernel::{
    Body, BoxFuture, CommitError, Conflict, Draft, Error, ErrorCode, Expect, Message, MessageKind,
    Run, StepKey, Timestamp, Wake,
};

use super::approvals::Approval;
use super::chains::StageResult;
use super::description::DOCUMENT_MUTATED;
use super::document::{Document, PendingAction, Person};
use super::documents::put_document;
use super::error::{invalid, no_document};
use super::names::{APPROVALS, DOCUMENTS, ROTATIONS, document_id, key};
use super::rows::{self, Snapshot};
use super::shared::{Contract, Shared};
use super::waits::{self, Delivery, Ending};
use super::work::{ACTION_FAILED, Stop, Work};
use crate::kit;

/// After so many lost rounds the run waits before it tries again.
const LOSSES_MAX: u32 = 50;
/// How often a run looks at the receipt of an effect that an earlier generation enqueued.
const RECEIPT_EVERY: Duration = Duration::from_secs(10);
/// The most messages that one commit consumes.
const CONSUMED_MAX: usize = 100;

pub(crate) struct DocumentProgram {
    pub(crate) shared: Arc<Shared>,
    entity_type: String,
    id: String,
    snapshot: Snapshot,
}

#[derive(Deserialize)]
struct RunInput {
    document: String,
}

/// The records that a round reads.
pub(crate) struct View {
    pub(crate) document: Document,
    pub(crate) artefact: Arc<CompiledWorkflow>,
    pub(crate) contract: Arc<Contract>,
    pub(crate) org: Value,
    /// The requests of waiting approvals, by key of the step.
    pub(crate) approvals: BTreeMap<String, (Approval, u64)>,
    /// The steps that wait for a delivery which has come.
    delivered: BTreeSet<String>,
}

/// The next thing that a run does.
enum Next {
    /// Writes the rows that a retry has from the generation before.
    CarryOver,
    /// Gives an input to the token engine.
    Take(Input, Person),
    /// Gives an event by key to the token engine: its number in the mailbox.
    Event(Input, Person, u64),
    /// Asks the next stage of an approval chain.
    Stage(String),
}

impl Next {
    fn action(pending: &PendingAction) -> Self {
        Self::Take(Input::Action { gate: pending.gate.clone() }, pending.by.clone())
    }

    fn is_same_action(&self, other: &Self) -> bool {
        let Self::Take(input @ Input::Action { .. }, _) = self else { return false };
        matches!(other, Self::Take(other, _) if other == input)
    }
}

impl View {
    /// The cancellation that a person has asked for.
    fn cancellation(&self) -> Option<Next> {
        let mut pending = self.document.row.pending.iter();
        pending.find(|pending| self.contract.cancels(&pending.gate)).map(Next::action)
    }
}

impl DocumentProgram {
    pub(crate) fn open(shared: Arc<Shared>, entity_type: &str, run: &Run) -> Result<Self, Error> {
        let input: RunInput = run.input.read()?;
        let snapshot = match &run.state {
            Some(state) => state.read()?,
            None => {
                Snapshot { origin: run.generation, run: Some(run.run_key), ..Snapshot::default() }
            }
        };
        Ok(Self { shared, entity_type: entity_type.to_owned(), id: input.document, snapshot })
    }

    async fn take(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        turn.replayed();
        let mut losses = 0;
        loop {
            if kit::apply_control(turn).await? {
                return Ok(());
            }
            let began = turn.now();
            let view = match self.view(turn).await {
                Ok(view) => view,
                Err(error) if error.is_retryable() => return Err(TurnError::Store(error)),
                Err(error) if error.code() == ErrorCode::DocumentNotFound => {
                    let stop = Stop::new("DOCUMENT_NOT_FOUND", error.message(), None);
                    return self.fail(turn, None, &stop).await.map(drop);
                }
                Err(error) => return Err(TurnError::Blocked(error)),
            };
            let Some(next) = self.next(&view, turn) else { return self.park(turn).await };
            if turn.is_draining() || !turn.take_step() {
                return self.park_until(turn, Wake::Now).await;
            }
            match self.advance(turn, &view, next).await? {
                Advanced::Released => return Ok(()),
                Advanced::Again => {
                    losses = 0;
                    self.shared.figures.advanced(turn.now().since(began));
                }
                Advanced::Lost => {
                    losses += 1;
                    self.shared.figures.lost();
                    if losses > LOSSES_MAX {
                        let at = turn.now().plus(Duration::from_secs(1));
                        return self.park_until(turn, Wake::At(at)).await;
                    }
                    let delay = conflict_delay(turn.env().random(), losses);
                    let sleep = turn.env().sleep(delay);
                    sleep.await;
                }
            }
        }
    }

    async fn view(&self, turn: &Turn) -> Result<View, Error> {
        let namespace = &turn.run.namespace;
        let document = self.shared.document(namespace, &self.entity_type, &self.id).await?;
        let document = document.ok_or_else(|| no_document(&self.entity_type, &self.id))?;
        let row = &document.row;
        let artefact = self.shared.artefact(namespace, row.artefact).await?;
        let contract = self.shared.contract(&self.entity_type, row.envelope_version).await?;
        let org = self.shared.settings(namespace).await?;
        let waits: Vec<&str> = self
            .snapshot
            .state
            .open
            .values()
            .filter(|row| row.node_type == NodeType::Approval && row.status == RowStatus::Waiting)
            .map(|row| row.key.as_str())
            .collect();
        let mut approvals = BTreeMap::new();
        for chunk in waits.chunks(self.shared.limits.records_per_commit_max) {
            let keys: Result<Vec<_>, Error> = chunk
                .iter()
                .map(|step| key(namespace, APPROVALS, &self.approval_id(step)))
                .collect();
            let found = self.shared.store.records(keys?).await?;
            for (step, record) in chunk.iter().zip(found) {
                let Some(record) = record else { continue };
                let Some(body) = &record.body else { continue };
                approvals.insert((*step).to_owned(), (body.read()?, record.revision));
            }
        }
        let deliveries = &self.snapshot.deliveries;
        let delivered = waits::delivered(&self.shared, namespace, deliveries).await?;
        Ok(View { document, artefact, contract, org, approvals, delivered })
    }

    pub(crate) fn approval_id(&self, step: &str) -> String {
        Approval::id_of(&self.entity_type, &self.id, self.snapshot.origin, step)
    }

    pub(crate) fn origin(&self) -> u32 {
        self.snapshot.origin
    }

    /// The version of the document that the last commit has seen.
    pub(crate) fn seen_version(&self) -> u64 {
        self.snapshot.seen_version
    }

    pub(crate) fn state(&self) -> &State {
        &self.snapshot.state
    }

    /// The next thing to do, from records and the clock alone. Messages do not matter.
    fn next(&self, view: &View, turn: &Turn) -> Option<Next> {
        let (state, row) = (&self.snapshot.state, &view.document.row);
        let by = |input| Some(Next::Take(input, row.actor.clone()));
        match state.status {
            Status::New => return by(restart(&view.artefact, &row.state, row.has_drifted())),
            _ if self.snapshot.run != Some(turn.run.run_key) => return Some(Next::CarryOver),
            // A retry may fail again, so it does not hold up a cancellation.
            Status::Failed => return view.cancellation().or_else(|| by(Input::Retry)),
            Status::Running | Status::Completed => {}
        }
        if let Some(pending) = row.pending.first() {
            return Some(Next::action(pending));
        }
        if row.version != self.snapshot.seen_version {
            return by(Input::DocumentChanged);
        }
        if let Some(next) = self.next_event(&row.actor, turn) {
            return Some(next);
        }
        let now = turn.now().as_micros();
        let mut waiting = state.open.values().filter(|row| row.status == RowStatus::Waiting);
        waiting.find_map(|step| {
            if view.delivered.contains(&step.key) {
                return by(Input::Delivered { key: step.key.clone() });
            }
            if step.resume_at.is_some_and(|at| at <= now) {
                return by(Input::Timer { key: step.key.clone() });
            }
            let (approval, _) = view.approvals.get(&step.key)?;
            let asked = approval.counted(row);
            let decisions: BTreeMap<String, Verdict> = approval
                .decisions
                .iter()
                .filter(|(person, _)| asked.contains(*person))
                .map(|(person, note)| (person.clone(), note.verdict))
                .collect();
            let (asked, decisions) = match &approval.chain {
                None => (asked, decisions),
                Some(chain) => match chain.result(&asked, &decisions, &approval.givers()) {
                    StageResult::Open => return None,
                    StageResult::Next => return Some(Next::Stage(step.key.clone())),
                    StageResult::Decided => {
                        chain.final_votes(&asked, &decisions, &approval.givers())
                    }
                },
            };
            if decisions.is_empty()
                || step.output["decisions"] == json!(decisions)
                || self.snapshot.ignored.get(&step.key) == Some(&decisions)
            {
                return None;
            }
            let (key, givers) = (step.key.clone(), approval.givers());
            let input = Input::Approval { key, asked, decisions, givers };
            Some(Next::Take(input, approval.last_decider()?))
        })
    }

    /// The first event by key that a waiting step gets.
    fn next_event(&self, actor: &Person, turn: &Turn) -> Option<Next> {
        self.snapshot.waits.iter().find_map(|(key, wait)| {
            let (seq, message) = waits::event_for(&turn.mailbox, wait)?;
            let payload = message.body.as_ref().and_then(|body| body.read().ok());
            let payload = payload.unwrap_or(Value::Null);
            let input = Input::Event { key: key.clone(), payload };
            Some(Next::Event(input, actor.clone(), seq))
        })
    }

    /// Releases the turn until the next time that a step waits for.
    async fn park(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let wake = self.wake(turn);
        self.park_until(turn, wake).await
    }

    async fn park_until(&mut self, turn: &mut Turn, wake: Wake) -> Result<(), TurnError> {
        let mut draft = turn.draft();
        let consumed = consume(turn, &mut draft, None).map_err(TurnError::Blocked)?;
        kit::release(turn, &mut draft, wake);
        turn.commit(draft).await?;
        drop_messages(turn, &consumed);
        Ok(())
    }

    fn wake(&self, turn: &Turn) -> Wake {
        let state = &self.snapshot.state;
        let waiting = state.open.values().filter(|row| row.status == RowStatus::Waiting);
        let due = waiting.filter_map(|row| row.resume_at.map(Timestamp::from_micros));
        // The effect of an earlier generation wakes that one, so this one looks at the receipt itself.
        let mut deliveries = self.snapshot.deliveries.values();
        let is_earlier = deliveries.any(|delivery| delivery.run != turn.run.run_key);
        let look = is_earlier.then(|| turn.now().plus(RECEIPT_EVERY));
        due.chain(look).min().map_or(Wake::OnMessage, Wake::At)
    }

    async fn advance(
        &mut self,
        turn: &mut Turn,
        view: &View,
        next: Next,
    ) -> Result<Advanced, TurnError> {
        // An action that cannot be carried out does not hold up a cancellation behind it.
        let cancellation = match self.snapshot.state.status {
            Status::Running => view.cancellation().filter(|other| !next.is_same_action(other)),
            _ => None,
        };
        let stop = match self.attempt(turn, view, next).await? {
            Ok(advanced) => return Ok(advanced),
            Err(stop) => stop,
        };
        if let Some(cancellation) = cancellation
            && let Ok(advanced) = self.attempt(turn, view, cancellation).await?
        {
            return Ok(advanced);
        }
        self.fail(turn, Some(view), &stop).await
    }

    async fn attempt(&mut self, turn: &mut Turn, view: &View, next: Next) -> Attempt {
        let work = match next {
            Next::CarryOver => Ok(Work::carry_over(self, view)),
            Next::Take(input, person) => self.decide(turn, view, input, person).await,
            Next::Event(input, person, seq) => {
                let decided = self.decide(turn, view, input, person).await;
                decided.map(|work| Work { ending: Some(Ending::Event(seq)), ..work })
            }
            Next::Stage(step) => {
                let (namespace, now) = (turn.run.namespace.clone(), turn.now());
                Work::next_stage(self, view, namespace, &step, now).await
            }
        };
        match work {
            Ok(work) => self.commit(turn, view, work).await,
            Err(stop) if stop.retryable => Err(TurnError::Store(stop.error())),
            Err(stop) => Ok(Err(stop)),
        }
    }

    async fn decide(
        &self,
        turn: &Turn,
        view: &View,
        input: Input,
        person: Person,
    ) -> Result<Work, Stop> {
        let is_timer = matches!(input, Input::Timer { .. });
        let (namespace, now) = (turn.run.namespace.clone(), turn.now());
        let work = Work::of(self, view, namespace, input, person, now).await?;
        Ok(Work { ending: is_timer.then_some(Ending::Timeout), ..work })
    }

    async fn commit(&mut self, turn: &mut Turn, view: &View, mut work: Work) -> Attempt {
        let mut snapshot = self.snapshot.clone();
        let run_key = turn.run.run_key;
        if snapshot.run != Some(run_key) {
            // The registrations of the generation before ended with it.
            snapshot.waits.clear();
        }
        snapshot.run = Some(run_key);
        snapshot.seen_version = work.row.version;
        match work.ignored.take() {
            Some((step, decisions)) => drop(snapshot.ignored.insert(step, decisions)),
            None => snapshot.ignored.clear(),
        }
        (work.row.run, work.row.run_origin) = (Some(run_key), snapshot.origin);
        let changes = match self.record_changes(turn, view, &work) {
            Ok(changes) => changes,
            Err(error) => return Ok(Err(Stop::of(&error))),
        };
        let mut draft = turn.draft();
        let event = match &work.ending {
            Some(Ending::Event(seq)) => Some(*seq),
            _ => None,
        };
        let consumed = consume(turn, &mut draft, event).map_err(TurnError::Blocked)?;
        self.write_rows(turn, &mut draft, &mut snapshot, &work).map_err(TurnError::Blocked)?;
        write_records(turn, &mut draft, &changes).map_err(TurnError::Blocked)?;
        write_effects(turn, &mut draft, &mut snapshot, &work).map_err(TurnError::Blocked)?;
        snapshot.state = work.state.clone();
        let stamp = turn.stamp();
        let state = Body::of(&snapshot).map_err(TurnError::Blocked)?;
        draft.state(state, stamp);
        let ended = match (work.state.status, &work.stop) {
            (_, Some(stop)) => {
                turn.cancel_open_steps(&mut draft).await?;
                let body = stop.body().map_err(TurnError::Blocked)?;
                // A retry goes on with the requests.
                draft.skip_on_end();
                kit::fail(turn, &mut draft, &stop.name, body).map_err(TurnError::Blocked)?;
                true
            }
            (Status::Completed, _) => {
                let row = &work.row;
                let output =
                    json!({"document": row.id, "version": row.version, "state": row.state});
                let output = Body::of(&output).map_err(TurnError::Blocked)?;
                // The run has closed or withdrawn its requests.
                draft.skip_on_end();
                kit::complete(turn, &mut draft, output).map_err(TurnError::Blocked)?;
                true
            }
            _ => false,
        };
        match turn.try_commit(draft).await? {
            Ok(_) => {
                self.count_ended(&work, turn.now());
                self.snapshot = snapshot;
                drop_messages(turn, &consumed);
                Ok(Ok(if ended { Advanced::Released } else { Advanced::Again }))
            }
            Err(CommitError::Conflict(conflict)) if is_read_before(&conflict) => {
                Ok(Ok(Advanced::Lost))
            }
            // The record of an action. The action does not read it, so it would write the same again.
            Err(CommitError::Conflict(conflict)) => {
                let message = format!("an action cannot write its record: {conflict}");
                Ok(Err(Stop::new(ACTION_FAILED, message, None)))
            }
            Err(error) => Err(TurnError::Blocked(windlass_engine::refusal(&error))),
        }
    }

    /// Counts the nodes that waited and have ended.
    fn count_ended(&self, work: &Work, now: Timestamp) {
        for row in work.rows.values().filter(|row| row.status == RowStatus::Completed) {
            let began = self.snapshot.placed.get(&row.seq).map_or(now, |(_, at)| *at);
            self.shared.figures.ended(row.node_type, now.since(began));
        }
    }

    fn write_rows(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        snapshot: &mut Snapshot,
        work: &Work,
    ) -> Result<(), Error> {
        let fails = work.stop.is_some();
        for row in work.rows.values() {
            let before = self.snapshot.state.open.get(&row.seq);
            let settled = before.is_some_and(|before| before.status == RowStatus::Completed);
            if !fails {
                // The end of a run removes its registrations; a retry makes them again.
                waits::keep(turn, draft, snapshot, row, work.ending.as_ref())?;
            }
            rows::write(turn, draft, snapshot, row, settled, fails)?;
        }
        Ok(())
    }

    /// The records that a commit checks and writes, within the limits of a commit.
    fn record_changes(
        &self,
        turn: &Turn,
        view: &View,
        work: &Work,
    ) -> Result<Vec<RecordChange>, Error> {
        let record = document_id(&self.entity_type, &self.id)?;
        let (before, at) = (&view.document.row, Expect::At(view.document.revision));
        let document = if work.row == *before {
            RecordChange::check(DOCUMENTS, record, at)?
        } else {
            let keep = (work.row.version, &work.row.state) != (before.version, &before.state);
            put_document(&record, &work.row, at, keep)?
        };
        let mut changes = vec![document];
        for held in work.approvals.values().filter(|one| one.is_changed()) {
            changes.push(held.approval.put(held.expect)?);
        }
        changes.extend(work.records.iter().cloned());
        let limits = turn.limits();
        for change in &changes {
            change.check_limits(limits)?;
        }
        let bytes: usize = changes.iter().map(RecordChange::bytes).sum();
        let sizes = [
            ("records", changes.len(), limits.records_per_commit_max),
            ("bytes of records", bytes, limits.records_bytes_per_commit_max),
        ];
        match sizes.into_iter().find(|(_, found, max)| found > max) {
            None => Ok(changes),
            Some((what, found, max)) => {
                let message = format!("one turn writes {found} {what}; at most {max} are allowed");
                Err(invalid(ErrorCode::InvalidSize, message))
            }
        }
    }

    /// Ends the run with an error. Nothing of the decision that failed is written: a retry decides again. The
    /// document must be as it was for the decision, so that an action which a person calls meanwhile is not lost.
    async fn fail(
        &mut self,
        turn: &mut Turn,
        view: Option<&View>,
        stop: &Stop,
    ) -> Result<Advanced, TurnError> {
        let mut draft = turn.draft();
        let consumed = consume(turn, &mut draft, None).map_err(TurnError::Blocked)?;
        if let Some(view) = view {
            let at = Expect::At(view.document.revision);
            let record = document_id(&self.entity_type, &self.id).map_err(TurnError::Blocked)?;
            let check = RecordChange::check(DOCUMENTS, record, at).map_err(TurnError::Blocked)?;
            write_records(turn, &mut draft, &[check]).map_err(TurnError::Blocked)?;
        }
        turn.cancel_open_steps(&mut draft).await?;
        let stamp = turn.stamp();
        draft.state(Body::of(&self.snapshot).map_err(TurnError::Blocked)?, stamp);
        let body = stop.body().map_err(TurnError::Blocked)?;
        draft.skip_on_end();
        kit::fail(turn, &mut draft, &stop.name, body).map_err(TurnError::Blocked)?;
        match turn.try_commit(draft).await? {
            Ok(_) => {
                drop_messages(turn, &consumed);
                Ok(Advanced::Released)
            }
            Err(CommitError::Conflict(Conflict::Record { .. })) => Ok(Advanced::Lost),
            Err(error) => Err(TurnError::Blocked(windlass_engine::refusal(&error))),
        }
    }
}

enum Advanced {
    Released,
    Again,
    /// Another writer was first.
    Lost,
}

/// An attempt to advance. If the decision cannot be carried out, nothing is written.
type Attempt = Result<Result<Advanced, Stop>, TurnError>;

/// Whether a record is one that a run reads before it decides. Another writer of it makes the run decide again.
fn is_read_before(conflict: &Conflict) -> bool {
    let Conflict::Record { collection, .. } = conflict else { return false };
    [DOCUMENTS, APPROVALS, ROTATIONS].contains(&collection.as_str())
}

fn write_records(
    turn: &mut Turn,
    draft: &mut Draft,
    changes: &[RecordChange],
) -> Result<(), Error> {
    let namespace = turn.run.namespace.clone();
    for change in changes {
        let stamp = turn.stamp();
        draft.record(change.op(&namespace, stamp), stamp)?;
    }
    Ok(())
}

/// Enqueues the effects of a commit, and remembers those whose delivery a step waits for.
fn write_effects(
    turn: &mut Turn,
    draft: &mut Draft,
    snapshot: &mut Snapshot,
    work: &Work,
) -> Result<(), Error> {
    for (key, effect) in &work.effects {
        let task_id = effect.enqueue(turn, draft, ("step", json!(key)))?;
        if work.awaited.contains(key) && work.stop.is_none() {
            let run = turn.run.run_key;
            snapshot.deliveries.insert(key.clone(), Delivery { task_id, run });
        }
    }
    Ok(())
}

/// Consumes the messages that have woken the run, and the event by key that this commit is about. Other events by
/// key stay unread: a later wait for the same key gets them. Only the bodies of events by key are read.
fn consume(turn: &mut Turn, draft: &mut Draft, event: Option<u64>) -> Result<Vec<u64>, Error> {
    let messages: Vec<Message> = turn
        .mailbox
        .values()
        .filter(|message| match message.kind {
            MessageKind::Control => false,
            MessageKind::KeyedEvent => Some(message.seq) == event,
            _ => true,
        })
        .take(CONSUMED_MAX)
        .cloned()
        .collect();
    if !messages.is_empty() {
        let stamp = turn.stamp();
        let payload = json!({ "messages": messages.len() });
        let by = StepKey::from_stored("document");
        draft.consume_all(DOCUMENT_MUTATED, &payload, &messages, by, stamp)?;
    }
    Ok(messages.into_iter().map(|message| message.seq).collect())
}

fn drop_messages(turn: &mut Turn, consumed: &[u64]) {
    for seq in consumed {
        turn.mailbox.remove(seq);
    }
}

impl Program for DocumentProgram {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(self.take(turn))
    }

    fn bytes(&self) -> usize {
        const ROW: usize = 1_500;
        size_of::<Self>() + 500 + self.snapshot.state.open.len() * ROW
    }
}
