//! Timeouts of activities, decided from their tasks' rows by the store's clock.
//!
//! A worker that is alive times its own attempts out. This is for what no worker can see: a task that
//! nobody begins, and an attempt whose worker is dead, frozen, or cut off. The run's own turn is due
//! when one of its activities may have run out of time, so any process that serves the workflow looks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_engine::{Overdue, Turn, TurnError, earlier_errors, events};
use windlass_kernel::{Body, Op, StepStatus, Task, TaskGuard, Timestamp, format_duration};

use super::action::ActivityOptions;
use super::activity::{ActivityError, TimeoutType};
use super::live::Fact;
use super::pending::{Kind, Spec};
use super::program::{MachineProgram, Work};
use super::replay::input_of;

/// How much later than a worker the run itself calls an attempt overdue.
const GRACE: Duration = Duration::from_millis(500);
/// How often a task that nobody has is looked at: its attempt may have begun since.
const UNHELD_EVERY: Duration = Duration::from_secs(15);

/// The result of checking an activity.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    InTime { next: Option<Timestamp> },
    Over { timeout: TimeoutType, message: String },
}

impl MachineProgram {
    /// Notes when an activity that was just begun is to be looked at.
    pub(crate) fn schedule_check(&mut self, key: &str, now: Timestamp) {
        let Some(entry) = self.pending.open.get_mut(key) else { return };
        let (Some(options), Some(row)) = (&entry.options, &entry.row) else { return };
        if let Seen::InTime { next } = see(options, row.created_at, None, now) {
            entry.check_at = next;
        }
    }

    /// After a run was read back, everything is looked at when it would have been.
    pub(crate) fn look_at_all(&mut self, turn: &Turn) {
        let activities = |kind: Kind| kind == Kind::Activity;
        let open = self.pending.open.iter().filter(|(_, entry)| activities(entry.kind));
        let keys: Vec<Arc<str>> = open.map(|(key, _)| Arc::clone(key)).collect();
        let now = turn.now();
        for key in keys {
            let entry = &self.pending.open[&key];
            let created_at = entry.row.as_ref().map_or(now, |row| row.created_at);
            self.schedule_check(&key, created_at);
        }
    }

    /// Checks the activities that may have run out of time, and retries them or passes their failure to
    /// the machine.
    pub(crate) async fn look(&mut self, turn: &mut Turn, work: &mut Work) -> Result<(), TurnError> {
        let now = turn.now();
        let due = self
            .pending
            .open
            .iter()
            .filter(|(_, entry)| entry.check_at.is_some_and(|at| at <= now));
        let keys: Vec<Arc<str>> = due.map(|(key, _)| Arc::clone(key)).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let tasks = turn.tasks().await?;
        for key in keys {
            if work.ending.is_some() {
                break;
            }
            let Some(entry) = self.pending.open.get(&key) else { continue };
            let (Some(options), Some(row)) = (&entry.options, &entry.row) else { continue };
            let task_id = Spec::of(row).and_then(|spec| spec.task_id);
            let task = tasks.iter().find(|task| Some(task.task_id) == task_id);
            let seen = match task {
                Some(task) => see(options, row.created_at, Some(task), now),
                // It is over, and the message that says so is on its way.
                None => Seen::InTime { next: Some(now.plus(UNHELD_EVERY)) },
            };
            match (seen, task) {
                (Seen::Over { timeout, message }, Some(task)) => {
                    self.out_of_time(turn, work, &key, task, timeout, message).await?;
                }
                (Seen::InTime { next }, _) => {
                    if let Some(entry) = self.pending.open.get_mut(&key) {
                        entry.check_at = next;
                    }
                }
                (Seen::Over { .. }, None) => {}
            }
        }
        Ok(())
    }

