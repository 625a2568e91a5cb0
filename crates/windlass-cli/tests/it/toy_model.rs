//! A model in one file: three steps, one of them a wait and one a child. Nothing else in the workspace
//! knows it, and yet `why`, the API, the command line and the ledger describe its runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::{
    Body, BoxFuture, Draft, Error, EventType, Message, MessageKind, ModelName, RunId, Step,
    StepKey, StepKind, StepStatus, Wake, WorkflowName,
};
use windlass_engine::description::{EventDescription, EventMeaning, StepDescription, StepRole};
use windlass_engine::{Model, ModelDescription, Opened, Program, StartRun, Turn, TurnError};
use windlass_models::kit::{self, CHILD, CHILD_STEP, events};
use windlass_server::auth::Auth;

use crate::support::{CommandOutput, http_client, postgres, run, sqlite_in, windlass};

const NAME: ModelName = ModelName::from_static("toys");
const WIND: StepKind = StepKind::from_static("wind");
const GO: StepKind = StepKind::from_static("go");
const WOUND: EventType = EventType::from_static("step.wound");
const HELD: EventType = EventType::from_static("step.held");
const RELEASED: EventType = EventType::from_static("step.released");

static STEPS: [StepDescription; 3] = [
    StepDescription::new(WIND, StepRole::Work),
    StepDescription::new(GO, StepRole::Event),
    CHILD_STEP,
];
static EVENTS: [EventDescription; 3] = [
    EventDescription::new(WOUND, EventMeaning::ActivityCompleted),
    EventDescription::opening(HELD, EventMeaning::Other),
    EventDescription::new(RELEASED, EventMeaning::SignalReceived),
];
static DESCRIPTION: ModelDescription = {
    let mut model = ModelDescription::new(NAME);
    model.steps = &STEPS;
    model.events = &EVENTS;
    model
};

struct Toys;

impl Model for Toys {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let rows = opened.steps().iter().map(|step| (step.kind.clone(), step.clone())).collect();
        Ok(Box::new(Toy { rows }))
    }
}

struct Toy {
    rows: BTreeMap<StepKind, Step>,
}

impl Toy {
    // Winds itself up, waits for "go", and lets a smaller toy do the same if it is large.
    fn advance(&mut self, turn: &mut Turn, draft: &mut Draft) -> Result<Option<Wake>, Error> {
        if !self.rows.contains_key(&WIND) {
            let step = Step { status: StepStatus::Completed, ..new_row(turn, draft, WIND) };
            draft.step(WOUND, &json!({ "key": "wind" }), step.clone(), turn.stamp())?;
            let wait_for = Some("go".into());
            let go = Step { status: StepStatus::Waiting, wait_for, ..new_row(turn, draft, GO) };
            draft.step(HELD, &json!({ "key": "go" }), go.clone(), turn.stamp())?;
            self.rows.extend([(WIND, step), (GO, go)]);
        }
        if let Some((mut step, message)) = self.met(turn, &GO, MessageKind::Event) {
            let payload = json!({ "key": "go", "message": message.seq });
            step.result.clone_from(&message.body);
            draft.consume_into_step(RELEASED, &payload, &message, step, turn.stamp())?;
            if turn.run.input == Body::json("\"small\"") {
                return kit::complete(turn, draft, Body::json("\"done\"")).map(|()| None);
            }
            let (key, workflow) = (StepKey::from_stored("child"), turn.run.workflow.clone());
            let small = Body::json("\"small\"");
            let child = kit::begin_child(turn, draft, key, &workflow, NAME, small)?;
            self.rows.insert(CHILD, child);
        }
        if let Some((step, message)) = self.met(turn, &CHILD, MessageKind::ChildResult) {
            let (event, payload) = (events::CHILD_COMPLETED, json!({ "key": "child" }));
            draft.consume_into_step(event, &payload, &message, step, turn.stamp())?;
            return kit::complete(turn, draft, Body::json("\"done\"")).map(|()| None);
        }
        Ok(Some(Wake::OnMessage))
    }

