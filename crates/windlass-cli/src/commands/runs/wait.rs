//! Waiting for the end of a run: long polls, a line of progress, and an exit code that tells.

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
use crate::patience::Patience;

/// How long one poll waits; short, so that the line of progress is fresh.
const POLL: Duration = Duration::from_secs(2);
/// How often it is looked whether a run is paused.
const PAUSED_EVERY: Duration = Duration::from_millis(200);
/// How long a wait that is over may take to say what the run waits for.
const WHY_MAX: Duration = Duration::from_secs(2);
/// How much later than asked a server that does not answer at all is given up.
const GRACE: Duration = Duration::from_secs(1);

/// Waits until a run ends, prints how, and says so with the exit code.
pub(super) async fn until_end(api: &Api, run: &RunName, wait: &WaitArgs) -> Outcome {
    let started = Instant::now();
    // Whoever reads JSON is told which run it is and where it was last.
    let mut last = json!({ "id": run.id, "done": false });
    let ended = poll(api, run, wait, started, &mut last);
    let polled = match wait.timeout {
        None => ended.await?,
        Some(max) => match tokio::time::timeout(max.saturating_add(GRACE), ended).await {
            Ok(polled) => polled?,
            Err(_) => Polled::TimedOut(Some("the server does not answer".to_owned())),
        },
    };
    match polled {
        Polled::Ended(answer) => end(api.out, run, &answer),
        Polled::TimedOut(trouble) => {
            api.out.value(&last)?;
            Err(too_long(&api.client, run, started.elapsed(), trouble).await)
        }
    }
}

/// What became of a wait.
enum Polled {
    /// The answer that says how the run ended.
    Ended(Value),
    /// The time is over, and this was in the way of knowing more.
    TimedOut(Option<String>),
}

// The last answer of the server is left in `last`, whatever ends the wait.
async fn poll(
    Api { client, .. }: &Api,
    run: &RunName,
    wait: &WaitArgs,
    started: Instant,
    last: &mut Value,
) -> Result<Polled, Failure> {
    let mut patience = Patience::new(wait.timeout);
    let mut is_told = false;
    let progress = Progress::new(&format!("{run}: waiting"));
    loop {
        let left = wait.timeout.map_or(POLL, |max| max.saturating_sub(started.elapsed()));
        let poll = left.min(POLL);
        let params = vec![("waitMs", poll.as_millis().to_string())];
        let mut trouble = None;
        match client.long_poll(&run.path(&["result"]), &params, poll).await {
            Ok(answer) if answer["done"] == true => return Ok(Polled::Ended(answer)),
            Ok(answer) => {
                *last = answer;
                patience.answered();
            }
            Err(failure) => {
                trouble = Some(failure.to_string());
                progress.say(&format!("{run}: {failure}; trying again"));
                patience.bear(failure).await?;
            }
        }
        if wait.timeout.is_some_and(|max| started.elapsed() >= max) {
            return Ok(Polled::TimedOut(trouble));
        }
        if trouble.is_none()
            && let Ok(found) = client.get(&run.path(&[]), &Vec::new()).await
        {
            progress.say(&format!("{run}: {}", where_it_is(&found)));
            let blocked = blocked_text(&found["meta"]["blocked"]);
            if !blocked.is_empty() && !is_told {
                is_told = true;
                progress.apart(|| note(&format!("{run} is blocked: {blocked}")));
            }
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

/// What a wait that was too long is told: what was in its way, and what the run waits for.
pub(super) async fn too_long(
    client: &Client,
    run: &RunName,
    waited: Duration,
    trouble: Option<String>,
) -> Failure {
    let waited = format_duration(Duration::from_secs(waited.as_secs()));
    let message = match &trouble {
        None => format!("{run} has not ended after {waited}"),
        Some(trouble) => format!("{run} is not known to have ended after {waited}: {trouble}"),
    };
    Failure::new(Exit::Timeout, message).with_hint(hint(client, run, trouble.is_none()).await)
}

// A server that did not answer the wait is not waited for once more.
async fn hint(client: &Client, run: &RunName, answers: bool) -> String {
    let asked = async {
        let path = run.path(&["why"]);
        let found = tokio::time::timeout(WHY_MAX, client.get(&path, &Vec::new())).await;
        why::first_reason(&found.ok()?.ok()?)
    };
    let reason = if answers { asked.await } else { None };
    match reason {
        Some(reason) => format!("{reason}; `windlass why {run}` says more"),
        None => format!("`windlass why {run}` says what it waits for"),
    }
}

/// Waits until a run is paused: a step that is being done is finished first.
pub(super) async fn until_paused(api: &Api, run: &RunName, wait: &PauseWaitArgs) -> Outcome {
    let Api { client, out } = api;
    let started = Instant::now();
    let mut patience = Patience::new(wait.timeout);
    let progress = Progress::new(&format!("{run}: waiting until it is paused"));
    loop {
        let mut trouble = None;
        match client.get(&run.path(&[]), &Vec::new()).await {
            Ok(found) => {
                patience.answered();
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
                progress.say(&format!("{run}: {}", where_it_is(&found)));
            }
            Err(failure) => {
                trouble = Some(failure.to_string());
                patience.bear(failure).await?;
            }
        }
        if wait.timeout.is_some_and(|max| started.elapsed() >= max) {
            drop(progress);
            let waited = format_duration(Duration::from_secs(started.elapsed().as_secs()));
            let message = format!("{run} is not paused after {waited}");
            let hint = hint(client, run, trouble.is_none()).await;
            return Err(Failure::new(Exit::Timeout, message).with_hint(hint));
        }
        tokio::time::sleep(PAUSED_EVERY).await;
    }
}

/// What blocks a run: what is wrong, and its code.
pub(super) fn blocked_text(blocked: &Value) -> String {
    match (text(blocked, "message"), cell(blocked, "code")) {
        (message, code) if message.is_empty() => code,
        // The engine's own errors have their code in what they say.
        (message, code) if code.is_empty() || message.contains(&code) => message,
        (message, code) => format!("{message} [{code}]"),
    }
}

fn where_it_is(found: &Value) -> String {
    let status = cell(&found["details"], "status");
    if found["meta"]["blocked"].is_object() {
        return format!("{status}, blocked: {}", blocked_text(&found["meta"]["blocked"]));
    }
    match &found["meta"]["currentStep"] {
        Value::Null => status,
        step => format!("{status}, step {}", step_text(step, false)),
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
