//! Relays: outcomes, hooks, retries, memos, signals and dead letters, on every store.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use windlass::kernel::{ErrorCode, Limits, Query, TasksQuery};
use windlass::relays::{
    HookError, NoopTerminalHook, RelayError, RelayStep, RunOutcome, RunSpec, RunState, Signal,
    StepOutcome, StepRunner, TerminalHook, TerminalStatus, Typed, TypedOutcome, TypedRunner,
};
use windlass::{Ctx, Engine, RunStatus};

use crate::harness::{Counts, Harness, Kind, fence, on_every_store, until};
use crate::relay_calls::{Relay, RelayCalls as _};

on_every_store!(
    outcomes_reach_the_hook_with_headers,
    submitting_is_idempotent,
    a_dead_step_is_requeued_where_it_failed,
    a_requeued_step_has_the_signal_it_was_given,
    a_pause_takes_effect_though_the_step_ends_in_a_wait,
    a_child_tells_its_hook,
    a_verdict_leaves_no_dead_letter,
    signals_and_their_timeouts,
    every_way_to_end_a_run_calls_the_hook,
    a_hook_that_fails_is_called_again_and_dies,
    effects_of_a_step_are_in_its_commit,
    payloads_of_a_type,
    limits_are_named,
    too_many_effects_are_refused_by_the_step,
    a_runner_that_panics_before_it_begins_is_tried_again,
    a_callee_that_says_when_is_left_alone_until_then,
    a_hook_that_cannot_be_asked_is_called_for_a_child,
    a_scheduled_run_tells_its_hook,
    steps_of_one_process_are_bounded,
);

/// Does what its payload says: words, one a step.
pub(crate) struct Script(pub(crate) Arc<Counts>);

impl StepRunner for Script {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let text = String::from_utf8_lossy(&step.payload).into_owned();
        let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
        self.0.hit(&format!("{}/{}", step.run_id, step.step_number));
        assert_eq!(step.headers["workflow.run_id"], step.run_id);
        assert_eq!(step.headers["workflow.step"], step.step_number.to_string());
        let payload = rest.to_owned().into();
        Ok(match word {
            "next" => StepOutcome::Continue { payload },
            "later" => StepOutcome::ContinueAfter { payload, delay: Duration::from_millis(30) },
            "never" => StepOutcome::ContinueAfter { payload, delay: Duration::from_secs(3_600) },
            "fail" => StepOutcome::Fail { reason: rest.into() },
            "cancel" => StepOutcome::Cancel { reason: rest.into() },
            "break" => return Err(RelayError::permanent(rest)),
            "panic" => panic!("{rest}"),
            "flaky" if step.attempt == 1 => return Err(RelayError::transient("not yet")),
            "flaky" => StepOutcome::Continue { payload },
            "heal" if self.0.get("healed") == 0 => return Err(RelayError::permanent("ill")),
            "heal" => StepOutcome::Continue { payload },
            _ => StepOutcome::done(text),
        })
    }
}

/// Remembers what it is told.
#[derive(Clone, Default)]
pub(crate) struct Told(pub(crate) Arc<Mutex<Vec<RunOutcome>>>);

impl TerminalHook for Told {
    async fn on_termination(&self, outcome: &RunOutcome) -> Result<(), HookError> {
        self.0.lock().push(outcome.clone());
        Ok(())
    }
}

impl Told {
    pub(crate) async fn of(&self, run_id: &str) -> RunOutcome {
        until(&format!("{run_id} is told"), || async {
            self.0.lock().iter().any(|outcome| outcome.run_id == run_id)
        })
        .await;
        self.0.lock().iter().find(|outcome| outcome.run_id == run_id).cloned().unwrap()
    }
}

pub(crate) fn script(engine: &Engine, counts: &Arc<Counts>, hook: &Told) -> Relay {
    engine
        .relay("script", Script(counts.clone()), hook.clone())
        .backoff(Duration::from_millis(5), Duration::from_millis(20))
        .build()
        .unwrap()
}

pub(crate) async fn submit(relay: &Relay, id: &str, input: &str) {
    relay.submit(RunSpec::new(input).id(id).header("for", id)).await.unwrap();
}

