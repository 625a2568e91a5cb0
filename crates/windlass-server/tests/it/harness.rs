//! A test server on a socket with sample workflows, and a JSON client.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::admin::Options as EngineOptions;
use windlass::contracts::{ActionOutcome, Contracts};
use windlass::{AnyError, Ctx, Engine, Store};
use windlass_server::auth::Auth;
use windlass_server::{Entry, Options, ServeOptions};

use crate::schema::{self, Schema};

/// The time limit of a wait. It only stops a test that hangs.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Postgres,
}

/// Creates a test for each store from each body, an `async fn(Kind)`.
macro_rules! on_both_stores {
    ($($body:ident),* $(,)?) => {$(
        mod $body {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                crate::harness::with_timeout(super::$body(crate::harness::Kind::Sqlite)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                crate::harness::with_timeout(super::$body(crate::harness::Kind::Postgres)).await;
            }
        }
    )*};
}
pub(crate) use on_both_stores;

/// Like [`on_both_stores`], and in memory.
macro_rules! on_every_store {
    ($($body:ident),* $(,)?) => {
        crate::harness::on_both_stores!($($body),*);
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $body() {
                    crate::harness::with_timeout(super::$body(crate::harness::Kind::Memory)).await;
                }
            )*
        }
    };
}
pub(crate) use on_every_store;

pub(crate) async fn with_timeout(test: impl Future<Output = ()>) {
    assert!(
        tokio::time::timeout(Duration::from_secs(300), test).await.is_ok(),
        "the test timed out"
    );
}

/// A client for the tests' own requests. reqwest leaves the choice of a TLS provider to the program.
pub(crate) fn http_client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// A server, its engine and its store.
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) address: SocketAddr,
    client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<std::io::Result<()>>>,
    _folder: tempfile::TempDir,
    _schema: Option<Schema>,
}

/// Options without authentication, like `windlass dev`.
pub(crate) fn open() -> Options {
    Options { auth: Auth::Loopback, ..Options::default() }
}

impl Server {
    pub(crate) async fn start(kind: Kind) -> Self {
        Self::start_with(kind, open()).await
    }

    pub(crate) async fn start_with(kind: Kind, options: Options) -> Self {
        Self::start_as(kind, options, EngineOptions::default(), ServeOptions::default()).await
    }

    pub(crate) async fn start_as(
        kind: Kind,
        options: Options,
        engine_options: EngineOptions,
        serve: ServeOptions,
    ) -> Self {
        Self::start_on(kind, options, engine_options, serve, |store| store).await
    }

    /// Like [`Server::start_as`], on a store wrapped by `around`.
    pub(crate) async fn start_on(
        kind: Kind,
        options: Options,
        engine_options: EngineOptions,
        serve: ServeOptions,
        around: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Self {
        Self::start_from(kind, engine_options, serve, around, async |_| options).await
    }

    /// A server with the routes that programs add: those of agents and of contracts. Also returns the table of all
    /// its routes.
    pub(crate) async fn start_with_all_routes(kind: Kind, options: Options) -> (Self, Vec<Entry>) {
        let mut table = Vec::new();
        let build = async |engine: &Engine| {
            let contracts = Contracts::builder();
            let contracts =
                contracts.action("ledger.post", Arc::new(|_| Ok(ActionOutcome::none())));
            let contracts = contracts.open(engine.core()).await.expect("contracts open");
            let contracts = windlass_server::contracts::routes(&contracts);
            let routes = vec![windlass_server::llm::routes(), contracts];
            let options = Options { routes, ..options };
            table = windlass_server::route_list(&options);
            options
        };
        let (engine_options, serve) = (EngineOptions::default(), ServeOptions::default());
        let server = Self::start_from(kind, engine_options, serve, |store| store, build).await;
        (server, table)
    }

    async fn start_from(
        kind: Kind,
        engine_options: EngineOptions,
        serve: ServeOptions,
        around: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
        options: impl AsyncFnOnce(&Engine) -> Options,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let schema = (kind == Kind::Postgres).then(Schema::new);
        let store: Arc<dyn Store> = match &schema {
            None if kind == Kind::Memory => {
                windlass::admin::open_store("memory:").await.expect("memory opens")
            }
            None => {
                let file = format!("sqlite://{}/test.db", folder.path().display());
                windlass::admin::open_store(&file).await.expect("the file opens")
            }
            Some(schema) => {
                let mut options = schema::options(&schema.name);
                (options.pool_size_max, options.committers, options.threads) = (3, 1, 1);
                schema.open(options).await
            }
        };
        let engine_options = EngineOptions { shared: kind == Kind::Postgres, ..engine_options };
        let engine = windlass::Builder::from(engine_options).start(around(store)).await;
        let engine = engine.expect("the engine starts");
        register(&engine);
        let options = options(&engine).await;
        let router = windlass_server::router(&engine, options).expect("the options are fine");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(windlass_server::serve_with(listener, router, serve, async {
            let _ = stopped.await;
        }));
        Self {
            engine,
            address,
            client: http_client(),
            stop: Some(stop),
            served: Some(served),
            _folder: folder,
            _schema: schema,
        }
    }

    /// Stops the server, then the engine.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        let served = self.served.take().expect("the server is running");
        tokio::time::timeout(WAIT_MAX, served).await.expect("the server stops").unwrap().unwrap();
        self.engine.stop(Duration::from_secs(5)).await.expect("the engine stops");
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let base = if path.starts_with("//") { "" } else { "/api" };
        format!("http://{}{base}{}", self.address, path.replacen("//", "/", 1))
    }

