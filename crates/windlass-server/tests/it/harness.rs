//! A server on a socket for each test, with sample workflows, and a client that reads JSON.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::{BoxError, Ctx, Engine, Options as EngineOptions, Store};
use windlass_server::auth::Auth;
use windlass_server::{Options, ServeOptions};

use crate::schema::{self, Schema};

/// How long a test waits for something before it says that it does not come.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// Makes a module with a test a store for each body, an `async fn(Kind)`.
macro_rules! on_both_stores {
    ($($body:ident),* $(,)?) => {$(
        mod $body {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                crate::harness::within(super::$body(crate::harness::Kind::Sqlite)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                crate::harness::within(super::$body(crate::harness::Kind::Postgres)).await;
            }
        }
    )*};
}
pub(crate) use on_both_stores;

pub(crate) async fn within(test: impl Future<Output = ()>) {
    assert!(tokio::time::timeout(Duration::from_secs(120), test).await.is_ok(), "the test hangs");
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

/// Without authentication, as `windlass dev` serves.
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

    /// As [`Server::start_as`], on what `around` makes of the store.
    pub(crate) async fn start_on(
        kind: Kind,
        options: Options,
        engine_options: EngineOptions,
        serve: ServeOptions,
        around: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let schema = (kind == Kind::Postgres).then(Schema::new);
        let store: Arc<dyn Store> = match &schema {
            None => {
                let file = format!("sqlite://{}/test.db", folder.path().display());
                windlass::open_store(&file).await.expect("the file opens")
            }
            Some(schema) => {
                let mut options = schema::options(&schema.name);
                (options.pool_size_max, options.committers, options.threads) = (3, 1, 1);
                schema.open(options).await
            }
        };
        let engine_options = EngineOptions { shared: kind == Kind::Postgres, ..engine_options };
        let engine = Engine::builder().options(engine_options).start(around(store)).await;
        let engine = engine.expect("the engine starts");
        register(&engine);
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
            client: reqwest::Client::new(),
            stop: Some(stop),
            served: Some(served),
            _folder: folder,
            _schema: schema,
        }
    }

    /// Stops the server, then the engine.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        let served = self.served.take().expect("it is served");
        tokio::time::timeout(PATIENCE, served).await.expect("it stops").unwrap().unwrap();
        self.engine.stop(Duration::from_secs(5)).await.expect("the engine stops");
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let base = if path.starts_with("//") { "" } else { "/api" };
        format!("http://{}{base}{}", self.address, path.replacen("//", "/", 1))
    }

    /// A request to a path under `/api`; one that begins with two slashes is taken as it is.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        read(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.request(Method::POST, path).json(&body)).await
    }

    /// Asks for something that must be there.
    pub(crate) async fn ok(&self, path: &str) -> Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Posts something that must be taken.
    pub(crate) async fn posted(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Starts a run and waits until it has a status.
    pub(crate) async fn run(&self, workflow: &str, id: &str, params: Value, status: &str) -> Value {
        let path = format!("/workflows/{workflow}/instances");
        self.posted(&path, json!({ "id": id, "params": params })).await;
        self.until(workflow, id, status).await
    }

    /// Waits until a run has a status.
    pub(crate) async fn until(&self, workflow: &str, id: &str, status: &str) -> Value {
        let path = format!("/workflows/{workflow}/instances/{id}");
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let run = self.ok(&path).await;
            if run["details"]["status"] == status {
                return run;
            }
            assert!(std::time::Instant::now() < deadline, "it is not {status}: {run}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
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

/// The code of an answer that must be a failure with a status.
#[track_caller]
pub(crate) fn refused((status, body): (u16, Value), expect: (u16, &str)) {
    assert_eq!((status, body["code"].as_str().unwrap_or_default()), expect, "{body}");
}

fn fail() -> BoxError {
    "the card was declined".into()
}

fn register(engine: &Engine) {
    engine
        .workflow("greet", async |ctx: Ctx, name: Option<String>| -> windlass::Result<String> {
            let name = name.unwrap_or_else(|| "nobody".into());
            ctx.log().info("greeting")?;
            Ok(ctx.step("compose", async || Ok::<_, BoxError>(format!("Hello, {name}!"))).await?)
        })
        .expect("it is registered");
    engine
        .workflow("approve", async |ctx: Ctx, _: Value| -> windlass::Result<Value> {
            let first: Value = ctx.event("first", "approval").timeout("1 day").await?;
            let second: Value = ctx.event("second", "approval").timeout("1 day").await?;
            Ok(json!([first, second]))
        })
        .expect("it is registered");
    engine
        .workflow("nap", async |ctx: Ctx, _: Value| -> windlass::Result<()> {
            Ok(ctx.sleep("long", "1 hour").await?)
        })
        .expect("it is registered");
    engine
        .workflow("charge", async |ctx: Ctx, retries: u32| -> windlass::Result<String> {
            let kept = ctx.step("quote", async || Ok::<_, BoxError>("12.50".to_owned())).await?;
            let charged = ctx.step("pay", async || Err::<(), _>(fail()));
            charged.retries(retries).delay("1 hour").await?;
            Ok(kept)
        })
        .expect("it is registered");
    let naps = engine.remote_workflow::<Value, ()>("nap").expect("a name");
    engine
        .workflow("family", move |ctx: Ctx, _: Value| {
            let naps = naps.clone();
            async move { Ok::<_, BoxError>(ctx.child("kid", &naps, &json!({})).await?) }
        })
        .expect("it is registered");
    let charges = engine.remote_workflow::<u32, String>("charge").expect("a name");
    engine
        .workflow("payer", move |ctx: Ctx, _: Value| {
            let charges = charges.clone();
            async move { Ok::<_, BoxError>(ctx.child("kid", &charges, &0).await?) }
        })
        .expect("it is registered");
    engine
        .workflow("outside", async |ctx: Ctx, _: Value| -> windlass::Result<Value> {
            Ok(ctx.activity::<Value, Value>("call", "nobody-does-this", &json!({})).await?)
        })
        .expect("it is registered");
}
