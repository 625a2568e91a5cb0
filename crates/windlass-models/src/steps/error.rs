//! Errors of steps: what a body failed with, what is recorded of it, and what the caller gets.

use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};
use windlass_kernel::{Body, Error};

/// Any error of the user's own.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// An error that no further attempt can help.
#[derive(Debug)]
pub struct NonRetryable {
    name: String,
    source: BoxError,
}

impl NonRetryable {
    /// Wraps an error, or a text.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self { name: "NonRetryableError".into(), source: error.into() }
    }

    /// The same error under a name of its own.
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

/// What an operation of a workflow failed with, for good. Live and on replay it is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepError {
    /// A stable code: `STEP_FAILED`, `EVENT_TIMEOUT`, `CHILD_FAILED`, …
    pub code: &'static str,
    /// The step.
    pub key: String,
    /// The error's name: the type of the user's error, or one of ours.
    pub name: String,
    /// What it said.
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
    pub(crate) fn new(code: &'static str, key: &str, name: &str, message: String) -> Self {
        Self { code, key: key.into(), name: name.into(), message, attempts: 0 }
    }

    /// What went wrong with a request that never became a step.
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
        Self { name: name.into(), message, retryable, step: None }
    }

    /// What is recorded of a user's error of type `E`.
    pub(crate) fn of<E: Into<BoxError>>(error: E, fatal: bool) -> Self {
        let error: BoxError = error.into();
        let mut retryable = !fatal;
        let mut from_step = None;
        let mut name = short_name(std::any::type_name::<E>());
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*error);
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
            None => said(&*error),
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

// The error and what caused it, each once.
fn said(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

// `app::pay::Declined` is `Declined` to people; boxes and wrappers have no name of their own.
fn short_name(full: &str) -> String {
    let outer = full.split('<').next().unwrap_or(full);
    let last = outer.rsplit("::").next().unwrap_or(outer);
    match last {
        "Box" | "String" | "str" | "&str" | "" => "Error".into(),
        name => name.trim_start_matches('&').to_owned(),
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
        let text: BoxError = "no".into();
        assert_eq!(Failure::of(text, false).name, "Error");
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
