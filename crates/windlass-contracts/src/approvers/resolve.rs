//! The strategies, the exclusions and the delegations.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::{
    APPROVER_LIMIT, APPROVER_MANAGER_CYCLE, APPROVER_NONE, APPROVER_UNKNOWN, APPROVER_VALUE,
    ASKED_MAX, DELEGATIONS_MAX, Directory, LEVELS_MAX, PEOPLE_MAX, ROLE_PREFIX, RULE_OUTPUT,
};
use crate::{
    diagnostic::Diagnostic,
    dsl::{Expression, Scope},
    rules::DecisionTable,
    types::{ApproverSpec, RolePick},
};

/// The request that needs an approval.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The id of the person who asks.
    pub requester: &'a str,
    /// The ids of all people who changed the version of the document that is asked about.
    pub editors: &'a BTreeSet<String>,
    /// The number of requests that the same node has made before, for the round robin.
    pub counter: u64,
    /// The values for expressions and decision tables, and the time.
    pub scope: Scope<'a>,
    /// The decision tables by name.
    pub rules: &'a BTreeMap<String, DecisionTable>,
}

/// The people who are asked, and those who are not.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Resolution {
    /// The people who are asked, each once.
    pub asked: Vec<Asked>,
    /// The candidates who are not asked, and the delegations without effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// The evidence of the expression or the decision table that named the candidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
}

/// A person who is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Asked {
    /// The id of the person.
    pub person: String,
    /// The person whom a delegation lets this one represent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// Why the person, or the represented one, is asked.
    pub reason: Reason,
}

/// Why a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The definition names the person.
    Direct,
    /// The person has a role.
    Role {
        /// The role.
        role: String,
    },
    /// The person manages another one.
    Manager {
        /// The person at the bottom.
        of: String,
        /// The number of levels between them.
        level: u32,
    },
    /// A decision table names the person.
    Rule {
        /// The name of the table.
        rule: String,
    },
    /// An expression names the person.
    Expression,
}

/// A candidate who is not asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Skipped {
    /// The id of the person.
    pub person: String,
    /// Why not.
    pub why: Why,
}

/// Why a candidate is not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// The person made the request.
    Requester,
    /// The person changed the document.
    Editor,
    /// The person has left the organisation.
    Inactive,
    /// The person is not available, and the strategy asks only those who are.
    Unavailable,
    /// The person's delegation has no effect, because the delegate is the requester, an editor, or
    /// not in the organisation. The person is asked instead.
    DelegateExcluded,
}

/// Finds the people who are asked.
///
/// # Errors
/// Fails if a name does not exist, if managers form a circle, if a list exceeds its limit, and if
/// nobody is left.
pub fn resolve(
    spec: &ApproverSpec,
    directory: &Directory,
    request: &Request<'_>,
) -> Result<Resolution, Diagnostic> {
    for (what, count, max) in [
        ("people", directory.people.len(), PEOPLE_MAX),
        ("delegations", directory.delegations.len(), DELEGATIONS_MAX),
    ] {
        if count > max {
            let text = format!("the directory has {count} {what}, the limit is {max}");
            return Err(Diagnostic::new(APPROVER_LIMIT, text)
                .help("remove people who have left and delegations that are over"));
        }
    }
    let mut resolver = Resolver { directory, request, found: Resolution::default() };
    resolver.spec(spec)?;
    let found = resolver.found;
    if found.asked.is_empty() {
        let reasons: Vec<String> = found.skipped.iter().map(Skipped::describe).collect();
        let reasons =
            if reasons.is_empty() { "no candidates".to_owned() } else { reasons.join(", ") };
        return Err(Diagnostic::new(APPROVER_NONE, format!("nobody is left to ask: {reasons}"))
            .help("name more people, or give the role to somebody who did not edit the document"));
    }
    Ok(found)
}

impl Skipped {
    fn describe(&self) -> String {
        let why = match self.why {
            Why::Requester => "made the request",
            Why::Editor => "edited the document",
            Why::Inactive => "has left the organisation",
            Why::Unavailable => "is not available",
            Why::DelegateExcluded => "has a delegation without effect",
        };
        format!("{} {why}", self.person)
    }
}

struct Resolver<'a> {
    directory: &'a Directory,
    request: &'a Request<'a>,
    found: Resolution,
}

