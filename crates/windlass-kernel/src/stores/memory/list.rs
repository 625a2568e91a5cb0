//! Reads: snapshots of runs, pages of listings, counts for health.

use std::collections::BTreeMap;

use crate::ids::{Namespace, RunId, RunKey, WorkflowName};
use crate::ledger::Event;
use crate::query::{LimitState, Order, Query, Rows, RunsQuery, TaskState, TasksQuery};
use crate::rows::{DeadLetter, Run, Step, Task};
use crate::store::{Capped, Health, LoadSteps, Loaded, QueueHealth, RunCount};
use crate::time::Timestamp;

use super::state::{Index, State};

impl State {
    pub(super) fn load(&self, run_keys: &[RunKey], selected: &LoadSteps) -> Vec<Loaded> {
        let load = |run_key: &RunKey| {
            let run = self.runs.get(run_key)?.clone();
            let messages = self.messages.get(run_key).into_iter().flatten();
            let messages = messages.filter(|message| message.consumed.is_none()).cloned().collect();
            let mut steps = self.steps_of(*run_key);
            selected.retain(&mut steps);
            Some(Loaded { run, steps, messages })
        };
        run_keys.iter().filter_map(load).collect()
    }

    fn steps_of(&self, run_key: RunKey) -> Vec<Step> {
        let rows = self.steps.get(&run_key).into_iter().flat_map(BTreeMap::values);
        let mut steps: Vec<Step> = rows.cloned().collect();
        steps.sort_by(|a, b| (a.position, &a.step_key).cmp(&(b.position, &b.step_key)));
        steps
    }

    pub(super) fn find(
        &self,
        namespace: &Namespace,
        workflow: &WorkflowName,
        id: &RunId,
    ) -> Option<Run> {
        let name = (namespace.clone(), workflow.clone(), id.clone());
        let (_, run_key) = self.names.get(&name)?.last_key_value()?;
        self.runs.get(run_key).cloned()
    }

    fn label_counts(&self, namespace: &Namespace, key: &str, value: &str) -> Vec<RunCount> {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for run in self.runs.values() {
            let name = (run.namespace.clone(), run.workflow.clone(), run.id.clone());
            let newest = self.names.get(&name).and_then(|runs| runs.last_key_value());
            if run.namespace == *namespace
                && run.labels.get(key).is_some_and(|found| found == value)
                && newest.is_some_and(|(_, run_key)| *run_key == run.run_key)
            {
                *counts
                    .entry((run.workflow.clone(), run.status.as_str(), run.status))
                    .or_default() += 1;
            }
        }
        let count = |((workflow, _, status), count)| RunCount {
            namespace: namespace.clone(),
            workflow,
            status,
            count,
        };
        counts.into_iter().map(count).collect()
    }

