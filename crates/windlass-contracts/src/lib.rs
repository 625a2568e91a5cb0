//! The language of contracts: lifecycle contracts, envelopes, slots, patches, expressions, and the
//! compiler that merges them into one hashed artefact.
//!
//! The crate is pure: no I/O, no clock, no randomness. It can be used alone and offline.

#![forbid(unsafe_code)]

pub mod approvers;
pub mod diagnostic;
pub mod dsl;
pub mod number;
pub mod rules;
pub mod source;
pub mod types;