async fn outcomes_reach_the_hook_with_headers(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    let cases = [
        ("a", "next later flaky done", TerminalStatus::Succeeded, Some("done"), None),
        ("b", "next fail it is bad", TerminalStatus::Failed, None, Some("it is bad")),
        ("c", "cancel not needed", TerminalStatus::Cancelled, None, Some("not needed")),
        ("d", "break no disk", TerminalStatus::Failed, None, Some("no disk")),
        ("e", "panic oh", TerminalStatus::Failed, None, Some("the step panicked: oh")),
    ];
    for (id, input, ..) in cases {
        submit(&relay, id, input).await;
    }
    for (id, _, status, result, error) in cases {
        let ended = relay.wait(id).await.unwrap();
        let told = hook.of(id).await;
        let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!((ended.status, told.status), (status, status), "{id}");
        assert_eq!(ended.result.as_ref().map(text).as_deref(), result, "{id}");
        assert_eq!((ended.result, ended.error), (told.result, told.error.clone()), "{id}");
        assert_eq!(told.error.as_deref(), error, "{id}");
        assert_eq!(told.headers["for"], id);
        assert_eq!((told.workflow.as_str(), told.attempt), ("script", 1));
        let info = relay.status(id).await.unwrap().unwrap();
        assert_eq!(info.state, RunState::Ended(status));
    }
    assert_eq!((counts.get("a/0"), counts.get("a/2"), counts.get("e/0")), (1, 2, 3));
    assert_eq!(relay.status("nobody").await.unwrap(), None);
    let types = event_types(&engine, &relay, "a").await;
    let expect = [
        "workflow.enqueued",
        "relay.step_completed",
        "relay.step_completed",
        "relay.step_retried",
        "relay.step_completed",
        "relay.step_completed",
        "hook.enqueued",
        "workflow.completed",
    ];
    assert_eq!(types, expect);
}

pub(crate) async fn event_types(engine: &Engine, relay: &Relay, id: &str) -> Vec<String> {
    let run_key = relay.status(id).await.unwrap().unwrap().run_key;
    let query = Query::Events { run_key, from: 0, limit: 100 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    events.iter().map(|event| event.event_type.as_str().to_owned()).collect()
}

async fn submitting_is_idempotent(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    let spec = |input: &str| RunSpec::new(input).id("one");
    let first = relay.submit(spec("never done")).await.unwrap();
    let again = relay.submit(spec("never done")).await.unwrap();
    assert_eq!((first.existed, again.existed), (false, true));
    assert_eq!(first.run_key, again.run_key);
    let other = relay.submit(spec("something else")).await.unwrap_err();
    assert_eq!(other.code(), "DUPLICATE_RUN");
    assert!(relay.cancel("one").await.unwrap());
    // The same when it has ended, and after a restart of the process.
    h.stop(&engine).await;
    let engine = h.engine().await;
    let relay = script(&engine, &counts, &hook);
    assert!(relay.submit(spec("never done")).await.unwrap().existed);
    assert_eq!(relay.submit(spec("x")).await.unwrap_err().code(), "DUPLICATE_RUN");
    assert_eq!(counts.get("one/0"), 1);
    // Without a name each is another run.
    let (a, b) = (relay.submit(RunSpec::new("x")).await, relay.submit(RunSpec::new("x")).await);
    assert_ne!(a.unwrap().run_id, b.unwrap().run_id);
}

async fn a_dead_step_is_requeued_where_it_failed(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    submit(&relay, "ill", "next heal done").await;
    assert_eq!(relay.wait("ill").await.unwrap().status, TerminalStatus::Failed);
    let first = hook.of("ill").await;
    let letters = engine.admin().dead_letters(None, None, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(
        (&*letter.kind, letter.queue.as_str(), letter.name.as_str()),
        ("step", "relays", "script")
    );
    assert_eq!((letter.step_key.as_ref().unwrap().as_str(), &*letter.reason), ("1", "ill"));
    counts.hit("healed");
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    let ended = relay.wait("ill").await.unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"done"[..]));
    assert_eq!((counts.get("ill/0"), counts.get("ill/1"), counts.get("ill/2")), (1, 2, 1));
    // The second end is told too, as another one, with the same headers.
    until("both ends are told", || async { hook.0.lock().len() == 2 }).await;
    let second = hook.0.lock()[1].clone();
    assert_eq!((first.generation, second.generation), (0, 1));
    assert_ne!(first.id, second.id);
    assert_eq!(second.headers, first.headers);
    // It is requeued once, and counted.
    let again = engine.admin().requeue(letter.task_id, None).await.unwrap_err();
    assert_eq!(again.code(), "DEAD_LETTER_REQUEUED");
    let letter = engine.core().dead_letter(letter.task_id).await.unwrap();
    assert_eq!(letter.requeues, 1);
    assert_eq!(engine.core().purge_dead_letters(None).await.unwrap(), 1);
    let gone = engine.admin().requeue(letter.task_id, None).await.unwrap_err();
    assert_eq!(gone.code(), "DEAD_LETTER_NOT_FOUND");
}

