//! Random agents for the real engine: local calls, models, durable tools, forks, questions to a person, failures
//! that a retry survives, and restarts. The seed in the input determines their steps and their output.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass_engine::{Engine, InboxOrder, InboxQuery};
use windlass_kernel::request::{Decider, NewDecision, RequestStatus};
use windlass_kernel::{
    BoxFuture, Error, ErrorCode, RetryLimit, RetryPolicy, Run, RunStatus, Subject,
};
use windlass_models::agents::{
    self, Agent, CallResult, Continuation, ForkBranch, HumanRequest, LlmRequest, Probe, Provider,
    ProviderError, ProviderErrorKind, ProviderRequest, ProviderResponse, RateLimits,
    RequestOutcome, TokenSink, Tool, ToolContext, ToolOutput, ToolUse, Usage, WireFormat, Workflow,
};
use windlass_models::{AnyError, RunHandle, WorkflowRef};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::{Rng, mix};
use super::NodeContext;
use super::client::{ClientView, pause_and_resume, until_answered};
use super::program::step_value;
use super::request::Accepted;

/// The name of all simulated agents.
pub(crate) const AGENT: &str = "agent";
/// The person who answers their questions.
const PERSON: &str = "ann";
const APPROVED: u64 = 11;

/// What a program does between two local calls.
#[derive(Clone, Debug)]
enum Leg {
    /// Nothing.
    Call,
    /// It calls the model.
    Llm,
    /// It calls tools, all at once: with a receipt or without.
    Tools(Vec<bool>),
    /// It runs branches.
    Fork(Vec<Twig>),
    /// It asks a person.
    Human,
    /// Its function fails once; somebody retries the run.
    Shaky,
}

/// What a branch does.
#[derive(Clone, Copy, Debug)]
enum Twig {
    Plain,
    Llm,
    Pay,
    Shaky,
    Fork,
}

/// A whole program.
#[derive(Clone, Debug)]
pub(crate) struct TestAgent {
    legs: Vec<Leg>,
}

impl TestAgent {
    /// The program of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xA6E7);
        let count = rng.range(1, 5);
        let legs = (0..count).map(|_| match rng.below(8) {
            0 => Leg::Call,
            1 => Leg::Llm,
            2 | 3 => Leg::Tools((0..rng.range(1, 3)).map(|_| rng.chance(700)).collect()),
            4 | 5 => Leg::Fork((0..rng.range(1, 3)).map(|_| twig(&mut rng)).collect()),
            6 => Leg::Human,
            _ => Leg::Shaky,
        });
        Self { legs: legs.collect() }
    }

    /// The output of a run of this seed.
    pub(crate) fn expected(seed: u64) -> u64 {
        let legs = Self::of(seed).legs;
        legs.iter().enumerate().fold(seed, |sum, (place, leg)| mix(sum ^ leg.value(place)))
    }
}

fn twig(rng: &mut Rng) -> Twig {
    match rng.below(6) {
        0 => Twig::Llm,
        1 | 2 => Twig::Pay,
        3 => Twig::Shaky,
        4 => Twig::Fork,
        _ => Twig::Plain,
    }
}

impl Leg {
    fn value(&self, place: usize) -> u64 {
        match self {
            Self::Call | Self::Shaky => step_value(&place.to_string()),
            Self::Llm => answer_to(&place.to_string()),
            Self::Tools(tools) => fold((0..tools.len()).map(|n| step_value(&key(place, n)))),
            Self::Fork(twigs) => {
                fold(twigs.iter().enumerate().map(|(n, twig)| twig.value(&key(place, n))))
            }
            Self::Human => APPROVED,
        }
    }
}

impl Twig {
    fn value(self, key: &str) -> u64 {
        match self {
            Self::Plain | Self::Pay | Self::Shaky => step_value(key),
            Self::Llm => answer_to(key),
            Self::Fork => fold(LEAVES.map(step_value).into_iter()),
        }
    }
}

/// The branches of a fork inside a branch.
const LEAVES: [&str; 2] = ["l", "g1"];

fn fold(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(5, |sum, value| mix(sum ^ value))
}

fn key(place: usize, n: usize) -> String {
    format!("{place}.{n}")
}

fn answer_to(question: &str) -> u64 {
    mix(step_value(question))
}

