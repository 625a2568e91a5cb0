//! How runs of relays end badly, what that leaves, and how they go on from it.

use std::sync::Arc;

use windlass::admin::Options;
use windlass::relays::{NoopTerminalHook, RunSpec, RunState, TerminalStatus};
use windlass::{Engine, Why};

use crate::harness::{Counts, Harness, on_every_store, until};
use crate::relay_calls::{Relay, RelayCalls as _};
use crate::relays::{Given, Told, event_types, script, submit};

on_every_store!(
    a_run_that_kills_its_workers_is_a_dead_letter,
    a_run_that_waited_for_a_signal_continues_to_wait,
    a_stranger_carries_a_run_on_with_its_signal,
    ends_are_counted_as_what_they_are,
    a_stranger_knows_what_a_run_waits_for,
);

/// One that takes nothing.
fn idle(options: Options) -> Options {
    Options { background: false, ..options }
}

/// One that takes every run it finds for one that workers have died of, and delivers nothing.
fn impatient(options: Options) -> Options {
    Options { reclaims_max: 0, tasks_max: 0, ..options }
}

fn given(engine: &Engine, counts: &Arc<Counts>) -> Relay {
    engine.relay("given", Given(counts.clone()), NoopTerminalHook).build().unwrap()
}

async fn state(relay: &Relay, id: &str) -> RunState {
    relay.status(id).await.unwrap().unwrap().state
}

async fn a_run_that_kills_its_workers_is_a_dead_letter(h: Arc<Harness>) {
    let (counts, hook) = (Counts::new(), Told::default());
    let engine = h.engine_with(idle).await;
    submit(&script(&engine, &counts, &hook), "deadly", "next done").await;
    h.stop(&engine).await;
    let engine = h.engine_with(impatient).await;
    let relay = script(&engine, &counts, &hook);
    let ended = relay.wait("deadly").await.unwrap();
    assert_eq!(ended.status, TerminalStatus::Failed);
    assert!(ended.error.unwrap().contains("none of them made progress"));
    let letters = engine.admin().dead_letters(None, None, 10).await.unwrap();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((&*letter.kind, letter.queue.as_str()), ("step", "relays"));
    assert_eq!(letter.step_key.as_ref().unwrap().as_str(), "0");
    let errors = String::from_utf8_lossy(&letter.errors.as_ref().unwrap().bytes).into_owned();
    assert!(errors.contains("\"NoProgress\""), "{errors}");
    until("it is counted", || async { engine.admin().metrics().tasks_dead.get() == 1 }).await;
    let types = event_types(&engine, &relay, "deadly").await;
    let expect = ["workflow.enqueued", "relay.step_failed", "hook.enqueued", "workflow.failed"];
    assert_eq!(types, expect);
    assert_eq!(counts.get("deadly/0"), 0);
    h.stop(&engine).await;
    let engine = h.engine().await;
    let relay = script(&engine, &counts, &hook);
    assert_eq!(hook.of("deadly").await.status, TerminalStatus::Failed);
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    assert_eq!(relay.wait("deadly").await.unwrap().status, TerminalStatus::Succeeded);
    assert_eq!((counts.get("deadly/0"), counts.get("deadly/1")), (1, 1));
}

async fn a_run_that_waited_for_a_signal_continues_to_wait(h: Arc<Harness>) {
    let counts = Counts::new();
    counts.hit("healed");
    let engine = h.engine().await;
    let relay = given(&engine, &counts);
    relay.submit(RunSpec::new("").id("g")).await.unwrap();
    until("it waits", || async { state(&relay, "g").await == RunState::AwaitingSignal }).await;
    h.stop(&engine).await;
    // The signal gives it a turn, of which its worker dies before it has read it.
    let engine = h.engine_with(idle).await;
    engine.remote_relay("given").unwrap().signal("g", "approved", "by Ann").await.unwrap();
    h.stop(&engine).await;
    let engine = h.engine_with(impatient).await;
    assert_eq!(given(&engine, &counts).wait("g").await.unwrap().status, TerminalStatus::Failed);
    let letter = engine.admin().dead_letters(None, None, 10).await.unwrap().remove(0);
    h.stop(&engine).await;
    let engine = h.engine().await;
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    let ended = given(&engine, &counts).wait("g").await.unwrap();
    assert_eq!((ended.result.as_deref(), ended.error), (Some(&b"by Ann"[..]), None));
}

async fn a_stranger_carries_a_run_on_with_its_signal(h: Arc<Harness>) {
    let counts = Counts::new();
    let engine = h.engine().await;
    let relay = given(&engine, &counts);
    relay.submit(RunSpec::new("").id("g")).await.unwrap();
    relay.signal("g", "approved", "by Ann").await.unwrap();
    assert_eq!(relay.wait("g").await.unwrap().error.as_deref(), Some("ill"));
    h.stop(&engine).await;
    let stranger = h.engine().await;
    let letter = stranger.admin().dead_letters(None, None, 10).await.unwrap().remove(0);
    stranger.admin().requeue(letter.task_id, None).await.unwrap();
    h.stop(&stranger).await;
    counts.hit("healed");
    let engine = h.engine().await;
    let relay = given(&engine, &counts);
    let ended = relay.wait("g").await.unwrap();
    assert_eq!((ended.result.as_deref(), ended.error), (Some(&b"by Ann"[..]), None));
    let types = event_types(&engine, &relay, "g").await;
    let expect =
        ["workflow.enqueued", "step.carried", "relay.step_completed", "workflow.completed"];
    assert_eq!(types, expect);
}

async fn ends_are_counted_as_what_they_are(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let relay = script(&engine, &counts, &hook);
    for (id, input) in [("a", "next cancel no"), ("b", "next fail no"), ("c", "break it")] {
        submit(&relay, id, input).await;
        relay.wait(id).await.unwrap();
        hook.of(id).await;
    }
    let metrics = engine.admin().metrics();
    // They are counted after the commit, which others may see first.
    until("all are counted", || async { metrics.tasks_dead.get() == 1 }).await;
    assert_eq!(metrics.steps_completed.get(), 2);
    assert_eq!((metrics.steps_cancelled.get(), metrics.steps_failed.get()), (1, 2));
    assert_eq!((metrics.runs_terminated.get(), metrics.runs_failed.get()), (1, 2));
    assert_eq!(metrics.tasks_dead.get(), 1);
}

async fn a_stranger_knows_what_a_run_waits_for(h: Arc<Harness>) {
    let (engine, counts, hook) = (h.engine().await, Counts::new(), Told::default());
    let (relay, waiting) = (script(&engine, &counts, &hook), given(&engine, &counts));
    submit(&relay, "later", "never done").await;
    waiting.submit(RunSpec::new("").id("g")).await.unwrap();
    until("both wait", || async {
        state(&relay, "later").await == RunState::Scheduled
            && state(&waiting, "g").await == RunState::AwaitingSignal
    })
    .await;
    h.stop(&engine).await;
    let stranger = h.engine().await;
    for (workflow, id, code, words) in [
        ("script", "later", Why::Sleeping, "\"1\" is delayed until"),
        ("given", "g", Why::AwaitingEvent, "\"1\" waits for the signal \"approved\""),
    ] {
        let remote = stranger.remote_relay(workflow).unwrap();
        let run_key = remote.status(id).await.unwrap().unwrap().run_key;
        let why = stranger.core().why(run_key).await.unwrap();
        let reason = why.reasons.iter().find(|reason| reason.code == code);
        let reason = reason.unwrap_or_else(|| panic!("{:?}", why.reasons));
        assert!(reason.text.contains(words), "{}", reason.text);
    }
}