async fn a_verdict_leaves_no_dead_letter(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    submit(&relay, "f", "fail no").await;
    submit(&relay, "c", "cancel no").await;
    relay.wait("f").await.unwrap();
    relay.wait("c").await.unwrap();
    assert_eq!(engine.admin().dead_letters(None, None, 10).await.unwrap(), []);
    // A failed run can be carried on; a cancelled one is over.
    let before = relay.status("f").await.unwrap().unwrap().run_key;
    assert_ne!(relay.retry("f").await.unwrap(), before);
    relay.wait("f").await.unwrap();
    assert_eq!(counts.get("f/0"), 2);
    assert_eq!(relay.retry("c").await.unwrap_err().code(), "RUN_NOT_ERRORED");
}

struct Waiter;

impl StepRunner for Waiter {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let wait = |ms: Option<u64>| StepOutcome::ContinueOnSignal {
            payload: step.payload.clone(),
            signal: "go".into(),
            timeout: ms.map(Duration::from_millis),
        };
        match (step.step_number, &step.signal) {
            (0, None) => Ok(wait(None)),
            (1, Some(Signal::Received(_))) if step.attempt == 1 => {
                Err(RelayError::transient("the signal stays"))
            }
            (1, Some(Signal::Received(bytes))) => {
                assert_eq!(bytes.as_ref(), b"one");
                Ok(wait(Some(60_000)))
            }
            (2, Some(Signal::Received(bytes))) => {
                assert_eq!(bytes.as_ref(), b"two");
                Ok(wait(Some(20)))
            }
            (3, Some(Signal::TimedOut)) => Ok(StepOutcome::done("timed out")),
            (number, signal) => Err(RelayError::permanent(format!("{number} {signal:?}"))),
        }
    }
}

async fn signals_and_their_timeouts(h: Arc<Harness>) {
    let engine = h.engine().await;
    let build = |engine: &Engine| {
        let relay = engine.relay("waiter", Waiter, NoopTerminalHook);
        relay.backoff(Duration::from_millis(5), Duration::from_millis(5)).build().unwrap()
    };
    let relay = build(&engine);
    relay.submit(RunSpec::new("").id("w")).await.unwrap();
    until("it waits", || async {
        relay.status("w").await.unwrap().unwrap().state == RunState::AwaitingSignal
    })
    .await;
    // The waiting process may be gone when the signal comes; a signal before its wait is kept.
    h.stop(&engine).await;
    let engine = h.engine().await;
    let relay = build(&engine);
    let waits = relay.get("w").await.unwrap();
    waits.signal_bytes_once("go", "one", "s1").await.unwrap();
    waits.signal_bytes_once("go", "one", "s1").await.unwrap();
    relay.signal("w", "go", "two").await.unwrap();
    let ended = relay.wait("w").await.unwrap();
    assert_eq!((ended.result.as_deref(), ended.error), (Some(&b"timed out"[..]), None));
    assert_eq!(relay.signal("w", "go", "x").await.unwrap_err().code(), "RUN_TERMINAL");
    assert_eq!(relay.signal("x", "go", "x").await.unwrap_err().code(), "RUN_NOT_FOUND");
}

/// Waits for a signal, fails with it until it is healed, and ends with what it was given.
pub(crate) struct Given(pub(crate) Arc<Counts>);

impl StepRunner for Given {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        match (&step.signal, step.step_number) {
            (_, 0) => Ok(StepOutcome::ContinueOnSignal {
                payload: "".into(),
                signal: "approved".into(),
                timeout: None,
            }),
            _ if self.0.get("healed") == 0 => Err(RelayError::permanent("ill")),
            (Some(Signal::Received(bytes)), _) => Ok(StepOutcome::done(bytes.clone())),
            (other, _) => Ok(StepOutcome::Fail { reason: format!("{other:?}") }),
        }
    }
}

