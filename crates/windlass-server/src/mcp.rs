//! The Model Context Protocol (MCP) over HTTP: a language model lists, starts, explains and manages runs.
//!
//! Nothing is kept between two requests: there are no sessions, and every answer is one JSON document. A
//! tool calls the other routes of the server with the credential of its caller, so scopes, namespaces,
//! hooks and limits are those of the routes.

mod arguments;
mod headers;
mod inner;
mod pages;
mod rpc;
mod shape;
mod tasks;
mod tools;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Call, json_bytes};
use crate::options::Options;
use inner::Inner;
use rpc::{Failed, Message, RpcError, Version};

/// How long a client may use the list of tools and the description of the server.
const LISTS_TTL_MS: u64 = 60_000;

/// The methods that the server knows.
const METHODS: [&str; 8] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "tools/call",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
];

const INSTRUCTIONS: &str = "\
Windlass runs durable workflows. A run is named by its workflow and its id. Begin with list_runs, then use \
get_run and why for one run, list_steps and list_ledger for details, and read_body for a value that a result \
leaves out. Call control_run and decide with dryRun first. search_docs explains words and error codes.";

/// The paths that serve MCP, with and without a slash at the end.
pub(crate) fn paths(options: &Options) -> Vec<String> {
    let base = &options.base;
    let at_root = options.mcp_at_root && !base.is_empty();
    let mut paths = vec![format!("{base}/mcp"), format!("{base}/mcp/")];
    if at_root {
        paths.extend(["/mcp".to_owned(), "/mcp/".to_owned()]);
    }
    paths
}

/// The router of MCP, without the guard. `api` has all other routes, with the guard.
pub(crate) fn router(app: &App, api: &Router) -> Router {
    let api = api.clone();
    let handler = post(move |State(app): State<App>, call: Call, request: Request| {
        let api = api.clone();
        async move { handle(app, api, call, request).await }
    });
    let add = |router: Router<App>, path: &String| router.route(path, handler.clone());
    paths(&app.options).iter().fold(Router::new(), add).with_state(app.clone())
}

async fn handle(app: App, api: Router, call: Call, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let head = parts.clone();
    let bytes = json_bytes(Request::from_parts(parts, body), app.options.body_bytes_max).await?;
    // The limit applies to the values of the user; the message adds a few levels.
    let depth_max = app.engine.options().limits.json_depth_max + 6;
    let message = match rpc::parse(&bytes, depth_max) {
        Ok(Message::Request(message)) => message,
        Ok(Message::NoAnswer) => return Ok(axum::http::StatusCode::ACCEPTED.into_response()),
        Err(error) => return Ok(rpc::failure(&Value::Null, &error, Version::LEGACY)),
    };
    let version = match headers::version(&head.headers, &message) {
        Ok(version) => version,
        Err(error) => return Ok(rpc::failure(&message.id, &error, Version::LEGACY)),
    };
    let server = Server { inner: Inner::new(app, api, head), call, version };
    let span = span_of(&message, version);
    Ok(match server.answer(&message).instrument(span.clone()).await {
        Ok(result) => {
            if result["isError"] == true {
                failed(&span, "tool_error");
            }
            rpc::success(&message.id, result)
        }
        Err(Failed::Rpc(error)) => {
            failed(&span, &error.code.to_string());
            rpc::failure(&message.id, &error, version)
        }
        Err(Failed::Http(response)) => {
            failed(&span, response.status().as_str());
            *response
        }
    })
}

// The span of a request. Names that a client invents must not become names of spans.
fn span_of(message: &rpc::Request, version: Version) -> Span {
    let method = match METHODS.contains(&message.method.as_str()) {
        true => message.method.as_str(),
        false => "_OTHER",
    };
    let tool = message.params["name"].as_str().filter(|_| method == "tools/call");
    let tool = tool.and_then(tools::find).map(|tool| tool.name);
    tracing::debug_span!(
        "mcp",
        otel.name = tool.map_or_else(|| method.to_owned(), |tool| format!("{method} {tool}")),
        otel.status_code = Empty,
        { "mcp.method.name" } = method,
        { "mcp.protocol.version" } = version.as_str(),
        { "gen_ai.tool.name" } = tool,
        { "error.type" } = Empty,
    )
}

