//! Splits commits into batches. A store may write the commits of one batch in any order.
//!
//! A store that writes many commits with one statement per table does not keep their order.
//! [`fold`] builds batches in which the order does not matter: two commits share a batch only if
//! neither touches a resource that the other one depends on. Applying batch after batch then gives
//! the same result as applying commit after commit. A chain of commits of one turn, each starting
//! at the head that the previous one wrote, becomes a single commit, so that a run with many
//! concurrent steps needs one batch and not one batch for each step.
//!
//! The algorithm is list scheduling. Each resource has a level: the last batch that used it. A
//! commit goes to the first batch after the levels of all its resources. Shared uses of one
//! resource (messages to one run) may be in the same batch, but a later one never goes to an
//! earlier batch. Within a batch, the store keeps the order of messages to one run.

use std::collections::HashMap;

use crate::commit::{
    CauseCheck, Commit, CommitKey, Committed, Op, RunChange, RunGuard, TurnChange,
};
use crate::ids::{EventId, MessageId, Namespace, RunId, RunKey, TaskId, WorkflowName};
use crate::ledger::{CausalRef, Head};
use crate::record::RecordKey;
use crate::rows::{Hold, RunStatus};

/// One commit, or a chain of commits of one turn that are written as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    members: Vec<usize>,
    merged: Option<Box<Commit>>,
}

impl Group {
    /// A group of one commit.
    pub fn single(index: usize) -> Self {
        Self { members: vec![index], merged: None }
    }

    /// The indexes of its commits in the folded slice, in order.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Whether the group contains several commits. If the merged commit fails, the store must try
    /// the members one by one, so that each gets its own result.
    pub fn is_merged(&self) -> bool {
        self.merged.is_some()
    }

    /// The commit to write.
    pub fn commit<'a>(&'a self, commits: &'a [Commit]) -> &'a Commit {
        match &self.merged {
            Some(commit) => commit,
            None => &commits[self.members[0]],
        }
    }

    /// Derives the results of the members from the result of the merged commit.
    pub fn split(&self, commits: &[Commit], whole: Committed) -> Vec<Committed> {
        let Some((last, earlier)) = self.members.split_last() else {
            return Vec::new();
        };
        let mut deliveries = whole.messages.iter().copied();
        let mut take = |index: usize| {
            let count = commits[index].messages().count();
            deliveries.by_ref().take(count).collect::<Vec<_>>()
        };
        let mut answers = Vec::with_capacity(self.members.len());
        for index in earlier {
            let hold = match commits[*index].run {
                Some(RunGuard::Held { hold, .. }) => Some(hold),
                _ => None,
            };
            answers.push(Committed { messages: take(*index), hold, ..whole.clone() });
        }
        let messages = take(*last);
        answers.push(Committed { messages, ..whole });
        answers
    }
}

/// Splits commits into batches. Every commit is in exactly one group of one batch.
pub fn fold(commits: &[Commit]) -> Vec<Vec<Group>> {
    let checks_causes = commits.iter().any(has_cause_check);
    let mut scheduler = Scheduler {
        commits,
        batches: Vec::new(),
        positions: Vec::with_capacity(commits.len()),
        used: HashMap::with_capacity(commits.len() * 2),
        floor: 0,
        checks_causes,
    };
    for (index, commit) in commits.iter().enumerate() {
        scheduler.add(index, commit);
    }
    scheduler.batches
}

fn has_cause_check(commit: &Commit) -> bool {
    commit.ops.iter().any(|op| matches!(op, Op::AppendEvent { cause: CauseCheck::LookUp, .. }))
}

