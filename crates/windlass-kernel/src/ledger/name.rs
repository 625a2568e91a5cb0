//! Event types: dotted names in the past tense, with prefixes that only Windlass may use.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::limits::{Limits, check_max};

/// Prefixes of first-party events. A custom event must not start with any of them.
pub const RESERVED_PREFIXES: &[&str] = &[
    "workflow.",
    "message.",
    "child.",
    "schedule.",
    "effect.",
    "step.",
    "sleep.",
    "event.",
    "activity.",
    "timer.",
    "signal.",
    "relay.",
    "hook.",
    "document.",
    "node.",
    "approval.",
    "llm.",
    "continuation.",
    "tool_call.",
    "fork_join.",
    "human.",
    "anthropic.",
    "openai.",
    "local_call.",
];

/// The type of an event, such as `step.completed`.
#[derive(Clone)]
pub struct EventType(Text);

// Our own types are part of the program.
#[derive(Clone)]
enum Text {
    Own(&'static str),
    Other(Arc<str>),
}

impl EventType {
    /// A first-party type: its prefix must be a reserved one.
    pub fn first_party(text: &'static str) -> Result<Self, Error> {
        check_name(text, &Limits::DEFAULT)?;
        let name = Self(Text::Own(text));
        if !name.is_first_party() {
            let message = format!("event type {text:?} has no first-party prefix");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_EVENT_TYPE", message));
        }
        Ok(name)
    }

    /// A custom type: its prefix must not be a reserved one.
    pub fn custom(text: &str, limits: &Limits) -> Result<Self, Error> {
        check_name(text, limits)?;
        if let Some(prefix) = RESERVED_PREFIXES.iter().find(|prefix| text.starts_with(**prefix)) {
            let message = format!(
                "event type {text:?} starts with {prefix:?}, which is reserved; use a prefix of your own"
            );
            return Err(Error::new(ErrorKind::Invalid, "INVALID_EVENT_TYPE", message));
        }
        Ok(Self(Text::Other(text.into())))
    }

    /// Takes back a type that a store holds.
    pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
        Self(Text::Other(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Own(text) => text,
            Text::Other(text) => text,
        }
    }

    /// Whether only Windlass can have written it.
    pub fn is_first_party(&self) -> bool {
        RESERVED_PREFIXES.iter().any(|prefix| self.as_str().starts_with(prefix))
    }
}

// The charset has no character that JSON escapes: the hash relies on it.
fn check_name(text: &str, limits: &Limits) -> Result<(), Error> {
    check_max("event type", "characters", text.chars().count(), limits.event_type_chars_max)?;
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let good = text.split('.').all(|part| {
        let part = part.as_bytes();
        part.first().is_some_and(|c| word(*c)) && part.iter().all(|c| word(*c) || *c == b'-')
    });
    if !good {
        let shown: String = text.chars().take(40).collect();
        let message = format!(
            "event type {shown:?} is not a dotted name; use words of letters, digits, '_' and '-' with '.' between them, such as \"ticket.classified\""
        );
        return Err(Error::new(ErrorKind::Invalid, "INVALID_EVENT_TYPE", message));
    }
    Ok(())
}

impl PartialEq for EventType {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for EventType {}

impl PartialOrd for EventType {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EventType {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for EventType {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &'static str, first_party: &str, custom: &str) {
        let shown = |result: Result<EventType, Error>| match result {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.to_string(),
        };
        let found = shown(EventType::first_party(text));
        assert!(found.contains(first_party), "{text}: {found}");
        let found = shown(EventType::custom(text, &Limits::DEFAULT));
        assert!(found.contains(custom), "{text}: {found}");
    }

    #[test]
    fn types_are_dotted_names_and_prefixes_are_reserved() {
        check("step.completed", "ok", "reserved");
        check("anthropic.submitted", "ok", "reserved");
        check("ticket.classified", "no first-party prefix", "ok");
        check("stepping.stone", "no first-party prefix", "ok");
        check("workflow", "no first-party prefix", "ok");
        check("", "not a dotted name", "not a dotted name");
        check("a..b", "not a dotted name", "not a dotted name");
        check("a b", "not a dotted name", "not a dotted name");
        check("a.\"b", "not a dotted name", "not a dotted name");
        check("x".repeat(101).leak(), "has 101 characters; at most 100", "at most 100");
    }
}
