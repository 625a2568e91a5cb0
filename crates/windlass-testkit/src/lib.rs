//! The test kit of Windlass: an engine in virtual time for tests of workflows, crashes at every
//! commit, replay of exported runs; and for Windlass itself a conformance suite that every store
//! runs, and a simulator.
//!
//! The feature `simulator`, which is on by default, has all of this. The feature `scripted-llm` has a provider
//! of language models that follows a script, alone or beside it.

// Tests fail by panicking; an unwrap in this crate is an assertion.
#![allow(clippy::missing_panics_doc)]

#[cfg(feature = "simulator")]
pub mod conformance;
#[cfg(feature = "simulator")]
pub mod crash;
#[cfg(feature = "simulator")]
pub mod damage;
#[cfg(feature = "simulator")]
pub mod differential;
#[cfg(feature = "simulator")]
pub mod engine;
#[cfg(feature = "simulator")]
pub mod events;
#[cfg(feature = "simulator")]
pub mod gate;
#[cfg(feature = "simulator")]
pub mod memory;
#[cfg(feature = "simulator")]
pub mod outage;
#[cfg(feature = "simulator")]
pub mod replay;
#[cfg(feature = "scripted-llm")]
pub mod scripted_llm;
#[cfg(feature = "simulator")]
pub mod sim;
#[cfg(feature = "simulator")]
mod sync_store;
#[cfg(feature = "simulator")]
pub mod world;

#[cfg(all(doctest, feature = "simulator"))]
#[doc = include_str!("../../../docs/testing.md")]
struct Guide;

#[cfg(feature = "simulator")]
pub use crash::{
    CrashPoints, CrashReport, Probe, Told, every_crash_of, every_crash_of_on_sqlite,
    every_crash_point,
};
#[cfg(feature = "simulator")]
pub use engine::TestEngine;
#[cfg(feature = "simulator")]
pub use replay::{Divergence, ExportedRun, export_run, replay};
pub use windlass::admin::verify_store;
