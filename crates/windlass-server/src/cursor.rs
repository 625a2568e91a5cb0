//! Cursors: where the next page begins, in a form that nobody is tempted to take apart.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use windlass::kernel::RunKey;

use crate::error::ApiError;

/// Longer texts are no cursors of ours, and are not looked at. The longest of ours has a step's key of 256
/// characters of four bytes.
const CHARS_MAX: usize = 4_096;
const CHECK_BYTES: usize = 4;

/// A cursor of a listing. `kind` names the listing, so that a cursor of another one is refused.
pub(crate) fn encode(kind: &str, key: &str) -> String {
    let text = format!("{kind} {key}");
    let mut bytes = check(&text).to_vec();
    bytes.extend_from_slice(text.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The key in a cursor, if it is one of this listing.
pub(crate) fn decode(kind: &str, cursor: &str) -> Result<String, ApiError> {
    read(kind, cursor).ok_or_else(of_another)
}

/// As [`decode`], read as what it must be.
pub(crate) fn decode_as<T>(
    kind: &str,
    cursor: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let key = decode(kind, cursor)?;
    let found = read(&key);
    found.map(Some).ok_or_else(|| ApiError::invalid("INVALID_CURSOR", "the cursor does not read"))
}

/// A place in what a run has: the generation that it is of, and where in it.
pub(crate) struct Place<T> {
    pub(crate) run_key: RunKey,
    pub(crate) at: T,
}

/// A cursor of a listing of one generation's rows.
pub(crate) fn encode_place(kind: &str, run_key: RunKey, at: &str) -> String {
    encode(kind, &format!("{run_key} {at}"))
}

/// As [`decode_as`], for a cursor of [`encode_place`].
pub(crate) fn decode_place<T>(
    kind: &str,
    cursor: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<Place<T>>, ApiError> {
    decode_as(kind, cursor, |text| {
        let (run_key, at) = text.split_once(' ')?;
        Some(Place { run_key: run_key.parse().ok()?, at: read(at)? })
    })
}

/// What is told of a cursor that goes with another listing.
pub(crate) fn of_another() -> ApiError {
    let message = "the cursor is not one of this listing; use `nextCursor` of the page before, unchanged, with the same filter";
    ApiError::invalid("INVALID_CURSOR", message)
}

/// A few digits that stand for what a listing was asked for, so that a cursor goes with no other question.
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

// Against typing errors and truncation; a forged cursor reaches no more than a page elsewhere in
// the same listing.
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
    fn a_cursor_of_the_longest_key_reads() {
        let key = format!("{} {}", u64::MAX, "\u{1f600}".repeat(256));
        assert_eq!(decode("steps", &encode("steps", &key)).unwrap(), key);
    }

    #[test]
    fn only_a_cursor_of_the_same_listing_reads() {
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
