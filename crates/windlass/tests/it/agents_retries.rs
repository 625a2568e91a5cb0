//! Retries of agents: what the next generation reads is kept for it, and a call whose outcome nobody knew ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use windlass::admin::{Options, Retention};
use windlass::agents::{
    Agent, CallResult, Continuation, HumanRequest, LlmRequest, Probe, Tool, ToolContext,
    ToolOutput, ToolUse, Workflow,
};
use windlass::kernel::Subject;
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{AnyError, Engine, RunKey, RunStatus};

use crate::agents_fixtures::{Script, text};
use crate::harness::{Counts, Harness, on_every_store, until};

on_every_store!(
    retention_keeps_what_a_retry_reads,
    a_probe_that_learns_the_outcome_ends_a_call,
    calls_that_take_too_long_or_panic,
);

fn brief(options: Options) -> Options {
    Options { create_resend_max: Duration::from_millis(250), ..options }
}

// Until what has ended by now has been over for a second by the store's clock.
async fn a_second_later(engine: &Engine) {
    let now = engine.admin().store().now().await.unwrap();
    let late = now.plus(Duration::from_millis(1_100));
    until("a second has passed", || async { engine.admin().store().now().await.unwrap() > late })
        .await;
}

async fn is_there(engine: &Engine, run_key: RunKey) -> bool {
    !engine.admin().store().load(vec![run_key]).await.unwrap().is_empty()
}

fn keeper(counts: &Arc<Counts>, script: &Arc<Script>) -> Agent {
    async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
        workflow.set("large", &"x".repeat(10_000))?;
        workflow.transcript("chat").push_user("hi")?;
        Ok(next.llm(LlmRequest::new("anthropic", "m").transcript("chat"), "answer", "shaky"))
    }
    async fn end(workflow: &mut Workflow, next: Continuation) -> CallResult {
        let (large, items) = (workflow.get::<String>("large")?, workflow.transcript("chat").len());
        let said = workflow.response("answer")?.text()?;
        workflow.set("output", &json!([large.len(), items, said]))?;
        Ok(next.halt())
    }
    let counts = Arc::clone(counts);
    Agent::new("keeper", "ask")
        .function("ask", ask)
        .function("end", end)
        .functions(|functions| {
            functions.register_boxed("shaky", 1, move |_, next| {
                let fails = counts.hit("shaky") == 1;
                Box::pin(async move {
                    if fails {
                        return Err(AnyError::msg("planned"));
                    }
                    Ok(next.human(HumanRequest::to("ann"), "outcome", "end"))
                })
            });
        })
        .output("output")
        .provider(script.clone())
}

async fn retention_keeps_what_a_retry_reads(h: Arc<Harness>) {
    let (counts, script) = (Counts::new(), Script::new([text("done")]));
    let engine = h.engine_with(brief).await;
    let run = engine.agent(keeper(&counts, &script)).unwrap().start(json!({})).await.unwrap();
    run.result().await.unwrap_err();
    let first = run.run_key();
    let second = engine.core().retry(first, None).await.unwrap().run_key;
    let inbox = InboxQuery::Person("ann".into());
    let asked = || async {
        let page = engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap();
        !page.requests.is_empty()
    };
    until("a person is asked", asked).await;
    let policy = Retention::keep_for(Duration::from_secs(1)).unwrap();
    engine.admin().set_retention("keeper", Some(&policy)).await.unwrap();
    a_second_later(&engine).await;
    let swept = engine.admin().sweep().await.unwrap();
    assert_eq!((swept.trees, swept.kept), (0, 1));
    assert!(is_there(&engine, first).await);
    h.stop(&engine).await;
    // The second generation is loaded again, with the rows of the first.
    let engine = h.engine_with(brief).await;
    engine.agent(keeper(&counts, &script)).unwrap();
    let page = engine.requests().inbox(&inbox, InboxOrder::Due, None, 10).await.unwrap();
    let decider = Decider::new(Subject::new("ann", ["lead"]).unwrap());
    let request = &page.requests[0].id;
    engine.requests().decide(request, &decider, &NewDecision::approve()).await.unwrap();
    let ended = engine.core().wait(second).await.unwrap();
    let output = ended.output.map(|output| output.read::<Value>().unwrap());
    assert_eq!(output, Some(json!([10_000, 2, "done"])), "{:?}", ended.error);
    assert_eq!(script.count(), 1);
    let lone = engine.workflow("lone", async |_: windlass::Ctx, n: u32| crate::harness::ok(n));
    lone.unwrap().start(9).await.unwrap().result().await.unwrap();
    a_second_later(&engine).await;
    until("both generations are deleted", || async {
        engine.admin().sweep().await.unwrap();
        !is_there(&engine, second).await
    })
    .await;
    assert!(!is_there(&engine, first).await);
}

/// A tool with a receipt whose first calls have no end.
struct Slow {
    counts: Arc<Counts>,
    ids: Arc<Mutex<BTreeSet<String>>>,
    hangs: u32,
    timeout: Duration,
    probe: Probe,
}

impl Tool for Slow {
    type Input = Map<String, Value>;

    fn name(&self) -> &str {
        "slow"
    }

    fn description(&self) -> &str {
        "Takes its time."
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn call(&self, context: ToolContext, _: Self::Input) -> Result<ToolOutput, AnyError> {
        self.ids.lock().insert(context.call_id.to_string());
        if self.counts.hit("called") <= self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(ToolOutput::new("called"))
    }

    async fn probe(&self, context: ToolContext, _: Self::Input) -> Result<Probe, AnyError> {
        self.ids.lock().insert(context.call_id.to_string());
        self.counts.hit("probed");
        Ok(self.probe.clone())
    }
}

/// A tool that panics at its first call, or takes too long.
struct Broken {
    counts: Arc<Counts>,
    panics: bool,
}

impl Tool for Broken {
    type Input = Map<String, Value>;

