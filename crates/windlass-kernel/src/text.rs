//! A text that is either a constant of the program or read from a store.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A constant costs nothing to copy; a stored text is shared. Both compare by their characters.
#[derive(Clone)]
pub(crate) enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Static(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::Shared(text.into())
    }
}

impl From<Arc<str>> for Text {
    fn from(text: Arc<str>) -> Self {
        Self::Shared(text)
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &**self)
    }
}

/// Whether a constant has only letters, digits, `_` and, after its first character, `-`, `.` and `:`.
pub(crate) const fn is_composed(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let word = bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_';
        if !word && (at == 0 || !matches!(bytes[at], b'-' | b'.' | b':')) {
            return false;
        }
        at += 1;
    }
    !bytes.is_empty()
}

/// Whether a constant starts with another one.
pub(crate) const fn starts_with(text: &str, prefix: &str) -> bool {
    let (text, prefix) = (text.as_bytes(), prefix.as_bytes());
    let mut at = 0;
    while at < prefix.len() {
        if at >= text.len() || text[at] != prefix[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_and_stored_texts_compare_by_their_characters() {
        let hash = |text: &Text| {
            let mut state = std::hash::DefaultHasher::new();
            text.hash(&mut state);
            state.finish()
        };
        let (constant, stored) = (Text::Static("step"), Text::from("step"));
        assert_eq!(constant, stored);
        assert_eq!(hash(&constant), hash(&stored));
        assert_eq!(constant.cmp(&stored), Ordering::Equal);
        assert_ne!(constant, Text::from("steps"));
        assert_eq!(format!("{stored} {constant:?}"), "step \"step\"");
    }

    #[test]
    fn constants_are_checked() {
        for (text, expect) in
            [("step", true), ("a-b.c:d", true), ("-a", false), ("", false), ("a b", false)]
        {
            assert_eq!(is_composed(text), expect, "{text:?}");
        }
        for (text, prefix, expect) in
            [("step.done", "step.", true), ("step", "step.", false), ("stop.x", "step.", false)]
        {
            assert_eq!(starts_with(text, prefix), expect, "{text:?}");
        }
    }
}
