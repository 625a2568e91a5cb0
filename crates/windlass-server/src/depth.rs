//! The nesting depth of JSON, checked before parsing.

/// Whether a JSON text nests arrays and objects deeper than `max`. Counts only brackets outside
/// strings; the parser checks the syntax.
pub(crate) fn is_deeper_than(text: &[u8], max: usize) -> bool {
    let mut depth = 0_usize;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_count_outside_strings() {
        for (text, depth) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[1,{"b":2}],"c":[[]]}"#, 3),
            (r#"{"[[[[":"{{{{\"[["}"#, 1),
            ("[[[[[", 5),
            (r#"["\\",[]]"#, 2),
        ] {
            assert!(!is_deeper_than(text.as_bytes(), depth), "{text}");
            assert!(depth == 0 || is_deeper_than(text.as_bytes(), depth - 1), "{text}");
        }
    }
}
