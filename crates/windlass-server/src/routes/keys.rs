//! API keys: list, make, revoke.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::Namespace;

use crate::auth::{ApiKey, Keys, NewKey, Scope};
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Params, Payload};
use crate::json::Json;
use crate::paging::page_size;
use crate::view::Time;

const NAME_CHARS_MAX: usize = 100;
/// As long as any duration may be: beyond it, an expiry is no time that people could read.
const EXPIRES_IN_MAX: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

/// A key to be made.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// What people call it. At most 100 characters.
    name: String,
    /// What it may do.
    scopes: Vec<Scope>,
    /// The namespace that it acts in; the caller's if there is none. Only admins of the server's own
    /// namespace make keys for others.
    namespace: Option<String>,
    /// How long it is taken, at most 3,650 days; for ever if there is none.
    expires_in_ms: Option<u64>,
}

impl Incoming for CreateKey {}

/// What is known of a key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyView {
    /// Names it.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// The namespace that it acts in.
    pub namespace: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created_at: Time,
    /// When it is no longer taken.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            name: key.name,
            namespace: key.namespace.to_string(),
            scopes: key.scopes,
            created_at: Time(key.created_at),
            expires_at: key.expires_at.map(Time),
            revoked_at: key.revoked_at.map(Time),
        }
    }
}

/// A key that was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    /// The key itself. It is shown this once.
    pub key: String,
    /// What is known of it.
    #[serde(flatten)]
    pub known: KeyView,
}

/// Which part of the list.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Rows of the page: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// A page of keys.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyList {
    /// Those of the caller's namespace, by id; all of them for admins of the server's own.
    pub keys: Vec<KeyView>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The same again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is one.
    pub has_next_page: bool,
}

fn keys(call: &Call) -> Result<&Arc<Keys>, ApiError> {
    call.app.guard.keys.as_ref().ok_or_else(|| {
        let message = "this server keeps no API keys; it takes other credentials";
        ApiError::not_found("KEYS_NOT_FOUND", message)
    })
}

/// Whether the caller may manage keys of a namespace.
fn reaches(call: &Call, namespace: &Namespace) -> bool {
    call.caller.namespace == *namespace
        || call.caller.namespace == call.app.engine.options().namespace
}

/// Lists API keys, never the keys themselves.
#[utoipa::path(get, path = "/keys", tag = "keys", operation_id = "listKeys",
    params(ListParams),
    responses((status = 200, body = KeyList), (status = "default", body = Failure)))]
pub(crate) async fn list(call: Call, Params(params): Params<ListParams>) -> ApiResult<KeyList> {
    let size = page_size(params.page_size)? as usize;
    let after = decode_as("keys", params.cursor.as_deref(), |id| Some(id.to_owned()))?;
    let mut found = keys(&call)?.list().await?;
    found.retain(|key| {
        reaches(&call, &key.namespace) && after.as_ref().is_none_or(|after| key.id > *after)
    });
    let more = found.len() > size;
    found.truncate(size);
    let next = found.last().filter(|_| more).map(|key| cursor::encode("keys", &key.id));
    Ok(Json(KeyList {
        keys: found.into_iter().map(KeyView::from).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}

/// Makes an API key.
#[utoipa::path(post, path = "/keys", tag = "keys", operation_id = "createKey",
    request_body = CreateKey,
    responses((status = 200, body = CreatedKey), (status = "default", body = Failure)))]
pub(crate) async fn create(call: Call, Payload(new): Payload<CreateKey>) -> ApiResult<CreatedKey> {
    let chars = new.name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX || new.name.chars().any(char::is_control) {
        let message = format!(
            "the key's name has {chars} characters; use 1 to {NAME_CHARS_MAX}, none of them control characters"
        );
        return Err(ApiError::invalid("INVALID_NAME", message));
    }
    if new.scopes.is_empty() {
        let message = "a key without scopes may do nothing; give it some";
        return Err(ApiError::invalid("INVALID_SCOPE", message));
    }
    let expires_in = new.expires_in_ms.map(Duration::from_millis);
    if let Some(span) = expires_in.filter(|span| *span > EXPIRES_IN_MAX) {
        let (asked, max) = (span.as_millis(), EXPIRES_IN_MAX.as_millis());
        let message = format!("expiresInMs is {asked}; at most {max} are allowed");
        return Err(ApiError::invalid("INVALID_DURATION", message));
    }
    let namespace = match &new.namespace {
        Some(name) => Namespace::with_limits(name, &call.engine.options().limits)?,
        None => call.caller.namespace.clone(),
    };
    if !reaches(&call, &namespace) {
        let message = format!("keys of namespace {namespace:?} are not yours to make");
        return Err(ApiError::forbidden(message));
    }
    let made =
        keys(&call)?.make(NewKey { name: new.name, namespace, scopes: new.scopes, expires_in });
    let made = made.await?;
    Ok(Json(CreatedKey { key: made.key, known: made.kept.into() }))
}

/// Revokes an API key, for good.
#[utoipa::path(delete, path = "/keys/{id}", tag = "keys", operation_id = "revokeKey",
    params(("id" = String, Path, description = "The key's id")),
    responses((status = 200, body = KeyView), (status = "default", body = Failure)))]
pub(crate) async fn revoke(call: Call, Named(id): Named) -> ApiResult<KeyView> {
    let keys = keys(&call)?;
    let found = keys.get(&id).await?.filter(|key| reaches(&call, &key.namespace));
    let key = found.ok_or_else(|| {
        let shown: String = id.chars().take(40).collect();
        ApiError::not_found("KEY_NOT_FOUND", format!("there is no key {shown:?}"))
    })?;
    Ok(Json(keys.revoke(key).await?.into()))
}
