//! The memory store as a subject of the suite, with a clock that tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use windlass_kernel::{BoxFuture, Limits, MemoryStore, Store, Timestamp};

use crate::world::{Dialect, Subject};

/// A clock that stands still until it is moved.
#[derive(Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows a time in 2026.
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_770_000_000_000_000)))
    }

    /// The time that it shows.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as i64, Ordering::SeqCst);
    }

    /// The clock as a store takes it.
    pub fn as_clock(&self) -> windlass_kernel::Clock {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

struct MemorySubject {
    store: Arc<MemoryStore>,
    clock: ManualClock,
}

/// Opens a fresh memory store.
pub async fn open() -> Box<dyn Subject> {
    open_with(Limits::DEFAULT).await
}

/// Opens a fresh memory store with other limits.
pub async fn open_with(limits: Limits) -> Box<dyn Subject> {
    let clock = ManualClock::new();
    let store = Arc::new(MemoryStore::new(clock.as_clock(), limits));
    Box::new(MemorySubject { store, clock })
}

impl Subject for MemorySubject {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(by);
        Box::pin(std::future::ready(()))
    }

    fn dialect(&self) -> Option<Dialect> {
        None
    }

    fn raw_sql(&self, _sql: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Err("the memory store runs no SQL".to_owned())))
    }
}
