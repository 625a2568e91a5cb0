//! How the program ends: one number for each way, and failures that say what to do.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use windlass::ErrorKind;

/// What the exit code says. The numbers are stable; docs/cli.md lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It was done.
    Ok = 0,
    /// It was not done.
    Error = 1,
    /// The command line is wrong.
    Usage = 2,
    /// What was asked for is not there.
    NotFound = 3,
    /// The run that was waited for failed or was terminated.
    RunFailed = 4,
    /// It took too long.
    Timeout = 5,
    /// The credential is missing, wrong, or not allowed to do this.
    Auth = 6,
}

impl Exit {
    /// All of them with what they mean, for help and docs.
    pub(crate) const ALL: &'static [(Exit, &'static str)] = &[
        (Exit::Ok, "done"),
        (Exit::Error, "something failed"),
        (Exit::Usage, "the command line is wrong"),
        (Exit::NotFound, "there is no such run, workflow, schedule or key"),
        (Exit::RunFailed, "the run that was waited for failed or was terminated"),
        (Exit::Timeout, "it took longer than allowed"),
        (Exit::Auth, "the credential is missing, wrong, or not allowed to do this"),
    ];
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// What a command returns.
pub(crate) type Outcome = Result<Exit, Failure>;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// How the program ends.
    pub(crate) exit: Exit,
    /// What is wrong.
    pub(crate) message: String,
    /// The stable code, where there is one.
    pub(crate) code: Option<String>,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    /// Whether the same call may succeed in a moment: the server was not there, or had no room.
    pub(crate) transient: bool,
    /// When to ask again, if the server said so.
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

    /// Something failed.
    pub(crate) fn error(message: impl Into<String>) -> Self {
        Self::new(Exit::Error, message)
    }

    /// The command line is wrong in a way that the parser cannot see.
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

    /// With a hint, if there is one.
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
        // Some messages have what their source says in them.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        if let Some(source) = source.filter(|source| !message.contains(source)) {
            message += &format!(": {source}");
        }
        let failure = Self::new(exit, message).with_code(error.code());
        match error.code() {
            "STORE_LOCKED" => failure.with_hint(
                "a SQLite store belongs to one process at a time: stop the server first, or look at its \
                 runs over HTTP, with `windlass runs` and `windlass why`",
            ),
            "STORE_NOT_FOUND" => failure.with_hint(
                "name another with --store, WINDLASS_STORE or the config file; `windlass migrate` \
                 makes one",
            ),
            "STORE_OLDER" => failure.with_hint("`windlass migrate` brings it up to date"),
            _ => failure,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::new(Exit::Ok, "the reader is gone"),
            _ => Self::error(error.to_string()),
        }
    }
}
