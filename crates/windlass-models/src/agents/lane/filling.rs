//! Members become a batch: their messages are consumed into rows, then the intent is written, then the provider
//! is asked.

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_engine::{Turn, TurnError};
use windlass_kernel::{
    Body, BoxFuture, Error, LoadSteps, Message, Sha256Digest, Step as StepRow, StepKey, StepStatus,
};

use super::program::{BATCH, GATHERED, INTENDED, LaneProgram, MEMBERS};
use super::state::{CHUNK, Filling, InFlight, Join, Phase};
use crate::agents::batch::BatchMember;
use crate::agents::live::build;
use crate::agents::state as snapshots;
use crate::agents::workflow::Step;
use crate::kit;

/// How many runs are read at the same time to build their requests.
const READS: usize = 8;

/// The request of a member.
pub(super) enum Request {
    Sent(BatchMember),
    /// The run has ended or does not wait any more. It keeps its number in the batch.
    Left,
    /// It cannot be built. The run must hear of it.
    Broken {
        why: String,
        retryable: bool,
    },
}

/// The row of a chunk of members.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Chunk {
    pub(super) members: Vec<Join>,
}

pub(super) fn chunk_key(number: u64, chunk: u32) -> StepKey {
    StepKey::from_stored(format!("members:{number}:{chunk}"))
}

pub(super) fn batch_key(number: u64) -> StepKey {
    StepKey::from_stored(format!("batch:{number}"))
}

impl LaneProgram {
    pub(super) fn begin_filling(&mut self) {
        let oldest = self.waiting.joins.first_key_value().map(|(_, (at, _))| *at);
        let Some(oldest) = oldest else {
            self.flush = false;
            return;
        };
        let number = self.state.batches + 1;
        self.state.filling = Some(Filling { number, chunks: 0, members: 0, bytes: 0, oldest });
    }

    /// Consumes the next members of a batch that is being filled, or writes its intent.
    pub(super) async fn fill(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let Some(filling) = self.state.filling.clone() else { return Ok(()) };
        let bytes_max = self.bytes_max() as u64;
        let space = (self.members_max() as u64).saturating_sub(filling.members);
        let space = usize::try_from(space).unwrap_or(usize::MAX).min(CHUNK);
        let (mut messages, mut members, mut bytes) = (Vec::new(), Vec::new(), filling.bytes);
        for (seq, (_, join)) in self.waiting.joins.iter().take(space) {
            let more = join.bytes_in_batch();
            if bytes + more > bytes_max && (filling.members > 0 || !members.is_empty()) {
                break;
            }
            let Some(message) = turn.mailbox.get(seq) else { continue };
            bytes += more;
            messages.push(message.clone());
            members.push(join.clone());
        }
        match messages.is_empty() {
            true => self.intend(turn, filling).await,
            false => self.gather(turn, filling, messages, members, bytes).await,
        }
    }

    async fn gather(
        &mut self,
        turn: &mut Turn,
        filling: Filling,
        messages: Vec<Message>,
        members: Vec<Join>,
        bytes: u64,
    ) -> Result<(), TurnError> {
        let mut state = self.state.clone();
        let count = members.len();
        state.filling = Some(Filling {
            chunks: filling.chunks + 1,
            members: filling.members + count as u64,
            bytes,
            ..filling
        });
        let mut draft = turn.draft();
        let stamp = turn.stamp();
        let key = chunk_key(filling.number, filling.chunks);
        let mut row = kit::new_step(&turn.run, &draft, key, MEMBERS, stamp.at);
        row.status = StepStatus::Waiting;
        row.input = Some(Body::of(&Chunk { members }).map_err(TurnError::Blocked)?);
        let payload = json!({ "batch": filling.number, "members": count });
        draft
            .consume_all_into_step(GATHERED, &payload, &messages, row.clone(), stamp)
            .map_err(TurnError::Blocked)?;
        draft.state(Body::of(&state).map_err(TurnError::Blocked)?, turn.stamp());
        turn.commit(draft).await?;
        for message in &messages {
            turn.mailbox.remove(&message.seq);
            self.waiting.remove(message.seq);
        }
        self.state = state;
        self.rows.push(row);
        Ok(())
    }

    // The intent is durable before the provider is asked.
    async fn intend(&mut self, turn: &mut Turn, filling: Filling) -> Result<(), TurnError> {
        self.flush = false;
        let mut state = self.state.clone();
        state.filling = None;
        if filling.members == 0 {
            self.state = state;
            return Ok(());
        }
        let mut draft = turn.draft();
        let stamp = turn.stamp();
        // All of the id, because it begins with the time: names of batches are in its order.
        let intent = stamp.event_id.0.simple();
        let Filling { number, chunks, members, bytes, oldest } = filling;
        let batch = InFlight {
            number,
            intent: format!("w{intent}"),
            chunks,
            members,
            bytes,
            oldest,
            since: stamp.at,
            phase: Phase::Refused,
            creates: 0,
            unknown_since: None,
            sent: 0,
            left: Vec::new(),
            next: stamp.at,
            polls: 0,
            failed_reads: 0,
            foreign: Vec::new(),
            cancel: false,
        };
        let mut row = kit::new_step(&turn.run, &draft, batch_key(number), BATCH, stamp.at);
        row.status = StepStatus::Waiting;
        row.input = Some(Body::of(&batch).map_err(TurnError::Blocked)?);
        let payload = json!({
            "step": row.step_key, "intent": batch.intent, "members": members, "bytes": bytes,
            "provider": self.input.provider,
        });
        state.batches = number;
        state.in_flight.push(batch);
        draft.step(INTENDED, &payload, row.clone(), stamp).map_err(TurnError::Blocked)?;
        draft.state(Body::of(&state).map_err(TurnError::Blocked)?, turn.stamp());
        turn.commit(draft).await?;
        self.state = state;
        self.rows.push(row);
        Ok(())
    }

