//! Folding: splits commits into batches that a store may write in any order inside.
//!
//! A store that writes many commits by one statement per table cannot tell which of them came
//! first. [`fold`] gives it batches in which that cannot be told: two commits share a batch only if
//! neither touches what the other one depends on. Applying batch after batch is then the same as
//! applying commit after commit. A chain of commits of one turn, each going on where the one
//! before ends, becomes a single commit, so that a run with many concurrent steps needs one batch
//! and not one for each step.
//!
//! It is a list scheduling: everything that a commit touches has a level, the last batch that
//! touched it, and a commit goes to the first batch that comes after all of these. Users of a thing
//! that do not disturb each other (messages to one run) may share a level but never go back; a
//! store that writes a batch keeps the order of messages to one run.

use std::collections::HashMap;

use crate::commit::{
    CauseCheck, Commit, CommitKey, Committed, Op, RunChange, RunGuard, TurnChange,
};
use crate::ids::{EventId, MessageId, Namespace, RunId, RunKey, TaskId, WorkflowName};
use crate::ledger::{CausalRef, Head};
use crate::rows::{Hold, RunStatus};

/// One commit, or a chain of commits of one turn that is written as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    members: Vec<usize>,
    merged: Option<Box<Commit>>,
}

impl Group {
    /// A commit by itself.
    pub fn single(index: usize) -> Self {
        Self { members: vec![index], merged: None }
    }

    /// The places of its commits in what was folded, in order.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Whether it stands for several commits. If such a commit fails, its members have to be tried
    /// one by one, so that each gets its own answer.
    pub fn is_merged(&self) -> bool {
        self.merged.is_some()
    }

    /// What is to be written.
    pub fn commit<'a>(&'a self, commits: &'a [Commit]) -> &'a Commit {
        match &self.merged {
            Some(commit) => commit,
            None => &commits[self.members[0]],
        }
    }

    /// The answers of its members, from the answer of the whole.
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
    let looks = commits.iter().any(looks_for_causes);
    let mut folder = Folder {
        commits,
        batches: Vec::new(),
        places: Vec::with_capacity(commits.len()),
        used: HashMap::with_capacity(commits.len() * 2),
        floor: 0,
        looks,
    };
    for (index, commit) in commits.iter().enumerate() {
        folder.add(index, commit);
    }
    folder.batches
}

fn looks_for_causes(commit: &Commit) -> bool {
    commit.ops.iter().any(|op| matches!(op, Op::AppendEvent { cause: CauseCheck::Look, .. }))
}

/// What two commits can meet at.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Thing<'a> {
    Run(RunKey),
    Name(&'a Namespace, &'a WorkflowName, &'a RunId, u32),
    Task(TaskId),
    Message(RunKey, &'a MessageId),
    Event(EventId),
}

/// How a thing was last used. Levels count from 1; 0 is never.
#[derive(Clone, Copy, Default)]
struct Used {
    level_alone: usize,
    level_shared: usize,
    by: usize,
    alone: bool,
}

impl Used {
    // A lone user comes after everybody; a sharing one after the last lone one, and not before
    // those who share with it.
    fn earliest(&self, alone: bool) -> usize {
        if alone {
            self.level_alone.max(self.level_shared) + 1
        } else {
            (self.level_alone + 1).max(self.level_shared)
        }
    }
}

/// Where a group is, and what a commit must expect to go on where it ends.
struct Place {
    level: usize,
    slot: usize,
    end: Option<(Head, Hold)>,
}

struct Folder<'a> {
    commits: &'a [Commit],
    batches: Vec<Vec<Group>>,
    places: Vec<Place>,
    used: HashMap<Thing<'a>, Used>,
    // The level that the next commit must be above, because of user SQL.
    floor: usize,
    looks: bool,
}

impl<'a> Folder<'a> {
    fn add(&mut self, index: usize, commit: &'a Commit) {
        let uses = self.uses_of(commit);
        if let Some(group) = self.chained_to(commit, &uses) {
            self.merge(group, index, commit);
            self.mark(&uses, self.places[group].level, group);
            return;
        }
        let own_sql = commit.user_sql().next().is_some();
        let level = if own_sql {
            // Nobody knows what the user's statements touch.
            self.batches.len() + 1
        } else {
            let of = |(thing, alone): &(Thing<'a>, bool)| {
                self.used.get(thing).map_or(1, |used| used.earliest(*alone))
            };
            uses.iter().map(of).fold(self.floor + 1, usize::max)
        };
        if own_sql {
            self.floor = level;
        }
        if self.batches.len() < level {
            self.batches.resize_with(level, Vec::new);
        }
        let batch = &mut self.batches[level - 1];
        let place = Place { level, slot: batch.len(), end: end_of(commit) };
        batch.push(Group::single(index));
        self.places.push(place);
        self.mark(&uses, level, self.places.len() - 1);
    }

