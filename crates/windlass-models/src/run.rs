//! A run of any model as its users hold it: where it is, what it did, how it ended.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_engine::{Engine, Explanation, ModelDescription, Started};
use windlass_kernel::{
    Body, Delivery, Error, ErrorCode, ErrorKind, Event, LogLevel, LogLine, MessageId, MessageName,
    Query, Run, RunId, RunKey, RunStatus, Step, Timestamp, WorkflowName,
};

use crate::workflow_ref::Format;

/// The output of a generation that was continued by the next.
pub(crate) const CONTINUED: &str = "{\"windlass\":\"continued\"}";

/// Whether the output says that the run goes on as its next generation.
pub(crate) fn is_continued(output: Option<&Body>) -> bool {
    output.is_some_and(|output| output.bytes.as_ref() == CONTINUED.as_bytes())
}

/// Where a run is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// Its status.
    pub status: RunStatus,
    /// The output, as JSON.
    pub output: Option<serde_json::Value>,
    /// Why it failed: name and message.
    pub error: Option<(String, String)>,
    /// Why this build, or any so far, cannot carry it on.
    pub blocked: Option<String>,
    /// Which generation this is.
    pub generation: u32,
    /// When the run starts, if it was started with a delay that has not passed.
    pub starts_at: Option<Timestamp>,
}

/// A handle to a run of any model. It follows the run through restarts and retries. Cheap to clone.
pub struct RunHandle<O> {
    pub(crate) engine: Engine,
    workflow: WorkflowName,
    id: RunId,
    run_key: RunKey,
    existed: bool,
    model: &'static ModelDescription,
    decode: fn(&Body) -> Result<O, Error>,
}

impl<O> fmt::Debug for RunHandle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle")
            .field("workflow", &self.workflow)
            .field("id", &self.id)
            .field("run_key", &self.run_key)
            .field("existed", &self.existed)
            .finish_non_exhaustive()
    }
}

impl<O> Clone for RunHandle<O> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            workflow: self.workflow.clone(),
            id: self.id.clone(),
            run_key: self.run_key,
            existed: self.existed,
            model: self.model,
            decode: self.decode,
        }
    }
}

impl<O> RunHandle<O> {
    pub(crate) fn new<I>(
        engine: Engine,
        workflow: WorkflowName,
        started: Started,
        format: Format<I, O>,
    ) -> Self {
        let Started { run_key, id, existed } = started;
        let Format { model, decode, .. } = format;
        Self { engine, workflow, id, run_key, existed, model, decode }
    }

    /// The run's name.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// println!("{}", run.id());
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The key of the generation that was the newest when this handle was made.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// println!("{}", run.run_key());
    /// # Ok(()) }
    /// ```
    pub fn run_key(&self) -> RunKey {
        self.run_key
    }

