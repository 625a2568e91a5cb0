//! Bodies: what users hand us and get back, kept as the bytes that came in.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorKind};

/// How the bytes of a body are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// UTF-8 JSON.
    Json,
    /// Bytes that only the user understands.
    Bytes,
}

impl Encoding {
    /// The word that stands in the column.
    pub fn as_str(self) -> &'static str {
        match self {
            Encoding::Json => "json",
            Encoding::Bytes => "bytes",
        }
    }

    /// Reads the word that stands in the column.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "json" => Ok(Encoding::Json),
            "bytes" => Ok(Encoding::Bytes),
            other => Err(Error::corrupt(format!("{other:?} is not an encoding of a body"))),
        }
    }
}

/// Bytes and how to read them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Body {
    /// How the bytes are to be read.
    pub encoding: Encoding,
    /// The bytes as they came in: never parsed and written again.
    pub bytes: Bytes,
}

impl Body {
    /// A body of JSON text that is taken as it is.
    pub fn json(bytes: impl Into<Bytes>) -> Self {
        Self { encoding: Encoding::Json, bytes: bytes.into() }
    }

    /// A body of bytes.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self { encoding: Encoding::Bytes, bytes: bytes.into() }
    }

    /// A JSON body of a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(value).map_err(|source| {
            Error::new(ErrorKind::Invalid, "INVALID_BODY", "the value cannot be written as JSON")
                .with_source(source)
        })?;
        Ok(Self::json(bytes))
    }

    /// Reads a JSON body.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if self.encoding != Encoding::Json {
            let message = format!("a body of {} cannot be read as JSON", self.encoding.as_str());
            return Err(Error::new(ErrorKind::Invalid, "INVALID_BODY", message));
        }
        serde_json::from_slice(&self.bytes).map_err(|source| {
            let message = "the body does not read as the type that is asked for";
            Error::new(ErrorKind::Invalid, "INVALID_BODY", message).with_source(source)
        })
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The digest of the raw bytes. The encoding is not part of it, so that the hash of an
    /// input is what anybody with the input can compute.
    pub fn digest(&self) -> Sha256Digest {
        Sha256Digest::of(&self.bytes)
    }
}

impl fmt::Debug for Body {
    // Bodies may hold secrets; debug output ends in process logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({}, {} bytes)", self.encoding.as_str(), self.bytes.len())
    }
}
