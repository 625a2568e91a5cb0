//! Cancelling relays, and groups of them.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::Options;
use windlass::admin::transfer::{Importer, RunExport, export_run};
use windlass::kernel::{Draft, NewRun, OnExisting, Stamp};
use windlass::relays::{
    GroupCounts, NoopTerminalHook, RelayError, RelayStep, RunSpec, RunState, StepOutcome,
    StepRunner, TerminalStatus,
};
use windlass::{Engine, RunKey};

use crate::harness::{Counts, Harness, Kind, fence, on_every_store, run, until};
use crate::relay_calls::{Relay, RelayCalls as _};
use crate::relays::{Told, event_types, script, submit};

on_every_store!(
    a_run_that_waits_ends_in_the_call,
    a_running_step_hears_its_token,
    a_step_that_ignores_its_token_is_discarded,
    a_cancelled_run_ends_though_its_process_died,
    a_ready_run_that_nobody_serves_ends_in_the_call,
    effects_of_a_cancelled_step_are_kept,
    groups_are_waited_for_counted_and_cancelled,
    a_group_is_cancelled_while_its_steps_run,
    a_group_takes_no_run_of_another,
    a_group_waits_for_what_comes_behind_its_back,
    an_exported_run_takes_its_hook_along,
);

/// Runs until its token fires; `deaf` ones until they are told to stop.
struct Long(Arc<Counts>);

impl StepRunner for Long {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.hit("begun");
        if step.payload.as_ref() == b"deaf" {
            while self.0.get("stop") == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            return match self.0.get("fail") {
                0 => Ok(StepOutcome::done("too late")),
                _ => Err(RelayError::transient("too late")),
            };
        }
        step.cancel_token.cancelled().await;
        self.0.hit("fired");
        Ok(StepOutcome::done("cooperative"))
    }
}

fn long(engine: &Engine, counts: &Arc<Counts>, hook: &Told) -> Relay {
    engine.relay("long", Long(counts.clone()), hook.clone()).build().unwrap()
}

async fn a_run_that_waits_ends_in_the_call(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    submit(&relay, "delayed", "never done").await;
    until("it waits", || async {
        relay.status("delayed").await.unwrap().unwrap().state == RunState::Scheduled
    })
    .await;
    // One that has not begun.
    let later = RunSpec { delay: Some(Duration::from_secs(3_600)), ..RunSpec::new("done") };
    relay.submit(later.id("unbegun")).await.unwrap();
    for id in ["delayed", "unbegun"] {
        assert!(relay.get(id).await.unwrap().cancel("enough").await.unwrap());
        let info = relay.status(id).await.unwrap().unwrap();
        assert_eq!(info.state, RunState::Ended(TerminalStatus::Cancelled));
        assert_eq!((info.error.as_deref(), info.cancelling), (Some("enough"), false));
        let types = event_types(&engine, &relay, id).await;
        assert_eq!(types[types.len() - 2..], ["hook.enqueued", "workflow.terminated"]);
        assert_eq!(hook.of(id).await.status, TerminalStatus::Cancelled);
        // A run that has ended or does not exist is not cancelled.
        assert!(!relay.cancel(id).await.unwrap());
    }
    assert!(!relay.cancel("nobody").await.unwrap());
    assert_eq!(counts.get("unbegun/0"), 0);
}

async fn a_running_step_hears_its_token(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = long(&engine, &counts, &hook);
    relay.submit(RunSpec::new("").id("r")).await.unwrap();
    until("it runs", || async { counts.get("begun") == 1 }).await;
    assert_eq!(relay.status("r").await.unwrap().unwrap().state, RunState::Running);
    assert!(relay.cancel("r").await.unwrap());
    assert_eq!(counts.get("fired"), 1);
    let info = relay.status("r").await.unwrap().unwrap();
    assert_eq!(info.state, RunState::Ended(TerminalStatus::Cancelled));
    assert_eq!(info.result, None);
    let types = event_types(&engine, &relay, "r").await;
    let expect = [
        "workflow.enqueued",
        "message.received",
        "relay.step_cancelled",
        "hook.enqueued",
        "workflow.terminated",
    ];
    assert_eq!(types, expect);
    let told = hook.of("r").await;
    assert_eq!((told.status, told.result), (TerminalStatus::Cancelled, None));
}

