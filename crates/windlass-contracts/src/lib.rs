//! The language of contracts: lifecycle contracts, envelopes, slots, patches, expressions, and the
//! compiler that merges them into one hashed artefact.
//!
//! The crate is pure: no I/O, no clock, no randomness. It can be used alone and offline.
//!
//! ```
//! use windlass_contracts::compile::{compile, read_definition};
//! use windlass_contracts::templates;
//!
//! let templates = templates::all();
//! let invoice = templates.iter().find(|one| one.name == "invoice_approval").unwrap();
//! let artefact = compile(&invoice.contract, &invoice.definition)?;
//! println!("{} nodes, hash {}", artefact.nodes.len(), artefact.hash);
//!
//! // A patch without an approval is refused, with the path on which nobody approves.
//! let empty = r#"{"baseRef": {"entityType": "invoice", "envelopeVersion": 1},
//!                 "slots": {"submitted_to_approved": {}}}"#;
//! let empty = read_definition(empty).expect("it has the shape of a definition");
//! let refused = compile(&invoice.contract, &empty).unwrap_err();
//! assert_eq!(refused.problems[0].code.as_str(), "OBLIGATION_BROKEN");
//! assert!(!refused.problems[0].path.is_empty());
//! # Ok::<(), windlass_contracts::compile::Error>(())
//! ```
//!
//! | task | item |
//! |---|---|
//! | read and compile files | [`compile::read_contract`], [`compile::read_definition`], [`compile()`], [`load`] |
//! | parse, check and evaluate expressions and templates | [`dsl`] |
//! | check and evaluate decision tables | [`rules`] |
//! | find the people who are asked | [`approvers`] |
//! | run an artefact | [`advance`], [`project`] |
//! | try an artefact with sample documents | [`simulate`] |
//! | compare an artefact with its envelope | [`diff`] |
//! | complete examples | [`templates`] |

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
