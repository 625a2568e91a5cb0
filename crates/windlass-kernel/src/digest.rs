//! Digests: SHA-256 for order and tamper detection, setsum for comparing maps.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use setsum::Setsum;
use sha2::{Digest as _, Sha256};

use crate::canonical;

/// A text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a digest: write `{prefix}` and 64 lowercase hex digits")]
pub struct Error {
    text: String,
    prefix: &'static str,
}

/// A SHA-256 digest, written `sha256:<lowerhex>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    const PREFIX: &str = "sha256:";

    /// Hashes bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Hashes a list of parts, each preceded by its length (u64, little endian).
    ///
    /// The lengths mark where a part ends: `["ab", "c"]` and `["a", "bc"]` differ.
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update(length_prefix(part));
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }

    /// Wraps the bytes of a stored digest.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest as bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Appends the text form.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(Self::PREFIX.as_bytes());
        let from = to.len();
        to.resize(from + 2 * self.0.len(), 0);
        // The slice has two bytes for each byte of the digest, so this cannot fail.
        let _ = hex::encode_to_slice(self.0, &mut to[from..]);
    }
}

/// A setsum digest of a JSON value or of a map of them, written `setsum:v1:<lowerhex>`.
///
/// Compares values without showing them. It does not protect against values that are chosen to
/// collide; the ledger's hash chain uses SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetsumDigest([u8; 32]);

impl SetsumDigest {
    const PREFIX: &str = "setsum:v1:";

    /// Computes the digest of one value: a setsum over one element, its RFC 8785 canonical bytes.
    ///
    /// The order of object keys does not matter; the order of array items does. RFC 8785 rounds
    /// integers beyond 2^53, so two large ids could get the same digest. Each integer that loses
    /// digits therefore adds one more element, made of its path and its digits.
    pub fn value_digest(value: &Value) -> Self {
        Self::measure(value).0
    }

    /// Computes the digest of a map: a setsum over its (key, value digest) pairs, in any order.
    ///
    /// An element is the key and the text of the value's digest, each preceded by its length (u64,
    /// little endian). Each key must occur once. The digest of an empty map is all zeros.
    pub fn map_digest<'a, K: AsRef<str>>(
        entries: impl IntoIterator<Item = (K, &'a Value)>,
    ) -> Self {
        Self::of_entries(entries.into_iter().map(|(key, value)| (key, Self::value_digest(value))))
    }

    /// Wraps the bytes of a stored digest.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest as bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Computes the digest of a value and the length of its canonical form in one pass.
    pub(crate) fn measure(value: &Value) -> (Self, usize) {
        // A `Value` has unique string keys and finite numbers, so this can fail only if some crate
        // enables serde_json's arbitrary precision. The plain text is good enough then.
        let bytes = serde_json_canonicalizer::to_vec(value)
            .unwrap_or_else(|_| value.to_string().into_bytes());
        let mut setsum = Setsum::default();
        setsum.insert(&bytes);
        insert_inexact_integers(&mut setsum, value, &mut Vec::new());
        (Self(setsum.digest()), bytes.len())
    }

    /// Computes [`Self::map_digest`] from the digests of the values.
    pub fn of_entries<K: AsRef<str>>(entries: impl IntoIterator<Item = (K, Self)>) -> Self {
        let mut setsum = Setsum::default();
        for (key, digest) in entries {
            let (key, text) = (key.as_ref().as_bytes(), digest.to_string());
            setsum.insert_vectored(&[
                &length_prefix(key),
                key,
                &length_prefix(text.as_bytes()),
                text.as_bytes(),
            ]);
        }
        Self(setsum.digest())
    }
}

/// Adds an element for each integer that the canonical bytes round.
///
/// The element begins with a NUL byte, which canonical JSON never does, so that it cannot equal the
/// canonical bytes of any value. A path is a list of length-prefixed steps.
fn insert_inexact_integers(setsum: &mut Setsum, value: &Value, path: &mut Vec<u8>) {
    let step = |path: &mut Vec<u8>, kind: u8, name: &[u8]| {
        path.push(kind);
        path.extend_from_slice(&length_prefix(name));
        path.extend_from_slice(name);
    };
    let start = path.len();
    match value {
        Value::Number(number) if !canonical::is_exact(number) => {
            setsum.insert_vectored(&[b"\0", path, b"=", number.to_string().as_bytes()]);
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                step(path, b'[', &(index as u64).to_le_bytes());
                insert_inexact_integers(setsum, item, path);
                path.truncate(start);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                step(path, b'{', key.as_bytes());
                insert_inexact_integers(setsum, item, path);
                path.truncate(start);
            }
        }
        _ => {}
    }
}

fn length_prefix(bytes: &[u8]) -> [u8; 8] {
    (bytes.len() as u64).to_le_bytes()
}

/// Parses the only accepted spelling, so that digests can be compared as text.
fn parse(text: &str, prefix: &'static str) -> Result<[u8; 32], Error> {
    let mut bytes = [0; 32];
    let is_lower_hex = |digits: &&str| !digits.bytes().any(|b| b.is_ascii_uppercase());
    text.strip_prefix(prefix)
        .filter(is_lower_hex)
        .and_then(|digits| hex::decode_to_slice(digits, &mut bytes).ok())
        .map(|()| bytes)
        .ok_or_else(|| Error {
            // Enough to find the text again, however long it is.
            text: text.chars().take(100).collect(),
            prefix,
        })
}

