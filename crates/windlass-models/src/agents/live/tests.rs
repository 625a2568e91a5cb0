//! Tests of the live executor, with providers and tools in memory.

use bytes::Bytes;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass_engine::{ThreadPool, TokioEnv};

use super::*;
use crate::agents::HumanRequest;
use crate::agents::provider::{Provider, TokenSink, Usage};
use crate::agents::tool::{Tool, ToolContext, ToolOutput};
use crate::agents::{Budget, CallResult, Continuation};

/// Answers from a list; remembers what it was asked.
#[derive(Default)]
struct Scripted {
    answers: Mutex<Vec<Result<Value, ProviderErrorKind>>>,
    asked: Mutex<Vec<Bytes>>,
}

impl Provider for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn wire_format(&self) -> WireFormat {
        WireFormat::AnthropicMessages
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        _: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        self.asked.lock().push(request.body.clone());
        let answer = self.answers.lock().remove(0);
        Box::pin(async move {
            let content = answer.map_err(|kind| ProviderError::new(kind, "scripted"))?;
            Ok(ProviderResponse {
                body: json!({ "content": content }).to_string().into(),
                content: Vec::new(),
                stop_reason: Some("end_turn".into()),
                model: None,
                usage: Usage::default(),
                message_id: None,
                request_id: None,
                rate_limits: Default::default(),
            })
        })
    }
}

struct Upper;

#[derive(Deserialize, JsonSchema)]
struct UpperInput {
    text: String,
}

impl Tool for Upper {
    type Input = UpperInput;

    fn name(&self) -> &str {
        "upper"
    }

    fn description(&self) -> &str {
        "Upper case."
    }

    async fn call(&self, context: ToolContext, input: UpperInput) -> Result<ToolOutput, AnyError> {
        assert!(context.call_id.as_str().starts_with("tc_"));
        if input.text == "fail" {
            return Err(AnyError::msg("the tool is broken"));
        }
        Ok(ToolOutput::new(input.text.to_uppercase()))
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hi")?;
    let request = LlmRequest::new("scripted", "m").param("max_tokens", 5).transcript("chat");
    Ok(next.llm(request, "answer", "act"))
}

async fn act(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let uses = workflow.response("answer")?.tool_uses()?;
    Ok(if uses.is_empty() { next.halt() } else { next.tools(uses, "results", "tell") })
}

async fn tell(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let results = workflow.tool_results("results")?;
    workflow.transcript("chat").push_tool_results(&results)?;
    let request = LlmRequest::new("scripted", "m").param("max_tokens", 5).transcript("chat");
    Ok(next.llm(request, "answer", "act"))
}

async fn person(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.human(HumanRequest::to("ann").title("ok?"), "ok", "ask"))
}

fn executor(answers: Vec<Result<Value, ProviderErrorKind>>) -> (Executor, Arc<Scripted>) {
    let scripted = Arc::new(Scripted { answers: Mutex::new(answers), ..Scripted::default() });
    let policy = crate::agents::agent::RETRY;
    let agent = Agent::new("a", "ask")
        .function("ask", ask)
        .function("act", act)
        .function("tell", tell)
        .function("person", person)
        .tool(Upper)
        .provider(scripted.clone())
        .retry_policy(windlass_kernel::RetryPolicy { delay: Duration::ZERO, ..policy });
    (Executor::new(agent, TokioEnv::new().unwrap()), scripted)
}

fn text(text: &str) -> Result<Value, ProviderErrorKind> {
    Ok(json!([{ "type": "text", "text": text }]))
}

#[tokio::test]
async fn a_conversation_with_tools() {
    let uses = json!([
        { "type": "tool_use", "id": "t1", "name": "upper", "input": { "text": "a" } },
        { "type": "tool_use", "id": "t2", "name": "nothing", "input": {} },
        { "type": "tool_use", "id": "t3", "name": "upper", "input": { "txt": 1 } },
    ]);
    let (executor, scripted) =
        executor(vec![Err(ProviderErrorKind::Overloaded), Ok(uses), text("done")]);
    let run = executor.run_workflow(Workflow::new("w", "ask")).await.unwrap();
    assert_eq!(run.workflow.response("answer").unwrap().text().unwrap(), "done");
    let results = run.workflow.tool_results("results").unwrap();
    let errors: Vec<bool> = results.iter().map(|result| result.is_error).collect();
    assert_eq!(errors, [false, true, true]);
    assert_eq!(results[0].content, "A");
    let asked = scripted.asked.lock().clone();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[0], asked[1], "an attempt sends the same bytes");
    let prefix = &asked[0][..asked[0].len() - 2];
    assert!(asked[2].starts_with(prefix), "a conversation grows at its end");
}

