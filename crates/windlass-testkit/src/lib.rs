//! The test kit of Windlass: a conformance suite that every store runs, and a simulator.

// Tests fail by panicking; an unwrap in this crate is an assertion.
#![allow(clippy::missing_panics_doc)]

pub mod conformance;
pub mod damage;
pub mod differential;
pub mod memory;
pub mod sim;
pub mod world;
