//! Providers of language models: the trait that a client implements, its requests, responses and errors.
//!
//! The model keeps the bytes of a provider as they are. A client never rewrites content blocks that it
//! does not know, so that signatures and new kinds of blocks survive a round trip.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::BoxFuture;

use super::batch::BatchProvider;

/// A client of one provider of language models. Register it under its name with the program that calls it.
///
/// A client sends the bytes of a request unchanged, apart from what it needs for streaming. It makes one
/// attempt: the engine decides about the next one from the kind of the error.
pub trait Provider: Send + Sync + 'static {
    /// The name under which programs call it, for example `anthropic`.
    fn name(&self) -> &str;

    /// The format of its requests and responses.
    fn wire_format(&self) -> WireFormat;

    /// The prefix of the ledger events about its calls.
    fn event_family(&self) -> EventFamily {
        EventFamily::Llm
    }

    /// The host that it calls, for traces and metrics. Default: none.
    fn server_address(&self) -> Option<&str> {
        None
    }

    /// Its batches, if calls can go into some. Default: none.
    fn batches(&self) -> Option<&dyn BatchProvider> {
        None
    }

    /// Sends a request and waits for the complete response. Parts that arrive earlier go to `sink`.
    ///
    /// The engine drops the future when the call takes too long or the run ends.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`] whose kind says whether another attempt can help and whether the provider may
    /// have charged for this one.
    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>>;

    /// Stores what a call shows about the limits of the account, for the next calls. Default: nothing.
    ///
    /// The engine calls it after each attempt, outside the time that the attempt may take: a store that
    /// hangs must not turn an answer into an unknown outcome. A provider that wraps another one passes it on.
    fn learn<'a>(
        &'a self,
        called: Result<&'a ProviderResponse, &'a ProviderError>,
    ) -> BoxFuture<'a, ()> {
        let _ = called;
        Box::pin(std::future::ready(()))
    }
}

/// The format of requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireFormat {
    /// `POST /v1/messages` of Anthropic.
    AnthropicMessages,
    /// `POST /v1/responses` of OpenAI.
    OpenaiResponses,
}

/// The prefix of the ledger events about the calls of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventFamily {
    /// `anthropic.suspended`, `anthropic.completed` and so on.
    Anthropic,
    /// `openai.blocked`, `openai.completed` and so on.
    Openai,
    /// `llm.suspended`, `llm.completed` and so on: every other provider.
    Llm,
}

/// One attempt of a call.
#[derive(Clone, Debug)]
pub struct ProviderRequest {
    /// The name of the provider.
    pub provider: String,
    /// The requested model, as the body names it.
    pub model: String,
    /// The provider's JSON, without a member `stream`.
    pub body: Bytes,
    /// Names the call. All attempts of a call have the same id.
    pub call_id: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Whether somebody wants the parts as they arrive.
    pub stream: bool,
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct ProviderResponse {
    /// The response body. After a stream it is the body that the parts amount to.
    pub body: Bytes,
    /// The content blocks (Anthropic) or output items (OpenAI), byte for byte.
    pub content: Vec<Box<RawValue>>,
    /// Why the model stopped: `stop_reason` of Anthropic; of OpenAI `status`, or the reason of an incomplete
    /// response.
    pub stop_reason: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The usage that the provider reports.
    pub usage: Usage,
    /// The provider's id of the message.
    pub message_id: Option<String>,
    /// The provider's id of the HTTP request.
    pub request_id: Option<String>,
    /// The rate limits in the response headers.
    pub rate_limits: RateLimits,
}

/// The tokens that a call used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens that were not read from or written to a prompt cache.
    pub input_tokens: u64,
    /// Output tokens, with those for reasoning.
    pub output_tokens: u64,
    /// Input tokens that were written to a prompt cache.
    #[serde(default)]
    pub cache_creation_input_tokens: u64,
    /// Input tokens that were read from a prompt cache.
    #[serde(default)]
    pub cache_read_input_tokens: u64,
    /// Output tokens for reasoning, where the provider reports them.
    #[serde(default)]
    pub reasoning_output_tokens: u64,
}

/// The rate limits that a provider reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// The limit on requests.
    pub requests: Option<RateLimit>,
    /// The limit on tokens; where input and output have limits of their own, the tighter one.
    pub tokens: Option<RateLimit>,
}

