//! Invariants of a commit at the moment it takes effect, or is refused.

use windlass_kernel::ledger::{run_end_digest, step_digest};
use windlass_kernel::{
    Commit, CommitError, Committed, Conflict, Delivery, ErrorCode, Head, Hold, Loaded, MemoryStore,
    Message, MessageKind, Op, Refusal, Run, RunChange, RunGuard, RunKey, RunStatus, Step,
    StepStatus, TaskGuard, TurnChange, Wake,
};

use windlass_kernel::verify::Anchor;

use super::super::store::short;
use super::{Checker, Enqueued, Item, Settled, Snapshot, Trace, trace_of};

/// Whether the same commit can succeed later. A `Free` guard fails while a worker holds the turn. If the
/// answer is lost and the worker releases the turn without an event, the resent commit succeeds, and the
/// sender learns exactly one outcome. If the head has moved on, it never succeeds.
///
/// The end of a child is refused if its parent has ended. The engine then sends it again with the result for
/// the parent's newest generation, or without requiring the result.
fn may_pass_later(sent: &Commit, error: &CommitError, before: &Snapshot) -> bool {
    if let CommitError::Refused(
        Refusal::RunEnded { run_key, .. } | Refusal::RunMissing { run_key },
    ) = error
    {
        let refused = |m: &windlass_kernel::NewMessage| {
            m.required && m.kind == MessageKind::ChildResult && m.run_key == *run_key
        };
        return sent.messages().any(refused);
    }
    let Some(RunGuard::Free { run_key, head, .. }) = &sent.run else { return false };
    matches!(error, CommitError::Conflict(Conflict::RunHold { .. }))
        && before.runs.get(run_key).is_some_and(|row| row.run.head == *head)
}

impl Checker {
    /// A commit took effect or was refused.
    pub fn commit(
        &self,
        store: &MemoryStore,
        sent: &Commit,
        before: &Snapshot,
        result: &Result<Committed, CommitError>,
    ) {
        let after = self.snapshot(store, sent);
        let trace = trace_of(&sent.key);
        match result {
            Ok(done) if !done.repeated => {
                self.saw_time(done.now);
                self.check_key_once(sent, trace);
                self.check_guards(sent, before);
                self.check_written(sent, before, &after, done);
                self.check_turn(sent, &after);
                self.check_requests(store, sent);
                for row in after.runs.values() {
                    self.check_idle(store, &row.run, done.now);
                }
            }
            Ok(done) => {
                self.saw_time(done.now);
                let own = done.run_key == sent.run_key();
                self.sim.sometimes(if own {
                    "resend found its key"
                } else {
                    "create found the same run"
                });
                let known = trace.is_some_and(|trace| self.state().written.contains(&trace));
                if own && !known {
                    self.fail("8 what was acknowledged was written", format!("{:?}", sent.key));
                }
                self.check_untouched(sent, before, &after);
            }
            Err(error) => {
                self.note_refusal(sent, error);
                let known = trace.as_ref().is_some_and(|t| self.state().written.contains(t));
                let own_message = matches!(trace, Some((2, ..)));
                // Retention took the run, and the commit's trace with it, before it was asked again.
                let deleted =
                    sent.run_key().is_some_and(|run_key| self.state().deleted.contains(&run_key));
                let gone = deleted && error.code() == ErrorCode::RunNotFound;
                // A record knows its last write only. If others have written it since, the sender is told that
                // nobody knows.
                let open = matches!(error, CommitError::Conflict(conflict) if sent.is_outcome_open(conflict));
                if known && !own_message && !gone && !open {
                    let detail = format!("{:?} is written and was answered {error}", sent.key);
                    self.fail("9 an unknown outcome resolves to exactly one of both", detail);
                }
                if !error.is_retryable() && !may_pass_later(sent, error, before) {
                    self.state().refused.extend(trace);
                }
                self.check_untouched(sent, before, &after);
            }
        }
    }

    // A key that was written, or refused for good, is not written again. Messages are: sending is
    // idempotent by their own ids.
    fn check_key_once(&self, sent: &Commit, trace: Option<Trace>) {
        let Some(trace) = trace.filter(|trace| trace.0 != 2) else {
            self.state().written.extend(trace_of(&sent.key));
            return;
        };
        let (refused, fresh) = {
            let mut state = self.state();
            (state.refused.contains(&trace), state.written.insert(trace))
        };
        if !fresh {
            self.fail("9 a commit is written once", format!("{:?} again", sent.key));
        }
        if refused {
            let detail = format!("{:?} was refused before", sent.key);
            self.fail("9 an unknown outcome resolves to exactly one of both", detail);
        }
    }

