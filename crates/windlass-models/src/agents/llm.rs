//! Calls of language models in a turn.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tracing::Instrument as _;
use windlass_engine::{EnqueuedReason, Turn, TurnError};
use windlass_kernel::{
    Body, Decision, Draft, Error, Run, RunKey, Sha256Digest, Step as StepRow, StepKey, StepStatus,
    Wake,
};

use super::accounts::{Ending, Stop};
use super::budget::Amount;
use super::description::{LLM, LlmEvents};
use super::live::{build, call_once, info_of};
use super::program::{AgentProgram, Driven, Failure, Flow, Live, drive};
use super::provider::{
    NoSink, Provider, ProviderError, ProviderErrorKind, ProviderRequest, ProviderResponse,
    TokenSink,
};
use super::request::{LlmRequest, short_usage};
use super::state::response_row;
use super::telemetry::{self, Caller};
use super::transcript::Piece;
use super::wire::Item;
use super::workflow::{ResponseAt, ResponseValue, Step};
use crate::kit;

/// Parameters that are shorter than their digest would be are in the record of a request.
const PARAMS_BYTES_MAX: usize = 64;

/// The record of a request: references and parameters from which its bytes are built again. The event that
/// suspends the workflow has the digest of the bytes.
#[derive(Debug, Serialize)]
struct RequestRecord<'a> {
    provider: &'a str,
    model: &'a str,
    params: Params<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transcript: Option<&'a str>,
    /// Items of the transcript, by run and number.
    items: Vec<(RunKey, u64, u64)>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Params<'a> {
    Short(&'a [(String, Item)]),
    Long(Sha256Digest),
}

fn key(number: u64) -> StepKey {
    StepKey::from_stored(format!("llm:{number}"))
}

// A commit that builds nothing that can be refused.
fn written<T>(sent: Result<T, Stop>) -> Result<T, TurnError> {
    sent.map_err(|stop| {
        let message = match stop {
            Stop::Failed(failure) => failure.message,
            _ => "an account refused the end of a call".to_owned(),
        };
        TurnError::Blocked(Error::corrupt(message))
    })
}

fn request_of(live: &Live) -> Option<(&LlmRequest, &str)> {
    match &live.workflow.step {
        Step::Llm { request, output_key } => Some((request, output_key)),
        _ => None,
    }
}

fn request_record<'a>(live: &Live, request: &'a LlmRequest) -> RequestRecord<'a> {
    let transcript = request.transcript.as_ref();
    let transcript = transcript.and_then(|name| live.workflow.transcripts.get(name));
    let pieces = transcript.map(|transcript| transcript.pieces()).unwrap_or_default();
    let items = pieces.iter().filter_map(|piece| match piece {
        Piece::Stored(stored) => Some((stored.run, stored.from, stored.to)),
        Piece::Inline(_) => None,
    });
    let text = serde_json::to_vec(&request.params).unwrap_or_default();
    let params = match text.len() <= PARAMS_BYTES_MAX {
        true => Params::Short(&request.params),
        false => Params::Long(Sha256Digest::of(&text)),
    };
    RequestRecord {
        provider: &request.provider,
        model: &request.model,
        params,
        transcript: request.transcript.as_deref(),
        items: items.collect(),
    }
}

impl AgentProgram {
    /// The current call, for its span.
    pub(super) fn caller<'a>(&'a self, run: &'a Run) -> Caller<'a> {
        let agent = self.agent.in_charge(&self.live().workflow);
        Caller { run, agent, prices: self.agent.prices() }
    }

    fn provider(&self, live: &Live) -> Result<Arc<dyn Provider>, Error> {
        let (request, _) = request_of(live).ok_or_else(|| Error::corrupt("no call is open"))?;
        self.agent.provider_named(&request.provider)
    }

