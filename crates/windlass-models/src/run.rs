//! A run of any model as its users hold it: where it is, what it did, how it ended.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_engine::{Engine, Started};
use windlass_kernel::{
    Body, Delivery, Error, ErrorKind, Event, LogLevel, LogLine, MessageId, MessageName, Query, Run,
    RunId, RunKey, RunStatus, Sha256Digest, Step, WorkflowName,
};

/// The output of a generation that was continued by the next.
pub(crate) const CONTINUED: &str = "{\"windlass\":\"continued\"}";

/// Where a run is.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its status.
    pub status: RunStatus,
    /// What it ended with, as JSON.
    pub output: Option<serde_json::Value>,
    /// Why it failed: name and message.
    pub error: Option<(String, String)>,
    /// Why this build, or any so far, cannot carry it on.
    pub blocked: Option<String>,
    /// Which generation this is.
    pub generation: u32,
}

/// A handle to a run. It follows the run through restarts and retries.
pub struct RunHandle<O> {
    engine: Engine,
    workflow: WorkflowName,
    id: RunId,
    run_key: RunKey,
    existed: bool,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for RunHandle<O> {
    fn clone(&self) -> Self {
        let (engine, workflow) = (self.engine.clone(), self.workflow.clone());
        let (id, run_key, existed) = (self.id.clone(), self.run_key, self.existed);
        Self { engine, workflow, id, run_key, existed, output: PhantomData }
    }
}

impl<O> RunHandle<O> {
    pub(crate) fn new(engine: Engine, workflow: WorkflowName, started: Started) -> Self {
        let Started { run_key, id, existed } = started;
        Self { engine, workflow, id, run_key, existed, output: PhantomData }
    }

    #[cfg(feature = "machines")]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The run's name.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The key of the generation that was the newest when this handle was made.
    pub fn run_key(&self) -> RunKey {
        self.run_key
    }

    /// Whether starting it found it.
    pub fn existed(&self) -> bool {
        self.existed
    }

    /// The run's row, newest generation.
    pub async fn run(&self) -> Result<Run, Error> {
        let found = self.engine.find_run(&self.workflow, &self.id).await?;
        found.ok_or_else(|| {
            let message = format!("there is no run {:?} of workflow {:?}", self.id, self.workflow);
            Error::new(ErrorKind::NotFound, "RUN_NOT_FOUND", message)
        })
    }

    /// Where the run is.
    pub async fn status(&self) -> Result<Status, Error> {
        let run = self.run().await?;
        let blocked = match run.status.is_ended() {
            true => None,
            false => self.engine.blocked(&run).await?.map(|blocked| blocked.reason),
        };
        Ok(Status {
            status: run.status,
            output: run.output.as_ref().map(Body::read).transpose()?,
            error: run.error.as_ref().map(said),
            blocked,
            generation: run.generation,
        })
    }

    /// Sends an event to the run. It waits in the mailbox until the run asks for it.
    pub async fn send_event<T: Serialize>(
        &self,
        event_type: impl AsRef<str>,
        payload: &T,
    ) -> Result<(), Error> {
        self.send(event_type.as_ref(), payload, None).await.map(|_| ())
    }

    /// As [`RunHandle::send_event`], with an id: sent again it is the same event.
    pub async fn send_event_once<T: Serialize>(
        &self,
        event_type: impl AsRef<str>,
        payload: &T,
        id: impl AsRef<str>,
    ) -> Result<Delivery, Error> {
        let id = MessageId::with_limits(id, &self.engine.options().limits)?;
        self.send(event_type.as_ref(), payload, Some(id)).await
    }

    async fn send<T: Serialize>(
        &self,
        event_type: &str,
        payload: &T,
        id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        let limits = &self.engine.options().limits;
        let name = MessageName::with_limits(event_type, limits)?;
        let body = Body::of(payload)?;
        let (bytes, depth) = (limits.message_bytes_max, limits.json_depth_max);
        let body = check_body("the event's payload", body, bytes, depth)?;
        self.engine.send_event(self.run_key, name, Some(body), id).await
    }

    /// Stops the run before its next piece of user code. Its timers go on.
    pub async fn pause(&self) -> Result<(), Error> {
        self.engine.pause(&self.run().await?, None).await
    }

    /// Lets a paused run go on; any other is left as it is.
    pub async fn resume(&self) -> Result<(), Error> {
        self.engine.resume(&self.run().await?, None).await
    }

    /// Ends the run, whatever it is doing.
    pub async fn terminate(&self) -> Result<(), Error> {
        let run = self.run().await?;
        self.engine.terminate(run.run_key, None, None).await
    }

    /// Begins the run anew with the same input. Earlier generations stay readable.
    pub async fn restart(&self) -> Result<Self, Error> {
        let run = self.engine.restart(self.run().await?.run_key, None).await?;
        Ok(Self { run_key: run.run_key, ..self.clone() })
    }

    /// Carries an errored run on at the step that failed.
    pub async fn retry(&self) -> Result<Self, Error> {
        let run = self.engine.retry(self.run().await?.run_key, None).await?;
        Ok(Self { run_key: run.run_key, ..self.clone() })
    }

    /// Asks a run that waits for a new build to try again now.
    pub async fn wake(&self) -> Result<(), Error> {
        self.engine.wake_run(&self.run().await?).await
    }

