//! Waiting for the end of a run: long polls, a line of progress, and an exit code that tells.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::RunName;
use super::get::step_text;
use crate::args::WaitArgs;
use crate::client::Client;
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, Out, Progress, cell, error_text};

/// How long one poll waits; short, so that the line of progress is fresh.
const POLL: Duration = Duration::from_secs(2);
/// How long a server may be away before waiting is given up.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// Waits until a run ends, prints how, and says so with the exit code.
pub(super) async fn until_end(
    Api { client, out }: &Api,
    run: &RunName,
    wait: &WaitArgs,
) -> Outcome {
    let started = Instant::now();
    let mut last_answer = started;
    let progress = Progress::new(&format!("{run}: waiting"));
    loop {
        let left = wait.timeout.map_or(POLL, |max| max.saturating_sub(started.elapsed()));
        let poll = left.min(POLL);
        let params = vec![("waitMs", poll.as_millis().to_string())];
        match client.long_poll(&run.path(&["result"]), &params, poll).await {
            Ok(answer) if answer["done"] == true => {
                drop(progress);
                return end(*out, run, &answer);
            }
            Ok(_) => last_answer = Instant::now(),
            // A server that is being restarted comes back, and the run with it.
            Err(failure) if failure.transient && last_answer.elapsed() < AWAY_MAX => {
                progress.say(format!("{run}: {failure}"));
                tokio::time::sleep(Duration::from_millis(300)).await;
                continue;
            }
            Err(failure) => return Err(failure),
        }
        if wait.timeout.is_some_and(|max| started.elapsed() >= max) {
            drop(progress);
            return Err(too_long(run, started.elapsed()));
        }
        if let Ok(found) = client.get(&run.path(&[]), &Vec::new()).await {
            progress.say(format!("{run}: {}", where_it_is(&found)));
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

/// What a wait that was too long is told.
pub(super) fn too_long(run: &RunName, waited: Duration) -> Failure {
    let seconds = waited.as_secs();
    Failure::new(Exit::Timeout, format!("{run} has not ended after {seconds} s"))
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
            out.line(&serde_json::to_string_pretty(&details["output"]).unwrap_or_default())?;
        }
        return Ok(Exit::Ok);
    }
    let error = error_text(&details["error"]);
    let colon = if error.is_empty() { "" } else { ": " };
    let failure = Failure::new(Exit::RunFailed, format!("{run} {status}{colon}{error}"));
    output::error(&failure.with_hint(format!("windlass runs history {run}")));
    Ok(Exit::RunFailed)
}
