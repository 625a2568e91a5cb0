//! Batches of both providers on the wire: create, read, list, cancel, and results line by line.
//!
//! Nothing here decides about money: whoever creates a batch records the intent first, and finds the batch
//! again when an answer is lost.

mod anthropic;
mod lines;
mod openai;
mod provider;

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use windlass_models::agents::{ProviderError, ProviderErrorKind, ProviderResponse};

pub use lines::{ResultLine, Results};
pub use openai::ProviderFile;

/// The longest `custom_id`.
pub const CUSTOM_ID_CHARS_MAX: usize = 64;

/// A request of a batch.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// Names the request within the batch: 1 to 64 of `A-Z a-z 0-9 _ -`.
    pub custom_id: String,
    /// The body, as for a live call without `stream`.
    pub body: Bytes,
}

/// A batch as the provider shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The provider's id.
    pub id: String,
    /// How far it is.
    pub state: BatchState,
    /// How many requests it has, by their ends.
    pub counts: BatchCounts,
    /// When the provider created it.
    pub created_at: Option<Timestamp>,
    /// When requests that have not finished expire.
    pub expires_at: Option<Timestamp>,
    /// The notes that were sent with it (OpenAI).
    pub metadata: BTreeMap<String, String>,
    /// The uploaded file with the requests (OpenAI).
    pub input_file: Option<String>,
    /// Where the results are: an address (Anthropic), or files of results and errors (OpenAI).
    pub results: Vec<String>,
    /// Why the batch as a whole failed (OpenAI).
    pub errors: Vec<BatchError>,
}

/// The state of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchState {
    /// The provider checks the requests.
    Validating,
    /// Requests are under way.
    InProgress,
    /// The provider writes the results.
    Finalizing,
    /// Somebody cancelled it; some requests may still finish.
    Cancelling,
    /// Every request has an end.
    Ended,
    /// The provider refused the batch as a whole.
    Failed,
    /// It took too long. Requests that finished have results.
    Expired,
    /// It was cancelled. Requests that finished have results.
    Cancelled,
    /// A state that this version does not know. It is not an end.
    Other(String),
}

impl BatchState {
    /// Whether nothing changes any more.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Ended | Self::Failed | Self::Expired | Self::Cancelled)
    }
}

/// How many requests of a batch ended in which way. OpenAI counts all that did not succeed as errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Without an end so far.
    pub processing: u64,
    /// With a message.
    pub succeeded: u64,
    /// With an error.
    pub errored: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Expired.
    pub expired: u64,
}

impl BatchCounts {
    /// How many requests the batch has.
    pub fn total(&self) -> u64 {
        self.processing + self.succeeded + self.errored + self.cancelled + self.expired
    }
}

/// Why a batch as a whole failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchError {
    /// The provider's code.
    pub code: String,
    /// The message.
    pub message: String,
    /// The line of the uploaded file, from 1.
    pub line: Option<u64>,
}

/// One page of batches, the newest first.
#[derive(Clone, Debug)]
pub struct BatchPage {
    /// The batches.
    pub batches: Vec<Batch>,
    /// Give this to get the next page; none at the end.
    pub after: Option<String>,
}

/// The result of one request.
#[derive(Debug)]
pub struct MemberResult {
    /// The name that the request was sent under.
    pub custom_id: String,
    /// How it ended.
    pub end: MemberEnd,
}

/// How a request of a batch ended.
#[derive(Debug)]
pub enum MemberEnd {
    /// With a message.
    Succeeded(Box<ProviderResponse>),
    /// With an error. It was not charged.
    Errored(ProviderError),
    /// It was cancelled before it was sent to the model. It was not charged.
    Cancelled,
    /// It was not sent to the model in time. It was not charged.
    Expired,
}

/// Checks results against the requests that were sent: a provider may repeat, lose or invent names.
#[derive(Clone, Debug, Default)]
pub struct Expected(BTreeMap<String, bool>);