/// The world outside the engine, which outlives its processes.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    // Calls of tools with a receipt that have begun since the probe was last asked.
    begun: BTreeSet<String>,
    // Calls of such tools that have taken effect.
    done: BTreeSet<String>,
    // How often functions failed, by run and place.
    failed: BTreeMap<(String, String), u32>,
}

impl NodeContext {
    // Whether this worker holds the turn of a run. A worker that has lost it may not know it yet.
    fn holds(&self, run_id: &str) -> bool {
        let Some(fleet) = self.fleet.upgrade() else { return false };
        let runs = fleet.checker.runs(fleet.faulty.inner());
        let own = |run: &&Run| run.workflow.as_str() == AGENT && run.id.as_str() == run_id;
        let newest = runs.iter().filter(own).max_by_key(|run| run.generation);
        let hold = newest.and_then(|run| run.turn.hold());
        hold.is_some_and(|hold| Some(&hold.worker) == self.worker.get())
    }

    fn tool_begins(&self, run_id: &str, call: &str) {
        let Some(fleet) = self.fleet.upgrade() else { return };
        if !self.holds(run_id) {
            return;
        }
        let (again, done) = {
            let mut outside = locked(&fleet.outside);
            (!outside.begun.insert(call.to_owned()), outside.done.contains(call))
        };
        if again {
            let detail = format!("{call} of {run_id} is called again without its probe");
            fleet.checker.fail("35 a durable tool is probed before it is called again", detail);
        }
        if done {
            let detail = format!("{call} of {run_id} is called and has taken effect before");
            fleet.checker.fail("36 a durable tool takes effect once", detail);
        }
    }

    fn tool_takes_effect(&self, call: &str) {
        if let Some(fleet) = self.fleet.upgrade() {
            locked(&fleet.outside).done.insert(call.to_owned());
        }
    }

    // What the outside world knows about a call. A zombie's question does not count.
    fn tool_is_done(&self, run_id: &str, call: &str) -> bool {
        let Some(fleet) = self.fleet.upgrade() else { return false };
        let holds = self.holds(run_id);
        let mut outside = locked(&fleet.outside);
        if holds {
            outside.begun.remove(call);
        }
        let done = outside.done.contains(call);
        drop(outside);
        fleet.sim.sometimes("probe of a durable tool was asked");
        if done {
            fleet.sim.sometimes("durable tool had taken effect before its receipt");
        }
        done && !self.blind
    }

    fn fail_once(&self, workflow: &Workflow, place: &str) -> Result<(), AnyError> {
        let Some(fleet) = self.fleet.upgrade() else { return Ok(()) };
        let at = (workflow.run_id().to_owned(), place.to_owned());
        let mut outside = locked(&fleet.outside);
        let failed = outside.failed.entry(at).or_default();
        *failed += 1;
        if *failed == 1 { Err(AnyError::msg("it fails once")) } else { Ok(()) }
    }
}

/// The model: its answer to a question is a number. Some attempts fail.
struct Model(Arc<NodeContext>);

impl Provider for Model {
    fn name(&self) -> &str {
        "sim"
    }

    fn wire_format(&self) -> WireFormat {
        WireFormat::AnthropicMessages
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        _: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        Box::pin(async move {
            self.0.work().await;
            if self.0.coin() && self.0.coin() {
                let kind = match self.0.coin() {
                    true => ProviderErrorKind::Overloaded,
                    false => ProviderErrorKind::UnknownOutcome,
                };
                return Err(ProviderError::new(kind, "it fails"));
            }
            if request.attempt > 1 {
                self.0.sometimes("call of a model was sent again");
            }
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let last = body["messages"].as_array().and_then(|items| items.last());
            let question = last.and_then(|item| item["content"].as_str()).unwrap_or_default();
            let text = answer_to(question).to_string();
            let body = json!({ "content": [{ "type": "text", "text": text }] });
            Ok(ProviderResponse {
                body: body.to_string().into(),
                content: Vec::new(),
                stop_reason: Some("end_turn".into()),
                model: None,
                usage: Usage { input_tokens: 3, output_tokens: 1, ..Usage::default() },
                message_id: None,
                request_id: None,
                rate_limits: RateLimits::default(),
            })
        })
    }
}

/// A tool. The one with a receipt takes effect in the world outside.
struct Pay {
    node_context: Arc<NodeContext>,
    durable: bool,
}

impl Pay {
    fn output(input: &Map<String, Value>) -> ToolOutput {
        ToolOutput::new(step_value(input["key"].as_str().unwrap_or_default()))
    }
}

