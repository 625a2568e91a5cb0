//! A batch is read until it has ended, and its results are handed to its members.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_engine::{RecordChange, Turn, TurnError};
use windlass_kernel::{
    Body, Draft, Error, Expect, MessageId, MessageKind, MessageName, NewMessage, StepStatus,
    Timestamp,
};

use super::filling::index_of;
use super::program::{COMPLETED, FAILED, LaneProgram, RETRIED};
use super::state::{Answer, InFlight, Join, MESSAGE, Phase, Told, What};
use super::view::{self, BATCHES, BatchInfo};
use crate::agents::batch::{BatchEnd, BatchLine, BatchView};
use crate::agents::provider::ProviderResponse;
use crate::agents::telemetry;

/// How many messages, and how many bytes of answers, one commit sends.
pub(super) const MESSAGES_MAX: usize = 200;
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// A batch that has not ended so long after its time is cancelled, and given up after the same time again.
const EXPIRED_GRACE: Duration = Duration::from_secs(60 * 60);
/// How often the results of a batch are read in vain before they are given up: with the default options this takes
/// more than eight hours.
const FAILED_READS_MAX: u32 = 500;

/// The changes of the next commit about a batch.
pub(super) struct Change {
    pub(super) batch: InFlight,
    pub(super) event: Option<(windlass_kernel::EventType, Value)>,
    pub(super) closed_until: Option<Timestamp>,
    pub(super) view: Option<BatchView>,
}

/// Why a batch has no results. Its members follow the policy of their agents.
pub(super) struct GivenUp<'a> {
    pub(super) why: &'a str,
    pub(super) possibly_paid: bool,
    /// The requests that the provider does not accept, by their numbers among those that were sent.
    pub(super) refused: &'a [usize],
}

impl<'a> GivenUp<'a> {
    /// The provider has charged for nothing.
    pub(super) fn unsent(why: &'a str) -> Self {
        Self { why, possibly_paid: false, refused: &[] }
    }

    /// The provider may have charged for all of it.
    fn lost(why: &'a str) -> Self {
        Self { why, possibly_paid: true, refused: &[] }
    }
}

impl Change {
    pub(super) fn of(batch: InFlight) -> Self {
        Self { batch, event: None, closed_until: None, view: None }
    }
}

impl LaneProgram {
    /// Takes the next step of a batch.
    pub(super) async fn advance_batch(
        &mut self,
        turn: &mut Turn,
        index: usize,
    ) -> Result<(), TurnError> {
        let batch = self.state.in_flight[index].clone();
        match batch.phase.clone() {
            Phase::Refused if batch.cancel => {
                self.give_up(turn, batch, GivenUp::unsent("cancelled")).await
            }
            Phase::Refused => self.create(turn, batch).await,
            Phase::Intended => self.find(turn, batch).await,
            Phase::Created { told: false, .. } => self.tell_members(turn, batch).await,
            Phase::Created { .. } => self.look(turn, batch).await,
        }
    }

    pub(super) fn told(&self, batch: &InFlight, member: &Join, what: What) -> Told {
        Told {
            call: member.call,
            attempt: member.attempt,
            intent: batch.intent.clone(),
            provider_batch: batch.provider_id().map(ToOwned::to_owned),
            what,
        }
    }