    /// Whether starting it found it.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// if run.existed() {
    ///     println!("it was started before");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn existed(&self) -> bool {
        self.existed
    }

    /// The run's row, newest generation.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// println!("created at {}", run.run().await?.created_at);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be read.
    pub async fn run(&self) -> Result<Run, Error> {
        let found = self.engine.find_run(&self.workflow, &self.id).await?;
        found.ok_or_else(|| self.not_found())
    }

    #[cfg(feature = "relays")]
    pub(crate) async fn overview(&self) -> Result<windlass_kernel::RunOverview, Error> {
        let (namespace, id) = (self.engine.namespace().clone(), self.id.clone());
        let found = self.engine.store().run_overview(namespace, self.workflow.clone(), id).await?;
        found.ok_or_else(|| self.not_found())
    }

    fn not_found(&self) -> Error {
        let message = format!("there is no run {:?} of workflow {:?}", self.id, self.workflow);
        Error::new(ErrorKind::NotFound, ErrorCode::RunNotFound, message)
    }

    /// Where the run is.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// let status = run.status().await?;
    /// if let Some(at) = status.starts_at {
    ///     println!("starts at {at}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be read.
    pub async fn status(&self) -> Result<Status, Error> {
        let run = self.run().await?;
        let blocked = match run.status.is_ended() {
            true => None,
            false => self.engine.blocked(&run).await?.map(|blocked| blocked.reason),
        };
        Ok(Status {
            status: run.status,
            output: run.output.as_ref().map(Body::read).transpose()?,
            error: run.error.as_ref().map(error_text),
            blocked,
            generation: run.generation,
            starts_at: starts_at(&run, self.engine.clock().now()),
        })
    }

    /// Sends an event to the run. It waits in the mailbox until the run asks for it.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.send_event("approved", &"Ann").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunTerminal`] if the run has ended, [`ErrorCode::InvalidName`] if the type is not valid, or the
    /// payload is too large.
    pub async fn send_event<T: Serialize>(
        &self,
        event_type: impl AsRef<str>,
        payload: &T,
    ) -> Result<(), Error> {
        self.send(event_type.as_ref(), payload, None).await.map(|_| ())
    }

    /// As [`RunHandle::send_event`], with an id: sent again it is the same event.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.send_event_once("approved", &"Ann", "approval-1").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RunHandle::send_event`].
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
        let name = MessageName::with_limits(event_type, &self.engine.options().limits)?;
        let body = self.payload("the event's payload", Body::of(payload)?)?;
        self.engine.send_event(self.run_key, name, Some(body), id).await
    }

    /// Sends a signal with a JSON payload to a machine or a relay.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.signal("go", &42).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The run has ended, or the payload is too large.
    pub async fn signal<T: Serialize>(
        &self,
        name: impl AsRef<str>,
        payload: &T,
    ) -> Result<(), Error> {
        let body = self.payload("the signal's payload", Body::of(payload)?)?;
        self.send_signal(name.as_ref(), body, None).await
    }

    /// As [`RunHandle::signal`], with an id: a second signal with the id of the first is dropped.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.signal_once("go", &42, "go-1").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RunHandle::signal`].
    pub async fn signal_once<T: Serialize>(
        &self,
        name: impl AsRef<str>,
        payload: &T,
        id: impl AsRef<str>,
    ) -> Result<(), Error> {
        let body = self.payload("the signal's payload", Body::of(payload)?)?;
        self.send_signal(name.as_ref(), body, Some(id.as_ref())).await
    }

    pub(crate) async fn send_signal(
        &self,
        name: &str,
        body: Body,
        id: Option<&str>,
    ) -> Result<(), Error> {
        let limits = &self.engine.options().limits;
        let id = id.map(|id| MessageId::with_limits(id, limits)).transpose()?;
        let name = MessageName::with_limits(name, limits)?;
        let kind = self.model.signal_kind;
        self.engine.send_message(self.run_key, kind, name, Some(body), id).await.map(|_| ())
    }

    fn payload(&self, what: &str, body: Body) -> Result<Body, Error> {
        let limits = &self.engine.options().limits;
        check_body(what, body, limits.message_bytes_max, limits.json_depth_max)
    }

    /// Cancels the run. `Ok(false)` if it has ended before, or does not exist any more.
    ///
    /// A run of steps or of a relay has ended when this returns. A machine gets the signal `cancel` and ends
    /// by itself; the engine terminates it if it has not ended after the grace period (30 s by default).
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// if run.cancel("the customer changed their mind").await? {
    ///     println!("cancelled");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn cancel(&self, reason: impl AsRef<str>) -> Result<bool, Error> {
        let reason = reason.as_ref();
        let Some(run) = self.engine.find_run(&self.workflow, &self.id).await? else {
            return Ok(false);
        };
        let Some(signal) = &self.engine.description_of(&run).cancel.message else {
            return self.engine.cancel(run.run_key, Some(reason), None).await;
        };
        match self.signal(signal.as_str(), &json!({ "reason": reason })).await {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(error.code(), ErrorCode::RunTerminal | ErrorCode::RunNotFound) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Explains why the run is where it is, and whether it will move without help.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// let why = run.why().await?;
    /// println!("moving: {}", why.moving);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more.
    pub async fn why(&self) -> Result<Explanation, Error> {
        self.engine.why(self.run().await?.run_key).await
    }

    /// Stops the run before its next piece of user code. Its timers go on.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.pause().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunTerminal`] if the run has ended, [`ErrorCode::RunNotFound`] if the run does not exist any
    /// more, or the store cannot be written.
    pub async fn pause(&self) -> Result<(), Error> {
        self.engine.pause(&self.run().await?, None).await
    }

    /// Lets a paused run go on; any other is left as it is.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.resume().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RunHandle::pause`].
    pub async fn resume(&self) -> Result<(), Error> {
        self.engine.resume(&self.run().await?, None).await
    }

    /// Ends the run, whatever it is doing.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.terminate().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RunHandle::pause`].
    pub async fn terminate(&self) -> Result<(), Error> {
        let run = self.run().await?;
        self.engine.terminate(run.run_key, None, None).await
    }

    /// Begins the run anew with the same input. Earlier generations stay readable.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// let again = run.restart().await?;
    /// println!("{}", again.result().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be written.
    pub async fn restart(&self) -> Result<Self, Error> {
        let run = self.engine.restart(self.run().await?.run_key, None).await?;
        Ok(Self { run_key: run.run_key, ..self.clone() })
    }

    /// Carries an errored run on at the step that failed.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// let again = run.retry().await?;
    /// println!("{}", again.result().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The run has not failed, [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be
    /// written.
    pub async fn retry(&self) -> Result<Self, Error> {
        let run = self.engine.retry(self.run().await?.run_key, None).await?;
        Ok(Self { run_key: run.run_key, ..self.clone() })
    }

    /// Asks a run that waits for a new build to try again now.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// run.wake().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be written.
    pub async fn wake(&self) -> Result<(), Error> {
        self.engine.wake_run(&self.run().await?).await
    }

    /// The run's durable log lines, oldest first.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// for line in run.logs().await? {
    ///     println!("{}", line.message);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be read.
    pub async fn logs(&self) -> Result<Vec<LogLine>, Error> {
        self.logs_from(LogLevel::Debug).await
    }

    /// As [`RunHandle::logs`], of this level or above.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// let warnings = run.logs_from(windlass::LogLevel::Warn).await?;
    /// # drop(warnings);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be read.
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
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// for event in run.events().await? {
    ///     println!("{}", event.event_type);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be read.
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
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// for step in run.steps().await? {
    ///     println!("{} {}", step.name, step.status);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the run does not exist any more, or the store cannot be read.
    pub async fn steps(&self) -> Result<Vec<Step>, Error> {
        let run_key = self.run().await?.run_key;
        let loaded = self.engine.store().load(vec![run_key]).await?;
        Ok(loaded.into_iter().flat_map(|loaded| loaded.steps).collect())
    }
}

