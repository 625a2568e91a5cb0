//! Seals: digests inside events, so that the hash chain also covers bodies that are stored outside
//! the ledger.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::body::{Body, Encoding};
use crate::digest::Sha256Digest;
use crate::error::Error;
use crate::ledger::Event;
use crate::record::RecordOp;
use crate::rows::{Message, RunStatus, Step};

/// The data that a seal covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of")]
pub enum SealOf {
    /// The end of the run: status, output and error.
    #[serde(rename = "run.end")]
    RunEnd {
        /// The status it ended with.
        status: String,
    },
    /// A step after this commit.
    #[serde(rename = "step")]
    Step {
        /// The step's key.
        key: Arc<str>,
    },
    /// The run's state after this commit.
    #[serde(rename = "run.state")]
    State,
    /// The body of a message, when it is consumed.
    #[serde(rename = "message")]
    Message {
        /// The message's sequence number.
        seq: u64,
    },
    /// The bodies of several messages that one event consumes.
    #[serde(rename = "messages")]
    Messages {
        /// Their sequence numbers, in the order of the digest.
        seqs: Vec<u64>,
    },
    /// A record that the commit writes.
    #[serde(rename = "record")]
    Record {
        /// The collection.
        collection: Arc<str>,
        /// The id.
        id: Arc<str>,
        /// The revision that the commit makes.
        revision: u64,
        /// Whether the revision is kept as a version.
        kept: bool,
    },
}

/// How many messages one event consumes at most, so that its payload stays below the limit.
pub const CONSUMED_MAX: usize = 1_024;

/// A digest of data that is stored outside the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The data that it covers.
    #[serde(flatten)]
    pub of: SealOf,
    /// The digest.
    pub digest: Sha256Digest,
    /// The size of the covered bodies in bytes.
    pub bytes: u64,
}

impl Seal {
    /// Seals the current state of a step.
    pub fn step(step: &Step) -> Self {
        let bodies = [&step.input, &step.result, &step.error];
        Self {
            of: SealOf::Step { key: step.step_key.shared() },
            digest: step_digest(step),
            bytes: bodies.into_iter().flatten().map(|body| body.len() as u64).sum(),
        }
    }

    /// Seals the end of a run.
    pub fn run_end(status: RunStatus, output: Option<&Body>, error: Option<&Body>) -> Self {
        Self {
            of: SealOf::RunEnd { status: status.as_str().to_owned() },
            digest: run_end_digest(status, output, error),
            bytes: [output, error].into_iter().flatten().map(|body| body.len() as u64).sum(),
        }
    }

    /// Seals the state of a run.
    pub fn state(state: &Body) -> Self {
        Self { of: SealOf::State, digest: state_digest(state), bytes: state.len() as u64 }
    }

    /// Appends seals as canonical JSON. This is written by hand because nearly every commit of a
    /// step has seals.
    pub(crate) fn write(seals: &[Self], to: &mut Vec<u8>) {
        to.push(b'[');
        for (index, seal) in seals.iter().enumerate() {
            if index > 0 {
                to.push(b',');
            }
            seal.write_one(to);
        }
        to.push(b']');
    }

    fn write_one(&self, to: &mut Vec<u8>) {
        // Writing to a `Vec` cannot fail.
        let quoted = |to: &mut Vec<u8>, text: &str| drop(serde_json::to_writer(to, text));
        to.extend_from_slice(b"{\"bytes\":");
        to.extend_from_slice(itoa::Buffer::new().format(self.bytes).as_bytes());
        if let SealOf::Record { collection, .. } = &self.of {
            to.extend_from_slice(b",\"collection\":");
            quoted(to, collection);
        }
        to.extend_from_slice(b",\"digest\":\"");
        self.digest.write(to);
        match &self.of {
            SealOf::RunEnd { status } => {
                to.extend_from_slice(b"\",\"of\":\"run.end\",\"status\":");
                quoted(to, status);
            }
            SealOf::State => to.extend_from_slice(b"\",\"of\":\"run.state\""),
            SealOf::Step { key } => {
                to.extend_from_slice(b"\",\"key\":");
                quoted(to, key);
                to.extend_from_slice(b",\"of\":\"step\"");
            }
            SealOf::Message { seq } => {
                to.extend_from_slice(b"\",\"of\":\"message\",\"seq\":");
                to.extend_from_slice(itoa::Buffer::new().format(*seq).as_bytes());
            }
            SealOf::Messages { seqs } => {
                to.extend_from_slice(b"\",\"of\":\"messages\",\"seqs\":");
                let _ = serde_json::to_writer(&mut *to, seqs);
            }
            SealOf::Record { id, revision, kept, .. } => {
                to.extend_from_slice(b"\",\"id\":");
                quoted(to, id);
                to.extend_from_slice(b",\"kept\":");
                to.extend_from_slice(if *kept { b"true" } else { b"false" });
                to.extend_from_slice(b",\"of\":\"record\",\"revision\":");
                to.extend_from_slice(itoa::Buffer::new().format(*revision).as_bytes());
            }
        }
        to.push(b'}');
    }

