//! The policy of an application: which person may write a document, and which action a run may carry out.

use windlass_contracts::types::RunAs;

use super::document::{DocumentRow, Person};

/// Decides about writes of people and actions of runs. Without one, everything is allowed that the edit
/// window and the gates allow.
pub trait Policy: Send + Sync + 'static {
    /// Whether a person may make a write: `create`, `edit`, `amend`, or the name of a gate.
    ///
    /// # Errors
    ///
    /// The error is the reason.
    fn write(&self, person: &Person, write: &str, document: &DocumentRow) -> Result<(), String> {
        let _ = (person, write, document);
        Ok(())
    }

    /// Whether a run may carry out an action.
    ///
    /// # Errors
    ///
    /// The error is the reason.
    fn action(
        &self,
        action_type: &str,
        run_as: RunAs,
        person: &Person,
        document: &DocumentRow,
    ) -> Result<(), String> {
        let _ = (action_type, run_as, person, document);
        Ok(())
    }
}

/// A policy that allows everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Policy for AllowAll {}

/// The policy as the token engine asks it.
pub(crate) struct NodePolicy<'a> {
    pub(crate) policy: &'a dyn Policy,
    pub(crate) person: &'a Person,
    pub(crate) document: &'a DocumentRow,
}

impl windlass_contracts::tokens::Policy for NodePolicy<'_> {
    fn check(&self, action_type: &str, run_as: RunAs) -> Result<(), String> {
        self.policy.action(action_type, run_as, self.person, self.document)
    }
}
