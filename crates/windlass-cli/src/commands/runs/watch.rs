//! `windlass runs watch`: a run as it happens, from the server's live stream.

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
use crate::output::{Out, cell, clock, hanging, note};
use crate::patience::Patience;

/// A connection that lasted so long was one, whatever came over it.
const CONNECTED_MIN: Duration = Duration::from_secs(1);
/// How long a pause between two connections is if the first one broke.
const PAUSE: Duration = Duration::from_millis(300);

pub(super) async fn run(api: Api, args: WatchArgs) -> Outcome {
    let run = resolve_newest(&api.client, &args.run).await?;
    let started = Instant::now();
    let watching = watch(&api, &run);
    match args.timeout {
        None => watching.await,
        Some(max) => match tokio::time::timeout(max, watching).await {
            Ok(outcome) => outcome,
            Err(_) => Err(wait::too_long(&api.client, &run, started.elapsed(), None).await),
        },
    }
}

async fn watch(Api { client, out }: &Api, run: &RunName) -> Outcome {
    let open = async |last_id: Option<String>| {
        let response = client.stream(&run.path(&["live"]), last_id.as_deref()).await?;
        Ok(response.bytes_stream())
    };
    let mut ended = false;
    follow(open, Patience::new(None), run, |event| show(*out, run, event, &mut ended)).await
}

// The stream is opened again where it broke, by the id of the last event that arrived. A run that
// sleeps says nothing for days: the server is there as long as anything comes from it, the comments
// that keep a stream alive too.
async fn follow<S, B, E>(
    open: impl AsyncFn(Option<String>) -> Result<S, Failure>,
    mut patience: Patience,
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
                patience.bear_aloud(failure).await?;
                continue;
            }
        };
        let (opened, brought) = (Instant::now(), Cell::new(false));
        let stream = stream.inspect(|chunk| brought.set(brought.get() || chunk.is_ok()));
        let mut events = pin!(stream.eventsource());
        while let Some(Ok(event)) = events.next().await {
            if !event.id.is_empty() {
                last_id = Some(event.id.clone());
            }
            if let Some(exit) = show(&event)? {
                return Ok(exit);
            }
        }
        if brought.get() || opened.elapsed() >= CONNECTED_MIN {
            patience.answered();
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let message = format!("the live stream of {run} breaks as soon as it is opened");
        patience.bear_aloud(Failure::error(message).transient()).await?;
    }
}

// The exit code if this was the end. `ended` is whether the run had ended before it was watched: its
// status is told first.
fn show(out: Out, run: &RunName, event: &Event, ended: &mut bool) -> Result<Option<Exit>, Failure> {
    let Ok(data) = serde_json::from_str::<Value>(&event.data) else { return Ok(None) };
    let ends = event.event == "end";
    if !out.is_text() {
        let mut line = serde_json::json!({ "event": event.event, "data": data });
        if !event.id.is_empty() {
            line["id"] = event.id.as_str().into();
        }
        out.record(&line)?;
        return Ok(ends.then(|| exit_of(&data)));
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
            let said = format!("{} {}", cell(&data, "type"), summary(&data["summary"], false));
            line(out, &data["at"], "event", &said)?;
        }
        "end" => return wait::end(out, run, &normalised(&data)).map(Some),
        other => note(&format!("{other}: {}", event.data)),
    }
    Ok(None)
}

fn line(out: Out, at: &Value, word: &str, said: &str) -> Result<(), Failure> {
    let time = at.as_str().map(clock).unwrap_or_default();
    let columns = time.chars().count() + 9;
    out.line(&format!("{} {}", out.dim(&format!("{time} {word:<7}")), hanging(said, columns)))
}

fn normalised(data: &Value) -> Value {
    match data["details"].is_object() {
        true => data.clone(),
        false => serde_json::json!({ "details": data }),
    }
}

fn exit_of(data: &Value) -> Exit {
    let data = normalised(data);
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
        away_max: Duration,
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
        follow(open, Patience::of(away_max), &run, show).await.map(|_| seen)
    }

    #[tokio::test]
    async fn a_run_that_was_quiet_for_long_survives_a_restart_of_its_server() {
        // Quiet for longer than a server may be away, then a server that is gone for a moment.
        let away_max = Duration::from_millis(1_500);
        let seen = followed(away_max, |n, last_id| match n {
            0 => {
                let mut all = vec!["id: 7\ndata: one\n\n"];
                all.extend([":\n\n"; 10]);
                Ok(chunks(all, Duration::from_millis(200)))
            }
            1 => Err(Failure::error("nobody is there").transient()),
            _ => {
                assert_eq!(last_id.as_deref(), Some("7"));
                Ok(chunks(vec!["event: end\ndata: two\n\n"], Duration::ZERO))
            }
        });
        assert_eq!(seen.await.unwrap(), ["one", "two"]);
    }

    #[tokio::test]
    async fn a_stream_that_breaks_as_soon_as_it_is_opened_is_given_up() {
        let away_max = Duration::from_millis(500);
        let failure = followed(away_max, |_, _| Ok(chunks(vec![], Duration::ZERO))).await;
        let failure = failure.unwrap_err();
        assert!(failure.message.contains("order/x breaks as soon as"), "{failure}");
    }
}
