//! Finds commits in what a client sends to PostgreSQL.

use std::collections::BTreeSet;

/// The texts of statements that commit: the function of the store, and the command itself.
const COMMITS: &[&[u8]] = &[b"commit_batch", b"COMMIT"];
/// The codes of messages without a type, which come before the first typed message.
const STARTUP: u32 = 196_608;

/// A parser of one connection.
#[derive(Default)]
pub(super) struct Frontend {
    buffer: Vec<u8>,
    is_started: bool,
    /// The prepared statements that commit.
    statements: BTreeSet<Vec<u8>>,
}

impl Frontend {
    /// Takes the next bytes. Returns whether a commit was sent completely with them.
    pub(super) fn has_commit(&mut self, bytes: &[u8]) -> bool {
        self.buffer.extend_from_slice(bytes);
        let mut found = false;
        while let Some((kind, body)) = self.next() {
            found |= self.commits(kind, &body);
        }
        found
    }

    /// The next complete message: its type (0 before the start) and its body.
    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let typed = usize::from(self.is_started);
        let length = self.buffer.get(typed..typed + 4)?;
        let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
        let end = typed + length.max(4);
        if self.buffer.len() < end {
            return None;
        }
        let kind = if self.is_started { self.buffer[0] } else { 0 };
        let body = self.buffer[typed + 4..end].to_vec();
        self.buffer.drain(..end);
        if !self.is_started && body.starts_with(&STARTUP.to_be_bytes()) {
            self.is_started = true;
        }
        Some((kind, body))
    }

    fn commits(&mut self, kind: u8, body: &[u8]) -> bool {
        match kind {
            b'Q' => is_commit(body),
            b'P' => {
                let mut texts = body.split(|byte| *byte == 0);
                let (name, text) = (texts.next().unwrap_or_default(), texts.next());
                if text.is_some_and(is_commit) {
                    self.statements.insert(name.to_vec());
                } else {
                    self.statements.remove(name);
                }
                false
            }
            b'B' => {
                let statement = body.split(|byte| *byte == 0).nth(1);
                statement.is_some_and(|name| self.statements.contains(name))
            }
            _ => false,
        }
    }
}

fn is_commit(text: &[u8]) -> bool {
    COMMITS.iter().any(|commit| text.windows(commit.len()).any(|part| part == *commit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        let mut bytes = if kind == 0 { Vec::new() } else { vec![kind] };
        bytes.extend(length.to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn commits_are_found_however_the_bytes_arrive() {
        let tls = message(0, &80_877_103_u32.to_be_bytes());
        let startup = message(0, &[&STARTUP.to_be_bytes()[..], b"user\0me\0\0"].concat());
        let start = [tls, startup].concat();
        for (messages, expect) in [
            (vec![message(b'Q', b"SELECT 1\0")], false),
            (vec![message(b'Q', b"COMMIT\0")], true),
            (vec![message(b'P', b"s1\0SELECT commit_batch($1)\0\0\0")], false),
            (
                vec![
                    message(b'P', b"s1\0SELECT commit_batch($1)\0\0\0"),
                    message(b'B', b"\0s1\0\0\0"),
                ],
                true,
            ),
            (
                vec![
                    message(b'P', b"s1\0SELECT commit_batch($1)\0\0\0"),
                    message(b'P', b"s2\0SELECT 1\0\0\0"),
                    message(b'B', b"\0s2\0\0\0"),
                ],
                false,
            ),
        ] {
            let bytes = [start.clone(), messages.concat()].concat();
            assert_eq!(Frontend::default().has_commit(&bytes), expect, "{messages:?}");
            let mut slow = Frontend::default();
            let found = bytes.iter().filter(|byte| slow.has_commit(&[**byte])).count();
            assert_eq!(found, usize::from(expect), "{messages:?}, byte by byte");
        }
    }
}
