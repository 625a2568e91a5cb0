//! Summaries of values for the ledger: shapes, sizes and digests, never the values themselves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::SetsumDigest;

/// The default for the number of changed keys that a [`MapDiff`] lists.
pub const CHANGES_MAX_DEFAULT: usize = crate::limits::Limits::DEFAULT.diff_entries_max;

/// The type of a JSON value, or `Missing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueShape {
    /// There is no value, which differs from `null`.
    Missing,
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// Any number.
    Number,
    /// Text.
    String,
    /// A list.
    Array,
    /// A map.
    Object,
}

impl ValueShape {
    /// The shape of a value.
    pub fn of(value: Option<&Value>) -> Self {
        match value {
            None => Self::Missing,
            Some(Value::Null) => Self::Null,
            Some(Value::Bool(_)) => Self::Bool,
            Some(Value::Number(_)) => Self::Number,
            Some(Value::String(_)) => Self::String,
            Some(Value::Array(_)) => Self::Array,
            Some(Value::Object(_)) => Self::Object,
        }
    }
}

/// The summary of a value in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ValueSummary {
    /// The type of the value.
    pub shape: ValueShape,
    /// The length of the canonical JSON; 0 if the value is missing.
    pub bytes: usize,
    /// The digest; `None` if the value is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<SetsumDigest>,
}

impl ValueSummary {
    /// Summarises a value.
    pub fn of(value: Option<&Value>) -> Self {
        let measured = value.map(SetsumDigest::measure);
        Self {
            shape: ValueShape::of(value),
            bytes: measured.map_or(0, |(_, bytes)| bytes),
            digest: measured.map(|(digest, _)| digest),
        }
    }
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The key is new.
    Added,
    /// The key was removed.
    Removed,
    /// The key has another value.
    Modified,
}

/// One changed key of a map.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The kind of the change.
    pub change: ChangeKind,
    /// The value before.
    pub before: ValueSummary,
    /// The value after.
    pub after: ValueSummary,
}

/// The differences between two maps, as a member of an event's payload.
///
/// Values with the same digest count as equal. RFC 8785 has one kind of number, so `1` and `1.0`
/// are equal, and so are `0` and `-0.0`. Integers too large for a double are compared exactly.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MapDiff {
    /// The first changed keys, sorted by their bytes.
    pub changes: Vec<Change>,
    /// How many keys were added, listed or not.
    pub added: usize,
    /// How many keys were removed, listed or not.
    pub removed: usize,
    /// How many keys have another value, listed or not.
    pub modified: usize,
    /// Whether some changes are not listed. Not written if all are.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// How many changes are not listed. Not written if all are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: usize,
    /// The digest of the whole map before.
    pub before_digest: SetsumDigest,
    /// The digest of the whole map after.
    pub after_digest: SetsumDigest,
    /// How many keys the map had before.
    pub before_keys: usize,
    /// How many keys the map has after.
    pub after_keys: usize,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl MapDiff {
    /// Compares two maps and lists at most `max` of the keys that changed.
    pub fn between(before: &Map<String, Value>, after: &Map<String, Value>, max: usize) -> Self {
        let entries = summarise_both(before, after);
        let digest_of = |side: fn(&Pair) -> &ValueSummary| {
            SetsumDigest::of_entries(
                entries.iter().filter_map(|(key, pair)| Some((key, side(pair).digest?))),
            )
        };
        let mut diff = Self {
            changes: Vec::new(),
            added: 0,
            removed: 0,
            modified: 0,
            truncated: false,
            omitted: 0,
            before_digest: digest_of(|(before, _)| before),
            after_digest: digest_of(|(_, after)| after),
            before_keys: before.len(),
            after_keys: after.len(),
        };
        for (key, (before, after)) in entries {
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
                diff.changes.push(Change { key: key.to_owned(), change, before, after });
            }
        }
        diff.omitted = diff.added + diff.removed + diff.modified - diff.changes.len();
        diff.truncated = diff.omitted > 0;
        diff
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.added + self.removed + self.modified == 0
    }
}

type Pair = (ValueSummary, ValueSummary);