async fn a_step_that_ignores_its_token_is_discarded(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = long(&engine, &counts, &hook);
    for (id, fails) in [("succeeds", false), ("fails", true)] {
        let before = counts.get("begun");
        relay.submit(RunSpec::new("deaf").id(id)).await.unwrap();
        until("it runs", || async { counts.get("begun") > before }).await;
        let asks = relay.clone();
        let cancel = tokio::spawn(async move { asks.cancel(id).await });
        until("it shows", || async { relay.status(id).await.unwrap().unwrap().cancelling }).await;
        assert!(!cancel.is_finished());
        if fails {
            counts.hit("fail");
        }
        counts.hit("stop");
        assert!(cancel.await.unwrap().unwrap());
        // A failed attempt of a cancelled run is not tried again.
        let info = relay.status(id).await.unwrap().unwrap();
        assert_eq!(info.state, RunState::Ended(TerminalStatus::Cancelled));
        assert!(!info.cancelling);
        assert_eq!(counts.get("begun"), before + 1);
        hook.of(id).await;
        if !fails {
            // Both cases wait anew.
            counts.reset("stop");
        }
    }
    assert_eq!(engine.admin().dead_letters(None, None, 10).await.unwrap(), []);
}

async fn a_cancelled_run_ends_though_its_process_died(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = long(&engine, &counts, &hook);
    relay.submit(RunSpec::new("deaf").id("r")).await.unwrap();
    until("it runs", || async { counts.get("begun") == 1 }).await;
    let asks = relay.clone();
    let cancel = tokio::spawn(async move { asks.cancel("r").await });
    until("it shows", || async { relay.status("r").await.unwrap().unwrap().cancelling }).await;
    // The step never returns; its process goes, and gives the turn back.
    h.stop_within(&engine, Duration::from_millis(20)).await;
    cancel.abort();
    let engine = h.engine().await;
    let relay = long(&engine, &counts, &hook);
    let ended = relay.wait("r").await.unwrap();
    assert_eq!(ended.status, TerminalStatus::Cancelled);
    assert_eq!(counts.get("begun"), 1, "nothing runs before the request is obeyed");
    assert_eq!(hook.of("r").await.status, TerminalStatus::Cancelled);
}

async fn a_ready_run_that_nobody_serves_ends_in_the_call(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    script(&engine, &counts, &hook);
    h.stop(&engine).await;
    let asks = h.engine().await;
    let remote = asks.remote_relay("script").unwrap();
    submit(&remote, "r", "done").await;
    assert_eq!(remote.status("r").await.unwrap().unwrap().state, RunState::Queued);
    assert!(remote.cancel("r").await.unwrap());
    let info = remote.status("r").await.unwrap().unwrap();
    assert_eq!(info.state, RunState::Ended(TerminalStatus::Cancelled));
    let types = event_types(&asks, &remote, "r").await;
    assert_eq!(types, ["workflow.enqueued", "hook.enqueued", "workflow.terminated"]);
    assert_eq!(counts.get("r/0"), 0);
}

/// Stores something, and returns when its token fires.
struct Stores(Arc<Counts>, &'static str);

impl StepRunner for Stores {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let none = windlass::RetryPolicy::none();
        step.effects.enqueue("mail", "sent", none).map_err(RelayError::permanent)?;
        if !self.1.is_empty() {
            step.effects.sql(self.1, vec![]).map_err(RelayError::permanent)?;
        }
        self.0.hit("begun");
        step.cancel_token.cancelled().await;
        Err(RelayError::transient("cut off"))
    }
}

