//! An agent: the functions, tools and providers of a program, with its options.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass_kernel::{Decision, Error, ErrorCode, ErrorKind, RetryLimit, RetryPolicy};

use super::agent_loop::Registered;
use super::budget::Budget;
use super::lane::{BatchRetry, Lane, LaneOptions};
use super::prices::PriceTable;
use super::provider::{Provider, ProviderError};
use super::request::{ForkBranch, LlmRequest};
use super::tool::{Tool, ToolSet};
use super::trampoline::{Function, Trampoline};
use super::workflow::{Step, Workflow};

/// How long one attempt of a provider call may take by default.
pub const LLM_TIMEOUT: Duration = Duration::from_secs(600);
/// How many steps a run makes at most by default.
pub const STEPS_MAX: u64 = 100_000;

/// The retry policy of provider calls that name none: six attempts, 1 s doubling up to 60 s, 10 % jitter.
pub(crate) const RETRY: RetryPolicy = RetryPolicy::exponential_const(
    RetryLimit::Times(5),
    Duration::from_secs(1),
    Some(Duration::from_secs(60)),
)
.with_jitter(0.1);

/// A program with all that it calls. Register it with an engine, or run it with
/// [`live::Executor`](super::live::Executor).
pub struct Agent {
    pub(crate) name: String,
    pub(crate) entry: String,
    pub(crate) trampoline: Trampoline,
    pub(crate) tools: ToolSet,
    providers: BTreeMap<String, Arc<dyn Provider>>,
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Duration,
    pub(crate) steps_max: u64,
    pub(crate) output_key: Option<String>,
    pub(crate) loops: Vec<Arc<Registered>>,
    pub(crate) budget: Option<Budget>,
    pub(crate) budget_input: Option<String>,
    pub(crate) prices: Option<Arc<PriceTable>>,
    pub(crate) lane: Lane,
    pub(crate) lane_options: LaneOptions,
    pub(crate) batch_retry: BatchRetry,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent whose runs begin with the function `entry`.
    pub fn new(name: impl Into<String>, entry: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            entry: entry.into(),
            trampoline: Trampoline::new(),
            tools: ToolSet::default(),
            providers: BTreeMap::new(),
            retry: RETRY,
            timeout: LLM_TIMEOUT,
            steps_max: STEPS_MAX,
            output_key: None,
            loops: Vec::new(),
            budget: None,
            budget_input: None,
            prices: None,
            lane: Lane::Live,
            lane_options: LaneOptions::default(),
            batch_retry: BatchRetry::default(),
        }
    }

    /// The same agent under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a function.
    #[must_use]
    pub fn function<F>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: for<'a> Function<'a>,
    {
        self.trampoline.register(name, function);
        self
    }

    /// Changes the functions themselves: versions, upcasters, names, limits of events.
    #[must_use]
    pub fn functions(mut self, change: impl FnOnce(&mut Trampoline)) -> Self {
        change(&mut self.trampoline);
        self
    }

    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.tools.add(tool);
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tools, for the definitions in requests.
    pub fn tools(&self) -> &ToolSet {
        &self.tools
    }

    /// Adds a provider under its name.
    #[must_use]
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.providers.insert(provider.name().to_owned(), provider);
        self
    }

    /// The retry policy of provider calls. Default: six attempts, 1 s doubling up to 60 s.
    #[must_use]
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How long one attempt of a provider call may take. Default ten minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many steps a run makes at most. Default 100,000.
    #[must_use]
    pub fn steps_max(mut self, steps: u64) -> Self {
        self.steps_max = steps;
        self
    }

    /// The env key that is the output of a run. Default: the whole env.
    #[must_use]
    pub fn output(mut self, key: impl Into<String>) -> Self {
        self.output_key = Some(key.into());
        self
    }

    /// What each run may use, with all its branches and retries.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Lets the input of a run set its budget: the member with this name, an object with `usd`, `tokens`, `calls`
    /// and `ask`, replaces the budget of the agent. It does not become part of the env.
    #[must_use]
    pub fn budget_input(mut self, member: impl Into<String>) -> Self {
        self.budget_input = Some(member.into());
        self
    }

    /// The prices by which budgets and figures count money. Default: the table of this build.
    #[must_use]
    pub fn price_table(mut self, prices: PriceTable) -> Self {
        self.prices = Some(Arc::new(prices));
        self
    }

    /// How calls are made whose request says nothing about it. Default: live. A provider without batches answers
    /// live.
    #[must_use]
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = lane;
        self
    }

    /// When the lanes of this agent's providers send batches. Agents with a provider of the same name share its
    /// lanes; the options of the agent that is registered first hold.
    #[must_use]
    pub fn lane_options(mut self, options: LaneOptions) -> Self {
        self.lane_options = options;
        self
    }

    /// What becomes of a call whose batch gave no answer. Default: it goes into the next batch.
    #[must_use]
    pub fn batch_retry(mut self, retry: BatchRetry) -> Self {
        self.batch_retry = retry;
        self
    }

    pub(crate) fn providers(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.providers.values()
    }

    pub(crate) fn prices(&self) -> &PriceTable {
        self.prices.as_deref().unwrap_or_else(|| PriceTable::built_in())
    }

    /// The budget of a run with this input.
    pub(crate) fn budget_of(&self, input: &Value) -> Result<Option<Budget>, Error> {
        let member = self.budget_input.as_ref().and_then(|member| input.get(member));
        match member {
            Some(Value::Null) | None => Ok(self.budget.clone()),
            Some(member) => Budget::from_input(member).map(Some),
        }
    }

    /// Refuses a budget of money if a loop of the agent calls a model without a price.
    pub(crate) fn check_budget(&self, budget: Option<&Budget>) -> Result<(), Error> {
        let Some(budget) = budget else { return Ok(()) };
        budget.check()?;
        let models = self.loops.iter().map(|registered| &registered.spec.model);
        let mut models = models.filter(|model| self.prices().of(model).is_none());
        match models.next().filter(|_| budget.counts_money()) {
            Some(model) => Err(super::budget::no_price(model, self.prices())),
            None => Ok(()),
        }
    }

    pub(crate) fn provider_named(&self, name: &str) -> Result<Arc<dyn Provider>, Error> {
        self.providers.get(name).cloned().ok_or_else(|| {
            let message = format!("no provider named {name:?} is registered with this agent");
            Error::new(ErrorKind::NotFound, ErrorCode::AgentProviderNotFound, message)
        })
    }

    pub(crate) fn llm_timeout(&self, request: &LlmRequest) -> Duration {
        request.timeout_ms.map_or(self.timeout, Duration::from_millis)
    }

    pub(crate) fn decide(&self, attempt: u32, error: &ProviderError, random: u64) -> Decision {
        let (name, retryable) = (error.kind().as_str(), error.kind().is_retryable());
        self.retry.decide(attempt, name, retryable, error.retry_after(), random)
    }

    /// The workflow with which a branch begins.
    pub(crate) fn branch(&self, parent: &Workflow, branch: &ForkBranch) -> Result<Workflow, Error> {
        let version = self.trampoline.version_of(&branch.function)?;
        let mut forked = Workflow::new(format!("{}:{}", parent.run_id(), branch.name), "");
        forked.env = parent.env.clone();
        forked.transcripts = parent.transcripts.clone();
        forked.bodies = parent.bodies.clone();
        forked.step = Step::Call { function: branch.function.clone(), version };
        for (key, value) in &branch.set {
            forked.set(key, value)?;
        }
        Ok(forked)
    }
}
