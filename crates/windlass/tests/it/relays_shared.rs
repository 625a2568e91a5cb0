//! Relays that several engines on one store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windlass::admin::Options;
use windlass::kernel::{Body, ModelName, Query, TasksQuery, WorkflowName};
use windlass::relays::{
    NoopTerminalHook, RelayError, RelayStep, RunSpec, StepOutcome, StepRunner, TerminalStatus,
};
use windlass::{Ctx, Engine};
use windlass_engine::StartRun;

use crate::harness::{Counts, Harness, Kind, PATIENCE, fence_between, ok, on_every_store, until};
use crate::relay_calls::{Relay, RelayCalls as _};
use crate::relays::{Hard, Script, Told, script};

on_every_store!(
    a_process_takes_no_more_than_it_runs,
    slots_are_given_back_when_the_process_stops,
    a_full_process_takes_turns_of_both_kinds,
    a_process_that_serves_nothing_starts_whole_runs,
    a_cancel_reaches_the_token_of_a_step_that_runs,
);

/// Runs until it may end, and keeps the most that ran at once.
#[derive(Clone)]
struct Blocks {
    counts: Arc<Counts>,
    here: Arc<(AtomicUsize, AtomicUsize)>,
}

impl StepRunner for Blocks {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let (now, most) = &*self.here;
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.counts.hit("begun");
        while self.counts.get("end") == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        now.fetch_sub(1, Ordering::SeqCst);
        match step.step_number {
            0 => Ok(StepOutcome::next("")),
            _ => Ok(StepOutcome::done("")),
        }
    }
}

impl Blocks {
    fn new(counts: &Arc<Counts>) -> Self {
        Self { counts: counts.clone(), here: Arc::default() }
    }

    fn at_once(&self) -> (usize, usize) {
        (self.here.0.load(Ordering::SeqCst), self.here.1.load(Ordering::SeqCst))
    }
}

fn serve(engine: &Engine, runner: &Blocks) -> Relay {
    engine.relay("blocks", runner.clone(), NoopTerminalHook).concurrency(1).build().unwrap()
}

// Notifications alone bring the rest to whoever has room: nothing is looked for meanwhile.
fn seldom(options: Options) -> Options {
    Options {
        lease: Duration::from_secs(300),
        renew_every: Duration::from_secs(100),
        scan_every: Duration::from_secs(100),
        ..options
    }
}

async fn a_process_takes_no_more_than_it_runs(h: Arc<Harness>) {
    let counts = Counts::new();
    let (first, second) = h.two_engines(seldom).await;
    let (here, there) = (Blocks::new(&counts), Blocks::new(&counts));
    let (relay, _) = (serve(&first, &here), serve(&second, &there));
    for n in 0..4 {
        relay.submit(RunSpec::new("").id(format!("r{n}"))).await.unwrap();
    }
    until("both work", || async { counts.get("begun") == 2 }).await;
    // Either has seen all four, and would have taken more by now.
    for engine in [&first, &second] {
        fence_between(&first, engine).await;
        until("the other work is put away", || async { engine.core().load().0 == 1 }).await;
    }
    assert_eq!((here.at_once(), there.at_once()), ((1, 1), (1, 1)));
    let held = async |engine: &Engine| {
        engine.admin().store().held(engine.admin().worker()).await.unwrap().len()
    };
    assert_eq!((held(&first).await, held(&second).await), (1, 1));
    counts.hit("end");
    for n in 0..4 {
        let ended = relay.wait(&format!("r{n}")).await.unwrap();
        assert_eq!(ended.status, TerminalStatus::Succeeded);
    }
    assert_eq!((here.at_once(), there.at_once()), ((0, 1), (0, 1)));
    assert_eq!(counts.get("begun"), 8);
}

