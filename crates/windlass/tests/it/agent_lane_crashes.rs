//! A worker that dies at every commit of budgets and of batches: nothing is paid twice, nothing is leaked, and no run
//! is stuck.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::agents::{
    Account, Agent, BatchEnd, BatchLimits, BatchLine, BatchMember, BatchProvider, BatchResults,
    BatchView, Budget, CallResult, Continuation, ForkBranch, Lane, LaneOptions, LlmRequest,
    Provider, ProviderError, ProviderErrorKind, ProviderRequest, ProviderResponse, RateLimits,
    TokenSink, Usage, WireFormat, Workflow, budgets, lanes, register,
};
use windlass::kernel::{BoxFuture, Query, Timestamp};
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
async fn check_account(engine: &Engine) -> Result<Account, String> {
    let found = budgets(engine, None, None, 10).await.map_err(|error| error.to_string())?;
    let [named] = found.as_slice() else { return Err(format!("{} accounts", found.len())) };
    let account = &named.account;
    match account.spent.calls == 3 && account.reserved.is_empty() {
        true => Ok(account.clone()),
        false => Err(format!("{account:?}")),
    }
}

/// A live provider that counts its calls, as an outside system.
struct Counted {
    probe: Probe,
    inner: Arc<Script>,
}

impl Provider for Counted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn wire_format(&self) -> WireFormat {
        self.inner.wire_format()
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        self.probe.ran("asked");
        self.inner.call(request, sink)
    }
}

#[test]
fn no_reservation_is_leaked() {
    let report = every_crash_of(|engine, probe| {
        let inner = Script::new([text("yes")]);
        let counted = Counted { probe: probe.clone(), inner };
        let spenders = register(engine, agent(Arc::new(counted))).unwrap();
        let (engine, probe) = (engine.clone(), probe.clone());
        Box::pin(async move {
            let run = spenders.start(json!({})).id("s").await.map_err(|error| error.to_string())?;
            let output = run.result().await.map_err(|error| error.to_string())?;
            let account = check_account(&engine).await?;
            let (spent, uncertain) = (account.spent.calls, account.uncertain.calls);
            let asked = u64::from(probe.count("asked"));
            // What was asked is spent, or may have been paid without an answer. One crash costs one call at most.
            match (spent..=spent + uncertain).contains(&asked) && uncertain <= 1 {
                true => Ok(output),
                false => Err(format!("{asked} calls were asked: {account:?}")),
            }
        })
    });
    assert!(report.commits > 8, "{report:?}");
}

/// A batch at the provider.
struct Held {
    intent: String,
    /// The names of its members.
    names: Vec<String>,
}

/// What the provider does beside its work.
#[derive(Clone, Copy, Default)]
struct Habits {
    /// It keeps the names of intents, as OpenAI does.
    marks: bool,
    /// Every second creation loses its reply.
    loses: bool,
    /// Its first batch never shows, though it is paid.
    hides: bool,
}

type Batches = Arc<Mutex<Vec<Held>>>;

/// A provider with batches, as an outside system: it survives the worker.
struct Outside {
    probe: Probe,
    /// All batches, the oldest first.
    batches: Batches,
    habits: Habits,
}

impl Outside {
    fn view(&self, number: usize, held: &Held) -> BatchView {
        BatchView {
            id: format!("pb-{number}"),
            state: "ended".into(),
            ended: true,
            total: held.names.len() as u64,
            intent: self.habits.marks.then(|| held.intent.clone()),
            ..BatchView::default()
        }
    }

