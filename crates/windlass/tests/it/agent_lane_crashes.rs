//! A worker that dies at every commit of budgets and of batches: nothing is paid twice, nothing is leaked, and no run
//! is stuck.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::agents::{
    Agent, BatchEnd, BatchLimits, BatchLine, BatchMember, BatchProvider, BatchResults, BatchView,
    Budget, CallResult, Continuation, ForkBranch, Lane, LaneOptions, LlmRequest, Provider,
    ProviderError, ProviderErrorKind, ProviderRequest, ProviderResponse, RateLimits, TokenSink,
    Usage, WireFormat, Workflow, budgets, register,
};
use windlass::kernel::{BoxFuture, Timestamp};
use windlass::model::Engine;
use windlass_testkit::{Probe, every_crash_of};

use crate::agents_fixtures::{Script, at_once, text};

async fn fork(_: &mut Workflow, next: Continuation) -> CallResult {
    // The calls come one after the other: branches that race for the account retry, so the number of commits would
    // differ from pass to pass. `agent_budgets` has branches that race.
    let branch = ForkBranch::new("one", "ask").only(Vec::<String>::new());
    Ok(next.fork_join(vec![branch], "again"))
}

async fn again(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let asked: u64 = workflow.get("asked").unwrap_or(0);
    if asked == 2 {
        return Ok(next.halt());
    }
    workflow.set("asked", &(asked + 1))?;
    workflow.transcript("chat").push_user("hello")?;
    let request = LlmRequest::new("anthropic", "claude-sonnet-4-5").param("max_tokens", 10);
    Ok(next.llm(request.transcript("chat"), "response", "again"))
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hello")?;
    let request = LlmRequest::new("anthropic", "claude-sonnet-4-5").param("max_tokens", 10);
    Ok(next.llm(request.transcript("chat"), "response", "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

fn agent(provider: Arc<dyn Provider>) -> Agent {
    Agent::new("spender", "fork")
        .function("fork", fork)
        .function("again", again)
        .function("ask", ask)
        .function("end", end)
        .retry_policy(at_once(9))
        .budget(Budget::usd(1.0).calls(100))
        .provider(provider)
}

// The account of every run at the end: three answers, and nothing reserved.
async fn check_account(engine: &Engine) -> Result<(), String> {
    let found = budgets(engine, None, None, 10).await.map_err(|error| error.to_string())?;
    let [named] = found.as_slice() else { return Err(format!("{} accounts", found.len())) };
    let account = &named.account;
    match account.spent.calls == 3 && account.reserved.is_empty() {
        true => Ok(()),
        false => Err(format!("{account:?}")),
    }
}

#[test]
fn no_reservation_is_leaked() {
    let report = every_crash_of(|engine, _| {
        let spenders = register(engine, agent(Script::new([text("yes")]))).unwrap();
        let engine = engine.clone();
        Box::pin(async move {
            let run = spenders.start(json!({})).id("s").await.map_err(|error| error.to_string())?;
            let output = run.result().await.map_err(|error| error.to_string())?;
            check_account(&engine).await?;
            Ok(output)
        })
    });
    assert!(report.commits > 8, "{report:?}");
}

/// The members of each batch, by the name of its intent.
type Batches = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

/// A provider with batches, as an outside system: it survives the worker.
struct Outside {
    probe: Probe,
    /// The members of each batch, by the name of its intent.
    batches: Batches,
    /// Every second creation loses its reply.
    loses: bool,
}

impl Outside {
    fn view(intent: &str, members: usize) -> BatchView {
        BatchView {
            id: format!("pb-{intent}"),
            state: "ended".into(),
            ended: true,
            total: members as u64,
            intent: Some(intent.to_owned()),
            ..BatchView::default()
        }
    }
}

impl Provider for Outside {
    fn name(&self) -> &str {
        "anthropic"
    }

    fn wire_format(&self) -> WireFormat {
        WireFormat::AnthropicMessages
    }

    fn batches(&self) -> Option<&dyn BatchProvider> {
        Some(self)
    }

    fn call<'a>(
        &'a self,
        _: &'a ProviderRequest,
        _: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        Box::pin(async { Err(ProviderError::new(ProviderErrorKind::Invalid, "not live")) })
    }
}

impl BatchProvider for Outside {
    fn limits(&self) -> BatchLimits {
        BatchLimits { members_max: 100, bytes_max: 1 << 20, one_model: false, marks: true }
    }

    fn create<'a>(
        &'a self,
        intent: &'a str,
        members: Vec<BatchMember>,
    ) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move {
            let mut batches = self.batches.lock();
            members.iter().for_each(|_| self.probe.ran("paid"));
            let names = members.into_iter().map(|member| member.custom_id).collect::<Vec<_>>();
            let view = Self::view(intent, names.len());
            assert!(batches.insert(intent.to_owned(), names).is_none(), "the batch is paid twice");
            match self.loses && batches.len() % 2 == 1 {
                true => Err(ProviderError::new(ProviderErrorKind::UnknownOutcome, "lost")),
                false => Ok(view),
            }
        })
    }

    fn read<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        let batches = self.batches.lock();
        let found = id.strip_prefix("pb-").and_then(|intent| Some((intent, batches.get(intent)?)));
        let read = match found {
            Some((intent, members)) => Ok(Self::view(intent, members.len())),
            None => {
                Err(ProviderError::new(ProviderErrorKind::Invalid, "no batch").with_status(404))
            }
        };
        Box::pin(async move { read })
    }

    fn since(&self, _: Timestamp) -> BoxFuture<'_, Result<Vec<BatchView>, ProviderError>> {
        let batches = self.batches.lock();
        let found = batches.iter().map(|(intent, members)| Self::view(intent, members.len()));
        let found = found.collect();
        Box::pin(async move { Ok(found) })
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        self.read(id)
    }

    fn results<'a>(&'a self, batch: &'a BatchView) -> Box<dyn BatchResults + 'a> {
        let intent = batch.intent.as_deref().unwrap_or_default();
        let names = self.batches.lock().get(intent).cloned().unwrap_or_default();
        Box::new(Lines(names))
    }
}

