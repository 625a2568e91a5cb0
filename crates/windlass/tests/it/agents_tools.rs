//! Durable tools: their receipts through drains, retries, large results and outcomes that nobody knows.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use windlass::agents::{
    Agent, CallResult, Continuation, LlmRequest, Tool, ToolContext, ToolOutput, ToolUse, Workflow,
};
use windlass::kernel::{Query, RunKey, Step, StepStatus};
use windlass::{AnyError, Engine, RunStatus};

use crate::agents_fixtures::{Script, assert_redacted, at_once, events_of, text, types_of};
use crate::harness::{Counts, Harness, PATIENCE, on_every_store, until};

on_every_store!(
    a_drain_before_a_call_is_no_interruption,
    a_pause_before_a_call_is_no_interruption,
    a_result_above_the_limit_is_an_error_for_the_model,
);

/// A tool with a receipt that knows nothing about interrupted calls.
struct Post {
    counts: Arc<Counts>,
    ids: Arc<Mutex<Vec<String>>>,
}

impl Tool for Post {
    type Input = Map<String, Value>;

    fn name(&self) -> &str {
        "post"
    }

    fn description(&self) -> &str {
        "Posts."
    }

    fn is_durable(&self) -> bool {
        true
    }

    async fn call(&self, context: ToolContext, input: Self::Input) -> Result<ToolOutput, AnyError> {
        self.counts.hit("post");
        self.ids.lock().push(context.call_id.to_string());
        let bytes = input.get("bytes").and_then(Value::as_u64).unwrap_or(1) as usize;
        Ok(ToolOutput::new("x".repeat(bytes)))
    }
}

fn post(id: &str, input: Value) -> ToolUse {
    ToolUse { id: id.to_owned(), name: "post".to_owned(), input }
}

async fn steps_of(engine: &Engine, run_key: RunKey) -> Vec<Step> {
    let query = Query::Steps { run_key, after: None, limit: 100 };
    engine.admin().store().list(query).await.unwrap().steps().unwrap()
}

/// An agent whose first function waits for a permit and then goes on with tools or with a provider.
fn slow(door: &Arc<Semaphore>, counts: &Arc<Counts>, script: &Arc<Script>) -> Agent {
    let (door, entered) = (Arc::clone(door), Arc::clone(counts));
    let begin = move |workflow: &mut Workflow, next: Continuation| {
        let (door, entered) = (Arc::clone(&door), Arc::clone(&entered));
        let asks = workflow.get::<bool>("asks").unwrap_or(false);
        async move {
            entered.hit("entered");
            drop(door.acquire().await);
            Ok(match asks {
                true => next.llm(LlmRequest::new("anthropic", "m").transcript("t"), "out", "end"),
                false => next.tools(vec![post("tu_1", json!({}))], "out", "end"),
            })
        }
    };
    async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
        Ok(next.halt())
    }
    Agent::new("slow", "begin")
        .functions(|functions| {
            functions
                .register_boxed("begin", 1, move |workflow, next| Box::pin(begin(workflow, next)));
        })
        .function("end", end)
        .tool(Post { counts: Arc::clone(counts), ids: Arc::default() })
        .retry_policy(at_once(0))
        .provider(script.clone())
}

// No call was interrupted, so each is made once, and no ledger says that one may have been paid.
async fn assert_once(engine: &Engine, run_key: RunKey, asks: bool, calls: u32) {
    let ended = tokio::time::timeout(PATIENCE, engine.core().wait(run_key)).await;
    let ended = ended.expect("the run ends").unwrap();
    assert_eq!(ended.status, RunStatus::Complete, "asks: {asks}, {:?}", ended.error);
    assert_eq!(calls, 1, "asks: {asks}");
    for event in events_of(engine, run_key).await {
        let payload = event.payload_json().unwrap();
        assert_ne!(payload["possibly_paid"], true, "{}", event.event_type);
    }
}

async fn a_drain_before_a_call_is_no_interruption(h: Arc<Harness>) {
    for asks in [false, true] {
        let (counts, script) = (Counts::new(), Script::new([text("done")]));
        let door = Arc::new(Semaphore::new(0));
        let engine = h.engine().await;
        let slows = engine.agent(slow(&door, &counts, &script)).unwrap();
        let id = format!("drained-{asks}");
        let run = slows.start(json!({ "asks": asks })).id(&id).await.unwrap();
        until("the function runs", || async { counts.get("entered") == 1 }).await;
        // The engine drains while the function runs; its commit begins the call, and nothing is sent.
        let opens = async {
            until("it drains", || async { engine.core().is_stopping() }).await;
            door.add_permits(10);
        };
        tokio::join!(h.stop(&engine), opens);
        assert_eq!((counts.get("post"), script.count()), (0, 0));
        let engine = h.engine().await;
        engine.agent(slow(&door, &counts, &script)).unwrap();
        engine.core().wait(run.run_key()).await.unwrap();
        let calls = if asks { script.count() as u32 } else { counts.get("post") };
        assert_once(&engine, run.run_key(), asks, calls).await;
        h.stop(&engine).await;
    }
}

