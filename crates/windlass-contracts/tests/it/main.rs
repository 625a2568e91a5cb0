//! Integration tests of the contracts language.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod adversarial;
mod approvals;
mod artefact;
mod changes;
mod docs;
mod patches;
mod properties;
mod schemas;
mod support;
mod templates;
mod tokens;
mod values;
