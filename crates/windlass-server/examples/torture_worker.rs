//! The program of `cargo xtask torture` with workflows of its own: `tally` (steps) and `assembly` (a
//! machine). All their work is calls to the harness, which logs every attempt.
//!
//!     torture_worker STORE ADDRESS HARNESS/PROCESS
//!
//! It serves the API like the binary does. docs/torture.md describes the harness.

use std::env;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, Workflow, WorkflowAction,
};
use windlass::{AnyError, Ctx, Engine, Result};
use windlass_server::auth::Auth;
use windlass_server::{Options, ServeOptions, router_with_status, serve_with};

/// The harness answers every call, so that only a process that is being killed needs a retry.
const RETRIES: u32 = 1_000;
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The input of a run: its id, the number of its steps, and the tokens so far.
#[derive(Clone, Serialize, Deserialize)]
struct Work {
    id: String,
    steps: u64,
    tokens: Vec<String>,
}

/// Where the work is done: the host and the path with the name of this process.
#[derive(Clone)]
struct Harness {
    host: String,
    process: String,
}

/// One attempt of one step.
struct Attempt<'a> {
    workflow: &'a str,
    run_key: String,
    number: u32,
}

impl Harness {
    fn parse(text: &str) -> Result<Self> {
        let (host, process) = text
            .split_once('/')
            .ok_or_else(|| AnyError::msg(format!("{text:?} is not HOST:PORT/PROCESS")))?;
        Ok(Self { host: host.to_owned(), process: process.to_owned() })
    }

    /// Does the work of one step and returns the answer of the harness.
    async fn call(&self, attempt: Attempt<'_>, work: &Work) -> Result<Value, std::io::Error> {
        let body = json!({
            "run_key": attempt.run_key,
            "run_id": work.id,
            "step": work.tokens.len(),
            "attempt": attempt.number,
            "payload": { "steps": work.steps, "tokens": work.tokens },
        })
        .to_string();
        let path = format!("/{}/{}", self.process, attempt.workflow);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.host).await?;
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok(serde_json::from_str(body)?)
    }
}

/// The tokens after a step, and how long the run sleeps before the next one. No tokens are left to
/// collect when `is_last`.
struct Answer {
    tokens: Vec<String>,
    delay: Option<Duration>,
    is_last: bool,
}

fn read(answer: &Value) -> Answer {
    let is_last = answer["outcome"] == "succeed";
    let tokens = if is_last { &answer["result"] } else { &answer["payload"]["tokens"] };
    let tokens = tokens.as_array().into_iter().flatten().filter_map(Value::as_str);
    Answer {
        tokens: tokens.map(str::to_owned).collect(),
        delay: answer["delay_ms"].as_u64().map(Duration::from_millis),
        is_last,
    }
}

async fn tally(harness: Harness, ctx: Ctx, mut work: Work) -> Result<Vec<String>> {
    loop {
        let name = format!("step-{}", work.tokens.len());
        let run_key = ctx.run().run_key.to_string();
        let answer: Value = ctx
            .step_with(&name, |attempt| {
                let (harness, run_key, work) = (harness.clone(), run_key.clone(), work.clone());
                async move {
                    let attempt = Attempt { workflow: "tally", run_key, number: attempt.number };
                    Ok(harness.call(attempt, &work).await?)
                }
            })
            .retries(RETRIES)
            .delay(RETRY_DELAY)
            .await?;
        let answer = read(&answer);
        work.tokens = answer.tokens;
        if answer.is_last {
            return Ok(work.tokens);
        }
        if let Some(delay) = answer.delay {
            ctx.sleep(format!("{name}-pause"), delay).await?;
        }
    }
}

/// The same work as a machine: an activity for each step, a timer for each pause.
struct Assembly(Work);

impl Assembly {
    fn next(&self) -> Vec<WorkflowAction> {
        let id = format!("step-{}", self.0.tokens.len());
        let options = ActivityOptions::default().retries(RETRIES).retry_delay(RETRY_DELAY);
        vec![WorkflowAction::activity_with(id, AssemblyStep::TYPE, json!(self.0), options)]
    }
}

impl Workflow for Assembly {
    const TYPE: &'static str = "assembly";
    type Input = Work;
    type Output = Vec<String>;

    fn new(work: Work) -> Self {
        Self(work)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        self.next()
    }

    fn on_activity_completed(&mut self, id: &str, answer: Value) -> Vec<WorkflowAction> {
        let answer = read(&answer);
        self.0.tokens = answer.tokens;
        match answer.delay {
            _ if answer.is_last => vec![WorkflowAction::complete(json!(self.0.tokens))],
            Some(delay) => vec![WorkflowAction::timer(format!("{id}-pause"), delay)],
            None => self.next(),
        }
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }

    fn on_timer_fired(&mut self, _: &str) -> Vec<WorkflowAction> {
        self.next()
    }
}

struct AssemblyStep(Harness);

impl Activity for AssemblyStep {
    const TYPE: &'static str = "assembly-step";
    type Input = Work;
    type Output = Value;

    async fn execute(&self, ctx: &ActivityContext, work: Work) -> Result<Value, ActivityError> {
        let run_key = ctx.workflow_id.map(|key| key.to_string()).unwrap_or_default();
        let attempt = Attempt { workflow: "assembly", run_key, number: ctx.attempt };
        let called = self.0.call(attempt, &work).await;
        called.map_err(|error| ActivityError::new(format!("the harness does not answer: {error}")))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [store, address, harness] = &args[..] else {
        return Err(AnyError::msg("usage: torture_worker STORE ADDRESS HARNESS/PROCESS"));
    };
    let harness = Harness::parse(harness)?;
    let engine = Engine::builder().lease("5 seconds").scan_every("2 seconds").open(store).await?;
    let steps = harness.clone();
    engine.workflow("tally", move |ctx: Ctx, work: Work| tally(steps.clone(), ctx, work))?;
    engine.machine_activity(AssemblyStep(harness))?;
    engine.machine::<Assembly>()?;

    let options = Options { auth: Auth::Loopback, ..Options::default() };
    let (router, store_status) = router_with_status(&engine, options)?;
    let listener = TcpListener::bind(address).await?;
    let serving =
        ServeOptions { shutdown_timeout: Duration::from_secs(2), ..ServeOptions::default() };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            () = store_status.closed() => {}
        }
    };
    serve_with(listener, router, serving, stop).await?;
    engine.stop(Duration::from_secs(2)).await?;
    Ok(())
}