async fn a_pause_before_a_call_is_no_interruption(h: Arc<Harness>) {
    for asks in [false, true] {
        let (counts, script) = (Counts::new(), Script::new([text("done")]));
        let door = Arc::new(Semaphore::new(0));
        let engine = h.engine().await;
        let slows = engine.agent(slow(&door, &counts, &script)).unwrap();
        let id = format!("paused-{asks}");
        let run = slows.start(json!({ "asks": asks })).id(&id).await.unwrap();
        until("the function runs", || async { counts.get("entered") == 1 }).await;
        run.pause().await.unwrap();
        door.add_permits(10);
        crate::harness::until_status(&run, RunStatus::Paused).await;
        // The call was put off, so its row is not the one that its event has sealed.
        let report = engine.admin().verify().await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        let types = types_of(&engine, run.run_key()).await;
        let begun = if asks { "anthropic.suspended" } else { "tool_call.started" };
        assert!(types.iter().any(|name| name == begun), "{types:?}");
        h.stop(&engine).await;
        let engine = h.engine().await;
        let slows = engine.agent(slow(&door, &counts, &script)).unwrap();
        slows.get(&id).await.unwrap().resume().await.unwrap();
        engine.core().wait(run.run_key()).await.unwrap();
        let calls = if asks { script.count() as u32 } else { counts.get("post") };
        assert_once(&engine, run.run_key(), asks, calls).await;
        h.stop(&engine).await;
    }
}

/// Calls the tool once with each number of bytes in the env, and a tool that the model has invented.
fn poster(counts: &Arc<Counts>, ids: &Arc<Mutex<Vec<String>>>) -> Agent {
    async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
        let sizes: Vec<u64> = workflow.get("sizes")?;
        let call = |(n, size): (usize, &u64)| post(&format!("tu_{n}"), json!({ "bytes": size }));
        let mut uses: Vec<ToolUse> = sizes.iter().enumerate().map(call).collect();
        let name = "s3cr3t-of-the-model".to_owned();
        uses.push(ToolUse { id: "tu_x".to_owned(), name, input: json!({}) });
        Ok(next.tools(uses, "results", "end"))
    }
    async fn end(workflow: &mut Workflow, next: Continuation) -> CallResult {
        let results = workflow.tool_results("results")?;
        let shown = results.iter().map(|result| {
            let text = result.content.as_str().unwrap_or_default();
            json!([result.is_error, if result.is_error { text.len().min(200) } else { text.len() }])
        });
        let shown: Vec<Value> = shown.collect();
        workflow.remove("results");
        workflow.set("shown", &shown)?;
        Ok(next.halt())
    }
    Agent::new("poster", "begin")
        .function("begin", begin)
        .function("end", end)
        .tool(Post { counts: Arc::clone(counts), ids: Arc::clone(ids) })
        .output("shown")
}

async fn a_result_above_the_limit_is_an_error_for_the_model(h: Arc<Harness>) {
    let (counts, ids) = (Counts::new(), Arc::default());
    let engine = h.engine().await;
    let posters = engine.agent(poster(&counts, &ids)).unwrap();
    let mib = 1024 * 1024;
    // One alone, and several that are too large only together.
    for (sizes, expect) in [
        (json!([5, 2 * mib]), [false, true].as_slice()),
        (json!([700 * 1024, 600 * 1024, 5]), &[true, false, false]),
    ] {
        let run = posters.start(json!({ "sizes": sizes })).await.unwrap();
        let shown = run.result().await.unwrap();
        let mut errors: Vec<bool> =
            shown.as_array().unwrap().iter().map(|result| result[0].as_bool().unwrap()).collect();
        assert_eq!(errors.pop(), Some(true), "there is no such tool");
        assert_eq!(errors, expect, "{sizes}");
        let steps = steps_of(&engine, run.run_key()).await;
        let receipts = steps.iter().filter(|step| step.kind.as_str() == "tool");
        assert!(receipts.clone().all(|step| step.status == StepStatus::Completed));
        assert_eq!(receipts.count(), expect.len());
        assert_redacted(&events_of(&engine, run.run_key()).await, &["s3cr3t"]);
    }
    assert_eq!(counts.get("post"), 5);
}
