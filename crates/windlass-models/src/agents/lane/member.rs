//! The calls of a run that go into batches: planned, sent to their lane, and settled by its messages.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_engine::{EnqueuedReason, StartRun, Turn, TurnError, WeakEngine};
use windlass_kernel::{
    Body, Decision, Draft, Error, ErrorCode, ErrorKind, Message, MessageId, MessageKind,
    MessageName, NewMessage, OnExisting, RunId, RunKey, Sha256Digest, Step as StepRow, StepStatus,
    Wake, WorkflowName,
};

use super::program::LANES;
use super::state::{Answer, Ask, Join, LaneInput, LaneState, MESSAGE, Told, What};
use super::{BatchRetry, Deadline, LANE_LABEL, LANE_LABEL_VALUE, LANE_WORKFLOW, Lane};
use crate::agents::accounts::{Ending, Stop};
use crate::agents::description::LlmEvents;
use crate::agents::program::{AgentProgram, Flow, Live};
use crate::agents::provider::{
    Provider, ProviderError, ProviderErrorKind as Kind, ProviderResponse, RateLimits,
};
use crate::agents::request::LlmRequest;
use crate::agents::telemetry;
use crate::agents::workflow::{Step, Workflow};

/// How often a call that waits for its batch looks whether its lane is still there.
const LOOK_AFTER_LANE: Duration = Duration::from_secs(600);

/// The place of a call in a lane, as the snapshot has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BatchedCall {
    /// The run of the lane.
    pub(crate) lane: RunKey,
    /// The attempt that the lane has.
    pub(crate) attempt: u32,
    /// Whether the lane has not been asked yet: the attempt needs space in the budgets of its run first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) to_join: bool,
    /// The batch that it is in, once the provider has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) submitted: Option<String>,
}

fn request_of(workflow: &Workflow) -> Option<&LlmRequest> {
    match &workflow.step {
        Step::Llm { request, .. } => Some(request),
        _ => None,
    }
}

