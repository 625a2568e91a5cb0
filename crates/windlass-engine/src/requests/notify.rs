//! Effects that tell other systems about a request.

use serde_json::json;
use windlass_kernel::request::{Assignee, RequestState};
use windlass_kernel::{
    Body, EFFECT, Error, Namespace, RetryPolicy, Route, RouteName, Task, Timestamp,
};

use crate::core::Core;
use crate::tasks::{TaskBody, effects_queue};

/// The effects of a request for an event. Their inputs have no answers and no comments.
pub(super) fn tasks(
    core: &Core,
    namespace: &Namespace,
    event: &str,
    state: &RequestState,
    at: Timestamp,
) -> Result<Vec<Task>, Error> {
    let assignees: Vec<String> = state.assignees.iter().map(Assignee::to_string).collect();
    let data = json!({
        "request": state.id,
        "title": state.title,
        "status": state.status,
        "assignees": assignees,
        "workflow": state.run.workflow,
        "run": state.run.id,
        "labels": state.labels,
        "opened_at": state.opened_at.to_string(),
        "due_at": state.due_at.map(|due| due.to_string()),
    });
    let mut tasks = Vec::with_capacity(state.notify.len());
    for notify in &state.notify {
        let mut input = notify.input.clone();
        input["type"] = event.into();
        input["data"] = data.clone();
        let body = TaskBody {
            input: serde_json::value::to_raw_value(&input).map_err(|source| {
                Error::corrupt("the input of a notification cannot be written").with_source(source)
            })?,
            retry: RetryPolicy::webhooks(),
            start_to_close_ms: Some(60_000),
            heartbeat_ms: None,
            close_by: None,
            breaker: None,
            receipt: false,
            wakes_run: false,
        };
        let route = Route { queue: effects_queue(), name: RouteName::from_stored(&*notify.effect) };
        tasks.push(Task {
            run_key: Some(state.run.run_key),
            body: Some(Body::of(&body)?),
            ..Task::new(core.clock.task_id(), namespace.clone(), EFFECT, route, at)
        });
    }
    Ok(tasks)
}
