//! Relays with many steps: fair turns, further generations, and waits that end without a signal.

use std::sync::Arc;

use windlass::admin::Options;
use windlass::kernel::Limits;
use windlass::relays::{
    NoopTerminalHook, RelayError, RelayStep, RunSpec, Signal, StepOutcome, StepRunner,
    TerminalStatus,
};
use windlass::{RunStatus, relays::TypedOutcome, relays::TypedRunner};

use crate::harness::{Counts, Harness, on_every_store, until};
use crate::relay_calls::RelayCalls as _;
use crate::relays::{Told, event_types};

on_every_store!(
    a_long_run_lets_others_have_the_only_slot,
    a_relay_goes_on_as_its_next_generation,
    a_relay_that_needs_too_many_steps_ends_with_a_reason,
    a_signal_that_does_not_come_leaves_an_event,
    a_group_of_runs_elsewhere_is_waited_for,
);

/// Continues until another run has been here.
struct Endless(Arc<Counts>);

impl StepRunner for Endless {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        match &step.payload[..] {
            b"short" => {
                self.0.hit("short");
                Ok(StepOutcome::done(""))
            }
            _ if self.0.get("short") > 0 => Ok(StepOutcome::done("")),
            _ => {
                self.0.hit("long");
                // The other run is there before the second step.
                while self.0.get("submitted") == 0 {
                    tokio::task::yield_now().await;
                }
                Ok(StepOutcome::next("long"))
            }
        }
    }
}

async fn a_long_run_lets_others_have_the_only_slot(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let runner = Endless(Arc::clone(&counts));
    let relay = engine.relay("endless", runner, NoopTerminalHook).concurrency(1).build().unwrap();
    relay.submit(RunSpec::new("long").id("long")).await.unwrap();
    until("it runs", || async { counts.get("long") > 0 }).await;
    relay.submit(RunSpec::new("short").id("short")).await.unwrap();
    counts.hit("submitted");
    for id in ["short", "long"] {
        let ended = relay.wait(id).await.unwrap();
        assert_eq!(ended.status, TerminalStatus::Succeeded, "{id}: {ended:?}");
    }
}

/// Counts pages: five in a generation.
struct Pages;

impl TypedRunner for Pages {
    type Payload = u32;
    type Output = String;

    async fn run_step(
        &self,
        step: &RelayStep,
        page: u32,
    ) -> Result<TypedOutcome<u32, String>, RelayError> {
        if page == 12 {
            return Ok(TypedOutcome::Succeed(format!("{page} in {}", step.generation)));
        }
        match step.step_number {
            4 => Ok(TypedOutcome::ContinueAsNew(page + 1)),
            _ => Ok(TypedOutcome::Continue(page + 1)),
        }
    }
}

fn five_steps(options: Options) -> Options {
    Options { limits: Limits { steps_per_run_max: 5, ..Limits::DEFAULT }, ..options }
}

async fn a_relay_goes_on_as_its_next_generation(h: Arc<Harness>) {
    let engine = h.engine_with(five_steps).await;
    let hook = Told::default();
    let pages = windlass::relays::Typed(Pages);
    let relay = engine.relay("pages", pages, hook.clone()).build().unwrap();
    let group = relay.group("g");
    let spec = RunSpec::new("0").id("r").header("tenant", "ann");
    let run = group.start(vec![spec]).await.unwrap().remove(0);
    assert_eq!(&run.result().await.unwrap()[..], b"\"12 in 2\"");
    let ended = relay.wait("r").await.unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"\"12 in 2\""[..]), "a wait follows generations");
    let newest = engine.core().current(relay.get("r").await.unwrap().run_key()).await.unwrap();
    assert_eq!((newest.generation, newest.status), (2, RunStatus::Complete));
    assert_eq!(newest.labels.get("workflow.group").map(String::as_str), Some("g"));
    assert_eq!(group.counts().await.unwrap().succeeded, 1, "each run counts once");
    let told = hook.of("r").await;
    assert_eq!(told.headers.get("tenant").map(String::as_str), Some("ann"));
    assert_eq!(hook.0.lock().len(), 1, "the hook gets the last generation alone");
}

async fn a_relay_that_needs_too_many_steps_ends_with_a_reason(h: Arc<Harness>) {
    let engine = h.engine_with(five_steps).await;
    let counts = Counts::new();
    counts.hit("submitted");
    let runner = Endless(Arc::clone(&counts));
    let relay = engine.relay("endless", runner, NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("long").id("r")).await.unwrap();
    let ended = relay.wait("r").await.unwrap();
    let error = ended.error.unwrap_or_default();
    assert_eq!((ended.status, counts.get("long")), (TerminalStatus::Failed, 5));
    assert!(error.contains("at most 5 steps; return StepOutcome::ContinueAsNew"), "{error}");
    let letters = engine.admin().dead_letters(None, None, 10).await.unwrap();
    assert_eq!(letters.len(), 1, "an operator finds it: {letters:?}");
}

/// Waits for a signal that nobody sends.
struct Patient;

impl StepRunner for Patient {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        match &step.signal {
            None => StepOutcome::on_signal_for("", "never", "1 ms"),
            Some(Signal::TimedOut) => Ok(StepOutcome::done("nobody came")),
            Some(Signal::Received(_)) => Ok(StepOutcome::done("somebody came")),
        }
    }
}

async fn a_signal_that_does_not_come_leaves_an_event(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("patient", Patient, NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("").id("r")).await.unwrap();
    let ended = relay.wait("r").await.unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"nobody came"[..]));
    let types = event_types(&engine, &relay, "r").await;
    let expect = [
        "workflow.enqueued",
        "relay.step_completed",
        "relay.signal_timed_out",
        "relay.step_completed",
        "workflow.completed",
    ];
    assert_eq!(types, expect);
    let report = engine.admin().verify().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

async fn a_group_of_runs_elsewhere_is_waited_for(h: Arc<Harness>) {
    let (here, there) = h.two_engines(|options| options).await;
    let counts = Counts::new();
    let runner = Endless(Arc::clone(&counts));
    let served = there.relay("endless", runner, NoopTerminalHook).build().unwrap();
    let group = here.remote_relay("endless").unwrap().group("g");
    let specs = |word: &'static str, count: usize| {
        (0..count).map(|n| RunSpec::new(word).id(format!("{word}-{n}"))).collect()
    };
    served.group("g").start(specs("long", 20)).await.unwrap();
    until("all run", || async { counts.get("long") == 20 }).await;
    // No run ends in the process that waits.
    let any = {
        let group = here.remote_relay("endless").unwrap().group("g");
        tokio::spawn(async move { group.wait_any().await })
    };
    served.group("g").start(specs("short", 1)).await.unwrap();
    let first = any.await.unwrap().unwrap().unwrap();
    assert_eq!(first.status, TerminalStatus::Succeeded);
    counts.hit("submitted");
    let all = group.wait_all().await.unwrap();
    assert_eq!((all.live, all.succeeded), (0, 21));
}
