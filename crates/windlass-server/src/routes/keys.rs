//! API keys: list, create, revoke.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::ErrorCode;
use windlass::kernel::{Namespace, Subject};

use crate::auth::{ApiKey, KeyCreator, Keys, NewKey, Scope};
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Params, Payload};
use crate::json::Json;
use crate::paging::page_size;
use crate::view::Time;

const NAME_CHARS_MAX: usize = 100;
/// The maximum lifetime. A longer one could lead to an expiry that has no readable date.
const EXPIRES_IN_MAX: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

/// A key to create.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// The display name. At most 100 characters.
    name: String,
    /// The permissions.
    scopes: Vec<Scope>,
    /// The person that the key is for. A key of a program has none.
    subject: Option<SubjectBody>,
    /// The namespace. Default: the caller's namespace. Only admins of the server's own namespace
    /// can create keys for other namespaces.
    namespace: Option<String>,
    /// The lifetime in milliseconds, at most 3,650 days. Default: unlimited.
    expires_in_ms: Option<u64>,
}

impl Incoming for CreateKey {}

/// A person.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubjectBody {
    /// The id: 1 to 256 bytes without control characters.
    pub id: String,
    /// The roles: at most 64, each 1 to 128 bytes without spaces and commas.
    #[serde(default)]
    pub roles: Vec<String>,
}

impl From<&Subject> for SubjectBody {
    fn from(subject: &Subject) -> Self {
        Self { id: subject.id().to_owned(), roles: subject.roles().to_vec() }
    }
}

/// An API key, without its secret.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyView {
    /// The id.
    pub id: String,
    /// The display name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// The permissions.
    pub scopes: Vec<Scope>,
    /// The person that the key is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<SubjectBody>,
    /// The credential that created the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<KeyCreatorView>,
    /// When the key was created.
    pub created_at: Time,
    /// When the key expires.
    pub expires_at: Option<Time>,
    /// When the key was revoked.
    pub revoked_at: Option<Time>,
}

/// The credential that created a key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyCreatorView {
    /// The API key that was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The person that the credential stood for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            name: key.name,
            namespace: key.namespace.to_string(),
            subject: key.subject.as_ref().map(SubjectBody::from),
            created_by: key
                .created_by
                .map(|creator| KeyCreatorView { key_id: creator.key_id, subject: creator.subject }),
            scopes: key.scopes,
            created_at: Time(key.created_at),
            expires_at: key.expires_at.map(Time),
            revoked_at: key.revoked_at.map(Time),
        }
    }
}

/// A created key.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    /// The key itself. The server does not show it again.
    pub key: String,
    /// The stored part.
    #[serde(flatten)]
    pub known: KeyView,
}

/// The page of the list.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A page of keys.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyList {
    /// The keys of the caller's namespace, by id. Admins of the server's own namespace see all
    /// keys.
    pub keys: Vec<KeyView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

fn keys(call: &Call) -> Result<&Arc<Keys>, ApiError> {
    call.app.guard.keys.as_ref().ok_or_else(|| {
        let message = "this server does not use API keys";
        ApiError::not_found(ErrorCode::KeysNotFound, message)
    })
}

/// Whether the caller may manage keys of a namespace.
fn may_manage(call: &Call, namespace: &Namespace) -> bool {
    call.caller.namespace == *namespace
        || call.caller.namespace == call.app.engine.options().namespace
}

/// Lists API keys without their secrets.
#[utoipa::path(get, path = "/keys", tag = "keys", operation_id = "listKeys",
    params(ListParams),
    responses((status = 200, body = KeyList), (status = "default", body = Failure)))]
pub(crate) async fn list(call: Call, Params(params): Params<ListParams>) -> ApiResult<KeyList> {
    let size = page_size(params.page_size)? as usize;
    let after = decode_as("keys", params.cursor.as_deref(), |id| Some(id.to_owned()))?;
    let mut found = keys(&call)?.list().await?;
    found.retain(|key| {
        may_manage(&call, &key.namespace) && after.as_ref().is_none_or(|after| key.id > *after)
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

/// Creates an API key. The response contains the secret once.
#[utoipa::path(post, path = "/keys", tag = "keys", operation_id = "createKey",
    request_body = CreateKey,
    responses((status = 200, body = CreatedKey), (status = "default", body = Failure)))]
pub(crate) async fn create(call: Call, Payload(new): Payload<CreateKey>) -> ApiResult<CreatedKey> {
    let chars = new.name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX || new.name.chars().any(char::is_control) {
        let message = format!(
            "the name of the key has {chars} characters; use 1 to {NAME_CHARS_MAX}, without control characters"
        );
        return Err(ApiError::invalid(ErrorCode::InvalidName, message));
    }
    if new.scopes.is_empty() {
        let message = "a key needs at least one scope";
        return Err(ApiError::invalid(ErrorCode::InvalidScope, message));
    }
    let expires_in = new.expires_in_ms.map(Duration::from_millis);
    if let Some(span) = expires_in.filter(|span| *span > EXPIRES_IN_MAX) {
        let (asked, max) = (span.as_millis(), EXPIRES_IN_MAX.as_millis());
        let message = format!("expiresInMs is {asked}; the maximum is {max}");
        return Err(ApiError::invalid(ErrorCode::InvalidDuration, message));
    }
    let namespace = match &new.namespace {
        Some(name) => Namespace::with_limits(name, &call.engine.options().limits)?,
        None => call.caller.namespace.clone(),
    };
    if !may_manage(&call, &namespace) {
        let message = format!("the credential cannot create keys for namespace {namespace:?}");
        return Err(ApiError::forbidden(message));
    }
    let subject = new.subject.map(|subject| Subject::new(subject.id, subject.roles)).transpose()?;
    let created_by = Some(KeyCreator::of(&call.caller));
    let (name, scopes) = (new.name, new.scopes);
    let new = NewKey { name, namespace, scopes, subject, created_by, expires_in };
    let issued = keys(&call)?.create(new).await?;
    Ok(Json(CreatedKey { key: issued.key, known: issued.stored.into() }))
}

/// Revokes an API key permanently.
#[utoipa::path(delete, path = "/keys/{id}", tag = "keys", operation_id = "revokeKey",
    params(("id" = String, Path, description = "The id of the key")),
    responses((status = 200, body = KeyView), (status = "default", body = Failure)))]
pub(crate) async fn revoke(call: Call, Named(id): Named) -> ApiResult<KeyView> {
    let keys = keys(&call)?;
    let found = keys.get(&id).await?.filter(|key| may_manage(&call, &key.namespace));
    let key = found.ok_or_else(|| {
        let shown: String = id.chars().take(40).collect();
        ApiError::not_found(ErrorCode::KeyNotFound, format!("unknown key {shown:?}"))
    })?;
    Ok(Json(keys.revoke(key).await?.into()))
}