    /// Seals the bodies of several messages with one digest of their digests.
    pub fn messages<'a>(messages: impl Iterator<Item = &'a Message> + Clone) -> Self {
        let bytes = |message: &Message| message.body.as_ref().map_or(0, |body| body.len() as u64);
        Self {
            of: SealOf::Messages { seqs: messages.clone().map(|message| message.seq).collect() },
            digest: messages_digest(messages.clone().map(|message| message.body.as_ref())),
            bytes: messages.map(bytes).sum(),
        }
    }

    /// Seals a record that a commit writes at a revision.
    pub fn record(op: &RecordOp, revision: u64) -> Self {
        let body = op.body();
        Self {
            of: SealOf::Record {
                collection: op.key.collection.as_str().into(),
                id: op.key.id.as_str().into(),
                revision,
                kept: op.keeps(),
            },
            digest: record_digest(body),
            bytes: body.map_or(0, |body| body.len() as u64),
        }
    }

    /// Seals the body of a message.
    pub fn message(seq: u64, body: Option<&Body>) -> Self {
        Self {
            of: SealOf::Message { seq },
            digest: message_digest(body),
            bytes: body.map_or(0, |body| body.len() as u64),
        }
    }
}

/// The digest of a step: its identity, status and bodies.
pub fn step_digest(step: &Step) -> Sha256Digest {
    let [input, result, error] =
        [&step.input, &step.result, &step.error].map(|body| Part::of(body.as_ref()));
    let [input_encoding, input] = input.parts();
    let [result_encoding, result] = result.parts();
    let [error_encoding, error] = error.parts();
    Sha256Digest::of_parts(&[
        b"windlass:step:v1",
        step.step_key.as_str().as_bytes(),
        step.name.as_bytes(),
        step.kind.as_str().as_bytes(),
        step.status.as_str().as_bytes(),
        input_encoding,
        input,
        result_encoding,
        result,
        error_encoding,
        error,
    ])
}

/// The digest of a run's end.
pub fn run_end_digest(
    status: RunStatus,
    output: Option<&Body>,
    error: Option<&Body>,
) -> Sha256Digest {
    let [output, error] = [output, error].map(Part::of);
    let [output_encoding, output] = output.parts();
    let [error_encoding, error] = error.parts();
    Sha256Digest::of_parts(&[
        b"windlass:end:v1",
        status.as_str().as_bytes(),
        output_encoding,
        output,
        error_encoding,
        error,
    ])
}

/// The digest of a run's state.
pub(crate) fn state_digest(state: &Body) -> Sha256Digest {
    let part = Part::of(Some(state));
    let [encoding, bytes] = part.parts();
    Sha256Digest::of_parts(&[b"windlass:state:v1", encoding, bytes])
}

/// The digest of the body of a record; of nothing if the record is removed.
pub(crate) fn record_digest(body: Option<&Body>) -> Sha256Digest {
    let part = Part::of(body);
    let [encoding, bytes] = part.parts();
    Sha256Digest::of_parts(&[b"windlass:record:v1", encoding, bytes])
}

/// The digest of the body of a message.
pub(crate) fn message_digest(body: Option<&Body>) -> Sha256Digest {
    let part = Part::of(body);
    let [encoding, bytes] = part.parts();
    Sha256Digest::of_parts(&[b"windlass:message:v1", encoding, bytes])
}

/// The digest of the bodies of several messages.
pub(crate) fn messages_digest<'a>(bodies: impl Iterator<Item = Option<&'a Body>>) -> Sha256Digest {
    let digests: Vec<Sha256Digest> = bodies.map(message_digest).collect();
    let parts: Vec<&[u8]> = std::iter::once(&b"windlass:messages:v1"[..])
        .chain(digests.iter().map(|digest| &digest.as_bytes()[..]))
        .collect();
    Sha256Digest::of_parts(&parts)
}