async fn a_full_process_takes_turns_of_both_kinds(h: Arc<Harness>) {
    const RUNS: u32 = 30;
    let engine = h.engine_with(|options| Options { turns_max: 1, ..options }).await;
    let counts = Counts::new();
    let busy = counts.clone();
    let flow = move |ctx: Ctx, (): ()| {
        let busy = busy.clone();
        async move {
            let body = async || {
                while busy.get("go") == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                ok(busy.hit("busy"))
            };
            ok(ctx.step("work", body).await?)
        }
    };
    let flow = engine.workflow("busy", flow).unwrap();
    let runner = Script(counts.clone());
    let relay = engine.relay("slots", runner, NoopTerminalHook).concurrency(1).build().unwrap();
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(flow.start(()).await.unwrap());
    }
    relay.submit(RunSpec::new("done").id("r")).await.unwrap();
    counts.hit("go");
    relay.wait("r").await.unwrap();
    // There was always another run that wanted the only turn.
    assert!(counts.get("busy") < RUNS / 2, "{} came before it", counts.get("busy"));
    for run in runs {
        run.result().await.unwrap();
    }
}

async fn slots_are_given_back_when_the_process_stops(h: Arc<Harness>) {
    let counts = Counts::new();
    let (first, second) = h.two_engines(seldom).await;
    let (here, there) = (Blocks::new(&counts), Blocks::new(&counts));
    let relay = serve(&first, &here);
    for id in ["a", "b"] {
        relay.submit(RunSpec::new("").id(id)).await.unwrap();
    }
    until("one works", || async { counts.get("begun") == 1 }).await;
    // It holds one and waits for none, so it stops at once where the rest is somebody else's.
    first.core().shutdown(Duration::from_millis(20)).await.unwrap();
    counts.hit("end");
    let relay = serve(&second, &there);
    for id in ["a", "b"] {
        assert_eq!(relay.wait(id).await.unwrap().status, TerminalStatus::Succeeded);
    }
    assert_eq!(there.at_once(), (0, 1));
}

