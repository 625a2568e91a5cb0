//! Serves an engine over HTTP until a signal arrives, then shuts down gracefully.

use std::time::Instant;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use windlass::Engine;
use windlass_server::{Options, ServeOptions, serve_with};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::note;

/// Serves until SIGTERM or SIGINT. Then `/readyz` fails for a moment, and requests and steps finish
/// within `shutdown_timeout` in total. A second signal stops immediately.
pub(super) async fn until_stopped(
    engine: &Engine,
    options: Options,
    listener: TcpListener,
    serving: ServeOptions,
) -> Outcome {
    let router = windlass_server::router(engine, options)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (end, ended) = oneshot::channel::<()>();
    let (grace, drain) = (serving.ready_grace, serving.shutdown_timeout);
    let mut server = tokio::spawn(serve_with(listener, router, serving, async move {
        // An error means that the sender was dropped, which also requests the stop.
        let _ = ended.await;
    }));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        failed = &mut server => {
            let why = match failed {
                Ok(Err(error)) => error.to_string(),
                Ok(Ok(())) => "it ended unexpectedly".to_owned(),
                Err(error) => error.to_string(),
            };
            return Err(Failure::error(format!("the server failed: {why}")));
        }
    }
    note("stopping: waiting for requests and steps to finish; a second signal stops immediately");
    drop(end);
    let until = Instant::now() + grace + drain;
    let draining = async {
        // Requests that exceed the limit are dropped; their runs are durable.
        let _ = server.await;
        // The engine gets the rest of the time: the limit counts from the signal.
        engine.stop(until.saturating_duration_since(Instant::now())).await
    };
    tokio::select! {
        stopped = draining => stopped?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(Exit::Ok)
}
