//! Wakers that know the source of a wake-up: an operation of the run, the run's own poll, or foreign.
//!
//! A foreign source (a socket, a timer, a spawned task) is not durable: the run loses it when it
//! leaves memory. The run fails on a foreign wake-up, with an error that names the remedy.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;

thread_local! {
    // The run whose root is being polled on this thread, by the address of its waker; 0 for none.
    static POLLING: Cell<usize> = const { Cell::new(0) };
    // Whether an operation causes the wake-ups on this thread.
    static IN_OPERATION: Cell<bool> = const { Cell::new(false) };
    // The step whose body is being polled on this thread, and its attempt.
    static STEP: RefCell<Option<(Arc<str>, u32)>> = const { RefCell::new(None) };
}

/// Wakes the driver of a run.
#[derive(Default)]
pub(crate) struct RootWaker {
    woken: AtomicBool,
    foreign: AtomicBool,
    pub(crate) driver: AtomicWaker,
}

impl RootWaker {
    pub(crate) fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// Whether there was a wake-up since the last call.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Whether a foreign source woke the run since the last call.
    pub(crate) fn take_foreign(&self) -> bool {
        self.foreign.swap(false, Ordering::AcqRel)
    }
}

impl Wake for RootWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let own = POLLING.get() == self.id() || IN_OPERATION.get();
        if !own {
            self.foreign.store(true, Ordering::Release);
        }
        self.woken.store(true, Ordering::Release);
        self.driver.wake();
    }
}

/// Marks wake-ups by the body of a step, or by its timer, as wake-ups of an operation.
pub(crate) struct OperationWaker(Waker);

impl OperationWaker {
    pub(crate) fn around(inner: &Waker) -> Waker {
        Waker::from(Arc::new(Self(inner.clone())))
    }
}

impl Wake for OperationWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake_operation(&self.0);
    }
}

/// Wakes an operation; the wake-up is not foreign.
pub(crate) fn wake_operation(waker: &Waker) {
    let before = IN_OPERATION.replace(true);
    waker.wake_by_ref();
    IN_OPERATION.set(before);
}

/// Runs a poll of the root.
pub(crate) fn polling<T>(root: usize, poll: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            POLLING.set(self.0);
        }
    }
    let _restore = Restore(POLLING.replace(root));
    poll()
}

/// Whether this thread is polling that run.
pub(crate) fn is_polling(root: usize) -> bool {
    POLLING.get() == root
}

/// Runs a poll of a step's body.
pub(crate) fn in_step<T>(key: &Arc<str>, attempt: u32, poll: impl FnOnce() -> T) -> T {
    struct Restore(Option<(Arc<str>, u32)>);
    impl Drop for Restore {
        fn drop(&mut self) {
            STEP.with_borrow_mut(|step| *step = self.0.take());
        }
    }
    let before = STEP.with_borrow_mut(|step| step.replace((Arc::clone(key), attempt)));
    let _restore = Restore(before);
    poll()
}

/// The step whose body is being polled on this thread, and its attempt.
pub(crate) fn current_step() -> Option<(Arc<str>, u32)> {
    STEP.with_borrow(Clone::clone)
}
