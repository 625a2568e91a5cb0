//! Authentication and authorization of requests.

mod caller;
mod hooks;
mod jwt;
mod keys;
mod session;
mod signatures;
mod stored;

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use windlass::kernel::{Namespace, Subject};
use windlass::{ErrorCode, Timestamp};

pub use caller::{Caller, CallerKey, Scope, Scopes};
pub use hooks::{Authorize, Denied, Target};
pub use jsonwebtoken::Algorithm;
pub use jwt::{Jwt, JwtKey};
pub use keys::{ApiKey, IssuedKey, KeyCreator, KeyStore, Keys, MemoryKeys, NewKey};
pub(crate) use session::{COOKIE, SESSION_SECONDS, check_same_origin};
pub use stored::StoredKeys;

use crate::error::ApiError;

/// Longer credentials are rejected.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The header that names the person under [`Auth::LoopbackPerson`], as `ID` or `ID:ROLE,ROLE`.
pub const PERSON_HEADER: &str = "windlass-as";

/// How requests are authenticated.
#[derive(Clone, Default)]
pub enum Auth {
    /// API keys in the engine's store. This is the default.
    #[default]
    Keys,
    /// API keys, JSON web tokens, or both.
    Credentials {
        /// The store of API keys; `None` disables API keys.
        keys: Option<Arc<dyn KeyStore>>,
        /// The accepted tokens; `None` disables tokens.
        jwt: Option<Jwt>,
    },
    /// [`Authorize::request`] alone authenticates requests.
    Hooks,
    /// No authentication; every request has full access. The `Host` must be a loopback name, so
    /// that a web page cannot reach the server through a DNS name of its own. Requests from a proxy
    /// are rejected, because they may come from another machine.
    Loopback,
    /// As [`Auth::Loopback`], with every request on behalf of this person.
    LoopbackAs(Subject),
    /// As [`Auth::Loopback`], for development: a request acts for the person in its header
    /// [`PERSON_HEADER`], or for this person without the header. Every local process can act for
    /// everybody, so decisions prove nothing.
    LoopbackPerson(Option<Subject>),
}

/// Authenticates requests and checks their permissions.
pub(crate) struct Guard {
    // The caller of all requests, if authentication is off.
    open: Option<Arc<Caller>>,
    // A request without authentication may name its person.
    is_person_named: bool,
    pub(crate) keys: Option<Arc<Keys>>,
    jwt: Option<Jwt>,
    pub(crate) hooks: Option<Arc<dyn Authorize>>,
}

impl Guard {
    pub(crate) fn new(
        auth: Auth,
        hooks: Option<Arc<dyn Authorize>>,
        namespace: Namespace,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
        default_keys: impl FnOnce() -> Arc<dyn KeyStore>,
    ) -> Self {
        let everything = || Caller::everything(namespace);
        let is_person_named = matches!(auth, Auth::LoopbackPerson(_));
        let (open, keys, jwt) = match auth {
            Auth::Keys => (None, Some(default_keys()), None),
            Auth::Credentials { keys, jwt } => (None, keys, jwt),
            Auth::Hooks => (None, None, None),
            Auth::Loopback => (Some(everything()), Some(default_keys()), None),
            Auth::LoopbackAs(subject) | Auth::LoopbackPerson(Some(subject)) => {
                (Some(everything().on_behalf_of(subject)), Some(default_keys()), None)
            }
            Auth::LoopbackPerson(None) => (Some(everything()), Some(default_keys()), None),
        };
        let keys = keys.map(|store| Arc::new(Keys::new(store, Arc::new(now))));
        Self { open: open.map(Arc::new), is_person_named, keys, jwt, hooks }
    }

    /// Authenticates a request.
    pub(crate) async fn caller(&self, parts: &Parts) -> Result<Arc<Caller>, ApiError> {
        check_origin(&parts.headers)?;
        if let Some(hooks) = &self.hooks
            && let Some(caller) = hooks.request(parts).await.map_err(ApiError::from)?
        {
            return Ok(Arc::new(caller));
        }
        if let Some(caller) = &self.open {
            check_loopback_host(parts)?;
            reject_proxied(&parts.headers)?;
            return match parts.headers.get(PERSON_HEADER).filter(|_| self.is_person_named) {
                Some(person) => Ok(Arc::new(on_behalf_of(caller, person)?)),
                None => Ok(Arc::clone(caller)),
            };
        }
        let cookie = session::token(parts)?;
        let token = match cookie {
            Some(token) => token,
            None => bearer(&parts.headers)?,
        };
        match (&self.keys, &self.jwt) {
            (Some(keys), _) if token.starts_with(keys::PREFIX) => keys.caller(token).await,
            (_, Some(jwt)) if !token.starts_with(keys::PREFIX) => jwt.caller(token).map(Arc::new),
            _ => Err(ApiError::unauthenticated(
                "this server does not accept this kind of credential",
            )),
        }
    }

    /// Whether requests need a credential.
    pub(crate) fn requires_credential(&self) -> bool {
        self.open.is_none()
    }

