//! Tasks: a run that a client follows. The id of a task is the run key, and the state of a task is the state
//! of the run, so that any server of the store can answer.

use serde_json::{Value, json};
use windlass_engine::description::StepRole;
use windlass_engine::requests::RequestRef;

use super::Server;
use super::inner::{Inner, Query, Rejected};
use super::rpc::{Failed, RpcError, meta};
use super::shape::shorten;
use super::tools::call_result;
use crate::auth::Scope;

/// The name of the extension that defines tasks.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/tasks";

const POLL_INTERVAL_MS: u64 = 1_000;
/// Larger outputs are left out of the result of a task, in bytes. The tool `read_body` has them.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of responses in one update.
const RESPONSES_MAX: usize = 100;

/// Whether the client of a request knows tasks.
pub(super) fn is_declared(params: &Value) -> bool {
    meta(params, "clientCapabilities")["extensions"].get(EXTENSION).is_some()
}

/// Rejects a client that does not know tasks.
pub(super) fn require_client(params: &Value) -> Result<(), Failed> {
    if is_declared(params) {
        return Ok(());
    }
    let needed = json!({ "requiredCapabilities": { "extensions": { EXTENSION: {} } } });
    Err(RpcError::new(-32021, "missing required client capability").with_data(needed).into())
}

/// The answer of the tool that starts a run: a task that works.
pub(super) async fn created(inner: &Inner, run_key: &str) -> Result<Value, Failed> {
    let run = inner.get(&["runs", run_key], &Query::new()).await?;
    let mut task = task(run_key, &run, "working");
    task["resultType"] = "task".into();
    Ok(task)
}

fn task(id: &str, run: &Value, status: &str) -> Value {
    let meta = &run["meta"];
    json!({
        "taskId": id,
        "status": status,
        "createdAt": meta["createdAt"],
        "lastUpdatedAt": meta["updatedAt"],
        "ttlMs": null,
        "pollIntervalMs": POLL_INTERVAL_MS,
    })
}

impl Server {
    pub(super) async fn get_task(&self, params: &Value) -> Result<Value, Failed> {
        let id = task_id(params)?;
        let run = self.newest(id).await?;
        let status = run["details"]["status"].as_str().unwrap_or_default();
        Ok(match status {
            "complete" | "errored" => {
                let mut ended = task(id, &run, "completed");
                ended["result"] = result(&run, status == "errored");
                ended
            }
            "terminated" => task(id, &run, "cancelled"),
            _ => {
                let requests = self.open_requests(&run).await?;
                let can_ask = meta(params, "clientCapabilities")["elicitation"].is_object();
                let mut open = match requests.is_empty() || !can_ask {
                    true => task(id, &run, "working"),
                    false => task(id, &run, "input_required"),
                };
                if let Some(text) = status_message(status, &requests) {
                    open["statusMessage"] = text.into();
                }
                if !requests.is_empty() && can_ask {
                    let asked = |request: &Value| {
                        (
                            request["id"].as_str().unwrap_or_default().to_owned(),
                            elicitation(request),
                        )
                    };
                    open["inputRequests"] = Value::Object(requests.iter().map(asked).collect());
                }
                open
            }
        })
    }

    /// Decides about requests of a run. A response to another request, and a person who declines to answer,
    /// change nothing.
    pub(super) async fn update_task(&self, params: &Value) -> Result<Value, Failed> {
        let id = task_id(params)?;
        let Some(responses) = params["inputResponses"].as_object() else {
            return Err(RpcError::params("`inputResponses` is not an object").into());
        };
        if responses.len() > RESPONSES_MAX {
            let message = format!("`inputResponses` has more than {RESPONSES_MAX} members");
            return Err(RpcError::params(message).into());
        }
        let run = self.newest(id).await?;
        let open = self.open_requests(&run).await?;
        for request in &open {
            let key = request["id"].as_str().unwrap_or_default();
            let Some(response) = responses.get(key) else { continue };
            if response["action"] != "accept" {
                continue;
            }
            let decision = decision(&response["content"])?;
            self.inner.post(&["inbox", key, "decide"], &decision).await?;
        }
        Ok(json!({}))
    }

    pub(super) async fn cancel_task(&self, params: &Value) -> Result<Value, Failed> {
        let run = self.newest(task_id(params)?).await?;
        let key = run["meta"]["runKey"].as_str().unwrap_or_default();
        let is_ended = matches!(
            run["details"]["status"].as_str(),
            Some("complete" | "errored" | "terminated")
        );
        // A cancellation that comes too late is no error.
        if !is_ended {
            self.inner.post(&["durable", "workflows", key, "cancel"], &json!({})).await?;
        }
        Ok(json!({}))
    }

