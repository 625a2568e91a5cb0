//! Opaque cursors that mark where the next page starts.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use windlass::ErrorCode;
use windlass::kernel::RunKey;

use crate::error::ApiError;

/// Longer texts cannot be cursors of this server. The longest cursor contains a step key of 256
/// characters of four bytes.
const CHARS_MAX: usize = 4_096;
const CHECK_BYTES: usize = 4;

/// Encodes a cursor. `kind` names the listing, so that other listings reject the cursor.
pub(crate) fn encode(kind: &str, key: &str) -> String {
    let text = format!("{kind} {key}");
    let mut bytes = check(&text).to_vec();
    bytes.extend_from_slice(text.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes a cursor of this listing.
pub(crate) fn decode(kind: &str, cursor: &str) -> Result<String, ApiError> {
    read(kind, cursor).ok_or_else(wrong_listing)
}

/// Like [`decode`], and parses the key.
pub(crate) fn decode_as<T>(
    kind: &str,
    cursor: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let key = decode(kind, cursor)?;
    let found = read(&key);
    found
        .map(Some)
        .ok_or_else(|| ApiError::invalid(ErrorCode::InvalidCursor, "the cursor is malformed"))
}

/// A position within one generation of a run.
pub(crate) struct Position<T> {
    pub(crate) run_key: RunKey,
    pub(crate) at: T,
}

/// Encodes a cursor for the rows of one generation.
pub(crate) fn encode_position(kind: &str, run_key: RunKey, at: &str) -> String {
    encode(kind, &format!("{run_key} {at}"))
}

/// Like [`decode_as`], for a cursor of [`encode_position`].
pub(crate) fn decode_position<T>(
    kind: &str,
    cursor: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<Position<T>>, ApiError> {
    decode_as(kind, cursor, |text| {
        let (run_key, at) = text.split_once(' ')?;
        Some(Position { run_key: run_key.parse().ok()?, at: read(at)? })
    })
}

/// The error for a cursor of another listing.
pub(crate) fn wrong_listing() -> ApiError {
    let message = "the cursor does not belong to this listing; send `nextCursor` of the previous page unchanged, with the same filter";
    ApiError::invalid(ErrorCode::InvalidCursor, message)
}

/// A short digest of the parameters of a listing, so that a cursor is valid only with the same
/// parameters.
pub(crate) fn digest_of(what: &impl std::fmt::Debug) -> String {
    let digest = Sha256::digest(format!("{what:?}").as_bytes());
    hex::encode(&digest[..8])
}

fn read(kind: &str, cursor: &str) -> Option<String> {
    if cursor.len() > CHARS_MAX {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (sum, text) = bytes.split_at_checked(CHECK_BYTES)?;
    let text = std::str::from_utf8(text).ok()?;
    let (found, key) = text.split_once(' ')?;
    (sum == check(text) && found == kind).then(|| key.to_owned())
}

// Detects typing errors and truncation. A forged cursor can only select another page of the same
// listing, so a secret is not needed.
fn check(text: &str) -> [u8; CHECK_BYTES] {
    let digest = Sha256::digest(text.as_bytes());
    let mut sum = [0; CHECK_BYTES];
    sum.copy_from_slice(&digest[..CHECK_BYTES]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_can_contain_the_longest_key() {
        let key = format!("{} {}", u64::MAX, "\u{1f600}".repeat(256));
        assert_eq!(decode("steps", &encode("steps", &key)).unwrap(), key);
    }

    #[test]
    fn cursors_of_other_listings_are_rejected() {
        let cursor = encode("runs", "0191-x y");
        assert_eq!(decode("runs", &cursor).unwrap(), "0191-x y");
        let longer = format!("{cursor}A");
        let shorter = &cursor[..cursor.len() - 1];
        let long = "A".repeat(CHARS_MAX + 1);
        for (kind, text) in [
            ("steps", cursor.as_str()),
            ("runs", ""),
            ("runs", "!"),
            ("runs", &longer),
            ("runs", shorter),
            ("runs", &long),
        ] {
            assert_eq!(decode(kind, text).unwrap_err().code(), "INVALID_CURSOR", "{kind} {text}");
        }
    }
}
