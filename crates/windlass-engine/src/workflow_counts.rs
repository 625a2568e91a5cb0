//! Counters of this process by workflow, for the charts of the dashboard. They live in memory only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use windlass_kernel::{Namespace, RunStatus, WorkflowName};

/// The most workflows that are counted. Those that come later are not.
pub const COUNTED_WORKFLOWS_MAX: usize = 1_000;

/// A figure of a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkflowFigure {
    /// Runs created by this process.
    RunsStarted,
    /// Runs that ended with an output here.
    RunsCompleted,
    /// Runs that ended with an error here.
    RunsFailed,
    /// Steps that ended with a result.
    StepsCompleted,
    /// Steps that failed for good.
    StepsFailed,
}

impl WorkflowFigure {
    /// All of them, in the order of [`WorkflowFigures`].
    pub const ALL: [Self; 5] = [
        Self::RunsStarted,
        Self::RunsCompleted,
        Self::RunsFailed,
        Self::StepsCompleted,
        Self::StepsFailed,
    ];
}

/// The values of all figures of a workflow.
pub type WorkflowFigures = [u64; WorkflowFigure::ALL.len()];

type Counters = [AtomicU64; WorkflowFigure::ALL.len()];
type Name = (Namespace, WorkflowName);

/// The counters of all workflows.
#[derive(Default)]
pub(crate) struct WorkflowCounts(RwLock<BTreeMap<Name, Arc<Counters>>>);

impl WorkflowCounts {
    pub(crate) fn add(
        &self,
        namespace: &Namespace,
        workflow: &WorkflowName,
        figure: WorkflowFigure,
    ) {
        let name = (namespace.clone(), workflow.clone());
        if let Some(counters) = self.0.read().get(&name) {
            counters[figure as usize].fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut all = self.0.write();
        if all.len() < COUNTED_WORKFLOWS_MAX || all.contains_key(&name) {
            all.entry(name).or_default()[figure as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the end of a run. A terminated run has neither completed nor failed.
    pub(crate) fn ended(&self, namespace: &Namespace, workflow: &WorkflowName, status: RunStatus) {
        match status {
            RunStatus::Complete => self.add(namespace, workflow, WorkflowFigure::RunsCompleted),
            RunStatus::Errored => self.add(namespace, workflow, WorkflowFigure::RunsFailed),
            _ => {}
        }
    }

    pub(crate) fn all(&self) -> Vec<(Namespace, WorkflowName, WorkflowFigures)> {
        let all = self.0.read();
        let figures = all.iter().map(|((namespace, workflow), counters)| {
            let values = std::array::from_fn(|index| counters[index].load(Ordering::Relaxed));
            (namespace.clone(), workflow.clone(), values)
        });
        figures.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_namespace_and_workflow_up_to_a_limit() {
        let counts = WorkflowCounts::default();
        let (ours, theirs) = (Namespace::from_stored("a"), Namespace::from_stored("b"));
        let pay = WorkflowName::from_stored("pay");
        counts.add(&ours, &pay, WorkflowFigure::RunsStarted);
        counts.add(&theirs, &pay, WorkflowFigure::StepsFailed);
        for status in [RunStatus::Complete, RunStatus::Errored, RunStatus::Terminated] {
            counts.ended(&ours, &pay, status);
        }
        let seen: Vec<WorkflowFigures> = counts.all().into_iter().map(|(.., it)| it).collect();
        assert_eq!(seen, [[1, 1, 1, 0, 0], [0, 0, 0, 0, 1]]);
        for n in 0..COUNTED_WORKFLOWS_MAX {
            let name = WorkflowName::from_stored(format!("w-{n}"));
            counts.add(&ours, &name, WorkflowFigure::RunsStarted);
        }
        assert_eq!(counts.all().len(), COUNTED_WORKFLOWS_MAX);
        // A workflow that is known goes on.
        counts.add(&ours, &pay, WorkflowFigure::RunsStarted);
        assert_eq!(counts.all().iter().find(|it| it.1 == pay).unwrap().2[0], 2);
    }
}
