//! The end of a run: the event, the row, and what its parent hears.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use windlass_engine::{Turn, TurnError, events};
use windlass_kernel::{Body, Draft, End, Error, Limits, Message, MessageKind, NewMessage};

use crate::run::{CONTINUED, check_body};

/// Refuses an output that is too large or nested too deep.
pub fn check_output(output: Body, limits: &Limits) -> Result<Body, Error> {
    check_body("the output", output, limits.output_bytes_max, limits.json_depth_max)
}

/// Ends the run with an output.
pub fn complete(turn: &mut Turn, draft: &mut Draft, output: Body) -> Result<(), Error> {
    let payload = CompletedPayload { output_bytes: output.len() };
    turn.end(draft, events::WORKFLOW_COMPLETED, &payload, End::Complete(output))
}

/// Ends the run with an error of this name.
pub fn fail(turn: &mut Turn, draft: &mut Draft, name: &str, error: Body) -> Result<(), Error> {
    let payload = FailedPayload { error: ErrorName { name } };
    turn.end(draft, events::WORKFLOW_FAILED, &payload, End::Errored(error))
}

/// Ends this generation and creates the next one, with the messages that nobody has consumed. The
/// caller has read all of them. A parent waits for the name of the run, so it hears of the last
/// generation alone.
pub fn continue_as_new(turn: &mut Turn, draft: &mut Draft, input: Body) -> Result<(), Error> {
    let payload = json!({ "continued": true });
    let stamp = turn.stamp();
    draft.skip_on_end();
    let end = End::Complete(Body::json(CONTINUED));
    draft.end(events::WORKFLOW_COMPLETED, &payload, end, stamp)?;
    let new = super::next_generation(turn, input, draft.cursor());
    let stamp = turn.stamp();
    let run_key = draft.also_create(new, stamp)?;
    // A result is for a step of this generation. The next one may have a step of the same key.
    let is_result = |message: &Message| {
        use MessageKind::{ActivityResult, ChildResult, Decision};
        matches!(message.kind, ActivityResult | ChildResult | Decision)
    };
    let unread: BTreeMap<u64, Message> = std::mem::take(&mut turn.mailbox);
    for message in unread.into_values().filter(|message| !is_result(message)) {
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

/// Stops the tasks and children of a run in the commit that ends the run.
pub async fn stop_descendants(turn: &mut Turn, draft: &mut Draft) -> Result<(), TurnError> {
    for op in turn.cancel_descendants().await? {
        draft.op(op);
    }
    Ok(())
}

#[derive(Serialize)]
struct CompletedPayload {
    output_bytes: usize,
}

#[derive(Serialize)]
struct FailedPayload<'a> {
    error: ErrorName<'a>,
}

#[derive(Serialize)]
struct ErrorName<'a> {
    name: &'a str,
}
