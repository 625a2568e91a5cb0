//! `machines`: state machines that are told what happened and answer what to do.
//!
//! A [`Workflow`] has a callback for each thing that can happen to it; each answers a list of
//! [`WorkflowAction`]s. Callbacks are pure: whatever has an effect is an [`Activity`], done by a worker
//! that may be in another process. What a callback was told and what it asked for are one commit; when
//! the run is read back, the callbacks are told the same again in the order of the ledger, and what
//! they ask for is compared with the record, or the machine's own snapshot is restored.

mod action;
mod activity;
mod description;
mod live;
mod machine;
mod pending;
mod program;
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
