//! Sign-in of the dashboard: a credential buys a cookie, and `whoami` shows what it may do.

use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::ErrorCode;

use crate::app::App;
use crate::auth::{COOKIE, Caller, SESSION_SECONDS, Scope, check_same_origin};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Incoming, Payload};
use crate::json::Json;

/// A credential to sign in with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    /// An API key, or a token that this server accepts.
    key: String,
}

impl Incoming for SignIn {
    fn bytes_max(_: &App) -> usize {
        16 * 1024
    }
}

/// The person behind a credential.
#[derive(Serialize, ToSchema)]
pub(crate) struct Person {
    /// The id.
    pub id: String,
    /// The roles.
    pub roles: Vec<String>,
}

/// The caller and its permissions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Whoami {
    /// The namespace of the credential.
    pub namespace: String,
    /// The scopes that the credential has. `admin` includes all others.
    pub scopes: Vec<Scope>,
    /// Whether the caller may see all namespaces.
    pub operator: bool,
    /// The person that the credential stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Person>,
    /// Whether this server requires a credential. Without it, there is nothing to sign out of.
    pub sign_in: bool,
    /// The version of the server.
    pub version: &'static str,
    /// The names of the sets of routes that the program has added, such as `contracts`.
    pub route_sets: Vec<&'static str>,
}

fn whoami_of(app: &App, caller: &Caller) -> Whoami {
    Whoami {
        namespace: caller.namespace.to_string(),
        scopes: caller.scopes.list(),
        operator: caller.is_operator(&app.engine.options().namespace),
        subject: caller.subject.as_ref().map(|subject| Person {
            id: subject.id().to_owned(),
            roles: subject.roles().iter().map(ToString::to_string).collect(),
        }),
        sign_in: app.guard.requires_credential(),
        version: env!("CARGO_PKG_VERSION"),
        route_sets: app.options.routes.iter().map(crate::RouteSet::name).collect(),
    }
}

/// Returns the caller: its namespace, scopes and person.
#[utoipa::path(get, path = "/whoami", tag = "session", operation_id = "whoami",
    responses((status = 200, body = Whoami), (status = "default", body = Failure)))]
pub(crate) async fn whoami(State(app): State<App>, parts: Parts) -> ApiResult<Whoami> {
    let caller = app.guard.caller(&parts).await?;
    Ok(Json(whoami_of(&app, &caller)))
}

/// Exchanges a credential for an HttpOnly cookie, so that a browser can send it with every request of
/// the dashboard. Only a page of this server can do so.
#[utoipa::path(post, path = "/session", tag = "session", operation_id = "signIn",
    request_body = SignIn,
    responses((status = 200, body = Whoami), (status = "default", body = Failure)))]
pub(crate) async fn sign_in(
    State(app): State<App>,
    mut parts: Parts,
    Payload(body): Payload<SignIn>,
) -> Result<Response, ApiError> {
    check_same_origin(&parts.headers)?;
    let key = body.key.trim();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b";,\"\\".contains(&byte);
    if key.is_empty() || !key.bytes().all(is_plain) {
        return Err(ApiError::invalid(
            ErrorCode::InvalidBody,
            "`key` is not an API key or a token",
        ));
    }
    let bearer = HeaderValue::try_from(format!("Bearer {key}"))
        .map_err(|_| ApiError::invalid(ErrorCode::InvalidBody, "`key` is not an API key"))?;
    parts.headers.insert(header::AUTHORIZATION, bearer);
    let caller = app.guard.caller(&parts).await?;
    let is_https = parts
        .headers
        .get(header::ORIGIN)
        .is_some_and(|origin| origin.to_str().is_ok_and(|origin| origin.starts_with("https://")));
    let cookie = cookie(key, SESSION_SECONDS, is_https);
    Ok((cookie, Json(whoami_of(&app, &caller))).into_response())
}

/// Removes the cookie.
#[utoipa::path(delete, path = "/session", tag = "session", operation_id = "signOut",
    responses((status = 204, description = "The cookie was removed"),
        (status = "default", body = Failure)))]
pub(crate) async fn sign_out(parts: Parts) -> Result<Response, ApiError> {
    check_same_origin(&parts.headers)?;
    let cookie = cookie("", 0, false);
    Ok((axum::http::StatusCode::NO_CONTENT, cookie).into_response())
}

fn cookie(value: &str, seconds: u32, is_https: bool) -> [(header::HeaderName, HeaderValue); 1] {
    let secure = if is_https { "; Secure" } else { "" };
    let text =
        format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    let value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
    [(header::SET_COOKIE, value)]
}
