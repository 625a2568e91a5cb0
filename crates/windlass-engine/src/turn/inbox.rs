//! Which messages of a run its turn has read.

use windlass_kernel::{Error, Message, Query, RunKey, bodies};

use crate::core::Core;

/// Which messages of the run were read.
pub(crate) struct Inbox {
    /// Every message up to this one was read.
    pub(crate) read_to: u64,
    /// The last accepted message, as far as commits and claims have reported it.
    pub(crate) accepted: u64,
    /// There may be a message that `accepted` does not include yet.
    pub(super) notified: bool,
}

impl Inbox {
    /// An inbox whose messages up to this one were read.
    pub(super) fn new(read_to: u64) -> Self {
        Self { read_to, accepted: read_to, notified: false }
    }

    /// Whether there may be unread messages.
    pub(super) fn has_unread(&self) -> bool {
        self.notified || self.accepted > self.read_to
    }

    /// Reads the messages that came since the last call, without those that were consumed. After an
    /// error, the next call reads the same messages again.
    pub(super) async fn read(
        &mut self,
        core: &Core,
        run_key: RunKey,
    ) -> Result<impl Iterator<Item = Message> + use<>, Error> {
        let limit = core.options.limits.page_rows_max.min(1_000);
        let (mut after, mut found) = (self.read_to, Vec::new());
        loop {
            let page =
                core.store.list(Query::Messages { run_key, after, limit }).await?.messages()?;
            let is_last = page.len() < limit as usize;
            after = page.last().map_or(after, |message| message.seq);
            found.extend(page);
            if is_last {
                found.retain(|message: &Message| message.consumed.is_none());
                bodies::fill(&*core.store, bodies::of_messages(&mut found)).await?;
                // All accepted messages are read. Later messages notify again.
                (self.read_to, self.accepted, self.notified) = (after, after, false);
                return Ok(found.into_iter());
            }
        }
    }
}
