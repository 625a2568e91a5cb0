//! The usual loop of an agent, made of the primitives: the model answers, its tools run, the model reads the
//! results, until it has finished.

mod compact;
mod functions;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use windlass_kernel::{Error, ErrorCode};

use super::agent::Agent;
use super::budget::{Budget, no_price};
use super::env::invalid;
use super::lane::Lane;
use super::provider::WireFormat;
use super::workflow::{Step, Workflow};

/// How many calls of the model a loop makes at most by default.
pub const LOOP_TURNS_MAX: u32 = 50;
/// How deep sub-agents call sub-agents at most.
pub const LOOP_DEPTH_MAX: u64 = 8;

/// A loop that an agent runs: a function with this name, and the functions that belong to it.
///
/// The loop reads its prompt from the env key `prompt`, and leaves the text of the last answer at `answer`.
/// Then it goes on with the function that was deferred last; without one the run ends.
///
/// ```
/// use windlass_models::agents::{Agent, AgentLoop};
///
/// let research = AgentLoop::new("research", "anthropic", "claude-sonnet-4-5")
///     .param("max_tokens", 2_048)
///     .system("You find out facts.")
///     .turns_max(20);
/// let agent = Agent::new("researcher", "research").agent_loop(research).output("answer");
/// # drop(agent);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct AgentLoop {
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) model: String,
    params: Vec<(String, Value)>,
    system: Option<String>,
    input: String,
    output: String,
    turns_max: u32,
    overflow: Overflow,
    lane: Option<Lane>,
    sub_agents: Vec<SubAgent>,
}

/// The action of a loop when the conversation no longer fits into the context of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// It fails with [`ErrorCode::AgentContextOverflow`].
    #[default]
    Fail,
    /// The model writes a summary of the earlier part, which takes its place. The items stay in the store.
    Compact {
        /// Compacts before a call if the call before used more tokens, input and output together. Then the
        /// provider need not refuse a request first.
        above_tokens: Option<u64>,
    },
}

/// A function of the program that the model of a loop can call like a tool. It runs as a branch of the run.
#[derive(Clone, Debug)]
#[must_use]
pub struct SubAgent {
    name: String,
    description: String,
    function: String,
    input: String,
    output: String,
    budget: Option<Budget>,
}

impl SubAgent {
    /// A function, most often another loop, under a name that the model knows.
    ///
    /// ```
    /// # use windlass::agents::SubAgent;
    /// let reader = SubAgent::new("reader", "Reads a page and answers a question about it.", "read");
    /// # drop(reader);
    /// ```
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        function: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            function: function.into(),
            input: "prompt".to_owned(),
            output: "answer".to_owned(),
            budget: None,
        }
    }

    /// The env key that receives what the model asks the sub-agent. Default `prompt`.
    ///
    /// ```
    /// # use windlass::agents::SubAgent;
    /// let reader = SubAgent::new("reader", "Reads a page and answers a question about it.", "read").input("question");
    /// # drop(reader);
    /// ```
    pub fn input(mut self, key: impl Into<String>) -> Self {
        self.input = key.into();
        self
    }

    /// The env key whose value goes back to the model. Default `answer`.
    ///
    /// ```
    /// # use windlass::agents::SubAgent;
    /// let reader = SubAgent::new("reader", "Reads a page and answers a question about it.", "read").output("text");
    /// # drop(reader);
    /// ```
    pub fn output(mut self, key: impl Into<String>) -> Self {
        self.output = key.into();
        self
    }

    /// The share of the budget that each call of the sub-agent may use. What it uses counts for the budget of
    /// the run too.
    ///
    /// ```
    /// # use windlass::agents::SubAgent;
    /// # use windlass::agents::Budget;
    /// let reader = SubAgent::new("reader", "Reads a page and answers a question about it.", "read");
    /// let reader = reader.budget(Budget::tokens(20_000));
    /// # drop(reader);
    /// ```
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }
}

impl AgentLoop {
    /// A loop with a model of a provider. The agent must have the provider when it is registered.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5");
    /// # drop(spec);
    /// ```
    pub fn new(
        name: impl Into<String>,
        provider: impl Into<String>,
        model: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            provider: provider.into(),
            model: model.into(),
            params: Vec::new(),
            system: None,
            input: "prompt".to_owned(),
            output: "answer".to_owned(),
            turns_max: LOOP_TURNS_MAX,
            overflow: Overflow::Fail,
            lane: None,
            sub_agents: Vec::new(),
        }
    }

    /// Adds a member of every request, such as `max_tokens`.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").param("max_tokens", 1_024);
    /// # drop(spec);
    /// ```
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.push((name.into(), value.into()));
        self
    }

    /// The instructions for the model.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").system("Answer in one sentence.");
    /// # drop(spec);
    /// ```
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = Some(text.into());
        self
    }

    /// The env key with the prompt. Default `prompt`.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").input("question");
    /// # drop(spec);
    /// ```
    pub fn input(mut self, key: impl Into<String>) -> Self {
        self.input = key.into();
        self
    }

    /// The env key that receives the text of the last answer. Default `answer`.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").output("text");
    /// # drop(spec);
    /// ```
    pub fn output(mut self, key: impl Into<String>) -> Self {
        self.output = key.into();
        self
    }

    /// How often the model is called at most. Default 50.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").turns_max(10);
    /// # drop(spec);
    /// ```
    pub fn turns_max(mut self, turns: u32) -> Self {
        self.turns_max = turns;
        self
    }

    /// Sets what happens when the conversation is too long for the model. Default: the run fails.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// # use windlass::agents::Overflow;
    /// let compact = Overflow::Compact { above_tokens: Some(100_000) };
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").on_overflow(compact);
    /// # drop(spec);
    /// ```
    pub fn on_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// How the calls of the loop are made. Default: as the agent's other calls.
    ///
    /// ```
    /// # use windlass::agents::AgentLoop;
    /// # use windlass::agents::Lane;
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").lane(Lane::Batch);
    /// # drop(spec);
    /// ```
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Lets the model call another function of the program. Several calls at once run as branches at the same
    /// time.
    ///
    /// ```
    /// # use windlass::agents::{AgentLoop, SubAgent};
    /// let reader = SubAgent::new("reader", "Reads a page and answers a question about it.", "read");
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").sub_agent(reader);
    /// # drop(spec);
    /// ```
    pub fn sub_agent(mut self, sub_agent: SubAgent) -> Self {
        self.sub_agents.push(sub_agent);
        self
    }

    fn key(&self, what: &str) -> String {
        format!("{}.{what}", self.name)
    }

    fn sub_agent_named(&self, name: &str) -> Option<&SubAgent> {
        self.sub_agents.iter().find(|sub_agent| sub_agent.name == name)
    }
}

