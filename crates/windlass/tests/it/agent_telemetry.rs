//! Spans and metrics of agents: streams, batches, sub-agents, failures.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tracing::Dispatch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use windlass::agents::{
    Agent, AgentLoop, AnthropicClient, CallResult, ClientOptions, Continuation, Lane, LaneOptions,
    LlmRequest, Provider, ProviderErrorKind, SubAgent, ToolUse, Workflow,
};
use windlass_engine::{Measure, ModelMetric, Recorder};
use windlass_testkit::scripted_llm::{Rule, Script, ScriptedLlm};

use crate::agents_fixtures::{Answer, Script as Answers, at_once, text, uses};
use crate::harness::{Harness, Kind, on_every_store, until};

on_every_store!(calls_and_batches_are_measured);

const MODEL: &str = "claude-sonnet-4-5";

fn client(server: &ScriptedLlm) -> Arc<dyn Provider> {
    Arc::new(AnthropicClient::new(ClientOptions::new("key").base_url(server.url())).unwrap())
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hello")?;
    let request = LlmRequest::new("anthropic", MODEL).param("max_tokens", 100).transcript("chat");
    let request = match workflow.get::<bool>("batch")? {
        true => request.lane(Lane::Batch),
        false => request.stream(),
    };
    Ok(next.llm(request, "response", "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

fn asker(provider: Arc<dyn Provider>) -> Agent {
    let options = LaneOptions::default().gather("10 ms").poll("10 ms", "10 ms");
    Agent::new("asker", "ask")
        .function("ask", ask)
        .function("end", end)
        .retry_policy(at_once(1))
        .lane_options(options)
        .provider(provider)
}

/// The values of the metrics of models.
#[derive(Clone, Default)]
struct Values(Arc<Mutex<Vec<Value>>>);

struct Value {
    metric: &'static str,
    value: f64,
    attributes: BTreeMap<&'static str, String>,
}

impl Recorder for Values {
    fn record(&self, _: Measure, _: &str, _: Duration) {}

    fn record_for_model(
        &self,
        metric: &'static ModelMetric,
        value: f64,
        attributes: &[(&'static str, &str)],
    ) {
        let attributes = attributes.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        self.0.lock().push(Value { metric: metric.name, value, attributes });
    }
}

impl Values {
    /// The values of a metric with an attribute.
    fn of(&self, metric: &str, name: &str, value: &str) -> Vec<f64> {
        let values = self.0.lock();
        let found = values.iter().filter(|v| v.metric == metric);
        found
            .filter(|v| v.attributes.get(name).is_some_and(|v| v == value))
            .map(|v| v.value)
            .collect()
    }
}

async fn calls_and_batches_are_measured(h: Arc<Harness>) {
    let engine = h.engine().await;
    let values = Values::default();
    assert!(engine.admin().metrics().set_recorder(values.clone()));
    // The first request fails after it was sent.
    let script = Script::new()
        .rule(Rule::any().lose(windlass_testkit::scripted_llm::Lose::After).text("lost").times(1))
        .rule(Rule::any().text("You said: {{input}}"));
    let server = ScriptedLlm::start(script).unwrap();
    let askers = engine.agent(asker(client(&server))).unwrap();
    askers.start(json!({ "batch": false })).await.unwrap().result().await.unwrap();
    let paid = server.report();
    let lane = "windlass.llm.lane";
    let lost = values.of("gen_ai.client.operation.duration", "error.type", "unknown_outcome");
    assert_eq!(lost.len(), 1);
    assert_eq!(values.of("gen_ai.client.operation.duration", lane, "live").len(), 2);
    let first = values.of("gen_ai.client.operation.time_to_first_chunk", lane, "live");
    assert!(!first.is_empty() && first.iter().all(|seconds| *seconds >= 0.0), "{first:?}");
    // The attempt without an answer is in the ledger, and not in the usage.
    let per_call = |kind: &str, of_two: u64| {
        let found = values.of("gen_ai.client.token.usage", "gen_ai.token.type", kind);
        assert_eq!(found, [of_two as f64 / 2.0], "{kind}");
    };
    assert_eq!(paid.messages, 2);
    per_call("input", paid.tokens.input + paid.tokens.cache_read + paid.tokens.cache_write);
    let cost = values.of("windlass.llm.cost", lane, "live");
    assert_eq!(cost.len(), 1);

    let inputs = (0..5).map(|n| (format!("b{n}"), json!({ "batch": true })));
    for run in askers.start_batch(inputs).await.unwrap() {
        run.result().await.unwrap();
    }
    let batched = values.of("windlass.llm.cost", lane, "batch");
    let money = server.report().money.minus(paid.money).as_usd();
    assert!((batched.iter().sum::<f64>() - money).abs() < 1e-12, "{batched:?} {money}");
    until("the batches have ended", || async {
        let status = "windlass.llm.batch.status";
        let members = values.of("windlass.llm.batch.members", status, "ended");
        let durations = values.of("windlass.llm.batch.duration", status, "ended");
        members.iter().sum::<f64>() == 5.0 && durations.len() == members.len()
    })
    .await;
}

/// A span with its attributes.
#[derive(Clone, Debug, Default)]
struct Seen {
    parent: String,
    fields: BTreeMap<String, String>,
}

impl Seen {
    fn name(&self) -> &str {
        self.fields.get("otel.name").map_or("", String::as_str)
    }
}

impl Visit for Seen {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// Keeps the spans of the thread of the test: turns are taken there.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    open: BTreeMap<u64, Seen>,
    closed: Vec<Seen>,
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut seen = Seen::default();
        attributes.record(&mut seen);
        let parent = context.span(id).and_then(|span| span.parent()).map(|span| span.id());
        let mut spans = self.0.lock();
        let parent = parent.and_then(|parent| spans.open.get(&parent.into_u64()));
        seen.parent = parent.map(|parent| parent.name().to_owned()).unwrap_or_default();
        spans.open.insert(id.into_u64(), seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(seen) = self.0.lock().open.get_mut(&id.into_u64()) {
            values.record(seen);
        }
    }

    // Ids are used again.
    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut spans = self.0.lock();
        let seen = spans.open.remove(&id.into_u64());
        spans.closed.extend(seen);
    }
}

impl Spans {
    fn named(&self, name: &str) -> Vec<Seen> {
        self.0.lock().closed.iter().filter(|seen| seen.name() == name).cloned().collect()
    }
}

/// Runs a test on one thread, with its spans.
async fn spans_of<F: Future<Output = ()>>(test: impl FnOnce(Arc<Harness>, Spans) -> F) {
    // With a single subscriber `tracing` asks the thread that reaches a span first whether anybody listens, and
    // remembers the answer for all threads. Other tests run on threads without a subscriber.
    static MORE: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));
    LazyLock::force(&MORE);
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    crate::harness::run(Kind::Memory, |h| test(h, spans)).await;
}

#[tokio::test]
async fn a_batched_and_a_streamed_call_are_spans() {
    spans_of(|h, spans| async move {
        let engine = h.engine().await;
        let server = ScriptedLlm::start(Script::echo()).unwrap();
        let askers = engine.agent(asker(client(&server))).unwrap();
        for batch in [true, false] {
            askers.start(json!({ "batch": batch })).await.unwrap().result().await.unwrap();
        }
        let name = format!("chat {MODEL}");
        until("both calls are seen", || async { spans.named(&name).len() == 2 }).await;
        let calls = spans.named(&name);
        let of = |lane: &str| {
            let found = calls.iter().find(|span| span.fields["windlass.llm.lane"] == lane);
            found.unwrap_or_else(|| panic!("no call in the lane {lane} in {calls:#?}"))
        };
        let (batched, live) = (of("batch"), of("live"));
        assert!(batched.fields["windlass.llm.batch"].starts_with("msgbatch_"), "{batched:?}");
        assert_eq!(batched.fields["gen_ai.request.max_tokens"], "100");
        assert!(!batched.fields.contains_key("gen_ai.response.time_to_first_chunk"));
        assert!(live.fields.contains_key("gen_ai.response.time_to_first_chunk"), "{live:?}");
        assert_eq!(live.fields["gen_ai.request.stream"], "true");
        for call in [batched, live] {
            assert_eq!(call.parent, "invoke_agent asker");
            assert_eq!(call.fields["gen_ai.response.finish_reasons"], "end_turn");
            assert!(call.fields["windlass.llm.cost"].parse::<f64>().unwrap() > 0.0);
        }
    })
    .await;
}

#[tokio::test]
async fn each_agent_of_a_tree_has_its_own_spans() {
    spans_of(|h, spans| async move {
        let engine = h.engine().await;
        let script = Answers::new([
            uses("look_up", &[json!({ "prompt": "one" })]),
            text("one is odd"),
            text("done"),
        ]);
        let spec = |name: &str| AgentLoop::new(name, "anthropic", "m-1").param("max_tokens", 10);
        let helper = SubAgent::new("look_up", "Looks something up.", "look-up");
        let agent = Agent::new("researcher", "research")
            .agent_loop(spec("research").sub_agent(helper))
            .agent_loop(spec("look-up"))
            .provider(script);
        let runs = engine.agent(agent).unwrap();
        let run = runs.start(json!({ "prompt": "which numbers are odd?" })).await.unwrap();
        run.result().await.unwrap();
        let root = run.run_key().to_string();
        until("the calls are seen", || async { spans.named("chat m-1").len() == 3 }).await;
        let calls = spans.named("chat m-1");
        let mut agents: Vec<_> =
            calls.iter().map(|call| call.fields["gen_ai.agent.name"].as_str()).collect();
        agents.sort_unstable();
        assert_eq!(agents, ["look-up", "research", "research"]);
        for call in &calls {
            assert_eq!(call.parent, format!("invoke_agent {}", call.fields["gen_ai.agent.name"]));
            // Branches belong to the conversation of the root.
            assert_eq!(call.fields["gen_ai.conversation.id"], root);
        }
        assert_eq!(spans.named("invoke_agent look-up")[0].parent, "invoke_workflow researcher");
    })
    .await;
}

async fn call_tools(_: &mut Workflow, next: Continuation) -> CallResult {
    let tool_use = ToolUse { id: "t-1".into(), name: "none".into(), input: json!({ "x": 1 }) };
    Ok(next.tools(vec![tool_use], "results", "ask"))
}

#[tokio::test]
async fn failures_have_types() {
    spans_of(|h, spans| async move {
        let engine = h.engine().await;
        let script = Answers::new([Answer::Fails(ProviderErrorKind::Overloaded)]);
        let agent = Agent::new("failing", "tools")
            .function("tools", call_tools)
            .function("ask", ask)
            .function("end", end)
            .retry_policy(at_once(1))
            .provider(script);
        let runs = engine.agent(agent).unwrap();
        runs.start(json!({ "batch": false })).await.unwrap().result().await.unwrap_err();
        let name = format!("chat {MODEL}");
        until("the run has ended", || async {
            spans.named("invoke_agent failing").iter().any(|s| s.fields.contains_key("error.type"))
        })
        .await;
        let attempts = spans.named(&name);
        let numbers: Vec<_> = attempts.iter().map(|s| &s.fields["windlass.llm.attempt"]).collect();
        assert_eq!(numbers.len(), 2, "{numbers:?}");
        assert!(attempts.iter().all(|s| s.fields["error.type"] == "overloaded"), "{attempts:?}");
        assert!(attempts.iter().all(|s| s.fields["otel.status_code"] == "ERROR"));
        let tool = spans.named("execute_tool none").remove(0);
        assert_eq!(
            (tool.fields["error.type"].as_str(), tool.parent.as_str()),
            ("tool_error", "invoke_agent failing")
        );
        let failed = spans.named("invoke_agent failing");
        assert!(
            failed.iter().any(|s| {
                s.fields.get("error.type").is_some_and(|name| name == "PROVIDER_FAILED")
            }),
            "{failed:#?}"
        );
    })
    .await;
}
