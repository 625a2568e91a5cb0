//! `windlass runs watch`: prints the live stream of a run.

use std::cell::Cell;
use std::pin::pin;
use std::time::{Duration, Instant};

use eventsource_stream::{Event, Eventsource as _};
use futures::{Stream, StreamExt as _};
use serde_json::Value;

use super::get::step_text;
use super::ledger::summary;
use super::{RunName, logs, resolve_newest, wait};
use crate::args::WatchArgs;
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, clock, indent_continuation, note};
use crate::retrier::Retrier;

/// A connection of this duration counts as successful, even without data.
const CONNECTED_MIN: Duration = Duration::from_secs(1);
/// The pause before reconnecting after a successful connection.
const RECONNECT_DELAY: Duration = Duration::from_millis(300);

pub(super) async fn run(api: Api, args: WatchArgs) -> Outcome {
    let run = resolve_newest(&api.client, &args.run).await?;
    let started = Instant::now();
    let watching = watch(&api, &run);
    match args.timeout {
        None => watching.await,
        Some(max) => match tokio::time::timeout(max, watching).await {
            Ok(outcome) => outcome,
            Err(_) => Err(wait::timeout_failure(&api.client, &run, started.elapsed(), None).await),
        },
    }
}

async fn watch(api: &Api, run: &RunName) -> Outcome {
    let mut ended = false;
    follow_stream(api, run, "live", |event| show(api.out, run, event, &mut ended)).await
}

/// Follows a stream of a run until `show` returns an exit code.
pub(in crate::commands) async fn follow_stream(
    Api { client, .. }: &Api,
    run: &RunName,
    stream: &str,
    show: impl FnMut(&Event) -> Result<Option<Exit>, Failure>,
) -> Outcome {
    let open = async |last_id: Option<String>| {
        let response = client.stream(&run.path(&[stream]), last_id.as_deref()).await?;
        Ok(response.bytes_stream())
    };
    follow(open, Retrier::new(None), run, show).await
}

// Reconnects after the id of the last event. A sleeping run may send no event for days, so any
// data, including keep-alive comments, proves that the server is reachable.
async fn follow<S, B, E>(
    open: impl AsyncFn(Option<String>) -> Result<S, Failure>,
    mut retrier: Retrier,
    run: &RunName,
    mut show: impl FnMut(&Event) -> Result<Option<Exit>, Failure>,
) -> Outcome
where
    S: Stream<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    let mut last_id: Option<String> = None;
    loop {
        let stream = match open(last_id.clone()).await {
            Ok(stream) => stream,
            Err(failure) => {
                retrier.wait_and_warn(failure).await?;
                continue;
            }
        };
        let (opened, received) = (Instant::now(), Cell::new(false));
        let stream = stream.inspect(|chunk| received.set(received.get() || chunk.is_ok()));
        let mut events = pin!(stream.eventsource());
        while let Some(Ok(event)) = events.next().await {
            if !event.id.is_empty() {
                last_id = Some(event.id.clone());
            }
            if let Some(exit) = show(&event)? {
                return Ok(exit);
            }
        }
        if received.get() || opened.elapsed() >= CONNECTED_MIN {
            retrier.reset();
            tokio::time::sleep(RECONNECT_DELAY).await;
            continue;
        }
        let message = format!("the live stream of {run} closes immediately");
        retrier.wait_and_warn(Failure::error(message).transient()).await?;
    }
}