impl AgentProgram {
    fn lane_of<'a>(&self, workflow: &'a Workflow) -> Option<(&'a LlmRequest, Lane)> {
        let request = request_of(workflow)?;
        let lane = request.lane.clone().unwrap_or_else(|| self.agent.lane.clone());
        Some((request, lane))
    }

    /// Whether the call of a workflow may go into a batch.
    pub(crate) fn wants_batch(&self, workflow: &Workflow) -> bool {
        let Some((request, lane)) = self.lane_of(workflow) else { return false };
        let provider = self.agent.provider_named(&request.provider);
        lane != Lane::Live && provider.is_ok_and(|provider| provider.batches().is_some())
    }

    /// Decides about the lane of the call that is about to begin, and starts the lane if there is none.
    pub(crate) async fn plan_lane(&mut self, turn: &mut Turn) -> Result<Option<Flow>, TurnError> {
        self.live_mut().progress.batched = None;
        if !self.wants_batch(&self.live().workflow) {
            return Ok(None);
        }
        let lane = self.lane_run(turn).await?;
        if self.is_late(turn, lane).await? {
            return Ok(None);
        }
        let attempt = self.live().progress.attempts + 1;
        let batched = BatchedCall { lane, attempt, to_join: false, submitted: None };
        self.live_mut().progress.batched = Some(batched);
        Ok(None)
    }

    // The run of the lane that the current call belongs to.
    async fn lane_run(&self, turn: &Turn) -> Result<RunKey, TurnError> {
        let Some(request) = request_of(&self.live().workflow) else {
            return Err(TurnError::Blocked(Error::corrupt("no call is open")));
        };
        let provider = self.agent.provider_named(&request.provider).map_err(TurnError::Blocked)?;
        let limits = provider.batches().map(|batches| batches.limits());
        let one_model = limits.is_some_and(|limits| limits.one_model);
        let model = one_model.then(|| request.model.clone());
        let name = format!("{LANE_WORKFLOW}{}", request.provider);
        let workflow = WorkflowName::with_limits(name, &self.engine.limits);
        let workflow = workflow.map_err(TurnError::Blocked)?;
        let id = match &model {
            None => "all".to_owned(),
            Some(model) => model_id(model),
        };
        let id = RunId::with_limits(id, &self.engine.limits).map_err(TurnError::Blocked)?;
        if let Some(run) = turn.find(&workflow, &id).await?
            && !run.status.is_ended()
        {
            return Ok(run.run_key);
        }
        let input = LaneInput { provider: request.provider.clone(), model, durations: Vec::new() };
        let input = Body::of(&input).map_err(TurnError::Blocked)?;
        let mut start = StartRun::new(workflow.clone(), LANES.name.clone(), input);
        start.id = Some(id.clone());
        start.on_existing = OnExisting::Return;
        start.labels.insert(LANE_LABEL.to_owned(), LANE_LABEL_VALUE.to_owned());
        let stopping = || {
            let message = "the engine stops, so no lane can be started";
            TurnError::Store(Error::new(ErrorKind::Closed, ErrorCode::EngineStopping, message))
        };
        let engine = self.handle.as_ref().and_then(WeakEngine::upgrade).ok_or_else(stopping)?;
        let engine = engine.in_namespace(turn.run.namespace.clone());
        let started = engine.start_run(start).await.map_err(TurnError::Store)?;
        let run = engine.current(started.run_key).await.map_err(TurnError::Store)?;
        match run.status.is_ended() {
            // Somebody ended the lane. Its next generation begins anew.
            true => Ok(engine.restart(run.run_key, None).await.map_err(TurnError::Store)?.run_key),
            false => Ok(run.run_key),
        }
    }

    // Whether the deadline leaves too little time for a batch.
    async fn is_late(&self, turn: &Turn, lane: RunKey) -> Result<bool, TurnError> {
        let Some((request, Lane::By(deadline))) = self.lane_of(&self.live().workflow) else {
            return Ok(false);
        };
        let at = match deadline {
            Deadline::At(at) => at,
            // A branch, and a generation that retries, go on with the start of their root.
            Deadline::AfterStart(millis) => {
                let started_at = self.live().progress.started_at.unwrap_or(turn.run.created_at);
                started_at.plus(Duration::from_millis(millis))
            }
        };
        let left = at.since(turn.now());
        let share = left / request.turns_left.unwrap_or(1);
        let overview =
            self.engine.store.run_overview_by_key(lane).await.map_err(TurnError::Store)?;
        let state = overview.and_then(|overview| overview.run.state);
        let state: Option<LaneState> = state.and_then(|body| body.read().ok());
        // Nothing is known about a new lane. Most batches end within an hour.
        let p90 = state.and_then(|state| state.p90()).unwrap_or(Duration::from_secs(3_600));
        // Durations are in whole seconds, so those of a fast lane may be zero.
        Ok(share.is_zero() || share < p90)
    }

    /// Asks the lane, in the commit of the intent or of a further attempt.
    pub(crate) fn join_lane(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &Live,
        bytes: usize,
        digest: Sha256Digest,
    ) -> Result<(), Error> {
        let Some(batched) = &live.progress.batched else { return Ok(()) };
        let (run, call, attempt) = (turn.run.run_key, live.workflow.counters.llm, batched.attempt);
        let join = Join { run, call, attempt, bytes, digest };
        draft.send(NewMessage {
            run_key: batched.lane,
            message_id: MessageId::new(join.token())?,
            kind: MessageKind::ActivityResult,
            name: MessageName::from_stored(MESSAGE),
            body: Some(Body::of(&Ask::Join(join))?),
            caused_by: Some(draft.cursor()),
            sent_at: turn.now(),
            // A lane that has ended would never answer.
            required: true,
        });
        Ok(())
    }

    /// Waits for the answer of the lane, and settles the call.
    pub(crate) async fn batched_call(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        row: StepRow,
    ) -> Result<Flow, TurnError> {
        let Some(batched) = self.live().progress.batched.clone() else {
            return Ok(Flow::Continue);
        };
        if batched.to_join {
            return self.join_again(turn, row).await;
        }
        let call = self.live().workflow.counters.llm;
        let mut old = Vec::new();
        let mut found = None;
        for message in turn.mailbox.values() {
            let Some(told) = told(message) else { continue };
            if told.call != call || told.attempt != batched.attempt {
                old.push(message.clone());
            } else if found.is_none() {
                found = Some((message.clone(), told));
            }
        }
        // Answers to attempts that are over are read and forgotten.
        old.iter().for_each(|message| drop(turn.mailbox.remove(&message.seq)));
        let Some((message, told)) = found else {
            return self.wait_for_lane(turn, provider, row, &batched).await;
        };
        turn.mailbox.remove(&message.seq);
        match told.what {
            What::Submitted { members, recovered } => {
                let batch = told.provider_batch.unwrap_or_default();
                let about = json!({ "members": members, "recovered": recovered });
                self.submitted(turn, provider, row, &message, batch, about).await
            }
            What::Succeeded(answer) => {
                let response = response(*answer);
                self.trace_batched(turn, provider, told.provider_batch.as_deref(), &response);
                self.answered = Some(message);
                let settled = self.llm_completed(turn, provider, row, response).await;
                self.answered = None;
                settled
            }
            What::Failed { reason, message: why, retryable, possibly_paid } => {
                let about = Unanswered { reason, why, retryable, possibly_paid };
                self.answered = Some(message);
                let settled = self.unanswered(turn, provider, row, about).await;
                self.answered = None;
                settled
            }
        }
    }

    // The call has no span of its own: it lasted from one turn to another one.
    fn trace_batched(
        &self,
        turn: &Turn,
        provider: &Arc<dyn Provider>,
        batch: Option<&str>,
        response: &ProviderResponse,
    ) {
        let workflow = &self.live().workflow;
        let Some(request) = request_of(workflow) else { return };
        let body = || crate::agents::live::build(workflow, request, provider.wire_format());
        let caller = self.caller(&turn.run);
        telemetry::batched(caller, &**provider, &request.model, batch, body, response);
    }

    async fn submitted(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        row: StepRow,
        message: &Message,
        batch: String,
        mut about: serde_json::Value,
    ) -> Result<Flow, TurnError> {
        let mut live = self.live().clone();
        if let Some(batched) = &mut live.progress.batched {
            batched.submitted = Some(batch.clone());
        }
        about["continuation_id"] = json!(row.step_key);
        about["provider_batch_id"] = json!(batch);
        about["attempt"] = json!(row.attempt + 1);
        let mut draft = turn.draft();
        let stamp = turn.stamp();
        let event = LlmEvents::of(provider.event_family()).submitted.clone();
        let by = row.step_key.clone();
        draft.consume(event, &about, message, by, stamp).map_err(TurnError::Blocked)?;
        let body = crate::agents::state::save(&live.workflow, &live.progress, &live.stored);
        draft.state(body.map_err(TurnError::Blocked)?, turn.stamp());
        turn.commit(draft).await?;
        live.rows.push(row);
        self.live = Some(live);
        Ok(Flow::Continue)
    }

    // Looks after the lane from time to time: somebody may have ended it.
    async fn wait_for_lane(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        row: StepRow,
        batched: &BatchedCall,
    ) -> Result<Flow, TurnError> {
        let overview = self.engine.store.run_overview_by_key(batched.lane).await;
        let overview = overview.map_err(TurnError::Store)?;
        let gone = overview.is_none_or(|overview| overview.run.status.is_ended());
        if !gone {
            self.live_mut().rows.push(row);
            let at = turn.now().plus(LOOK_AFTER_LANE);
            self.park(turn, Wake::At(at)).await?;
            return Ok(Flow::Over);
        }
        let kind = match batched.submitted.is_some() {
            true => Kind::UnknownOutcome,
            false => Kind::Retryable,
        };
        let error = ProviderError::new(kind, "the lane of the call was ended");
        self.batch_failed(turn, provider, row, error).await
    }

    async fn unanswered(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        row: StepRow,
        about: Unanswered,
    ) -> Result<Flow, TurnError> {
        let Unanswered { reason, why, retryable, possibly_paid } = about;
        let retry = retryable && self.agent.batch_retry != BatchRetry::Fail;
        let kind = match (retry, possibly_paid) {
            (true, true) => Kind::UnknownOutcome,
            (true, false) => Kind::Retryable,
            (false, true) => Kind::InvalidResponse,
            (false, false) => Kind::Invalid,
        };
        let error = ProviderError::new(kind, why).with_name(reason);
        self.batch_failed(turn, provider, row, error).await
    }

    // The attempt has no answer: it is tried again in a batch or live, or the run fails.
    async fn batch_failed(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        row: StepRow,
        error: ProviderError,
    ) -> Result<Flow, TurnError> {
        let paid = error.kind().may_be_paid();
        let details = json!({
            "kind": error.kind().as_str(), "error_type": error.name(), "possibly_paid": paid,
        });
        let ending = if paid { Ending::Lost } else { Ending::Free };
        let attempt = row.attempt + 1;
        let counted = attempt - self.live().progress.attempts.min(attempt);
        let decision = self.agent.decide(counted, &error, turn.env().random());
        let fails =
            self.agent.batch_retry == BatchRetry::Fail || matches!(decision, Decision::GiveUp(_));
        if fails && self.overflows(&error) {
            return self.llm_overflowed(turn, provider, row, &error, details).await;
        }
        if fails {
            let failure = crate::agents::program::Failure {
                name: "PROVIDER_FAILED".into(),
                message: error.to_string(),
            };
            return self.llm_ended(turn, provider, row, failure, details, ending).await;
        }
        self.attempt_again(turn, provider, row, error, details, ending).await
    }

    // Ends the attempt and writes the next one. A further attempt is reserved in a commit of its own, because its
    // budgets may have to wait for a person.
    async fn attempt_again(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        mut row: StepRow,
        error: ProviderError,
        details: serde_json::Value,
        ending: Ending,
    ) -> Result<Flow, TurnError> {
        let attempt = row.attempt + 1;
        let lane = match self.agent.batch_retry {
            BatchRetry::Live => None,
            BatchRetry::Batch | BatchRetry::Fail => {
                let lane = self.lane_run(turn).await?;
                (!self.is_late(turn, lane).await?).then_some(lane)
            }
        };
        let mut payload = json!({
            "continuation_id": row.step_key, "attempt": attempt + 1,
            "lane": if lane.is_some() { "batch" } else { "live" },
        });
        crate::agents::llm::merge_into(&mut payload, &details);
        let before = row.clone();
        (row.attempt, row.status) = (attempt, StepStatus::Waiting);
        let failure = crate::agents::program::Failure {
            name: error.kind().as_str().into(),
            message: error.to_string(),
        };
        row.error = Some(failure.body().map_err(TurnError::Blocked)?);
        let most = self.most().map_err(TurnError::Blocked)?;
        let sent = self
            .commit_accounted(turn, |this, turn, draft, accounts| {
                let (mut live, mut row) = (this.live().clone(), row.clone());
                let stamp = turn.stamp();
                row.updated_at = stamp.at;
                let next = |lane| BatchedCall {
                    lane,
                    attempt: attempt + 1,
                    to_join: true,
                    submitted: None,
                };
                live.progress.batched = lane.map(next);
                accounts.end(&ending, || most);
                let event = LlmEvents::of(provider.event_family()).retried.clone();
                draft.step(event, &payload, row.clone(), stamp)?;
                let body =
                    crate::agents::state::save(&live.workflow, &live.progress, &live.stored)?;
                draft.state(body, turn.stamp());
                live.rows.push(row);
                Ok(live)
            })
            .await?;
        match sent {
            Ok(live) => {
                self.live = Some(live);
                turn.announce(EnqueuedReason::Retry);
                Ok(Flow::Continue)
            }
            Err(Stop::Failed(failure)) => {
                self.llm_ended(turn, provider, before, failure, details, ending).await
            }
            // The same answer is decided about again.
            Err(_) => {
                let answered = self.answered.take().map(|message| (message.seq, message));
                turn.mailbox.extend(answered);
                self.live_mut().rows.push(before);
                Ok(Flow::Continue)
            }
        }
    }

    // Reserves a further attempt and asks the lane, in one commit.
    async fn join_again(&mut self, turn: &mut Turn, row: StepRow) -> Result<Flow, TurnError> {
        let lane = self.lane_run(turn).await?;
        let most = self.most().map_err(TurnError::Blocked)?;
        let (bytes, digest) = self.request_digest()?;
        let joined = self
            .commit_accounted(turn, |this, turn, draft, accounts| {
                let mut live = this.live().clone();
                accounts.reserve(most)?;
                if let Some(batched) = &mut live.progress.batched {
                    (batched.lane, batched.to_join) = (lane, false);
                }
                this.join_lane(turn, draft, &live, bytes, digest)?;
                let body =
                    crate::agents::state::save(&live.workflow, &live.progress, &live.stored)?;
                draft.state(body, turn.stamp());
                live.rows.push(row.clone());
                Ok(live)
            })
            .await?;
        match joined {
            Ok(live) => {
                self.live = Some(live);
                Ok(Flow::Continue)
            }
            Err(stop) => self.stopped(turn, stop, most, Some(row)).await,
        }
    }

    fn request_digest(&self) -> Result<(usize, Sha256Digest), TurnError> {
        let Some(request) = request_of(&self.live().workflow) else {
            return Err(TurnError::Blocked(Error::corrupt("no call is open")));
        };
        let provider = self.agent.provider_named(&request.provider).map_err(TurnError::Blocked)?;
        let format = provider.wire_format();
        let body = crate::agents::live::build(&self.live().workflow, request, format);
        let body = body.map_err(TurnError::Blocked)?;
        Ok((body.len(), Sha256Digest::of(&body)))
    }
}

struct Unanswered {
    reason: String,
    why: String,
    retryable: bool,
    possibly_paid: bool,
}

// Ids of runs allow fewer characters than names of models.
fn model_id(model: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let digest = Sha256Digest::of(model.as_bytes());
    let hex: String = digest.as_bytes()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let name: String = model.chars().map(|c| if plain(c) { c } else { '-' }).take(60).collect();
    format!("{name}-{hex}")
}

fn told(message: &Message) -> Option<Told> {
    let ours = message.kind == MessageKind::ActivityResult && message.name.as_str() == MESSAGE;
    message.body.as_ref().filter(|_| ours)?.read().ok()
}

fn response(answer: Answer) -> ProviderResponse {
    let Answer { body, stop_reason, model, usage, message_id, request_id } = answer;
    let body = String::from(Box::<str>::from(body));
    ProviderResponse {
        body: body.into(),
        content: Vec::new(),
        stop_reason,
        model,
        usage,
        message_id,
        request_id,
        rate_limits: RateLimits::default(),
    }
}