/// Summarises both sides of each key. The `BTreeMap` sorts the keys, whichever order serde_json
/// keeps.
fn summarise_both<'a>(
    before: &'a Map<String, Value>,
    after: &'a Map<String, Value>,
) -> BTreeMap<&'a str, Pair> {
    let missing = ValueSummary::of(None);
    let mut entries: BTreeMap<&str, Pair> = before
        .iter()
        .map(|(key, value)| (key.as_str(), (ValueSummary::of(Some(value)), missing)))
        .collect();
    for (key, value) in after {
        let entry = entries.entry(key).or_insert((missing, missing));
        // Most values do not change, and comparing is cheaper than hashing again.
        entry.1 =
            if before.get(key) == Some(value) { entry.0 } else { ValueSummary::of(Some(value)) };
    }
    entries
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn diff(before: &Value, after: &Value, max: usize) -> MapDiff {
        MapDiff::between(before.as_object().unwrap(), after.as_object().unwrap(), max)
    }

    #[test]
    fn summarises_values() {
        #[track_caller]
        fn check(value: Option<Value>, shape: &str, bytes: usize) {
            let summary = ValueSummary::of(value.as_ref());
            assert_eq!(serde_json::to_value(summary.shape).unwrap(), shape);
            assert_eq!(summary.bytes, bytes);
            assert_eq!(summary.digest, value.as_ref().map(SetsumDigest::value_digest));
        }
        check(None, "missing", 0);
        check(Some(json!(null)), "null", 4);
        check(Some(json!(false)), "bool", 5);
        check(Some(json!(1.0)), "number", 1);
        check(Some(json!("€")), "string", 5);
        check(Some(json!([1, 2])), "array", 5);
        check(Some(json!({"b": 1, "a": 2})), "object", 13);
    }

    #[test]
    fn lists_changes_by_key() {
        #[track_caller]
        fn check(before: Value, after: Value, expect: &[&str]) {
            let diff = diff(&before, &after, CHANGES_MAX_DEFAULT);
            let listed: Vec<_> = diff
                .changes
                .iter()
                .map(|c| {
                    format!("{} {:?} {:?}>{:?}", c.key, c.change, c.before.shape, c.after.shape)
                })
                .collect();
            assert_eq!(listed, expect);
            assert_eq!(diff.is_empty(), expect.is_empty());
            assert_eq!(diff.is_empty(), diff.before_digest == diff.after_digest);
        }
        check(json!({}), json!({}), &[]);
        check(json!({"a": 1}), json!({"a": 1}), &[]);
        check(json!({"a": 1}), json!({"a": 1.0}), &[]);
        check(json!({"a": {"x": 1, "y": 2}}), json!({"a": {"y": 2, "x": 1}}), &[]);
        check(json!({"a": [1, 2]}), json!({"a": [2, 1]}), &["a Modified Array>Array"]);
        check(
            json!({"a": 9_007_199_254_740_993_u64}),
            json!({"a": 9_007_199_254_740_992_u64}),
            &["a Modified Number>Number"],
        );
        check(json!({}), json!({"a": null}), &["a Added Missing>Null"]);
        check(
            json!({"z": 1, "é": 1, "b": "x", "a": true}),
            json!({"z": 1, "b": ["x"], "B": {}}),
            &[
                "B Added Missing>Object",
                "a Removed Bool>Missing",
                "b Modified String>Array",
                "é Removed Number>Missing",
            ],
        );
    }

    #[test]
    fn the_payload_has_the_documented_form_and_no_values() {
        let diff = diff(
            &json!({"gone": "secret", "kept": 1, "other": 2}),
            &json!({"kept": 1, "new": "secret", "other": "secret"}),
            2,
        );
        let payload = serde_json::to_value(&diff).unwrap();
        assert!(!payload.to_string().contains("secret"));
        let digest = |value| SetsumDigest::value_digest(&value).to_string();
        let text = json!({"shape": "string", "bytes": 8, "digest": digest(json!("secret"))});
        assert_eq!(
            payload,
            json!({
                "changes": [
                    {"key": "gone", "change": "removed", "before": text,
                     "after": {"shape": "missing", "bytes": 0}},
                    {"key": "new", "change": "added",
                     "before": {"shape": "missing", "bytes": 0}, "after": text},
                ],
                "added": 1, "removed": 1, "modified": 1,
                "truncated": true, "omitted": 1,
                "before_digest": diff.before_digest.to_string(),
                "after_digest": diff.after_digest.to_string(),
                "before_keys": 3, "after_keys": 3,
            })
        );
        assert_eq!(serde_json::from_value::<MapDiff>(payload).unwrap(), diff);
    }

    #[test]
    fn the_limit_does_not_change_the_counts() {
        let many: Map<String, Value> = (0..100).map(|n| (format!("k{n:03}"), json!(n))).collect();
        #[track_caller]
        fn check(map: &Map<String, Value>, max: usize, listed: usize) {
            let diff = MapDiff::between(&Map::new(), map, max);
            assert_eq!(diff.changes.len(), listed);
            assert_eq!((diff.added, diff.omitted), (100, 100 - listed));
            assert_eq!(diff.truncated, listed < 100);
            assert_eq!(diff.after_digest, SetsumDigest::map_digest(map));
        }
        check(&many, CHANGES_MAX_DEFAULT, 64);
        check(&many, 0, 0);
        check(&many, 99, 99);
        check(&many, 100, 100);
        check(&many, usize::MAX, 100);
    }

    proptest! {
        #[test]
        fn counts_match_a_naive_diff(
            before in prop::collection::btree_map("[a-e]", 0_u8..3, 0..6),
            after in prop::collection::btree_map("[a-e]", 0_u8..3, 0..6),
            max in 0_usize..6,
        ) {
            let as_map = |map: &BTreeMap<String, u8>| -> Map<String, Value> {
                map.iter().map(|(k, v)| (k.clone(), json!(v))).collect()
            };
            let diff = MapDiff::between(&as_map(&before), &as_map(&after), max);
            let added = after.keys().filter(|k| !before.contains_key(*k)).count();
            let removed = before.keys().filter(|k| !after.contains_key(*k)).count();
            let modified = before.iter().filter(|(k, v)| after.get(*k).is_some_and(|w| w != *v)).count();
            prop_assert_eq!((diff.added, diff.removed, diff.modified), (added, removed, modified));
            prop_assert_eq!(diff.changes.len(), max.min(added + removed + modified));
            prop_assert!(diff.changes.is_sorted_by_key(|c| &c.key));
            prop_assert_eq!(diff.before_digest == diff.after_digest, before == after);
            prop_assert_eq!(diff.before_digest, SetsumDigest::map_digest(&as_map(&before)));
        }
    }
}
