//! Words that are banned in code, with their scope and replacement.

use super::Finding;
use super::code::{code_only, lines_with_word};
use super::tree::Tree;

struct Ban {
    /// The prefix of the affected paths; empty for all.
    under: &'static str,
    words: &'static [&'static str],
    instead: &'static str,
}

const KERNEL: &str = "crates/windlass-kernel/src/";

const BANS: &[Ban] = &[
    Ban {
        under: "",
        words: &["todo!", "unimplemented!"],
        instead: "write it, or return an error that says what is missing",
    },
    Ban {
        under: KERNEL,
        words: &["SystemTime::now", "Instant::now", "Timestamp::now", "Zoned::now"],
        instead: "the kernel has no clock: take the time as an argument",
    },
    Ban {
        under: KERNEL,
        words: &["Uuid::now_v7", "Uuid::new_v4", "rand::rng", "rand::random", "RandomState"],
        instead: "the kernel has no randomness: take the id or the seed as an argument",
    },
    Ban {
        under: KERNEL,
        words: &["thread::spawn", "thread::sleep", "tokio"],
        instead: "the kernel starts nothing and waits for nothing: leave that to its caller",
    },
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources().flat_map(|(path, text)| check_file(path, &code_only(text))).collect()
}

fn check_file(path: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ban in BANS.iter().filter(|ban| path.starts_with(ban.under)) {
        for word in ban.words {
            for line in lines_with_word(code, word) {
                findings.push(Finding::new(path, line, format!("`{word}`"), ban.instead));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn every_ban_goes_red_where_it_holds_and_only_there() {
        for ban in BANS {
            for word in ban.words {
                let inside = format!("{}a.rs", ban.under);
                let text = format!("//! Text.\nfn f() {{ {word} }}\n// {word}\n");
                let expect = [format!("{inside}:2: `{word}`")];
                assert_eq!(found(check, &[(&inside, &text)]), expect);
                let outside = ("crates/windlass-sqlite/src/a.rs", text.as_str());
                assert_eq!(found(check, &[outside]).is_empty(), !ban.under.is_empty(), "{word}");
            }
        }
    }

    #[test]
    fn comments_and_longer_words_are_free() {
        let text = "//! No tokio here.\nfn my_todo() {}\nconst A: &str = \"tokio\";\n";
        assert_eq!(found(check, &[("crates/windlass-kernel/src/a.rs", text)]), [""; 0]);
    }
}
