//! The phases of an engine: running, draining, stopped.

use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Poll, Waker};

use tokio::sync::Notify;

/// A phase of an engine. An engine never returns to an earlier phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// It takes no new work and finishes the work that it holds.
    Draining,
    /// It drops the work that it holds.
    Stopped,
}

/// The current phase, and a way to wait for the last one.
pub(crate) struct Lifecycle {
    phase: AtomicU8,
    // Not a watch channel: that one wakes its receivers in an order that differs between two
    // simulator runs with the same seed.
    advanced: Notify,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { phase: AtomicU8::new(Phase::Running as u8), advanced: Notify::new() }
    }
}

impl Lifecycle {
    /// Enters a phase, unless the engine is past it.
    pub(crate) fn advance(&self, phase: Phase) {
        if self.phase.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8 {
            self.advanced.notify_waiters();
        }
    }

    /// Whether the engine takes no new work.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase.load(Ordering::Acquire) != Phase::Running as u8
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Stopped as u8
    }

    /// Completes when the engine stops.
    pub(crate) async fn stopped(&self) {
        loop {
            let advanced = self.advanced.notified();
            if self.is_stopped() {
                return;
            }
            advanced.await;
        }
    }

    /// Runs `work` until it completes or the engine stops; `None` if the engine stopped first.
    pub(crate) async fn until_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, mut stopped) = (std::pin::pin!(work), std::pin::pin!(self.stopped()));
        // Polling `stopped` takes a lock that all turns share. So it is polled again only if the
        // waker or the phase has changed, and not each time that the work makes progress.
        let mut registered: Option<(Waker, u8)> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            let phase = self.phase.load(Ordering::Acquire);
            let same = |(waker, then): &(Waker, u8)| waker.will_wake(cx.waker()) && *then == phase;
            if registered.as_ref().is_some_and(same) {
                return Poll::Pending;
            }
            registered = Some((cx.waker().clone(), phase));
            stopped.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_phase_only_advances() {
        let lifecycle = Lifecycle::default();
        let phase = |lifecycle: &Lifecycle| (lifecycle.is_draining(), lifecycle.is_stopped());
        for (enter, expect) in [
            (Phase::Running, (false, false)),
            (Phase::Draining, (true, false)),
            (Phase::Running, (true, false)),
            (Phase::Stopped, (true, true)),
            (Phase::Draining, (true, true)),
        ] {
            lifecycle.advance(enter);
            assert_eq!(phase(&lifecycle), expect, "{enter:?}");
        }
    }

    #[tokio::test]
    async fn work_ends_with_its_result_or_with_the_engine() {
        let lifecycle = Lifecycle::default();
        assert_eq!(lifecycle.until_stopped(async { 7 }).await, Some(7));
        let mut work = std::pin::pin!(lifecycle.until_stopped(pending::<()>()));
        assert!(work.as_mut().now_or_never().is_none());
        lifecycle.advance(Phase::Draining);
        assert!(work.as_mut().now_or_never().is_none());
        lifecycle.advance(Phase::Stopped);
        assert_eq!(work.await, None);
    }
}