    // Reads the batch at the provider.
    async fn look(&mut self, turn: &mut Turn, mut batch: InFlight) -> Result<(), TurnError> {
        let Some(id) = batch.provider_id().map(ToOwned::to_owned) else { return Ok(()) };
        let asked = std::mem::take(&mut batch.cancel);
        let mut again = false;
        let read = match asked {
            true => match self.provider()?.cancel(&id).await {
                Err(error) => {
                    tracing::warn!(%error, batch = id, "failed to cancel a batch");
                    again = true;
                    // It may have ended, and then it can never be cancelled.
                    self.provider()?.read(&id).await
                }
                cancelled => cancelled,
            },
            false => self.provider()?.read(&id).await,
        };
        match read {
            Ok(view) if view.ended => self.settle(turn, batch, view).await,
            Ok(view) if view.is_over(turn.now(), EXPIRED_GRACE * 2) => {
                let why = "the provider has not ended the batch, which has expired";
                self.give_up(turn, batch, GivenUp::lost(why)).await
            }
            Ok(view) => {
                // A cancelled batch is read before it is cancelled again.
                batch.cancel = again || !asked && view.is_over(turn.now(), EXPIRED_GRACE);
                batch.next = turn.now().plus(self.poll_delay(batch.polls));
                batch.polls += 1;
                self.write(turn, Change { view: Some(view), ..Change::of(batch) }).await
            }
            Err(error) if error.status() == Some(404) => {
                let why = "the provider has no such batch any more";
                self.give_up(turn, batch, GivenUp::lost(why)).await
            }
            Err(error) => {
                batch.cancel = again;
                tracing::warn!(%error, batch = id, "failed to read a batch; it is read again");
                let wait = error.retry_after().unwrap_or_else(|| self.poll_delay(batch.polls));
                batch.next = turn.now().plus(wait);
                batch.polls += 1;
                self.write(turn, Change::of(batch)).await
            }
        }
    }

    pub(super) fn poll_delay(&self, polls: u32) -> Duration {
        let options = &self.served.options;
        let grown = options.poll_min.saturating_mul(1 << polls.min(16));
        grown.min(options.poll_max)
    }

    // Hands the results to the members. After a crash the results are read again from their start; a member
    // that has its answer ignores the second one, because the message has the same id.
    async fn settle(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
        mut view: BatchView,
    ) -> Result<(), TurnError> {
        if let Some(refused) = view.refused.take() {
            return self.refused(turn, batch, view, refused).await;
        }
        let members = self.members_of(&batch)?;
        let mut seen = BTreeSet::new();
        let mut counts = Counts::default();
        let (mut part, mut bytes) = (Vec::new(), 0);
        let served = self.served.clone();
        let Some(batches) = served.provider.batches() else { return Ok(()) };
        let mut results = batches.results(&view);
        loop {
            let line = match results.next().await {
                Ok(line) => line,
                Err(error) => {
                    batch.failed_reads += 1;
                    let gone = matches!(error.status(), Some(404 | 410));
                    if gone || batch.failed_reads >= FAILED_READS_MAX {
                        drop(results);
                        // The first end that a member hears of counts.
                        self.send(turn, part).await?;
                        let why = format!("the results of the batch cannot be read: {error}");
                        return self.give_up(turn, batch, GivenUp::lost(&why)).await;
                    }
                    tracing::warn!(%error, batch = view.id, "failed to read results; they are read again");
                    batch.next = turn.now().plus(self.poll_delay(batch.polls));
                    batch.polls += 1;
                    return self.write(turn, Change::of(batch)).await;
                }
            };
            let Some(line) = line else { break };
            let BatchLine::Member { custom_id, end } = line else {
                counts.bad += 1;
                continue;
            };
            let index = index_of(&batch.intent, &custom_id);
            let Some((index, member)) = index.and_then(|at| Some((at, members.get(at)?))) else {
                counts.unknown += 1;
                continue;
            };
            if !seen.insert(index) {
                counts.duplicates += 1;
                continue;
            }
            let told = self.told(&batch, member, counts.take(end, &self.engine.limits));
            let message = message(member, &told, "end", turn.now()).map_err(TurnError::Blocked)?;
            bytes += message.body.as_ref().map_or(0, Body::len);
            part.push(message);
            if part.len() >= MESSAGES_MAX || bytes >= MESSAGE_BYTES_MAX {
                self.send(turn, std::mem::take(&mut part)).await?;
                bytes = 0;
            }
        }
        drop(results);
        self.send(turn, part).await?;
        let provisional = matches!(batch.phase, Phase::Created { provisional: true, .. });
        if provisional && seen.is_empty() && counts.unknown > 0 {
            return self.was_foreign(turn, batch, view).await;
        }
        self.finish(turn, batch, view, &members, &seen, counts).await
    }

