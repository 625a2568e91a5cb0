//! Applies commits: makes all checks first, then writes, so that a failure leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::commit::{
    Commit, CommitError, CommitKey, Committed, Conflict, Delivery, NewMessage, OnExisting, Op,
    Refusal, RunChange, RunGuard, Unread,
};
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{MessageId, RunKey, StepKey, TaskId};
use crate::ledger::CausalRef;
use crate::limits::Limits;
use crate::rows::{Consumed, Hold, Message, MessageKind, Run, Step};
use crate::store::Wakeup;

use super::state::State;

impl State {
    /// Applies one commit, or returns why it failed.
    pub(super) fn commit(
        &mut self,
        commit: &Commit,
        limits: &Limits,
    ) -> Result<Committed, CommitError> {
        commit.validate(limits)?;
        if let Err(conflict) = self.check_guards(commit) {
            return self
                .repeated_answer(commit, Some(&conflict))
                .ok_or(CommitError::Conflict(conflict));
        }
        self.check_refusals(commit, limits).map_err(CommitError::Refused)?;
        if commit.user_sql().next().is_some() {
            let message = "the memory store cannot run SQL; use SQLite or PostgreSQL".to_owned();
            return Err(CommitError::UserSql { unique: false, message });
        }
        if let Err(error) = self.check_keys(commit) {
            let known = commit.is_unguarded().then(|| self.repeated_answer(commit, None)).flatten();
            return known.ok_or(error);
        }
        Ok(self.write(commit))
    }

    fn check_guards(&self, commit: &Commit) -> Result<(), Conflict> {
        match &commit.run {
            Some(RunGuard::Held { run_key, head, hold }) => {
                let run =
                    self.runs.get(run_key).ok_or(Conflict::RunMissing { run_key: *run_key })?;
                let found = run.turn.hold();
                if found != Some(*hold) {
                    return Err(Conflict::RunHold { run_key: *run_key, found });
                }
                if run.head != *head {
                    return Err(Conflict::RunHead { run_key: *run_key, found: run.head });
                }
            }
            Some(RunGuard::Free { run_key, head, .. }) => {
                let run =
                    self.runs.get(run_key).ok_or(Conflict::RunMissing { run_key: *run_key })?;
                let found = run.turn.hold();
                if found.is_some() {
                    return Err(Conflict::RunHold { run_key: *run_key, found });
                }
                if run.head != *head {
                    return Err(Conflict::RunHead { run_key: *run_key, found: run.head });
                }
            }
            Some(RunGuard::Absent { .. }) | None => {}
        }
        for op in commit.ops.iter() {
            if let Op::CreateRun(run) = op
                && let Some(existing) = self.existing(run)
            {
                let same_input = existing.input_hash == run.input_hash;
                return Err(Conflict::RunExists { run_key: existing.run_key, same_input });
            }
        }
        if let Some(guard) = &commit.task {
            let task_id = guard.task_id();
            let task = self.tasks.get(&task_id).ok_or(Conflict::TaskMissing { task_id })?;
            if (task.worker, task.claim_no) != (guard.worker(), guard.claim_no()) {
                return Err(Conflict::TaskHold { task_id, found: task.hold() });
            }
        }
        self.check_records(commit)
    }

    fn existing(&self, run: &Run) -> Option<&Run> {
        let name = (run.namespace.clone(), run.workflow.clone(), run.id.clone());
        let named = || self.names.get(&name)?.get(&run.generation);
        let run_key = self.runs.get(&run.run_key).map(|run| &run.run_key).or_else(named)?;
        self.runs.get(run_key)
    }

    // A guard failed or a key exists already. Checks whether the reason is that this commit was
    // written before.
    fn repeated_answer(&self, commit: &Commit, conflict: Option<&Conflict>) -> Option<Committed> {
        let mut run_key = commit.run_key();
        let found = match &commit.key {
            CommitKey::Run(run_key) => self.runs.contains_key(run_key),
            CommitKey::Event { run_key, ordinal, event_id } => {
                self.event_ids.get(event_id) == Some(&(*run_key, *ordinal))
            }
            CommitKey::Message { run_key, message_id } => {
                self.message_ids.contains_key(&(*run_key, message_id.clone()))
            }
            CommitKey::Record { key, write_id, .. } => self.was_written(key, *write_id),
            CommitKey::Task(task_id) => self.tasks.contains_key(task_id),
            CommitKey::Nothing => false,
        };
        if !found {
            let Some(RunGuard::Absent { on_existing: OnExisting::Return, run_key: own }) =
                commit.run
            else {
                return None;
            };
            match conflict {
                Some(Conflict::RunExists { run_key: existing, same_input: true })
                    if *existing != own && self.is_guarded_run(commit, own, *existing) =>
                {
                    run_key = Some(*existing);
                }
                _ => return None,
            }
        }
        let run = run_key.and_then(|run_key| self.runs.get(&run_key));
        let hold = run.and_then(|run| {
            let hold = run.turn.hold()?;
            (found && commit.still_holds(run.head, hold)).then_some(hold)
        });
        let delivery = |message: &NewMessage| {
            let key = (message.run_key, message.message_id.clone());
            self.message_ids
                .get(&key)
                .map_or(Delivery::Dropped, |seq| Delivery::Duplicate { seq: *seq })
        };
        Some(Committed {
            run_key,
            repeated: true,
            accepted: run.map_or(0, |run| run.accepted),
            hold,
            messages: commit.messages().map(delivery).collect(),
            now: self.now,
        })
    }

