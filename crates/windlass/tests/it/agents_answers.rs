//! An answer of a provider is paid for once, whatever the store does when it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::json;
use windlass::agents::{
    Agent, AnthropicClient, CallResult, ClientOptions, Continuation, EventFamily, LimitedProvider,
    LlmRequest, NoSink, Provider, ProviderError, ProviderRequest, ProviderResponse, TokenSink,
    WireFormat, Workflow,
};
use windlass::kernel::{BoxFuture, Commit, CommitResults};
use windlass::{Error, ErrorCode, ErrorKind, Store};
use windlass_testkit::gate::{Gate, GatedStore, Pass};
use windlass_testkit::scripted_llm::{RatePlan, Rule, Script as Scripted, ScriptedLlm};

use crate::agents_fixtures::{Script, at_once, text, types_of};
use crate::harness::{Harness, PATIENCE, on_every_store};

on_every_store!(
    an_answer_outlives_a_store_that_refuses_reads,
    an_answer_does_not_wait_for_a_store_that_hangs,
);

/// Refuses reads of records, and hangs, as often and as long as the test says.
#[derive(Clone, Default)]
struct Moody {
    refusals: Arc<AtomicU32>,
    hangs: Arc<AtomicBool>,
}

impl Gate for Moody {
    fn pass(&self) -> Pass {
        if self.hangs.load(Ordering::SeqCst) { Pass::Hang } else { Pass::Through }
    }

    fn pass_records(&self) -> Pass {
        let fewer = |left: u32| left.checked_sub(1);
        match self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer) {
            Ok(_) => {
                let (kind, code) = (ErrorKind::Unavailable, ErrorCode::StoreUnavailable);
                Pass::Refuse(Error::new(kind, code, "the connection was reset"))
            }
            Err(_) => Pass::Through,
        }
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        inner.commit(commits)
    }
}

/// A provider after whose answers the store has a bad time.
struct Before {
    provider: Arc<dyn Provider>,
    then: Box<dyn Fn() + Send + Sync>,
}

impl Provider for Before {
    fn name(&self) -> &str {
        self.provider.name()
    }

    fn wire_format(&self) -> WireFormat {
        self.provider.wire_format()
    }

    fn event_family(&self) -> EventFamily {
        self.provider.event_family()
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        Box::pin(async move {
            let called = self.provider.call(request, sink).await;
            (self.then)();
            called
        })
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hi")?;
    Ok(next.llm(LlmRequest::new("anthropic", "m").transcript("chat"), "answer", "tell"))
}

async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("answer")?.text()?;
    workflow.set("text", &text)?;
    Ok(next.halt())
}

async fn an_answer_outlives_a_store_that_refuses_reads(h: Arc<Harness>) {
    let moody = Moody::default();
    let around = moody.clone();
    let (engine, _beside) = h
        .engine_behind(|store| Arc::new(GatedStore::with_gate(store, around)) as Arc<dyn Store>)
        .await;
    let script = Script::new([text("paid")]);
    let refusals = Arc::clone(&moody.refusals);
    let then = Box::new(move || refusals.store(3, Ordering::SeqCst));
    let agent = Agent::new("asker", "ask")
        .function("ask", ask)
        .function("tell", tell)
        .output("text")
        .retry_policy(at_once(2))
        .provider(Arc::new(Before { provider: script.clone(), then }));
    let run = engine.agent(agent).unwrap().start(json!({})).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "paid");
    assert_eq!(moody.refusals.load(Ordering::SeqCst), 0);
    assert_eq!(script.count(), 1, "the answer is lost and was asked for again");
    let retried = |name: &String| name == "anthropic.retried";
    assert!(!types_of(&engine, run.run_key()).await.iter().any(retried));
}

async fn an_answer_does_not_wait_for_a_store_that_hangs(h: Arc<Harness>) {
    h.expect_no_runs();
    let moody = Moody::default();
    let around = moody.clone();
    let (engine, _beside) = h
        .engine_behind(|store| Arc::new(GatedStore::with_gate(store, around)) as Arc<dyn Store>)
        .await;
    let plan = RatePlan { requests: 1, tokens: 10_000, window_ms: 3_600_000 };
    let script = Scripted::new().rule(Rule::any().text("paid")).rate(plan);
    let server = ScriptedLlm::start(script).unwrap();
    let client = AnthropicClient::new(ClientOptions::new("h").base_url(server.url())).unwrap();
    let key = client.key().clone();
    let hangs = Arc::clone(&moody.hangs);
    let then = Box::new(move || hangs.store(true, Ordering::SeqCst));
    let client = Before { provider: Arc::new(client), then };
    let provider = LimitedProvider::new(&engine, client, &key);
    let request = ProviderRequest {
        provider: "anthropic".to_owned(),
        model: "m".to_owned(),
        body: r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]}"#.into(),
        call_id: "c".to_owned(),
        attempt: 1,
        stream: false,
    };
    let called = tokio::time::timeout(PATIENCE, provider.call(&request, &NoSink)).await;
    moody.hangs.store(false, Ordering::SeqCst);
    assert!(called.expect("the answer arrives").is_ok());
    assert_eq!(server.report().refused, 0);
}
