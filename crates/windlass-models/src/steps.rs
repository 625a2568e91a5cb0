//! `steps`: async functions with named durable steps, sleeps, events, children and activities.
//!
//! A workflow is an `async fn(Ctx, Input) -> Result<Output, E>`. What it does through [`Ctx`] is
//! recorded; when the run is read back, the code runs again from the top and is handed what is
//! recorded, so it comes to the same place. Whatever has an effect, or may come out differently the
//! next time, belongs into a step.

mod activity;
mod core;
mod ctx;
mod error;
mod open;
mod operation;
mod program;
mod schedule;
mod step;
mod wait;
mod wake;
mod workflow;

pub use activity::Activity;
pub use ctx::{Ctx, Log, RunInfo};
pub use error::{BoxError, NonRetryable, StepError};
pub use schedule::SetSchedule;
pub use step::{Attempt, Retries, Step, StepTx};
pub use wait::{Child, EventWait, Sleep};
pub(crate) use workflow::model_name;
pub use workflow::{Start, WorkflowRef, register, serve_activity};

pub(crate) use crate::run::CONTINUED;
pub use crate::run::{RunHandle, Status};
