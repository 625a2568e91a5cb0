//! The one who asks: a namespace, scopes, and who they are for the ledger.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::kernel::{Actor, Namespace};

use crate::error::ApiError;

/// What a credential may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Look at workflows, runs, ledgers, schedules, queues and workers.
    Read,
    /// Start runs.
    Create,
    /// Pause, resume, terminate, restart and retry runs; set schedules.
    Manage,
    /// Send events to runs.
    SendEvent,
    /// Drive the engine from outside.
    Tick,
    /// All of it, and API keys.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 6] =
        [Scope::Read, Scope::Create, Scope::Manage, Scope::SendEvent, Scope::Tick, Scope::Admin];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Create => "create",
            Scope::Manage => "manage",
            Scope::SendEvent => "send-event",
            Scope::Tick => "tick",
            Scope::Admin => "admin",
        }
    }

    /// Reads its word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Whether the set allows what a scope is needed for. `admin` allows everything.
    pub fn allow(self, scope: Scope) -> bool {
        let bit = |scope: Scope| 1 << (scope as u8);
        self.0 & (bit(scope) | bit(Scope::Admin)) != 0
    }

    /// The scopes in it.
    pub fn list(self) -> Vec<Scope> {
        Scope::ALL.into_iter().filter(|scope| self.0 & (1 << (*scope as u8)) != 0).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | 1 << (scope as u8)))
    }
}

/// The one who asks.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The tenant they act in: it comes from the credential and from nowhere else.
    pub namespace: Namespace,
    /// What they may do.
    pub scopes: Scopes,
    /// Who they are, for the ledger.
    pub actor: Option<Actor>,
}

impl Caller {
    /// Somebody who may do everything in a namespace, and is nobody in particular.
    pub fn everything(namespace: Namespace) -> Self {
        Self { namespace, scopes: [Scope::Admin].into_iter().collect(), actor: None }
    }

    /// Whether they may see and do what is of all namespaces: an admin in the server's own.
    pub(crate) fn is_operator(&self, own: &Namespace) -> bool {
        self.namespace == *own && self.scopes.allow(Scope::Admin)
    }

    /// Refuses those who lack a scope.
    pub(crate) fn must(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scopes.allow(scope) {
            return Ok(());
        }
        let message = format!("the credential lacks the scope {:?}", scope.as_str());
        let details = serde_json::json!({ "scope": scope.as_str() });
        Err(ApiError::forbidden(message).with_details(details))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_allows_itself_and_admin_allows_all() {
        for held in Scope::ALL {
            let scopes: Scopes = [held].into_iter().collect();
            for asked in Scope::ALL {
                assert_eq!(scopes.allow(asked), held == asked || held == Scope::Admin);
            }
            assert_eq!(scopes.list(), [held]);
            assert_eq!(Scope::parse(held.as_str()), Some(held));
        }
        assert!(Scope::ALL.iter().all(|scope| !Scopes::default().allow(*scope)));
        assert_eq!(Scope::parse("root"), None);
    }
}
