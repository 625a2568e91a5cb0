//! Measures the overhead of the API. Compares status reads with a handler that returns a constant,
//! with and without the guard of the API (`/healthz`), and creates over HTTP with creates in the
//! same process.
//!
//!     cargo run --release -p windlass-server --example rates
//!
//! With the argument `reads`, measures only the reads.

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::{Ctx, Engine};
use windlass_server::auth::Auth;
use windlass_server::{Options, router, serve};

// Same allocator as the `windlass` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONNECTIONS: usize = 32;
const READS: usize = 20_000;
const ROUNDS: usize = 7;
const RUNS: usize = 10_000;
const BATCH: usize = 100;

async fn three(ctx: Ctx, n: u64) -> windlass::Result<u64> {
    let a = ctx.step("a", async || Ok(n + 1)).await?;
    let b = ctx.step("b", async || Ok(a + 1)).await?;
    Ok(ctx.step("c", async || Ok(b + 1)).await?)
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let folder = tempfile::tempdir()?;
    let engine = Engine::open(&format!("sqlite://{}/rates.db", folder.path().display())).await?;
    let threes = engine.workflow("three", three)?;
    engine.workflow("nap", async |ctx: Ctx, (): ()| -> windlass::Result<()> {
        Ok(ctx.sleep("long", "1 hour").await?)
    })?;
    let options = Options { auth: Auth::Loopback, ..Options::default() };
    let app = Router::new()
        .route("/constant", get(|| async { axum::Json(serde_json::json!({ "status": "ok" })) }))
        .merge(router(&engine, options)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(serve(listener, app, std::future::pending()));
    let client = Client { address };

    let run = threes.start(1).id("done").await?;
    run.result().await?;
    client.post("/api/workflows/nap/instances", r#"{"id":"napping"}"#).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let paths = [
        ("constant handler", "/constant"),
        ("the same, guarded", "/healthz"),
        ("status, ended run", "/api/workflows/three/instances/done"),
        ("status, waiting run", "/api/workflows/nap/instances/napping"),
    ];
    // Alternates the paths, because the speed of the machine changes within seconds. Ignores the
    // first round.
    let mut rounds = vec![Vec::new(); paths.len()];
    let mut times = vec![Vec::new(); paths.len()];
    for _ in 0..=ROUNDS {
        for (n, (_, path)) in paths.iter().enumerate() {
            let before = processor_us();
            rounds[n].push(client.rate(READS, |_| request("GET", path, "")).await);
            times[n].push((processor_us() - before) / READS as f64);
        }
    }
    let rates: Vec<f64> = rounds.iter().map(|rates| median(&rates[1..])).collect();
    let times: Vec<f64> = times.iter().map(|times| median(&times[1..])).collect();
    for (n, (what, _)) in paths.iter().enumerate() {
        println!(
            "{what:<19} {:>9.0} requests/s, {:.2} of the constant, {:.2} guarded; \
             {:.1} µs of processor time, {:.2} of the constant",
            rates[n],
            rates[n] / rates[0],
            rates[n] / rates[1],
            times[n],
            times[0] / times[n],
        );
    }

    if std::env::args().nth(1).as_deref() == Some("reads") {
        return Ok(());
    }

    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let starters = (0..CONNECTIONS).map(|_| {
        let (next, threes) = (Arc::clone(&next), threes.clone());
        tokio::spawn(async move {
            while let Some(n) = take(&next, RUNS) {
                threes.start(n as u64).id(format!("in-{n}")).await.expect("it starts");
            }
        })
    });
    futures::future::join_all(starters).await;
    finished(&engine, RUNS + 1).await?;
    let inside = RUNS as f64 / began.elapsed().as_secs_f64();
    println!("in-process          {inside:>9.0} runs/s");
    let path = "/api/workflows/three/instances";
    let began = Instant::now();
    client
        .rate(RUNS, |n| request("POST", path, &format!(r#"{{"id":"one-{n}","params":{n}}}"#)))
        .await;
    finished(&engine, 2 * RUNS + 1).await?;
    let alone = RUNS as f64 / began.elapsed().as_secs_f64();
    println!("HTTP, one by one    {alone:>9.0} runs/s, {:.2} of in-process", alone / inside);
    let began = Instant::now();
    let batch = |n: usize| {
        let runs: Vec<String> =
            (0..BATCH).map(|k| format!(r#"{{"id":"batch-{n}-{k}","params":{k}}}"#)).collect();
        request(
            "POST",
            &format!("{path}/batch"),
            &format!(r#"{{"instances":[{}]}}"#, runs.join(",")),
        )
    };
    client.rate(RUNS / BATCH, batch).await;
    finished(&engine, 3 * RUNS + 1).await?;
    let batched = RUNS as f64 / began.elapsed().as_secs_f64();
    println!("HTTP, by batch      {batched:>9.0} runs/s, {:.2} of in-process", batched / inside);
    engine.stop(Duration::from_secs(5)).await?;
    Ok(())
}

/// The processor time of this process, client and server together. On a busy machine it is more
/// reliable than rates.
fn processor_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The next index below `count`.
fn take(next: &AtomicUsize, count: usize) -> Option<usize> {
    let n = next.fetch_add(1, Ordering::Relaxed);
    (n < count).then_some(n)
}

/// Waits until `count` runs are complete.
async fn finished(engine: &Engine, count: usize) -> windlass::Result<()> {
    loop {
        if engine.admin().metrics().runs_completed.get() >= count as u64 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A client with little overhead: it sends bytes, and reads a head and a body of known length. If a
/// response has the same length as the previous one, it is complete, so that long heads cost no
/// parsing.
struct Client {
    address: String,
}

impl Client {
    async fn post(&self, path: &str, body: &str) {
        let mut socket = TcpStream::connect(&self.address).await.expect("a connection");
        let mut buffer = Vec::new();
        exchange(&mut socket, &request("POST", path, body), &mut buffer, 0).await;
    }

    /// Sends requests over persistent connections. Returns the requests per second.
    async fn rate(&self, count: usize, make: impl Fn(usize) -> String) -> f64 {
        let next = AtomicUsize::new(0);
        let began = Instant::now();
        let sent = (0..CONNECTIONS).map(|_| async {
            let mut socket = TcpStream::connect(&self.address).await.expect("a connection");
            socket.set_nodelay(true).expect("an option");
            let mut buffer = Vec::new();
            let mut length = 0;
            while let Some(n) = take(&next, count) {
                length = exchange(&mut socket, &make(n), &mut buffer, length).await;
            }
        });
        futures::future::join_all(sent).await;
        count as f64 / began.elapsed().as_secs_f64()
    }
}

/// Returns the length of the response; `last` is the length of the previous one.
async fn exchange(
    socket: &mut TcpStream,
    request: &str,
    buffer: &mut Vec<u8>,
    last: usize,
) -> usize {
    socket.write_all(request.as_bytes()).await.expect("it is sent");
    buffer.clear();
    loop {
        let read = socket.read_buf(buffer).await.expect("an answer");
        assert!(read > 0, "the server closed the connection");
        let is_fine = buffer.starts_with(b"HTTP/1.1 200");
        assert!(is_fine, "{}", String::from_utf8_lossy(buffer));
        if buffer.len() == last {
            return last;
        }
        let Some(head) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&buffer[..head]).expect("a head is text");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).expect("a length");
        if buffer.len() >= head + 4 + length {
            return buffer.len();
        }
    }
}