    fn check_guards(&self, sent: &Commit, before: &Snapshot) {
        let row = sent.run_key().and_then(|key| before.runs.get(&key)).map(|row| &row.run);
        let fits = match (&sent.run, row) {
            (Some(RunGuard::Held { head, hold, .. }), Some(run)) => {
                run.turn.hold() == Some(*hold) && run.head == *head
            }
            (Some(RunGuard::Free { head, .. }), Some(run)) => {
                run.turn.worker.is_none() && run.head == *head
            }
            (Some(RunGuard::Absent { .. }), None) | (None, _) => true,
            _ => false,
        };
        if !fits {
            let detail = format!("{:?} was written over {row:?}", sent.run);
            self.fail("4 a stale writer writes nothing and schedules nothing", detail);
        }
        if let Some(run) = row.filter(|run| run.status.is_ended()) {
            let detail = format!("r{:x} was {} and changed", short(run.run_key.0), run.status);
            self.fail("15 terminal is final", detail);
        }
        if let Some(guard) = &sent.task {
            let found = before.tasks.get(&guard.task_id()).map(|task| (task.worker, task.claim_no));
            if found != Some((guard.worker(), guard.claim_no())) {
                let detail = format!("{guard:?} was written over holder and claim {found:?}");
                self.fail("3 only the current holder settles a task", detail);
            }
        }
    }

    // All of the commit is there, and each part fits what was there before.
    fn check_written(&self, sent: &Commit, before: &Snapshot, after: &Snapshot, done: &Committed) {
        let mut missing = None;
        let claim_no = self.claim_of(sent, before);
        for (place, op) in sent.ops.iter().enumerate() {
            let there = match op {
                Op::CreateRun(run) => {
                    self.note_created(after.runs.get(&run.run_key));
                    after.runs.contains_key(&run.run_key)
                }
                Op::SetRun(change) => self.check_set(change, after),
                Op::AppendEvent { event, .. } => {
                    let place = (event.run_key, event.ordinal);
                    self.state().events.insert(event.event_id, place);
                    true
                }
                Op::PutStep(step) => {
                    // A wait can begin and end in one commit: the last word on a step counts.
                    let replaced = sent.ops[place + 1..].iter().any(|later| {
                        matches!(later, Op::PutStep(other) if other.step_key == step.step_key
                            && other.run_key == step.run_key)
                    });
                    replaced || self.check_step(step, before, after, done, claim_no)
                }
                Op::ConsumeMessage { run_key, seq, .. } => {
                    self.check_consumed(*run_key, *seq, &sent.ops[..place], before, after)
                }
                Op::Enqueue(task) => {
                    let effect = &*task.kind == "effect";
                    let row = Enqueued { effect, namespace: task.namespace.clone() };
                    self.state().enqueued.insert(task.task_id, row);
                    self.state().fences.insert(Item::Task(task.task_id), task.claim_no);
                    after.tasks.contains_key(&task.task_id)
                }
                Op::Settle { task_id } => !after.tasks.contains_key(task_id),
                Op::Reschedule(change) => after.tasks.get(&change.task_id).is_some_and(|task| {
                    self.raise(Item::Task(task.task_id), task.claim_no);
                    task.attempt == change.attempt && task.worker.is_none()
                }),
                Op::DeadLetter(letter) => {
                    self.state().dead_letters.insert(letter.task_id);
                    true
                }
                _ => true,
            };
            if !there {
                missing = Some(op);
            }
        }
        self.check_deliveries(sent, before, after, done);
        if let Some(op) = missing {
            let detail = format!("the commit was acknowledged and this is not there: {op:?}");
            self.fail("8 a commit is all or nothing, and what was acknowledged is there", detail);
        }
    }

    fn claim_of(&self, sent: &Commit, before: &Snapshot) -> u64 {
        match &sent.run {
            Some(RunGuard::Held { hold, .. }) => hold.claim_no,
            Some(RunGuard::Free { run_key, .. }) => {
                before.runs.get(run_key).map_or(0, |row| row.run.turn.claim_no + 1)
            }
            _ => 0,
        }
    }

    fn note_created(&self, row: Option<&Loaded>) {
        let Some(run) = row.map(|row| &row.run) else { return };
        self.state().fences.insert(Item::Turn(run.run_key), run.turn.claim_no);
        if run.turn.hold().is_some() {
            self.sim.sometimes("eager create held its turn");
        }
    }

