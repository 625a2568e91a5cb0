//! Counts of one namespace.

use std::collections::BTreeMap;

use crate::ids::{LimitKey, Namespace, RouteName};
use crate::namespace_stats::{DeadLetterCount, NamespaceStats, TaskCount, TaskStat};
use crate::query::TaskState;
use crate::rows::{BreakerStatus, RunStatus};
use crate::store::{Capped, RunCount};

use super::list::task_state;
use super::state::State;

const COUNTED: usize = Capped::MAX as usize + 1;

impl State {
    pub(super) fn namespace_stats(&self, namespace: &Namespace) -> NamespaceStats {
        let runs = self.runs.values().filter(|run| run.namespace == *namespace);
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for run in runs.clone() {
            *counts.entry((run.workflow.clone(), run.status)).or_default() += 1;
        }
        let runs_of = |((workflow, status), count)| RunCount {
            namespace: namespace.clone(),
            workflow,
            status,
            count,
        };
        let mut runs_new: BTreeMap<_, u64> = BTreeMap::new();
        let active = runs.rev().filter(|run| run.status == RunStatus::Active).take(COUNTED);
        for run in active.filter(|run| run.started_at.is_none()) {
            *runs_new.entry(run.workflow.clone()).or_default() += 1;
        }
        let letters = self.dead_letters.values().filter(|letter| letter.namespace == *namespace);
        let mut kinds: BTreeMap<_, u64> = BTreeMap::new();
        for letter in letters.clone().take(COUNTED) {
            *kinds.entry((letter.queue.clone(), letter.name.clone())).or_default() += 1;
        }
        let letters_of = |((queue, name), count)| DeadLetterCount { queue, name, count };
        let open = letters.filter(|letter| letter.requeued_at.is_none()).count();
        NamespaceStats {
            runs: counts.into_iter().map(runs_of).collect(),
            runs_new: runs_new.into_iter().collect(),
            tasks: self.task_counts(namespace),
            letters: kinds.into_iter().map(letters_of).collect(),
            letters_open: Capped::new(open as u64),
            breakers: {
                let own = self.breakers.values().filter(|row| row.namespace == *namespace);
                Capped::new(own.count() as u64)
            },
            breakers_open: self.breakers_open(namespace),
            now: self.now,
        }
    }

    fn task_counts(&self, namespace: &Namespace) -> Vec<TaskCount> {
        let mut groups: BTreeMap<_, TaskCount> = BTreeMap::new();
        let mut remaining = [COUNTED; 3];
        for task in self.tasks.values().filter(|task| task.namespace == *namespace) {
            let state = task_state(task);
            let remaining = &mut remaining[state as usize];
            if *remaining == 0 {
                continue;
            }
            *remaining -= 1;
            let key = (task.queue.clone(), task.name.clone(), task.priority);
            let group = groups.entry(key).or_insert_with(|| TaskCount {
                queue: task.queue.clone(),
                name: task.name.clone(),
                priority: task.priority,
                ready: 0,
                scheduled: 0,
                held: 0,
                ready_oldest: None,
            });
            match state {
                TaskState::Ready => {
                    group.ready += 1;
                    let oldest = group.ready_oldest.into_iter().chain(task.due_at).min();
                    group.ready_oldest = oldest;
                }
                TaskState::Scheduled => group.scheduled += 1,
                TaskState::Held => group.held += 1,
            }
        }
        groups.into_values().collect()
    }

    fn breakers_open(&self, namespace: &Namespace) -> Vec<LimitKey> {
        let open = self
            .breakers
            .values()
            .filter(|row| row.namespace == *namespace && row.status != BreakerStatus::Closed);
        open.map(|row| row.key.clone()).take(NamespaceStats::BREAKERS_MAX as usize).collect()
    }

    pub(super) fn add_task_stats(&mut self, stats: Vec<TaskStat>) {
        for TaskStat { minute, namespace, name, field, value } in stats {
            *self.stats.entry((minute, namespace, name, field)).or_default() += value;
        }
        let since = TaskStat::minute_of(self.now) - TaskStat::MINUTES;
        self.stats.retain(|(minute, ..), _| *minute > since);
    }

    pub(super) fn task_stats(&self, namespace: &Namespace) -> Vec<TaskStat> {
        let now = TaskStat::minute_of(self.now);
        let mut sums: BTreeMap<(RouteName, u16), u64> = BTreeMap::new();
        for ((minute, of, name, field), value) in &self.stats {
            if of == namespace && *minute > now - TaskStat::MINUTES {
                *sums.entry((name.clone(), *field)).or_default() += value;
            }
        }
        let sum = |((name, field), value)| TaskStat {
            minute: now,
            namespace: namespace.clone(),
            name,
            field,
            value,
        };
        sums.into_iter().map(sum).collect()
    }
}
