//! The test kit of Windlass: an engine in virtual time for tests of workflows, crashes at every
//! commit, replay of exported runs; and for Windlass itself a conformance suite that every store
//! runs, and a simulator.

// Tests fail by panicking; an unwrap in this crate is an assertion.
#![allow(clippy::missing_panics_doc)]

pub mod conformance;
pub mod crash;
pub mod damage;
pub mod differential;
pub mod engine;
pub mod events;
pub mod gate;
pub mod memory;
pub mod outage;
pub mod replay;
#[cfg(feature = "scripted-llm")]
pub mod scripted_llm;
pub mod sim;
mod sync_store;
pub mod world;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct Guide;

pub use crash::{
    CrashPoints, CrashReport, Probe, Told, every_crash_of, every_crash_of_on_sqlite,
    every_crash_point,
};
pub use engine::TestEngine;
pub use replay::{Divergence, ExportedRun, export_run, replay};
pub use windlass::admin::verify_store;
