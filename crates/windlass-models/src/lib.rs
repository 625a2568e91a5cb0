//! The models of Windlass: ways to write a workflow, each on the same kernel and engine.

#![warn(clippy::missing_errors_doc)]
#![cfg_attr(
    not(all(
        feature = "agents",
        feature = "contracts",
        feature = "machines",
        feature = "relays",
        feature = "steps"
    )),
    allow(dead_code, reason = "each model uses another part of what they share")
)]

mod any_error;
#[cfg(any(feature = "contracts", feature = "machines", feature = "relays", feature = "steps"))]
mod effects;
#[cfg(all(test, any(feature = "machines", feature = "relays", feature = "steps")))]
mod fixtures;
#[allow(clippy::missing_errors_doc, reason = "for authors of models, not for programs")]
pub mod kit;
mod run;
mod schedule;
mod value;
mod workflow_ref;

#[cfg(feature = "agents")]
pub mod agents;
#[cfg(feature = "contracts")]
pub mod contracts;
#[cfg(feature = "machines")]
pub mod machines;
#[cfg(feature = "relays")]
pub mod relays;
#[cfg(feature = "steps")]
pub mod steps;

pub use any_error::AnyError;
pub use run::{RunHandle, Status};
pub use schedule::SetSchedule;
pub use value::Value;
pub use workflow_ref::{Start, WorkflowRef};

use windlass_engine::ModelDescription;

/// The models of this crate, for processes that describe runs without serving their workflows.
pub const MODELS: &[&ModelDescription] = &[
    #[cfg(feature = "agents")]
    &agents::DESCRIPTION,
    #[cfg(feature = "agents")]
    &agents::LANES,
    #[cfg(feature = "contracts")]
    &contracts::DESCRIPTION,
    #[cfg(feature = "machines")]
    &machines::DESCRIPTION,
    #[cfg(feature = "relays")]
    &relays::DESCRIPTION,
    #[cfg(feature = "steps")]
    &steps::DESCRIPTION,
];
