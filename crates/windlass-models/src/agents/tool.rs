//! Tools that models call: the trait, and the dispatch of several calls at once.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, select};
use schemars::JsonSchema;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::Instrument as _;
use windlass_engine::{Env, panic_text};
use windlass_kernel::{BoxFuture, Error, ErrorCode, ErrorKind, Sha256Digest};

use super::provider::WireFormat;
use super::request::{ToolResult, ToolUse};
use super::telemetry;
use super::tool_source::{DynamicTool, ToolSource};
use crate::any_error::AnyError;

/// How long a tool runs by default.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(120);

/// A tool that a model can call.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use windlass_models::AnyError;
/// use windlass_models::agents::{Tool, ToolContext, ToolOutput};
///
/// struct Add;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Numbers {
///     a: i64,
///     b: i64,
/// }
///
/// impl Tool for Add {
///     type Input = Numbers;
///
///     fn name(&self) -> &str {
///         "add"
///     }
///
///     fn description(&self) -> &str {
///         "Adds two numbers."
///     }
///
///     async fn call(&self, _: ToolContext, input: Numbers) -> Result<ToolOutput, AnyError> {
///         Ok(ToolOutput::new(input.a + input.b))
///     }
/// }
/// ```
pub trait Tool: Send + Sync + 'static {
    /// The input; its schema goes to the model.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;

    /// The name.
    fn name(&self) -> &str;

    /// The description that the model reads.
    fn description(&self) -> &str;

    /// Does the work. An error that the model should read is an output ([`ToolOutput::error`]); an `Err` ends
    /// the run.
    fn call(
        &self,
        context: ToolContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<ToolOutput, AnyError>> + Send;

    /// How long it may run.
    fn timeout(&self) -> Duration {
        TOOL_TIMEOUT
    }

    /// Whether each call has a receipt: a row that is written before the call and when it ends. After a crash
    /// the engine asks [`Tool::probe`] about a call without a result, and does not run it again by itself.
    /// Other tools run at least once.
    fn is_durable(&self) -> bool {
        false
    }

    /// Finds out what became of a call of a durable tool that was interrupted.
    fn probe(
        &self,
        context: ToolContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<Probe, AnyError>> + Send {
        let _ = (context, input);
        async { Ok(Probe::Unknown) }
    }
}

/// The call that a tool serves.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The id of the call: the same in every attempt and every retry of the run. A restart begins with others.
    pub call_id: ToolCallId,
    /// The provider's id of the call.
    pub tool_use_id: String,
    /// The id of the run.
    pub run_id: String,
}

/// The id of a tool call. It is the same in every attempt and every retry of a run, so it can be an
/// idempotency key. After a restart of the run the calls are others and have other ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolCallId(String);

impl ToolCallId {
    /// The id of call `index` of dispatch `batch` of a run.
    pub(crate) fn new(run: &str, batch: u64, index: usize) -> Self {
        let parts = [run.as_bytes(), &batch.to_be_bytes(), &index.to_be_bytes()];
        let digest = Sha256Digest::of_parts(&parts);
        let hex: String = digest.as_bytes()[..16].iter().map(|b| format!("{b:02x}")).collect();
        Self(format!("tc_{hex}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ToolCallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The output of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutput {
    /// The content for the model.
    pub content: Value,
    /// Whether the model should read it as an error.
    pub is_error: bool,
}

impl ToolOutput {
    /// An output.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), is_error: false }
    }

    /// An error that the model should read.
    pub fn error(text: impl Into<String>) -> Self {
        Self { content: Value::String(text.into()), is_error: true }
    }
}

/// The outcome of an interrupted call of a durable tool.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// It finished with this output.
    Completed(ToolOutput),
    /// It had no effect: the engine runs it again.
    NotStarted,
    /// Nobody knows; the run fails, and a person decides.
    Unknown,
}

/// The tools of a program.
#[derive(Clone, Default)]
pub struct ToolSet {
    tools: BTreeMap<String, Arc<dyn AnyTool>>,
    sources: BTreeMap<String, Sha256Digest>,
}

impl fmt::Debug for ToolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

impl ToolSet {
    /// Adds a tool. A second one with the same name replaces the first.
    pub fn add(&mut self, tool: impl Tool) -> &mut Self {
        self.tools.insert(tool.name().to_owned(), Arc::new(tool));
        self
    }