async fn effects_of_a_cancelled_step_are_kept(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    engine.serve_effects("mail", Arc::new(crate::relays::Mail(counts.clone()))).unwrap();
    let insert = match h.kind {
        Kind::Memory => "",
        Kind::Sqlite | Kind::Postgres => {
            h.sql("CREATE TABLE app_kept (word text)").await;
            "INSERT INTO app_kept VALUES ('kept')"
        }
    };
    let relay = engine.relay("stores", Stores(counts.clone(), insert), NoopTerminalHook);
    let relay = relay.build().unwrap();
    relay.submit(RunSpec::new("").id("r")).await.unwrap();
    until("it runs", || async { counts.get("begun") == 1 }).await;
    assert!(relay.cancel("r").await.unwrap());
    let types = event_types(&engine, &relay, "r").await;
    assert!(types.contains(&"effect.enqueued".to_owned()), "{types:?}");
    until("the mail is sent", || async { counts.get("sent") == 1 }).await;
    if h.kind != Kind::Memory {
        assert_eq!(h.number("SELECT count(*) FROM app_kept").await, 1);
    }
}

async fn a_group_is_cancelled_while_its_steps_run(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = long(&engine, &counts, &hook);
    let group = relay.group("running");
    let spec = |n: usize| RunSpec::new("").id(format!("r{n}"));
    group.start((0..4).map(spec).collect()).await.unwrap();
    until("all run", || async { counts.get("begun") == 4 }).await;
    // Nobody has ended: whoever waits for any of them waits.
    let any = relay.group("running");
    let any = tokio::spawn(async move { any.wait_any().await });
    fence(&engine).await;
    assert!(!any.is_finished());
    // Another handle, as another process has one, has the same group.
    assert_eq!(
        engine.remote_relay("long").unwrap().group("running").counts().await.unwrap().live,
        4
    );
    assert_eq!(group.cancel_all().await.unwrap(), 4);
    assert_eq!(group.counts().await.unwrap(), GroupCounts { cancelled: 4, ..Default::default() });
    let first = any.await.unwrap().unwrap().unwrap();
    assert_eq!(first.status, TerminalStatus::Cancelled);
    assert_eq!(counts.get("fired"), 4);
}

async fn a_group_takes_no_run_of_another(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    let spec = || RunSpec::new("done").id("taken");
    submit(&relay, "plain", "done").await;
    relay.group("one").start(vec![spec()]).await.unwrap();
    relay.group("one").start(vec![spec()]).await.unwrap();
    let refused = relay.group("two").start(vec![spec()]).await.unwrap_err();
    assert_eq!(refused.code(), "RUN_NOT_IN_GROUP");
    assert!(refused.to_string().contains("\"one\""), "{refused}");
    let refused = relay.group("two").start(vec![RunSpec::new("done").id("plain")]).await;
    assert_eq!(refused.unwrap_err().code(), "RUN_NOT_IN_GROUP");
    assert_eq!(relay.group("two").counts().await.unwrap().total(), 0);
    relay.group("one").wait_all().await.unwrap();
    relay.wait("plain").await.unwrap();
}

