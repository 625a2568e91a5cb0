//! Whether the store accepts writes, from a small write every few seconds. `/readyz`, the health route
//! and a gauge read the last result, so that probes of a load balancer do not use the store.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use serde_json::json;
use tokio::sync::watch;
use windlass::kernel::{Body, SettingName};
use windlass::{Error, ErrorCode, ErrorKind, Store};
use windlass_engine::Engine;

/// A probe without a result after this time counts as failed.
const PROBE_TIME_MAX: Duration = Duration::from_secs(2);

/// The size of the probe after a refused commit. The next probe that succeeds makes the row small again.
const LARGE_BYTES: usize = 60 * 1024;

/// The result of the last probes.
#[derive(Clone, Debug)]
enum Status {
    /// No probe has ended yet.
    Starting,
    Writable,
    Refused {
        kind: ErrorKind,
        code: ErrorCode,
        message: Arc<str>,
    },
}

/// Whether the store of a server accepts writes.
#[derive(Clone, Debug)]
pub struct StoreStatus(watch::Receiver<Status>);

impl StoreStatus {
    /// Probes the store of an engine until the last handle is dropped. The first probe starts now.
    pub(crate) fn probe(engine: &Engine, every: Duration) -> Self {
        let (sender, receiver) = watch::channel(Status::Starting);
        tokio::spawn(supervise(engine.clone(), every, sender));
        Self(receiver)
    }

    /// Whether the last probe was written.
    pub fn is_writable(&self) -> bool {
        matches!(*self.0.borrow(), Status::Writable)
    }

    /// Completes when the store has closed itself. It stays closed until it is opened again, so a
    /// process that serves nothing else should end.
    pub async fn closed(&self) {
        let is_closed =
            |status: &Status| matches!(status, Status::Refused { kind: ErrorKind::Closed, .. });
        let mut receiver = self.0.clone();
        if receiver.wait_for(is_closed).await.is_err() {
            // The probe has ended with the runtime.
            std::future::pending::<()>().await;
        }
    }

    /// Succeeds if the last probe was written. Waits for the first probe.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let mut receiver = self.0.clone();
        let started = receiver.wait_for(|status| !matches!(status, Status::Starting));
        // A failed wait means that no probe has ended yet.
        let _ = tokio::time::timeout(PROBE_TIME_MAX, started).await;
        match &*self.0.borrow() {
            Status::Writable => Ok(()),
            Status::Refused { kind, code, message } => Err(Error::new(*kind, *code, &**message)),
            Status::Starting => Err(no_answer()),
        }
    }
}

fn no_answer() -> Error {
    let message = format!("the store has not confirmed a write for {PROBE_TIME_MAX:?}");
    Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message)
}

fn refused(error: &Error) -> Status {
    let message = format!("the store refuses writes: {}", error.message());
    Status::Refused { kind: error.kind(), code: error.code(), message: message.into() }
}

// Without a probe, the last status would stay for ever, so the probe starts again after a panic.
async fn supervise(engine: Engine, every: Duration, status: watch::Sender<Status>) {
    while let Err(panic) =
        AssertUnwindSafe(probe_periodically(&engine, every, &status)).catch_unwind().await
    {
        engine.metrics().service_panics.add(1);
        let panic = windlass_engine::panic_text(&*panic);
        tracing::error!(panic, "the probe of the store panicked; starting it again");
        let message = "the probe of the store failed; the server log has details";
        let error = Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message);
        let _ = status.send(refused(&error));
        tokio::time::sleep(every.min(PROBE_TIME_MAX)).await;
    }
}

async fn probe_periodically(engine: &Engine, every: Duration, status: &watch::Sender<Status>) {
    let mut writable = true;
    let mut refused_before = engine.metrics().commits_refused.get();
    while !status.is_closed() {
        let started = Instant::now();
        // A full disk may have room for a small row and none for a commit. So the probe after a refused
        // commit is large.
        let refused_now = engine.metrics().commits_refused.get();
        let bytes = if refused_now > refused_before { LARGE_BYTES } else { 0 };
        let mut probe = std::pin::pin!(write(&**engine.store(), bytes));
        let result = match tokio::time::timeout(PROBE_TIME_MAX, probe.as_mut()).await {
            Ok(result) => result,
            // The probe goes on: a store that hangs gets one write and not one every few seconds.
            Err(_) => {
                let _ = status.send(refused(&no_answer()));
                probe.await
            }
        };
        match (&result, writable) {
            // A stopping engine closes its store.
            (Err(_), _) if engine.is_stopping() => {}
            (Err(error), true) => tracing::error!(%error, "the store refuses writes"),
            (Ok(()), false) => tracing::info!("the store accepts writes again"),
            _ => {}
        }
        writable = result.is_ok();
        if writable {
            refused_before = refused_now;
        }
        let closed = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed);
        let _ = status.send(result.map_or_else(|error| refused(&error), |()| Status::Writable));
        if closed {
            // Keeps the status for the handles: a closed store stays closed.
            status.closed().await;
            return;
        }
        tokio::time::sleep(every.saturating_sub(started.elapsed())).await;
    }
}

// All processes write the same row.
async fn write(store: &dyn Store, bytes: usize) -> Result<(), Error> {
    let now = store.now().await?;
    let value = Body::of(&json!({ "at_us": now.as_micros(), "fill": "x".repeat(bytes) }))?;
    store.put_setting(SettingName::new("health", "write_probe"), Some(value)).await
}
