//! Cancelling relays, and groups of them.

use std::sync::Arc;
use std::time::Duration;

use windlass::relays::{
    GroupCounts, NoopTerminalHook, RunSpec, RunState, Step, StepError, StepOutcome, StepRunner,
    TerminalStatus, WorkflowRuntime,
};
use windlass::transfer::{Importer, RunExport, export_run};
use windlass::{Engine, Options};

use crate::harness::{Counts, Harness, Kind, on_every_store, run, until};
use crate::relays::{Told, event_types, script, submit};

on_every_store!(
    a_run_that_waits_ends_in_the_call,
    a_running_step_hears_its_token,
    a_step_that_ignores_its_token_is_discarded,
    a_cancelled_run_ends_though_its_process_died,
    groups_are_waited_for_counted_and_cancelled,
    an_exported_run_takes_its_hook_along,
);

/// Runs until its token fires; `deaf` ones until they are told to stop.
struct Long(Arc<Counts>);

impl StepRunner for Long {
    async fn run_step(&self, step: &Step) -> Result<StepOutcome, StepError> {
        self.0.hit("begun");
        if step.payload.as_ref() == b"deaf" {
            while self.0.get("stop") == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            return match self.0.get("fail") {
                0 => Ok(StepOutcome::done("too late")),
                _ => Err(StepError::transient("too late")),
            };
        }
        step.cancel_token.cancelled().await;
        self.0.hit("fired");
        Ok(StepOutcome::done("cooperative"))
    }
}

fn long(engine: &Engine, counts: &Arc<Counts>, hook: &Told) -> WorkflowRuntime {
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
        assert!(relay.cancel_because(id, "enough", None).await.unwrap());
        let info = relay.status(id).await.unwrap().unwrap();
        assert_eq!(info.state, RunState::Ended(TerminalStatus::Cancelled));
        assert_eq!((info.error.as_deref(), info.cancelling), (Some("enough"), false));
        let types = event_types(&engine, &relay, id).await;
        assert_eq!(types[types.len() - 2..], ["hook.enqueued", "workflow.terminated"]);
        assert_eq!(hook.of(id).await.status, TerminalStatus::Cancelled);
        // What has ended, or never was, is not cancelled.
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
    assert_eq!(engine.dead_letters(None, None, 10).await.unwrap(), []);
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

async fn groups_are_waited_for_counted_and_cancelled(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    let group = relay.group("nightly");
    assert_eq!(group.wait_any().await.unwrap(), None);
    let specs = |from: usize, input: &'static str| {
        (0..30)
            .map(move |n| RunSpec::new(input).id(format!("{input}-{}", from + n).replace(' ', "-")))
    };
    let submitted = group.submit(specs(0, "next done").collect()).await.unwrap();
    assert_eq!(submitted.len(), 30);
    let again = group.submit(specs(0, "next done").collect()).await.unwrap();
    assert!(again.iter().all(|run| run.existed));
    let all = group.wait_all().await.unwrap();
    assert_eq!(all, GroupCounts { succeeded: 30, ..GroupCounts::default() });
    group.submit(specs(0, "fail").collect()).await.unwrap();
    let all = group.wait_all().await.unwrap();
    assert_eq!((all.succeeded, all.failed, all.total()), (30, 30, 60));
    assert!(group.wait_any().await.unwrap().is_some());
    // Another group of the same relay is another group.
    let other = relay.group("other");
    other.submit(specs(0, "never done").collect()).await.unwrap();
    until("all wait", || async {
        other.counts().await.unwrap().live == 30 && engine.load().0 == 0
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
    let export = export_run(&**engine.store(), run_key).await.unwrap().unwrap();
    let line = export.to_line().unwrap();
    let there = windlass::open_store("memory:").await.unwrap();
    let env = windlass::TokioEnv::new().unwrap();
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
    })
    .await;
}