async fn a_process_that_serves_nothing_starts_whole_runs(h: Arc<Harness>) {
    let (counts, told, hard) = (Counts::new(), Told::default(), Told::default());
    let serve = |engine: &Engine| {
        script(engine, &counts, &told);
        let hook = Hard(hard.clone(), Counts::new());
        engine.relay("picky", Script(counts.clone()), hook).build().unwrap();
        let noop = engine.relay("noop", Script(counts.clone()), NoopTerminalHook);
        noop.build().unwrap();
    };
    let engine = h.engine().await;
    serve(&engine);
    h.stop(&engine).await;
    // Now nobody serves them, as behind a server that only takes requests.
    let asks = h.engine().await;
    let remote = asks.remote_relay("script").unwrap();
    remote.submit(RunSpec::new("next done").id("remote").header("for", "remote")).await.unwrap();
    let reserved = RunSpec::new("done").header("workflow.step", "7");
    assert_eq!(remote.submit(reserved).await.unwrap_err().code(), "RESERVED_HEADER");
    let name = |text: &str| WorkflowName::new(text).unwrap();
    let start = |id: &str, workflow: &str, headers: &str| StartRun {
        id: Some(id.parse().unwrap()),
        headers: (!headers.is_empty()).then(|| headers.into()),
        ..StartRun::new(name(workflow), ModelName::from_stored("steps"), Body::json("\"done\""))
    };
    asks.core().start_run(start("plain", "script", "")).await.unwrap();
    let batch = vec![start("batch", "script", r#"{"for":"batch"}"#)];
    asks.core().start_runs(batch).await.unwrap();
    for id in ["wanted", "nobody"] {
        let headers = format!(r#"{{"for":"{id}"}}"#);
        asks.core().start_run(start(id, "picky", &headers)).await.unwrap();
    }
    asks.core().start_run(start("silent", "noop", "")).await.unwrap();
    let refused = async |start| asks.core().start_run(start).await.unwrap_err().code();
    assert_eq!(refused(start("x", "script", r#"{"workflow.x":""}"#)).await, "RESERVED_HEADER");
    assert_eq!(refused(start("x", "script", "[1]")).await, "INVALID_HEADERS");
    assert_eq!(refused(start("x", "unheard-of", "{}")).await, "INVALID_HEADERS");
    let nobody = asks.remote_relay("unheard-of").unwrap();
    let refused = nobody.submit(RunSpec::new("")).await.unwrap_err();
    assert_eq!(refused.code(), "WORKFLOW_NOT_FOUND");
    // A child too, of a workflow that this process does serve.
    let parents = asks.workflow("parents", async |ctx: Ctx, (): ()| -> windlass::Result<String> {
        Ok(ctx.child_named("c", "script", &"done").await?)
    });
    let parent = parents.unwrap().start(()).id("parent").await.unwrap();
    crate::harness::until_asked(&parent, "c").await;
    h.stop(&asks).await;

    let engine = h.engine().await;
    serve(&engine);
    for (id, header) in [("remote", Some("remote")), ("batch", Some("batch")), ("plain", None)] {
        let outcome = told.of(id).await;
        assert_eq!(outcome.status, TerminalStatus::Succeeded, "{id}");
        assert_eq!(outcome.headers.get("for").map(String::as_str), header, "{id}");
        let run = engine.core().current(outcome.run_key).await.unwrap();
        assert_eq!(run.model.as_str(), "relays", "{id}");
    }
    until("the child's end is told", || async { told.0.lock().len() == 4 }).await;
    hard.of("wanted").await;
    let ended = engine.remote_relay("noop").unwrap().wait("silent").await.unwrap();
    assert_eq!(ended.status, TerminalStatus::Succeeded);
    until("all ends are told", || async {
        let query = TasksQuery::all(engine.namespace().clone(), 10);
        let tasks =
            engine.admin().store().list(Query::Tasks(query)).await.unwrap().tasks().unwrap();
        tasks.is_empty()
    })
    .await;
    // A hook that wants nothing of it is not called, and one that listens to nobody has no task.
    assert_eq!(hard.0.lock().len(), 1);
    let silent =
        engine.core().find_run(&name("noop"), &"silent".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(silent.on_end, None);
}

/// Ends only when its token fires.
struct UntilCancelled(Arc<Counts>);

impl StepRunner for UntilCancelled {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.hit(&step.workflow);
        step.cancel_token.cancelled().await;
        self.0.hit("fired");
        Ok(StepOutcome::done(""))
    }
}

// `windlass-bench cancel-latency` measures how long it takes.
async fn a_cancel_reaches_the_token_of_a_step_that_runs(h: Arc<Harness>) {
    // The lease is renewed so seldom that a request arrives by its notification, or not in time.
    let (serves, asks) = h.two_engines(seldom).await;
    // More than one notification can name.
    for (place, asks, runs) in [("here", &serves, 1), ("there", &asks, 1), ("many", &asks, 500)] {
        let counts = Counts::new();
        let relay = serves.relay(place, UntilCancelled(counts.clone()), NoopTerminalHook);
        let relay = relay.build().unwrap();
        let specs = (0..runs).map(|n| RunSpec::new("").id(format!("r{n}"))).collect();
        let submitted = relay.group("all").start(specs).await.unwrap();
        until("all run", || async { counts.get(place) == runs }).await;
        let cancels = asks.remote_relay(place).unwrap();
        let cancelled = submitted.iter().map(|run| cancels.cancel(run.id()));
        let cancelled = tokio::time::timeout(PATIENCE, futures::future::join_all(cancelled)).await;
        for cancelled in cancelled.expect("no request waits for the next renewal") {
            assert!(cancelled.unwrap());
        }
        assert_eq!(counts.get("fired"), runs);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_without_a_notification_is_found() {
    crate::harness::run(Kind::Postgres, not_told).await;
}

// The engine looks for missed requests: nothing names this run any more.
async fn not_told(h: Arc<Harness>) {
    let (serves, asks) = h.two_engines(seldom).await;
    let counts = Counts::new();
    let runner = UntilCancelled(counts.clone());
    let relay = serves.relay("deaf", runner, NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("").id("r")).await.unwrap();
    until("it runs", || async { counts.get("deaf") == 1 }).await;
    // The listener loses its connection, and the request comes while no process listens.
    h.deafen().await;
    let remote = asks.remote_relay("deaf").unwrap();
    // Long before the lease is renewed.
    let cancelled = tokio::time::timeout(PATIENCE, remote.cancel("r")).await;
    assert!(cancelled.expect("it is found").unwrap());
    assert_eq!(counts.get("fired"), 1);
}
