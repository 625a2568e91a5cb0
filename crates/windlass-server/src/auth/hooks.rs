//! What a program that embeds the server may decide itself.

use std::future::ready;

use axum::http::StatusCode;
use axum::http::request::Parts;
use windlass::kernel::BoxFuture;

use super::Caller;
use crate::error::ApiError;

/// A refusal of the embedding program.
#[derive(Clone, Debug)]
pub struct Denied {
    /// Whether somebody else might be let in: 401 rather than 403.
    pub unauthenticated: bool,
    /// What the client is told.
    pub message: String,
}

impl Denied {
    /// Who asks is known and may not.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { unauthenticated: false, message: message.into() }
    }

    /// Who asks is not known.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self { unauthenticated: true, message: message.into() }
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        match denied.unauthenticated {
            true => Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", denied.message),
            false => Self::new(StatusCode::FORBIDDEN, "FORBIDDEN", denied.message),
        }
    }
}

/// What an act is about, as far as the request's path says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target<'a> {
    /// The workflow.
    pub workflow: Option<&'a str>,
    /// The run's id.
    pub id: Option<&'a str>,
    /// The last word of the path, such as `pause`.
    pub action: Option<&'a str>,
}

type Verdict<'a> = BoxFuture<'a, Result<(), Denied>>;

/// Hooks of a program that embeds the server. They come beside the scopes of the credential, never
/// instead of them: a request passes if both let it.
///
/// A request about many runs (bulk by filter) is asked about again for each run that it reaches.
pub trait Authorize: Send + Sync + 'static {
    /// Called for every request first. `Some` says who asks; `None` leaves it to API keys and
    /// tokens.
    fn request<'a>(&'a self, _request: &'a Parts) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        Box::pin(ready(Ok(None)))
    }

    /// Whether runs may be started.
    fn create<'a>(&'a self, _caller: &'a Caller, _target: &'a Target<'a>) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Whether something may be looked at.
    fn read<'a>(&'a self, _caller: &'a Caller, _target: &'a Target<'a>) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Whether runs, schedules or keys may be managed.
    fn manage<'a>(&'a self, _caller: &'a Caller, _target: &'a Target<'a>) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Whether an event may be sent to a run.
    fn send_event<'a>(&'a self, _caller: &'a Caller, _target: &'a Target<'a>) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Whether the engine may be driven from outside.
    fn tick<'a>(&'a self, _caller: &'a Caller) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }
}
