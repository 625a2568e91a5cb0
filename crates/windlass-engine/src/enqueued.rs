//! Calls the host's hook for runs that a commit gave something to do, besides those that it created.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_kernel::{Commit, Committed, Delivery, MessageKind, NewMessage, Op, RunKey};

use crate::control::Control;
use crate::core::Core;
use crate::env::ThreadPool;
use crate::options::EnqueuedReason;
use crate::tasks::internal_queue;

/// Calls the hook for the receivers of messages (events, control requests, results of children and
/// activities) and for runs with new tasks. A commit names such a run only by its key, so the row is
/// read in a task of its own: the commit does not wait for it.
pub(crate) fn announce(core: &Arc<Core>, commit: &Commit, committed: &Committed) {
    if core.options.on_enqueued.is_none() {
        return;
    }
    let reasons = reasons(commit, committed);
    if reasons.is_empty() {
        return;
    }
    let calling = Arc::clone(core);
    let call = async move {
        for (run_key, reason) in reasons {
            match calling.current(run_key).await {
                Ok(run) => calling.run_enqueued(&run, reason),
                Err(error) => {
                    tracing::warn!(%run_key, %error, "failed to read a run for the hook on_enqueued");
                }
            }
        }
    };
    core.env.spawn(ThreadPool::Service, Box::pin(call));
}

// One reason for each run: a message says more than a task.
fn reasons(commit: &Commit, committed: &Committed) -> BTreeMap<RunKey, EnqueuedReason> {
    let mut reasons = BTreeMap::new();
    let mut deliveries = committed.messages.iter();
    for op in commit.ops.iter() {
        match op {
            // After a lost answer the message of the commit that was written is a duplicate.
            Op::PutMessage(message) => match deliveries.next() {
                Some(Delivery::Accepted { .. } | Delivery::Duplicate { .. }) => {
                    reasons.insert(message.run_key, reason_of(message));
                }
                Some(Delivery::Dropped) | None => {}
            },
            // A task that this worker holds already needs no host.
            Op::Enqueue(task) if task.worker.is_none() && task.queue != internal_queue() => {
                if let Some(run_key) = task.run_key {
                    reasons.entry(run_key).or_insert(EnqueuedReason::Wake);
                }
            }
            _ => {}
        }
    }
    reasons
}

fn reason_of(message: &NewMessage) -> EnqueuedReason {
    match message.kind {
        MessageKind::Control if message.name == Control::Resume.name() => EnqueuedReason::Resume,
        MessageKind::Control if message.name == Control::Wake.name() => EnqueuedReason::Wake,
        _ => EnqueuedReason::Event,
    }
}
