//! Continuation-passing programs that call language models, tools and people.
//!
//! A program is a set of functions with names. A function gets the [`Workflow`] and a [`Continuation`], and
//! uses the continuation up to state what comes next. The workflow is plain data: any later build can resume it.

mod accounts;
mod admission;
mod agent;
mod agent_loop;
mod batch;
mod budget;
mod calls;
mod continuation;
mod description;
mod env;
mod figures;
mod fork;
mod human;
mod inspect;
mod lane;
pub mod live;
mod llm;
mod merge;
mod model;
mod observe;
mod overflow;
pub mod prices;
mod program;
mod provider;
mod request;
mod spend;
mod state;
mod stream;
mod telemetry;
mod tool;
mod tool_source;
mod trampoline;
mod transcript;
mod wire;
mod workflow;

pub use agent::{Agent, LLM_TIMEOUT, STEPS_MAX};
pub use agent_loop::{AgentLoop, LOOP_DEPTH_MAX, LOOP_TURNS_MAX, Overflow, SubAgent};
pub use batch::{
    BatchEnd, BatchLimits, BatchLine, BatchMember, BatchProvider, BatchRefused, BatchResults,
    BatchView,
};
pub use budget::{
    Account, Amount, BUDGETS, Budget, Limits as BudgetLimits, OUTPUT_TOKENS_ASSUMED,
    RESERVATIONS_MAX,
};
pub use continuation::{Choice, Continuation};
pub use description::{DESCRIPTION, LLM};
pub use env::{ENV_KEY_BYTES_MAX, ENV_KEYS_MAX};
pub use figures::{
    NamedAccount, RootSpend, SpendQuery, budget, budgets, raise_budget, root_spend,
    root_spend_served, spend,
};
pub use inspect::{
    CheckPosition, CheckedPage, Conversation, Unfit, check, check_page, conversations,
    load_root_workflow_events, load_workflow_event, load_workflow_events, response_at, transcripts,
};
pub use lane::{
    BatchInfo, BatchRetry, Deadline, LANE_MEMBERS_MAX, LANES, Lane, LaneInfo, LaneOptions,
    batch as batch_of, batches, cancel_batch, flush_lane, lanes,
};
pub use model::{register, remote, served, watch};
pub use observe::{
    CausalRef, EnvChangeSetSummary, EnvChangeSummary, EventId, FlowSummary, ObservabilityConfig,
    ObservabilityContext, PendingCause, PendingWorkflowEvent, StepSummary, WorkflowNext,
};
pub use provider::{
    EventFamily, NoSink, Provider, ProviderError, ProviderErrorKind, ProviderRequest,
    ProviderResponse, RateLimit, RateLimits, StreamPart, TokenSink, Usage, WireFormat,
};
pub use request::{
    BRANCHES_MAX, ForkBranch, LlmRequest, Response, ResponseInfo, TOOL_USES_MAX, ToolResult,
    ToolUse,
};
pub use spend::{SPEND, Spend};
pub use stream::{CallParts, CallWatch, Part, STREAM_BYTES_MAX};
pub use tool::{
    Probe, TOOL_TIMEOUT, Tool, ToolCallId, ToolContext, ToolOutput, ToolSet, dispatch_tool_uses,
};
pub use tool_source::{DynamicTool, ToolSource};
pub use trampoline::{
    CallResult, Function, Trampoline, WorkflowError, WorkflowOutcome, WorkflowResult,
    WorkflowStepOutcome,
};
pub use transcript::{TRANSCRIPT_ITEMS_MAX, Transcript};
pub use windlass_kernel::inspect::EventRecord;
pub use windlass_kernel::request::{Request as HumanRequest, RequestOutcome};
pub use wire::{Item, user_text};
pub use workflow::{DEFERRED_MAX, Workflow};
