//! The tools: what a model reads about each, which scopes it needs, and how it answers.

mod control;
mod read;
mod write;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use windlass::ErrorCode;
use windlass::kernel::BoxFuture;

use super::arguments::{
    Argument, Arguments, any, flag, number, schema, text, text_map, texts, word,
};
use super::inner::{Inner, Rejected};
use super::rpc::Failed;
use crate::auth::{Scope, Scopes};
use crate::error::ApiError;

/// The tool that answers with a task.
pub(super) const START_RUN: &str = "start_run";

/// The maximum size of a result, in bytes of JSON.
const RESULT_BYTES_MAX: usize = 256 * 1024;

/// A tool.
pub(super) struct Tool {
    pub(super) name: &'static str,
    title: &'static str,
    description: &'static str,
    /// A caller without one of these does not see the tool.
    scopes: &'static [Scope],
    effect: Effect,
    arguments: &'static [Argument],
    run: for<'a> fn(&'a Inner, Arguments<'a>) -> BoxFuture<'a, Result<Value, Rejected>>,
}

/// How much a call changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    /// It adds something, and a second call adds it again.
    Adds,
    /// It can end work or decide something for good.
    Destroys,
}

/// The tools that a caller may use, as MCP lists them.
pub(super) fn list(scopes: &Scopes) -> Vec<Value> {
    TOOLS.iter().filter(|tool| tool.missing(scopes).is_none()).map(Tool::describe).collect()
}

pub(super) fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

impl Tool {
    fn missing(&self, scopes: &Scopes) -> Option<Scope> {
        self.scopes.iter().copied().find(|scope| !scopes.allow(*scope))
    }

    fn describe(&self) -> Value {
        json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": schema(self.arguments),
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.effect == Effect::Nothing,
                "destructiveHint": self.effect == Effect::Destroys,
                "idempotentHint": self.effect == Effect::Nothing,
                "openWorldHint": false,
            },
        })
    }

    pub(super) async fn call(
        &self,
        inner: &Inner,
        scopes: &Scopes,
        given: &Map<String, Value>,
    ) -> Result<Value, Rejected> {
        if let Some(scope) = self.missing(scopes) {
            let message = format!("the credential lacks the scope {:?}", scope.as_str());
            return Err(ApiError::forbidden(message).into());
        }
        (self.run)(inner, Arguments::check(self.arguments, given)?).await
    }

    /// The result of a call in the words of MCP. The model reads an error too.
    pub(super) fn result(&self, answered: Result<Value, Rejected>) -> Result<Value, Failed> {
        let answered = answered.and_then(within_limit);
        match answered {
            Ok(value) => Ok(call_result(value, false)),
            // The credential was revoked after the request began.
            Err(Rejected { status: StatusCode::UNAUTHORIZED, failure }) => {
                let message = failure["message"].as_str().unwrap_or_default();
                Err(ApiError::unauthenticated(message).into())
            }
            Err(Rejected { failure, .. }) => Ok(call_result(failure, true)),
        }
    }
}

/// The result of a call: the value as text, which models read, and as it is, for programs.
pub(super) fn call_result(value: Value, is_error: bool) -> Value {
    let text = value.to_string();
    json!({
        "content": [{ "type": "text", "text": text }],
        "structuredContent": value,
        "isError": is_error,
    })
}

fn within_limit(value: Value) -> Result<Value, Rejected> {
    let bytes = value.to_string().len();
    if bytes <= RESULT_BYTES_MAX {
        return Ok(value);
    }
    let message = format!(
        "the result has {bytes} bytes; at most {RESULT_BYTES_MAX} are allowed. Ask for fewer rows or a smaller part"
    );
    Err(Rejected::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge, message))
}

const WORKFLOW: Argument = text("workflow", "The name of the workflow.").required();
const ID: Argument = text("id", "The id of the run.").required();
const RUN_NUMBER: Argument =
    number("runNumber", 0, u32::MAX as i64, "The generation. Default: the newest.");
const CURSOR: Argument = text("cursor", "`nextCursor` of the previous page.");

const READ: &[Scope] = &[Scope::Read];

