//! Machines and activities that the tests of machines share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, Workflow, WorkflowAction,
    WorkflowError, WorkflowSignal,
};
use windlass::{Engine, RetryPolicy};

use crate::harness::Counts;

/// A policy without waits worth mentioning.
pub(crate) fn quick(retries: u32) -> RetryPolicy {
    let limit = windlass::kernel::RetryLimit::Times(retries);
    RetryPolicy::constant(limit, Duration::from_millis(5))
}

/// Three activities, one after the other; the second's input is the first's result.
pub(crate) struct Order {
    item: String,
    result: Option<Result<String, WorkflowError>>,
}

impl Workflow for Order {
    const TYPE: &'static str = "order";
    type Input = String;
    type Output = String;

    fn new(item: String) -> Self {
        Self { item, result: None }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![step("reserve", &json!(self.item))]
    }

    fn on_activity_completed(&mut self, activity_id: &str, result: Value) -> Vec<WorkflowAction> {
        match activity_id {
            "reserve" => vec![step("charge", &result)],
            "charge" => vec![step("ship", &result)],
            _ => {
                self.result = Some(Ok(result.as_str().unwrap_or_default().to_owned()));
                vec![]
            }
        }
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        self.result = Some(Err(WorkflowError::from(error)));
        vec![WorkflowAction::None]
    }

    fn is_completed(&self) -> bool {
        self.result.is_some()
    }

    fn result(&self) -> Option<Result<String, WorkflowError>> {
        self.result.clone()
    }
}

fn step(id: &str, input: &Value) -> WorkflowAction {
    WorkflowAction::activity_with(
        id,
        "mark",
        json!([id, input]),
        ActivityOptions::retrying(quick(2)),
    )
}

/// Appends its id to its input; counts; fails as it is told by the input's text.
pub(crate) struct Mark(pub(crate) Arc<Counts>);

impl Activity for Mark {
    const TYPE: &'static str = "mark";
    type Input = (String, String);
    type Output = String;

    async fn execute(
        &self,
        ctx: &ActivityContext,
        (id, text): (String, String),
    ) -> Result<String, ActivityError> {
        self.0.hit(&id);
        assert_eq!(ctx.activity_id, id);
        if text.contains(&format!("no-{id}")) {
            return Err(ActivityError::non_retryable(format!("{id} cannot")).named("Cannot"));
        }
        if text.contains(&format!("late-{id}")) && ctx.attempt < ctx.max_attempts {
            return Err(ActivityError::new("not yet"));
        }
        Ok(format!("{text} {id}"))
    }
}

/// As many activities at once as its input says; ends with the sum of their results.
pub(crate) struct Fan {
    count: u64,
    got: BTreeMap<String, u64>,
}

impl Workflow for Fan {
    const TYPE: &'static str = "fan";
    type Input = u64;
    type Output = u64;

    fn new(count: u64) -> Self {
        Self { count, got: BTreeMap::new() }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let one = |n: u64| WorkflowAction::activity(format!("n{n}"), "double", json!(n));
        (0..self.count).map(one).collect()
    }

    fn on_activity_completed(&mut self, activity_id: &str, result: Value) -> Vec<WorkflowAction> {
        self.got.insert(activity_id.to_owned(), result.as_u64().unwrap_or_default());
        match self.got.len() as u64 == self.count {
            true => vec![WorkflowAction::complete(json!(self.got.values().sum::<u64>()))],
            false => vec![],
        }
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

/// Keeps what it was told, and what it is told to do: signals name the actions.
#[derive(Serialize, Deserialize)]
pub(crate) struct Puppet {
    pub(crate) seen: Vec<String>,
    snapshots: bool,
}

impl Puppet {
    fn saw(&mut self, what: impl Into<String>) -> Vec<WorkflowAction> {
        self.seen.push(what.into());
        vec![]
    }
}

/// How often callbacks of puppets were called, by the first signal they got.
pub(crate) static CALLS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

impl Workflow for Puppet {
    const TYPE: &'static str = "puppet";
    /// Whether it makes snapshots.
    type Input = bool;
    type Output = Vec<String>;

    fn new(snapshots: bool) -> Self {
        Self { seen: vec![], snapshots }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        self.saw("start")
    }

    fn on_activity_completed(&mut self, id: &str, result: Value) -> Vec<WorkflowAction> {
        self.saw(format!("{id}={result}"))
    }

    fn on_activity_failed(&mut self, id: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        let timeout = error.timeout.map(|timeout| format!("{timeout:?} ")).unwrap_or_default();
        self.saw(format!("{id}!{timeout}{}", error.name))
    }

    fn on_timer_fired(&mut self, id: &str) -> Vec<WorkflowAction> {
        self.saw(format!("timer {id}"))
    }

    fn on_child_completed(&mut self, id: &str, result: Value) -> Vec<WorkflowAction> {
        self.saw(format!("child {id}={result}"))
    }

    fn on_child_failed(&mut self, id: &str, error: &WorkflowError) -> Vec<WorkflowAction> {
        self.saw(format!("child {id}!{}", error.name))
    }

    fn on_signal(&mut self, signal: &WorkflowSignal) -> Vec<WorkflowAction> {
        self.saw(format!("signal {}", signal.signal_type));
        if let Some(counted) = signal.payload.get("counted").and_then(Value::as_str) {
            *CALLS.lock().entry(counted.to_owned()).or_default() += 1;
        }
        match signal.signal_type.as_str() {
            "do" => serde_json::from_value(signal.payload.clone()).unwrap(),
            "end" => vec![WorkflowAction::complete(json!(self.seen))],
            "panic" => panic!("the strings are torn"),
            _ => vec![],
        }
    }

    fn snapshot(&self) -> Option<Value> {
        self.snapshots.then(|| json!(self))
    }

    fn restore(_: bool, snapshot: Value) -> Option<Self> {
        serde_json::from_value(snapshot).ok()
    }
}

/// Registers everything, with `upper` as a workflow of steps.
pub(crate) fn serve(engine: &Engine, counts: &Arc<Counts>) {
    engine.machine::<Order>().unwrap();
    engine.machine::<Fan>().unwrap();
    engine.machine::<Puppet>().unwrap();
    serve_activities(engine, counts);
}

pub(crate) fn serve_activities(engine: &Engine, counts: &Arc<Counts>) {
    engine.machine_activity(Mark(Arc::clone(counts))).unwrap();
    let double = async |_: windlass::TaskContext, n: u64| crate::harness::ok(n * 2);
    engine.activity("double", double).unwrap();
}