/// A resource that two commits can conflict on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Resource<'a> {
    Run(RunKey),
    Name(&'a Namespace, &'a WorkflowName, &'a RunId, u32),
    Task(TaskId),
    Message(RunKey, &'a MessageId),
    Event(EventId),
    Record(&'a RecordKey),
}

/// The last uses of a resource. Levels count from 1; 0 means never.
#[derive(Clone, Copy, Default)]
struct Used {
    level_exclusive: usize,
    level_shared: usize,
    by: usize,
    exclusive: bool,
}

impl Used {
    // An exclusive use comes after all earlier uses. A shared use comes after the last exclusive
    // one and not before earlier shared ones.
    fn earliest(&self, exclusive: bool) -> usize {
        if exclusive {
            self.level_exclusive.max(self.level_shared) + 1
        } else {
            (self.level_exclusive + 1).max(self.level_shared)
        }
    }
}

/// The position of a group in the batches. `end` is the head and hold that the next commit of the
/// chain must expect.
struct Position {
    level: usize,
    index: usize,
    end: Option<(Head, Hold)>,
}

struct Scheduler<'a> {
    commits: &'a [Commit],
    batches: Vec<Vec<Group>>,
    positions: Vec<Position>,
    used: HashMap<Resource<'a>, Used>,
    // User SQL was in this batch: all later commits go to later batches.
    floor: usize,
    checks_causes: bool,
}

impl<'a> Scheduler<'a> {
    fn add(&mut self, index: usize, commit: &'a Commit) {
        let uses = self.resources_of(commit);
        if let Some(group) = self.chained_group(commit, &uses) {
            self.merge(group, index, commit);
            self.mark(&uses, self.positions[group].level, group);
            return;
        }
        let has_user_sql = commit.user_sql().next().is_some();
        let level = if has_user_sql {
            // The store cannot know which rows the user's statements touch.
            self.batches.len() + 1
        } else {
            let of = |(resource, exclusive): &(Resource<'a>, bool)| {
                self.used.get(resource).map_or(1, |used| used.earliest(*exclusive))
            };
            uses.iter().map(of).fold(self.floor + 1, usize::max)
        };
        if has_user_sql {
            self.floor = level;
        }
        if self.batches.len() < level {
            self.batches.resize_with(level, Vec::new);
        }
        let batch = &mut self.batches[level - 1];
        let position = Position { level, index: batch.len(), end: end_of(commit) };
        batch.push(Group::single(index));
        self.positions.push(position);
        self.mark(&uses, level, self.positions.len() - 1);
    }

    fn mark(&mut self, uses: &[(Resource<'a>, bool)], level: usize, group: usize) {
        for (resource, exclusive) in uses {
            let used = self.used.entry(*resource).or_default();
            let last = if *exclusive { &mut used.level_exclusive } else { &mut used.level_shared };
            *last = level.max(*last);
            used.exclusive = *exclusive || (used.by == group && used.exclusive);
            used.by = group;
        }
    }

    // Lists the resources that a commit touches, and whether it needs each one exclusively.
    fn resources_of(&self, commit: &'a Commit) -> Vec<(Resource<'a>, bool)> {
        let mut uses = Vec::with_capacity(2);
        if let Some(run_key) = commit.run_key() {
            uses.push((Resource::Run(run_key), true));
        }
        if let Some(guard) = &commit.task {
            uses.push((Resource::Task(guard.task_id()), true));
        }
        for op in commit.ops.iter() {
            match op {
                Op::CreateRun(run) => {
                    uses.push((Resource::Run(run.run_key), true));
                    let name =
                        Resource::Name(&run.namespace, &run.workflow, &run.id, run.generation);
                    uses.push((name, true));
                }
                Op::AppendEvent { event, .. } if self.checks_causes => {
                    uses.push((Resource::Event(event.event_id), true));
                }
                Op::PutMessage(message) => {
                    uses.push((Resource::Run(message.run_key), false));
                    uses.push((Resource::Message(message.run_key, &message.message_id), true));
                }
                Op::Enqueue(task) => uses.push((Resource::Task(task.task_id), true)),
                Op::Reschedule(change) => uses.push((Resource::Task(change.task_id), true)),
                Op::Settle { task_id } | Op::Requeue { task_id, .. } => {
                    uses.push((Resource::Task(*task_id), true));
                }
                Op::DeadLetter(letter) => uses.push((Resource::Task(letter.task_id), true)),
                Op::Record(record) => {
                    uses.push((Resource::Record(&record.key), record.is_write()));
                }
                _ => {}
            }
        }
        if self.checks_causes {
            for (_, cause) in commit.causes_to_look_up() {
                let resource = match cause {
                    CausalRef::EventId { event_id } => Resource::Event(event_id),
                    CausalRef::RunId { run_id } => Resource::Run(run_id),
                };
                uses.push((resource, false));
            }
        }
        uses
    }

    // Finds the group that this commit continues. Merging is allowed only if no other group has
    // touched a resource of this commit, so that writing both as one gives the same result.
    fn chained_group(&self, commit: &Commit, uses: &[(Resource<'a>, bool)]) -> Option<usize> {
        let Some(RunGuard::Held { run_key, head, hold }) = &commit.run else {
            return None;
        };
        let own = Resource::Run(*run_key);
        let used = self.used.get(&own)?;
        let position = self.positions.get(used.by)?;
        let group = &self.batches[position.level - 1][position.index];
        let two_tasks = commit.task.is_some() && group.commit(self.commits).task.is_some();
        if position.end != Some((*head, *hold))
            || !used.exclusive
            || position.level <= self.floor
            || two_tasks
            || commit.user_sql().next().is_some()
            || commit.messages().any(|message| message.run_key == *run_key)
        {
            return None;
        }
        let free = |(resource, exclusive): &(Resource<'a>, bool)| match self.used.get(resource) {
            _ if *resource == own => true,
            None => true,
            Some(other) => other.by == used.by && !other.exclusive && !exclusive,
        };
        uses.iter().all(free).then_some(used.by)
    }

    fn merge(&mut self, group: usize, index: usize, commit: &Commit) {
        let position = &mut self.positions[group];
        position.end = end_of(commit);
        let group = &mut self.batches[position.level - 1][position.index];
        let earlier = match group.merged.take() {
            Some(merged) => *merged,
            None => self.commits[group.members[0]].clone(),
        };
        group.members.push(index);
        group.merged = Some(Box::new(merge_commits(earlier, commit)));
    }
}

// The head and hold after a commit, if the sender can know them and still holds the turn.
fn end_of(commit: &Commit) -> Option<(Head, Hold)> {
    let Some(RunGuard::Held { run_key, hold, .. }) = &commit.run else {
        return None;
    };
    let change = commit.run_change()?;
    let ends = change.status.is_some_and(RunStatus::is_ended);
    let own = commit.messages().any(|message| message.run_key == *run_key);
    let sql = commit.user_sql().next().is_some();
    let kept = change.turn == TurnChange::Keep && !ends && !own && !sql;
    kept.then_some((change.head, *hold))
}

// Merges two commits of one turn: the later change of the run's row wins field by field; all other
// ops are kept in order.
fn merge_commits(mut earlier: Commit, later: &Commit) -> Commit {
    let ops = earlier.ops_mut();
    let before = ops.iter().position(|op| matches!(op, Op::SetRun(_)));
    let before = before.map(|at| ops.remove(at));
    for op in later.ops.iter() {
        ops.push(match (op, &before) {
            (Op::SetRun(change), Some(Op::SetRun(before))) => {
                Op::SetRun(Box::new(merge_changes(before, change)))
            }
            (op, _) => op.clone(),
        });
    }
    earlier.task = earlier.task.or(later.task);
    // If the merged commit fails, the store looks up each member by its own key.
    earlier.key = CommitKey::Nothing;
    earlier
}

fn merge_changes(before: &RunChange, after: &RunChange) -> RunChange {
    RunChange {
        status: after.status.or(before.status),
        output: after.output.clone().or_else(|| before.output.clone()),
        error: after.error.clone().or_else(|| before.error.clone()),
        state: after.state.clone().or_else(|| before.state.clone()),
        deadline_at: after.deadline_at.or(before.deadline_at),
        started_at: after.started_at.or(before.started_at),
        ended_at: after.ended_at.or(before.ended_at),
        retention_until: after.retention_until.or(before.retention_until),
        ..after.clone()
    }
}

#[cfg(test)]
mod tests;
