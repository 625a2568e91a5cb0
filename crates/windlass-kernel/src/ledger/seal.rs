//! Seals: digests inside events of the bodies beside the ledger, so that the chain covers them too.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::digest::Sha256Digest;
use crate::error::Error;
use crate::ledger::Event;
use crate::rows::{RunStatus, Step};

/// What a seal covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of")]
pub enum SealOf {
    /// How the run ended: status, output and error.
    #[serde(rename = "run.end")]
    RunEnd {
        /// The status it ended with.
        status: String,
    },
    /// A step as it stands after this commit.
    #[serde(rename = "step")]
    Step {
        /// The step's key.
        key: String,
    },
    /// A message's body, when it is consumed.
    #[serde(rename = "message")]
    Message {
        /// The message's sequence number.
        seq: u64,
    },
}

/// A digest of something that is stored beside the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// What it covers.
    #[serde(flatten)]
    pub of: SealOf,
    /// The digest.
    pub digest: Sha256Digest,
    /// How many bytes of bodies it covers.
    pub bytes: u64,
}

impl Seal {
    /// Seals a step as it stands.
    pub fn step(step: &Step) -> Self {
        let bodies = [&step.input, &step.result, &step.error];
        Self {
            of: SealOf::Step { key: step.step_key.as_str().to_owned() },
            digest: step_digest(step),
            bytes: bodies.into_iter().flatten().map(|body| body.len() as u64).sum(),
        }
    }

    /// Seals how a run ended.
    pub fn run_end(status: RunStatus, output: Option<&Body>, error: Option<&Body>) -> Self {
        Self {
            of: SealOf::RunEnd { status: status.as_str().to_owned() },
            digest: run_end_digest(status, output, error),
            bytes: [output, error].into_iter().flatten().map(|body| body.len() as u64).sum(),
        }
    }

    /// Seals a message's body.
    pub fn message(seq: u64, body: Option<&Body>) -> Self {
        Self {
            of: SealOf::Message { seq },
            digest: message_digest(body),
            bytes: body.map_or(0, |body| body.len() as u64),
        }
    }
}

/// The digest of a step: what it is and all that it recorded.
pub fn step_digest(step: &Step) -> Sha256Digest {
    let [input_encoding, input] = parts(step.input.as_ref());
    let [result_encoding, result] = parts(step.result.as_ref());
    let [error_encoding, error] = parts(step.error.as_ref());
    Sha256Digest::of_parts(&[
        b"windlass:step:v1",
        step.step_key.as_str().as_bytes(),
        step.name.as_bytes(),
        step.kind.as_bytes(),
        step.status.as_str().as_bytes(),
        input_encoding,
        input,
        result_encoding,
        result,
        error_encoding,
        error,
    ])
}

/// The digest of how a run ended.
pub fn run_end_digest(
    status: RunStatus,
    output: Option<&Body>,
    error: Option<&Body>,
) -> Sha256Digest {
    let [output_encoding, output] = parts(output);
    let [error_encoding, error] = parts(error);
    Sha256Digest::of_parts(&[
        b"windlass:end:v1",
        status.as_str().as_bytes(),
        output_encoding,
        output,
        error_encoding,
        error,
    ])
}

/// The digest of a message's body.
pub(crate) fn message_digest(body: Option<&Body>) -> Sha256Digest {
    let [encoding, bytes] = parts(body);
    Sha256Digest::of_parts(&[b"windlass:message:v1", encoding, bytes])
}

/// The seals that an event holds. Custom events hold none: their payload is the user's own.
pub fn seals_of(event: &Event) -> Result<Vec<Seal>, Error> {
    if !event.event_type.is_first_party() {
        return Ok(Vec::new());
    }
    #[derive(Deserialize)]
    struct Sealed {
        #[serde(default)]
        seals: Vec<Seal>,
    }
    // The word is absent from most payloads, and searching is cheaper than parsing.
    if !contains(&event.payload, b"\"seals\"") {
        return Ok(Vec::new());
    }
    let sealed: Sealed = serde_json::from_slice(&event.payload).map_err(|source| {
        let message = format!("the seals of event {} do not read", event.event_id);
        Error::corrupt(message).with_source(source)
    })?;
    Ok(sealed.seals)
}

// An absent body and an empty one differ in their encoding's word.
fn parts(body: Option<&Body>) -> [&[u8]; 2] {
    match body {
        Some(body) => [body.encoding.as_str().as_bytes(), &body.bytes],
        None => [b"none", b""],
    }
}

fn contains(bytes: &Bytes, word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}