// Returns the exit code on the last event. `ended` records whether the run had already ended: the
// stream sends the status first.
fn show(out: Out, run: &RunName, event: &Event, ended: &mut bool) -> Result<Option<Exit>, Failure> {
    let Ok(data) = serde_json::from_str::<Value>(&event.data) else { return Ok(None) };
    let ends = event.event == "end";
    if !out.is_text() {
        let mut line = serde_json::json!({ "event": event.event, "data": data });
        if !event.id.is_empty() {
            line["id"] = event.id.as_str().into();
        }
        out.record(&line)?;
        return Ok(ends.then(|| exit_code(&data)));
    }
    match event.event.as_str() {
        "status" => {
            let details = if data["details"].is_object() { &data["details"] } else { &data };
            let status = cell(details, "status");
            *ended = wait::is_final(&status);
            line(out, &data["at"], "status", &out.status(&status))?;
        }
        "step" => {
            let step = if data["step"].is_object() { &data["step"] } else { &data };
            line(out, &step["updatedAt"], "step", &step_text(step, *ended))?;
        }
        "log" => {
            let log = if data["log"].is_object() { &data["log"] } else { &data };
            line(out, &log["createdAt"], "log", &logs::line(out, log, true))?;
        }
        "event" if data["type"] == "workflow.blocked" => {
            let (code, reason) = (&data["summary"]["code"], &data["summary"]["reason"]);
            let blocked = serde_json::json!({ "code": code, "message": reason });
            line(out, &data["at"], "blocked", &wait::blocked_text(&blocked))?;
        }
        "event" => {
            let text = format!("{} {}", cell(&data, "type"), summary(&data["summary"], false));
            line(out, &data["at"], "event", &text)?;
        }
        "end" => return wait::print_result(out, run, &with_details(&data)).map(Some),
        other => note(&format!("{other}: {}", event.data)),
    }
    Ok(None)
}

fn line(out: Out, at: &Value, word: &str, text: &str) -> Result<(), Failure> {
    let time = at.as_str().map(clock).unwrap_or_default();
    let columns = time.chars().count() + 9;
    out.line(&format!(
        "{} {}",
        out.dim(&format!("{time} {word:<7}")),
        indent_continuation(text, columns)
    ))
}

fn with_details(data: &Value) -> Value {
    match data["details"].is_object() {
        true => data.clone(),
        false => serde_json::json!({ "details": data }),
    }
}

fn exit_code(data: &Value) -> Exit {
    let data = with_details(data);
    match data["details"]["status"] == "complete" {
        true => Exit::Ok,
        false => Exit::RunFailed,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::stream::{self, BoxStream};

    use super::*;

    type Chunks = BoxStream<'static, Result<&'static str, Failure>>;

    fn chunks(chunks: Vec<&'static str>, every: Duration) -> Chunks {
        let late = move |chunk| async move {
            tokio::time::sleep(every).await;
            Ok(chunk)
        };
        stream::iter(chunks).then(late).boxed()
    }

    async fn followed(
        unavailable_max: Duration,
        open: impl Fn(usize, Option<String>) -> Result<Chunks, Failure>,
    ) -> Result<Vec<String>, Failure> {
        let run = RunName::new("order".into(), "x".into());
        let (opens, mut seen) = (AtomicUsize::new(0), Vec::new());
        let open =
            async |last_id: Option<String>| open(opens.fetch_add(1, Ordering::Relaxed), last_id);
        let show = |event: &Event| {
            seen.push(event.data.clone());
            Ok((event.event == "end").then_some(Exit::Ok))
        };
        follow(open, Retrier::with_unavailable_max(unavailable_max), &run, show).await.map(|_| seen)
    }

    #[tokio::test]
    async fn a_quiet_stream_reconnects_after_a_server_restart() {
        // The stream has no events for longer than `unavailable_max`, then the server is gone for a
        // moment.
        let unavailable_max = Duration::from_millis(1_500);
        let seen = followed(unavailable_max, |n, last_id| match n {
            0 => {
                let mut all = vec!["id: 7\ndata: one\n\n"];
                all.extend([":\n\n"; 10]);
                Ok(chunks(all, Duration::from_millis(200)))
            }
            1 => Err(Failure::error("connection refused").transient()),
            _ => {
                assert_eq!(last_id.as_deref(), Some("7"));
                Ok(chunks(vec!["event: end\ndata: two\n\n"], Duration::ZERO))
            }
        });
        assert_eq!(seen.await.unwrap(), ["one", "two"]);
    }

    #[tokio::test]
    async fn a_stream_that_closes_immediately_fails() {
        let unavailable_max = Duration::from_millis(500);
        let failure = followed(unavailable_max, |_, _| Ok(chunks(vec![], Duration::ZERO))).await;
        let failure = failure.unwrap_err();
        assert!(failure.message.contains("order/x closes immediately"), "{failure}");
    }
}