/// A loop with what is known when its agent is registered.
pub(crate) struct Registered {
    pub(crate) spec: AgentLoop,
    resolved: OnceLock<Resolved>,
}

struct Resolved {
    format: WireFormat,
    tools: Value,
}

impl Registered {
    fn resolved(&self) -> Result<&Resolved, Error> {
        self.resolved.get().ok_or_else(|| {
            let message = format!("the loop {:?} belongs to no registered agent", self.spec.name);
            invalid(ErrorCode::AgentFunctionNotFound, message)
        })
    }
}

impl Agent {
    /// Adds a loop: the function with its name begins it.
    ///
    /// ```
    /// # use windlass::agents::{Agent, AgentLoop};
    /// let spec = AgentLoop::new("research", "anthropic", "claude-haiku-4-5").param("max_tokens", 1_024);
    /// let agent = Agent::new("researcher", "research").agent_loop(spec).output("answer");
    /// # drop(agent);
    /// ```
    #[must_use]
    pub fn agent_loop(mut self, spec: AgentLoop) -> Self {
        let registered = Arc::new(Registered { spec, resolved: OnceLock::new() });
        functions::register(&mut self.trampoline, &registered);
        self.loops.push(registered);
        self
    }

    /// The name of the agent that is in charge of a workflow: the loop to which the current or the next function
    /// belongs, else this agent.
    pub(crate) fn in_charge(&self, workflow: &Workflow) -> &str {
        let function = match (&workflow.step, workflow.stack.last()) {
            (Step::Call { function, .. } | Step::ForkJoin { join: function, .. }, _)
            | (_, Some(Step::Call { function, .. })) => function,
            _ => return &self.name,
        };
        let names = self.loops.iter().map(|registered| registered.spec.name.as_str());
        let mut names = names.filter(|name| functions::belongs(function, name));
        names.next().unwrap_or(&self.name)
    }

    /// Refuses a budget of money for a branch that begins with a loop whose model has no price.
    pub(crate) fn check_branch_budget(
        &self,
        budget: Option<&Budget>,
        function: &str,
    ) -> Result<(), Error> {
        let Some(budget) = budget else { return Ok(()) };
        budget.check()?;
        let specs = self.loops.iter().map(|registered| &registered.spec);
        let mut specs = specs.filter(|spec| functions::belongs(function, &spec.name));
        match specs.find(|spec| budget.counts_money() && self.prices().of(&spec.model).is_none()) {
            Some(spec) => Err(no_price(&spec.model, self.prices())),
            None => Ok(()),
        }
    }

    /// Gives the loops the tools and the format of their providers.
    pub(crate) fn resolve_loops(&self) -> Result<(), Error> {
        let mut seen = BTreeMap::new();
        for registered in &self.loops {
            let spec = &registered.spec;
            if let Some(model) = seen.insert(&spec.name, &spec.model) {
                let message =
                    format!("two loops have the name {:?}, the first with {model:?}", spec.name);
                return Err(invalid(ErrorCode::InvalidName, message));
            }
            let format = self.provider_named(&spec.provider)?.wire_format();
            let mut tools = self.tools.definitions(format);
            for sub_agent in &spec.sub_agents {
                self.trampoline.version_of(&sub_agent.function)?;
                self.check_branch_budget(sub_agent.budget.as_ref(), &sub_agent.function)?;
                let taken = tools.as_array().is_some_and(|tools| {
                    tools.iter().any(|tool| tool["name"] == sub_agent.name.as_str())
                });
                if taken {
                    let message = format!(
                        "the loop {:?} has two tools with the name {:?}",
                        spec.name, sub_agent.name
                    );
                    return Err(invalid(ErrorCode::InvalidName, message));
                }
                let SubAgent { name, description, .. } = sub_agent;
                let tool = format.tool_definition(name, description, &sub_agent_schema());
                tools.as_array_mut().expect("definitions are a list").push(tool);
            }
            // A second registration of the same agent finds the same tools.
            let _ = registered.resolved.set(Resolved { format, tools });
        }
        Ok(())
    }
}

fn sub_agent_schema() -> Value {
    json!({
        "type": "object",
        "properties": { "prompt": { "type": "string", "description": "The task, with all that it needs." } },
        "required": ["prompt"],
    })
}