async fn a_group_waits_for_what_comes_behind_its_back(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = long(&engine, &counts, &hook);
    let group = relay.group("g");
    let first = group.start(vec![RunSpec::new("deaf").id("first")]).await.unwrap().remove(0);
    until("it runs", || async { counts.get("begun") == 1 }).await;
    let waits = relay.group("g");
    let all = tokio::spawn(async move { waits.wait_all().await });
    // By then it has read the group.
    fence(&engine).await;
    // A process whose clock lags submits one: its key comes before those that were looked at.
    let row = engine.core().current(first.run_key()).await.unwrap();
    let early = uuid::Builder::from_unix_timestamp_millis(1_000, &[7; 10]).into_uuid();
    let new = NewRun {
        run_key: RunKey(early),
        namespace: row.namespace.clone(),
        workflow: row.workflow.clone(),
        model: row.model.clone(),
        id: "early".parse().unwrap(),
        generation: 0,
        input: row.input.clone(),
        parent: None,
        fork: None,
        labels: row.labels.clone(),
        trace: None,
        headers: None,
        on_end: None,
        deadline_at: None,
        turn: windlass::kernel::Turn::ready(),
        caused_by: None,
    };
    let event_id =
        windlass::kernel::EventId(uuid::Builder::from_u128(early.as_u128() + 1).into_uuid());
    let stamp = Stamp { event_id, at: engine.core().clock().now() };
    let commit = Draft::create(new, OnExisting::Refuse, stamp).unwrap().finish();
    assert!(engine.admin().store().commit(vec![commit]).await[0].is_ok());
    until("both are there", || async { group.counts().await.unwrap().live == 2 }).await;
    // The first ends alone: nobody may say that all have ended.
    assert!(engine.core().terminate(first.run_key(), None, None).await.is_ok());
    fence(&engine).await;
    assert!(!all.is_finished());
    engine.core().terminate(RunKey(early), None, None).await.unwrap();
    let all = all.await.unwrap().unwrap();
    assert_eq!((all.live, all.cancelled), (0, 2));
    counts.hit("stop");
}

async fn groups_are_waited_for_counted_and_cancelled(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    let group = relay.group("nightly");
    assert_eq!(group.wait_any().await.unwrap(), None);
    let specs = |from: usize, input: &'static str| {
        (0..30)
            .map(move |n| RunSpec::new(input).id(format!("{input}-{}", from + n).replace(' ', "-")))
    };
    let submitted = group.start(specs(0, "next done").collect()).await.unwrap();
    assert_eq!(submitted.len(), 30);
    let again = group.start(specs(0, "next done").collect()).await.unwrap();
    assert!(again.iter().all(|run| run.existed()));
    let all = group.wait_all().await.unwrap();
    assert_eq!(all, GroupCounts { succeeded: 30, ..GroupCounts::default() });
    group.start(specs(0, "fail").collect()).await.unwrap();
    let all = group.wait_all().await.unwrap();
    assert_eq!((all.succeeded, all.failed, all.total()), (30, 30, 60));
    assert!(group.wait_any().await.unwrap().is_some());
    // Another group of the same relay is another group.
    let other = relay.group("other");
    other.start(specs(0, "never done").collect()).await.unwrap();
    until("all wait", || async {
        other.counts().await.unwrap().live == 30 && engine.core().load().0 == 0
    })
    .await;
    assert_eq!(other.cancel_all().await.unwrap(), 30);
    assert_eq!(other.cancel_all().await.unwrap(), 0);
    assert_eq!(other.counts().await.unwrap().cancelled, 30);
    assert_eq!(group.counts().await.unwrap(), all);
    // A retried run counts once, where it is.
    relay.retry("fail-0").await.unwrap();
    let all = group.wait_all().await.unwrap();
    assert_eq!((all.failed, all.total()), (30, 60));
}

