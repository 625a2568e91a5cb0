//! Wake-ups: a thread calls the listeners, so that no listener can block a commit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use windlass_kernel::{Error, WakeSink, Wakeup};

use crate::schema;

// The capacity of the queue in batches. A listener that is further behind gets `Missed` and checks
// everything.
const QUEUE_MAX: usize = 1_024;

/// Sends wake-ups to the listeners.
#[derive(Clone)]
pub(crate) struct WakeNotifier {
    shared: Arc<Shared>,
    sender: Sender<Vec<Wakeup>>,
}

#[derive(Default)]
struct Shared {
    sinks: Mutex<Vec<WakeSink>>,
    has_listeners: AtomicBool,
    missed: AtomicBool,
}

impl WakeNotifier {
    /// Starts the thread. It ends when the last clone of the notifier is dropped.
    pub(crate) fn start() -> Result<(WakeNotifier, JoinHandle<()>), Error> {
        let (sender, receiver) = bounded(QUEUE_MAX);
        let shared = Arc::new(Shared::default());
        let state = shared.clone();
        let thread = schema::spawn("windlass-wake", move || call_listeners(&state, &receiver))?;
        Ok((WakeNotifier { shared, sender }, thread))
    }

    /// Whether there are listeners. If not, wake-ups need not be collected.
    pub(crate) fn has_listeners(&self) -> bool {
        self.shared.has_listeners.load(Ordering::Relaxed)
    }

    /// Adds a listener.
    pub(crate) fn listen(&self, sink: WakeSink) {
        self.shared.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(sink);
        self.shared.has_listeners.store(true, Ordering::Relaxed);
    }

    /// Queues wake-ups for the listeners. Never blocks.
    pub(crate) fn notify(&self, wakeups: Vec<Wakeup>) {
        if wakeups.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.sender.try_send(wakeups) {
            self.shared.missed.store(true, Ordering::Release);
        }
    }
}

fn call_listeners(shared: &Shared, receiver: &Receiver<Vec<Wakeup>>) {
    while let Ok(mut wakeups) = receiver.recv() {
        if shared.missed.swap(false, Ordering::AcqRel) {
            wakeups.push(Wakeup::Missed);
        }
        let sinks = shared.sinks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for sink in &sinks {
            for wakeup in &wakeups {
                // A panic in one listener must not keep wake-ups from the others.
                let call = std::panic::AssertUnwindSafe(|| sink(wakeup.clone()));
                if std::panic::catch_unwind(call).is_err() {
                    tracing::error!("a wake-up listener panicked");
                }
            }
        }
    }
}
