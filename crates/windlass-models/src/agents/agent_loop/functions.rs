//! The functions of a loop.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_kernel::{BoxFuture, Error, ErrorCode, ErrorKind};

use super::{LOOP_DEPTH_MAX, Overflow, Registered, compact};
use crate::agents::continuation::Continuation;
use crate::agents::provider::WireFormat;
use crate::agents::request::{ForkBranch, LlmRequest, Response, ToolResult, ToolUse};
use crate::agents::trampoline::{CallResult, Trampoline};
use crate::agents::workflow::Workflow;
use crate::any_error::AnyError;

/// The env key with the depth of sub-agents.
const DEPTH: &str = "loop.depth";
/// How often a loop compacts its conversation without an answer in between.
const COMPACTIONS_MAX: u32 = 4;

type Body = fn(&Registered, &mut Workflow, Continuation) -> CallResult;

const FUNCTIONS: [(&str, Body); 9] = [
    ("", begin),
    (".ask", ask),
    (".read", read),
    (".agents", agents),
    (".tools", tools),
    (".branch", branch),
    (".branch_end", branch_end),
    (".overflow", overflow),
    (".compacted", compacted),
];

/// Whether a function belongs to the loop with this name.
pub(super) fn belongs(function: &str, name: &str) -> bool {
    function
        .strip_prefix(name)
        .is_some_and(|found| FUNCTIONS.iter().any(|(suffix, _)| found == *suffix))
}

/// Registers the functions of a loop.
pub(super) fn register(trampoline: &mut Trampoline, registered: &Arc<Registered>) {
    for (suffix, body) in FUNCTIONS {
        let registered = Arc::clone(registered);
        let name = format!("{}{suffix}", registered.spec.name);
        trampoline.register_boxed(name, 1, move |workflow, next| -> BoxFuture<'_, CallResult> {
            let called = body(&registered, workflow, next);
            Box::pin(async move { called })
        });
    }
}

fn begin(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let name = spec.name.clone();
    if workflow.value(&spec.input).is_some() || workflow.transcript(&name).is_empty() {
        let text = match workflow.get::<Value>(&spec.input)? {
            Value::String(text) => text,
            other => other.to_string(),
        };
        workflow.transcript(&name).push_user(&text)?;
    }
    workflow.set(&spec.key("turns"), &0)?;
    workflow.set(&spec.key("compactions"), &0)?;
    workflow.remove(&spec.key("response"));
    Ok(next.call(spec.key("ask")))
}

fn ask(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let turns: u32 = workflow.get(&spec.key("turns"))?;
    if turns >= spec.turns_max {
        let message = format!(
            "the loop {:?} has called its model {turns} times; at most {} are allowed",
            spec.name, spec.turns_max
        );
        return Err(Error::new(ErrorKind::Refused, ErrorCode::AgentTurnLimit, message).into());
    }
    if let Overflow::Compact { above_tokens: Some(above) } = spec.overflow
        && workflow.value(&spec.key("response")).is_some()
    {
        let usage = workflow.response(&spec.key("response"))?.info().usage.clone();
        let used = usage.input_tokens
            + usage.output_tokens
            + usage.cache_read_input_tokens
            + usage.cache_creation_input_tokens;
        if used > above {
            workflow.remove(&spec.key("response"));
            return Ok(next.call(spec.key("overflow")));
        }
    }
    workflow.set(&spec.key("turns"), &(turns + 1))?;
    let items = workflow.transcript(&spec.name).len();
    workflow.set(&spec.key("items"), &items)?;
    let request = request(this, workflow, &spec.name)?;
    Ok(next.llm(request, spec.key("response"), spec.key("read")))
}

// Equal for every turn, so that the provider's prompt cache hits.
fn request(this: &Registered, workflow: &Workflow, transcript: &str) -> Result<LlmRequest, Error> {
    let (spec, resolved) = (&this.spec, this.resolved()?);
    let mut request = LlmRequest::new(&spec.provider, &spec.model);
    for (name, value) in &spec.params {
        request = request.param(name, value.clone());
    }
    if let Some(system) = &spec.system {
        let member = match resolved.format {
            WireFormat::AnthropicMessages => "system",
            WireFormat::OpenaiResponses => "instructions",
        };
        request = request.param(member, system.as_str());
    }
    if resolved.tools.as_array().is_some_and(|tools| !tools.is_empty()) {
        request = request.param("tools", resolved.tools.clone());
    }
    if let Some(lane) = &spec.lane {
        request = request.lane(lane.clone());
    }
    let turns: u32 = workflow.get(&spec.key("turns")).unwrap_or(0);
    let left = spec.turns_max.saturating_sub(turns) + 1;
    Ok(request.turns_left(left).transcript(transcript).on_overflow(spec.key("overflow")))
}

