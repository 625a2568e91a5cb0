//! How a run of `steps` ends: with a result, an error, or a next generation.

use std::collections::BTreeMap;

use serde_json::json;
use windlass_engine::{Turn, TurnError, events};
use windlass_kernel::{Body, Draft, End, Error, Message, NewMessage};

use super::StepsProgram;
use crate::kit;
use crate::steps::CONTINUED;
use crate::steps::error::Failure;

impl StepsProgram {
    // The run has returned: its end is in the same commit as its last records.
    pub(super) async fn finish(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let outcome = self.finished.take().expect("the run has returned");
        self.take_lines(turn)?;
        let continue_with = self.core().continue_with.take();
        if continue_with.is_some() && turn.has_unread() {
            turn.read_messages().await?;
        }
        let outcome = outcome.and_then(|output| {
            kit::check_output(output, turn.limits())
                .map_err(|error| Failure::new("ResultTooLarge", error.to_string(), false))
        });
        let mut draft = match self.draft.take() {
            Some(draft) => draft,
            None => turn.draft(),
        };
        if self.reaches_outside() {
            kit::stop_descendants(turn, &mut draft).await?;
        }
        // Waits and bodies that lost a race have rows, and nobody will end them.
        if self.core().has_open_rows() {
            turn.cancel_open_steps(&mut draft).await?;
        }
        let ended = match (continue_with, outcome) {
            (Some(input), _) => {
                let output = Body::json(CONTINUED);
                let payload = json!({ "continued": true });
                let stamp = turn.stamp();
                draft.skip_on_end();
                // A parent waits for the name, so it hears of the last generation alone.
                draft
                    .end(events::WORKFLOW_COMPLETED, &payload, End::Complete(output), stamp)
                    .and_then(|_| continue_as_new(turn, &mut draft, input))
            }
            (None, Ok(output)) => kit::complete(turn, &mut draft, output),
            (None, Err(failure)) => {
                let error = failure.body().map_err(TurnError::Blocked)?;
                kit::fail(turn, &mut draft, &failure.name, error)
            }
        };
        ended.map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }
}

// The next generation, with the messages that nobody has consumed.
fn continue_as_new(turn: &mut Turn, draft: &mut Draft, input: Body) -> Result<(), Error> {
    let new = kit::next_generation(turn, input, draft.cursor());
    let stamp = turn.stamp();
    let run_key = draft.also_create(new, stamp)?;
    let unread: BTreeMap<u64, Message> = std::mem::take(&mut turn.mailbox);
    for message in unread.into_values() {
        draft.send(NewMessage {
            run_key,
            message_id: message.message_id,
            kind: message.kind,
            name: message.name,
            body: message.body,
            caused_by: message.caused_by,
            sent_at: message.sent_at,
            required: false,
        });
    }
    // Messages that arrive between the last read of the mailbox and this commit follow them.
    let late = turn.carry_over(stamp.at)?;
    draft.enqueue(late);
    Ok(())
}