    // Whether the guarded run itself exists, and not another run of the same commit.
    fn is_guarded_run(&self, commit: &Commit, own: RunKey, existing: RunKey) -> bool {
        let found = created_run(commit, own).and_then(|run| self.existing(run));
        found.is_some_and(|run| run.run_key == existing)
    }

    fn check_refusals(&self, commit: &Commit, limits: &Limits) -> Result<(), Refusal> {
        // Nobody holds the turn of an ended run, so a commit that claims it passes the guards.
        let run = commit.run_key().and_then(|run_key| self.runs.get(&run_key));
        if let Some(run) = run.filter(|run| run.status.is_ended()) {
            return Err(Refusal::RunEnded { run_key: run.run_key, status: run.status });
        }
        let created: BTreeSet<RunKey> = created(commit).map(|run| run.run_key).collect();
        let mut unread: BTreeMap<RunKey, Unread> = BTreeMap::new();
        let mut sent: BTreeSet<(RunKey, &MessageId)> = BTreeSet::new();
        for message in commit.messages() {
            let run_key = message.run_key;
            let id = (run_key, message.message_id.clone());
            let is_new = sent.insert((run_key, &message.message_id));
            if created.contains(&run_key) || self.message_ids.contains_key(&id) || !is_new {
                continue;
            }
            let unread =
                unread.entry(run_key).or_insert_with(|| self.unread(run_key, commit, limits));
            if !message.required {
                unread.add(message);
                continue;
            }
            let run = self.runs.get(&run_key).ok_or(Refusal::RunMissing { run_key })?;
            if run.status.is_ended() {
                return Err(Refusal::RunEnded { run_key, status: run.status });
            }
            if message.is_limited() && !unread.admits(message, limits) {
                return Err(Refusal::MessagesLimit { run_key });
            }
            unread.add(message);
        }
        for (run_key, cause) in commit.causes_to_look_up() {
            let namespace = |run_key: &RunKey| {
                let new = || created_run(commit, *run_key);
                self.runs.get(run_key).or_else(new).map(|run| &run.namespace)
            };
            let at = match cause {
                CausalRef::RunId { run_id } => Some(run_id),
                CausalRef::EventId { event_id } => {
                    self.event_ids.get(&event_id).map(|(run_key, _)| *run_key)
                }
            };
            if at.and_then(|at| namespace(&at)) != namespace(&run_key) || at.is_none() {
                return Err(Refusal::CauseMissing { cause });
            }
        }
        self.check_steps(commit)?;
        self.check_consumed(commit)?;
        let gone = commit.ops.iter().find_map(|op| match op {
            Op::Requeue { task_id, .. } => {
                let letter = self.dead_letters.get(task_id);
                letter.is_none_or(|letter| letter.requeued_at.is_some()).then_some(*task_id)
            }
            _ => None,
        });
        gone.map_or(Ok(()), |task_id| Err(Refusal::DeadLetterMissing { task_id }))
    }

    // Zero if the run cannot reach the limits.
    fn unread(&self, run_key: RunKey, commit: &Commit, limits: &Limits) -> Unread {
        let accepted = self.runs.get(&run_key).map_or(0, |run| run.accepted);
        if !Unread::may_exceed(accepted + commit.messages().count() as u64, limits) {
            return Unread::default();
        }
        let messages = self.messages.get(&run_key).into_iter().flatten();
        let mut unread = Unread::default();
        for message in messages.filter(|message| message.consumed.is_none()) {
            unread.count += 1;
            unread.bytes += message.body.as_ref().map_or(0, |body| body.len() as u64);
        }
        unread
    }