    // The batch that was found by its size belongs to somebody else: ours never arrived, or is another one.
    async fn was_foreign(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
        view: BatchView,
    ) -> Result<(), TurnError> {
        let payload = json!({
            "step": super::filling::batch_key(batch.number), "intent": batch.intent,
            "provider_batch_id": view.id, "foreign": true,
        });
        batch.foreign.push(view.id);
        (batch.phase, batch.next) = (Phase::Intended, turn.now());
        let event = Some((RETRIED, payload));
        self.write(turn, Change { event, ..Change::of(batch) }).await
    }

    pub(super) async fn send(
        &mut self,
        turn: &mut Turn,
        messages: Vec<NewMessage>,
    ) -> Result<(), TurnError> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut draft = turn.draft();
        for message in messages {
            draft.send(message);
        }
        turn.commit(draft).await.map(|_| ())
    }

    // The members without a result, and the end of the batch.
    async fn finish(
        &mut self,
        turn: &mut Turn,
        batch: InFlight,
        view: BatchView,
        members: &[Join],
        seen: &BTreeSet<usize>,
        counts: Counts,
    ) -> Result<(), TurnError> {
        // Members that were not sent have no result, and wait for none.
        let missing: Vec<&Join> = sent_of(&batch, members)
            .filter(|index| !seen.contains(index))
            .map(|index| &members[index])
            .collect();
        let count = missing.len();
        let what = What::Failed {
            reason: "missing".into(),
            message: "the results of the batch have no line for the request".into(),
            retryable: true,
            possibly_paid: true,
        };
        self.tell(turn, &batch, missing, &what).await?;
        let payload = json!({
            "step": super::filling::batch_key(batch.number), "intent": batch.intent,
            "provider_batch_id": view.id, "succeeded": counts.succeeded, "errored": counts.errored,
            "expired": counts.expired, "cancelled": counts.cancelled, "missing": count,
            "unknown": counts.unknown, "duplicates": counts.duplicates, "bad_lines": counts.bad,
        });
        self.end(turn, batch, Some(view), COMPLETED, &payload, StepStatus::Completed).await
    }

    /// The batch has no results: sends its members a message, and each decides by its policy.
    pub(super) async fn give_up(
        &mut self,
        turn: &mut Turn,
        batch: InFlight,
        given_up: GivenUp<'_>,
    ) -> Result<(), TurnError> {
        let members = self.members_of(&batch)?;
        let GivenUp { why, possibly_paid, refused } = given_up;
        let why: String = why.chars().take(500).collect();
        // A refusal of the whole batch says nothing about one request, unless the provider names it.
        let failed = |retryable, possibly_paid| What::Failed {
            reason: "refused".into(),
            message: why.clone(),
            retryable,
            possibly_paid,
        };
        let sent: Vec<usize> = sent_of(&batch, &members).collect();
        let wrong: BTreeSet<usize> =
            refused.iter().filter_map(|at| sent.get(*at).copied()).collect();
        let right = sent.iter().filter(|index| !wrong.contains(index));
        let right: Vec<&Join> = right.map(|index| &members[*index]).collect();
        self.tell(turn, &batch, right, &failed(true, possibly_paid)).await?;
        let wrong: Vec<&Join> = wrong.iter().map(|index| &members[*index]).collect();
        self.tell(turn, &batch, wrong, &failed(false, false)).await?;
        let left: Vec<&Join> = batch.left.iter().map(|index| &members[*index as usize]).collect();
        self.tell(turn, &batch, left, &failed(true, false)).await?;
        let digest = windlass_kernel::Sha256Digest::of(why.as_bytes());
        let payload = json!({
            "step": super::filling::batch_key(batch.number), "intent": batch.intent,
            "provider_batch_id": batch.provider_id(), "members": batch.members,
            "error": { "bytes": why.len(), "digest": digest }, "possibly_paid": possibly_paid,
        });
        self.end(turn, batch, None, FAILED, &payload, StepStatus::Errored).await
    }

    async fn tell(
        &mut self,
        turn: &mut Turn,
        batch: &InFlight,
        members: Vec<&Join>,
        what: &What,
    ) -> Result<(), TurnError> {
        for part in members.chunks(MESSAGES_MAX) {
            let told = part.iter().map(|member| {
                let told = self.told(batch, member, what.clone());
                message(member, &told, "end", turn.now())
            });
            let messages: Vec<_> = told.collect::<Result<_, _>>().map_err(TurnError::Blocked)?;
            self.send(turn, messages).await?;
        }
        Ok(())
    }

    async fn end(
        &mut self,
        turn: &mut Turn,
        batch: InFlight,
        view: Option<BatchView>,
        event: windlass_kernel::EventType,
        payload: &Value,
        status: StepStatus,
    ) -> Result<(), TurnError> {
        let mut state = self.state.clone();
        state.in_flight.retain(|other| other.number != batch.number);
        if status == StepStatus::Completed {
            state.took(turn.now().since(batch.oldest));
        }
        let mut draft = turn.draft();
        let stamp = turn.stamp();
        let result = Body::of(payload).map_err(TurnError::Blocked)?;
        let rows = self.ended_rows(&batch, status, Some(result), stamp.at);
        draft.steps(event, payload, rows, stamp).map_err(TurnError::Blocked)?;
        draft.state(Body::of(&state).map_err(TurnError::Blocked)?, turn.stamp());
        let status = if status == StepStatus::Completed { "ended" } else { "failed" };
        self.record(turn, &mut draft, &batch, view.as_ref(), status).await?;
        turn.commit(draft).await?;
        let (provider, model) = (&*self.served.provider, self.input.model.as_deref());
        let took = turn.now().since(batch.oldest);
        telemetry::batch_ended(turn.metrics(), provider, model, status, took, batch.members);
        let prefix = format!("members:{}:", batch.number);
        let key = super::filling::batch_key(batch.number);
        self.rows.retain(|row| row.step_key != key && !row.step_key.as_str().starts_with(&prefix));
        self.state = state;
        Ok(())
    }

    // Writes a batch that goes on.
    pub(super) async fn write(&mut self, turn: &mut Turn, change: Change) -> Result<(), TurnError> {
        let Change { batch, event, closed_until, view } = change;
        let mut state = self.state.clone();
        if let Some(known) = state.in_flight.iter_mut().find(|b| b.number == batch.number) {
            *known = batch.clone();
        }
        state.closed_until = closed_until.or(state.closed_until);
        let mut draft = turn.draft();
        if let Some((event, payload)) = event {
            let stamp = turn.stamp();
            draft.event(event, &payload, stamp).map_err(TurnError::Blocked)?;
        }
        draft.state(Body::of(&state).map_err(TurnError::Blocked)?, turn.stamp());
        let status = match &batch.phase {
            Phase::Refused => "waiting",
            Phase::Intended => "unknown",
            Phase::Created { .. } => "in_flight",
        };
        self.record(turn, &mut draft, &batch, view.as_ref(), status).await?;
        turn.commit(draft).await?;
        self.state = state;
        Ok(())
    }

    // The record of the batch, for people. Only the lane writes it.
    async fn record(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        batch: &InFlight,
        view: Option<&BatchView>,
        status: &str,
    ) -> Result<(), TurnError> {
        let namespace = turn.run.namespace.clone();
        let known = view::read(&*self.engine.store, &namespace, &batch.intent).await;
        let known = known.map_err(TurnError::Store)?;
        let (expect, before) = match known {
            Some((revision, info)) => (Expect::At(revision), Some(info)),
            None => (Expect::Absent, None),
        };
        let info = BatchInfo {
            intent: batch.intent.clone(),
            provider: self.input.provider.clone(),
            model: self.input.model.clone(),
            lane: turn.run.id.to_string(),
            lane_run: turn.run.run_key.to_string(),
            status: status.to_owned(),
            provider_batch_id: batch.provider_id().map(ToOwned::to_owned),
            provider_state: match view {
                Some(view) => Some(view.state.clone()),
                None => before.as_ref().and_then(|info| info.provider_state.clone()),
            },
            provisional: matches!(batch.phase, Phase::Created { provisional: true, .. }),
            members: batch.members,
            processing: view.map(|view| view.processing),
            bytes: batch.bytes,
            attempts: batch.creates,
            created_at: before.map_or(batch.since, |info| info.created_at),
            updated_at: turn.now(),
        };
        let mut build = || -> Result<_, Error> {
            let mut change = RecordChange::put_own(BATCHES, &info.intent, &info, expect)?
                .term("status", status)?
                .term("provider", &info.provider)?;
            if let Some(id) = &info.provider_batch_id {
                change = change.term("provider_batch", &view::short(id))?;
            }
            Ok(change.op(&namespace, turn.stamp()))
        };
        let op = build().map_err(TurnError::Blocked)?;
        draft.op(windlass_kernel::Op::Record(Box::new(op)));
        Ok(())
    }
}

