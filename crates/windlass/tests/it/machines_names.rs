//! Names of errors are the users' own: none of them changes how the engine treats a failure. And a
//! machine that ends leaves no open steps.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, Workflow, WorkflowAction,
    WorkflowError,
};

use crate::harness::{Counts, Harness, event_types, on_every_store};
use crate::machines_fixtures::quick;

on_every_store!(names_of_users_have_no_meaning, a_machine_that_ends_leaves_no_open_steps,);

/// Calls an activity that fails under a name; ends with the error's name and whether it timed out.
struct Names {
    name: String,
    result: Option<Result<String, WorkflowError>>,
}

impl Workflow for Names {
    const TYPE: &'static str = "names";
    type Input = String;
    type Output = String;

    fn new(name: String) -> Self {
        Self { name, result: None }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let options = ActivityOptions::retrying(quick(1));
        vec![WorkflowAction::activity_with("fails", "fails", json!(self.name), options)]
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        self.result = Some(Ok(format!("{} {:?}", error.name, error.timeout)));
        vec![]
    }

    fn is_completed(&self) -> bool {
        self.result.is_some()
    }

    fn result(&self) -> Option<Result<String, WorkflowError>> {
        self.result.clone()
    }
}

struct Fails(Arc<Counts>);

impl Activity for Fails {
    const TYPE: &'static str = "fails";
    type Input = String;
    type Output = ();

    async fn execute(&self, _: &ActivityContext, name: String) -> Result<(), ActivityError> {
        self.0.hit(&name);
        let error = ActivityError::new("it fails").named(name);
        Err(error.retry_after(Duration::from_millis(1)))
    }
}

async fn names_of_users_have_no_meaning(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    engine.machine_activity(Fails(counts.clone())).unwrap();
    let flow = engine.machine::<Names>().unwrap();
    for name in ["NotHere", "RateLimited", "Timeout", "HeartbeatTimeout", "ScheduleToCloseTimeout"]
    {
        let run = flow.start(name.to_owned()).id(name).await.unwrap();
        assert_eq!(run.result().await.unwrap(), format!("{name} None"));
        assert_eq!(counts.get(name), 2, "{name}: both attempts count");
        let types = event_types(&run).await;
        assert!(types.iter().all(|event| event != "activity.timed_out"), "{name}: {types:?}");
    }
}

/// Starts a timer and two activities, and ends with the first result.
struct Races(Option<String>);

impl Workflow for Races {
    const TYPE: &'static str = "races";
    type Input = ();
    type Output = String;

    fn new((): ()) -> Self {
        Self(None)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![
            WorkflowAction::timer("late", Duration::from_secs(3_600)),
            WorkflowAction::activity("nobody", "nobody serves this", json!(null)),
            WorkflowAction::activity("quick", "quick", json!("done")),
        ]
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        self.0 = Some(result.as_str().unwrap_or_default().to_owned());
        vec![]
    }

    fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> {
        vec![]
    }

    fn is_completed(&self) -> bool {
        self.0.is_some()
    }

    fn result(&self) -> Option<Result<String, WorkflowError>> {
        self.0.clone().map(Ok)
    }
}

struct Quick;

impl Activity for Quick {
    const TYPE: &'static str = "quick";
    type Input = String;
    type Output = String;

    async fn execute(&self, _: &ActivityContext, text: String) -> Result<String, ActivityError> {
        Ok(text)
    }
}

async fn a_machine_that_ends_leaves_no_open_steps(h: Arc<Harness>) {
    let engine = h.engine().await;
    engine.machine_activity(Quick).unwrap();
    let flow = engine.machine::<Races>().unwrap();
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "done");
    let steps = run.steps().await.unwrap();
    assert_eq!(steps.len(), 3);
    for step in &steps {
        assert!(step.status.is_settled(), "{step:?}");
    }
    let types = event_types(&run).await;
    for expect in ["activity.cancelled", "timer.cancelled"] {
        assert!(types.iter().any(|event| event == expect), "{types:?}");
    }
}
