//! The variables of a workflow: a JSON map that knows which keys changed since the last boundary.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use windlass_kernel::summary::{Change, ChangeKind, MapDiff, ValueShape, ValueSummary};
use windlass_kernel::{Error, ErrorCode, ErrorKind, IntoDuration, SetsumDigest};

/// How many keys an env has at most.
pub const ENV_KEYS_MAX: usize = 4_096;
/// How many bytes the name of a key has at most.
pub const ENV_KEY_BYTES_MAX: usize = 256;
/// How deep a value is nested at most.
const DEPTH_MAX: usize = 64;

/// The env of a workflow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env {
    entries: BTreeMap<String, Entry>,
    // The summaries of changed keys as they were at the last mark.
    before: BTreeMap<String, ValueSummary>,
    // The digest and the number of keys at the last mark.
    marked: OnceLock<(SetsumDigest, usize)>,
}

#[derive(Clone, Debug)]
struct Entry {
    // Shared, because every call keeps the workflow as it was before.
    value: Arc<Value>,
    // Large values are digested once, not at every boundary.
    summary: OnceLock<ValueSummary>,
}

impl Entry {
    fn new(value: Value) -> Self {
        Self { value: Arc::new(value), summary: OnceLock::new() }
    }

    fn summary(&self) -> ValueSummary {
        *self.summary.get_or_init(|| ValueSummary::of(Some(&self.value)))
    }
}

impl Env {
    pub(crate) fn from_map(map: Map<String, Value>) -> Self {
        let entries = map.into_iter().map(|(key, value)| (key, Entry::new(value))).collect();
        let env = Self { entries, ..Self::default() };
        env.digest_at_mark();
        env
    }

