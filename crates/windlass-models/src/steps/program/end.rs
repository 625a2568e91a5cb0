//! How a run of `steps` ends: with a result, an error, or a next generation.

use std::collections::BTreeMap;

use serde_json::json;
use windlass_engine::{Turn, TurnError};
use windlass_kernel::{Body, Draft, End, Error, Message, NewMessage, NewRun, Turn as TurnRow};

use super::StepsProgram;
use crate::steps::CONTINUED;
use crate::steps::ctx::check_body;
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
        let reaches = match self.reaches_outside() {
            true => turn.reach().await?,
            false => Vec::new(),
        };
        let limits = turn.limits().clone();
        let outcome = outcome.and_then(|output| {
            let (bytes, depth) = (limits.output_bytes_max, limits.json_depth_max);
            check_body("the output", output, bytes, depth)
                .map_err(|error| Failure::new("ResultTooLarge", error.to_string(), false))
        });
        let mut draft = match self.draft.take() {
            Some(draft) => draft,
            None => turn.draft(),
        };
        for op in reaches {
            draft.op(op);
        }
        let ended = match (continue_with, outcome) {
            (Some(input), _) => {
                let output = Body::json(CONTINUED);
                let payload = json!({ "continued": true });
                let stamp = turn.stamp();
                draft.hand_on_end();
                // A parent waits for the name, so it hears of the last generation alone.
                draft
                    .end("workflow.completed", &payload, End::Complete(output), stamp)
                    .and_then(|_| continue_as_new(turn, &mut draft, input))
            }
            (None, Ok(output)) => {
                let payload = json!({ "output_bytes": output.len() });
                turn.end(&mut draft, "workflow.completed", &payload, End::Complete(output))
            }
            (None, Err(failure)) => {
                let payload = json!({ "error": { "name": failure.name } });
                let error = failure.body().map_err(TurnError::Blocked)?;
                turn.end(&mut draft, "workflow.failed", &payload, End::Errored(error))
            }
        };
        ended.map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }
}

// The next generation, with the messages that nobody has consumed.
fn continue_as_new(turn: &mut Turn, draft: &mut Draft, input: Body) -> Result<(), Error> {
    let run = turn.run.clone();
    let mut row = TurnRow::ready();
    row.queue = run.turn.queue.clone();
    row.priority = run.turn.priority;
    row.limit_key = run.turn.limit_key.clone();
    let new = NewRun {
        run_key: turn.new_run_key(),
        namespace: run.namespace.clone(),
        workflow: run.workflow.clone(),
        model: run.model.clone(),
        id: run.id.clone(),
        generation: run.generation + 1,
        input,
        parent: run.parent.map(|parent| (run.root, parent)),
        fork: run.fork.clone(),
        labels: run.labels.clone(),
        trace: run.trace.clone(),
        headers: run.headers.clone(),
        on_end: run.on_end.clone(),
        deadline_at: None,
        turn: row,
        caused_by: Some(draft.cursor()),
    };
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
    // What comes between the last look at the mailbox and this commit goes after them.
    let late = turn.carry_over(stamp.at)?;
    draft.enqueue(late);
    Ok(())
}
