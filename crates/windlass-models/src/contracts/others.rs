//! Built-in actions on other documents: `document.create` and `document.transition`.
//!
//! Another document has a run and a row of its own, so the action enqueues an effect, and the effect calls the
//! write path of documents. Its note names the step, so that a repeated attempt finds what the first has done.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_contracts::types::RunAs;
use windlass_engine::{Engine, TaskContext, TaskFailure, TaskHandler, TaskResult, WeakEngine};
use windlass_kernel::{Body, BoxFuture, Error, ErrorCode, Query, Subject};

use super::actions::{ActionCall, ActionOutcome};
use super::document::{DocumentRow, Person};
use super::documents::filled_version;
use super::handle::Contracts;
use super::names::{DOCUMENTS, document_id, key};
use super::shared::Shared;

/// The built-in action that creates another document: `type`, `id` and `content`.
pub const DOCUMENT_CREATE: &str = "document.create";
/// The built-in action that calls an action of another document: `type`, `id` and `action`.
pub const DOCUMENT_TRANSITION: &str = "document.transition";

/// The effect behind both.
pub(crate) const DOCUMENT_EFFECT: &str = "contracts.document";
/// How many versions are searched for the note of an earlier attempt.
const NOTES_MAX: u32 = 100;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payload {
    #[serde(rename = "type")]
    entity_type: String,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Input {
    payload: Payload,
    by: Person,
    /// Everybody who wrote the content of the calling document or asked for it.
    #[serde(default)]
    authors: BTreeSet<String>,
    /// Names the step in the audit note.
    note: String,
}

/// Both actions: they check the payload and enqueue the effect.
pub(crate) fn call(call: &ActionCall<'_>) -> Result<ActionOutcome, String> {
    let payload: Payload = serde_json::from_value(Value::Object(call.payload.clone()))
        .map_err(|error| format!("the payload cannot be used: {error}"))?;
    let needs = match call.action_type {
        DOCUMENT_CREATE => ("content", payload.content.is_some() && payload.action.is_none()),
        _ => ("action", payload.action.is_some() && payload.content.is_none()),
    };
    if !needs.1 {
        return Err(format!("the payload needs type, id and {}", needs.0));
    }
    document_id(&payload.entity_type, &payload.id).map_err(|error| error.message().to_owned())?;
    let by = match call.run_as {
        RunAs::Actor => call.actor.clone(),
        RunAs::System => Person::account("system"),
        RunAs::ServiceAccount => Person::account("service_account"),
    };
    let note = format!("by {}/{}, step {}", call.entity_type, call.id, call.idempotency_key);
    let authors = call.authors.clone();
    let input = Input { payload, by, authors, note };
    let outcome = ActionOutcome::none().effect(DOCUMENT_EFFECT, &input);
    outcome.map_err(|error| error.message().to_owned())
}

/// Carries out the effects. It does not keep the engine alive.
pub(crate) struct Others {
    engine: WeakEngine,
    shared: Weak<Shared>,
}

impl Others {
    /// Serves the effects of an engine. A second handle on one engine shares the service of the first.
    pub(crate) fn serve(engine: &Engine, shared: &Arc<Shared>) -> Result<(), Error> {
        let handler = Self { engine: engine.downgrade(), shared: Arc::downgrade(shared) };
        match engine.serve_effects(DOCUMENT_EFFECT, Arc::new(handler)) {
            Err(error) if error.code() == ErrorCode::ActivityExists => Ok(()),
            served => served,
        }
    }
}

impl TaskHandler for Others {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let (engine, shared) = (self.engine.upgrade(), self.shared.upgrade());
        Box::pin(async move {
            let (Some(engine), Some(shared)) = (engine, shared) else {
                return Err(TaskFailure::not_here("the engine stops"));
            };
            let contracts = Contracts::new(engine.in_namespace(context.namespace), shared);
            let done = async { carry_out(&contracts, input.read()?).await };
            done.await.map_err(|error: Error| {
                let code = error.code().as_str();
                TaskFailure::new(code, error.to_string(), error.is_retryable())
            })?;
            Ok(Body::json("null"))
        })
    }
}

async fn carry_out(contracts: &Contracts, input: Input) -> Result<(), Error> {
    let Input { payload: Payload { entity_type, id, content, action }, by, authors, note } = input;
    let contracts = &contracts.with_key_creators(by.key_creators.iter().map(String::as_str));
    let by = Subject::new(&by.id, &by.roles)?;
    let done = match (content, action) {
        (Some(content), _) => {
            let made = contracts.create_noted(&entity_type, &id, &content, &by, (&note, authors));
            made.await.map(drop)
        }
        (None, Some(action)) => {
            contracts.act(&entity_type, &id, &action, &by, Some(&note)).await.map(drop)
        }
        (None, None) => Ok(()),
    };
    match done {
        Err(error)
            if matches!(
                error.code(),
                ErrorCode::DocumentExists | ErrorCode::DocumentActionClosed
            ) && contracts.has_note(&entity_type, &id, &note).await? =>
        {
            Ok(())
        }
        done => done,
    }
}

impl Contracts {
    /// Whether one of the newest writes of a document has this reason.
    async fn has_note(&self, entity_type: &str, id: &str, note: &str) -> Result<bool, Error> {
        let key = key(self.engine.namespace(), DOCUMENTS, &document_id(entity_type, id)?)?;
        let query = Query::RecordVersions { key, before: None, limit: NOTES_MAX };
        let kept = self.engine.store().list(query).await?.record_versions()?;
        for version in kept {
            let version = filled_version(&**self.engine.store(), version).await?;
            let row: DocumentRow = version.body.read()?;
            if row.note.why.as_deref() == Some(note) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
