//! A run that this process holds: the connection of its turn to the rest of the engine.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;
use windlass_kernel::ClaimedTurn;

// States of `result`: whether a local result may wait until the run is cached.
const NO: u8 = 0;
const MAY_WAIT: u8 = 1;
const WAITS: u8 = 2;

/// Shared by the task that takes the turns of a run and by everybody who notifies it.
#[derive(Default)]
pub(crate) struct HeldRun {
    notified: AtomicBool,
    lost: AtomicBool,
    released: AtomicBool,
    waker: AtomicWaker,
    // The run's next turn, if it was claimed before the task that released this one had cached the run.
    next: Mutex<Option<ClaimedTurn>>,
    result: AtomicU8,
    cached: Notify,
}

impl HeldRun {
    /// Makes the turn read its messages and check whether the engine drains.
    pub(crate) fn notify(&self) {
        self.notified.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Revokes the turn: its program must stop.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.notify();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The turn has sent the commit that releases it.
    pub(crate) fn released(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// The store refused the commit that releases the turn.
    pub(crate) fn kept(&self) {
        self.released.store(false, Ordering::Release);
    }

    /// Hands the run's next turn to the task that has just released one. Returns the turn if that task
    /// has not released its own, and so does not know that it has lost it.
    pub(crate) fn hand_over(&self, claimed: ClaimedTurn) -> Option<ClaimedTurn> {
        if !self.released.load(Ordering::Acquire) {
            return Some(claimed);
        }
        *self.next.lock() = Some(claimed);
        None
    }

    /// Takes the next turn, if one was handed over.
    pub(crate) fn take_next(&self) -> Option<ClaimedTurn> {
        let next = self.next.lock().take();
        if next.is_some() {
            self.released.store(false, Ordering::Release);
            self.stop_waiting();
        }
        next
    }

    /// The run will be cached soon, and can take a local result then.
    pub(crate) fn expect_result(&self) {
        self.result.store(MAY_WAIT, Ordering::Release);
    }

    /// Waits until the run is cached, if it will be soon and no other result waits for that.
    pub(crate) async fn until_cached(&self) {
        let order = Ordering::AcqRel;
        if self.result.compare_exchange(MAY_WAIT, WAITS, order, Ordering::Acquire).is_ok() {
            self.cached.notified().await;
        }
    }

    /// Wakes the result that waits: the run is cached, or will not be for now.
    pub(crate) fn stop_waiting(&self) {
        if self.result.swap(NO, Ordering::AcqRel) == WAITS {
            self.cached.notify_one();
        }
    }

    /// Ready once after each [`HeldRun::notify`].
    pub(crate) fn poll_notified(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        match self.notified.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}
