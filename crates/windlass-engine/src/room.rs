//! Room for the turns of one workflow: how many of them this process holds at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::engine::Inner;

/// How many turns of a workflow this process may hold, and how many it does.
pub(crate) struct Room {
    max: usize,
    held: AtomicUsize,
    // Somebody found no room, or filled it: there may be more to claim.
    wanted: AtomicBool,
}

impl Room {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, held: AtomicUsize::new(0), wanted: AtomicBool::new(false) }
    }

    /// There may be more to claim than there was room for: whoever leaves says so.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }
}

/// Places in a room. Those that are dropped are free again.
pub(crate) struct Places {
    inner: Arc<Inner>,
    room: Arc<Room>,
    pub(crate) count: usize,
}

impl Places {
    /// Takes all that is free, to claim as much; none if nothing is.
    pub(crate) fn free(inner: &Arc<Inner>, room: &Arc<Room>) -> Option<Self> {
        let taken = Self::try_free(inner, room);
        if taken.is_some() {
            return taken;
        }
        // Whoever left just before this was said has not heard it.
        room.want();
        Self::try_free(inner, room)
    }

    fn try_free(inner: &Arc<Inner>, room: &Arc<Room>) -> Option<Self> {
        let all = |held: usize| (held < room.max).then_some(room.max);
        let held = room.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, all).ok()?;
        let (inner, room) = (Arc::clone(inner), Arc::clone(room));
        Some(Self { inner, count: room.max - held, room })
    }

    /// Takes a place for a turn that is held, whether there is one or not.
    pub(crate) fn one(inner: &Arc<Inner>, room: &Arc<Room>) -> Self {
        room.held.fetch_add(1, Ordering::SeqCst);
        Self { inner: Arc::clone(inner), room: Arc::clone(room), count: 1 }
    }

    /// See [`Room::want`].
    pub(crate) fn want(&self) {
        self.room.want();
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let held = self.room.held.fetch_sub(self.count, Ordering::SeqCst) - self.count;
        if held < self.room.max && self.room.wanted.swap(false, Ordering::SeqCst) {
            self.inner.signals.turns();
        }
    }
}
