//! The start and the end of a turn: messages are read and control requests are applied before anything
//! else, and the turn is released until the next wake-up.

use windlass_engine::{Turn, TurnError};
use windlass_kernel::{Draft, Error, Message, MessageKind, RunStatus, Wake};

/// Reads the messages that came since the last time.
///
/// # Errors
///
/// [`TurnError::Lost`] if another worker has the turn.
pub async fn read_messages(turn: &mut Turn) -> Result<(), TurnError> {
    if turn.is_lost() {
        return Err(TurnError::Lost);
    }
    match turn.has_unread() {
        true => turn.read_messages().await,
        false => Ok(()),
    }
}

/// Reads messages and applies control requests until there are none: `true` if the turn is over because
/// the run is paused now, or was cancelled.
///
/// # Errors
///
/// [`TurnError::Lost`] if another worker has the turn.
pub async fn apply_control(turn: &mut Turn) -> Result<bool, TurnError> {
    loop {
        read_messages(turn).await?;
        if turn.control().is_none() {
            return Ok(false);
        }
        if turn.apply_control().await? {
            return Ok(true);
        }
    }
}

/// A turn of a program that needs one commit: applies control requests, fills the commit with `decide`,
/// and sends it. `decide` returns until when the turn is released, or nothing if it ended the run.
///
/// # Errors
///
/// [`TurnError::Lost`] if another worker has the turn, [`TurnError::Blocked`] if `decide` fails.
pub async fn commit_turn(
    turn: &mut Turn,
    decide: impl FnOnce(&mut Turn, &mut Draft) -> Result<Option<Wake>, Error>,
) -> Result<(), TurnError> {
    if apply_control(turn).await? {
        return Ok(());
    }
    let mut draft = turn.draft();
    if let Some(wake) = decide(turn, &mut draft).map_err(TurnError::Blocked)? {
        release(turn, &mut draft, wake);
    }
    turn.commit(draft).await.map(|_| ())
}

/// Takes the oldest unread message of a kind that `is_wanted`. The caller consumes it in its next commit.
pub fn take_message(
    turn: &mut Turn,
    kind: MessageKind,
    is_wanted: impl Fn(&Message) -> bool,
) -> Option<Message> {
    let wanted = |message: &&Message| message.kind == kind && is_wanted(message);
    let seq = turn.mailbox.values().find(wanted)?.seq;
    turn.mailbox.remove(&seq)
}

/// Releases the turn with a commit. The run waits, unless its next turn is ready at once.
pub fn release(turn: &Turn, draft: &mut Draft, wake: Wake) {
    draft.status(if wake == Wake::Now { RunStatus::Active } else { RunStatus::Waiting });
    draft.release(wake, turn.read_to());
}
