//! Authorization hooks of a program that embeds the server.

use std::future::ready;

use axum::http::StatusCode;
use axum::http::request::Parts;
use windlass::ErrorCode;
use windlass::kernel::BoxFuture;

use super::Caller;
use crate::error::ApiError;

/// A rejection by a hook.
#[derive(Clone, Debug)]
pub struct Denied {
    /// Whether the credential is missing or invalid (401) rather than insufficient (403).
    pub unauthenticated: bool,
    /// The message for the client.
    pub message: String,
}

impl Denied {
    /// The caller lacks permission.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { unauthenticated: false, message: message.into() }
    }

    /// The caller is not authenticated.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self { unauthenticated: true, message: message.into() }
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        match denied.unauthenticated {
            true => Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthenticated, denied.message),
            false => Self::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, denied.message),
        }
    }
}

/// The object of a request, as far as its path names it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target<'a> {
    /// The workflow.
    pub workflow: Option<&'a str>,
    /// The collection of records. For records, `id` is the id of the record, and `action` is `get`,
    /// `put`, `delete` or `list`.
    pub collection: Option<&'a str>,
    /// The id of the run. For an event that is sent to a key, the key; `action` is then its type. For a
    /// path of the inbox, the id of the request; the call for the run that asks has its `workflow` too.
    pub id: Option<&'a str>,
    /// The last segment of the path, such as `pause`.
    pub action: Option<&'a str>,
    /// The input of a run to create, as JSON.
    pub params: Option<&'a str>,
}

type Verdict<'a> = BoxFuture<'a, Result<(), Denied>>;

/// Hooks of a program that embeds the server. They add to the scopes of the credential and never
/// replace them: a request must pass both.
///
/// The hook is called again for each run that the path does not name: runs in lists, of bulk requests,
/// of tasks, dead letters and receipts, runs that ask people, and runs to create with the id and the input of
/// the body. It is also called for each record of a list.
pub trait Authorize: Send + Sync + 'static {
    /// Called first for every request. `Some` authenticates the caller; `None` leaves that to API
    /// keys and tokens.
    fn request<'a>(&'a self, _request: &'a Parts) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        Box::pin(ready(Ok(None)))
    }

    /// Whether runs may be started.
    fn create<'a>(&'a self, _caller: &'a Caller, _target: &'a Target<'a>) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Whether an object may be read.
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

    /// Whether records may be read, written or removed, as the action says.
    fn records<'a>(&'a self, _caller: &'a Caller, _target: &'a Target<'a>) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Whether the inbox may be read, or a request to people be changed, as the action says: `inbox` for a
    /// list, `decide`, `delegate`, `comment` or `withdraw`. It is called with the path, and then with the run of
    /// each request, `get` if one is read.
    fn decide<'a>(&'a self, _caller: &'a Caller, _target: &'a Target<'a>) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Whether the engine may be driven from outside.
    fn tick<'a>(&'a self, _caller: &'a Caller) -> Verdict<'a> {
        Box::pin(ready(Ok(())))
    }
}