/// The results of a batch by their ends.
#[derive(Default)]
struct Counts {
    succeeded: u64,
    errored: u64,
    expired: u64,
    cancelled: u64,
    unknown: u64,
    duplicates: u64,
    bad: u64,
}

impl Counts {
    fn take(&mut self, end: BatchEnd, limits: &windlass_kernel::Limits) -> What {
        let failed = |reason: &str, message: &str| What::Failed {
            reason: reason.into(),
            message: message.into(),
            retryable: true,
            possibly_paid: false,
        };
        match end {
            BatchEnd::Succeeded(response) => {
                self.succeeded += 1;
                succeeded(*response, limits)
            }
            BatchEnd::Errored(error) => {
                self.errored += 1;
                What::Failed {
                    reason: error.name().unwrap_or(error.kind().as_str()).into(),
                    message: error.to_string().chars().take(500).collect(),
                    retryable: error.kind().is_retryable(),
                    possibly_paid: error.kind().may_be_paid(),
                }
            }
            BatchEnd::Cancelled => {
                self.cancelled += 1;
                failed("cancelled", "the request was cancelled in its batch")
            }
            BatchEnd::Expired => {
                self.expired += 1;
                failed("expired", "the request expired in its batch")
            }
        }
    }
}

fn succeeded(response: ProviderResponse, limits: &windlass_kernel::Limits) -> What {
    let refused = |message: String| What::Failed {
        reason: "invalid_response".into(),
        message,
        retryable: false,
        possibly_paid: true,
    };
    // The message has some members beside the body.
    let max = limits.message_bytes_max.saturating_sub(4 * 1024);
    if response.body.len() > max {
        return refused(format!("the answer has more than {max} bytes"));
    }
    let text = String::from_utf8_lossy(&response.body).into_owned();
    match serde_json::value::RawValue::from_string(text) {
        Ok(body) => What::Succeeded(Box::new(Answer {
            body,
            stop_reason: response.stop_reason,
            model: response.model,
            usage: response.usage,
            message_id: response.message_id,
            request_id: response.request_id,
        })),
        Err(error) => refused(format!("the answer cannot be read: {error}")),
    }
}

// The numbers of the members that were sent, in their order.
fn sent_of<'a>(batch: &'a InFlight, members: &[Join]) -> impl Iterator<Item = usize> + 'a {
    let left: BTreeSet<usize> = batch.left.iter().map(|index| *index as usize).collect();
    (0..members.len()).filter(move |index| !left.contains(index))
}

/// A message to a member. A second one with the same id changes nothing.
pub(super) fn message(
    member: &Join,
    told: &Told,
    what: &str,
    at: Timestamp,
) -> Result<NewMessage, Error> {
    // A batch that is sent again has the same members and the same intent, so its end must not be taken for
    // the end of the batch before: the provider's id is part of the message's id.
    let batch = told.provider_batch.as_deref().unwrap_or("none");
    let batch: String = batch.chars().take(60).collect();
    let id = format!("{}:{}:{}:{what}:{batch}", told.intent, member.call, member.attempt);
    Ok(NewMessage {
        run_key: member.run,
        message_id: MessageId::new(id)?,
        kind: MessageKind::ActivityResult,
        name: MessageName::from_stored(MESSAGE),
        body: Some(Body::of(told)?),
        caused_by: None,
        sent_at: at,
        // A run that has ended does not hold up the others.
        required: false,
    })
}
