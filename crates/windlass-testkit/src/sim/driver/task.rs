//! Performing a task: an activity tells its run in the commit that settles it, an effect does not.

use std::sync::Arc;

use windlass_kernel::{
    Commit, CommitError, DeadLetter, Decision, HeldItem, Hold, MessageId, MessageKind, MessageName,
    NewMessage, Op, Reschedule, RetryPolicy, Task, TaskGuard, Wake,
};

use super::super::program::Activity;
use super::Worker;
use super::turn::text;

impl Worker {
    pub(super) async fn perform(self: &Arc<Self>, task: Task) {
        let hold = Hold { worker: self.key, claim_no: task.claim_no };
        let item =
            HeldItem::Task { task_id: task.task_id, worker: self.key, claim_no: task.claim_no };
        let (task_id, world) = (task.task_id, &self.world);
        world.checker.executing_task(&task, hold);
        self.work().await;
        let spec: Activity = match task.body.as_ref().map(|body| body.read()) {
            Some(Ok(spec)) => spec,
            _ => Activity { fails: 0, policy: RetryPolicy::none(), limited: false },
        };
        let attempt = task.attempt + 1;
        let mut ops = Vec::new();
        if attempt > spec.fails {
            ops.push(Op::Settle { task_id });
            ops.extend(self.result(&task, "done"));
        } else {
            match spec.policy.decide(attempt, "Flaky", true, None, task_id.0.as_u128() as u64) {
                Decision::RetryIn(delay) => {
                    world.sim.sometimes("activity was tried again");
                    let wake = Wake::At(self.now().plus(delay));
                    let errors = Some(text("Flaky"));
                    let change = Reschedule { task_id, wake, attempt, errors, untried: false };
                    ops.push(Op::Reschedule(Box::new(change)));
                }
                Decision::GiveUp(_) => {
                    world.sim.sometimes("activity was given up and left a dead letter");
                    ops.push(Op::Settle { task_id });
                    ops.push(Op::DeadLetter(Box::new(self.letter(&task, attempt))));
                    ops.extend(self.result(&task, "failed"));
                }
            }
        }
        let commit = Commit::new(None, Some(TaskGuard { task_id, hold }), ops);
        match world.commit(&self.store, &commit, &self.rng).await {
            Ok(done) => self.saw(done.now),
            // Somebody else has it or did it, or it was ours and its answer was lost.
            Err(CommitError::Conflict(_)) => {}
            Err(_) => self.give_back(item).await,
        }
    }

    // The id holds the claim, so that no other commit writes the same row: a zombie's result is
    // not taken for the one that was recorded.
    fn result(&self, task: &Task, result: &str) -> Option<Op> {
        if &*task.kind == "effect" {
            return None;
        }
        let step_key = task.step_key.as_ref()?;
        let id = format!("a:{}:{}", task.task_id, task.claim_no);
        Some(Op::PutMessage(Box::new(NewMessage {
            run_key: task.run_key?,
            message_id: MessageId::new(id).ok()?,
            kind: MessageKind::ActivityResult,
            name: MessageName::new(format!("act.{step_key}")).ok()?,
            body: Some(text(&format!("{result} under claim {}", task.claim_no))),
            caused_by: None,
            sent_at: self.now(),
            required: false,
        })))
    }

    fn letter(&self, task: &Task, attempt: u32) -> DeadLetter {
        DeadLetter {
            task_id: task.task_id,
            namespace: task.namespace.clone(),
            run_key: task.run_key,
            step_key: task.step_key.clone(),
            kind: task.kind.clone(),
            queue: task.queue.clone(),
            name: task.name.clone(),
            attempt,
            body: task.body.clone(),
            errors: Some(text("Flaky")),
            reason: "attempts are spent".into(),
            dead_at: self.now(),
            requeues: 0,
            requeued_at: None,
        }
    }
}
