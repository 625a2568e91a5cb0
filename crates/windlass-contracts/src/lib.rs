//! The language of contracts: lifecycle contracts, envelopes, slots, patches, expressions, and the
//! compiler that merges them into one hashed artefact.
//!
//! The crate is pure: no I/O, no clock, no randomness. It can be used alone and offline.

#![forbid(unsafe_code)]

pub mod approvers;
pub mod codes;
pub mod compile;
pub mod diagnostic;
pub mod diff;
pub mod document;
pub mod dsl;
pub mod envelope;
mod graph;
pub mod ids;
mod language;
pub mod number;
mod patch;
pub mod project;
pub mod rules;
#[cfg(test)]
mod samples;
pub mod simulate;
pub mod source;
pub mod templates;
pub mod tokens;
pub mod trial;
pub mod types;

pub use compile::{compile, load};
pub use tokens::advance;