    /// Writes the intent of a call: its row and the event that suspends the workflow.
    pub(crate) fn enter_llm(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &mut Live,
    ) -> Result<Flow, Error> {
        let provider = self.provider(live)?;
        live.workflow.counters.llm += u64::from(live.progress.retried.is_none());
        let number = live.workflow.counters.llm;
        let Some((request, output_key)) = request_of(live) else { return Ok(Flow::Continue) };
        let body = build(&live.workflow, request, provider.wire_format())?;
        let record = request_record(live, request);
        let (bytes, digest) = (body.len(), Sha256Digest::of(&body));
        let transcript = request.transcript.as_ref();
        let items = transcript.map(|name| {
            live.workflow.transcripts.get(name).map_or(0, |transcript| transcript.len())
        });
        let stamp = turn.stamp();
        let mut row = kit::new_step(&turn.run, draft, key(number), LLM, stamp.at);
        row.status = StepStatus::Running;
        row.attempt = live.progress.attempts;
        row.input = Some(Body::of(&record)?);
        if live.progress.batched.is_some() {
            row.status = StepStatus::Waiting;
            row.wait_for = Some("windlass.batch".into());
        }
        let mut payload = json!({
            "continuation_id": row.step_key, "provider": request.provider, "model": request.model,
            "output_key": output_key, "request_bytes": bytes, "request_digest": digest,
            "request": provider.wire_format().summarise_request(&request.params, items),
            "request_ref": { "kind": "step_input", "step_key": row.step_key },
        });
        if live.progress.batched.is_some() {
            payload["lane"] = "batch".into();
        }
        let events = LlmEvents::of(provider.event_family());
        let event = match live.progress.retried {
            None => events.suspended.clone(),
            Some(run) => {
                payload["attempt"] = (live.progress.attempts + 1).into();
                payload["retry_of"] = json!(run);
                events.retried.clone()
            }
        };
        draft.step(event, &payload, row.clone(), stamp)?;
        self.join_lane(turn, draft, live, bytes, digest)?;
        live.built = live.progress.batched.is_none().then_some((number, body));
        live.rows.push(row);
        Ok(Flow::Continue)
    }

    /// Makes the call that the workflow waits for.
    pub(crate) async fn llm(&mut self, turn: &mut Turn) -> Result<Flow, TurnError> {
        if let Some(flow) = self.admit(turn).await? {
            return Ok(flow);
        }
        self.begin(turn).await?;
        let provider = self.provider(self.live()).map_err(TurnError::Blocked)?;
        let number = self.live().workflow.counters.llm;
        let live = self.live_mut();
        let interrupted = std::mem::take(&mut live.interrupted);
        let Some(mut row) = live.take_row(key(number).as_str()) else {
            return Err(TurnError::Blocked(Error::corrupt(format!(
                "the call llm:{number} has no row"
            ))));
        };
        if self.live().progress.batched.is_some() {
            return self.batched_call(turn, &provider, row).await;
        }
        if interrupted && row.status == StepStatus::Running {
            // Another worker may have sent the request: it may be paid, and it is sent again.
            self.lost_attempt(turn, &provider, &mut row).await?;
        }
        if let Some(due) = row.due_at.filter(|due| *due > turn.now()) {
            self.live_mut().rows.push(row);
            self.park(turn, Wake::At(due)).await?;
            turn.announce(EnqueuedReason::Retry);
            return Ok(Flow::Over);
        }
        if row.status != StepStatus::Running {
            match self.mark_running(turn, row).await? {
                Ok(running) => row = running,
                Err(flow) => return Ok(flow),
            }
        }
        let built = self.live_mut().built.take().filter(|(built, _)| *built == number);
        let Some((request, _)) = request_of(self.live()) else { return Ok(Flow::Continue) };
        let timeout = self.agent.llm_timeout(request);
        let body = match built {
            Some((_, body)) => Ok(body),
            None => build(&self.live().workflow, request, provider.wire_format()),
        };
        let sent = ProviderRequest {
            provider: request.provider.clone(),
            model: request.model.clone(),
            body: body.map_err(TurnError::Blocked)?,
            call_id: self.call_id(turn, number),
            attempt: row.attempt + 1,
            stream: request.stream || self.streams.is_watched(turn.run.run_key),
        };
        let env = Arc::clone(turn.env());
        let streams = Arc::clone(&self.streams);
        let begin = || streams.begin(turn.run.run_key, row.step_key.as_str(), sent.attempt);
        let streaming = sent.stream.then(begin);
        let sink = streaming.as_ref().map_or(&NoSink as &dyn TokenSink, |it| it);
        let chat = telemetry::Chat::begin(self.caller(&turn.run), &*provider, &sent, &*env, sink);
        let call = call_once(&*provider, &sent, &*env, timeout, &chat).instrument(chat.span());
        let called = drive(turn, call).await;
        match &called {
            Ok(Driven::Done(called)) => chat.ended(turn.metrics(), self.agent.prices(), called),
            Ok(Driven::Cancelled) | Err(_) => chat.abandoned(),
        }
        drop(chat);
        drop(streaming);
        match called? {
            Driven::Cancelled => {
                self.live_mut().interrupted = true;
                self.live_mut().rows.push(row);
                Ok(Flow::Continue)
            }
            Driven::Done(Ok(response)) => self.llm_completed(turn, &provider, row, response).await,
            Driven::Done(Err(error)) => self.llm_failed(turn, &provider, row, error).await,
        }
    }