impl Resolver<'_> {
    fn spec(&mut self, spec: &ApproverSpec) -> Result<(), Diagnostic> {
        match spec {
            ApproverSpec::Direct { users } => self.people(users, &Reason::Direct),
            ApproverSpec::Role { role, pick } => self.role(role, *pick),
            ApproverSpec::OrgChart { of, levels } => {
                let person = match of {
                    None => self.request.requester.to_owned(),
                    Some(expression) => match &self.expression(expression.as_str())?[..] {
                        [person] => person.clone(),
                        other => {
                            let text = format!("{expression} gave {} people, not one", other.len());
                            return Err(Diagnostic::new(APPROVER_VALUE, text)
                                .help("name a field that has the id of one person"));
                        }
                    },
                };
                self.manager(&person, *levels)
            }
            ApproverSpec::Rule { rule } => self.rule(rule),
            ApproverSpec::Expression { expression } => {
                let people = self.expression(expression.as_str())?;
                self.people(&people, &Reason::Expression)
            }
        }
    }

    fn people(&mut self, people: &[String], reason: &Reason) -> Result<(), Diagnostic> {
        if people.len() > ASKED_MAX {
            return Err(too_many(people.len()));
        }
        for person in people {
            self.known(person)?;
            if self.accepts(person) {
                self.ask(person, reason.clone());
            }
        }
        Ok(())
    }

    fn role(&mut self, role: &str, pick: RolePick) -> Result<(), Diagnostic> {
        let directory = self.directory;
        let mut candidates: Vec<&str> = Vec::new();
        let mut known = false;
        for person in directory.with_role(role) {
            known = true;
            if self.accepts(person) {
                candidates.push(person);
            }
        }
        if !known {
            let text = format!("nobody has the role {role:?}");
            return Err(Diagnostic::new(APPROVER_UNKNOWN, text).help("give the role to somebody"));
        }
        let reason = Reason::Role { role: role.to_owned() };
        match pick {
            RolePick::All => {
                if candidates.len() > ASKED_MAX {
                    return Err(too_many(candidates.len()));
                }
                candidates.into_iter().for_each(|person| self.ask(person, reason.clone()));
            }
            RolePick::RoundRobin if !candidates.is_empty() => {
                let count = candidates.len() as u64;
                // The remainder is smaller than the length of a list.
                let index = (self.request.counter % count) as usize;
                self.ask(candidates[index], reason);
            }
            RolePick::FirstAvailable => {
                for person in candidates {
                    if self.reachable(person) {
                        self.ask(person, reason);
                        return Ok(());
                    }
                    self.skip(person, Why::Unavailable);
                }
            }
            RolePick::RoundRobin => {}
        }
        Ok(())
    }

    /// Walks up the managers. A manager who is excluded is passed over in favour of the next one.
    fn manager(&mut self, of: &str, levels: u32) -> Result<(), Diagnostic> {
        if levels == 0 || levels > LEVELS_MAX {
            let text = format!("{levels} levels of managers, the limit is from 1 to {LEVELS_MAX}");
            return Err(Diagnostic::new(APPROVER_LIMIT, text)
                .help(format!("write a number from 1 to {LEVELS_MAX}")));
        }
        self.known(of)?;
        let directory = self.directory;
        let mut path = vec![of];
        let mut level = 0;
        loop {
            let below = path[path.len() - 1];
            let Some(manager) = directory.people.get(below).and_then(|p| p.manager.as_deref())
            else {
                if level >= levels {
                    return Ok(());
                }
                let text = format!("{below} has no manager: {of} has {level} levels, not {levels}");
                return Err(Diagnostic::new(APPROVER_NONE, text)
                    .path(path)
                    .help("add the manager to the directory, or ask fewer levels"));
            };
            path.push(manager);
            level += 1;
            if path[..path.len() - 1].contains(&manager) {
                let text = format!("the managers above {of} form a circle");
                return Err(Diagnostic::new(APPROVER_MANAGER_CYCLE, text)
                    .path(path)
                    .help("correct the managers in the directory"));
            }
            if level > LEVELS_MAX {
                let text = format!("no manager within {LEVELS_MAX} levels above {of} can be asked");
                return Err(Diagnostic::new(APPROVER_LIMIT, text)
                    .help("add a manager who did not edit the document, or ask a role"));
            }
            self.known(manager)?;
            if level >= levels && self.accepts(manager) {
                self.ask(manager, Reason::Manager { of: of.to_owned(), level });
                return Ok(());
            }
        }
    }

    fn rule(&mut self, rule: &str) -> Result<(), Diagnostic> {
        let table = self.request.rules.get(rule).ok_or_else(|| {
            Diagnostic::new(APPROVER_UNKNOWN, format!("the rule {rule:?} does not exist"))
                .help("compile the definition again")
        })?;
        let decision = table.decide(&self.request.scope)?;
        let outcome = decision.text(RULE_OUTPUT).map(str::to_owned).ok_or_else(|| {
            let text = format!("the rule {rule:?} has no text output {RULE_OUTPUT:?}");
            Diagnostic::new(APPROVER_VALUE, text)
                .help(format!("add the output {RULE_OUTPUT:?} to the table"))
        })?;
        self.found.evidence = serde_json::to_value(&decision).ok();
        match outcome.strip_prefix(ROLE_PREFIX) {
            Some(role) => self.role(role, RolePick::All),
            None => self.people(&[outcome], &Reason::Rule { rule: rule.to_owned() }),
        }
    }

    /// The ids that an expression gives: a text or a list of texts.
    fn expression(&mut self, text: &str) -> Result<Vec<String>, Diagnostic> {
        let explained = Expression::parse(text)?.evaluate(&self.request.scope)?;
        self.found.evidence = serde_json::to_value(&explained).ok();
        let wrong = || {
            Diagnostic::new(APPROVER_VALUE, format!("{text} gave no id of a person"))
                .help("the value must be a text or a list of texts")
        };
        match explained.value() {
            Value::String(person) => Ok(vec![person.clone()]),
            Value::Array(people) if people.len() > ASKED_MAX => Err(too_many(people.len())),
            Value::Array(people) => people
                .iter()
                .map(|person| person.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect(),
            _ => Err(wrong()),
        }
    }

    fn known(&self, person: &str) -> Result<(), Diagnostic> {
        if self.directory.people.contains_key(person) {
            return Ok(());
        }
        let text = format!("{person:?} is not in the directory");
        Err(Diagnostic::new(APPROVER_UNKNOWN, text)
            .help("add the person to the directory, or name another one"))
    }

    /// Whether a person may be asked; if not, notes why.
    fn accepts(&mut self, person: &str) -> bool {
        match self.excluded(person) {
            None => true,
            Some(why) => {
                self.skip(person, why);
                false
            }
        }
    }

    fn excluded(&self, person: &str) -> Option<Why> {
        if person == self.request.requester {
            return Some(Why::Requester);
        }
        if self.request.editors.contains(person) {
            return Some(Why::Editor);
        }
        let active = self.directory.people.get(person).is_some_and(|person| person.active);
        (!active).then_some(Why::Inactive)
    }

    /// The delegate who decides for a person, if the delegation has an effect.
    fn delegate(&self, person: &str) -> Option<Result<&str, ()>> {
        let delegation = self.directory.delegate(person, self.request.scope.now())?;
        match self.excluded(&delegation.to) {
            None => Some(Ok(&delegation.to)),
            Some(_) => Some(Err(())),
        }
    }

    fn reachable(&self, person: &str) -> bool {
        let available =
            |person: &str| self.directory.people.get(person).is_some_and(|person| person.available);
        match self.delegate(person) {
            Some(Ok(delegate)) => available(delegate),
            _ => available(person),
        }
    }

    fn ask(&mut self, person: &str, reason: Reason) {
        let asked = match self.delegate(person) {
            Some(Ok(delegate)) => {
                Asked { person: delegate.to_owned(), on_behalf_of: Some(person.to_owned()), reason }
            }
            other => {
                if other.is_some() {
                    self.skip(person, Why::DelegateExcluded);
                }
                Asked { person: person.to_owned(), on_behalf_of: None, reason }
            }
        };
        let mut others = self.found.asked.iter_mut();
        match others.find(|other| other.person == asked.person) {
            // One person decides once: for themselves if they are asked themselves.
            Some(other) => {
                if asked.on_behalf_of.is_none() {
                    *other = asked;
                }
            }
            None => self.found.asked.push(asked),
        }
    }

    fn skip(&mut self, person: &str, why: Why) {
        let skipped = Skipped { person: person.to_owned(), why };
        if !self.found.skipped.contains(&skipped) {
            self.found.skipped.push(skipped);
        }
    }
}

fn too_many(count: usize) -> Diagnostic {
    let text = format!("{count} people would be asked, the limit is {ASKED_MAX}");
    Diagnostic::new(APPROVER_LIMIT, text).help("ask one of the role, or fewer people")
}