    fn check_set(&self, change: &RunChange, after: &Snapshot) -> bool {
        let Some(row) = after.runs.get(&change.run_key) else { return false };
        if let Some(status) = change.status.filter(|status| status.is_ended()) {
            let digest = run_end_digest(status, change.output.as_ref(), change.error.as_ref());
            self.state().ended.insert(change.run_key, digest);
        }
        let (run, run_key) = (&row.run, change.run_key);
        let Head { next_ordinal, hash } = change.head;
        self.state().anchors.push(Anchor { run_key, next_ordinal, hash });
        run.head == change.head
            && run.cursor == change.cursor
            && change.status.is_none_or(|status| run.status == status)
            && change.state.as_ref().is_none_or(|state| run.state.as_ref() == Some(state))
            && change.output.as_ref().is_none_or(|output| run.output.as_ref() == Some(output))
    }

    fn check_step(
        &self,
        step: &Step,
        before: &Snapshot,
        after: &Snapshot,
        done: &Committed,
        claim_no: u64,
    ) -> bool {
        let find = |rows: &Snapshot| {
            let row = rows.runs.get(&step.run_key)?;
            row.steps.iter().find(|row| row.step_key == step.step_key).cloned()
        };
        if let Some(old) = find(before) {
            if old.status.is_settled() {
                let detail = format!("step {} had its result and got another", step.step_key);
                self.fail("2 one result a step, immutable", detail);
            }
            self.check_timer(&old, step, done);
        }
        if step.attempts_max.is_some_and(|max| step.attempt > max) {
            let detail = format!("step {} made attempt {}", step.step_key, step.attempt);
            self.fail("18 attempts stay within their policy", detail);
        }
        if step.status.is_settled() {
            let key = (step.run_key, step.step_key.clone());
            let settled = Settled { claim_no, digest: step_digest(step) };
            self.state().settled.insert(key, settled);
        }
        find(after).is_some_and(|row| row.status == step.status && row.result == step.result)
    }

    fn check_timer(&self, old: &Step, new: &Step, done: &Committed) {
        let Some(due_at) = old.due_at else { return };
        let fired = match old.kind.as_str() {
            "sleep" => new.status == StepStatus::Completed,
            "event" => new.status == StepStatus::Errored,
            "do" => new.attempt > old.attempt,
            _ => false,
        };
        if fired && done.now < due_at && !self.state().timers_may_be_early {
            let detail = format!("step {} is due at {due_at}, done at {}", old.step_key, done.now);
            self.fail("13 timers are never early on the store's clock", detail);
        }
    }

    fn check_consumed(
        &self,
        run_key: RunKey,
        seq: u64,
        earlier: &[Op],
        before: &Snapshot,
        after: &Snapshot,
    ) -> bool {
        let unread = |rows: &Snapshot| -> Vec<Message> {
            rows.runs.get(&run_key).map(|row| row.messages.clone()).unwrap_or_default()
        };
        let open = unread(before);
        let taken = |seq: u64| {
            earlier.iter().any(|op| matches!(op, Op::ConsumeMessage { seq: s, .. } if *s == seq))
        };
        let Some(message) = open.iter().find(|message| message.seq == seq) else {
            let detail = format!("message {seq} of r{:x} was consumed before", short(run_key.0));
            self.fail("16 a message is consumed at most once", detail);
            return true;
        };
        // Results of children, activities and requests go to the step that waits for each.
        use MessageKind::{ActivityResult, ChildResult, Decision};
        let ordered = !matches!(message.kind, ChildResult | ActivityResult | Decision);
        let skipped = open.iter().find(|other| {
            ordered
                && other.seq < seq
                && (other.kind, &other.name) == (message.kind, &message.name)
                && !taken(other.seq)
        });
        if let Some(other) = skipped {
            let detail =
                format!("message {seq} was consumed before {} of the same name", other.seq);
            self.fail("16 messages are consumed in the order of acceptance", detail);
        }
        !unread(after).iter().any(|message| message.seq == seq)
    }

    fn check_deliveries(
        &self,
        sent: &Commit,
        before: &Snapshot,
        after: &Snapshot,
        done: &Committed,
    ) {
        for (message, delivery) in sent.messages().zip(&done.messages) {
            let target = before.runs.get(&message.run_key).map(|row| &row.run);
            match delivery {
                Delivery::Accepted { seq } => {
                    let id = (message.run_key, message.message_id.clone());
                    let known = self.state().accepted.insert(id, *seq).is_some();
                    let row = after.runs.get(&message.run_key);
                    let there = row.is_some_and(|row| {
                        let found = row.messages.iter().find(|found| found.seq == *seq);
                        found.is_some_and(|found| found.message_id == message.message_id)
                    });
                    if known || !there {
                        let detail = format!("{} was accepted as {seq}", message.message_id);
                        self.fail("16 a message is accepted once, under its id", detail);
                    }
                    if target.is_some_and(|run| run.status.is_ended()) {
                        let detail = format!("{} was accepted by an ended run", message.message_id);
                        self.fail("15 terminal is final", detail);
                    }
                    if let (Some(target), Some(row)) = (target, row) {
                        self.note_message(target, &row.run, done);
                    }
                }
                Delivery::Duplicate { .. } => {
                    self.sim.sometimes("message came twice and counted once");
                }
                Delivery::Dropped => self.sim.sometimes("result for an ended run was dropped"),
            }
        }
    }

