//! Requests to people between two steps: the next step waits, and gets the outcome.
//!
//! The row of the waiting step has the question as its input. The request itself is a step of its own, as in
//! every model. A retried run finds the question without a request of its own, and asks again.

use serde_json::json;
use windlass_engine::explain::{self, StepContext};
use windlass_engine::{RequestRef, Turn, TurnError, Why, events};
use windlass_kernel::request::Request;
use windlass_kernel::{Draft, Error, Step, StepKey, StepStatus, Wake};

use super::outcome::{RelayError, StepOutcome};
use super::program::{Open, RelayProgram};
use super::record;
use crate::kit::{self, REQUEST};

/// The question that a waiting step has in its row; none for a step that waits for a signal.
pub(super) fn asks_of(row: &Step) -> Option<Box<Request>> {
    let waits = row.status == StepStatus::Waiting && row.attempt == 0 && row.wait_for.is_some();
    row.input.as_ref().filter(|_| waits)?.read().ok().map(Box::new)
}

/// The reason why a step of a relay does not go on. The step of its request says who is waited for.
pub(super) fn explain(context: &StepContext<'_>) -> (Why, String) {
    match asks_of(context.step) {
        Some(_) => (Why::AwaitingDecision, format!("{:?} waits for its request", context.key())),
        None => explain::explain_work(context),
    }
}

fn key_of(number: u32, times: u32) -> StepKey {
    match times {
        0 | 1 => StepKey::from_stored(format!("request/{number}")),
        _ => StepKey::from_stored(format!("request/{number}#{times}")),
    }
}

impl Open {
    /// Takes in the requests that the step has opened.
    pub(super) fn read_requests(&mut self, number: u32, rows: &[Step]) -> Result<(), Error> {
        let own = key_of(number, 1);
        for row in rows.iter().filter(|row| row.kind == REQUEST) {
            let (first, times) = match row.step_key.as_str().split_once('#') {
                Some((first, times)) => (first, times.parse().unwrap_or(1)),
                None => (row.step_key.as_str(), 1),
            };
            if first != own.as_str() {
                continue;
            }
            self.asked_times = self.asked_times.max(times);
            match row.status {
                StepStatus::Completed => {
                    self.outcome = row.result.as_ref().map(|result| result.read()).transpose()?;
                }
                status if !status.is_settled() => self.asked = Some(row.clone()),
                _ => {}
            }
        }
        Ok(())
    }
}

impl RelayProgram {
    /// Refuses an outcome with a request that cannot be opened.
    pub(super) fn check_request(
        &self,
        turn: &mut Turn,
        outcome: StepOutcome,
    ) -> Result<StepOutcome, RelayError> {
        if let StepOutcome::ContinueOnRequest { request, .. } = &outcome {
            turn.check_request(request, &key_of(self.number + 1, 1)).map_err(record::refused)?;
        }
        Ok(outcome)
    }

    /// Opens the request of the next step, or takes its outcome. `false` if the turn was given back.
    pub(super) async fn take_request(&mut self, turn: &mut Turn) -> Result<bool, TurnError> {
        let Some(row) = self.open.asked.clone() else {
            self.open_request(turn).await?;
            return Ok(false);
        };
        let Some(request) = RequestRef::of(&row).map(|request| request.request) else {
            let message = format!("step {} names no request", row.step_key);
            return Err(TurnError::Blocked(Error::corrupt(message)));
        };
        self.requests.fetch(turn).await?;
        if self.requests.close_stale(turn, vec![request.clone()]).await? {
            turn.read_messages().await?;
            self.requests.fetch(turn).await?;
        }
        let seq = self.requests.message(&request);
        let (Some(closed), Some(seq)) = (self.requests.take(&request), seq) else {
            let mut draft = turn.draft();
            kit::release(turn, &mut draft, Wake::OnMessage);
            turn.commit(draft).await?;
            return Ok(false);
        };
        let Some(message) = turn.mailbox.get(&seq).cloned() else { return Ok(false) };
        let mut draft = turn.draft();
        kit::close_request(turn, &mut draft, row, &message, &closed).map_err(TurnError::Blocked)?;
        let stamp = turn.stamp();
        let mut step = self.row(&draft, turn, stamp.at);
        (step.status, step.wait_for, step.input) = (StepStatus::Pending, None, None);
        draft.open_step(step);
        turn.commit(draft).await?;
        turn.mailbox.remove(&seq);
        (self.open.asks, self.open.asked, self.open.wait_for) = (None, None, None);
        self.open.outcome = Some(closed.outcome);
        Ok(true)
    }

    /// Takes an open request back in the commit that gives the run up. A retry asks again.
    pub(super) fn withdraw_request(&self, turn: &mut Turn, draft: &mut Draft) -> Result<(), Error> {
        let Some(mut row) = self.open.asked.clone() else { return Ok(()) };
        let Some(request) = RequestRef::of(&row).map(|request| request.request) else {
            return Ok(());
        };
        let stamp = turn.stamp();
        row.status = StepStatus::Cancelled;
        row.updated_at = stamp.at;
        let payload = json!({ "key": row.step_key, "request": request, "cancelled": true });
        draft.step(events::REQUEST_CLOSED, &payload, row, stamp)?;
        draft.enqueue(turn.withdraw_request(&request, stamp.at)?);
        Ok(())
    }

    // The commit that opens the request also gives the turn back.
    async fn open_request(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let Some(request) = self.open.asks.clone() else { return Ok(()) };
        let (run, number) = (&turn.run, self.number);
        let request = request.or_title(format!("step {number} of {}", run.workflow));
        let mut draft = turn.draft();
        let stamp = turn.stamp();
        let key = key_of(number, self.open.asked_times + 1);
        let row = kit::new_step(&turn.run, &draft, key, REQUEST, stamp.at);
        let row = kit::open_request(turn, &mut draft, row, &request, stamp)
            .map_err(TurnError::Blocked)?;
        kit::release(turn, &mut draft, Wake::OnMessage);
        turn.commit(draft).await?;
        self.open.asked_times += 1;
        self.open.asked = Some(row);
        Ok(())
    }
}
