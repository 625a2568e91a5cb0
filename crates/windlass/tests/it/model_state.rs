//! State that belongs to a model: the state of its runs, the start of their next generations, the events of their
//! starts, and the results of their children.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use windlass::admin::transfer::{Importer, RunExport, export_run};
use windlass::admin::verify_store;
use windlass::kernel::{
    Body, BodyKey, BodyOwner, BoxFuture, CausalRef, Draft, Error, EventType, Message, MessageKind,
    ModelName, NewEvent, NewRun, RunId, RunKey, RunStatus, Sha256Digest, Step, StepKey, StepStatus,
    Turn as TurnRow, Wake, WorkflowName,
};
use windlass::model::{
    Creating, Model, ModelDescription, Opened, Program, StartEvent, StartRun, TokioEnv, Turn,
    TurnError, kit,
};
use windlass::{Ctx, Engine, Uuid};

use crate::harness::{Harness, event_types, ok, on_every_store};

on_every_store!(
    the_model_decides_what_the_next_generation_begins_with,
    events_follow_the_first_one,
    a_child_result_finds_the_newest_generation,
    a_consumed_failure_is_found_by_the_child,
    a_refused_cause_is_a_failed_call,
    a_cause_that_steps_name_and_nobody_has_fails_the_run,
);

/// A large body of a model, which its state names.
const TRANSCRIPT: &[u8] = b"a transcript";
const NAME: ModelName = ModelName::from_static("keepers");
const PREPARED: EventType = EventType::from_static("step.prepared");
const BEGUN: EventType = EventType::from_static("step.begun");
const DONE: EventType = EventType::from_static("step.done");

static DESCRIPTION: ModelDescription = {
    let mut model = ModelDescription::new(NAME);
    model.retry_state = |_| Ok(Some(Body::json("\"retried\"")));
    model.restart_state = |_| Ok(Some(Body::json("\"restarted\"")));
    model.bodies_of_state = |_| vec![Sha256Digest::of(TRANSCRIPT)];
    model.retry_carries = |_, step| step.step_key.as_str() == "kept";
    model
};

struct Keepers;

impl Model for Keepers {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        Ok(Box::new(Keeper { rows: opened.steps().to_vec() }))
    }

    fn prepare(&self, start: &mut StartRun) -> Result<(), Error> {
        if start.input == Body::json("\"greet\"") {
            start.events.push(StartEvent::new(NewEvent::new(PREPARED).version(2), json!({})));
        }
        Ok(())
    }

    fn begin(&self, creating: &mut Creating<'_>) -> Result<(), Error> {
        if creating.run().input == Body::json("\"greet\"") {
            let stamp = creating.stamp();
            creating.draft.event(BEGUN, &json!({ "held": true }), stamp)?;
        }
        Ok(())
    }
}

struct Keeper {
    rows: Vec<Step>,
}

impl Keeper {
    fn advance(&mut self, turn: &mut Turn, draft: &mut Draft) -> Result<Option<Wake>, Error> {
        let input: String = turn.run.input.read()?;
        let first = turn.run.generation == 0;
        match input.as_str() {
            "fail" if first => {
                for key in ["kept", "left"] {
                    let step = done(turn, draft, key, None);
                    draft.step(DONE, &json!({ "key": key }), step, turn.stamp())?;
                }
                draft.put_body(Bytes::from_static(TRANSCRIPT));
                draft.state(Body::json("\"first\""), turn.stamp());
                kit::fail(turn, draft, "Planned", Body::json("{}"))?;
            }
            "fail" | "greet" => {
                let state = turn.run.state.clone().unwrap_or_else(|| Body::json("null"));
                kit::complete(turn, draft, state)?;
            }
            "parent" if first => {
                self.branch(turn, draft, "child")?;
                kit::fail(turn, draft, "Planned", Body::json("{}"))?;
            }
            "watch" if self.rows.is_empty() => {
                self.branch(turn, draft, "broken")?;
                return Ok(Some(Wake::OnMessage));
            }
            "parent" | "watch" => {
                let Some(message) = kit::take_message(turn, MessageKind::ChildResult, |_| true)
                else {
                    return Ok(Some(Wake::OnMessage));
                };
                self.join(turn, draft, &message)?;
                kit::complete(turn, draft, Body::json("\"joined\""))?;
            }
            "child" => {
                let Some(message) = kit::take_message(turn, MessageKind::Event, |_| true) else {
                    return Ok(Some(Wake::OnMessage));
                };
                let by = StepKey::from_stored("go");
                draft.consume(DONE, &json!({}), &message, by, turn.stamp())?;
                kit::complete(turn, draft, Body::json("7"))?;
            }
            _ => kit::fail(turn, draft, "Planned", Body::json("{}"))?,
        }
        Ok(None)
    }

