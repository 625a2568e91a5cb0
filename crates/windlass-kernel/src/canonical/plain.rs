//! A fast check, without a copy, whether the text that `serde_json` wrote is canonical already. It
//! usually is.

use super::DEPTH_READABLE_MAX;

/// The member whose position the scan looks for.
const SEALS: &[u8] = b"seals";

// Integers with at most this many digits are always exact.
const DIGITS_MAX: usize = 15;

/// The result of a scan that found canonical JSON.
pub(crate) struct Plain {
    /// Where to insert a member named `seals`. `None` if the text is not an object or has that
    /// member.
    seals_at: Option<usize>,
}

impl Plain {
    /// Scans compact JSON. The text is certainly canonical if its keys are ASCII without escapes,
    /// sorted and unique, its numbers are short integers and its escapes have one letter. `None`
    /// means that the scan cannot decide; the caller must run the full canonicalizer.
    pub(crate) fn of(text: &[u8]) -> Option<Self> {
        let mut scan = Scan { text, at: 0, seals_at: None };
        scan.value(0)?;
        (scan.at == text.len()).then_some(Self { seals_at: scan.seals_at })
    }

    /// Inserts a member named `seals` into the scanned object. Returns `None` if there is no
    /// position for it.
    pub(crate) fn put_seals(
        &self,
        text: &mut Vec<u8>,
        write_seals: impl FnOnce(&mut Vec<u8>),
    ) -> Option<()> {
        let at = self.seals_at?;
        let end = text.len();
        let (first, last) = (at == 1, at + 1 == end);
        if last && !first {
            text.push(b',');
        }
        text.push(b'"');
        text.extend_from_slice(SEALS);
        text.extend_from_slice(b"\":");
        write_seals(text);
        if !last {
            text.push(b',');
        }
        let added = text.len() - end;
        text[at..].rotate_right(added);
        Some(())
    }
}

struct Scan<'t> {
    text: &'t [u8],
    at: usize,
    seals_at: Option<usize>,
}

impl<'t> Scan<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.next()? {
            b'{' if depth < DEPTH_READABLE_MAX => self.object(depth + 1),
            b'[' if depth < DEPTH_READABLE_MAX => self.array(depth + 1),
            b'"' => self.string().map(|_| ()),
            b'-' => self.number(b'1'),
            b'0'..=b'9' => {
                self.at -= 1;
                self.number(b'0')
            }
            b't' => self.word(b"rue"),
            b'f' => self.word(b"alse"),
            b'n' => self.word(b"ull"),
            _ => None,
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        let mut before: Option<&[u8]> = None;
        // At the top level: the first position at which `seals` keeps the keys sorted.
        let mut insert_at = (depth == 1).then_some(self.at);
        if self.peek()? == b'}' {
            self.at += 1;
            self.seals_at = insert_at.or(self.seals_at);
            return Some(());
        }
        loop {
            let key_at = self.at;
            if self.next()? != b'"' {
                return None;
            }
            let key = self.string()?;
            let plain = key.iter().all(|byte| byte.is_ascii() && *byte != b'\\');
            if !plain || before.is_some_and(|before| before >= key) {
                return None;
            }
            if depth == 1 && key >= SEALS && before.is_none_or(|before| before < SEALS) {
                insert_at = (key != SEALS).then_some(key_at);
            }
            before = Some(key);
            if self.next()? != b':' {
                return None;
            }
            self.value(depth)?;
            match self.next()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
        if depth == 1 {
            let ends_before = before.is_some_and(|before| before < SEALS);
            self.seals_at = if ends_before { Some(self.at - 1) } else { insert_at };
        }
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.value(depth)?;
            match self.next()? {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    // Returns the text between the quotes.
    fn string(&mut self) -> Option<&'t [u8]> {
        let from = self.at;
        loop {
            match self.next()? {
                b'"' => return Some(&self.text[from..self.at - 1]),
                b'\\' => match self.next()? {
                    b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                    _ => return None,
                },
                ..0x20 => return None,
                _ => {}
            }
        }
    }

    // Accepts no fraction, no exponent, no leading zero and no negative zero.
    fn number(&mut self, first_min: u8) -> Option<()> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        let digits = &self.text[from..self.at];
        let first = *digits.first()?;
        let zero_first = first == b'0' && digits.len() > 1;
        let whole = !matches!(self.peek(), Some(b'.' | b'e' | b'E'));
        (first >= first_min && !zero_first && digits.len() <= DIGITS_MAX && whole).then_some(())
    }

    fn word(&mut self, rest: &[u8]) -> Option<()> {
        let found = self.text.get(self.at..self.at + rest.len())?;
        self.at += rest.len();
        (found == rest).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, with_seals: Option<&str>) {
        let mut whole = text.as_bytes().to_vec();
        let put = |plain: Plain| plain.put_seals(&mut whole, |to| to.extend_from_slice(b"[]"));
        let found = Plain::of(text.as_bytes()).and_then(put);
        let found = found.map(|()| String::from_utf8(whole).unwrap());
        assert_eq!(found.as_deref(), with_seals, "{text}");
    }

    #[test]
    fn seals_are_inserted_in_key_order() {
        check("{}", Some(r#"{"seals":[]}"#));
        check(r#"{"a":1}"#, Some(r#"{"a":1,"seals":[]}"#));
        check(r#"{"z":1}"#, Some(r#"{"seals":[],"z":1}"#));
        check(r#"{"a":{"t":1},"z":1}"#, Some(r#"{"a":{"t":1},"seals":[],"z":1}"#));
        check(r#"{"seal":1,"sealsa":2,"z":3}"#, Some(r#"{"seal":1,"seals":[],"sealsa":2,"z":3}"#));
        check(r#"{"seals":1}"#, None);
        check(r#"{"a":1,"seals":1,"z":2}"#, None);
        check("[1]", None);
    }

    #[test]
    fn unclear_text_is_not_plain() {
        let doubtful = [
            "1.0",
            "1e3",
            "-0",
            "01",
            "1234567890123456",
            r#"{"b":1,"a":2}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"é":1}"#,
            r#"{"a\n":1}"#,
            r#""\u0001""#,
            r#""\/""#,
            "{ }",
            "[1, 2]",
            "[1",
            "tru",
            "\"a",
            "1 ",
            "",
            "nul",
            "[1,]",
            "{\"a\":}",
        ];
        for text in doubtful {
            assert!(Plain::of(text.as_bytes()).is_none(), "{text}");
        }
        for text in ["0", "-1", "999999999999999", "true", "[]", "[1,\"é\\n\"]", "null", "\"\""] {
            assert!(Plain::of(text.as_bytes()).is_some(), "{text}");
        }
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(Plain::of(deep(DEPTH_READABLE_MAX).as_bytes()).is_some());
        assert!(Plain::of(deep(DEPTH_READABLE_MAX + 1).as_bytes()).is_none());
    }
}
