//! Tells followers in this process which runs its commits have changed.

use tokio::sync::broadcast;
use windlass_kernel::{Commit, Op, RunKey};

/// How many changes a slow follower may be behind before it misses some.
const BUFFERED: usize = 1_024;

/// A change that a follower has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A commit of this process wrote to this run.
    Run(RunKey),
    /// Changes may have been missed: read everything again.
    Missed,
}

/// Follows the commits of this process. Commits of other processes are not included.
pub struct Changes(broadcast::Receiver<RunKey>);

impl Changes {
    /// Waits for the next change. `None` after the engine is gone.
    pub async fn next(&mut self) -> Option<Change> {
        match self.0.recv().await {
            Ok(run_key) => Some(Change::Run(run_key)),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Change::Missed),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// The sending side. Without followers a commit pays for one atomic read.
pub(crate) struct ChangeFeed(broadcast::Sender<RunKey>);

impl Default for ChangeFeed {
    fn default() -> Self {
        Self(broadcast::Sender::new(BUFFERED))
    }
}

impl ChangeFeed {
    pub(crate) fn follow(&self) -> Changes {
        Changes(self.0.subscribe())
    }

    /// Reports the runs of a durable commit.
    pub(crate) fn committed(&self, commit: &Commit) {
        if self.0.receiver_count() == 0 {
            return;
        }
        let guarded = commit.run_key();
        let written = commit.ops.iter().filter_map(|op| match op {
            Op::CreateRun(run) => Some(run.run_key),
            Op::PutMessage(message) => Some(message.run_key),
            _ => None,
        });
        for run_key in guarded.into_iter().chain(written.filter(|key| Some(*key) != guarded)) {
            // Fails only if the last follower has just gone.
            let _ = self.0.send(run_key);
        }
    }
}