    // All attempts and retries of a call have the same id; a restart of the run makes other calls.
    fn call_id(&self, turn: &Turn, number: u64) -> String {
        match self.live().progress.began {
            0 => format!("{}:llm:{number}", turn.run.id),
            began => format!("{}#{began}:llm:{number}", turn.run.id),
        }
    }

    async fn lost_attempt(
        &self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        row: &mut StepRow,
    ) -> Result<(), TurnError> {
        row.attempt += 1;
        if !self.live().progress.budgets.is_empty() {
            // The next attempt is reserved anew.
            row.status = StepStatus::Waiting;
        }
        let most = self.most().map_err(TurnError::Blocked)?;
        let sent = self.commit_accounted(turn, |_, turn, draft, accounts| {
            let (stamp, mut row) = (turn.stamp(), row.clone());
            row.updated_at = stamp.at;
            let payload = json!({
                "continuation_id": row.step_key, "attempt": row.attempt + 1,
                "error": "unknown_outcome", "possibly_paid": true,
            });
            let event = LlmEvents::of(provider.event_family()).retried.clone();
            accounts.end(&Ending::Lost, || most);
            draft.step(event, &payload, row, stamp)?;
            Ok(())
        });
        written(sent.await?)
    }

    // A later attempt is marked before it is sent, so that a crash shows it as possibly paid.
    async fn mark_running(
        &mut self,
        turn: &mut Turn,
        mut row: StepRow,
    ) -> Result<Result<StepRow, Flow>, TurnError> {
        if !self.live().progress.budgets.is_empty() {
            return self.admit_again(turn, row).await;
        }
        (row.status, row.due_at) = (StepStatus::Running, None);
        row.updated_at = turn.stamp().at;
        let mut draft = turn.draft();
        draft.open_step(row.clone());
        turn.commit(draft).await?;
        Ok(Ok(row))
    }

    pub(super) async fn llm_completed(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        row: StepRow,
        response: ProviderResponse,
    ) -> Result<Flow, TurnError> {
        let (usage, model) = (response.usage.clone(), response.model.clone());
        let ending = Ending::Used { usage, model };
        let asked = request_of(self.live()).map(|(request, _)| request.model.clone());
        let (asked, lane) = (asked.unwrap_or_default(), self.price_lane());
        let recorded = self.commit_accounted(turn, |this, turn, draft, accounts| {
            let (mut live, mut row) = (this.live().clone(), row.clone());
            accounts.end(&ending, Amount::default);
            let flow =
                this.record_response(turn, draft, &mut live, provider, &mut row, &response)?;
            Ok((live, flow))
        });
        let recorded = recorded.await?;
        let prices = self.agent.prices();
        telemetry::used(turn.metrics(), &**provider, &asked, &response, lane, prices);
        match recorded {
            Ok((live, flow)) => {
                self.live = Some(live);
                Ok(flow)
            }
            // The response is too large for the store, or the next step cannot be entered.
            Err(stop) => {
                let Stop::Failed(failure) = stop else { return Ok(Flow::Continue) };
                let details = json!({ "possibly_paid": true });
                self.llm_ended(turn, provider, row, failure, details, ending).await
            }
        }
    }