async fn a_requeued_step_has_the_signal_it_was_given(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("given", Given(counts.clone()), NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("").id("g")).await.unwrap();
    relay.signal("g", "approved", "by ada").await.unwrap();
    assert_eq!(relay.wait("g").await.unwrap().status, TerminalStatus::Failed);
    let first = engine.admin().dead_letters(None, None, 10).await.unwrap().remove(0);
    // The first retry fails too: the letter that it took up is done with, and its own is the one to
    // requeue now.
    engine.core().retry(first.run_key.unwrap(), None).await.unwrap();
    until("it fails again", || async {
        engine.admin().dead_letters(None, None, 10).await.unwrap().len() == 2
    })
    .await;
    let letters = engine.admin().dead_letters(None, None, 10).await.unwrap();
    let second = letters.into_iter().find(|letter| letter.run_key != first.run_key).unwrap();
    let late = engine.admin().requeue(first.task_id, None).await.unwrap_err();
    assert_eq!(late.code(), "DEAD_LETTER_REQUEUED", "{late}");
    counts.hit("healed");
    engine.admin().requeue(second.task_id, None).await.unwrap();
    let ended = relay.wait("g").await.unwrap();
    assert_eq!((ended.result.as_deref(), ended.error), (Some(&b"by ada"[..]), None));
}

async fn a_child_tells_its_hook(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    script(&engine, &counts, &hook);
    let parents = engine.workflow("parent", async |ctx: Ctx, (): ()| -> windlass::Result<String> {
        Ok(ctx.child_named("c", "script", &"done").await?)
    });
    let run = parents.unwrap().start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "done");
    until("it is told", || async { hook.0.lock().len() == 1 }).await;
    let told = hook.0.lock()[0].clone();
    assert_eq!(told.status, TerminalStatus::Succeeded);
    let child = engine.core().current(told.run_key).await.unwrap();
    assert_eq!(child.model.as_str(), "relays");
}

/// Says when it has begun, waits until it may end, and puts the next step off for an hour.
struct PutsOff(Arc<Counts>);

impl StepRunner for PutsOff {
    async fn run_step(&self, _: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.hit("begun");
        while self.0.get("end") == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(StepOutcome::ContinueAfter { payload: "".into(), delay: Duration::from_secs(3_600) })
    }
}

async fn a_pause_takes_effect_though_the_step_ends_in_a_wait(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("off", PutsOff(counts.clone()), NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("").id("p")).await.unwrap();
    until("it runs", || async { counts.get("begun") == 1 }).await;
    let run_key = relay.status("p").await.unwrap().unwrap().run_key;
    engine.core().pause(&engine.core().current(run_key).await.unwrap(), None).await.unwrap();
    // The holder has read it while the step runs.
    fence(&engine).await;
    counts.hit("end");
    until("it is paused", || async {
        engine.core().current(run_key).await.unwrap().status == RunStatus::Paused
    })
    .await;
    engine.core().resume(&engine.core().current(run_key).await.unwrap(), None).await.unwrap();
    until("it waits for its time", || async {
        engine.core().current(run_key).await.unwrap().status == RunStatus::Waiting
    })
    .await;
    assert_eq!(counts.get("begun"), 1);
}

async fn every_way_to_end_a_run_calls_the_hook(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    for id in ["terminated", "restarted"] {
        submit(&relay, id, "never done").await;
        until("it waits", || async {
            relay.status(id).await.unwrap().unwrap().state == RunState::Scheduled
        })
        .await;
    }
    // By an engine that does not know the relay, as a server over HTTP.
    h.stop(&engine).await;
    let stranger = h.engine().await;
    let remote = stranger.remote_relay("script").unwrap();
    let key = |id: &'static str| {
        let remote = remote.clone();
        async move { remote.status(id).await.unwrap().unwrap().run_key }
    };
    stranger.core().terminate(key("terminated").await, Some("over"), None).await.unwrap();
    stranger.core().restart(key("restarted").await, None).await.unwrap();
    let query = TasksQuery::all(stranger.namespace().clone(), 10);
    let mut tasks =
        stranger.admin().store().list(Query::Tasks(query)).await.unwrap().tasks().unwrap();
    tasks.retain(|task| &*task.kind == "effect");
    assert_eq!(tasks.len(), 2, "{tasks:?}");
    h.stop(&stranger).await;
    let engine = h.engine().await;
    let relay = script(&engine, &counts, &hook);
    let told = hook.of("terminated").await;
    assert_eq!((told.status, told.error.as_deref()), (TerminalStatus::Cancelled, Some("over")));
    let told = hook.of("restarted").await;
    assert_eq!((told.status, told.generation), (TerminalStatus::Cancelled, 0));
    assert_eq!(told.headers["for"], "restarted");
    // The generation that follows has its hook and its headers as well.
    until("the next generation waits", || async { counts.get("restarted/0") == 2 }).await;
    assert!(relay.cancel("restarted").await.unwrap());
    until("its end is told", || async {
        hook.0.lock().iter().any(|told| told.generation == 1 && told.headers["for"] == "restarted")
    })
    .await;
}

