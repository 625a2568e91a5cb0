//! Errors of a relay's steps, SQL that fails beside them, and runs that are stopped.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::{Options, Tick};
use windlass::kernel::{
    Body, Encoding, Query, RetryPolicy, Step as StepRow, StepStatus, TasksQuery,
};
use windlass::relays::{
    HookError, NoopTerminalHook, RelayError, RelayStep, RunOutcome, RunSpec, RunState, StepOutcome,
    StepRunner, TerminalHook, TerminalStatus,
};
use windlass::{Ctx, Engine, RunKey, RunStatus};

use crate::harness::{Counts, Harness, Kind, on_every_store, until};
use crate::relay_calls::RelayCalls as _;
use crate::relays::{Script, event_types};

on_every_store!(
    an_error_with_a_name_is_not_tried_again,
    a_verdict_stands_though_its_sql_fails,
    a_cancelled_step_whose_sql_fails_enqueues_nothing,
    a_step_that_is_dropped_has_its_token_fired,
    invalid_outcomes_are_named,
    a_terminated_run_has_no_open_steps,
    the_status_of_a_run_is_read_without_its_payloads,
    payloads_that_are_json_are_kept_as_such,
    a_parent_gets_bytes_in_base64,
);

/// Fails with an error of the kind that its payload names.
struct Named(Arc<Counts>);

impl StepRunner for Named {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.hit(&step.run_id);
        let name = String::from_utf8_lossy(&step.payload).into_owned();
        Err(RelayError::transient("it is as it is").named(name))
    }
}

async fn an_error_with_a_name_is_not_tried_again(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let policy = RetryPolicy::listed(vec![Duration::from_millis(2); 2]);
    let policy = policy.with_non_retryable(["CardDeclined"]);
    let relay = engine.relay("named", Named(counts.clone()), NoopTerminalHook).retry_policy(policy);
    let relay = relay.build().unwrap();
    for (id, name, attempts) in [("busy", "Busy", 3), ("final", "CardDeclined", 1), ("none", "", 3)]
    {
        let run = relay.submit(RunSpec::new(name).id(id)).await.unwrap();
        assert_eq!(relay.wait(id).await.unwrap().status, TerminalStatus::Failed);
        assert_eq!(counts.get(id), attempts, "{id}");
        let row = engine.core().current(run.run_key).await.unwrap();
        let error: serde_json::Value = row.error.unwrap().read().unwrap();
        assert_eq!(error["name"], if name.is_empty() { "Transient" } else { name });
    }
    let long = RelayError::transient("").named("ä".repeat(200));
    assert_eq!(long.name().unwrap().len(), 256);
}

/// Stores what fails, and ends as its payload says.
struct Careless(Arc<Counts>);

impl StepRunner for Careless {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.hit(&step.run_id);
        let retry = RetryPolicy::listed(vec![Duration::from_millis(2)]);
        step.effects.enqueue("mail", "dear", retry).unwrap();
        step.effects.sql("INSERT INTO there_is_no_such_table VALUES (1)", vec![]).unwrap();
        match step.run_id.as_str() {
            "fail" => Ok(StepOutcome::Fail { reason: "as it says".into() }),
            "cancel" => Ok(StepOutcome::Cancel { reason: "as it says".into() }),
            "break" => Err(RelayError::permanent("as it says")),
            "outside" => {
                step.cancel_token.cancelled().await;
                Ok(StepOutcome::done(""))
            }
            _ => Ok(StepOutcome::done("as it says")),
        }
    }
}

async fn a_verdict_stands_though_its_sql_fails(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let policy = RetryPolicy::listed(vec![Duration::from_millis(2); 2]);
    let relay =
        engine.relay("careless", Careless(counts.clone()), NoopTerminalHook).retry_policy(policy);
    let relay = relay.build().unwrap();
    for (id, status, attempts) in [
        ("fail", TerminalStatus::Failed, 1),
        ("cancel", TerminalStatus::Cancelled, 1),
        ("break", TerminalStatus::Failed, 1),
        ("done", TerminalStatus::Failed, 3),
    ] {
        relay.submit(RunSpec::new("").id(id)).await.unwrap();
        let ended = relay.wait(id).await.unwrap();
        assert_eq!((ended.status, counts.get(id)), (status, attempts), "{id}");
        assert_eq!(ended.error.unwrap() == "as it says", id != "done", "{id}");
    }
    let query = Query::Tasks(TasksQuery::all(engine.namespace().clone(), 10));
    assert_eq!(engine.admin().store().list(query).await.unwrap().tasks().unwrap(), []);
}

