//! The parts of provider calls that run in this process, for those who watch them. Nothing here is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use windlass_kernel::RunKey;

use super::provider::{StreamPart, TokenSink};

/// How many bytes of parts one call keeps for those who begin to watch later. Later parts are dropped;
/// the recorded response has all of them.
pub const STREAM_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The bytes of a part besides its text.
const PART_BYTES: usize = 64;

/// A part of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "part", rename_all = "camelCase")]
pub enum Part {
    /// Text of the answer.
    Text {
        /// The text.
        text: String,
    },
    /// Text of the model's reasoning.
    Thinking {
        /// The text.
        text: String,
    },
    /// The model begins to write the input of a tool call.
    ToolUse {
        /// The provider's id of the tool call.
        id: String,
        /// The name of the tool.
        name: String,
    },
    /// A piece of the JSON input of the tool call that began last.
    ToolInput {
        /// The piece.
        text: String,
    },
}

impl Part {
    fn of(part: StreamPart<'_>) -> Self {
        match part {
            StreamPart::Text(text) => Self::Text { text: text.to_owned() },
            StreamPart::Thinking(text) => Self::Thinking { text: text.to_owned() },
            StreamPart::ToolUse { id, name } => {
                Self::ToolUse { id: id.to_owned(), name: name.to_owned() }
            }
            StreamPart::ToolInput(text) => Self::ToolInput { text: text.to_owned() },
        }
    }

    fn bytes(&self) -> usize {
        let text = match self {
            Self::Text { text } | Self::Thinking { text } | Self::ToolInput { text } => text.len(),
            Self::ToolUse { id, name } => id.len() + name.len(),
        };
        text + PART_BYTES
    }
}

/// One attempt of a call that runs in this process.
#[derive(Debug)]
pub struct CallParts {
    call: String,
    attempt: u32,
    parts: Mutex<Parts>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Parts {
    parts: Vec<Part>,
    bytes: usize,
    is_over: bool,
    is_cut: bool,
}

impl CallParts {
    /// The key of the call's step, for example `llm:3`.
    pub fn call(&self) -> &str {
        &self.call
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether parts were dropped because there were too many.
    pub fn is_cut(&self) -> bool {
        self.parts.lock().is_cut
    }

    /// Waits for the parts from a position on; empty when the attempt has ended and there are no more. The
    /// position of the next ones is the old one plus their number.
    pub async fn from(&self, position: usize) -> Vec<Part> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Enabled before the look at the parts, so that one which comes in between is not missed.
            changed.as_mut().enable();
            {
                let parts = self.parts.lock();
                let more = parts.parts.get(position..).unwrap_or_default();
                if !more.is_empty() || parts.is_over {
                    return more.to_vec();
                }
            }
            changed.await;
        }
    }

    fn push(&self, part: Part) {
        {
            let mut parts = self.parts.lock();
            if parts.bytes + part.bytes() > STREAM_BYTES_MAX {
                parts.is_cut = true;
                return;
            }
            parts.bytes += part.bytes();
            parts.parts.push(part);
        }
        self.changed.notify_waiters();
    }

    fn end(&self) {
        self.parts.lock().is_over = true;
        self.changed.notify_waiters();
    }
}

/// The calls that run in this process and are streamed, and who watches which run.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<RunKey, Arc<CallParts>>,
    watched: BTreeMap<RunKey, usize>,
}

impl Streams {
    pub(crate) fn is_watched(&self, run: RunKey) -> bool {
        self.state.lock().watched.contains_key(&run)
    }

    /// An attempt of a call begins. It ends when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, run: RunKey, call: &str, attempt: u32) -> Streaming {
        let parts = Arc::new(CallParts {
            call: call.to_owned(),
            attempt,
            parts: Mutex::default(),
            changed: Notify::new(),
        });
        self.state.lock().calls.insert(run, Arc::clone(&parts));
        Streaming { streams: Arc::clone(self), run, parts }
    }
}

/// An attempt of a call that is streamed.
pub(crate) struct Streaming {
    streams: Arc<Streams>,
    run: RunKey,
    parts: Arc<CallParts>,
}

impl TokenSink for Streaming {
    fn part(&self, part: StreamPart<'_>) {
        self.parts.push(Part::of(part));
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        let mut state = self.streams.state.lock();
        if state.calls.get(&self.run).is_some_and(|parts| Arc::ptr_eq(parts, &self.parts)) {
            state.calls.remove(&self.run);
        }
        drop(state);
        self.parts.end();
    }
}

/// Watches the calls of one run in this process. While somebody watches, calls that begin ask the provider
/// to stream.
#[derive(Debug)]
pub struct CallWatch {
    streams: Arc<Streams>,
    run: RunKey,
}

impl CallWatch {
    pub(crate) fn new(streams: &Arc<Streams>, run: RunKey) -> Self {
        *streams.state.lock().watched.entry(run).or_default() += 1;
        Self { streams: Arc::clone(streams), run }
    }

    /// The attempt that runs now and is streamed.
    pub fn current(&self) -> Option<Arc<CallParts>> {
        self.streams.state.lock().calls.get(&self.run).cloned()
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        let mut state = self.streams.state.lock();
        if let Some(count) = state.watched.get_mut(&self.run) {
            *count -= 1;
            if *count == 0 {
                state.watched.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn run() -> RunKey {
        RunKey(uuid::Uuid::from_u128(7))
    }

    #[test]
    fn a_late_watcher_gets_all_parts_and_then_the_end() {
        let streams = Arc::new(Streams::default());
        let call = streams.begin(run(), "llm:1", 1);
        call.part(StreamPart::Text("a"));
        assert!(!streams.is_watched(run()));
        let watch = CallWatch::new(&streams, run());
        assert!(streams.is_watched(run()));
        let parts = watch.current().unwrap();
        let text = |text: &str| Part::Text { text: text.into() };
        assert_eq!(parts.from(0).now_or_never().unwrap(), [text("a")]);
        call.part(StreamPart::Text("b"));
        assert_eq!(parts.from(1).now_or_never().unwrap(), [text("b")]);
        drop(call);
        assert!(parts.from(2).now_or_never().unwrap().is_empty());
        assert!(watch.current().is_none());
        drop(watch);
        assert!(!streams.is_watched(run()));
    }

    #[test]
    fn a_part_wakes_who_waits_for_it() {
        let streams = Arc::new(Streams::default());
        let call = streams.begin(run(), "llm:1", 1);
        let watch = CallWatch::new(&streams, run());
        let parts = watch.current().unwrap();
        let waiting = parts.from(0);
        let mut waiting = std::pin::pin!(waiting);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        call.part(StreamPart::Text("a"));
        assert!(waiting.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn parts_have_a_limit() {
        let streams = Arc::new(Streams::default());
        let call = streams.begin(run(), "llm:1", 1);
        let text = "x".repeat(STREAM_BYTES_MAX / 2 - PART_BYTES);
        (0..3).for_each(|_| call.part(StreamPart::Text(&text)));
        assert!(call.parts.is_cut());
        assert_eq!(call.parts.from(0).now_or_never().unwrap().len(), 2);
    }

    // The attempt that took over is not ended by the guard of the one before.
    #[test]
    fn a_later_attempt_replaces_an_earlier_one() {
        let streams = Arc::new(Streams::default());
        let first = streams.begin(run(), "llm:1", 1);
        let _second = streams.begin(run(), "llm:1", 2);
        drop(first);
        let watch = CallWatch::new(&streams, run());
        assert_eq!(watch.current().unwrap().attempt(), 2);
    }
}
