//! Who asks, and what they may do. Nothing is open unless it was said to be.

mod caller;
mod hooks;
mod jwt;
mod keys;
mod stored;

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use windlass::Timestamp;
use windlass::kernel::Namespace;

pub use caller::{Caller, Scope, Scopes};
pub use hooks::{Authorize, Denied, Target};
pub use jsonwebtoken::Algorithm;
pub use jwt::{Jwt, JwtKey};
pub use keys::{ApiKey, KeyStore, Keys, MemoryKeys, NewKey, Shown};
pub use stored::StoredKeys;

use crate::error::ApiError;

/// Longer credentials are refused unseen.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// How a request proves who sent it.
#[derive(Clone, Default)]
pub enum Auth {
    /// API keys that are kept in the engine's store, in the default setting of a server.
    #[default]
    Keys,
    /// API keys, JSON web tokens, or both.
    Credentials {
        /// Where API keys are kept; no keys are taken if there is none.
        keys: Option<Arc<dyn KeyStore>>,
        /// Which tokens are believed; none are if there is none.
        jwt: Option<Jwt>,
    },
    /// [`Authorize::request`] alone says who asks.
    Hooks,
    /// Everybody on this machine may do everything. Requests must be addressed to a loopback name,
    /// so that a page in somebody's browser cannot reach in under a name of its own, and must not say
    /// that a proxy handed them on, because then they are of anybody.
    Loopback,
}

/// Everything that decides about a request.
pub(crate) struct Guard {
    // Everybody, if this server is open to its machine.
    open: Option<Arc<Caller>>,
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
        let (open, keys, jwt) = match auth {
            Auth::Keys => (false, Some(default_keys()), None),
            Auth::Credentials { keys, jwt } => (false, keys, jwt),
            Auth::Hooks => (false, None, None),
            Auth::Loopback => (true, Some(default_keys()), None),
        };
        let keys = keys.map(|store| Arc::new(Keys::new(store, Arc::new(now))));
        let open = open.then(|| Arc::new(Caller::everything(namespace)));
        Self { open, keys, jwt, hooks }
    }

    /// Who sent a request.
    pub(crate) async fn caller(&self, parts: &Parts) -> Result<Arc<Caller>, ApiError> {
        same_origin(&parts.headers)?;
        if let Some(hooks) = &self.hooks
            && let Some(caller) = hooks.request(parts).await.map_err(ApiError::from)?
        {
            return Ok(Arc::new(caller));
        }
        if let Some(everybody) = &self.open {
            addressed_to_loopback(parts)?;
            not_handed_on(&parts.headers)?;
            return Ok(Arc::clone(everybody));
        }
        let token = bearer(&parts.headers)?;
        match (&self.keys, &self.jwt) {
            (Some(keys), _) if token.starts_with(keys::PREFIX) => keys.caller(token).await,
            (_, Some(jwt)) if !token.starts_with(keys::PREFIX) => jwt.caller(token).map(Arc::new),
            _ => Err(ApiError::unauthenticated("this server takes no credential of this kind")),
        }
    }

    /// Asks the program that embeds the server about one act.
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
            Scope::Manage | Scope::Admin => hooks.manage(caller, target),
            Scope::SendEvent => hooks.send_event(caller, target),
            Scope::Tick => hooks.tick(caller),
        };
        asked.await.map_err(ApiError::from)
    }
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
    token.ok_or_else(|| ApiError::unauthenticated("the `Authorization` header is no bearer token"))
}

/// A page of another site may make a browser send requests here; they carry its origin.
fn same_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let from = origin.split_once("://").map_or("", |(_, from)| from);
    if !host.is_empty() && from.eq_ignore_ascii_case(host) {
        return Ok(());
    }
    Err(ApiError::forbidden("requests from pages of other sites are refused"))
}

fn addressed_to_loopback(parts: &Parts) -> Result<(), ApiError> {
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
    let message = "without authentication this server answers to `localhost` and `127.0.0.1` only";
    Err(ApiError::forbidden(message))
}

/// A proxy on this machine makes everybody's requests come from this machine.
fn not_handed_on(headers: &HeaderMap) -> Result<(), ApiError> {
    // Parsed once: every request is looked through for them.
    static TOLD: [HeaderName; 5] = [
        header::FORWARDED,
        HeaderName::from_static("x-forwarded-for"),
        HeaderName::from_static("x-forwarded-host"),
        HeaderName::from_static("x-real-ip"),
        header::VIA,
    ];
    let Some(name) = TOLD.iter().find(|name| headers.contains_key(*name)) else {
        return Ok(());
    };
    let message = format!(
        "the header `{name}` says that a proxy handed this request on, and without authentication this \
         server answers to its own machine only; behind a proxy, serve with API keys or tokens"
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
    fn pages_of_other_sites_are_refused() {
        for (headers, fine) in [
            (&[("host", "127.0.0.1:7878")][..], true),
            (&[("host", "127.0.0.1:7878"), ("origin", "http://127.0.0.1:7878")], true),
            (&[("host", "127.0.0.1:7878"), ("origin", "http://127.0.0.1:80")], false),
            (&[("host", "127.0.0.1:7878"), ("origin", "https://evil.example")], false),
            (&[("host", "127.0.0.1:7878"), ("origin", "null")], false),
            (&[("origin", "")], false),
        ] {
            assert_eq!(same_origin(&parts(headers).headers).is_ok(), fine, "{headers:?}");
        }
    }

    #[test]
    fn an_open_server_answers_to_loopback_names() {
        for (host, fine) in [
            ("localhost:7878", true),
            ("127.0.0.1", true),
            ("[::1]:7878", true),
            ("app.localhost", true),
            ("evil.example:7878", false),
            ("localhost.evil.example", false),
            ("192.168.1.5:7878", false),
            ("", false),
        ] {
            assert_eq!(addressed_to_loopback(&parts(&[("host", host)])).is_ok(), fine, "{host}");
        }
        assert!(addressed_to_loopback(&parts(&[])).is_err());
    }

    #[test]
    fn an_open_server_does_not_answer_to_a_proxy() {
        assert!(not_handed_on(&parts(&[("host", "localhost")]).headers).is_ok());
        for name in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"] {
            let refused = not_handed_on(&parts(&[(name, "192.0.2.1")]).headers).unwrap_err();
            assert!(refused.message().contains("API keys"), "{name}");
        }
    }

    #[test]
    fn what_is_a_bearer_token() {
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