    /// The members of a batch, in the order of their numbers.
    pub(super) fn members_of(&self, batch: &InFlight) -> Result<Vec<Join>, TurnError> {
        let mut members = Vec::new();
        for chunk in 0..batch.chunks {
            let key = chunk_key(batch.number, chunk);
            let row = self.row(key.as_str()).and_then(|row| row.input.as_ref());
            let row = row.ok_or_else(|| Error::corrupt(format!("the row {key} is missing")));
            let chunk: Chunk = row.and_then(|row| row.read()).map_err(TurnError::Blocked)?;
            members.extend(chunk.members);
        }
        Ok(members)
    }

    /// Builds the requests of members from the snapshots of their runs, in the order of their numbers.
    pub(super) async fn requests(
        &self,
        batch: &InFlight,
        members: &[Join],
    ) -> Result<Vec<Request>, Error> {
        // Boxed, because the compiler cannot prove that a stream of async closures is `Send`.
        let mut building: Vec<BoxFuture<'_, Result<Request, Error>>> = Vec::new();
        for (index, member) in members.iter().enumerate() {
            building.push(Box::pin(async move {
                let custom_id = custom_id(&batch.intent, index);
                match self.request(member).await {
                    Ok(Ok(body)) => Ok(Request::Sent(BatchMember { custom_id, body })),
                    Ok(Err(unsent)) => Ok(unsent),
                    Err(error) if error.is_retryable() => Err(error),
                    // One member does not hold up the others.
                    Err(error) => Ok(Request::Broken { why: error.to_string(), retryable: false }),
                }
            }));
        }
        let built: Vec<_> = stream::iter(building).buffered(READS).collect().await;
        built.into_iter().collect()
    }

    async fn request(&self, member: &Join) -> Result<Result<Bytes, Request>, Error> {
        let store = &*self.engine.store;
        let loaded = store.load_with(vec![member.run], LoadSteps::Open).await?;
        let Some(loaded) = loaded.into_iter().next() else { return Ok(Err(Request::Left)) };
        let run = loaded.run;
        let (Some(body), false) = (&run.state, run.status.is_ended()) else {
            return Ok(Err(Request::Left));
        };
        let page = self.engine.limits.page_rows_max;
        let (workflow, progress, _) = snapshots::load(store, body, page).await?;
        let waits = progress.batched.is_some_and(|batched| batched.attempt == member.attempt)
            && workflow.counters.llm == member.call;
        let Step::Llm { request, .. } = &workflow.step else { return Ok(Err(Request::Left)) };
        if !waits {
            return Ok(Err(Request::Left));
        }
        let body = build(&workflow, request, self.served.provider.wire_format())?;
        // Built by the same code from the same rows; anything else must not be sent.
        match Sha256Digest::of(&body) == member.digest {
            true => Ok(Ok(body)),
            false => {
                let why = "the lane builds another request than the one that the run announced";
                Ok(Err(Request::Broken { why: why.to_owned(), retryable: true }))
            }
        }
    }

    /// The rows of a batch, as they are when it has ended.
    pub(super) fn ended_rows(
        &self,
        batch: &InFlight,
        status: StepStatus,
        result: Option<Body>,
        at: windlass_kernel::Timestamp,
    ) -> Vec<StepRow> {
        let is_ours = |row: &&StepRow| {
            let chunk = format!("members:{}:", batch.number);
            row.step_key == batch_key(batch.number) || row.step_key.as_str().starts_with(&chunk)
        };
        let rows = self.rows.iter().filter(is_ours).cloned();
        let end = |mut row: StepRow| {
            (row.status, row.updated_at, row.due_at) = (StepStatus::Completed, at, None);
            if row.kind == BATCH {
                (row.status, row.result) = (status, result.clone());
            }
            row
        };
        rows.map(end).collect()
    }
}

/// Names a member at the provider.
pub(super) fn custom_id(intent: &str, index: usize) -> String {
    format!("{intent}-{index}")
}

/// The number of the member that a result is for; none if the name is not one of this batch.
pub(super) fn index_of(intent: &str, custom_id: &str) -> Option<usize> {
    custom_id.strip_prefix(intent)?.strip_prefix('-')?.parse().ok()
}
