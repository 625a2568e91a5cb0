//! Requests of a program: calls of language models, tools, people and branches.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use windlass_kernel::{Error, ErrorCode, IntoDuration};

use super::budget::Budget;
use super::env::{invalid, read_duration};
use super::lane::Lane;
use super::provider::{Usage, WireFormat};

/// How many branches a fork has at most.
pub const BRANCHES_MAX: usize = 128;
/// How many tool calls one dispatch has at most.
pub const TOOL_USES_MAX: usize = 128;

/// A call of a language model. The parameters are the provider's own JSON, in the order in which they
/// are given; the items of the conversation come from a transcript.
///
/// ```
/// use serde_json::json;
/// use windlass_models::agents::LlmRequest;
///
/// let request = LlmRequest::new("anthropic", "claude-sonnet")
///     .param("max_tokens", 1_024)
///     .param("system", "Answer in one sentence.")
///     .transcript("chat");
/// assert_eq!(request.provider(), "anthropic");
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use]
pub struct LlmRequest {
    pub(crate) provider: String,
    pub(crate) model: String,
    pub(crate) params: Vec<(String, Box<RawValue>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transcript: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stream: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lane: Option<Lane>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) turns_left: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) on_overflow: Option<String>,
}

impl LlmRequest {
    /// A call of a model of a provider.
    pub fn new(provider: impl Into<String>, model: impl Into<String>) -> Self {
        let model = model.into();
        let request = Self {
            provider: provider.into(),
            model: String::new(),
            params: Vec::new(),
            transcript: None,
            timeout_ms: None,
            stream: false,
            lane: None,
            turns_left: None,
            on_overflow: None,
        };
        Self { model: model.clone(), ..request.param("model", model) }
    }

    /// Adds a member of the request's body. A second value for a member replaces the first one.
    ///
    /// ```
    /// # use windlass::agents::LlmRequest;
    /// let request = LlmRequest::new("anthropic", "claude-haiku-4-5").param("max_tokens", 1_024);
    /// # drop(request);
    /// ```
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let (name, value): (String, Value) = (name.into(), value.into());
        let value = RawValue::from_string(value.to_string()).expect("a JSON value is JSON text");
        match self.params.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.params.push((name, value)),
        }
        self
    }

    /// Sends the items of this transcript, and appends the response to it.
    ///
    /// ```
    /// # use windlass::agents::LlmRequest;
    /// let request = LlmRequest::new("anthropic", "claude-haiku-4-5").transcript("chat");
    /// # drop(request);
    /// ```
    pub fn transcript(mut self, name: impl Into<String>) -> Self {
        self.transcript = Some(name.into());
        self
    }

    /// How long one attempt may take: a text such as `"2 minutes"`, a `Duration`, or milliseconds. Default: the
    /// option of the agent.
    ///
    /// ```
    /// # use windlass::agents::LlmRequest;
    /// let request = LlmRequest::new("anthropic", "claude-haiku-4-5").timeout("2 minutes")?;
    /// # drop(request);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Result<Self, Error> {
        let timeout = read_duration("the timeout of a request", timeout)?;
        self.timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        Ok(self)
    }

    /// Asks the provider to stream, also if nobody watches when the call begins. Long answers need it: some
    /// providers refuse to compute them without a stream.
    ///
    /// ```
    /// # use windlass::agents::LlmRequest;
    /// let request = LlmRequest::new("anthropic", "claude-haiku-4-5").stream();
    /// # drop(request);
    /// ```
    pub fn stream(mut self) -> Self {
        self.stream = true;
        self
    }

    /// How the call is made. Default: the option of the agent.
    ///
    /// ```
    /// # use windlass::agents::{Lane, LlmRequest};
    /// let request = LlmRequest::new("anthropic", "claude-haiku-4-5").lane(Lane::Batch);
    /// # drop(request);
    /// ```
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = Some(lane);
        self
    }

    /// How many calls, with this one, the program still makes at most before its deadline. A lane with a deadline
    /// divides the time that is left by it. Default 1.
    ///
    /// ```
    /// # use windlass::agents::{Lane, LlmRequest};
    /// // Three calls share the six hours.
    /// let request = LlmRequest::new("anthropic", "claude-haiku-4-5").lane(Lane::within("6 hours")?).turns_left(3);
    /// # drop(request);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn turns_left(mut self, turns: u32) -> Self {
        self.turns_left = Some(turns.max(1));
        self
    }

    /// Runs this function instead of failing the run if the provider refuses the request because it does not
    /// fit into the context of the model.
    ///
    /// ```
    /// # use windlass::agents::LlmRequest;
    /// let request = LlmRequest::new("anthropic", "claude-haiku-4-5").on_overflow("summarise");
    /// # drop(request);
    /// ```
    pub fn on_overflow(mut self, function: impl Into<String>) -> Self {
        self.on_overflow = Some(function.into());
        self
    }

    pub(crate) fn has_param(&self, name: &str) -> bool {
        self.params.iter().any(|(known, _)| known == name)
    }

    /// The name of the provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The requested model.
    pub fn model(&self) -> &str {
        &self.model
    }
}

