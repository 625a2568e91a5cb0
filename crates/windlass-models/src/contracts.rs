//! Documents with a lifecycle: contracts of the operator, patches of tenants, runs, and approvals.
//!
//! A lifecycle contract ([`windlass_contracts`]) says which states a document has, which gates are between them,
//! and what must happen before a gate opens. Tenants fill the slots between them with their own steps. The
//! compiler proves that no patch avoids an obligation. [`Contracts`] publishes both, creates and edits documents,
//! and takes the decisions of people.

mod actions;
mod approvals;
mod asking;
mod chains;
mod definitions;
mod description;
mod document;
mod documents;
mod error;
mod handle;
mod health;
mod listings;
mod names;
mod notifications;
mod operations;
mod others;
mod people;
mod policy;
mod program;
mod review;
mod rows;
mod shared;
mod tenants;
mod waits;
mod withdrawals;
mod work;

pub use actions::{Action, ActionCall, ActionOutcome, DOCUMENT_UPDATE};
pub use approvals::{ASKED_MAX, Approval, ApprovalStatus, AskedPerson, DecisionNote};
pub use chains::{Chain, ChainProgress, STAGES_MAX, Stage};
pub use definitions::{
    DefinitionHead, DefinitionVersion, PublishedRef, Recompiled, TypeHead, TypeVersion, problems_of,
};
pub use description::DESCRIPTION;
pub use document::{AmendedFrom, Document, DocumentRow, Note, PendingAction, Person};
pub use documents::DocumentVersion;
pub use handle::{Contracts, ContractsBuilder};
pub use health::{Health, NodeDurations, STUCK_AFTER, STUCK_MAX, Stuck};
pub use listings::PublishedVersion;
pub use names::{EDITORS_MAX, PENDING_MAX, REASON_BYTES_MAX, STEPS_MAX, VERSIONS_MAX};
pub use notifications::Notification;
pub use operations::{Position, Rebuilt};
pub use others::{DOCUMENT_CREATE, DOCUMENT_TRANSITION};
pub use people::DirectorySource;
pub use policy::{AllowAll, Policy};
pub use review::{Progress, Review};
pub use waits::EVENT_TYPE;
pub use work::{MAIL_EFFECT, MailInput, WEBHOOK_EFFECT, WebhookInput};

pub use windlass_contracts as language;