impl Tool for Pay {
    type Input = Map<String, Value>;

    fn name(&self) -> &str {
        if self.durable { "pay" } else { "look" }
    }

    fn description(&self) -> &str {
        "Pays, or looks."
    }

    fn is_durable(&self) -> bool {
        self.durable
    }

    async fn call(&self, context: ToolContext, input: Self::Input) -> Result<ToolOutput, AnyError> {
        let (node_context, call) = (&self.node_context, context.call_id.as_str());
        if self.durable {
            node_context.tool_begins(&context.run_id, call);
        }
        node_context.work().await;
        if self.durable {
            node_context.tool_takes_effect(call);
            node_context.work().await;
        }
        Ok(Self::output(&input))
    }

    async fn probe(&self, context: ToolContext, input: Self::Input) -> Result<Probe, AnyError> {
        let call = context.call_id.as_str();
        Ok(match self.node_context.tool_is_done(&context.run_id, call) {
            true => Probe::Completed(Self::output(&input)),
            false => Probe::NotStarted,
        })
    }
}

// One turn of the program: does what the next leg says.
async fn step(
    node_context: &NodeContext,
    workflow: &mut Workflow,
    next: Continuation,
) -> CallResult {
    node_context.work().await;
    let (seed, place) = (workflow.get::<u64>("seed")?, workflow.get::<usize>("place")?);
    let legs = TestAgent::of(seed).legs;
    match legs.get(place) {
        None => Ok(next.halt()),
        Some(Leg::Call) => advance(workflow, next, step_value(&place.to_string())),
        Some(Leg::Llm) => ask(workflow, next, &place.to_string(), "answered"),
        Some(Leg::Tools(tools)) => {
            let uses =
                tools.iter().enumerate().map(|(n, durable)| tool_use(*durable, &key(place, n)));
            Ok(next.tools(uses.collect(), "results", "served"))
        }
        Some(Leg::Fork(twigs)) => {
            let branch = |n: usize| {
                let name = if n == 0 { "g1".to_owned() } else { n.to_string() };
                ForkBranch::new(name, "twig").with("twig", n).only([format!("value.{n}")])
            };
            Ok(next.fork_join((0..twigs.len()).map(branch).collect(), "joined"))
        }
        Some(Leg::Human) => Ok(next.human(HumanRequest::to(PERSON), "outcome", "decided")),
        Some(Leg::Shaky) => {
            node_context.fail_once(workflow, &place.to_string())?;
            advance(workflow, next, step_value(&place.to_string()))
        }
    }
}

fn advance(workflow: &mut Workflow, next: Continuation, value: u64) -> CallResult {
    let (sum, place) = (workflow.get::<u64>("sum")?, workflow.get::<usize>("place")?);
    workflow.set("sum", &mix(sum ^ value))?;
    workflow.set("place", &(place + 1))?;
    Ok(next.call("step"))
}

fn ask(workflow: &mut Workflow, next: Continuation, question: &str, then: &str) -> CallResult {
    workflow.transcript("chat").push_user(question)?;
    let request = LlmRequest::new("sim", "m").param("max_tokens", 10).transcript("chat");
    Ok(next.llm(request, "answer", then))
}

fn tool_use(durable: bool, key: &str) -> ToolUse {
    let name = if durable { "pay" } else { "look" };
    ToolUse { id: format!("tu_{key}"), name: name.to_owned(), input: json!({ "key": key }) }
}

fn answer(workflow: &Workflow) -> Result<u64, AnyError> {
    Ok(workflow.response("answer")?.text()?.parse()?)
}

fn results(workflow: &Workflow) -> Result<Vec<u64>, AnyError> {
    let results = workflow.tool_results("results")?;
    let number = |content: &Value| content.as_u64();
    let numbers: Option<Vec<u64>> = results.iter().map(|result| number(&result.content)).collect();
    numbers.ok_or_else(|| AnyError::msg(format!("{results:?} are no numbers")))
}

async fn answered(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let value = answer(workflow)?;
    advance(workflow, next, value)
}

async fn served(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let value = fold(results(workflow)?.into_iter());
    advance(workflow, next, value)
}

async fn decided(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let outcome: RequestOutcome = workflow.get("outcome")?;
    advance(workflow, next, if outcome.is_approved() { APPROVED } else { 0 })
}

