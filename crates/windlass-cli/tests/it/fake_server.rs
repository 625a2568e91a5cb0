//! A fake server with scripted responses, for responses that a real server sends rarely or never.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::response::Response;
use serde_json::{Value, json};

use crate::support::{CommandOutput, run, windlass};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Value,
}

type Answers = Vec<(&'static str, u16, Value)>;
type Shared = (Arc<Script>, Arc<Mutex<Vec<Request>>>);

/// One-time responses and default responses.
struct Script {
    first: Mutex<Answers>,
    then: Answers,
}

/// A server with scripted responses, matched by the prefix of `METHOD /path?query`.
pub(crate) struct FakeServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    _runtime: tokio::runtime::Runtime,
}

impl FakeServer {
    pub(crate) fn new(answers: Answers) -> Self {
        Self::first_then(Vec::new(), answers)
    }

    /// Sends each response of `first` once, before those of `then`.
    pub(crate) fn first_then(first: Answers, then: Answers) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let script = Script { first: Mutex::new(first), then };
        let state: Shared = (Arc::new(script), Arc::clone(&requests));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(state);
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, requests, _runtime: runtime }
    }

    /// Creates a management command for this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass();
        command.args(args).env("WINDLASS_URL", format!("http://{}/api", self.address));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        run(self.command(args))
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

async fn answer(
    State((script, requests)): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let line = format!("{method} {uri}");
    let text = |value: &axum::http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let headers = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    requests.lock().unwrap().push(Request { line: line.clone(), headers, body });
    let (status, body) = {
        let fits = |(begins, ..): &(&str, u16, Value)| line.starts_with(begins);
        let mut first = script.first.lock().unwrap();
        let found = match first.iter().position(fits) {
            Some(at) => Some(first.remove(at)),
            None => script.then.iter().find(|answer| fits(answer)).cloned(),
        };
        found.map_or((404, json!({})), |(_, status, body)| (status, body))
    };
    let mut response = (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
    // Like the real server.
    if matches!(status, 429 | 503) {
        response.headers_mut().insert("retry-after", 1.into());
    }
    response
}