    fn name(&self) -> &str {
        "broken"
    }

    fn description(&self) -> &str {
        "Is broken."
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn call(&self, _: ToolContext, _: Self::Input) -> Result<ToolOutput, AnyError> {
        match (self.counts.hit("broken"), self.panics) {
            (1, true) => panic!("planned"),
            (_, true) => Ok(ToolOutput::new("mended")),
            (_, false) => std::future::pending().await,
        }
    }
}

fn caller(name: &str) -> Agent {
    async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
        let name: String = workflow.get("tool")?;
        Ok(next.tools(
            vec![ToolUse { id: "tu_1".to_owned(), name, input: json!({}) }],
            "out",
            "end",
        ))
    }
    async fn end(workflow: &mut Workflow, next: Continuation) -> CallResult {
        let result = workflow.tool_results("out")?.remove(0);
        workflow.set("said", &json!([result.is_error, result.content]))?;
        Ok(next.halt())
    }
    Agent::new(name, "begin").function("begin", begin).function("end", end).output("said")
}

async fn a_probe_that_learns_the_outcome_ends_a_call(h: Arc<Harness>) {
    for (name, probe, said, calls) in [
        ("done", Probe::Completed(ToolOutput::new("found")), "found", 1),
        ("undone", Probe::NotStarted, "called", 2),
    ] {
        let (counts, ids) = (Counts::new(), Arc::<Mutex<BTreeSet<String>>>::default());
        let tool = |probe: &Probe| Slow {
            counts: Arc::clone(&counts),
            ids: Arc::clone(&ids),
            hangs: 1,
            timeout: Duration::from_secs(600),
            probe: probe.clone(),
        };
        let engine = h.engine().await;
        let agents = engine.agent(caller(name).tool(tool(&Probe::Unknown))).unwrap();
        let run = agents.start(json!({ "tool": "slow" })).await.unwrap();
        until("the tool is called", || async { counts.get("called") == 1 }).await;
        h.stop_within(&engine, Duration::from_millis(1)).await;
        let engine = h.engine().await;
        engine.agent(caller(name).tool(tool(&Probe::Unknown))).unwrap();
        let failed = engine.core().wait(run.run_key()).await.unwrap();
        assert_eq!(failed.status, RunStatus::Errored);
        let error = failed.error.unwrap().read::<Value>().unwrap();
        assert_eq!(error["name"], "TOOL_OUTCOME_UNKNOWN");
        assert_eq!((counts.get("called"), counts.get("probed")), (1, 1), "no blind rerun");
        h.stop(&engine).await;
        let engine = h.engine().await;
        engine.agent(caller(name).tool(tool(&probe))).unwrap();
        let next = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
        let ended = engine.core().wait(next).await.unwrap();
        assert_eq!(ended.output.unwrap().read::<Value>().unwrap(), json!([false, said]));
        assert_eq!((counts.get("called"), counts.get("probed")), (calls, 2));
        assert_eq!(ids.lock().len(), 1, "both generations have the same id");
        h.stop(&engine).await;
    }
}

async fn calls_that_take_too_long_or_panic(h: Arc<Harness>) {
    let engine = h.engine().await;
    // A tool without a receipt: the model reads that it took too long.
    let counts = Counts::new();
    let tool = Broken { counts: Arc::clone(&counts), panics: false };
    let agents = engine.agent(caller("late").tool(tool)).unwrap();
    let run = agents.start(json!({ "tool": "broken" })).await.unwrap();
    let said = run.result().await.unwrap();
    assert_eq!(said[0], true);
    assert!(said[1].as_str().unwrap().contains("no result within"), "{said}");
    // A panic fails the run, and a retry calls the tool again.
    let tool = Broken { counts: Counts::new(), panics: true };
    let agents = engine.agent(caller("panics").tool(tool)).unwrap();
    let run = agents.start(json!({ "tool": "broken" })).await.unwrap();
    let failed = run.result().await.unwrap_err().to_string();
    assert!(failed.contains("panicked: planned"), "{failed}");
    let next = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
    let ended = engine.core().wait(next).await.unwrap();
    assert_eq!(ended.output.unwrap().read::<Value>().unwrap(), json!([false, "mended"]));
    // With a receipt nobody knows what a call has done that took too long; the probe of the retry does.
    let counts = Counts::new();
    let tool = Slow {
        counts: Arc::clone(&counts),
        ids: Arc::default(),
        hangs: 1,
        timeout: Duration::from_millis(1),
        probe: Probe::Completed(ToolOutput::new("found")),
    };
    let agents = engine.agent(caller("slow").tool(tool)).unwrap();
    let run = agents.start(json!({ "tool": "slow" })).await.unwrap();
    let failed = run.result().await.unwrap_err().to_string();
    assert!(failed.contains("TOOL_OUTCOME_UNKNOWN"), "{failed}");
    let next = engine.core().retry(run.run_key(), None).await.unwrap().run_key;
    let ended = engine.core().wait(next).await.unwrap();
    assert_eq!(ended.output.unwrap().read::<Value>().unwrap(), json!([false, "found"]));
    assert_eq!((counts.get("called"), counts.get("probed")), (1, 1));
}
