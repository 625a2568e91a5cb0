//! Guards: the conditions on a run and a task under which a commit is written.

use crate::ids::{RunKey, TaskId, WorkerKey};
use crate::ledger::Head;
use crate::rows::{Hold, Task};

/// The condition on a run that must hold for a commit to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunGuard {
    /// No run has this key, nor the (namespace, workflow, id, generation) of the `CreateRun` op.
    Absent {
        /// The run to create.
        run_key: RunKey,
        /// The answer if the run exists.
        on_existing: OnExisting,
    },
    /// The sender holds the turn and knows the end of the ledger.
    Held {
        /// The run.
        run_key: RunKey,
        /// The end of the ledger that the sender decided from.
        head: Head,
        /// The sender's hold.
        hold: Hold,
    },
    /// Nobody holds the turn, and the sender knows the end of the ledger. The commit claims the
    /// turn, and keeps it unless its `SetRun` releases it.
    Free {
        /// The run.
        run_key: RunKey,
        /// The end of the ledger that the sender decided from.
        head: Head,
        /// The worker that claims the turn.
        worker: WorkerKey,
    },
}

impl RunGuard {
    /// The run.
    pub fn run_key(&self) -> RunKey {
        match self {
            Self::Absent { run_key, .. }
            | Self::Held { run_key, .. }
            | Self::Free { run_key, .. } => *run_key,
        }
    }

    /// The expected head; `None` if the run must not exist.
    pub fn head(&self) -> Option<Head> {
        match self {
            Self::Absent { .. } => None,
            Self::Held { head, .. } | Self::Free { head, .. } => Some(*head),
        }
    }
}

/// The answer when the run to create exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnExisting {
    /// `Committed` with the existing run if its input has the same hash, otherwise a conflict.
    Return,
    /// A conflict.
    Refuse,
}

/// The condition on a task that must hold for a commit to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskGuard {
    /// The sender holds the task.
    Held {
        /// The task.
        task_id: TaskId,
        /// The sender's hold.
        hold: Hold,
    },
    /// Nobody holds the task, and nobody has held it since the sender read its row. The commit
    /// settles or reschedules the task.
    Unheld {
        /// The task.
        task_id: TaskId,
        /// The claim number that the sender read.
        claim_no: u64,
    },
}

impl TaskGuard {
    /// The guard on a task as the sender read it, whoever holds it.
    pub fn unchanged(task: &Task) -> Self {
        let task_id = task.task_id;
        match task.hold() {
            Some(hold) => Self::Held { task_id, hold },
            None => Self::Unheld { task_id, claim_no: task.claim_no },
        }
    }

    /// The task.
    pub fn task_id(&self) -> TaskId {
        match self {
            Self::Held { task_id, .. } | Self::Unheld { task_id, .. } => *task_id,
        }
    }

    /// The worker that must hold the task; `None` if nobody may hold it.
    pub fn worker(&self) -> Option<WorkerKey> {
        match self {
            Self::Held { hold, .. } => Some(hold.worker),
            Self::Unheld { .. } => None,
        }
    }

    /// The claim number that the task must have.
    pub fn claim_no(&self) -> u64 {
        match self {
            Self::Held { hold, .. } => hold.claim_no,
            Self::Unheld { claim_no, .. } => *claim_no,
        }
    }
}
