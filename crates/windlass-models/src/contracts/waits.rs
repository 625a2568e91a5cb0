//! Waits of nodes for events by key and for deliveries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_contracts::tokens::{StepRow, StepStatus as RowStatus};
use windlass_engine::{EventAddress, KeyedWait, Receipt, ReceiptOutcome, Turn};
use windlass_kernel::{Draft, Error, Message, Namespace, RunKey, StepKey, TaskId, Timestamp};

use super::rows::Snapshot;
use super::shared::Shared;
use crate::kit;

/// The type of the events that nodes wait for: `POST /api/events/document/{key}`.
pub const EVENT_TYPE: &str = "document";

/// A wait without a timeout is registered for so long.
const WAIT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// The collection of receipts.
const RECEIPTS: &str = "windlass.receipts";

/// An effect whose delivery a node waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delivery {
    pub(crate) task_id: TaskId,
    /// The generation that enqueued it. The delivery wakes only this one.
    pub(crate) run: RunKey,
}

/// How the input of a commit ended a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The event with this number in the mailbox came.
    Event(u64),
    /// The time was over. Its task removes the registration.
    Timeout,
}

/// Registers the wait of a row that begins to wait, and removes that of a row that has ended.
pub(crate) fn keep(
    turn: &mut Turn,
    draft: &mut Draft,
    snapshot: &mut Snapshot,
    row: &StepRow,
    ending: Option<&Ending>,
) -> Result<(), Error> {
    let at = turn.stamp().at;
    if row.status == RowStatus::Waiting {
        let Some(event_key) = &row.waiting_for_event_key else { return Ok(()) };
        if snapshot.waits.contains_key(&row.key) {
            return Ok(());
        }
        let address = EventAddress::new(EVENT_TYPE, event_key, turn.limits())?;
        let until = row.resume_at.map_or(at.plus(WAIT_MAX), Timestamp::from_micros);
        let step = StepKey::with_limits(row.key.as_str(), turn.limits())?;
        let task = turn.await_key(&step, &address, until, at)?;
        snapshot.waits.insert(row.key.clone(), KeyedWait { address, task_id: task.task_id });
        draft.enqueue(task);
        return Ok(());
    }
    if let Some(wait) = snapshot.waits.remove(&row.key) {
        match ending {
            Some(Ending::Event(_)) => kit::end_keyed_wait(draft, &wait),
            Some(Ending::Timeout) => {}
            None => kit::give_up_keyed_wait(turn, draft, &wait, at)?,
        }
    }
    if let Some(delivery) = snapshot.deliveries.remove(&row.key)
        && row.status == RowStatus::Cancelled
    {
        // Nobody needs it any more. An attempt that runs now can still deliver it.
        draft.settle(delivery.task_id);
    }
    Ok(())
}

/// The unread event that a wait gets. Only the engine sends messages of this kind, so a forged event is none.
pub(crate) fn event_for<'m>(
    mailbox: &'m BTreeMap<u64, Message>,
    wait: &KeyedWait,
) -> Option<(u64, &'m Message)> {
    let digest = wait.address.digest();
    let is_for = |message: &Message| EventAddress::digest_of(message) == Some(&*digest);
    mailbox.iter().find(|(_, message)| is_for(message)).map(|(seq, message)| (*seq, message))
}

/// The steps whose effects were delivered, as their receipts say.
pub(crate) async fn delivered(
    shared: &Shared,
    namespace: &Namespace,
    deliveries: &BTreeMap<String, Delivery>,
) -> Result<BTreeSet<String>, Error> {
    let mut found = BTreeSet::new();
    for (step, delivery) in deliveries {
        let id = delivery.task_id.to_string();
        let receipt = shared.read::<Receipt>(namespace, RECEIPTS, &id).await?;
        if receipt.is_some_and(|(receipt, _)| receipt.outcome == ReceiptOutcome::Delivered) {
            found.insert(step.clone());
        }
    }
    Ok(found)
}