static TOOLS: [Tool; 16] = [
    Tool {
        name: "list_workflows",
        title: "List workflows",
        description: "Lists the workflows that have runs or that a live worker serves, with counts of \
                      their runs by status.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[],
        run: |inner, _| Box::pin(read::workflows(inner)),
    },
    Tool {
        name: "list_runs",
        title: "List runs",
        description: "Lists runs of all workflows, newest first. Outputs are left out.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[
            text("workflow", "Only runs of this workflow."),
            texts(
                "status",
                "Only runs with one of these statuses: active, waiting, paused, complete, errored, terminated.",
            ),
            texts("label", "Only runs with all these labels, each as key:value."),
            text("idPrefix", "Only runs whose id begins with this."),
            text("errorCode", "Only failed runs whose error has this name."),
            flag("rootsOnly", "Only runs without a parent."),
            text("createdFrom", "Only runs created at this time or later (RFC 3339)."),
            text("createdBefore", "Only runs created before this time (RFC 3339)."),
            word("order", &["desc", "asc"], "Newest first (desc, the default) or oldest first."),
            number("pageSize", 1, 50, "The number of rows. Default 20."),
            CURSOR,
        ],
        run: |inner, arguments| Box::pin(read::runs(inner, arguments)),
    },
    Tool {
        name: "get_run",
        title: "Get a run",
        description: "Returns the newest generation of a run: status, input, output or error, times and the \
                      current step. Large values are left out; read_body has them.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[WORKFLOW, ID],
        run: |inner, arguments| Box::pin(read::run(inner, arguments)),
    },
    Tool {
        name: "why",
        title: "Why a run does not move",
        description: "Explains why a run makes no progress: a chain of reasons, those of its children too.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[WORKFLOW, ID, RUN_NUMBER],
        run: |inner, arguments| Box::pin(read::why(inner, arguments)),
    },
    Tool {
        name: "list_steps",
        title: "List steps",
        description: "Lists the steps of a run with their attempts, without their values.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[
            WORKFLOW,
            ID,
            RUN_NUMBER,
            number("pageSize", 1, 100, "The number of rows. Default 50."),
            CURSOR,
        ],
        run: |inner, arguments| Box::pin(read::steps(inner, arguments)),
    },
    Tool {
        name: "list_ledger",
        title: "List the ledger",
        description: "Lists the events of a run, which say what happened and what caused it. Events hold \
                      summaries and digests, not values.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[
            WORKFLOW,
            ID,
            RUN_NUMBER,
            word(
                "scope",
                &["run", "root"],
                "The run (the default), or the whole tree of its root.",
            ),
            number("pageSize", 1, 50, "The number of rows. Default 25."),
            CURSOR,
        ],
        run: |inner, arguments| Box::pin(read::ledger(inner, arguments)),
    },
    Tool {
        name: "read_body",
        title: "Read a value",
        description: "Returns a part of one value of a run as text: its input, output or error, or those of \
                      a step. Values are JSON.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[
            WORKFLOW,
            ID,
            word(
                "of",
                &["input", "output", "error", "stepInput", "stepResult", "stepError"],
                "Which value. Those of a step need stepKey.",
            )
            .required(),
            text("stepKey", "The key of the step, as list_steps has it."),
            number(
                "runNumber",
                0,
                u32::MAX as i64,
                "The generation of the step. Default: the newest.",
            ),
            number("offset", 0, i64::MAX, "Where the part begins, in bytes. Default 0."),
            number("length", 1, 65_536, "The size of the part in bytes. Default 16,384."),
        ],
        run: |inner, arguments| Box::pin(read::body(inner, arguments)),
    },
    Tool {
        name: START_RUN,
        title: "Start a run",
        description: "Starts a run of a workflow. An id that is in use is an error, so a call with an id is \
                      safe to repeat.",
        scopes: &[Scope::Create],
        effect: Effect::Adds,
        arguments: &[
            WORKFLOW,
            text(
                "id",
                "The id of the run. Default: a new UUID. Letters, digits, _ and -; at most 100.",
            ),
            any("params", "The input, as the workflow expects it."),
            text_map("labels", "Labels, by which runs can be listed."),
            number("priority", -100, 100, "Higher runs first. Default 0."),
            number("delayMs", 0, i64::MAX, "Start after this delay in milliseconds."),
            text("startAt", "Start at this time (RFC 3339)."),
        ],
        run: |inner, arguments| Box::pin(write::start(inner, arguments)),
    },
    Tool {
        name: "send_event",
        title: "Send an event",
        description: "Sends an event to a run. The run keeps it until it waits for this type; `why` says \
                      which type it waits for.",
        scopes: &[Scope::SendEvent],
        effect: Effect::Adds,
        arguments: &[
            WORKFLOW,
            ID,
            text("type", "The type of the event.").required(),
            any("payload", "The payload."),
            text("eventId", "An id of your own: the same event twice is then one event."),
        ],
        run: |inner, arguments| Box::pin(write::send_event(inner, arguments)),
    },
    Tool {
        name: "control_run",
        title: "Control a run",
        description: "Pauses, resumes, cancels, terminates, retries or restarts a run. With dryRun it only \
                      says whether the run accepts the action and what would happen. cancel lets the run \
                      clean up, terminate does not; retry continues a failed run at the failed step, \
                      restart begins again with the same input.",
        scopes: &[Scope::Manage, Scope::Read],
        effect: Effect::Destroys,
        arguments: &[
            WORKFLOW,
            ID,
            word(
                "action",
                &["pause", "resume", "cancel", "terminate", "retry", "restart"],
                "The action.",
            )
            .required(),
            text("reason", "Why, for cancel and terminate. The ledger records it."),
            flag("dryRun", "Only say what would happen. Default false."),
        ],
        run: |inner, arguments| Box::pin(control::control(inner, arguments)),
    },
    Tool {
        name: "list_inbox",
        title: "List requests to people",
        description: "Lists requests that wait for the decision of a person.",
        scopes: &[Scope::Decide],
        effect: Effect::Nothing,
        arguments: &[
            text("of", "Whose: mine (the default), role:<role>, person:<id> or all."),
            word(
                "status",
                &["open", "approved", "rejected", "expired", "withdrawn", "stale"],
                "With `of` all. Default open.",
            ),
            text(
                "due",
                "With `of` all: the day on which open requests are due, such as 2026-11-18.",
            ),
            word("order", &["opened", "due"], "The oldest first (the default), or those due next."),
            number("pageSize", 1, 50, "The number of rows. Default 20."),
            CURSOR,
        ],
        run: |inner, arguments| Box::pin(read::inbox(inner, arguments)),
    },
    Tool {
        name: "get_request",
        title: "Get a request",
        description: "Returns one request with its choices, the schema of an answer, what it is about, and \
                      its decisions.",
        scopes: &[Scope::Decide],
        effect: Effect::Nothing,
        arguments: &[text("request", "The id of the request.").required()],
        run: |inner, arguments| Box::pin(read::request(inner, arguments)),
    },
    Tool {
        name: "decide",
        title: "Decide about a request",
        description: "Decides about a request as the person of the credential. A decision cannot be taken \
                      back. Read the request first, and decide only what the person told you. With dryRun \
                      it only says what the decision would change.",
        scopes: &[Scope::Decide],
        effect: Effect::Destroys,
        arguments: &[
            text("request", "The id of the request.").required(),
            text("choice", "The name of one of its choices.").required(),
            any("answer", "The answer, if the request has a schema."),
            text("comment", "A comment."),
            text("about", "The digest of what the person has seen (`about.digest`)."),
            flag("dryRun", "Only say what would happen. Default false."),
        ],
        run: |inner, arguments| Box::pin(write::decide(inner, arguments)),
    },
    Tool {
        name: "list_dead_letters",
        title: "List dead letters",
        description: "Lists tasks that failed for good: activities and outside effects.",
        scopes: READ,
        effect: Effect::Nothing,
        arguments: &[
            text("activityType", "Only entries of this activity type."),
            text("queue", "Only entries of this queue."),
            text("runKey", "Only entries of the run with this run key."),
            number("pageSize", 1, 50, "The number of rows. Default 20."),
            CURSOR,
        ],
        run: |inner, arguments| Box::pin(read::dead_letters(inner, arguments)),
    },
    Tool {
        name: "search_docs",
        title: "Search the documentation",
        description: "Searches the documentation of this version: guides, HTTP routes, commands, error codes.",
        scopes: &[],
        effect: Effect::Nothing,
        arguments: &[
            text("query", "A few words, or an error code.").required(),
            number("limit", 1, 10, "The number of hits. Default 5."),
        ],
        run: |inner, arguments| Box::pin(read::search_docs(inner, arguments)),
    },
    Tool {
        name: "read_doc",
        title: "Read the documentation",
        description: "Returns a part of one page of the documentation, as search_docs names it.",
        scopes: &[],
        effect: Effect::Nothing,
        arguments: &[
            text("page", "The page, such as quickstart.md.").required(),
            number("offset", 0, i64::MAX, "Where the part begins, in bytes. Default 0."),
            number("length", 1, 65_536, "The size of the part in bytes. Default 16,384."),
        ],
        run: |inner, arguments| Box::pin(read::read_doc(inner, arguments)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_sees_only_the_tools_of_its_scopes() {
        let names = |scopes: &[Scope]| -> Vec<String> {
            let tools = list(&scopes.iter().copied().collect());
            tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&[]), ["search_docs", "read_doc"]);
        assert_eq!(names(&[Scope::Create]), ["start_run", "search_docs", "read_doc"]);
        assert_eq!(names(&[Scope::Admin]).len(), TOOLS.len());
        for tool in &TOOLS {
            assert!(names(tool.scopes).contains(&tool.name.to_owned()), "{}", tool.name);
            for without in tool.scopes {
                let rest: Vec<Scope> =
                    tool.scopes.iter().copied().filter(|s| s != without).collect();
                assert!(!names(&rest).contains(&tool.name.to_owned()), "{}", tool.name);
            }
            let changes =
                tool.scopes.iter().any(|scope| !matches!(scope, Scope::Read | Scope::Decide));
            assert!(!changes || tool.effect != Effect::Nothing, "{}", tool.name);
        }
    }
}