#[tokio::test]
async fn failures_have_the_workflow_and_a_typed_error() {
    for (entry, answers, expect) in [
        ("ask", vec![Err(ProviderErrorKind::Invalid)], "scripted"),
        ("ask", vec![Err(ProviderErrorKind::SpendLimitReached)], "scripted"),
        ("person", vec![], "AGENT_NEEDS_ENGINE"),
        (
            "ask",
            vec![Ok(
                json!([{ "type": "tool_use", "id": "t", "name": "upper", "input": {"text": "fail"} }]),
            )],
            "broken",
        ),
    ] {
        let (executor, _) = executor(answers);
        let error = executor.run_workflow(Workflow::new("w", entry)).await.unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
        assert_eq!(error.workflow.unwrap().run_id(), "w");
    }
}

#[tokio::test]
async fn an_unreadable_answer_is_tried_again_and_fails_in_the_end() {
    let (executor, scripted) = executor(vec![Ok(json!("no list")); 6]);
    let error = executor.run_workflow(Workflow::new("w", "ask")).await.unwrap_err();
    let source = error.source.downcast_ref::<ProviderError>().unwrap();
    assert_eq!(source.kind(), ProviderErrorKind::InvalidResponse);
    assert_eq!(scripted.asked.lock().len(), 6);
}

// A paid answer with blocks of tools that the provider ran is an answer.
#[tokio::test]
async fn an_answer_with_blocks_of_other_kinds_is_paid_once() {
    for block in crate::agents::wire::OTHER_BLOCKS {
        let block: Value = serde_json::from_str(block).unwrap();
        let content = json!([block, { "type": "text", "text": "done" }]);
        let (executor, scripted) = executor(vec![Ok(content)]);
        let run = executor.run_workflow(Workflow::new("w", "ask")).await.unwrap();
        assert_eq!(run.workflow.response("answer").unwrap().text().unwrap(), "done");
        assert_eq!(scripted.asked.lock().len(), 1, "{block}");
    }
}

async fn fork(_: &mut Workflow, next: Continuation) -> CallResult {
    let branch = ForkBranch::new("paid", "ask").budget(Budget::usd(1.0));
    Ok(next.fork_join(vec![branch], "act"))
}

#[tokio::test]
async fn a_budget_that_nobody_would_keep_is_refused() {
    let agent = |entry: &str| {
        Agent::new("a", entry).function("ask", ask).function("act", act).function("fork", fork)
    };
    for agent in [agent("ask").budget(Budget::usd(1.0)), agent("fork")] {
        let workflow = Workflow::new("w", agent.entry.as_str());
        let executor = Executor::new(agent, TokioEnv::new().unwrap());
        let error = executor.run_workflow(workflow).await.unwrap_err();
        assert!(error.to_string().contains("AGENT_NEEDS_ENGINE"), "{error}");
    }
}

/// An environment in which every time is over at once.
struct Hasty;

impl Env for Hasty {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn spawn(&self, _: ThreadPool, _: BoxFuture<'static, ()>) {
        unreachable!("a call starts no task")
    }

    fn random(&self) -> u64 {
        0
    }
}

/// A provider that never learns.
struct Stuck(Scripted);

impl Provider for Stuck {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn wire_format(&self) -> WireFormat {
        self.0.wire_format()
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        self.0.call(request, sink)
    }

    fn learn<'a>(
        &'a self,
        _: Result<&'a ProviderResponse, &'a ProviderError>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn an_answer_is_an_answer_though_nothing_is_learned_from_it() {
    let answers = Mutex::new(vec![text("paid")]);
    let provider = Stuck(Scripted { answers, ..Scripted::default() });
    let request = ProviderRequest {
        provider: "scripted".to_owned(),
        model: "m".to_owned(),
        body: Bytes::new(),
        call_id: "c".to_owned(),
        attempt: 1,
        stream: false,
    };
    let called = call_once(&provider, &request, &Hasty, Duration::ZERO, &NoSink).await;
    assert!(called.is_ok());
}