    fn number(id: &str) -> Option<usize> {
        id.strip_prefix("pb-")?.parse().ok()
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
        BatchLimits {
            members_max: 100,
            bytes_max: 1 << 20,
            one_model: false,
            marks: self.habits.marks,
            create_time_max: Duration::from_secs(60),
        }
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
            let twice = batches.iter().any(|held| held.intent == intent);
            assert!(self.habits.hides || !twice, "the batch is paid twice");
            let held = Held { intent: intent.to_owned(), names };
            let view = self.view(batches.len(), &held);
            batches.push(held);
            // The first batch is the one of somebody else.
            match self.habits.loses && batches.len().is_multiple_of(2) {
                true => Err(ProviderError::new(ProviderErrorKind::UnknownOutcome, "lost")),
                false => Ok(view),
            }
        })
    }

    fn read<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        let batches = self.batches.lock();
        let found = Self::number(id).and_then(|number| Some((number, batches.get(number)?)));
        let read = match found {
            Some((number, held)) => Ok(self.view(number, held)),
            None => {
                Err(ProviderError::new(ProviderErrorKind::Invalid, "no batch").with_status(404))
            }
        };
        Box::pin(async move { read })
    }

    fn since(&self, _: Timestamp) -> BoxFuture<'_, Result<Vec<BatchView>, ProviderError>> {
        let batches = self.batches.lock();
        let shown = |number: &usize| !(self.habits.hides && *number == 1);
        let numbers = (0..batches.len()).rev().filter(shown);
        let found = numbers.map(|number| self.view(number, &batches[number])).collect();
        Box::pin(async move { Ok(found) })
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        self.read(id)
    }

    fn results<'a>(&'a self, batch: &'a BatchView) -> Box<dyn BatchResults + 'a> {
        let batches = self.batches.lock();
        let held = Self::number(&batch.id).and_then(|number| batches.get(number));
        Box::new(Lines(held.map(|held| held.names.clone()).unwrap_or_default()))
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

// The payloads of the events after which a lane sent a batch again.
async fn sent_again(engine: &Engine) -> Result<Vec<Value>, String> {
    fn words(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let mut found = Vec::new();
    for lane in lanes(engine).await.map_err(words)? {
        let run_key = lane.run_key.parse().map_err(words)?;
        let query = Query::Events { run_key, from: 0, limit: 1_000 };
        let listed = engine.store().list(query).await.map_err(words)?;
        for event in listed.events().map_err(words)? {
            found.push(event.payload_json().map_err(words)?);
        }
    }
    found.retain(|payload| payload["not_found"] == true);
    Ok(found)
}

fn batches_survive_crashes(habits: Habits) {
    // The same for all engines of one scenario, by the probe that they share.
    let world: Arc<Mutex<Batches>> = Arc::default();
    let report = every_crash_of(|engine, probe| {
        let options = LaneOptions::default().gather("2 seconds").poll("1 second", "1 second");
        let options = options.grace("10 seconds");
        probe.ran("began");
        let batches = match probe.count("began") {
            1 => {
                // Somebody else has a batch of the same size.
                let names = vec!["theirs-0".to_owned()];
                let foreign = Held { intent: "theirs".into(), names };
                *world.lock() = Arc::new(Mutex::new(vec![foreign]));
                Arc::clone(&world.lock())
            }
            _ => Arc::clone(&world.lock()),
        };
        let outside = Outside { probe: probe.clone(), batches, habits };
        let spec = agent(Arc::new(outside)).lane(Lane::Batch).lane_options(options);
        let spenders = register(engine, spec).unwrap();
        let (engine, probe) = (engine.clone(), probe.clone());
        Box::pin(async move {
            let run = spenders.start(json!({})).id("s").await.map_err(|error| error.to_string())?;
            let output: Value = run.result().await.map_err(|error| error.to_string())?;
            check_account(&engine).await?;
            let again = sent_again(&engine).await?;
            if again.iter().any(|payload| payload["possibly_paid"] != true) {
                return Err(format!("a second payment has no name: {again:?}"));
            }
            let paid = probe.count("paid");
            // A batch that shows nowhere is paid twice, and the ledger names it.
            match paid == 3 || habits.hides && paid as usize <= 3 + again.len() && !again.is_empty()
            {
                true => Ok(output),
                false => Err(format!("{paid} calls are paid, not 3: {again:?}")),
            }
        })
    });
    assert!(report.commits > 12, "{report:?}");
}

#[test]
fn a_batch_is_paid_once() {
    batches_survive_crashes(Habits { marks: true, ..Habits::default() });
}

#[test]
fn a_batch_without_a_reply_is_paid_once() {
    batches_survive_crashes(Habits { marks: true, loses: true, ..Habits::default() });
}

#[test]
fn a_batch_without_a_name_is_paid_once() {
    batches_survive_crashes(Habits::default());
}

#[test]
fn a_batch_without_a_name_and_a_reply_is_paid_once() {
    batches_survive_crashes(Habits { loses: true, ..Habits::default() });
}

#[test]
fn a_second_payment_is_named() {
    batches_survive_crashes(Habits { loses: true, hides: true, ..Habits::default() });
}
