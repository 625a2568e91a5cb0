//! Relays that several engines on one store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windlass::relays::{
    NoopTerminalHook, RunSpec, Step, StepError, StepOutcome, StepRunner, TerminalStatus,
    WorkflowRuntime,
};
use windlass::{Engine, Options};

use crate::harness::{Counts, Harness, on_every_store, until};

on_every_store!(a_process_takes_no_more_than_it_runs, slots_are_given_back_when_the_process_stops,);

/// Runs until it may end, and keeps the most that ran at once.
#[derive(Clone)]
struct Blocks {
    counts: Arc<Counts>,
    here: Arc<(AtomicUsize, AtomicUsize)>,
}

impl StepRunner for Blocks {
    async fn run_step(&self, step: &Step) -> Result<StepOutcome, StepError> {
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

fn serve(engine: &Engine, runner: &Blocks) -> WorkflowRuntime {
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
    // Long enough for either to have taken more, if it did.
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!((here.at_once(), there.at_once()), ((1, 1), (1, 1)));
    let held = async |engine: &Engine| engine.store().held(engine.worker()).await.unwrap().len();
    assert_eq!((held(&first).await, held(&second).await), (1, 1));
    assert_eq!((first.load().0, second.load().0), (1, 1));
    counts.hit("end");
    for n in 0..4 {
        let ended = relay.wait(&format!("r{n}")).await.unwrap();
        assert_eq!(ended.status, TerminalStatus::Succeeded);
    }
    assert_eq!((here.at_once(), there.at_once()), ((0, 1), (0, 1)));
    assert_eq!(counts.get("begun"), 8);
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
    first.shutdown(Duration::from_millis(20)).await.unwrap();
    counts.hit("end");
    let relay = serve(&second, &there);
    for id in ["a", "b"] {
        assert_eq!(relay.wait(id).await.unwrap().status, TerminalStatus::Succeeded);
    }
    assert_eq!(there.at_once(), (0, 1));
}
