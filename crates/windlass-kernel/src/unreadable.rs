//! Rows that a store could not read and left out of its listings.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Above this number, further rows are not remembered, so they are logged each time.
const ROWS_MAX: usize = 10_000;

/// The rows that listings of a store have left out since it was opened, because they could not be read. One
/// damaged row must not hide all others.
#[derive(Debug, Default)]
pub struct UnreadableRows(Mutex<BTreeSet<(&'static str, String)>>);

impl UnreadableRows {
    /// Remembers a row. Returns whether the store logs it: each row once.
    pub fn note(&self, table: &'static str, row: String) -> bool {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.len() >= ROWS_MAX || rows.insert((table, row))
    }

    /// How many different rows were left out.
    pub fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_logged_and_counted_once() {
        let rows = UnreadableRows::default();
        assert!(rows.note("runs", "a".into()));
        assert!(!rows.note("runs", "a".into()));
        assert!(rows.note("settings", "a".into()));
        assert_eq!(rows.count(), 2);
        for n in 0..=ROWS_MAX {
            rows.note("tasks", n.to_string());
        }
        assert_eq!(rows.count(), ROWS_MAX as u64, "the memory is bounded");
    }
}
