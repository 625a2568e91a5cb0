//! `windlass events`: events that are sent to a key instead of a run.

use serde_json::json;

use super::{Api, read_json};
use crate::args::{EventsCommand, SendByKeyArgs};
use crate::exit::{Exit, Outcome};
use crate::output::cell;

pub(super) async fn run(api: Api, command: EventsCommand) -> Outcome {
    match command {
        EventsCommand::Send(args) => send(api, *args).await,
    }
}

async fn send(api: Api, args: SendByKeyArgs) -> Outcome {
    let mut body = json!({});
    if let Some(payload) = &args.payload {
        body["payload"] = read_json("--payload", payload)?;
    }
    if let Some(id) = &args.event_id {
        body["id"] = id.as_str().into();
    }
    if let Some(ttl) = args.ttl {
        body["ttl"] = windlass::kernel::format_duration(ttl).into();
    }
    let answer = api.client.post(&["events", &args.event_type, &args.key], &body).await?;
    if !api.out.is_text() {
        api.out.value(&answer)?;
        return Ok(Exit::Ok);
    }
    let (event_type, key) = (&args.event_type, &args.key);
    let text = match answer["repeated"].as_bool() {
        Some(true) => format!("key {key:?} has this event of type {event_type:?} already"),
        _ => {
            let (delivered, until) = (cell(&answer, "delivered"), cell(&answer, "expiresAt"));
            format!(
                "event {event_type:?} sent to key {key:?}: {delivered} waiting runs got it, kept until {until}"
            )
        }
    };
    api.out.line(&text)?;
    Ok(Exit::Ok)
}