fn read(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let response = workflow.response(&spec.key("response"))?;
    workflow.set(&spec.key("compactions"), &0)?;
    let stop = response.info().stop_reason.clone().unwrap_or_default();
    match stop.as_str() {
        "model_context_window_exceeded" => {
            // The answer is not complete, and maybe asks for tools that it does not name in full.
            let items: usize = workflow.get(&spec.key("items"))?;
            workflow.transcript(&spec.name).truncate(items);
            return Ok(next.call(spec.key("overflow")));
        }
        "pause_turn" => return Ok(next.call(spec.key("ask"))),
        "refusal" | "content_filter" => return Err(refused(&spec.name, &stop)),
        "max_tokens" | "max_output_tokens" => {
            let message = format!(
                "the answer in the loop {:?} ends at the limit of output tokens; raise it",
                spec.name
            );
            return Err(Error::new(ErrorKind::Failed, ErrorCode::AgentOutputLimit, message).into());
        }
        _ => {}
    }
    let uses = response.tool_uses()?;
    if !uses.is_empty() {
        return call_tools(this, workflow, next, uses);
    }
    let text = response.text()?;
    if text.is_empty() && compact::is_refusal(response.body()) {
        return Err(refused(&spec.name, "refusal"));
    }
    workflow.set(&spec.output, &text)?;
    Ok(next.goto())
}

fn refused(name: &str, reason: &str) -> AnyError {
    let message = format!("the model refuses to answer in the loop {name:?} ({reason})");
    Error::new(ErrorKind::Refused, ErrorCode::AgentRefused, message).into()
}

fn uses_of(this: &Registered, workflow: &Workflow) -> Result<Vec<ToolUse>, Error> {
    let response: Response = workflow.response(&this.spec.key("response"))?;
    response.tool_uses()
}

fn call_tools(
    this: &Registered,
    workflow: &mut Workflow,
    next: Continuation,
    uses: Vec<ToolUse>,
) -> CallResult {
    let spec = &this.spec;
    let depth: u64 = workflow.get(DEPTH).unwrap_or(0);
    let mut branches = Vec::new();
    for (index, tool_use) in uses.iter().enumerate() {
        let Some(sub_agent) = spec.sub_agent_named(&tool_use.name) else { continue };
        if depth >= LOOP_DEPTH_MAX {
            let message = format!(
                "sub-agents call sub-agents more than {LOOP_DEPTH_MAX} deep in the loop {:?}",
                spec.name
            );
            return Err(Error::new(ErrorKind::Refused, ErrorCode::AgentTurnLimit, message).into());
        }
        let call = json!({ "index": index, "agent": sub_agent.name, "input": tool_use.input });
        let mut branch = ForkBranch::new(format!("{}-{index}", sub_agent.name), spec.key("branch"))
            .with(spec.key("call"), call)
            .with(DEPTH, depth + 1)
            .only([spec.key(&format!("sub.{index}"))]);
        if let Some(budget) = &sub_agent.budget {
            branch = branch.budget(budget.clone());
        }
        branches.push(branch);
    }
    match branches.is_empty() {
        true => Ok(next.tools(uses, spec.key("results"), spec.key("tools"))),
        false => Ok(next.fork_join(branches, spec.key("agents"))),
    }
}

// The branches have ended; the other tools of the same answer follow.
fn agents(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let uses = uses_of(this, workflow)?;
    let others: Vec<ToolUse> =
        uses.into_iter().filter(|u| spec.sub_agent_named(&u.name).is_none()).collect();
    if others.is_empty() {
        workflow.set(&spec.key("results"), &Vec::<ToolResult>::new())?;
        return Ok(next.call(spec.key("tools")));
    }
    Ok(next.tools(others, spec.key("results"), spec.key("tools")))
}

