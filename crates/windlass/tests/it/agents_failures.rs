//! Failures that a retry mends: what a program did wrong once, and answers of a provider that nobody can read. And
//! the key of a provider, which no log, row or event may have.

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use windlass::RunStatus;
use windlass::agents::{
    Agent, AnthropicClient, CallResult, ClientOptions, Continuation, LimitedProvider, LlmRequest,
    OpenaiClient, Provider, WireFormat, Workflow,
};
use windlass::kernel::BoxFuture;
use windlass_testkit::scripted_llm::{Fail, Lose, Rule, Script as Scripted, ScriptedLlm};

use crate::agents_fixtures::{Script, assert_redacted, at_once, text, tree_events, types_of};
use crate::harness::{Counts, Harness, Kind, on_every_store};

on_every_store!(a_retry_mends_what_was_wrong_once, a_retry_mends_answers_that_nobody_can_read,);

const CASES: [(&str, &str); 7] = [
    ("function", "AGENT_FUNCTION_NOT_FOUND"),
    ("key", "ENV_KEY_NOT_FOUND"),
    ("provider", "AGENT_PROVIDER_NOT_FOUND"),
    ("format", "AGENT_TRANSCRIPT_FORMAT"),
    ("branches", "INVALID_SIZE"),
    ("large", "INVALID_SIZE"),
    ("panic", "WORKFLOW_PANICKED"),
];

// What a program does wrong. Its transcript has an answer of the first provider by now.
fn wrong(workflow: &mut Workflow, next: Continuation, case: &str) -> CallResult {
    match case {
        "function" => Ok(next.call("nobody")),
        "key" => Ok(workflow.get::<u32>("nothing").map(|_| next.halt())?),
        "provider" => Ok(next.llm(LlmRequest::new("nobody", "m"), "answer", "end")),
        "format" => {
            Ok(next.llm(LlmRequest::new("openai", "m").transcript("chat"), "answer", "end"))
        }
        "branches" => {
            let branch = |n| windlass::agents::ForkBranch::new(format!("b{n}"), "end");
            Ok(next.fork_join((0..129).map(branch).collect(), "end"))
        }
        "large" => {
            workflow.set("x", &"x".repeat(2 * 1024 * 1024))?;
            Ok(next.halt())
        }
        _ => panic!("it panics"),
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hi")?;
    let request = LlmRequest::new("anthropic", "m").param("max_tokens", 50).transcript("chat");
    Ok(next.llm(request, "answer", "shaky"))
}

async fn end(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let said = workflow.response("answer")?.text()?;
    let items = workflow.transcript("chat").len();
    workflow.set("said", &json!([said, items]))?;
    Ok(next.halt())
}

fn agent(name: &str, counts: &Arc<Counts>) -> Agent {
    let counts = Arc::clone(counts);
    let shaky =
        move |workflow: &mut Workflow, next: Continuation| -> BoxFuture<'static, CallResult> {
            let case: String = workflow.get("case").expect("it is in the input");
            let chosen = match counts.hit(&case) {
                1 => wrong(workflow, next, &case),
                _ => Ok(next.call("end")),
            };
            Box::pin(std::future::ready(chosen))
        };
    Agent::new(name, "ask")
        .function("ask", ask)
        .functions(|functions| {
            functions.register_version("shaky", 1, shaky);
        })
        .function("end", end)
        .output("said")
        .retry_policy(at_once(0))
}

async fn a_retry_mends_what_was_wrong_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let openai = Script::named("openai", WireFormat::OpenaiResponses, [text("no")]);
    let script = Script::new([text("hello")]);
    let agent = agent("once", &counts).provider(script.clone()).provider(openai);
    let agents = engine.agent(agent).unwrap();
    for (case, code) in CASES {
        let run = agents.start(json!({ "case": case })).await.unwrap();
        let failed = run.result().await.unwrap_err().to_string();
        assert!(failed.contains(code), "{case}: {failed}");
        // The run can be looked into: the answer that was paid is there.
        let said = windlass::agents::transcripts(engine.core(), run.run_key()).await.unwrap();
        assert_eq!(said["chat"].len(), 2, "{case}");
        let types = types_of(&engine, run.run_key()).await;
        assert_eq!(types[types.len() - 2..], ["local_call.failed", "workflow.failed"], "{case}");
        let calls = script.count();
        let mended = run.retry().await.unwrap();
        assert_eq!(mended.result().await.unwrap(), json!(["hello", 2]), "{case}");
        assert_eq!(script.count(), calls, "{case}: the answer is not paid again");
        tree_events(&engine, mended.run_key()).await;
    }
}