    pub(crate) fn to_map(&self) -> Map<String, Value> {
        self.entries.iter().map(|(key, entry)| (key.clone(), (*entry.value).clone())).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).map(|entry| &*entry.value)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Value, ValueSummary)> {
        self.entries.iter().map(|(key, entry)| (key.as_str(), &*entry.value, entry.summary()))
    }

    pub(crate) fn summary(&self, key: &str) -> ValueSummary {
        self.entries.get(key).map_or_else(|| ValueSummary::of(None), Entry::summary)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, key: &str) -> Result<T, Error> {
        let value = self.value(key).ok_or_else(|| missing(key))?;
        T::deserialize(value).map_err(|source| unreadable(key, source))
    }

    pub(crate) fn write<T: Serialize>(&mut self, key: &str, value: &T) -> Result<(), Error> {
        let value = serde_json::to_value(value).map_err(|source| {
            let message = format!("the value of env key {key:?} cannot be written as JSON");
            invalid(ErrorCode::EnvValueInvalid, message).with_source(source)
        })?;
        check_value(key, &value)?;
        self.put(key, value)
    }

    /// Sets a value that the model itself made.
    pub(crate) fn put(&mut self, key: &str, value: Value) -> Result<(), Error> {
        check_key(key)?;
        if !self.entries.contains_key(key) && self.entries.len() >= ENV_KEYS_MAX {
            let message = format!("the env has {ENV_KEYS_MAX} keys; no more are allowed");
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        self.touch(key);
        self.entries.insert(key.to_owned(), Entry::new(value));
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Value> {
        if !self.entries.contains_key(key) {
            return None;
        }
        self.touch(key);
        self.entries.remove(key).map(|entry| Arc::unwrap_or_clone(entry.value))
    }

    fn touch(&mut self, key: &str) {
        self.digest_at_mark();
        if !self.before.contains_key(key) {
            let summary = self.summary(key);
            self.before.insert(key.to_owned(), summary);
        }
    }

    fn digest_at_mark(&self) -> (SetsumDigest, usize) {
        *self.marked.get_or_init(|| (self.digest(), self.entries.len()))
    }

    /// The digest of the whole env.
    pub(crate) fn digest(&self) -> SetsumDigest {
        let digests = self.entries.iter();
        SetsumDigest::of_entries(
            digests.filter_map(|(key, entry)| Some((key, entry.summary().digest?))),
        )
    }

    /// Begins a new comparison: later changes are relative to the env as it is now.
    pub(crate) fn mark(&mut self) {
        self.before.clear();
        let digest = self.digest();
        self.marked = OnceLock::from((digest, self.entries.len()));
    }

    /// The keys that changed since the last mark.
    pub(crate) fn changes_all(&self) -> Vec<String> {
        let changed =
            self.before.iter().filter(|(key, before)| self.summary(key).digest != before.digest);
        changed.map(|(key, _)| key.clone()).collect()
    }

    /// The changes since the last mark, at most `max` of them listed.
    pub(crate) fn changes(&self, max: usize) -> MapDiff {
        let (before_digest, before_keys) = self.digest_at_mark();
        let after_digest = match self.before.is_empty() {
            true => before_digest,
            false => self.digest(),
        };
        let mut diff = MapDiff {
            changes: Vec::new(),
            added: 0,
            removed: 0,
            modified: 0,
            truncated: false,
            omitted: 0,
            before_digest,
            after_digest,
            before_keys,
            after_keys: self.entries.len(),
        };
        for (key, before) in &self.before {
            let after = self.summary(key);
            if before.digest == after.digest {
                continue;
            }
            let (change, count) = match (before.shape, after.shape) {
                (ValueShape::Missing, _) => (ChangeKind::Added, &mut diff.added),
                (_, ValueShape::Missing) => (ChangeKind::Removed, &mut diff.removed),
                _ => (ChangeKind::Modified, &mut diff.modified),
            };
            *count += 1;
            if diff.changes.len() < max {
                diff.changes.push(Change { key: key.clone(), change, before: *before, after });
            }
        }
        // Long keys must not fill the payload of an event.
        let bytes =
            |changes: &Vec<Change>| serde_json::to_vec(changes).map_or(0, |text| text.len());
        while bytes(&diff.changes) > CHANGES_BYTES_MAX {
            diff.changes.truncate(diff.changes.len() / 2);
        }
        diff.omitted = diff.added + diff.removed + diff.modified - diff.changes.len();
        diff.truncated = diff.omitted > 0;
        diff
    }
}

/// How many bytes of an event the listed changes take at most.
const CHANGES_BYTES_MAX: usize = 16 * 1024;

fn check_key(key: &str) -> Result<(), Error> {
    if key.is_empty() || key.len() > ENV_KEY_BYTES_MAX || key.contains('\0') {
        let message = format!(
            "an env key has 1 to {ENV_KEY_BYTES_MAX} bytes and no NUL character; this one has {} bytes",
            key.len()
        );
        return Err(invalid(ErrorCode::InvalidName, message));
    }
    Ok(())
}

// The model marks its own references with member names that begin with `$`.
fn check_value(key: &str, value: &Value) -> Result<(), Error> {
    if let Value::Object(members) = value
        && let Some(name) = members.keys().find(|name| RESERVED.contains(&name.as_str()))
    {
        let message = format!(
            "the value of env key {key:?} has a member {name:?} at its top, which is reserved"
        );
        return Err(invalid(ErrorCode::EnvValueInvalid, message));
    }
    if depth_exceeds(value, DEPTH_MAX) {
        let message =
            format!("the value of env key {key:?} is nested deeper than {DEPTH_MAX} levels");
        return Err(invalid(ErrorCode::EnvValueInvalid, message));
    }
    Ok(())
}

/// The member of a reference to a response, and of a reference to a large value.
pub(crate) const RESPONSE_MEMBER: &str = "$response";
pub(crate) const VALUE_MEMBER: &str = "$value";
const RESERVED: [&str; 2] = [RESPONSE_MEMBER, VALUE_MEMBER];

fn depth_exceeds(value: &Value, left: usize) -> bool {
    match value {
        Value::Array(items) => left == 0 || items.iter().any(|v| depth_exceeds(v, left - 1)),
        Value::Object(members) => left == 0 || members.values().any(|v| depth_exceeds(v, left - 1)),
        _ => false,
    }
}

fn missing(key: &str) -> Error {
    let message = format!("the env has no key {key:?}");
    Error::new(ErrorKind::NotFound, ErrorCode::EnvKeyNotFound, message)
}

fn unreadable(key: &str, source: serde_json::Error) -> Error {
    // The text of the source can quote the value, so it stays out of the message.
    let message = format!("the value of env key {key:?} is not of the type that the program reads");
    invalid(ErrorCode::EnvValueInvalid, message).with_source(source)
}

pub(crate) fn invalid(code: ErrorCode, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, code, message)
}