    fn note_message(&self, before: &Run, after: &Run, done: &Committed) {
        if before.turn.worker.is_some() {
            self.sim.sometimes("message arrived while the turn was held");
        } else if before.turn.due_at.is_some_and(|due_at| due_at <= done.now) {
            self.sim.sometimes("a timer and a message were due on one run");
        }
        if before.status == RunStatus::Paused && !after.turn.ready {
            self.sim.sometimes("paused run was woken by nothing until it was resumed");
        }
    }

    // Compares the turn with the change that the sender asked for.
    fn check_turn(&self, sent: &Commit, after: &Snapshot) {
        let Some(change) = sent.run_change() else { return };
        let Some(run) = after.runs.get(&change.run_key).map(|row| &row.run) else { return };
        if let Some(RunGuard::Free { .. }) = sent.run {
            self.sim.sometimes(match sent.task {
                Some(_) => "activity was settled by the turn of its run",
                None => "client took a free turn in its commit",
            });
        }
        let free = matches!(sent.run, Some(RunGuard::Free { .. }));
        if free || run.status.is_ended() || change.turn != TurnChange::Keep {
            self.raise(Item::Turn(run.run_key), run.turn.claim_no);
        }
        let TurnChange::Release { wake, seen } = change.turn else { return };
        if run.status.is_ended() || run.status == RunStatus::Paused {
            return;
        }
        let turn = &run.turn;
        let name = short(run.run_key.0);
        if run.accepted > seen {
            if !turn.ready {
                let detail = format!("r{name:x} accepted {}, its turn saw {seen}", run.accepted);
                self.fail("12 no wake-up is lost", detail);
            }
            self.sim.sometimes("turn stayed ready for a message its holder had not read");
        }
        let woken = turn.ready
            || match wake {
                Wake::Now => false,
                Wake::At(at) => turn.due_at == Some(at),
                Wake::OnMessage => true,
            };
        if !woken || turn.worker.is_some() {
            let detail = format!("r{name:x} was released with {wake:?} and is {turn:?}");
            self.fail("11 every live run has a wake source", detail);
        }
    }

    fn check_untouched(&self, sent: &Commit, before: &Snapshot, after: &Snapshot) {
        let same_runs = before.runs == after.runs;
        if !same_runs || before.tasks != after.tasks {
            let detail = format!("{:?} was not written and changed rows", sent.key);
            self.fail("9 a commit that fails leaves nothing", detail);
        }
    }

    fn note_refusal(&self, sent: &Commit, error: &CommitError) {
        let of_run = |conflict: &Conflict| {
            matches!(conflict, Conflict::RunHold { .. } | Conflict::RunHead { .. })
        };
        if let (Some(RunGuard::Free { .. }), Some(_), CommitError::Conflict(conflict)) =
            (&sent.run, &sent.task, error)
            && of_run(conflict)
        {
            self.sim.sometimes("local completion had lost its run");
        }
        match error {
            CommitError::Conflict(Conflict::RunHold { run_key, .. }) => {
                if let Some(RunGuard::Held { hold, .. }) = &sent.run {
                    self.sim.sometimes("zombie turn refused");
                    self.note_reaped(Item::Turn(*run_key), *hold);
                }
            }
            CommitError::Conflict(Conflict::RunHead { .. }) => {
                self.sim.sometimes("conflict on the head alone");
            }
            CommitError::Conflict(Conflict::TaskHold { task_id, .. })
            | CommitError::Conflict(Conflict::TaskMissing { task_id }) => {
                if let Some(TaskGuard::Held { hold, .. }) = &sent.task {
                    self.sim.sometimes("zombie settle refused");
                    self.note_reaped(Item::Task(*task_id), *hold);
                }
            }
            CommitError::Refused(Refusal::RunEnded { run_key, .. })
                if sent.run_key() != Some(*run_key) =>
            {
                self.sim.sometimes("draft was refused because its run had ended");
            }
            CommitError::Invalid(error) => {
                self.fail("0 an engine sends well-formed commits", error.to_string());
            }
            _ => {}
        }
    }

    fn note_reaped(&self, item: Item, hold: Hold) {
        if self.state().reaped.contains(&(item, hold.worker.0, hold.claim_no)) {
            self.sim.sometimes("reaped a holder whose commit was on its way");
        }
    }
}

#[cfg(test)]
mod tests;
