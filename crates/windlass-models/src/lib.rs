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