/// Reads a duration of a builder.
pub(crate) fn read_duration(field: &str, duration: impl IntoDuration) -> Result<Duration, Error> {
    duration
        .into_duration()
        .map_err(|error| invalid(ErrorCode::InvalidDuration, format!("{field}: {error}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn env(value: Value) -> Env {
        let Value::Object(map) = value else { panic!("not an object") };
        Env::from_map(map)
    }

    #[test]
    fn changes_equal_the_comparison_of_whole_maps() {
        type Edit = fn(&mut Env);
        let cases: [(&str, Value, Edit); 6] = [
            ("nothing", json!({"a": 1}), |_| {}),
            ("set the same", json!({"a": 1}), |env| env.write("a", &1.0).unwrap()),
            ("add and remove", json!({"a": 1}), |env| {
                env.write("b", &"x").unwrap();
                env.remove("a");
            }),
            ("add then remove", json!({"a": 1}), |env| {
                env.write("b", &"x").unwrap();
                env.remove("b");
            }),
            ("remove then add", json!({"a": 1}), |env| {
                env.remove("a");
                env.write("a", &[2]).unwrap();
            }),
            ("many", json!({}), |env| {
                (0..100).for_each(|n| env.write(&format!("k{n:03}"), &n).unwrap());
            }),
        ];
        for (name, before, edit) in cases {
            let mut after = env(before.clone());
            edit(&mut after);
            let expect = MapDiff::between(before.as_object().unwrap(), &after.to_map(), 40);
            assert_eq!(after.changes(40), expect, "{name}");
            after.mark();
            assert!(after.changes(64).is_empty(), "{name}");
            assert_eq!(after.changes(64).before_digest, expect.after_digest, "{name}");
        }
    }

    #[test]
    fn long_keys_leave_changes_out_and_keep_the_counts() {
        let mut env = Env::default();
        (0..64).for_each(|n| env.write(&format!("{n:0>250}"), &n).unwrap());
        let diff = env.changes(64);
        assert!(serde_json::to_vec(&diff.changes).unwrap().len() <= CHANGES_BYTES_MAX);
        assert!(!diff.changes.is_empty() && diff.truncated);
        assert_eq!((diff.added, diff.omitted), (64, 64 - diff.changes.len()));
    }

    #[test]
    fn refuses_keys_and_values() {
        let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
        let long = "k".repeat(257);
        for (key, value, code) in [
            ("", json!(1), "INVALID_NAME"),
            (long.as_str(), json!(1), "INVALID_NAME"),
            ("a\0", json!(1), "INVALID_NAME"),
            ("a", json!({"$response": 1}), "ENV_VALUE_INVALID"),
            ("a", deep, "ENV_VALUE_INVALID"),
        ] {
            let mut env = Env::default();
            assert_eq!(env.write(key, &value).unwrap_err().code(), code, "{key:?}");
            assert_eq!(env.len(), 0);
        }
        let mut full = Env::default();
        (0..ENV_KEYS_MAX).for_each(|n| full.write(&n.to_string(), &n).unwrap());
        let error = full.write("more", &1).unwrap_err();
        assert!(error.to_string().contains("4096 keys"), "{error}");
        full.write("0", &7).unwrap();
    }

    #[test]
    fn reads_have_typed_errors() {
        let env = env(json!({"n": 1, "secret": "s3cr3t"}));
        assert_eq!(env.read::<u32>("n").unwrap(), 1);
        assert_eq!(env.read::<u32>("m").unwrap_err().code(), "ENV_KEY_NOT_FOUND");
        let error = env.read::<u32>("secret").unwrap_err();
        assert_eq!(error.code(), "ENV_VALUE_INVALID");
        assert!(!error.message().contains("s3cr3t"), "{error}");
    }
}
