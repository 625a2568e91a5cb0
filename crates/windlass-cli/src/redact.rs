//! Removes passwords from addresses before they are displayed.

use std::ops::Range;

/// Replaces the password in the authority or in a `password=` parameter with "…".
pub(crate) fn without_password(url: &str) -> String {
    let mut shown = url.to_owned();
    if let Some(at) = authority_password(url) {
        shown.replace_range(at, "…");
    }
    if let Some(at) = shown.find("password=") {
        let start = at + "password=".len();
        let length = shown[start..].find(['&', ' ']).unwrap_or(shown.len() - start);
        shown.replace_range(start..start + length, "…");
    }
    shown
}

/// The range of the password in `scheme://user:password@host`.
fn authority_password(url: &str) -> Option<Range<usize>> {
    let start = url.find("://")? + "://".len();
    let length = url[start..].find(['/', '?']).unwrap_or(url.len() - start);
    let user_end = start + url[start..start + length].rfind('@')?;
    let password = start + url[start..user_end].find(':')? + 1;
    Some(password..user_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, expect) in [
            ("sqlite:.windlass/windlass.db", "sqlite:.windlass/windlass.db"),
            ("postgres://me@host:5432/db", "postgres://me@host:5432/db"),
            ("postgres://me:secret@host:5432/db", "postgres://me:…@host:5432/db"),
            ("postgres://me:se@cret@host/db?a=b@c", "postgres://me:…@host/db?a=b@c"),
            ("postgres://host/db", "postgres://host/db"),
            ("postgres://host/db?password=secret&a=b", "postgres://host/db?password=…&a=b"),
            ("host=localhost password=secret", "host=localhost password=…"),
        ] {
            assert_eq!(without_password(url), expect);
        }
    }
}
