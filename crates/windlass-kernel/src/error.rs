//! One error type: a kind to branch on, a stable code, a message, a source to read.

use std::fmt;

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong and stays wrong.
    Invalid,
    /// What was asked for is not there.
    NotFound,
    /// Somebody else was first: read again, then decide.
    Conflict,
    /// The request is right but what it names does not take it (a message to an ended run).
    Refused,
    /// The user's own SQL failed.
    UserSql,
    /// The user's own program ended with an error.
    Failed,
    /// The call may or may not have had its effect: send the same commit again.
    Unknown,
    /// Nothing was written and the same call may succeed later.
    Unavailable,
    /// The store does not take this call for good: closed, foreign, newer than this build.
    Closed,
    /// What is stored is not what was written.
    Corrupt,
    /// A fault of Windlass.
    Internal,
}

/// An error with a stable code.
pub struct Error {
    kind: ErrorKind,
    code: &'static str,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A new error. `code` is in upper snake case and has a page below docs/errors.
    pub fn new(kind: ErrorKind, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind, code, message: message.into(), source: None }
    }

    /// The error with the one that caused it.
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Stored data that cannot be what was written.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, "STORE_CORRUPT", message)
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The message without its source.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same call can succeed later without anybody changing anything.
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