// Each answer is broken once; the retry of the run asks again.
async fn a_retry_mends_answers_that_nobody_can_read(h: Arc<Harness>) {
    let engine = h.engine().await;
    let answer = || Rule::any().text("a long answer of many words, sent in many small pieces");
    let broken = [
        ("truncated", Rule::any().raw(200, "{\"id\":\"x\",\"con")),
        ("cut off", answer().lose(Lose::AfterBytes(40))),
        ("no answer", answer().lose(Lose::Before)),
        ("types", Rule::any().raw(200, r#"{"content":"x","output":7,"status":"completed"}"#)),
        ("error in 200", Rule::any().raw(200, r#"{"type":"error","error":{"type":"x"}}"#)),
        ("endless", answer().endless()),
        ("50 MB", answer().padding_bytes(50 << 20)),
    ];
    for (number, (what, rule)) in broken.into_iter().enumerate() {
        let server =
            ScriptedLlm::start(Scripted::new().rule(rule.times(1)).rule(Rule::any().text("ok")));
        let server = server.unwrap();
        let options = ClientOptions::new("k").base_url(server.url()).answer_bytes_max(1 << 20);
        let client: Arc<dyn Provider> = Arc::new(AnthropicClient::new(options).unwrap());
        let counts = Counts::new();
        counts.hit("none");
        let agent = agent(&format!("broken-{number}"), &counts).provider(client);
        let run = engine.agent(agent).unwrap().start(json!({ "case": "none" })).await.unwrap();
        let failed = run.result().await.unwrap_err().to_string();
        assert!(failed.contains("PROVIDER_FAILED"), "{what}: {failed}");
        let types = types_of(&engine, run.run_key()).await;
        assert_eq!(types[types.len() - 2..], ["anthropic.failed", "workflow.failed"], "{what}");
        let mended = run.retry().await.unwrap();
        let ended = engine.core().wait(mended.run_key()).await.unwrap();
        assert_eq!(ended.status, RunStatus::Complete, "{what}: {:?}", ended.error);
        assert_eq!(ended.output.unwrap().read::<Value>().unwrap(), json!(["ok", 2]), "{what}");
        tree_events(&engine, mended.run_key()).await;
    }
}

/// Everything that is logged on this thread, at every level, with the fields of all spans.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<String>>);

impl Visit for Logged {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.lock().push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Logged {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

const KEY: &str = "sk-pl4nted-key";

#[tokio::test]
async fn a_key_is_in_no_log_row_or_event() {
    let logged = Logged::default();
    // With one subscriber only, `tracing` would remember what a thread without one has answered.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::registry().with(logged.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    crate::harness::run(Kind::Sqlite, |h| calls_with_a_key(h, logged)).await;
}

async fn calls_with_a_key(h: Arc<Harness>, logged: Logged) {
    let engine = h.engine().await;
    for (number, rule) in [
        Rule::any().text("said"),
        Rule::any().fail(Fail::status(401)),
        Rule::any().lose(Lose::Before),
        Rule::any().raw(200, "["),
    ]
    .into_iter()
    .enumerate()
    {
        let script = Scripted::new().key(KEY).rule(rule).rule(Rule::any().text("said"));
        let server = ScriptedLlm::start(script).unwrap();
        let options = || ClientOptions::new(KEY).base_url(server.url());
        let client = AnthropicClient::new(options()).unwrap();
        let key = client.key().clone();
        let limited = LimitedProvider::new(&engine, client, &key);
        let openai = OpenaiClient::new(options()).unwrap();
        let counts = Counts::new();
        counts.hit("none");
        let name = format!("keyed-{number}");
        let agent = agent(&name, &counts).provider(Arc::new(limited)).provider(Arc::new(openai));
        let run = engine.agent(agent).unwrap().start(json!({ "case": "none" })).await.unwrap();
        let _ = run.result().await;
        assert_redacted(&tree_events(&engine, run.run_key()).await, &[KEY]);
    }
    h.stop(&engine).await;
    let stored = h.stored_bytes();
    let has = |part: &str| stored.windows(part.len()).any(|bytes| bytes == part.as_bytes());
    assert!(has("keyed-0") && has("said"), "the store is in the folder");
    assert!(!has(KEY), "a row has the key");
    let logged = logged.0.lock();
    assert!(!logged.is_empty(), "something is logged on this thread");
    assert!(!logged.contains(KEY), "a log has the key");
}
