//! Maps the errors of both providers to the kinds that decide what happens next.

use reqwest::Response;
use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use windlass_models::agents::{ProviderError, ProviderErrorKind as Kind};

use super::client::Http;
use super::headers;

/// How much of a provider's message an error shows.
const MESSAGE_CHARS_MAX: usize = 500;

/// An error body of either provider.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wrong {
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<Value>,
    message: Option<String>,
    details: Option<Value>,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    error: Option<Wrong>,
}

impl Wrong {
    /// The error that a body holds, if it holds one.
    pub(super) fn of(body: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Envelope>(body).ok()?.error
    }

    fn code(&self) -> Option<&str> {
        self.code.as_ref().and_then(Value::as_str)
    }

    fn is_spend_limit(&self) -> bool {
        let detail = self.details.as_ref().and_then(|details| details.get("error_code"));
        detail.and_then(Value::as_str) == Some("enforced_spend_limit_reached")
            || self.kind.as_deref() == Some("billing_error")
            || matches!(self.code(), Some("insufficient_quota" | "billing_hard_limit_reached"))
    }

    // The provider's own name for the error.
    fn name(&self) -> Option<&str> {
        self.code().or(self.kind.as_deref())
    }

    /// The HTTP status that a live call with this error would have (Anthropic).
    pub(super) fn status(&self) -> u16 {
        match self.kind.as_deref().unwrap_or_default() {
            "authentication_error" => 401,
            "billing_error" => 402,
            "permission_error" => 403,
            "not_found_error" => 404,
            "request_too_large" => 413,
            "rate_limit_error" => 429,
            "overloaded_error" => 529,
            kind if kind.starts_with("invalid") => 400,
            _ => 500,
        }
    }

    fn is_about_tokens(&self) -> bool {
        let in_message = |message: &String| message.contains("tokens per m");
        self.kind.as_deref() == Some("tokens") || self.message.as_ref().is_some_and(in_message)
    }
}

/// Reads an answer whose status is not 200 into an error.
pub(super) async fn of_response(http: &Http, response: Response) -> ProviderError {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    // The status decides; a body that cannot be read only leaves out the reason.
    let body = http.read(response).await.unwrap_or_default();
    of_body(http, status, &headers, &Wrong::of(&body).unwrap_or_default())
}

/// Makes an error of a status, headers and an error body. A status of 200 stands for an error in the body
/// or in the stream of an answer that began as a success.
pub(super) fn of_body(
    http: &Http,
    status: u16,
    headers: &HeaderMap,
    wrong: &Wrong,
) -> ProviderError {
    let limits = headers::rate_limits(headers);
    let no_tokens = limits.tokens.and_then(|tokens| tokens.remaining) == Some(0)
        && limits.requests.and_then(|requests| requests.remaining) != Some(0);
    let advice = headers.get("x-should-retry").and_then(|value| value.to_str().ok());
    let kind = match (kind(status, wrong, no_tokens), advice) {
        (Kind::Retryable | Kind::UnknownOutcome, Some("false")) if status >= 400 => Kind::Invalid,
        (Kind::Invalid, Some("true")) => Kind::Retryable,
        (kind, _) => kind,
    };
    let reason = match (status, &wrong.message) {
        // Providers repeat parts of a wrong key.
        (401, _) => "the key is not accepted".to_owned(),
        (_, Some(message)) => {
            let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
            http.without_key(&message)
        }
        (_, None) => "no reason is given".to_owned(),
    };
    let what = match kind {
        Kind::SpendLimitReached => "has reached the spend limit of this account",
        Kind::RequestRateLimited => "limits the rate of requests",
        Kind::TokenRateLimited => "limits the rate of tokens",
        Kind::Overloaded => "is overloaded",
        Kind::Invalid => "refused the request",
        _ => "failed",
    };
    let mut error = ProviderError::new(kind, format!("{} {what}: {reason}", http.name))
        .with_status(status)
        .with_rate_limits(limits);
    if let Some(name) = wrong.name() {
        error = error.with_name(name.chars().take(100).collect::<String>());
    }
    if let Some(after) = headers::retry_after(headers) {
        error = error.with_retry_after(after);
    }
    if let Some(id) = headers::request_id(headers) {
        error = error.with_request_id(id);
    }
    error
}

fn kind(status: u16, wrong: &Wrong, no_tokens: bool) -> Kind {
    if wrong.is_spend_limit() {
        return Kind::SpendLimitReached;
    }
    let limited = || match no_tokens || wrong.is_about_tokens() {
        true => Kind::TokenRateLimited,
        false => Kind::RequestRateLimited,
    };
    // An answer that began as a success says by its name what went wrong.
    let name = wrong.name().unwrap_or_default();
    match (status, name) {
        (529, _) | (_, "overloaded_error" | "server_is_overloaded" | "slow_down") => {
            Kind::Overloaded
        }
        (402, _) => Kind::SpendLimitReached,
        (429, _) | (200, "rate_limit_error" | "rate_limit_exceeded") => limited(),
        // Somebody between gave up waiting: the model may have answered.
        (408 | 504 | 524, _) => Kind::UnknownOutcome,
        (409 | 425 | 500..=599, _) => Kind::Retryable,
        (200, "api_error" | "server_error" | "timeout_error" | "") => Kind::UnknownOutcome,
        (200, _) => Kind::Invalid,
        (300..=499, _) => Kind::Invalid,
        _ => Kind::InvalidResponse,
    }
}

/// An answer that is not what the API promises.
pub(super) fn unreadable(http: &Http, why: impl std::fmt::Display) -> ProviderError {
    let message = format!("the answer of {} cannot be read: {why}", http.name);
    ProviderError::new(Kind::InvalidResponse, http.without_key(&message))
}
