//! Event types: dotted names in the past tense, with prefixes that only Windlass may use.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorCode, ErrorKind};
use crate::limits::{Limits, check_max};
use crate::text::{Text, is_composed, starts_with};

/// Prefixes of first-party events. A custom event must not start with one of them.
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
    "record.",
    "request.",
];

/// The type of an event, such as `step.completed`. The component that writes a first-party event
/// defines its type as a constant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(Text);

impl EventType {
    /// A first-party type, as a constant. A text that is not a dotted name with a reserved prefix
    /// fails to compile.
    pub const fn from_static(text: &'static str) -> Self {
        assert!(is_composed(text) && text.len() <= 100, "an event type is a dotted name");
        let mut at = 0;
        while at < RESERVED_PREFIXES.len() {
            if starts_with(text, RESERVED_PREFIXES[at]) {
                return Self(Text::Static(text));
            }
            at += 1;
        }
        panic!("the prefix of a first-party event type must be a reserved one");
    }

    /// A custom type. Its prefix must not be reserved.
    pub fn custom(text: &str, limits: &Limits) -> Result<Self, Error> {
        check_name(text, limits)?;
        if let Some(prefix) = RESERVED_PREFIXES.iter().find(|prefix| text.starts_with(**prefix)) {
            let message = format!(
                "event type {text:?} starts with {prefix:?}, which is reserved; use a prefix of your own"
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidEventType, message));
        }
        Ok(Self(Text::Shared(text.into())))
    }

    /// Wraps a stored type.
    pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
        Self(Text::Shared(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether only Windlass can have written the event.
    pub fn is_first_party(&self) -> bool {
        RESERVED_PREFIXES.iter().any(|prefix| self.as_str().starts_with(prefix))
    }
}

// The hash relies on this charset: JSON escapes none of its characters.
fn check_name(text: &str, limits: &Limits) -> Result<(), Error> {
    check_max("event type", "characters", text.chars().count(), limits.event_type_chars_max)?;
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let good = text.split('.').all(|part| {
        let part = part.as_bytes();
        part.first().is_some_and(|c| word(*c)) && part.iter().all(|c| word(*c) || *c == b'-')
    });
    if !good {
        let excerpt: String = text.chars().take(40).collect();
        let message = format!(
            "event type {excerpt:?} is not a dotted name; use words of letters, digits, '_' and '-' with '.' between them, such as \"ticket.classified\""
        );
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidEventType, message));
    }
    Ok(())
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_types_are_dotted_names_without_a_reserved_prefix() {
        let long = "x".repeat(101);
        for (text, expect) in [
            ("step.completed", "reserved"),
            ("anthropic.submitted", "reserved"),
            ("ticket.classified", "ok"),
            ("stepping.stone", "ok"),
            ("workflow", "ok"),
            ("", "not a dotted name"),
            ("a..b", "not a dotted name"),
            ("a b", "not a dotted name"),
            ("a.\"b", "not a dotted name"),
            (long.as_str(), "has 101 characters; at most 100"),
        ] {
            let found = match EventType::custom(text, &Limits::DEFAULT) {
                Ok(_) => "ok".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(found.contains(expect), "{text}: {found}");
        }
    }

    #[test]
    fn constants_have_a_reserved_prefix() {
        assert_eq!(EventType::from_static("step.completed").as_str(), "step.completed");
        for text in ["ticket.classified", "workflow", "step completed", "", "stepping.stone"] {
            std::panic::catch_unwind(|| EventType::from_static(text)).unwrap_err();
        }
    }
}
