//! Serves a router on a listener, with connection limits, timeouts and graceful shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use windlass::ErrorCode;

use crate::connections::{Connections, GuardedBody};
use crate::write_timeout::WriteTimeoutStream;

/// Options for connections.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The maximum number of connections. A further one replaces the connection that has been idle
    /// for the longest time; if none is idle, it waits to be accepted. Default 4,096.
    pub connections_max: usize,
    /// The maximum number of connections from one address. A further one replaces an idle one of
    /// that address; if none is idle, it gets 429. Default 2,048.
    pub connections_per_address_max: usize,
    /// The timeout for receiving a request head. Default 10 s.
    pub head_timeout: Duration,
    /// The timeout for connections between two requests. Default 75 s.
    pub idle_timeout: Duration,
    /// The maximum size of a request head. Default 64 KiB.
    pub head_bytes_max: usize,
    /// The timeout for clients that stop reading their response. Default 30 s.
    pub write_timeout: Duration,
    /// How long `/readyz` fails before connections are refused, so that load balancers can react.
    /// Default 0.
    pub ready_grace: Duration,
    /// How long requests may take to finish after the shutdown began. Default 10 s.
    pub shutdown_timeout: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            connections_max: 4_096,
            connections_per_address_max: 2_048,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            head_bytes_max: 64 * 1024,
            write_timeout: Duration::from_secs(30),
            ready_grace: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

/// The phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Still serves all requests, but `/readyz` fails.
    NotReady,
    Stopping,
}

/// Notifies long-running handlers and `/readyz` of the shutdown.
#[derive(Clone, Debug)]
pub(crate) struct Stopping(watch::Receiver<Phase>);

impl Stopping {
    pub(crate) async fn wait(mut self) {
        // An error means that the sender is gone, so the server has stopped.
        let _ = self.0.wait_for(|phase| *phase == Phase::Stopping).await;
    }

    pub(crate) fn has_begun(&self) -> bool {
        *self.0.borrow() >= Phase::NotReady
    }
}

/// Serves a router until `shutdown` completes. Then `/readyz` fails for the grace period, the
/// listener closes, live streams end, and requests in progress finish.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_with(listener, router, ServeOptions::default(), shutdown).await
}

/// Like [`serve`], with options.
pub async fn serve_with(
    listener: TcpListener,
    router: Router,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (phase, stopping) = watch::channel(Phase::Serving);
    let connections = Connections::new(
        options.connections_max,
        options.connections_per_address_max,
        options.head_timeout,
    );
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(options.idle_timeout)
        .max_buf_size(options.head_bytes_max.max(8 * 1024));
    let shutdown = async {
        shutdown.await;
        let _ = phase.send(Phase::NotReady);
        tokio::time::sleep(options.ready_grace).await;
    };
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = async {
            let accepted = listener.accept().await;
            // After the accept: a connection that was idle before may be busy by now.
            connections.room().await;
            accepted
        };
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accepted => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_connection_error(&error) => continue,
            Err(error) => {
                // Usually the process has no free file descriptors; wait until connections close.
                tracing::warn!(%error, "failed to accept a connection; retrying in 100 ms");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Responses are written in one piece; Nagle's algorithm would only delay them.
        let _ = socket.set_nodelay(true);
        let Some(open) = connections.add(peer.ip()).map(Arc::new) else {
            let max = options.connections_per_address_max;
            tokio::spawn(refuse(socket, peer.ip(), max, options.write_timeout));
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let stopping = Stopping(stopping.clone());
        let served = Arc::clone(&open);
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let guard = served.begin_request();
            request.extensions_mut().insert(stopping.clone());
            let answer = hyper::service::Service::call(&service, request);
            async move {
                let response = answer.await?;
                Ok::<_, Infallible>(response.map(|body| GuardedBody::new(body, guard)))
            }
        });
        let socket = WriteTimeoutStream::new(socket, options.write_timeout, Arc::clone(&open));
        let connection = graceful.watch(http.serve_connection(socket, service));
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, %peer, "connection failed");
                },
                reason = open.must_close() => {
                    tracing::debug!(reason, %peer, "closed a connection");
                }
            }
        });
    }
    drop(listener);
    let _ = phase.send(Phase::Stopping);
    if tokio::time::timeout(options.shutdown_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("shutdown timeout: aborted the remaining requests");
    }
    Ok(())
}

/// Answers a client whose address has too many connections, and closes the connection.
async fn refuse(mut socket: TcpStream, address: IpAddr, max: usize, timeout: Duration) {
    let message =
        format!("too many connections from {address} (limit {max}); close some, or retry later");
    let code = ErrorCode::TooManyConnections;
    let body = serde_json::json!({ "code": code.as_str(), "message": message }).to_string();
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // The client may have closed the connection already.
    let _ = tokio::time::timeout(timeout, socket.write_all(answer.as_bytes())).await;
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
