//! The log of the checker. The engine never reads or writes it: it holds the answers that clients
//! received, the work that steps did, and the faults that were injected.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The outcome of a request as its caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The server acknowledged the request.
    Ok,
    /// The server said that it wrote nothing.
    Refused,
    /// The answer was lost, or the server said that it does not know.
    Unknown,
}

/// The kind of a request that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    Create,
    Event,
    Restart,
}

/// The work of one attempt of a step: a call that arrived at the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// The process that did the work: the name of the server and its incarnation.
    pub(crate) process: String,
    pub(crate) run_key: String,
    pub(crate) run: String,
    pub(crate) step: usize,
    pub(crate) attempt: u64,
    /// The token that this attempt returns as its result. It is unique.
    pub(crate) token: String,
    /// The tokens of the earlier steps, as the engine recorded them.
    pub(crate) earlier: Vec<String>,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    /// A request of a client, logged when its answer arrived or was given up.
    Call {
        action: Action,
        run: String,
        outcome: Outcome,
        detail: String,
    },
    Effect(Effect),
    /// A client saw that this generation of a run has ended.
    Ended {
        run_key: String,
    },
    /// A process answers. It was started after a fault, or at the beginning.
    Ready {
        process: String,
    },
    /// A process was killed or frozen. Requests that it sent before may still arrive.
    Halted {
        process: String,
    },
    /// A frozen process continues. `stale_ms` is how long it may still send what it had begun.
    Continued {
        process: String,
        stale_ms: u64,
    },
    /// Another fault, for the reader of the log.
    Fault {
        what: String,
    },
}

/// An entry with the time since the start of the phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at_ms: u64,
    pub(crate) entry: Entry,
}

/// The log of one phase: in memory for the checker and in a file for people.
pub(crate) struct Log {
    start: Instant,
    state: Mutex<State>,
}

struct State {
    lines: Vec<Line>,
    file: File,
}

impl Log {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("could not create the log {}", path.display()))?;
        let state = Mutex::new(State { lines: Vec::new(), file });
        Ok(Self { start: Instant::now(), state })
    }

    /// Appends an entry. The order of the log is the order of these calls.
    pub(crate) fn add(&self, entry: Entry) {
        let mut state = self.state.lock().expect("no thread panics with the log");
        let at_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let line = Line { at_ms, entry };
        let text = serde_json::to_string(&line).expect("an entry is plain data");
        // The file is for people; the checker reads the memory. A full disk must not end a phase.
        if let Err(error) = writeln!(state.file, "{text}") {
            eprintln!("could not write the log: {error}");
        }
        state.lines.push(line);
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        self.state.lock().expect("no thread panics with the log").lines.clone()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Entry) -> bool) -> usize {
        let state = self.state.lock().expect("no thread panics with the log");
        state.lines.iter().filter(|line| wanted(&line.entry)).count()
    }
}
