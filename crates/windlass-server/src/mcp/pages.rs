//! The documentation in the binary, and the search in it.

use std::cmp::Reverse;

use serde_json::{Value, json};

/// The pages: name and text, from the folder `docs`.
static PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Further words of a query do not count.
const WORDS_MAX: usize = 16;
const EXCERPT_CHARS: usize = 320;

/// The text of a page.
pub(super) fn page(name: &str) -> Option<&'static str> {
    PAGES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The sections that match a query best.
pub(super) fn search(query: &str, limit: usize) -> Vec<Value> {
    let words = words(query);
    let sections: Vec<Section> = PAGES.iter().flat_map(sections).collect();
    let counts: Vec<Vec<usize>> = sections.iter().map(|section| section.counts(&words)).collect();
    // A word in few sections says more than a word in many.
    let weights: Vec<f64> = (0..words.len())
        .map(|word| {
            let having = counts.iter().filter(|counts| counts[word] > 0).count();
            ((1 + sections.len()) as f64 / (1 + having) as f64).ln()
        })
        .collect();
    let mut hits: Vec<(f64, &Section)> = sections
        .iter()
        .zip(&counts)
        .map(|(section, counts)| {
            let score = |(count, weight): (&usize, &f64)| weight * (1.0 + *count as f64).ln();
            let long = 1.0 + (section.text.len() as f64 / 4_096.0);
            (counts.iter().zip(&weights).map(score).sum::<f64>() / long.sqrt(), section)
        })
        .filter(|(score, _)| *score > 0.0)
        .collect();
    hits.sort_by_key(|(score, _)| Reverse((score * 1_000.0) as u64));
    hits.truncate(limit);
    hits.into_iter().map(|(_, section)| section.hit(&words)).collect()
}

/// A heading and the text below it.
struct Section {
    page: &'static str,
    title: &'static str,
    /// Where the section begins in its page.
    offset: usize,
    text: &'static str,
    lower: String,
}

impl Section {
    /// How often the section has each word. A word in the title or the name of the page counts more.
    fn counts(&self, words: &[String]) -> Vec<usize> {
        let (title, page) = (self.title.to_lowercase(), self.page.to_lowercase());
        let count = |word: &String| {
            let named = usize::from(names(&title, word)) + usize::from(names(&page, word));
            named * 8 + self.lower.matches(&**word).count()
        };
        words.iter().map(count).collect()
    }

    fn hit(&self, words: &[String]) -> Value {
        let first = words.iter().filter_map(|word| self.lower.find(&**word)).min().unwrap_or(0);
        // Lower case can change lengths, so the place is only near.
        let from = self.text.floor_char_boundary(first.saturating_sub(80).min(self.text.len()));
        let excerpt: String = self.text[from..].chars().take(EXCERPT_CHARS).collect();
        json!({
            "page": self.page, "section": self.title, "offset": self.offset, "excerpt": excerpt.trim(),
        })
    }
}

/// Whether a title has the word or begins a word with it. A code counts only as a whole.
fn names(title: &str, word: &str) -> bool {
    let begins = |part: &str| part.starts_with(word) && !part.contains('_');
    title.split(|c| !is_part(c)).any(|part| part == word || begins(part))
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

fn words(query: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in query.to_lowercase().split(|c| !is_part(c)).filter(|word| word.len() > 1) {
        if words.len() < WORDS_MAX && !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    words
}

fn sections((page, text): &(&'static str, &'static str)) -> Vec<Section> {
    let mut starts = vec![0];
    let mut is_code = false;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        is_code ^= line.starts_with("```");
        if !is_code && line.starts_with('#') && offset > 0 {
            starts.push(offset);
        }
        offset += line.len();
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let section = |(from, to): (usize, usize)| {
        let text = &text[from..to];
        let title = text.lines().next().unwrap_or_default().trim_start_matches('#').trim();
        Section { page, title, offset: from, text, lower: text.to_lowercase() }
    };
    starts.iter().copied().zip(ends).map(section).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_section_comes_first() {
        for (query, page) in [
            ("RUN_NOT_ERRORED", "errors/RUN_NOT_ERRORED.md"),
            ("how to write a state machine", "machines.md"),
            ("retries and backoff of a step", "steps.md"),
            ("quorum of a request to people", "requests.md"),
        ] {
            let hits = search(query, 5);
            assert!(hits.len() <= 5, "{query}");
            let pages: Vec<&str> = hits.iter().map(|hit| hit["page"].as_str().unwrap()).collect();
            assert!(pages.contains(&page), "{query}: {pages:?}");
        }
        assert_eq!(search("RUN_NOT_ERRORED", 1)[0]["page"], "errors/RUN_NOT_ERRORED.md");
        assert_eq!(search("workflow", 5).len(), 5);
        assert!(search("xqzzyv", 5).is_empty() && search("", 5).is_empty());
    }

    #[test]
    fn a_hit_names_a_place_that_can_be_read() {
        for hit in search("heartbeat timeout of an activity", 10) {
            let text = page(hit["page"].as_str().unwrap()).expect("the page exists");
            let from = usize::try_from(hit["offset"].as_u64().unwrap()).unwrap();
            assert!(text[from..].contains(hit["section"].as_str().unwrap()), "{hit}");
        }
    }

    #[test]
    fn sections_make_up_the_page() {
        for page in PAGES {
            let joined: String = sections(page).iter().map(|section| section.text).collect();
            assert_eq!(joined, page.1, "{}", page.0);
        }
    }
}
