//! Waits for a run to end or pause, with long polls and a progress line.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass::kernel::format_duration;

use super::RunName;
use super::get::step_text;
use crate::args::{PauseWaitArgs, WaitArgs};
use crate::client::Client;
use crate::commands::{Api, why};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, Out, Progress, cell, error_text, note, pretty, text};
use crate::retrier::Retrier;

/// The duration of one long poll; short, to keep the progress line current.
const POLL: Duration = Duration::from_secs(2);
/// The poll interval while waiting for a pause.
const PAUSE_POLL: Duration = Duration::from_millis(200);
/// The time limit for fetching the reason after a timeout.
const WHY_MAX: Duration = Duration::from_secs(2);
/// Additional time for a server that does not answer at all.
const GRACE: Duration = Duration::from_secs(1);

/// Waits until a run ends, prints its result, and sets the exit code.
pub(super) async fn until_end(api: &Api, run: &RunName, wait: &WaitArgs) -> Outcome {
    let started = Instant::now();
    // Printed on a timeout, so that JSON output names the run and its last status.
    let mut last = json!({ "id": run.id, "done": false });
    let ended = poll(api, run, wait, started, &mut last);
    let outcome = match wait.timeout {
        None => ended.await?,
        Some(max) => match tokio::time::timeout(max.saturating_add(GRACE), ended).await {
            Ok(outcome) => outcome?,
            Err(_) => WaitOutcome::TimedOut(Some("the server did not answer".to_owned())),
        },
    };
    match outcome {
        WaitOutcome::Ended(answer) => print_result(api.out, run, &answer),
        WaitOutcome::TimedOut(error) => {
            api.out.value(&last)?;
            Err(timeout_failure(&api.client, run, started.elapsed(), error).await)
        }
    }
}

/// The result of a wait.
enum WaitOutcome {
    /// The response with the result of the run.
    Ended(Value),
    /// The time limit expired. Has the last error of the server, if there was one.
    TimedOut(Option<String>),
}

// Leaves the last response in `last`, even if the caller cancels the wait.
async fn poll(
    Api { client, .. }: &Api,
    run: &RunName,
    wait: &WaitArgs,
    started: Instant,
    last: &mut Value,
) -> Result<WaitOutcome, Failure> {
    let mut retrier = Retrier::new(wait.timeout);
    let mut warned = false;
    let progress = Progress::new(&format!("{run}: waiting"));
    loop {
        let left = wait.timeout.map_or(POLL, |max| max.saturating_sub(started.elapsed()));
        let poll = left.min(POLL);
        let params = vec![("waitMs", poll.as_millis().to_string())];
        let mut error = None;
        match client.long_poll(&run.path(&["result"]), &params, poll).await {
            Ok(answer) if answer["done"] == true => return Ok(WaitOutcome::Ended(answer)),
            Ok(answer) => {
                *last = answer;
                retrier.reset();
            }
            Err(failure) => {
                error = Some(failure.to_string());
                progress.set_message(&format!("{run}: {failure}; retrying"));
                retrier.wait(failure).await?;
            }
        }
        if wait.timeout.is_some_and(|max| started.elapsed() >= max) {
            return Ok(WaitOutcome::TimedOut(error));
        }
        if error.is_none()
            && let Ok(found) = client.get(&run.path(&[]), &Vec::new()).await
        {
            progress.set_message(&format!("{run}: {}", progress_text(&found)));
            let blocked = blocked_text(&found["meta"]["blocked"]);
            if !blocked.is_empty() && !warned {
                warned = true;
                progress.suspend(|| note(&format!("{run} is blocked: {blocked}")));
            }
        }
    }
}

/// The number of the newest generation, and whether it has ended.
pub(super) async fn newest(client: &Client, run: &RunName) -> Result<(u32, bool), Failure> {
    let found = client.get(&run.path(&[]), &Vec::new()).await?;
    let number = found["meta"]["runNumber"].as_u64().unwrap_or_default();
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Ok((number, is_final(&cell(&found["details"], "status"))))
}