    /// Adds the tools of a source.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`] if the set has a tool or a source with such a name already.
    pub fn add_source(&mut self, source: &ToolSource) -> Result<&mut Self, Error> {
        let taken = source.tools().iter().find(|tool| self.tools.contains_key(tool.name()));
        let taken = match taken {
            Some(tool) => Some(("tool", tool.name())),
            None => self.sources.contains_key(source.name()).then_some(("source", source.name())),
        };
        if let Some((what, name)) = taken {
            let message = format!(
                "the source {:?} brings the {what} {name:?}, and there is one already; use a prefix",
                source.name()
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
        }
        for tool in source.tools() {
            self.tools.insert(tool.name.clone(), Arc::new(tool.clone()));
        }
        self.sources.insert(source.name().to_owned(), source.digest());
        Ok(self)
    }

    /// The digests of the sources, by name.
    pub fn sources(&self) -> &BTreeMap<String, Sha256Digest> {
        &self.sources
    }

    /// An error if a source has other tools than a run has recorded.
    pub(crate) fn check_sources(
        &self,
        recorded: &BTreeMap<String, Sha256Digest>,
    ) -> Result<(), Error> {
        let differs = |(name, digest): &(&String, &Sha256Digest)| {
            recorded.get(*name).is_some_and(|known| known != *digest)
        };
        match self.sources.iter().find(differs) {
            None => Ok(()),
            Some((name, digest)) => {
                let message = format!(
                    "the tools of the source {name:?} are no longer those with which the run began: \
                     their digest is {digest}, and the run has {}; retry the run to use the new tools",
                    recorded[name]
                );
                Err(Error::new(ErrorKind::Conflict, ErrorCode::McpToolsChanged, message))
            }
        }
    }

    /// The definitions of all tools, sorted by name, for the parameter `tools` of a request.
    pub fn definitions(&self, format: WireFormat) -> Value {
        let define = |tool: &Arc<dyn AnyTool>| {
            format.tool_definition(tool.name(), tool.description(), &tool.schema())
        };
        self.tools.values().map(define).collect()
    }

    /// The name of a tool for the ledger. Any other name is the model's own text.
    pub(crate) fn shown<'a>(&self, name: &'a str) -> &'a str {
        if self.tools.contains_key(name) { name } else { "unknown" }
    }

    pub(crate) fn is_durable(&self, name: &str) -> bool {
        self.tools.get(name).is_some_and(|tool| tool.is_durable())
    }

    /// Makes one call. Everything that the model can correct is an output: an unknown tool, an input off the
    /// schema, a timeout of a tool that is not durable.
    pub(crate) async fn call(
        &self,
        env: &dyn Env,
        context: ToolContext,
        tool_use: &ToolUse,
    ) -> Result<CallEnd, AnyError> {
        let span = telemetry::tool(&context, &tool_use.name, &tool_use.input);
        let called = self.call_once(env, context, tool_use).instrument(span.clone()).await;
        telemetry::tool_ended(&span, &called);
        called
    }

    async fn call_once(
        &self,
        env: &dyn Env,
        context: ToolContext,
        tool_use: &ToolUse,
    ) -> Result<CallEnd, AnyError> {
        let Some(tool) = self.tools.get(&tool_use.name) else {
            let text = format!("there is no tool named {:?}", tool_use.name);
            return Ok(CallEnd::Output(ToolOutput::error(text)));
        };
        let timeout = tool.timeout();
        let call = AssertUnwindSafe(tool.call(context, tool_use.input.clone())).catch_unwind();
        match select(Box::pin(call), env.sleep(timeout)).await {
            Either::Left((Ok(called), _)) => called.map(CallEnd::Output),
            Either::Left((Err(panic), _)) => {
                let text = panic_text(&*panic);
                Err(AnyError::msg(format!("tool {:?} panicked: {text}", tool_use.name)))
            }
            Either::Right(_) if tool.is_durable() => Ok(CallEnd::Interrupted),
            Either::Right(_) => {
                let text = format!("the tool gave no result within {timeout:?}");
                Ok(CallEnd::Output(ToolOutput::error(text)))
            }
        }
    }

    pub(crate) async fn probe(
        &self,
        context: ToolContext,
        tool_use: &ToolUse,
    ) -> Result<Probe, AnyError> {
        match self.tools.get(&tool_use.name) {
            Some(tool) => tool.probe(context, tool_use.input.clone()).await,
            None => Ok(Probe::Unknown),
        }
    }
}

