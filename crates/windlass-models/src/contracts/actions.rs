//! Actions: pure functions that a run calls with its document and a payload.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use windlass_contracts::types::RunAs;
use windlass_engine::RecordChange;
use windlass_kernel::Error;

use super::document::Person;
use super::others::{self, DOCUMENT_CREATE, DOCUMENT_TRANSITION};

/// The built-in action that merges its payload into the content of the document.
pub const DOCUMENT_UPDATE: &str = "document.update";

/// The call of an action.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ActionCall<'a> {
    /// The type of the action.
    pub action_type: &'a str,
    /// The document type.
    pub entity_type: &'a str,
    /// The id of the document.
    pub id: &'a str,
    /// The version of the content.
    pub version: u64,
    /// The content.
    pub content: &'a Value,
    /// The payload that the node computes.
    pub payload: &'a Map<String, Value>,
    /// The identity that the node runs as.
    pub run_as: RunAs,
    /// The person who caused the step.
    pub actor: &'a Person,
    /// Everybody who wrote the content or asked for it. Nobody of them approves a document that the action
    /// makes from it.
    pub authors: &'a BTreeSet<String>,
    /// Identifies the step: the same call has the same key after a crash.
    pub idempotency_key: &'a str,
}

/// The writes of an action. All of them are part of the commit that records its step.
#[derive(Clone, Debug, Default)]
pub struct ActionOutcome {
    pub(crate) result: Value,
    pub(crate) content: Option<Value>,
    pub(crate) effects: Vec<(String, Value)>,
    pub(crate) records: Vec<RecordChange>,
}

impl ActionOutcome {
    /// Nothing is written.
    ///
    /// ```
    /// # use windlass::contracts::ActionOutcome;
    /// let outcome = ActionOutcome::none();
    /// # drop(outcome);
    /// ```
    pub fn none() -> Self {
        Self::default()
    }

    /// The result, from which the node can write context variables.
    ///
    /// ```
    /// # use windlass::contracts::ActionOutcome;
    /// let outcome = ActionOutcome::none().result(serde_json::json!({ "rating": "good" }));
    /// # drop(outcome);
    /// ```
    #[must_use]
    pub fn result(mut self, result: Value) -> Self {
        self.result = result;
        self
    }

    /// The new content of the document. Only actions that the contract lists in `documentActions` can change
    /// it.
    ///
    /// ```
    /// # use windlass::contracts::ActionOutcome;
    /// let outcome = ActionOutcome::none().content(serde_json::json!({ "id": "i-1", "total": 900 }));
    /// # drop(outcome);
    /// ```
    #[must_use]
    pub fn content(mut self, content: Value) -> Self {
        self.content = Some(content);
        self
    }

    /// Adds an effect, which [`windlass_engine::Engine::serve_effects`] delivers at least once.
    ///
    /// ```
    /// # use windlass::contracts::ActionOutcome;
    /// let outcome = ActionOutcome::none().effect("ledger", &serde_json::json!({ "amount": 900 }))?;
    /// # drop(outcome);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The input cannot be written as JSON.
    pub fn effect<T: Serialize>(
        mut self,
        name: impl Into<String>,
        input: &T,
    ) -> Result<Self, Error> {
        let input = windlass_kernel::Body::of(input)?.read()?;
        self.effects.push((name.into(), input));
        Ok(self)
    }

    /// Adds a change of one of the application's records.
    ///
    /// ```
    /// # use windlass::contracts::ActionOutcome;
    /// use windlass::{Expect, RecordChange};
    ///
    /// let change = RecordChange::put("postings", "i-1", &900, Expect::Absent)?;
    /// let outcome = ActionOutcome::none().record(change);
    /// # drop(outcome);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    #[must_use]
    pub fn record(mut self, record: RecordChange) -> Self {
        self.records.push(record);
        self
    }
}

/// An action: it must depend on its call alone, because a commit that loses against another writer makes the
/// engine call it again. An error is the reason why the step fails.
pub type Action = dyn Fn(&ActionCall<'_>) -> Result<ActionOutcome, String> + Send + Sync;

/// The actions that this process knows.
#[derive(Clone, Default)]
pub(crate) struct Actions(BTreeMap<String, Arc<Action>>);

impl fmt::Debug for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Actions {
    pub(crate) fn with_built_in() -> Self {
        let mut actions = Self::default();
        actions.add(DOCUMENT_UPDATE, Arc::new(update));
        actions.add(DOCUMENT_CREATE, Arc::new(others::call));
        actions.add(DOCUMENT_TRANSITION, Arc::new(others::call));
        actions
    }

    pub(crate) fn add(&mut self, name: &str, action: Arc<Action>) {
        self.0.insert(name.to_owned(), action);
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn call(&self, call: &ActionCall<'_>) -> Result<ActionOutcome, String> {
        let action = self.0.get(call.action_type).ok_or_else(|| {
            format!("this process does not know the action {:?}", call.action_type)
        })?;
        action(call)
    }
}

fn update(call: &ActionCall<'_>) -> Result<ActionOutcome, String> {
    let mut content = call.content.clone();
    let Value::Object(fields) = &mut content else {
        return Err("the document is not an object".to_owned());
    };
    for (name, value) in call.payload {
        fields.insert(name.clone(), value.clone());
    }
    Ok(ActionOutcome::none().content(content))
}
