//! Converts PostgreSQL errors to kernel errors.

use std::sync::Arc;

use tokio_postgres::error::SqlState;
use windlass_kernel::{CommitError, Error, ErrorCode, ErrorKind};

/// The SQLSTATE of `commit_batch` for: cannot tell which commit is at fault, send the batch in
/// [`Mode::Checked`](crate::apply::Mode).
pub(crate) const NEEDS_CHECKS: &str = "WL001";
/// The SQLSTATE of the schema's triggers for: refused a row.
const REFUSED: &str = "WL002";

/// The class of a failed call, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection or its answer was lost. It is unknown whether the call had its effect.
    Lost,
    /// Nothing was written and the same call may succeed at once.
    Retry,
    /// Nothing was written. `Mode::Checked` finds the commit at fault.
    NeedsChecks,
    /// Nothing was written: the server is a standby or read-only. Drop the connection and look for
    /// the server that accepts writes.
    ReadOnly,
    /// Nothing was written: the database is full, too slow or denies permission.
    Unavailable,
    /// Nothing was written: a row violates a constraint.
    Constraint,
}

/// Classifies an error by what can be done about it.
pub(crate) fn classify(error: &tokio_postgres::Error) -> Failure {
    let Some(state) = error.code() else {
        return if is_unsent(error) { Failure::Constraint } else { Failure::Lost };
    };
    let code = state.code();
    match code {
        NEEDS_CHECKS => Failure::NeedsChecks,
        REFUSED | "P0001" => Failure::Constraint,
        // The server shuts down or closed the connection: calls in flight may or may not have been
        // executed.
        "57P01" | "57P02" | "57P03" | "57P05" => Failure::Lost,
        "25006" => Failure::ReadOnly,
        _ if code.starts_with("40") => Failure::Retry,
        _ if code.starts_with("23") || code.starts_with("22") => Failure::Constraint,
        _ if code.starts_with("08") => Failure::Lost,
        _ => Failure::Unavailable,
    }
}

// A parameter that the driver cannot encode never leaves this process. The driver does not expose
// the kind of this error, so its text must do.
fn is_unsent(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    let prefixes = ["error serializing parameter", "error encoding message"];
    prefixes.iter().any(|prefix| text.starts_with(prefix))
        || (text.starts_with("expected ") && text.contains(" parameters but got "))
}

/// Whether a unique constraint was violated.
pub(crate) fn is_unique(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::UNIQUE_VIOLATION)
}

/// The message of the database, without its details, which may quote rows.
pub(crate) fn error_text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => {
            let source = std::error::Error::source(error);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        }
    }
}

/// Converts the error of a call that is not a commit.
pub(crate) fn call_error(error: tokio_postgres::Error) -> Error {
    let text = error_text(&error);
    match classify(&error) {
        Failure::Constraint => {
            let message = format!("the call violates a constraint of the database: {text}");
            Error::new(ErrorKind::Invalid, ErrorCode::StoreConstraint, message)
        }
        _ => unavailable(format!("the call to PostgreSQL failed: {text}")),
    }
}

/// Converts the error of the pool.
pub(crate) fn pool_error(error: deadpool_postgres::PoolError) -> Error {
    match error {
        deadpool_postgres::PoolError::Backend(error) => connect_error(&error),
        deadpool_postgres::PoolError::Closed => closed(),
        other => unavailable(format!("got no connection to PostgreSQL from the pool: {other}")),
    }
}

/// The error of a failed connection: the server is unreachable, or it rejects the user or the
/// database.
pub(crate) fn connect_error(error: &tokio_postgres::Error) -> Error {
    let what =
        if error.as_db_error().is_some() { "refuses the connection" } else { "cannot be reached" };
    unavailable(format!("PostgreSQL {what}: {}", error_text(error)))
}

/// An error after which nothing was written and the same call may succeed later.
pub(crate) fn unavailable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message)
}

/// The error of a closed store.
pub(crate) fn closed() -> Error {
    let message = "the store is closed and accepts no more calls";
    Error::new(ErrorKind::Closed, ErrorCode::StoreClosed, message)
}

/// The answer to a commit that violates a constraint.
pub(crate) fn constraint(text: &str) -> CommitError {
    let message = format!("the commit violates a constraint of the database: {text}");
    let error = Error::new(ErrorKind::Invalid, ErrorCode::StoreConstraint, message);
    CommitError::Invalid(Arc::new(error))
}

/// The answer to a commit whose result is unknown.
pub(crate) fn unknown(text: &str) -> CommitError {
    let message = format!("it is unknown whether the commit was written: {text}");
    CommitError::Unknown(Arc::new(Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, message)))
}
