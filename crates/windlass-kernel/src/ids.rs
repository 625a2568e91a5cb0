//! Names and keys. Every text that reaches a column has a type that validates it at the boundary.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::error::{Error, ErrorCode, ErrorKind};
use crate::limits::Limits;
use crate::text::{Text, is_composed};

/// The characters that a name may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charset {
    /// `[a-zA-Z0-9_][a-zA-Z0-9-_]*`: usable in a URL path without escaping.
    Word,
    /// As `Word`, plus `.` and `:` after the first character: names that the engine builds.
    Composed,
    /// Any text without control characters (so no NUL, which PostgreSQL cannot store).
    Printable,
    /// As `Printable`, but its length counts bytes, and `.` and `..` are refused because URL parsers
    /// remove them from paths.
    PathSegment,
}

impl Charset {
    fn describe(self) -> &'static str {
        match self {
            Charset::Word => "letters, digits, '_' and (not first) '-'",
            Charset::Composed => "letters, digits, '_' and (not first) '-', '.' and ':'",
            Charset::Printable => "text without control characters",
            Charset::PathSegment => "text without control characters, and not \".\" or \"..\"",
        }
    }

    fn allows(self, text: &str) -> bool {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match self {
            Charset::Printable => !text.chars().any(char::is_control),
            Charset::PathSegment => {
                !text.chars().any(char::is_control) && !matches!(text, "." | "..")
            }
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
    let code = ErrorCode::InvalidName;
    if text.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, code, format!("{what} is empty")));
    }
    // The byte length is at least the character count, so short names skip the count.
    if text.len() > chars_max {
        if charset == Charset::PathSegment {
            let message =
                format!("{what} has {} bytes; at most {chars_max} are allowed", text.len());
            return Err(Error::new(ErrorKind::Invalid, code, message));
        }
        let chars = text.chars().count();
        if chars > chars_max {
            let message = format!("{what} has {chars} characters; at most {chars_max} are allowed");
            return Err(Error::new(ErrorKind::Invalid, code, message));
        }
    }
    if !charset.allows(text) {
        let excerpt: String = text.chars().take(40).collect();
        let allowed = charset.describe();
        let message =
            format!("{what} {excerpt:?} has a character that is not allowed; use {allowed}");
        return Err(Error::new(ErrorKind::Invalid, code, message));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $limit:ident, $charset:ident) => {
        name!($(#[$doc])* $type(Arc<str>), $what, $limit, $charset);
    };
    ($(#[$doc:meta])* $type:ident($inner:ty), $what:literal, $limit:ident, $charset:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type($inner);

        impl $type {
            /// Validates `text` against the default [`Limits`].
            ///
            /// # Errors
            ///
            /// [`ErrorCode::InvalidName`] if the text is empty, too long, or has a character that is not allowed.
            pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
                Self::with_limits(text, &Limits::DEFAULT)
            }

            /// Validates `text` against the given limits.
            ///
            /// # Errors
            ///
            /// As `new`.
            pub fn with_limits(text: impl AsRef<str>, limits: &Limits) -> Result<Self, Error> {
                let text = text.as_ref();
                validate($what, text, limits.$limit, Charset::$charset)?;
                Ok(Self(text.into()))
            }

            /// Wraps a stored text, which was validated when it was written.
            pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
                let text: Arc<str> = text.into();
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
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
    /// A namespace: the tenant boundary. Every row has one.
    Namespace, "namespace", namespace_chars_max, Word
);
name!(
    /// The name of a registered workflow.
    WorkflowName, "workflow name", workflow_chars_max, Printable
);
name!(
    /// The model that runs a workflow: `steps`, `machines`, `relays`, `agents`, `contracts`.
    ModelName(Text), "model name", model_chars_max, Word
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
    /// A queue from which workers claim turns and tasks.
    QueueName, "queue name", queue_chars_max, Composed
);
name!(
    /// The code to run: a workflow name for a turn, an activity or effect type for a task.
    RouteName, "route name", workflow_chars_max, Printable
);
name!(
    /// The id of a message. Sending the same id again has no effect.
    MessageId, "message id", message_id_chars_max, Printable
);
name!(
    /// The name of a message: the type of an event or signal.
    MessageName(Text), "message name", message_name_chars_max, Composed
);
name!(
    /// A key that a concurrency limit counts claims by.
    LimitKey, "limit key", limit_key_chars_max, Printable
);
name!(
    /// A collection of records. Collections that begin with `windlass.` belong to the engine.
    Collection, "collection", collection_chars_max, Composed
);
name!(
    /// The id of a record in its collection.
    RecordId, "record id", record_id_bytes_max, PathSegment
);

name!(
    /// The key that an event is sent to, such as `parcel-17`.
    EventKey, "event key", event_key_bytes_max, PathSegment
);

impl Collection {
    /// Whether only the engine and its models may write the collection.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with("windlass.")
    }
}

/// The kind of a step, such as `sleep`. The model that writes the step defines it.
///
/// A model defines its kinds as constants, which cost nothing to copy and compare.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepKind(Text);

impl StepKind {
    /// A constant of a model. An invalid text fails to compile.
    pub const fn from_static(text: &'static str) -> Self {
        assert!(is_composed(text) && text.len() <= 64, "a step kind is a word of up to 64 bytes");
        Self(Text::Static(text))
    }

    /// Wraps a stored kind.
    pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
        Self(Text::Shared(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StepKey {
    /// The text as a shared pointer, without a copy.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl ModelName {
    /// A constant of a model. An invalid name fails to compile.
    pub const fn from_static(text: &'static str) -> Self {
        assert!(is_composed(text), "a model's name is a word");
        Self(Text::Static(text))
    }
}

impl MessageName {
    /// A constant of the component that sends the message. An invalid name fails to compile.
    pub const fn from_static(text: &'static str) -> Self {
        assert!(is_composed(text), "a message's name is made of words");
        Self(Text::Static(text))
    }
}

impl Namespace {
    /// The namespace that is used if the caller names none.
    pub fn default_namespace() -> Self {
        Self("default".into())
    }
}

impl RunId {
    /// An id that the engine builds from other ids, such as `parent:lhs`. Only such ids contain a
    /// `:`.
    pub fn composed(text: impl AsRef<str>) -> Result<Self, Error> {
        let text = text.as_ref();
        validate("run id", text, Limits::DEFAULT.run_id_composed_chars_max, Charset::Composed)?;
        Ok(Self(text.into()))
    }
}

impl QueueName {
    /// The name of the queue that is used if the caller names none.
    pub const DEFAULT: &str = "default";

    /// The queue that is used if the caller names none.
    pub fn default_queue() -> Self {
        Self(Self::DEFAULT.into())
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
            /// The key as sixteen bytes. Keys sort in the order of these bytes.
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
                    let excerpt: String = text.chars().take(40).collect();
                    let message = format!("{what} {excerpt:?} is not a UUID");
                    Error::new(ErrorKind::Invalid, ErrorCode::InvalidKey, message)
                };
                Uuid::from_str(text).map(Self).map_err(invalid)
            }
        }
    };
}

key!(
    /// Identifies one generation of a run (UUIDv7).
    RunKey
);
key!(
    /// Identifies an event (UUIDv7).
    EventId
);
key!(
    /// Identifies a task (UUIDv7).
    TaskId
);
key!(
    /// Identifies one worker process from its start to its end (UUIDv7).
    WorkerKey
);
key!(
    /// Identifies a log line (UUIDv7).
    LogId
);
key!(
    /// Identifies a write of a record (UUIDv7).
    WriteId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T>(result: Result<T, Error>, expect: &str) {
        let text = match result {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(text.contains(expect), "expected {expect:?} in {text:?}");
    }

    #[test]
    fn name_errors_say_what_is_wrong() {
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
        check(Collection::new("windlass.requests"), "ok");
        check(Collection::new("a/b"), "has a character that is not allowed");
        check(Collection::new("x".repeat(65)), "has 65 characters; at most 64");
        check(RecordId::new("Größe 漢字/7"), "ok");
        check(RecordId::new("漢".repeat(86)), "has 258 bytes; at most 256");
        check(RecordId::new(".."), "not \".\"");
        check("no-uuid".parse::<RunKey>(), "is not a UUID");
    }
}
