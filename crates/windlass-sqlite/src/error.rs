//! What SQLite's errors mean to a caller, and how far one reaches in a batch.

use std::sync::Arc;

use rusqlite::ErrorCode;
use rusqlite::ffi;
use windlass_kernel::{CommitError, Error, ErrorKind};

/// Why one unit of a batch did not go through.
#[derive(Debug)]
pub(crate) enum Fail {
    /// The answer to a commit of which nothing was written.
    Answer(CommitError),
    /// A statement failed; what was written before it has to be undone.
    Sql(rusqlite::Error),
    /// A stored row does not read, or the like.
    Kernel(Error),
    /// The batch was written without a check that now proves necessary: undo, and go one by one.
    Redo,
}

impl From<rusqlite::Error> for Fail {
    fn from(error: rusqlite::Error) -> Self {
        Fail::Sql(error)
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        Fail::Kernel(error)
    }
}

impl From<CommitError> for Fail {
    fn from(error: CommitError) -> Self {
        Fail::Answer(error)
    }
}

impl Fail {
    /// Whether it is about the disk or the machine, so that trying the others makes no sense.
    pub(crate) fn is_everybodys(&self) -> bool {
        matches!(self, Fail::Sql(error) if is_environment(error))
    }

    /// The error of a call that is not a commit.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Fail::Answer(error) => {
                Error::new(ErrorKind::Internal, "INTERNAL", "a call was answered as a commit")
                    .with_source(error)
            }
            Fail::Sql(error) => sql(error),
            Fail::Kernel(error) => error,
            Fail::Redo => {
                Error::new(ErrorKind::Internal, "INTERNAL", "a careful write asked for more care")
            }
        }
    }

    /// The answer to the commit that it happened to.
    pub(crate) fn into_commit_error(self) -> CommitError {
        match self {
            Fail::Answer(error) => error,
            other => commit_error(other.into_error()),
        }
    }
}

/// The answer to a commit that failed with this error and left nothing behind.
pub(crate) fn commit_error(error: Error) -> CommitError {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Closed => CommitError::Unavailable(Arc::new(error)),
        ErrorKind::Unknown => CommitError::Unknown(Arc::new(error)),
        // Damage included: sending it again does not help, and the kind says what it is.
        _ => CommitError::Invalid(Arc::new(error)),
    }
}

/// Whether an error is about the disk or the machine, not about a row.
pub(crate) fn is_environment(error: &rusqlite::Error) -> bool {
    let Some(code) = error.sqlite_error() else { return false };
    match code.code {
        ErrorCode::DiskFull
        | ErrorCode::OutOfMemory
        | ErrorCode::ReadOnly
        | ErrorCode::DatabaseBusy
        | ErrorCode::CannotOpen
        | ErrorCode::FileLockingProtocolFailed => true,
        // A sector that does not read is about whoever needs it.
        ErrorCode::SystemIoFailure => !matches!(
            code.extended_code,
            ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_CORRUPTFS
        ),
        _ => false,
    }
}

/// Whether an error of COMMIT leaves open what is on the disk.
pub(crate) fn is_unsynced(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|code| {
        matches!(
            code.extended_code,
            ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC | ffi::SQLITE_IOERR_CLOSE
        )
    })
}

/// Whether an error is a broken unique key.
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

/// The kernel's error for one of SQLite's.
pub(crate) fn sql(error: rusqlite::Error) -> Error {
    let of = |kind, code, message: &str| Error::new(kind, code, message);
    let made = match &error {
        rusqlite::Error::SqliteFailure(code, _) => match code.code {
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                Error::corrupt("the database file is damaged")
            }
            ErrorCode::DiskFull => {
                of(ErrorKind::Unavailable, "STORE_UNAVAILABLE", "there is no room to write")
            }
            ErrorCode::ConstraintViolation => {
                let message = "a rule of the database refuses this";
                of(ErrorKind::Invalid, "STORE_CONSTRAINT", message)
            }
            ErrorCode::TooBig => of(ErrorKind::Invalid, "INVALID_SIZE", "a row is too large"),
            ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::ReadOnly
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::CannotOpen
            | ErrorCode::OperationInterrupted
            | ErrorCode::FileLockingProtocolFailed => {
                let message = "the database cannot be read or written now";
                of(ErrorKind::Unavailable, "STORE_UNAVAILABLE", message)
            }
            _ => of(ErrorKind::Internal, "INTERNAL", "a statement of the store failed"),
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => Error::corrupt("a stored value does not read"),
        _ => of(ErrorKind::Internal, "INTERNAL", "a statement of the store failed"),
    };
    made.with_source(error)
}

/// The answer of a store that takes no more calls.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "STORE_CLOSED", "the store is closed")
}

/// The answer of a store that was opened only to be looked at.
pub(crate) fn inspected() -> Error {
    let message = "the store was opened to be looked at, and takes no writes";
    Error::new(ErrorKind::Closed, "STORE_CLOSED", message)
}

/// The answer when the one who would have given it is gone.
pub(crate) fn lost() -> Error {
    let message = "the store's thread is gone; the call may have had its effect";
    Error::new(ErrorKind::Unknown, "STORE_UNKNOWN", message)
}

/// The same error for somebody else: errors are not clonable because their sources are not.
pub(crate) fn again(error: &Error) -> Error {
    let message = match std::error::Error::source(error) {
        Some(source) => format!("{}: {source}", error.message()),
        None => error.message().to_owned(),
    };
    Error::new(error.kind(), error.code(), message)
}