    /// A request to a path below `/api`. A path that starts with two slashes is absolute.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        read(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.request(Method::POST, path).json(&body)).await
    }

    /// A GET that must succeed.
    pub(crate) async fn get_ok(&self, path: &str) -> Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// A POST that must succeed.
    pub(crate) async fn post_ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Starts a run and waits for a status.
    pub(crate) async fn run(&self, workflow: &str, id: &str, params: Value, status: &str) -> Value {
        let path = format!("/workflows/{workflow}/instances");
        self.post_ok(&path, json!({ "id": id, "params": params })).await;
        self.wait_for_status(workflow, id, status).await
    }

    /// Waits until a run has a status.
    pub(crate) async fn wait_for_status(&self, workflow: &str, id: &str, status: &str) -> Value {
        let path = format!("/workflows/{workflow}/instances/{id}");
        let deadline = std::time::Instant::now() + WAIT_MAX;
        loop {
            let run = self.get_ok(&path).await;
            if run["details"]["status"] == status {
                return run;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "timeout while waiting for status {status}: {run}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Waits until a condition holds.
pub(crate) async fn wait_until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + WAIT_MAX;
    while !ask().await {
        assert!(std::time::Instant::now() < deadline, "timeout while waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends a request that waits for a run to end, on a server that allows one such request.
/// Returns when the request waits. `path` ends before the value of `waitMs`.
pub(crate) async fn waiting_request(
    server: &Server,
    path: &str,
) -> tokio::task::JoinHandle<reqwest::Result<Response>> {
    let send = || tokio::spawn(server.request(Method::GET, &format!("{path}60000")).send());
    let mut request = send();
    wait_until("the request waits", async || {
        // A request of the check below held the only permit when this one arrived.
        if request.is_finished() {
            request = send();
        }
        server.get(&format!("{path}1")).await.0 == 429 && !request.is_finished()
    })
    .await;
    request
}

pub(crate) async fn read(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("an answer");
    read_response(response).await
}

pub(crate) async fn read_response(response: Response) -> (u16, Value) {
    let status = response.status();
    assert!(response.headers().contains_key("x-request-id"), "no request id: {response:?}");
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let text = response.text().await.expect("a body");
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    if status.is_client_error() || status.is_server_error() {
        assert!(body["code"].is_string() && body["message"].is_string(), "{status}: {body}");
    }
    (status.as_u16(), body)
}

/// The text of a response; empty for a stream of events, which may have no end.
pub(crate) async fn text_of(response: Response) -> String {
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
    match kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        true => String::new(),
        false => response.text().await.unwrap_or_default(),
    }
}

/// Checks the status and code of an error response.
#[track_caller]
pub(crate) fn assert_error((status, body): (u16, Value), expect: (u16, &str)) {
    assert_eq!((status, body["code"].as_str().unwrap_or_default()), expect, "{body}");
}

fn fail() -> AnyError {
    AnyError::msg("the card was declined")
}

fn register(engine: &Engine) {
    engine
        .workflow("greet", async |ctx: Ctx, name: Option<String>| -> windlass::Result<String> {
            let name = name.unwrap_or_else(|| "nobody".into());
            ctx.log().info("greeting")?;
            Ok(ctx.step("compose", async || Ok(format!("Hello, {name}!"))).await?)
        })
        .expect("the workflow is valid");
    engine
        .workflow("approve", async |ctx: Ctx, _: Value| -> windlass::Result<Value> {
            let first: Value = ctx.event("first", "approval").timeout("1 day").await?;
            let second: Value = ctx.event("second", "approval").timeout("1 day").await?;
            Ok(json!([first, second]))
        })
        .expect("the workflow is valid");
    engine
        .workflow("nap", async |ctx: Ctx, _: Value| -> windlass::Result<()> {
            Ok(ctx.sleep("long", "1 hour").await?)
        })
        .expect("the workflow is valid");
    engine
        .workflow("charge", async |ctx: Ctx, retries: u32| -> windlass::Result<String> {
            let kept = ctx.step("quote", async || Ok("12.50".to_owned())).await?;
            let charged = ctx.step("pay", async || Err::<(), _>(fail()));
            charged.retries(retries).delay("1 hour").await?;
            Ok(kept)
        })
        .expect("the workflow is valid");
    let naps = engine.remote_workflow::<Value, ()>("nap").expect("a name");
    engine
        .workflow("family", move |ctx: Ctx, _: Value| {
            let naps = naps.clone();
            async move { Ok(ctx.child("kid", &naps, &json!({})).await?) }
        })
        .expect("the workflow is valid");
    let charges = engine.remote_workflow::<u32, String>("charge").expect("a name");
    engine
        .workflow("payer", move |ctx: Ctx, _: Value| {
            let charges = charges.clone();
            async move { Ok(ctx.child("kid", &charges, &0).await?) }
        })
        .expect("the workflow is valid");
    engine
        .workflow("outside", async |ctx: Ctx, _: Value| -> windlass::Result<Value> {
            Ok(ctx.activity::<Value, Value>("call", "nobody-does-this", &json!({})).await?)
        })
        .expect("the workflow is valid");
}
