//! The client of OpenAI Responses.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use windlass_kernel::{BoxFuture, Error};
use windlass_models::agents::{
    BatchProvider, EventFamily, Provider, ProviderError, ProviderRequest, ProviderResponse,
    StreamPart, TokenSink, Usage, WireFormat,
};

use super::anthropic::{ended_early, is_stream, with_stream};
use super::client::{ApiKey, ClientOptions, Defaults, Http};
use super::failure::{self, Wrong, unreadable};
use super::headers;
use super::sse::Events;

const DEFAULTS: Defaults = Defaults {
    name: "openai",
    base_url: "https://api.openai.com",
    key_header: ("authorization", "Bearer "),
    headers: &[],
};
/// How often a response in the background is read.
const POLL: Duration = Duration::from_secs(1);

/// A client of OpenAI Responses: live calls, token counts, files and batches. Cheap to clone.
///
/// A request with `"background": true` is read until it has finished.
#[derive(Clone)]
pub struct OpenaiClient {
    pub(super) http: Http,
}

impl OpenaiClient {
    /// A client.
    ///
    /// ```
    /// use windlass::agents::{ClientOptions, OpenaiClient};
    ///
    /// let client = OpenaiClient::new(ClientOptions::new("key").base_url("http://127.0.0.1:9"))?;
    /// assert!(!format!("{client:?}").contains("key"));
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The key, the base URL or a header is not valid, or the system has no root certificates.
    pub fn new(options: ClientOptions) -> Result<Self, Error> {
        Ok(Self { http: Http::new(options, &DEFAULTS)? })
    }

    /// A client with the key of `OPENAI_API_KEY` and, if it is set, the address of `OPENAI_BASE_URL`, with or
    /// without `/v1` at its end.
    ///
    /// # Errors
    ///
    /// As [`OpenaiClient::new`], and if there is no key.
    pub fn from_env() -> Result<Self, Error> {
        let mut options = ClientOptions::from_env("OPENAI_API_KEY", "OPENAI_BASE_URL")?;
        options.base_url = options.base_url.map(|url| {
            let url = url.trim_end_matches('/');
            url.strip_suffix("/v1").unwrap_or(url).to_owned()
        });
        Self::new(options)
    }

    /// The key, for its [`id`](ApiKey::id).
    pub fn key(&self) -> &ApiKey {
        &self.http.key
    }

    /// Counts the input tokens of a request body (`POST /v1/responses/input_tokens`).
    ///
    /// # Errors
    ///
    /// As [`Provider::call`].
    pub async fn count_tokens(&self, body: Bytes) -> Result<u64, ProviderError> {
        #[derive(Deserialize)]
        struct Count {
            input_tokens: u64,
        }
        let path = "/v1/responses/input_tokens";
        let (body, _) = self.http.json(Method::POST, path, Some(body)).await?;
        let count: Count =
            serde_json::from_slice(&body).map_err(|error| unreadable(&self.http, error))?;
        Ok(count.input_tokens)
    }

    /// Reads a stored response (`GET /v1/responses/{id}`). None: it has not finished.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`].
    pub async fn response(&self, id: &str) -> Result<Option<ProviderResponse>, ProviderError> {
        let path = format!("/v1/responses/{id}");
        let (body, headers) = self.http.json(Method::GET, &path, None).await?;
        match self.read_response(body, &headers)? {
            Finished::Yes(response) => Ok(Some(*response)),
            Finished::NotYet(_) => Ok(None),
        }
    }

    /// Cancels a response in the background (`POST /v1/responses/{id}/cancel`).
    ///
    /// # Errors
    ///
    /// As [`Provider::call`].
    pub async fn cancel_response(&self, id: &str) -> Result<(), ProviderError> {
        let path = format!("/v1/responses/{id}/cancel");
        self.http.json(Method::POST, &path, None).await.map(drop)
    }