/// A response in the env.
#[derive(Clone, Debug)]
pub struct Response {
    pub(crate) format: WireFormat,
    pub(crate) body: bytes::Bytes,
    pub(crate) info: ResponseInfo,
}

/// The part of a response that the env keeps beside the reference to its body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseInfo {
    /// Why the model stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The provider's id of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The provider's id of the HTTP request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The tokens that the call used.
    #[serde(default, serialize_with = "write_short_usage")]
    pub usage: Usage,
}

/// The usage as snapshots and events have it: without counts of zero, because every call writes it three times.
pub(crate) fn short_usage(usage: &Usage) -> Map<String, Value> {
    let Usage {
        input_tokens,
        output_tokens,
        cache_creation_input_tokens,
        cache_read_input_tokens,
        reasoning_output_tokens,
    } = usage;
    let all = [
        ("input_tokens", input_tokens, true),
        ("output_tokens", output_tokens, true),
        ("cache_creation_input_tokens", cache_creation_input_tokens, false),
        ("cache_read_input_tokens", cache_read_input_tokens, false),
        ("reasoning_output_tokens", reasoning_output_tokens, false),
    ];
    let written = all.into_iter().filter(|(_, tokens, always)| *always || **tokens > 0);
    written.map(|(name, tokens, _)| (name.to_owned(), Value::from(*tokens))).collect()
}

fn write_short_usage<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    short_usage(usage).serialize(serializer)
}

impl Response {
    /// The body as the provider sent it.
    pub fn body(&self) -> &bytes::Bytes {
        &self.body
    }

    /// Why the model stopped, its usage and the ids of the provider.
    pub fn info(&self) -> &ResponseInfo {
        &self.info
    }

    /// The format of the body.
    pub fn wire_format(&self) -> WireFormat {
        self.format
    }

    /// The text of the response.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ProviderFailed`] if the body is not a response of its format.
    pub fn text(&self) -> Result<String, Error> {
        self.format.text(&self.body)
    }

    /// The tool calls that the response asks for.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ProviderFailed`] if the body is not a response of its format.
    pub fn tool_uses(&self) -> Result<Vec<ToolUse>, Error> {
        self.format.tool_uses(&self.body)
    }
}

/// A tool call that a model asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolUse {
    /// The provider's id of the call; the result goes back under it.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The input.
    pub input: Value,
}

/// The result of a tool call, as the env keeps it and the model reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The provider's id of the call.
    pub tool_use_id: String,
    /// The name of the tool.
    pub name: String,
    /// The result; text goes to the model as text, everything else as JSON.
    pub content: Value,
    /// Whether the model should read it as an error.
    #[serde(default)]
    pub is_error: bool,
}

/// A branch of a fork: it begins with a copy of the env and runs until it halts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForkBranch {
    pub(crate) name: String,
    pub(crate) function: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<(String, Value)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) only: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) budget: Option<Budget>,
}

impl ForkBranch {
    /// A branch that begins with this function.
    pub fn new(name: impl Into<String>, function: impl Into<String>) -> Self {
        let (name, function) = (name.into(), function.into());
        Self { name, function, set: Vec::new(), only: None, budget: None }
    }

    /// Sets a key of the branch's env. The key belongs to the branch: the join merges it as a change.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set.push((key.into(), value.into()));
        self
    }

    /// The join merges only these keys of the branch's env, and none of its transcripts.
    #[must_use]
    pub fn only<S: Into<String>>(mut self, keys: impl IntoIterator<Item = S>) -> Self {
        self.only = Some(keys.into_iter().map(Into::into).collect());
        self
    }

    /// Limits the branch. Its usage counts for the budget of the run too.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The two branches `lhs` and `rhs`.
    pub fn pair(lhs: impl Into<String>, rhs: impl Into<String>) -> Vec<Self> {
        vec![Self::new("lhs", lhs), Self::new("rhs", rhs)]
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

pub(crate) fn check_branches(branches: &[ForkBranch]) -> Result<(), Error> {
    if branches.is_empty() || branches.len() > BRANCHES_MAX {
        let found = branches.len();
        let message = format!("a fork has {found} branches; 1 to {BRANCHES_MAX} are allowed");
        return Err(invalid(ErrorCode::InvalidSize, message));
    }
    let mut names = std::collections::BTreeSet::new();
    for ForkBranch { name, budget, .. } in branches {
        budget.as_ref().map_or(Ok(()), Budget::check)?;
        if name.is_empty() || name.len() > 100 || name.contains('\0') {
            let message =
                format!("the branch name {name:?} is not valid: use 1 to 100 bytes, no NUL");
            return Err(invalid(ErrorCode::InvalidName, message));
        }
        if !names.insert(name) {
            let message = format!("two branches of a fork have the name {name:?}");
            return Err(invalid(ErrorCode::InvalidName, message));
        }
    }
    Ok(())
}
