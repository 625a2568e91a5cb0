//! `lanes`: the first calls of many runs leave in few batches with flat memory, and calls go on soon after the end
//! of a rate limit. The provider is another process, so that its memory does not count.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::Engine;
use windlass::admin::Options;
use windlass::agents::{
    Agent, AnthropicClient, CallResult, ClientOptions, Continuation, Lane, LimitedProvider,
    LlmRequest, Provider, ProviderError, ProviderErrorKind, ProviderRequest, ProviderResponse,
    TokenSink, WireFormat, Workflow,
};
use windlass::kernel::BoxFuture;
use windlass_testkit::scripted_llm::{BatchPlan, Fail, Rule, Script, ScriptedLlm};

use super::{engine, rss_mb};
use crate::backend::{Databases, Target};
use crate::report::Report;

/// The most provider batches in which the first calls of a wave may leave.
const BATCHES_MAX: u64 = 2;
/// How much more memory a later wave may take than the first one.
const GROWTH_MAX: f64 = 1.25;
/// How long the account is closed by a rate limit.
const CLOSED_SECS: u64 = 4;
/// The share of the rate before the limit that must be there again in the second after its first one.
const RATE_MIN: f64 = 0.5;

/// Options of `lanes`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of runs of a wave. Each makes one call in a batch.
    #[arg(long, default_value_t = 10_000)]
    runs: u64,
    /// The number of waves, one after the other.
    #[arg(long, default_value_t = 3)]
    waves: u64,
    /// The bytes of a question.
    #[arg(long, default_value_t = 1_000)]
    bytes: usize,
    /// The most memory that a wave may add, in megabytes.
    #[arg(long, default_value_t = 150.0)]
    rss_max_mb: f64,
    /// The number of runs that call while the account is closed.
    #[arg(long, default_value_t = 100)]
    callers: u64,
}

/// Options of the process with the provider.
#[derive(clap::Args)]
pub(crate) struct ProviderArgs {
    /// Answers this many calls, then refuses one because of the rate.
    #[arg(long)]
    limit_after: Option<u32>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

/// The process with the provider. It prints its address, and its report when its input ends.
pub(crate) fn provider(args: &ProviderArgs) -> anyhow::Result<()> {
    // A batch is in flight for at least 35 seconds: the default options of a lane read it after 5, 15 and 35.
    let plan = BatchPlan { polls: 2, ..BatchPlan::default() };
    let script = match args.limit_after {
        None => Script::new(),
        Some(calls) => Script::new()
            .rule(Rule::any().text("yes").times(calls))
            .rule(Rule::any().fail(Fail::rate_limit(CLOSED_SECS)).times(1)),
    };
    let server = ScriptedLlm::start(script.rule(Rule::any().text("yes")).batch(plan))?;
    println!("{}", server.url());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{}", serde_json::to_string(&server.report())?);
    Ok(())
}

/// A provider in a process of its own.
struct Outside {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    url: String,
}

impl Outside {
    fn start(limit_after: Option<u64>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("lanes-provider").stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(calls) = limit_after {
            command.args(["--limit-after", &calls.to_string()]);
        }
        let mut child = command.spawn().context("failed to start the provider")?;
        let mut out = BufReader::new(child.stdout.take().context("the provider has no output")?);
        let mut url = String::new();
        out.read_line(&mut url)?;
        Ok(Self { child, out, url: url.trim().to_owned() })
    }

    fn client(&self) -> anyhow::Result<AnthropicClient> {
        Ok(AnthropicClient::new(ClientOptions::new("key").base_url(&self.url))?)
    }

