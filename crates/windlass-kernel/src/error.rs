//! One error type: a kind to branch on, a stable code, a message, a source to read.

mod code;

use std::fmt;

pub use code::{ErrorCode, UnknownCode};

/// The class of an error, by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is wrong and stays wrong.
    Invalid,
    /// The requested object does not exist.
    NotFound,
    /// Another writer came first: read again, then decide.
    Conflict,
    /// The request is valid, but its target does not accept it (a message to an ended run).
    Refused,
    /// The user's SQL statement failed.
    UserSql,
    /// The user's program returned an error.
    Failed,
    /// The call may or may not have had its effect. Send the same commit again.
    Unknown,
    /// Nothing was written. The same call may succeed later.
    Unavailable,
    /// The store will never accept this call: it is closed, belongs to another application, or is
    /// newer than this build.
    Closed,
    /// The stored data is damaged.
    Corrupt,
    /// A bug in Windlass.
    Internal,
}

/// An error with a stable code.
pub struct Error {
    kind: ErrorKind,
    code: ErrorCode,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A new error. `message` says what failed, on what, why, and what to do.
    ///
    /// ```
    /// # use windlass_kernel::{Error, ErrorCode, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the disk is full");
    /// assert_eq!(error.to_string(), "the disk is full [STORE_UNAVAILABLE]");
    /// ```
    pub fn new(kind: ErrorKind, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { kind, code, message: message.into(), source: None }
    }

    /// The error with the one that caused it.
    ///
    /// ```
    /// # use windlass_kernel::{Error, ErrorCode, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the disk is full");
    /// let error = error.with_source(std::io::Error::other("no space"));
    /// assert!(error.to_string().ends_with("no space"));
    /// ```
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// An error about damaged stored data.
    ///
    /// ```
    /// # use windlass_kernel::{Error, ErrorCode, ErrorKind};
    /// assert_eq!(Error::corrupt("a row is missing").kind(), ErrorKind::Corrupt);
    /// ```
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, ErrorCode::StoreCorrupt, message)
    }

    /// The kind, which says what a caller can do.
    ///
    /// ```
    /// # use windlass_kernel::{Error, ErrorCode, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the disk is full");
    /// assert_eq!(error.kind(), ErrorKind::Unavailable);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The stable code.
    ///
    /// ```
    /// # use windlass_kernel::{Error, ErrorCode, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the disk is full");
    /// assert_eq!(error.code(), ErrorCode::StoreUnavailable);
    /// ```
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The message without its source.
    ///
    /// ```
    /// # use windlass_kernel::{Error, ErrorCode, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the disk is full");
    /// assert_eq!(error.message(), "the disk is full");
    /// ```
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same call can succeed later without any change.
    ///
    /// ```
    /// # use windlass_kernel::{Error, ErrorCode, ErrorKind};
    /// let error = Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the disk is full");
    /// assert!(error.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unknown | ErrorKind::Unavailable)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.message, self.code)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("code", &self.code)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
