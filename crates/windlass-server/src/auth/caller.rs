//! The caller of a request: namespace, scopes, the person behind it, and the actor for the ledger.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::kernel::{Actor, Namespace, Subject};

use crate::error::ApiError;

/// A permission of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Read workflows, runs, ledgers, schedules, queues and workers.
    Read,
    /// Start runs.
    Create,
    /// Pause, resume, terminate, restart and retry runs; change schedules.
    Manage,
    /// Send events to runs.
    SendEvent,
    /// Drive the engine from outside.
    Tick,
    /// Read, write and remove records.
    Records,
    /// Read the inbox, and decide about requests to people.
    Decide,
    /// Publish definitions. No route of the server requires it yet.
    Define,
    /// All other scopes, and API keys.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 9] = [
        Scope::Read,
        Scope::Create,
        Scope::Manage,
        Scope::SendEvent,
        Scope::Tick,
        Scope::Records,
        Scope::Decide,
        Scope::Define,
        Scope::Admin,
    ];

    /// The name of the scope.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Create => "create",
            Scope::Manage => "manage",
            Scope::SendEvent => "send-event",
            Scope::Tick => "tick",
            Scope::Records => "records",
            Scope::Decide => "decide",
            Scope::Define => "define",
            Scope::Admin => "admin",
        }
    }

    /// Parses the name of a scope.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u16);

impl Scopes {
    /// Whether the set includes a scope. `admin` includes every scope.
    pub fn allow(self, scope: Scope) -> bool {
        let bit = |scope: Scope| 1 << (scope as u16);
        self.0 & (bit(scope) | bit(Scope::Admin)) != 0
    }

    /// The scopes in the set.
    pub fn list(self) -> Vec<Scope> {
        Scope::ALL.into_iter().filter(|scope| self.0 & (1 << (*scope as u16)) != 0).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | 1 << (scope as u16)))
    }
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The namespace. It comes only from the credential.
    pub namespace: Namespace,
    /// The permitted scopes.
    pub scopes: Scopes,
    /// The actor to record in the ledger.
    pub actor: Option<Actor>,
    /// The person that the credential stands for.
    pub subject: Option<Subject>,
    /// The API key, if the credential is one.
    pub key: Option<CallerKey>,
}

/// The API key of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerKey {
    /// The id of the key.
    pub id: String,
    /// The people who could use the key: who created it, or a key that was used to create it.
    pub creators: Vec<String>,
}

impl Caller {
    /// An anonymous caller with full access to a namespace.
    pub fn everything(namespace: Namespace) -> Self {
        let scopes = [Scope::Admin].into_iter().collect();
        Self { namespace, scopes, actor: None, subject: None, key: None }
    }

    /// The same caller on behalf of a person.
    pub fn on_behalf_of(mut self, subject: Subject) -> Self {
        self.actor = Some(subject.actor());
        self.subject = Some(subject);
        self
    }

    /// Whether the caller may see and change all namespaces: an admin of the server's own
    /// namespace.
    pub(crate) fn is_operator(&self, own: &Namespace) -> bool {
        self.namespace == *own && self.scopes.allow(Scope::Admin)
    }

    /// Rejects a caller without this scope.
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
    fn a_scope_includes_itself_and_admin_includes_all() {
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
