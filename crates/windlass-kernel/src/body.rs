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
///
/// A row holds either the data or, for a large body, a reference to a row of its own
/// ([`crate::bodies`]). Listings and status reads return references; [`crate::bodies::fill`] replaces
/// them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Body {
    /// The encoding of the data.
    pub encoding: Encoding,
    /// The bytes as they came in. They are never parsed and written again. Of a reference, these are
    /// not the data: check [`Body::is_reference`] where a body may come from a listing.
    pub bytes: Bytes,
    is_reference: bool,
}

/// The value of the encoding column of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyColumn {
    encoding: Encoding,
    is_reference: bool,
}

impl BodyColumn {
    /// Parses the value of the column.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (encoding, is_reference) = match text {
            "json_ref" => (Encoding::Json, true),
            "bytes_ref" => (Encoding::Bytes, true),
            other => (Encoding::parse(other)?, false),
        };
        Ok(Self { encoding, is_reference })
    }
}

/// The digest and the size of a body that is stored in a row of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyRef {
    /// The digest of the bytes.
    pub digest: Sha256Digest,
    /// The number of bytes.
    pub len: u64,
}

const DIGEST_BYTES: usize = 32;

impl Body {
    /// Wraps JSON text. The text is not checked.
    pub fn json(bytes: impl Into<Bytes>) -> Self {
        Self { encoding: Encoding::Json, bytes: bytes.into(), is_reference: false }
    }

    /// Wraps bytes.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self { encoding: Encoding::Bytes, bytes: bytes.into(), is_reference: false }
    }

    /// Refers to a body that is stored in a row of its own.
    pub fn refer_to(encoding: Encoding, reference: BodyRef) -> Self {
        let mut bytes = Vec::with_capacity(DIGEST_BYTES + 8);
        bytes.extend_from_slice(reference.digest.as_bytes());
        // The size is written as decimal digits, so that a database can sum up sizes.
        bytes.extend_from_slice(itoa::Buffer::new().format(reference.len).as_bytes());
        Self { encoding, bytes: bytes.into(), is_reference: true }
    }

    /// Whether the data is stored in another row.
    pub fn is_reference(&self) -> bool {
        self.is_reference
    }

    /// The digest and the size of the data, if it is stored in another row.
    pub fn reference(&self) -> Option<BodyRef> {
        if !self.is_reference {
            return None;
        }
        let (digest, len) = self.bytes.split_at_checked(DIGEST_BYTES)?;
        let digest = Sha256Digest::from_bytes(digest.try_into().ok()?);
        Some(BodyRef { digest, len: std::str::from_utf8(len).ok()?.parse().ok()? })
    }

    /// Replaces a reference by the data.
    pub(crate) fn fill(&mut self, bytes: Bytes) {
        (self.bytes, self.is_reference) = (bytes, false);
    }

    /// The value of the encoding column: it also says whether the body is a reference.
    pub fn column(&self) -> &'static str {
        match (self.encoding, self.is_reference) {
            (encoding, false) => encoding.as_str(),
            (Encoding::Json, true) => "json_ref",
            (Encoding::Bytes, true) => "bytes_ref",
        }
    }

    /// The body of a row, from its two columns.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::StoreCorrupt`] if the columns are not those of a body.
    pub fn from_columns(encoding: &str, bytes: impl Into<Bytes>) -> Result<Self, Error> {
        Self::from_column(BodyColumn::parse(encoding)?, bytes)
    }

    /// Like [`Body::from_columns`], with the parsed value of the encoding column.
    ///
    /// # Errors
    ///
    /// As [`Body::from_columns`].
    pub fn from_column(column: BodyColumn, bytes: impl Into<Bytes>) -> Result<Self, Error> {
        let BodyColumn { encoding, is_reference } = column;
        let body = Self { encoding, bytes: bytes.into(), is_reference };
        if is_reference && body.reference().is_none() {
            return Err(Error::corrupt("a reference to a large body has no digest or no size"));
        }
        Ok(body)
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
        if self.is_reference {
            let message = "the body is stored in another row and was not read";
            return Err(Error::new(ErrorKind::Internal, ErrorCode::Internal, message));
        }
        if self.encoding != Encoding::Json {
            let message = format!("cannot decode a body of {} as JSON", self.encoding.as_str());
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message));
        }
        serde_json::from_slice(&self.bytes).map_err(|source| {
            let message = "cannot decode the body as the requested type";
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message).with_source(source)
        })
    }

    /// The number of bytes of the data.
    pub fn len(&self) -> usize {
        match self.reference() {
            Some(reference) => usize::try_from(reference.len).unwrap_or(usize::MAX),
            None => self.bytes.len(),
        }
    }

    /// Whether the data has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The SHA-256 digest of the raw bytes. It does not cover the encoding, so that anybody who has
    /// the input can compute its hash.
    pub fn digest(&self) -> Sha256Digest {
        match self.reference() {
            Some(reference) => reference.digest,
            None => Sha256Digest::of(&self.bytes),
        }
    }
}

impl fmt::Debug for Body {
    // Bodies may contain secrets, and debug output reaches process logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({}, {} bytes)", self.column(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_keeps_encoding_digest_and_size() {
        for body in [Body::json("[1,2]"), Body::bytes(vec![7; 100_000])] {
            let reference = BodyRef { digest: body.digest(), len: body.len() as u64 };
            let refers = Body::refer_to(body.encoding, reference);
            assert_eq!((refers.digest(), refers.len()), (body.digest(), body.len()));
            assert_eq!(refers.encoding, body.encoding);
            assert_ne!(refers, body);
            let stored = Body::from_columns(refers.column(), refers.bytes.clone()).unwrap();
            assert_eq!(stored, refers);
            assert_eq!(Body::from_columns(body.column(), body.bytes.clone()).unwrap(), body);
        }
    }

    #[test]
    fn a_reference_is_not_read_as_data() {
        let digest = Body::json("1").digest();
        let refers = Body::refer_to(Encoding::Json, BodyRef { digest, len: 1 });
        assert_eq!(refers.read::<u8>().unwrap_err().code(), ErrorCode::Internal);
        for damaged in [&b""[..], &[0; 31], &[0; 32], b"0123456789abcdef0123456789abcdefx"] {
            let read = Body::from_columns("json_ref", damaged.to_vec());
            assert_eq!(read.unwrap_err().code(), ErrorCode::StoreCorrupt, "{damaged:?}");
        }
    }
}
