//! Bodies: user data (inputs, outputs, message contents), stored as the bytes that came in.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};

/// The encoding of a body's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// UTF-8 JSON.
    Json,
    /// Bytes that only the user can interpret.
    Bytes,
}

impl Encoding {
    /// The value in the column.
    pub fn as_str(self) -> &'static str {
        match self {
            Encoding::Json => "json",
            Encoding::Bytes => "bytes",
        }
    }

    /// Parses the value of the column.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "json" => Ok(Encoding::Json),
            "bytes" => Ok(Encoding::Bytes),
            other => Err(Error::corrupt(format!("{other:?} is not an encoding of a body"))),
        }
    }
}

/// User data and its encoding.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Body {
    /// The encoding of the bytes.
    pub encoding: Encoding,
    /// The bytes as they came in. They are never parsed and written again.
    pub bytes: Bytes,
}

impl Body {
    /// Wraps JSON text. The text is not checked.
    pub fn json(bytes: impl Into<Bytes>) -> Self {
        Self { encoding: Encoding::Json, bytes: bytes.into() }
    }

    /// Wraps bytes.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self { encoding: Encoding::Bytes, bytes: bytes.into() }
    }

    /// Encodes a value as JSON.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(value).map_err(|source| {
            Error::new(
                ErrorKind::Invalid,
                ErrorCode::InvalidBody,
                "cannot serialize the value as JSON",
            )
            .with_source(source)
        })?;
        Ok(Self::json(bytes))
    }

    /// Decodes a JSON body.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if self.encoding != Encoding::Json {
            let message = format!("cannot decode a body of {} as JSON", self.encoding.as_str());
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message));
        }
        serde_json::from_slice(&self.bytes).map_err(|source| {
            let message = "cannot decode the body as the requested type";
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message).with_source(source)
        })
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The SHA-256 digest of the raw bytes. It does not cover the encoding, so that anybody who has
    /// the input can compute its hash.
    pub fn digest(&self) -> Sha256Digest {
        Sha256Digest::of(&self.bytes)
    }
}

impl fmt::Debug for Body {
    // Bodies may contain secrets, and debug output reaches process logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({}, {} bytes)", self.encoding.as_str(), self.bytes.len())
    }
}
