//! `steps`: async functions with named durable steps, sleeps, events, children and activities.
//!
//! A workflow is an `async fn(Ctx, Input) -> Result<Output, AnyError>`. What it does through [`Ctx`] is
//! recorded; when the run is read back, the code runs again from the top and is handed what is
//! recorded, so it comes to the same place. Whatever has an effect, or may come out differently the
//! next time, belongs into a step.

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
pub(crate) use description::MODEL;
pub use error::{NonRetryable, StepError};
pub use step::{Attempt, StepCall, StepTx};
pub use wait::{Child, EventWait, Sleep};
pub use workflow::{register, serve_activity};

pub(crate) use crate::run::CONTINUED;
