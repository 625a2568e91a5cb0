//! A run to be submitted.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_engine::HeaderRules;
use windlass_kernel::{Error, ErrorCode, IntoDuration};

use crate::run::invalid;

/// How many headers a run may have.
pub const HEADERS_MAX: usize = 64;
/// How many bytes the names and values of a run's headers may have together.
pub const HEADERS_BYTES_MAX: usize = 16 * 1024;
/// Headers and labels that begin with this are the relay's own.
pub const RESERVED_PREFIX: &str = "workflow.";

/// A run to be submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSpec {
    /// The run's name; one is made if there is none. Submitted again with the same input it is the
    /// same run, also when it has ended; with another input it is an error.
    pub run_id: Option<String>,
    /// The payload of the first step.
    pub input: Vec<u8>,
    /// Strings that every step and the terminal hook see. `workflow.*` is reserved.
    pub headers: BTreeMap<String, String>,
    /// Small strings to find the run by. `workflow.*` is reserved.
    pub labels: BTreeMap<String, String>,
    /// Higher first.
    pub priority: i16,
    /// How long the first step waits; at most 365 days.
    pub delay: Option<Duration>,
    /// Whether the input is JSON: people then see it as such, and payloads and the result where they are
    /// JSON too.
    pub json: bool,
}

impl RunSpec {
    /// A run with an input and nothing else.
    ///
    /// ```
    /// # use windlass::relays::RunSpec;
    /// let spec = RunSpec::new("figures");
    /// assert_eq!(spec.input, b"figures");
    /// ```
    pub fn new(input: impl Into<Vec<u8>>) -> Self {
        Self { input: input.into(), ..Self::default() }
    }

    /// The same with a name.
    ///
    /// ```
    /// # use windlass::relays::RunSpec;
    /// let spec = RunSpec::new("figures").id("report-1");
    /// # drop(spec);
    /// ```
    pub fn id(mut self, run_id: impl Into<String>) -> Self {
        self.run_id = Some(run_id.into());
        self
    }

    /// The same with one more header.
    ///
    /// ```
    /// # use windlass::relays::RunSpec;
    /// let spec = RunSpec::new("figures").header("for", "ann");
    /// # drop(spec);
    /// ```
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// The same with one more label.
    ///
    /// ```
    /// # use windlass::relays::RunSpec;
    /// let spec = RunSpec::new("figures").label("team", "ops");
    /// # drop(spec);
    /// ```
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// The same with a delay before the first step.
    ///
    /// ```
    /// # use windlass::relays::RunSpec;
    /// let spec = RunSpec::new("figures").delay("5 minutes")?;
    /// # drop(spec);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn delay(mut self, delay: impl IntoDuration) -> Result<Self, Error> {
        let delay = delay.into_duration();
        let refused =
            |error| invalid(ErrorCode::InvalidDuration, format!("the run's delay: {error}"));
        self.delay = Some(delay.map_err(refused)?);
        Ok(self)
    }

    /// Refuses headers and labels that no run may have.
    ///
    /// ```
    /// # use windlass::relays::RunSpec;
    /// assert!(RunSpec::new("x").header("workflow.run_id", "1").validate().is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidHeader`] or [`ErrorCode::InvalidLabel`]; the message names the header or the label.
    pub fn validate(&self) -> Result<(), Error> {
        header_rules().check(&self.headers)?;
        match self.labels.keys().find(|key| key.starts_with(RESERVED_PREFIX)) {
            Some(key) => Err(header_rules().refused("label", key)),
            None => Ok(()),
        }
    }
}

/// Which headers a run may have.
pub(crate) fn header_rules() -> HeaderRules {
    HeaderRules {
        count_max: HEADERS_MAX,
        bytes_max: HEADERS_BYTES_MAX,
        reserved: RESERVED_PREFIX.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spec: RunSpec, expect: &str) {
        let shown = match spec.validate() {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(shown.contains(expect), "expected {expect:?} in {shown:?}");
    }

    #[test]
    fn headers_say_what_is_wrong_with_them() {
        check(RunSpec::new("x").header("callback_url", "https://example.org"), "ok");
        check(RunSpec::new("x").header("workflow.run_id", "1"), "\"workflow.run_id\"");
        check(RunSpec::new("x").label("workflow.group", "1"), "label \"workflow.group\"");
        check(RunSpec::new("x").header("", "1"), "is not a header name");
        check(RunSpec::new("x").header("a", "b".repeat(HEADERS_BYTES_MAX)), "at most 16384");
        let many = (0..=HEADERS_MAX).map(|n| (n.to_string(), String::new())).collect();
        check(RunSpec { headers: many, ..RunSpec::default() }, "has 65 headers; at most 64");
    }
}
