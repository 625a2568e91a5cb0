//! `relays`: a payload that goes from step to step, bytes in and bytes out, with a hook at the end of every run.
//!
//! The engine calls a [`StepRunner`] for one step at a time; the [`StepOutcome`] names the next step. The outcome and
//! the next step are one commit, and a committed step never runs again.

mod description;
mod effects;
mod group;
mod hook;
mod outcome;
mod program;
mod record;
mod relay;
mod request;
mod runtime;
mod spec;
mod step;
mod typed;

pub use description::DESCRIPTION;
pub use effects::Effects;
pub use group::{GROUP_LABEL, GroupCounts, RunGroup};
pub use hook::{HookError, NoopTerminalHook, RunOutcome, TerminalHook, TerminalStatus};
pub use outcome::{RelayError, StepOutcome, StepRunner};
pub use runtime::{Finished, RelayBuilder, RelayStatus, RunState, relay, remote};
pub use spec::{HEADERS_BYTES_MAX, HEADERS_MAX, RESERVED_PREFIX, RunSpec};
pub use step::{RelayStep, Signal};
pub use tokio_util::sync::CancellationToken;
pub use typed::{Typed, TypedOutcome, TypedRunner};
