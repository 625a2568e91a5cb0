//! A run that this process holds: how the rest of the engine reaches its turn.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;
use windlass_kernel::ClaimedTurn;

// Whether a result may wait for the run to be put away.
const NO: u8 = 0;
const MAY_WAIT: u8 = 1;
const WAITS: u8 = 2;

/// The wire to a turn that is being taken.
#[derive(Default)]
pub(crate) struct Slot {
    poked: AtomicBool,
    lost: AtomicBool,
    released: AtomicBool,
    waker: AtomicWaker,
    // The run's next turn, claimed before the task that gave back this one had put it away.
    next: Mutex<Option<ClaimedTurn>>,
    result: AtomicU8,
    away: Notify,
}

impl Slot {
    /// There may be new messages, or the engine wants the turn back.
    pub(crate) fn poke(&self) {
        self.poked.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The turn was revoked: whoever takes it must stop.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.poke();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The commit that gives the turn back is on its way.
    pub(crate) fn released(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// That commit was refused.
    pub(crate) fn kept(&self) {
        self.released.store(false, Ordering::Release);
    }

    /// Hands the run's next turn to the task that has just given one back. Answers it again if
    /// that task does not know that its turn is over.
    pub(crate) fn follow(&self, claimed: ClaimedTurn) -> Option<ClaimedTurn> {
        if !self.released.load(Ordering::Acquire) {
            return Some(claimed);
        }
        *self.next.lock() = Some(claimed);
        None
    }

    /// The next turn, if one was handed over.
    pub(crate) fn take_next(&self) -> Option<ClaimedTurn> {
        let next = self.next.lock().take();
        if next.is_some() {
            self.released.store(false, Ordering::Release);
            self.put_away();
        }
        next
    }

    /// The run is about to be put away, and takes a result from there.
    pub(crate) fn expect_result(&self) {
        self.result.store(MAY_WAIT, Ordering::Release);
    }

    /// Waits for the run to be put away, if it is about to be and no other result waits for that.
    pub(crate) async fn until_away(&self) {
        let order = Ordering::AcqRel;
        if self.result.compare_exchange(MAY_WAIT, WAITS, order, Ordering::Acquire).is_ok() {
            self.away.notified().await;
        }
    }

    /// The run is put away, or will not be for now.
    pub(crate) fn put_away(&self) {
        if self.result.swap(NO, Ordering::AcqRel) == WAITS {
            self.away.notify_one();
        }
    }

    /// Ready once after each poke.
    pub(crate) fn poll_poked(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        match self.poked.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}
