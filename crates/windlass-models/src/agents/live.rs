//! Runs a workflow in memory: provider calls at once, no store, a best-effort list of events.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use windlass_engine::Env;
use windlass_kernel::{BoxFuture, Decision, Error, ErrorCode, ErrorKind};

use super::agent::Agent;
use super::merge::{BranchEnd, merge};
use super::observe::PendingWorkflowEvent;
use super::provider::{
    NoSink, ProviderError, ProviderErrorKind, ProviderRequest, ProviderResponse, TokenSink,
    WireFormat,
};
use super::request::{ForkBranch, LlmRequest, ResponseInfo};
use super::tool::dispatch_tool_uses;
use super::trampoline::WorkflowError;
use super::wire::request_body;
use super::workflow::{ResponseAt, ResponseValue, Step, Workflow};
use crate::any_error::AnyError;

/// How long an answer waits until its provider has stored what it shows about limits.
const LEARN_MAX: Duration = Duration::from_secs(5);

/// Runs workflows of an agent in memory. Nothing is stored: after a crash the workflow begins again.
#[derive(Clone)]
pub struct Executor {
    agent: Arc<Agent>,
    env: Arc<dyn Env>,
    sink: Option<Arc<dyn TokenSink>>,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// A workflow failed.
#[derive(Debug)]
pub struct RunError {
    /// The workflow as it was when it failed.
    pub workflow: Option<Box<Workflow>>,
    /// The events that were recorded before.
    pub events: Vec<PendingWorkflowEvent>,
    /// The error.
    pub source: AnyError,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run_id = self.workflow.as_ref().map_or("", |workflow| workflow.run_id());
        let count = self.events.len();
        write!(f, "run {run_id:?} failed with {count} pending events: {}", self.source)
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_error())
    }
}

impl From<WorkflowError> for RunError {
    fn from(error: WorkflowError) -> Self {
        let WorkflowError { workflow, events, source, .. } = error;
        Self { workflow: Some(workflow), events, source }
    }
}

/// A workflow that has ended.
#[derive(Debug)]
pub struct Run {
    /// The workflow at its end.
    pub workflow: Workflow,
    /// The events that its functions recorded, and those of its branches.
    pub events: Vec<PendingWorkflowEvent>,
}

impl Executor {
    /// An executor of an agent. Timeouts and delays come from `env`.
    pub fn new(agent: Agent, env: Arc<dyn Env>) -> Self {
        // A loop that cannot be resolved fails when it runs, with the same error as any missing function.
        if let Err(error) = agent.resolve_loops() {
            tracing::warn!(%error, agent = %agent.name, "failed to prepare the loops of an agent");
        }
        Self { agent: Arc::new(agent), env, sink: None }
    }

