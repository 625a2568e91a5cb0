//! The session cookie of the dashboard: it carries the credential that the user signed in with, because
//! `EventSource` cannot send `Authorization`.

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};

use super::{TOKEN_BYTES_MAX, check_origin};
use crate::error::ApiError;

/// The name of the cookie.
pub(crate) const COOKIE: &str = "windlass_session";
/// How long a browser keeps it: a working day. The credential itself may end earlier.
pub(crate) const SESSION_SECONDS: u32 = 12 * 60 * 60;

/// The credential in the cookie of a request without `Authorization`.
///
/// A browser adds the cookie to every request, so a request that changes something must also prove that a
/// page of this server sent it.
pub(super) fn token(parts: &Parts) -> Result<Option<&str>, ApiError> {
    if parts.headers.contains_key(header::AUTHORIZATION) {
        return Ok(None);
    }
    let Some(token) = in_cookies(&parts.headers) else { return Ok(None) };
    let is_safe = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    if !is_safe {
        check_same_origin(&parts.headers)?;
    }
    Ok(Some(token))
}

/// Rejects a request unless its browser says that a page of this server sent it. A missing `Origin` is
/// rejected too: every browser sends it with requests that change something.
pub(crate) fn check_same_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    check_origin(headers)?;
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    let is_foreign = site.is_some_and(|site| site != "same-origin");
    if headers.contains_key(header::ORIGIN) && !is_foreign {
        return Ok(());
    }
    let message = "a request with a session cookie must come from a page of this server; programs send \
                   `Authorization: Bearer …`";
    Err(ApiError::forbidden(message))
}

fn in_cookies(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
    let (_, token) = pairs.find(|(name, _)| name.trim() == COOKIE)?;
    let token = token.trim();
    (!token.is_empty() && token.len() <= TOKEN_BYTES_MAX).then_some(token)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/api/runs");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        for (cookie, expect) in [
            ("windlass_session=abc", Some("abc")),
            ("a=b; windlass_session=abc; c=d", Some("abc")),
            ("windlass_session=", None),
            ("other=abc", None),
            ("xwindlass_session=abc", None),
        ] {
            let parts = parts("GET", &[("cookie", cookie)]);
            assert_eq!(token(&parts).unwrap(), expect, "{cookie}");
        }
        let both = parts("GET", &[("cookie", "windlass_session=a"), ("authorization", "Bearer b")]);
        assert_eq!(token(&both).unwrap(), None, "the header comes first");
    }

    #[test]
    fn changes_with_a_cookie_need_the_same_origin() {
        let cookie = ("cookie", "windlass_session=abc");
        let host = ("host", "127.0.0.1:7878");
        let own = ("origin", "http://127.0.0.1:7878");
        for (method, headers, allowed) in [
            ("GET", &[cookie, host][..], true),
            ("POST", &[cookie, host], false),
            ("POST", &[cookie, host, own], true),
            ("DELETE", &[cookie, host, ("origin", "http://127.0.0.1:3000")], false),
            ("POST", &[cookie, host, ("origin", "null")], false),
            ("PUT", &[cookie, host, own, ("sec-fetch-site", "same-site")], false),
            ("PUT", &[cookie, host, own, ("sec-fetch-site", "same-origin")], true),
        ] {
            assert_eq!(token(&parts(method, headers)).is_ok(), allowed, "{method} {headers:?}");
        }
    }
}
