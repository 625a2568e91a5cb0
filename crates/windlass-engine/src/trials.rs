//! Trials: a run or task whose worker died several times without progress is tried alone, so that a
//! further crash is its own and not that of its neighbours.
//!
//! Every crash adds a reclaim to all that the worker held, the cause and the innocent alike. One
//! reclaim before the limit a run or task is a suspect. A suspect waits here until this process holds
//! nothing else; then a record of its trial is written and it starts. The record is deleted when the
//! trial ends. A suspect that comes back after a further reclaim and has a record has crashed its
//! worker alone: it is given up. Without a record it was only held beside somebody else, and the
//! further reclaims do not count.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use windlass_kernel::{Body, Error, Query, SettingName};

use crate::capacity::Capacity;
use crate::core::Core;

/// The kind of the settings that store records.
const KIND: &str = "trial";
/// How long a trial waits until this process holds nothing else. Work that goes on for longer has not
/// crashed the process so far.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a suspect has the process for itself. After that other work goes on beside it.
const ALONE_MAX: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// A run or task to try.
pub(crate) trait Suspect: Send + 'static {
    /// The key of the run or the task.
    fn key(&self) -> Uuid;
    /// How often its worker has died or stalled without progress.
    fn reclaims(&self) -> u32;
    /// Starts it. Returns a function that says whether it still runs here.
    fn start(self: Box<Self>) -> Box<dyn Fn() -> bool + Send + Sync>;
    /// Gives it back without a trial.
    fn release(self: Box<Self>);
}

/// Releases a suspect if a panic ends its trial before it starts: otherwise nobody would take it again.
struct ReleaseOnPanic(Option<Box<dyn Suspect>>);

impl ReleaseOnPanic {
    fn start(mut self) -> Option<Box<dyn Fn() -> bool + Send + Sync>> {
        self.0.take().map(|suspect| suspect.start())
    }

    fn release(mut self) {
        if let Some(suspect) = self.0.take() {
            suspect.release();
        }
    }
}

impl Drop for ReleaseOnPanic {
    fn drop(&mut self) {
        if let Some(suspect) = self.0.take().filter(|_| std::thread::panicking()) {
            suspect.release();
        }
    }
}

/// The record of a trial.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The reclaims when the trial began.
    reclaims: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Box<dyn Suspect>>,
    is_serving: bool,
    /// The suspect whose record is in the store.
    on_trial: Option<Uuid>,
    /// Suspects that are to be given up when they start.
    condemned: BTreeSet<Uuid>,
}

pub(crate) struct Trials {
    core: Arc<Core>,
    capacity: Arc<Capacity>,
    state: Mutex<State>,
}

impl Trials {
    pub(crate) fn new(core: &Arc<Core>, capacity: &Arc<Capacity>) -> Arc<Self> {
        let (core, capacity) = (Arc::clone(core), Arc::clone(capacity));
        Arc::new(Self { core, capacity, state: Mutex::default() })
    }

    /// Whether a run or task with this many reclaims is tried alone. With a limit of zero every one is.
    pub(crate) fn is_suspect(&self, reclaims: u32) -> bool {
        let max = self.core.options.reclaims_max;
        max == 0 || (reclaims > 0 && reclaims >= max - 1)
    }

    /// Whether a run or task is given up instead of tried. Answers once.
    pub(crate) fn take_condemned(&self, key: Uuid) -> bool {
        self.state.lock().condemned.remove(&key)
    }

    /// Tries a suspect when its turn comes.
    pub(crate) fn add(self: &Arc<Self>, suspect: Box<dyn Suspect>) {
        let mut state = self.state.lock();
        state.queue.push_back(suspect);
        if !std::mem::replace(&mut state.is_serving, true) {
            self.capacity.set_on_trial(true);
            drop(state);
            let trials = Arc::clone(self);
            self.core.spawn_service("trials", move || Arc::clone(&trials).serve());
        }
    }

