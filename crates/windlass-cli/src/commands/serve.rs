//! Serving an engine over HTTP until the process is asked to stop, and stopping without losing work.

use std::time::Instant;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use windlass::Engine;
use windlass_server::{Options, ServeOptions, serve_with};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::note;

/// Serves until SIGTERM or SIGINT, then says for a moment that it is not ready, and lets requests and steps
/// finish, both within the same `shutdown_timeout`. A second signal ends it at once.
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
        // Whoever held the sender has gone: that is a stop too.
        let _ = ended.await;
    }));
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
    note("stopping: what is under way may finish; a second signal ends it at once");
    drop(end);
    let until = Instant::now() + grace + drain;
    let draining = async {
        // Requests that did not end in time are cut off; their runs are durable.
        let _ = server.await;
        // What requests took of the time is gone: whoever set it counts from the signal.
        engine.stop(until.saturating_duration_since(Instant::now())).await
    };
    tokio::select! {
        stopped = draining => stopped?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(Exit::Ok)
}