/// One rate limit of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// How many in each period.
    pub limit: Option<u64>,
    /// How many are left.
    pub remaining: Option<u64>,
    /// How long until all of them are available again.
    pub reset_after: Option<Duration>,
}

/// Receives the parts of a response while they arrive. A part can be lost; the response holds all of them.
pub trait TokenSink: Send + Sync {
    /// Takes one part. It must not block.
    fn part(&self, part: StreamPart<'_>);
}

/// A part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPart<'a> {
    /// Text of the answer.
    Text(&'a str),
    /// Text of the model's reasoning.
    Thinking(&'a str),
    /// The model begins to write the input of a tool call.
    ToolUse {
        /// The provider's id of the tool call.
        id: &'a str,
        /// The name of the tool.
        name: &'a str,
    },
    /// A piece of the JSON input of the tool call that began last.
    ToolInput(&'a str),
}

/// Drops every part.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSink;

impl TokenSink for NoSink {
    fn part(&self, _: StreamPart<'_>) {}
}

/// Why a call failed.
#[derive(Debug)]
pub struct ProviderError {
    kind: ProviderErrorKind,
    message: String,
    name: Option<String>,
    status: Option<u16>,
    retry_after: Option<Duration>,
    request_id: Option<String>,
    rate_limits: Box<RateLimits>,
    postponed: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kind of a failed call. It decides what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// The provider refused the call for now, or could not be reached. It was not charged.
    Retryable,
    /// Too many requests in this period.
    RequestRateLimited,
    /// Too many tokens in this period.
    TokenRateLimited,
    /// The provider is overloaded by all its users.
    Overloaded,
    /// The account's spend limit is reached: no call of this provider succeeds before a person acts.
    SpendLimitReached,
    /// The request, the key or the permission is wrong. The same request fails again.
    Invalid,
    /// The provider answered with something that cannot be read. It may have charged for it.
    InvalidResponse,
    /// The request was sent and no complete answer came. The provider may have charged for it.
    UnknownOutcome,
}

impl ProviderErrorKind {
    /// Whether another attempt of the same request can succeed.
    pub const fn is_retryable(self) -> bool {
        !matches!(self, Self::SpendLimitReached | Self::Invalid)
    }

    /// Whether the provider may have charged for the attempt.
    pub const fn may_be_paid(self) -> bool {
        matches!(self, Self::InvalidResponse | Self::UnknownOutcome)
    }

    /// The stable name, as the ledger shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::RequestRateLimited => "request_rate_limited",
            Self::TokenRateLimited => "token_rate_limited",
            Self::Overloaded => "overloaded",
            Self::SpendLimitReached => "spend_limit_reached",
            Self::Invalid => "invalid",
            Self::InvalidResponse => "invalid_response",
            Self::UnknownOutcome => "unknown_outcome",
        }
    }
}

impl ProviderError {
    /// An error of this kind. The message must not contain a key.
    pub fn new(kind: ProviderErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            name: None,
            status: None,
            retry_after: None,
            request_id: None,
            rate_limits: Box::default(),
            postponed: false,
            source: None,
        }
    }

    /// The same with the provider's name for the error, for example `overloaded_error`.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The same with the HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// The same with the time that the provider asks to wait.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// The same for a call that waits for the account of the provider and not for an answer: it is made again
    /// after this time and does not count as an attempt.
    #[must_use]
    pub fn postponed(mut self, delay: Duration) -> Self {
        self.postponed = true;
        self.with_retry_after(delay)
    }

    /// The same with the provider's id of the HTTP request.
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// The same with what the headers say about rate limits.
    #[must_use]
    pub fn with_rate_limits(mut self, limits: RateLimits) -> Self {
        self.rate_limits = Box::new(limits);
        self
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The kind.
    pub fn kind(&self) -> ProviderErrorKind {
        self.kind
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The provider's name for the error.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The HTTP status.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// For how long the call is postponed, if it was not made for now.
    pub fn postponed_by(&self) -> Option<Duration> {
        self.retry_after.filter(|_| self.postponed)
    }

    /// How long the provider asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The provider's id of the HTTP request.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// The rate limits in the headers.
    pub fn rate_limits(&self) -> &RateLimits {
        &self.rate_limits
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(status) = self.status {
            write!(f, " (HTTP status {status})")?;
        }
        Ok(())
    }
}

impl std::error::Error for ProviderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}
