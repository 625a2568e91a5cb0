//! Machines in virtual time: a crash at every commit makes no difference, and an activity at hand takes
//! one commit.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_engine::Engine;
use windlass_kernel::{BoxFuture, MessageKind, Query};
use windlass_models::machines::{
    self, Activity, ActivityContext, ActivityError, ActivityOptions, Workflow, WorkflowAction,
};
use windlass_testkit::{Probe, TestEngine, Told, every_crash_of};

/// Two activities one after the other, one that fails, a timer, and three activities at once.
struct Tour {
    seen: Vec<String>,
    open: usize,
}

fn go(id: &str, result: &str) -> WorkflowAction {
    let retries = windlass_kernel::RetryLimit::Times(1);
    let policy = windlass_kernel::RetryPolicy::constant(retries, Duration::from_secs(1));
    WorkflowAction::activity_with(id, "say", json!([id, result]), ActivityOptions::retrying(policy))
}

impl Workflow for Tour {
    const TYPE: &'static str = "tour";
    type Input = ();
    type Output = Vec<String>;

    fn new((): ()) -> Self {
        Self { seen: Vec::new(), open: 0 }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![go("one", "1")]
    }

    fn on_activity_completed(&mut self, id: &str, result: Value) -> Vec<WorkflowAction> {
        self.seen.push(format!("{id}={}", result.as_str().unwrap_or_default()));
        match id {
            "one" => vec![go("two", "2")],
            "two" => vec![go("fails", "no")],
            _ => {
                self.open -= 1;
                // Which of them is over first is not the machine's to say.
                let mut seen = self.seen.clone();
                seen.sort();
                let end = (self.open == 0).then(|| WorkflowAction::complete(json!(seen)));
                end.into_iter().collect()
            }
        }
    }

    fn on_activity_failed(&mut self, id: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        self.seen.push(format!("{id}!{}", error.message));
        vec![WorkflowAction::timer("nap", Duration::from_secs(60))]
    }

    fn on_timer_fired(&mut self, id: &str) -> Vec<WorkflowAction> {
        self.seen.push(id.to_owned());
        self.open = 3;
        vec![go("x", "24"), go("y", "25"), go("z", "26")]
    }
}

/// Answers with the given actions, and counts its calls in the probe.
struct Say(Probe);

impl Activity for Say {
    const TYPE: &'static str = "say";
    type Input = (String, String);
    type Output = String;

    async fn execute(
        &self,
        ctx: &ActivityContext,
        (id, result): (String, String),
    ) -> Result<String, ActivityError> {
        // A second attempt is no repetition of the first.
        self.0.ran(if ctx.attempt == 1 { id } else { format!("{id} again") });
        match result.as_str() {
            "no" => Err(ActivityError::new("no")),
            _ => Ok(result),
        }
    }
}

fn tour(engine: &Engine, probe: &Probe) -> BoxFuture<'static, Told> {
    let tours = machines::register::<Tour>(engine).unwrap();
    machines::serve(engine, "default", Say(probe.clone())).unwrap();
    Box::pin(async move {
        let ended = async { tours.start(()).id("tour").await?.result().await };
        let ended: Result<Vec<String>, windlass_kernel::Error> = ended.await;
        ended.map(|seen| json!(seen)).map_err(|error| error.to_string())
    })
}

#[test]
fn a_crash_at_any_commit_of_a_machine_makes_no_difference() {
    let report = every_crash_of(tour);
    let expect = ["fails!no", "nap", "one=1", "two=2", "x=24", "y=25", "z=26"];
    assert_eq!(report.output, json!(expect), "{report:?}");
    // The create, its first turn, a commit for each of three activities and one for the retry between,
    // the timer, and what three results at once take.
    assert!(report.commits >= 8, "{report:?}");
    assert_eq!(report.crashes, report.commits * 2);
    assert!(report.bodies_again > 0, "{report:?}");
}

#[test]
fn activities_one_after_the_other_take_a_commit_each() {
    let (test, probe) = (TestEngine::new(), Probe::default());
    let engine = test.engine().core().clone();
    let ended = test.run_to_end(tour(&engine, &probe)).unwrap();
    assert_eq!(ended.as_array().map(Vec::len), Some(7));
    let run = test.run(machines::remote::<Tour>(&engine).unwrap().get("tour")).unwrap();
    let query = Query::Messages { run_key: run.run_key(), after: 0, limit: 100 };
    let sent = test.run(engine.store().list(query)).unwrap().messages().unwrap();
    let sent = sent.iter().filter(|message| message.kind == MessageKind::ActivityResult).count();
    let at_hand = engine.metrics().turns_completed_locally.get();
    // The three at the end come together, and are read together.
    assert_eq!((at_hand, sent), (3, 3));
}

#[test]
fn results_at_once_come_once_each_whatever_their_order() {
    let mut replays = 0;
    for seed in 0..50 {
        let (test, probe) = (TestEngine::seeded(seed), Probe::default());
        let ended = test.run_to_end(tour(test.engine().core(), &probe)).unwrap();
        let expect = ["fails!no", "nap", "one=1", "two=2", "x=24", "y=25", "z=26"];
        assert_eq!(ended, json!(expect), "seed {seed}");
        assert!(["one", "two", "x", "y", "z"].iter().all(|key| probe.count(key) == 1));
        replays += test.engine().core().metrics().replays.get();
    }
    // A result that meets a claim of its run costs what was in memory.
    assert_eq!(replays, 0);
}
