//! Commands that change a run: pause, resume, restart, terminate, cancel, retry and send-event.

use serde_json::{Value, json};

use super::{RunName, bulk, resolve_newest, wait};
use crate::args::{
    CancelArgs, ControlArgs, PauseArgs, RestartArgs, SendEventArgs, TerminateArgs, WaitArgs,
};
use crate::commands::{Api, read_json};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::cell;

pub(super) async fn run(api: Api, action: &'static str, args: ControlArgs) -> Outcome {
    if args.bulk.all {
        if args.wait.wait {
            return Err(Failure::usage("--wait cannot be combined with --all"));
        }
        return bulk::run(api, action, &args.run, &args.bulk, None).await;
    }
    bulk::refuse_filters(&args.bulk, action)?;
    let run = resolve_newest(&api.client, &args.run).await?;
    send_action(api, &run, action, &json!({}), &args.wait).await
}

pub(super) async fn pause(api: Api, args: PauseArgs) -> Outcome {
    if args.bulk.all {
        if args.wait.wait {
            return Err(Failure::usage("--wait cannot be combined with --all"));
        }
        return bulk::run(api, "pause", &args.run, &args.bulk, None).await;
    }
    bulk::refuse_filters(&args.bulk, "pause")?;
    let run = resolve_newest(&api.client, &args.run).await?;
    if !args.wait.wait {
        return send_action(api, &run, "pause", &json!({}), &WaitArgs::default()).await;
    }
    api.client.post(&run.path(&["pause"]), &json!({})).await?;
    wait::until_paused(&api, &run, &args.wait).await
}

pub(super) async fn restart(api: Api, args: RestartArgs) -> Outcome {
    let run = resolve_newest(&api.client, &args.run).await?;
    send_action(api, &run, "restart", &json!({}), &args.wait).await
}

pub(super) async fn terminate(api: Api, args: TerminateArgs) -> Outcome {
    if args.bulk.all {
        let reason = args.reason.as_deref();
        return bulk::run(api, "terminate", &args.run, &args.bulk, reason).await;
    }
    bulk::refuse_filters(&args.bulk, "terminate")?;
    let run = resolve_newest(&api.client, &args.run).await?;
    let body = match args.reason {
        Some(reason) => json!({ "reason": reason }),
        None => json!({}),
    };
    send_action(api, &run, "terminate", &body, &WaitArgs::default()).await
}

pub(super) async fn cancel(api: Api, args: CancelArgs) -> Outcome {
    let run = resolve_newest(&api.client, &args.run).await?;
    let found = api.client.get(&run.path(&[]), &Vec::new()).await?;
    let key = cell(&found["meta"], "runKey");
    let body = match args.reason {
        Some(reason) => json!({ "reason": reason }),
        None => json!({}),
    };
    let answer = api.client.post(&["durable", "workflows", &key, "cancel"], &body).await?;
    if args.wait.wait {
        return wait::until_end(&api, &run, &args.wait).await;
    }
    match api.out.is_text() {
        true => {
            let status = api.out.status(&cell(&answer, "status"));
            api.out.line(&format!("cancellation of {run} requested: {status}"))?;
        }
        false => api.out.value(&answer)?,
    }
    Ok(Exit::Ok)
}

async fn send_action(
    api: Api,
    run: &RunName,
    action: &str,
    body: &Value,
    then: &WaitArgs,
) -> Outcome {
    let answer = api.client.post(&run.path(&[action]), body).await?;
    if then.wait {
        return wait::until_end(&api, run, then).await;
    }
    match api.out.is_text() {
        true => {
            let status = cell(&answer["details"], "status");
            let text = match action {
                // The server ignores a resume of an ended run.
                "resume" if wait::is_final(&status) => {
                    format!("has ended ({}) and cannot be resumed", api.out.status(&status))
                }
                _ => action_text(action, &api.out.status(&status)),
            };
            api.out.line(&format!("{run} {text}"))?;
        }
        false => api.out.value(&answer)?,
    }
    Ok(Exit::Ok)
}

// A pause takes effect at the next turn, so `status` may still be the previous one.
fn action_text(action: &str, status: &str) -> String {
    let done = match action {
        "pause" => "will pause",
        "resume" => "is resumed",
        "restart" => "is restarted",
        "retry" => "is retried from the failed step",
        _ => "is terminated",
    };
    if status.is_empty() { done.to_owned() } else { format!("{done}: {status}") }
}

pub(super) async fn send_event(api: Api, args: SendEventArgs) -> Outcome {
    let run = resolve_newest(&api.client, &args.run).await?;
    let mut body = json!({ "type": args.event_type });
    if let Some(payload) = &args.payload {
        body["payload"] = read_json("--payload", payload)?;
    }
    if let Some(id) = &args.event_id {
        body["id"] = id.as_str().into();
    }
    let answer = api.client.post(&run.path(&["events"]), &body).await?;
    match api.out.is_text() {
        true => {
            let status = api.out.status(&cell(&answer["status"], "status"));
            api.out.line(&format!("event {:?} sent to {run}: {status}", args.event_type))?;
        }
        false => api.out.value(&answer)?,
    }
    Ok(Exit::Ok)
}
