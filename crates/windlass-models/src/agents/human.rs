//! Questions to people in a turn.

use serde_json::{Value, json};
use windlass_engine::{RequestRef, Turn, TurnError};
use windlass_kernel::{Actor, Draft, Error, StepKey, Wake};

use super::description::{HUMAN_BLOCKED, HUMAN_RESUMED};
use super::program::{AgentProgram, Flow, Live};
use super::state;
use super::workflow::Step;
use crate::kit;

fn key(number: u64) -> StepKey {
    StepKey::from_stored(format!("human:{number}"))
}

impl AgentProgram {
    /// Opens the request in the commit that blocks the workflow.
    pub(crate) fn enter_human(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &mut Live,
    ) -> Result<Flow, Error> {
        live.workflow.counters.human += u64::from(live.progress.retried.is_none());
        let number = live.workflow.counters.human;
        let Step::Human { request, output_key } = &live.workflow.step else {
            return Ok(Flow::Continue);
        };
        let payload = json!({
            "continuation_id": key(number), "output_key": output_key,
            "request_ref": { "kind": "step_input", "step_key": key(number) },
        });
        let stamp = turn.stamp();
        draft.event(HUMAN_BLOCKED, &payload, stamp)?;
        let stamp = turn.stamp();
        let row = kit::new_step(&turn.run, draft, key(number), kit::REQUEST, stamp.at);
        let row = kit::open_request(turn, draft, row, request, stamp)?;
        live.rows.push(row);
        Ok(Flow::Continue)
    }

    /// Waits until the request has ended.
    pub(crate) async fn human(&mut self, turn: &mut Turn) -> Result<Flow, TurnError> {
        self.begin(turn).await?;
        let mut live = self.live().clone();
        let number = live.workflow.counters.human;
        let row = live.take_row(key(number).as_str());
        let Some((row, open)) =
            row.and_then(|row| Some((RequestRef::of(&row)?, row))).map(|(r, s)| (s, r))
        else {
            let error = Error::corrupt(format!("the question human:{number} has no row"));
            return Err(TurnError::Blocked(error));
        };
        let mut results = kit::RequestResults::default();
        results.fetch(turn).await?;
        if results.close_stale(turn, vec![open.request.clone()]).await? {
            return Ok(Flow::Continue);
        }
        let (seq, closed) = (results.message(&open.request), results.take(&open.request));
        let message = seq.and_then(|seq| turn.mailbox.remove(&seq));
        let (Some(message), Some(closed)) = (message, closed) else {
            self.park(turn, Wake::OnMessage).await?;
            return Ok(Flow::Over);
        };
        let Step::Human { output_key, .. } = &live.workflow.step else { return Ok(Flow::Continue) };
        let output_key = output_key.clone();
        let answer = serde_json::to_value(&closed.outcome).unwrap_or(Value::Null);
        let mut draft = turn.draft();
        let build = || -> Result<Flow, Error> {
            kit::close_request(turn, &mut draft, row, &message, &closed)?;
            let flow = live.workflow.flow_mark();
            live.workflow.resume(&output_key, answer)?;
            live.workflow.counters.steps += 1;
            live.progress.retried = None;
            let payload = json!({
                "continuation_id": key(number), "output_key": output_key,
                "status": closed.outcome.status, "decisions": closed.outcome.decisions.len(),
                "actor": closed.outcome.decisions.last().map(|last| Actor::new("user", &last.by)),
                "env": live.workflow.env_changes(), "flow": live.workflow.flow_since(flow),
            });
            let stamp = turn.stamp();
            let Live { workflow, stored, .. } = &mut live;
            let rows = state::flush(workflow, stored, turn, &draft, stamp.at)?;
            draft.steps(HUMAN_RESUMED, &payload, rows, stamp)?;
            self.enter(turn, &mut draft, &mut live, Vec::new())
        };
        let flow = build().map_err(TurnError::Blocked)?;
        turn.commit(draft).await?;
        self.live = Some(live);
        Ok(flow)
    }
}