/// Refuses to hear of `deaf`, and hears of others the second time.
pub(crate) struct Hard(pub(crate) Told, pub(crate) Arc<Counts>);

impl TerminalHook for Hard {
    async fn on_termination(&self, outcome: &RunOutcome) -> Result<(), HookError> {
        let times = self.1.hit(&outcome.run_id);
        match (outcome.run_id.as_str(), times) {
            ("deaf", ..3) => Err(HookError::permanent("gone")),
            ("hard", 1) => Err(HookError::transient("busy").retry_after(Duration::from_millis(1))),
            _ => self.0.on_termination(outcome).await,
        }
    }

    fn retry(&self) -> windlass::RetryPolicy {
        let limit = windlass::kernel::RetryLimit::Times(3);
        windlass::RetryPolicy::constant(limit, Duration::from_millis(5))
    }

    fn wants(
        &self,
        headers: &std::collections::BTreeMap<String, String>,
    ) -> windlass::Result<bool, windlass::Error> {
        Ok(headers.get("for").is_none_or(|who| who != "nobody"))
    }
}

async fn a_hook_that_fails_is_called_again_and_dies(h: Arc<Harness>) {
    let (engine, counts, told) = (h.engine().await, Counts::new(), Told::default());
    let hook = Hard(told.clone(), counts.clone());
    let relay = engine.relay("hard", Script(Counts::new()), hook).build().unwrap();
    for id in ["hard", "deaf", "nobody"] {
        submit(&relay, id, "done").await;
        relay.wait(id).await.unwrap();
    }
    let outcome = told.of("hard").await;
    assert_eq!((outcome.attempt, counts.get("hard")), (2, 2));
    until("it has died", || async {
        engine.admin().dead_letters(None, None, 10).await.unwrap().len() == 1
    })
    .await;
    let letter = engine.admin().dead_letters(None, None, 10).await.unwrap().remove(0);
    assert_eq!((&*letter.kind, &*letter.reason, letter.attempt), ("effect", "gone", 1));
    assert_eq!(letter.name.as_str(), "hook:hard");
    // It dies again, and is heard the third time, all under one id.
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    until("it has died again", || async {
        let letter = engine.core().dead_letter(letter.task_id).await.unwrap();
        letter.requeues == 1 && letter.requeued_at.is_none()
    })
    .await;
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    assert_eq!(told.of("deaf").await.id, letter.task_id.to_string());
    assert_eq!(engine.core().dead_letter(letter.task_id).await.unwrap().requeues, 2);
    assert_eq!(counts.get("nobody"), 0);
    let types = event_types(&engine, &relay, "nobody").await;
    assert!(!types.contains(&"hook.enqueued".to_owned()), "{types:?}");
}

struct Keeper {
    insert: &'static str,
}

impl StepRunner for Keeper {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let text = String::from_utf8_lossy(&step.payload).into_owned();
        let policy = windlass::RetryPolicy::none();
        step.effects.enqueue("mail", &text, policy).map_err(RelayError::permanent)?;
        if !self.insert.is_empty() {
            let params = vec![windlass::SqlValue::Text(text.clone())];
            step.effects.sql(self.insert, params).map_err(RelayError::permanent)?;
        }
        match text.as_str() {
            "once" if step.attempt == 1 => Err(RelayError::transient("again")),
            "fail" => Ok(StepOutcome::Fail { reason: "no".into() }),
            "cancel" => Ok(StepOutcome::Cancel { reason: "no".into() }),
            "break" => Err(RelayError::permanent("broken")),
            _ => Ok(StepOutcome::done(text)),
        }
    }
}

pub(crate) struct Mail(pub(crate) Arc<Counts>);