async fn joined(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (seed, place) = (workflow.get::<u64>("seed")?, workflow.get::<usize>("place")?);
    let Some(Leg::Fork(twigs)) = TestAgent::of(seed).legs.get(place).cloned() else {
        return Err(AnyError::msg("no fork is here"));
    };
    let mut values = Vec::new();
    for n in 0..twigs.len() {
        values.push(workflow.take::<u64>(&format!("value.{n}"))?);
    }
    advance(workflow, next, fold(values.into_iter()))
}

// A branch. It leaves its value under a key of its own.
async fn run_twig(
    node_context: &NodeContext,
    workflow: &mut Workflow,
    next: Continuation,
) -> CallResult {
    node_context.work().await;
    let (seed, place) = (workflow.get::<u64>("seed")?, workflow.get::<usize>("place")?);
    let n: usize = workflow.get("twig")?;
    let legs = TestAgent::of(seed).legs;
    let Some(Leg::Fork(twigs)) = legs.get(place) else {
        return Err(AnyError::msg("no fork is here"));
    };
    let key = key(place, n);
    match twigs.get(n).copied().unwrap_or(Twig::Plain) {
        Twig::Plain => leave(workflow, next, step_value(&key)),
        Twig::Llm => ask(workflow, next, &key, "twig_answered"),
        Twig::Pay => Ok(next.tools(vec![tool_use(true, &key)], "results", "twig_served")),
        Twig::Shaky => {
            node_context.fail_once(workflow, &key)?;
            leave(workflow, next, step_value(&key))
        }
        Twig::Fork => {
            let leaf = |name: &str| {
                ForkBranch::new(name, "leaf").with("leaf", name).only([format!("leaf.{name}")])
            };
            Ok(next.fork_join(LEAVES.map(leaf).into(), "twig_joined"))
        }
    }
}

fn leave(workflow: &mut Workflow, next: Continuation, value: u64) -> CallResult {
    let n: usize = workflow.get("twig")?;
    workflow.set(&format!("value.{n}"), &value)?;
    Ok(next.halt())
}

async fn twig_answered(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let value = answer(workflow)?;
    leave(workflow, next, value)
}

async fn twig_served(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let value = results(workflow)?.first().copied().unwrap_or_default();
    leave(workflow, next, value)
}

async fn leaf(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let name: String = workflow.get("leaf")?;
    workflow.set(&format!("leaf.{name}"), &step_value(&name))?;
    Ok(next.halt())
}

async fn twig_joined(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let mut values = Vec::new();
    for name in LEAVES {
        values.push(workflow.get::<u64>(&format!("leaf.{name}"))?);
    }
    leave(workflow, next, fold(values.into_iter()))
}

/// Serves the agent on a node.
pub(crate) fn serve(engine: &Engine, node_context: &Arc<NodeContext>) {
    let (steps, twigs) = (Arc::clone(node_context), Arc::clone(node_context));
    let tool = |durable| Pay { node_context: Arc::clone(node_context), durable };
    let retries = RetryPolicy::constant(RetryLimit::Forever, Duration::from_millis(300));
    let agent = Agent::new(AGENT, "step")
        .functions(|functions| {
            functions.register_boxed("step", 1, move |workflow, next| {
                let node_context = Arc::clone(&steps);
                Box::pin(async move { step(&node_context, workflow, next).await })
            });
            functions.register_boxed("twig", 1, move |workflow, next| {
                let node_context = Arc::clone(&twigs);
                Box::pin(async move { run_twig(&node_context, workflow, next).await })
            });
        })
        .function("answered", answered)
        .function("served", served)
        .function("decided", decided)
        .function("joined", joined)
        .function("twig_answered", twig_answered)
        .function("twig_served", twig_served)
        .function("twig_joined", twig_joined)
        .function("leaf", leaf)
        .tool(tool(true))
        .tool(tool(false))
        .provider(Arc::new(Model(Arc::clone(node_context))))
        .retry_policy(retries)
        .output("sum");
    agents::register(engine, agent).expect("the agent is registered once");
}

