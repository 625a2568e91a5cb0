//! Inputs that need the store before the machine gets them: ended requests, and writes of records.

use serde_json::json;
use windlass_engine::{RecordChange, RequestMessage, RequestRef, Turn, TurnError};
use windlass_kernel::{
    Body, CommitError, Conflict, Error, Message, MessageKind, RecordFound, Step,
};

use super::description::RECORDS_TRIED;
use super::pending::{Kind, Spec};
use super::program::MachineProgram;
use super::workflow::WorkflowError;

impl MachineProgram {
    /// Reads the requests whose messages have come, and closes those about records that have changed.
    pub(crate) async fn look_at_requests(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        self.requests.fetch(turn).await?;
        let open = self.pending.open.values().filter(|entry| entry.kind == Kind::Request);
        let rows = open.filter_map(|entry| entry.row.as_ref());
        let open: Vec<String> =
            rows.filter_map(RequestRef::of).map(|request| request.request).collect();
        if !open.is_empty() && self.requests.close_stale(turn, open).await? {
            turn.read_messages().await?;
            self.requests.fetch(turn).await?;
        }
        Ok(())
    }

    /// The next message for the machine. A message about a request is one only if the request has ended.
    pub(crate) fn next_message(&self, turn: &mut Turn) -> Option<Message> {
        use MessageKind::{ActivityResult, ChildResult, Decision, Event, Signal};
        let is_for_machine = |message: &&Message| match message.kind {
            ActivityResult | ChildResult | Signal | Event => true,
            Decision => RequestMessage::of(message)
                .is_some_and(|named| self.requests.message(&named.request) == Some(message.seq)),
            _ => false,
        };
        let seq = turn.mailbox.values().find(is_for_machine)?.seq;
        turn.mailbox.remove(&seq)
    }

    /// Whether a callback has asked for a write of records that was not tried yet.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.pending.next_records(false).is_some()
    }

    /// Tries the writes of records that callbacks have asked for, a commit each. The row of the step has the
    /// outcome before the machine gets it: the callback must follow from the record alone.
    pub(crate) async fn write_records(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        while let Some(key) = self.pending.next_records(false) {
            let Some(row) = self.pending.open.get(&key).and_then(|entry| entry.row.clone()) else {
                break;
            };
            let row = write(turn, row).await?;
            if let Some(entry) = self.pending.open.get_mut(&key) {
                entry.row = Some(row);
            }
        }
        Ok(())
    }
}

async fn write(turn: &mut Turn, mut row: Step) -> Result<Step, TurnError> {
    let changes = changes_of(&row).map_err(TurnError::Blocked)?;
    let mut draft = turn.draft();
    let mut revisions = Vec::with_capacity(changes.len());
    for change in &changes {
        let stamp = turn.stamp();
        revisions.push(json!({ "record": change.to_string(), "revision": change.next_revision() }));
        let op = change.op(&turn.run.namespace, stamp);
        draft.record(op, stamp).map_err(TurnError::Blocked)?;
    }
    row.result = Some(Body::of(&revisions).map_err(TurnError::Blocked)?);
    tried(turn, &mut draft, &mut row, true).map_err(TurnError::Blocked)?;
    let sent = turn.send(draft);
    match turn.answered(sent.await)? {
        Ok(_) => return Ok(row),
        Err(CommitError::Conflict(conflict @ Conflict::Record { .. })) => {
            let message = conflict.to_string();
            let Conflict::Record { collection, id, found, .. } = conflict else { return Ok(row) };
            let revision = match found {
                RecordFound::At(revision) | RecordFound::Removed(revision) => Some(revision),
                RecordFound::Absent => None,
            };
            let details = json!({ "collection": collection, "id": id, "revision": revision });
            let error = WorkflowError::new(message).named("RecordConflict");
            row.error = Some(Body::of(&error.details(details)).map_err(TurnError::Blocked)?);
        }
        Err(refused) => return Err(TurnError::Blocked(windlass_engine::refusal(&refused))),
    }
    row.result = None;
    let mut draft = turn.draft();
    tried(turn, &mut draft, &mut row, false).map_err(TurnError::Blocked)?;
    turn.commit(draft).await?;
    Ok(row)
}

fn tried(
    turn: &mut Turn,
    draft: &mut windlass_kernel::Draft,
    row: &mut Step,
    written: bool,
) -> Result<(), Error> {
    let stamp = turn.stamp();
    let payload = json!({ "key": row.step_key, "written": written });
    draft.event(RECORDS_TRIED, &payload, stamp)?;
    (row.attempt, row.updated_at) = (1, stamp.at);
    draft.open_step(row.clone());
    Ok(())
}

fn changes_of(row: &Step) -> Result<Vec<RecordChange>, Error> {
    let spec = Spec::of(row).ok_or_else(|| {
        Error::corrupt(format!("step {} has no changes of records", row.step_key))
    })?;
    serde_json::from_str(spec.input.get()).map_err(|source| {
        let message = format!("cannot read the changes of records of step {}", row.step_key);
        Error::corrupt(message).with_source(source)
    })
}
