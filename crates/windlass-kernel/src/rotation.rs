//! Namespaces take turns in a claim, so that no tenant waits behind the queue of another.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::Namespace;

/// The rows of each namespace, beginning with the namespace after `after`. The rows of a namespace
/// keep their order.
pub fn by_namespace<T>(
    rows: impl IntoIterator<Item = (Namespace, T)>,
    after: Option<&Namespace>,
) -> Vec<VecDeque<T>> {
    let mut queues: BTreeMap<(bool, Namespace), VecDeque<T>> = BTreeMap::new();
    for (namespace, row) in rows {
        let is_later = after.is_some_and(|after| namespace <= *after);
        queues.entry((is_later, namespace)).or_default().push_back(row);
    }
    queues.into_values().collect()
}

/// Passes rows to `take`, one of each namespace in turn, until it has accepted `max` rows. A row that it does
/// not accept costs its namespace nothing.
pub fn in_turns<T>(mut queues: Vec<VecDeque<T>>, max: usize, mut take: impl FnMut(T) -> bool) {
    let mut taken = 0;
    while taken < max && !queues.is_empty() {
        queues.retain_mut(|queue| {
            if taken >= max {
                return true;
            }
            while let Some(row) = queue.pop_front() {
                if take(row) {
                    taken += 1;
                    return true;
                }
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(after: Option<&str>, max: usize) -> Vec<u32> {
        // The tens are the namespace; rows that end in 9 are not accepted.
        let rows = [11, 12, 13, 14, 29, 21, 31, 39, 32];
        let named = |row: u32| (Namespace::from_stored(format!("n{}", row / 10)), row);
        let after = after.map(Namespace::from_stored);
        let mut found = Vec::new();
        in_turns(by_namespace(rows.map(named), after.as_ref()), max, |row| {
            let accepts = row % 10 != 9;
            if accepts {
                found.push(row);
            }
            accepts
        });
        found
    }

    #[test]
    fn namespaces_take_turns_beginning_after_the_last_one() {
        for (after, max, expect) in [
            (None, 100, vec![11, 21, 31, 12, 32, 13, 14]),
            (None, 4, vec![11, 21, 31, 12]),
            (Some("n1"), 100, vec![21, 31, 11, 32, 12, 13, 14]),
            (Some("n1"), 1, vec![21]),
            (Some("n2"), 2, vec![31, 11]),
            (Some("n3"), 1, vec![11]),
            (Some("n9"), 2, vec![11, 21]),
            (Some("a"), 2, vec![11, 21]),
            (None, 0, vec![]),
        ] {
            assert_eq!(claimed(after, max), expect, "{after:?} {max}");
        }
    }
}