    pub(super) fn list(&self, query: &Query) -> Rows {
        let limit = query.limit() as usize;
        match query {
            Query::Runs(query) => Rows::Runs(self.list_runs(query)),
            Query::RunKeys { after, .. } => {
                let keys = self.runs.keys().filter(|key| Some(**key) > *after);
                Rows::RunKeys(keys.take(limit).copied().collect())
            }
            Query::Generations { namespace, workflow, id, before, .. } => {
                let name = (namespace.clone(), workflow.clone(), id.clone());
                let keys = self.names.get(&name).into_iter().flatten().rev();
                let keys = keys.filter(|(number, _)| before.is_none_or(|before| **number < before));
                Rows::Runs(self.runs_of(keys.map(|(_, key)| key).take(limit)))
            }
            Query::Tree { root, after, .. } => {
                let keys = self.tree(*root).filter(|key| Some(*key) > *after).take(limit);
                Rows::Runs(self.runs_of(keys.collect::<Vec<_>>().iter()))
            }
            Query::Steps { run_key, after, .. } => {
                let steps = self.steps_of(*run_key).into_iter();
                let beyond = |step: &Step| {
                    let key = (step.position, step.step_key.clone());
                    after.as_ref().is_none_or(|after| key > *after)
                };
                Rows::Steps(steps.filter(beyond).take(limit).collect())
            }
            Query::Events { run_key, from, .. } => {
                let events = self.events.get(run_key).into_iter().flatten();
                Rows::Events(
                    events.filter(|event| event.ordinal >= *from).take(limit).cloned().collect(),
                )
            }
            Query::RootEvents { root, after, .. } => {
                let events = self.tree(*root).filter_map(|key| self.events.get(&key)).flatten();
                let key = |event: &Event| (event.created_at, event.event_id);
                let mut events: Vec<Event> =
                    events.filter(|event| Some(key(event)) > *after).cloned().collect();
                events.sort_by_key(key);
                events.truncate(limit);
                Rows::Events(events)
            }
            Query::Event { event_id } => {
                let location = self.event_ids.get(event_id);
                let event = location.and_then(|(run_key, ordinal)| {
                    self.events.get(run_key)?.get(*ordinal as usize)
                });
                Rows::Events(event.into_iter().cloned().collect())
            }
            Query::Messages { run_key, after, .. } => {
                let messages = self.messages.get(run_key).into_iter().flatten();
                let messages = messages.filter(|message| message.seq > *after);
                Rows::Messages(messages.take(limit).cloned().collect())
            }
            Query::Tasks(query) => Rows::Tasks(self.list_tasks(query)),
            Query::Logs { run_key, level_min, category, after, .. } => {
                let lines = self.logs.values().filter(|line| line.run_key == *run_key);
                let lines = lines.filter(|line| {
                    Some(line.log_id) > *after
                        && level_min.is_none_or(|min| line.level >= min)
                        && category.as_ref().is_none_or(|category| line.category == *category)
                });
                Rows::Logs(lines.take(limit).cloned().collect())
            }
            Query::Workers { after, .. } => {
                let workers = self.workers.values();
                let workers = workers.filter(|worker| Some(worker.info.worker) > *after);
                Rows::Workers(workers.take(limit).cloned().collect())
            }
            Query::DeadLetters { namespace, queue, after, .. } => {
                let letters = self.dead_letters.values().filter(|letter| {
                    letter.namespace == *namespace
                        && Some(letter.task_id) > *after
                        && queue.as_ref().is_none_or(|queue| letter.queue == *queue)
                });
                Rows::DeadLetters(letters.take(limit).cloned().collect())
            }
            Query::DeadLetter { task_id } => {
                Rows::DeadLetters(self.dead_letters.get(task_id).into_iter().cloned().collect())
            }
            Query::DeadLettersOfRun { run_key, .. } => {
                let of_run = |letter: &&DeadLetter| letter.run_key == Some(*run_key);
                let letters = self.dead_letters.values().filter(of_run);
                Rows::DeadLetters(letters.take(limit).cloned().collect())
            }
            Query::LabelCounts { namespace, label: (key, value), .. } => {
                let mut counts = self.label_counts(namespace, key, value);
                counts.truncate(limit);
                Rows::Counts(counts)
            }
            Query::Expired { namespace, workflow, ended_for, after, .. } => {
                let runs = self.runs.values().filter(|run| {
                    run.namespace == *namespace
                        && run.workflow == *workflow
                        && run.root == run.run_key
                        && Some(run.run_key) > *after
                        && self.expired(run, *ended_for)
                });
                Rows::RunKeys(runs.take(limit).map(|run| run.run_key).collect())
            }
            Query::Settings { kind, after, .. } => {
                let settings = self.settings.values().filter(|setting| {
                    setting.name.kind == *kind
                        && after.as_ref().is_none_or(|after| setting.name.name > *after)
                });
                Rows::Settings(settings.take(limit).cloned().collect())
            }
            Query::Breakers { namespace, after, .. } => {
                let breakers = self.breakers.values().filter(|row| {
                    row.namespace == *namespace && after.as_ref().is_none_or(|key| row.key > *key)
                });
                Rows::Breakers(breakers.take(limit).cloned().collect())
            }
            Query::Records { namespace, collection, term, after, .. } => {
                let rows = self.list_records(namespace, collection, term.as_ref(), after.as_ref());
                Rows::Records(rows.take(limit).cloned().collect())
            }
            Query::Collections { namespace, after, .. } => {
                Rows::Collections(self.collections(namespace, after.as_ref(), limit))
            }
            Query::AllRecords { after, .. } => {
                Rows::Records(self.all_records(after.as_ref()).take(limit).cloned().collect())
            }
            Query::Bodies { owner, after, .. } => {
                Rows::Bodies(self.list_bodies(owner, *after, limit))
            }
            Query::RecordVersions { key, before, .. } => {
                let versions = self.versions_of(key, *before);
                Rows::RecordVersions(versions.take(limit).cloned().collect())
            }
            Query::Rates { namespace, after, .. } => {
                let rates = self.rates.values().filter(|row| {
                    row.namespace == *namespace && after.as_ref().is_none_or(|key| row.key > *key)
                });
                Rows::Rates(rates.take(limit).cloned().collect())
            }
            Query::Limits { namespace, after, .. } => {
                let limits = self.limits.iter().filter(|((space, key), _)| {
                    space == namespace && after.as_ref().is_none_or(|after| key > after)
                });
                let state = |((_, key), slots): (&(Namespace, crate::ids::LimitKey), &u32)| {
                    let held = self.held_under(namespace, key);
                    let waiting = self.waiting_under(namespace, key);
                    LimitState { key: key.clone(), slots: *slots, held, waiting }
                };
                Rows::Limits(limits.take(limit).map(state).collect())
            }
        }
    }

