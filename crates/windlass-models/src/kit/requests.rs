//! Requests to people: opened and closed in the same way by every model.

use std::collections::{BTreeMap, BTreeSet};

use windlass_engine::{ClosedRequest, RequestMessage, Turn, TurnError};
use windlass_kernel::request::Request;
use windlass_kernel::{Draft, Error, Message, MessageKind, Stamp, Step};

/// Opens a request in the commit that records the step that waits for it. The row must be new. Returns the
/// row as it is written; its input names the request, as [`windlass_engine::RequestRef`] does.
///
/// # Errors
///
/// The request is not valid, or nobody can decide about it. The draft is as it was, so that the caller can
/// record the failure of the step.
pub fn open_request(
    turn: &mut Turn,
    draft: &mut Draft,
    row: Step,
    request: &Request,
    stamp: Stamp,
) -> Result<Step, Error> {
    turn.open_request(draft, row, request, stamp)
}

/// Records the end of a request with the message about it: the events `request.decided` and
/// `request.closed`, and the step with the [`windlass_kernel::request::RequestOutcome`] as its result.
///
/// # Errors
///
/// An event is too large.
pub fn close_request(
    turn: &mut Turn,
    draft: &mut Draft,
    row: Step,
    message: &Message,
    closed: &ClosedRequest,
) -> Result<Step, Error> {
    turn.close_request(draft, row, message, closed)
}

/// The ended requests of a run whose messages are unread. Each is read from its record: the message only says
/// which request it is about.
#[derive(Debug, Default)]
pub struct RequestResults {
    read_to: u64,
    // By request: the number of the message, and the end.
    closed: BTreeMap<String, (u64, ClosedRequest)>,
    // Requests whose records were compared with what they are about in this turn.
    checked: BTreeSet<String>,
}

impl RequestResults {
    /// Reads the requests behind messages that came since the last time.
    ///
    /// # Errors
    ///
    /// If the store does not answer; the next call goes on where this one stopped.
    pub async fn fetch(&mut self, turn: &Turn) -> Result<(), TurnError> {
        for (seq, message) in turn.mailbox.range(self.read_to + 1..) {
            if message.kind == MessageKind::Decision
                && let Some(named) = RequestMessage::of(message)
                && let Some(closed) = turn.closed_request(&named.request).await?
            {
                self.closed.entry(named.request).or_insert((*seq, closed));
            }
            self.read_to = *seq;
        }
        Ok(())
    }

    /// Closes those of the open requests that are about a record which has changed, once in a turn. Returns
    /// whether there is any: then the run has a new message.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    pub async fn close_stale(&mut self, turn: &Turn, open: Vec<String>) -> Result<bool, TurnError> {
        let mut any = false;
        for request in open {
            if !self.closed.contains_key(&request) && self.checked.insert(request.clone()) {
                any |= turn.close_stale_request(&request).await?;
            }
        }
        Ok(any)
    }

    /// Begins another turn.
    pub fn begin_turn(&mut self) {
        self.checked.clear();
    }

    /// The message about a request that has ended.
    pub fn message(&self, request: &str) -> Option<u64> {
        self.closed.get(request).map(|(seq, _)| *seq)
    }

    /// Takes the end of a request.
    pub fn take(&mut self, request: &str) -> Option<ClosedRequest> {
        self.closed.remove(request).map(|(_, closed)| closed)
    }
}