    /// Calls the authorization hook of the embedding program.
    pub(crate) async fn ask(
        &self,
        caller: &Caller,
        scope: Scope,
        target: &Target<'_>,
    ) -> Result<(), ApiError> {
        let Some(hooks) = &self.hooks else { return Ok(()) };
        let asked = match scope {
            Scope::Read => hooks.read(caller, target),
            Scope::Create => hooks.create(caller, target),
            // Only routes of a program's own route set can require `define`.
            Scope::Manage | Scope::Admin | Scope::Define => hooks.manage(caller, target),
            Scope::Decide => hooks.decide(caller, target),
            Scope::Records => hooks.records(caller, target),
            Scope::SendEvent => hooks.send_event(caller, target),
            Scope::Tick => hooks.tick(caller),
        };
        asked.await.map_err(ApiError::from)
    }
}

fn on_behalf_of(caller: &Caller, person: &HeaderValue) -> Result<Caller, ApiError> {
    let text = person.to_str().unwrap_or_default();
    let subject = Subject::parse(text).map_err(|error| {
        let message = format!("the header `{PERSON_HEADER}` names no person: {}", error.message());
        ApiError::invalid(ErrorCode::InvalidSubject, message)
    })?;
    Ok(Caller::everything(caller.namespace.clone()).on_behalf_of(subject))
}

fn bearer(headers: &HeaderMap) -> Result<&str, ApiError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Err(ApiError::unauthenticated("send `Authorization: Bearer …` with an API key"));
    };
    let token = value.to_str().ok().filter(|text| text.len() <= TOKEN_BYTES_MAX);
    let token = token.and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    token.ok_or_else(|| {
        ApiError::unauthenticated("the `Authorization` header is not a bearer token")
    })
}

/// Rejects requests that a browser sends for a page of another site (CSRF).
fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let from = origin.split_once("://").map_or("", |(_, from)| from);
    if !host.is_empty() && from.eq_ignore_ascii_case(host) {
        return Ok(());
    }
    Err(ApiError::forbidden("requests from other origins are not allowed"))
}

fn check_loopback_host(parts: &Parts) -> Result<(), ApiError> {
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
    let name = host.map(|host| match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    });
    let is_loopback = name.is_some_and(|name| {
        let below = ".localhost";
        let end = name.len().checked_sub(below.len()).and_then(|at| name.get(at..));
        name.eq_ignore_ascii_case("localhost")
            || end.is_some_and(|end| end.eq_ignore_ascii_case(below))
            || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    });
    if is_loopback {
        return Ok(());
    }
    let message =
        "without authentication this server accepts only requests to `localhost` or `127.0.0.1`";
    Err(ApiError::forbidden(message))
}

/// Rejects requests that a proxy forwarded: they may come from another machine.
fn reject_proxied(headers: &HeaderMap) -> Result<(), ApiError> {
    // Parsed once, because every request is checked.
    static PROXY_HEADERS: [HeaderName; 5] = [
        header::FORWARDED,
        HeaderName::from_static("x-forwarded-for"),
        HeaderName::from_static("x-forwarded-host"),
        HeaderName::from_static("x-real-ip"),
        header::VIA,
    ];
    let Some(name) = PROXY_HEADERS.iter().find(|name| headers.contains_key(*name)) else {
        return Ok(());
    };
    let message = format!(
        "the header `{name}` shows that a proxy forwarded this request, but without authentication this \
         server accepts only local requests; behind a proxy, enable API keys or tokens"
    );
    Err(ApiError::forbidden(message))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/api/workflows");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn requests_from_other_origins_are_rejected() {
        for (headers, allowed) in [
            (&[("host", "127.0.0.1:7878")][..], true),
            (&[("host", "127.0.0.1:7878"), ("origin", "http://127.0.0.1:7878")], true),
            (&[("host", "127.0.0.1:7878"), ("origin", "http://127.0.0.1:80")], false),
            (&[("host", "127.0.0.1:7878"), ("origin", "https://evil.example")], false),
            (&[("host", "127.0.0.1:7878"), ("origin", "null")], false),
            (&[("origin", "")], false),
        ] {
            assert_eq!(check_origin(&parts(headers).headers).is_ok(), allowed, "{headers:?}");
        }
    }

    #[test]
    fn loopback_mode_requires_a_loopback_host() {
        for (host, allowed) in [
            ("localhost:7878", true),
            ("127.0.0.1", true),
            ("[::1]:7878", true),
            ("app.localhost", true),
            ("evil.example:7878", false),
            ("localhost.evil.example", false),
            ("192.168.1.5:7878", false),
            ("", false),
        ] {
            assert_eq!(check_loopback_host(&parts(&[("host", host)])).is_ok(), allowed, "{host}");
        }
        assert!(check_loopback_host(&parts(&[])).is_err());
    }

    #[test]
    fn loopback_mode_rejects_proxied_requests() {
        assert!(reject_proxied(&parts(&[("host", "localhost")]).headers).is_ok());
        for name in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"] {
            let refused = reject_proxied(&parts(&[(name, "192.0.2.1")]).headers).unwrap_err();
            assert!(refused.message().contains("API keys"), "{name}");
        }
    }

    #[test]
    fn bearer_tokens_are_parsed() {
        for (value, expect) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("abc", None),
        ] {
            let parts = parts(&[("authorization", value)]);
            assert_eq!(bearer(&parts.headers).ok(), expect, "{value}");
        }
        let long = format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX));
        assert!(bearer(&parts(&[("authorization", &long)]).headers).is_err());
        assert!(bearer(&parts(&[]).headers).is_err());
    }
}
