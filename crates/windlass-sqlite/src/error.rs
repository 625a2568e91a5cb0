//! Converts SQLite errors, and tells whether an error affects one unit or the whole batch.

use std::sync::Arc;

use rusqlite::ErrorCode as SqliteCode;
use rusqlite::ffi;
use windlass_kernel::{CommitError, Error, ErrorCode, ErrorKind};

/// The error of one unit of a batch.
#[derive(Debug)]
pub(crate) enum UnitError {
    /// The answer to a commit of which nothing was written.
    Commit(CommitError),
    /// A statement failed. The statements before it must be rolled back.
    Sql(rusqlite::Error),
    /// Another error, such as a damaged row.
    Kernel(Error),
    /// A step may be settled, which the batch did not check. Roll back and write each commit with
    /// that check.
    NeedsStepCheck,
}

impl From<rusqlite::Error> for UnitError {
    fn from(error: rusqlite::Error) -> Self {
        UnitError::Sql(error)
    }
}

impl From<Error> for UnitError {
    fn from(error: Error) -> Self {
        UnitError::Kernel(error)
    }
}

impl From<CommitError> for UnitError {
    fn from(error: CommitError) -> Self {
        UnitError::Commit(error)
    }
}

impl UnitError {
    /// Whether the error is about the disk or the machine, so that the other units would fail too.
    pub(crate) fn affects_batch(&self) -> bool {
        matches!(self, UnitError::Sql(error) if is_environment(error))
    }

    /// Converts to the error of a call that is not a commit.
    pub(crate) fn into_error(self) -> Error {
        match self {
            UnitError::Commit(error) => Error::new(
                ErrorKind::Internal,
                ErrorCode::Internal,
                "a call failed with the error of a commit",
            )
            .with_source(error),
            UnitError::Sql(error) => sql(error),
            UnitError::Kernel(error) => error,
            UnitError::NeedsStepCheck => Error::new(
                ErrorKind::Internal,
                ErrorCode::Internal,
                "a step was settled after it was checked",
            ),
        }
    }

    /// Converts to the answer of a commit.
    pub(crate) fn into_commit_error(self) -> CommitError {
        match self {
            UnitError::Commit(error) => error,
            other => commit_error(other.into_error()),
        }
    }
}

/// The answer to a commit that failed with this error and wrote nothing.
pub(crate) fn commit_error(error: Error) -> CommitError {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Closed => CommitError::Unavailable(Arc::new(error)),
        ErrorKind::Unknown => CommitError::Unknown(Arc::new(error)),
        // This includes damage: sending the commit again does not help, and the kind tells damage
        // apart.
        _ => CommitError::Invalid(Arc::new(error)),
    }
}

/// Whether an error is about the disk or the machine, not about a row.
pub(crate) fn is_environment(error: &rusqlite::Error) -> bool {
    let Some(code) = error.sqlite_error() else { return false };
    match code.code {
        SqliteCode::DiskFull
        | SqliteCode::OutOfMemory
        | SqliteCode::ReadOnly
        | SqliteCode::DatabaseBusy
        | SqliteCode::CannotOpen
        | SqliteCode::FileLockingProtocolFailed => true,
        // An unreadable sector affects only the calls that need it.
        SqliteCode::SystemIoFailure => !matches!(
            code.extended_code,
            ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_CORRUPTFS
        ),
        _ => false,
    }
}

/// Whether the disk failed to sync, so that nobody knows which pages are on it.
pub(crate) fn is_unsynced(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|code| {
        matches!(
            code.extended_code,
            ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC | ffi::SQLITE_IOERR_CLOSE
        )
    })
}

/// Whether it is unknown after this error of COMMIT whether the commit was written. SQLite updates
/// the shared index of the log after it has synced the log, so an error of that index can follow a
/// durable commit.
pub(crate) fn is_undecided(error: &rusqlite::Error) -> bool {
    let index = |code: &ffi::Error| {
        code.code == SqliteCode::OutOfMemory
            || matches!(
                code.extended_code,
                ffi::SQLITE_IOERR_SHMOPEN
                    | ffi::SQLITE_IOERR_SHMSIZE
                    | ffi::SQLITE_IOERR_SHMLOCK
                    | ffi::SQLITE_IOERR_SHMMAP
            )
    };
    is_unsynced(error) || error.sqlite_error().is_some_and(index)
}