impl windlass::model::TaskHandler for Mail {
    fn run(
        &self,
        _: windlass::TaskContext,
        input: windlass::kernel::Body,
    ) -> windlass::kernel::BoxFuture<'static, windlass::model::TaskResult> {
        self.0.hit(&input.read::<String>().unwrap());
        Box::pin(std::future::ready(Ok(windlass::kernel::Body::json("null"))))
    }
}

async fn effects_of_a_step_are_in_its_commit(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    engine.serve_effects("mail", Arc::new(Mail(counts.clone()))).unwrap();
    let insert = match h.kind {
        Kind::Memory => "",
        Kind::Sqlite => "INSERT INTO app_kept VALUES (?1)",
        Kind::Postgres => "INSERT INTO app_kept VALUES ($1)",
    };
    if h.kind != Kind::Memory {
        h.sql("CREATE TABLE app_kept (word text PRIMARY KEY)").await;
    }
    let relay = engine.relay("keeper", Keeper { insert }, NoopTerminalHook);
    let relay = relay.backoff(Duration::from_millis(5), Duration::from_millis(5)).build().unwrap();
    for word in ["fine", "once", "fail", "cancel", "break"] {
        relay.submit(RunSpec::new(word).id(word)).await.unwrap();
        relay.wait(word).await.unwrap();
        until("the mail is sent", || async { counts.get(word) == 1 }).await;
    }
    if h.kind != Kind::Memory {
        assert_eq!(h.number("SELECT count(*) FROM app_kept").await, 5);
        // A second row with the same key is a failure for good, and leaves nothing.
        relay.submit(RunSpec::new("fine").id("twice")).await.unwrap();
        let ended = relay.wait("twice").await.unwrap();
        assert_eq!(ended.status, TerminalStatus::Failed);
        assert_eq!(counts.get("fine"), 1);
        assert_eq!(h.number("SELECT count(*) FROM app_kept").await, 5);
    }
}

struct Sum;

impl TypedRunner for Sum {
    type Payload = (u64, Vec<u64>);
    type Output = u64;

    async fn run_step(
        &self,
        _: &RelayStep,
        (sum, mut rest): (u64, Vec<u64>),
    ) -> Result<TypedOutcome<(u64, Vec<u64>), u64>, RelayError> {
        Ok(match rest.pop() {
            Some(n) => TypedOutcome::Continue((sum + n, rest)),
            None => TypedOutcome::Succeed(sum),
        })
    }
}

async fn payloads_of_a_type(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("sum", Typed(Sum), NoopTerminalHook).build().unwrap();
    let json = |input: &str| RunSpec { json: true, ..RunSpec::new(input) };
    let run = relay.submit(json("[0,[1,2,3]]")).await.unwrap();
    assert_eq!(relay.wait(&run.run_id).await.unwrap().result.as_deref(), Some(&b"6"[..]));
    let row = engine.core().current(run.run_key).await.unwrap();
    assert_eq!(row.output, Some(windlass::kernel::Body::json("6")));
    let run = relay.submit(json("\"none\"")).await.unwrap();
    let ended = relay.wait(&run.run_id).await.unwrap();
    assert!(ended.error.unwrap().contains("does not read as"));
}

struct Large;

impl StepRunner for Large {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let bytes: usize = String::from_utf8_lossy(&step.payload).parse().unwrap_or(0);
        match step.step_number {
            0 => Ok(StepOutcome::next(vec![b'x'; bytes])),
            _ => Ok(StepOutcome::done("fits")),
        }
    }
}

