//! Finds the people who are asked for an approval, from a snapshot of the directory.
//!
//! The function is pure: the snapshot, the time and the counter of the round robin are arguments, so
//! that a simulation gives the same answer as the engine.
//!
//! Rules that hold for every strategy:
//!
//! - The requester and the editors of the document are never asked, neither themselves nor through a
//!   delegate, and a delegation to one of them has no effect.
//! - A delegation has an end. Delegations do not chain: the delegate of a delegate is not asked.

mod directory;
mod resolve;

pub use directory::{Delegation, Directory, Person};
pub use resolve::{Asked, Reason, Request, Resolution, Skipped, Why, resolve};

use crate::diagnostic::Code;

/// A person, a role or a rule that the definition names does not exist.
pub const APPROVER_UNKNOWN: Code = Code::new("APPROVER_UNKNOWN");
/// Nobody is left to ask.
pub const APPROVER_NONE: Code = Code::new("APPROVER_NONE");
/// The managers form a circle.
pub const APPROVER_MANAGER_CYCLE: Code = Code::new("APPROVER_MANAGER_CYCLE");
/// A list is larger than its limit.
pub const APPROVER_LIMIT: Code = Code::new("APPROVER_LIMIT");
/// An expression or a rule gave something that names no person.
pub const APPROVER_VALUE: Code = Code::new("APPROVER_VALUE");

/// The codes of this module.
pub const CODES: &[Code] =
    &[APPROVER_UNKNOWN, APPROVER_NONE, APPROVER_MANAGER_CYCLE, APPROVER_LIMIT, APPROVER_VALUE];

/// The most people who are asked at once.
pub const ASKED_MAX: usize = 100;
/// The most people of a directory.
pub const PEOPLE_MAX: usize = 100_000;
/// The most delegations of a directory.
pub const DELEGATIONS_MAX: usize = 10_000;
/// The most levels of managers.
pub const LEVELS_MAX: u32 = 20;
/// The output of a decision table that names an approver.
pub const RULE_OUTPUT: &str = "outcome";
/// The prefix of an outcome that names a role.
pub const ROLE_PREFIX: &str = "role:";

#[cfg(test)]
mod tests;
