//! Decides whether a licence expression can be satisfied with the licences on a list.

use anyhow::{Result, bail};

/// Whether `expression` (SPDX, or names separated by `/` as old manifests have it) can be satisfied
/// with licences for which `is_allowed` returns true. A licence `WITH` an exception is one name.
pub(super) fn is_satisfied(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut parser = Parser { words: text.split_whitespace().peekable(), is_allowed };
    let satisfied = parser.any_of()?;
    match parser.words.next() {
        None => Ok(satisfied),
        Some(word) => bail!("unexpected `{word}` in licence expression `{expression}`"),
    }
}

struct Parser<'a, W: Iterator<Item = &'a str>> {
    words: std::iter::Peekable<W>,
    is_allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a, W: Iterator<Item = &'a str>> Parser<'a, W> {
    fn any_of(&mut self) -> Result<bool> {
        let mut satisfied = self.all_of()?;
        while self.words.next_if_eq(&"OR").is_some() {
            satisfied |= self.all_of()?;
        }
        Ok(satisfied)
    }

    fn all_of(&mut self) -> Result<bool> {
        let mut satisfied = self.one()?;
        while self.words.next_if_eq(&"AND").is_some() {
            satisfied &= self.one()?;
        }
        Ok(satisfied)
    }

    fn one(&mut self) -> Result<bool> {
        match self.words.next() {
            Some("(") => {
                let satisfied = self.any_of()?;
                match self.words.next() {
                    Some(")") => Ok(satisfied),
                    _ => bail!("a `)` is missing in a licence expression"),
                }
            }
            None | Some(")" | "AND" | "OR" | "WITH") => {
                bail!("a licence name is missing in a licence expression")
            }
            Some(name) if self.words.next_if_eq(&"WITH").is_some() => {
                let Some(exception) = self.words.next() else {
                    bail!("an exception is missing after `{name} WITH`")
                };
                Ok((self.is_allowed)(&format!("{name} WITH {exception}")))
            }
            Some(name) => Ok((self.is_allowed)(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_decided_as_spdx_says() {
        let allowed = |name: &str| ["MIT", "ISC"].contains(&name);
        for (expression, expect) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 / AGPL-3.0", false),
            ("MIT AND ISC", true),
            ("MIT AND GPL-3.0", false),
            // AND binds tighter than OR.
            ("MIT OR ISC AND GPL-3.0", true),
            ("(MIT OR ISC) AND GPL-3.0", false),
            ("ISC AND (GPL-3.0 OR MIT)", true),
            // An exception is listed with its licence or not at all.
            ("MIT WITH Classpath-exception-2.0", false),
            ("GPL-3.0 WITH GCC-exception-3.1 OR ISC", true),
        ] {
            let decided = is_satisfied(expression, &allowed).unwrap();
            assert_eq!(decided, expect, "{expression}");
        }
    }

    #[test]
    fn a_broken_expression_is_an_error() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "AND MIT", "MIT WITH"] {
            assert!(is_satisfied(expression, &|_| true).is_err(), "{expression}");
        }
    }
}