impl<O> RunHandle<O> {
    /// Waits until the run has ended, and returns its output.
    ///
    /// ```
    /// # async fn example(run: windlass::RunHandle<String>) -> windlass::Result<()> {
    /// println!("{}", run.result().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunErrored`] if the run failed, [`ErrorCode::RunTerminated`] if it was cancelled or
    /// terminated.
    pub async fn result(&self) -> Result<O, Error> {
        let mut run_key = self.run_key;
        loop {
            let ended = self.engine.wait(run_key).await?;
            match ended.status {
                RunStatus::Complete => {
                    let output = ended.output.unwrap_or_else(|| Body::json("null"));
                    if is_continued(Some(&output)) {
                        run_key = self.engine.next_generation_of(run_key).await?;
                        continue;
                    }
                    return (self.decode)(&output);
                }
                RunStatus::Errored => {
                    let text = ended.error.as_ref().map(error_text);
                    let (name, message) =
                        text.unwrap_or_else(|| ("Error".into(), "no reason was kept".into()));
                    let message = format!("{name}: {message}");
                    return Err(Error::new(ErrorKind::Failed, ErrorCode::RunErrored, message));
                }
                status => {
                    let reason = ended.error.as_ref().map(|error| error_text(error).1);
                    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                    let message = format!("run {:?} was {status}{reason}", self.id);
                    return Err(Error::new(ErrorKind::Failed, ErrorCode::RunTerminated, message));
                }
            }
        }
    }
}

// Name and message of an error as every model records it.
fn error_text(error: &Body) -> (String, String) {
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

// The time at which a delayed run starts, while it lies ahead.
fn starts_at(run: &Run, now: Timestamp) -> Option<Timestamp> {
    let unstarted = run.started_at.is_none() && !run.status.is_ended();
    run.turn.due_at.filter(|due| unstarted && *due > now)
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
        return Err(invalid(ErrorCode::InvalidSize, message));
    }
    let depth = json_depth(&body.bytes);
    if depth > depth_max {
        let message = format!("{what} is nested {depth} deep; at most {depth_max} are allowed");
        return Err(invalid(ErrorCode::InvalidDepth, message));
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

pub(crate) fn invalid(code: ErrorCode, message: impl Into<String>) -> Error {
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
