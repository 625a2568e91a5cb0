//! The test kit of Windlass: an engine in virtual time for tests of workflows, crashes at every
//! commit, replay of exported runs; and for Windlass itself a conformance suite that every store
//! runs, and a simulator.

// Tests fail by panicking; an unwrap in this crate is an assertion.
#![allow(clippy::missing_panics_doc)]

#[cfg(feature = "simulation")]
pub mod conformance;
#[cfg(feature = "simulation")]
pub mod crash;
#[cfg(feature = "simulation")]
pub mod damage;
#[cfg(feature = "simulation")]
pub mod differential;
#[cfg(feature = "simulation")]
pub mod engine;
#[cfg(feature = "simulation")]
pub mod events;
pub mod gate;
#[cfg(feature = "simulation")]
pub mod memory;
pub mod outage;
#[cfg(feature = "simulation")]
pub mod replay;
#[cfg(feature = "scripted-llm")]
pub mod scripted_llm;
#[cfg(feature = "simulation")]
pub mod sim;
#[cfg(feature = "simulation")]
mod sync_store;
#[cfg(feature = "simulation")]
pub mod world;

#[cfg(all(doctest, feature = "simulation"))]
#[doc = include_str!("../../../docs/testing.md")]
struct Guide;

#[cfg(feature = "simulation")]
pub use crash::{
    CrashPoints, CrashReport, Probe, Told, every_crash_of, every_crash_of_on_sqlite,
    every_crash_point,
};
#[cfg(feature = "simulation")]
pub use engine::TestEngine;
#[cfg(feature = "simulation")]
pub use replay::{Divergence, ExportedRun, export_run, replay};
pub use windlass::admin::verify_store;