struct Lines(Vec<String>);

impl BatchResults for Lines {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<BatchLine>, ProviderError>> {
        let line = self.0.pop().map(|custom_id| {
            let body = json!({ "content": [{ "type": "text", "text": "yes" }] }).to_string();
            let response = ProviderResponse {
                body: body.into(),
                content: Vec::new(),
                stop_reason: Some("end_turn".into()),
                model: None,
                usage: Usage { input_tokens: 7, output_tokens: 3, ..Usage::default() },
                message_id: None,
                request_id: None,
                rate_limits: RateLimits::default(),
            };
            BatchLine::Member { custom_id, end: BatchEnd::Succeeded(Box::new(response)) }
        });
        Box::pin(async move { Ok(line) })
    }
}

fn batches_survive_crashes(loses: bool) {
    // The same for all engines of one scenario, by the probe that they share.
    let world: Arc<Mutex<Batches>> = Arc::default();
    let report = every_crash_of(|engine, probe| {
        let options = LaneOptions::default().gather("2 seconds").poll("1 second", "1 second");
        probe.ran("began");
        let batches = match probe.count("began") {
            1 => {
                *world.lock() = Arc::default();
                Arc::clone(&world.lock())
            }
            _ => Arc::clone(&world.lock()),
        };
        let outside = Outside { probe: probe.clone(), batches, loses };
        let spec = agent(Arc::new(outside)).lane(Lane::Batch).lane_options(options);
        let spenders = register(engine, spec).unwrap();
        let (engine, probe) = (engine.clone(), probe.clone());
        Box::pin(async move {
            let run = spenders.start(json!({})).id("s").await.map_err(|error| error.to_string())?;
            let output: Value = run.result().await.map_err(|error| error.to_string())?;
            check_account(&engine).await?;
            match probe.count("paid") {
                3 => Ok(output),
                paid => Err(format!("{paid} calls are paid, not 3")),
            }
        })
    });
    assert!(report.commits > 12, "{report:?}");
}

#[test]
fn a_batch_is_paid_once() {
    batches_survive_crashes(false);
}

#[test]
fn a_batch_without_a_reply_is_paid_once() {
    batches_survive_crashes(true);
}