/// Implements text parsing and formatting for a digest type.
macro_rules! as_text {
    ($digest:ident) => {
        impl fmt::Display for $digest {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut digits = [0; 64];
                hex::encode_to_slice(self.0, &mut digits).map_err(|_| fmt::Error)?;
                f.write_str(Self::PREFIX)?;
                f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $digest {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $digest {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                parse(text, Self::PREFIX).map(Self)
            }
        }

        impl Serialize for $digest {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $digest {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

as_text!(Sha256Digest);
as_text!(SetsumDigest);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn sha256_is_the_standard_one() {
        #[track_caller]
        fn check(bytes: &[u8], expect: &str) {
            assert_eq!(Sha256Digest::of(bytes).to_string(), expect);
        }
        check(b"", "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check(b"abc", "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn boundaries_between_parts_count() {
        let lists: &[&[&[u8]]] =
            &[&[], &[b""], &[b"", b""], &[b"abc"], &[b"ab", b"c"], &[b"a", b"bc"], &[b"abc", b""]];
        let digests: std::collections::BTreeSet<_> =
            lists.iter().map(|parts| Sha256Digest::of_parts(parts)).collect();
        assert_eq!(digests.len(), lists.len());
        assert_eq!(Sha256Digest::of_parts(&[b"ab"]), Sha256Digest::of(b"\x02\0\0\0\0\0\0\0ab"));
    }

    #[test]
    fn reads_one_spelling_only() {
        let sha = Sha256Digest::of(b"abc").to_string();
        let sum = SetsumDigest::value_digest(&json!(1)).to_string();
        assert_eq!(sha.parse::<Sha256Digest>().unwrap().to_string(), sha);
        assert_eq!(sum.parse::<SetsumDigest>().unwrap().to_string(), sum);
        let as_json = serde_json::to_string(&sha).unwrap();
        let read: Sha256Digest = serde_json::from_str(&as_json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), as_json);

        #[track_caller]
        fn check(text: &str) {
            let error = text.parse::<Sha256Digest>().unwrap_err().to_string();
            assert!(error.contains("write `sha256:` and 64 lowercase hex"), "{error}");
            assert!(error.len() < 300, "{error}");
        }
        check("");
        check("sha256:");
        check(&sha[7..]);
        check(&sha.to_uppercase());
        check(&sha.replace("ba78", "BA78"));
        check(&sha[..70]);
        check(&format!("{sha}0"));
        check(&sha.replace("ba78", "é78"));
        check(&sum);
        check(&"x".repeat(10_000));
    }

    #[test]
    fn setsum_elements_match_the_docs() {
        let value = json!({"b": [1, 2], "a": null});
        let mut expect = Setsum::default();
        expect.insert(br#"{"a":null,"b":[1,2]}"#);
        let digest = SetsumDigest::value_digest(&value);
        assert_eq!(digest.to_string(), format!("setsum:v1:{}", expect.hexdigest()));

        let mut element = 3_u64.to_le_bytes().to_vec();
        element.extend(b"key");
        element.extend(74_u64.to_le_bytes());
        element.extend(digest.to_string().as_bytes());
        let mut expect = Setsum::default();
        expect.insert(&element);
        let digest = SetsumDigest::map_digest([("key", &value)]);
        assert_eq!(digest.to_string(), format!("setsum:v1:{}", expect.hexdigest()));

        let mut expect = Setsum::default();
        expect.insert(b"[1,9007199254740992]");
        expect.insert(b"\0[\x08\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0=9007199254740993");
        let digest = SetsumDigest::value_digest(&json!([1, 9_007_199_254_740_993_u64]));
        assert_eq!(digest.to_string(), format!("setsum:v1:{}", expect.hexdigest()));

        let empty = SetsumDigest::map_digest(&Map::new());
        assert_eq!(empty.to_string(), format!("setsum:v1:{}", "0".repeat(64)));
    }

    #[test]
    fn distinguishes_values() {
        #[track_caller]
        fn check(left: &str, right: &str, same: bool) {
            let digest = |text| SetsumDigest::value_digest(&serde_json::from_str(text).unwrap());
            assert_eq!(digest(left) == digest(right), same, "{left} and {right}");
        }
        check(r#"{"a":1,"b":{"c":2,"d":3}}"#, r#"{"b":{"d":3,"c":2},"a":1}"#, true);
        check("[1,2]", "[2,1]", false);
        check("1", "1.0", true);
        check("0", "-0.0", true);
        check("1", "\"1\"", false);
        check("null", "[]", false);
        check("[[1],2]", "[1,[2]]", false);
        check("9007199254740993", "9007199254740992", false);
        check("9007199254740993", "9007199254740993", true);
        check("18446744073709551615", "18446744073709551614", false);
        let (big, next) = ("9007199254740993", "9007199254740991");
        check(&format!("[{big},{next}]"), &format!("[{next},{big}]"), false);
        check(
            &format!(r#"{{"a":{big},"b":9007199254740992}}"#),
            &format!(r#"{{"a":9007199254740992,"b":{big}}}"#),
            false,
        );
    }

    proptest! {
        #[test]
        fn map_digests_do_not_depend_on_order(
            mut entries in prop::collection::btree_map(any::<String>(), any::<u64>(), 0..8)
                .prop_map(|map| map.into_iter().collect::<Vec<_>>())
                .prop_shuffle(),
        ) {
            let digest = |entries: &[(String, u64)]| {
                let values: Vec<_> = entries.iter().map(|(k, n)| (k, json!(n))).collect();
                SetsumDigest::map_digest(values.iter().map(|(k, v)| (k, v)))
            };
            let shuffled = digest(&entries);
            entries.sort();
            prop_assert_eq!(digest(&entries), shuffled);
            if let Some((key, _)) = entries.pop() {
                let shorter = digest(&entries);
                prop_assert_ne!(shorter, shuffled);
                entries.push((format!("{key}!"), 1));
                prop_assert_ne!(digest(&entries), shuffled);
            }
        }
    }
}