/// Starts a run from a process that serves nothing. Retries it when it fails, restarts or terminates it
/// sometimes, and waits for its result.
pub(crate) async fn run_to_end(
    sim: Handle,
    node: NodeId,
    engine: Engine,
    (view, accepted, seed): (Arc<Mutex<ClientView>>, Accepted, u64),
    mut rng: Rng,
) {
    let id = locked(&view).id.clone();
    let agents = agents::remote(&engine, AGENT).expect("a valid name");
    sim.sleep_us(rng.range(1, 2_000_000)).await;
    let input = json!({ "seed": seed, "sum": seed, "place": 0 });
    let run = until_answered(&sim, || agents.start(input.clone()).id(id.clone())).await;
    let run = run.expect("a run of a new name can be started");
    let person = answer_questions(sim.clone(), engine.clone(), view.clone(), accepted);
    sim.spawn(node, person);
    if rng.chance(300) {
        sim.spawn(node, pause_and_resume(sim.clone(), run.clone(), rng.fork()));
    }
    // The restart must be over before the last result counts.
    let restarting = Arc::new(Mutex::new(false));
    match rng.below(10) {
        0 => {
            let (sim_of, view, wait_us) = (sim.clone(), view.clone(), rng.range(1, 6_000_000));
            sim.spawn(node, super::client::terminate_soon(sim_of, run.clone(), view, wait_us));
        }
        1..5 => {
            *locked(&restarting) = true;
            let (sim_of, run, over) = (sim.clone(), run.clone(), Arc::clone(&restarting));
            let wait_us = rng.range(1, 5_000_000);
            sim.spawn(node, async move {
                sim_of.sleep_us(wait_us).await;
                let live = matches!(run.status().await, Ok(status) if !status.status.is_ended());
                let restarted = until_answered(&sim_of, || run.restart()).await;
                if live && restarted.is_ok() {
                    sim_of.sometimes("client restarted a live agent");
                }
                *locked(&over) = false;
            });
        }
        _ => {}
    }
    let ended = result(&sim, &agents, &id, &view, &restarting).await;
    locked(&view).ended = Some(ended);
}

// The result of the last generation.
async fn result(
    sim: &Handle,
    agents: &WorkflowRef<Value, Value>,
    id: &str,
    view: &Mutex<ClientView>,
    restarting: &Mutex<bool>,
) -> Result<u64, String> {
    loop {
        let run: RunHandle<Value> =
            until_answered(sim, || agents.get(id)).await.expect("the run was started");
        let ended: Result<Value, Error> = until_answered(sim, || run.result()).await;
        let newest = until_answered(sim, || agents.get(id)).await.expect("the run was started");
        if !*locked(restarting) && newest.run_key() == run.run_key() {
            match ended {
                Ok(value) => return Ok(value.as_u64().unwrap_or_default()),
                Err(error) if error.code() == ErrorCode::RunErrored => {
                    if until_answered(sim, || run.retry()).await.is_ok() {
                        sim.sometimes("client retried an agent");
                    }
                }
                Err(error) if locked(view).terminated => {
                    return Err(error.code().as_str().to_owned());
                }
                Err(error) => sim.trace(format_args!("{id}: {}", error.code())),
            }
        }
        sim.sleep_us(200_000).await;
    }
}

// Approves every question of a run, until the run has ended.
async fn answer_questions(
    sim: Handle,
    engine: Engine,
    view: Arc<Mutex<ClientView>>,
    accepted: Accepted,
) {
    let requests = engine.requests();
    let open = InboxQuery::Status(RequestStatus::Open);
    let who = Decider::new(Subject::new(PERSON, ["board"]).expect("a valid name"));
    loop {
        sim.sleep_us(150_000).await;
        let id = {
            let view = locked(&view);
            if view.ended.is_some() {
                return;
            }
            view.id.clone()
        };
        let page = requests.inbox(&open, InboxOrder::Opened, None, 50).await;
        let found = page.map(|page| page.requests).unwrap_or_default();
        for request in found.into_iter().filter(|request| request.run.id == id) {
            let yes = NewDecision::approve();
            match until_answered(&sim, || requests.decide(&request.id, &who, &yes)).await {
                Ok(_) => locked(&accepted).push((request.id, PERSON.to_owned())),
                Err(error) => sim.trace(format_args!("decide: {}", error.code())),
            }
        }
    }
}

/// Whether the end of a run, as its row has it, is what its program comes to.
pub(crate) fn is_right(run: &Run) -> bool {
    let input: Value = run.input.read().unwrap_or_default();
    let output = run.output.as_ref().and_then(|output| output.read::<u64>().ok());
    let expected = input["seed"].as_u64().map(TestAgent::expected);
    // The output of a branch is its env.
    run.status == RunStatus::Complete && (run.parent.is_some() || output == expected)
}
