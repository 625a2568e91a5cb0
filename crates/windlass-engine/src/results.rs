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

/// So many runs that ended last, within so many bytes, are answered without asking the store.
const RECENT_MAX: usize = 16_384;
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

    /// A guard that forgets, when it goes, those who no longer wait for the run.
    pub(crate) fn waiting(&self, run_key: RunKey) -> Waiting<'_> {
        Waiting { results: self, run_key }
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
        while state.bytes > RECENT_BYTES_MAX || state.order.len() > RECENT_MAX {
            let Some((run_key, bytes)) = state.order.pop_front() else { break };
            state.recent.remove(&run_key);
            state.bytes -= bytes;
        }
    }
}

pub(crate) struct Waiting<'a> {
    results: &'a Results,
    run_key: RunKey,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.results.0.lock();
        if let Some(senders) = state.waiting.get_mut(&self.run_key) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                state.waiting.remove(&self.run_key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stops_waiting_is_forgotten() {
        let results = Results::default();
        let run_key = RunKey(uuid::Uuid::from_u128(1));
        let stays = results.wait_for(run_key).expect_err("it has not ended");
        {
            let _waiting = results.waiting(run_key);
            let _leaves = results.wait_for(run_key).expect_err("it has not ended");
        }
        assert_eq!(results.0.lock().waiting[&run_key].len(), 1);
        drop(stays);
        drop(results.waiting(run_key));
        assert!(results.0.lock().waiting.is_empty());
    }
}
