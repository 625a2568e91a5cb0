//! Serves an engine over HTTP until a signal arrives, then shuts down gracefully.

use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use windlass::{Engine, ErrorCode};
use windlass_server::{Options, ServeOptions, serve_with};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::note;

/// How long requests may take to finish after the store has closed.
const CLOSED_GRACE: Duration = Duration::from_secs(2);

fn store_closed() -> Failure {
    let message =
        "the store has closed itself because it could not confirm a write; the log says why";
    Failure::new(Exit::StoreClosed, message)
        .with_code(ErrorCode::StoreClosed.as_str())
        .with_hint("check the disk or the database, then start the server again: runs continue from their last commit")
}

/// Serves until SIGTERM or SIGINT. Then `/readyz` fails for a moment, and requests and steps finish
/// within `shutdown_timeout` in total. A second signal stops immediately.
pub(super) async fn until_stopped(
    engine: &Engine,
    mut options: Options,
    listener: TcpListener,
    serving: ServeOptions,
) -> Outcome {
    options.routes.push(windlass_server::llm::routes());
    let (router, store_status) = windlass_server::router_with_status(engine, options)?;
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
        () = store_status.closed() => {
            drop(end);
            // Requests in progress get their responses; no other work can be finished.
            let _ = tokio::time::timeout(CLOSED_GRACE, server).await;
            return Err(store_closed());
        }
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

#[cfg(test)]
mod tests {
    use windlass_server::auth::Auth;
    use windlass_testkit::outage::{Outage, Reach};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_closed_store_ends_the_server_with_its_own_exit_code() {
        let store = Outage::new(windlass::admin::open_store("memory:").await.unwrap());
        let engine = Engine::builder().start(store.clone()).await.unwrap();
        let options = Options {
            auth: Auth::Loopback,
            probe_every: Duration::from_millis(10),
            ..Options::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let serving = until_stopped(&engine, options, listener, ServeOptions::default());
        let closing = async { store.set(Reach::Closed) };
        let (outcome, ()) = futures::future::join(serving, closing).await;
        let failure = outcome.unwrap_err();
        assert_eq!(failure.exit as u8, 7);
        assert_eq!(failure.code.as_deref(), Some("STORE_CLOSED"));
        assert!(failure.message.contains("closed itself"), "{failure}");
    }
}