fn failed(span: &Span, why: &str) {
    span.record("error.type", why);
    span.record("otel.status_code", "ERROR");
}

/// One request.
struct Server {
    inner: Inner,
    call: Call,
    version: Version,
}

impl Server {
    async fn answer(&self, message: &rpc::Request) -> Result<Value, Failed> {
        let params = &message.params;
        let is_modern = self.version.is_modern();
        match message.method.as_str() {
            "initialize" => Ok(initialize(params)),
            "ping" if !is_modern => Ok(json!({})),
            "server/discover" => Ok(self.cached(json!({
                "supportedVersions": rpc::VERSIONS,
                "capabilities": capabilities(),
                "instructions": INSTRUCTIONS,
                "_meta": { "io.modelcontextprotocol/serverInfo": server_info() },
            }))),
            "tools/list" => {
                // All tools fit on one page, so no cursor is valid.
                if params.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
                    return Err(RpcError::params("invalid cursor").into());
                }
                Ok(self.cached(json!({ "tools": tools::list(&self.call.caller.scopes) })))
            }
            "tools/call" => self.call_tool(params).await.map(|result| self.complete(result)),
            "tasks/get" | "tasks/update" | "tasks/cancel" if is_modern => {
                tasks::require_client(params)?;
                let task = match message.method.as_str() {
                    "tasks/get" => self.get_task(params).await?,
                    "tasks/update" => self.update_task(params).await?,
                    _ => self.cancel_task(params).await?,
                };
                Ok(self.complete(task))
            }
            method => Err(RpcError::method_not_found(method).into()),
        }
    }

    async fn call_tool(&self, params: &Value) -> Result<Value, Failed> {
        let name = params["name"].as_str().ok_or_else(|| RpcError::params("`name` is missing"))?;
        let tool = tools::find(name).ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            RpcError::params(format!("unknown tool {shown:?}"))
        })?;
        let none = serde_json::Map::new();
        let arguments = match &params["arguments"] {
            Value::Null => &none,
            Value::Object(arguments) => arguments,
            _ => return Err(RpcError::params("`arguments` is not an object").into()),
        };
        let answered = tool.call(&self.inner, &self.call.caller.scopes, arguments).await;
        let is_task = tool.name == tools::START_RUN && self.version.is_modern();
        if let Ok(run) = &answered
            && is_task
            && tasks::is_declared(params)
            && let Some(key) = run["runKey"].as_str()
        {
            return tasks::created(&self.inner, key).await;
        }
        tool.result(answered)
    }

    /// Marks a result as complete for clients that expect the mark.
    fn complete(&self, mut result: Value) -> Value {
        if self.version.is_modern() && result.get("resultType").is_none() {
            result["resultType"] = "complete".into();
        }
        result
    }

    /// A complete result that the client may use again for a while. It depends on the credential.
    fn cached(&self, mut result: Value) -> Value {
        if self.version.is_modern() {
            result["ttlMs"] = LISTS_TTL_MS.into();
            result["cacheScope"] = "private".into();
        }
        self.complete(result)
    }
}

fn server_info() -> Value {
    json!({ "name": "windlass", "title": "Windlass", "version": env!("CARGO_PKG_VERSION") })
}

fn capabilities() -> Value {
    json!({ "tools": {}, "extensions": { tasks::EXTENSION: {} } })
}

fn initialize(params: &Value) -> Value {
    let asked = params["protocolVersion"].as_str().unwrap_or_default();
    json!({
        "protocolVersion": Version::negotiated(asked).as_str(),
        "capabilities": { "tools": {} },
        "serverInfo": server_info(),
        "instructions": INSTRUCTIONS,
    })
}

/// The head of the request that a tool belongs to.
type Head = Parts;
