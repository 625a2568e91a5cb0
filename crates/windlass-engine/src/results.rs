//! The waiters for ends of runs, and the results of recently ended runs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use windlass_kernel::{Body, Error, ErrorCode, ErrorKind, Run, RunKey, RunStatus};

use crate::core::{Core, FixedState};
use crate::local_runs::LocalRuns;

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

/// How long a waiter for a run of another process sleeps between two queries.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(1);
/// Bounds of the results that are answered without a query to the store.
const RECENT_MAX: usize = 16_384;
const RECENT_BYTES_MAX: usize = 16 * 1024 * 1024;
const RECENT_OVERHEAD_BYTES: usize = 200;

/// How long a watch of ends waits after an end: those that follow it share one answer. The time grows,
/// because a waiter that is called again and again asks about many runs, which costs more.
const ENDS_DELAY_MIN: Duration = Duration::from_millis(20);
const ENDS_DELAY_MAX: Duration = Duration::from_millis(250);

pub(crate) struct Results {
    state: Mutex<State>,
    // How many runs ended through this process.
    ends: watch::Sender<u64>,
}

impl Default for Results {
    fn default() -> Self {
        Self { state: Mutex::default(), ends: watch::Sender::new(0) }
    }
}

#[derive(Default)]
struct State {
    waiting: HashMap<RunKey, Vec<oneshot::Sender<Ended>>, FixedState>,
    recent: HashMap<RunKey, Ended, FixedState>,
    order: VecDeque<(RunKey, usize)>,
    bytes: usize,
}

impl Results {
    /// The result of a run if it is cached, else a receiver that will get it.
    pub(crate) fn wait_for(&self, run_key: RunKey) -> Result<Ended, oneshot::Receiver<Ended>> {
        let mut state = self.state.lock();
        if let Some(ended) = state.recent.get(&run_key) {
            return Ok(ended.clone());
        }
        let (sender, receiver) = oneshot::channel();
        let waiting = state.waiting.entry(run_key).or_default();
        waiting.retain(|sender| !sender.is_closed());
        waiting.push(sender);
        Err(receiver)
    }

    /// A guard that removes closed receivers of the run when it is dropped.
    pub(crate) fn waiting(&self, run_key: RunKey) -> Waiting<'_> {
        Waiting { results: self, run_key }
    }

    pub(crate) fn ended(&self, ended: Ended) {
        self.store_ended(ended);
        if self.ends.receiver_count() > 0 {
            self.ends.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    fn store_ended(&self, ended: Ended) {
        let mut state = self.state.lock();
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
        let mut state = self.results.state.lock();
        if let Some(senders) = state.waiting.get_mut(&self.run_key) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                state.waiting.remove(&self.run_key);
            }
        }
    }
}

/// Waits for ends of runs, of this process or of others.
pub(crate) struct ResultWaiter {
    pub(crate) core: Arc<Core>,
    pub(crate) runs: Arc<LocalRuns>,
    pub(crate) results: Arc<Results>,
}

impl ResultWaiter {
    /// Watches ends of runs from now on.
    pub(crate) fn watch_ends(&self) -> EndsWatch {
        let ends = self.results.ends.subscribe();
        EndsWatch { core: Arc::clone(&self.core), ends, poll: POLL_MIN, delay: ENDS_DELAY_MIN }
    }

    /// Waits until a run has ended.
    pub(crate) async fn wait(&self, run_key: RunKey) -> Result<Ended, Error> {
        let (core, results) = (&self.core, &self.results);
        let mut poll = POLL_MIN;
        // Dropped last: it removes this waiter, even if the caller drops this future.
        let _waiting = results.waiting(run_key);
        loop {
            let receiver = match results.wait_for(run_key) {
                Ok(ended) => return Ok(ended),
                Err(receiver) => receiver,
            };
            // A run whose turn is held here ends here. Any other run may have ended before, and its
            // result may no longer be cached.
            let held_run = self.runs.held(run_key);
            let goes_on = held_run.is_some_and(|held_run| !held_run.is_released());
            if !goes_on {
                let mut run = core.current(run_key).await?;
                if run.status.is_ended() {
                    core.fill_run(&mut run).await?;
                    return Ok(ended(run));
                }
            }
            if core.lifecycle.is_stopped() {
                return Err(stopped());
            }
            if !core.options.shared {
                let stopped = std::pin::pin!(core.lifecycle.stopped());
                match futures::future::select(receiver, stopped).await {
                    futures::future::Either::Left((Ok(ended), _)) => return Ok(ended),
                    _ => continue,
                }
            }
            let slept = core.env.sleep(poll);
            match futures::future::select(receiver, slept).await {
                futures::future::Either::Left((Ok(ended), _)) => return Ok(ended),
                _ => poll = (poll * 2).min(POLL_MAX),
            }
        }
    }
}

/// Tells a waiter for many runs when to look at them again, so that it sends one query and not one for
/// each run.
pub struct EndsWatch {
    core: Arc<Core>,
    ends: watch::Receiver<u64>,
    poll: Duration,
    delay: Duration,
}

impl EndsWatch {
    /// Waits until some run may have ended: one has ended through this process since the last call, or, if
    /// other processes use the store, some time has passed.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::EngineStopping`]: the engine has stopped.
    pub async fn changed(&mut self) -> Result<(), Error> {
        let core = &self.core;
        let timeout = async {
            match core.options.shared {
                true => core.env.sleep(self.poll).await,
                false => std::future::pending().await,
            }
        };
        let timed_out = {
            let ended = std::pin::pin!(self.ends.changed());
            let timeout = std::pin::pin!(timeout);
            let either = futures::future::select(ended, timeout);
            match core.lifecycle.until_stopped(either).await {
                Some(futures::future::Either::Right(_)) => true,
                Some(futures::future::Either::Left(_)) => false,
                None => return Err(stopped()),
            }
        };
        match timed_out {
            true => self.poll = (self.poll * 2).min(POLL_MAX),
            false => {
                self.poll = POLL_MIN;
                core.env.sleep(self.delay).await;
                self.delay = (self.delay * 2).min(ENDS_DELAY_MAX);
            }
        }
        Ok(())
    }
}

fn stopped() -> Error {
    let message = "the engine has stopped; wait for the run with another engine";
    Error::new(ErrorKind::Unavailable, ErrorCode::EngineStopping, message)
}

fn ended(run: Run) -> Ended {
    Ended { run_key: run.run_key, status: run.status, output: run.output, error: run.error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_receivers_are_removed() {
        let results = Results::default();
        let run_key = RunKey(uuid::Uuid::from_u128(1));
        let stays = results.wait_for(run_key).expect_err("it has not ended");
        {
            let _waiting = results.waiting(run_key);
            let _leaves = results.wait_for(run_key).expect_err("it has not ended");
        }
        assert_eq!(results.state.lock().waiting[&run_key].len(), 1);
        drop(stays);
        drop(results.waiting(run_key));
        assert!(results.state.lock().waiting.is_empty());
    }
}
