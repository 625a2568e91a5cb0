//! `windlass runs create`: starts a run and optionally waits for it.

use serde_json::{Value, json};
use windlass::ErrorCode;

use super::{RunName, wait};
use crate::args::{CreateArgs, RunTarget};
use crate::commands::{Api, labels_to_json, read_json};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, note};

pub(super) async fn run(api: Api, args: CreateArgs) -> Outcome {
    let (workflow, id) = match args.run.target().map_err(Failure::usage)? {
        RunTarget::Run { workflow, id } => (workflow, Some(id)),
        RunTarget::Workflow(workflow) | RunTarget::Word(workflow) => (workflow, None),
        RunTarget::Nothing => {
            let hint = "for example: windlass runs create hello --params '\"world\"'";
            return Err(Failure::usage("the workflow is missing").with_hint(hint));
        }
    };
    let body = body(&args, id.clone())?;
    let created = api.client.post(&["workflows", &workflow, "instances"], &body).await;
    let created = created.map_err(|failure| match (&failure.code, id) {
        (Some(code), Some(id)) if code.parse() == Ok(ErrorCode::InstanceIdAlreadyExists) => failure
            .with_hint(format!(
                "choose another id, or restart the run: windlass runs restart {workflow}/{id}"
            )),
        _ => failure,
    })?;
    let run = RunName::new(workflow, cell(&created, "id"));
    if args.wait.wait {
        if api.out.is_text() {
            note(&format!("started {run}"));
        }
        return wait::until_end(&api, &run, &args.wait).await;
    }
    match api.out.is_text() {
        true => api.out.line(&run.to_string())?,
        false => api.out.value(&created)?,
    }
    Ok(Exit::Ok)
}

fn body(args: &CreateArgs, id: Option<String>) -> Result<Value, Failure> {
    let mut body = json!({});
    if let Some(id) = id {
        body["id"] = id.into();
    }
    if let Some(params) = &args.params {
        body["params"] = read_json("--params", params)?;
    }
    if !args.labels.is_empty() {
        body["labels"] = labels_to_json(&args.labels);
    }
    if let Some(priority) = args.priority {
        body["priority"] = priority.into();
    }
    if let Some(delay) = args.delay {
        body["delayMs"] = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX).into();
    }
    if !args.headers.is_empty() {
        body["headers"] = labels_to_json(&args.headers);
    }
    if let Some(at) = &args.at {
        body["startAt"] = at.as_str().into();
    }
    Ok(body)
}
