//! The ledger: what happened to a run, in exact order, with causes, protected by a hash chain.

mod actor;
mod chain;
mod event;
mod name;
pub mod run_events;
mod seal;
mod writer;

pub use actor::{Actor, ErrorSummary, StorageRef};
pub use chain::{Head, genesis};
pub(crate) use chain::{genesis_of, verify_events};
pub use event::{CausalRef, Event};
pub use name::{EventType, RESERVED_PREFIXES};
pub use seal::{CONSUMED_MAX, Seal, SealOf, run_end_digest, seals_of, step_digest};
pub(crate) use seal::{
    SEALED_BYTES_MAX, message_digest, messages_digest, record_digest, state_digest,
};
pub use writer::{Ledger, NewEvent, Stamp};