    /// The run's durable log lines, oldest first.
    pub async fn logs(&self) -> Result<Vec<LogLine>, Error> {
        self.logs_from(LogLevel::Debug).await
    }

    /// As [`RunHandle::logs`], of this level or above.
    pub async fn logs_from(&self, level: LogLevel) -> Result<Vec<LogLine>, Error> {
        let run_key = self.run().await?.run_key;
        let mut lines: Vec<LogLine> = Vec::new();
        loop {
            let after = lines.last().map(|line| line.log_id);
            let level_min = (level != LogLevel::Debug).then_some(level);
            let query = Query::Logs { run_key, level_min, category: None, after, limit: 1_000 };
            let page = self.engine.store().list(query).await?.logs()?;
            let last = page.len() < 1_000;
            lines.extend(page);
            if last {
                return Ok(lines);
            }
        }
    }

    /// The run's ledger.
    pub async fn events(&self) -> Result<Vec<Event>, Error> {
        let run_key = self.run().await?.run_key;
        let mut events = Vec::new();
        loop {
            let query = Query::Events { run_key, from: events.len() as u64, limit: 1_000 };
            let page = self.engine.store().list(query).await?.events()?;
            let last = page.len() < 1_000;
            events.extend(page);
            if last {
                return Ok(events);
            }
        }
    }

    /// The run's steps, in the order in which they were first recorded.
    pub async fn steps(&self) -> Result<Vec<Step>, Error> {
        let run_key = self.run().await?.run_key;
        let loaded = self.engine.store().load(vec![run_key]).await?;
        Ok(loaded.into_iter().flat_map(|loaded| loaded.steps).collect())
    }
}

impl<O: DeserializeOwned> RunHandle<O> {
    /// Waits until the run has ended, and answers its output, or an error that says how it ended.
    pub async fn result(&self) -> Result<O, Error> {
        let mut run_key = self.run_key;
        loop {
            let ended = self.engine.wait(run_key).await?;
            match ended.status {
                RunStatus::Complete => {
                    let output = ended.output.unwrap_or_else(|| Body::json("null"));
                    if output.bytes.as_ref() == CONTINUED.as_bytes() {
                        run_key = self.engine.next_generation_of(run_key).await?;
                        continue;
                    }
                    return output.read();
                }
                RunStatus::Errored => {
                    let said = ended.error.as_ref().map(said);
                    let (name, message) =
                        said.unwrap_or_else(|| ("Error".into(), "no reason was kept".into()));
                    let message = format!("{name}: {message}");
                    return Err(Error::new(ErrorKind::Failed, "RUN_ERRORED", message));
                }
                status => {
                    let reason = ended.error.as_ref().map(|error| said(error).1);
                    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                    let message = format!("run {:?} was {status}{reason}", self.id);
                    return Err(Error::new(ErrorKind::Failed, "RUN_TERMINATED", message));
                }
            }
        }
    }
}

// Name and message of an error as every model records it.
fn said(error: &Body) -> (String, String) {
    #[derive(Deserialize)]
    struct Said {
        name: String,
        message: String,
    }
    match error.read() {
        Ok(Said { name, message }) => (name, message),
        Err(_) => ("Error".into(), String::from_utf8_lossy(&error.bytes).into_owned()),
    }
}

/// Children are named after their parent and step. A name that does not fit is cut, and a digest
/// keeps it apart from its likes; a later generation has children of its own.
pub(crate) fn child_id(run: &Run, key: &str) -> Result<RunId, Error> {
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
    let shown: String = key.chars().map(plain).collect();
    let mut id = format!("{}:{shown}", run.id);
    if run.generation > 0 {
        id.push_str(&format!(":g{}", run.generation));
    }
    if shown != key || id.len() > 300 {
        let digest = Sha256Digest::of_parts(&[run.id.as_str().as_bytes(), key.as_bytes()]);
        id.truncate(300);
        let bytes = digest.as_bytes();
        id.push_str(&format!(":{:02x}{:02x}{:02x}{:02x}", bytes[0], bytes[1], bytes[2], bytes[3]));
    }
    RunId::composed(id)
}

/// Refuses a JSON body that is too large or nested too deep, and says both.
pub(crate) fn check_body(
    what: &str,
    body: Body,
    bytes_max: usize,
    depth_max: usize,
) -> Result<Body, Error> {
    if body.len() > bytes_max {
        let message = format!("{what} has {} bytes; at most {bytes_max} are allowed", body.len());
        return Err(invalid("INVALID_SIZE", message));
    }
    let depth = json_depth(&body.bytes);
    if depth > depth_max {
        let message = format!("{what} is nested {depth} deep; at most {depth_max} are allowed");
        return Err(invalid("INVALID_DEPTH", message));
    }
    Ok(body)
}

// How deep arrays and objects nest in well-formed JSON.
fn json_depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0_usize, 0, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

pub(crate) fn invalid(code: &'static str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_of_json() {
        for (text, expect) in [
            ("1", 0),
            ("\"[[[\"", 0),
            ("[]", 1),
            ("{\"a\":[{\"b\":\"}\"}]}", 3),
            ("[\"\\\"[\",[1]]", 2),
        ] {
            assert_eq!(json_depth(text.as_bytes()), expect, "{text}");
        }
    }
}
