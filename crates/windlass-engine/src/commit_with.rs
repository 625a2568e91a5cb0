//! Commits of models from outside a turn: records and wake-up messages, written together.

use std::sync::Arc;

use windlass_kernel::{
    Body, Commit, CommitError, Committed, Error, MessageId, MessageKind, MessageName, NewMessage,
    Op, RunKey,
};

use crate::engine::Engine;
use crate::env::new_uuid;
use crate::record_change::RecordChange;

/// So that functions of models take this handle and `windlass::Engine` alike.
impl AsRef<Engine> for Engine {
    fn as_ref(&self) -> &Engine {
        self
    }
}

impl Engine {
    /// Checks and writes records and sends messages in one commit. It is for models: the changes can name
    /// collections of the engine, and the records are those of this handle's namespace.
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::Conflict::Record`] if a record is not as expected. Then nothing is written.
    pub async fn commit_with(
        &self,
        records: &[RecordChange],
        messages: Vec<NewMessage>,
    ) -> Result<Committed, CommitError> {
        let core = &self.parts.core;
        let invalid = |error: Error| CommitError::Invalid(Arc::new(error));
        let mut ops = Vec::with_capacity(records.len() + messages.len());
        for record in records {
            record.check_limits(&core.options.limits).map_err(invalid)?;
            let stamp = core.clock.stamp(core.clock.now());
            ops.push(Op::Record(Box::new(record.op(&self.namespace, stamp))));
        }
        ops.extend(messages.into_iter().map(|message| Op::PutMessage(Box::new(message))));
        let commit = Commit::new(None, None, ops);
        Arc::clone(&self.parts.messages.commits).commit_for_caller(commit).await
    }

    /// A message that wakes a run. A run that has ended does not get it, and that fails no commit.
    ///
    /// # Errors
    ///
    /// The id of the message cannot be made.
    pub fn wake_message(
        &self,
        run_key: RunKey,
        kind: MessageKind,
        name: MessageName,
        body: Option<Body>,
    ) -> Result<NewMessage, Error> {
        let now = self.clock().now();
        let message_id = MessageId::new(new_uuid(&**self.env(), now).to_string())?;
        Ok(NewMessage {
            run_key,
            message_id,
            kind,
            name,
            body,
            caused_by: None,
            sent_at: now,
            required: false,
        })
    }
}
