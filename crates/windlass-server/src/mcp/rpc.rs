//! JSON-RPC: messages, errors, and the versions of the protocol.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::depth::is_deeper_than;
use crate::error::ApiError;
use crate::json::Json;

/// The versions that the server speaks. Version 2026-07-28 has no handshake: every request names its
/// version.
pub(super) const VERSIONS: [&str; 3] = ["2025-06-18", "2025-11-25", MODERN];
const MODERN: &str = "2026-07-28";

/// The version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(&'static str);

impl Version {
    /// The newest version with a handshake.
    pub(super) const LEGACY: Self = Self("2025-11-25");

    pub(super) fn parse(text: &str) -> Option<Self> {
        VERSIONS.into_iter().find(|known| *known == text).map(Self)
    }

    /// The version that a handshake agrees on.
    pub(super) fn negotiated(asked: &str) -> Self {
        Self::parse(asked).filter(|version| !version.is_modern()).unwrap_or(Self::LEGACY)
    }

    pub(super) fn as_str(self) -> &'static str {
        self.0
    }

    /// Whether the version has no handshake.
    pub(super) fn is_modern(self) -> bool {
        is_modern(self.0)
    }
}

/// Whether a version, known or not, has no handshake. Versions are dates.
pub(super) fn is_modern(version: &str) -> bool {
    version >= MODERN
}

/// A message of a client.
#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    /// A notification, or a response. The server sends no requests.
    NoAnswer,
}

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Value,
    pub(super) method: String,
    /// An object, or null.
    pub(super) params: Value,
}

impl Request {
    /// Metadata of the request, by the name below `io.modelcontextprotocol/`.
    pub(super) fn meta(&self, name: &str) -> &Value {
        meta(&self.params, name)
    }
}

pub(super) fn meta<'a>(params: &'a Value, name: &str) -> &'a Value {
    &params["_meta"][format!("io.modelcontextprotocol/{name}")]
}

/// Parses a message.
pub(super) fn parse(bytes: &[u8], depth_max: usize) -> Result<Message, RpcError> {
    if is_deeper_than(bytes, depth_max) {
        return Err(RpcError::request(format!("the message is nested deeper than {depth_max}")));
    }
    let message: Value = serde_json::from_slice(bytes)
        .map_err(|error| RpcError::new(-32700, format!("the message is not JSON: {error}")))?;
    if message.is_array() {
        return Err(RpcError::request("batches are not supported; send one message"));
    }
    if message["jsonrpc"] != "2.0" {
        return Err(RpcError::request("the message is not an object with `jsonrpc` \"2.0\""));
    }
    let Value::Object(mut message) = message else { unreachable!("it has a member") };
    let Some(method) = message.remove("method") else {
        return match message.contains_key("result") || message.contains_key("error") {
            true => Ok(Message::NoAnswer),
            false => Err(RpcError::request("`method` is missing")),
        };
    };
    let Value::String(method) = method else {
        return Err(RpcError::request("`method` is not a text"));
    };
    let id = match message.remove("id") {
        None => return Ok(Message::NoAnswer),
        Some(id @ (Value::String(_) | Value::Number(_))) => id,
        Some(_) => return Err(RpcError::request("`id` is neither a text nor a number")),
    };
    let params = message.remove("params").unwrap_or_default();
    if !matches!(params, Value::Object(_) | Value::Null) {
        return Err(RpcError { id: Some(id), ..RpcError::params("`params` is not an object") });
    }
    Ok(Message::Request(Request { id, method, params }))
}

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Failed {
    Rpc(Box<RpcError>),
    /// The guard rejected the credential in the meantime: MCP clients react to the HTTP status.
    Http(Box<Response>),
}

impl From<RpcError> for Failed {
    fn from(error: RpcError) -> Self {
        Self::Rpc(Box::new(error))
    }
}

/// An error of the protocol. Errors that a model should read are results of tools instead.
#[derive(Debug)]
pub(super) struct RpcError {
    pub(super) id: Option<Value>,
    pub(super) code: i32,
    pub(super) message: String,
    pub(super) data: Option<Value>,
    /// Whether the request itself is malformed, in a version that says so with the HTTP status.
    is_malformed: bool,
}

impl RpcError {
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        let is_malformed = matches!(code, -32700 | -32600 | -32020 | -32021 | -32022);
        Self { id: None, code, message: message.into(), data: None, is_malformed }
    }

    /// The message is no valid request.
    pub(super) fn request(message: impl Into<String>) -> Self {
        Self::new(-32600, message)
    }

    /// The parameters are invalid.
    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn method_not_found(method: &str) -> Self {
        let shown: String = method.chars().take(80).collect();
        Self::new(-32601, format!("unknown method {shown:?}"))
    }

    /// A header contradicts the message.
    pub(super) fn header(message: impl Into<String>) -> Self {
        Self::new(-32020, message)
    }

    pub(super) fn unsupported_version(asked: &str) -> Self {
        let data = json!({ "requested": asked, "supported": VERSIONS });
        Self::new(-32022, "unsupported protocol version").with_data(data)
    }

    /// A route rejected a request that no tool made.
    pub(super) fn of_route(status: StatusCode, failure: &Value) -> Self {
        let code = if status.is_client_error() { -32602 } else { -32603 };
        let message = failure["message"].as_str().unwrap_or("the request failed");
        Self::new(code, message).with_data(failure.clone())
    }

    pub(super) fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    pub(super) fn malformed(mut self) -> Self {
        self.is_malformed = true;
        self
    }

    fn status(&self, version: Version) -> StatusCode {
        match self.code {
            _ if self.is_malformed => StatusCode::BAD_REQUEST,
            -32601 if version.is_modern() => StatusCode::NOT_FOUND,
            _ => StatusCode::OK,
        }
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Http(Box::new(error.into_response()))
    }
}

pub(super) fn success(id: &Value, result: Value) -> Response {
    Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response()
}

pub(super) fn failure(id: &Value, error: &RpcError, version: Version) -> Response {
    let mut body = json!({ "code": error.code, "message": error.message });
    if let Some(data) = &error.data {
        body["data"] = data.clone();
    }
    let id = error.id.as_ref().unwrap_or(id);
    let answer = Json(json!({ "jsonrpc": "2.0", "id": id, "error": body }));
    (error.status(version), answer).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        for (text, expect) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "ping"),
            (r#"{"jsonrpc":"2.0","id":"a","method":"x","params":{"a":1}}"#, "x"),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, "none"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "none"),
            ("{", "-32700"),
            ("[]", "-32600"),
            ("7", "-32600"),
            (r#"{"id":1,"method":"ping"}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","params":[]}"#, "-32602"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":[[[[]]]]}}"#, "-32600"),
        ] {
            let found = match parse(text.as_bytes(), 4) {
                Ok(Message::Request(request)) => request.method,
                Ok(Message::NoAnswer) => "none".to_owned(),
                Err(error) => error.code.to_string(),
            };
            assert_eq!(found, expect, "{text}");
        }
    }

    #[test]
    fn a_handshake_agrees_on_a_version_that_has_one() {
        for (asked, expect) in [
            ("2025-06-18", "2025-06-18"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("2024-11-05", "2025-11-25"),
            ("", "2025-11-25"),
        ] {
            assert_eq!(Version::negotiated(asked).as_str(), expect, "{asked}");
        }
    }
}