/// Whether the disk is full.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(SqliteCode::DiskFull)
}

/// The error after which the store closes.
pub(crate) fn unsynced(source: rusqlite::Error) -> Error {
    let message = "the disk did not confirm a write, so the store is closed; reopen it to find out \
                   which commits were written";
    Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, message).with_source(source)
}

/// The answer to a call that waited when the store closed itself.
pub(crate) fn closed_by(error: &Error) -> Error {
    let message =
        format!("the store closed itself while the call waited: {}", copy(error).message());
    Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, message)
}

/// The error of a unit that panicked.
pub(crate) fn panicked() -> Error {
    let message = "the store panicked in this call and rolled it back; see the log";
    Error::new(ErrorKind::Internal, ErrorCode::Internal, message)
}

/// Whether an error is a violation of a unique constraint.
pub(crate) fn is_unique(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|code| {
        matches!(
            code.extended_code,
            ffi::SQLITE_CONSTRAINT_UNIQUE
                | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
                | ffi::SQLITE_CONSTRAINT_ROWID
        )
    })
}

/// Converts an SQLite error.
pub(crate) fn sql(error: rusqlite::Error) -> Error {
    let of = |kind, code, message: &str| Error::new(kind, code, message);
    let made = match &error {
        rusqlite::Error::SqliteFailure(code, _) => match code.code {
            SqliteCode::DatabaseCorrupt | SqliteCode::NotADatabase => {
                Error::corrupt("the database file is damaged")
            }
            SqliteCode::DiskFull => {
                let message = "the disk is full; free some room, and the store goes on by itself";
                of(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message)
            }
            SqliteCode::ConstraintViolation => {
                let message = "the write violates a constraint of the database";
                of(ErrorKind::Invalid, ErrorCode::StoreConstraint, message)
            }
            SqliteCode::TooBig => {
                of(ErrorKind::Invalid, ErrorCode::InvalidSize, "a row is too large")
            }
            SqliteCode::SystemIoFailure
            | SqliteCode::OutOfMemory
            | SqliteCode::ReadOnly
            | SqliteCode::DatabaseBusy
            | SqliteCode::DatabaseLocked
            | SqliteCode::CannotOpen
            | SqliteCode::OperationInterrupted
            | SqliteCode::FileLockingProtocolFailed => {
                let message = "cannot read or write the database now";
                of(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message)
            }
            _ => {
                of(ErrorKind::Internal, ErrorCode::Internal, "a SQL statement of the store failed")
            }
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => Error::corrupt("cannot decode a stored value"),
        _ => of(ErrorKind::Internal, ErrorCode::Internal, "a SQL statement of the store failed"),
    };
    made.with_source(error)
}

/// The error of a closed store.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, ErrorCode::StoreClosed, "the store is closed")
}

/// The error of a call when too many calls wait already.
pub(crate) fn too_many_waiting(what: &str, max: usize) -> Error {
    let message =
        format!("too many calls wait for {what} of the store (waiting_max {max}); retry later");
    Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message)
}

/// The error of a write to a store that was opened for inspection.
pub(crate) fn read_only() -> Error {
    let message = "the store is open for inspection and accepts no writes";
    Error::new(ErrorKind::Closed, ErrorCode::StoreClosed, message)
}

/// The error when the thread that would answer is gone.
pub(crate) fn no_answer() -> Error {
    let message = "the store's thread ended without an answer; the call may have had its effect";
    Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, message)
}

/// A copy of an error for another caller. Errors are not `Clone`, because their sources are not.
pub(crate) fn copy(error: &Error) -> Error {
    let message = match std::error::Error::source(error) {
        Some(source) => format!("{}: {source}", error.message()),
        None => error.message().to_owned(),
    };
    Error::new(error.kind(), error.code(), message)
}