/// Whether a run, or one generation of it, has ended.
pub(super) async fn is_ended(
    client: &Client,
    run: &RunName,
    run_number: Option<u32>,
) -> Result<bool, Failure> {
    let (newest, ended) = newest(client, run).await?;
    Ok(ended || run_number.is_some_and(|number| number < newest))
}

/// Whether a run of this status has ended.
pub(super) fn is_final(status: &str) -> bool {
    matches!(status, "complete" | "errored" | "terminated")
}

/// The failure of an expired wait, with the server error or with what the run waits for.
pub(super) async fn timeout_failure(
    client: &Client,
    run: &RunName,
    waited: Duration,
    error: Option<String>,
) -> Failure {
    let waited = format_duration(Duration::from_secs(waited.as_secs()));
    let message = match &error {
        None => format!("{run} has not ended after {waited}"),
        Some(error) => format!("the status of {run} is unknown after {waited}: {error}"),
    };
    Failure::new(Exit::Timeout, message).with_hint(hint(client, run, error.is_none()).await)
}

// Does not ask a server that just failed to answer.
async fn hint(client: &Client, run: &RunName, answers: bool) -> String {
    let asked = async {
        let path = run.path(&["why"]);
        let found = tokio::time::timeout(WHY_MAX, client.get(&path, &Vec::new())).await;
        why::first_reason(&found.ok()?.ok()?)
    };
    let reason = if answers { asked.await } else { None };
    match reason {
        Some(reason) => format!("{reason}; see `windlass why {run}` for details"),
        None => format!("see what it waits for: `windlass why {run}`"),
    }
}

/// Waits until a run is paused. A running step finishes first.
pub(super) async fn until_paused(api: &Api, run: &RunName, wait: &PauseWaitArgs) -> Outcome {
    let Api { client, out } = api;
    let started = Instant::now();
    let mut retrier = Retrier::new(wait.timeout);
    let progress = Progress::new(&format!("{run}: waiting for the pause"));
    loop {
        let mut error = None;
        match client.get(&run.path(&[]), &Vec::new()).await {
            Ok(found) => {
                retrier.reset();
                let status = cell(&found["details"], "status");
                if status == "paused" {
                    drop(progress);
                    return match out.is_text() {
                        true => out.line(&format!("{run} is {}", out.status(&status))),
                        false => out.value(&found),
                    }
                    .map(|()| Exit::Ok);
                }
                if is_final(&status) {
                    return Err(Failure::error(format!("{run} is {status} and was not paused")));
                }
                progress.set_message(&format!("{run}: {}", progress_text(&found)));
            }
            Err(failure) => {
                error = Some(failure.to_string());
                retrier.wait(failure).await?;
            }
        }
        if wait.timeout.is_some_and(|max| started.elapsed() >= max) {
            drop(progress);
            let waited = format_duration(Duration::from_secs(started.elapsed().as_secs()));
            let message = format!("{run} is not paused after {waited}");
            let hint = hint(client, run, error.is_none()).await;
            return Err(Failure::new(Exit::Timeout, message).with_hint(hint));
        }
        tokio::time::sleep(PAUSE_POLL).await;
    }
}

/// Describes what blocks a run: the message and its code.
pub(super) fn blocked_text(blocked: &Value) -> String {
    match (text(blocked, "message"), cell(blocked, "code")) {
        (message, code) if message.is_empty() => code,
        // Messages of the engine already contain their code.
        (message, code) if code.is_empty() || message.contains(&code) => message,
        (message, code) => format!("{message} [{code}]"),
    }
}

fn progress_text(found: &Value) -> String {
    let status = cell(&found["details"], "status");
    if found["meta"]["blocked"].is_object() {
        return format!("{status}, blocked: {}", blocked_text(&found["meta"]["blocked"]));
    }
    match &found["meta"]["currentStep"] {
        Value::Null => status,
        step => format!("{status}, step {}", step_text(step, false)),
    }
}

/// Prints the result of a run: the output to standard output, a failure to standard error.
pub(super) fn print_result(out: Out, run: &RunName, answer: &Value) -> Outcome {
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
