//! Names and keys: every text that reaches a column is a type that was validated at the edge.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::error::{Error, ErrorKind};
use crate::limits::Limits;

/// What characters a name may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charset {
    /// `[a-zA-Z0-9_][a-zA-Z0-9-_]*`: what users may put into a path without quoting.
    Word,
    /// As `Word`, and `.` and `:` after the first character: names that the engine composes.
    Composed,
    /// Any text without control characters (so no NUL, which PostgreSQL cannot store).
    Printable,
}

impl Charset {
    fn describe(self) -> &'static str {
        match self {
            Charset::Word => "letters, digits, '_' and (not first) '-'",
            Charset::Composed => "letters, digits, '_' and (not first) '-', '.' and ':'",
            Charset::Printable => "text without control characters",
        }
    }

    fn allows(self, text: &str) -> bool {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match self {
            Charset::Printable => !text.chars().any(char::is_control),
            Charset::Word => text.starts_with(word) && text.chars().all(|c| word(c) || c == '-'),
            Charset::Composed => {
                text.starts_with(word)
                    && text.chars().all(|c| word(c) || matches!(c, '-' | '.' | ':'))
            }
        }
    }
}

fn validate(
    what: &'static str,
    text: &str,
    chars_max: usize,
    charset: Charset,
) -> Result<(), Error> {
    let code = "INVALID_NAME";
    if text.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, code, format!("{what} is empty")));
    }
    // Bytes bound characters from above, so the usual short name is never counted.
    if text.len() > chars_max {
        let chars = text.chars().count();
        if chars > chars_max {
            let message = format!("{what} has {chars} characters; at most {chars_max} are allowed");
            return Err(Error::new(ErrorKind::Invalid, code, message));
        }
    }
    if !charset.allows(text) {
        let shown: String = text.chars().take(40).collect();
        let allowed = charset.describe();
        let message =
            format!("{what} {shown:?} has a character that is not allowed; use {allowed}");
        return Err(Error::new(ErrorKind::Invalid, code, message));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $limit:ident, $charset:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Validates `text` against the default [`Limits`].
            pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
                Self::with_limits(text, &Limits::DEFAULT)
            }

            /// Validates `text` against the given limits.
            pub fn with_limits(text: impl AsRef<str>, limits: &Limits) -> Result<Self, Error> {
                let text = text.as_ref();
                validate($what, text, limits.$limit, Charset::$charset)?;
                Ok(Self(text.into()))
            }

            /// Takes back a text that a store holds, which was validated when it was written.
            pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The text, shared with this name.
            pub fn shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                Self::new(text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name!(
    /// The tenant boundary; on every row.
    Namespace, "namespace", namespace_chars_max, Word
);
name!(
    /// The name of a registered program.
    WorkflowName, "workflow name", workflow_chars_max, Printable
);
name!(
    /// The model that runs a workflow: `steps`, `machines`, `relays`, `agents`, `contracts`.
    ModelName, "model name", model_chars_max, Word
);
name!(
    /// The user's id of a run, unique in its namespace and workflow.
    RunId, "run id", run_id_chars_max, Word
);
name!(
    /// The key of a step within its run.
    StepKey, "step key", step_key_chars_max, Printable
);
name!(
    /// A queue that workers serve.
    QueueName, "queue name", queue_chars_max, Composed
);
name!(
    /// What is to be run: a workflow's name for a turn, an activity or effect type for a task.
    RouteName, "route name", workflow_chars_max, Printable
);
name!(
    /// A message's id, which makes sending it idempotent.
    MessageId, "message id", message_id_chars_max, Printable
);
name!(
    /// A message's name: the type of an event or signal.
    MessageName, "message name", message_name_chars_max, Composed
);
name!(
    /// A key under which holders are counted against a limit.
    LimitKey, "limit key", limit_key_chars_max, Printable
);

impl Namespace {
    /// The namespace of everybody who never heard of namespaces.
    pub fn default_namespace() -> Self {
        Self("default".into())
    }
}

impl RunId {
    /// An id that the engine composed from others, such as `parent:lhs`; only such ids have a `:`.
    pub fn composed(text: impl AsRef<str>) -> Result<Self, Error> {
        let text = text.as_ref();
        validate("run id", text, Limits::DEFAULT.run_id_composed_chars_max, Charset::Composed)?;
        Ok(Self(text.into()))
    }
}

impl QueueName {
    /// The queue of everybody who never heard of queues.
    pub fn default_queue() -> Self {
        Self("default".into())
    }
}

impl From<&WorkflowName> for RouteName {
    fn from(workflow: &WorkflowName) -> Self {
        Self(workflow.0.clone())
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(pub Uuid);

        impl $type {
            /// The key as sixteen bytes, in the order in which keys sort.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $type {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                let invalid = |_| {
                    let what = stringify!($type);
                    let shown: String = text.chars().take(40).collect();
                    let message = format!("{what} {shown:?} is not a UUID");
                    Error::new(ErrorKind::Invalid, "INVALID_KEY", message)
                };
                Uuid::from_str(text).map(Self).map_err(invalid)
            }
        }
    };
}

key!(
    /// Names one generation of a run (UUIDv7).
    RunKey
);
key!(
    /// Names an event (UUIDv7).
    EventId
);
key!(
    /// Names a task (UUIDv7).
    TaskId
);
key!(
    /// Names one life of one process (UUIDv7): new on every start.
    WorkerKey
);
key!(
    /// Names a log line (UUIDv7).
    LogId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T>(result: Result<T, Error>, expect: &str) {
        let shown = match result {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(shown.contains(expect), "expected {expect:?} in {shown:?}");
    }

    #[test]
    fn names_say_what_is_wrong_with_them() {
        check(RunId::new("order-A_42"), "ok");
        check(RunId::new(""), "run id is empty");
        check(RunId::new("-x"), "has a character that is not allowed");
        check(RunId::new("a:b"), "has a character that is not allowed");
        check(RunId::composed("a:b"), "ok");
        check(RunId::new("x".repeat(100)), "ok");
        check(RunId::new("x".repeat(101)), "has 101 characters; at most 100");
        check(WorkflowName::new("Größe 漢字"), "ok");
        check(WorkflowName::new("漢".repeat(64)), "ok");
        check(WorkflowName::new("漢".repeat(65)), "has 65 characters; at most 64");
        check(WorkflowName::new("a\0b"), "has a character that is not allowed");
        check(StepKey::new("charge card #1"), "ok");
        check("no-uuid".parse::<RunKey>(), "is not a UUID");
    }
}
