//! A server that answers what the test says: for answers that a real one gives rarely, or never.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::response::Response;
use serde_json::{Value, json};

use crate::support::{Said, run, windlass};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Value,
}

type Answers = Vec<(&'static str, u16, Value)>;
type Shared = (Arc<Answers>, Arc<Mutex<Vec<Asked>>>);

/// A server with fixed answers: by the beginning of `METHOD /path?query`.
pub(crate) struct Scripted {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Scripted {
    pub(crate) fn new(answers: Answers) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let state: Shared = (Arc::new(answers), Arc::clone(&asked));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(state);
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, asked, _runtime: runtime }
    }

    pub(crate) fn say(&self, args: &[&str]) -> Said {
        let mut command = windlass();
        command.args(args).env("WINDLASS_URL", format!("http://{}/api", self.address));
        run(command)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(
    State((answers, asked)): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let line = format!("{method} {uri}");
    let text = |value: &axum::http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let headers = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    asked.lock().unwrap().push(Asked { line: line.clone(), headers, body });
    let found = answers.iter().find(|(begins, ..)| line.starts_with(begins));
    let (status, body) =
        found.map_or((404, json!({})), |(_, status, body)| (*status, body.clone()));
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}
