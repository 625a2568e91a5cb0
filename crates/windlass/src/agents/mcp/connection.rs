//! A connection to an MCP server: the handshake, the list of tools, and requests.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::Instrument as _;
use tracing::field::Empty;

use super::Listed;
use super::http::Http;
use super::stdio::Stdio;

/// The newest version with a handshake, which most servers speak.
const HANDSHAKE: &str = "2025-11-25";
/// The versions with a handshake that differ in nothing that a client of tools notices.
const KNOWN: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", HANDSHAKE];
/// The version without a handshake: every request describes the client.
const MODERN: &str = "2026-07-28";
/// How many pages a list of tools may have.
const PAGES_MAX: usize = 64;

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Failed {
    /// The server cannot be reached, or has gone.
    Unavailable(String),
    /// Its answer cannot be read.
    Protocol(String),
    /// It answered with an error.
    Answered { code: i64, message: String },
    /// It does not know the session any more, and has not read the request.
    Expired,
    /// The connection is another one than that over which the tools were listed. Nothing was sent.
    Renewed,
}

impl Failed {
    /// The name in traces.
    fn name(&self) -> String {
        match self {
            Self::Unavailable(_) => "unavailable".to_owned(),
            Self::Protocol(_) => "protocol".to_owned(),
            Self::Answered { code, .. } => code.to_string(),
            Self::Expired => "expired".to_owned(),
            Self::Renewed => "renewed".to_owned(),
        }
    }
}

/// The version and the session that client and server have agreed on.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    /// The version; none before the handshake.
    pub(super) version: Option<String>,
    /// The id that the server gave.
    pub(super) id: Option<String>,
}

impl Session {
    pub(super) fn is_modern(&self) -> bool {
        self.version.as_deref() == Some(MODERN)
    }

    pub(super) fn message(&self, id: Option<i64>, method: &str, mut params: Value) -> Value {
        if self.is_modern() {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": client_info(),
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let mut message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        if let Some(id) = id {
            message["id"] = id.into();
        }
        message
    }
}

fn client_info() -> Value {
    json!({ "name": "windlass", "version": env!("CARGO_PKG_VERSION") })
}

/// Carries messages.
pub(super) trait Exchange {
    /// Sends a message and returns the answer, and the id of the session if the server gives one. A notification
    /// has no answer.
    async fn exchange(
        &mut self,
        session: &Session,
        message: &Value,
    ) -> Result<(Value, Option<String>), Failed>;
}

/// Agrees on a version with a server.
pub(super) async fn handshake(
    wire: &mut impl Exchange,
    ids: &AtomicI64,
) -> Result<Session, Failed> {
    let mut session = Session::default();
    let params = json!({
        "protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": client_info(),
    });
    let message = session.message(Some(next(ids)), "initialize", params);
    match wire.exchange(&session, &message).await {
        Ok((answer, id)) => {
            let version = answer["protocolVersion"].as_str().unwrap_or_default();
            if !KNOWN.contains(&version) {
                let shown: String = version.chars().take(40).collect();
                return Err(Failed::Protocol(format!("it speaks the unknown version {shown:?}")));
            }
            session = Session { version: Some(version.to_owned()), id };
            let ready = session.message(None, "notifications/initialized", json!({}));
            wire.exchange(&session, &ready).await?;
            Ok(session)
        }
        // A server without the handshake.
        Err(Failed::Answered { code, message }) => {
            session.version = Some(MODERN.to_owned());
            let discover = session.message(Some(next(ids)), "server/discover", json!({}));
            let (answer, _) = match wire.exchange(&session, &discover).await {
                // The first error says more.
                Err(Failed::Answered { .. }) => return Err(Failed::Answered { code, message }),
                answered => answered?,
            };
            let versions = answer["supportedVersions"].as_array().map_or(&[][..], Vec::as_slice);
            match versions.iter().any(|version| version == MODERN) {
                true => Ok(session),
                false => Err(Failed::Protocol("it speaks no version that is known".to_owned())),
            }
        }
        Err(failed) => Err(failed),
    }
}

fn next(ids: &AtomicI64) -> i64 {
    ids.fetch_add(1, Ordering::Relaxed)
}

/// The result in the answer to a request.
pub(super) fn result_of(mut answer: Value) -> Result<Value, Failed> {
    if let Some(error) = answer.get("error") {
        return Err(Failed::Answered {
            code: error["code"].as_i64().unwrap_or_default(),
            message: error["message"].as_str().unwrap_or("no message").to_owned(),
        });
    }
    match answer["result"].take() {
        result @ Value::Object(_) => Ok(result),
        _ => Err(Failed::Protocol("the answer has neither a result nor an error".to_owned())),
    }
}

#[derive(Debug)]
pub(super) enum Transport {
    Http(Box<Http>),
    Stdio(Box<Stdio>),
}

impl From<Http> for Transport {
    fn from(http: Http) -> Self {
        Self::Http(Box::new(http))
    }
}

impl From<Stdio> for Transport {
    fn from(stdio: Stdio) -> Self {
        Self::Stdio(Box::new(stdio))
    }
}

/// A connection, made when it is needed.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Transport,
    ids: AtomicI64,
    /// When the tools were listed, and over which connection.
    listed: std::sync::Mutex<Option<(Instant, u64)>>,
}

