//! Counts how many runs of each workflow entered or left a status in a batch.

use std::collections::HashMap;

use windlass_kernel::{Namespace, RunStatus, WorkflowName};

// Up to this many keys are searched linearly. A batch mostly has runs of few workflows, and hashing
// three names for every run costs more.
const FEW: usize = 8;

type Key = (Namespace, WorkflowName, RunStatus);

/// The changes of the run counters in a batch.
#[derive(Default)]
pub(super) struct Counts {
    few: Vec<(Key, i64)>,
    more: HashMap<Key, i64>,
}

impl Counts {
    /// Adds to a counter.
    pub(super) fn add(
        &mut self,
        namespace: &Namespace,
        workflow: &WorkflowName,
        status: RunStatus,
        by: i64,
    ) {
        let found = self
            .few
            .iter_mut()
            .find(|((n, w, s), _)| *s == status && w == workflow && n == namespace);
        if let Some((_, count)) = found {
            *count += by;
            return;
        }
        let key = (namespace.clone(), workflow.clone(), status);
        if self.few.len() < FEW {
            self.few.push((key, by));
        } else {
            *self.more.entry(key).or_default() += by;
        }
    }

    /// Takes all changes that are not zero.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Key, i64)> {
        self.few.drain(..).chain(self.more.drain()).filter(|(_, by)| *by != 0)
    }

    /// Removes all changes.
    pub(super) fn clear(&mut self) {
        self.few.clear();
        self.more.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_keys_give_the_same_counts() {
        let namespace = Namespace::from_stored("n");
        let mut counts = Counts::default();
        for _ in 0..3 {
            for n in 0..3 * FEW {
                let workflow = WorkflowName::from_stored(format!("w{n}"));
                counts.add(&namespace, &workflow, RunStatus::Active, 1);
                // Runs that start and end in one batch leave no change.
                let back = i64::from(n % 2 == 0);
                counts.add(&namespace, &workflow, RunStatus::Active, -back);
            }
        }
        let left: Vec<_> = counts.drain().collect();
        assert_eq!(left.len(), 3 * FEW / 2);
        assert!(left.iter().all(|(_, by)| *by == 3));
        assert_eq!(counts.drain().count(), 0);
    }
}