fn tools(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let mut of_tools: Vec<ToolResult> = workflow.take(&spec.key("results"))?;
    let mut results = Vec::new();
    for (index, tool_use) in uses_of(this, workflow)?.into_iter().enumerate() {
        if spec.sub_agent_named(&tool_use.name).is_some() {
            let content = workflow.take(&spec.key(&format!("sub.{index}")))?;
            let ToolUse { id, name, .. } = tool_use;
            results.push(ToolResult { tool_use_id: id, name, content, is_error: false });
        } else if !of_tools.is_empty() {
            // In the order of the calls.
            results.push(of_tools.remove(0));
        }
    }
    workflow.transcript(&spec.name).push_tool_results(&results)?;
    Ok(next.call(spec.key("ask")))
}

fn branch(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let call: Value = workflow.get(&spec.key("call"))?;
    let Some(sub_agent) = spec.sub_agent_named(call["agent"].as_str().unwrap_or_default()) else {
        let message = format!("the loop {:?} has no sub-agent {}", spec.name, call["agent"]);
        return Err(
            Error::new(ErrorKind::NotFound, ErrorCode::AgentFunctionNotFound, message).into()
        );
    };
    let prompt = match &call["input"]["prompt"] {
        Value::Null => call["input"].clone(),
        prompt => prompt.clone(),
    };
    workflow.remove(&sub_agent.output);
    // It begins a conversation of its own, also if it is this loop.
    workflow.remove_transcript(&sub_agent.function);
    workflow.set(&sub_agent.input, &prompt)?;
    Ok(next.defer(spec.key("branch_end")).call(&sub_agent.function))
}

fn branch_end(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let call: Value = workflow.get(&spec.key("call"))?;
    let sub_agent = spec.sub_agent_named(call["agent"].as_str().unwrap_or_default());
    let output = sub_agent.and_then(|sub_agent| workflow.value(&sub_agent.output)).cloned();
    workflow.set(&spec.key(&format!("sub.{}", call["index"])), &output.unwrap_or(Value::Null))?;
    Ok(next.halt())
}

fn overflow(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let compactions: u32 = workflow.get(&spec.key("compactions"))?;
    let too_long = |why: &str| -> AnyError {
        let message =
            format!("the conversation of the loop {:?} is too long for the model{why}", spec.name);
        Error::new(ErrorKind::Failed, ErrorCode::AgentContextOverflow, message).into()
    };
    if spec.overflow == Overflow::Fail {
        return Err(too_long(""));
    }
    if compactions >= COMPACTIONS_MAX {
        return Err(too_long(&format!(", also after {compactions} compactions")));
    }
    workflow.set(&spec.key("compactions"), &(compactions + 1))?;
    // A conversation that was refused needs a shorter beginning each time.
    let Some(border) = compact::border(workflow.transcript(&spec.name), compactions + 1) else {
        return Err(too_long(", and its items cannot be summarised one by one"));
    };
    workflow.set(&spec.key("border"), &border)?;
    let mut beginning = workflow.transcript(&spec.name).clone();
    beginning.truncate(border);
    beginning.push_user(compact::PROMPT)?;
    let name = spec.key("compacting");
    *workflow.transcript(&name) = beginning;
    let mut request = request(this, workflow, &name)?;
    if request.has_param("tools") {
        let none = match this.resolved()?.format {
            WireFormat::AnthropicMessages => json!({ "type": "none" }),
            WireFormat::OpenaiResponses => json!("none"),
        };
        request = request.param("tool_choice", none);
    }
    Ok(next.llm(request, spec.key("summary"), spec.key("compacted")))
}

fn compacted(this: &Registered, workflow: &mut Workflow, next: Continuation) -> CallResult {
    let spec = &this.spec;
    let summary = workflow.response(&spec.key("summary"))?.text()?;
    let border: usize = workflow.take(&spec.key("border"))?;
    workflow.remove(&spec.key("summary"));
    workflow.remove_transcript(&spec.key("compacting"));
    if summary.is_empty() {
        let message =
            format!("the model wrote no summary of the conversation of the loop {:?}", spec.name);
        let code = ErrorCode::AgentContextOverflow;
        return Err(Error::new(ErrorKind::Failed, code, message).into());
    }
    let transcript = workflow.transcript(&spec.name);
    let keep = transcript.len().saturating_sub(border);
    transcript.compact(compact::summary_item(&summary)?, keep)?;
    Ok(next.call(spec.key("ask")))
}
