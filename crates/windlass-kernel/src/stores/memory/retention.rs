//! Settings, and the deletion of expired runs.

use std::time::Duration;

use crate::bodies::BodyOwner;
use crate::body::Body;
use crate::ids::RunKey;
use crate::rows::{Run, Setting, SettingName};
use crate::store::{DeleteTrees, Deleted};

use super::state::State;

impl State {
    pub(super) fn put_setting(&mut self, name: SettingName, value: Option<Body>) {
        match value {
            Some(value) => {
                let setting = Setting { name: name.clone(), value, updated_at: self.now };
                self.settings.insert(name, setting);
            }
            None => {
                self.settings.remove(&name);
            }
        }
    }

    pub(super) fn delete_trees(&mut self, request: &DeleteTrees) -> Deleted {
        let mut deleted = Deleted::default();
        for root in &request.roots {
            let keys: Vec<RunKey> = self.tree(*root).collect();
            if self.may_delete(*root, &keys, request.ended_for)
                && !(request.keep_for_newer && self.is_read(*root, request.ended_for))
            {
                for key in &keys {
                    self.remove_run(*key, !request.keep_ledger);
                }
                self.bodies.retain(|key, _| key.owner != BodyOwner::Run(*root));
                deleted.roots.push(*root);
                deleted.runs += keys.len() as u64;
            }
        }
        deleted
    }

    fn may_delete(&self, root: RunKey, keys: &[RunKey], ended_for: Duration) -> bool {
        let Some(top) = self.runs.get(&root).filter(|run| run.root == root) else { return false };
        let name = (top.namespace.clone(), top.workflow.clone(), top.id.clone());
        let generations = self.names.get(&name).into_iter().flatten();
        let oldest = generations.map(|(_, key)| *key).next() == Some(root);
        let works = |key: &RunKey| self.tasks.values().any(|task| task.run_key == Some(*key));
        let over =
            |key: &RunKey| self.runs.get(key).is_some_and(|run| self.expired(run, ended_for));
        oldest && keys.iter().all(|key| over(key) && !works(key))
    }

    // Whether a newer generation of a root is not over.
    fn is_read(&self, root: RunKey, ended_for: Duration) -> bool {
        let Some(top) = self.runs.get(&root) else { return false };
        let name = (top.namespace.clone(), top.workflow.clone(), top.id.clone());
        let generations = self.names.get(&name).into_iter().flatten();
        let newer = generations.filter(|(generation, _)| **generation > top.generation);
        let mut runs = newer.flat_map(|(_, key)| std::iter::once(*key).chain(self.tree(*key)));
        runs.any(|key| self.runs.get(&key).is_some_and(|run| !self.expired(run, ended_for)))
    }

    /// Whether a run ended at least `ended_for` ago and no retention time keeps it.
    pub(super) fn expired(&self, run: &Run, ended_for: Duration) -> bool {
        run.status.is_ended()
            && run.ended_at.is_some_and(|at| at.plus(ended_for) <= self.now)
            && run.retention_until.is_none_or(|until| until <= self.now)
    }
}
