//! The models of Windlass: ways to write a workflow, each on the same kernel and engine.

#[cfg(any(feature = "machines", feature = "relays", feature = "steps"))]
mod effects;
mod run;

#[cfg(feature = "machines")]
pub mod machines;
#[cfg(feature = "relays")]
pub mod relays;
#[cfg(feature = "steps")]
pub mod steps;

pub use run::{RunHandle, Status};

use windlass_engine::Manners;

/// How runs of the models here are asked to end, for processes that do not serve their workflow and so cannot
/// ask the model.
pub const MANNERS: &[(&str, Manners)] = &[
    #[cfg(feature = "machines")]
    (machines::MODEL, machines::MANNERS),
    #[cfg(feature = "relays")]
    (relays::MODEL, relays::MANNERS),
];
