//! `steps`: async functions with named durable steps, sleeps, events, children and activities.
//!
//! A workflow is an `async fn(Ctx, Input) -> Result<Output, AnyError>`. The engine records the result of each call of
//! [`Ctx`]. When it loads a run, it calls the function again from the top; recorded calls return their recorded
//! results, so the code reaches the same point. Side effects, and everything that may give another result the next
//! time, belong into a step.

mod activity;
mod core;
mod ctx;
mod description;
mod error;
mod open;
mod operation;
mod program;
mod step;
mod wait;
mod wake;
mod workflow;

pub use activity::Activity;
pub use ctx::{Ctx, Log, RunInfo};
pub use description::DESCRIPTION;
pub use error::{NonRetryable, StepError};
pub use step::{Attempt, StepCall, StepTx};
pub use wait::{Child, EventWait, EventWaitWithMeta, ReceivedEvent, RequestWait, Sleep};
pub use workflow::{register, remote, serve_activity};