    /// Streams all calls and gives the parts to a sink. Parts of an attempt that failed come again with the
    /// next one.
    #[must_use]
    pub fn stream_to(mut self, sink: Arc<dyn TokenSink>) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Runs a workflow to its end.
    ///
    /// # Errors
    ///
    /// A [`RunError`] if a function, a provider or a tool fails, and at a question to a person or
    /// a budget ([`ErrorCode::AgentNeedsEngine`]).
    pub fn run_workflow(&self, workflow: Workflow) -> BoxFuture<'_, Result<Run, RunError>> {
        Box::pin(self.advance(workflow))
    }

    async fn advance(&self, mut workflow: Workflow) -> Result<Run, RunError> {
        let mut events = Vec::new();
        if let Err(error) = self.agent.check_options().and_then(|()| self.refuse_budget(&workflow))
        {
            let workflow = Some(Box::new(workflow));
            return Err(RunError { workflow, events, source: AnyError::new(error) });
        }
        loop {
            let kept = workflow.clone();
            let advanced = self.step(workflow, &mut events).await;
            workflow = match advanced {
                Ok(workflow) => workflow,
                Err(mut error) => {
                    events.append(&mut error.events);
                    error.events = events;
                    error.workflow = error.workflow.or(Some(Box::new(kept)));
                    return Err(error);
                }
            };
            if let Step::Halt { .. } = workflow.step {
                return Ok(Run { workflow, events });
            }
            if workflow.counters.steps > self.agent.steps_max {
                let source = step_limit(self.agent.steps_max).into();
                return Err(RunError { workflow: Some(Box::new(workflow)), events, source });
            }
        }
    }

    // The accounts of budgets are records in a store.
    fn refuse_budget(&self, workflow: &Workflow) -> Result<(), Error> {
        let of_branch = match &workflow.step {
            Step::ForkJoin { branches, .. } => branches.iter().any(|b| b.budget.is_some()),
            _ => false,
        };
        if self.agent.budget.is_none() && !of_branch {
            return Ok(());
        }
        let message =
            "the agent or a branch has a budget, and an executor in memory keeps no accounts";
        Err(Error::new(ErrorKind::Refused, ErrorCode::AgentNeedsEngine, message))
    }

    async fn step(
        &self,
        mut workflow: Workflow,
        events: &mut Vec<PendingWorkflowEvent>,
    ) -> Result<Workflow, RunError> {
        workflow.counters.steps += 1;
        match workflow.step.clone() {
            Step::Halt { .. } => {}
            Step::Call { .. } => {
                let outcome = self.agent.trampoline.run_one_local_call(workflow).await?;
                events.extend(outcome.events);
                workflow = outcome.workflow;
                // Nothing is stored here.
                workflow.transcripts.values_mut().for_each(|it| drop(it.take_unstored()));
            }
            Step::Llm { request, output_key } => {
                let (format, response) = self.llm(&workflow, &request).await.map_err(failed)?;
                let value = inline_response(&mut workflow, &request, format, &response);
                let value = value.map_err(|error| failed(error.into()))?;
                workflow.resume(&output_key, value).map_err(|error| failed(error.into()))?;
            }
            Step::Tools { uses, output_key } => {
                let (run, batch) = (workflow.run_id().to_owned(), workflow.counters.tools);
                workflow.counters.tools += 1;
                let tools = &self.agent.tools;
                let results = dispatch_tool_uses(tools, &*self.env, &run, batch, &uses).await;
                let value = serde_json::to_value(results.map_err(failed)?)
                    .map_err(|error| failed(error.into()))?;
                workflow.resume(&output_key, value).map_err(|error| failed(error.into()))?;
            }
            Step::Human { .. } => {
                let message = "the workflow asks a person, and an executor in memory cannot wait for an answer";
                let error = Error::new(ErrorKind::Refused, ErrorCode::AgentNeedsEngine, message);
                return Err(failed(error.into()));
            }
            Step::ForkJoin { branches, join, join_version: version } => {
                self.refuse_budget(&workflow).map_err(|error| failed(error.into()))?;
                self.fork_join(&mut workflow, &branches, events).await?;
                workflow.step = Step::Call { function: join, version };
            }
        }
        Ok(workflow)
    }

    async fn fork_join(
        &self,
        workflow: &mut Workflow,
        branches: &[ForkBranch],
        events: &mut Vec<PendingWorkflowEvent>,
    ) -> Result<(), RunError> {
        let runs = branches.iter().map(|branch| {
            let forked = self.agent.branch(workflow, branch);
            async move {
                let forked = forked.map_err(|error| failed(error.into()))?;
                self.run_workflow(forked).await
            }
        });
        let ends = futures::future::join_all(runs).await;
        let mut merged = Vec::new();
        for (branch, end) in branches.iter().zip(ends) {
            let Run { workflow: ended, events: recorded } = end.map_err(|error| {
                let name = &branch.name;
                let message = format!("branch {name:?} failed: {}", error.source);
                let source = Error::new(ErrorKind::Failed, ErrorCode::AgentBranchFailed, message);
                RunError { source: source.into(), ..error }
            })?;
            events.extend(recorded);
            let env = ended.env().into_iter().collect();
            let (transcripts, only) = (ended.transcripts, branch.only.clone());
            merged.push((branch.name.clone(), BranchEnd { env, transcripts, only }));
        }
        merge(workflow, &merged).map_err(|error| failed(error.into()))
    }

    async fn llm(
        &self,
        workflow: &Workflow,
        request: &LlmRequest,
    ) -> Result<(WireFormat, ProviderResponse), AnyError> {
        let provider = self.agent.provider_named(&request.provider)?;
        let body = build(workflow, request, provider.wire_format())?;
        let mut sent = ProviderRequest {
            provider: request.provider.clone(),
            model: request.model.clone(),
            body,
            call_id: format!("{}:llm:{}", workflow.run_id(), workflow.counters.steps),
            attempt: 0,
            stream: request.stream || self.sink.is_some(),
        };
        let sink = self.sink.as_deref().unwrap_or(&NoSink);
        loop {
            sent.attempt += 1;
            let timeout = self.agent.llm_timeout(request);
            let called = call_once(&*provider, &sent, &*self.env, timeout, sink).await;
            let error = match called {
                Ok(response) => return Ok((provider.wire_format(), response)),
                Err(error) => error,
            };
            // Nobody can be asked here about a spend limit.
            let waits = error.kind() != ProviderErrorKind::SpendLimitReached;
            if let Some(delay) = error.postponed_by().filter(|_| waits) {
                sent.attempt -= 1;
                self.env.sleep(delay).await;
                continue;
            }
            match self.agent.decide(sent.attempt, &error, self.env.random()) {
                Decision::RetryIn(delay) => self.env.sleep(delay).await,
                Decision::GiveUp(_) => return Err(AnyError::from(error)),
            }
        }
    }
}