impl Connection {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, ids: AtomicI64::new(1), listed: std::sync::Mutex::default() }
    }

    /// Calls a tool, over the connection over which the tools were listed.
    pub(super) async fn call_tool(&self, params: Value) -> Result<Value, Failed> {
        let listed = *self.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.request("tools/call", params, listed.map(|(_, generation)| generation)).await
    }

    /// Sends a request, only over the connection with this number if there is one.
    async fn request(
        &self,
        method: &str,
        params: Value,
        only: Option<u64>,
    ) -> Result<Value, Failed> {
        let tool = params["name"].as_str().filter(|_| method == "tools/call").map(str::to_owned);
        let span = tracing::debug_span!(
            "mcp_client",
            otel.name =
                tool.as_ref().map_or_else(|| method.to_owned(), |tool| format!("{method} {tool}")),
            otel.kind = "client",
            otel.status_code = Empty,
            { "mcp.method.name" } = method,
            { "gen_ai.tool.name" } = tool,
            { "error.type" } = Empty,
        );
        let sending = async {
            match &self.transport {
                Transport::Http(http) => http.request(&self.ids, method, params, only).await,
                Transport::Stdio(stdio) => stdio.request(&self.ids, method, params, only).await,
            }
        };
        let answered = sending.instrument(span.clone()).await;
        if let Err(failed) = &answered {
            span.record("error.type", failed.name());
            span.record("otel.status_code", "ERROR");
        }
        answered
    }

    /// A number that changes with the connection. Behind a new one there may be another server.
    fn generation(&self) -> u64 {
        match &self.transport {
            Transport::Http(http) => http.generation(),
            Transport::Stdio(stdio) => stdio.generation(),
        }
    }

    /// Whether the list of tools is too old, or of another connection.
    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    pub(super) fn must_list(&self, every: Duration) -> bool {
        let listed = *self.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        listed
            .is_none_or(|(at, generation)| at.elapsed() >= every || generation != self.generation())
    }

    pub(super) fn forget_list(&self) {
        *self.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }

    /// Lists all tools.
    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    pub(super) async fn list_tools(&self, max: usize) -> Result<Vec<Listed>, Failed> {
        let at = Instant::now();
        let mut tools = Vec::new();
        let mut cursor = Value::Null;
        for _ in 0..PAGES_MAX {
            let params = match cursor.is_null() {
                true => json!({}),
                false => json!({ "cursor": cursor }),
            };
            let mut page = self.request("tools/list", params, None).await?;
            let Value::Array(listed) = page["tools"].take() else {
                return Err(Failed::Protocol("the list of tools has no `tools`".to_owned()));
            };
            for tool in listed {
                tools.push(read_tool(tool)?);
            }
            if tools.len() > max {
                let message = format!("it has more than {max} tools (`tools_max`)");
                return Err(Failed::Protocol(message));
            }
            cursor = page["nextCursor"].take();
            if cursor.is_null() {
                let mut listed =
                    self.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *listed = Some((at, self.generation()));
                return Ok(tools);
            }
        }
        Err(Failed::Protocol(format!("the list of tools has more than {PAGES_MAX} pages")))
    }
}

fn read_tool(mut tool: Value) -> Result<Listed, Failed> {
    let name = tool["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    let Some(name) = name else {
        return Err(Failed::Protocol("it lists a tool without a name".to_owned()));
    };
    let mut schema = tool["inputSchema"].take();
    let Some(members) = schema
        .as_object_mut()
        .filter(|schema| schema.get("type").is_none_or(|kind| kind == "object"))
    else {
        let shown: String = name.chars().take(80).collect();
        return Err(Failed::Protocol(format!("the input of its tool {shown:?} is no object")));
    };
    // Providers want nothing about the schema itself.
    members.remove("$schema");
    members.entry("type").or_insert(json!("object"));
    let description = tool["description"].as_str().unwrap_or_default().to_owned();
    Ok(Listed { name, description, schema })
}
