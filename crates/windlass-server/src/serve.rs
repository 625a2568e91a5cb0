//! Serves a router on a listener, with connection limits, timeouts and graceful shutdown.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::write_timeout::WriteTimeoutStream;

/// Options for connections.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The maximum number of connections; further ones wait to be accepted. Default 4,096.
    pub connections_max: usize,
    /// The timeout for receiving a request head, and for idle connections. Default 75 s.
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
    let connections = Arc::new(Semaphore::new(options.connections_max));
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
            let permit = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
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
        let service = TowerToHyperService::new(router.clone());
        let stopping = Stopping(stopping.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(stopping.clone());
            hyper::service::Service::call(&service, request)
        });
        let socket = WriteTimeoutStream::new(socket, options.write_timeout);
        let connection = graceful.watch(http.serve_connection(socket, service));
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(%error, %peer, "connection failed");
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

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