    async fn out_of_time(
        &mut self,
        turn: &mut Turn,
        work: &mut Work,
        key: &Arc<str>,
        task: &Task,
        timeout: TimeoutType,
        message: String,
    ) -> Result<(), TurnError> {
        let overdue = turn.overdue(task, timeout, message.clone());
        match (overdue.map_err(TurnError::Blocked)?, task.hold()) {
            (Overdue::Again(op), Some(hold)) => {
                // It appends nothing, so the commit that is being made still fits behind it. If the
                // worker has settled the task meanwhile, the turn is taken anew.
                self.take_back(turn, TaskGuard::Held { task_id: task.task_id, hold }, op).await?;
                self.schedule_check(key, turn.now());
                Ok(())
            }
            (Overdue::Again(_), None) => Ok(()),
            (Overdue::GivenUp(ops, attempt), _) => {
                // A worker may have claimed or settled the task since it was read. Then the commit is
                // refused and the turn is taken anew. A commit guards one task, so the earlier
                // callbacks are committed first.
                self.commit_callbacks(turn, work).await?;
                let Some((entry, mut row)) = self.take_open(key, Kind::Activity) else {
                    return Ok(());
                };
                work.draft.guard_task(TaskGuard::unchanged(task));
                work.dead += 1;
                let error = ActivityError {
                    timeout: Some(timeout),
                    ..ActivityError::non_retryable(message).named(timeout.error_name())
                };
                row.attempt = attempt;
                row.status = StepStatus::Errored;
                row.error = Some(Body::of(&error).map_err(TurnError::Blocked)?);
                let payload = json!({ "key": &**key, "attempt": attempt, "timeout_type": timeout });
                let input = input_of(&entry, &row).map_err(TurnError::Blocked)?;
                let (event, earlier) = (events::ACTIVITY_TIMED_OUT, earlier_errors(task));
                let fact = Fact::Time { row, event, payload, earlier, ops };
                self.tell(turn, work, Some(fact), input).map_err(TurnError::Blocked)
            }
        }
    }

    async fn take_back(
        &mut self,
        turn: &mut Turn,
        guard: TaskGuard,
        op: Op,
    ) -> Result<(), TurnError> {
        let mut draft = turn.draft();
        draft.guard_task(guard).op(op);
        turn.commit(draft).await.map(|_| ())
    }
}

// Checks the deadlines, with a task's row or, if it was just enqueued, without.
fn see(
    options: &ActivityOptions,
    scheduled_at: Timestamp,
    task: Option<&Task>,
    now: Timestamp,
) -> Seen {
    let mut next: Vec<Timestamp> = Vec::new();
    let over = |timeout, message: String| Seen::Over { timeout, message };
    if let Some(span) = options.schedule_to_close_timeout {
        let by = scheduled_at.plus(span).plus(GRACE);
        if by <= now {
            let message =
                format!("it was not over within {} of being scheduled", format_duration(span));
            return over(TimeoutType::ScheduleToClose, message);
        }
        next.push(by);
    }
    // A task that was taken from its worker, or was postponed, has used up no attempt.
    let begun = task.is_some_and(|task| {
        task.worker.is_some()
            || task.attempt > 0
            || task.reclaims > 0
            || task.heartbeat_at.is_some()
    });
    if let Some(span) = options.schedule_to_start_timeout.filter(|_| !begun) {
        let by = scheduled_at.plus(span);
        if by <= now {
            let message = format!("no worker began it within {}", format_duration(span));
            return over(TimeoutType::ScheduleToStart, message);
        }
        next.push(by);
    }
    let attempt = [options.start_to_close_timeout, options.heartbeat_timeout];
    let shortest = attempt.into_iter().flatten().min();
    let claimed_at = task.filter(|task| task.worker.is_some()).and_then(|task| task.claimed_at);
    match (claimed_at, shortest) {
        (Some(began), Some(_)) => {
            if let Some(span) = options.start_to_close_timeout {
                let by = began.plus(span).plus(GRACE);
                if by <= now {
                    let message = format!("the attempt took longer than {}", format_duration(span));
                    return over(TimeoutType::StartToClose, message);
                }
                next.push(by);
            }
            if let Some(span) = options.heartbeat_timeout {
                let beat =
                    task.and_then(|task| task.heartbeat_at).map_or(began, |beat| beat.max(began));
                let by = beat.plus(span).plus(GRACE);
                if by <= now {
                    let message = format!("there was no heartbeat for {}", format_duration(span));
                    return over(TimeoutType::Heartbeat, message);
                }
                next.push(by);
            }
        }
        (None, Some(shortest)) => {
            // A task that was just enqueued is taken at once, or waits for a worker.
            let every = if task.is_some() { shortest.max(UNHELD_EVERY) } else { shortest };
            next.push(now.plus(every).plus(GRACE));
        }
        _ => {}
    }
    Seen::InTime { next: next.into_iter().min() }
}

