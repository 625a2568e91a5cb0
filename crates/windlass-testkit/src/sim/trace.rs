//! The trace of a simulation: lines and a rolling hash, so that two runs of a seed can be compared.

/// The lines of one run. The hash also covers every pick of the executor, which has no line.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    lines: Vec<(u64, String)>,
}

impl Trace {
    /// Adds a line.
    pub fn line(&mut self, line: String) {
        for byte in line.as_bytes() {
            self.number(u64::from(*byte));
        }
        self.lines.push((self.hash, line));
    }

    /// Adds a number that is only hashed.
    pub fn number(&mut self, number: u64) {
        // FNV-1a, by words: a difference anywhere changes every later hash.
        self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17);
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|(_, line)| line.as_str())
    }

    /// Describes the first difference of two traces; nothing if they are equal.
    pub fn difference(&self, other: &Trace) -> Option<String> {
        if self.hash == other.hash && self.lines.len() == other.lines.len() {
            return None;
        }
        let pairs = self.lines.iter().zip(&other.lines).enumerate();
        for (number, (one, two)) in pairs {
            if one != two {
                let (one, two) = (&one.1, &two.1);
                return Some(format!("line {number} differs:\n  first:  {one}\n  second: {two}"));
            }
        }
        let (one, two) = (self.lines.len(), other.lines.len());
        Some(format!("equal lines as far as both go, but {one} and {two} lines"))
    }
}
