//! `ETag`, `If-Match` and `If-None-Match` of records: the tag is the revision.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use windlass::ErrorCode;
use windlass::kernel::{Expect, REVISION_MAX};

use crate::app::App;
use crate::error::ApiError;

/// The state that a write expects. A write without a precondition is rejected, because it would
/// overwrite changes that its sender has not seen.
pub(crate) struct Precondition(pub(crate) Expect);

impl FromRequestParts<App> for Precondition {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let if_match = single(&parts.headers, header::IF_MATCH)?;
        let if_none_match = single(&parts.headers, header::IF_NONE_MATCH)?;
        expectation(if_match, if_none_match).map(Self)
    }
}

/// The tag of a revision.
pub(crate) fn etag(revision: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).expect("digits are a valid header value")
}

/// The state that a write expects, by the values of its two headers.
pub(crate) fn expectation(
    if_match: Option<&str>,
    if_none_match: Option<&str>,
) -> Result<Expect, ApiError> {
    match (if_match, if_none_match) {
        (Some("*"), None) => Ok(Expect::Present),
        (Some(tag), None) => revision_of(tag).map(Expect::At),
        (None, Some("*")) => Ok(Expect::Absent),
        (None, Some(other)) => Err(invalid(format!(
            "`If-None-Match: {}` of a write is not `*`; to replace a record, send `If-Match` with its `ETag`",
            display_text(other)
        ))),
        (Some(_), Some(_)) => Err(invalid(
            "the request has `If-Match` and `If-None-Match`; send one of them".to_owned(),
        )),
        (None, None) => {
            let message = "the write has no precondition; send `If-None-Match: *` to create a record, \
                `If-Match: \"<revision>\"` to change the revision that you read, or `If-Match: *` to \
                change any revision";
            let (status, code) =
                (StatusCode::PRECONDITION_REQUIRED, ErrorCode::PreconditionRequired);
            Err(ApiError::new(status, code, message))
        }
    }
}

/// Whether a read has the tag of this revision in `If-None-Match`. Caches may have weakened the tag. A
/// text that is not a tag matches nothing: the response is then the whole document.
pub(crate) fn is_known(headers: &HeaderMap, revision: u64) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut tags = values.filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(','));
    tags.any(|tag| {
        let tag = tag.trim();
        tag == "*" || revision_of(tag.strip_prefix("W/").unwrap_or(tag)).ok() == Some(revision)
    })
}

/// Parses a revision in a path.
pub(crate) fn parse_revision(text: &str) -> Result<u64, ApiError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let revision = text.parse().ok().filter(|_| is_number);
    revision.filter(|revision| (1..=REVISION_MAX).contains(revision)).ok_or_else(|| {
        let message = format!(
            "{:?} is not a revision; use a number from 1 to {REVISION_MAX}",
            display_text(text)
        );
        ApiError::invalid(ErrorCode::InvalidRevision, message)
    })
}

fn revision_of(tag: &str) -> Result<u64, ApiError> {
    let quoted = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    // The server writes no leading zeros: "03" is not a tag that a client has read.
    let number = quoted.filter(|text| {
        let is_plain = *text == "0" || !text.starts_with('0');
        !text.is_empty() && is_plain && text.bytes().all(|byte| byte.is_ascii_digit())
    });
    match number {
        Some(number) => parse_revision(number),
        None => Err(invalid(format!(
            "`If-Match: {}` is not one strong `ETag` of a record; send the `ETag` that you read, such as \
             `If-Match: \"3\"`, or `*`",
            display_text(tag)
        ))),
    }
}

/// The value of a header that may come once.
fn single(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(&name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid(format!("the request has `{name}` more than once; send it once")));
    }
    let text = value.to_str();
    text.map(|text| Some(text.trim())).map_err(|_| {
        invalid(format!(
            "`{name}` has characters other than printable ASCII; send an `ETag`, or `*`"
        ))
    })
}

fn invalid(message: String) -> ApiError {
    ApiError::invalid(ErrorCode::InvalidPrecondition, message)
}

fn display_text(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preconditions_are_read_or_refused() {
        let read = |if_match, if_none_match| {
            expectation(if_match, if_none_match).map_err(|error| error.code().to_string())
        };
        for (tag, expect) in [
            ("*", Ok(Expect::Present)),
            ("\"3\"", Ok(Expect::At(3))),
            ("\"0\"", Err("INVALID_REVISION")),
            ("\"18446744073709551615\"", Err("INVALID_REVISION")),
            ("\"99999999999999999999\"", Err("INVALID_REVISION")),
            ("W/\"3\"", Err("INVALID_PRECONDITION")),
            ("3", Err("INVALID_PRECONDITION")),
            ("\"03\"", Err("INVALID_PRECONDITION")),
            ("\"+3\"", Err("INVALID_PRECONDITION")),
            ("\"\"", Err("INVALID_PRECONDITION")),
            ("\"", Err("INVALID_PRECONDITION")),
            ("", Err("INVALID_PRECONDITION")),
            ("\"3\", \"4\"", Err("INVALID_PRECONDITION")),
            ("\"abc\"", Err("INVALID_PRECONDITION")),
        ] {
            assert_eq!(read(Some(tag), None), expect.map_err(ToOwned::to_owned), "{tag}");
        }
        assert_eq!(read(None, Some("*")), Ok(Expect::Absent));
        assert_eq!(read(None, Some("\"3\"")), Err("INVALID_PRECONDITION".to_owned()));
        assert_eq!(read(Some("*"), Some("*")), Err("INVALID_PRECONDITION".to_owned()));
        assert_eq!(read(None, None), Err("PRECONDITION_REQUIRED".to_owned()));
    }

    #[test]
    fn a_header_may_come_once() {
        let mut headers = HeaderMap::new();
        assert_eq!(single(&headers, header::IF_MATCH).unwrap(), None);
        headers.append(header::IF_MATCH, HeaderValue::from_static(" \"3\" "));
        assert_eq!(single(&headers, header::IF_MATCH).unwrap(), Some("\"3\""));
        headers.append(header::IF_MATCH, HeaderValue::from_static("\"4\""));
        let error = single(&headers, header::IF_MATCH).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidPrecondition);
    }

    #[test]
    fn a_reader_that_knows_the_revision_is_recognized() {
        for (value, known) in [
            ("\"3\"", true),
            ("W/\"3\"", true),
            ("\"2\", \"3\"", true),
            ("*", true),
            ("\"4\"", false),
            ("3", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(header::IF_NONE_MATCH, HeaderValue::from_static(value));
            assert_eq!(is_known(&headers, 3), known, "{value}");
        }
    }
}