    fn record_response(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &mut Live,
        provider: &Arc<dyn Provider>,
        row: &mut StepRow,
        response: &ProviderResponse,
    ) -> Result<Flow, Error> {
        let Some((request, output_key)) = request_of(live) else { return Ok(Flow::Continue) };
        let (request, output_key) = (request.clone(), output_key.to_owned());
        let (format, events) = (provider.wire_format(), LlmEvents::of(provider.event_family()));
        let items = format.response_items(&response.body)?;
        let flow = live.workflow.flow_mark();
        let from = live.workflow.counters.items;
        live.workflow.counters.items += items.len().max(1) as u64;
        let stamp = turn.stamp();
        let item_row = response_row(turn, draft, from, format, response.body.clone(), stamp.at)?;
        let info = info_of(response);
        let mut payload = json!({
            "continuation_id": row.step_key, "attempt": row.attempt + 1, "usage": short_usage(&info.usage),
            "model": info.model, "stop_reason": info.stop_reason, "message_id": info.message_id,
            "request_id": info.request_id, "response_bytes": response.body.len(),
            "response_digest": Sha256Digest::of(&response.body),
            "content_blocks": format.content(&response.body)?.len(),
            "text_bytes": format.text(&response.body)?.len(),
            "tool_uses": format.tool_uses(&response.body)?.len(),
            "response_ref": { "kind": "step_result", "step_key": item_row.step_key },
        });
        if let Some(batched) = &live.progress.batched {
            payload["lane"] = "batch".into();
            payload["provider_batch_id"] = json!(batched.submitted);
        }
        // The event has the usage.
        let result = json!({ "item": from });
        (row.status, row.result) = (StepStatus::Completed, Some(Body::of(&result)?));
        row.attempt += 1;
        (row.due_at, row.error, row.updated_at) = (None, None, stamp.at);
        draft.steps(events.completed.clone(), &payload, vec![row.clone(), item_row], stamp)?;
        let run = turn.run.run_key;
        if let Some(name) = &request.transcript {
            let transcript = live.workflow.transcript(name);
            transcript.set_format(name, format)?;
            transcript.push_stored(run, from, items.into_iter().map(Into::into).collect());
        }
        let at = ResponseAt { format, run: Some(run), item: Some(from), body: None };
        live.workflow.bodies.insert((run, from), response.body.clone());
        live.workflow.resume(&output_key, ResponseValue { at, info }.to_value())?;
        live.workflow.counters.steps += 1;
        (live.progress.attempts, live.progress.retried) = (0, None);
        live.progress.batched = None;
        live.progress.receipts.clear();
        let payload = json!({
            "continuation_id": row.step_key, "output_key": output_key,
            "env": live.workflow.env_changes(), "flow": live.workflow.flow_since(flow),
        });
        self.complete(turn, draft, live, events.resumed.clone(), &payload, Vec::new())
    }

