//! Messages to an MCP server over streamable HTTP.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;
use tokio::sync::Mutex;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

use super::McpOptions;
use super::connection::{Exchange, Failed, Session, handshake, result_of};
use crate::agents::client::check_url;
use crate::agents::sse::Splitter;
use crate::tls;

/// A server behind a URL.
pub(super) struct Http {
    client: reqwest::Client,
    url: Url,
    bytes_max: usize,
    session: Mutex<Option<Session>>,
    /// How often a session has begun.
    sessions: AtomicU64,
}

/// Shows no headers.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

impl Http {
    pub(super) fn new(name: &str, url: &str, options: &McpOptions) -> Result<Self, Error> {
        let url = check_url(url).map_err(|why| {
            let message = format!("the URL of the MCP server {name:?} is refused: {why}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidUrl, message)
        })?;
        let mut headers = HeaderMap::new();
        let mut insert = |header: &str, value: &str| {
            let wrong = || {
                let message =
                    format!("the header {header:?} of the MCP server {name:?} cannot be sent");
                Error::new(ErrorKind::Invalid, ErrorCode::InvalidHeader, message)
            };
            let header: HeaderName = header.parse().map_err(|_| wrong())?;
            let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(header, value);
            Ok::<_, Error>(())
        };
        for (header, value) in &options.headers {
            insert(header, value)?;
        }
        if let Some(key) = &options.key {
            insert(AUTHORIZATION.as_str(), &format!("Bearer {key}"))?;
        }
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config().map_err(tls::unusable)?)
            .redirect(reqwest::redirect::Policy::none())
            // Without this, variables of the environment would send the key to a third party.
            .no_proxy()
            .connect_timeout(options.connect_timeout)
            .default_headers(headers)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(tls::unusable)?;
        let bytes_max = options.answer_bytes_max;
        Ok(Self { client, url, bytes_max, session: Mutex::default(), sessions: AtomicU64::new(0) })
    }

    pub(super) fn generation(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    pub(super) async fn request(
        &self,
        ids: &AtomicI64,
        method: &str,
        params: Value,
        only: Option<u64>,
    ) -> Result<Value, Failed> {
        let mut is_new = false;
        loop {
            let session = {
                let mut held = self.session.lock().await;
                match &*held {
                    Some(session) => session.clone(),
                    None => {
                        is_new = true;
                        let session = handshake(&mut &*self, ids).await?;
                        self.sessions.fetch_add(1, Ordering::Relaxed);
                        held.insert(session).clone()
                    }
                }
            };
            if only.is_some_and(|only| only != self.generation()) {
                return Err(Failed::Renewed);
            }
            let id = ids.fetch_add(1, Ordering::Relaxed);
            let message = session.message(Some(id), method, params.clone());
            match (&mut &*self).exchange(&session, &message).await {
                Ok((result, _)) => return Ok(result),
                Err(Failed::Expired) => {
                    let mut held = self.session.lock().await;
                    // Another request may have begun a new session meanwhile.
                    if held.as_ref().is_some_and(|held| held.id == session.id) {
                        *held = None;
                    }
                    if is_new {
                        let why = "it does not know the session that it has just begun";
                        return Err(Failed::Protocol(why.to_owned()));
                    }
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Reads the answer to the message with this id, as JSON or as a stream of events.
    async fn read(&self, mut response: Response, id: &Value) -> Result<Value, Failed> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let (mut body, mut read, mut events) = (Vec::new(), 0, Splitter::default());
        loop {
            let chunk: Option<Bytes> = response.chunk().await.map_err(unavailable)?;
            let Some(chunk) = chunk else { break };
            read += chunk.len();
            if read > self.bytes_max {
                let max = self.bytes_max;
                let why = format!("it has more than {max} bytes (`answer_bytes_max`)");
                return Err(Failed::Protocol(why));
            }
            if !is_stream {
                body.extend_from_slice(&chunk);
                continue;
            }
            events.push(&chunk);
            while let Some(data) = events.next() {
                let message: Value = serde_json::from_str(&data).unwrap_or_default();
                // Notifications and requests of the server come before the answer.
                if message["id"] == *id && message.get("method").is_none() {
                    return Ok(message);
                }
            }
        }
        match is_stream {
            true => Err(Failed::Unavailable("it closed the stream before its answer".to_owned())),
            false => serde_json::from_slice(&body)
                .map_err(|error| Failed::Protocol(format!("it is not JSON: {error}"))),
        }
    }
}

impl Exchange for &Http {
    async fn exchange(
        &mut self,
        session: &Session,
        message: &Value,
    ) -> Result<(Value, Option<String>), Failed> {
        let request = self.client.post(self.url.clone()).headers(headers(session, message)?);
        let request = request.body(message.to_string());
        let response = request.send().await.map_err(unavailable)?;
        let status = response.status();
        let given = response.headers().get("mcp-session-id");
        let given = given.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let Some(id) = message.get("id") else {
            return match status.is_success() {
                true => Ok((Value::Null, given)),
                false => Err(refused(status)),
            };
        };
        if status == StatusCode::NOT_FOUND && session.id.is_some() {
            return Err(Failed::Expired);
        }
        if !status.is_success() {
            // An error of the protocol says more than the status.
            let answer = self.read(response, id).await.unwrap_or_default();
            return match answer["error"]["code"].is_i64() {
                true => result_of(answer).map(|result| (result, given)),
                false => Err(refused(status)),
            };
        }
        let answer = self.read(response, id).await?;
        if answer["id"] != *id {
            return Err(Failed::Protocol("it answers another request".to_owned()));
        }
        Ok((result_of(answer)?, given))
    }
}

fn refused(status: StatusCode) -> Failed {
    let what = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "it refused the credential",
        _ => "it refused the request",
    };
    Failed::Unavailable(format!("{what}, with HTTP status {status}"))
}

fn unavailable(error: reqwest::Error) -> Failed {
    // Without the URL, which may hold secrets.
    let error = error.without_url();
    let mut reason: &dyn std::error::Error = &error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    Failed::Unavailable(reason.to_string())
}

fn headers(session: &Session, message: &Value) -> Result<HeaderMap, Failed> {
    let mut headers = HeaderMap::new();
    let mut insert = |name: &'static str, value: &str| {
        let value = HeaderValue::try_from(plain(value));
        let value = value.map_err(|_| Failed::Protocol(format!("{name} cannot be a header")))?;
        headers.insert(name, value);
        Ok::<_, Failed>(())
    };
    if let Some(version) = &session.version {
        insert("mcp-protocol-version", version)?;
    }
    if let Some(id) = &session.id {
        insert("mcp-session-id", id)?;
    }
    if session.is_modern() {
        insert("mcp-method", message["method"].as_str().unwrap_or_default())?;
        if let Some(name) = message["params"]["name"].as_str() {
            insert("mcp-name", name)?;
        }
    }
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(headers)
}

/// A text as the value of a header.
fn plain(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    match is_plain && !text.starts_with("=?base64?") {
        true => text.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(text)),
    }
}