    // A branch has another name than the step that waits for it.
    fn branch(&mut self, turn: &mut Turn, draft: &mut Draft, input: &str) -> Result<(), Error> {
        let workflow = turn.run.workflow.clone();
        let child = kit::name_child(turn, "left", &workflow)?;
        let mut step = done(turn, draft, "join", Some(Body::of(&child)?));
        step.status = StepStatus::Waiting;
        draft.step(
            kit::events::CHILD_STARTED,
            &json!({ "key": "join" }),
            step.clone(),
            turn.stamp(),
        )?;
        self.rows.push(step);
        let new = NewRun {
            run_key: child.run_key,
            namespace: turn.run.namespace.clone(),
            workflow,
            model: NAME,
            id: RunId::from_stored(child.id),
            generation: 0,
            input: Body::of(input)?,
            parent: Some((turn.run.root, turn.run.run_key)),
            fork: Some("left".into()),
            labels: Default::default(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: TurnRow::ready(),
            caused_by: Some(draft.cursor()),
        };
        let new = turn.child(new, true);
        draft.also_create(new, turn.stamp()).map(|_| ())
    }

    fn join(&mut self, turn: &mut Turn, draft: &mut Draft, message: &Message) -> Result<(), Error> {
        let event = kit::events::CHILD_COMPLETED;
        let Some(mut step) = self.rows.pop() else {
            let by = StepKey::from_stored("join");
            return draft.consume(event, &json!({}), message, by, turn.stamp()).map(|_| ());
        };
        step.status = StepStatus::Completed;
        draft.consume_into_step(event, &json!({}), message, step, turn.stamp()).map(|_| ())
    }
}

fn done(turn: &mut Turn, draft: &Draft, key: &str, input: Option<Body>) -> Step {
    let at = turn.stamp().at;
    let mut step = kit::new_step(&turn.run, draft, StepKey::from_stored(key), kit::CHILD, at);
    (step.status, step.input) = (StepStatus::Completed, input);
    step
}

impl Program for Keeper {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        if turn.run.input == Body::json("\"causes\"") {
            return Box::pin(name_causes(turn));
        }
        Box::pin(async {
            let digests = [Sha256Digest::of(TRANSCRIPT), Sha256Digest::of(b"nothing")];
            if turn.run.input == Body::json("\"fail\"") && turn.run.generation > 0 {
                let found = turn.bodies(&digests).await?;
                assert_eq!(found, [Some(Bytes::from_static(TRANSCRIPT)), None]);
            }
            kit::commit_turn(turn, |turn, draft| self.advance(turn, draft)).await
        })
    }

    fn bytes(&self) -> usize {
        1_000
    }
}

// The first commit names a cause that nobody has; the second records that the call failed.
async fn name_causes(turn: &mut Turn) -> Result<(), TurnError> {
    let nobody = CausalRef::run(RunKey(Uuid::from_u128(1)));
    let mut draft = turn.draft();
    let stamp = turn.stamp();
    let event = NewEvent::new(DONE).caused_by(nobody);
    draft.event(event, &json!({}), stamp).map_err(TurnError::Blocked)?;
    let refused = turn.try_commit(draft).await?.expect_err("nobody has the cause");
    let mut draft = turn.draft();
    let output = Body::of(refused.code().as_str()).map_err(TurnError::Blocked)?;
    kit::complete(turn, &mut draft, output).map_err(TurnError::Blocked)?;
    turn.commit(draft).await.map(|_| ())
}

fn workflow() -> WorkflowName {
    WorkflowName::from_stored("keeper")
}

async fn keepers(h: &Harness) -> Engine {
    let engine = h.engine().await;
    engine.core().register(workflow(), Arc::new(Keepers)).unwrap();
    engine
}

async fn start(engine: &Engine, input: &str) -> RunKey {
    let start = StartRun::new(workflow(), NAME, Body::of(input).unwrap());
    engine.core().start_run(start).await.unwrap().run_key
}

async fn ended(engine: &Engine, run_key: RunKey) -> (RunStatus, Option<Body>) {
    let ended = engine.core().wait(run_key).await.unwrap();
    (ended.status, ended.output)
}

async fn assert_verified(engine: &Engine) {
    let report = verify_store(&**engine.admin().store(), &[]).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.flaws);
}