    /// Stops it and returns its report.
    fn stop(mut self) -> anyhow::Result<Value> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.out.read_to_string(&mut text)?;
        self.child.wait()?;
        serde_json::from_str(&text).context("the report of the provider cannot be read")
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let question: String = workflow.get("question")?;
    workflow.transcript("chat").push_user(&question)?;
    let provider: String = workflow.get("provider")?;
    let request = LlmRequest::new(provider, "claude-haiku-4-5").param("max_tokens", 100);
    Ok(next.llm(request.transcript("chat"), "answer", "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let mut report = Report::default();
    report.put("store", args.target.name()).put("runs", args.runs).put("bytes", args.bytes);
    waves(args, place, &mut report).await?;
    rate_limit(args, place, &mut report).await?;
    Ok(report)
}

async fn waves(args: &Args, place: &Databases, report: &mut Report) -> anyhow::Result<()> {
    let opened = place.open("lanes").await?;
    let engine = engine(&opened, Options::default()).await?;
    let mut peaks: Vec<f64> = Vec::new();
    let before = rss_mb();
    for wave in 0..args.waves {
        let outside = Outside::start(None)?;
        // A client for each wave: its provider has another address.
        let name = format!("asker-{wave}");
        let agent = Agent::new(&name, "ask")
            .function("ask", ask)
            .function("end", end)
            .lane(Lane::Batch)
            .provider(Arc::new(Named { name, inner: Arc::new(outside.client()?) }));
        let peak = Peak::watch();
        let started = Instant::now();
        wave_of(&engine, agent, wave, args).await?;
        let seconds = started.elapsed().as_secs_f64();
        let peak = peak.stop() - before;
        let made = outside.stop()?;
        let batches = made["requests"]["create_batch"].as_u64().unwrap_or_default();
        report
            .put(&format!("wave_{wave}_batches"), batches)
            .put(&format!("wave_{wave}_rss_more_mb"), peak)
            .put(&format!("wave_{wave}_seconds"), seconds);
        if batches > BATCHES_MAX {
            report.fail(format!("the calls left in {batches} batches, more than {BATCHES_MAX}"));
        }
        if made["messages"] != json!(args.runs) {
            report.fail(format!("{} messages were paid, not {}", made["messages"], args.runs));
        }
        peaks.push(peak);
    }
    engine.stop(Duration::from_secs(10)).await?;
    let (first, most) = (peaks[0], peaks.iter().copied().fold(0.0, f64::max));
    if most > args.rss_max_mb {
        report.fail(format!("a wave took {most:.0} MB more, above {:.0} MB", args.rss_max_mb));
    }
    if most > first * GROWTH_MAX + 10.0 {
        report.fail(format!("memory grows from wave to wave: {peaks:.0?} MB"));
    }
    Ok(())
}

async fn wave_of(engine: &Engine, agent: Agent, wave: u64, args: &Args) -> anyhow::Result<()> {
    let provider = format!("asker-{wave}");
    let askers = engine.agent(agent)?;
    let mut handles = Vec::new();
    let question = "x".repeat(args.bytes);
    for first in (0..args.runs).step_by(1_000) {
        let input = json!({ "question": question, "provider": provider });
        let runs = (first..args.runs.min(first + 1_000)).map(|n| (format!("r{n}"), input.clone()));
        handles.extend(askers.start_batch(runs).await?);
    }
    for handle in handles {
        let _: Value = handle.result().await?;
    }
    Ok(())
}

/// The highest memory of this process, sampled.
struct Peak {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<f64>,
}

impl Peak {
    fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut peak = rss_mb();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                peak = peak.max(rss_mb());
            }
            peak
        });
        Self { stop, thread }
    }

    fn stop(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// The times of answers, and of the error that closed the account.
#[derive(Default)]
struct Times {
    answers: Mutex<Vec<Instant>>,
    closed: Mutex<Option<Instant>>,
    calls: AtomicU64,
}

/// A provider that notes when it answers.
struct Timed {
    times: Arc<Times>,
    inner: AnthropicClient,
}

impl Provider for Timed {
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
        Box::pin(async move {
            self.times.calls.fetch_add(1, Ordering::Relaxed);
            let called = self.inner.call(request, sink).await;
            match &called {
                Ok(_) => self.times.answers.lock().push(Instant::now()),
                Err(error) if error.kind() == ProviderErrorKind::RequestRateLimited => {
                    self.times.closed.lock().get_or_insert_with(Instant::now);
                }
                Err(_) => {}
            }
            called
        })
    }

    fn learn<'a>(
        &'a self,
        called: Result<&'a ProviderResponse, &'a ProviderError>,
    ) -> BoxFuture<'a, ()> {
        self.inner.learn(called)
    }
}

