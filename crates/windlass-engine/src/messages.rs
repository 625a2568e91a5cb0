//! Sending messages to runs from outside.

use std::sync::Arc;

use windlass_kernel::{
    Body, Commit, Delivery, Error, ErrorCode, ErrorKind, MessageId, MessageKind, MessageName,
    NewMessage, Op, Query, RunKey,
};

use crate::cancel::Canceller;
use crate::commit::CommitClient;
use crate::core::{Core, after_write};
use crate::env::new_uuid;
use crate::turn::refusal;

/// How often a message is sent again because its run was replaced meanwhile.
const RESOLVE_MAX: u32 = 5;

/// The prefix of the ids of the engine's own messages. A sender that could use such an id could keep a
/// result, a decision or an event by key from a run, which accepts each id once.
const OWN_IDS: [&str; 6] = ["activity:", "child:", "control:", "effect:", "key:", "request:"];

/// Sends messages to runs.
pub(crate) struct MessageSender {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) canceller: Arc<Canceller>,
}

impl MessageSender {
    /// Sends a message to a run; if the run was replaced, to its newest generation.
    pub(crate) async fn send(
        &self,
        run_key: RunKey,
        kind: MessageKind,
        name: MessageName,
        body: Option<Body>,
        message_id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        let core = &self.core;
        let now = core.clock.now();
        let message_id = match message_id {
            Some(id) => {
                refuse_own_id(kind, &id)?;
                id
            }
            None => MessageId::new(new_uuid(&*core.env, now).to_string())?,
        };
        let mut to = run_key;
        let mut sent = 0;
        loop {
            let message = NewMessage {
                run_key: to,
                message_id: message_id.clone(),
                kind,
                name: name.clone(),
                body: body.clone(),
                caused_by: None,
                sent_at: now,
                required: true,
            };
            let beside = self.canceller.beside_message(&message).await?;
            let ops = std::iter::once(Op::PutMessage(Box::new(message))).chain(beside);
            let commit = Commit::new(None, None, ops.collect());
            match Arc::clone(&self.commits).commit_for_caller(commit).await {
                Ok(committed) => {
                    if let Some(Delivery::Duplicate { seq }) = committed.messages.first() {
                        let sent = (kind, &name, body.as_ref());
                        self.refuse_another(to, *seq, sent).await.map_err(after_write)?;
                    }
                    return Ok(committed.messages.first().copied().unwrap_or(Delivery::Dropped));
                }
                Err(error) if error.code() == ErrorCode::RunTerminal && sent < RESOLVE_MAX => {
                    // It may have been restarted since its key was read.
                    let ended = self.core.current(to).await?;
                    match self.core.newest(&ended).await? {
                        newest if newest.run_key != to => to = newest.run_key,
                        _ => return Err(refusal(&error)),
                    }
                    sent += 1;
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
    }

    // The message exists already: it must be the same one.
    async fn refuse_another(
        &self,
        run_key: RunKey,
        seq: u64,
        (kind, name, body): (MessageKind, &MessageName, Option<&Body>),
    ) -> Result<(), Error> {
        let query = Query::Messages { run_key, after: seq.saturating_sub(1), limit: 1 };
        let found = self.core.store.list(query).await?.messages()?.into_iter().next();
        let Some(found) = found.filter(|found| found.seq == seq) else { return Ok(()) };
        // The listed body may be a reference.
        let content = |body: Option<&Body>| body.map(|body| (body.encoding, body.digest()));
        let same_body = content(found.body.as_ref()) == content(body);
        if found.kind == kind && found.name == *name && same_body {
            return Ok(());
        }
        let differs = if found.name == *name { "another body" } else { "another name" };
        let message = format!(
            "the run has a message with id {:?} and {differs}; use another message id",
            found.message_id
        );
        Err(Error::new(ErrorKind::Conflict, ErrorCode::MessageExists, message))
    }
}

fn refuse_own_id(kind: MessageKind, id: &MessageId) -> Result<(), Error> {
    let is_outside = matches!(kind, MessageKind::Event | MessageKind::Signal);
    let Some(own) = OWN_IDS.iter().find(|own| is_outside && id.as_str().starts_with(**own)) else {
        return Ok(());
    };
    let message =
        format!("message ids that begin with {own:?} belong to the engine; use another id");
    Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidEventId, message))
}