    fn check_steps(&self, commit: &Commit) -> Result<(), Refusal> {
        let mut settled: BTreeSet<(RunKey, &StepKey)> = BTreeSet::new();
        for op in commit.ops.iter() {
            if let Op::PutStep(step) = op {
                let stored =
                    self.steps.get(&step.run_key).and_then(|steps| steps.get(&step.step_key));
                let key = (step.run_key, &step.step_key);
                if stored.is_some_and(|step| step.status.is_settled()) || settled.contains(&key) {
                    return Err(Refusal::StepSettled { step_key: step.step_key.clone() });
                }
                if step.status.is_settled() {
                    settled.insert(key);
                }
            }
        }
        Ok(())
    }

    fn check_consumed(&self, commit: &Commit) -> Result<(), Refusal> {
        let mut consumed = BTreeSet::new();
        for op in commit.ops.iter() {
            if let Op::ConsumeMessage { run_key, seq, .. } = op {
                let index = (*seq as usize).wrapping_sub(1);
                let message = self.messages.get(run_key).and_then(|messages| messages.get(index));
                let open = message.is_some_and(|message| message.consumed.is_none());
                if !open || !consumed.insert((*run_key, *seq)) {
                    return Err(Refusal::MessageConsumed { seq: *seq });
                }
            }
        }
        Ok(())
    }

    // The unique keys that a database enforces.
    fn check_keys(&self, commit: &Commit) -> Result<(), CommitError> {
        let mut tasks = BTreeSet::new();
        let mut logs = BTreeSet::new();
        let mut letters = BTreeSet::new();
        let mut events = BTreeSet::new();
        for op in commit.ops.iter() {
            let (what, free) = match op {
                Op::Enqueue(task) => {
                    let id = task.task_id;
                    ("task", !self.tasks.contains_key(&id) && tasks.insert(id))
                }
                Op::PutLog(line) => {
                    let id = (line.run_key, line.log_id);
                    ("log line", !self.logs.contains_key(&id) && logs.insert(id))
                }
                Op::DeadLetter(letter) => {
                    let id = letter.task_id;
                    let kept = self.dead_letters.get(&id);
                    let kept = kept.is_some_and(|letter| letter.requeued_at.is_none());
                    ("dead letter", !kept && letters.insert(id))
                }
                Op::AppendEvent { event, .. } => {
                    let id = event.event_id;
                    ("event", !self.event_ids.contains_key(&id) && events.insert(id))
                }
                Op::CreateRun(run) => {
                    // Retention may have kept the events of a deleted run.
                    ("run", self.events.get(&run.run_key).is_none_or(|kept| kept.is_empty()))
                }
                _ => continue,
            };
            if !free {
                let message = format!("the commit adds a {what} whose key exists already");
                let error = Error::new(ErrorKind::Invalid, ErrorCode::StoreConstraint, message);
                return Err(CommitError::Invalid(Arc::new(error)));
            }
        }
        Ok(())
    }

    fn write(&mut self, commit: &Commit) -> Committed {
        let now = self.now;
        if let Some(RunGuard::Free { run_key, worker, .. }) = commit.run
            && let Some(mut run) = self.runs.get(&run_key).cloned()
        {
            let hold = Hold { worker, claim_no: run.turn.claim_no + 1 };
            run.turn = run.turn.claimed(hold, now);
            self.put_run(run);
        }
        // `Reschedule` decides about `reclaims` itself.
        let rescheduled = |op: &Op| matches!(op, Op::Reschedule(_));
        if let Some(guard) = &commit.task
            && !commit.ops.iter().any(rescheduled)
            && let Some(mut task) = self.tasks.get(&guard.task_id()).cloned()
        {
            task.reclaims = 0;
            self.put_task(task);
        }
        // Insert runs first, because other rows may refer to them.
        for run in created(commit) {
            let mut run = run.clone();
            run.turn = run.turn.normalised(now);
            self.put_run(run);
        }
        // Accept messages before the change of the run, so that a release sees messages it has not
        // read.
        let messages = commit.messages().map(|message| self.accept(message)).collect();
        for op in commit.ops.iter() {
            match op {
                Op::Settle { task_id } if !self.may_settle(commit, *task_id) => {}
                op => self.write_op(op),
            }
        }
        let run = commit.run_key().and_then(|run_key| self.runs.get(&run_key));
        Committed {
            run_key: commit.run_key(),
            repeated: false,
            accepted: run.map_or(0, |run| run.accepted),
            hold: run.and_then(|run| run.turn.hold()),
            messages,
            now,
        }
    }