async fn a_cancelled_step_whose_sql_fails_enqueues_nothing(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("careless", Careless(counts.clone()), NoopTerminalHook);
    let relay = relay.build().unwrap();
    relay.submit(RunSpec::new("").id("outside")).await.unwrap();
    until("it runs", || async { counts.get("outside") == 1 }).await;
    assert!(relay.cancel("outside").await.unwrap());
    let query = Query::Tasks(TasksQuery::all(engine.namespace().clone(), 10));
    let tasks = engine.admin().store().list(query).await.unwrap().tasks().unwrap();
    // The engine's own task, which cancels children, may still be there.
    let effects = tasks.iter().filter(|task| *task.kind != *"internal");
    assert_eq!(effects.count(), 0, "{tasks:?}");
}

/// Starts something elsewhere that watches its token, and never ends itself.
struct Spawns(Arc<Counts>);

impl StepRunner for Spawns {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let (counts, token) = (self.0.clone(), step.cancel_token.clone());
        tokio::spawn(async move {
            token.cancelled().await;
            counts.hit("stopped");
        });
        self.0.hit("begun");
        std::future::pending().await
    }
}

async fn a_step_that_is_dropped_has_its_token_fired(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("spawns", Spawns(counts.clone()), NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("").id("s")).await.unwrap();
    until("it runs", || async { counts.get("begun") == 1 }).await;
    h.stop_within(&engine, Duration::from_millis(20)).await;
    until("what it started has heard of it", || async { counts.get("stopped") == 1 }).await;
    // The run itself goes on with whoever takes it next.
    let engine = h.engine().await;
    let relay = engine.remote_relay("spawns").unwrap();
    let info = relay.status("s").await.unwrap().unwrap();
    assert_eq!((info.state, info.cancelling), (RunState::Queued, false));
}

/// Asks to wait for longer than is allowed.
struct Patient;

impl StepRunner for Patient {
    async fn run_step(&self, _: &RelayStep) -> Result<StepOutcome, RelayError> {
        let delay = Duration::from_secs(366 * 24 * 60 * 60);
        Ok(StepOutcome::ContinueAfter { payload: "".into(), delay })
    }
}

struct Hasty;

impl TerminalHook for Hasty {
    async fn on_termination(&self, _: &RunOutcome) -> Result<(), HookError> {
        Ok(())
    }

    fn timeout(&self) -> Duration {
        Duration::ZERO
    }
}

async fn invalid_outcomes_are_named(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("patient", Patient, NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("").id("p")).await.unwrap();
    let error = relay.wait("p").await.unwrap().error.unwrap();
    assert_eq!(error, "step 0 asks to wait for 31622400s; at most 365 days are allowed");
    let hasty = engine.relay("hasty", Patient, Hasty).build().err().unwrap();
    assert_eq!(hasty.to_string(), "the hook's timeout is zero; give it some time [INVALID_OPTION]");
}

async fn steps_of(engine: &Engine, run_key: RunKey) -> Vec<StepRow> {
    let query = Query::Steps { run_key, after: None, limit: 100 };
    engine.admin().store().list(query).await.unwrap().steps().unwrap()
}

async fn a_terminated_run_has_no_open_steps(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("script", Script(counts.clone()), NoopTerminalHook).build().unwrap();
    let flow = async |ctx: Ctx, (): ()| -> windlass::Result<()> {
        let nap = ctx.sleep("nap", "1 hour");
        let event = ctx.event::<String>("approval", "approved");
        futures::future::join(nap, event).await.0?;
        Ok(())
    };
    let flow = engine.workflow("flow", flow).unwrap();
    for (id, word, cancels) in
        [("c", "next never done", true), ("t", "next never done", false), ("f", "", false)]
    {
        let run_key = match word {
            "" => flow.start(()).id(id).await.unwrap().run_key(),
            word => relay.submit(RunSpec::new(word).id(id)).await.unwrap().run_key,
        };
        until("it waits", || async {
            engine.core().current(run_key).await.unwrap().status == RunStatus::Waiting
        })
        .await;
        match cancels {
            true => assert!(engine.core().cancel(run_key, None, None).await.unwrap()),
            false => engine.core().terminate(run_key, None, None).await.unwrap(),
        }
        let steps = steps_of(&engine, run_key).await;
        let open = steps.iter().filter(|step| !step.status.is_settled()).count();
        assert_eq!((open, steps.len()), (0, if word.is_empty() { 2 } else { 3 }), "{id}");
        assert_eq!(steps.last().unwrap().status, StepStatus::Cancelled, "{id}");
    }
    let types = event_types(&engine, &relay, "c").await;
    assert_eq!(types[types.len() - 2..], ["relay.step_cancelled", "workflow.terminated"]);
    assert_eq!(relay.status("c").await.unwrap().unwrap().step, 2);
    h.stop(&engine).await;
    // One that is between two steps has no row that could tell where it was.
    let engine = h.engine_with(|options| Options { background: false, ..options }).await;
    let relay = engine.relay("script", Script(counts), NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("next next next done").id("b")).await.unwrap();
    for step in 1..=2 {
        let tick = Tick { runs_max: 1, steps_max: Some(1), wait_max: None };
        engine.admin().tick(tick).await.unwrap();
        assert_eq!(relay.status("b").await.unwrap().unwrap().step, step);
    }
    assert!(relay.cancel("b").await.unwrap());
    assert_eq!(relay.status("b").await.unwrap().unwrap().step, 2);
}