async fn the_model_decides_what_the_next_generation_begins_with(h: Arc<Harness>) {
    let engine = keepers(&h).await;
    let run = start(&engine, "fail").await;
    assert_eq!(ended(&engine, run).await.0, RunStatus::Errored);
    let retried = engine.core().retry(run, None).await.unwrap().run_key;
    let complete = |state: &'static str| (RunStatus::Complete, Some(Body::json(state)));
    assert_eq!(ended(&engine, retried).await, complete("\"retried\""));
    let steps = engine.admin().store().load(vec![retried]).await.unwrap().remove(0).steps;
    let keys: Vec<_> = steps.iter().map(|step| step.step_key.as_str()).collect();
    assert_eq!(keys, ["kept"]);
    let restarted = engine.core().restart(run, None).await.unwrap().run_key;
    assert_eq!(ended(&engine, restarted).await, complete("\"restarted\""));
    // Each generation is a root, with a copy of the body that its state names. An export takes it along.
    let store = engine.admin().store();
    let key = |run_key| {
        let digest = Sha256Digest::of(TRANSCRIPT);
        vec![BodyKey { owner: BodyOwner::Run(run_key), digest }]
    };
    let expect = [Some(Bytes::from_static(TRANSCRIPT))];
    for run_key in [run, retried, restarted] {
        assert_eq!(store.bodies(key(run_key)).await.unwrap(), expect);
        let line = export_run(&**store, run_key).await.unwrap().unwrap().to_line().unwrap();
        let other = windlass::admin::open_store("memory:").await.unwrap();
        let env = TokioEnv::new().unwrap();
        let importer = Importer::begin(Arc::clone(&other), &*env).await.unwrap();
        importer.import(RunExport::parse(&line).unwrap()).await.unwrap();
        assert_eq!(other.bodies(key(run_key)).await.unwrap(), expect);
    }
    assert_verified(&engine).await;
}

async fn events_follow_the_first_one(h: Arc<Harness>) {
    let engine = keepers(&h).await;
    let limits = windlass::Limits::DEFAULT;
    let mut greet = StartRun::new(workflow(), NAME, Body::json("\"greet\""));
    greet.events =
        vec![StartEvent::custom("mine.noted", 4, json!({ "n": 1 }), None, &limits).unwrap()];
    let mut many = greet.clone();
    many.events = vec![many.events[0].clone(); 101];
    let refused = engine.core().start_run(many).await.unwrap_err();
    assert!(refused.to_string().contains("at most 100"), "{refused}");
    let run = engine.core().start_run(greet).await.unwrap().run_key;
    assert_eq!(ended(&engine, run).await.0, RunStatus::Complete);
    let query = windlass::kernel::Query::Events { run_key: run, from: 0, limit: 10 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    let found: Vec<_> = events.iter().map(|e| (e.event_type.as_str(), e.version)).collect();
    let expect = [
        ("workflow.enqueued", 1),
        ("mine.noted", 4),
        ("step.prepared", 2),
        ("step.begun", 1),
        ("workflow.completed", 1),
    ];
    assert_eq!(found, expect);
    assert_verified(&engine).await;
}

async fn a_child_result_finds_the_newest_generation(h: Arc<Harness>) {
    let engine = keepers(&h).await;
    let run = start(&engine, "parent").await;
    assert_eq!(ended(&engine, run).await.0, RunStatus::Errored);
    let retried = engine.core().retry(run, None).await.unwrap().run_key;
    let steps = engine.admin().store().load(vec![run]).await.unwrap().remove(0).steps;
    let child: kit::ChildRef = steps[0].input.as_ref().unwrap().read().unwrap();
    let go = windlass::kernel::MessageName::new("go").unwrap();
    engine.core().send_event(child.run_key, go, None, None).await.unwrap();
    assert_eq!(ended(&engine, child.run_key).await.0, RunStatus::Complete);
    assert_eq!(ended(&engine, retried).await.1, Some(Body::json("\"joined\"")));
    assert_verified(&engine).await;
}

async fn a_consumed_failure_is_found_by_the_child(h: Arc<Harness>) {
    let engine = keepers(&h).await;
    let run = start(&engine, "watch").await;
    assert_eq!(ended(&engine, run).await.0, RunStatus::Complete);
    let steps = engine.admin().store().load(vec![run]).await.unwrap().remove(0).steps;
    let child: kit::ChildRef = steps[0].input.as_ref().unwrap().read().unwrap();
    let refused = engine.core().retry(child.run_key, None).await.unwrap_err();
    assert_eq!(refused.code(), "FAILURE_CONSUMED");
}

async fn a_refused_cause_is_a_failed_call(h: Arc<Harness>) {
    let engine = keepers(&h).await;
    let run = start(&engine, "causes").await;
    let output = Some(Body::json("\"CAUSE_NOT_FOUND\""));
    assert_eq!(ended(&engine, run).await, (RunStatus::Complete, output));
    assert_verified(&engine).await;
}

async fn a_cause_that_steps_name_and_nobody_has_fails_the_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("causes", |ctx: Ctx, (): ()| async move {
            let inner = ctx.clone();
            let body = async || {
                let nobody = CausalRef::run(RunKey(Uuid::from_u128(1)));
                inner.record_event_caused_by("mine.done", 1, &(), nobody)?;
                ok(())
            };
            ok(ctx.step("record", body).await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let error = run.result().await.unwrap_err();
    assert_eq!(error.code(), "RUN_ERRORED");
    assert!(error.to_string().contains("cause"), "{error}");
    assert!(!event_types(&run).await.iter().any(|t| t == "workflow.blocked"));
}
