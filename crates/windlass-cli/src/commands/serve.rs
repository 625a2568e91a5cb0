//! Serving an engine over HTTP until the process is asked to stop, and stopping without losing work.

use std::future::IntoFuture as _;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;
use windlass::Engine;
use windlass_server::Options;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::note;

/// How the server ends.
pub(super) struct Stop {
    /// How long requests and steps may take to finish.
    pub(super) drain: Duration,
}

/// Serves until SIGTERM or SIGINT, then lets requests and steps finish. A second signal ends it at
/// once.
pub(super) async fn until_stopped(
    engine: &Engine,
    options: Options,
    listener: TcpListener,
    stop: Stop,
) -> Outcome {
    let router = windlass_server::router(engine, options)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (end, ended) = oneshot::channel::<()>();
    let server = axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            // Whoever held the sender has gone: that is a stop too.
            let _ = ended.await;
        })
        .into_future();
    let mut server = tokio::spawn(server);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        failed = &mut server => {
            let why = match failed {
                Ok(Err(error)) => error.to_string(),
                Ok(Ok(())) => "it ended by itself".to_owned(),
                Err(error) => error.to_string(),
            };
            return Err(Failure::error(format!("the server stopped: {why}")));
        }
    }
    note("stopping: what is under way may finish; once more ends it at once");
    drop(end);
    let draining = async {
        // Connections that stay open are cut when their time is up; their runs are durable.
        let _ = tokio::time::timeout(stop.drain, server).await;
        engine.stop(stop.drain).await
    };
    tokio::select! {
        stopped = draining => stopped?,
        _ = terminate.recv() => return Ok(Exit::Ok),
        _ = interrupt.recv() => return Ok(Exit::Ok),
    }
    Ok(Exit::Ok)
}

/// Writes the process's own log to standard error.
pub(super) fn log_to_stderr(filter: &str, json: bool) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failure::usage(format!("the log filter {filter:?}: {error}")))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let set = match json {
        true => lines.json().try_init(),
        false => lines.try_init(),
    };
    set.map_err(|error| Failure::error(format!("logging cannot be set up: {error}")))
}