    // The open step of a kind, settled, with the message that settles it.
    fn met(
        &mut self,
        turn: &mut Turn,
        kind: &StepKind,
        by: MessageKind,
    ) -> Option<(Step, Message)> {
        let row = self.rows.get_mut(kind).filter(|row| !row.status.is_settled())?;
        let message = kit::take_message(turn, by, |_| true)?;
        row.status = StepStatus::Completed;
        Some((row.clone(), message))
    }
}

fn new_row(turn: &mut Turn, draft: &Draft, kind: StepKind) -> Step {
    let (at, key) = (turn.stamp().at, StepKey::from_stored(kind.as_str()));
    kit::new_step(&turn.run, draft, key, kind, at)
}

impl Program for Toy {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(kit::commit_turn(turn, |turn, draft| self.advance(turn, draft)))
    }

    fn bytes(&self) -> usize {
        1_000
    }
}

async fn say(url: &str, args: &str) -> CommandOutput {
    let mut command = windlass();
    command.args(args.split(' ')).env("WINDLASS_URL", url);
    tokio::task::spawn_blocking(|| run(command)).await.unwrap().expect(0)
}

async fn until(url: &str, args: &str, text: &str) -> String {
    loop {
        let out = say(url, args).await.stdout;
        if out.contains(text) {
            return out;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn described_everywhere(address: &str) {
    let facade = windlass::Engine::open(address).await.unwrap();
    let (engine, toy) = (facade.core(), WorkflowName::new("toy").unwrap());
    engine.register(toy.clone(), Arc::new(Toys)).unwrap();
    let options = windlass_server::Options { auth: Auth::Loopback, ..Default::default() };
    let router = windlass_server::router(&facade, options).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/api", listener.local_addr().unwrap());
    tokio::spawn(windlass_server::serve(listener, router, std::future::pending()));

    let mut start = StartRun::new(toy.clone(), NAME, Body::json("\"large\""));
    start.id = Some(RunId::new("t").unwrap());
    let started = engine.start_run(start).await.unwrap();
    until(&url, "why toy/t", "\"go\" waits for an event of type \"go\"").await;
    let shown = say(&url, "runs get toy/t -o json").await.json();
    let current = &shown["meta"]["currentStep"];
    assert_eq!(
        (&current["type"], &current["waitEventType"]),
        (&json!("waitForEvent"), &json!("go"))
    );
    say(&url, "runs send-event toy/t --type go --payload 1").await;
    until(&url, "why toy/t", "waits for the child run").await;
    until(&url, "why toy/t", "\"go\" waits for an event").await; // The child's reason.
    let history = say(&url, "runs history toy/t -o json").await.json();
    let steps: Vec<_> = history["steps"].as_array().unwrap().iter().collect();
    let words = |step: &&Value| format!("{} {} {}", step["kind"], step["type"], step["status"]);
    let words: Vec<String> = steps.iter().map(words).collect::<Vec<_>>();
    let expect = ["wind do completed", "go waitForEvent completed", "child do waiting"];
    assert_eq!(words.join("\n").replace('"', ""), expect.join("\n"));

    assert!(engine.cancel(started.run_key, Some("enough"), None).await.unwrap());
    until(&url, "runs list --workflow toy --status terminated", "t:child").await;
    let events = format!("{url}/durable/workflows/{}/events", started.run_key);
    let events = http_client().get(events).send().await.unwrap();
    let events: Value = events.json().await.unwrap();
    let types = events["events"].as_array().unwrap().iter().map(|event| event["type"].as_str());
    let types: Vec<&str> = types.map(Option::unwrap).collect();
    let started = ["WorkflowStarted", "ActivityCompleted", "step.held", "SignalReceived"];
    let ended = ["ChildWorkflowStarted", "ChildWorkflowFailed", "WorkflowCancelled"];
    assert_eq!(types, [&started[..], &ended[..]].concat());

    say(&url, "runs create toy/u --params \"small\"").await;
    until(&url, "why toy/u", "waits for an event").await;
    say(&url, "runs send-event toy/u --type go --payload 1").await;
    until(&url, "runs get toy/u", "complete").await;
    engine.shutdown(Duration::from_secs(10)).await.unwrap();
}

#[test]
fn memory() {
    described_everywhere("memory:");
}

#[test]
fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    described_everywhere(&sqlite_in(folder.path(), "toys.db"));
}

#[test]
fn on_postgres() {
    described_everywhere(&postgres().url);
}
