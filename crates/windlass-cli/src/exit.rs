//! Exit codes, and the error type of commands.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use windlass::{ErrorCode, ErrorKind};

/// The exit code of the program. The numbers are stable; docs/cli.md lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command succeeded.
    Ok = 0,
    /// The command failed.
    Error = 1,
    /// The command line is invalid.
    Usage = 2,
    /// The requested object does not exist.
    NotFound = 3,
    /// The run that the command waited for failed or was terminated.
    RunFailed = 4,
    /// A time limit expired.
    Timeout = 5,
    /// The credential is missing, invalid, or lacks permission.
    Auth = 6,
    /// The store of a server has closed itself.
    StoreClosed = 7,
}

impl Exit {
    /// All exit codes with their meanings, for help and docs.
    pub(crate) const ALL: &'static [(Exit, &'static str)] = &[
        (Exit::Ok, "success"),
        (Exit::Error, "failure"),
        (Exit::Usage, "the command line is invalid"),
        (Exit::NotFound, "the run, workflow, schedule, record or key does not exist"),
        (Exit::RunFailed, "the run that the command waited for failed or was terminated"),
        (Exit::Timeout, "a time limit expired"),
        (Exit::Auth, "the credential is missing, invalid, or lacks permission"),
        (Exit::StoreClosed, "the store of the server has closed itself; start the server again"),
    ];
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// The result of a command.
pub(crate) type Outcome = Result<Exit, Failure>;

/// The error of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// The stable error code, if there is one.
    pub(crate) code: Option<String>,
    /// How to fix it.
    pub(crate) hint: Option<String>,
    /// Whether a retry may succeed: the server was unreachable or overloaded.
    pub(crate) transient: bool,
    /// When to retry, if the server sent `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            code: None,
            hint: None,
            transient: false,
            retry_after: None,
        }
    }

    pub(crate) fn error(message: impl Into<String>) -> Self {
        Self::new(Exit::Error, message)
    }

    /// The command line is invalid in a way that clap cannot detect.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    pub(crate) fn transient(mut self) -> Self {
        self.transient = true;
        self
    }

    pub(crate) fn retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }

    /// Sets the hint if there is one, and keeps the current one otherwise.
    pub(crate) fn or_hint(self, hint: Option<String>) -> Self {
        Self { hint: hint.or(self.hint), ..self }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.code {
            Some(code) => write!(f, " [{code}]"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<windlass::Error> for Failure {
    fn from(error: windlass::Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Error,
        };
        let mut message = error.message().to_owned();
        // Some messages already contain the text of their source.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        if let Some(source) = source.filter(|source| !message.contains(source)) {
            message += &format!(": {source}");
        }
        let failure = Self::new(exit, message).with_code(error.code().as_str());
        match error.code() {
            ErrorCode::StoreLocked => failure.with_hint(
                "only one process can open a SQLite store: stop the server first, or inspect its runs over \
                 HTTP with `windlass runs` and `windlass why`",
            ),
            ErrorCode::StoreNotFound => failure.with_hint(
                "choose another store with --store, WINDLASS_STORE or the config file; `windlass migrate` \
                 creates one",
            ),
            ErrorCode::StoreOlder => failure.with_hint("upgrade the schema with `windlass migrate`"),
            _ => failure,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::new(Exit::Ok, "the output pipe is closed"),
            _ => Self::error(error.to_string()),
        }
    }
}