async fn limits_are_named(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("large", Large, NoopTerminalHook).build().unwrap();
    let ended = async |input: &str| {
        let run = relay.submit(RunSpec::new(input)).await.unwrap();
        relay.wait(&run.run_id).await.unwrap()
    };
    let fits = ended("1048576").await;
    assert_eq!(fits.result.as_deref(), Some(&b"fits"[..]), "{:?}", fits.error);
    let error = ended("1048577").await.error.unwrap();
    assert_eq!(error, "the payload of step 0 has 1048577 bytes; at most 1048576 are allowed");
    let code = async |spec: RunSpec| relay.submit(spec).await.unwrap_err().code();
    assert_eq!(code(RunSpec::new(vec![0; 1_048_577])).await, "INVALID_SIZE");
    assert_eq!(code(RunSpec::new("").header("workflow.x", "")).await, "RESERVED_HEADER");
    assert_eq!(code(RunSpec::new("").header("x", "y".repeat(20_000))).await, "INVALID_HEADERS");
    assert_eq!(code(RunSpec::new("").id("no spaces")).await, "INVALID_NAME");
    let long = engine.relay("x".repeat(60), Large, NoopTerminalHook).build();
    assert_eq!(long.err().unwrap().code(), "INVALID_NAME");
    let none = engine.relay("none", Large, NoopTerminalHook).concurrency(0).build();
    assert_eq!(none.err().unwrap().code(), "INVALID_OPTION");
    let wrong = engine.relay("wrong", Large, NoopTerminalHook).backoff("soon", "later").build();
    assert_eq!(wrong.err().unwrap().code(), "INVALID_OPTION");
    let days = |days: u64| RunSpec {
        delay: Some(Duration::from_secs(days * 24 * 60 * 60)),
        ..RunSpec::new("0").id(format!("in-{days}-days"))
    };
    relay.submit(days(365)).await.unwrap();
    let error = relay.submit(days(366)).await.unwrap_err();
    assert_eq!(error.code(), "INVALID_DURATION");
    assert!(error.to_string().contains("at most 365 days"), "{error}");
    let error = relay.group("late").start(vec![days(366)]).await.unwrap_err();
    assert_eq!(error.code(), "INVALID_DURATION");
}

/// The most bytes of an effect with its policy.
const EFFECT_BYTES_MAX: usize = Limits::DEFAULT.task_bytes_max;

/// Stores more than a commit takes, notes what it is told, and goes on.
struct Greedy(Arc<Mutex<Vec<String>>>);

impl StepRunner for Greedy {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let (none, large) = (windlass::RetryPolicy::none(), "x".repeat(EFFECT_BYTES_MAX));
        // With a short policy it would fit.
        let long = windlass::RetryPolicy::listed(vec![Duration::from_secs(60); 64]);
        let fits = "x".repeat(EFFECT_BYTES_MAX - 200);
        let mut refused = vec![
            step.effects.enqueue("mail", &large, none.clone()).unwrap_err(),
            step.effects.enqueue("mail", &fits, long).unwrap_err(),
        ];
        let text = |bytes: usize| vec![windlass::SqlValue::Text("x".repeat(bytes))];
        refused.push(step.effects.sql("SELECT ?1", text(8 * 1_048_576)).unwrap_err());
        step.effects.enqueue("mail", &"fits", none).map_err(RelayError::permanent)?;
        *self.0.lock() = refused.iter().map(ToString::to_string).collect();
        Ok(StepOutcome::done(""))
    }
}

async fn too_many_effects_are_refused_by_the_step(h: Arc<Harness>) {
    let (engine, counts, seen) = (h.engine().await, Counts::new(), Arc::default());
    engine.serve_effects("mail", Arc::new(Mail(counts.clone()))).unwrap();
    let relay =
        engine.relay("greedy", Greedy(Arc::clone(&seen)), NoopTerminalHook).build().unwrap();
    let run = relay.submit(RunSpec::new("")).await.unwrap();
    assert_eq!(relay.wait(&run.run_id).await.unwrap().status, TerminalStatus::Succeeded);
    until("the mail is sent", || async { counts.get("fits") == 1 }).await;
    let refused = seen.lock().clone();
    assert_eq!(refused.len(), 3);
    let limit = format!("at most {EFFECT_BYTES_MAX} are allowed [INVALID_SIZE]");
    assert!(refused[0].contains(&limit), "{refused:?}");
    let input = format!("{} of them its input", EFFECT_BYTES_MAX - 198);
    assert!(refused[1].contains(&input), "{refused:?}");
    assert!(refused[2].contains("at most 8388608 are allowed"), "{refused:?}");
}

/// Panics where it is called, not where it is awaited.
struct Early(Arc<Counts>);

impl StepRunner for Early {
    fn run_step(
        &self,
        _: &RelayStep,
    ) -> impl Future<Output = Result<StepOutcome, RelayError>> + Send {
        assert!(self.0.hit("ran") > 1, "not the first time");
        std::future::ready(Ok(StepOutcome::done("done")))
    }
}

async fn a_runner_that_panics_before_it_begins_is_tried_again(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("early", Early(counts.clone()), NoopTerminalHook);
    let relay = relay.backoff(Duration::from_millis(5), Duration::from_millis(5)).build().unwrap();
    let run = relay.submit(RunSpec::new("")).await.unwrap();
    assert_eq!(relay.wait(&run.run_id).await.unwrap().status, TerminalStatus::Succeeded);
    assert_eq!(counts.get("ran"), 2);
}

