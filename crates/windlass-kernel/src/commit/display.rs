//! The texts of conflicts and refusals.

use std::fmt;

use crate::commit::{Conflict, Refusal};
use crate::rows::Hold;

fn display_holder(hold: &Option<Hold>) -> String {
    match hold {
        Some(hold) => format!("worker {} under claim {}", hold.worker, hold.claim_no),
        None => "nobody".to_owned(),
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunMissing { run_key } => write!(f, "run {run_key} does not exist"),
            Self::RunHead { run_key, found } => {
                let next = found.next_ordinal;
                write!(f, "the ledger of run {run_key} has changed: its next ordinal is {next}")
            }
            Self::RunHold { run_key, found } => {
                write!(f, "the turn of run {run_key} is held by {}", display_holder(found))
            }
            Self::RunExists { run_key, same_input: true } => {
                write!(f, "the run exists with the same input as {run_key}")
            }
            Self::RunExists { run_key, .. } => {
                write!(f, "the run exists with another input as {run_key}")
            }
            Self::TaskMissing { task_id } => {
                write!(f, "task {task_id} does not exist: it was settled or never enqueued")
            }
            Self::TaskHold { task_id, found } => {
                write!(f, "task {task_id} is held by {}", display_holder(found))
            }
            Self::Record { collection, id, expected, found } => write!(
                f,
                "record {collection}/{id} was expected {expected}, but {found}; read it again, then decide"
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunMissing { run_key } => {
                write!(f, "the receiver of the message, run {run_key}, does not exist")
            }
            Self::RunEnded { run_key, status } => {
                write!(f, "run {run_key} is {status} and accepts no more changes")
            }
            Self::MessagesLimit { run_key } => write!(
                f,
                "run {run_key} has too many unread messages (limits unread_messages_max and \
                 unread_bytes_max); retry after it has consumed some"
            ),
            Self::CauseMissing { cause } => {
                write!(f, "the cause {} does not exist in the run's namespace", cause.canonical())
            }
            Self::StepSettled { step_key } => {
                write!(f, "step {step_key:?} is settled already")
            }
            Self::MessageConsumed { seq } => {
                write!(f, "message {seq} does not exist or was consumed already")
            }
            Self::DeadLetterMissing { task_id } => {
                write!(f, "dead letter {task_id} does not exist or was requeued already")
            }
        }
    }
}
