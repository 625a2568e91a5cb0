//! The join of branches: their changes are merged by key.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

use super::transcript::Transcript;
use super::workflow::Workflow;

/// The env of a branch at its end.
#[derive(Debug, Default)]
pub(crate) struct BranchEnd {
    pub(crate) env: BTreeMap<String, Value>,
    pub(crate) transcripts: BTreeMap<String, Transcript>,
    /// The keys that are merged; all keys and transcripts if there is no list.
    pub(crate) only: Option<Vec<String>>,
}

/// Merges the changes of branches into the workflow that forked them. Equal changes are accepted.
pub(crate) fn merge(
    workflow: &mut Workflow,
    branches: &[(String, BranchEnd)],
) -> Result<(), Error> {
    let merged = |end: &BranchEnd, key: &str| {
        end.only.as_ref().is_none_or(|only| only.iter().any(|name| name == key))
    };
    let env_keys = workflow.env.keys();
    let env = changes(branches, |end| &end.env, |key| workflow.env.value(key), env_keys, merged);
    let base = workflow.transcripts.clone();
    let keys = base.keys().map(String::as_str);
    let all = |end: &BranchEnd, _: &str| end.only.is_none();
    let transcripts = changes(branches, |end| &end.transcripts, |key| base.get(key), keys, all);
    let (env, transcripts) = (env?, transcripts?);
    for (key, value) in env {
        match value {
            Some(value) => workflow.env.put(&key, value)?,
            None => drop(workflow.env.remove(&key)),
        }
    }
    for (name, transcript) in transcripts {
        match transcript {
            Some(transcript) => drop(workflow.transcripts.insert(name, transcript)),
            None => drop(workflow.transcripts.remove(&name)),
        }
    }
    Ok(())
}

// The changed keys with their new values; `None` if a branch removed the key.
fn changes<'a, T>(
    branches: &'a [(String, BranchEnd)],
    side: fn(&BranchEnd) -> &BTreeMap<String, T>,
    base: impl Fn(&str) -> Option<&'a T>,
    base_keys: impl Iterator<Item = &'a str>,
    is_merged: impl Fn(&BranchEnd, &str) -> bool,
) -> Result<BTreeMap<String, Option<T>>, Error>
where
    T: Clone + PartialEq + 'static,
{
    let mut keys: std::collections::BTreeSet<&str> = base_keys.collect();
    for (_, end) in branches {
        keys.extend(side(end).keys().map(String::as_str));
    }
    let mut changes: BTreeMap<String, (&str, Option<&T>)> = BTreeMap::new();
    let mut conflicts: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for key in keys {
        let before = base(key);
        for (name, end) in branches.iter().filter(|(_, end)| is_merged(end, key)) {
            let after = side(end).get(key);
            if after == before {
                continue;
            }
            match changes.get(key) {
                Some((first, known)) if *known != after => {
                    conflicts.entry((first, name)).or_default().push(key);
                }
                Some(_) => {}
                None => drop(changes.insert(key.to_owned(), (name, after))),
            }
        }
    }
    if let Some(((first, second), keys)) = conflicts.into_iter().next() {
        let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        let message = format!("branches {first:?} and {second:?} both changed {}", keys.join(", "));
        return Err(Error::new(ErrorKind::Conflict, ErrorCode::AgentJoinConflict, message));
    }
    Ok(changes.into_iter().map(|(key, (_, value))| (key, value.cloned())).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_by_key() {
        let base = json!({"a": 1, "b": 2, "c": 3});
        for (lhs, rhs, expect) in [
            (
                json!({"a": 1, "b": 2, "c": 3}),
                json!({"a": 1, "b": 2, "c": 3}),
                Ok(json!({"a": 1, "b": 2, "c": 3})),
            ),
            (
                json!({"a": 9, "b": 2, "c": 3}),
                json!({"a": 1, "b": 8, "c": 3}),
                Ok(json!({"a": 9, "b": 8, "c": 3})),
            ),
            (
                json!({"a": 9, "b": 2, "c": 3}),
                json!({"a": 9, "b": 2, "c": 3}),
                Ok(json!({"a": 9, "b": 2, "c": 3})),
            ),
            (
                json!({"b": 2, "c": 3}),
                json!({"a": 1, "b": 2, "c": 3, "d": 4}),
                Ok(json!({"b": 2, "c": 3, "d": 4})),
            ),
            (
                json!({"a": 9, "b": 9, "c": 3}),
                json!({"a": 8, "c": 3}),
                Err("branches \"lhs\" and \"rhs\" both changed \"a\", \"b\""),
            ),
        ] {
            let mut workflow = Workflow::new("w", "f");
            for (key, value) in base.as_object().unwrap() {
                workflow.set(key, value).unwrap();
            }
            let end = |env: Value| BranchEnd {
                env: serde_json::from_value(env).unwrap(),
                ..BranchEnd::default()
            };
            let branches = [("lhs".to_owned(), end(lhs)), ("rhs".to_owned(), end(rhs))];
            match (merge(&mut workflow, &branches), expect) {
                (Ok(()), Ok(expect)) => assert_eq!(Value::Object(workflow.env()), expect),
                (Err(error), Err(expect)) => {
                    assert_eq!(error.message(), expect);
                    assert_eq!(Value::Object(workflow.env()), base);
                }
                (found, expect) => panic!("{found:?} instead of {expect:?}"),
            }
        }
    }
}