/// How a call ended.
#[derive(Debug, PartialEq)]
pub(crate) enum CallEnd {
    Output(ToolOutput),
    /// A durable tool took too long: nobody knows whether it took effect.
    Interrupted,
}

/// Calls tools, all at once, and returns their results in the order of the calls.
///
/// # Errors
///
/// The error of the first tool, in the order of the calls, that failed in a way the model should not read.
pub async fn dispatch_tool_uses(
    tools: &ToolSet,
    env: &dyn Env,
    run_id: &str,
    batch: u64,
    uses: &[ToolUse],
) -> Result<Vec<ToolResult>, AnyError> {
    let calls = uses.iter().enumerate().map(|(index, tool_use)| {
        let context = context(run_id, run_id, batch, index, tool_use);
        async move {
            let output = match tools.call(env, context, tool_use).await? {
                CallEnd::Output(output) => output,
                CallEnd::Interrupted => {
                    return Err(AnyError::msg(format!(
                        "tool {:?} took too long, and its outcome is unknown",
                        tool_use.name
                    )));
                }
            };
            Ok(result(tool_use, output))
        }
    });
    futures::future::join_all(calls).await.into_iter().collect()
}

/// `run` names the run with its namespace, so that no other run has the same call ids.
pub(crate) fn context(
    run: &str,
    run_id: &str,
    batch: u64,
    index: usize,
    tool_use: &ToolUse,
) -> ToolContext {
    ToolContext {
        call_id: ToolCallId::new(run, batch, index),
        tool_use_id: tool_use.id.clone(),
        run_id: run_id.to_owned(),
    }
}

pub(crate) fn result(tool_use: &ToolUse, output: ToolOutput) -> ToolResult {
    ToolResult {
        tool_use_id: tool_use.id.clone(),
        name: tool_use.name.clone(),
        content: output.content,
        is_error: output.is_error,
    }
}

trait AnyTool: Send + Sync {
    fn name(&self) -> &str;
    fn description(&self) -> &str;
    fn schema(&self) -> Value;
    fn timeout(&self) -> Duration;
    fn is_durable(&self) -> bool;
    fn call(
        &self,
        context: ToolContext,
        input: Value,
    ) -> BoxFuture<'_, Result<ToolOutput, AnyError>>;
    fn probe(&self, context: ToolContext, input: Value) -> BoxFuture<'_, Result<Probe, AnyError>>;
}

impl<T: Tool> AnyTool for T {
    fn name(&self) -> &str {
        Tool::name(self)
    }

    fn description(&self) -> &str {
        Tool::description(self)
    }

    fn schema(&self) -> Value {
        let mut schema = schemars::schema_for!(T::Input).to_value();
        // Providers want the schema of an object and nothing about the schema itself.
        if let Value::Object(members) = &mut schema {
            members.remove("$schema");
            members.remove("title");
            members.entry("type").or_insert(json!("object"));
        }
        schema
    }

    fn timeout(&self) -> Duration {
        Tool::timeout(self)
    }

    fn is_durable(&self) -> bool {
        Tool::is_durable(self)
    }

    fn call(
        &self,
        context: ToolContext,
        input: Value,
    ) -> BoxFuture<'_, Result<ToolOutput, AnyError>> {
        Box::pin(async move {
            match T::Input::deserialize(input) {
                Ok(input) => Tool::call(self, context, input).await,
                Err(error) => {
                    Ok(ToolOutput::error(format!("the input does not match the schema: {error}")))
                }
            }
        })
    }

    fn probe(&self, context: ToolContext, input: Value) -> BoxFuture<'_, Result<Probe, AnyError>> {
        Box::pin(async move {
            match T::Input::deserialize(input) {
                Ok(input) => Tool::probe(self, context, input).await,
                // Such a call never began.
                Err(_) => Ok(Probe::NotStarted),
            }
        })
    }
}

impl AnyTool for DynamicTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn schema(&self) -> Value {
        self.schema.clone()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn call(
        &self,
        context: ToolContext,
        input: Value,
    ) -> BoxFuture<'_, Result<ToolOutput, AnyError>> {
        (self.call)(context, input)
    }

    fn probe(&self, _: ToolContext, _: Value) -> BoxFuture<'_, Result<Probe, AnyError>> {
        Box::pin(async { Ok(Probe::Unknown) })
    }
}