fn failed(source: AnyError) -> RunError {
    RunError { workflow: None, events: Vec::new(), source }
}

pub(crate) fn step_limit(max: u64) -> Error {
    let message = format!("the run has made {max} steps; at most {max} are allowed");
    Error::new(ErrorKind::Refused, ErrorCode::AgentStepLimit, message)
}

/// The bytes of a request.
pub(crate) fn build(
    workflow: &Workflow,
    request: &LlmRequest,
    format: WireFormat,
) -> Result<bytes::Bytes, Error> {
    let Some(name) = &request.transcript else {
        return Ok(request_body(&request.params, None::<(&str, std::iter::Empty<_>)>));
    };
    let empty = Default::default();
    let transcript = workflow.transcripts.get(name).unwrap_or(&empty);
    transcript.check_format(name, format)?;
    Ok(request_body(&request.params, Some((format.items_member(), transcript.items()))))
}

/// One attempt. An attempt that takes too long has an unknown outcome.
pub(crate) async fn call_once(
    provider: &dyn super::provider::Provider,
    request: &ProviderRequest,
    env: &dyn Env,
    timeout: Duration,
    sink: &dyn super::provider::TokenSink,
) -> Result<ProviderResponse, ProviderError> {
    let called = match select(provider.call(request, sink), env.sleep(timeout)).await {
        Either::Left((called, _)) => called,
        Either::Right(_) => {
            let message = format!("the provider gave no answer within {timeout:?}");
            return Err(ProviderError::new(ProviderErrorKind::UnknownOutcome, message));
        }
    };
    // The answer does not wait for a store that hangs.
    select(provider.learn(called.as_ref()), env.sleep(LEARN_MAX)).await;
    let response = called?;
    let format = provider.wire_format();
    // A response that cannot be read is found here, before anything is recorded.
    let read = || {
        format.response_items(&response.body)?;
        format.tool_uses(&response.body)?;
        format.text(&response.body)
    };
    match read() {
        Ok(_) => Ok(response),
        Err(error) => {
            let message = error.message().to_owned();
            Err(ProviderError::new(ProviderErrorKind::InvalidResponse, message).with_source(error))
        }
    }
}

fn inline_response(
    workflow: &mut Workflow,
    request: &LlmRequest,
    format: WireFormat,
    response: &ProviderResponse,
) -> Result<serde_json::Value, Error> {
    if let Some(name) = &request.transcript {
        let items = format.response_items(&response.body)?;
        let transcript = workflow.transcript(name);
        transcript.set_format(name, format)?;
        items.into_iter().try_for_each(|item| transcript.push(item))?;
    }
    let body = String::from_utf8_lossy(&response.body).into_owned();
    let at = ResponseAt { format, run: None, item: None, body: Some(body) };
    Ok(ResponseValue { at, info: info_of(response) }.to_value())
}

pub(crate) fn info_of(response: &ProviderResponse) -> ResponseInfo {
    ResponseInfo {
        stop_reason: response.stop_reason.clone(),
        model: response.model.clone(),
        message_id: response.message_id.clone(),
        request_id: response.request_id.clone(),
        usage: response.usage.clone(),
    }
}

#[cfg(test)]
mod tests;