    fn mark(&mut self, uses: &[(Thing<'a>, bool)], level: usize, group: usize) {
        for (thing, alone) in uses {
            let used = self.used.entry(*thing).or_default();
            let last = if *alone { &mut used.level_alone } else { &mut used.level_shared };
            *last = level.max(*last);
            used.alone = *alone || (used.by == group && used.alone);
            used.by = group;
        }
    }

    // Everything the commit touches, and whether it must be alone with it.
    fn uses_of(&self, commit: &'a Commit) -> Vec<(Thing<'a>, bool)> {
        let mut uses = Vec::with_capacity(2);
        if let Some(run_key) = commit.run_key() {
            uses.push((Thing::Run(run_key), true));
        }
        if let Some(guard) = &commit.task {
            uses.push((Thing::Task(guard.task_id), true));
        }
        for op in commit.ops.iter() {
            match op {
                Op::CreateRun(run) => {
                    uses.push((Thing::Run(run.run_key), true));
                    let name = Thing::Name(&run.namespace, &run.workflow, &run.id, run.generation);
                    uses.push((name, true));
                }
                Op::AppendEvent { event, .. } if self.looks => {
                    uses.push((Thing::Event(event.event_id), true));
                }
                Op::PutMessage(message) => {
                    uses.push((Thing::Run(message.run_key), false));
                    uses.push((Thing::Message(message.run_key, &message.message_id), true));
                }
                Op::Enqueue(task) => uses.push((Thing::Task(task.task_id), true)),
                Op::Reschedule(change) => uses.push((Thing::Task(change.task_id), true)),
                Op::Settle { task_id } | Op::Requeue { task_id, .. } => {
                    uses.push((Thing::Task(*task_id), true));
                }
                Op::DeadLetter(letter) => uses.push((Thing::Task(letter.task_id), true)),
                _ => {}
            }
        }
        if self.looks {
            for (_, cause) in commit.causes_to_look_up() {
                let thing = match cause {
                    CausalRef::EventId { event_id } => Thing::Event(event_id),
                    CausalRef::RunId { run_id } => Thing::Run(run_id),
                };
                uses.push((thing, false));
            }
        }
        uses
    }

    // The group whose end this commit goes on from, if writing both as one is the same as writing
    // one after the other: nobody but that group may have touched anything of this commit's.
    fn chained_to(&self, commit: &Commit, uses: &[(Thing<'a>, bool)]) -> Option<usize> {
        let Some(RunGuard::Held { run_key, head, hold }) = &commit.run else {
            return None;
        };
        let own = Thing::Run(*run_key);
        let used = self.used.get(&own)?;
        let place = self.places.get(used.by)?;
        let group = &self.batches[place.level - 1][place.slot];
        let two_tasks = commit.task.is_some() && group.commit(self.commits).task.is_some();
        if place.end != Some((*head, *hold))
            || !used.alone
            || place.level <= self.floor
            || two_tasks
            || commit.user_sql().next().is_some()
            || commit.messages().any(|message| message.run_key == *run_key)
        {
            return None;
        }
        let free = |(thing, alone): &(Thing<'a>, bool)| match self.used.get(thing) {
            _ if *thing == own => true,
            None => true,
            Some(other) => other.by == used.by && !other.alone && !alone,
        };
        uses.iter().all(free).then_some(used.by)
    }

    fn merge(&mut self, group: usize, index: usize, commit: &Commit) {
        let place = &mut self.places[group];
        place.end = end_of(commit);
        let group = &mut self.batches[place.level - 1][place.slot];
        let earlier = match group.merged.take() {
            Some(merged) => *merged,
            None => self.commits[group.members[0]].clone(),
        };
        group.members.push(index);
        group.merged = Some(Box::new(merged(earlier, commit)));
    }
}

// Where a commit leaves the turn, if its sender can know and still has it.
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

// Two commits of one turn as one: the later change of the run's row wins field by field, and all
// else is written in order.
fn merged(mut earlier: Commit, later: &Commit) -> Commit {
    let ops = earlier.ops_mut();
    let before = ops.iter().position(|op| matches!(op, Op::SetRun(_)));
    let before = before.map(|at| ops.remove(at));
    for op in later.ops.iter() {
        ops.push(match (op, &before) {
            (Op::SetRun(change), Some(Op::SetRun(before))) => {
                Op::SetRun(Box::new(changed(before, change)))
            }
            (op, _) => op.clone(),
        });
    }
    earlier.task = earlier.task.or(later.task);
    // If it fails, its members are asked for one by one, each under its own key.
    earlier.key = CommitKey::Nothing;
    earlier
}

fn changed(before: &RunChange, after: &RunChange) -> RunChange {
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
