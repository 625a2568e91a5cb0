//! Event types: dotted names in the past tense, with prefixes that only Windlass may use.

use std::fmt;
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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(Arc<str>);

impl EventType {
    /// A first-party type: its prefix must be a reserved one.
    pub fn first_party(text: &str) -> Result<Self, Error> {
        let name = Self::parse(text, &Limits::DEFAULT)?;
        if !name.is_first_party() {
            let message = format!("event type {text:?} has no first-party prefix");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_EVENT_TYPE", message));
        }
        Ok(name)
    }

    /// A custom type: its prefix must not be a reserved one.
    pub fn custom(text: &str, limits: &Limits) -> Result<Self, Error> {
        let name = Self::parse(text, limits)?;
        if let Some(prefix) = RESERVED_PREFIXES.iter().find(|prefix| text.starts_with(**prefix)) {
            let message = format!(
                "event type {text:?} starts with {prefix:?}, which is reserved; use a prefix of your own"
            );
            return Err(Error::new(ErrorKind::Invalid, "INVALID_EVENT_TYPE", message));
        }
        Ok(name)
    }

    /// Takes back a type that a store holds.
    pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether only Windlass can have written it.
    pub fn is_first_party(&self) -> bool {
        RESERVED_PREFIXES.iter().any(|prefix| self.0.starts_with(prefix))
    }

    // The charset has no character that JSON escapes: the hash relies on it.
    fn parse(text: &str, limits: &Limits) -> Result<Self, Error> {
        check_max("event type", "characters", text.chars().count(), limits.event_type_chars_max)?;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let good = text
            .split('.')
            .all(|part| part.starts_with(word) && part.chars().all(|c| word(c) || c == '-'));
        if !good {
            let shown: String = text.chars().take(40).collect();
            let message = format!(
                "event type {shown:?} is not a dotted name; use words of letters, digits, '_' and '-' with '.' between them, such as \"ticket.classified\""
            );
            return Err(Error::new(ErrorKind::Invalid, "INVALID_EVENT_TYPE", message));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, first_party: &str, custom: &str) {
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
        check(&"x".repeat(101), "has 101 characters; at most 100", "at most 100");
    }
}
