//! A snapshot of the people of an organisation.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The people of an organisation and their delegations at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Directory {
    /// People by id.
    #[serde(default)]
    pub people: BTreeMap<String, Person>,
    /// Delegations. If a person has several at one time, the first one counts.
    #[serde(default)]
    pub delegations: Vec<Delegation>,
}

/// A person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Person {
    /// The roles of the person.
    #[serde(default)]
    pub roles: BTreeSet<String>,
    /// The address for electronic mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The id of the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// Whether the person works now. [default: true]
    #[serde(default = "yes")]
    pub available: bool,
    /// Whether the person still belongs to the organisation. [default: true]
    #[serde(default = "yes")]
    pub active: bool,
}

fn yes() -> bool {
    true
}

impl Default for Person {
    fn default() -> Self {
        Self { roles: BTreeSet::new(), email: None, manager: None, available: true, active: true }
    }
}

/// The right of one person to decide for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delegation {
    /// The person who is represented.
    pub from: String,
    /// The person who decides.
    pub to: String,
    /// The time from which it holds. [default: always]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub starts: Option<Timestamp>,
    /// The time at which it has ended.
    #[schemars(with = "String")]
    pub ends: Timestamp,
}

impl Delegation {
    /// Whether the delegation holds at a time.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.starts.is_none_or(|starts| starts <= now) && now < self.ends
    }
}

impl Directory {
    /// The active people who have a role, in order of their ids.
    pub fn with_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a str> {
        self.people
            .iter()
            .filter(move |(_, person)| person.active && person.roles.contains(role))
            .map(|(id, _)| id.as_str())
    }

    /// The person who represents another one at a time.
    pub fn delegate(&self, from: &str, now: Timestamp) -> Option<&Delegation> {
        self.delegations.iter().find(|delegation| delegation.from == from && delegation.holds(now))
    }
}