/// The seals in an event. Custom events have none: their payload belongs to the user.
pub fn seals_of(event: &Event) -> Result<Vec<Seal>, Error> {
    if !event.event_type.is_first_party() {
        return Ok(Vec::new());
    }
    #[derive(Deserialize)]
    struct Sealed {
        #[serde(default)]
        seals: Vec<Seal>,
    }
    // Most payloads have no seals, and searching is cheaper than parsing.
    if !contains(&event.payload, b"\"seals\"") {
        return Ok(Vec::new());
    }
    let sealed: Sealed = serde_json::from_slice(&event.payload).map_err(|source| {
        let message = format!("cannot parse the seals of event {}", event.event_id);
        Error::corrupt(message).with_source(source)
    })?;
    Ok(sealed.seals)
}

/// A larger body enters a seal as its digest, so that a row that holds only a reference to it can be
/// sealed. Smaller bodies are never stored in rows of their own.
pub(crate) const SEALED_BYTES_MAX: usize = 4 * 1024;

/// The parts of a digest that stand for a body.
enum Part<'a> {
    Bytes([&'a [u8]; 2]),
    Digest(&'static [u8], Sha256Digest),
}

impl<'a> Part<'a> {
    // The encoding tells a missing body from an empty one, and a digest from a body that equals it.
    fn of(body: Option<&'a Body>) -> Self {
        match body {
            None => Self::Bytes([b"none", b""]),
            Some(body) if body.len() <= SEALED_BYTES_MAX => {
                Self::Bytes([body.encoding.as_str().as_bytes(), &body.bytes])
            }
            Some(body) => {
                let word: &[u8] = match body.encoding {
                    Encoding::Json => b"json-digest",
                    Encoding::Bytes => b"bytes-digest",
                };
                Self::Digest(word, body.digest())
            }
        }
    }

    fn parts(&self) -> [&[u8]; 2] {
        match self {
            Self::Bytes(parts) => *parts,
            Self::Digest(word, digest) => [word, &digest.as_bytes()[..]],
        }
    }
}

fn contains(bytes: &Bytes, word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::to_canonical;

    #[test]
    fn a_seal_tells_bodies_encodings_and_missing_bodies_apart() {
        let bodies = [
            None,
            Some(Body::json("")),
            Some(Body::json("1")),
            Some(Body::json("2")),
            Some(Body::bytes(bytes::Bytes::from_static(b"1"))),
        ];
        for (n, one) in bodies.iter().enumerate() {
            for (m, other) in bodies.iter().enumerate() {
                let digests = [one, other].map(|body| Seal::message(7, body.as_ref()).digest);
                assert_eq!(digests[0] == digests[1], n == m, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_reference_has_the_seal_of_its_data() {
        use crate::body::BodyRef;
        let body = Body::json(vec![b'1'; SEALED_BYTES_MAX + 1]);
        let reference = BodyRef { digest: body.digest(), len: body.len() as u64 };
        let refers = Body::refer_to(body.encoding, reference);
        assert_eq!(Seal::message(7, Some(&body)), Seal::message(7, Some(&refers)));
        let as_digest = Body::json(body.digest().as_bytes().to_vec());
        assert_ne!(Seal::message(7, Some(&body)).digest, Seal::message(7, Some(&as_digest)).digest);
    }

    #[test]
    fn seals_are_written_in_canonical_form() {
        let body = Body::json("[1]");
        let step = |key: &str| Seal {
            of: SealOf::Step { key: key.into() },
            digest: Sha256Digest::of(key.as_bytes()),
            bytes: 1 << 40,
        };
        let seals = [
            step("a"),
            step("é \"\\\n\u{1}\u{7f}\u{2028}"),
            Seal::message(7, Some(&body)),
            Seal::message(8, None),
            Seal::state(&body),
            Seal {
                of: SealOf::Messages { seqs: vec![1, 3, 200] },
                digest: messages_digest([Some(&body), None].into_iter()),
                bytes: 3,
            },
            Seal {
                of: SealOf::Record {
                    collection: "carts".into(),
                    id: "é \"\\".into(),
                    revision: 12,
                    kept: true,
                },
                digest: record_digest(Some(&body)),
                bytes: 3,
            },
            Seal::run_end(RunStatus::Complete, Some(&body), None),
        ];
        for n in 0..=seals.len() {
            let expect = to_canonical(&seals[..n]).unwrap();
            let mut found = Vec::new();
            Seal::write(&seals[..n], &mut found);
            assert_eq!(String::from_utf8(found), String::from_utf8(expect));
        }
    }
}
