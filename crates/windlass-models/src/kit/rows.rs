//! Rows of steps.

use std::time::Duration;

use windlass_kernel::{Draft, Run, Step, StepKey, StepKind, StepStatus, Timestamp};

/// A pending step that the next event of a commit creates.
pub fn new_step(run: &Run, draft: &Draft, key: StepKey, kind: StepKind, at: Timestamp) -> Step {
    blank_step(run, draft.head().next_ordinal, key, kind, at)
}

/// A pending step with nothing in it. Its name is its key, and its position is the ordinal of the event
/// that creates it ([`windlass_kernel::Draft::head`]).
pub fn blank_step(run: &Run, position: u64, key: StepKey, kind: StepKind, at: Timestamp) -> Step {
    Step {
        run_key: run.run_key,
        name: key.shared(),
        step_key: key,
        kind,
        status: StepStatus::Pending,
        position,
        attempt: 0,
        attempts_max: None,
        input: None,
        result: None,
        error: None,
        timeout: None,
        due_at: None,
        wait_for: None,
        created_at: at,
        updated_at: at,
    }
}

/// Whole microseconds of a span, as `took_us` in the events of steps has them.
pub fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
