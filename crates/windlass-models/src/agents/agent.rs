//! An agent: the functions, tools and providers of a program, with its options.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass_kernel::{
    Decision, Error, ErrorCode, ErrorKind, IntoDuration, RetryLimit, RetryPolicy,
};

use super::agent_loop::Registered;
use super::budget::Budget;
use super::env::{invalid, read_duration};
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
    refused: Option<Error>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent whose runs begin with the function `entry`.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// let agent = Agent::new("greeter", "greet");
    /// # drop(agent);
    /// ```
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
            refused: None,
        }
    }

    /// The same agent under another name.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// assert_eq!(Agent::new("greeter", "greet").named("hello").name(), "hello");
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a function.
    ///
    /// ```
    /// use windlass::agents::{Agent, CallResult, Continuation, Workflow};
    ///
    /// async fn greet(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     let name: String = workflow.get("name")?;
    ///     workflow.set("greeting", &format!("Hello, {name}!"))?;
    ///     Ok(next.halt())
    /// }
    ///
    /// let agent = Agent::new("greeter", "greet").function("greet", greet);
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn function<F>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: for<'a> Function<'a>,
    {
        self.trampoline.register(name, function);
        self
    }

    /// Changes the functions themselves: versions, upcasters, names, limits of events.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// // Runs that wait at the function "greet" continue at "welcome".
    /// let agent = Agent::new("greeter", "greet").functions(|functions| {
    ///     functions.rename("greet", "welcome");
    /// });
    /// # drop(agent);
    /// ```
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
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// assert_eq!(Agent::new("greeter", "greet").name(), "greeter");
    /// ```
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
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// # use windlass::{RetryLimit, RetryPolicy};
    /// let policy = RetryPolicy::constant(RetryLimit::Times(2), "5 seconds");
    /// let agent = Agent::new("greeter", "greet").retry_policy(policy);
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How many retries of a provider call follow the first attempt. Default 5.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// let agent = Agent::new("greeter", "greet").retries(2);
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn retries(mut self, retries: impl Into<RetryLimit>) -> Self {
        self.retry.limit = retries.into();
        self
    }

    /// How long one attempt of a provider call may take: a text such as `"2 minutes"`, a [`Duration`], or
    /// milliseconds. Default ten minutes. A text that is no duration is refused when the agent is registered.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// let agent = Agent::new("greeter", "greet").timeout("2 minutes");
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        match read_duration("the timeout of an agent", timeout) {
            Ok(timeout) => self.timeout = timeout,
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
        self
    }

    /// How many steps a run makes at most. Default 100,000.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// let agent = Agent::new("greeter", "greet").steps_max(500);
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn steps_max(mut self, steps: u64) -> Self {
        self.steps_max = steps;
        self
    }

    /// The env key that is the output of a run. Default: the whole env.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// let agent = Agent::new("greeter", "greet").output("greeting");
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn output(mut self, key: impl Into<String>) -> Self {
        self.output_key = Some(key.into());
        self
    }

    /// Sets what each run may use, with all its branches and retries.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// # use windlass::agents::Budget;
    /// let agent = Agent::new("writer", "write").budget(Budget::usd(0.5));
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Lets the input of a run set its budget: the member with this name, an object with `usd`, `tokens`, `calls`
    /// and `ask`, replaces the budget of the agent. It does not become part of the env.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// # use windlass::agents::Budget;
    /// // A run with the input {"topic": "rust", "budget": {"usd": 2.0}} may use two dollars.
    /// let agent = Agent::new("writer", "write").budget(Budget::usd(0.5)).budget_input("budget");
    /// # drop(agent);
    /// ```
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
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// # use windlass::agents::Lane;
    /// let agent = Agent::new("writer", "write").lane(Lane::Batch);
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = lane;
        self
    }

    /// When the lanes of this agent's providers send batches. Agents with a provider of the same name share its
    /// lanes; the options of the agent that is registered first hold.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// # use windlass::agents::{Lane, LaneOptions};
    /// let options = LaneOptions::default().members_max(1_000).age_max("5 minutes");
    /// let agent = Agent::new("writer", "write").lane(Lane::Batch).lane_options(options);
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn lane_options(mut self, options: LaneOptions) -> Self {
        self.lane_options = options;
        self
    }

    /// Sets what becomes of a call whose batch gave no answer. Default: it goes into the next batch.
    ///
    /// ```
    /// # use windlass::agents::Agent;
    /// # use windlass::agents::BatchRetry;
    /// let agent = Agent::new("writer", "write").batch_retry(BatchRetry::Live);
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn batch_retry(mut self, retry: BatchRetry) -> Self {
        self.batch_retry = retry;
        self
    }

    /// Refuses options that are not valid.
    pub(crate) fn check_options(&self) -> Result<(), Error> {
        if let Some(refused) = &self.refused {
            return Err(invalid(refused.code(), refused.message()));
        }
        self.retry.validate().map_err(|error| {
            let message = format!("the retry policy of the agent {:?}: {error}", self.name);
            invalid(ErrorCode::InvalidRetryPolicy, message)
        })
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

    /// Refuses a workflow that this build cannot go on with.
    pub(crate) fn check(&self, workflow: &Workflow) -> Result<(), Error> {
        self.trampoline.check(workflow)?;
        let Step::Llm { request, .. } = &workflow.step else { return Ok(()) };
        self.provider_named(&request.provider)?;
        match &request.on_overflow {
            Some(function) => self.trampoline.version_of(function).map(drop),
            None => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_be_read_are_refused() {
        let agent = || Agent::new("a", "begin");
        let late = RetryPolicy::constant(RetryLimit::Times(1), "soon");
        for (agent, code) in [
            (agent().timeout("2 minutes").retries(2), None),
            (agent().timeout("soon"), Some(ErrorCode::InvalidDuration)),
            (agent().timeout("soon").timeout("1 minute"), Some(ErrorCode::InvalidDuration)),
            (agent().retry_policy(late), Some(ErrorCode::InvalidRetryPolicy)),
        ] {
            assert_eq!(agent.check_options().err().map(|error| error.code()), code);
        }
        assert_eq!(agent().retries(2).retry.attempts_max(), Some(3));
    }

    #[test]
    fn durations_of_lanes_are_texts() {
        for (options, code) in [
            (LaneOptions::default().gather("300 ms").poll("1 second", "1 minute"), None),
            (LaneOptions::default().gather("soon"), Some(ErrorCode::InvalidDuration)),
            (LaneOptions::default().poll("1 second", "soon"), Some(ErrorCode::InvalidDuration)),
            (LaneOptions::default().poll(0, 0), Some(ErrorCode::InvalidOption)),
        ] {
            assert_eq!(options.check().err().map(|error| error.code()), code);
        }
    }
}
