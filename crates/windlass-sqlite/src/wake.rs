//! Wake-ups: told to listeners by a thread of their own, so that no listener can hold up a commit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use windlass_kernel::{Error, WakeSink, Wakeup};

use crate::schema;

// More batches than this behind and a listener is better off looking at everything.
const BEHIND_MAX: usize = 1_024;

/// Where the writer leaves wake-ups.
#[derive(Clone)]
pub(crate) struct Bell {
    shared: Arc<Shared>,
    sender: Sender<Vec<Wakeup>>,
}

#[derive(Default)]
struct Shared {
    sinks: Mutex<Vec<WakeSink>>,
    heard: AtomicBool,
    missed: AtomicBool,
}

impl Bell {
    /// A bell and the thread that rings it. The thread ends when the last bell is dropped.
    pub(crate) fn start() -> Result<(Bell, JoinHandle<()>), Error> {
        let (sender, receiver) = bounded(BEHIND_MAX);
        let shared = Arc::new(Shared::default());
        let ringer = shared.clone();
        let thread = schema::spawn("windlass-wake", move || ring(&ringer, &receiver))?;
        Ok((Bell { shared, sender }, thread))
    }

    /// Whether anybody listens: if not, wake-ups need not be collected.
    pub(crate) fn is_heard(&self) -> bool {
        self.shared.heard.load(Ordering::Relaxed)
    }

    /// Adds a listener.
    pub(crate) fn listen(&self, sink: WakeSink) {
        self.shared.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(sink);
        self.shared.heard.store(true, Ordering::Relaxed);
    }

    /// Leaves wake-ups to be told. Never blocks.
    pub(crate) fn ring(&self, wakeups: Vec<Wakeup>) {
        if wakeups.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.sender.try_send(wakeups) {
            self.shared.missed.store(true, Ordering::Release);
        }
    }
}

fn ring(shared: &Shared, receiver: &Receiver<Vec<Wakeup>>) {
    while let Ok(mut wakeups) = receiver.recv() {
        if shared.missed.swap(false, Ordering::AcqRel) {
            wakeups.push(Wakeup::Missed);
        }
        let sinks = shared.sinks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for sink in &sinks {
            for wakeup in &wakeups {
                // A listener that panics must not silence the others.
                let call = std::panic::AssertUnwindSafe(|| sink(wakeup.clone()));
                if std::panic::catch_unwind(call).is_err() {
                    tracing::error!("a listener for wake-ups panicked");
                }
            }
        }
    }
}
