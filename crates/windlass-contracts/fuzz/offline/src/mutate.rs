//! New inputs from old ones.

pub struct Mutator {
    random: u64,
    length_max: usize,
    words: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(seed: u64, length_max: usize, words: Vec<Vec<u8>>) -> Self {
        Self { random: seed, length_max, words }
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n` - 1; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random() % n.max(1) as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.random().to_le_bytes()[0]
    }

    /// One to eight changes of a random input of the corpus.
    pub fn next(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..1 + self.below(8) {
            self.change(&mut input, corpus);
        }
        input.truncate(self.length_max);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        match self.below(8) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.byte(),
            2 => input.insert(at, self.byte()),
            3 => {
                let end = (at + 1 + self.below(16)).min(input.len());
                input.drain(at..end);
            }
            4 => {
                let copied = self.part(&input.clone());
                input.splice(at..at, copied);
            }
            5 => {
                let other = &corpus[self.below(corpus.len())];
                let copied = self.part(other);
                input.splice(at..at, copied);
            }
            6 => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ if !self.words.is_empty() => {
                let chosen = self.below(self.words.len());
                let word = self.words[chosen].clone();
                let end = if self.below(2) == 0 { at } else { (at + word.len()).min(input.len()) };
                input.splice(at..end, word);
            }
            _ => input.insert(at, self.byte()),
        }
    }

    fn part(&mut self, from: &[u8]) -> Vec<u8> {
        let begin = self.below(from.len() + 1);
        let end = (begin + self.below(64)).min(from.len());
        from[begin..end].to_vec()
    }
}

/// The words of a dictionary in the format of libFuzzer: `"text"` in each line, with `\"` and `\\`.
pub fn dictionary(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(unescape(line.split_once('"')?.1.strip_suffix('"')?))).collect()
}

fn unescape(word: &str) -> Vec<u8> {
    let (mut bytes, mut escaped) = (Vec::new(), false);
    for byte in word.bytes() {
        escaped = byte == b'\\' && !escaped;
        if !escaped {
            bytes.push(byte);
        }
    }
    bytes
}
