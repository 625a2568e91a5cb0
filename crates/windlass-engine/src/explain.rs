//! The reasons that `why` gives for open steps, by what a step does.

use serde::{Deserialize, Serialize};
use windlass_kernel::{Body, RunKey, Step, StepStatus, Task, Worker, WorkerKey, WorkflowName};

use crate::keyed::KeyedWait;
use crate::why::Why;

/// An open step, with what is known about it.
pub struct StepContext<'a> {
    /// The step.
    pub step: &'a Step,
    /// Whether a worker executes it now.
    pub executing: bool,
    /// The tasks that work for the run.
    pub tasks: &'a [Task],
    /// The live workers.
    pub workers: &'a [Worker],
}

/// Says why a step is open: a code, and a sentence for people.
pub type Explain = fn(&StepContext<'_>) -> (Why, String);

/// The child run that a step waits for, as the row of the step has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildRef {
    /// Its workflow.
    pub workflow: WorkflowName,
    /// Its id. A text: the engine composes it, and as a user's own id it would be refused.
    pub id: String,
    /// The generation that was started.
    pub run_key: RunKey,
}

impl ChildRef {
    /// Reads the child of a step.
    pub fn of(step: &Step) -> Option<Self> {
        step.input.as_ref().and_then(|input| input.read().ok())
    }
}

impl StepContext<'_> {
    /// The key of the step.
    pub fn key(&self) -> &str {
        self.step.step_key.as_str()
    }

    /// When the step is due, as text.
    pub fn due(&self) -> String {
        self.step.due_at.map_or_else(|| "some time".into(), |due| due.to_string())
    }

    /// The task that works for the step.
    pub fn task(&self) -> Option<&Task> {
        self.tasks.iter().find(|task| task.step_key.as_ref() == Some(&self.step.step_key))
    }
}

/// For a step that waits for a time.
pub fn explain_sleep(context: &StepContext<'_>) -> (Why, String) {
    (Why::Sleeping, format!("{:?} sleeps until {}", context.key(), context.due()))
}

/// For a step that waits for an event.
pub fn explain_wait(context: &StepContext<'_>) -> (Why, String) {
    let name = context.step.wait_for.as_deref().unwrap_or_default();
    let (key, at) = (context.key(), context.due());
    let to = KeyedWait::of(context.step).map(|wait| format!(" to key {:?}", wait.address.key));
    let to = to.unwrap_or_default();
    (Why::AwaitingEvent, format!("{key:?} waits for an event of type {name:?}{to}, until {at}"))
}

/// For a step that waits for a child run.
pub fn explain_child(context: &StepContext<'_>) -> (Why, String) {
    let child = ChildRef::of(context.step);
    let named = child.map(|child| format!(" {:?} of {:?}", child.id, child.workflow));
    let text = format!("{:?} waits for the child run{}", context.key(), named.unwrap_or_default());
    (Why::AwaitingChild, text)
}

/// For a step that the holder of the turn executes.
pub fn explain_work(context: &StepContext<'_>) -> (Why, String) {
    let StepContext { step, executing, .. } = *context;
    let (key, at) = (context.key(), context.due());
    let of = step.attempts_max.map(|max| format!(" of {max}")).unwrap_or_default();
    let held =
        |attempt: u32| (Why::Held, format!("{key:?} is being executed, attempt {attempt}{of}"));
    if executing {
        return match step.status {
            StepStatus::Running => held(step.attempt.max(1)),
            // The row counts the attempts that failed.
            _ => held(step.attempt + 1),
        };
    }
    if step.status != StepStatus::Waiting {
        return held(step.attempt.max(1));
    }
    // A step that was not tried yet waits for a time or for a signal.
    match (step.attempt, step.wait_for.as_deref()) {
        (0, None) => (Why::Sleeping, format!("{key:?} is delayed until {at}")),
        (0, Some(name)) => {
            let until = step.due_at.map(|_| format!(", until {at}")).unwrap_or_default();
            (Why::AwaitingEvent, format!("{key:?} waits for the signal {name:?}{until}"))
        }
        (failed, _) => {
            let error = step.error.as_ref().map(error_text).unwrap_or_default();
            let next = failed + 1;
            let text =
                format!("{key:?} failed and is tried again at {at}, attempt {next}{of}: {error}");
            (Why::Retrying, text)
        }
    }
}

/// For a step that waits for people. The text is completed from the request.
pub fn explain_request(context: &StepContext<'_>) -> (Why, String) {
    (Why::AwaitingDecision, format!("{:?} waits for a decision", context.key()))
}

/// For a step that waits for an activity.
pub fn explain_activity(context: &StepContext<'_>) -> (Why, String) {
    let (key, workers) = (context.key(), context.workers);
    let Some(task) = context.task() else {
        let text = format!("{key:?} waits for an activity that has just ended");
        return (Why::AwaitingActivity, text);
    };
    let (name, queue) = (task.name.as_str(), task.queue.as_str());
    let is_served = workers.iter().any(|worker| {
        let mut routes = worker.info.tasks.iter();
        routes.any(|route| route.name == task.name && route.queue == task.queue)
    });
    let errors = task.errors.as_ref().map(error_text).filter(|text| !text.is_empty());
    let tried = match (task.attempt, errors) {
        (0, _) => String::new(),
        (times, None) => format!("; it failed {times} times"),
        (times, Some(errors)) => format!("; it failed {times} times, last with {errors}"),
    };
    match task.worker {
        Some(holder) => {
            let holder = worker_name(workers, holder);
            let text =
                format!("{key:?} waits for the activity {name:?}, which {holder} executes{tried}");
            (Why::AwaitingActivity, text)
        }
        None if !is_served => {
            let text = format!(
                "{key:?} waits for the activity {name:?} on queue {queue:?}, which no live worker serves"
            );
            (Why::ActivityUnserved, text)
        }
        None => {
            let due = task.due_at.filter(|_| !task.ready).map(|due| format!(", due at {due}"));
            let due = due.unwrap_or_else(|| ", which is ready".into());
            (Why::AwaitingActivity, format!("{key:?} waits for the activity {name:?}{due}{tried}"))
        }
    }
}

pub(crate) fn worker_name(workers: &[Worker], key: WorkerKey) -> String {
    match workers.iter().find(|worker| worker.info.worker == key) {
        Some(worker) => format!("worker {:?} ({key})", worker.info.name),
        None => format!("worker {key}, which is not live"),
    }
}

// An error, or the last of a list of them.
fn error_text(body: &Body) -> String {
    let value: serde_json::Value = body.read().unwrap_or_default();
    let error = value.as_array().and_then(|list| list.last()).unwrap_or(&value);
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    match (text("name"), text("message")) {
        (name, message) if name.is_empty() => message,
        (name, message) => format!("{name}: {message}"),
    }
}
