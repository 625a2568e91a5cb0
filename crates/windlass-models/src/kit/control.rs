//! The start of a turn: messages are read, and control requests are applied before anything else.

use windlass_engine::{Turn, TurnError};

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
