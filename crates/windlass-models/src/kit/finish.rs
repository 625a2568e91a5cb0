//! The end of a run: the event, the row, and what its parent hears.

use serde::Serialize;
use windlass_engine::{Turn, TurnError, events};
use windlass_kernel::{Body, Draft, End, Error, Limits};

use crate::run::check_body;

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
