//! A request that does not fit into the context of its model.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_engine::{Turn, TurnError};
use windlass_kernel::{Step as StepRow, StepStatus};

use super::accounts::{Ending, Stop};
use super::budget::Amount;
use super::description::LlmEvents;
use super::program::{AgentProgram, Failure, Flow};
use super::provider::{Provider, ProviderError, ProviderErrorKind};
use super::workflow::Step;

/// Names and texts by which providers say that a request is too long.
const TOO_LONG: [&str; 5] = [
    "context_length_exceeded",
    "prompt is too long",
    "maximum context length",
    "exceeds the context window",
    "exceed context limit",
];

impl ProviderError {
    /// Whether the request does not fit into the context of the model.
    pub fn is_context_overflow(&self) -> bool {
        let says = |text: &str| TOO_LONG.iter().any(|known| text.contains(known));
        self.kind() == ProviderErrorKind::Invalid
            && (says(self.message()) || self.name().is_some_and(says))
    }
}

impl AgentProgram {
    /// Whether the program goes on after this error with a function of its own.
    pub(crate) fn overflows(&self, error: &ProviderError) -> bool {
        let Step::Llm { request, .. } = &self.live().workflow.step else { return false };
        request.on_overflow.is_some() && error.is_context_overflow()
    }

    /// Ends a call that was refused because it is too long, and runs the function that the request names.
    pub(crate) async fn llm_overflowed(
        &mut self,
        turn: &mut Turn,
        provider: &Arc<dyn Provider>,
        mut row: StepRow,
        error: &ProviderError,
        details: Value,
    ) -> Result<Flow, TurnError> {
        let Step::Llm { request, .. } = &self.live().workflow.step else {
            return Ok(Flow::Continue);
        };
        let Some(function) = request.on_overflow.clone() else { return Ok(Flow::Continue) };
        let failure = Failure { name: "AGENT_CONTEXT_OVERFLOW".into(), message: error.to_string() };
        row.attempt += 1;
        (row.status, row.due_at) = (StepStatus::Errored, None);
        row.error = Some(failure.body().map_err(TurnError::Blocked)?);
        let mut payload = json!({
            "continuation_id": row.step_key, "attempt": row.attempt, "error": failure.summary(),
            "on_overflow": function, "error_ref": { "kind": "step_error", "step_key": row.step_key },
        });
        super::llm::merge_into(&mut payload, &details);
        let event = LlmEvents::of(provider.event_family()).failed.clone();
        let sent = self.commit_accounted(turn, |this, turn, draft, accounts| {
            let (mut live, mut row) = (this.live().clone(), row.clone());
            let version = this.agent.trampoline.version_of(&function)?;
            row.updated_at = turn.stamp().at;
            accounts.end(&Ending::Free, Amount::default);
            // The function that waits for the response does not get one.
            live.workflow.stack.pop();
            live.workflow.step = Step::Call { function: function.clone(), version };
            live.workflow.counters.steps += 1;
            (live.progress.attempts, live.progress.retried) = (0, None);
            live.progress.batched = None;
            let flow = this.complete(turn, draft, &mut live, event.clone(), &payload, vec![row])?;
            Ok((live, flow))
        });
        match sent.await? {
            Ok((live, flow)) => {
                self.live = Some(live);
                Ok(flow)
            }
            Err(Stop::Failed(failure)) => {
                let ending = Ending::Free;
                self.llm_ended(turn, provider, row, failure, details, ending).await
            }
            Err(_) => Ok(Flow::Continue),
        }
    }
}