    // Only the guarded task, or a task of the guarded run.
    fn may_settle(&self, commit: &Commit, task_id: TaskId) -> bool {
        let guarded = commit.task.is_some_and(|guard| guard.task_id() == task_id);
        let run = self.tasks.get(&task_id).and_then(|task| task.run_key);
        guarded || run.is_some() && run == commit.run_key()
    }

    fn write_op(&mut self, op: &Op) {
        match op {
            Op::CreateRun(_) | Op::PutMessage(_) | Op::UserSql(_) => {}
            Op::SetRun(change) => self.set_run(change),
            Op::AppendEvent { event, .. } => {
                self.event_ids.insert(event.event_id, (event.run_key, event.ordinal));
                self.events.entry(event.run_key).or_default().push(event.clone());
            }
            Op::PutStep(step) => self.put_step(step),
            Op::ConsumeMessage { run_key, seq, by, at } => {
                let messages = self.messages.entry(*run_key).or_default();
                if let Some(message) = messages.get_mut(*seq as usize - 1) {
                    message.consumed = Some(Consumed { by: by.clone(), at: *at });
                }
            }
            Op::Enqueue(task) => {
                let task = task.as_ref().clone().normalised(self.now);
                self.put_task(task);
            }
            Op::Reschedule(change) => {
                if let Some(task) = self.tasks.get(&change.task_id).cloned() {
                    self.put_task(task.rescheduled(change, self.now));
                }
            }
            Op::Settle { task_id } => self.remove_task(*task_id),
            Op::DeadLetter(letter) => {
                let mut letter = letter.as_ref().clone();
                if let Some(before) = self.dead_letters.get(&letter.task_id) {
                    letter.requeues = before.requeues;
                }
                self.dead_letters.insert(letter.task_id, letter);
            }
            Op::Requeue { task_id, at } => {
                if let Some(letter) = self.dead_letters.get_mut(task_id) {
                    letter.requeues += 1;
                    letter.requeued_at = Some(*at);
                }
            }
            Op::Record(record) => self.write_record(record),
            Op::PutBody(put) => self.put_body(put),
            Op::PutLog(line) => {
                self.logs.insert((line.run_key, line.log_id), line.as_ref().clone());
            }
        }
    }

    fn set_run(&mut self, change: &RunChange) {
        let Some(mut run) = self.runs.get(&change.run_key).cloned() else { return };
        change.apply_to(&mut run);
        let started = run.started_at.is_some();
        run.turn = run.turn.after_commit(change.turn, run.status, started, run.accepted, self.now);
        self.put_run(run);
    }

    fn put_step(&mut self, step: &Step) {
        let steps: &mut BTreeMap<StepKey, Step> = self.steps.entry(step.run_key).or_default();
        let mut row = step.clone();
        if let Some(old) = steps.get(&step.step_key) {
            // The identity of a step never changes.
            row.name = old.name.clone();
            row.kind = old.kind.clone();
            row.position = old.position;
            row.created_at = old.created_at;
        }
        steps.insert(step.step_key.clone(), row);
    }

    fn accept(&mut self, message: &NewMessage) -> Delivery {
        let id = (message.run_key, message.message_id.clone());
        if let Some(seq) = self.message_ids.get(&id) {
            return Delivery::Duplicate { seq: *seq };
        }
        let Some(mut run) = self.runs.get(&message.run_key).cloned() else {
            return Delivery::Dropped;
        };
        if run.status.is_ended() {
            return Delivery::Dropped;
        }
        run.accepted += 1;
        let seq = run.accepted;
        let started = run.started_at.is_some();
        run.turn = run.turn.after_message(run.status, started, message.kind, self.now);
        self.put_run(run);
        if message.kind == MessageKind::Control {
            self.note(Some(Wakeup::Control(message.run_key)), None);
        }
        self.message_ids.insert(id, seq);
        self.messages.entry(message.run_key).or_default().push(Message {
            run_key: message.run_key,
            seq,
            message_id: message.message_id.clone(),
            kind: message.kind,
            name: message.name.clone(),
            body: message.body.clone(),
            caused_by: message.caused_by,
            sent_at: message.sent_at,
            consumed: None,
        });
        Delivery::Accepted { seq }
    }
}

fn created(commit: &Commit) -> impl Iterator<Item = &Run> {
    commit.ops.iter().filter_map(|op| match op {
        Op::CreateRun(run) => Some(&**run),
        _ => None,
    })
}

fn created_run(commit: &Commit, run_key: RunKey) -> Option<&Run> {
    created(commit).find(|run| run.run_key == run_key)
}