    async fn attempt(
        &self,
        request: &ProviderRequest,
        sink: &dyn TokenSink,
    ) -> Result<ProviderResponse, ProviderError> {
        let body = match request.stream {
            true => with_stream(&request.body),
            false => request.body.clone(),
        };
        let body = Some(("application/json", body));
        let mut response = self.http.send(Method::POST, "/v1/responses", body).await?;
        if response.status().as_u16() != 200 {
            return Err(failure::of_response(&self.http, response).await);
        }
        let headers = std::mem::take(response.headers_mut());
        let body = match is_stream(&headers) {
            true => self.last_of_stream(response, &headers, sink).await?,
            false => self.http.read(response).await?,
        };
        match self.read_response(body, &headers)? {
            Finished::Yes(response) => Ok(*response),
            Finished::NotYet(id) => self.wait_for(&id).await,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    async fn wait_for(&self, id: &str) -> Result<ProviderResponse, ProviderError> {
        loop {
            tokio::time::sleep(POLL).await;
            match self.response(id).await {
                Ok(Some(response)) => return Ok(response),
                Ok(None) => {}
                // The response is there whatever happens to one read of it.
                Err(error) if error.kind().is_retryable() && error.status().is_none() => {}
                Err(error) => return Err(error),
            }
        }
    }

    // The last event has the whole response, so nothing needs to be put together.
    async fn last_of_stream(
        &self,
        response: Response,
        headers: &HeaderMap,
        sink: &dyn TokenSink,
    ) -> Result<Bytes, ProviderError> {
        let http = &self.http;
        let mut events = Events::new(http, response);
        while let Some(data) = events.next().await? {
            if data == "[DONE]" {
                continue;
            }
            let event: Event =
                serde_json::from_str(&data).map_err(|error| unreadable(http, error))?;
            match (event.kind.as_str(), event.response) {
                (
                    "response.completed"
                    | "response.incomplete"
                    | "response.failed"
                    | "response.cancelled",
                    Some(response),
                ) => return Ok(response.get().to_owned().into()),
                ("error", _) => {
                    let wrong = Wrong::of(data.as_bytes());
                    let flat = || serde_json::from_str(&without_type(&data)).ok();
                    let wrong = wrong.or_else(flat).unwrap_or_default();
                    return Err(failure::of_body(http, 200, headers, &wrong));
                }
                (kind, _) => {
                    pass_on(kind, event.delta.as_deref(), event.item.as_ref(), sink);
                }
            }
        }
        Err(ended_early(http))
    }

    fn read_response(&self, body: Bytes, headers: &HeaderMap) -> Result<Finished, ProviderError> {
        let http = &self.http;
        if let Some(wrong) = Wrong::of(&body) {
            return Err(failure::of_body(http, 200, headers, &wrong));
        }
        let message = WireResponse::read(&body).map_err(|why| unreadable(http, why))?;
        match (message.status.as_str(), message.id.as_deref()) {
            ("queued" | "in_progress", Some(id)) => Ok(Finished::NotYet(id.to_owned())),
            ("completed" | "incomplete", _) => {
                Ok(Finished::Yes(Box::new(message.response(body, headers))))
            }
            (status, _) => {
                let status: String = status.chars().take(100).collect();
                Err(unreadable(http, format!("the status of the response is {status:?}")))
            }
        }
    }
}

enum Finished {
    Yes(Box<ProviderResponse>),
    NotYet(String),
}

// The type of the event is no type of an error.
fn without_type(data: &str) -> String {
    data.replacen("\"type\"", "\"event\"", 1)
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    response: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "text_or_none")]
    delta: Option<String>,
    item: Option<serde_json::Value>,
}

// Some events have a delta that is no text.
fn text_or_none<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    Ok(serde_json::Value::deserialize(input)?.as_str().map(str::to_owned))
}

fn pass_on(
    kind: &str,
    delta: Option<&str>,
    item: Option<&serde_json::Value>,
    sink: &dyn TokenSink,
) {
    match (kind, delta) {
        ("response.output_text.delta" | "response.refusal.delta", Some(piece)) => {
            sink.part(StreamPart::Text(piece));
        }
        (
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta",
            Some(piece),
        ) => sink.part(StreamPart::Thinking(piece)),
        ("response.function_call_arguments.delta", Some(piece)) => {
            sink.part(StreamPart::ToolInput(piece));
        }
        ("response.output_item.added", _) => {
            let text = |name: &str| item.and_then(|item| item.get(name)?.as_str());
            if text("type") == Some("function_call") {
                let (id, name) = (text("call_id"), text("name"));
                let (id, name) = (id.unwrap_or_default(), name.unwrap_or_default());
                sink.part(StreamPart::ToolUse { id, name });
            }
        }
        _ => {}
    }
}

/// A response as far as the engine reads it.
#[derive(Deserialize)]
pub(super) struct WireResponse {
    status: String,
    output: Vec<Box<RawValue>>,
    id: Option<String>,
    model: Option<String>,
    incomplete_details: Option<Incomplete>,
    usage: Option<WireUsage>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct WireUsage {
    input_tokens: u64,
    output_tokens: u64,
    #[serde(default)]
    input_tokens_details: Option<InputDetails>,
    #[serde(default)]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<WireUsage> for Usage {
    // The input tokens of this API include the cached ones.
    fn from(usage: WireUsage) -> Self {
        let cached = usage.input_tokens_details.unwrap_or_default().cached_tokens;
        let details = usage.output_tokens_details.unwrap_or_default();
        Self {
            input_tokens: usage.input_tokens.saturating_sub(cached),
            output_tokens: usage.output_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            reasoning_output_tokens: details.reasoning_tokens,
        }
    }
}

impl WireResponse {
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let response: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        match response.output.iter().find(|item| !item.get().starts_with('{')) {
            None => Ok(response),
            Some(_) => Err("an output item is no object".to_owned()),
        }
    }

    pub(super) fn response(self, body: Bytes, headers: &HeaderMap) -> ProviderResponse {
        let reason = self.incomplete_details.and_then(|details| details.reason);
        ProviderResponse {
            body,
            content: self.output,
            stop_reason: Some(reason.unwrap_or(self.status)),
            model: self.model,
            usage: self.usage.map(Usage::from).unwrap_or_default(),
            message_id: self.id,
            request_id: headers::request_id(headers),
            rate_limits: headers::rate_limits(headers),
        }
    }
}

impl Provider for OpenaiClient {
    fn name(&self) -> &str {
        &self.http.name
    }

    fn wire_format(&self) -> WireFormat {
        WireFormat::OpenaiResponses
    }

    fn event_family(&self) -> EventFamily {
        EventFamily::Openai
    }

    fn server_address(&self) -> Option<&str> {
        self.http.address()
    }

    fn batches(&self) -> Option<&dyn BatchProvider> {
        Some(self)
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        Box::pin(self.http.in_time(self.attempt(request, sink)))
    }
}

impl fmt::Debug for OpenaiClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.http.fmt(f)
    }
}
