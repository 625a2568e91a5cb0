//! Who waits for which run to end, and the runs that ended lately.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use windlass_kernel::{Body, RunKey, RunStatus};

use crate::engine::FixedState;

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The run.
    pub run_key: RunKey,
    /// Its last status.
    pub status: RunStatus,
    /// Its output.
    pub output: Option<Body>,
    /// Its error.
    pub error: Option<Body>,
}

/// Runs that ended within memory of this many bytes are answered without asking the store.
const RECENT_BYTES_MAX: usize = 16 * 1024 * 1024;
const RECENT_OVERHEAD_BYTES: usize = 200;

#[derive(Default)]
pub(crate) struct Results(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: HashMap<RunKey, Vec<oneshot::Sender<Ended>>, FixedState>,
    recent: HashMap<RunKey, Ended, FixedState>,
    order: VecDeque<(RunKey, usize)>,
    bytes: usize,
}

impl Results {
    /// The end of a run, if it is remembered; else a receiver that will get it.
    pub(crate) fn wait_for(&self, run_key: RunKey) -> Result<Ended, oneshot::Receiver<Ended>> {
        let mut state = self.0.lock();
        if let Some(ended) = state.recent.get(&run_key) {
            return Ok(ended.clone());
        }
        let (sender, receiver) = oneshot::channel();
        let waiting = state.waiting.entry(run_key).or_default();
        waiting.retain(|sender| !sender.is_closed());
        waiting.push(sender);
        Err(receiver)
    }

    pub(crate) fn ended(&self, ended: Ended) {
        let mut state = self.0.lock();
        let state = &mut *state;
        for sender in state.waiting.remove(&ended.run_key).into_iter().flatten() {
            let _ = sender.send(ended.clone());
        }
        let size = |body: &Option<Body>| body.as_ref().map_or(0, Body::len);
        let bytes = size(&ended.output) + size(&ended.error) + RECENT_OVERHEAD_BYTES;
        state.order.push_back((ended.run_key, bytes));
        state.recent.insert(ended.run_key, ended);
        state.bytes += bytes;
        while state.bytes > RECENT_BYTES_MAX {
            let Some((run_key, bytes)) = state.order.pop_front() else { break };
            state.recent.remove(&run_key);
            state.bytes -= bytes;
        }
    }
}