    async fn llm_failed(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        mut row: StepRow,
        error: ProviderError,
    ) -> Result<Flow, TurnError> {
        if let Some(delay) = error.postponed_by() {
            return self.llm_postponed(turn, row, delay).await;
        }
        let details = json!({
            "kind": error.kind().as_str(), "error_type": error.name(), "status": error.status(),
            "request_id": error.request_id(), "possibly_paid": error.kind().may_be_paid(),
        });
        let ending = match error.kind().may_be_paid() {
            true => Ending::Lost,
            false => Ending::Free,
        };
        let attempt = row.attempt + 1;
        // A new generation has attempts of its own.
        let counted = attempt - self.live().progress.attempts;
        let decision = match error.retry_after() {
            // The account is closed until a person acts.
            Some(delay) if error.kind() == ProviderErrorKind::SpendLimitReached => {
                Decision::RetryIn(delay)
            }
            _ => self.agent.decide(counted, &error, turn.env().random()),
        };
        let Decision::RetryIn(delay) = decision else {
            if self.overflows(&error) {
                return self.llm_overflowed(turn, provider, row, &error, details).await;
            }
            let failure = Failure { name: "PROVIDER_FAILED".into(), message: error.to_string() };
            return self.llm_ended(turn, provider, row, failure, details, ending).await;
        };
        let due = turn.now().plus(delay);
        let mut payload = json!({
            "continuation_id": row.step_key, "attempt": attempt + 1, "retry_at": due.to_string(),
        });
        merge_into(&mut payload, &details);
        row.attempt = attempt;
        (row.status, row.due_at) = (StepStatus::Waiting, Some(due));
        let failure = Failure { name: error.kind().as_str().into(), message: error.to_string() };
        row.error = Some(failure.body().map_err(TurnError::Blocked)?);
        let most = self.most().map_err(TurnError::Blocked)?;
        let written_row = self.commit_accounted(turn, |_, turn, draft, accounts| {
            let (stamp, mut row) = (turn.stamp(), row.clone());
            row.updated_at = stamp.at;
            let event = LlmEvents::of(provider.event_family()).retried.clone();
            accounts.end(&ending, || most);
            draft.step(event, &payload, row.clone(), stamp)?;
            kit::release(turn, draft, Wake::At(due));
            Ok(row)
        });
        match written_row.await? {
            Ok(written) => row = written,
            Err(stop) => written(Err::<(), _>(stop))?,
        }
        turn.metrics().steps_retried.add(1);
        turn.announce(EnqueuedReason::Retry);
        self.live_mut().rows.push(row);
        Ok(Flow::Over)
    }

    // The account of the provider is closed. Nothing was sent, so this is no attempt, and no event: a run
    // may wait for days.
    async fn llm_postponed(
        &mut self,
        turn: &mut Turn,
        mut row: StepRow,
        delay: Duration,
    ) -> Result<Flow, TurnError> {
        let due = turn.now().plus(delay);
        (row.status, row.due_at) = (StepStatus::Waiting, Some(due));
        let most = self.most().map_err(TurnError::Blocked)?;
        let sent = self.commit_accounted(turn, |_, turn, draft, accounts| {
            let mut row = row.clone();
            row.updated_at = turn.stamp().at;
            // The reservation is released while the run waits.
            accounts.end(&Ending::Free, || most);
            draft.open_step(row.clone());
            kit::release(turn, draft, Wake::At(due));
            Ok(row)
        });
        let row = written(sent.await?)?;
        turn.announce(EnqueuedReason::Retry);
        self.live_mut().rows.push(row);
        Ok(Flow::Over)
    }

    // The call failed for good.
    pub(crate) async fn llm_ended(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        mut row: StepRow,
        failure: Failure,
        details: serde_json::Value,
        ending: Ending,
    ) -> Result<Flow, TurnError> {
        row.attempt += 1;
        (row.status, row.due_at) = (StepStatus::Errored, None);
        (row.result, row.error) = (None, Some(failure.body().map_err(TurnError::Blocked)?));
        let mut payload = json!({
            "continuation_id": row.step_key, "attempt": row.attempt, "error": failure.summary(),
            "error_ref": { "kind": "step_error", "step_key": row.step_key },
        });
        merge_into(&mut payload, &details);
        let most = self.most().map_err(TurnError::Blocked)?;
        let ended = self.commit_accounted(turn, |this, turn, draft, accounts| {
            let (stamp, mut row) = (turn.stamp(), row.clone());
            row.updated_at = stamp.at;
            let event = LlmEvents::of(provider.event_family()).failed.clone();
            let mut progress = this.live().progress.clone();
            (progress.attempts, progress.batched) = (row.attempt, None);
            let body = super::state::save(&this.live().workflow, &progress, &this.live().stored)?;
            accounts.end(&ending, || most);
            draft.step(event, &payload, row, stamp)?;
            draft.state(body, turn.stamp());
            this.end_failed(turn, draft, &failure, &payload)?;
            Ok(())
        });
        written(ended.await?)?;
        turn.count_failed_step();
        Ok(Flow::Over)
    }
}

pub(super) fn merge_into(payload: &mut serde_json::Value, details: &serde_json::Value) {
    if let (Some(payload), Some(details)) = (payload.as_object_mut(), details.as_object()) {
        payload.extend(details.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}
