//! Restate: a service with three journaled steps, called through the ingress of a server that this
//! program starts and stops.

use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use peers_load::{Args, Peer, STEPS};
use restate_sdk::ingress::ReqwestClient;
use restate_sdk::prelude::*;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// How long the server may take to start.
const START: Duration = Duration::from_secs(60);
const SERVER: &str = "@restatedev/restate-server-linux-x64/bin/restate-server";

fn main() -> anyhow::Result<()> {
    let args = Args::read();
    peers_load::block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let service = format!("http://{}", listener.local_addr()?);
        tokio::spawn(HttpServer::new(Endpoint::builder().bind(Load).build()).serve(listener));
        let server = Server::start(args.place(), &service).await?;
        let client =
            LoadIngressClient::from_client(ReqwestClient::connect(server.ingress.parse()?)?);
        tokio::select! {
            result = peers_load::measure(&args, Restate(client)) => result,
            () = told_to_end() => Err(anyhow!("told to end")),
        }
        // The server ends with its handle.
    })
}

struct Load;

#[service]
impl Load {
    #[handler]
    async fn run(&self, ctx: Context<'_>, n: u64) -> HandlerResult<u64> {
        let mut sum = n;
        for step in 0..STEPS {
            sum += ctx.run(|| async { Ok(1_u64) }).name(format!("step-{step}")).await?;
        }
        Ok(sum)
    }
}

type Client = LoadIngressClient<reqwest::Client>;

struct Restate(Client);

impl Peer for Restate {
    async fn run(&self, n: u64) -> anyhow::Result<u64> {
        Ok(self.0.run(n).call().await?.into_body()?)
    }
}

/// A server of our own, on ports of our own, with its defaults: one node that keeps its log on the
/// local disk and syncs it.
struct Server {
    _process: Child,
    ingress: String,
}

impl Server {
    async fn start(directory: &str, service: &str) -> anyhow::Result<Self> {
        let modules: PathBuf =
            std::env::var_os("PEERS_NODE_MODULES").context("PEERS_NODE_MODULES is not set")?.into();
        let [ingress, admin, fabric] = [free_port()?, free_port()?, free_port()?];
        let process = Command::new(modules.join(SERVER))
            .args(["--no-logo", "--listen-mode", "tcp", "--base-dir", directory])
            .env("RESTATE_INGRESS__BIND_PORT", ingress.to_string())
            .env("RESTATE_ADMIN__BIND_PORT", admin.to_string())
            .env("RESTATE_BIND_PORT", fabric.to_string())
            .env("RESTATE_BIND_IP", "127.0.0.1")
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .env("RESTATE_LOG_FILTER", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("the server does not start")?;
        let server = Self { _process: process, ingress: format!("http://127.0.0.1:{ingress}") };
        let admin = format!("http://127.0.0.1:{admin}");
        server.register(&admin, service).await?;
        Ok(server)
    }

    /// Tells the server of the service, again until it is up.
    async fn register(&self, admin: &str, service: &str) -> anyhow::Result<()> {
        let client = reqwest::Client::new();
        let deadline = Instant::now() + START;
        loop {
            let url = format!("{admin}/deployments");
            let answer = client.post(url).json(&json!({ "uri": service })).send().await;
            let error = match answer {
                Ok(answer) if answer.status().is_success() => {
                    return self.serves(&client, deadline).await;
                }
                Ok(answer) => format!("{}: {}", answer.status(), answer.text().await?),
                Err(error) => error.to_string(),
            };
            ensure!(Instant::now() < deadline, "the server knows no service: {error}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the ingress knows the service, too.
    async fn serves(&self, client: &reqwest::Client, deadline: Instant) -> anyhow::Result<()> {
        loop {
            let answer = client.post(format!("{}/Load/run", self.ingress)).json(&0).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the ingress does not answer");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(StdListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The end of our input is the word to end: whoever has started us may be gone, and the server must
/// not stay. A terminal never ends by itself.
async fn told_to_end() {
    let ended = tokio::task::spawn_blocking(|| {
        let mut input = std::io::stdin();
        std::io::copy(&mut input, &mut std::io::sink())
    });
    // An input that cannot be read has ended as well.
    let _ = ended.await;
}
