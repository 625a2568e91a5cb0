//! What PostgreSQL says, in the words of the kernel.

use std::sync::Arc;

use tokio_postgres::error::SqlState;
use windlass_kernel::{CommitError, Error, ErrorKind};

/// A batch could not tell who is to blame: send it again the careful way.
pub(crate) const CAREFUL: &str = "WL001";
/// A trigger of the schema refused a row.
const REFUSED: &str = "WL002";

/// What to do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection is gone, or its answer is: nobody knows what was written.
    Lost,
    /// Nothing was written and the same call may succeed at once.
    Again,
    /// Nothing was written; the careful way will tell who is to blame.
    Careful,
    /// Nothing was written, and the database has no room, no time or no permission.
    Unavailable,
    /// Nothing was written: a row breaks a rule that the database enforces.
    Constraint,
}

/// Sorts an error by what can be done about it.
pub(crate) fn classify(error: &tokio_postgres::Error) -> Failure {
    let Some(state) = error.code() else {
        return if is_unsent(error) { Failure::Constraint } else { Failure::Lost };
    };
    let code = state.code();
    match code {
        CAREFUL => Failure::Careful,
        REFUSED | "P0001" => Failure::Constraint,
        // The server goes down or cut the connection: what was on its way may or may not be written.
        "57P01" | "57P02" | "57P03" | "57P05" => Failure::Lost,
        _ if code.starts_with("40") => Failure::Again,
        _ if code.starts_with("23") || code.starts_with("22") => Failure::Constraint,
        _ if code.starts_with("08") => Failure::Lost,
        _ => Failure::Unavailable,
    }
}

// A parameter that the driver cannot write down never leaves this process. The driver does not
// name its kinds of errors, so their words have to do.
fn is_unsent(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    let words = ["error serializing parameter", "error encoding message"];
    words.iter().any(|words| text.starts_with(words))
        || (text.starts_with("expected ") && text.contains(" parameters but got "))
}

/// Whether a unique key was broken.
pub(crate) fn is_unique(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::UNIQUE_VIOLATION)
}

/// What the database said, without the rows that it may quote in its details.
pub(crate) fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => {
            let source = std::error::Error::source(error);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        }
    }
}

/// The error of a call that is not a commit.
pub(crate) fn of_call(error: tokio_postgres::Error) -> Error {
    let text = said(&error);
    match classify(&error) {
        Failure::Constraint => {
            let message = format!("a rule of the database refuses the call: {text}");
            Error::new(ErrorKind::Invalid, "STORE_CONSTRAINT", message)
        }
        _ => unavailable(format!("PostgreSQL did not do it: {text}")),
    }
}

/// The error of a pool that gives no connection.
pub(crate) fn of_pool(error: deadpool_postgres::PoolError) -> Error {
    match error {
        deadpool_postgres::PoolError::Backend(error) => unconnected(&error),
        deadpool_postgres::PoolError::Closed => closed(),
        other => unavailable(format!("no connection to PostgreSQL became free: {other}")),
    }
}

/// There is no connection: nobody answers, or who does wants no such user or has no such database.
pub(crate) fn unconnected(error: &tokio_postgres::Error) -> Error {
    let what =
        if error.as_db_error().is_some() { "refuses the connection" } else { "cannot be reached" };
    unavailable(format!("PostgreSQL {what}: {}", said(error)))
}

/// Nothing was written and the same call may succeed later.
pub(crate) fn unavailable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, "STORE_UNAVAILABLE", message)
}

/// The store was closed.
pub(crate) fn closed() -> Error {
    let message = "the store is closed and takes no more calls";
    Error::new(ErrorKind::Closed, "STORE_CLOSED", message)
}

/// A commit breaks a rule that the database enforces.
pub(crate) fn constraint(text: &str) -> CommitError {
    let message = format!("the commit breaks a rule of the database: {text}");
    let error = Error::new(ErrorKind::Invalid, "STORE_CONSTRAINT", message);
    CommitError::Invalid(Arc::new(error))
}

/// Nobody knows whether a commit was written.
pub(crate) fn unknown(text: &str) -> CommitError {
    let message = format!("nobody knows whether the commit was written: {text}");
    CommitError::Unknown(Arc::new(Error::new(ErrorKind::Unknown, "STORE_UNKNOWN", message)))
}
