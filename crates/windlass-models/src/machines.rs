//! `machines`: event-driven state machines with activities, timers, signals and children.
//!
//! A [`Workflow`] has a callback for each kind of input; each callback returns a list of
//! [`WorkflowAction`]s. Callbacks are pure: side effects belong into an [`Activity`], which a worker runs, perhaps in
//! another process. The input of a callback and its actions are one commit. When the engine loads a run, it
//! restores the machine from its snapshot, or calls the callbacks again in the order of the ledger and compares
//! their actions with the record.

mod action;
mod activity;
mod description;
mod live;
mod machine;
mod pending;
mod program;
mod records;
mod replay;
mod run;
mod watch;
mod workflow;

pub use action::{
    ActivityOptions, CircuitBreakerConfig, WorkflowAction, WorkflowSignal, signal_types,
};
pub use activity::{Activity, ActivityContext, ActivityError, HeartbeatError, TimeoutType, serve};
pub use description::DESCRIPTION;
pub use run::{register, remote};
pub use workflow::{Workflow, WorkflowError};
