//! `relays`: a payload handed from step to step, bytes in and bytes out, with hooks that always fire.
//!
//! A [`StepRunner`] is asked to run one step at a time and says with its [`StepOutcome`] what comes
//! next. What a step gave is committed together with what follows from it, and never computed again.

mod description;
mod effects;
mod group;
mod hook;
mod outcome;
mod program;
mod record;
mod relay;
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
pub(crate) use runtime::{check_start, start_error};
pub use spec::{HEADERS_BYTES_MAX, HEADERS_MAX, RESERVED_PREFIX, RunSpec};
pub use step::{RelayStep, Signal};
pub use tokio_util::sync::CancellationToken;
pub use typed::{Typed, TypedOutcome, TypedRunner};