#[cfg(test)]
mod tests {
    use windlass_kernel::{Namespace, QueueName, Route, RouteName, TaskId, WorkerKey};

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_000_000_000).plus(Duration::from_secs(seconds))
    }

    // A task scheduled at 0; `held` since when, `beat` when last.
    fn task(held: Option<u64>, beat: Option<u64>, attempt: u32) -> Task {
        let route = Route { queue: QueueName::default_queue(), name: RouteName::from_stored("a") };
        let (id, namespace) = (TaskId(uuid::Uuid::nil()), Namespace::default_namespace());
        let mut task = Task::new(id, namespace, "activity", route, at(0));
        task.worker = held.map(|_| WorkerKey(uuid::Uuid::nil()));
        task.claimed_at = held.map(at);
        task.heartbeat_at = beat.map(at);
        task.attempt = attempt;
        task
    }

    #[track_caller]
    fn check(options: [Option<u64>; 4], task: &Task, now: u64, expect: &str) {
        let [start, close, beat, all] = options.map(|span| span.map(Duration::from_secs));
        let options = ActivityOptions {
            schedule_to_start_timeout: start,
            start_to_close_timeout: close,
            heartbeat_timeout: beat,
            schedule_to_close_timeout: all,
            ..ActivityOptions::default()
        };
        let found = match see(&options, at(0), Some(task), at(now)) {
            Seen::InTime { next } => match next {
                Some(next) => format!("in {} ms", next.since(at(now)).as_millis()),
                None => "never".to_owned(),
            },
            Seen::Over { timeout, .. } => format!("{timeout:?}"),
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn what_the_times_say() {
        let (unheld, held) = (task(None, None, 0), task(Some(10), None, 0));
        check([None, None, None, None], &unheld, 100, "never");
        check([Some(20), None, None, None], &unheld, 19, "in 1000 ms");
        check([Some(20), None, None, None], &unheld, 20, "ScheduleToStart");
        check([Some(20), None, None, None], &held, 25, "never");
        check([Some(20), None, None, None], &task(None, None, 1), 25, "never");
        let reaped = Task { reclaims: 1, ..task(None, None, 0) };
        check([Some(20), None, None, None], &reaped, 25, "never");
        check([Some(20), None, None, None], &task(None, Some(3), 0), 25, "never");
        check([None, Some(5), None, None], &unheld, 100, "in 15500 ms");
        check([None, Some(5), None, None], &held, 15, "in 500 ms");
        check([None, Some(5), None, None], &held, 16, "StartToClose");
        check([None, None, Some(5), None], &held, 16, "Heartbeat");
        check([None, None, Some(5), None], &task(Some(10), Some(14), 0), 16, "in 3500 ms");
        check([None, None, Some(5), None], &task(Some(10), Some(4), 0), 16, "Heartbeat");
        check([None, None, None, Some(30)], &held, 30, "in 500 ms");
        check([None, None, None, Some(30)], &held, 31, "ScheduleToClose");
        check([Some(5), None, None, Some(5)], &unheld, 6, "ScheduleToClose");
    }
}
