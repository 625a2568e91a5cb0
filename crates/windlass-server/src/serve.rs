//! Serving a router on a listener: timeouts of connections, a bound on them, and a graceful end.

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

use crate::patient::Patient;

/// How connections are treated.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Connections at the same time; more wait to be accepted. Default 4,096.
    pub connections_max: usize,
    /// How long the head of a request may take, and how long a connection may be idle before its
    /// next. Default 75 s.
    pub idle_timeout: Duration,
    /// How many bytes the head of a request may have. Default 64 KiB.
    pub head_bytes_max: usize,
    /// How long a client may take nothing of its answer before it is hung up on. Default 30 s.
    pub write_timeout: Duration,
    /// How long `/readyz` says no before connections are refused, so that whoever sends requests here
    /// has time to notice. Default none.
    pub ready_grace: Duration,
    /// How long requests may take to end after the shutdown. Default 10 s.
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

/// How far a server is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// It answers everything, and says that nothing more should be sent to it.
    Leaving,
    Stopping,
}

/// Tells long answers that the server stops, and `/readyz` that it is about to.
#[derive(Clone, Debug)]
pub(crate) struct Stopping(watch::Receiver<Phase>);

impl Stopping {
    pub(crate) async fn wait(mut self) {
        // A sender that is gone has stopped too.
        let _ = self.0.wait_for(|phase| *phase == Phase::Stopping).await;
    }

    pub(crate) fn is_near(&self) -> bool {
        *self.0.borrow() >= Phase::Leaving
    }
}

/// Serves a router until `shutdown` ends; then has `/readyz` say no for the grace period, takes no more
/// connections, tells live streams to end, and waits for requests that are under way.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_with(listener, router, ServeOptions::default(), shutdown).await
}

/// As [`serve`], with other options than the defaults.
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
        let _ = phase.send(Phase::Leaving);
        tokio::time::sleep(options.ready_grace).await;
    };
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = async {
            let room = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, room)
        };
        let (accepted, room) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accepted => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_the_connection(&error) => continue,
            Err(error) => {
                // Out of file descriptors, most likely: others will be closed.
                tracing::warn!(%error, "no connection can be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Answers are small and whole: waiting to fill a packet only delays them.
        let _ = socket.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let stopping = Stopping(stopping.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(stopping.clone());
            hyper::service::Service::call(&service, request)
        });
        let socket = Patient::new(socket, options.write_timeout);
        let connection = graceful.watch(http.serve_connection(socket, service));
        tokio::spawn(async move {
            let _room = room;
            if let Err(error) = connection.await {
                tracing::debug!(%error, %peer, "a connection ended badly");
            }
        });
    }
    drop(listener);
    let _ = phase.send(Phase::Stopping);
    if tokio::time::timeout(options.shutdown_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were cut off by the shutdown");
    }
    Ok(())
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
