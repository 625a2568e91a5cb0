//! Errors of steps: what a body failed with, what is recorded of it, and what the caller gets.

use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};
use windlass_kernel::{Body, Error, ErrorCode};

use crate::any_error::{AnyError, text_with_sources};

/// An error that no further attempt can help.
#[derive(Debug)]
pub struct NonRetryable {
    name: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl NonRetryable {
    /// Wraps an error, or a text.
    ///
    /// ```
    /// use windlass::NonRetryable;
    ///
    /// assert_eq!(NonRetryable::new("no such user").to_string(), "no such user");
    /// ```
    pub fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { name: "NonRetryableError".into(), source: error.into() }
    }

    /// The same error under a name of its own.
    ///
    /// ```
    /// use windlass::{NonRetryable, Result};
    ///
    /// fn find(id: u32) -> Result<u32> {
    ///     match id {
    ///         0 => Err(NonRetryable::new("no such user").named("NotFound"))?,
    ///         id => Ok(id),
    ///     }
    /// }
    /// # assert!(find(0).is_err());
    /// ```
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

impl fmt::Display for NonRetryable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl StdError for NonRetryable {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

/// The final error of an operation of a workflow. Live and on replay it is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepError {
    /// A stable code: `STEP_FAILED`, `EVENT_TIMEOUT`, `CHILD_FAILED`, …
    pub code: ErrorCode,
    /// The step.
    pub key: String,
    /// The error's name: the type of the user's error, or one of ours.
    pub name: String,
    /// Its message.
    pub message: String,
    /// How many attempts there were.
    pub attempts: u32,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {:?} failed: {}: {} [{}]", self.key, self.name, self.message, self.code)
    }
}

impl StdError for StepError {}

impl StepError {
    pub(crate) fn new(code: ErrorCode, key: &str, name: &str, message: String) -> Self {
        Self { code, key: key.into(), name: name.into(), message, attempts: 0 }
    }

    /// The error of a request that never became a step.
    pub(crate) fn refused(key: &str, error: &Error) -> Self {
        Self::new(error.code(), key, "InvalidStep", error.message().to_owned())
    }
}

/// An error as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) message: String,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub(crate) retryable: bool,
    /// The step that it came from, if it ended a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<String>,
    /// Another writer was first, so the next attempt need not wait for long.
    #[serde(skip)]
    pub(crate) lost_record: bool,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_yes(value: &bool) -> bool {
    *value
}

/// How long a recorded message may be.
const MESSAGE_CHARS_MAX: usize = 16 * 1024;

impl Failure {
    pub(crate) fn new(name: &str, message: impl Into<String>, retryable: bool) -> Self {
        let mut message: String = message.into();
        if let Some((at, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
            message.truncate(at);
        }
        Self { name: name.into(), message, retryable, step: None, lost_record: false }
    }

    /// The record of a user's error.
    pub(crate) fn of(error: impl Into<AnyError>, fatal: bool) -> Self {
        let error: AnyError = error.into();
        let mut retryable = !fatal;
        let mut from_step = None;
        let mut name = error.name().to_owned();
        let mut next: Option<&(dyn StdError + 'static)> = Some(error.as_error());
        while let Some(link) = next {
            next = link.source();
            if let Some(fatal) = link.downcast_ref::<NonRetryable>() {
                (retryable, name) = (false, fatal.name.clone());
                break;
            }
            if let Some(step) = link.downcast_ref::<StepError>() {
                name.clone_from(&step.name);
                from_step = Some(step.key.clone());
                break;
            }
        }
        // A step's failure that nobody caught is the run's own.
        let message = match error.downcast_ref::<StepError>() {
            Some(step) => step.message.clone(),
            None => text_with_sources(error.as_error()),
        };
        Self { step: from_step, ..Self::new(&name, message, retryable) }
    }

    pub(crate) fn body(&self) -> Result<Body, Error> {
        Body::of(self)
    }

    pub(crate) fn read(body: &Body) -> Self {
        body.read().unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&body.bytes).into_owned();
            Self::new("Error", text, false)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Declined;
    impl fmt::Display for Declined {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("card declined")
        }
    }
    impl StdError for Declined {}

    #[test]
    fn names_and_retries() {
        let declined = Failure::of(Declined, false);
        assert_eq!((&*declined.name, declined.retryable), ("Declined", true));
        assert_eq!(Failure::of(AnyError::msg("no"), false).name, "Error");
        let fatal = Failure::of(NonRetryable::new(Declined).named("Fatal"), false);
        assert_eq!(
            (&*fatal.name, &*fatal.message, fatal.retryable),
            ("Fatal", "card declined", false)
        );
        assert!(!Failure::of(Declined, true).retryable);
        let long = Failure::new("E", "é".repeat(MESSAGE_CHARS_MAX + 5), true);
        assert_eq!(long.message.chars().count(), MESSAGE_CHARS_MAX);
    }
}
