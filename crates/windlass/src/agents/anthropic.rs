//! The client of Anthropic Messages.

use std::fmt;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use windlass_kernel::{BoxFuture, Error};
use windlass_models::agents::{
    BatchProvider, EventFamily, Provider, ProviderError, ProviderErrorKind, ProviderRequest,
    ProviderResponse, TokenSink, Usage, WireFormat,
};

use super::assemble::{Assembly, Progress};
use super::client::{ApiKey, ClientOptions, Defaults, Http};
use super::failure::{self, Wrong, unreadable};
use super::headers;
use super::sse::Events;

const DEFAULTS: Defaults = Defaults {
    name: "anthropic",
    base_url: "https://api.anthropic.com",
    key_header: ("x-api-key", ""),
    headers: &[("anthropic-version", "2023-06-01")],
};

/// A client of Anthropic Messages: live calls, token counts and Message Batches. Cheap to clone.
#[derive(Clone)]
pub struct AnthropicClient {
    pub(super) http: Http,
}

impl AnthropicClient {
    /// A client.
    ///
    /// ```
    /// use windlass::agents::{AnthropicClient, ClientOptions};
    ///
    /// let client = AnthropicClient::new(ClientOptions::new("key").base_url("http://127.0.0.1:9"))?;
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

    /// A client with the key of `ANTHROPIC_API_KEY` and, if it is set, the address of `ANTHROPIC_BASE_URL`.
    ///
    /// # Errors
    ///
    /// As [`AnthropicClient::new`], and if there is no key.
    pub fn from_env() -> Result<Self, Error> {
        Self::new(ClientOptions::from_env("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")?)
    }

    /// The key, for its [`id`](ApiKey::id).
    pub fn key(&self) -> &ApiKey {
        &self.http.key
    }

    /// Counts the input tokens of a request body (`POST /v1/messages/count_tokens`). This costs nothing.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`].
    pub async fn count_tokens(&self, body: Bytes) -> Result<u64, ProviderError> {
        #[derive(Deserialize)]
        struct Count {
            input_tokens: u64,
        }
        let path = "/v1/messages/count_tokens";
        let (body, _) = self.http.json(Method::POST, path, Some(body)).await?;
        let count: Count =
            serde_json::from_slice(&body).map_err(|error| unreadable(&self.http, error))?;
        Ok(count.input_tokens)
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
        let mut response = self.http.send(Method::POST, "/v1/messages", body).await?;
        if response.status().as_u16() != 200 {
            return Err(failure::of_response(&self.http, response).await);
        }
        let headers = std::mem::take(response.headers_mut());
        let body = match is_stream(&headers) {
            true => self.assemble(response, &headers, sink).await?,
            false => self.http.read(response).await?,
        };
        self.read_message(body, &headers)
    }

    async fn assemble(
        &self,
        response: Response,
        headers: &HeaderMap,
        sink: &dyn TokenSink,
    ) -> Result<Bytes, ProviderError> {
        let http = &self.http;
        let mut events = Events::new(http, response);
        let mut assembly = Assembly::default();
        while let Some(data) = events.next().await? {
            match assembly.take(&data, sink).map_err(|why| unreadable(http, why))? {
                Progress::More => {}
                Progress::Complete => {
                    return assembly.finish().map(Bytes::from).map_err(|why| unreadable(http, why));
                }
                Progress::Failed => {
                    let wrong = Wrong::of(data.as_bytes()).unwrap_or_default();
                    return Err(failure::of_body(http, 200, headers, &wrong));
                }
            }
        }
        Err(ended_early(http))
    }

    fn read_message(
        &self,
        body: Bytes,
        headers: &HeaderMap,
    ) -> Result<ProviderResponse, ProviderError> {
        if let Some(wrong) = Wrong::of(&body) {
            return Err(failure::of_body(&self.http, 200, headers, &wrong));
        }
        let message = Message::read(&body).map_err(|why| unreadable(&self.http, why))?;
        Ok(message.response(body, headers))
    }
}

