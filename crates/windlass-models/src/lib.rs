//! The models of Windlass: ways to write a workflow, each on the same kernel and engine.

#[cfg(feature = "relays")]
pub mod relays;
#[cfg(feature = "steps")]
pub mod steps;
