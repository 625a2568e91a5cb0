//! Continuations: the one thing that a function uses up to state what comes next.

use windlass_kernel::Error;
use windlass_kernel::request::Request as HumanRequest;

use super::request::{ForkBranch, LlmRequest, ToolUse};

/// The right to state what comes next. A function gets one and returns the [`Choice`] that it makes of it.
///
/// ```
/// use windlass_models::AnyError;
/// use windlass_models::agents::{Choice, Continuation, Workflow};
///
/// async fn plan(workflow: &mut Workflow, next: Continuation) -> Result<Choice, AnyError> {
///     let urgent: bool = workflow.get("urgent")?;
///     Ok(if urgent { next.call("escalate") } else { next.halt() })
/// }
/// # drop(plan);
/// ```
///
/// It can be used once:
///
/// ```compile_fail
/// # use windlass_models::agents::{Choice, Continuation};
/// fn twice(next: Continuation) -> (Choice, Choice) {
///     (next.halt(), next.goto())
/// }
/// ```
#[derive(Debug)]
#[must_use = "a function ends with the choice that it makes of its continuation"]
pub struct Continuation {
    deferred: Vec<String>,
}

/// The choice of a function.
#[derive(Debug)]
#[must_use = "a function returns its choice"]
pub struct Choice {
    pub(crate) next: Next,
    /// Functions to defer, the first one runs last.
    pub(crate) deferred: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum Next {
    Goto,
    Halt,
    Call(String),
    Llm(LlmRequest, String),
    Human(Box<HumanRequest>, String),
    Tools(Vec<ToolUse>, String),
    ForkJoin(Vec<ForkBranch>, String),
    Refused(Error),
}

impl Continuation {
    pub(crate) fn new() -> Self {
        Self { deferred: Vec::new() }
    }

    /// Defers a function: it runs when what follows goes back with [`Continuation::goto`].
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     // "load" runs first; when it goes back, "report" runs.
    ///     let _ = workflow;
    ///     Ok(next.defer("report").call("load"))
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn defer(mut self, function: impl Into<String>) -> Self {
        self.deferred.push(function.into());
        self
    }

    /// Goes on with the function that was deferred last. Without one the workflow ends.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     workflow.set("loaded", &true)?;
    ///     Ok(next.goto())
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn goto(self) -> Choice {
        self.choose(Next::Goto)
    }

    /// Ends the workflow and drops all deferred functions.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     workflow.set("done", &true)?;
    ///     Ok(next.halt())
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn halt(self) -> Choice {
        self.choose(Next::Halt)
    }

    /// Runs a function next.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     workflow.set("attempt", &1)?;
    ///     Ok(next.call("load"))
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn call(self, function: impl Into<String>) -> Choice {
        self.choose(Next::Call(function.into()))
    }

    /// Calls a language model. The response is in the env at `output_key` when `next` runs.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// # use windlass::agents::LlmRequest;
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     workflow.transcript("chat").push_user("Why is the sky blue?")?;
    ///     let request = LlmRequest::new("anthropic", "claude-haiku-4-5");
    ///     let request = request.param("max_tokens", 1_024).transcript("chat");
    ///     Ok(next.llm(request, "response", "read_response"))
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn llm(
        self,
        request: LlmRequest,
        output_key: impl Into<String>,
        next: impl Into<String>,
    ) -> Choice {
        self.defer(next).choose(Next::Llm(request, output_key.into()))
    }

    /// Asks a person. The answer is in the env at `output_key` when `next` runs.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// # use windlass::agents::HumanRequest;
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     let amount: u64 = workflow.get("amount")?;
    ///     let request = HumanRequest::to("role:owner").title(format!("Pay {amount}?"));
    ///     Ok(next.human(request, "outcome", "read_outcome"))
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn human(
        self,
        request: HumanRequest,
        output_key: impl Into<String>,
        next: impl Into<String>,
    ) -> Choice {
        self.defer(next).choose(Next::Human(Box::new(request), output_key.into()))
    }

    /// Calls tools, all at once. The results are in the env at `output_key` when `next` runs.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     let uses = workflow.response("response")?.tool_uses()?;
    ///     Ok(next.tools(uses, "results", "read_results"))
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn tools(
        self,
        uses: Vec<ToolUse>,
        output_key: impl Into<String>,
        next: impl Into<String>,
    ) -> Choice {
        self.defer(next).choose(Next::Tools(uses, output_key.into()))
    }

    /// Runs branches at the same time, each with a copy of the env. When all have ended, their changes
    /// are merged by key, and `join` runs.
    ///
    /// ```
    /// # use windlass::agents::{CallResult, Continuation, Workflow};
    /// # use windlass::agents::ForkBranch;
    /// async fn begin(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     workflow.set("topic", &"rust")?;
    ///     let branches = vec![ForkBranch::new("left", "search"), ForkBranch::new("right", "read")];
    ///     Ok(next.fork_join(branches, "merge"))
    /// }
    /// # windlass::agents::Agent::new("a", "begin").function("begin", begin).name();
    /// ```
    pub fn fork_join(self, branches: Vec<ForkBranch>, join: impl Into<String>) -> Choice {
        let refused = super::request::check_branches(&branches).err();
        self.choose(refused.map_or(Next::ForkJoin(branches, join.into()), Next::Refused))
    }

    fn choose(self, next: Next) -> Choice {
        Choice { next, deferred: self.deferred }
    }
}