    async fn serve(self: Arc<Self>) {
        // After a panic, the trial that it interrupted proves nothing.
        self.end_trial().await;
        tracing::warn!("trying runs or tasks alone that their workers died with; other work waits");
        let quiet_by = self.core.env.elapsed() + QUIET_WAIT_MAX;
        loop {
            let next = {
                let mut state = self.state.lock();
                let next = state.queue.pop_front();
                state.is_serving = next.is_some();
                if next.is_none() {
                    // Under the lock: the next `add` sets it again.
                    self.capacity.set_on_trial(false);
                }
                next
            };
            let Some(suspect) = next else { return };
            if self.core.lifecycle.is_draining() {
                suspect.release();
                continue;
            }
            self.capacity.set_on_trial(true);
            self.until(quiet_by, || !self.capacity.is_busy()).await;
            self.try_one(suspect).await;
        }
    }

    async fn try_one(&self, suspect: Box<dyn Suspect>) {
        let (key, reclaims) = (suspect.key(), suspect.reclaims());
        let suspect = ReleaseOnPanic(Some(suspect));
        match self.is_guilty(key, reclaims).await {
            Ok(true) => {
                let mut state = self.state.lock();
                state.condemned.insert(key);
                // The record of the trial before is deleted with the end of this one.
                state.on_trial = Some(key);
            }
            Ok(false) => {
                self.state.lock().on_trial = Some(key);
                let record = Body::of(&Record { reclaims });
                let written = match record {
                    Ok(record) => self.core.store.put_setting(name_of(key), Some(record)).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = written {
                    tracing::warn!(%key, %error, "failed to record a trial; retrying later");
                    self.state.lock().on_trial = None;
                    return suspect.release();
                }
            }
            Err(error) => {
                tracing::warn!(%key, %error, "failed to read the record of a trial; retrying later");
                return suspect.release();
            }
        }
        let Some(runs) = suspect.start() else { return };
        self.until(self.core.env.elapsed() + ALONE_MAX, || !runs()).await;
        if runs() {
            self.capacity.set_on_trial(false);
            let forever = Duration::MAX;
            self.until(forever, || !runs()).await;
        }
        self.state.lock().condemned.remove(&key);
        self.end_trial().await;
    }

    async fn is_guilty(&self, key: Uuid, reclaims: u32) -> Result<bool, Error> {
        if self.core.options.reclaims_max <= 1 {
            return Ok(true);
        }
        // The name before this one: a list begins after the given name.
        let text = key.to_string();
        let query = Query::Settings { kind: KIND.into(), after: before(&text), limit: 1 };
        let found = self.core.store.list(query).await?.settings()?;
        let found = found.into_iter().find(|setting| *setting.name.name == *text);
        // A record that cannot be read proves nothing.
        let record = found.and_then(|setting| setting.value.read::<Record>().ok());
        Ok(record.is_some_and(|record| reclaims > record.reclaims))
    }

    /// Deletes the record of the trial that is under way. An engine that stops calls this before it
    /// releases what it holds.
    pub(crate) async fn end_trial(&self) {
        let Some(key) = self.state.lock().on_trial.take() else { return };
        if let Err(error) = self.core.store.put_setting(name_of(key), None).await {
            tracing::warn!(%key, %error, "failed to delete the record of a trial");
        }
    }

    // Waits until something is so, the time has come, or the engine stops.
    async fn until(&self, by: Duration, is_so: impl Fn() -> bool) {
        let Core { env, lifecycle, .. } = &*self.core;
        while !is_so() && env.elapsed() < by && !lifecycle.is_stopped() {
            env.sleep(POLL_EVERY).await;
        }
    }
}

fn name_of(key: Uuid) -> SettingName {
    SettingName::new(KIND, &key.to_string())
}

// The greatest text below a UUID's, as far as names of trials go.
fn before(text: &str) -> Option<Arc<str>> {
    let key: u128 = text.parse::<Uuid>().ok()?.as_u128();
    Some(Uuid::from_u128(key.checked_sub(1)?).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_before_a_key_sorts_before_it() {
        for key in [1, 16, u128::MAX, 0x0199_0000_0000_7000_8000_0000_0000_0000] {
            let text = Uuid::from_u128(key).to_string();
            assert!(*before(&text).expect("there is one") < *text);
        }
        assert_eq!(before(&Uuid::nil().to_string()), None);
    }
}