/// A message as far as the engine reads it.
#[derive(Deserialize)]
pub(super) struct Message {
    content: Vec<Box<RawValue>>,
    id: Option<String>,
    model: Option<String>,
    stop_reason: Option<String>,
    #[serde(default)]
    usage: WireUsage,
}

impl Message {
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let message: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        match message.content.iter().find(|block| !block.get().starts_with('{')) {
            None => Ok(message),
            Some(_) => Err("a content block is no object".to_owned()),
        }
    }

    pub(super) fn response(self, body: Bytes, headers: &HeaderMap) -> ProviderResponse {
        ProviderResponse {
            body,
            content: self.content,
            stop_reason: self.stop_reason,
            model: self.model,
            usage: self.usage.into(),
            message_id: self.id,
            request_id: headers::request_id(headers),
            rate_limits: headers::rate_limits(headers),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

impl From<WireUsage> for Usage {
    fn from(usage: WireUsage) -> Self {
        let details = usage.output_tokens_details.unwrap_or_default();
        Self {
            input_tokens: usage.input_tokens.unwrap_or_default(),
            output_tokens: usage.output_tokens.unwrap_or_default(),
            cache_creation_input_tokens: usage.cache_creation_input_tokens.unwrap_or_default(),
            cache_read_input_tokens: usage.cache_read_input_tokens.unwrap_or_default(),
            reasoning_output_tokens: details.thinking_tokens.unwrap_or_default(),
        }
    }
}

impl Provider for AnthropicClient {
    fn name(&self) -> &str {
        &self.http.name
    }

    fn wire_format(&self) -> WireFormat {
        WireFormat::AnthropicMessages
    }

    fn event_family(&self) -> EventFamily {
        EventFamily::Anthropic
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

impl fmt::Debug for AnthropicClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.http.fmt(f)
    }
}

/// The body with `"stream":true` in front and all other bytes as they are.
pub(super) fn with_stream(body: &Bytes) -> Bytes {
    let Some(open) = body.iter().position(|byte| *byte == b'{') else { return body.clone() };
    let rest = &body[open + 1..];
    let is_empty = rest.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'}');
    let head: &[u8] = if is_empty { b"{\"stream\":true" } else { b"{\"stream\":true," };
    [head, rest].concat().into()
}

pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get("content-type").and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

pub(super) fn ended_early(http: &Http) -> ProviderError {
    let message = format!("the stream of {} ended before the answer was complete", http.name);
    ProviderError::new(ProviderErrorKind::UnknownOutcome, message)
}

impl Http {
    /// Sends JSON and reads the answer, whose status must be 200.
    pub(super) async fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<(Bytes, HeaderMap), ProviderError> {
        self.in_time(async {
            let body = body.map(|body| ("application/json", body));
            let response = self.send(method, path, body).await?;
            self.success(response).await
        })
        .await
    }

    /// Reads an answer whose status must be 200 and whose body must hold no error.
    pub(super) async fn success(
        &self,
        mut response: Response,
    ) -> Result<(Bytes, HeaderMap), ProviderError> {
        if response.status().as_u16() != 200 {
            return Err(failure::of_response(self, response).await);
        }
        let headers = std::mem::take(response.headers_mut());
        let body = self.read(response).await?;
        match Wrong::of(&body) {
            Some(wrong) => Err(failure::of_body(self, 200, &headers, &wrong)),
            None => Ok((body, headers)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_changes_nothing_else_of_a_body() {
        for (body, expect) in [
            (r#"{"a":1.0,"b":[ ]}"#, r#"{"stream":true,"a":1.0,"b":[ ]}"#),
            (" { }", "{\"stream\":true }"),
        ] {
            assert_eq!(with_stream(&Bytes::from_static(body.as_bytes())), expect);
        }
    }
}