async fn the_status_of_a_run_is_read_without_its_payloads(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("script", Script(counts), NoopTerminalHook).build().unwrap();
    let run = relay.submit(RunSpec::new("next next never done").id("r")).await.unwrap();
    until("it waits", || async {
        engine.core().current(run.run_key).await.unwrap().status == RunStatus::Waiting
    })
    .await;
    // Reading a damaged payload is an error.
    let damages = h.kind != Kind::Memory;
    let set = "UPDATE steps SET result_encoding =";
    if damages {
        h.sql(match h.kind {
            Kind::Postgres => "ALTER TABLE steps DISABLE TRIGGER steps_settled",
            _ => "DROP TRIGGER steps_settled",
        })
        .await;
        h.sql(&format!("{set} 'nonsense' WHERE status = 'completed'")).await;
    }
    let info = relay.status("r").await.unwrap().unwrap();
    assert_eq!((info.state, info.step), (RunState::Scheduled, 3));
    assert_eq!(engine.admin().store().load(vec![run.run_key]).await.is_err(), damages);
    assert!(relay.cancel("r").await.unwrap());
    assert_eq!(relay.wait("r").await.unwrap().status, TerminalStatus::Cancelled);
    assert_eq!(relay.status("r").await.unwrap().unwrap().step, 3);
    if damages {
        h.sql(&format!("{set} 'bytes' WHERE result_encoding = 'nonsense'")).await;
    }
}

/// Hands on what it is asked for by number.
struct Hands(Vec<&'static [u8]>);

impl StepRunner for Hands {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let number = step.step_number as usize;
        if number > 0 {
            assert_eq!(step.payload, self.0[number - 1]);
        }
        Ok(match self.0.len() - number {
            1 => StepOutcome::done(self.0[number]),
            _ => StepOutcome::next(self.0[number]),
        })
    }
}

async fn payloads_that_are_json_are_kept_as_such(h: Arc<Harness>) {
    let engine = h.engine().await;
    let json: [&[u8]; 2] = [b" {\"a\": 1.50}", b"null"];
    let bytes: [&[u8]; 3] = [b"\xff", b"\"\xff\"", b""];
    let all: Vec<&[u8]> = [&json[..], &bytes[..]].concat();
    let relay = engine.relay("hands", Hands(all.clone()), NoopTerminalHook).build().unwrap();
    for is_json in [true, false] {
        let spec = RunSpec { json: is_json, ..RunSpec::new("1") };
        let run = relay.submit(spec).await.unwrap();
        relay.wait(&run.run_id).await.unwrap();
        let steps = steps_of(&engine, run.run_key).await;
        for (step, given) in steps.iter().zip(&all).take(all.len() - 1) {
            let kept = step.result.as_ref().unwrap();
            assert_eq!(kept.bytes, *given);
            let as_json = is_json && json.contains(given);
            assert_eq!(kept.encoding == Encoding::Json, as_json, "{given:?}");
        }
        let output = engine.core().current(run.run_key).await.unwrap().output.unwrap();
        assert_eq!(output, Body::bytes(""));
    }
}

async fn a_parent_gets_bytes_in_base64(h: Arc<Harness>) {
    let engine = h.engine().await;
    let short = engine.relay("short", Hands(vec![b"\xff\x00"]), NoopTerminalHook);
    short.build().unwrap();
    let long = engine.relay("long", Hands(vec![&[255; 1_000_000]]), NoopTerminalHook);
    let long = long.build().unwrap();
    let parent = async |ctx: Ctx, child: String| -> windlass::Result<serde_json::Value> {
        Ok(ctx.child_named("c", &child, &1).await?)
    };
    let parent = engine.workflow("parent", parent).unwrap();
    let run = parent.start("short".into()).id("short").await.unwrap();
    let expect = serde_json::json!({ "encoding": "base64", "bytes": "/wA=" });
    assert_eq!(run.result().await.unwrap(), expect);
    // In Base64 it would be larger than what a step may keep, so the child says so and fails.
    let run = parent.start("long".into()).id("long").await.unwrap();
    let error = run.result().await.unwrap_err().to_string();
    assert!(error.contains("of a child run at most 786368 are allowed"), "{error}");
    let alone = long.submit(RunSpec::new("1").id("alone")).await.unwrap();
    assert_eq!(long.wait(&alone.run_id).await.unwrap().status, TerminalStatus::Succeeded);
}