async fn an_exported_run_takes_its_hook_along(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    submit(&relay, "moves", "next never done").await;
    until("it waits", || async {
        relay.status("moves").await.unwrap().unwrap().state == RunState::Scheduled
    })
    .await;
    let run_key = relay.status("moves").await.unwrap().unwrap().run_key;
    let export = export_run(&**engine.admin().store(), run_key).await.unwrap().unwrap();
    let line = export.to_line().unwrap();
    let there = windlass::admin::open_store("memory:").await.unwrap();
    let env = windlass::model::TokioEnv::new().unwrap();
    let importer = Importer::begin(Arc::clone(&there), &*env).await.unwrap();
    importer.import(RunExport::parse(&line).unwrap()).await.unwrap();
    importer.finish().await.unwrap();
    let elsewhere = Engine::builder().start(there).await.unwrap();
    let told = Told::default();
    let relay = script(&elsewhere, &counts, &told);
    assert_eq!(relay.status("moves").await.unwrap().unwrap().step, 2);
    assert!(relay.cancel("moves").await.unwrap());
    let outcome = told.of("moves").await;
    assert_eq!((outcome.run_key, outcome.headers["for"].as_str()), (run_key, "moves"));
    assert!(hook.0.lock().is_empty());
    elsewhere.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_cancels_signals_and_waits() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let (counts, hook) = (Counts::new(), Told::default());
        // So seldom that only a notification can be the way.
        let slow = |options| Options {
            lease: Duration::from_secs(300),
            renew_every: Duration::from_secs(100),
            scan_every: Duration::from_secs(100),
            ..options
        };
        let (serves, asks) = (h.engine_with(slow).await, h.engine_with(slow).await);
        let relay = long(&serves, &counts, &hook);
        let remote = asks.remote_relay("long").unwrap();
        relay.submit(RunSpec::new("").id("r")).await.unwrap();
        until("it runs", || async { counts.get("begun") == 1 }).await;
        assert_eq!(remote.status("r").await.unwrap().unwrap().state, RunState::Running);
        let cancelled = tokio::time::timeout(Duration::from_secs(20), remote.cancel("r")).await;
        assert!(cancelled.expect("it is told at once").unwrap());
        assert_eq!(counts.get("fired"), 1);
        assert_eq!(remote.wait("r").await.unwrap().status, TerminalStatus::Cancelled);
        hook.of("r").await;
        let noop = serves.relay("noop", crate::relays::Script(counts.clone()), NoopTerminalHook);
        noop.build().unwrap().submit(RunSpec::new("next done").id("n")).await.unwrap();
        let ended = asks.remote_relay("noop").unwrap().wait("n").await.unwrap();
        assert_eq!(ended.result.as_deref(), Some(&b"done"[..]));
        // A group is the same in both: submitted in one, waited for in either.
        let here = asks.remote_relay("noop").unwrap().group("both");
        let spec = |n: usize| RunSpec::new("next done").id(format!("g{n}"));
        here.start((0..3).map(spec).collect()).await.unwrap();
        let there = serves.remote_relay("noop").unwrap().group("both");
        assert_eq!(there.wait_all().await.unwrap().succeeded, 3);
        assert_eq!(here.wait_all().await.unwrap().succeeded, 3);
        assert_eq!(here.cancel_all().await.unwrap(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_ends_though_nobody_is_left_who_serves_it() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let (counts, hook) = (Counts::new(), Told::default());
        let short = |options| Options {
            lease: Duration::from_secs(1),
            renew_every: Duration::from_millis(200),
            scan_every: Duration::from_millis(300),
            ..options
        };
        let (serves, asks) = (h.engine_with(short).await, h.engine_with(short).await);
        let relay = long(&serves, &counts, &hook);
        relay.submit(RunSpec::new("deaf").id("r")).await.unwrap();
        until("it runs", || async { counts.get("begun") == 1 }).await;
        let remote = asks.remote_relay("long").unwrap();
        let cancels = remote.clone();
        let cancel = tokio::spawn(async move { cancels.cancel("r").await });
        until("it shows", || async { remote.status("r").await.unwrap().unwrap().cancelling }).await;
        // It holds the run and never gives it back.
        h.lose(&serves).await;
        assert!(cancel.await.unwrap().unwrap());
        let info = remote.status("r").await.unwrap().unwrap();
        assert_eq!(info.state, RunState::Ended(TerminalStatus::Cancelled));
        let types = event_types(&asks, &remote, "r").await;
        assert_eq!(types[types.len() - 2..], ["hook.enqueued", "workflow.terminated"]);
        counts.hit("stop");
    })
    .await;
}
