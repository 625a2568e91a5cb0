//! Removes passwords from addresses and from texts before they are displayed.

use std::ops::Range;

/// Replaces every password of an address with "…": in the authority, and in each parameter whose name
/// ends with `password`, as a query or as `key=value` words.
pub(crate) fn without_password(url: &str) -> String {
    let mut shown = url.to_owned();
    // From the end, so that the other ranges stay valid.
    for at in password_ranges(url).into_iter().rev() {
        shown.replace_range(at, "…");
    }
    shown
}

/// Replaces every password of an address, and the one in `PGPASSWORD`, in a text about it.
pub(crate) fn scrub(text: &str, address: &str) -> String {
    let mut secrets: Vec<String> = Vec::new();
    for at in password_ranges(address) {
        let raw = &address[at];
        secrets.extend([raw.to_owned(), unquoted(raw), percent_decoded(raw)]);
    }
    secrets.extend(std::env::var("PGPASSWORD").ok());
    secrets.retain(|secret| !secret.is_empty());
    // The longest first: one form may contain another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "…"))
}

fn password_ranges(url: &str) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = authority_password(url).into_iter().collect();
    let lower = url.to_ascii_lowercase();
    let mut from = ranges.first().map_or(0, |range| range.end);
    while let Some(found) = lower[from..].find("password") {
        let after = from + found + "password".len();
        from = after;
        let rest = &url[after..];
        let value = rest.trim_start_matches(' ');
        let Some(value) = value.strip_prefix('=') else { continue };
        // Only words of the form `key = value` have spaces around the sign.
        let is_query = url.contains("://");
        let value = if is_query { value } else { value.trim_start_matches(' ') };
        let start = url.len() - value.len();
        let end = start + value_length(value, is_query);
        if end > start {
            ranges.push(start..end);
        }
        from = end;
    }
    ranges
}

// The value ends at the next parameter. In the form with words it may be quoted, and `\` escapes.
fn value_length(value: &str, is_query: bool) -> usize {
    if is_query {
        return value.find('&').unwrap_or(value.len());
    }
    let quoted = value.starts_with('\'');
    let mut escaped = false;
    for (at, c) in value.char_indices().skip(usize::from(quoted)) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' if quoted => return at + 1,
            ' ' | '\t' | '\n' if !quoted => return at,
            _ => {}
        }
    }
    value.len()
}

fn unquoted(raw: &str) -> String {
    let inner = raw.strip_prefix('\'').map_or(raw, |rest| rest.strip_suffix('\'').unwrap_or(rest));
    let mut text = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    text
}

fn percent_decoded(raw: &str) -> String {
    let bytes = raw.as_bytes();
    let (mut decoded, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = raw.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match hex.filter(|_| bytes[at] == b'%') {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The range of the password in `scheme://user:password@host`. A password may contain `@`, `/` and `?`
/// although it should be encoded, so it ends at the last `@` before the query.
fn authority_password(url: &str) -> Option<Range<usize>> {
    let start = url.find("://")? + "://".len();
    let slash = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let query = url[start..].find('?').map_or(url.len(), |at| start + at);
    let user_end = url[start..slash].rfind('@').or_else(|| url[start..query].rfind('@'))?;
    let user_end = start + user_end;
    let password = start + url[start..user_end].find(':')? + 1;
    (password < user_end).then_some(password..user_end)
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
            ("postgres://me:se/cret@host/db", "postgres://me:…@host/db"),
            ("postgres://host/db", "postgres://host/db"),
            ("postgres://host/db?password=secret&a=b", "postgres://host/db?password=…&a=b"),
            (
                "postgres://u:secret@host/db?sslpassword=secret&PASSWORD=secret",
                "postgres://u:…@host/db?sslpassword=…&PASSWORD=…",
            ),
            ("host=localhost password=secret", "host=localhost password=…"),
            ("password='se cr\\'et' host=h", "password=… host=h"),
            ("password = secret host=h password=again", "password = … host=h password=…"),
        ] {
            assert_eq!(without_password(url), expect);
        }
    }

    #[test]
    fn a_text_about_an_address_has_no_password() {
        for address in [
            "postgres://me:p%40ss%20word@host/db",
            "postgres://host/db?password=p%40ss%20word",
            "host=h password='p@ss word' user=u",
            "host=h user=u password=p@ss\\ word",
        ] {
            let text = format!("cannot read {address}: p@ss word is wrong");
            let shown = scrub(&text, address);
            assert!(!shown.contains("p@ss word") && !shown.contains("p%40ss"), "{shown}");
            assert!(shown.contains("cannot read") && shown.contains("is wrong"), "{shown}");
        }
    }
}