/// Is told by its callee when to come again.
struct Busy;

impl StepRunner for Busy {
    async fn run_step(&self, _: &RelayStep) -> Result<StepOutcome, RelayError> {
        Err(RelayError::transient("busy").retry_after(Duration::from_secs(3_600)))
    }
}

async fn a_callee_that_says_when_is_left_alone_until_then(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("busy", Busy, NoopTerminalHook);
    let relay = relay.backoff(Duration::from_millis(1), Duration::from_millis(1)).build().unwrap();
    let run = relay.submit(RunSpec::new("").id("busy")).await.unwrap();
    until("it is put off", || async {
        relay.status("busy").await.unwrap().unwrap().state == RunState::Scheduled
    })
    .await;
    let row = engine.core().current(run.run_key).await.unwrap();
    let wait = row.turn.due_at.unwrap().since(engine.core().clock().now());
    assert!(wait > Duration::from_secs(3_500), "{wait:?}");
    assert!(relay.cancel("busy").await.unwrap());
}

/// Cannot say what it wants where a run has no header.
struct Unsure(Told);

impl TerminalHook for Unsure {
    async fn on_termination(&self, outcome: &RunOutcome) -> Result<(), HookError> {
        self.0.on_termination(outcome).await
    }

    fn wants(
        &self,
        headers: &std::collections::BTreeMap<String, String>,
    ) -> windlass::Result<bool, windlass::Error> {
        match headers.contains_key("for") {
            true => Ok(true),
            false => {
                let message = "nobody is named";
                Err(windlass::Error::new(
                    windlass::ErrorKind::Invalid,
                    ErrorCode::InvalidHeaders,
                    message,
                ))
            }
        }
    }
}

async fn a_hook_that_cannot_be_asked_is_called_for_a_child(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let hook = Unsure(Told::default());
    engine.relay("unsure", Script(counts.clone()), hook).build().unwrap();
    let parents = engine.workflow("parent", async |ctx: Ctx, (): ()| -> windlass::Result<String> {
        Ok(ctx.child_named("c", "unsure", &"done").await?)
    });
    let run = parents.unwrap().start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "done");
    // It is asked again when it is told, and what it says then is where operators look.
    until("it is a dead letter", || async {
        let letters = engine.admin().dead_letters(None, None, 10).await.unwrap();
        letters.iter().any(|letter| letter.reason.contains("nobody is named"))
    })
    .await;
}

async fn a_scheduled_run_tells_its_hook(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    script(&engine, &counts, &hook);
    let relay = engine.remote_workflow::<String, String>("script").unwrap();
    relay.schedule("often", &"done".into()).every("1 second").await.unwrap();
    until("it is told", || async { !hook.0.lock().is_empty() }).await;
    let told = hook.0.lock()[0].clone();
    assert_eq!((told.status, told.workflow.as_str()), (TerminalStatus::Succeeded, "script"));
    assert_eq!(engine.core().current(told.run_key).await.unwrap().model.as_str(), "relays");
    engine.admin().delete_schedule("often").await.unwrap();
}

struct Crowd(Arc<Mutex<(u32, u32)>>);

impl StepRunner for Crowd {
    async fn run_step(&self, _: &RelayStep) -> Result<StepOutcome, RelayError> {
        {
            let mut now = self.0.lock();
            now.0 += 1;
            now.1 = now.1.max(now.0);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.0.lock().0 -= 1;
        Ok(StepOutcome::done(""))
    }
}

async fn steps_of_one_process_are_bounded(h: Arc<Harness>) {
    let engine = h.engine().await;
    let seen = Arc::new(Mutex::new((0, 0)));
    let relay = engine.relay("crowd", Crowd(seen.clone()), NoopTerminalHook);
    let relay = relay.concurrency(3).build().unwrap();
    let group = relay.group("all");
    group.start((0..20).map(|n| RunSpec::new("").id(format!("r{n}"))).collect()).await.unwrap();
    assert_eq!(group.wait_all().await.unwrap().succeeded, 20);
    assert_eq!(*seen.lock(), (0, 3));
    assert_eq!(
        engine
            .core()
            .find_run(&"crowd".parse().unwrap(), &"r1".parse().unwrap())
            .await
            .unwrap()
            .unwrap()
            .status,
        RunStatus::Complete
    );
}
