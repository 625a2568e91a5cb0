//! Restate: a service with three journaled steps. This program starts and stops the server, and
//! calls its ingress.

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

/// The time limit for the start of the server.
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
            () = stdin_closed() => Err(anyhow!("stopped: standard input was closed")),
        }
        // The server is killed on drop.
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

/// A private server with default settings: one node with a synced log on the local disk.
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
            .context("failed to start the server")?;
        let server = Self { _process: process, ingress: format!("http://127.0.0.1:{ingress}") };
        let admin = format!("http://127.0.0.1:{admin}");
        server.register(&admin, service).await?;
        Ok(server)
    }

    /// Registers the service; retries until the server is up.
    async fn register(&self, admin: &str, service: &str) -> anyhow::Result<()> {
        let client = reqwest::Client::new();
        let deadline = Instant::now() + START;
        loop {
            let url = format!("{admin}/deployments");
            let answer = client.post(url).json(&json!({ "uri": service })).send().await;
            let error = match answer {
                Ok(answer) if answer.status().is_success() => {
                    return self.wait_for_ingress(&client, deadline).await;
                }
                Ok(answer) => format!("{}: {}", answer.status(), answer.text().await?),
                Err(error) => error.to_string(),
            };
            ensure!(Instant::now() < deadline, "failed to register the service: {error}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the ingress serves the service.
    async fn wait_for_ingress(
        &self,
        client: &reqwest::Client,
        deadline: Instant,
    ) -> anyhow::Result<()> {
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

/// Completes when standard input closes. The parent process may be gone then, and the server must
/// not outlive it. A terminal does not close by itself.
async fn stdin_closed() {
    let ended = tokio::task::spawn_blocking(|| {
        let mut input = std::io::stdin();
        std::io::copy(&mut input, &mut std::io::sink())
    });
    // An unreadable input counts as closed.
    let _ = ended.await;
}