    /// The newest generation of the run of a task: a run that is restarted, retried or continued is still the
    /// same task.
    async fn newest(&self, id: &str) -> Result<Value, Failed> {
        let none = Query::new();
        let run = self.inner.get(&["runs", id], &none).await?;
        let (workflow, run_id) = (run["workflowName"].as_str(), run["id"].as_str());
        let (Some(workflow), Some(run_id)) = (workflow, run_id) else { return Ok(run) };
        Ok(self.inner.get(&["workflows", workflow, "instances", run_id], &none).await?)
    }

    /// The open requests to people of a run that the caller may decide about.
    async fn open_requests(&self, run: &Value) -> Result<Vec<Value>, Failed> {
        let key = run["meta"]["runKey"].as_str().and_then(|key| key.parse().ok());
        let (Some(key), true) = (key, self.call.caller.scopes.allow(Scope::Decide)) else {
            return Ok(Vec::new());
        };
        // The run is visible to the caller: the route has returned it.
        let engine = &self.call.engine;
        let overview =
            engine.store().run_overview_by_key(key).await.map_err(crate::error::ApiError::from)?;
        let Some(overview) = overview else { return Ok(Vec::new()) };
        let description = engine.description_of(&overview.run);
        let steps = overview.open_steps.iter();
        let named = steps
            .filter(|step| description.step(&step.kind).role == StepRole::Request)
            .filter_map(RequestRef::of);
        let mut requests = Vec::new();
        for named in named {
            match self.inner.get(&["inbox", &named.request], &Query::new()).await {
                Ok(request) if request["status"] == "open" => requests.push(request),
                Ok(_) => {}
                // The caller is not asked, or the request has gone.
                Err(Rejected { status, .. }) if status.is_client_error() => {}
                Err(rejected) => return Err(rejected.into()),
            }
        }
        Ok(requests)
    }
}

fn task_id(params: &Value) -> Result<&str, Failed> {
    let id = params["taskId"].as_str().filter(|id| !id.is_empty());
    id.ok_or_else(|| RpcError::params("`taskId` is missing").into())
}

/// The result of the tool that started the run.
fn result(run: &Value, is_error: bool) -> Value {
    let mut value = json!({
        "workflow": run["workflowName"],
        "id": run["id"],
        "runKey": run["meta"]["runKey"],
        "status": run["details"]["status"],
    });
    let name = if is_error { "error" } else { "output" };
    value[name] = run["details"][name].clone();
    shorten(&mut value, OUTPUT_BYTES_MAX);
    let mut result = call_result(value, is_error);
    result["resultType"] = "complete".into();
    result
}

fn status_message(status: &str, requests: &[Value]) -> Option<String> {
    if requests.is_empty() {
        return (status == "paused").then(|| "the run is paused".to_owned());
    }
    let titles: Vec<&str> =
        requests.iter().filter_map(|request| request["title"].as_str()).collect();
    Some(format!("the run waits for people: {}", titles.join("; ")))
}

/// A request to people as a form that the client shows. Forms have no nested values, so an answer is a text
/// of JSON.
fn elicitation(request: &Value) -> Value {
    let choices: Vec<&Value> =
        request["choices"].as_array().into_iter().flatten().map(|choice| &choice["name"]).collect();
    let mut properties = json!({
        "choice": { "type": "string", "enum": choices, "description": "The decision." },
        "comment": { "type": "string", "description": "A comment." },
    });
    if !request["schema"].is_null() {
        let description =
            format!("The answer, as JSON that fits this schema: {}", request["schema"]);
        properties["answer"] = json!({ "type": "string", "description": description });
    }
    let (title, text) = (request["title"].as_str(), request["text"].as_str());
    let mut message = title.unwrap_or_default().to_owned();
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        message = format!("{message}\n\n{text}");
    }
    if !request["about"].is_null() {
        message = format!("{message}\n\nIt is about: {}", request["about"]);
    }
    json!({
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": message,
            "requestedSchema": {
                "type": "object", "properties": properties, "required": ["choice"],
            },
        },
    })
}

/// The decision in a form that a person has filled in.
fn decision(content: &Value) -> Result<Value, Failed> {
    let Some(choice) = content["choice"].as_str() else {
        return Err(RpcError::params("`content.choice` of the response is missing").into());
    };
    let mut decision = json!({ "choice": choice });
    if let Some(comment) = content["comment"].as_str().filter(|comment| !comment.is_empty()) {
        decision["comment"] = comment.into();
    }
    match &content["answer"] {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => {
            decision["answer"] = serde_json::from_str(text).map_err(|error| {
                RpcError::params(format!("`content.answer` of the response is not JSON: {error}"))
            })?;
        }
        value => decision["answer"] = value.clone(),
    }
    Ok(decision)
}