/// How a result relates to the requests that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The first result of a request.
    First,
    /// Another result of a request that has one.
    Duplicate,
    /// No request has this name.
    Unknown,
}

impl Expected {
    /// Expects a result for each name.
    pub fn new(custom_ids: impl IntoIterator<Item = String>) -> Self {
        Self(custom_ids.into_iter().map(|id| (id, false)).collect())
    }

    /// Takes a result.
    pub fn take(&mut self, custom_id: &str) -> Arrival {
        match self.0.get_mut(custom_id) {
            None => Arrival::Unknown,
            Some(true) => Arrival::Duplicate,
            Some(seen) => {
                *seen = true;
                Arrival::First
            }
        }
    }

    /// The names without a result so far.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, seen)| !**seen).map(|(id, _)| id.as_str())
    }
}

fn invalid(message: String) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Invalid, message)
}

// Refuses what the provider would refuse after a long upload.
fn check(requests: &[BatchRequest], count_max: usize) -> Result<(), ProviderError> {
    if requests.is_empty() || requests.len() > count_max {
        let count = requests.len();
        return Err(invalid(format!("a batch of {count} requests; 1 to {count_max} can be sent")));
    }
    let mut ids = std::collections::BTreeSet::new();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    for BatchRequest { custom_id, .. } in requests {
        let valid = (1..=CUSTOM_ID_CHARS_MAX).contains(&custom_id.len());
        if !valid || !custom_id.chars().all(plain) {
            return Err(invalid(format!(
                "the custom_id {custom_id:?} is refused: use 1 to {CUSTOM_ID_CHARS_MAX} letters, digits, `_` and `-`"
            )));
        }
        if !ids.insert(custom_id) {
            return Err(invalid(format!("the custom_id {custom_id:?} is in the batch twice")));
        }
    }
    Ok(())
}

fn check_size(bytes: usize, bytes_max: usize) -> Result<(), ProviderError> {
    if bytes > bytes_max {
        return Err(invalid(format!("a batch of {bytes} bytes; the limit is {bytes_max}")));
    }
    Ok(())
}

// Ids go into paths.
fn check_id(id: &str) -> Result<(), ProviderError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    let valid = !id.is_empty() && id.len() <= 256 && id.chars().all(plain) && !id.starts_with('.');
    valid.then_some(()).ok_or_else(|| invalid(format!("{id:?} is no id of a provider")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_checked_against_requests() {
        let mut expected = Expected::new(["a".to_owned(), "b".to_owned(), "c".to_owned()]);
        for (id, expect) in [
            ("b", Arrival::First),
            ("x", Arrival::Unknown),
            ("b", Arrival::Duplicate),
            ("a", Arrival::First),
        ] {
            assert_eq!(expected.take(id), expect, "{id}");
        }
        assert_eq!(expected.missing().collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn a_batch_that_the_provider_would_refuse_is_not_sent() {
        let request = |id: &str| BatchRequest { custom_id: id.to_owned(), body: "{}".into() };
        let long = "x".repeat(65);
        for (requests, expect) in [
            (vec![], "0 requests; 1 to 2"),
            (vec![request("a"), request("b"), request("c")], "3 requests; 1 to 2"),
            (vec![request("a"), request("a")], "twice"),
            (vec![request("a b")], "letters"),
            (vec![request("")], "letters"),
            (vec![request(&long)], "64"),
        ] {
            let error = check(&requests, 2).unwrap_err();
            assert_eq!(error.kind(), ProviderErrorKind::Invalid);
            assert!(error.message().contains(expect), "{error}");
        }
        assert!(check(&[request("a"), request("b-_9")], 2).is_ok());
        assert!(check_size(3, 2).unwrap_err().message().contains("the limit is 2"));
        for id in ["", "a/b", "../x", "a?b"] {
            assert!(check_id(id).is_err(), "{id}");
        }
    }
}
