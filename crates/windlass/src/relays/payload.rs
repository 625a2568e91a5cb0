//! A payload inside JSON: as it is if it is JSON itself, else in Base64.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

/// Bytes as a part of a JSON text.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// They are JSON, and stand as they are.
    Json(Box<RawValue>),
    /// They are something else.
    Base64(String),
}

impl Payload {
    pub(crate) fn of(bytes: &Bytes) -> Self {
        match serde_json::from_slice::<&RawValue>(bytes) {
            // Without the space around it, which JSON does not keep.
            Ok(json) => Self::Json(json.to_owned()),
            Err(_) => Self::Base64(BASE64_STANDARD.encode(bytes)),
        }
    }

    pub(crate) fn json(&self) -> Option<&RawValue> {
        match self {
            Self::Json(json) => Some(json),
            Self::Base64(_) => None,
        }
    }

    pub(crate) fn base64(&self) -> Option<&str> {
        match self {
            Self::Json(_) => None,
            Self::Base64(text) => Some(text),
        }
    }

    /// The bytes of what was sent: of one field or of the other, `null` if there is neither.
    pub(crate) fn read(
        field: &str,
        json: Option<Box<RawValue>>,
        base64: Option<String>,
    ) -> Result<Bytes, String> {
        match (json, base64) {
            (Some(_), Some(_)) => Err(format!("{field} and {field}_base64 are both there")),
            (Some(json), None) => Ok(String::from(Box::<str>::from(json)).into()),
            (None, Some(text)) => {
                let bytes = BASE64_STANDARD.decode(text);
                bytes.map(Bytes::from).map_err(|_| format!("{field}_base64 is not Base64"))
            }
            (None, None) => Ok(Bytes::from_static(b"null")),
        }
    }
}
