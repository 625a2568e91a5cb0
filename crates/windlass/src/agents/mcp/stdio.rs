//! Messages to an MCP server that is a program: one JSON document a line.

use std::fmt;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use super::McpOptions;
use super::connection::{Exchange, Failed, Session, handshake, result_of};

/// How much of what a program has written to its standard error an error shows, in bytes.
const STDERR_BYTES_MAX: usize = 1_024;

/// A program. Requests go to it one after the other; one that takes too long ends the program.
pub(super) struct Stdio {
    program: String,
    arguments: Vec<String>,
    env: Vec<(String, String)>,
    folder: Option<PathBuf>,
    bytes_max: usize,
    running: Mutex<Option<(Running, Session)>>,
    /// How often a program was started or lost.
    changes: AtomicU64,
}

/// Counts a program as lost unless it is given back, also if its request is given up.
struct Borrowed<'a>(Option<&'a AtomicU64>);

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.0 {
            changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Shows neither arguments nor variables, which may hold secrets.
impl fmt::Debug for Stdio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stdio").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Stdio {
    pub(super) fn new(program: String, arguments: Vec<String>, options: &McpOptions) -> Self {
        Self {
            program,
            arguments,
            env: options.env.clone(),
            folder: options.folder.clone(),
            bytes_max: options.answer_bytes_max,
            running: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(super) async fn request(
        &self,
        ids: &AtomicI64,
        method: &str,
        params: Value,
        only: Option<u64>,
    ) -> Result<Value, Failed> {
        let mut held = self.running.lock().await;
        // A request that is given up drops the program, which is killed: it may never answer, and it serves one
        // request after the other.
        let taken = held.take().and_then(|(mut running, session)| {
            (!running.has_ended()).then_some((running, session))
        });
        let (mut running, session) = match taken {
            Some(taken) => taken,
            None => {
                let mut running = self.start()?;
                self.changes.fetch_add(1, Ordering::Relaxed);
                match handshake(&mut running, ids).await {
                    Ok(session) => (running, session),
                    Err(failed) => return Err(running.explain(failed).await),
                }
            }
        };
        if only.is_some_and(|only| only != self.generation()) {
            *held = Some((running, session));
            return Err(Failed::Renewed);
        }
        let mut borrowed = Borrowed(Some(&self.changes));
        let id = ids.fetch_add(1, Ordering::Relaxed);
        let message = session.message(Some(id), method, params);
        match running.exchange(&session, &message).await {
            Ok((result, _)) => {
                borrowed.0 = None;
                *held = Some((running, session));
                Ok(result)
            }
            Err(failed @ Failed::Answered { .. }) => {
                borrowed.0 = None;
                *held = Some((running, session));
                Err(failed)
            }
            // The next request starts the program again.
            Err(failed) => Err(running.explain(failed).await),
        }
    }

    fn start(&self) -> Result<Running, Failed> {
        let mut command = Command::new(&self.program);
        // Keys of this process are none of the program's business.
        command.env_clear();
        for name in ["HOME", "PATH"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.args(&self.arguments).envs(self.env.iter().cloned());
        command.stdin(process::Stdio::piped()).stdout(process::Stdio::piped());
        command.stderr(process::Stdio::piped()).kill_on_drop(true);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let unavailable = |why: String| {
            Failed::Unavailable(format!("the program {:?} cannot start: {why}", self.program))
        };
        let mut child = command.spawn().map_err(|error| unavailable(error.to_string()))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(unavailable("it has no pipes".to_owned()));
        };
        let output = BufReader::new(output);
        let (line, bytes_max) = (Vec::new(), self.bytes_max);
        Ok(Running { child, input, output, errors, last_errors: Vec::new(), line, bytes_max })
    }
}

/// A program that runs. When it is dropped, the program is killed.
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    errors: ChildStderr,
    /// The end of what it has written to its standard error.
    last_errors: Vec<u8>,
    /// The begin of a line.
    line: Vec<u8>,
    bytes_max: usize,
}

impl Running {
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    async fn write(&mut self, message: &Value) -> Result<(), Failed> {
        let line = format!("{message}\n");
        let written = async {
            self.input.write_all(line.as_bytes()).await?;
            self.input.flush().await
        };
        written.await.map_err(|_| Failed::Unavailable("the program reads no requests".to_owned()))
    }

    /// The next message.
    async fn read(&mut self) -> Result<Value, Failed> {
        let mut errors = [0; 1_024];
        loop {
            let chunk = tokio::select! {
                chunk = self.output.fill_buf() => chunk,
                // A full pipe would stop the program.
                read = self.errors.read(&mut errors), if !errors.is_empty() => {
                    match read {
                        Ok(bytes @ 1..) => keep(&mut self.last_errors, &errors[..bytes]),
                        _ => return self.read_without_errors().await,
                    }
                    continue;
                }
            };
            if let Some(message) = take_line(chunk, &mut self.line, self.bytes_max)? {
                let used = message.1;
                self.output.consume(used);
                if let Some(message) = message.0 {
                    return Ok(message);
                }
            }
        }
    }

    /// Like [`Running::read`], after the program has closed its standard error.
    async fn read_without_errors(&mut self) -> Result<Value, Failed> {
        loop {
            let chunk = self.output.fill_buf().await;
            if let Some((message, used)) = take_line(chunk, &mut self.line, self.bytes_max)? {
                self.output.consume(used);
                if let Some(message) = message {
                    return Ok(message);
                }
            }
        }
    }

    /// Adds what the program has said about its end.
    async fn explain(mut self, failed: Failed) -> Failed {
        let Failed::Unavailable(mut why) = failed else { return failed };
        // Its pipes end when it ends; one that goes on running is killed and says no more.
        let _ = self.child.start_kill();
        let mut errors = [0; 1_024];
        while let Ok(bytes @ 1..) = self.errors.read(&mut errors).await {
            keep(&mut self.last_errors, &errors[..bytes]);
        }
        let said = String::from_utf8_lossy(&self.last_errors);
        if !said.trim().is_empty() {
            why = format!("{why}; its last words: {}", said.trim());
        }
        Failed::Unavailable(why)
    }
}

fn keep(last: &mut Vec<u8>, more: &[u8]) {
    last.extend_from_slice(more);
    let extra = last.len().saturating_sub(STDERR_BYTES_MAX);
    last.drain(..extra);
}

/// Takes bytes up to the end of a line. Returns how many, and the message if the line has ended and holds one.
fn take_line(
    chunk: std::io::Result<&[u8]>,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<Option<(Option<Value>, usize)>, Failed> {
    let chunk = chunk.map_err(|error| Failed::Unavailable(error.to_string()))?;
    if chunk.is_empty() {
        return Err(Failed::Unavailable("the program has ended".to_owned()));
    }
    let end = chunk.iter().position(|byte| *byte == b'\n');
    let used = end.map_or(chunk.len(), |end| end + 1);
    if line.len() + used > bytes_max {
        let why = format!("it has more than {bytes_max} bytes (`answer_bytes_max`)");
        return Err(Failed::Protocol(why));
    }
    line.extend_from_slice(&chunk[..used]);
    if end.is_none() {
        return Ok(Some((None, used)));
    }
    let whole = std::mem::take(line);
    if whole.trim_ascii().is_empty() {
        return Ok(Some((None, used)));
    }
    let message = serde_json::from_slice(&whole)
        .map_err(|error| Failed::Protocol(format!("a line is not JSON: {error}")))?;
    Ok(Some((Some(message), used)))
}

impl Exchange for Running {
    async fn exchange(
        &mut self,
        _: &Session,
        message: &Value,
    ) -> Result<(Value, Option<String>), Failed> {
        self.write(message).await?;
        let Some(id) = message.get("id") else { return Ok((Value::Null, None)) };
        loop {
            let received = self.read().await?;
            match (received.get("method"), received.get("id")) {
                (Some(method), Some(own)) => {
                    let answer = match method.as_str() {
                        Some("ping") => json!({ "jsonrpc": "2.0", "id": own, "result": {} }),
                        _ => json!({ "jsonrpc": "2.0", "id": own, "error": {
                            "code": -32601, "message": "the client has no such method",
                        }}),
                    };
                    self.write(&answer).await?;
                }
                (None, Some(answered)) if answered == id => {
                    return Ok((result_of(received)?, None));
                }
                _ => {}
            }
        }
    }
}