    fn waiting_under(&self, namespace: &Namespace, key: &crate::ids::LimitKey) -> Capped {
        let turns = self.runs.values().filter(|run| {
            run.turn.ready
                && run.namespace == *namespace
                && run.turn.limit_key.as_ref() == Some(key)
        });
        let tasks = self.tasks.values().filter(|task| {
            task.ready && task.namespace == *namespace && task.limit_key.as_ref() == Some(key)
        });
        // Turns and tasks are counted up to the bound separately, as a database would do it.
        let most = (Capped::MAX + 1) as usize;
        Capped::new((turns.take(most).count() + tasks.take(most).count()) as u64)
    }

    fn list_runs(&self, query: &RunsQuery) -> Vec<Run> {
        let (lower, upper) = query.key_range();
        let keys = self.runs.iter().filter(|(key, run)| {
            lower.is_none_or(|lower| **key > lower)
                && upper.is_none_or(|upper| **key < upper)
                && run.namespace == query.namespace
                && query.workflow.as_ref().is_none_or(|workflow| run.workflow == *workflow)
                && query.status.is_none_or(|status| run.status == status)
                && query
                    .label
                    .as_ref()
                    .is_none_or(|(key, value)| run.labels.get(key) == Some(value))
        });
        let runs = keys.map(|(_, run)| run.clone());
        let limit = query.limit as usize;
        match query.order {
            Order::Ascending => runs.take(limit).collect(),
            Order::Descending => runs.rev().take(limit).collect(),
        }
    }

    fn list_tasks(&self, query: &TasksQuery) -> Vec<Task> {
        let tasks = self.tasks.values().filter(|task| {
            task.namespace == query.namespace
                && Some(task.task_id) > query.after
                && query.run_key.is_none_or(|run_key| task.run_key == Some(run_key))
                && query.queue.as_ref().is_none_or(|queue| task.queue == *queue)
                && query.name.as_ref().is_none_or(|name| task.name == *name)
                && query.state.is_none_or(|state| state == task_state(task))
        });
        tasks.take(query.limit as usize).cloned().collect()
    }

    pub(super) fn tree(&self, root: RunKey) -> impl Iterator<Item = RunKey> {
        let from = (root, RunKey(uuid::Uuid::nil()));
        let to = (root, RunKey(uuid::Uuid::max()));
        self.trees.range(from..=to).map(|(_, key)| *key)
    }

    fn runs_of<'a>(&self, keys: impl Iterator<Item = &'a RunKey>) -> Vec<Run> {
        keys.filter_map(|key| self.runs.get(key)).cloned().collect()
    }

    pub(super) fn ready_counts(&self, max: u64) -> (u64, u64) {
        let turns = self.turn_index.ready.values().flatten().count() as u64;
        let tasks = self.task_index.ready.values().flatten().count() as u64;
        (turns.min(max), tasks.min(max))
    }

    pub(super) fn health(&self) -> Health {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for run in self.runs.values() {
            let key = (run.namespace.clone(), run.workflow.clone(), run.status);
            *counts.entry(key).or_default() += 1;
        }
        let runs = counts.into_iter().map(|((namespace, workflow, status), count)| RunCount {
            namespace,
            workflow,
            status,
            count,
        });
        Health {
            runs: runs.collect(),
            turns: queue_health(&self.turn_index),
            tasks: queue_health(&self.task_index),
            dead_letters: {
                let open = |letter: &&DeadLetter| letter.requeued_at.is_none();
                Capped::new(self.dead_letters.values().filter(open).count() as u64)
            },
            workers_live: self.workers.values().filter(|row| row.is_live(self.now)).count() as u64,
            now: self.now,
        }
    }
}

pub(super) fn task_state(task: &Task) -> TaskState {
    match (task.worker, task.ready) {
        (Some(_), _) => TaskState::Held,
        (None, true) => TaskState::Ready,
        (None, false) => TaskState::Scheduled,
    }
}

fn queue_health<K: Copy + Ord>(index: &Index<K>) -> QueueHealth {
    let ready = index.ready.values().flatten();
    let oldest = |(_, _, due_at, _): &(_, _, Timestamp, _)| *due_at;
    QueueHealth {
        ready: Capped::new(ready.clone().count() as u64),
        ready_oldest: ready.map(oldest).min(),
        scheduled: Capped::new(index.scheduled.len() as u64),
        scheduled_next: index.scheduled.first().map(|(due_at, _)| *due_at),
        held: Capped::new(index.held.values().map(|held| held.len() as u64).sum()),
    }
}