async fn ask_again(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let left: u64 = workflow.get("left")?;
    if left == 0 {
        return Ok(next.halt());
    }
    workflow.set("left", &(left - 1))?;
    let request = LlmRequest::new("anthropic", "claude-haiku-4-5").param("max_tokens", 100);
    Ok(next.llm(request, "answer", "ask_again"))
}

// The account is closed in the middle of many calls; soon after its end they have their rate again.
async fn rate_limit(args: &Args, place: &Databases, report: &mut Report) -> anyhow::Result<()> {
    let opened = place.open("limits").await?;
    let engine = engine(&opened, Options::default()).await?;
    let calls_each = 60;
    let total = args.callers * calls_each;
    let outside = Outside::start(Some(total / 3))?;
    let times = Arc::new(Times::default());
    let client = outside.client()?;
    let key = client.key().clone();
    let timed = Timed { times: Arc::clone(&times), inner: client };
    let limited = LimitedProvider::new(&engine, timed, &key);
    let agent = Agent::new("caller", "ask_again")
        .function("ask_again", ask_again)
        .provider(Arc::new(limited));
    let callers = engine.agent(agent)?;
    let input = json!({ "left": calls_each });
    let runs = (0..args.callers).map(|n| (format!("c{n}"), input.clone()));
    let began = Instant::now();
    for handle in callers.start_batch(runs).await? {
        let _: Value = handle.result().await?;
    }
    engine.stop(Duration::from_secs(10)).await?;
    outside.stop()?;
    let closed = times.closed.lock().context("the account was never closed")?;
    let open = closed + Duration::from_secs(CLOSED_SECS);
    let answers = times.answers.lock();
    let within = |from: Instant, to: Instant| {
        answers.iter().filter(|at| (from..to).contains(*at)).count() as f64
    };
    let before = within(began, closed) / closed.duration_since(began).as_secs_f64();
    let first = answers.iter().filter(|at| **at >= open).min();
    let first_ms = first.map_or(f64::INFINITY, |at| at.duration_since(open).as_secs_f64() * 1e3);
    let last = answers.iter().max().copied().unwrap_or(open);
    let second = open + Duration::from_secs(1);
    let measured = last.saturating_duration_since(second).as_secs_f64().clamp(0.001, 1.0);
    let after = within(second, second + Duration::from_secs(1)) / measured;
    // Calls that began before the limit may end in the time when it is closed.
    let late = within(closed + Duration::from_secs(1), open);
    report
        .put("limit_calls_per_s_before", before)
        .put("limit_first_answer_ms_after", first_ms)
        .put("limit_calls_in_the_first_second_after", within(open, second))
        .put("limit_calls_per_s_in_the_next_second", after)
        .put("limit_calls_while_closed", late);
    if first_ms > 1_000.0 {
        report.fail(format!("the first answer came {first_ms:.0} ms after the end of the limit"));
    }
    let all_done_in_first = last < second;
    if !all_done_in_first && after < before * RATE_MIN {
        report.fail(format!("{after:.0} calls/s a second after the limit, {before:.0} before it"));
    }
    if late > 0.0 {
        report.fail(format!("{late} calls were answered while the account was closed"));
    }
    Ok(())
}

/// A provider under the name of its wave, so that each wave has a lane of its own.
struct Named {
    name: String,
    inner: Arc<AnthropicClient>,
}

impl Provider for Named {
    fn name(&self) -> &str {
        &self.name
    }

    fn wire_format(&self) -> WireFormat {
        self.inner.wire_format()
    }

    fn batches(&self) -> Option<&dyn windlass::agents::BatchProvider> {
        Provider::batches(&*self.inner)
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        self.inner.call(request, sink)
    }
}
