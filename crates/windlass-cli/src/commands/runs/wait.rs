//! Waiting for the end of a run: long polls, a line of progress, and an exit code that tells.

use std::time::{Duration, Instant};

use serde_json::Value;
use windlass::kernel::format_duration;

use super::RunName;
use super::get::step_text;
use crate::args::WaitArgs;
use crate::client::Client;
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, Out, Progress, cell, error_text, pretty};
use crate::patience::Patience;

/// How long one poll waits; short, so that the line of progress is fresh.
const POLL: Duration = Duration::from_secs(2);
/// How much later than asked a server that does not answer at all is given up.
const GRACE: Duration = Duration::from_secs(1);

/// Waits until a run ends, prints how, and says so with the exit code.
pub(super) async fn until_end(api: &Api, run: &RunName, wait: &WaitArgs) -> Outcome {
    let started = Instant::now();
    let ended = poll(api, run, wait, started);
    let answer = match wait.timeout {
        None => ended.await?,
        Some(max) => match tokio::time::timeout(max.saturating_add(GRACE), ended).await {
            Ok(answer) => answer?,
            Err(_) => return Err(too_long(run, started.elapsed(), None)),
        },
    };
    end(api.out, run, &answer)
}

// The answer that says how the run ended.
async fn poll(
    Api { client, .. }: &Api,
    run: &RunName,
    wait: &WaitArgs,
    started: Instant,
) -> Result<Value, Failure> {
    let mut patience = Patience::new(wait.timeout);
    let progress = Progress::new(&format!("{run}: waiting"));
    loop {
        let left = wait.timeout.map_or(POLL, |max| max.saturating_sub(started.elapsed()));
        let poll = left.min(POLL);
        let params = vec![("waitMs", poll.as_millis().to_string())];
        let mut trouble = None;
        match client.long_poll(&run.path(&["result"]), &params, poll).await {
            Ok(answer) if answer["done"] == true => return Ok(answer),
            Ok(_) => patience.answered(),
            Err(failure) => {
                trouble = Some(failure.to_string());
                progress.say(&format!("{run}: {failure}; trying again"));
                patience.bear(failure).await?;
            }
        }
        if wait.timeout.is_some_and(|max| started.elapsed() >= max) {
            return Err(too_long(run, started.elapsed(), trouble));
        }
        if trouble.is_none()
            && let Ok(found) = client.get(&run.path(&[]), &Vec::new()).await
        {
            progress.say(&format!("{run}: {}", where_it_is(&found)));
        }
    }
}

/// Whether a run, or one generation of it, has ended.
pub(super) async fn is_ended(
    client: &Client,
    run: &RunName,
    run_number: Option<u32>,
) -> Result<bool, Failure> {
    let found = client.get(&run.path(&[]), &Vec::new()).await?;
    let newest = found["meta"]["runNumber"].as_u64();
    if run_number.is_some_and(|number| newest.is_some_and(|newest| u64::from(number) < newest)) {
        return Ok(true);
    }
    Ok(is_final(&cell(&found["details"], "status")))
}

/// Whether a run of this status has ended.
pub(super) fn is_final(status: &str) -> bool {
    matches!(status, "complete" | "errored" | "terminated")
}

/// What a wait that was too long is told, with what was in its way.
pub(super) fn too_long(run: &RunName, waited: Duration, trouble: Option<String>) -> Failure {
    let waited = format_duration(Duration::from_secs(waited.as_secs()));
    let message = match trouble {
        None => format!("{run} has not ended after {waited}"),
        Some(trouble) => format!("{run} is not known to have ended after {waited}: {trouble}"),
    };
    Failure::new(Exit::Timeout, message)
        .with_hint(format!("it goes on by itself; `windlass why {run}` says what it waits for"))
}

fn where_it_is(found: &Value) -> String {
    let status = cell(&found["details"], "status");
    match &found["meta"]["currentStep"] {
        Value::Null => status,
        step => format!("{status}, step {}", step_text(step)),
    }
}

/// Prints how a run ended: the output on standard output, a failure on standard error.
pub(super) fn end(out: Out, run: &RunName, answer: &Value) -> Outcome {
    let details = &answer["details"];
    let status = cell(details, "status");
    out.value(answer)?;
    if status == "complete" {
        if out.is_text() {
            out.line(&pretty(&details["output"]))?;
        }
        return Ok(Exit::Ok);
    }
    let error = error_text(&details["error"]);
    let colon = if error.is_empty() { "" } else { ": " };
    let failure = Failure::new(Exit::RunFailed, format!("{run} {status}{colon}{error}"));
    output::error(&failure.with_hint(format!("windlass runs history {run}")));
    Ok(Exit::RunFailed)
}
